"""What stays at the client: methods that differ from FedAvg in which entries travel, or in how own and shared mix."""
import copy
import dataclasses
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from fedlib.core import settings
from fedlib.core.federation import batches
from fedlib.core.losses import mmd
from fedlib.core.params import NORM, load_params, names, snapshot
from fedlib.core.seeds import generator
from fedlib.methods.base import FedAvg, autocast, linear, method, optimiser, rate
from fedlib.methods.drift import frozen, number


@method
class Local(FedAvg):
    """min F_k(w_k) for each client alone: everything stays, nothing is learnt from others (FedPall's SingleSet)."""
    limit = "no setting turns it off: it is what sharing methods reduce to when nothing is shared"
    personal = True

    def private(self, net):
        return set(net.state_dict())


@method
class Constant(Local):
    """argmax_c n_kc: every answer is the client's most frequent training class; nothing is trained. What a row must
    be above to have learned anything.

    common = True: argmax_c sum_k n_kc, one answer for all, beside which a row with one model for all is judged.
    """
    common: bool = settings.later(False)
    limit = "there is nothing to turn off"

    personal = property(lambda self: not self.common)

    def setup(self, net):
        super().setup(net)
        self.counts_ = torch.zeros(net.head.out_features, dtype=torch.int64)

    def broadcast(self, client_id):
        return super().broadcast(client_id) | ({"counts": self.counts_} if self.common else {})

    def local(self, client):
        """No training."""

    def upload(self, client):
        counts = client.train.y.bincount(minlength=len(client.classes))
        return super().upload(client) | ({"counts": counts} if self.common else {})

    def aggregate(self, uploads):
        super().aggregate(uploads)
        self.counts_ = sum((u["counts"] for u in uploads.values() if self.common), self.counts_)

    def predict(self, net, x, client):
        counts = client.got["counts"] if self.common else client.train.y.bincount(minlength=len(client.classes))
        return F.one_hot(counts.argmax(), len(client.classes)).float().expand(len(x), -1)


@method
class FedBN(FedAvg):
    """FedAvg of everything but the normalisation layers, which stay (Li et al., ICLR 2021, arXiv:2102.07623).

    norms = "name" is as released: entries with "bn" in their name stay. That misses 3 of the 20 batch-norm layers of a
    ResNet-18 (`downsample.1`), which are then shared; those of a hidden head have such names in FedPall's code. The
    paper weights clients equally: weights = "equal".
    """
    norms: Literal["type", "name"] = "type"
    acts_on = NORM                       # modules without which it is another method
    limit = {}, "FedAvg", "cnn4"         # on a net without normalisation layers
    personal = True

    def private(self, net):
        return {k for k in names(net, NORM) if self.norms == "type" or "bn" in k or k.startswith("head.")}


@method
class FedPer(FedAvg):
    """w_k = (body, head_k): FedAvg of the body `x -> (B, D)`; the head `(B, D) -> (B, C)` stays, trained with it.

    The paper also lets the last blocks of the body stay; here, as in all comparisons, it is the last layer.
    Arivazhagan et al., 2019, arXiv:1912.00818.
    """
    limit = {}, "Local", "linear"        # on a net without a body
    personal = True

    def private(self, net):
        return {k for k in net.state_dict() if k.startswith("head.")}


@method
class FedRep(FedPer):
    """head_k <- argmin F_k(body, .), then body_k <- body - lr grad F_k(., head_k); FedAvg of the body_k.

    FedPer, with the head trained first, the body fixed, and then the body, the head fixed. Batch-norm statistics of the
    body move in both steps, as in released code. Collins et al., ICML 2021, arXiv:2102.07078.
    """
    head_epochs: int = 10                # 10 in the paper, FedPall's 5 or 10 local epochs, 1 in PFLlib
    body_epochs: int = 1                 # 1 or 5 in the paper, 1 in FedPall and PFLlib
    limit = dict(head_epochs=1), "Local", "linear"      # without a body, and with the protocol's number of epochs

    def local(self, client):
        fit_part(self, client, "head", self.head_epochs)
        fit_part(self, client, "body", self.body_epochs)


@method
class FineTuned(FedAvg):
    """FedAvg's w, which each client trains on its own data before a test: the plainest model of one's own.

    The tuning follows each download, with the protocol's optimiser, and is then forgotten. tunes = "head" leaves the
    body as it came. Cheng, Chadha and Duchi, 2021, arXiv:2108.07313; Yu et al., 2020, arXiv:2002.04758.
    """
    tune_epochs: int = 1
    tunes: Literal["net", "head"] = "net"
    limit = dict(tune_epochs=0), "FedAvg"

    personal = property(lambda self: self.tune_epochs > 0)

    def adapt(self, client):
        tune(self, client, self.tunes, self.tune_epochs)


@method
class FedBABU(FedPer):
    """w = (body, head_0): FedAvg of the body under a head that keeps its first value; clients tune both for a test.

    The tuning follows each download, with the protocol's optimiser, and is then forgotten. The authors tune once, after
    the last round, with a learning rate of 0.001. A test without a download (evaluate = "after") sees the random head.
    Oh et al., ICLR 2022, arXiv:2106.06042.
    """
    tune_epochs: int = 5                 # 5 in the paper, 10 in PFLlib
    tunes: Literal["net", "head"] = "net"
    limit = "no setting trains the head in rounds; with tune_epochs = 0 it is FedRep with head_epochs = 0"

    def local(self, client):
        fit_part(self, client, "body", self.protocol.epochs)

    def adapt(self, client):
        tune(self, client, self.tunes, self.tune_epochs)


@method
class COPA(FedPer):
    """F_k(G, H_k) + lam sum_{j != k} CE(H_j(G(x)), y): FedAvg of the body G; heads H_j travel, and are never averaged.

    The heads of others `(B, D) -> (B, C)` are frozen copies of what they sent in the round before; the first round has
    none. Tests ask all heads and average their probabilities; infer = "own" tests the client's net. MarsFL tests the
    averaged body under the head as first drawn, and has others' heads, all alike, in the first round too.
    The authors also mix batch and instance normalisation in early layers and augment strongly; as in MarsFL, this is
    left out. Wu and Gong, ICCV 2021 (no preprint).
    """
    lam: float = 1.0                     # 1: the sum, as in MarsFL
    infer: Literal["all", "own"] = "all"
    limit = dict(lam=0.0, infer="own"), "FedPer"

    personal = property(lambda self: self.infer == "own")

    def setup(self, net):
        super().setup(net)
        linear(net, "COPA")
        self.heads_ = {}

    def broadcast(self, client_id):
        return super().broadcast(client_id) | ({"heads": self.heads_} if self.heads_ else {})

    def upload(self, client):
        return super().upload(client) | {"head": snapshot(client.net.head)}

    def aggregate(self, uploads):
        super().aggregate(uploads)
        self.heads_ = self.heads_ | {i: u["head"] for i, u in uploads.items()}

    def loss(self, net, x, y, client):
        z = net.body(x)
        others = [h for i, h in self.heads(client).items() if i != client.id]
        foreign = sum(F.cross_entropy(F.linear(z, h["weight"], h["bias"]), y) for h in others)
        return F.cross_entropy(net.head(z), y) + self.lam * foreign

    def predict(self, net, x, client):
        heads = self.heads(client).values()
        if self.infer == "own" or not heads:
            return net(x)
        z = net.body(x)
        votes = torch.stack([F.linear(z, h["weight"], h["bias"]).softmax(1) for h in heads])
        return votes.mean(0).clamp(min=1e-12).log()

    def heads(self, client) -> dict:
        """All heads by client, in an order that does not depend on who took part when."""
        got = client.got.get("heads", {})
        return {i: got[i] for i in sorted(got, key=number)}


@method
class LGFedAvg(FedAvg):
    """w_k = (first layers_k, last layers): FedAvg of the last `layers` layers; what comes before stays.

    The released experiments begin at a FedAvg model (400 rounds on MNIST, 1200 on CIFAR-10) and average without
    weights. The released CNN for CIFAR-10 lists its convolutions last, so that these are what it shares. For an unknown
    client the paper lets all clients' models vote; here each is tested on its own domain.
    Liang et al., NeurIPS workshop 2019, arXiv:2001.01523.
    """
    layers: int = 1                      # 3 of 5 on MNIST, 2 of 5 on CIFAR-10 in the paper, 1 in PFLlib
    limit = {}, "FedAvg", "linear"       # on a net of one layer
    personal = True

    def private(self, net):
        return set(net.state_dict()) - last_layers(net, self.layers)


@method
class FedRoD(FedAvg):
    """CE(H(z) + log n_k, y) for body and head H, which are averaged, + CE(sg H(z) + H_k(sg z), y) for an own head H_k.

    z: features `(B, D)`; n_k: client k's samples per class `(C,)`; sg: no gradient. A class that the client lacks has
    log 0 = -inf: H is not pushed away from it. H_k starts as H and stays; its client answers H(z) + H_k(z).
    infer = "generic" tests H alone, the paper's other model. Chen and Chao, ICLR 2022, arXiv:2107.00778.
    """
    robust: bool = True                  # False: no log n_k, plain cross-entropy for H
    infer: Literal["personal", "generic"] = "personal"
    limit = dict(robust=False, infer="generic"), "FedAvg"

    personal = property(lambda self: self.infer == "personal")

    def local(self, client):
        pair = nn.ModuleList([client.net, load_params(copy.deepcopy(client.net.head), client.state.get("own", {}))])
        client.scratch["prior"] = client.train.y.bincount(minlength=client.net.head.out_features).log()
        self.fit(pair, client, self.losses, self.protocol.epochs)
        client.state["own"] = snapshot(pair[1])

    def losses(self, pair, x, y, client):
        """The two losses; neither has a gradient in the other's parameters."""
        net, own = pair
        z = net.body(x)
        o = net.head(z)
        generic = F.cross_entropy(o + client.scratch["prior"] if self.robust else o, y)
        return generic + F.cross_entropy(o.detach() + own(z.detach()), y)

    def predict(self, net, x, client):
        own = client.state.get("own") if self.infer == "personal" else None     # none before a first training
        z = net.body(x)
        return net.head(z) if own is None else net.head(z) + functional_call(net.head, own, z)


@method
class FedPHP(FedAvg):
    """(1 - lam) F_k(w_k) + lam MMD(z, z_q), with q_k <- (1 - mu_t) w_k + mu_t q_k and mu_t = mu t / T.

    z, z_q: features `(B, D)` of the net in training and of q_k, the client's inherited model: an average of the nets it
    trained, never sent, frozen and in evaluation mode here. t: the round from 0, of T (the authors count the client's
    own rounds, the same where all take part). They test q_k. PFLlib tests w_k after local training: infer = "w" with
    evaluate = "after". Li et al., ECML PKDD 2021, doi:10.1007/978-3-030-86486-6_36.
    """
    mu: float = 0.9
    lam: float = 0.01                    # not published; a maintainer's advice in PFLlib
    infer: Literal["q", "w"] = "q"
    limit = dict(lam=0.0, infer="w"), "FedAvg"
    most = dict(mu=1, lam=1)

    personal = property(lambda self: self.infer == "q")

    def local(self, client):
        q = client.state.get("q") or snapshot(client.net)
        client.scratch["inherited"] = frozen(client.net, q)
        super().local(client)
        client.state["q"] = mix(snapshot(client.net), q, self.mu * client.round / self.protocol.rounds)

    def loss(self, net, x, y, client):
        z = net.body(x)
        with torch.no_grad():
            z_q = client.scratch["inherited"].body(x)
        return (1 - self.lam) * F.cross_entropy(net.head(z), y) + self.lam * mmd(z, z_q)

    def predict(self, net, x, client):
        return functional_call(net, client.state.get("q", {}) if self.infer == "q" else {}, x)


@method
class FedALA(FedAvg):
    """Start from w_k + A (w - w_k) in the last layers, w below; A <- clip(A - eta grad F_k(start) (w - w_k), 0, 1).

    All products are elementwise: A has the shapes of the last layers' parameters, starts at 1 (FedAvg) and stays with
    the client. It learns from a random share of the training split before each training: at first in passes until the
    last 10 losses have a standard deviation below 0.1 (a pass's loss is its last batch's), later in one pass. A test
    starts from the same mix. Released code has no bound on the passes, counts `layers` in tensors (its 2 is our 1),
    and takes a slice of shuffled data. Zhang et al., AAAI 2023, arXiv:2212.01197.
    """
    layers: int = 1
    share: float = 0.8
    eta: float = 1.0
    passes: int = 100                    # at most so many in the first learning
    limit = dict(eta=0.0), "FedAvg"
    most = dict(share=1)
    personal = True

    def receive(self, client, got):
        super().receive(client, got)
        old = client.state.get("local")  # none before a first training: there is nothing to mix
        if old:
            client.state["A"] = self.learn(client, old, got["params"])
            load_params(client.net, mix(old, got["params"], client.state["A"]))

    def learn(self, client, old, new):
        """The weights A by name, from the old local entries and the new global ones."""
        A, passes = (client.state["A"], 1) if "A" in client.state else (
            {k: torch.ones_like(v) for k, v in old.items()}, self.passes)
        net, losses = frozen(client.net, {}).train(), []
        key = client.seed, "weights", int(client.state["clock"]), client.id
        take = torch.randperm(len(client.train), generator=generator(*key))[:int(self.share * len(client.train))]
        while len(losses) < passes and len(take) and not settled(losses):
            for x, y in batches(client.train[take], self.protocol.batch, "none", generator(*key, "order")):
                A = {k: a.requires_grad_() for k, a in A.items()}
                with autocast(self.protocol, x):
                    loss = F.cross_entropy(functional_call(net, mix(old, new, A), x), y)
                slopes = torch.autograd.grad(loss, list(A.values()))
                A = {k: (a.detach() - self.eta * g).clamp(0, 1) for (k, a), g in zip(A.items(), slopes, strict=True)}
            losses.append(loss.detach())
        return A

    def local(self, client):
        super().local(client)
        top = last_layers(client.net, self.layers)
        client.state["local"] = {k: p.detach().clone() for k, p in client.net.named_parameters() if k in top}
        client.state["clock"] = torch.tensor(client.round)


@method
class APFL(FedAvg):
    """v <- v - lr grad_v F_k(alpha v + (1 - alpha) w) beside FedAvg's w; the client uses the mix of v and the new w.

    alpha is the client's own: alpha <- clip(alpha - lr <v - w, grad F_k(mix)>, 0, 1) in the first batch of a round. The
    mix has batch-norm statistics of its own, which mix with w's in a test. The authors' code mixes logits in place of
    weights and adds 0.02 alpha to alpha's gradient. PFLlib trains v alone, mixes once a round, and starts at alpha = 1.
    Deng et al., 2020, arXiv:2003.13461.
    """
    alpha: float = 0.5                   # at first; the default of the authors' code
    adaptive: bool = True                # False: alpha stays
    limit = dict(alpha=0.0, adaptive=False), "FedAvg"
    most = dict(alpha=1)
    personal = True

    def local(self, client):
        v = load_params(copy.deepcopy(client.net), client.state.get("v", {})).train()
        alpha = client.state.get("alpha", torch.tensor(self.alpha, device=client.train.y.device))
        client.scratch |= {"v": v, "opt": optimiser(self.protocol, v, client),
                           "alpha": alpha.clone().requires_grad_(self.adaptive)}
        super().local(client)
        client.state |= {"v": snapshot(v), "alpha": client.scratch["alpha"].detach()}

    def step(self, net, x, y, client, opt, loss):
        scratch = client.scratch
        super().step(scratch["v"], x, y, client, scratch["opt"], self.mixed)    # first: the mix takes w before its step
        slope = scratch["alpha"].grad
        if slope is not None:            # the first batch: from now on alpha is fixed and has no gradient
            scratch["alpha"] = (scratch["alpha"].detach() - rate(self.protocol, client.round) * slope).clamp(0, 1)
        return super().step(net, x, y, client, opt, loss)

    def mixed(self, v, x, y, client):
        """F_k(alpha v + (1 - alpha) w)."""
        w = {k: p.detach() for k, p in client.net.named_parameters()}
        return F.cross_entropy(functional_call(v, mix(w, dict(v.named_parameters()), client.scratch["alpha"]), x), y)

    def predict(self, net, x, client):
        if "v" not in client.state:      # before a first training
            return net(x)
        return functional_call(net, mix(snapshot(net), client.state["v"], client.state["alpha"]), x)


def tune(method, client, part: str, epochs: int, loss=None):
    """`fit_part` for a test, at the whole rate: a warm-up or a decay is for the rounds."""
    steady = copy.copy(method)
    steady.protocol = dataclasses.replace(method.protocol, warmup=0)
    # The order of samples must not depend on when a client last took part, which a checkpoint does not hold.
    fit_part(steady, dataclasses.replace(client, round=0, scratch={}), part, epochs, loss)


def fit_part(method, client, part: str, epochs: int, loss=None):
    """Train the client's "body", "head" or "net", by a loss or the method's. The rest has no gradient, so that the
    optimiser passes it by.
    """
    net = client.net
    fixed = {"body": net.head, "head": net.body, "net": nn.Identity()}[part].requires_grad_(False)
    if any(p.requires_grad for p in net.parameters()):      # the net "linear" has no body
        method.fit(net, client, loss or method.loss, epochs)
    fixed.requires_grad_(True)


def last_layers(net, count: int) -> set[str]:
    """State-dict names of the last `count` modules that have parameters, in the order in which the net defines them."""
    layers = list(dict.fromkeys(k.rpartition(".")[0] for k, _ in net.named_parameters()))
    last = layers[max(0, len(layers) - count):]
    return {k for k in net.state_dict() if k.rpartition(".")[0] in last}


def mix(a: dict, b: dict, weight) -> dict:
    """a + weight (b - a) for the entries of a; exactly a at 0 and b at 1. The weight is one number or a dict like a."""
    return {k: torch.lerp(v, b[k], weight[k] if isinstance(weight, dict) else weight) for k, v in a.items()}


def settled(losses: list) -> bool:
    """Do the last 10 of more than 10 losses differ by a standard deviation below 0.1?"""
    return len(losses) > 10 and bool(torch.stack(losses[-10:]).std(correction=0) < 0.1)
