"""Feature-space hijacking: an image whose features are those that a client sent (MPFT, arXiv:2410.07738, appendix G).

The attacker knows the frozen encoder f and a prototype p, and looks for x* with f(x*) = p. That one attack fails does
not show that none succeeds: paper and code state neither optimiser nor start, so these are ours.
"""
import json
import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.core.errors import UserError
from fedlib.core.seeds import generator
from fedlib.datasets import prepare
from fedlib.datasets.partition import partition
from fedlib.engine import records
from fedlib.engine.loop import train_beside
from fedlib.engine.run import Run
from fedlib.models import encoders
from fedlib.models.encoders import Encoder

WINDOW = 11         # pixels of a side that SSIM's Gaussian window needs


def invert(encoder: Encoder, target: Tensor, prior: float = 0.0, steps: int = 1000, lr: float = 0.02, seed: int = 0,
           every: int = 100, side: int | None = None, start: float = 0.1, original: Tensor | None = None,
           say=None) -> list[dict]:
    """min over theta of mean (f(x*) - p)^2 / mean p^2 + prior TV(x*), x* = sigmoid(theta), theta ~ N(0, start^2).

    target: p `(D,)`, the features of one image or the mean over several. side: of x*, the encoder's unless it is given;
    who knows that the original was smaller has fewer numbers to find. Adam; its rate falls from lr to lr / 10 along a
    cosine. With start = 1 and lr = 0.1 some images of PACS lead SqueezeNet's features to where they are almost zero,
    and stay there: such a failure says nothing about privacy. Computed where the encoder is; draws depend on seed and
    side only.
    Returns a row for step 0, every so many steps and the last, and calls say(row) on each: {"step", "mse": mean
    (f(x*) - p)^2, "tv", "image": `(3, side, side)` in 0..1 on the CPU}, with "psnr" and "ssim" as in `quality` where an
    original `(3, side, side)` in 0..1 is given. UserError: a target of another length, numbers that cannot be.
    """
    side = side or encoder.side
    if target.shape != (encoder.dim,):
        raise UserError(f"the target has shape {tuple(target.shape)}; {encoder.name} has features ({encoder.dim},)")
    if min(steps, every, side) < 1 or lr <= 0 or min(prior, start) < 0:
        raise UserError("steps, every and side are at least 1, lr is above 0, prior and start are not below it")
    target = target.detach().clone().to(encoder.device)     # what an encoder gives cannot take part in a derivative
    power = target.square().mean().clamp(min=1e-12)         # so that a weight means the same for every encoder
    noise = torch.randn(1, 3, side, side, generator=generator(seed, "inversion", side))
    theta = (start * noise).to(encoder.device).requires_grad_(True)
    adam = torch.optim.Adam([theta], lr)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps, lr / 10)
    rows = []
    for step in range(steps + 1):
        x = theta.sigmoid()
        mse, tv = (seen(encoder, x) - target).square().mean(), total_variation(x)
        if step % every == 0 or step == steps:
            image = x.detach()[0].cpu()
            found = {} if original is None else quality(image, original)
            rows.append({"step": step, **found, "mse": mse.item(), "tv": tv.item(), "image": image})
            if say:
                say(rows[-1])
        if step < steps:
            adam.zero_grad(set_to_none=True)
            (mse / power + prior * tv).backward()
            adam.step()
            rate.step()
    return rows


def seen(encoder: Encoder, x: Tensor) -> Tensor:
    """f(x) of images `(N, 3, S, S)` in 0..1, differentiable: resized as the encoder does, without whole levels."""
    if x.shape[-1] != encoder.side:
        x = F.interpolate(x, (encoder.side, encoder.side), mode=encoder.mode, antialias=True)
    return encoder.features(255 * x)[0]


def total_variation(x: Tensor) -> Tensor:
    """mean |x_{i+1,j} - x_ij| + mean |x_{i,j+1} - x_ij| of images `(N, 3, S, S)`: 0 for a flat one."""
    return x.diff(dim=-2).abs().mean() + x.diff(dim=-1).abs().mean()


def quality(image: Tensor, original: Tensor) -> dict[str, float]:
    """{"mse", "psnr" = -10 log10 mse in dB, "ssim"} of two images `(3, S, S)` in 0..1, S >= 11.

    SSIM with Wang et al.'s (2004) window, a Gaussian of deviation 1.5, and the mean over channels. inf dB where the two
    are equal. UserError: other shapes or other numbers.
    """
    metrics = _metrics()
    for x in (image, original):
        if x.dim() != 3 or x.shape != original.shape or min(x.shape[1:]) < WINDOW or not x.is_floating_point() \
                or not 0 <= float(x.min()) <= float(x.max()) <= 1:
            raise UserError(f"quality compares two images (3, S, S) of floats in 0..1, S at least {WINDOW}, "
                            f"not {tuple(image.shape)} {image.dtype} and {tuple(original.shape)} {original.dtype}")
    one, other = (x.detach().cpu().double().numpy() for x in (original, image))
    mse = float(np.square(one - other).mean())
    psnr = float(metrics.peak_signal_noise_ratio(one, other, data_range=1)) if mse else math.inf
    ssim = metrics.structural_similarity(one, other, data_range=1, channel_axis=0, gaussian_weights=True, sigma=1.5,
                                         use_sample_covariance=False)
    return {"mse": mse, "psnr": psnr, "ssim": float(ssim)}


def baselines(original: Tensor, others: Tensor) -> dict[str, dict[str, float]]:
    """What guesses that never saw the prototype reach: an attack whose quality is no better has found no image.

    original `(3, S, S)`, others `(N, 3, S, S)` of its class or domain without it, in 0..1. {"other": the mean of
    their qualities, hence a random one's on average, "mean image": the quality of their mean, "grey": that of a flat
    image of 0.5, near which the attack starts}. The mean image's mse is never above that of "other".
    """
    if others.dim() != 4 or not len(others):
        raise UserError(f"others of shape {tuple(others.shape)} are not (N, 3, S, S) with at least one image")
    each = [quality(x, original) for x in others]
    return {"other": {k: sum(q[k] for q in each) / len(each) for k in each[0]},
            "mean image": quality(others.mean(0), original),
            "grey": quality(torch.full_like(original, 0.5), original)}


def _metrics():
    try:
        from skimage import metrics
    except ImportError as error:
        raise UserError("the quality of images needs scikit-image: pip install scikit-image") from error
    return metrics


# the attack on a federation, kept beside a record

STEPS, EVERY = 2000, 100        # the paper takes a million, about eight hours an image
OTHERS = 32                     # images of the same class and domain, at most, that guesses are made of
SMOOTH = 0.3                    # weight of the total variation in the stronger attack
KINDS = {"one image": {}, "one image, smooth": {"prior": SMOOTH}, "class mean": {}}


def collect(run: Run, results: Path, steps: int = STEPS, **how) -> Path:
    """Attack one training image of each client in every way of KINDS, and store the numbers; returns the path.

    Stored: [{"client", "domain", "kind", "power": mean p^2, "rows": [{"step", "mse", "psnr", "ssim"}], "guesses":
    `baselines`}]. `how` and what it raises: as `train_beside`; UserError too where the encoder is not here.
    """
    def content(simulation):
        encoder, made = encoders.load_encoder(run.data.encoder.partition("#")[0]).to(simulation.device), []
        for client, domain, images in victims(run):
            guesses = baselines(images[0], images[1:1 + OTHERS])
            for kind in KINDS:
                target, rows = attacked(encoder, images, kind, steps, run.seed)
                made.append({"client": client, "domain": domain, "kind": kind, "power": float(target.square().mean()),
                             "rows": [{k: round(v, 6) for k, v in row.items() if k != "image"} for row in rows],
                             "guesses": guesses})
        return json.dumps({"digest": run.digest, "steps": steps, "attacks": made}, indent=1).encode()

    return train_beside(run, results, "attack", content, **how)


def victims(run: Run):
    """(client, domain, images `(n, 3, S, S)` in 0..1): the first one is attacked, the others are of its class.

    Of each client the first training image, in the set's order, whose class it holds twice.
    """
    prepared = prepare.load_set(run.data.name, run.data.size or None)
    shares, _ = partition(run.data, prepared, run.seed)
    for i, share in enumerate(shares):
        domain, index = next(iter(share.train.items()))
        y = prepared.tensors[f"{domain}/y"][index]
        first = next(k for k in range(len(y)) if (y == y[k]).sum() > 1)
        same = index[y == y[first]]
        yield str(i), share.domain, prepared.tensors[f"{domain}/x"][same].float() / 255


def attacked(encoder, images, kind: str, steps: int, seed: int):
    """(p, the rows of `invert`): p are the features of the first image, or their mean over all."""
    levels = (255 * (images if kind == "class mean" else images[:1])).round().to(torch.uint8)
    target = torch.cat([encoder(part.to(encoder.device)) for part in levels.split(64)]).mean(0)
    original = images[0] if images.shape[-1] <= encoder.side else None
    rows = invert(encoder, target, steps=steps, seed=seed, every=EVERY, side=images.shape[-1],
                  original=original, **KINDS[kind])
    return target, rows


def read(run: Run, results: Path) -> dict:
    """What `collect` stored. UserError when it was not measured."""
    form = {"client": str, "domain": str, "kind": str, "power": float, "rows": [{str: float}], "guesses": dict}
    return records.read_measured(run, results, "attack", {"attacks": [form]})
