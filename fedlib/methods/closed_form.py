"""Frozen bodies: the head from what clients send of their features once, sums or mixtures of Gaussians.

z_i is what the body gives for sample i and a 1 for the bias; A_k = sum_i z_i z_i^T and B_k = sum_i z_i e_{y_i}^T are a
client's sums. The body stays as it starts: a frozen encoder's features behind the net "identity", or any net's.
"""
import torch
import torch.nn.functional as F
from torch import nn

from fedlib.core.params import load_params, snapshot
from fedlib.core.seeds import generator
from fedlib.methods.base import FedAvg, linear, method, outputs


@method
class Fed3R(FedAvg):
    """W = (sum_k A_k + lam I)^-1 sum_k B_k, then w_c / |w_c| for each class: ridge regression on all clients' samples.

    The sums do not depend on who holds which sample, so neither does W. `unit` divides by the length without the bias,
    as the released code does. Where A_k are singular and lam = 0, the shortest of the solutions.
    Fani et al., ICML 2024, arXiv:2406.01116.
    """
    lam: float = 0.01
    unit: bool = True
    limit = "a closed form has no setting that makes it steps; of any split it is the pooled ridge regression"

    def setup(self, net):
        super().setup(net)
        linear(net, type(self).__name__)

    def local(self, client):
        """No training."""

    def upload(self, client):
        z, y = features(client, self.protocol)
        return {"A": z.T @ z, "B": z.T @ F.one_hot(y, len(client.classes)).to(z)}

    def aggregate(self, uploads):
        w = self.solve(*(sum(u[k] for u in uploads.values()) for k in "AB"))
        w = w / w[:-1].norm(dim=0).clamp_min(1e-6) if self.unit else w
        self.global_ = self.global_ | {"head.weight": w[:-1].T.float().contiguous(), "head.bias": w[-1].float()}

    def solve(self, A, B):
        """W `(D + 1, C)` of the sums."""
        return torch.linalg.pinv(A + self.lam * torch.eye(len(A)).to(A), hermitian=True) @ B


@method
class AFL(Fed3R):
    """W = (sum_k C_k - K gamma I)^-1 sum_k C_k W_k, C_k = A_k + gamma I, W_k = C_k^-1 B_k: the pooled least squares.

    A client sends the ridge regression of its own and C_k, and the server takes out what the K clients' gamma brought
    in; the paper adds one client after the other, to the same W. lam = 0: no penalty is left. He et al., CVPR 2025,
    arXiv:2405.16240.
    """
    lam: float = 0.0
    unit: bool = False
    gamma: float = 1.0
    least = dict(gamma=1e-9)

    def upload(self, client):
        A, B = super().upload(client).values()
        C = A + self.gamma * torch.eye(len(A)).to(A)
        return {"C": C, "W": torch.linalg.solve(C, B).contiguous()}

    def aggregate(self, uploads):
        super().aggregate({k: {"A": u["C"] - self.gamma * torch.eye(len(u["C"])).to(u["C"]), "B": u["C"] @ u["W"]}
                           for k, u in uploads.items()})


@method
class FedCGS(Fed3R):
    """w_c = S^-1 mu_c, b_c = log pi_c - mu_c^T S^-1 mu_c / 2: Gaussian naive Bayes, as if each class had covariance S.

    Of the same sums: mu_c the mean of a class, pi_c its share, S the covariance of all features, plus lam I (released
    code: 0). A class that nobody holds counts as one sample at 0. Guan et al., AAAI 2025, arXiv:2503.06962.
    """
    limit = "no setting makes it steps; of any split it is the Gaussian classifier of the pooled samples"
    lam: float = 0.0
    unit: bool = False

    def solve(self, A, B):
        n, total, count = A[-1, -1].clamp_min(2), A[:-1, -1], B[-1].clamp_min(1)      # whatever a client says
        S = (A[:-1, :-1] - torch.outer(total, total) / n) / (n - 1)
        means = B[:-1] / count
        w = torch.linalg.pinv(S + self.lam * torch.eye(len(S)).to(S), hermitian=True) @ means
        return torch.cat([w, ((count / n).log() - (means * w).sum(0) / 2)[None]])


@method
class FedPFT(Fed3R):
    """w <- argmin_w CE(w z, c), z ~ N(mu_m, diag v_m), n_m of each m: a head trained on what was drawn from Gaussians.

    For each class a client fits a mixture of K Gaussians to its features, of one where it has no more than K samples,
    and sends their means, variances and shares of its samples. K, SGD and its steps as FedCGS's authors run it; they
    leave small classes out.
    Beitollahi et al., 2024, arXiv:2402.01862.
    """
    K: int = 10
    server_epochs: int = 50
    server_batch: int = 128
    server_lr: float = 0.01
    limit = "no setting makes samples of Gaussians the samples that they were fitted to"
    least = dict(K=1, server_epochs=1, server_batch=1)

    def upload(self, client):
        z, y = features(client, self.protocol)
        parts = [mixture(z[y == c, :-1], self.K, client.seed) for c in y.unique()]
        means, variances, n = map(torch.cat, zip(*parts))
        of = y.unique().repeat_interleave(torch.tensor([len(own) for _, _, own in parts]).to(y))
        return {"means": means, "variances": variances, "share": n / len(y), "of": of, "n": torch.tensor(len(y))}

    def aggregate(self, uploads):
        shares = [u["share"].clamp_min(0) for u in uploads.values()]     # whatever a client says, no more than it has
        n = torch.cat([(s / s.sum().clamp_min(1e-9) * u["n"]).round().long() for s, u in zip(shares, uploads.values())])
        means, variances, of = (torch.cat([u[k] for u in uploads.values()]) for k in ("means", "variances", "of"))
        gen, y = generator(self.seed, "drawn"), of.repeat_interleave(n)
        noise = torch.randn((len(y), means.shape[1]), generator=gen).to(means)
        x = means.repeat_interleave(n, 0) + noise * variances.clamp_min(0).repeat_interleave(n, 0).sqrt()
        head = load_params(nn.Linear(x.shape[1], len(self.classes)).to(x.device),
                           {k: self.global_[f"head.{k}"] for k in ("weight", "bias")})
        opt = torch.optim.SGD(head.parameters(), self.server_lr, momentum=0.9)
        for _ in range(self.server_epochs):
            for index in torch.randperm(len(y), generator=gen).to(y.device).split(self.server_batch):
                opt.zero_grad()
                F.cross_entropy(head(x[index]), y[index]).backward()
                opt.step()
        self.global_ = self.global_ | {f"head.{k}": v for k, v in snapshot(head).items()}


def features(client, protocol) -> tuple[torch.Tensor, torch.Tensor]:
    """z `(N, D + 1)`, double precision, with a 1 at the end, and the labels `(N,)`."""
    z = outputs(client.net.body, client.train, protocol).double()
    return F.pad(z, (0, 1), value=1.0), client.train.y


def mixture(x, K: int, seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Means `(M, D)`, variances `(M, D)` and numbers of samples `(M,)` of Gaussians fitted by EM."""
    if len(x) <= K or K == 1:
        return x.mean(0)[None].float(), x.var(0, correction=0)[None].float(), torch.tensor([float(len(x))]).to(x)
    from sklearn.mixture import GaussianMixture
    fitted = GaussianMixture(K, covariance_type="diag", random_state=seed).fit(x.cpu().numpy())
    made = fitted.means_, fitted.covariances_, fitted.weights_ * len(x)
    return tuple(torch.as_tensor(v).to(x.device, kind) for v, kind in zip(made, (torch.float, torch.float, x.dtype)))
