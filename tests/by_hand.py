"""Nets, clients, workers, servers and messages that are small enough to compute with by hand."""
import torch
from torch import nn, tensor

from fedlib.core import params, seeds
from fedlib.core.federation import Client, Split
from fedlib.engine.run import plan
from fedlib.engine.worker import Worker
from fedlib.methods import make
from fedlib.methods.base import Protocol
from fedlib.models.nets import Net


def equal(found, wanted, **tolerance):
    """Close, whatever the types of the numbers."""
    torch.testing.assert_close(found, torch.as_tensor(wanted), check_dtype=False, **tolerance)


def same(a: dict, b: dict) -> bool:
    """Are two dicts of tensors equal in every number?"""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def draw(*shape, seed=0):
    """The same normal numbers for the same shape and seed."""
    return torch.randn(shape, generator=seeds.generator("draw", seed))


@torch.no_grad()
def drawn(net, scale=0.5, seed=0):
    """The net with drawn weights."""
    for i, p in enumerate(net.parameters()):
        p.copy_(scale * draw(*p.shape, seed=seed + i))
    return net


def scalar_net(weight, bias=0.0) -> Net:
    """logits = (weight, -weight) z, z the one input feature."""
    net = Net(nn.Flatten(), nn.Linear(1, 2))
    return params.load_params(net, {"head.weight": tensor([[weight], [-weight]]), "head.bias": tensor([bias, -bias])})


def one_weight(w: float) -> Net:
    """A net whose only entry is head.weight = w."""
    return set_weight(Net(nn.Flatten(), nn.Linear(1, 1, bias=False)), w)


def set_weight(net, w):
    return params.load_params(net, {"head.weight": tensor([[w]])})


def weight(net) -> float:
    return net.head.weight.item()


def sent(w, n=1, **more) -> dict:
    """An upload of `one_weight`."""
    return {"params": {"head.weight": tensor([[w]])}, "n": tensor(n), **more}


def client_of(net, x, y, client_id="0", **more) -> Client:
    """A client with these samples, for training and for tests; None: it needs none."""
    split = Split(*(v if v is None else torch.as_tensor(v) for v in (x, y)))
    return Client(client_id, "d", split, split, net=net, **more)


def client_at(w, x, **got) -> Client:
    """A client with the net w and samples x of class 0; got: what came down."""
    return client_of(one_weight(w), [[v] for v in x], [0] * len(x), got=got)


def worker_of(method, net, x=((1.0,),), y=(0,), values=None, client_id="0", **protocol) -> Worker:
    """A client with these samples, by default one: x = 1 of class 0."""
    run = plan(method, values or {}, {}, {}, {"lr": 0.1, **protocol}, 0)
    return Worker(run, client_of(net, x, y, client_id), net)


def server_of(method, values=None, net=None, seed=0, **protocol):
    server = make(method, values or {}, Protocol(**protocol))
    server.seed = seed
    server.setup(net)
    return server
