"""Many runs on one machine: each in a process of its own, side by side, within a time budget."""
import importlib
import math
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import torch

from fedlib.core import machine
from fedlib.core.errors import UserError, pick
from fedlib.core.files import Busy
from fedlib.datasets import feature_cache, prepare
from fedlib.engine import loop, records
from fedlib.engine import stack as stacked
from fedlib.experiments import evidence, failures, processes, status, tables, tune
from fedlib.experiments.results import results_folder
from fedlib.probes import embeddings

BESIDE = "FEDLIB_PARENT"    # in a run's environment: the pipe of which the process that started it holds the other end
STUCK = 60.0    # seconds without a moment of processor time, after its budget, that end a run
STOPPED = 3     # exit code of a run that its time budget stopped; the checkpoint continues it


def seconds(text: str) -> float:
    """'90', '90s', '9m', '1.5h' as seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if not match or not float(match[1]):
        raise UserError(f"time budget '{text}' is not a length of time (like 90s, 9m or 1.5h)")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def together(device: str) -> int:
    """Runs at once, where nobody says how many: one for each core, or one for each GPU."""
    return os.cpu_count() if device == "cpu" else len(machine.places(device))


class Child:
    """One run in its own process. It prints a line per round; the rest goes to its log."""

    def __init__(self, planned, command, log: Path, left: float | None = None):
        self.planned, self.log, self.last = planned, log, "starting"
        self.over = math.inf if left is None else time.monotonic() + left       # when its budget is spent
        self.used, self.moved = None, 0.0       # processor time, and when it last rose
        env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", BESIDE: "0"}
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
            out = open(log, "w")
        except OSError as error:
            raise UserError(f"cannot write {log}: {error.strerror}") from error
        with out:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT,
                                            env=env)        # nothing is written: the pipe ends when this process does

    def poll(self):
        """Exit code, or None while it runs; keeps the last progress line. What hangs after its budget is killed."""
        now = time.monotonic()
        if now > self.over and (used := processes.processor_seconds(self.process.pid)) is not None:
            if used != self.used:
                self.used, self.moved = used, now
            elif now - self.moved > STUCK:
                self.process.kill()
        lines = self.log.read_text(errors="replace").splitlines()
        self.last = next((x[2:] for x in reversed(lines) if x.startswith("» ")), self.last)
        return self.process.poll()

    def problem(self) -> str:
        """The last line it wrote."""
        lines = [x for x in self.log.read_text(errors="replace").splitlines() if x and not x.startswith("» ")]
        return lines[-1].removeprefix("fedlib: ") if lines else f"exit code {self.process.returncode}"


@processes.through_finally()
def execute(todo: list, results: Path, jobs: int, device: str = "cpu", budget: float | None = None, say=print,
            stack: str | int | None = None, more=lambda: []) -> dict:
    """Run what is planned, `jobs` at once; returns counts "done", "stopped", "elsewhere" (another process trains
    them: they are left to it), "left" and the list "failed".

    A failed run never stops the others; its log is kept and named. One that lacked memory beside others is tried again
    alone. Interrupted or stopped runs continue next time. On several GPUs each run gets the one that has the fewest.
    No run outlives this process. more: what comes next, asked whenever nothing waits.
    """
    start, waiting, running, again, total = time.monotonic(), list(todo), [], [], len(todo)
    stack = stack or stacked.usual(device)
    outcome = {"done": 0, "failed": [], "stopped": 0, "elsewhere": 0, "left": 0}
    shown, ask = "", True
    try:
        while True:
            left = None if budget is None else budget - (time.monotonic() - start)
            while len(running) < jobs and (left is None or left > 0):
                if ask and not waiting:
                    waiting = more()
                    total, ask = total + len(waiting), bool(waiting)
                if again and not waiting and not running:       # alone they have all of it
                    waiting, again, jobs = again, [], 1
                if not waiting:
                    break
                free = min(machine.places(device), key=lambda d: sum(c.device == d for c in running))
                planned = waiting.pop(0)
                if status.state(planned, results) == "running":
                    outcome["elsewhere"] += 1
                    continue
                running.append(_start(planned, results, free, left, stack))
                running[-1].device = free
            if not running:
                break
            for child in list(running):
                if (code := child.poll()) is not None:
                    running.remove(child)
                    ask = True      # a record may say what comes next
                    if jobs > 1 and _lacked_memory(child, code, results):
                        again.append(child.planned)
                    else:
                        _end(child, code, outcome, results, device)
            line = _line(outcome, total, running, start)
            if line != shown:
                say(line)
                shown = line
            time.sleep(0.3)
    finally:
        for child in running:
            child.process.terminate()
        for child in running:
            try:
                child.process.wait(10)
            except subprocess.TimeoutExpired:       # it was stopped, or hangs
                child.process.kill()
                child.process.wait()
    outcome["left"] = total - outcome["done"]
    return outcome


def _start(planned, results, device, left, stack) -> Child:
    command = [sys.executable, "-m", "fedlib", "run", planned.table, "--profile", planned.profile, "--seeds",
               str(planned.seed), "--only", planned.run.digest, "--results", str(results), "--device", device,
               "--stack", str(stack)]
    log = Path(results) / ".logs" / f"{planned.run.method}-{planned.run.digest}.log"
    return Child(planned, command + (["--time-budget", f"{max(left, 1):.0f}s"] if left else []), log, left)


def _lacked_memory(child: Child, code: int, results: Path) -> bool:
    found = failures.read(child.planned, results) if code else None
    return found is not None and found["kind"] == failures.MEMORY


def _end(child: Child, code: int, outcome: dict, results: Path, device: str):
    name = f"{child.planned.row}, {child.planned.block}, seed {child.planned.seed}"
    if code == 0 and child.planned.done(results):
        outcome["done"] += 1
        child.log.unlink()
    elif code == STOPPED:
        outcome["stopped"] += 1
        child.log.unlink()
    else:
        if code < 0:
            failures.write(child.planned, f"killed by signal {-code} (9: often for its memory)", results, device)
        outcome["failed"].append(f"{name}: {child.problem()} (log: {child.log})")


def _line(outcome, total, running, start) -> str:
    now = ", ".join(f"{c.planned.row} s{c.planned.seed} {c.last}" for c in running)
    minutes, secs = divmod(int(time.monotonic() - start) // 5 * 5, 60)
    failed = f", {len(outcome['failed'])} failed" if outcome["failed"] else ""
    return f"» {outcome['done']}/{total} runs{failed}, {minutes}m{secs:02d}s · {now}"


def ensure(table, profile: str, seeds=None, mode: str = "read", device: str = "auto", results: Path | None = None,
           jobs: int | None = None) -> Path:
    """For notebooks: the folder of records. With mode "run" it trains what is missing first, and says on what."""
    results, planned = results_folder(results), table.runs(profile, seeds)
    pick("mode", mode, ("read", "run"))
    todo = [p for p in planned if not p.done(results)]
    if todo and mode == "run":
        device = machine.chosen(device)
        print(f"device: {device} ({machine.described(device)['hardware']})")
        outcome = execute(todo, results, jobs or together(device), device)
        if outcome["failed"]:
            raise UserError(f"{len(outcome['failed'])} runs failed: {outcome['failed'][0]}")
    return results


def one(planned, results: Path, device: str = "cpu", budget: float | None = None, say=print, stack: str | int = 1):
    """One run in this process on one CPU thread, a line per round. Raises OutOfTime when the budget is spent; of
    another end `fedlib.experiments.failures` keeps a record.

    stack: how many clients train at once, as in `fedlib.engine.stack.choose`.
    """
    if pipe := os.environ.pop(BESIDE, ""):
        machine.end_with_parent(int(pipe))
    torch.set_num_threads(1)        # the same record alone and among others
    deadline = None if budget is None else time.monotonic() + budget
    how = {"device": device, "deadline": deadline, "stack": stack,
           "say": lambda e: say(f"» round {e['round']}/{e['rounds']} {e['test']}")}
    try:
        if planned.features:
            made = embeddings.collect(planned.run, planned.features, results, **how)
        elif planned.measure:
            probe = importlib.import_module(f"fedlib.probes.{tables.MEASURES[planned.measure]}")
            made = probe.collect(planned.run, results, **how)
        else:
            made = loop.train(planned.run, results, **how)
    except (loop.OutOfTime, Busy):
        raise
    except Exception as error:
        failures.write(planned, error, results, device)
        raise
    failures.clear(planned, results)
    return made


def differences(fresh: Path, committed: Path) -> list[tuple[str, bool, float]]:
    """For each fresh record: its path below the folder, whether the committed record of the same run has every
    percentage and loss equal, and how far the two are apart in what a table shows: the mean over domains and the last
    five rounds of whatever was measured, or half of what a single domain is apart (points; nan when there is no other).

    On another kind of processor sums are rounded differently, and a run takes another path to a like end. Where both
    records name the same one and the same torch, and sums in one order, anything but equality is an infinite distance.
    """
    lines = []
    for path in sorted(Path(fresh).glob("*/*-*.json")):
        other, same, gap = Path(committed) / path.relative_to(fresh), False, float("nan")
        if other.exists():
            both = [records.read_record(p) for p in (path, other)]
            a, b = (record["rounds"] for record in both)
            one, two = ([*(record["made"].get(k) for k in ("hardware", "torch", "threads")),
                         record["rounds"][-1].get("stack", 1)] for record in both)
            settled = all(record["made"].get("deterministic", True) for record in both)
            same = len(a) == len(b) and all(map(measured_alike, a, b))
            # another number of rounds: early stopping took another turn
            gap = float("inf") if len(a) != len(b) or settled and one == two and None not in one and not same \
                else apart(a, b)
        lines.append((str(path.relative_to(fresh)), same, gap))
    return lines


def measured_alike(one: dict, other: dict) -> bool:
    """Have two rounds the same percentages and training loss, and a test loss that differs by rounding at most? Its sum
    depends on how many images are tested at once, which nothing else does."""
    return (all(one.get(k) == other.get(k) for k in (*records.BY_NAME, "train_loss"))
            and math.isclose(one.get("loss", 0.0), other.get("loss", 0.0), rel_tol=1e-5, abs_tol=1e-6))


def apart(one: list[dict], other: list[dict]) -> float:
    """Points between two lists of rounds: as `differences` has it."""
    gaps = []
    for kind in [k for k in records.BY_NAME if k in one[-1] or k in other[-1]]:
        a, b = (pd.DataFrame([r.get(kind, {}) for r in rounds[-5:]]).mean() for rounds in (one, other))
        gaps += [float("inf")] if set(a.index) != set(b.index) else [abs(a.mean() - b.mean()), (a - b).abs().max() / 2]
    return max(gaps)


def differences_text(lines: list) -> str:
    """What `differences` found, in one line."""
    known = [gap for _, _, gap in lines if gap == gap]
    equal, most = sum(same for _, same, _ in lines), max(known, default=0)
    return (f"{len(lines)} fresh records: {equal} equal to the committed ones in every percentage and loss, "
            f"{len(known) - equal} differ by at most {most:.2f} points in their last five rounds, "
            f"{len(lines) - len(known)} have no committed one")


# the commands

def chosen(ident: str, profile: str, seeds=None, only: str | None = None, halves_of: Path | None = None) -> list:
    """The planned runs of a table, or those of one row, method or digest. UserError: there are none.

    halves_of: results whose runs are asked for in half the rounds, instead of the table's own.
    """
    table = tables.load_table(ident)
    planned = table.runs(profile, seeds) + table.references(profile, seeds)
    if halves_of:
        planned = evidence.halves(table, profile, halves_of, seeds)
    if only:
        names = list(dict.fromkeys(k for p in planned for k in (p.row, p.run.method)))
        # by their digest, one at a time
        beside = tune.tries(tune.reaching(table), profile, seeds=seeds or tune.SEEDS) + table.halves(profile, seeds)
        planned = ([p for p in planned if only in (p.row, p.run.method, p.run.digest)]
                   or [p for p in beside if only == p.run.digest])
        if not planned:
            pick(f"row, method or digest of {ident}", only, names)
    if not planned:
        raise UserError(f"{ident} has no runs in profile '{profile}'"
                        + " that have ended at a rate of nothing" * bool(halves_of))
    return planned


def run_table(ident: str, profile: str, planned: list, results: Path, device: str = "cpu", jobs: int | None = None,
              stack: str | None = None, budget: str | None = None, say=print, progress=print) -> int:
    """Train those of the planned runs that lack something; returns the exit code of `fedlib run`: 1 where one failed,
    STOPPED where some are left. One that is left is trained in this process."""
    stack = stacked.asked(stack or str(stacked.usual(device)))
    for p in planned:
        if p.run.path(results).exists():
            records.read_record(p.run.path(results))
    todo = list({p.run.digest: p for p in planned if not p.done(results)}.values())     # a tuned row may be as given
    budget = seconds(budget) if budget else None
    there = f"{len(planned) - len(todo)} of {len(planned)} records are in {results}"
    say(f"{ident}, {profile}: {there}, {len(todo)} to train")
    if not todo:
        return 0
    machine.check_device(device)
    ready(todo, device, say)
    if len(todo) == 1:
        try:
            say(f"record: {one(todo[0], results, device, budget, say, stack)}")
            return 0
        except loop.OutOfTime as stop:
            say(str(stop))
            return STOPPED
    jobs = jobs or together(device)
    outcome = execute(todo, results, jobs, device, budget, progress, stack)
    stopped = f", {outcome['stopped']} stopped in time: run the same command to continue" if outcome["stopped"] else ""
    others = f", {outcome['elsewhere']} of them with another process" if outcome["elsewhere"] else ""
    say(f"\n{outcome['done']} trained, {outcome['left']} left{others}{stopped}")
    for problem in outcome["failed"]:
        print(f"failed: {problem}", file=sys.stderr)
    return 1 if outcome["failed"] else STOPPED if outcome["left"] else 0


def ready(todo: list, device: str, say):
    """Prepare the data of what is planned once, before many processes ask for it; say what will be slow here."""
    for line in sorted({machine.slow(p.run.protocol.precision, device) for p in todo} - {""}):
        say(line)
    for name, size, encoder in sorted({(p.run.data.name, p.run.data.size, p.run.data.encoder) for p in todo}):
        prepare.load_set(name, size or None)
        if encoder:
            feature_cache.ensure_features(name, size or None, encoder, device, say)


def listing(ident: str, profile: str, seeds, results: Path) -> list[dict]:
    """The runs of a table and the files each one makes, for an engine that starts `fedlib run --only DIGEST`."""
    return [{"row": p.row, "block": p.block, "unseen": p.unseen, "seed": p.seed, "digest": p.run.digest,
             "files": list(map(str, p.files(results))), "missing": [str(f) for f in p.files(results) if not f.exists()],
             "failure": str(failures.path(p.run, results))}
            for p in chosen(ident, profile, seeds)]


def listing_text(lines: list[dict]) -> str:
    """The same for a reader."""
    return "\n".join(f"{'missing' if line['missing'] else 'done':<8} {line['digest']} {line['row']}, {line['block']}, "
                     f"seed {line['seed']}" + f", without {line['unseen']}" * bool(line["unseen"]) for line in lines)


def tune_table(ident: str, profile: str, results: Path, blocks=None, rows=None, count: int = tune.TRIES,
               seeds=tune.SEEDS, say=print, **how) -> int:
    """Train the tries that are missing, then keep what they choose; returns the exit code of `fedlib tune`.

    how: as for `run_table`. Rows whose tries are not all there yet are left for the next call. A try that diverged has
    answered.
    """
    known = [r["name"] for r in tables.load_table(ident).rows if not tables.is_tuned(r["name"])]
    choice, planned, code = (blocks, rows and [pick("row", r, known) for r in rows], count, seeds), [], 0
    while all(ended(p, results) for p in planned):
        table, before = tune.reaching(tables.load_table(ident)), len(planned)
        planned = tune.tries(table, profile, *choice)
        if len(planned) == before:
            break
        try:
            code = run_table(ident, profile, planned, results, say=say, **how)
        except loop.Diverged as error:      # the one that was left, in this process: it counts as others that fail
            say(f"failed: {error}")
            code = 1
        for place, of in keep_choices(table, profile, planned, results, *choice).items():
            for row, c in of.items():
                changed = ", ".join(f"{k} = {v}" for k, v in {**c["protocol"], **c["settings"]}.items())
                say(f"{place}: {row}: {changed or 'as it is given'}; {c['accuracy']:.2f} % on validation samples, "
                    f"{c['given']:.2f} as given")
            say(f"kept in {tables.tuned_file(ident)}")
    if not planned:
        raise UserError(f"{ident} has no rows to tune in profile '{profile}'")
    return 0 if all(ended(p, results) for p in planned) else code


def keep_choices(table, profile: str, planned: list, results: Path, *how) -> dict:
    """What the planned tries choose for the rows of which all are there, or have diverged; kept with the table.

    how: blocks, rows, count and seeds as for `tune.choose`, which says what is returned.
    """
    open_ = {(p.block, p.row) for p in planned if not ended(p, results)}
    chosen = {place: {row: c for row, c in of.items() if (place.removesuffix(f".{profile}"), row) not in open_}
              for place, of in tune.choose(table, profile, results, *how).items()}
    tune.keep(table, chosen := {place: of for place, of in chosen.items() if of})
    return chosen


def ended(planned, results: Path) -> bool:
    """Is it done, or has it diverged? What lacked memory, was killed or is a bug has said nothing of its settings."""
    return planned.done(results) or (failures.read(planned, results) or {}).get("kind") == failures.DIVERGED
