"""The record of a run: what was asked, what was measured, how it was made. Records are the only source of numbers."""
import json
from pathlib import Path
from types import SimpleNamespace

from fedlib.core import schema
from fedlib.core.errors import UserError
from fedlib.core.files import write_bytes
from fedlib.engine.evaluate import stalled
from fedlib.engine.run import Run, run_digest

MADE = {"seconds": float, "hardware?": str, "commit?": str, "torch?": str, "peak_mb?": float, "data?": {"digest": str}}
BY_NAME = ("acc", "after", "val", "unseen", "transfer")     # of a round: {domain or measure: %}
NUMBERS = ("loss", "train_loss")
SUMS = ("bytes_up", "bytes_down", "seconds")
FAR = 1e300         # also of whole numbers, which have no end
AGAIN = "; move it away and run it again"
LARGEST = 2**23         # bytes; the largest that was ever made has 264 kB


def write_record(path: Path, record: dict):
    """Write the record whole or not at all."""
    write_bytes(path, (json.dumps(record, indent=1) + "\n").encode())


def read_beside(run: Run, results: Path, kind: str) -> bytes:
    """What was measured beside a record. UserError when it was not."""
    here = run.beside(results, kind)
    if not here.exists():
        raise UserError(f"{here} is not there: `fedlib run` on the table or figure that shows it makes it")
    return here.read_bytes()


def read_measured(run: Run, results: Path, kind: str, form: dict) -> dict:
    """The same as plain data of a form. UserError too when it is damaged, or of another run."""
    try:
        found = schema.check(schema.parsed(read_beside(run, results, kind)), {"digest": str} | form)
        if found["digest"] != run.digest:
            raise ValueError("it is of another run")
        return found
    except ValueError as error:
        raise UserError(f"{run.beside(results, kind)} is not a measurement ({error}){AGAIN}") from error


def read_record(path: Path) -> dict:
    """The record at `path`; UserError when it is not one, in what any reader uses, or not of the run in its name."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:     # a pipe would be waited for
            raise ValueError(f"it is no file, or one larger than {LARGEST // 2**20} MiB")
        record = schema.check(schema.parsed(path.read_text()), {"run": dict, "rounds": list, "made": MADE})
        if not path.stem.endswith(run_digest(record["run"])):
            raise ValueError("its name is that of another run, or its settings were changed")
        if not all(v.isprintable() for v in record["made"].values() if isinstance(v, str)):     # shown in terminals
            raise ValueError("what it says of its making is not plain text")
        check_rounds(record["rounds"])
        check_plan(record)
        return record | {"rounds": tested(record["rounds"])}
    except (OSError, ValueError, TypeError, AttributeError) as error:      # of another form anywhere inside
        raise UserError(f"{path} is not a record ({error}){AGAIN * (path.suffix == '.json')}") from error


def tested(rounds: list[dict]) -> list[dict]:
    """The rounds with a test. What was sent and the seconds are sums over the rounds since the one before, the training
    loss is their mean, `highest_loss` the largest of them."""
    if all("acc" in r for r in rounds):
        return rounds
    found, since = [], []
    for row in rounds:
        since.append(row)
        if "acc" in row:
            sums = {k: sum(r[k] for r in since) for k in (*SUMS, "train_loss")}
            mean, most = round(sums["train_loss"] / len(since), 6), max(abs(r["train_loss"]) for r in since)
            found, since = [*found, row | sums | {"train_loss": mean, "highest_loss": most}], []
    return found


def check_rounds(rounds: list[dict]):
    """ValueError unless these are a run's rounds, alike but where machines were absent. Quick: thousands are read."""
    if not rounds or not all(isinstance(r, dict) and r.get("acc", True) for r in rounds):
        raise ValueError("it has no rounds")
    if not all(abs(r.get(k, FAR)) < FAR for r in rounds if "acc" not in r for k in (*SUMS, "train_loss")):
        raise ValueError("its rounds without a test are not whole")
    rounds = [r for r in rounds if "acc" in r]
    wanted = set().union(*rounds) & {*BY_NAME, *NUMBERS, *SUMS, "val_loss"}
    domains = {d for r in rounds for d in r["acc"]}
    for r in rounds:
        try:
            percents = [v for k in BY_NAME if k in r for v in r[k].values()]
            away, after, sent = r.get("absent", []), r.get("after", r["acc"]), [r[k] for k in SUMS if k in r]
            right = (type(away) is list and (away or (wanted <= r.keys() and r["acc"].keys() == domains))
                     and after.keys() == r["acc"].keys() and r.get("val", True) and "highest_loss" not in r
                     and type(r["round"]) is int and all(type(v) is not bool and 0 <= v <= 100 for v in percents)
                     and all(0 <= v < FAR for v in sent) and all(abs(r[k]) < FAR for k in NUMBERS if k in r)
                     and isinstance(r.get("val_loss", 0), float | int))     # which may overflow in a round
        except (KeyError, TypeError, AttributeError):
            right = False
        if not right:
            raise ValueError(f"its round {r.get('round', '')} is not whole")


def check_plan(record: dict):
    """ValueError unless the rounds are those that the run has: counted from 0 or 1, of its domains and no others."""
    numbers, run, held = [r["round"] for r in record["rounds"]], record["run"], record["made"].get("data", {})
    protocol = run.get("protocol", {})
    last = protocol.get("rounds", numbers[-1])
    if any(("acc" in r) != (r["round"] % protocol.get("test_every", 1) == 0 or r["round"] == last)
           for r in record["rounds"]):
        raise ValueError("its tests are not those that were asked for")
    if numbers[0] not in (0, 1) or numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise ValueError("its rounds are not in order")
    if any(r["round"] and "train_loss" not in r and not r.get("absent") for r in record["rounds"]):
        raise ValueError("it has a round without a training loss")
    if numbers[-1] > last:
        raise ValueError("it has more rounds than were asked for")
    if numbers[-1] < last:
        early = SimpleNamespace(**{"patience": 0, "stop": ""} | protocol)
        if not stalled([r for r in record["rounds"] if "acc" in r], early):
            raise ValueError("it ends before the rounds that were asked for")
    asked, seen = run.get("data", {}), {d for r in record["rounds"] for d in r.get("acc", ())}
    for domains in (set(asked.get("domains") or ()) - set(asked.get("unseen") or ()),
                    {client.get("domain") for client in held.get("clients", ())}):
        if domains and seen != domains and not (seen < domains and any("absent" in r for r in record["rounds"])):
            raise ValueError("its domains are not those of the run")
