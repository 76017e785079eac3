"""The whole state after a round in one file, from which a run that was cut goes on."""
import json
import math
import os
import zlib
from contextlib import suppress
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from fedlib.core import schema
from fedlib.core.errors import UserError, pick
from fedlib.core.files import write_bytes
from fedlib.core.params import flatten, to_device, unflatten
from fedlib.engine import records

CHECKPOINT = 2      # format of the partial files; another number is not continued
DAMAGED = (SafetensorError, ValueError, TypeError, AttributeError, IndexError, RuntimeError, OSError)


def between(usual: float) -> float:
    """How many times what a checkpoint takes lie between two: FEDLIB_CHECKPOINT. UserError: an unknown word."""
    asked = os.environ.get("FEDLIB_CHECKPOINT") or "auto"
    return {"auto": usual, "every": 0, "off": math.inf}[pick("FEDLIB_CHECKPOINT", asked, ("auto", "every", "off"))]


def checkpoint(partial: Path, simulation):
    """The whole state after a round in one file, written whole or not at all."""
    state = {"server": {k: v for k, v in vars(simulation.server).items() if k.endswith("_")},
             "clients": {w.client.id: kept for w in simulation.workers if any((kept := w.kept()).values())}}
    tensors = {k: v.detach().cpu().contiguous().clone() for k, v in flatten(state).items()}
    rounds = simulation.rounds
    about = {"format": CHECKPOINT, "digest": simulation.run.digest, "sum": checksum(tensors, rounds), "rounds": rounds,
             "made": simulation.made}
    write_bytes(partial, save(tensors, {"about": json.dumps(about)}))


def resume(partial: Path, simulation):
    """The simulation as it was after the last round that a checkpoint holds; without one nothing changes.

    UserError: a checkpoint of another run or of other data, or a damaged one.
    """
    if not partial.exists():
        return
    try:
        with safe_open(partial, "pt") as file:
            about = schema.parsed((file.metadata() or {}).get("about", "{}"))
            tensors = {k: file.get_tensor(k) for k in file.keys()}
        wanted = CHECKPOINT, simulation.run.digest
        if not isinstance(about, dict) or (about.get("format"), about.get("digest")) != wanted:
            raise UserError(f"{partial} belongs to another run or version; delete it to start the run afresh")
        records.check_rounds(schema.check(about, {"rounds": list, "made?": {"earlier?": [dict]}})["rounds"])
        if about.get("sum") != checksum(tensors, about["rounds"]):
            raise ValueError("its numbers are not those that were written")
        made = continued(about.get("made", {}), simulation.made, len(about["rounds"]))
        restore(unflatten(tensors), simulation.server, simulation.workers, simulation.device)
    except DAMAGED as error:
        why = " ".join(str(error).split())
        raise UserError(f"{partial} is not a checkpoint ({why}); delete it to start the run afresh") from error
    simulation.rounds, simulation.made = about["rounds"], made


def continued(kept: dict, made: dict, rounds: int) -> dict:
    """How a run is made that goes on after so many rounds: `earlier` has what was otherwise until then, and how.

    UserError: its data were others.
    """
    if kept and made and json.dumps(kept.get("data")) != json.dumps(made.get("data")):
        raise UserError("the data are not those that this run began with; delete its .partial file to start it afresh")
    other = {k: v for k, v in kept.items() if k not in ("data", "earlier", "started") and made.get(k) != v}
    past = kept.get("earlier", []) + [{"rounds": rounds} | other] * bool(other)
    return made | ({"earlier": past} if past else {})


def checksum(tensors: dict, rounds: list[dict]) -> int:
    """CRC-32 over all of a checkpoint: a disk that lost its power may keep a file's length and not what was in it."""
    crc = zlib.crc32(json.dumps(rounds).encode())
    for k, v in sorted(tensors.items()):
        crc = zlib.crc32(f"{k} {v.dtype} {tuple(v.shape)} ".encode(), crc)
        crc = zlib.crc32(v.reshape(-1).view(torch.uint8).numpy(), crc)
    return crc


def restore(state: dict, server, workers, device):
    """Server and clients as a checkpoint has them. ValueError: it is of another server, or of other clients or nets."""
    kept, clients = state.pop("server", {}), state.pop("clients", {})
    own = {k: v for k, v in vars(server).items() if k.endswith("_")}
    if state or kept.keys() - own.keys() or clients.keys() - {w.client.id for w in workers}:
        raise ValueError("it has parts that the run has not")
    same_entries(flatten(kept), flatten(own))
    for k, v in kept.items():
        setattr(server, k, to_device(v, device) if isinstance(v, dict) else v.to(device))
    for worker in workers:
        worker.restore(clients.get(worker.client.id, {}))


def same_entries(kept: dict, own: dict):
    """ValueError unless everything that is there at the start is kept, of the same type and number of dimensions, and,
    where it has entries by name, of the same shape."""
    for k, v in own.items():
        if k not in kept:
            raise ValueError(f"it lacks {k}")
        if (kept[k].dtype, kept[k].dim()) != (v.dtype, v.dim()) or "/" in k and kept[k].shape != v.shape:
            raise ValueError(f"its {k} is {kept[k].dtype} {tuple(kept[k].shape)}, not {v.dtype} {tuple(v.shape)}")


def tidy(path: Path, *more: Path):
    """Remove what a process has left that was killed after it wrote all; it stays where nothing can be written."""
    with suppress(OSError):
        for left in (path.with_suffix(".partial"), path.with_suffix(".lock"), *more):
            left.unlink(missing_ok=True)
