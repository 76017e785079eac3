"""Models that are kept beside their record: what a client predicts with, and all that builds it again.

One safetensors file for a run. A method that ends with one net for all has its entries under "<id>/net/" of one client;
one that ends with a net of its own at each client has those of all. Beside them lies what a prediction asks the client
for, seen by watching one: entries of its state and of the last message, counts of its labels, a mean feature.
"""
import copy
import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from fedlib.core import machine, schema
from fedlib.core.errors import UserError, first_line, pick
from fedlib.core.federation import Client, Federation, Split, as_input
from fedlib.core.params import flatten, to_device, unflatten
from fedlib.datasets import prepare
from fedlib.datasets.registry import reader_of
from fedlib.engine import records
from fedlib.engine.loop import train_beside
from fedlib.engine.run import Run, planned
from fedlib.engine.worker import Worker, initial_net
from fedlib.methods import METHODS, own_code
from fedlib.methods.base import autocast
from fedlib.models import encoders

KIND, FORMAT = "safetensors", 1
ABOUT = {"format": int, "run": dict, "acc": {str: float}, "classes": [str], "domains": [str], "shape": [int],
         "words": list, "columns?": list, "kind": str, "size": int, "data": {"name": str, "digest": str},
         "clients": [{"id": str, "domain": str}], "shared": bool}


class Kept(NamedTuple):
    """A model from its file: what the file says, its run, and a worker for each client that has a net of its own."""
    about: dict
    run: Run
    workers: dict[str, Worker]      # by site; by site and client where a site has several

    def of(self, site: str | None) -> Worker:
        """The net that speaks for a site. UserError: each client has its own, and this site none."""
        if self.about["shared"]:
            return next(iter(self.workers.values()))
        if site is None:
            raise UserError(f"each client has a net of its own: name one with --client ({', '.join(self.workers)})")
        return self.workers[pick("client", site, self.workers)]


# keep

def keep(run: Run, results: Path, **how) -> Path:
    """Train the run and store what predicts beside its record; returns where. One that has a record trains again.

    `how` and what it raises: as `train_beside`.
    """
    return train_beside(run, results, KIND, content, **how)


def check_data(run: Run, results: Path):
    """UserError where there is a record of the run on a set of the same name whose files have changed since."""
    size = run.data.size or reader_of(run.data.name).SIZES[0]
    path, (_, about) = run.path(results), prepare.paths(run.data.name, size)
    if path.exists() and about.exists():
        had = records.read_record(path)["made"].get("data", {}).get("digest")
        if had and had != schema.parsed(about.read_text(encoding="utf-8")).get("digest"):
            raise UserError(f"{path} is of {run.data.name} as it was before it was prepared again: move it away, or "
                            "train into another folder by --out")


def content(simulation) -> bytes:
    """The bytes of the file, from a federation after its last round, in the state that the last test saw."""
    run, server, federation = simulation.run, simulation.server, simulation.federation
    shared = not server.personal and run.protocol.buffers == "average" and run.protocol.evaluate != "after"
    workers, tensors = simulation.workers[:1] if shared else list(simulation.workers), {}
    for worker in workers:
        tensors |= flatten({worker.client.id: entries(worker, server, run)})
    prepared = prepare.load_set(run.data.name, run.data.size or None).manifest
    about = {"format": FORMAT, "run": run.spec, "acc": simulation.rounds[-1]["acc"], "classes": federation.classes,
             "domains": federation.domains, "shape": list(workers[0].client.train.x.shape[1:]),
             "words": prepared.get("words") or [], "columns": prepared.get("columns") or [],
             "kind": prepared.get("kind", "images"), "size": prepared["size"],
             "data": {"name": run.data.name, "digest": prepared["digest"], "transform": prepared.get("transform", "")},
             "clients": [{"id": w.client.id, "domain": w.client.domain} for w in workers], "shared": shared}
    return save({k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}, {"about": json.dumps(about)})


def entries(worker: Worker, server, run: Run) -> dict:
    """What one client predicts with: its net after a download, and what a prediction asks for beside it."""
    client = worker.client
    if run.protocol.evaluate != "after":        # else the net as local training left it was tested
        client.got = to_device(server.broadcast(client.id), worker.device)
        worker.method.receive(client, client.got)
        worker.method.adapt(client)
    seen = Watched(client, scratch={}, state=Asked(client.state), got=Asked(client.got), train=Watched(client.train))
    predicted(worker, client.test.x[:2], client.test.normal, seen)
    kept = {"net": client.net.state_dict(), "state": seen.state.found(), "got": seen.got.found()}
    if "y" in seen.train.asked:
        kept["counts"] = client.train.y.bincount(minlength=len(client.classes))
    if "input" in seen.train.asked:
        if not isinstance(client.net.body, nn.Identity):
            raise UserError(f"{run.method} predicts with its training samples, which no model keeps, in this net")
        kept["mean"] = client.train.x.float().mean(0)       # of features; it asks for no more of them
    if run.net.head in ("frozen", "own"):
        kept["head"] = client.net.head.weight
    return kept


class Asked(dict):
    """A dict that notes which of its entries are asked for."""

    def __init__(self, held: dict):
        super().__init__(held)
        self.names = set()

    def __getitem__(self, name):
        self.names.add(name)
        return super().__getitem__(name)

    def get(self, name, default=None):
        self.names.add(name)
        return super().get(name, default)

    def found(self) -> dict:
        """Those entries."""
        return {k: v for k, v in self.items() if k in self.names}


class Watched:
    """Stands for a client, or a split, in a prediction, and notes what it is asked for beside what it is given."""

    def __init__(self, held, **given):
        self.held, self.asked = held, set()
        vars(self).update(given)

    def __getattr__(self, name):
        self.asked.add(name)
        return getattr(self.held, name)

    def __len__(self):
        return len(self.held)


# use

def load(path: Path, device: str = "cpu", own: str | None = None) -> Kept:
    """The model in a file, or beside a record. own: FILE.py:NAME that its method or net stands in.

    UserError: it is none, or of a method or version that is not here.
    """
    machine.check_device(device)
    if own:
        own_code.load(Path(own.rpartition(":")[0] or own))
    path = Path(path)
    path = path.with_suffix(f".{KIND}") if path.suffix == ".json" else path
    try:
        with safe_open(path, "pt") as file:
            about = schema.check(schema.parsed((file.metadata() or {}).get("about", "null")), ABOUT)
            tensors = {k: file.get_tensor(k) for k in file.keys()}
            held = unflatten(tensors)
        side, shape = about["size"], about["shape"]
        if about["format"] != FORMAT or not about["clients"] or len(shape) == 3 and shape[1:] != [side, side]:
            raise ValueError("it is of another format")
        if not all(t.isfinite().all() for t in tensors.values()):
            raise ValueError("it holds numbers that are not finite")
    except (OSError, ValueError, TypeError, AttributeError, SafetensorError) as error:
        raise UserError(f"{path} is no kept model ({first_line(error)}); `fedlib train --save` makes one") from error
    method = str(about["run"].get("method"))
    if method not in METHODS:
        raise UserError(f"{path} is of the method {method}, which is not known here: name its file by --from "
                        "FILE.py:METHOD")
    try:
        run, named = planned(about["run"]), {}
        for client in about["clients"]:
            alike = sum(c["domain"] == client["domain"] for c in about["clients"]) > 1
            named[f"{client['domain']}:{client['id']}" if alike else client["domain"]] = worker_of(
                run, about, client, held.get(client["id"], {}), device)
    except (RuntimeError, ValueError, TypeError, AttributeError, KeyError) as error:
        raise UserError(f"{path} does not fit its net ({first_line(error)}): it was made by another version") from error
    return Kept(about, run, named)


def worker_of(run: Run, about: dict, client: dict, held: dict, device: str) -> Worker:
    """A client's place without its data, as it was when it was kept."""
    counts = held.get("counts", torch.zeros(len(about["classes"]), dtype=torch.int64))
    y = torch.arange(len(counts)).repeat_interleave(counts)
    x = torch.zeros(0, *about["shape"], dtype=torch.int32 if about["kind"] == "tokens" else torch.float32)
    x = held["mean"][None] if "mean" in held else x
    empty = Split(x, y).to(device)
    made = Client(client["id"], client["domain"], empty, empty, seed=run.seed, classes=about["classes"],
                  domains=about["domains"], head=held.get("head"))
    federation = Federation([made], about["classes"], {}, {}, words=len(about["words"]), head=held.get("head"))
    untrained = dataclasses.replace(run, net=dataclasses.replace(run.net, start="random"))      # no weights to look for
    worker = Worker(untrained, made, copy.deepcopy(initial_net(untrained, federation)), device)
    made.net.load_state_dict({k: v.to(device) for k, v in held.get("net", {}).items()})
    made.state, made.got = (to_device(held.get(k, {}), device) for k in ("state", "got"))
    return worker


@torch.inference_mode()
def predicted(worker: Worker, x: Tensor, normal: str, client=None) -> Tensor:
    """Probabilities `(N, C)` of samples as a prepared set has them, in evaluation mode."""
    client, method = worker.client if client is None else client, worker.method
    worker.client.net.eval()
    parts = []
    for part in x.split(method.at_once):
        with autocast(method.protocol, worker.client.train.y):
            parts.append(method.predict(worker.client.net, as_input(part.to(worker.device), normal), client).float())
    return torch.cat(parts).softmax(1).cpu()


def encoded(run: Run, x: Tensor, batch: int = 64) -> Tensor:
    """Features of images uint8 `(N, 3, S, S)` where the run trained on those of a frozen encoder; else the images."""
    if not run.data.encoder:
        return x
    encoder = encoders.load_encoder(run.data.encoder.partition("#")[0])
    return torch.cat([encoder(part).half() for part in x.split(batch)])
