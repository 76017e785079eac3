"""What every table plans is what it planned when its records were made: no digest changes unnoticed.

`python tests/experiments/test_planned_runs.py` writes planned_runs.json anew. Look at its difference: where a digest
changed that should not have, records are lost.
"""
import hashlib
import json
import subprocess
from fnmatch import fnmatch
from pathlib import Path

import pytest

from fedlib.experiments import tables, tune

KEPT = Path(__file__).with_name("planned_runs.json")
ROOT = Path(__file__).resolve().parents[2]      # conftest has it too, but this is a program as well
# What lies below results/ and belongs to no planned run, and why. Each machine that was measured has its own files.
NAMED = {"SHA256SUMS": "of `python book/readme.py`: what the lists of the folders hold",
         "*/SHA256SUMS": "of it, too: what each record of the folder holds",
         "crosschecks.json": "what other implementations gave: fedlib.report.crosschecks reads it",
         "bench/*.bench": "of `fedlib bench` and `make gpu`",
         "bench/*.whole": "of `fedlib bench --whole` and `make compare-speed`",
         "bench/*.launches": "of `make gpu`, too: tests/gpu/test_launches.py counted it"}


def planned(ident: str) -> dict[str, list]:
    """{profile: [how many runs, 12 digits over them in their order]} of a table, where there are any."""
    found = {}
    for profile in tables.PROFILES:
        runs = [(p.row, p.block, p.seed, p.unseen, p.run.digest) for p in tables.load_table(ident).runs(profile)]
        if runs:
            found[profile] = [len(runs), hashlib.sha256(json.dumps(runs).encode()).hexdigest()[:12]]
    return found


@pytest.fixture(scope="module")
def kept():
    return json.loads(KEPT.read_text(encoding="utf-8"))


def test_every_table_is_listed(kept):
    assert list(kept) == tables.idents()


@pytest.mark.parametrize("ident", tables.idents())
def test_a_table_plans_what_it_planned(ident, kept):
    assert planned(ident) == kept[ident]


@pytest.mark.committed
def test_every_committed_record_belongs_to_a_planned_run():
    listed = subprocess.run(["git", "ls-files", "results"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs the git repository to know what is committed")
    wanted = {file.as_posix() for table in map(tables.load_table, tables.idents()) for profile in tables.PROFILES
              for p in [*table.runs(profile), *table.halves(profile), *table.references(profile),
                        *tune.tries(table, profile)]
              for file in p.files(Path("results"))}
    left = {name.removeprefix("results/") for name in listed.stdout.splitlines() if name not in wanted}
    assert not [name for name in left if not any(fnmatch(name, pattern) for pattern in NAMED)]
    assert not [pattern for pattern in NAMED if not any(fnmatch(name, pattern) for name in left)]


def write():
    lines = [f' "{ident}": {json.dumps(planned(ident))}' for ident in tables.idents()]
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
