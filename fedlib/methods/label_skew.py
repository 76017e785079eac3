"""Clients that lack classes, or that train longer than others: methods made for skewed labels and sizes."""
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.core.params import mean
from fedlib.core.seeds import drawing, key
from fedlib.methods.base import FedAvg, method
from fedlib.methods.drift import frozen, reach
from fedlib.methods.server import shares


@method
class FedNova(FedAvg):
    """w <- w + (sum_k p_k a_k) sum_k p_k (w_k - w) / a_k, p_k = n_k / n: who takes more steps pulls no harder.

    a_k: the weights of the client's gradients in w_k - w, summed: of s steps of SGD s, with momentum r
    (s - r (1 - r^s) / (1 - r)) / (1 - r). Only their proportions matter. Buffers are averaged as in FedAvg.
    Wang et al., NeurIPS 2020, arXiv:2007.07481.
    """
    limit = "there is nothing to turn off; where all clients take as many steps it is FedAvg, to the last bit"

    def local(self, client):
        super().local(client)
        client.scratch["a"] = torch.tensor(reach(self.protocol, client.round, len(client.scratch["losses"])))

    def upload(self, client):
        return super().upload(client) | {"a": client.scratch["a"]}

    def aggregate(self, uploads):
        old = self.global_
        super().aggregate(uploads)
        p = shares(self.client_weights(uploads))
        a = torch.stack([u["a"].double().cpu() for u in uploads.values()])
        usual = a.median().clamp(min=1e-12)
        a = a.clamp(usual / 100, usual * 100)   # whatever a client says, as an upload's norm is bounded
        if (a != a[0]).any():
            there = mean([{k: u["params"][k] for k in self.trained} for u in uploads.values()], p / a)
            far = float((p * a).sum() * (p / a).sum())
            self.global_ |= {k: old[k].lerp(there[k], far) for k in self.trained}


@method
class FedLC(FedAvg):
    """CE(h - tau n_k^(-1/4), y), n_k: client k's samples per class `(C,)`: rare classes have to win by a margin.

    A class that the client lacks counts as 1e-8 samples, as in FL-bench: a logit lower by 100 tau pushes nothing away.
    In the paper's sum the true class is missing from the denominator, so that the loss has no lower bound; FL-bench
    found that this does not train, and both released re-implementations keep it, as here. FedDecorr's has tau = 0.1.
    Zhang et al., ICML 2022, arXiv:2209.00189.
    """
    tau: float = 1.0
    limit = dict(tau=0.0), "FedAvg"

    def local(self, client):
        counts = client.train.y.bincount(minlength=client.net.head.out_features)
        client.scratch["margin"] = self.tau * counts.clamp(min=1e-8).pow(-0.25)
        super().local(client)

    def loss(self, net, x, y, client):
        return F.cross_entropy(net(x) - client.scratch["margin"], y)


@method
class FedNTD(FedAvg):
    """CE(h, y) + beta tau^2 KL( q | p ), q and p: softmax of h^g / tau and h / tau over the classes other than y.

    h^g: logits of the received net, frozen and in evaluation mode. What the net knew of classes that the client does
    not see is kept; about the true class it is free. Lee et al., NeurIPS 2022, arXiv:2106.03097.
    """
    beta: float = 1.0
    tau: float = 1.0                     # 1 in the paper and its configuration; 3 is its loss's default
    limit = dict(beta=0.0), "FedAvg"

    def local(self, client):
        client.scratch["global"] = frozen(client.net, client.got["params"])
        super().local(client)

    def loss(self, net, x, y, client):
        h = net(x)
        with torch.no_grad():
            known = client.scratch["global"](x)
        far = F.kl_div(others(h / self.tau, y), others(known / self.tau, y), reduction="none", log_target=True)
        return F.cross_entropy(h, y) + self.beta * self.tau ** 2 * far.sum() / len(y)


@method
class FedDecorr(FedAvg):
    """F_k + beta |K|_F^2 / D^2, K: the correlations `(D, D)` of the features of a batch: no dimension may collapse.

    The diagonal is left out: it is constant. The released code has the mean over the entries off the diagonal of
    (B K)^2 / B, in effect beta times the batch's size: released = True. Shi et al., ICLR 2023, arXiv:2210.00226.
    """
    beta: float = 0.1
    released: bool = False
    limit = dict(beta=0.0), "FedAvg"

    def loss(self, net, x, y, client):
        z = net.body(x)
        scale = len(y) / (1 - 1 / z.shape[1]) if self.released else 1
        return F.cross_entropy(net.head(z), y) + self.beta * scale * correlated(z)


@method
class FedETF(FedAvg):
    """CE(s <V, g / |g|> + gamma log n_k, y), g = P z: the classes' vectors V `(C, C)` are fixed and equally far apart.

    P and the scale s are learned and averaged; V is the same everywhere and does not travel. n_k: client k's samples
    per class; one that it lacks has log 0 = -inf (released: as one sample). The fine-tuning of V for a client's own
    model is left out. Li et al., ICCV 2023, arXiv:2303.10058.
    """
    gamma: float = 1.0
    scale: float = 1.0                   # s at the start
    limit = "its head has no other one as a limit"

    def equip(self, net):
        if not isinstance(net.head, SimplexHead):
            device = next(net.head.parameters()).device
            net.head = SimplexHead(net.dim, net.head.out_features, self.scale, key(self.seed, "simplex")).to(device)
        return net

    def local(self, client):
        counts = client.train.y.bincount(minlength=client.net.head.out_features)
        client.scratch["prior"] = counts.float().pow(self.gamma).log()
        super().local(client)

    def loss(self, net, x, y, client):
        return F.cross_entropy(net(x) + client.scratch["prior"], y)


class SimplexHead(nn.Module):
    """s <v_c, g / |g|>, g = P z: vectors v_c `(C, C)` of length 1 with <v_c, v_d> = -1 / (C - 1), fixed; P, s learned.

    V = sqrt(C / (C - 1)) U (I - 1 1^T / C), U orthogonal, drawn with the seed (FedETF, arXiv:2303.10058).
    """

    def __init__(self, dim: int, classes: int, scale: float, seed: int):
        super().__init__()
        self.in_features, self.out_features = dim, classes
        gen = torch.Generator().manual_seed(seed)
        U = torch.linalg.qr(torch.randn(classes, classes, generator=gen)).Q
        V = (classes / (classes - 1)) ** 0.5 * (U - U.mean(1, keepdim=True)).T
        self.register_buffer("V", V.contiguous(), persistent=False)
        self.scale = nn.Parameter(torch.tensor(float(scale)))
        with drawing(seed):
            self.project = nn.Linear(dim, classes)

    def forward(self, z: Tensor) -> Tensor:
        return self.scale * F.normalize(self.project(z), dim=-1) @ self.V.T


# the arithmetic

def others(h, y) -> torch.Tensor:
    """log softmax of h `(B, C)` over the classes other than y: `(B, C - 1)`."""
    rest = torch.arange(h.shape[1] - 1, device=h.device)
    return h.gather(1, rest + (rest >= y[:, None])).float().log_softmax(1)


def correlated(z) -> torch.Tensor:
    """sum_{i != j} K_ij^2 / D^2 of the correlations K of z `(B, D)` over the batch."""
    z = z.float()
    z = (z - z.mean(0)) / (z.var(0) + 1e-8).sqrt()
    K = z.T @ z / len(z)
    return (K.square().sum() - K.diagonal().square().sum()) / K.numel()
