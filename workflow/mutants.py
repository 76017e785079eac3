"""Change the code that decides, one place at a time, and see whether the tests notice: `make mutants`.

    python workflow/mutants.py --number 300 --processes 2
    python workflow/mutants.py --again          # what survived is tried again: the tests have grown

A mutant is one change that cosmic-ray makes to a module of GUARDS: another operator of its kind, a number one larger or
smaller, a condition turned round, a loop that does nothing. It is caught if one of the module's tests fails or hangs;
they are the quick ones, which `make test` runs. A place is changed once at most; the sample is drawn with a seed, from
each module by its places. Left out is what means nothing: type hints, the text of an error, `is` for `==`, bit
operators on what are no bits, and what is no Python. Each mutant is made in a copy, and tried in a fork of this
process, which has loaded the libraries. A run that was stopped goes on where it was: a result holds for as long as the
module stays as it is.

At the end stand the share of each module's mutants that were caught, and each survivor: the line, and what became of
it. Either nobody can see the difference, or a test is missing; docs/mutants.md says which, and the lines that it has
are marked `judged`. The exit code is 1 where fewer than 90 % were caught.
"""
import argparse
import difflib
import hashlib
import importlib
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

import parso
import pytest
from cosmic_ray.commands import init
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkItem, WorkResult

ROOT = Path(__file__).resolve().parent.parent
PLACE = ROOT / "build" / "mutants"
COPIED = "fedlib data_scripts tests pyproject.toml build/data".split()
GUARDS = {      # module: its tests, the most telling first
    "core/params": "core/test_params methods/test_by_hand methods/test_server",
    "methods/base": "methods/test_by_hand methods/test_server methods/test_features engine/test_protocol "
                    "experiments/test_tables datasets/test_partition",
    "methods/server": "methods/test_server",
    "methods/features": "methods/test_features",
    "methods/own_heads": "methods/test_own_heads",
    "methods/prompts": "methods/test_prompts",
    "methods/unseen": "methods/test_unseen",
    "experiments/statistics": "experiments/test_statistics",
    "experiments/evidence": "experiments/test_claims",
    "experiments/claims": "experiments/test_claims experiments/test_tables",
    "experiments/filled": "engine/test_forged experiments/test_claims experiments/test_tables",
    "experiments/tune": "experiments/test_tune",
    "experiments/verify": "experiments/test_verify",
    "datasets/splits": "datasets/test_splits",
    "datasets/partition": "datasets/test_partition datasets/test_splits",
    "engine/checkpoint": "engine/test_checkpoint",
    "engine/evaluate": "engine/test_protocol methods/test_features datasets/test_partition",
    "remote/wire": "remote/test_wire",
}
OPTIONS = ("-x -q --quick --timeout 60 -p no:cacheprovider --hypothesis-seed=0 "
           "--deselect tests/experiments/test_tables.py::test_the_readme_shows_what_the_records_give "
           "--deselect tests/experiments/test_tune.py::test_a_table_of_transfer_chooses_by_both_columns").split()
LOADED = "torch pandas scipy.stats sklearn.model_selection safetensors.torch hypothesis.strategies nbval.plugin".split()
KINDS = {"Add", "Sub", "Mul", "Div", "FloorDiv", "Mod", "Pow"}, {"BitOr", "BitAnd", "BitXor"}, {"RShift", "LShift"}
LEAST, SHARE, SEED = 10, 0.9, 0


def sample(number: int) -> dict[str, list[WorkItem]]:
    """About so many mutants, by module."""
    every = {}
    for module in GUARDS:
        with use_db(":memory:") as db:
            init([Path(f"fedlib/{module}.py")], db, {})
            found = sorted((item.mutations[0] for item in db.work_items), key=lambda m: (m.operator_name, m.occurrence))
        random.Random(f"{SEED} {module}").shuffle(found)
        every[module] = found
    places = {module: len({m.start_pos for m in found}) for module, found in every.items()}
    shares = {module: max(LEAST, round(number * n / sum(places.values()))) for module, n in places.items()}
    return {module: drawn(source(module), found, shares[module]) for module, found in every.items()}


def source(module: str, root: Path = ROOT) -> str:
    return (root / f"fedlib/{module}.py").read_text()


def mutated(text: str, m) -> str:
    return mutate_code(text, get_operator(m.operator_name)(), m.occurrence)


def drawn(text: str, mutations: list, number: int) -> list[WorkItem]:
    """The first so many that mean something, one of each place. A name digests what the module was."""
    tree, digest, found = parso.parse(text), hashlib.sha256(text.encode()).hexdigest()[:12], {}
    for m in mutations:
        if len(found) < number and m.start_pos not in found and of_its_kind(m.operator_name) \
                and means_something(tree.get_leaf_for_position(m.start_pos)) and compiles(mutated(text, m)):
            found[m.start_pos] = WorkItem.single(f"{digest}:{m.operator_name}:{m.occurrence}", m)
    return list(found.values())


def of_its_kind(operator: str) -> bool:
    """Is an operator replaced by one that the same values can have? `==` and `is` differ by CPython's leave only."""
    what, *swap = operator.removeprefix("core/").split("_")
    return (what != "ReplaceBinaryOperator" or any(set(swap) <= kind for kind in KINDS)) \
        and swap not in (["Eq", "Is"], ["NotEq", "IsNot"])


def means_something(leaf) -> bool:
    """Is it part of what the program does, and not of a type hint or of an error's text?"""
    while leaf.parent:
        before, up = leaf.get_previous_sibling(), leaf.parent.type
        if up == "raise_stmt" or before == "->" or before == ":" and up in ("tfpdef", "annassign"):
            return False
        leaf = leaf.parent
    return True


def compiles(code: str) -> bool:
    try:
        return bool(compile(code, "mutant", "exec"))
    except SyntaxError:
        return False


def tried(work: tuple[str, WorkItem | None]) -> tuple[str, WorkResult]:
    """What a module's tests say of a mutant, or of the module as it is. Ends the use of this process."""
    module, item = work
    with tempfile.TemporaryDirectory(prefix="copy-", dir=PLACE) as folder:
        copy, was = Path(folder), source(module)
        for path in filter(Path.exists, map(Path, COPIED)):
            (shutil.copytree if path.is_dir() else shutil.copy)(path, copy / path)
        now = mutated(was, item.mutations[0]) if item else was
        (copy / f"fedlib/{module}.py").write_text(now)
        os.chdir(copy)
        os.environ["PYTHONPATH"] = sys.path[0] = folder
        sys.argv, sys.dont_write_bytecode = ["pytest"], True
        for stream in (1, 2):
            os.dup2(os.open("output.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
        code = pytest.main([*OPTIONS, *(f"tests/{name}.py" for name in GUARDS[module].split())])
        output = Path("output.txt").read_text(errors="replace")
        os.chdir(ROOT)
    lines = [*difflib.unified_diff(was.split("\n"), now.split("\n"), n=0, lineterm="")][3:]
    outcome = TestOutcome.KILLED if code else TestOutcome.SURVIVED
    return item and item.job_id, WorkResult(WorkerOutcome.NORMAL, output, outcome, "\n".join(lines))


def try_all(wanted: dict[str, list[WorkItem]], db, processes: int):
    """Try the mutants of each module and keep what came out, one by one."""
    work = [(module, item) for module, items in wanted.items() for item in items]
    for library in LOADED:
        importlib.import_module(library)
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        for module, (_, found) in zip(wanted, pool.imap(tried, [(module, None) for module in wanted])):
            print(f"» {module} as it is", flush=True)
            if found.is_killed:
                raise RuntimeError(f"the tests of {module} fail where nothing is changed:\n{found.output}")
        for number, (name, found) in enumerate(pool.imap_unordered(tried, work), 1):
            db.set_result(name, found)
            print(f"» {number}/{len(work)}", flush=True)


def show(chosen: dict[str, list[WorkItem]], results: dict[str, WorkResult]) -> float:
    """Print each module's share and the survivors; returns the share of all."""
    judged, shares = (ROOT / "docs/mutants.md").read_text(), []
    for module, items in chosen.items():
        alive = [item for item in items if not results[item.job_id].is_killed]
        shares.append((len(items) - len(alive), len(items)))
        print(f"fedlib/{module}.py: {shares[-1][0]} of {shares[-1][1]} caught")
        for item in alive:
            lines = results[item.job_id].diff.split("\n")
            was, now = (" ".join(line[1:].strip() for line in lines if line[:1] == sign) for sign in "-+")
            print(f"  line {item.mutations[0].start_pos[0]}{', judged' * (now in judged)}\n    - {was}\n    + {now}")
    caught, of = map(sum, zip(*shares))
    print(f"{caught} of {of} mutants caught: {caught / of:.1%}")
    return caught / of


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--number", type=int, default=300, help="mutants in the sample, about")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--again", action="store_true", help="try those again that survived")
    options = parser.parse_args()
    os.chdir(ROOT)
    PLACE.mkdir(parents=True, exist_ok=True)
    for old in PLACE.glob("copy-*"):
        shutil.rmtree(old)
    chosen = sample(options.number)
    with use_db(PLACE / "results.sqlite") as db:
        known, done = {item.job_id for item in db.work_items}, dict(db.results)
        db.add_work_items(item for items in chosen.values() for item in items if item.job_id not in known)
        lacking = {module: [i for i in items if i.job_id not in done or options.again and not done[i.job_id].is_killed]
                   for module, items in chosen.items()}
        try_all({module: items for module, items in lacking.items() if items}, db, options.processes)
        return int(show(chosen, dict(db.results)) < SHARE)


if __name__ == "__main__":
    sys.exit(main())
