"""How mini_clip was trained, on the public images of mini_digits; a few minutes on two cores.

    python -m fedlib.datasets.mini_clip_training [FILE]
"""
import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.core.seeds import generator
from fedlib.datasets import prepare
from fedlib.datasets.registry import reader_of
from fedlib.models import class_heads
from fedlib.models.encoders import resized
from fedlib.models.mini_clip import CONTEXT, FILE, MODE, SEED, SIDE, TABLE, drawn_rows, tokenizer, untrained

TEMPLATES = {d: class_heads.templates()[d] for d in reader_of("mini_digits").DOMAINS}
STEPS, BATCH, RATE, DECAY = 700, 128, 3e-3, 0.05
EVEN = 0.5          # a domain of n images is drawn as often as n^(1 - EVEN) says: 0 by its images, 1 as all others
LENGTH = 10.0       # mean length of the features of public images, about that of CLIP's ViT-B/32
HOTTEST = 100.0     # the largest scale, as in CLIP


def public_images() -> tuple[Tensor, Tensor, Tensor]:
    """Images uint8 `(N, 3, 28, 28)` of mini_digits that no federation holds, their classes and domains `(N,)`."""
    tensors = prepare.load_set("mini_digits").tensors
    public = {d: tensors[f"{d}/part"] == prepare.PUBLIC for d in TEMPLATES}
    x, y = (torch.cat([tensors[f"{d}/{what}"][public[d]] for d in TEMPLATES]) for what in "xy")
    return x, y, torch.arange(len(public)).repeat_interleave(torch.stack([p.sum() for p in public.values()]))


def augmented(x: Tensor, draws: torch.Generator) -> Tensor:
    """Turned, zoomed and shifted at random to 32 px, with other contrast, brightness and order of colours; in -1..1."""
    def uniform(low, high, *shape):
        return low + (high - low) * torch.rand(len(x), *shape, generator=draws)
    angle, zoom = uniform(-0.2, 0.2), uniform(0.85, 1.15, 2)
    turn = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()], 1).view(-1, 2, 2) * zoom[:, None]
    grid = F.affine_grid(torch.cat([turn, uniform(-0.15, 0.15, 2, 1)], 2), (len(x), 3, SIDE, SIDE), False)
    x = F.grid_sample(x / 127.5 - 1, grid, padding_mode="border", align_corners=False)
    x = x[torch.arange(len(x))[:, None], torch.rand(len(x), 3, generator=draws).argsort(1)]
    return (x * uniform(0.6, 1.2, 1, 1, 1) + uniform(-0.2, 0.2, 1, 1, 1)).clamp(-1, 1)


def train(steps: int = STEPS, seed: int = SEED, say=print) -> tuple[nn.Module, Tensor]:
    """The model over the captions' token rows only, and the numbers of these `(V,)`.

    loss = mean_i -log( e^{s cos(f_i, t_i)} / sum_j e^{s cos(f_i, t_j)} ), j over the 40 captions of domains x classes:
    one template of each domain at each step, so that no caption stands twice in the sum. The loss sees directions
    only, so features get their length at the end.
    """
    x, y, domain = public_images()
    captions = torch.stack([tokenizer()([t.format(c) for t in ts for c in range(10)]).view(-1, 10, CONTEXT)
                            for ts in TEMPLATES.values()])     # (domain, template, class, token)
    rows = captions[captions > 0].unique()      # 0 only fills up, after the end
    captions = torch.searchsorted(rows, captions)
    model, draws = untrained(len(rows), seed).train(), generator(seed, "mini_clip", "training")
    model.visual.to(memory_format=torch.channels_last)      # faster on a CPU
    model.load_state_dict({TABLE: drawn_rows()[rows]}, strict=False)
    often = domain.bincount()[domain] ** -EVEN      # of each image
    plain = [p for n, p in model.named_parameters() if p.dim() < 2 or n == TABLE]
    heavy = [p for n, p in model.named_parameters() if p.dim() > 1 and n != TABLE]
    optimizer = torch.optim.AdamW([{"params": plain, "weight_decay": 0.0}, {"params": heavy}], RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, steps)
    for step in range(steps):
        index = often.multinomial(BATCH, replacement=True, generator=draws)
        which = torch.randint(captions.shape[1], (len(captions),), generator=draws)
        texts = model.encode_text(captions[torch.arange(len(captions)), which].flatten(0, 1), normalize=True)
        images = model.encode_image(augmented(x[index].float(), draws), normalize=True)
        logits = model.logit_scale.exp().clamp(max=HOTTEST) * images @ texts.T
        loss = F.cross_entropy(logits, 10 * domain[index] + y[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            say(f"» {step + 1}/{steps} steps, loss {loss.item():.2f}")
    return lengthened(model.eval(), x), rows


@torch.no_grad()
def lengthened(model: nn.Module, x: Tensor) -> nn.Module:
    """The last linear layer times one number, so that the images' features have mean length 10."""
    z = torch.cat([model.encode_image(resized(part, SIDE, MODE) / 127.5 - 1) for part in x.split(BATCH)])
    for p in model.visual.attnpool.c_proj.parameters():
        p.mul_(LENGTH / z.norm(dim=1).mean())
    return model


def write(model: nn.Module, rows: Tensor, path: Path):
    """The file of a trained model: half precision, and what it is made of."""
    import open_clip
    from safetensors.torch import save_file
    about = {"made_by": "python -m fedlib.datasets.mini_clip_training", "data": "mini_digits, public images",
             "seed": SEED, "steps": STEPS, "torch": torch.__version__.partition("+")[0],
             "open_clip": open_clip.__version__}
    kept = {k: (v.half() if v.is_floating_point() else v).contiguous() for k, v in model.state_dict().items()}
    save_file(kept | {"tokens": rows}, path, {"about": json.dumps(about)})


if __name__ == "__main__":
    start = time.monotonic()
    write(*train(), Path(sys.argv[1]) if sys.argv[1:] else FILE)
    print(f"{time.monotonic() - start:.0f} s")
