"""Stacked clients: several train at once as one batched network, equal to one after the other but for rounding.

Twenty small nets with batches of ten are twenty times as many kernels as one; on a GPU, and for small linear nets on a
CPU too, starting them takes longer than computing them. Training one after the other is the specification.
"""
import contextlib
import copy
import json
import time
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from fedlib import forms, prepare, records
from fedlib.data import batches
from fedlib.errors import UserError
from fedlib.methods.base import FedAvg, autocast, optimiser
from fedlib.seeds import generator

MOST = 32           # clients at once
STEPS = 4           # that are measured, after one that is not
GAIN = 1.3          # what stacking must be worth to be taken


def fits(method) -> bool:
    """Does the method train as the base method does? Then what it replaces is only its loss and its messages."""
    same = all(getattr(type(method), k) is getattr(FedAvg, k) for k in ("local", "fit", "step", "equip"))
    return same and not method.protocol.keep_optimiser


def train(workers: list, messages: list[dict], number: int) -> list[tuple[dict, dict]]:
    """One round of all workers: what each `worker.train(message, number)` gives."""
    for worker, message in zip(workers, messages, strict=True):
        worker.begin(message, number)
    fit([w.client for w in workers], [w.method for w in workers])
    return [worker.end() for worker in workers]


def fit(clients: list, methods: list):
    """What `method.fit` does for each client; who has fewer steps leaves earlier."""
    streams = [steps(c, m.protocol) for c, m in zip(clients, methods, strict=True)]
    stack = Stack(clients, methods)
    while clients:
        found = [next(s, None) for s in streams]
        going = [i for i, batch in enumerate(found) if batch is not None]
        if len(going) < len(clients):
            stack.leave([i for i in range(len(clients)) if i not in going])
            clients, streams, found = ([some[i] for i in going] for some in (clients, streams, found))
        if clients:
            stack.step(found)


def steps(client, protocol):
    """All batches of a client's local training, as `FedAvg.fit` draws them."""
    gen = generator(client.seed, "order", client.round, client.id)
    for _ in range(protocol.epochs):
        yield from batches(client.train, protocol.batch, protocol.augment, gen, protocol.order)


class Stack:
    """The nets of several clients as one: every parameter and buffer has a first dimension of clients."""

    def __init__(self, clients: list, methods: list):
        self.clients, self.methods, self.protocol = list(clients), list(methods), methods[0].protocol
        self.params, self.buffers = stack_module_state([c.net.train() for c in clients])
        self.net = copy.deepcopy(clients[0].net).train()        # what is computed; its own entries are not used
        self.opt = self.optimiser()
        self.plain = type(methods[0]).loss is FedAvg.loss

    def optimiser(self):
        """The protocol's over the stacked parameters: it works entry by entry, so clients do not mix."""
        entries = SimpleNamespace(parameters=self.params.values, named_parameters=self.params.items)
        return optimiser(self.protocol, entries, self.clients[0])

    def step(self, found: list[tuple]):
        """One minibatch of every client. Batches of different sizes are computed apart: batch-norm sees no padding."""
        self.opt.zero_grad(set_to_none=True)
        total = 0
        for size in sorted({len(y) for _, y in found}):
            places = [i for i, (_, y) in enumerate(found) if len(y) == size]
            values = self.losses(places, *(torch.stack([found[i][k] for i in places]) for k in (0, 1)))
            for i, value in zip(places, values.detach(), strict=True):
                self.clients[i].scratch.setdefault("losses", []).append(value)
            total = total + values.sum()
        total.backward()
        if self.protocol.clip:
            self.clip()
        self.opt.step()

    def losses(self, places: list[int], x, y):
        """The clients' losses `(k,)` of batches x `(k, B, ...)` and y `(k, B)`."""
        some = len(places) < len(self.clients)
        params, buffers = ({k: v[places] if some else v for k, v in entries.items()}
                           for entries in (self.params, self.buffers))
        with autocast(self.protocol, x):
            if self.plain:
                logits = several(self.net, params, buffers, x)
                values = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)
            else:
                z = several(self.net.body, within(params, "body."), within(buffers, "body."), x)
                values = torch.stack([
                    functional_call(Loss(self.net, self.methods[i], x[j], z[j]),
                                    {f"net.{k}": v[j] for k, v in (params | buffers).items()}, (y[j], self.clients[i]))
                    for j, i in enumerate(places)])
        if some:        # these buffers are copies
            for k, v in buffers.items():
                self.buffers[k][places] = v
        return values

    @torch.no_grad()
    def clip(self):
        """Every client's gradient shortened to the protocol's norm, as torch.nn.utils.clip_grad_norm_ does."""
        grads = [p.grad for p in self.params.values() if p.grad is not None]
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
        shares = (self.protocol.clip / (norms + 1e-6)).clamp(max=1.0)
        for g in grads:
            g.mul_(shares.view(-1, *[1] * (g.dim() - 1)))

    @torch.no_grad()
    def leave(self, places: list[int]):
        """Write what these clients learned into their nets, and go on without them."""
        for i in places:
            own = self.clients[i].net.state_dict(keep_vars=True) | dict(self.clients[i].net.named_buffers())
            for k, v in (self.params | self.buffers).items():
                own[k].copy_(v[i])
        rest = [i for i in range(len(self.clients)) if i not in places]
        self.clients, self.methods = ([some[i] for i in rest] for some in (self.clients, self.methods))
        if not rest:
            return
        moments = [{k: v[rest] if v.shape == p.shape else v for k, v in self.opt.state.get(p, {}).items()}
                   for p in self.params.values()]
        self.params = {k: v[rest].requires_grad_(v.requires_grad) for k, v in self.params.items()}
        self.buffers = {k: v[rest] for k, v in self.buffers.items()}
        self.opt = self.optimiser()
        self.opt.state.update({p: m for p, m in zip(self.params.values(), moments, strict=True) if m})


def several(module, params: dict, buffers: dict, x):
    """The module of every client on the batch of each, `(k, B, ...)`."""
    return vmap(lambda p, b, batch: functional_call(module, (p, b), (batch,)), randomness="different")(
        params, buffers, x)


def within(entries: dict, prefix: str) -> dict:
    """The entries below a module, without its name."""
    return {k.removeprefix(prefix): v for k, v in entries.items() if k.startswith(prefix)}


class Loss(nn.Module):
    """A method's loss of one client, in which `net` has the client's entries and knows the features of its batch."""

    def __init__(self, net, method, x, z):
        super().__init__()
        self.net, self.method, self.x, self.z = net, method, x, z

    def forward(self, y, client):
        body, compute = self.net.body, self.net.body.forward
        body.forward = lambda x: self.z if x is self.x else compute(x)
        try:
            return self.method.loss(self.net, self.x, y, client)
        finally:
            del body.forward


# which is faster

def asked(text: str) -> str | int:
    """'auto' or a number of clients. UserError: neither."""
    if text != "auto" and not (text.isdecimal() and int(text)):
        raise UserError(f"stack '{text}' is neither auto nor a number of clients (like 1 or 20)")
    return text if text == "auto" else int(text)


def choose(stack: str | int, run, workers: list, messages, number: int, device) -> int:
    """How many clients train at once: 1 where a method trains in its own way, or a client is not in this process.

    stack = "auto" measures a step both ways, once for a method, net, batch, number of clients and device, and remembers
    the answer beside the prepared data.
    """
    most = min(len(workers), MOST) if stack == "auto" else int(stack)
    if most == 1 or not all(hasattr(w, "method") and fits(w.method) for w in workers):
        return 1
    if stack != "auto":
        return most
    file, place = prepare.folder() / "stack.json", torch.device(device)
    try:
        known = forms.check(forms.parsed(file.read_text()), {str: int})
    except (OSError, ValueError):       # none yet, or damaged: what is lost is measured again
        known = {}
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else f"{place}, {torch.get_num_threads()} threads"
    shape = list(workers[0].client.train.x.shape[1:])
    key = json.dumps([name, run.method, run.net.net, run.net.width, shape, run.protocol.batch, run.protocol.precision,
                      most])
    if key not in known:
        for worker, message in zip(workers[:most], messages, strict=False):
            worker.begin(message, number)
        known[key] = most if gain(workers[:most]) >= GAIN else 1
        with contextlib.suppress(UserError):        # another run may write too; what is lost is measured again
            records.write_bytes(file, json.dumps(known, indent=1).encode())
    return max(1, min(most, known[key]))


def gain(workers: list) -> float:
    """How many times faster a step of the stack is, measured on copies of the nets; nothing of it stays."""
    clients = [copy.copy(w.client) for w in workers]
    for client in clients:
        client.net, client.scratch = copy.deepcopy(client.net).train(), copy.deepcopy(client.scratch)
    methods = [w.method for w in workers]
    protocol = methods[0].protocol
    some = [next(steps(c, protocol)) for c in clients]
    opts = [optimiser(protocol, c.net, c) for c in clients]
    stack = Stack(clients, methods)

    def apart():
        for client, method, opt, (x, y) in zip(clients, methods, opts, some, strict=True):
            method.step(client.net, x, y, client, opt, method.loss)
    return clocked(apart, some) / clocked(lambda: stack.step(some), some)


def clocked(call, some) -> float:
    """Seconds of a call, the least of several after the first."""
    device, times = some[0][1].device, []
    for _ in range(1 + STEPS):
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])
