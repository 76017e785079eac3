"""The local objective: methods that hold a client's net near the others' while it trains."""
import copy

import torch
import torch.nn.functional as F

from fedlib.methods.base import FedAvg, method
from fedlib.params import load, read, sq_dist


@method
class FedProx(FedAvg):
    """F_k(w_k) + mu/2 |w_k - w|^2   (Li et al., MLSys 2020, arXiv:1812.06127).

    Released code of the domain papers (RethinkFL, MarsFL) multiplies mu = 0.01 by a further 0.01: their rows are
    mu = 1e-4.
    """
    mu: float = 0.01                     # 0.01 in I2PFL and FedPall, 0.001 in FedDTR
    limit = dict(mu=0.0), "FedAvg"

    def loss(self, net, x, y, client):
        return super().loss(net, x, y, client) + self.mu / 2 * sq_dist(net, client.got["params"])


@method
class MOON(FedAvg):
    """F_k - mu log( e^{cos(z,z_g)/tau} / (e^{cos(z,z_g)/tau} + e^{cos(z,z_p)/tau}) ).

    z, z_g, z_p: features `(B, D)` of the net in training, of the received net and of the client's previous net. The two
    others are frozen and in evaluation mode (RethinkFL leaves them in training mode, so that their batch-norm
    statistics move). Features come from the body, as in RethinkFL; the paper adds a projection head.
    Li et al., CVPR 2021, arXiv:2103.16257.
    """
    mu: float = 5.0                      # 5 in the paper and RethinkFL, 1 in MarsFL and FedPall
    tau: float = 0.5
    limit = dict(mu=0.0), "FedAvg"

    def local(self, client):
        client.scratch["global"] = frozen(client.net, client.got["params"])
        client.scratch["previous"] = frozen(client.net, client.state.get("previous", client.got["params"]))
        super().local(client)
        client.state["previous"] = read(client.net)

    def loss(self, net, x, y, client):
        z = net.body(x)
        with torch.no_grad():
            others = torch.stack([client.scratch[k].body(x) for k in ("global", "previous")])
        to_global, to_previous = F.cosine_similarity(z, others, dim=-1) / self.tau
        return F.cross_entropy(net.head(z), y) + self.mu * F.softplus(to_previous - to_global).mean()


def frozen(net, params: dict):
    """A copy of the net with these entries, without gradients, in evaluation mode."""
    return load(copy.deepcopy(net), params).requires_grad_(False).eval()
