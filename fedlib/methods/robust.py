"""Means that a member who lies cannot steer: the server trusts no single upload."""
import math

import torch

from fedlib.methods.base import FedAvg, method


@method
class TrimmedMean(FedAvg):
    """w_j <- the mean of w_kj without the ceil(trim K) largest and smallest: number by number; trim = 1/2: the median.

    The clients left count the same. Yin et al., ICML 2018, arXiv:1803.01498.
    """
    trim: float = 0.2                    # of the clients, at each end
    limit = dict(trim=0.0), "FedAvg"
    most = dict(trim=0.5)

    def aggregate(self, uploads):
        super().aggregate(uploads)
        cut = min(math.ceil(self.trim * len(uploads)), (len(uploads) - 1) // 2)
        for k in self.trained if cut else ():
            ordered = torch.stack([u["params"][k] for u in uploads.values()]).sort(0).values
            self.global_[k] = ordered[cut:len(ordered) - cut].mean(0)


@method
class Krum(FedAvg):
    """w <- the mean of the m uploads whose K - f - 2 nearest others are nearest: s_k = sum_i |w_k - w_i|^2 over these.

    f: how many may lie. m = 1 is Krum, more is multi-Krum; the m are weighted as FedAvg weighs.
    Blanchard et al., NeurIPS 2017, arXiv:1703.02757.
    """
    f: int = 1
    m: int = 1
    limit = dict(m=1000), "FedAvg"
    least = dict(m=1)

    def aggregate(self, uploads):
        every = torch.stack([torch.cat([u["params"][k].flatten() for k in self.trained]) for u in uploads.values()])
        apart = torch.cdist(every.double(), every.double()).square().sort(1).values[:, 1:]     # without itself
        scores = apart[:, :max(1, len(uploads) - self.f - 2)].sum(1)
        chosen = set(scores.argsort()[:self.m].tolist())
        super().aggregate({name: u for i, (name, u) in enumerate(uploads.items()) if i in chosen})


@method
class NormClipping(FedAvg):
    """w <- w + sum_k (n_k / n) min(1, c M / |d_k|) d_k, d_k = w_k - w: no step is longer than c times the median M.

    The bound follows the round's own steps, so that no number need be known before. Sun et al., 2019, arXiv:1911.07963.
    """
    c: float = 1.0
    limit = dict(c=1e9), "FedAvg"

    def aggregate(self, uploads):
        old = self.global_
        steps = {name: {k: u["params"][k] - old[k] for k in self.trained} for name, u in uploads.items()}
        norms = {name: torch.cat([d.flatten() for d in step.values()]).norm() for name, step in steps.items()}
        bound = self.c * torch.stack([*norms.values()]).median()
        clipped = {name: {k: old[k] + d * (bound / norms[name]) for k, d in step.items()}
                   for name, step in steps.items() if norms[name] > bound}
        super().aggregate({name: u | {"params": u["params"] | clipped.get(name, {})} for name, u in uploads.items()})
