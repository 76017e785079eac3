"""Splits by name: which samples of a domain train, validate and test, as each paper prints it and as its code does it.

A rule sees a domain's labels and published parts, never its pixels, and has a seed of its own: a split is the same for
every run. `published` (the parts that the set was prepared with) is the rule where none is named.
"""
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedlib.core import schema
from fedlib.core.errors import UserError, pick
from fedlib.core.seeds import generator
from fedlib.datasets.prepare import TEST, TRAIN, VAL

STORED = Path(__file__).parent / "stored_splits"
STORE = {"samples": int, "names": str, "test": str}     # of each domain
DOMAINNET = ("domainnet", "domainnet_10", "domainnet_50", "domainnet_100", "domainnet_150")


class Domain(NamedTuple):
    """What a rule may look at: labels `(N,)`, published parts `(N,)`, and the digest of the file names."""
    set: str
    name: str
    y: Tensor
    part: Tensor
    names: str = ""


class Parts(NamedTuple):
    """Indices into the samples of one domain. With a rule's `own_test`, clients cut the test part from train later."""
    train: Tensor
    val: Tensor
    test: Tensor


@dataclass(frozen=True)
class Rule:
    """A named split."""
    says: str
    source: str                     # where it is from: a paper, its released code, or ours
    make: Callable[[Domain], Parts]
    sets: tuple[str, ...] = ()      # the data sets it is for; (): any
    own_test: float = 0.0           # share of its samples that each client holds out itself, after the partition


def split(rule: str, domain: Domain) -> Parts:
    """The parts of a domain by the named rule. UserError: an unknown rule, or one for other data sets."""
    known = {name: r for name, r in RULES.items() if not r.sets or domain.set in r.sets}
    if rule in RULES and rule not in known:
        raise UserError(f"the split '{rule}' is for {', '.join(RULES[rule].sets)}, not for {domain.set} "
                        f"(splits of {domain.set}: {', '.join(known)})")
    parts = known[pick(f"split of {domain.set}", rule, known)].make(domain)
    if len(parts.train) == 0:
        raise UserError(f"the split '{rule}' leaves no training samples in {domain.name} of {domain.set}")
    return parts


# the pieces that rules are made of

def where(condition: Tensor) -> Tensor:
    """Indices of the true entries."""
    return condition.nonzero()[:, 0]


def cut(y: Tensor, sizes: Callable[[int], tuple], order=lambda index: index) -> list[Tensor]:
    """Cut every class into consecutive pieces of `sizes(n)` samples, after `order`; pieces of all classes, sorted."""
    pieces = []
    for k in y.unique():
        index = order(where(y == k))
        pieces.append(index.split(list(sizes(len(index)))))
    return [torch.cat(same).sort().values for same in zip(*pieces)]


def shuffled(*key):
    """An order of its own for each call, keyed."""
    gen = generator("split", *key)
    return lambda index: index[torch.randperm(len(index), generator=gen)]


def stratified(y: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """(rest, held out) as scikit-learn's StratifiedShuffleSplit(test_size=share, random_state=seed) draws them."""
    from sklearn.model_selection import StratifiedShuffleSplit
    if y.bincount()[y.unique()].min() < 2:
        raise UserError("a stratified split needs two samples of every class")
    rest, held = next(StratifiedShuffleSplit(1, test_size=share, random_state=seed).split(y[:, None], y))
    return torch.as_tensor(rest), torch.as_tensor(held)     # in the order drawn: FedPall cuts it into slices


def nothing() -> Tensor:
    return torch.empty(0, dtype=torch.int64)


# the rules

def published(d: Domain) -> Parts:
    return Parts(*(where(d.part == code) for code in (TRAIN, VAL, TEST)))


def mpft_lists(d: Domain) -> Parts:
    """The official train list, 80/20 into train and validation; the official test list."""
    mine = where(d.part == TRAIN)
    train, val = (mine[i].sort().values for i in stratified(d.y[mine], 0.2, 1))
    return Parts(train, val, where(d.part == TEST))


def mpft_images(*shares, public=0):
    """Per class train/val/test by the shares, which is what MPFT's DomainNet lists come to (56/14/30).

    `public` images of each class belong to no part: a head can be made of them.
    """
    def sizes(n):
        test, val = (round(share * (n - public)) for share in shares[:0:-1])
        return n - public - val - test, val, test, public
    return lambda d: Parts(*cut(d.y, sizes, shuffled("mpft", d.set, d.name, 1))[:3])


def mpft_pacs_released(public: int = 0):
    """Every image is a test image; 80 % of the same images train. Sketch had 373 images (which: not published).

    `public` images of each class, those of mpft_pacs_public, belong to no part.
    """
    def make(d: Domain) -> Parts:
        every = torch.arange(len(d.y))
        if public:
            every = torch.cat(mpft_images(0.56, 0.14, 0.30, public=public)(d)).sort().values
        if d.name == "sketch":
            every = every[shuffled("mpft_released", d.set)(torch.arange(len(every)))[:373].sort().values]
        train, val = (every[i].sort().values for i in stratified(d.y[every], 0.2, 1))
        return Parts(train, val, every)
    return make


def feddeap(d: Domain) -> Parts:
    """Per class ceil(0.2 n) test images, drawn; no validation. FedDEAP's own draw is published for PACS only."""
    def sizes(n):
        return n - math.ceil(0.2 * n), math.ceil(0.2 * n)
    train, test = cut(d.y, sizes, shuffled("feddeap", d.set, d.name, 123))
    return Parts(train, nothing(), test)


def stored(name: str):
    """A split that only a list can say: per domain one bit for each sample, 1 is test (stored_splits/)."""
    def make(d: Domain) -> Parts:
        path = STORED / f"{name}.json"
        try:
            kept = schema.check(schema.parsed(path.read_text()), {"domains": {str: STORE}})["domains"].get(d.name)
            bits = int(kept["test"], 16) if kept else 0
            if kept and not 0 <= bits.bit_length() <= kept["samples"] or bits < 0:
                raise ValueError("it has more bits than samples")
        except (OSError, ValueError) as error:
            raise UserError(f"{path} is not a stored split ({error})") from error
        if kept is None or (kept["samples"], kept["names"]) != (len(d.y), d.names):
            raise UserError(f"the split '{name}' names the files of the complete {d.set}; the prepared {d.name} has "
                            "others (prepare the complete set again)")
        test = torch.tensor([bits >> (len(d.y) - 1 - i) & 1 for i in range(len(d.y))], dtype=torch.bool)
        return Parts(where(~test), nothing(), where(test))
    return make


def fedpall_files(first: Callable[[float], int]):
    """Per class the first 80 % of the files train. The authors' order was their file system's; ours sorts names."""
    def make(d: Domain) -> Parts:
        train, test = cut(d.y, lambda n: (first(0.8 * n), n - first(0.8 * n)))
        return Parts(train, nothing(), test)
    return make


def fedpall_digits(d: Domain) -> Parts:
    """Train and test pooled, 80/20 stratified with seed 0; the first tenth of the 80 % trains, the 20 % test."""
    pooled = where(d.part <= TEST)
    rest, test = stratified(d.y[pooled], 0.2, 0)
    return Parts(pooled[rest[:len(rest) // 10]].sort().values, nothing(), pooled[test].sort().values)


def feddtr(d: Domain) -> Parts:
    """All samples, pooled; every client holds out a part of its own. Tiny-ImageNet: the train folder only."""
    keep = d.part == TRAIN if d.set == "tiny_imagenet" else d.part <= TEST
    return Parts(where(keep), nothing(), nothing())


def feddtr_digits(copies: int = 1):
    """At most 25,000 train and 9,000 test samples of each domain, pooled. `copies`: USPS is tiled to reach 25,000."""
    def make(d: Domain) -> Parts:
        order = shuffled("feddtr", d.set, d.name, 1)
        train, test = order(where(d.part == TRAIN)), order(where(d.part == TEST))
        train = train.repeat(copies if d.name == "usps" else 1)[:25000]
        return Parts(torch.cat([train, test[:9000]]).sort().values, nothing(), nothing())
    return make


_FEDDTR = ("mnist", "fashion_mnist", "cifar10", "cifar100", "tiny_imagenet", "ag_news", "amazon_reviews", "cub200",
           "ham10000", "mini_digits", "mini_reviews")
RULES = {
    "published": Rule(
        "the parts of the prepared set: its publisher's lists or folders", "the data set", published),
    "mpft": Rule(
        "official lists; the train list 80/20 per class into train and val, seed 1", "MPFT, released code", mpft_lists,
        DOMAINNET),
    "mpft_pacs": Rule(
        "per class 56/14/30 train/val/test of all images, as DomainNet's lists come to", "ours, for MPFT",
        mpft_images(0.56, 0.14, 0.30), ("pacs",)),
    "mpft_pacs_public": Rule(
        "5 images of each class are public, the others per class 56/14/30 train/val/test", "ours, for MPFT",
        mpft_images(0.56, 0.14, 0.30, public=5), ("pacs",)),
    "mpft_office_public": Rule(
        "3 images of each class are public, the others per class 56/14/30 train/val/test", "ours, for MPFT",
        mpft_images(0.56, 0.14, 0.30, public=3), ("office_caltech",)),
    "mpft_pacs_printed": Rule(
        "per class 70/10/20 train/val/test", "MPFT, paper", mpft_images(0.7, 0.1, 0.2), ("pacs",)),
    "mpft_pacs_released": Rule(
        "80/20 train/val of all images; the same images test; 373 sketches", "MPFT, released code",
        mpft_pacs_released(), ("pacs",)),
    "mpft_pacs_released_public": Rule(
        "as released, but 5 images of each class are public and in no part", "ours, for MPFT",
        mpft_pacs_released(public=5), ("pacs",)),
    "feddeap": Rule(
        "per class ceil(0.2 n) test, drawn with seed 123; no val", "FedDEAP, paper", feddeap),
    "feddeap_pacs_released": Rule(
        "the files of the released folder PACS_split_data", "FedDEAP, released code", stored("feddeap_pacs_released"),
        ("pacs",)),
    "fedpall_office": Rule(
        "per class the first round(0.8 n) files train, the rest test", "FedPall, released code", fedpall_files(round),
        ("office_caltech",)),
    "fedpall_pacs": Rule(
        "per class the first int(0.8 n) files train, the rest test", "FedPall, released code", fedpall_files(int),
        ("pacs",)),
    "fedpall_digits": Rule(
        "pooled, 80/20 stratified with seed 0; a tenth of the 80 % trains", "FedPall, released code", fedpall_digits,
        ("digits",)),
    "feddtr": Rule(
        "pooled train and test; each client holds out 25 % of its samples", "FedDTR, paper and code", feddtr, _FEDDTR,
        own_test=0.25),
    "feddtr_pacs": Rule(
        "pooled; each client holds out 20 %", "ours, for FedDTR", feddtr, ("pacs",), own_test=0.2),
    "own_office": Rule(
        "pooled; each client holds out 20 %", "ours", feddtr, ("office_caltech",), own_test=0.2),
    "feddtr_digits": Rule(
        "25,000 train and 9,000 test per domain, pooled; each client holds out 25 %; USPS once", "FedDTR, corrected",
        feddtr_digits(), ("digits",), own_test=0.25),
    "feddtr_digits_released": Rule(
        "the same with USPS tiled four times before the split: copies lie on both sides", "FedDTR, released code",
        feddtr_digits(4), ("digits",), own_test=0.25),
}
