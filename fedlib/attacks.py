"""How far feature-space hijacking gets on a federation's images, kept beside a record: MPFT's Figure 9 in numbers."""
import json
from pathlib import Path

import torch

from fedlib import encoders, inversion, prepare, records
from fedlib.partition import partition
from fedlib.train import beside

STEPS, EVERY = 2000, 100        # the paper takes a million, about eight hours an image
OTHERS = 32                     # images of the same class and domain, at most, that guesses are made of
SMOOTH = 0.3                    # weight of the total variation in the stronger attack
KINDS = {"one image": {}, "one image, smooth": {"prior": SMOOTH}, "class mean": {}}


def collect(run: records.Run, results: Path, steps: int = STEPS, **how) -> Path:
    """Attack one training image of each client in every way of KINDS, and store the numbers; returns the path.

    Stored: [{"client", "domain", "kind", "power": mean p^2, "rows": [{"step", "mse", "psnr", "ssim"}], "guesses":
    `inversion.baselines`}]. `how` and what it raises: as `train.beside`; UserError too where the encoder is not here.
    """
    def content(server, workers, rounds):
        encoder, made = encoders.load(run.data.encoder.partition("#")[0]), []
        for client, domain, images in victims(run):
            guesses = inversion.baselines(images[0], images[1:1 + OTHERS])
            for kind in KINDS:
                target, rows = attacked(encoder, images, kind, steps, run.seed)
                made.append({"client": client, "domain": domain, "kind": kind, "power": float(target.square().mean()),
                             "rows": [{k: round(v, 6) for k, v in row.items() if k != "image"} for row in rows],
                             "guesses": guesses})
        return json.dumps({"digest": run.digest, "steps": steps, "attacks": made}, indent=1).encode()

    return beside(run, results, "attack", content, **how)


def victims(run: records.Run):
    """(client, domain, images `(n, 3, S, S)` in 0..1): the first one is attacked, the others are of its class.

    Of each client the first training image, in the set's order, whose class it holds twice.
    """
    prepared = prepare.load(run.data.name, run.data.size or None)
    shares, _ = partition(run.data, prepared, run.seed)
    for i, share in enumerate(shares):
        domain, index = next(iter(share.train.items()))
        y = prepared.tensors[f"{domain}/y"][index]
        first = next(k for k in range(len(y)) if (y == y[k]).sum() > 1)
        same = index[y == y[first]]
        yield str(i), share.domain, prepared.tensors[f"{domain}/x"][same].float() / 255


def attacked(encoder, images, kind: str, steps: int, seed: int):
    """(p, the rows of `inversion.invert`): p are the features of the first image, or their mean over all."""
    levels = (255 * (images if kind == "class mean" else images[:1])).round().to(torch.uint8)
    target = torch.cat([encoder(part) for part in levels.split(64)]).mean(0)
    original = images[0] if images.shape[-1] <= encoder.side else None
    rows = inversion.invert(encoder, target, steps=steps, seed=seed, every=EVERY, side=images.shape[-1],
                            original=original, **KINDS[kind])
    return target, rows


def read(run: records.Run, results: Path) -> dict:
    """What `collect` stored. UserError when it was not measured."""
    form = {"client": str, "domain": str, "kind": str, "power": float, "rows": [{str: float}], "guesses": dict}
    return records.measured(run, results, "attack", {"attacks": [form]})
