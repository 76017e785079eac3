"""Features of a federated net on test images, kept beside its record: what the t-SNE figures draw."""
import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedlib.core.errors import UserError
from fedlib.core.seeds import generator
from fedlib.engine import records
from fedlib.engine.loop import train_beside
from fedlib.engine.run import Run

IMAGES = 150        # at most, of each domain


def collect(run: Run, domains, results: Path, **how) -> Path:
    """Train the run and store the features of its last global net on test images of the domains; returns their path.

    `how` and what it raises: as `train_beside`.
    """
    def content(simulation):
        last = simulation.rounds[-1]
        about = {"digest": run.digest, "round": last["round"], "acc": last["acc"]}
        return save(features_of(simulation, domains), {"about": json.dumps(about)})

    return train_beside(run, results, "features", content, **how)


@torch.inference_mode()
def features_of(simulation, domains) -> dict:
    """{"<domain>/z": `(N, D)` float16, "<domain>/y": `(N,)`} under the net that the server sends now.

    Of each domain up to IMAGES test images, drawn by seed. The first client of a domain speaks for it. Methods that
    learn prompts have "<domain>/t" `(C, D)` too, the texts' features that the client tests with.
    """
    tensors = {}
    for domain in domains:
        worker = next(w for w in simulation.workers if w.client.domain == domain)
        client, order = worker.client, generator(simulation.run.seed, "features", domain)
        client.got = simulation.server.broadcast(client.id)
        worker.method.receive(client, client.got)
        split = client.test[torch.randperm(len(client.test), generator=order)[:IMAGES].to(client.test.y.device)]
        z = client.net.eval().body(split.input())
        tensors |= {f"{domain}/z": z.half().cpu().contiguous(), f"{domain}/y": split.y.cpu().contiguous()}
        if (t := worker.method.vectors(client.net, client)) is not None:
            tensors[f"{domain}/t"] = t.half().cpu().contiguous()
    return tensors


def texts(run: Run, domains, results: Path) -> dict[str, torch.Tensor]:
    """domain -> the features of the classes' texts `(C, D)`; UserError as `read`."""
    return {d: t.float() for d, t in zip(domains, kept(run, domains, results, "t"), strict=True)}


def read(run: Run, domains, results: Path) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Features `(N, D)`, labels `(N,)` and the domain of each image. UserError when they were not collected."""
    z, y = (kept(run, domains, results, k) for k in "zy")
    if [t.shape[:-1] for t in z] != [t.shape for t in y]:
        raise UserError(f"{run.beside(results, 'features')} has not one label for each of its features; delete it")
    return torch.cat(z).float(), torch.cat(y), [d for d, labels in zip(domains, y, strict=True) for _ in labels]


def kept(run: Run, domains, results: Path, what: str) -> list[torch.Tensor]:
    """One of the tensors of each domain. UserError: not collected, damaged, other shapes or types."""
    dims, dtype = {"z": (2, torch.float16), "y": (1, torch.int64), "t": (2, torch.float16)}[what]
    try:
        tensors = load(records.read_beside(run, results, "features"))
        found = [tensors[f"{d}/{what}"] for d in domains]
        if any(t.dim() != dims or t.dtype != dtype for t in found) or len({t.shape[1:] for t in found}) > 1:
            raise ValueError(f"its {what} are no features")
        return found
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{run.beside(results, 'features')} holds no features ({error}); delete it and run it again") \
            from error
