"""FedAvg, complete: every other method replaces the smallest hook that states its idea.

Server hooks see the server's state (attributes that end in an underscore) and the uploads. Client hooks see the client:
its data, its net, its state, and the last message from the server. Two dicts of tensors cross, nothing else.
"""
import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from fedlib.core import settings
from fedlib.core.errors import UserError, pick
from fedlib.core.federation import batches
from fedlib.core.params import buffers, load_params, mean, snapshot
from fedlib.core.seeds import generator

METHODS: dict[str, type] = {}


@dataclass(frozen=True)
class Protocol:
    """What all methods of a comparison share. Changing any of these changes the experiment."""
    rounds: int = 20
    epochs: int = 1                      # local epochs per round
    batch: int = 32
    lr: float = 0.01
    momentum: float = 0.0
    weight_decay: float = 0.0
    optimiser: Literal["sgd", "adam", "adamw", "adam_clip"] = "sgd"
    clip: float = 0.0                    # largest gradient norm; 0: no clipping
    augment: Literal["none", "crop", "crop_flip", "flip_rotate"] = "none"
    order: Literal["random", "classes"] = settings.later("random")      # of samples: drawn each epoch; class by class
    participation: float = 1.0           # share of the clients that train in a round
    participation_low: float = settings.later(0.0)   # > 0: the share is drawn each round, between this and that
    buffers: Literal["average", "keep"] = "average"      # batch-norm statistics: averaged, or kept by each client
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    evaluate: Literal["before", "after", "both"] = "before"   # local training: test what came down, or what was trained
    patience: int = 0                    # stop when validation has not improved for so many rounds; 0: never
    stop: Literal["accuracy", "loss"] = settings.later("accuracy")      # what improves: validation accuracy or loss
    keep_optimiser: bool = settings.later(False)     # each client's goes on from round to round; else a new one each
    warmup: int = settings.later(0)      # rounds of linear warm-up of lr, then a cosine to 0; 0: lr stays
    initial: bool = settings.later(False)            # round 0: a test before any training
    least_batch: int = settings.later(2)             # a smaller last batch of an epoch is left out (batch-norm)
    cross: bool = settings.later(False)  # every client's model is tested on every client's test split (MPFT)
    cohort: int = settings.later(0)      # > 0: so many clients train in a round, whatever their share
    test_every: int = settings.later(1)  # rounds from test to test; the last round is tested in any case
    test_clients: int = settings.later(0)    # > 0: so many of each domain are tested, drawn anew; in the last round all
    least: ClassVar[dict] = {"rounds": 1, "epochs": 1, "batch": 1, "test_every": 1}
    most: ClassVar[dict] = {"participation": 1, "participation_low": 1}

    def tests(self, number: int) -> bool:
        """Is there a test at the end of this round?"""
        return number % self.test_every == 0 or number >= self.rounds


def method(cls):
    """Register a method under its class name."""
    cls = dataclass(eq=False)(cls)
    METHODS[cls.__name__] = cls
    return cls


def make(name: str, values: dict | None = None, protocol: Protocol | None = None) -> "FedAvg":
    """The method of this name with these settings; UserError on an unknown name, setting or value."""
    cls, values = METHODS[pick("method", name, METHODS)], dict(values or {})
    if cls.presets and "preset" in values:
        values = cls.presets[pick(f"{name}: preset", values.pop("preset"), cls.presets)] | values
    made = settings.make(cls, values, name)
    made.protocol = protocol or Protocol()
    return made


@method
class FedAvg:
    """w <- sum_k (n_k / n) w_k: average the nets that the clients trained from w.

    weights = "equal" is the plain mean. "zipped" is the fault of MPFT's released code that its printed baselines come
    from: it pairs the clients' weights with the tensors of the nets. McMahan et al., AISTATS 2017, arXiv:1602.05629.
    """
    weights: Literal["samples", "equal", "zipped"] = settings.later("samples")     # of the clients in the mean
    version: ClassVar[int] = 1                        # counts changes that change results
    limit: ClassVar = "the base method: others reduce to it"      # or (settings, method it then equals[, net])
    presets: ClassVar[dict] = {}                      # name -> settings that belong together: preset = "paper"
    protocol: ClassVar[Protocol] = Protocol()         # set by `make`
    seed, classes, domains = 0, [], []                # the run's, and the names of both; set by the loop
    measured: ClassVar[dict] = {}                     # what the server says of a round: numbers for the record
    stackable, replayable, at_once = True, True, 1024     # may steps be computed together, or be graphs? a test batch

    @property
    def personal(self) -> bool:
        """Does each client end with a model of its own? Then each is tested on its own domain."""
        return False

    def equip(self, net):
        """The net with what training needs beside body and head; called at the server and at each client."""
        return net

    # server

    def setup(self, net):
        """Server state from the initial net."""
        net = self.equip(net)
        self.global_ = snapshot(net, without=self.stays(net))
        self.trained = [k for k, _ in net.named_parameters() if k in self.global_]     # names, the same at every start

    def broadcast(self, client_id: str) -> dict:
        """What travels down to a client."""
        return {"params": self.global_}

    def aggregate(self, uploads: dict[str, dict]):
        """Server state from what came up, by client id."""
        nets, weights = [u.get("params", {}) for u in uploads.values()], self.client_weights(uploads)
        self.global_ = mean(nets, weights) | (zipped(nets, weights, self.trained) if self.weights == "zipped" else {})

    def client_weights(self, uploads: dict[str, dict]) -> list:
        """The clients' weights in the mean, in the order of the uploads; their scale does not matter."""
        return [1 if self.weights == "equal" else u["n"] for u in uploads.values()]

    # client

    def receive(self, client, got: dict):
        """Load what came down; what stays at the client is not in it (all of it may: an empty dict does not travel)."""
        load_params(client.net, got.get("params", {}))

    def local(self, client):
        """Local training in one round."""
        self.fit(client.net, client, self.loss, self.protocol.epochs)

    def fit(self, net, client, loss, epochs: int):
        """Epochs of steps over the client's training split; the order of samples is keyed by seed, round and client."""
        p, opt = self.protocol, optimiser(self.protocol, net.train(), client)
        gen = generator(client.seed, "order", client.round, client.id)
        for _ in range(epochs):
            for x, y in batches(client.train, p.batch, p.augment, gen, p.order, p.least_batch):
                client.scratch.setdefault("losses", []).append(self.step(net, x, y, client, opt, loss))
        keep_moments(p, opt, net, client)

    def step(self, net, x, y, client, opt, loss):
        """One minibatch; returns the loss, still on the device."""
        forget(opt)
        with autocast(self.protocol, x):
            value = loss(net, x, y, client)
        value.backward()
        if self.protocol.clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), self.protocol.clip)
        opt.step()
        return value.detach()

    def loss(self, net, x, y, client):
        """Cross-entropy of a batch: x as the net takes it, y `(B,)`."""
        return F.cross_entropy(net(x), y)

    def private(self, net) -> set[str]:
        """State-dict names that never leave the client."""
        return set()

    def stays(self, net) -> set[str]:
        """Private names, and the buffers when the protocol keeps them."""
        return self.private(net) | (buffers(net) if self.protocol.buffers == "keep" else set())

    def upload(self, client) -> dict:
        """What travels up."""
        return {"params": snapshot(client.net, without=self.stays(client.net)), "n": torch.tensor(len(client.train))}

    def adapt(self, client):
        """Personalisation after a download, before the test."""

    def predict(self, net, x, client):
        """Logits `(B, classes)` for a batch."""
        return net(x)

    # what probes ask for

    def vectors(self, net, client):
        """Features of the classes' texts `(C, D)`, of methods that learn prompts."""

    def noisy(self, z, y, client):
        """What a client that sends features would send of z `(N, D)`, labels y `(N,)`."""
        return z


OPTIMISERS = {
    "sgd": lambda p, net: torch.optim.SGD(net.parameters(), p.lr, p.momentum, weight_decay=p.weight_decay),
    "adam": lambda p, net: torch.optim.Adam(net.parameters(), p.lr, weight_decay=p.weight_decay),
    # with the betas and eps that CLIP was trained with (arXiv:2103.00020, Table 18), as FedCLIP and FACMIC have them
    "adam_clip": lambda p, net: torch.optim.Adam(net.parameters(), p.lr, (0.9, 0.98), 1e-6, p.weight_decay),
    "adamw": lambda p, net: torch.optim.AdamW(net.parameters(), p.lr, weight_decay=p.weight_decay, fused=True),
}


def optimiser(protocol: Protocol, net, client):
    """A new optimiser, or the client's with the moments of its last round; its rate is that of the round."""
    opt = OPTIMISERS[protocol.optimiser](protocol, net)
    for group in opt.param_groups:
        group["lr"] = rate(protocol, client.round)
    kept = client.state.get("optimiser", {}) if protocol.keep_optimiser and holds(net, client) else {}
    opt.state.update({v: dict(kept[k]) for k, v in net.named_parameters() if k in kept})
    return opt


def forget(opt):
    """opt.zero_grad() without its line in torch's profiler, which takes longer than the rest of it."""
    for group in opt.param_groups:
        for p in group["params"]:
            p.grad = None


def keep_moments(protocol: Protocol, opt, net, client):
    """What `optimiser` starts from in the client's next round."""
    if protocol.keep_optimiser and holds(net, client):
        client.state["optimiser"] = {k: opt.state[v] for k, v in net.named_parameters() if v in opt.state}


def holds(net, client) -> bool:
    """Is this the client's net, alone or beside an own head?"""
    return any(module is client.net for module in net.modules())


def rate(protocol: Protocol, number: int) -> float:
    """lr in a round, 0, 1, ..."""
    return protocol.lr * warmed(number, protocol.warmup, protocol.rounds)


def warmed(step: int, warmup: int, steps: int) -> float:
    """The factor of lr at step 0, 1, ...: (step + 1) / warmup, then (1 + cos(pi r)) / 2, r the part that is over."""
    if step < warmup or not warmup:
        return (step + 1) / warmup if warmup else 1.0
    return (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))) / 2


def zipped(dicts: list[dict], weights, names: list[str]) -> dict:
    """w^j <- s_j sum_k w_k^j: tensor number j of every client is multiplied by the share s_j of client j.

    Tensors (trainable parameters, in the net's order) beyond the number of clients become zero. MPFT's has two.
    """
    shares = torch.as_tensor([float(w) for w in weights], dtype=torch.float64)
    shares = (shares / shares.sum()).tolist() + [0.0] * len(names)
    return {k: share * sum(d[k] for d in dicts) for share, k in zip(shares, names)}


def linear(net, name: str):
    """UserError: the method needs a linear head and this net has another."""
    if not isinstance(net.head, nn.Linear):
        raise UserError(f"{name} needs a linear head: choose head = linear")


def autocast(protocol: Protocol, x):
    """bfloat16 for the forward pass when the protocol asks for it."""
    return torch.autocast(x.device.type, torch.bfloat16) if protocol.precision == "bf16" else nullcontext()


@torch.no_grad()
def outputs(module, split, protocol) -> torch.Tensor:
    """What a net or its body gives for a whole split, in evaluation mode and without augmentation."""
    module.eval()
    with autocast(protocol, split.y):
        return torch.cat([module(x).float() for x, _ in split.parts(1024)])
