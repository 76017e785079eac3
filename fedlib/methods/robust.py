"""Means that a member who lies cannot steer: the server trusts no single upload.

Batch-norm's running statistics are averaged as weights are, so they are guarded as weights are. Their numbers have
other sizes, so lengths and distances are taken of each kind for itself: neither may hide a lie in the other.
"""
import math

import torch

from fedlib.core.params import each
from fedlib.methods.base import FedAvg, method


def kinds(method) -> list[list[str]]:
    """Names of what is averaged: trained numbers, and running statistics where there are any."""
    statistics = [k for k in method.global_ if k not in method.trained]
    return [method.trained, statistics] if statistics else [method.trained]


@method
class TrimmedMean(FedAvg):
    """w_j <- the mean of w_kj without the ceil(trim K) largest and smallest: number by number; trim = 1/2: the median.

    The clients left count the same. Yin et al., ICML 2018, arXiv:1803.01498.
    """
    version = 2
    trim: float = 0.2                    # of the clients, at each end
    limit = dict(trim=0.0), "FedAvg"
    most = dict(trim=0.5)

    def aggregate(self, uploads):
        super().aggregate(uploads)
        cut = min(math.ceil(self.trim * len(uploads)), (len(uploads) - 1) // 2)
        for k in self.global_ if cut else ():
            ordered = torch.stack([u["params"][k] for u in uploads.values()]).sort(0).values
            self.global_[k] = ordered[cut:len(ordered) - cut].mean(0)


@method
class Krum(FedAvg):
    """w <- the mean of the m uploads whose K - f - 2 nearest others are nearest: s_k = sum_i |w_k - w_i|^2 over these.

    f: how many may lie. m = 1 is Krum, more is multi-Krum; the m are weighted as FedAvg weighs.
    Blanchard et al., NeurIPS 2017, arXiv:1703.02757.
    """
    version = 2
    f: int = 1
    m: int = 1
    limit = dict(m=1000), "FedAvg"
    least = dict(m=1)

    def aggregate(self, uploads):
        apart = sum(self.apart(uploads, names) for names in kinds(self)).sort(1).values[:, 1:]     # without itself
        scores = apart[:, :max(1, len(uploads) - self.f - 2)].sum(1)
        chosen = set(scores.argsort()[:self.m].tolist())
        super().aggregate({name: u for i, (name, u) in enumerate(uploads.items()) if i in chosen})

    @staticmethod
    def apart(uploads, names):
        """Squared distances `(K, K)`, the median of those between two clients as unit."""
        every = torch.stack([torch.cat([u["params"][k].flatten() for k in names]) for u in uploads.values()]).double()
        found = torch.cdist(every, every).square()
        pairs = found[~torch.eye(len(found), dtype=bool, device=found.device)]
        return found / pairs.median().clamp_min(1e-300) if len(pairs) else found


@method
class NormClipping(FedAvg):
    """w <- w + sum_k (n_k / n) min(1, c M / |d_k|) d_k, d_k = w_k - w: no step is longer than c times the median M.

    The bound follows the round's own steps, so that no number need be known before. Sun et al., 2019, arXiv:1911.07963.
    """
    version = 2
    c: float = 1.0
    limit = dict(c=1e9), "FedAvg"

    def aggregate(self, uploads):
        taken = {name: dict(u["params"]) for name, u in uploads.items()}
        for names in kinds(self):
            steps = {name: each("sub", {k: sent[k] for k in names}, self.global_) for name, sent in taken.items()}
            norms = {name: torch.cat([d.flatten() for d in step.values()]).norm() for name, step in steps.items()}
            bound = self.c * torch.stack([*norms.values()]).median()
            for name in (name for name, norm in norms.items() if norm > bound):
                taken[name] |= {k: self.global_[k] + d * (bound / norms[name]) for k, d in steps[name].items()}
        super().aggregate({name: u | {"params": taken[name]} for name, u in uploads.items()})
