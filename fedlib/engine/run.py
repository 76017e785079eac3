"""A run: what is asked of one training, with a digest that names it."""
import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from fedlib.core import settings
from fedlib.core.errors import UserError, nearest, pick
from fedlib.datasets.partition import Data
from fedlib.datasets.registry import reader_of
from fedlib.methods import METHODS, make
from fedlib.methods.base import Protocol
from fedlib.models import nets
from fedlib.models.nets import Arch


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
        return run_digest(self.spec)

    def path(self, results: Path) -> Path:
        """Where the record lies: <results>/<dataset>/<method>-<digest>.json."""
        return Path(results) / self.data.name / f"{self.method}-{self.digest}.json"

    def beside(self, results: Path, kind: str) -> Path:
        """Where what was measured beside the record lies: the same name, ending in the kind of measurement."""
        return self.path(results).with_suffix(f".{kind}")


def run_digest(spec: dict) -> str:
    """12 hex digits of the SHA-256 of plain data."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:12]


def plan(method: str, values: dict, data: dict, net: dict, protocol: dict, seed: int) -> Run:
    """A run from plain dicts; UserError on anything unknown or impossible.

    What was asked before is given again: a page plans each run of a table dozens of times.
    """
    kind = METHODS.get(method)
    asked = kind, getattr(kind, "version", None), repr((method, values, data, net, protocol, seed))
    if asked not in _planned:
        protocol = settings.make(Protocol, protocol, "the protocol")
        made = make(method, values, protocol)
        _planned[asked] = Run(method, settings.spec(made), settings.make(Data, data, "the data"),
                              settings.make(Arch, net, "the net"), protocol, settings.convert(int, seed, "seed"))
    return _planned[asked]


_planned: dict[tuple, Run] = {}


def planned(spec: dict) -> Run:
    """The run of plain data: the inverse of `Run.spec`. UserError: this version would train something else."""
    try:
        run = plan(*(spec[k] for k in ("method", "settings", "data", "net", "protocol", "seed")))
    except KeyError as error:
        raise UserError(f"a run does not say its {error.args[0]}") from error
    if run.digest != run_digest(spec):
        raise UserError(f"a run is of another version of {run.method} (version {spec.get('version')})")
    return run


def run_in_words(method: str, dataset: str, rounds, seed, sets) -> Run:
    """The run of a method with settings in words, NAME=VALUE; UserError on anything unknown or impossible."""
    parts = {"method": {}, "protocol": {"rounds": rounds} if rounds else {}, "net": {}, "data": {"name": dataset}}
    for word in sets:
        part, name, value = place(method, word)
        parts[part][name] = value
    run = plan(method, parts["method"], parts["data"], parts["net"], parts["protocol"], seed)
    if (needed := getattr(METHODS[method], "acts_on", ())) and not nets.has(run.net, needed):
        alike = [n for n in nets.BUILDERS if nets.TAKES.get(n) == nets.TAKES.get(run.net.net)]
        able = [n for n in alike if nets.has(Arch(n), needed)] or ["resnet10"] * (run.net.net == "linear")
        raise UserError(f"{method} has nothing to act on in the net {run.net.net}, where it would be "
                        f"{METHODS[method].limit[1]}{'; choose --set net=' * bool(able)}{' or '.join(able)}")
    return run


def usual_settings(dataset: str) -> tuple[str, ...]:
    """Settings for data that are no images, where nobody names a net: vectors of words learn little by plain SGD."""
    try:
        kind = getattr(reader_of(dataset), "KIND", "images")
    except UserError:       # whoever trains says it
        return ()
    return {"tokens": ("net=fasttext", "optimiser=adam"), "features": ("net=mlp3",)}.get(kind, ())


def place(method: str, word: str) -> tuple[str, str, str]:
    """'mu=0.1' -> ("method", "mu", "0.1"): which part of a run has a setting of this name."""
    cls = METHODS[pick("method", method, METHODS)]
    name, sign, value = word.partition("=")
    if not sign or not value:
        raise UserError(f"--set takes NAME=VALUE, not '{word}'")
    known = {"method": [*settings.fields(cls), *(["preset"] if cls.presets else [])],
             "protocol": settings.fields(Protocol), "net": settings.fields(Arch), "data": settings.fields(Data)}
    for part, names in known.items():
        if name in names:
            return part, name, value
    every = [n for names in known.values() for n in names]
    raise UserError(f"no setting '{name}' of {method}, the protocol, the net or the data{nearest(name, every)} "
                    f"(there are: {', '.join(every)})")
