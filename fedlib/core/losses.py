"""Losses and statistics on features that several methods share."""
import torch
import torch.nn.functional as F

from fedlib.core.errors import UserError


def class_means(features: torch.Tensor, labels: torch.Tensor, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """p^k = mean of the features of class k, and how many there are.

    features `(N, D)`, labels `(N,)` -> means `(C, D)` (zero where a class is absent), counts `(C,)` int64.
    """
    counts = labels.new_zeros(classes).index_add_(0, labels, torch.ones_like(labels))    # bincount waits for a GPU
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
    if not len(of):
        return logits.sum()     # 0
    same = of == y[:, None]
    same = same | ~same.any(1, keepdim=True)    # both sums are then the same; a choice of rows would wait for a GPU
    return (logits.logsumexp(1) - logits.masked_fill(~same, -torch.inf).logsumexp(1)).sum() / len(y)


def align(z: torch.Tensor, y: torch.Tensor, protos: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """mean (z - P^y)^2 over batch and dimensions, as all released code has it; papers print a distance.

    z `(B, D)`, y `(B,)`, protos `(C, D)`, seen: which classes have a prototype `(C,)`. Samples of others add nothing.
    """
    return ((z - protos[y]).square() * seen[y, None]).mean()


def frame(dim: int, count: int, gen: torch.Generator) -> torch.Tensor:
    """A simplex equiangular tight frame `(count, dim)`: sqrt(C / (C - 1)) U (I - 11^T / C), U orthonormal, as rows.

    Rows have length 1 and pairwise cosines -1 / (C - 1), as far apart as C directions can be. Needs dim >= count >= 2.
    Papyan et al., PNAS 2020, arXiv:2008.08186.
    """
    if not 2 <= count <= dim:
        raise UserError(f"no frame of {count} vectors in {dim} dimensions")
    u, _ = torch.linalg.qr(torch.randn(dim, count, generator=gen))
    return ((count / (count - 1)) ** 0.5 * u @ (torch.eye(count) - 1 / count)).T.contiguous()


def lmmd(x: torch.Tensor, p: torch.Tensor, y: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """1/C sum_c |mean_x^c phi - mean_y^c phi|^2 in a kernel space, means weighted by how much a sample is of class c.

    x `(B, D)`, y `(B', D)`: features; p `(B, C)`, q `(B', C)`: their classes, one-hot or as probabilities.
    k(u, v) = sum_{i=0..4} e^{-d^2 / (h 2^{i-2})}, h the mean d^2. Zhu et al., TNNLS 2020 (DSAN), its released kernel.
    """
    z = torch.cat([x, y]).float()
    far = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").square()
    h = far.detach().sum() / (len(z) ** 2 - len(z))
    kernel = sum(torch.exp(-far / (h * 2.0 ** (i - 2)).clamp(min=1e-12)) for i in range(5))
    both = (p.sum(0) > 0) & (q.sum(0) > 0)      # a class without samples on one side says nothing
    w = torch.cat([p / p.sum(0).clamp(min=1e-12), -q / q.sum(0).clamp(min=1e-12)])[:, both]
    return (w * (kernel @ w)).sum() / p.shape[1]
