"""Stacked clients: several train at once as one batched network, equal to one after the other but for rounding.

Twenty small nets with batches of ten are twenty times as many kernels as one; on a GPU, and for small linear nets on a
CPU too, starting them takes longer than computing them. Training one after the other is the specification.

A method's `local` is not changed for it: each client's runs in a thread, one thread at a time, up to a call of `fit`.
When all have come to one, the stack computes these calls together, and each `local` goes on.
"""
import contextlib
import copy
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from fedlib.core import schema
from fedlib.core.errors import UserError
from fedlib.core.federation import Client, pieces, prepared
from fedlib.core.files import write_bytes
from fedlib.core.params import copied
from fedlib.core.seeds import generator
from fedlib.datasets import prepare
from fedlib.methods.base import FedAvg, Protocol, autocast, optimiser
from fedlib.models.nets import Net

MOST = 32           # clients at once
STEPS = 4           # that are measured, after one that is not
GAIN = 1.3          # what stacking must be worth to be taken


def fits(method) -> bool:
    """Does the method take plain steps in `fit`? Then they can be computed together, whatever it does around them.

    Not with a frozen text tower, which keeps what it computed last, and not where an optimiser goes on.
    """
    same = all(getattr(type(method), k) is getattr(FedAvg, k) for k in ("fit", "step"))
    return same and method.stackable and not method.protocol.keep_optimiser


def train(workers: list, messages: list[dict], number: int) -> list[tuple[dict, dict]]:
    """One round of all workers: what each `worker.train(message, number)` gives."""
    for worker, message in zip(workers, messages, strict=True):
        worker.begin(message, number)
    lanes = [Lane(w.method, w.client) for w in workers]
    try:
        while asked := [lane.asked for lane in lanes if lane.goes_on()]:
            fit(asked)
    finally:
        for lane in lanes:
            lane.leave()
    return [worker.end() for worker in workers]


class Left(BaseException):
    """Ends a lane whose training nobody waits for any more."""


class Lane:
    """`method.local(client)` in a thread that runs while `goes_on` waits for it, and halts at each call of `fit`."""

    def __init__(self, method, client):
        self.method, self.client, self.asked, self.error, self.left = method, client, None, None, False
        self.turn, self.halt = threading.Semaphore(0), threading.Semaphore(0)
        method.fit = self.fit       # of this object; its class keeps its own
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        self.turn.acquire()
        try:
            if not self.left:
                self.method.local(self.client)
        except Left:
            pass
        except BaseException as error:
            self.error = error
        finally:
            self.asked = None
            self.halt.release()

    def fit(self, net, client, loss, epochs: int):
        """In the place of the method's: leave the request, halt until it is done."""
        self.asked = Fit(net, client, loss, epochs, self.method.protocol)
        self.halt.release()
        self.turn.acquire()
        if self.left:
            raise Left

    def goes_on(self) -> bool:
        """Run until the next call of `fit`, which is then `asked`; False: local training is over. Raises its error."""
        if self.thread.is_alive():
            self.turn.release()
            self.halt.acquire()
            if self.asked is None:
                self.thread.join()
        if self.error:
            raise self.error
        return self.asked is not None

    def leave(self):
        """End the thread, wherever it is, and give the method its own `fit` back."""
        self.left = True
        self.turn.release()
        self.thread.join()
        vars(self.method).pop("fit", None)


@dataclass
class Fit:
    """A call of `FedAvg.fit`."""
    net: nn.Module
    client: Client
    loss: Callable
    epochs: int
    protocol: Protocol


def fit(asked: list[Fit]):
    """What `FedAvg.fit` does for each; who has fewer steps leaves earlier."""
    streams = [steps(a) for a in asked]
    stack = Stack(asked)
    while asked:
        found = [next(s, None) for s in streams]
        going = [i for i, batch in enumerate(found) if batch is not None]
        if len(going) < len(asked):
            stack.leave([i for i in range(len(asked)) if i not in going])
            asked, streams, found = ([some[i] for i in going] for some in (asked, streams, found))
        if asked:
            stack.step(together(asked, found))


def steps(asked: Fit):
    """All batches of it, as `FedAvg.fit` draws them, not yet prepared."""
    client, protocol = asked.client, asked.protocol
    gen = generator(client.seed, "order", client.round, client.id)
    for _ in range(asked.epochs):
        for piece in pieces(client.train, protocol.batch, protocol.augment, gen, protocol.order, protocol.least_batch):
            yield from zip(*(t.split(protocol.batch) for t in piece))


def together(asked: list[Fit], found: list[tuple]) -> list[tuple]:
    """One batch (x, y) of each, all prepared at once."""
    x, y, draws = zip(*found)
    x = prepared(torch.cat(x), torch.cat(draws), asked[0].protocol.augment, asked[0].client.train.normal)
    return list(zip(x.split([len(part) for part in y]), y))


class Stack:
    """The nets of several clients as one: every parameter and buffer has a first dimension of clients."""

    def __init__(self, asked: list[Fit]):
        self.asked, self.protocol = list(asked), asked[0].protocol
        self.params, self.buffers = stack_module_state([a.net.train() for a in asked])
        self.net = copy.deepcopy(asked[0].net).train()      # what is computed; its own entries are not used
        self.opt = self.optimiser()
        self.plain = all(getattr(a.loss, "__func__", None) is FedAvg.loss for a in asked)

    def optimiser(self):
        """The protocol's over the stacked parameters: it works entry by entry, so clients do not mix."""
        entries = SimpleNamespace(parameters=self.params.values, named_parameters=self.params.items)
        return optimiser(self.protocol, entries, self.asked[0].client)

    def step(self, found: list[tuple]):
        """One minibatch of every client. Batches of different sizes are computed apart: batch-norm sees no padding."""
        self.opt.zero_grad(set_to_none=True)
        total = 0
        for size in sorted({len(y) for _, y in found}):
            places = [i for i, (_, y) in enumerate(found) if len(y) == size]
            values = self.losses(places, *(torch.stack([found[i][k] for i in places]) for k in (0, 1)))
            for i, value in zip(places, values.detach(), strict=True):
                self.asked[i].client.scratch.setdefault("losses", []).append(value)
            total = total + values.sum()
        total.backward()
        if self.protocol.clip:
            self.clip()
        self.opt.step()

    def losses(self, places: list[int], x, y):
        """The clients' losses `(k,)` of batches x `(k, B, ...)` and y `(k, B)`."""
        some = len(places) < len(self.asked)
        params, buffers = ({k: v[places] if some else v for k, v in entries.items()}
                           for entries in (self.params, self.buffers))
        with autocast(self.protocol, x):
            if self.plain:
                logits = several(self.net, params, buffers, x)
                values = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)
            else:
                z = [None] * len(places)        # a net of another form than body and head is computed client by client
                if isinstance(self.net, Net):
                    z = several(self.net.body, within(params, "body."), within(buffers, "body."), x)
                own = {f"net.{k}": v.unbind() for k, v in (params | buffers).items()}
                values = torch.stack([
                    functional_call(Loss(self.net, self.asked[i].loss, x[j], z[j]), {k: v[j] for k, v in own.items()},
                                    (y[j], self.asked[i].client))
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
            own = self.asked[i].net.state_dict(keep_vars=True) | dict(self.asked[i].net.named_buffers())
            copied(own, {k: v[i] for k, v in (self.params | self.buffers).items()})
        rest = [i for i in range(len(self.asked)) if i not in places]
        self.asked = [self.asked[i] for i in rest]
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
    """The loss of one client, in which `net` has the client's entries and may know the features z of its batch."""

    def __init__(self, net, loss, x, z):
        super().__init__()
        self.net, self.loss, self.x, self.z = net, loss, x, z

    def forward(self, y, client):
        if self.z is None:
            return self.loss(self.net, self.x, y, client)
        body, compute = self.net.body, self.net.body.forward
        body.forward = lambda x: self.z if x is self.x else compute(x)
        try:
            return self.loss(self.net, self.x, y, client)
        finally:
            del body.forward


# which is faster

def asked(text: str) -> str | int:
    """'auto' or a number of clients. UserError: neither."""
    if text != "auto" and not (text.isdecimal() and int(text)):
        raise UserError(f"stack '{text}' is neither auto nor a number of clients (like 1 or 20)")
    return text if text == "auto" else int(text)


def usual(device) -> str | int:
    """One after the other on a CPU; on a GPU whatever is faster."""
    return 1 if str(device).startswith("cpu") else "auto"


def choose(stack: str | int, run, workers: list, messages, number: int, device) -> int:
    """How many clients train at once: 1 where a method trains in its own way, or a client is not in this process.

    stack = "auto" measures a step both ways, once for a method, net, batch, number of clients and device, and remembers
    the answer beside the prepared data. What is measured beside other work may differ from time to time: two answers
    that disagree, or too little memory, count as one after the other, and are not remembered.
    """
    most = min(len(workers), MOST) if stack == "auto" else int(stack)
    if most == 1 or not all(fits(w.method) for w in workers):
        return 1
    if stack != "auto":
        return most
    file, place = prepare.folder() / "stack.json", torch.device(device)
    try:
        known = schema.check(schema.parsed(file.read_text()), {str: int})
    except (OSError, ValueError):       # none yet, or damaged: what is lost is measured again
        known = {}
    name = torch.cuda.get_device_name(place) if place.type == "cuda" else f"{place}, {torch.get_num_threads()} threads"
    shape = list(workers[0].client.train.x.shape[1:])
    key = json.dumps([name, run.method, run.net.net, run.net.width, shape, run.protocol.batch, run.protocol.precision,
                      most])
    if key not in known:
        for worker, message in zip(workers[:most], messages, strict=False):
            worker.begin(message, number)
        try:
            answers = {gain(workers[:most]) >= GAIN for _ in range(2)}
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            return 1
        if len(answers) == 2:
            return 1
        known[key] = most if answers == {True} else 1
        with contextlib.suppress(UserError):        # another run may write too; what is lost is measured again
            write_bytes(file, json.dumps(known, indent=1).encode())
    return max(1, min(most, known[key]))


def gain(workers: list) -> float:
    """How many times faster a step of the stack is, measured on copies of the clients; nothing of it stays. 1: the
    method has no such steps."""
    clients = [copy.copy(w.client) for w in workers]
    for client in clients:
        client.net, client.state = copy.deepcopy(client.net), copy.deepcopy(client.state)
        client.scratch = copy.deepcopy(client.scratch)
    lanes = [Lane(copy.copy(w.method), c) for w, c in zip(workers, clients, strict=True)]
    try:
        asked = [lane.asked for lane in lanes if lane.goes_on()]
        if len(asked) < len(lanes):
            return 1.0
        some = together(asked, [next(steps(a)) for a in asked])
        stack, opts = Stack(asked), [optimiser(a.protocol, a.net.train(), a.client) for a in asked]

        def apart():
            for lane, a, opt, (x, y) in zip(lanes, asked, opts, some, strict=True):
                lane.method.step(a.net, x, y, a.client, opt, a.loss)
        return clocked(apart, some) / clocked(lambda: stack.step(some), some)
    finally:
        for lane in lanes:
            lane.leave()


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
