"""Where FedDEAP's two networks look: its maps beside the images, and numbers that do not depend on a picture.

kept: {(block, seed): (run, maps)}, maps: domain -> {"index", "y", "semantic", "domain"} as `grad_cam.read` gives them.
"""
import pandas as pd
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.core.errors import UserError
from fedlib.datasets import prepare
from fedlib.methods.prompts import Turn
from fedlib.models import encoders
from fedlib.probes import grad_cam


def collected(page) -> dict[tuple, tuple]:
    """What was kept beside the records of a page, in the profiles that it shows."""
    return {(p.block, p.seed): (p.run, grad_cam.read(p.run, page.results)) for p, _ in page.found
            if p.done(page.results)}


def images(run, maps: dict) -> dict[str, Tensor]:
    """The images of the maps by domain, uint8 `(n, 3, S, S)`; {} where the prepared set is not here."""
    try:
        tensors = prepare.load_set(run.data.name, run.data.size or None).tensors
    except UserError:
        return {}
    return {d: tensors[f"{d}/x"][found["index"]] for d, found in maps.items()}


def heated(image: Tensor, heat: Tensor) -> Tensor:
    """The image in grey under the map in colours, uint8 `(3, S, S)`: yellow where the map is 255, dark blue at 0."""
    import matplotlib
    grey = image.float().mean(0) / 255
    large = F.interpolate(heat[None, None].float() / 255, grey.shape, mode="bilinear")[0, 0]
    inks = torch.from_numpy(matplotlib.colormaps["cividis"](large.numpy())[..., :3]).permute(2, 0, 1)
    return (255 * (0.45 * grey + 0.55 * inks)).round().to(torch.uint8)


def pictures(run, maps: dict, count: int = 2) -> dict[str, Tensor]:
    """By domain the first images, each beside its two maps, uint8 `(3 count, 3, S, S)`; {} as `images`."""
    return {d: torch.stack([part for i in range(count)
                            for part in (x[i], *(heated(x[i], maps[d][name][i]) for name in grad_cam.NETWORKS))])
            for d, x in images(run, maps).items()}


def middle(heat: Tensor) -> Tensor:
    """The share of the heat (%) in the middle quarter of the area, of maps `(n, S, S)`; an even map has 25."""
    side = heat.shape[-1]
    inner = heat[:, side // 4:side - side // 4, side // 4:side - side // 4].float()
    return 100 * inner.sum((1, 2)) / heat.float().sum((1, 2)).clamp(min=1)


def alike(a: Tensor, b: Tensor) -> Tensor:
    """The correlation over the pixels of two maps `(n, S, S)` each; nan where one is even."""
    pairs = zip(a.flatten(1).float(), b.flatten(1).float(), strict=True)
    return torch.stack([torch.corrcoef(torch.stack(pair))[0, 1] for pair in pairs])


def untrained(run, maps: dict) -> dict:
    """Maps of the same images under networks with random weights; {} where images or encoder are not here."""
    if run.data.encoder != encoders.MINI:
        return {}
    encoder, domains = encoders.load_encoder(run.data.encoder), list(run.data.domains)
    classes = len(prepare.load_set(run.data.name).manifest["classes"])
    turns = (Turn(encoder.dim, classes, run.seed, "random"), Turn(encoder.dim, len(domains), run.seed, "random too"))
    made = {}
    for d, x in images(run, maps).items():
        targets = maps[d]["y"], torch.full_like(maps[d]["y"], domains.index(d))
        made[d] = {name: grad_cam.heat(encoder, turn, x, target)
                   for name, turn, target in zip(grad_cam.NETWORKS, turns, targets, strict=True)}
    return made


def looks(kept: dict) -> pd.DataFrame:
    """A line for each image under trained and under random networks: `middle` of both networks' maps, and `alike`."""
    lines = [(block, domain, networks, seed, *map(float, values)) for (block, seed), (run, found) in kept.items()
             for networks, maps in (("trained", found), ("random", untrained(run, found)))
             for domain, pair in maps.items()
             for values in zip(*map(middle, (pair[name] for name in grad_cam.NETWORKS)),
                               alike(*(pair[name] for name in grad_cam.NETWORKS)), strict=True)]
    return pd.DataFrame(lines, columns=["block", "domain", "networks", "seed", "T_S (%)", "T_D (%)", "alike"])
