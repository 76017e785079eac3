"""What a method costs in a round: bytes of real messages, and passes through the net, counted in a tiny federation."""
import torch

from fedlib.core import settings
from fedlib.core.federation import Client, Federation, Split
from fedlib.core.params import flatten, nbytes
from fedlib.core.seeds import generator
from fedlib.engine.loop import Simulation
from fedlib.engine.run import plan
from fedlib.methods import METHODS
from fedlib.models.nets import Arch

BEFORE = 2      # rounds before the counted one: messages can depend on what was exchanged, and on having trained
BATCH = 10


def cost(method: str, arch: Arch, classes: int, shape: tuple, clients: int, values: dict | None = None) -> dict:
    """{"bytes_down", "bytes_up", "floats_down", "floats_up", "forward", "backward"} of one client in one round.

    values: settings of the method, else its defaults. floats: the bytes of parameters, features and the like without
    labels, counts and masks, as most papers count them.
    `shape` is that of one sample, as `fedlib.models.nets.build` takes it; a head of prompts is mini_clip's, (128,).
    Passes are those of the net's body for each training sample in one local epoch; the counted client has two batches
    of 10.
    """
    protocol = {"rounds": BEFORE + 1, "batch": BATCH}
    brief = {"server_epochs": 1} if "server_epochs" in settings.fields(METHODS[method]) else {}    # changes no byte
    data = {"name": "random"} | ({"encoder": "mini_clip"} if arch.head == "prompts" else {})
    run = plan(method, (values or {}) | brief, data, vars(arch), protocol, 0)
    sizes = [2 * BATCH] + [2] * (clients - 1)       # what the others hold does not matter
    tiny = Simulation(run, made_up(sizes, classes, shape, head=arch.head in ("frozen", "own")))
    for _ in range(BEFORE):
        tiny.server.aggregate(tiny.exchange(list(range(clients)))[0])
        tiny.rounds.append({"round": tiny.number + 1})
    passes = count_passes(tiny.workers[0].client.net)
    down = tiny.message(0)
    up, _ = tiny.workers[0].train(down, BEFORE)
    return {"bytes_down": nbytes(down), "bytes_up": nbytes(up), "floats_down": floats(down),
            "floats_up": floats(up)} | {k: n / (2 * BATCH) for k, n in passes.items()}


def made_up(sizes: list[int], classes: int, shape: tuple, words: int = 0, head: bool = False) -> Federation:
    """A federation of random data: client i, of domain i, holds sizes[i] samples of a shape. head: a frozen one too."""
    ids, names = [str(i) for i in range(len(sizes))], [str(k) for k in range(classes)]
    draws = torch.randn(classes, *shape, generator=generator("made up", "head")) if head else None
    splits = [random(n, classes, shape, words) for n in sizes]
    clients = [Client(i, i, split, split, classes=names, domains=ids, head=draws)
               for i, split in zip(ids, splits, strict=True)]
    return Federation(clients, names, {}, {}, words=words, head=draws)


def floats(message: dict) -> int:
    """Bytes of the floating-point numbers in a message."""
    return nbytes({k: v for k, v in flatten(message).items() if v.is_floating_point()})


def count_passes(net) -> dict:
    """A dict that counts the samples that go through the body of the net, or of a copy of it, forward and backward."""
    passes = {"forward": 0, "backward": 0}

    def forward(module, x, z):
        passes["forward"] += len(z)
        if z.requires_grad:
            z.register_hook(backward)

    def backward(slope):
        passes["backward"] += len(slope)

    net.body.register_forward_hook(forward)
    return passes


def random(count: int, classes: int, shape: tuple, words: int = 0) -> Split:
    """Random images; features, where the shape is not that of an image; token ids, where there is a vocabulary."""
    gen, labels = torch.Generator().manual_seed(0), torch.arange(count) % classes
    if words:
        return Split(torch.randint(words, (count, *shape), generator=gen, dtype=torch.int32), labels)
    x = torch.randint(256, (count, *shape), generator=gen, dtype=torch.uint8)
    return Split(x if len(shape) == 3 else x / 255, labels)
