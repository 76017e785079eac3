"""Features go up and an adversary comes down: the server learns whose a feature is, and clients train against it."""
import copy
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F

from fedlib.core import settings
from fedlib.core.federation import Split, batches
from fedlib.core.losses import class_means, cosines
from fedlib.core.params import NORM, load_params, names, snapshot, to_device
from fedlib.core.seeds import generator, key
from fedlib.methods.base import FedAvg, autocast, method, rate
from fedlib.methods.personal import redrawn
from fedlib.methods.prototypes import weighted
from fedlib.models.nets import HiddenLayers

SERVER = {"momentum": 0.9, "weight_decay": 1e-5}        # of the server's optimisers in FedPall's code


@method
class ADCOL(FedAvg):
    """F_k(w_k) + mu KL(u || A(z)): the nets stay; a net A at the server learns from features which client they are of.

    z: features `(B, D)`, A(z): probabilities `(B, K)` of the K clients, u: 1 / K each; at the minimum nobody can tell.
    A has two hidden layers of D / 4 with batch-norm; the server trains it for `server_epochs` on the features `(N, D)`
    that clients send with their labels. Clients hold it fixed, in training mode (their batch's statistics). The first
    round has no A. kl = "paper" is KL(A(z) || u), FedPall's Eq. 6; its code, as this default, has the other direction.
    Li et al., ICML 2023; here as FedPall's code has it, where nothing is averaged.
    """
    mu: float = 0.1                      # 0.3 on Digits and 0.1 else in FedPall's code
    kl: Literal["released", "paper"] = "released"
    server_epochs: int = 3               # 1 on Digits, 3 else in FedPall's code
    collect: Literal["train", "eval"] = "train"      # the net's mode when features are collected, after training
    server_rate: float = settings.later(0.01)        # in the code the clients' rate, 0.01; 0: theirs in each round
    limit: ClassVar = dict(mu=0.0, collect="eval"), "Local"
    personal = True

    def private(self, net):
        return set(net.state_dict())

    def setup(self, net):
        super().setup(net)
        self.number_, self.places_, self.amplifier_, self.amplifier_moves_ = torch.tensor(0), {}, {}, {}

    def broadcast(self, client_id):
        return super().broadcast(client_id) | ({"amplifier": self.amplifier_} if self.amplifier_ else {})

    def local(self, client):
        if "amplifier" in client.got:
            amplifier = HiddenLayers(client.net.dim, len(client.got["amplifier"]["6.weight"]), bias=False)
            amplifier = load_params(amplifier.to(client.train.y.device), client.got["amplifier"])
            client.scratch["amplifier"] = amplifier.requires_grad_(False).train()
        super().local(client)

    def loss(self, net, x, y, client):
        z = net.body(x)
        return F.cross_entropy(net.head(z), y) + self.mu * self.adversary(z, client)

    def adversary(self, z, client):
        """How far A's answer is from uniform, mean over the batch."""
        if "amplifier" not in client.scratch or len(z) < 2:       # batch-norm has no variance
            return 0
        log_a = F.log_softmax(client.scratch["amplifier"](z).float(), 1)
        uniform = torch.full_like(log_a, 1 / log_a.shape[1]).log()
        pair = (log_a, uniform) if self.kl == "released" else (uniform, log_a)
        return F.kl_div(*pair, reduction="batchmean", log_target=True)

    def upload(self, client):
        z, y = self.features(client)
        return super().upload(client) | {"features": z, "labels": y}

    @torch.no_grad()
    def features(self, client):
        """Features `(N, D)` and labels of the training split, augmented, in the order of a shuffled pass."""
        gen = generator(client.seed, "collect", client.round, client.id)
        client.net.train(self.collect == "train")
        with autocast(self.protocol, client.train.y):
            pairs = [(client.net.body(x).float(), y)
                     for x, y in batches(client.train, self.protocol.batch, self.protocol.augment, gen,
                                        least=self.protocol.least_batch)]
        return torch.cat([z for z, _ in pairs]), torch.cat([y for _, y in pairs])

    def aggregate(self, uploads):
        super().aggregate(uploads)
        self.number_ = self.number_ + 1
        known = len(self.places_)
        self.places_ |= {i: torch.tensor(known + n) for n, i in enumerate(i for i in uploads if i not in self.places_)}
        if len(self.places_) > known:       # A starts again when it has another number of answers
            self.amplifier_, self.amplifier_moves_ = {}, {}
        z = torch.cat([u["features"] for u in uploads.values()])
        who = torch.cat([self.places_[i].cpu().expand(len(u["labels"])) for i, u in uploads.items()]).to(z.device)
        net = HiddenLayers(z.shape[1], len(self.places_), bias=False)
        self.amplifier_, self.amplifier_moves_ = self.taught("amplifier", net, Split(z, who))

    def taught(self, name: str, net, split) -> tuple[dict, dict]:
        """The entries and momenta of a net of the server after this round's epochs on features `(N, D)`."""
        params = getattr(self, f"{name}_") or snapshot(redrawn(net, key(self.seed, name)))
        draws, lr = generator(self.seed, name, n := int(self.number_)), self.server_rate or rate(self.protocol, n - 1)
        net = load_params(net.to(split.y.device), to_device(params, split.y.device))
        return trained(net, getattr(self, f"{name}_moves_"), split, self.protocol.batch, self.server_epochs, lr, draws)


@method
class FedPall(ADCOL):
    """F_k + mu KL(u || A(z)) - delta log( e^{cos(z, G^y) / tau} / sum_c e^{<z / |z|, G^c> / tau} ); head_k <- C.

    z: features `(B, D)`; G^c: the server's mean, by counts, of the clients' class means, each scaled to length 1. A and
    C, a classifier of the head's form, learn at the server from what the clients send of each feature, with its label:
    r = m (alpha z + (1 - alpha) G^y), alpha ~ U(alpha, 1), m a mask that keeps a share `keep` of the dimensions.
    Clients begin a round with C's layers in their head; their batch-norm stays. Nothing of the body ever travels.

    The defaults are what the published code does; preset = "paper" is what the equations print: the other KL; a
    denominator without the positive; class means as they are; a mask and an alpha of each sample. One trip a round: G
    mixes features in the round after it was made (released code exchanges prototypes first), and in the first round
    there is no A, no G and nothing to mix with.
    Zhang et al., ICCV 2025, arXiv:2507.04781, DistriAI/FedPall.
    """
    delta: float = 0.1                   # 0.7 on Digits (the paper: 0.3, and 0.7 for mu) and 0.1 else
    tau: float = 3.0                     # 3 in the code; not stated
    contrast: Literal["released", "paper"] = "released"
    means: Literal["unit", "raw"] = "unit"               # of classes, before they are averaged; raw in Eq. 4
    noise: Literal["both", "mixture", "mask", "gaussian", "none"] = "both"
    alpha: float = 0.8                   # 0.8; not stated
    keep: float = 0.9                    # 0.9; not stated
    mask: Literal["fixed", "iid"] = "fixed"              # exactly a share `keep`, or Bernoulli(keep) as printed
    scope: Literal["client", "sample"] = "client"        # one alpha and one mask for each
    draws: Literal["once", "round"] = "once"             # the code draws the same ones in every round
    replace: bool = True                 # C into the heads
    presets: ClassVar = {"as_released": {}, "paper": {"kl": "paper", "contrast": "paper", "means": "raw", "mask": "iid",
                                                      "scope": "sample", "draws": "round"}}
    limit: ClassVar = dict(mu=0.0, delta=0.0, replace=False, collect="eval"), "Local"
    most = {"alpha": 1, "keep": 1}

    def setup(self, net):
        super().setup(net)
        self.head = copy.deepcopy(net.head)
        self.classifier_, self.classifier_moves_ = snapshot(net.head), {}
        self.protos_ = torch.zeros(net.head.out_features, net.dim)
        self.seen_ = torch.zeros(net.head.out_features, dtype=torch.bool)

    def broadcast(self, client_id):
        layers = {k: v for k, v in self.classifier_.items() if k not in names(self.head, NORM)}
        return super().broadcast(client_id) | {"classifier": layers, "protos": self.protos_, "seen": self.seen_}

    def local(self, client):
        if self.replace:
            load_params(client.net.head, client.got["classifier"])
        super().local(client)

    def loss(self, net, x, y, client):
        z = net.body(x)
        pull = attraction(z, y, client.got["protos"], client.got["seen"], self.tau, self.contrast)
        return F.cross_entropy(net.head(z), y) + self.mu * self.adversary(z, client) + self.delta * pull

    def upload(self, client):
        up = super().upload(client)
        z, y = up["features"], up["labels"]
        protos, counts = class_means(z, y, client.net.head.out_features)
        return up | {"features": self.noisy(z, y, client), "protos": protos, "counts": counts}

    def noisy(self, z, y, client):
        """What is sent instead of features z `(N, D)`."""
        gen = generator(client.seed, "noise", client.id, client.round if self.draws == "round" else 0, *client.secret)
        if self.noise in ("none", "gaussian"):
            return z + torch.randn(z.shape, generator=gen).to(z.device) * (self.noise == "gaussian")
        count, dim = len(z) if self.scope == "sample" else 1, z.shape[1]
        alpha = (self.alpha + (1 - self.alpha) * torch.rand(count, 1, generator=gen)).round(decimals=2).to(z.device)
        chance = torch.rand(count, dim, generator=gen).to(z.device)
        kept = chance < self.keep if self.mask == "iid" else chance.argsort(1) < int(self.keep * dim)
        alpha = torch.where(client.got["seen"][y, None] & (self.noise != "mask"), alpha, 1.0)
        return (alpha * z + (1 - alpha) * client.got["protos"][y]) * (kept | (self.noise == "mixture"))

    def aggregate(self, uploads):
        super().aggregate(uploads)
        protos, counts = (torch.stack([u[k] for u in uploads.values()]) for k in ("protos", "counts"))
        protos = F.normalize(protos, dim=-1) if self.means == "unit" else protos
        here = counts.sum(0) > 0
        self.protos_ = torch.where(here[:, None], weighted(protos, counts), self.protos_.to(protos.device))
        self.seen_ = self.seen_.to(here.device) | here
        z, y = (torch.cat([u[k] for u in uploads.values()]) for k in ("features", "labels"))
        self.classifier_, self.classifier_moves_ = self.taught("classifier", copy.deepcopy(self.head), Split(z, y))


# the server's nets, and FedPall's pull

def trained(net, moves: dict, split, batch: int, epochs: int, lr: float, gen) -> tuple[dict, dict]:
    """Entries and momenta of the net after epochs of SGD on the split, which goes on with the momenta given."""
    opt = torch.optim.SGD(net.train().parameters(), lr, **SERVER)
    for k, p in net.named_parameters():
        if k in moves:
            opt.state[p]["momentum_buffer"] = moves[k].clone()
    for _ in range(epochs):
        for z, y in batches(split, batch, "none", gen):
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(net(z), y).backward()
            opt.step()
    return snapshot(net), {k: opt.state[p]["momentum_buffer"] for k, p in net.named_parameters() if p in opt.state}


def attraction(z, y, protos, seen, tau: float, form: str):
    """-log( e^{cos(z, G^y) / tau} / sum_c e^{<z / |z|, G^c> / tau} ), mean over the batch; 0 before there is any G.

    z `(B, D)`, protos G `(C, D)`, seen `(C,)`. form = "paper": cosines below as well, and c runs over the other
    classes, so that 0 is no floor, but log(C - 1) - 2 / tau is. Samples of a class without G add nothing.
    """
    near, others = cosines(z, protos) / tau, ~seen.expand(len(z), -1)
    if form == "paper":
        below, others = near, others | F.one_hot(y, len(protos)).bool()
    else:
        below = near * protos.norm(dim=1)
    known = seen[y] & ~others.all(1)
    below, near = below.masked_fill(others & known[:, None], -torch.inf), near.gather(1, y[:, None])[:, 0]
    return ((below.logsumexp(1) - near) * known).sum() / len(y)
