"""Class prototypes travel: mean features, one per class, `(C, D)`, or several, `(P, D)` with their classes `(P,)`."""
import warnings
from collections import deque
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F

from fedlib.core import settings
from fedlib.core.errors import UserError
from fedlib.core.losses import align, class_means, contrast, cosines
from fedlib.core.seeds import key
from fedlib.methods.base import FedAvg, method, outputs


class Prototypes(FedAvg):
    """FedAvg that also sends p_k^c, client k's mean feature of class c, and receives P^c.

    Client prototypes come from one pass of the trained net over the training split, in evaluation mode and without
    augmentation (I2PFL's Algorithm 1; released code of the family averages the features seen in the last epoch).
    """

    def setup(self, net):
        super().setup(net)
        self.protos_ = torch.zeros(net.head.out_features, net.dim)
        self.seen_ = torch.zeros(net.head.out_features, dtype=torch.bool)

    def broadcast(self, client_id):
        return super().broadcast(client_id) | {"protos": self.protos_, "seen": self.seen_}

    def upload(self, client):
        protos, counts = self.prototypes(client)
        return super().upload(client) | {"protos": protos, "counts": counts}

    def prototypes(self, client):
        """Class means `(C, D)` and counts `(C,)` of the client's features."""
        z = outputs(client.net.body, client.train, self.protocol)
        return class_means(z, client.train.y, client.net.head.out_features)

    def aggregate(self, uploads):
        super().aggregate(uploads)
        protos, counts = (torch.stack([u[k] for u in uploads.values()]) for k in ("protos", "counts"))
        fresh, here = self.merge(protos, counts), (counts > 0).any(0)
        self.seen_ = self.seen_.to(here.device) | here
        self.protos_ = torch.where(here[:, None], fresh, self.protos_.to(fresh.device))

    def merge(self, protos, counts):
        """P^c = mean over the clients that hold class c. protos `(K, C, D)`, counts `(K, C)` -> `(C, D)`."""
        return weighted(protos, counts > 0)


def weighted(protos, weights):
    """sum_k w_kc p_k^c / sum_k w_kc; zero where no client has weight. protos `(K, C, D)`, weights `(K, C)`."""
    weights = weights.to(protos.dtype)[..., None]
    return (protos * weights).sum(0) / weights.sum(0).clamp(min=1)


@method
class FedProto(Prototypes):
    """F_k + lam mean (z - P^y)^2; only prototypes travel, nets are personal (Tan et al., AAAI 2022, arXiv:2105.00243).

    average = True also averages the nets, as I2PFL's tables do. The mean runs over batch and dimensions, as in all
    released code (the paper prints a distance). Samples whose class has no prototype yet add nothing.
    """
    lam: float = 1.0                     # 1 in FedPall and PFLlib; not stated in I2PFL
    average: bool = False
    infer: Literal["head", "nearest"] = "head"       # "nearest": argmin_c |z - P^c|, as PFLlib tests it
    of: Literal["features", "inputs"] = settings.later("features")     # inputs: means of x itself, MPFT's released code
    by: Literal["clients", "samples"] = settings.later("clients")      # whom the mean counts; samples: FedPall's code
    limit = dict(lam=0.0, infer="head"), "Local"     # and with average=True, FedAvg

    personal = property(lambda self: not self.average)

    def merge(self, protos, counts):
        return weighted(protos, counts) if self.by == "samples" else super().merge(protos, counts)

    def private(self, net):
        return set() if self.average else set(net.state_dict())

    def prototypes(self, client):
        if self.of == "features":
            return super().prototypes(client)
        x = client.train.input().flatten(1)
        if x.shape[1] != client.net.dim:
            raise UserError(f"of = inputs holds features of {client.net.dim} numbers to means of inputs, which have "
                            f"{x.shape[1]}: take net = identity")
        return class_means(x, client.train.y, client.net.head.out_features)

    def loss(self, net, x, y, client):
        z = net.body(x)
        return F.cross_entropy(net.head(z), y) + self.lam * align(z, y, client.got["protos"], client.got["seen"])

    def predict(self, net, x, client):
        if self.infer == "head" or not client.got["seen"].any():
            return super().predict(net, x, client)
        far = torch.cdist(net.body(x).float(), client.got["protos"])
        return (-far).masked_fill(~client.got["seen"], -1000 - far.max())     # the last, with a loss that is finite


@method
class FedProc(Prototypes):
    """(1 - a_t) F_k - a_t log( e^{cos(z, P^y) / tau} / sum_c e^{cos(z, P^c) / tau} ), a_t = a (1 - t / (T - 1)).

    z: features `(B, D)`; P^c: mean of the clients' class means. The first round has no prototypes: cross-entropy alone
    (in RethinkFL's code, which has no temperature, a_0 = 1 and its loss is 0). The authors' code writes t / 100 for
    1 - a_t and adds a projection head. Mu et al., FGCS 2023, arXiv:2109.12273.
    """
    a: float = 1.0                       # 1 in the paper and RethinkFL
    tau: float = 1.0                     # 1 in RethinkFL
    limit = dict(a=0.0), "FedAvg"

    def loss(self, net, x, y, client):
        z, protos = net.body(x), client.got["protos"]
        if "seen" not in client.scratch:
            client.scratch["seen"] = client.got["seen"].nonzero()[:, 0]
        seen = client.scratch["seen"]
        a = self.a * (1 - client.round / max(1, self.protocol.rounds - 1)) if len(seen) else 0
        pull = contrast(cosines(z, protos[seen]) / self.tau, seen, y)
        return (1 - a) * F.cross_entropy(net.head(z), y) + a * pull


class Clusters(FedAvg):
    """FedAvg that also sends class prototypes and receives what the server makes of them: any number for each class.

    Both messages hold prototypes `(P, D)` and the class of each, `(P,)`; classes that nobody sent keep their last ones.
    """

    def setup(self, net):
        super().setup(net)
        self.protos_, self.of_ = torch.zeros(0, net.dim), torch.zeros(0, dtype=torch.int64)

    def broadcast(self, client_id):
        return super().broadcast(client_id) | {"protos": self.protos_, "of": self.of_}

    def upload(self, client):
        protos, of = self.prototypes(*self.features(client), client)
        return super().upload(client) | {"protos": protos, "of": of}

    def features(self, client):
        """The features `(N, D)` and labels `(N,)` that the client's prototypes are made of."""
        return outputs(client.net.body, client.train, self.protocol), client.train.y

    def prototypes(self, z, y, client):
        """Of each class that the client holds, the mean feature."""
        means, counts = class_means(z, y, client.net.head.out_features)
        return means[counts > 0], counts.nonzero()[:, 0]

    def aggregate(self, uploads):
        super().aggregate(uploads)
        protos, of = (torch.cat([u[k] for u in uploads.values()]) for k in ("protos", "of"))
        old = by_class(self.protos_.to(protos.device), self.of_.to(of.device))
        new = {k: self.merge(points, old.get(k)) for k, points in by_class(protos, of).items()}
        self.protos_, self.of_ = flat(old | new)

    def merge(self, points, old):
        """The clients' prototypes of a class `(n, D)` -> one for each of their clusters `(m, D)`."""
        return clusters(points)


@method
class FPL(Clusters):
    """F_k + lam [ -log( sum_{j in y} e^{cos(z, P_j) / tau} / sum_j e^{cos(z, P_j) / tau} ) + mean (z - U^y)^2 ].

    z: features `(B, D)`; P_j `(P, D)`: FINCH's clusters of the clients' class means; U^c: mean of the clusters of c,
    whatever their sizes. Released code collects the class means in the last epoch of training; here one pass follows.
    Huang et al., CVPR 2023 (RethinkFL; no preprint).
    """
    lam: float = 1.0                     # 1 in RethinkFL, for both terms
    tau: float = 0.02                    # 0.02 in RethinkFL, 0.2 in MarsFL
    limit = dict(lam=0.0), "FedAvg"

    def loss(self, net, x, y, client):
        z, protos, of = net.body(x), client.got["protos"], client.got["of"]
        centre, held = class_means(protos, of, net.head.out_features)
        pull = contrast(cosines(z, protos) / self.tau, of, y) + align(z, y, centre, held > 0)
        return F.cross_entropy(net.head(z), y) + self.lam * pull


@method
class FedPLVM(Clusters):
    """F_k + lam [ -log( sum_{j in y} e^{s_j} / sum_j e^{s_j} ) + 2 mean (1 - cos(z, U^y))^2 ].

    s_j = cos(z, P_j)^alpha / tau. Clustered twice: each client sends FINCH's clusters of its own features of a class,
    the server clusters those again into P_j `(P, D)`; U^c is the mean of the clusters of c. z: features `(B, D)`, not
    negative (after a ReLU); cosines below 1e-6 count as 1e-6. Wang et al., NeurIPS 2024, arXiv:2403.09048.
    """
    lam: float = 100.0                   # 100 in the authors' code; not stated in I2PFL
    tau: float = 0.07                    # 0.07
    alpha: float = 0.25                  # 0.25
    limit = dict(lam=0.0), "FedAvg"

    def prototypes(self, z, y, client):
        return flat({k: clusters(points) for k, points in by_class(z, y).items()})

    def loss(self, net, x, y, client):
        z, protos, of = net.body(x), client.got["protos"], client.got["of"]
        centre, held = class_means(protos, of, net.head.out_features)
        sparse = contrast(cosines(z, protos).clamp(min=1e-6) ** self.alpha / self.tau, of, y)
        far = (1 - F.cosine_similarity(z, centre[y])).square() * (held > 0)[y]
        return F.cross_entropy(net.head(z), y) + self.lam * (sparse + 2 * far.mean())


@method
class I2PFL(Clusters):
    """F_k + lam_intra mean (h - p~^y)^2 - lam_inter log( e^{cos(h, g^y) / tau} / sum_c e^{cos(h, g^c) / tau} ).

    Within a client (APA, Eq. 7-9): h `(B, D)` moves towards p~^c, the batch mean of class c after MixUp,
    h~_i = gamma h_i + (1 - gamma) h_j, gamma ~ Beta(alpha, alpha), y_j != y_i. Between clients (GPCL, Eq. 6): towards
    g^c = sum_m d_m p_m / sum_m d_m, d_m = |p_m - mean p|^2, of the clients' class means p_m (Eq. 3-4), after
    G <- ema G_old + (1 - ema) G (Eq. 5). No code was released; fields say what the paper leaves open, defaults first.

    ema: the text gives the past the greater weight, the formula as printed 0.01. With mixup = "input" pixels are mixed,
    at the price of a second pass that also moves batch-norm statistics. A batch of one class has no APA. mixup = "none"
    with moves = "class" compares a mean with itself: 0. Le et al., 2025, arXiv:2501.08521.
    """
    lam_intra: float = 10.0              # 10 on Digits and Office-10, 2 on PACS
    lam_inter: float = 1.0               # 1
    tau: float = 0.07                    # 0.07 on Digits, 0.02 on Office-10, 0.04 on PACS
    alpha: float = 0.4                   # 0.4 on Digits and Office-10, 0.2 on PACS
    ema: float = 0.99                    # weight of the past; 0.01 as printed
    construct: Literal["reweight", "average", "cluster"] = "reweight"    # Table 5; clusters have no EMA
    mixup: Literal["feature", "input", "none"] = "feature"               # Table 6
    partner: Literal["other", "any"] = "other"            # a sample of another class of the batch, or any of it
    gamma: Literal["sample", "batch"] = "sample"          # one draw for each
    fold: bool = False                   # gamma <- max(gamma, 1 - gamma), so that h_i prevails
    moves: Literal["sample", "class"] = "sample"          # towards p~: each h_i, or the batch means of the classes
    reduction: Literal["mean", "sum"] = "mean"            # over batch and dimensions; sum over classes and dimensions
    detach: bool = True                  # no gradient through p~
    source: Literal["final", "epoch"] = "final"           # p_m: of the trained net; of the last epoch
    limit = dict(lam_intra=0.0, lam_inter=0.0), "FedAvg"
    least = {"alpha": 1e-3}
    most = {"ema": 1}

    def local(self, client):
        size, batch = len(client.train), self.protocol.batch
        client.scratch["rng"] = np.random.default_rng(key(client.seed, "mixup", client.round, client.id))
        client.scratch["epoch"] = deque(maxlen=max(1, size // batch + (size % batch > 1)))
        super().local(client)

    def loss(self, net, x, y, client):
        h, got = net.body(x), client.got
        client.scratch["epoch"].append((h.detach().float(), y))
        inter = contrast(cosines(h, got["protos"]) / self.tau, got["of"], y)
        intra = self.intra(net, x, h, y, client.scratch["rng"])
        return F.cross_entropy(net.head(h), y) + self.lam_intra * intra + self.lam_inter * inter

    def intra(self, net, x, h, y, rng):
        """APA of a batch."""
        mixed = h
        if self.mixup != "none":
            j, gamma = self.partners(y, rng)
            mixed = mix(h, j, gamma) if self.mixup == "feature" else net.body(mix(x, j, gamma))
        classes = net.head.out_features
        target = class_means(mixed.float(), y, classes)[0]
        own = h if self.moves == "sample" else class_means(h.float(), y, classes)[0][y]
        far = (own - (target.detach() if self.detach else target)[y]).square()
        far = far.mean() if self.reduction == "mean" else class_means(far, y, classes)[0].sum()
        return far * ((y != y[0]).any() | (self.mixup == "none"))

    def partners(self, y, rng):
        """For each sample of a batch the position of its partner, `(B,)`, and gamma, `(B,)`."""
        draws = torch.as_tensor(rng.random((len(y), len(y)))).to(y.device, non_blocking=True)
        same = y[:, None] == y if self.partner == "other" else torch.eye(len(y), dtype=torch.bool, device=y.device)
        gamma = rng.beta(self.alpha, self.alpha, len(y) if self.gamma == "sample" else 1).repeat(
            1 if self.gamma == "sample" else len(y))
        gamma = np.maximum(gamma, 1 - gamma) if self.fold else gamma
        gamma = torch.as_tensor(gamma, dtype=torch.float32).to(y.device, non_blocking=True)
        return draws.masked_fill(same, -1).argmax(1), gamma

    def features(self, client):
        if self.source == "epoch":
            return tuple(map(torch.cat, zip(*client.scratch["epoch"])))
        return super().features(client)

    def merge(self, points, old):
        if self.construct == "cluster":
            return clusters(points)
        new = reweighted(points) if self.construct == "reweight" else points.mean(0, keepdim=True)
        return new if old is None else self.ema * old + (1 - self.ema) * new


# the arithmetic

def by_class(points, of) -> dict[int, torch.Tensor]:
    """Points `(P, D)` and their classes `(P,)` -> {class: its points}."""
    return {k: points[of == k] for k in of.unique().tolist()}


def flat(points: dict[int, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The inverse of `by_class`, sorted by class."""
    of = [k for k in sorted(points) for _ in points[k]]
    protos = torch.cat([points[k] for k in sorted(points)])
    return protos, torch.tensor(of, device=protos.device)


def clusters(points: torch.Tensor) -> torch.Tensor:
    """The means `(m, D)` of the clusters that FINCH finds among the points `(n, D)`.

    Each point is linked to its nearest by cosine; connected points form a cluster; the same again with the means, until
    one would be left or nothing changes: the coarsest partition before that counts (Sarfraz et al., CVPR 2019).
    Of points that are not finite, as in a run that diverges, the mean. UserError without the package finch-clust.
    """
    if not points.isfinite().all():
        return points.mean(0, keepdim=True)
    try:
        with warnings.catch_warnings():     # it names packages for large data that nobody needs here
            warnings.simplefilter("ignore")
            from finch import FINCH
    except ImportError as error:
        raise UserError("FINCH is not installed: pip install finch-clust") from error
    found, _, _ = FINCH(points.float().cpu().numpy(), distance="cosine", ensure_early_exit=False, verbose=False)
    labels = torch.as_tensor(found[:, -1].astype(np.int64), device=points.device)
    return class_means(points, labels, int(labels.max()) + 1)[0]


def reweighted(points: torch.Tensor) -> torch.Tensor:
    """g = sum_m d_m p_m / sum_m d_m with d_m = |p_m - mean p|^2: `(n, D)` -> `(1, D)`; equal d_m average."""
    far = (points - points.mean(0)).square().sum(1, keepdim=True)
    return (far * points).sum(0, keepdim=True) / far.sum() if far.sum() > 0 else points.mean(0, keepdim=True)


def mix(x: torch.Tensor, j: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    """gamma_i x_i + (1 - gamma_i) x_j(i)."""
    gamma = gamma.view(-1, *[1] * (x.dim() - 1))
    return gamma * x + (1 - gamma) * x[j]
