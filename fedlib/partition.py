"""From a prepared set to a federation: which client holds which samples of which domain."""
import hashlib
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from fedlib import prepare
from fedlib.data import Client, Federation, Split
from fedlib.errors import UserError, pick
from fedlib.seeds import generator

TRAIN, VAL, TEST = 0, 1, 2


@dataclass(frozen=True)
class Data:
    """What a federation is made of. Domains left empty mean all; clients left empty mean one per domain."""
    name: str = "mini_digits"
    size: int = 0                        # pixels; 0: the set's default
    domains: tuple[str, ...] = ()
    clients: tuple[int, ...] = ()        # how many clients share each domain
    fraction: float = 1.0                # of the domain's training split, for each client
    repair: bool = True                  # a client without a class gets one image of it
    test: Literal["heldout", "all"] = "heldout"   # "all": every image of the domain, training images included
    unseen: tuple[str, ...] = ()         # domains that no client holds, tested as well
    least: ClassVar[dict] = {"clients": 1}
    most: ClassVar[dict] = {"fraction": 1}


def federate(spec: Data, seed: int) -> Federation:
    """The federation that `spec` describes; the draw is keyed by the seed.

    Every client of a domain gets `fraction` of the domain's training split, drawn without replacement from what
    earlier clients of the domain left; the last one gets what remains if that is less (RethinkFL's sampling, which
    I2PFL follows: 4 clients x 30 % of PACS sketch).
    """
    prepared = prepare.load(spec.name, spec.size or None)
    names = _domains(spec, prepared.manifest)
    classes = prepared.manifest["classes"]
    counts = dict(zip(names, spec.clients or [1] * len(names), strict=True))
    clients = []
    for domain in names:
        if domain in spec.unseen:
            continue
        train, val, test = splits(prepared, domain, spec.test)
        for index in draw(train.y, counts[domain], spec, len(classes), generator(seed, "partition", domain)):
            clients.append(Client(str(len(clients)), domain, train[index], test, val, seed=seed))
    if not clients:
        raise UserError(f"{spec.name}: every domain is unseen, so there are no clients")
    unseen = {d: splits(prepared, d, spec.test)[2] for d in spec.unseen}
    about = {"name": spec.name, "size": prepared.manifest["size"], "digest": prepared.manifest["digest"],
             "clients": [{"id": c.id, "domain": c.domain, "train": len(c.train), "test": len(c.test),
                          "digest": _digest(c.train)} for c in clients]}
    return Federation(clients, classes, unseen, about)


def splits(prepared, domain: str, test: str) -> tuple[Split, Split | None, Split]:
    """(train, val, test) of a domain; val is None where the set has none."""
    x, y, part = (prepared.tensors[f"{domain}/{k}"] for k in ("x", "y", "part"))
    whole = Split(x, y)
    val = whole[part == VAL] if bool((part == VAL).any()) else None
    return whole[part == TRAIN], val, whole[part <= TEST] if test == "all" else whole[part == TEST]


def draw(y, clients: int, spec: Data, classes: int, gen: torch.Generator) -> list[torch.Tensor]:
    """For each client, indices into the domain's training split."""
    size = int(spec.fraction * len(y)) if spec.fraction < 1 or clients == 1 else len(y) // clients
    if size == 0:
        raise UserError(f"{spec.name}: fraction {spec.fraction} of {len(y)} training images is none; raise fraction")
    left, drawn = torch.randperm(len(y), generator=gen), []
    for number in range(clients):
        if len(left) == 0:
            raise UserError(f"{spec.name}: no samples are left for client {number + 1} of {clients} of a domain "
                            f"(fraction {spec.fraction}); lower fraction or clients")
        mine, left = left[:size].clone(), left[size:]
        if spec.repair:
            left = repair(mine, left, y, classes)
        drawn.append(mine.sort().values)
    return drawn


def repair(mine, left, y, classes: int):
    """Give a client one image of each class it lacks, in place of one of its most frequent class; returns what is left.

    The image comes from those that nobody holds; if there is none, from the whole split, as RethinkFL does.
    """
    for k in range(classes):
        counts = y[mine].bincount(minlength=classes)
        if counts[k] or not (y == k).any() or counts.max() < 2:
            continue
        free = left[y[left] == k]
        new = free[0] if len(free) else (y == k).nonzero()[0, 0]
        place = (y[mine] == counts.argmax()).nonzero()[0, 0]
        left = torch.cat([left[left != new], mine[place].view(1)])
        mine[place] = new
    return left


def _domains(spec: Data, manifest: dict) -> list[str]:
    names = list(spec.domains or manifest["domains"])
    for domain in [*names, *spec.unseen]:
        pick(f"domain of {spec.name}", domain, manifest["domains"])
    if spec.clients and len(spec.clients) != len(names):
        raise UserError(f"{spec.name}: clients has {len(spec.clients)} numbers for {len(names)} domains "
                        f"({', '.join(names)})")
    return names


def _digest(split: Split) -> str:
    sha = hashlib.sha256(split.x.contiguous().numpy().tobytes())
    sha.update(split.y.contiguous().numpy().tobytes())
    return sha.hexdigest()[:12]
