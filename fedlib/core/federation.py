"""The nouns: Split, Client, Federation; and batches of a split on its device."""
import functools
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

# Mean and standard deviation by channel that images are normalised with. ImageNet's serve every set, as in most code.
# grey: only the first of three equal channels goes on.
NORMALS = {k: torch.tensor(v).view(2, 1, -1, 1, 1) for k, v in {
    "imagenet": [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], "half": [[0.5] * 3] * 2, "none": [[0.0] * 3, [1.0] * 3],
    "grey": [[0.5]] * 2}.items()}
PIECE = {"cpu": 2 ** 17, "gpu": 2 ** 22}    # numbers of batches that are prepared at once: a cache, or fewer launches


@dataclass
class Split:
    """Samples and labels on one device, or images in the host's memory and labels on a GPU that cannot hold both.

    x: `(N, 3, H, W)` uint8 images, `(N, 1, H, W)` grey ones, `(N, D)` float features or `(N, L)` int32 token ids; y:
    `(N,)` int64; normal: how images are normalised on their way to a net (a name in NORMALS).
    """
    x: Tensor
    y: Tensor
    normal: str = "imagenet"

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index) -> "Split":
        at = index.cpu() if isinstance(index, Tensor) and self.x.device.type == "cpu" else index
        return Split(self.x[at], self.y[index], self.normal)

    def to(self, device) -> "Split":
        return Split(self.x.to(device), self.y.to(device), self.normal)

    def input(self, index: Tensor | None = None) -> Tensor:
        """What a net takes of all samples or of some, where the labels are."""
        x = self.x if index is None else self.x[index.to(self.x.device)]
        return as_input(brought(x, self.y.device), self.normal)

    def parts(self, size: int):
        """(what a net takes, labels) of so many samples after the other."""
        for start in range(0, len(self), size):
            part = self[start:start + size]
            yield part.input(), part.y


@dataclass
class Client:
    """One participant: its data, its net, and what it keeps between rounds.

    state: dicts of tensors that live from round to round (a personal model, control variates); checkpointed.
    scratch: whatever one local training needs; emptied before each.
    got: the last message from the server.
    """
    id: str
    domain: str
    train: Split
    test: Split
    val: Split | None = None
    net: nn.Module | None = None
    round: int = 0
    seed: int = 0
    secret: tuple = ()              # keys of its noise that nobody else knows; none in a simulation, which repeats
    classes: list[str] = field(default_factory=list)      # their names
    domains: list[str] = field(default_factory=list)      # of all clients, the same order for all
    head: Tensor | None = None      # the frozen head of its domain `(C, D)`, where there is one
    state: dict = field(default_factory=dict)
    scratch: dict = field(default_factory=dict)
    got: dict = field(default_factory=dict)


@dataclass
class Federation:
    """The clients, the class names, and test splits of domains that no client holds.

    own_tests: clients of one domain have different test splits, so that each must be tested; words: of the vocabulary;
    head: the frozen head that all share `(C, D)`.
    """
    clients: list[Client]
    classes: list[str]
    unseen: dict[str, Split]
    about: dict
    own_tests: bool = False
    words: int = 0
    head: Tensor | None = None

    @property
    def domains(self) -> list[str]:
        """Domain names in the order of the first client that holds each."""
        return list(dict.fromkeys(c.domain for c in self.clients))

    @property
    def splits(self) -> dict[int, Split]:
        """Every split once, by its identity: clients of one domain share a test split."""
        held = [s for c in self.clients for s in (c.train, c.test, c.val) if s is not None]
        return {id(s): s for s in (*held, *self.unseen.values())}

    def place(self, device, room: float = math.inf) -> bool:
        """Move every split to the device, once, however many clients share it. Returns whether images did not go: those
        of more than `room` bytes in all stay in the host's memory, and each batch is sent when its turn comes.
        """
        once = self.splits
        stay = sum(s.x.nbytes for s in once.values() if s.x.dim() == 4) > room
        moved = {k: Split(s.x if stay and s.x.dim() == 4 else s.x.to(device), s.y.to(device), s.normal)
                 for k, s in once.items()}
        for c in self.clients:
            c.train, c.test, c.val = (moved.get(id(s)) for s in (c.train, c.test, c.val))
        self.unseen = {d: moved[id(s)] for d, s in self.unseen.items()}
        return stay


def as_input(x: Tensor, normal: str = "imagenet") -> Tensor:
    """What a net takes: uint8 images become normalised floats, features floats; token ids pass through."""
    if x.dtype != torch.uint8:
        return x.float() if x.is_floating_point() else x
    mean, std = normals(normal, x.device)
    x = x[:, :1] if normal == "grey" else x
    return (x / 255).sub_(mean).div_(std)       # one copy: a batch of images fills a cache


def brought(x: Tensor, device) -> Tensor:
    """x on the device. Pinned pages let a GPU fetch it while the host goes on."""
    if x.device == device:
        return x
    return (x.pin_memory() if device.type == "cuda" else x).to(device, non_blocking=True)


@functools.cache
def normals(name: str, device) -> Tensor:
    """A row of NORMALS where it is needed: sent once, not with every batch."""
    return NORMALS[name].to(device)


def augment(x: Tensor, draws: Tensor, flip: bool, pad: int = 4) -> Tensor:
    """Random crop of the zero-padded image and, with `flip`, a random mirror; the batch at once.

    x: `(B, C, H, W)` uint8; draws: `(B, 3)` int64: row offset, column offset in 0..2 pad, mirror 0 or 1.
    """
    height, width = x.shape[-2:]
    rows = draws[:, 0, None] + torch.arange(height, device=x.device)
    cols = draws[:, 1, None] + torch.arange(width, device=x.device)
    if flip:
        cols = torch.where(draws[:, 2, None] == 1, cols.flip(1), cols)
    padded = nn.functional.pad(x, (pad,) * 4)
    padded = padded.gather(2, rows[:, None, :, None].expand(-1, x.shape[1], -1, padded.shape[3]))
    return padded.gather(3, cols[:, None, None, :].expand(-1, x.shape[1], height, -1))


def rotate(x: Tensor, degrees: Tensor) -> Tensor:
    """Each image turned about its centre, nearest pixel, black outside. x: `(B, C, H, W)` uint8; degrees: `(B,)`."""
    turn, none = degrees.float() * torch.pi / 180, torch.zeros(len(x), device=x.device)
    grid = nn.functional.affine_grid(torch.stack([torch.stack([turn.cos(), -turn.sin(), none], 1),
                                                  torch.stack([turn.sin(), turn.cos(), none], 1)], 1), x.shape, False)
    return nn.functional.grid_sample(x.float(), grid, mode="nearest", align_corners=False).to(torch.uint8)


def batches(split: Split, batch: int, augmentation: str, gen: torch.Generator, order: str = "random", least: int = 2):
    """One epoch of (x, y), in random order or class by class ("classes").

    A last batch of fewer than `least` samples is left out: batch-norm has no variance over one, and over two whose
    maps have one pixel hardly any.
    """
    for x, y, draws in pieces(split, batch, augmentation, gen, order, least):
        yield from zip(prepared(x, draws, augmentation, split.normal).split(batch), y.split(batch))


def pieces(split: Split, batch: int, augmentation: str, gen: torch.Generator, order: str, least: int):
    """The samples of `batches` before they are prepared: (x, y, what was drawn for each), some small batches at once.

    A GPU is asked as often for a piece as it would be for a batch.
    """
    device, count, last = split.y.device, len(split), len(split) % batch
    drawn = torch.randperm(count, generator=gen)
    every = split.y.argsort(stable=True) if order == "classes" else drawn.to(device, non_blocking=True)
    home = every if split.x.device == device else every.cpu() if order == "classes" else drawn
    highs = (9, 9, 2, 61) if augmentation == "flip_rotate" else (9, 9, 2)
    draws = torch.stack([torch.randint(high, (count,), generator=gen) for high in highs], 1)
    draws = draws.to(device, non_blocking=True)
    size = batch * max(1, PIECE["cpu" if device.type == "cpu" else "gpu"] // (batch * split.x[:1].numel() or 1))
    end = count - last if last < min(least, batch, count) else count
    for index, at in zip(every[:end].split(size), home[:end].split(size), strict=True):
        yield brought(split.x.index_select(0, at), device), split.y[index], draws[index]


def prepared(x: Tensor, draws: Tensor, augmentation: str, normal: str) -> Tensor:
    """What a net takes of samples, augmented as was drawn for each: draws `(B, 3 or 4)`."""
    if augmentation == "flip_rotate" and x.dtype == torch.uint8:
        x = torch.where(draws[:, 2, None, None, None] == 1, x.flip(3), x)
        x = rotate(x, draws[:, 3] - 30)     # whole degrees from -30 to 30
    elif augmentation != "none" and x.dtype == torch.uint8:
        x = augment(x, draws, flip=augmentation == "crop_flip")
    return as_input(x, normal)
