"""Low-rank adaptation: a trained body stays as it is, and each weight W of it learns a difference of rank r."""
import torch
from torch import nn
from torch.nn.utils import parametrize

from fedlib.core.seeds import generator
from fedlib.methods.base import FedAvg, method
from fedlib.methods.server import shares

ADAPTED = {nn.Linear: "weight", nn.Conv2d: "weight", nn.MultiheadAttention: "in_proj_weight"}


@method
class LoRA(FedAvg):
    """W + (alpha / r) B A instead of every weight W `(out, in)` of the body: FedAvg of A `(r, in)`, B `(out, r)`.

    The head is trained and averaged whole; W, biases and the norms' weights stay as they came and never travel; running
    statistics do. A starts at N(0, 1 / in), B at 0. Kernels count as `(out, in k k)`. A and B are averaged apart, and
    the product of the means is not the mean of the products (FedIT, arXiv:2305.05644). Hu et al., ICLR 2022,
    arXiv:2106.09685.
    """
    r: int = 4
    alpha: float = 8.0
    least = dict(r=1)
    limit = "no rank makes it FedAvg: biases and norms of the body stay"
    stackable = False                    # weights are computed from entries of several names
    trains = ("A", "B")

    def equip(self, net):
        if any(isinstance(m, LowRank) for m in net.modules()):
            return net
        net.body.requires_grad_(False)
        for name, module in list(net.body.named_modules()):
            entry = next((e for kind, e in ADAPTED.items() if isinstance(module, kind)), None)
            weight = getattr(module, entry or "", None)
            if weight is not None:
                low = LowRank(weight, self.r, self.alpha / self.r, generator(self.seed, "low rank", name))
                parametrize.register_parametrization(module, entry, low)
                low.A.requires_grad_("A" in self.trains)
        return net

    def private(self, net):
        return {k for k, p in net.named_parameters() if not p.requires_grad}


@method
class FFALoRA(LoRA):
    """LoRA whose A stays as it was drawn, the same for everyone: then the mean of B is the mean of the products.

    Half the bytes, and one trained factor: noise on B is not multiplied by noise on A. Sun et al., ICLR 2024,
    arXiv:2403.12313.
    """
    limit = "LoRA with A fixed; no setting of LoRA fixes it"
    trains = ("B",)


@method
class LoRAFAIR(LoRA):
    """B <- mean B + D, D = argmin_D |R - D mean A|^2 + lam |D|^2, R = mean_k (B_k A_k) - mean B mean A.

    In closed form, D = R A^T (A A^T + lam I)^-1 with A the mean. The paper maximises a cosine similarity in the place
    of the square, by gradient steps; no code is public. Bian et al., ICCV 2025, arXiv:2411.14961.
    """
    lam: float = 0.01
    limit = dict(lam=1e30), "LoRA"

    def aggregate(self, uploads):
        super().aggregate(uploads)
        p = shares(self.client_weights(uploads)).tolist()
        for k in [k.removesuffix("A") for k in self.trained if k.endswith(".A")]:
            A, B = self.global_[k + "A"], self.global_[k + "B"]
            R = sum(w * u["params"][k + "B"] @ u["params"][k + "A"] for w, u in zip(p, uploads.values())) - B @ A
            self.global_[k + "B"] = B + torch.linalg.solve(A @ A.T + self.lam * torch.eye(len(A)).to(A), A @ R.T).T


class LowRank(nn.Module):
    """W -> W + s B A, of a weight of any shape `(out, ...)`."""

    def __init__(self, weight, r: int, s: float, draws: torch.Generator):
        super().__init__()
        wide = weight[0].numel()
        self.s, r = s, min(r, wide, len(weight))
        self.A = nn.Parameter((torch.randn(r, wide, generator=draws) / wide ** 0.5).to(weight))
        self.B = nn.Parameter(torch.zeros(len(weight), r).to(weight))

    def forward(self, W):
        return W + self.s * (self.B @ self.A).view_as(W)
