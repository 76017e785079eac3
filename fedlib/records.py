"""A run and its record: what was asked, what was measured, how it was made. Records are the only source of numbers."""
import contextlib
import functools
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from fedlib import forms, settings
from fedlib.errors import UserError
from fedlib.methods.base import METHODS, Protocol, make
from fedlib.nets import Arch
from fedlib.partition import Data

MADE = {"seconds": float, "hardware?": str, "commit?": str, "torch?": str, "data?": {"digest": str}}
BY_NAME = ("acc", "after", "val", "unseen", "transfer")     # of a round: {domain or measure: %}
NUMBERS = ("loss", "train_loss", "seconds")
FAR = float("inf")


@dataclass(frozen=True)
class Run:
    """One training: a method with its settings, data, net, protocol and seed, all defaults filled in."""
    method: str
    settings: dict
    data: Data
    net: Arch
    protocol: Protocol
    seed: int

    @property
    def spec(self) -> dict:
        """The run as plain data; what the digest covers."""
        return {"method": self.method, "version": METHODS[self.method].version, "settings": self.settings,
                "data": settings.spec(self.data), "net": settings.spec(self.net),
                "protocol": settings.spec(self.protocol), "seed": self.seed}

    @functools.cached_property
    def digest(self) -> str:
        """12 hex digits of the SHA-256 of the spec."""
        return digest(self.spec)

    def path(self, results: Path) -> Path:
        """Where the record lies: <results>/<dataset>/<method>-<digest>.json."""
        return Path(results) / self.data.name / f"{self.method}-{self.digest}.json"

    def beside(self, results: Path, kind: str) -> Path:
        """Where what was measured beside the record lies: the same name, ending in the kind of measurement."""
        return self.path(results).with_suffix(f".{kind}")


def digest(spec: dict) -> str:
    """12 hex digits of the SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:12]


def plan(method: str, values: dict, data: dict, net: dict, protocol: dict, seed: int) -> Run:
    """A run from plain dicts; UserError on anything unknown or impossible."""
    protocol = settings.make(Protocol, protocol, "the protocol")
    made = make(method, values, protocol)
    return Run(method, settings.spec(made), settings.make(Data, data, "the data"), settings.make(Arch, net, "the net"),
               protocol, settings.convert(int, seed, "seed"))


def folder(given: Path | None = None) -> Path:
    """Where records lie: as given, else FEDLIB_RESULTS, else the nearest results/ upwards, else ./results."""
    if given or os.environ.get("FEDLIB_RESULTS"):
        return Path(given or os.environ["FEDLIB_RESULTS"])
    here = Path.cwd()
    return next((p / "results" for p in [here, *here.parents] if (p / "results").is_dir()), here / "results")


def write(path: Path, record: dict):
    """Write the record whole or not at all."""
    write_bytes(path, (json.dumps(record, indent=1) + "\n").encode())


def write_bytes(path: Path, content: bytes):
    """Write to a temporary file in the same folder, then rename; UserError when the disk refuses.

    `train` holds the run's lock, so there is one writer, and the temporary name is fixed: the next one overwrites what
    a killed one left.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def read_beside(run: Run, results: Path, kind: str) -> bytes:
    """What was measured beside a record. UserError when it was not."""
    here = run.beside(results, kind)
    if not here.exists():
        raise UserError(f"{here} is not there: `fedlib run` on the table or figure that shows it makes it")
    return here.read_bytes()


def measured(run: Run, results: Path, kind: str, form: dict) -> dict:
    """The same as plain data of a form. UserError too when it is damaged, or of another run."""
    try:
        found = forms.check(forms.parsed(read_beside(run, results, kind)), {"digest": str} | form)
        if found["digest"] != run.digest:
            raise ValueError("it is of another run")
        return found
    except ValueError as error:
        raise UserError(f"{run.beside(results, kind)} is not a measurement ({error}); delete it and run it again") \
            from error


def read(path: Path) -> dict:
    """The record at `path`; UserError when it is not one, in what any reader uses, or not of the run in its name."""
    try:
        record = forms.check(forms.parsed(path.read_text()), {"run": dict, "rounds": list, "made": MADE})
        if not path.stem.endswith(digest(record["run"])):
            raise ValueError("its name is that of another run, or its settings were changed")
        check(record["rounds"])
        return record
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not a record ({error}); delete it and run it again") from error


def check(rounds: list[dict]):
    """ValueError unless these are the rounds of a run, all with the same measurements. Quick: thousands are read."""
    if not rounds or not all(isinstance(r, dict) and r.get("acc") for r in rounds):
        raise ValueError("it has no rounds")
    wanted = [k for k in (*BY_NAME, *NUMBERS, "val_loss") if k in rounds[0]]
    for r in rounds:
        try:
            percents = [v for k in BY_NAME if k in r for v in r[k].values()]
            right = (type(r["round"]) is int and all(k in r for k in wanted) and all(0 <= v <= 100 for v in percents)
                     and all(abs(r[k]) < FAR for k in NUMBERS if k in r)
                     and isinstance(r.get("val_loss", 0), float | int))     # which may overflow in a round
        except (KeyError, TypeError, AttributeError):
            right = False
        if not right:
            raise ValueError(f"its round {r.get('round', '')} is not whole")
