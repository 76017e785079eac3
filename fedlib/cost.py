"""What a method costs in a round: bytes of real messages, and passes through the net, counted in a tiny federation."""
import copy

import torch

from fedlib import records
from fedlib.data import Client, Split
from fedlib.methods import make
from fedlib.nets import Arch, build
from fedlib.params import flatten, nbytes
from fedlib.train import Worker

BEFORE = 2      # rounds before the counted one: messages can depend on what was exchanged, and on having trained
BATCH = 10


def cost(method: str, arch: Arch, classes: int, shape: tuple, clients: int, values: dict | None = None) -> dict:
    """{"bytes_down", "bytes_up", "floats_down", "floats_up", "forward", "backward"} of one client in one round.

    values: settings of the method, else its defaults. floats: the bytes of parameters, features and the like without
    labels, counts and masks, as most papers count them.
    `shape` is that of one sample, as `fedlib.nets.build` takes it; a head of prompts is mini_clip's, (128,). Passes are
    those of the net's body for each training sample in one local epoch; the counted client has two batches of 10.
    """
    protocol = {"rounds": BEFORE + 1, "batch": BATCH}
    run = records.plan(method, values or {}, {"name": "random"}, vars(arch), protocol, 0)
    head = torch.ones(classes, *shape) if arch.head in ("frozen", "own") else None
    net = build(arch, classes, shape, 0, head=head, prompts=small_tower(classes) if arch.head == "prompts" else None)
    passes = count_passes(net)
    server, ids = make(method, values, run.protocol), [str(i) for i in range(clients)]
    server.domains = ids
    server.setup(net)
    workers = []
    for i in ids:
        split = random(2 * BATCH if i == "0" else 2, classes, shape)      # what the others hold does not matter
        workers.append(Worker(run, Client(i, i, split, split, domains=ids, head=head), copy.deepcopy(net)))
    for number in range(BEFORE):
        server.aggregate({w.client.id: w.train(server.broadcast(w.client.id), number)[0] for w in workers})
    passes.update(forward=0, backward=0)
    down = server.broadcast("0")
    up, _ = workers[0].train(down, BEFORE)
    return {"bytes_down": nbytes(down), "bytes_up": nbytes(up), "floats_down": floats(down),
            "floats_up": floats(up)} | {k: n / (2 * BATCH) for k, n in passes.items()}


def small_tower(classes: int):
    """mini_clip's text tower as a head for classes "0", "1", ..."""
    from fedlib import encoders
    from fedlib.tower import PromptHead, Tower
    encoder = encoders.load("mini_clip")
    return PromptHead(Tower(encoder.model, encoder.tokenizer), [str(k) for k in range(classes)], encoder.dim)


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
