"""Messages between machines: as bytes, and checked against what a message of the run can hold before it is used.

A message travels as one safetensors block: 8 bytes, a header of names, dtypes and shapes, and the tensors. Nothing in
it can be executed.
"""
import dataclasses
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedlib.core.errors import UserError
from fedlib.core.params import flatten, unflatten
from fedlib.engine.loop import Simulation
from fedlib.probes.cost import made_up


class Entry(NamedTuple):
    """One name of a message.

    rows: how many there were in each rehearsed message, where that differed, else (); entries of equal `rows` have
    equally many in every message. always: no message lacks it.
    """
    dtype: str
    shape: tuple
    rows: tuple
    always: bool


def pack(message: dict) -> bytes:
    """The message as one safetensors block."""
    return save({k: v.detach().cpu().contiguous() for k, v in flatten(message).items()})


def unpack(block: bytes, expected: dict[str, Entry], rows: int, classes: int) -> dict:
    """The message in a block. UserError, in one line: it is not one, or not one of those that the run exchanges.

    rows: how many samples there are; no message has more rows, or a larger count, than that (or than the classes).
    """
    most, flat = max(rows, classes), {}
    if len(block) > largest(expected, most):
        raise UserError(f"a message of {len(block)} bytes is larger than any of this run")
    try:
        flat = load(bytes(block))
    except (SafetensorError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise UserError("a message is not a safetensors block") from error
    for name in sorted(set(flat) ^ {k for k, e in expected.items() if e.always or k in flat}):
        raise UserError(f"a message {'has an unknown' if name in flat else 'lacks the'} entry {name[:80]!a}")
    lengths = {}
    for name, tensor in flat.items():
        entry, shape = expected[name], tuple(tensor.shape)
        fits = len(shape) == len(entry.shape) and (
            shape[1:] == entry.shape[1:] and shape[0] <= most if entry.rows else shape == entry.shape)
        if str(tensor.dtype) != entry.dtype or not fits:
            raise UserError(f"'{name}' in a message is {_words(tensor.dtype, shape)}, not "
                            f"{_words(entry.dtype, ('any', *entry.shape[1:]) if entry.rows else entry.shape)}")
        if entry.rows and lengths.setdefault(entry.rows, shape[0]) != shape[0]:
            raise UserError(f"'{name}' in a message has {shape[0]} rows, others of it {lengths[entry.rows]}")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise UserError(f"'{name}' in a message is not finite")
        bound = classes - 1 if entry.rows else most         # rows of integers are labels, other integers counts
        whole = tensor.numel() and not tensor.is_floating_point()
        if whole and not 0 <= int(tensor.min()) <= int(tensor.max()) <= bound:
            raise UserError(f"'{name}' in a message is not within 0 and {bound}")
    return unflatten(flat)


def largest(expected: dict[str, Entry], most: int) -> int:
    """Bytes that no message of these entries exceeds: the tensors, and 8 bytes and a header (see `envelope`)."""
    size = sum(torch.Size([most, *e.shape[1:]] if e.rows else e.shape).numel() * _dtype(e.dtype).itemsize
               for e in expected.values())
    return size + 16 + sum(len(k) + 20 * len(e.shape) + 100 for k, e in expected.items())


def envelope(block: bytes) -> int:
    """Bytes of a block beside its tensors: 8 for the header's length, and the header."""
    return 8 + int.from_bytes(block[:8], "little")


def rehearse(run, clients: list[str], classes: list[str], shape: tuple, words: int = 0) -> dict[str, dict[str, Entry]]:
    """{"down", "up"}: the entries that the run's messages can have, from four rounds of made-up data with few samples.

    One client takes part in the first round, two in the second, then all, twice; each has another number of samples, so
    that what depends on these is seen to vary.
    """
    small, seen = rehearsal(run, clients, classes, shape, words), {"down": [], "up": []}
    every = list(range(len(clients)))
    for chosen in (every[:1], every[:2], every, every):
        seen["down"] += map(small.message, every)
        uploads, _, _ = small.exchange(chosen)
        seen["up"] += uploads.values()
        small.server.aggregate(uploads)
        small.rounds.append({"round": small.number + 1})
    seen["down"] += map(small.message, every)
    return {way: entries([flatten(m) for m in messages], clients) for way, messages in seen.items()}


def rehearsal(run, clients: list[str], classes: list[str], shape: tuple, words: int) -> Simulation:
    """The run on made-up data: few samples, another number at each client."""
    batch = min(run.protocol.batch, 8)
    protocol = dataclasses.replace(run.protocol, rounds=4, epochs=1, batch=batch, evaluate="before")
    federation = made_up([number + 3 for number in range(len(clients))], len(classes), shape, words)
    federation.classes = classes
    for client, name in zip(federation.clients, clients, strict=True):
        client.id, client.domain, client.domains, client.classes, client.seed = name, name, clients, classes, run.seed
    return Simulation(dataclasses.replace(run, protocol=protocol), federation)


def entries(messages: list[dict], clients: list[str]) -> dict[str, Entry]:
    """What flat messages have in common. An entry that is there for one client can be there for each."""
    found = {}
    for name in sorted(set().union(*messages)):
        some = [m.get(name) for m in messages]
        first = next(t for t in some if t is not None)
        rows = tuple(-1 if t is None or not t.dim() else len(t) for t in some)
        found[name] = Entry(str(first.dtype), tuple(first.shape), rows if len(set(rows) - {-1}) > 1 else (),
                            all(t is not None for t in some))
    for name, entry in list(found.items()):
        path = name.split("/")
        for place in (k for k, part in enumerate(path) if part in clients):
            others = {"/".join([*path[:place], i, *path[place + 1:]]) for i in clients}
            found = dict.fromkeys(others, entry._replace(always=False)) | found
    return found


def _dtype(name: str) -> torch.dtype:
    return getattr(torch, name.removeprefix("torch."))


def _words(dtype, shape) -> str:
    return f"{str(dtype).removeprefix('torch.')} {tuple(shape)}"
