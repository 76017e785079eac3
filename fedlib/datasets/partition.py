"""From a prepared set to a federation: which client holds which samples of which domain."""
import hashlib
import math
import re
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlib.core.errors import UserError, pick
from fedlib.core.federation import Client, Federation, Split
from fedlib.core.seeds import generator, key
from fedlib.core.settings import later
from fedlib.datasets import feature_cache, prepare
from fedlib.datasets.registry import reader_of
from fedlib.datasets.splits import RULES, Domain, Parts, cut, nothing, split, where
from fedlib.models import class_heads

TRIES = 2000       # draws of a Dirichlet partition before it is given up


@dataclass(frozen=True)
class Data:
    """What a federation is made of. Domains left empty mean all; clients left empty mean one per domain."""
    name: str = "mini_digits"
    size: int = 0                        # pixels or tokens; 0: the set's default
    domains: tuple[str, ...] = ()
    clients: tuple[int, ...] = ()        # how many clients share each domain
    fraction: float = 1.0                # of the domain's training split, for each client
    repair: bool = True                  # a client without a class gets one image of it
    test: Literal["heldout", "all"] = "heldout"   # "all": every image of the domain, training images included
    unseen: tuple[str, ...] = ()         # domains that no client holds, tested as well
    # half: mean and deviation 0.5; grey: the same of one channel, for images whose three are equal
    normalise: Literal["imagenet", "half", "none", "grey"] = later("imagenet")
    split: str = later("published")      # a rule of fedlib.datasets.splits
    mixed: float = later(0.0)            # this share of the next domain (cyclic) instead of as much of its own (MPFT)
    chunks: Literal["", "disjoint", "released"] = later("")     # per class, consecutive chunks of a domain (MPFT)
    dirichlet: float = later(0.0)        # beta: a domain's classes are divided by draws from Dir(beta)
    minimum: int = later(10)             # Dirichlet: samples that every client gets at least
    pathological: int = later(0)         # classes per client (PFLlib's "pat")
    spread: float = later(0.0)           # lambda: this share of each domain goes to all clients alike (FedDG_Benchmark)
    natural: bool = later(False)         # each user of the set is a client; `clients`: so many of them, drawn
    balanced: bool = later(True)         # pathological: equal shares of a class; else random ones
    partition_seed: int = later(-1)      # one draw for all runs; -1: each run's own seed
    pool: float = later(1.0)             # share of a domain's training split, drawn before it is divided
    tuning: float = later(0.0)           # > 0: this share of a client's training samples stands in for its test split
    encoder: str = later("")             # x are features of this frozen encoder (models.encoders) in the images' place
    head: Literal["", "texts", "plain", "public"] = later("")     # what frozen heads are made of (models.class_heads)
    least: ClassVar[dict] = {"clients": 1, "minimum": 1, "partition_seed": -1}
    most: ClassVar[dict] = {"fraction": 1, "mixed": 0.99, "pool": 1, "tuning": 0.9, "spread": 1}

    def __post_init__(self):
        if not re.fullmatch(r"\w{1,60}", self.name, re.ASCII):     # records lie in a folder of this name
            raise UserError(f"the data: name = {self.name[:60]!r} is not a dataset's name (letters, digits and _)")


class Share(NamedTuple):
    """What one client holds: for each part, indices into the samples of one or more domains."""
    domain: str
    train: dict[str, Tensor]
    val: dict[str, Tensor]
    test: dict[str, Tensor]


def federate(spec: Data, seed: int) -> Federation:
    """The federation that `spec` describes: the tensors of its partition."""
    prepared = prepare.load_set(spec.name, spec.size or None)
    shares, unseen = partition(spec, prepared, seed)
    made = feature_cache.load_features(spec.name, spec.size or None, spec.encoder) if spec.encoder else None
    named = dict.fromkeys([*_domains(spec, prepared.manifest), *spec.unseen])
    x = {d: made.tensors[d] if made else prepared.tensors[f"{d}/x"] for d in named}
    if spec.normalise == "grey":
        x = {d: one_channel(images, d) for d, images in x.items()}
    whole = {d: Split(x[d], prepared.tensors[f"{d}/y"], spec.normalise) for d in x}
    held = {s.domain: parts_of(spec, prepared, s.domain) for s in shares} if spec.head else {}
    head = class_heads.make_heads(spec.head, whole, held, prepared.manifest["classes"], made) if spec.head else {}
    taken = {}          # clients that share a test split share its tensors

    def take(held: dict) -> Split:
        place = tuple((d, id(index)) for d, index in held.items())
        if place not in taken:
            pieces = [whole[d][index] for d, index in held.items()]
            joined = map(torch.cat, zip(*((p.x, p.y) for p in pieces)))
            taken[place] = pieces[0] if len(pieces) == 1 else Split(*joined, spec.normalise)
        return taken[place]

    names = list(dict.fromkeys(s.domain for s in shares))
    clients = [Client(str(i), s.domain, take(s.train), take(s.test), take(s.val) if held_size(s.val) else None,
                      seed=seed, classes=prepared.manifest["classes"], domains=names, head=head.get(s.domain))
               for i, s in enumerate(shares)]
    about = {"name": spec.name, "size": prepared.manifest["size"], "digest": prepared.manifest["digest"],
             "partition": partition_digest(shares), **({"encoder": feature_cache.origin(made)} if made else {}),
             **{k: prepared.manifest[k] for k in ("notice",) if prepared.manifest.get(k)},
             "clients": [{"id": str(i), "domain": s.domain, "train": held_size(s.train), "test": held_size(s.test),
                          "digest": partition_digest([s])} for i, s in enumerate(shares)]}
    return Federation(clients, prepared.manifest["classes"],
                      unseen={d: take({d: index}) for d, index in unseen.items()}, about=about,
                      own_tests=len({id(c.test) for c in clients}) > len({c.domain for c in clients}),
                      words=len(prepared.manifest.get("words") or ()), head=class_heads.shared(head))


def one_channel(x: Tensor, domain: str) -> Tensor:
    """`(N, 1, H, W)` of images `(N, 3, H, W)` whose channels are equal. UserError: they are not, or these are none."""
    if x.dim() != 4 or not (x == x[:, :1]).all():
        raise UserError(f"normalise = grey is for images without colours; those of {domain} "
                        f"{'have some' if x.dim() == 4 else 'are numbers or words'}: choose half, imagenet or none")
    return x[:, :1]


def partition(spec: Data, prepared: prepare.Prepared, seed: int) -> tuple[list[Share], dict[str, Tensor]]:
    """The clients' shares, and the test samples of unseen domains. It looks at labels and parts only.

    UserError: unknown domain or split, settings that exclude each other, a client that would hold nothing.
    """
    names = _domains(spec, prepared.manifest)
    seed = seed if spec.partition_seed < 0 else spec.partition_seed
    kinds = [k for k in ("mixed", "chunks", "dirichlet", "pathological", "spread", "natural") if getattr(spec, k)]
    if len(kinds) > 1 or kinds and spec.fraction < 1:
        raise UserError(f"{spec.name}: {' and '.join([*kinds, 'fraction'][:2])} are two ways to divide; name one")
    if spec.mixed and len(names) < 2:
        raise UserError(f"{spec.name}: mixed needs two domains or more")
    parts = {d: drawn_from(parts_of(spec, prepared, d), spec, generator(seed, "pool", d)) for d in names}
    counts = dict(zip(names, spec.clients or [0 if spec.natural else 1] * len(names), strict=True))
    held = [d for d in names if d not in spec.unseen]
    if not held:
        raise UserError(f"{spec.name}: every domain is unseen, so there are no clients")
    if spec.mixed:
        shares = mixed(spec, {d: parts[d] for d in held}, prepared)
    elif spec.spread:
        shares = spread(spec, {d: parts[d] for d in held}, [d for d in held for _ in range(counts[d])], seed)
    else:
        shares = [s for d in held for s in divided(spec, d, parts[d], counts[d], prepared, seed)]
    rule = RULES[spec.split]
    if rule.own_test:
        shares = [hold_out(s, rule.own_test, generator(seed, "own test", i)) for i, s in enumerate(shares)]
    if spec.tuning:
        shares = [hold_out(s, spec.tuning, generator(seed, "tuning", i)) for i, s in enumerate(shares)]
    for i, s in enumerate(shares):
        if not held_size(s.train) or not held_size(s.test):
            raise UserError(f"{spec.name}: client {i} of {len(shares)} ({s.domain}) has {held_size(s.train)} training "
                            f"and {held_size(s.test)} test samples; use fewer clients, or leave it out of domains")
    unseen = {d: parts[d].test if d in parts else parts_of(spec, prepared, d).test for d in spec.unseen}
    return shares, {} if spec.tuning else unseen      # a choice of settings sees no test sample


def parts_of(spec: Data, prepared, domain: str) -> Parts:
    """Train, val and test of a domain by the rule that the spec names; its `test = "all"` tests on every sample."""
    y, part = (prepared.tensors[f"{domain}/{k}"] for k in ("y", "part"))
    names = (prepared.manifest.get("names") or {}).get(domain, "")
    parts = split(spec.split, Domain(spec.name, domain, y, part, names))
    if spec.test == "all":
        if RULES[spec.split].own_test:
            raise UserError(f"{spec.name}: with the split '{spec.split}' every client holds out its own test samples; "
                            "test = \"all\" is for splits with one test part per domain")
        parts = parts._replace(test=where(part <= prepare.TEST))
    return parts


def drawn_from(parts: Parts, spec: Data, gen: torch.Generator) -> Parts:
    """The parts with a random `pool` share of the training split, at least one sample."""
    if spec.pool == 1:
        return parts
    chosen = torch.randperm(len(parts.train), generator=gen)[:max(1, round(spec.pool * len(parts.train)))]
    return parts._replace(train=parts.train[chosen.sort().values])


def divided(spec: Data, domain: str, parts: Parts, clients: int, prepared, seed: int) -> list[Share]:
    """One domain among its clients."""
    y, classes = prepared.tensors[f"{domain}/y"], len(prepared.manifest["classes"])
    if spec.chunks:
        pieces = [chunks(y, index, clients, spec.chunks) for index in parts]
        return [Share(domain, *({domain: piece} for piece in three)) for three in zip(*pieces)]
    if spec.natural:
        return natural(spec, domain, parts, clients, prepared, generator(seed, "natural", domain))
    labels = y[parts.train]
    if spec.dirichlet:
        drawn = dirichlet(labels, clients, spec, key(seed, "dirichlet", domain))
    elif spec.pathological:
        drawn = pathological(labels, clients, spec, classes, key(seed, "pathological", domain))
    else:
        drawn = draw(labels, clients, spec, classes, generator(seed, "partition", domain))
    return [Share(domain, {domain: parts.train[index]}, {domain: parts.val}, {domain: parts.test}) for index in drawn]


def natural(spec: Data, domain: str, parts: Parts, clients: int, prepared, gen: torch.Generator) -> list[Share]:
    """A share for each user who has training and test samples, or for so many of them (LEAF, arXiv:1812.01097).

    Samples lie user by user. UserError: the set does not say whose they are, or has fewer users.
    """
    sizes = [max(n, 0) for n in prepared.manifest.get("users", {}).get(domain, {}).values()]
    owner = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes, dtype=torch.int64))
    if len(owner) != len(prepared.tensors[f"{domain}/y"]):
        raise UserError(f"{spec.name} does not say whose the samples of {domain} are; leave natural out")
    pieces = zip(*(index.split(owner[index].bincount(minlength=len(sizes)).tolist()) for index in parts))
    shares = [Share(domain, *({domain: i} for i in three)) for three in pieces if len(three[0]) and len(three[2])]
    if len(shares) < clients:
        raise UserError(f"{spec.name}: {len(shares)} users of {domain} have training and test samples, not {clients}")
    return [shares[i] for i in sorted(torch.randperm(len(shares), generator=gen)[:clients or None].tolist())]


def draw(y, clients: int, spec: Data, classes: int, gen: torch.Generator) -> list[torch.Tensor]:
    """For each client, indices into the domain's training split (RethinkFL's sampling, which I2PFL follows).

    Every client gets `fraction` of the split, drawn without replacement from what earlier clients left; the last one
    gets what remains if that is less: 4 clients x 30 % of PACS sketch (120 %) are 1059, 1059, 1059 and 354 images.
    """
    size = int(spec.fraction * len(y)) if spec.fraction < 1 or clients == 1 else len(y) // clients
    if size == 0:
        raise UserError(f"{spec.name}: {len(y)} samples are too few for {clients} clients or fraction {spec.fraction}")
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


def chunks(y: Tensor, index: Tensor, clients: int, kind: str) -> list[Tensor]:
    """Per class, consecutive chunks of ceil(n / clients) samples in file order (MPFT, appendix F).

    "released": the last chunk is the class's final ceil(n / clients) samples, so that it may overlap the one before.
    """
    def piece(n, i):
        length = math.ceil(n / clients)
        first = n - length if kind == "released" and i == clients - 1 else i * length
        return max(first, 0), min(first + length, n)
    mine = [[] for _ in range(clients)]
    for k in y[index].unique():
        same = index[y[index] == k]
        for i in range(clients):
            mine[i].append(same[slice(*piece(len(same), i))])
    return [torch.cat(m).sort().values if m else nothing() for m in mine]


def mixed(spec: Data, parts: dict[str, Parts], prepared) -> list[Share]:
    """Client i holds domain i but for its first part, and the first part of domain i + 1, cyclic (MPFT, Table 2).

    The first part is floor(mixed n) samples of each class, in file order, of the train, val and test parts alike.
    """
    def sizes(n):
        return int(spec.mixed * n), n - int(spec.mixed * n)

    names, first, rest = list(parts), {}, {}
    for d, three in parts.items():
        y = prepared.tensors[f"{d}/y"]
        pieces = [cut(y[index], sizes) if len(index) else (index, index) for index in three]
        first[d], rest[d] = ([index[p[i]] for index, p in zip(three, pieces)] for i in range(2))
    following = dict(zip(names, names[1:] + names[:1]))
    return [Share(d, *({d: mine, following[d]: others} for mine, others in zip(rest[d], first[following[d]])))
            for d in names]


def spread(spec: Data, parts: dict[str, Parts], owners: list[str], seed: int) -> list[Share]:
    """Of domain d, client k holds lam n_d / K, and (1 - lam) n_d / K_d more where it is one of the K_d clients of d.

    lam = 1: K clients alike; 0, which is left to `divided`: each has its domain alone. A client is tested on its own
    domain. `clients` says K_d, which the source's code chooses by n_d. Bai et al., ICLR 2024, arXiv:2307.04942
    (FedDG_Benchmark).
    """
    held = [{} for _ in owners]
    for d, three in parts.items():
        index = three.train[torch.randperm(len(three.train), generator=generator(seed, "spread", d))]
        common, own = index.split([round(spec.spread * len(index)), len(index) - round(spec.spread * len(index))])
        mine = [i for i, owner in enumerate(owners) if owner == d]
        for i, piece in [*enumerate(common.tensor_split(len(owners))), *zip(mine, own.tensor_split(len(mine)))]:
            held[i][d] = torch.cat([held[i].get(d, nothing()), piece]).sort().values
    return [Share(d, {k: index for k, index in h.items() if len(index)}, {d: parts[d].val}, {d: parts[d].test})
            for d, h in zip(owners, held)]


def dirichlet(y: Tensor, clients: int, spec: Data, seed: int) -> list[Tensor]:
    """Per class, shares p ~ Dir(beta 1); a client that holds N / clients samples already gets none of it.

    Drawn again until every client has `minimum` samples (Yurochkin et al., arXiv:1905.12022, as in PFLlib and FedAPT).
    UserError when no draw does.
    """
    if clients * spec.minimum > len(y):
        raise UserError(f"{spec.name}: {clients} clients cannot have {spec.minimum} of {len(y)} samples each; "
                        "lower minimum or clients")
    rng, labels = np.random.default_rng(seed), y.numpy()
    for _ in range(TRIES):
        mine = [[] for _ in range(clients)]
        for k in np.unique(labels):
            index = rng.permutation(np.flatnonzero(labels == k))
            open_ = np.array([sum(map(len, m)) < len(y) / clients for m in mine])
            p = rng.dirichlet(np.full(clients, spec.dirichlet)) * open_
            if not p.sum() > 0:             # a tiny beta may underflow: one of the open clients takes the class
                p = np.eye(clients)[rng.choice(np.flatnonzero(open_))]
            cuts = (np.cumsum(p / p.sum()) * len(index)).astype(int)[:-1]
            for m, piece in zip(mine, np.split(index, cuts), strict=True):
                m.append(piece)
        drawn = [np.sort(np.concatenate(m)) for m in mine]
        if min(map(len, drawn)) >= spec.minimum:
            return [torch.as_tensor(d) for d in drawn]
    raise UserError(f"{spec.name}: {TRIES} draws of Dirichlet({spec.dirichlet}) left a client with fewer than "
                    f"{spec.minimum} samples; lower minimum or clients, or raise dirichlet")


def pathological(y: Tensor, clients: int, spec: Data, classes: int, seed: int) -> list[Tensor]:
    """Class after class goes to the first ceil(clients / classes * per client) clients that still have room for one.

    `balanced`: equal shares of the class in file order, the last client takes the remainder; else random shares
    (PFLlib's "pat"). Groups of clients share their classes: with 20 clients, 10 classes and 2 each, clients 0-3 hold
    {0, 1}, 4-7 {2, 3}, and so on.
    """
    rng, mine, room = np.random.default_rng(seed), [[] for _ in range(clients)], [spec.pathological] * clients
    for k in range(classes):
        index = where(y == k)
        takers = [c for c in range(clients) if room[c]][:math.ceil(clients / classes * spec.pathological)]
        if not takers or not len(index):
            continue
        if len(index) < len(takers):
            raise UserError(f"{spec.name}: class {k} has {len(index)} samples for {len(takers)} clients; "
                            "use fewer clients")
        each = len(index) / len(takers)
        low = min(max(int(each / 10), spec.minimum // classes, 1), int(each))
        sizes = [int(each) if spec.balanced else int(rng.integers(low, int(each) + 1)) for _ in takers[1:]]
        for c, piece in zip(takers, index.split([*sizes, len(index) - sum(sizes)]), strict=True):
            mine[c].append(piece)
            room[c] -= 1
    if not all(mine):
        raise UserError(f"{spec.name}: {clients} clients with {spec.pathological} of {classes} classes each leave "
                        f"client {[len(m) for m in mine].index(0)} without a class; "
                        "use fewer clients or more classes each")
    return [torch.cat(m).sort().values for m in mine]


def hold_out(share: Share, part: float, gen: torch.Generator) -> Share:
    """A client's own test split: a random `part` of its samples, not stratified (FedDTR, PFLlib)."""
    train, test = {}, {}
    for d, index in share.train.items():
        order = index[torch.randperm(len(index), generator=gen)]
        held = math.ceil(part * len(order))
        test[d], train[d] = order[:held].sort().values, order[held:].sort().values
    return share._replace(train=train, test=test)


def held_size(held: dict) -> int:
    """How many samples a part of a share has."""
    return sum(map(len, held.values()))


def partition_digest(shares: list[Share]) -> str:
    """12 hex digits over domains and indices: equal for equal partitions, whatever the size of the images."""
    sha = hashlib.sha256()
    for share in shares:
        for held in share[1:]:
            for domain, index in held.items():
                sha.update(f"{share.domain} {domain} {len(index)} ".encode() + index.numpy().tobytes())
    return sha.hexdigest()[:12]


def _domains(spec: Data, manifest: dict) -> list[str]:
    names = list(spec.domains or manifest["domains"])
    for domain in [*names, *spec.unseen]:
        if domain not in manifest["domains"] and domain in getattr(reader_of(spec.name), "DOMAINS", ()):
            raise UserError(f"the prepared {spec.name} has no domain '{domain}' (its raw files were not there); it has "
                            f"{', '.join(manifest['domains'])}: prepare it again with the files of {domain}")
        pick(f"domain of {spec.name}", domain, manifest["domains"])
    if spec.clients and len(spec.clients) != len(names) or len({*names}) < len(names):
        raise UserError(f"{spec.name}: clients has {len(spec.clients)} numbers for {len(names)} domains "
                        f"({', '.join(names)}), each of which is named once")
    return names
