"""Where FedDEAP's two networks look: Grad-CAM through the frozen image tower, kept beside a record (its Figure 5)."""
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from fedlib.core.errors import UserError
from fedlib.core.losses import cosines
from fedlib.core.seeds import generator
from fedlib.datasets import prepare
from fedlib.datasets.partition import partition
from fedlib.engine import records
from fedlib.engine.loop import train_beside
from fedlib.engine.run import Run
from fedlib.models import encoders

IMAGES = 4      # of each domain, each of another class
SIDE = 56       # maps are stored at no more pixels
COARSEST = 4    # the last map of a ResNet that has this side or more; mini_clip's very last has one pixel
NETWORKS = ("semantic", "domain")


def collect(run: Run, results: Path, **how) -> Path:
    """Train the run and store the maps of some test images of each domain; returns the path.

    `how` and what it raises: as `train_beside`; UserError too where the encoder or the package grad-cam is not here.
    """
    def content(simulation):
        encoder, tensors = encoders.load_encoder(run.data.encoder.partition("#")[0]).to(simulation.device), {}
        for domain, index, x, y in shown(run):
            worker = next(w for w in simulation.workers if w.client.domain == domain)
            worker.method.receive(worker.client, simulation.server.broadcast(worker.client.id))
            target = {"semantic": y, "domain": torch.full_like(y, worker.client.domains.index(domain))}
            tensors |= {f"{domain}/index": index, f"{domain}/y": y}
            tensors |= {f"{domain}/{name}": heat(encoder, getattr(worker.client.net, name), x, target[name])
                        for name in NETWORKS}
        return save({k: v.contiguous() for k, v in tensors.items()}, {"digest": run.digest})

    return train_beside(run, results, "cams", content, **how)


def shown(run: Run):
    """(domain, index, images uint8 `(n, 3, S, S)`, labels) of test images of the first client of each domain."""
    prepared = prepare.load_set(run.data.name, run.data.size or None)
    shares, _ = partition(run.data, prepared, run.seed)
    for share in {s.domain: s for s in reversed(shares)}.values():
        index = share.test[share.domain]
        index = index[torch.randperm(len(index), generator=generator(run.seed, "cams", share.domain))]
        y = prepared.tensors[f"{share.domain}/y"][index]
        first = [int((y == c).nonzero()[0]) for c in y.unique()][:IMAGES]
        index = index[sorted(first)]
        yield share.domain, index, *(prepared.tensors[f"{share.domain}/{k}"][index] for k in "xy")


def heat(encoder, turn: nn.Module, x: Tensor, target: Tensor) -> Tensor:
    """Grad-CAM of cos(T(f(x)), E_target), uint8 `(n, side, side)`: 255 where the score rises most.

    L = relu(sum_k a_k A^k), a_k the mean gradient of the score over the map A^k (Selvaraju et al., arXiv:1610.02391).
    """
    try:
        from pytorch_grad_cam import GradCAM
        from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget
    except ImportError as error:
        raise UserError("Grad-CAM needs its package: pip install grad-cam") from error
    layer, reshape = last_map(encoder.net)
    levels = encoders.resized(x, encoder.side, encoder.mode).to(encoder.device).requires_grad_()
    with GradCAM(Score(encoder, turn), [layer], reshape) as cam:
        maps = torch.from_numpy(cam(levels, [ClassifierOutputTarget(int(c)) for c in target]))
    side = min(SIDE, maps.shape[-1])
    return (255 * F.interpolate(maps[None].float(), (side, side), mode="area")[0]).round().to(torch.uint8)


class Score(nn.Module):
    """cos(T(f(x)), E): images as floats 0..255 `(n, 3, S, S)` to cosines with the frame's columns `(n, C)`."""

    def __init__(self, encoder, turn: nn.Module):
        super().__init__()
        self.tower, self.turn, self.encoder = encoder.net, turn, encoder

    def forward(self, levels):
        return cosines(self.turn(self.encoder.features(levels)), self.turn.frame)


def last_map(net: nn.Module):
    """(layer, reshape) of CLIP's image towers; reshape turns a transformer's tokens to maps `(n, D, side, side)`.

    UserError: another kind of tower.
    """
    if hasattr(net, "transformer"):
        side, swapped = net.grid_size, not net.transformer.batch_first

        def maps(tokens):
            tokens = tokens.transpose(0, 1) if swapped else tokens
            return tokens[:, 1:].transpose(1, 2).unflatten(2, side)     # the first is the class token
        return net.transformer.resblocks[-1].ln_1, maps
    if not hasattr(net, "layer4"):
        raise UserError("Grad-CAM knows CLIP's vision transformers and ResNets, not this image tower")
    sides = {k: net.image_size // 4 // 2 ** k for k in range(4)}
    deepest = max((k for k, side in sides.items() if side >= COARSEST), default=0)
    return getattr(net, f"layer{deepest + 1}"), None


def read(run: Run, results: Path) -> dict[str, dict[str, Tensor]]:
    """domain -> {"index" into the prepared set's domain, "y", "semantic", "domain"}. UserError: not collected."""
    kept = {}
    try:
        for name, tensor in load(records.read_beside(run, results, "cams")).items():
            domain, what = name.rsplit("/", 1)
            kept.setdefault(domain, {})[what] = tensor
        kept = {d: kept[d] for d in run.data.domains or sorted(kept)}       # the file keeps no order
        if any(maps.keys() != {"index", "y", *NETWORKS} for maps in kept.values()):
            raise ValueError("a domain lacks some")
        return kept
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"{run.beside(results, 'cams')} holds no maps ({error}); delete it and run it again") from error
