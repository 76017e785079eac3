"""Uploads that say little of any one client: differential privacy by clipping and noise where the data are."""
import torch

from fedlib.core.errors import UserError
from fedlib.core.params import buffers
from fedlib.core.seeds import generator
from fedlib.methods.base import FedAvg, method


@method
class DPFedAvg(FedAvg):
    """w <- w + mean_k( min(1, C / |d_k|) d_k + N(0, (sigma C)^2 / m) ), d_k = w_k - w: it says little of any client.

    A client moves the sum of the clipped d_k by at most C. m = 1: the noise is enough in each upload. m > 1: it is
    enough in the sum of m uploads only, for a server that sees no other (secure aggregation); take m no larger than the
    number of clients that surely answer. T rounds are worth one with sigma / sqrt T, so that
    `fedlib.probes.privacy.epsilon(delta, sigma, T ** 0.5)` holds for a whole client: whether it trained or sent w back.
    Which update it sent is another question: two clipped ones lie up to 2 C apart, `epsilon(delta, sigma, 2 T ** 0.5)`.
    McMahan et al., ICLR 2018, arXiv:1710.06963; noise in shares: Kairouz et al., ICML 2021, arXiv:2102.06387.

    All weigh alike, whatever the number of their samples (a node tells the server that number); batch-norm's statistics
    must stay at the client. Losses and accuracies that clients report are not covered. In a simulation the noise
    repeats with the seed; between machines each node adds a secret of its own. It wraps methods that send parameters
    only: `class A(DPFedAvg, FedProx)`.
    """
    C: float = 1.0
    sigma: float = 1.0
    m: int = 1
    least = dict(m=1)
    limit = dict(C=1e9, sigma=0.0), "FedAvg", "cnn4"     # with clients of one size

    def setup(self, net):
        if buffers(net) and self.protocol.buffers == "average":
            raise UserError(f"batch-norm's statistics would leave without noise: {type(self).__name__} needs buffers = "
                            "keep, or a net without (normalisation = group)")
        super().setup(net)

    def upload(self, client):
        sent, w = super().upload(client), client.got["params"]
        if set(sent) - {"params", "n"}:
            raise UserError(f"{type(self).__name__} sends {', '.join(sorted(set(sent) - {'params', 'n'}))} as well: "
                            "noise on the parameters alone would protect nobody")
        d = {k: v - w[k] for k, v in sent["params"].items()}
        length = float(torch.stack([v.norm() for v in d.values()]).norm())
        deviation = self.sigma * self.C / self.m ** 0.5
        draws = generator(client.seed, "noise", client.round, client.id, *client.secret)
        for k in d if length > self.C or deviation else ():
            noise = torch.randn(d[k].shape, generator=draws).to(d[k])
            sent["params"][k] = w[k] + d[k] * (self.C / max(length, self.C)) + deviation * noise
        return sent | {"n": torch.ones_like(sent["n"])}
