"""The server's step: methods that differ from FedAvg in how the server makes one net of many."""
import copy
from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F

from fedlib.core.federation import Split
from fedlib.core.losses import class_means
from fedlib.core.params import load_params, mean, snapshot
from fedlib.core.seeds import generator
from fedlib.methods.base import FedAvg, method, outputs
from fedlib.methods.personal import hold_out
from fedlib.methods.prototypes import Prototypes, weighted


class ServerOptimiser(FedAvg):
    """w <- w + move(D), D = FedAvg's mean - w: the server takes D for a gradient. Buffers are averaged."""

    def setup(self, net):
        super().setup(net)
        self.m_ = {k: torch.zeros_like(self.global_[k]) for k in self.trained}

    def aggregate(self, uploads):
        old = self.global_
        super().aggregate(uploads)
        deltas = {k: self.global_[k] - old[k] for k in self.trained}
        # mean + (move - D), not w + move: where the move is D, the result is the mean to the last bit
        self.global_ |= {k: self.global_[k] + (self.move(k, d) - d) for k, d in deltas.items()}


@method
class FedAvgM(ServerOptimiser):
    """m <- beta m + D, w <- w + m with D = mean_k w_k - w: momentum at the server.

    Hsu, Qi and Brown, 2019, arXiv:1909.06335.
    """
    beta: float = 0.9                    # the paper tries 0, 0.7, 0.9, 0.97, 0.99 and 0.997
    limit = dict(beta=0.0), "FedAvg"

    def move(self, k, delta):
        """The step of entry k."""
        self.m_[k] = self.beta * self.m_[k] + delta
        return self.m_[k]


@method
class FedAdam(ServerOptimiser):
    """m <- beta1 m + (1 - beta1) D, v <- beta2 v + (1 - beta2) D^2, w <- w + eta m / (sqrt v + tau).

    D = mean_k w_k - w. v starts at tau^2; the start is not corrected. Reddi et al., ICLR 2021, arXiv:2003.00295.
    """
    eta: float = 0.01                    # the server's rate; the paper tunes it for each task
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3                    # tuned too; 1e-3 in most of the paper's comparisons
    limit = dict(eta=1.0, beta1=0.0, beta2=1.0, tau=0.5), "FedAvg"     # v stays at 1/4: the step is D / (1/2 + 1/2)

    def setup(self, net):
        super().setup(net)
        self.v_ = {k: torch.full_like(m, self.tau ** 2) for k, m in self.m_.items()}

    def move(self, k, delta):
        """The step of entry k."""
        self.m_[k] = self.beta1 * self.m_[k] + (1 - self.beta1) * delta
        self.v_[k] = self.beta2 * self.v_[k] + (1 - self.beta2) * delta.square()
        return self.eta * self.m_[k] / (self.v_[k].sqrt() + self.tau)


@method
class FedGA(FedAvg):
    """w = sum_k a_k w_k with a_k <- a_k - s_t / K g_k / max_j |g_j|, g_k = acc_k(w) - acc_k(w_k).

    acc_k: accuracy on client k's validation split or, without one, on a tenth of its training split, which then does
    not train. A client measures w when it next receives it, so its gap comes with its next upload, in time for the mean
    that it is meant for. s_t = s0 (1 - (t - 1) / T) in round t of T. a starts as `weights` says (the paper: equal), is
    clipped to [0, 1] and sums to 1. sign = "plus" is MarsFL's: who loses by the average loses weight. (MarsFL also
    measures w_k on training images and w on test images.) Zhang et al., CVPR 2023.
    """
    weights: Literal["samples", "equal", "zipped"] = "equal"
    s0: float = 0.2
    sign: Literal["minus", "plus"] = "minus"
    limit = dict(s0=0.0, weights="samples"), "FedAvg"

    def setup(self, net):
        super().setup(net)
        self.a_, self.t_ = {}, torch.tensor(0)

    def aggregate(self, uploads):
        a = torch.stack([self.a_.get(i, s).cpu() for i, s in zip(uploads, shares(super().client_weights(uploads)))])
        gaps = torch.stack([u["gap"].to(a) for u in uploads.values()])
        rate = self.s0 * (1 - (self.t_.item() - 1) / self.protocol.rounds)      # t_: rounds that the gaps come from
        a = adjusted(a, gaps, rate if self.sign == "minus" else -rate)
        self.a_ |= dict(zip(uploads, a))
        self.t_ += 1
        super().aggregate(uploads)

    def client_weights(self, uploads):
        return [self.a_[i] for i in uploads]

    def local(self, client):
        train, val = hold_out(client, 0.1) if client.val is None else (client.train, client.val)
        after = accuracy(client.net, val, self.protocol)
        client.scratch["gap"] = after - client.state.get("before", after)
        super().local(replace(client, train=train))
        client.state["before"] = accuracy(client.net, val, self.protocol)

    def upload(self, client):
        return super().upload(client) | {"gap": client.scratch["gap"]}


@method
class FedHEAL(FedAvg):
    """w <- w + sum_k q_k D_k, D_k = w_k - w, q_k = M_k p_k / sum_j M_j p_j; M_k keeps entries of constant sign.

    M_k is 1 where D_k has the sign that it had in at least tau of the client's earlier rounds, else 0; where every M
    is 0, w stays. p_k <- p_k + e_k, scaled to sum 1; e_k <- (1 - beta) e_k + beta |M_k D_k|^2 / sum_j |M_j D_j|^2. The
    first round is FedAvg's, and its weights are the first p. Buffers are averaged with p. window = "after" counts the
    present round before it compares, as FedPall's code does. FedHEAL's code has norms in place of squares, summed over
    tensors, starts from equal p, uses distances in the first round already, asks for more than tau, masks buffers too,
    and rescales only the weights of the average, not the p it keeps (so p becomes a mean over the rounds; here recent
    ones count). FedPall's leaves buffers as they were after the first round, whose signs it does not count.
    Chen et al., CVPR 2024, arXiv:2405.16585.
    """
    tau: float = 0.3                     # 0.3 on Digits, 0.4 on Office-Caltech and, in FedPall, PACS
    beta: float = 0.4
    window: Literal["before", "after"] = "before"
    limit = dict(tau=0.0, beta=0.0), "FedAvg"

    def setup(self, net):
        super().setup(net)
        self.rises_, self.rounds_, self.p_, self.e_ = {}, {}, {}, {}

    def aggregate(self, uploads):
        params, old = [u["params"] for u in uploads.values()], self.global_
        deltas = [{k: w[k] - old[k] for k in self.trained} for w in params]
        masks = [self.mask(i, d) for i, d in zip(uploads, deltas)]
        p = self.fair(uploads, [sum((m[k] * d[k]).square().sum() for k in m) for m, d in zip(masks, deltas)])
        self.global_ = mean(params, p) | {
            k: masked_mean(old[k], [w[k] for w in params], [m[k] for m in masks], p) for k in self.trained}

    def mask(self, i, delta):
        """M_i, and count this round's signs: rises_ holds in how many of rounds_ an entry did not fall."""
        rose, n = {k: d >= 0 for k, d in delta.items()}, int(self.rounds_.get(i, 0))
        past = self.rises_.get(i) or {k: r.short() * 0 for k, r in rose.items()}
        self.rises_[i], self.rounds_[i] = {k: past[k] + r for k, r in rose.items()}, torch.tensor(n + 1)
        if self.window == "after":
            past, n = self.rises_[i], n + 1
        return {k: torch.where(r, past[k], n - past[k]) >= self.tau * n for k, r in rose.items()}

    def fair(self, uploads, sizes):
        """p, moved towards clients whose masked update is long; not in the first round."""
        p = torch.stack([self.p_.get(i, s).cpu() for i, s in zip(uploads, shares(self.client_weights(uploads)))])
        if self.p_:
            e = torch.stack([self.e_.get(i, torch.tensor(0.0)).to(p) for i in uploads])
            e = (1 - self.beta) * e + self.beta * shares([s + 1e-30 for s in sizes])
            p = shares(p + e)
            self.e_ |= dict(zip(uploads, e))
        self.p_ |= dict(zip(uploads, p))
        return p


@method
class RUCR(Prototypes):
    """F_k + lam CE(cos(z, P^.) / tau + [log q_y at y], y); heads are then trained again on balanced mixtures.

    P^c `(C, D)`: mean of the clients' unit prototypes by their counts; q_c: share of class c among all samples; only
    the true class gets its log q. After training each client trains its head on mixtures u P^c + (1 - u) z / |z| with
    u ~ U(low, high), equally many for each class, and the server averages these heads. rectified = "test": they
    predict, and training goes on from FedAvg's head (RUCR's code, in its last 20 rounds). "start": the next round
    starts from them, and FedAvg's net is tested (FedPall's code). Both codes exchange prototypes of the received net in
    a further trip before training; here they come with the last upload, from the trained nets. And both retrain heads
    in evaluation mode; here a head's batch-norm sees the mixtures, and its running statistics become theirs.
    Huang et al., IEEE TIFS 2024.
    """
    lam: float = 0.1                     # 0.1 in FedPall, 0.15 in RUCR
    tau: float = 1.0                     # 1; 0.9
    mixtures: int = 50                   # of each class: 50; 100
    low: float = 0.2                     # 0.2; 0.35
    high: float = 0.8                    # 0.8; 0.95
    retrain_epochs: int = 5              # 5 or 10, as many as local epochs; 50
    rectified: Literal["test", "start"] = "test"
    limit = dict(lam=0.0, retrain_epochs=0), "FedAvg"

    def setup(self, net):
        super().setup(net)
        self.head_, self.held_ = snapshot(net.head), torch.zeros(net.head.out_features, dtype=torch.int64)

    def broadcast(self, client_id):
        return super().broadcast(client_id) | {"head": self.head_, "held": self.held_}

    def aggregate(self, uploads):
        super().aggregate(uploads)
        self.head_ = mean([u["head"] for u in uploads.values()], self.client_weights(uploads))
        held = sum(u["counts"] for u in uploads.values())
        self.held_ = torch.where(held > 0, held, self.held_.to(held.device))

    def merge(self, protos, counts):
        """P^c = sum_k n_k^c p_k^c / |p_k^c| / sum_k n_k^c."""
        return weighted(F.normalize(protos, dim=-1), counts)

    def adapt(self, client):
        if self.rectified == "test":
            load_params(client.net.head, client.got["head"])

    def local(self, client):
        if self.rectified == "start":
            load_params(client.net.head, client.got["head"])
        super().local(client)
        client.scratch["z"] = outputs(client.net.body, client.train, self.protocol)
        client.scratch["head"] = self.retrained(client)

    def loss(self, net, x, y, client):
        z = net.body(x)
        contrast = balanced_contrast(z, y, client.got["protos"], client.got["held"], self.tau)
        return F.cross_entropy(net.head(z), y) + self.lam * contrast

    def retrained(self, client) -> dict:
        """The entries of the client's head after training on mixtures."""
        head, z, got = copy.deepcopy(client.net.head), client.scratch["z"], client.got
        if got["seen"].any():
            gen = generator(client.seed, "mixtures", client.round, client.id)
            split = mixtures(z, got["protos"], got["seen"], self.mixtures, (self.low, self.high), gen)
            self.fit(head, replace(client, train=split, scratch={}), super().loss, self.retrain_epochs)
        return snapshot(head)

    def prototypes(self, client):
        return class_means(client.scratch["z"], client.train.y, client.net.head.out_features)

    def upload(self, client):
        return super().upload(client) | {"head": client.scratch["head"]}


# the arithmetic

def shares(weights) -> torch.Tensor:
    """w_i / sum_j w_j, in double precision."""
    weights = torch.stack([torch.as_tensor(w).double().cpu() for w in weights])
    return weights / weights.sum()


def adjusted(a, gaps, rate: float) -> torch.Tensor:
    """a_i - rate / K gap_i / max_j |gap_j|, clipped to [0, 1] and scaled to sum 1; all `(K,)`."""
    moved = a - rate / len(a) * gaps / gaps.abs().max().clamp(min=1e-12)
    return shares(moved.clamp(1e-12, 1))        # not 0: perhaps only clients that were clipped take part in a round


def masked_mean(old, values: list, masks: list, p) -> torch.Tensor:
    """sum_i q_i v_i with q_i = M_i p_i / sum_j M_j p_j, entry by entry; `old` where no mask is 1.

    This is old + sum_i q_i (v_i - old). In double precision up to q, so that without masks it is the mean exactly.
    """
    weights = [m.double() * s for m, s in zip(masks, p.tolist())]
    total = sum(weights)
    new = sum((w / total).to(v.dtype) * v for w, v in zip(weights, values))
    return torch.where(total > 0, new, old)


def balanced_contrast(z, y, protos, held, tau: float) -> torch.Tensor:
    """CE over classes of cos(z, P^c) / tau, with log q_y added at y; q_c: share of class c among `held` `(C,)`.

    z `(B, D)`, protos `(C, D)`. A class that nobody holds is left out, and a sample of one adds nothing.
    """
    logits = F.normalize(z) @ F.normalize(protos).T / tau + (held / held.sum()).log().diag()[y]
    known = y.masked_fill((held == 0)[y], -100)     # which cross-entropy leaves out
    return F.cross_entropy(logits.masked_fill(held == 0, -torch.inf), known, reduction="sum") / len(y)


def mixtures(z, protos, seen, count: int, between: tuple, gen) -> Split:
    """`count` samples u P^c + (1 - u) z / |z| of each class c that was seen: z any of the features, u ~ U(between)."""
    y = seen.nonzero()[:, 0].repeat_interleave(count)
    which = torch.randint(len(z), (len(y),), generator=gen).to(z.device)
    u = torch.empty(len(y), 1).uniform_(*between, generator=gen).to(z.device)
    return Split(u * protos[y] + (1 - u) * F.normalize(z[which]), y)


def accuracy(net, split: Split, protocol) -> torch.Tensor:
    """The share of right answers."""
    return (outputs(net, split, protocol).argmax(1) == split.y).float().mean()
