"""What is done, running, stopped, failed and missing of a table, what it has cost, and what the rest may cost."""
import fcntl
import statistics
from collections import defaultdict
from pathlib import Path

from safetensors import SafetensorError, safe_open

from fedlib.core import schema
from fedlib.engine import records
from fedlib.experiments import failures, tables

STATES = ("done", "running", "stopped", "failed", "missing")


def state(planned, results: Path) -> str:
    """One of STATES. stopped: a checkpoint from which it goes on."""
    if planned.done(results):
        return "done"
    if any(map(held, places(planned, results, ".lock"))):
        return "running"
    if failures.path(planned.run, results).exists():
        return "failed"
    return "stopped" if any(p.exists() for p in places(planned, results, ".partial")) else "missing"


def places(planned, results: Path, ending: str) -> list[Path]:
    """Where a file of a run in progress may lie: beside its record, or aside, where something is measured with it."""
    kinds = [k for k in ("features" if planned.features else "", planned.measure) if k]
    return [planned.run.path(folder).with_suffix(ending) for folder in (results, *(results / f".{k}" for k in kinds))]


def held(lock: Path) -> bool:
    """Does a process hold this lock file?"""
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def begun(planned, results: Path) -> float:
    """The share of its rounds that a stopped or running run has behind it."""
    for partial in places(planned, results, ".partial"):
        try:
            with safe_open(partial, "pt") as file:
                about = schema.parsed((file.metadata() or {}).get("about", ""))
            rounds = schema.check(about, {"rounds": [{"round": int}]})["rounds"]
            last = rounds[-1]["round"] if rounds else 0
            return min(1.0, max(0, last) / planned.run.protocol.rounds)
        except (OSError, SafetensorError, ValueError):
            continue
    return 0.0


def summary(planned: list, results: Path) -> dict:
    """{"done", ..., "missing": counts, "hours": spent on the records, "left": hours, "guessed": runs without a basis,
    "usual": hours of a run, "peak_mb": the most memory of a record, "hardware": where they were made}.

    left is computing time, one run after the other: a run that is not done costs the median of the records of its row
    and block; without one, of its block; else of the table in this profile. Runs for which there is none are counted in
    "guessed" and not in "left". A tuned row that is as given has no runs of its own.
    """
    planned = list({p.run.digest: p for p in planned}.values())
    states = [state(p, results) for p in planned]
    made = [(p, records.read_record(p.run.path(results))["made"]) for p, at in zip(planned, states, strict=True)
            if at == "done"]
    trained = ((p.row, p.block, m["seconds"]) for p, m in made if p.run.method != "Constant")    # which takes no time
    usual, left, unknown = medians(trained), 0.0, 0
    for p, at in zip(planned, states, strict=True):
        if at != "done":
            basis = next((usual[k] for k in ((p.row, p.block), p.block, "all") if k in usual), None)
            unknown += basis is None
            left += basis * (1 - begun(p, results)) if basis else 0.0
    return {k: states.count(k) for k in STATES} | {
        "hours": sum(m["seconds"] for _, m in made) / 3600, "left": left / 3600, "guessed": unknown,
        "usual": usual.get("all", 0.0) / 3600,
        "peak_mb": max((m.get("peak_mb", 0) for _, m in made), default=0),
        "hardware": sorted({m["hardware"] for _, m in made if "hardware" in m})}


def medians(spent) -> dict:
    """Of triples (row, block, seconds): the median by (row, block), by block, and of "all"."""
    groups = defaultdict(list)
    for row, block, seconds in spent:
        for key in ((row, block), block, "all"):
            groups[key].append(seconds)
    return {key: statistics.median(group) for key, group in groups.items()}


def everything(idents, profile: str | None, results: Path) -> dict:
    """{"tables": a summary of each table and profile that has runs, "failed": the records of failures}."""
    found = {"tables": [], "failed": []}
    for table in map(tables.load_table, idents):
        for name in [profile] if profile else tables.PROFILES:
            if planned := table.runs(name):
                found["tables"].append({"table": table.id, "profile": name} | summary(planned, results))
                lost = [failures.read(p, results) for p in planned if not p.done(results)]
                found["failed"] += [failure for failure in lost if failure]
    return found


def said(found: dict) -> list[str]:
    """All of it in words."""
    lines = [f"{t['table']:<20} {t['profile']:<6} {line(t)}" for t in found["tables"]]
    lost = [f"failed: {f['row']}, {f['block']}, seed {f['seed']}: {f['why']} ({f['kind']})\n        {f['command']}"
            for f in found["failed"]]
    return lines + lost


def line(found: dict) -> str:
    """The overview in words."""
    counts = ", ".join(f"{found[k]} {k}" for k in STATES if found[k]) or "no runs"
    rest = [f"about {clock(found['left'])} of computing left"] if found["left"] else []
    rest += [f"{found['guessed']} runs with no record to judge by"] if found["guessed"] else []
    return f"{counts}; {clock(found['hours'])} so far" + "".join(f", {part}" for part in rest)


def clock(hours: float) -> str:
    """'12 s', '7 min', '3.2 h'."""
    seconds = 3600 * hours
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if hours < 1.5 else f"{hours:.1f} h"
