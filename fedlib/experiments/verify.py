"""Can a record that somebody else made be trusted? Its settings, its data, and a round of it trained again.

A record says what was asked, so whoever holds the data can ask the same again: from the start its first rounds, or from
a checkpoint that its maker sends along the rounds after that. What is not trained again is not verified.
"""
import datetime
import math
import random
from collections import defaultdict
from pathlib import Path

from fedlib.core import machine, schema
from fedlib.core.errors import UserError
from fedlib.datasets import feature_cache, prepare
from fedlib.engine import records
from fedlib.engine.checkpoint import resume
from fedlib.engine.loop import Simulation
from fedlib.engine.run import planned
from fedlib.experiments import tables, tune
from fedlib.experiments.batch import apart

POINTS, SHARE = 5.0, 0.05       # what another processor may change: as `batch.apart` has it, part of the training loss
BYTES = ("bytes_up", "bytes_down")
SHORT = 10.0                    # seconds of a round, of the records that are drawn


def verify(path: Path, rounds: int = 1, checkpoint: Path | None = None, device: str = "cpu",
           known: dict | None = None) -> dict:
    """{"record", "planned": tables that plan the run, "data": are they the same, "rounds": [{"round", "acc", "again",
    "loss", "loss_again", "equal", "close"}], "of": how many it has, "hardware", "here", "trusted"}: a record beside its
    rounds trained again.

    trusted: planned, of the same data, and every round close: the mean of whatever it measured in percent
    within POINTS and each domain within twice as many, the training loss and the bytes within SHARE. The rounds are the
    first, or those after the checkpoint. known: `plans()`, which takes seconds. UserError: no record, or not of this
    version.
    """
    record = records.read_record(path)
    try:
        run = planned(record["run"])
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    simulation = Simulation(run, device=device)
    if checkpoint:
        if not Path(checkpoint).is_file():
            raise UserError(f"{checkpoint} is not there")
        resume(Path(checkpoint), simulation)
    elif run.protocol.initial:
        simulation.test()
    begun, made = records.tested(simulation.rounds), record["made"]
    begin = len(begun)
    if checkpoint and not all(map(same, record["rounds"][:begin], begun)):
        raise UserError(f"{checkpoint} has other numbers than {path} in the rounds before it")
    simulation.play(min(rounds * run.protocol.test_every, run.protocol.rounds - simulation.number))
    first = 0 if not checkpoint else begin
    again = records.tested(simulation.rounds)
    compared = [beside(old, new) for old, new in zip(record["rounds"][first:], again[first:])]
    data = made.get("data", {}).get("digest") == simulation.federation.about["digest"]
    where = (plans() if known is None else known).get(run.digest, [])
    return {"record": str(path), "planned": where, "data": data, "rounds": compared, "of": len(record["rounds"]),
            "hardware": made.get("hardware", "unknown"), "here": machine.described(device)["hardware"],
            "trusted": bool(where and data and compared and all(r["close"] for r in compared))}


def drawn(folder: Path, number: int, day: datetime.date) -> list[Path]:
    """So many records below the folder, other ones each day: with short rounds, of data that are prepared here.

    UserError: there is none.
    """
    here = set(map(digest_of, prepare.folder().glob("*.json"))) - {None}
    every = sorted(folder.glob("*/*.json")) or sorted(folder.glob("*-*.json"))
    random.Random(day.isoformat()).shuffle(every)
    found = (path for path in every if can_be_trained(path, here))
    some = [path for path, _ in zip(found, range(number))]
    if not some:
        raise UserError(f"no record in {folder} is of data that are prepared here")
    return some


def digest_of(path: Path) -> str | None:
    """The digest in a manifest, or None where the file is none."""
    try:
        return schema.check(schema.parsed(path.read_text()), {"digest": str})["digest"]
    except (OSError, ValueError):
        return None


def can_be_trained(path: Path, here: set[str]) -> bool:
    """Is a round of the record short, and are its data, and the features that it wants, among the digests that are
    here? True of one that cannot be read: `verify` says why."""
    try:
        record = records.read_record(path)
    except UserError:
        return True
    data, rounds = record["run"]["data"], len(record["rounds"])
    if record["made"].get("data", {}).get("digest") not in here or record["made"]["seconds"] > SHORT * rounds:
        return False
    try:
        return not data.get("encoder") or bool(
            feature_cache.load_features(data["name"], data.get("size") or None, data["encoder"]))
    except UserError:
        return False


def plans() -> dict[str, list[str]]:
    """{digest: ['i2pfl/table2 lite']}: where each run is planned, in a row, as a try or as the constant answer."""
    found = defaultdict(list)
    for table in map(tables.load_table, tables.idents()):
        for profile in tables.PROFILES:
            every = [*table.runs(profile), *table.halves(profile), *table.references(profile),
                     *tune.tries(table, profile)]
            for digest in {p.run.digest for p in every}:
                found[digest].append(f"{table.id} {profile}")
    return found


def same(old: dict, new: dict) -> bool:
    """Have two rounds measured and sent the same: every percentage, loss and byte?"""
    return all(old.get(k) == new.get(k) for k in ("round", *records.BY_NAME, "loss", "val_loss", "train_loss", *BYTES))


def beside(old: dict, new: dict) -> dict:
    """One round of the record and the same trained again."""
    alike = old["round"] == new["round"] and apart([old], [new]) <= POINTS
    near = math.isclose(old.get("train_loss", math.nan), new["train_loss"], rel_tol=SHARE, abs_tol=SHARE / 10)
    sent = all(math.isclose(old.get(k, 0), new.get(k, 0), rel_tol=SHARE) for k in BYTES)    # clusters may be more
    return {"round": old["round"], "acc": round(mean(old["acc"]), 4), "again": round(mean(new["acc"]), 4),
            "loss": old.get("train_loss", math.nan), "loss_again": new["train_loss"], "equal": same(old, new),
            "close": alike and near and sent}


def mean(values: dict) -> float:
    """Of the values; 0 of none."""
    return sum(values.values()) / max(1, len(values))


def in_words(found: dict) -> str:
    """For a reader of a terminal: the answer first. why: of what could not be looked at."""
    if "why" in found:
        return f"{found['record']}: NOT verified\n  {found['why']}"
    agree = f"{len(found['rounds'])} of {found['of']} rounds trained again, and they agree"
    lines = [f"{found['record']}: " + (agree if found["trusted"] else "NOT verified")]
    lines += [f"  planned in {', '.join(found['planned'])}" if found["planned"] else "  no table plans such a run"]
    lines += ["  of the same data" if found["data"] else "  of other data than are prepared here"]
    for r in found["rounds"]:
        how = "equal in every number" if r["equal"] else "close" if r["close"] else "too far apart"
        lines.append(f"  round {r['round']}: {r['acc']:.2f} % in the record, {r['again']:.2f} % again, training loss "
                     f"{r['loss']:.4f} and {r['loss_again']:.4f}: {how}")
    if found["hardware"] != found["here"]:
        lines.append(f"  made on {found['hardware']}, trained again on {found['here']}")
    return "\n".join(lines)
