"""Losses and statistics on features that several methods share."""
import torch
import torch.nn.functional as F


def class_means(features: torch.Tensor, labels: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """p^k = mean of the features of class k, and how many there are.

    features `(N, D)`, labels `(N,)` -> means `(C, D)` (zero where a class is absent), counts `(C,)` int64.
    """
    counts = labels.bincount(minlength=classes)
    sums = features.new_zeros(classes, features.shape[1]).index_add_(0, labels, features)
    return sums / counts.clamp(min=1)[:, None], counts


def mmd(x: torch.Tensor, y: torch.Tensor, bandwidths=(10, 15, 20, 50)) -> torch.Tensor:
    """Squared maximum mean discrepancy: mean k(x, x') + mean k(y, y') - 2 mean k(x, y), k = sum_a e^{-d^2 / 2a}.

    x, y: features `(B, D)`; d: the distance of two of them. The bandwidths are those of PFLlib's FedPHP.
    """
    def kernel(u, v):
        far = torch.cdist(u, v, compute_mode="donot_use_mm_for_euclid_dist").square()   # exact for near features
        return sum(torch.exp(-far / (2 * a)) for a in bandwidths).mean()
    x, y = x.float(), y.float()
    return kernel(x, x) + kernel(y, y) - 2 * kernel(x, y)


def cosines(z: torch.Tensor, protos: torch.Tensor) -> torch.Tensor:
    """cos(z_i, P_j): features `(B, D)`, prototypes `(P, D)` -> `(B, P)`, in single precision: tau magnifies errors."""
    with torch.autocast(z.device.type, enabled=False):
        return F.normalize(z.float()) @ F.normalize(protos.float()).T


def contrast(logits: torch.Tensor, of: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """mean_i -log( sum_{j: of_j = y_i} e^{l_ij} / sum_j e^{l_ij} ): several prototypes may stand for a class.

    logits `(B, P)`, of: the class of each prototype `(P,)`, y `(B,)`. A sample of a class without one adds nothing.
    """
    same = of == y[:, None]
    known = same.any(1)
    logits, same = logits[known], same[known]
    return (logits.logsumexp(1) - logits.masked_fill(~same, -torch.inf).logsumexp(1)).sum() / len(y)


def align(z: torch.Tensor, y: torch.Tensor, protos: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """mean (z - P^y)^2 over batch and dimensions, as all released code has it; papers print a distance.

    z `(B, D)`, y `(B,)`, protos `(C, D)`, seen: which classes have a prototype `(C,)`. Samples of others add nothing.
    """
    return ((z - protos[y]).square() * seen[y, None]).mean()
