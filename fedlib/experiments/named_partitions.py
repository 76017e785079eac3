"""The papers' federations by name (partitions.toml), and what is stored of them: who holds what, with a digest.

`stored()` reads partitions.json. A digest covers the indices of every client's samples, so that a partition
that is drawn again can be compared with the stored one; class counts make its picture where the data set is not.
"""
import json
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedlib.core import schema, settings
from fedlib.core.errors import UserError, pick
from fedlib.core.files import write_bytes
from fedlib.datasets import prepare
from fedlib.datasets.partition import Data, Share, held_size, partition, partition_digest

LISTED = Path(__file__).parent / "partitions.toml"
FILE = Path(__file__).parent / "partitions.json"
ENTRY = {"says": str, "source": str, "status": str, "data": dict, "leave_one_out?": bool}
DRAWN = {"digest": str, "classes": [str], "clients": [{"domain": str, "per_class": [int]}]}     # what readers use
STATUS = ("printed", "released", "ours")


@dataclass(frozen=True)
class Named:
    """A paper's federation: its settings, what it says in words, where it is from."""
    name: str
    says: str
    source: str
    status: str
    data: Data


def all_named() -> dict[str, Named]:
    """All named partitions, in the order of the file; leave-one-out entries give one for each domain."""
    try:
        listed = schema.check(schema.toml(LISTED.read_text(encoding="utf-8")), {str: ENTRY})
    except (OSError, ValueError) as error:
        raise UserError(f"{LISTED} does not list partitions ({error})") from error
    found = {}
    for name, entry in listed.items():
        data, about = entry["data"], [entry[k] for k in ("says", "source", "status")]
        spec = settings.make(Data, data, f"the partition {name}")
        for unseen in spec.domains if entry.get("leave_one_out") else [None]:
            own = name if unseen is None else f"{name}_{unseen}"
            kept = spec if unseen is None else replace(spec, unseen=(unseen,))
            found[own] = Named(own, *about, kept)
    return found


def load_named(name: str) -> Named:
    """The partition of this name; UserError with the nearest name when there is none."""
    known = all_named()
    return known[pick("partition", name, known)]


def drawn(spec: Data, seed: int = 0) -> dict:
    """A partition as plain data: the set, the seed, the digest, and each client's counts per class and part.

    `seen` counts a client's test samples that somebody trains on, 0 in an honest split; `copied` those of the others
    that equal one of them, value by value: the set itself holds it twice.
    """
    prepared = prepare.load_set(spec.name, spec.size or None)
    shares, unseen = partition(spec, prepared, seed)
    trained = {d: torch.cat([s.train[d] for s in shares if d in s.train]) for d in {d for s in shares for d in s.train}}
    values = {v for d, index in trained.items() for v in _values(prepared, d, index)}
    return {"set": spec.name, "seed": seed if spec.partition_seed < 0 else spec.partition_seed,
            "digest": partition_digest(shares), "notice": prepared.manifest["notice"],
            "split": prepared.manifest["split"], "classes": prepared.manifest["classes"],
            "clients": [_counts(s, prepared, trained, values) for s in shares],
            "unseen": {d: len(i) for d, i in unseen.items()}}


def _values(prepared, domain: str, index: Tensor) -> list[int]:
    return [hash(x.tobytes()) for x in prepared.tensors[f"{domain}/x"][index].numpy()]


def _counts(share: Share, prepared, trained: dict, values: set) -> dict:
    per_class = sum(prepared.tensors[f"{d}/y"][i].bincount(minlength=len(prepared.manifest["classes"]))
                    for d, i in share.train.items())
    others = {d: i[~torch.isin(i, trained[d])] for d, i in share.test.items()}
    return {"domain": share.domain, **{p: held_size(getattr(share, p)) for p in ("train", "val", "test")},
            "seen": held_size(share.test) - held_size(others),
            "copied": sum(v in values for d, i in others.items() for v in _values(prepared, d, i)),
            "per_class": per_class.tolist()}


def frame(found: dict):
    """Class counts of a drawn or stored partition as a DataFrame: rows clients ("0 photo"), columns classes."""
    import pandas as pd
    return pd.DataFrame([c["per_class"] for c in found["clients"]], columns=found["classes"],
                        index=[f"{i} {c['domain']}" for i, c in enumerate(found["clients"])])


def indices(spec: Data, seed: int = 0) -> dict:
    """A partition in full, for use elsewhere: for every client and part, {domain: indices into its samples}."""
    prepared = prepare.load_set(spec.name, spec.size or None)
    shares, unseen = partition(spec, prepared, seed)
    return {"data": settings.spec(spec), "seed": seed, "set digest": prepared.manifest["digest"],
            "digest": partition_digest(shares),
            "clients": [{"domain": s.domain, **{p: {d: i.tolist() for d, i in getattr(s, p).items()}
                                                for p in ("train", "val", "test")}} for s in shares],
            "unseen": {d: i.tolist() for d, i in unseen.items()}}


def stored() -> dict:
    """{name: what `drawn` gave} of the partitions that are stored; {} where there is no file."""
    try:
        return schema.check(schema.parsed(FILE.read_text()), {str: DRAWN}) if FILE.exists() else {}
    except (OSError, ValueError) as error:
        raise UserError(f"{FILE} is not a file of partitions ({error}); delete it and store them again") from None


def store(names: list[str], say=print) -> list[str]:
    """Draw the named partitions with seed 0 and keep them in FILE; returns those whose set is absent or a subset."""
    kept, absent = stored(), []
    for name in names:
        try:
            found = drawn(load_named(name).data)
            if "subset" in found["notice"]:
                raise UserError(found["notice"])
            kept[name] = found
            say(f"{name}: {kept[name]['digest']}, {len(kept[name]['clients'])} clients")
        except UserError as error:
            absent.append(name)
            say(f"{name}: not drawn ({error})")
    order = {name: kept[name] for name in all_named() if name in kept}
    lines = ",\n".join(f'"{name}": {json.dumps(value, ensure_ascii=False)}' for name, value in order.items())
    write_bytes(FILE, f"{{\n{lines}\n}}\n".encode())
    return absent


# the command's list

def listing() -> list[dict]:
    """One entry for each named partition: name, set, what it says, source, status, the stored digest."""
    kept = stored()
    return [{"name": p.name, "set": p.data.name, "says": p.says, "source": p.source, "status": p.status,
             "digest": kept.get(p.name, {}).get("digest")} for p in all_named().values()]


def listing_text(lines: list[dict]) -> str:
    """The entries for a reader."""
    return "\n".join(f"{line['name']:<32} {line['set']:<15} {line['digest'] or '-':<13} {line['status']}\n"
                     f"{'':<32} {line['says']} ({line['source']})\n" for line in lines)


def in_words(name: str, found: dict) -> str:
    """Who holds what in a drawn partition."""
    lines = [f"{name} of {found['set']}, seed {found['seed']}, digest {found['digest']}"]
    for i, c in enumerate(found["clients"]):
        held = [found["classes"][k] for k, n in enumerate(c["per_class"]) if n]
        some = "all classes" if len(held) == len(found["classes"]) else f"{len(held)} classes: {', '.join(held[:6])}"
        lines.append(f"  {i:>3} {c['domain']:<14} train {c['train']:6d}  val {c['val']:5d}  test {c['test']:6d}  "
                     f"{some}")
    lines += [f"      {d:<14} unseen, test {n:6d}" for d, n in found["unseen"].items()]
    return "\n".join(lines + [f"  notice: {found['notice']}"] * bool(found["notice"]))
