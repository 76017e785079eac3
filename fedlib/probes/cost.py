"""What a method costs in a round, counted in a tiny federation: bytes of real messages, passes, memory."""
import dataclasses
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from fedlib.core import settings
from fedlib.core.federation import Client, Federation, Split
from fedlib.core.params import flatten, nbytes
from fedlib.core.seeds import generator
from fedlib.datasets.partition import federate
from fedlib.engine.loop import Simulation
from fedlib.engine.run import Run, plan
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
    data = {"name": "random"} | ({"encoder": "mini_clip"} if arch.head == "prompts" else {})
    run = plan(method, (values or {}) | brief(method), data, vars(arch), protocol, 0)
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


def brief(method: str) -> dict:
    """The setting that shortens a server's training, which changes no byte."""
    return {"server_epochs": 1} if "server_epochs" in settings.fields(METHODS[method]) else {}


def memory(run: Run) -> dict:
    """{"data", "peak"}: bytes of the run's samples, and of all tensors at the peak of a round, samples included.

    Clients train one after the other. Two rounds of the run's net with as many clients, on made-up samples: one client
    has a batch, the others two samples; then a test batch. What a GPU's kernels and its allocator want is not in it: a
    fourth more in I2PFL's Table 2 on an H200 (649 MB, 513 by this of the code of then). UserError: data not here.
    """
    federation, protocol = federate(run.data, run.seed), dataclasses.replace(run.protocol, epochs=1)
    clients = federation.clients
    data = sum(s.x.nbytes + s.y.nbytes for s in federation.splits.values())
    shape = tuple(clients[0].train.x.shape[1:])
    sizes = [protocol.batch] + [2] * (len(clients) - 1)
    tiny = made_up(sizes, len(federation.classes), shape, federation.words, federation.head is not None)
    with Live() as live:
        short = dataclasses.replace(run, protocol=protocol, settings=run.settings | brief(run.method))
        simulation = Simulation(short, tiny, share=True)
        simulation.round()
        simulation.round()      # what is kept from round to round is there
        worker = simulation.workers.at(0)
        tested = min(worker.method.at_once, max(len(c.test) for c in clients))
        with torch.inference_mode():
            some = random(tested, len(federation.classes), shape, federation.words)
            worker.method.predict(worker.client.net.eval(), some.input(), worker.client)
    return {"data": data, "peak": data + live.most}


class Live(TorchDispatchMode):
    """Inside, it knows how many bytes the tensors that are alive have, and the most there were."""

    def __init__(self):
        super().__init__()
        self.seen, self.now, self.most = set(), 0, 0

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        out = op(*args, **(kwargs or {}))
        tree_map_only(torch.Tensor, self.look, out)
        return out

    def look(self, tensor):
        held = tensor.untyped_storage()
        if id(held) not in self.seen:
            self.seen.add(id(held))
            weakref.finalize(held, self.gone, id(held), held.nbytes())
            self.now += held.nbytes()
            self.most = max(self.most, self.now)

    def gone(self, place: int, size: int):
        self.seen.discard(place)
        self.now -= size


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
