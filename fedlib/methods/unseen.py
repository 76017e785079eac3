"""Domains that no client holds: methods made so that the shared net also serves somebody who was not there."""
import torch
import torch.nn.functional as F
from torch import nn

from fedlib.core.params import snapshot
from fedlib.core.seeds import drawing, generator, key
from fedlib.methods.base import FedAvg, autocast, linear, method, outputs
from fedlib.methods.server import shares


@method
class GroupDRO(FedAvg):
    """w <- sum_k q_k w_k, q_k <- q_k e^{eta L_k} / sum_j q_j e^{eta L_j}: who is served worst weighs most.

    L_k: the loss of the received net on client k's training split, whole and not augmented. q starts as `weights` says.
    The source weighs the groups of each batch; between clients it is agnostic federated learning (Mohri et al.,
    ICML 2019, arXiv:1902.00146), with another step for q. Sagawa et al., ICLR 2020, arXiv:1911.08731.
    """
    eta: float = 0.01
    limit = dict(eta=0.0), "FedAvg"

    def setup(self, net):
        super().setup(net)
        self.q_ = {}

    def local(self, client):
        logits = outputs(client.net, client.train, self.protocol)
        client.scratch["before"] = F.cross_entropy(logits, client.train.y)
        super().local(client)

    def upload(self, client):
        return super().upload(client) | {"before": client.scratch["before"]}

    def aggregate(self, uploads):
        starts = shares(super().client_weights(uploads))
        q = torch.stack([self.q_.get(i, start).cpu() for i, start in zip(uploads, starts)])
        loss = torch.stack([u["before"].double().cpu() for u in uploads.values()])
        self.q_ |= dict(zip(uploads, shares(q * (self.eta * (loss - loss.max())).exp())))
        super().aggregate(uploads)

    def client_weights(self, uploads):
        return [self.q_[i] for i in uploads]


@method
class FedGMA(FedAvg):
    """w <- w + m D, D = sum_k (n_k / n) d_k, d_k = w_k - w; m = 1 where a = |mean_k sign d_k| >= tau, else m = a.

    Entry by entry: where the clients disagree about the direction, the step is short. Buffers are averaged.
    Tenison et al., TMLR 2023, arXiv:2201.11986.
    """
    tau: float = 0.4
    limit = dict(tau=0.0), "FedAvg"

    def aggregate(self, uploads):
        old = self.global_
        super().aggregate(uploads)
        for k in self.trained:
            a = torch.stack([(u["params"][k] - old[k]).sign() for u in uploads.values()]).mean(0).abs()
            self.global_[k] = torch.where(a >= self.tau, self.global_[k], old[k].lerp(self.global_[k], a))


@method
class FedSAM(FedAvg):
    """Each step takes the gradient at w + rho g / |g|, g the batch's at w: towards minima that are flat around w.

    Batch-norm's statistics move in both passes, as in the released code of both papers. Qu et al., ICML 2022,
    arXiv:2206.02618; Caldarola et al., ECCV 2022, arXiv:2203.11834.
    """
    rho: float = 0.05                    # the paper of 2022 tries 0.01 to 0.5
    limit = dict(rho=0.0), "FedAvg", "cnn4"

    def step(self, net, x, y, client, opt, loss):
        own = [p for p in net.parameters() if p.requires_grad]
        with autocast(self.protocol, x):
            here = loss(net, x, y, client)
        slopes = torch.autograd.grad(here, own, allow_unused=True, materialize_grads=True)
        length = torch.stack(torch._foreach_norm(slopes)).norm() + 1e-12
        there = [p.detach() for p in own]       # the same numbers, without their history
        kept = [p.clone() for p in there]

        def back(*_):
            torch._foreach_copy_(there, kept)

        torch._foreach_add_(there, torch._foreach_mul(slopes, self.rho / length))
        hook = opt.register_step_pre_hook(back)
        super().step(net, x, y, client, opt, loss)
        hook.remove()
        return here.detach()


@method
class FedIIR(FedAvg):
    """F_k + gamma |g_k - g|^2, g_k the gradient of a batch's loss in the head; g <- ema g + (1 - ema) mean_k g_k.

    A head whose gradients agree everywhere leans on what all clients share. The server's g_k is that of the received
    net on the whole training split and comes with the upload, one round late; the released code asks for it in a trip
    of its own before each round. g starts at 0. Guo et al., ICML 2023.
    """
    gamma: float = 0.001                 # 1e-2 to 5e-4, by data set
    ema: float = 0.95
    limit = dict(gamma=0.0), "FedAvg"
    most = dict(ema=1)

    def setup(self, net):
        super().setup(net)
        linear(net, "FedIIR")
        self.slope_ = {k: torch.zeros_like(v) for k, v in snapshot(net.head).items()}

    def broadcast(self, client_id):
        return super().broadcast(client_id) | {"slope": self.slope_}

    def local(self, client):
        z = outputs(client.net.body, client.train, self.protocol)
        with torch.no_grad():
            client.scratch["slope"] = slope(z, client.net.head(z), client.train.y)
        super().local(client)

    def loss(self, net, x, y, client):
        z = net.body(x)
        logits = net.head(z)
        own = slope(z, logits, y)
        far = sum((own[k] - g).square().sum() for k, g in client.got["slope"].items())
        return F.cross_entropy(logits, y) + self.gamma * far

    def upload(self, client):
        return super().upload(client) | {"slope": client.scratch["slope"]}

    def aggregate(self, uploads):
        super().aggregate(uploads)
        n = shares(self.client_weights(uploads)).tolist()
        for k, old in self.slope_.items():
            new = sum(share * u["slope"][k] for share, u in zip(n, uploads.values()))
            self.slope_ = self.slope_ | {k: self.ema * old + (1 - self.ema) * new}


@method
class FedSR(FedAvg):
    """CE(H z, y) + l2 |z|^2 + cmi KL( N(C m, (C s)^2) | N(m_y, s_y^2) ), z = m + s e, e ~ N(0, I).

    m and s = softplus of a linear layer of the body's features, as many of each; m_y, s_y `(classes, D)` and the number
    C are learned too and, as in the released code, stay at the client. A test takes z = m, where the released code
    averages the answers to 20 draws. It also takes the length |z| instead of its square: released = True.
    Nguyen et al., NeurIPS 2022 (FedSR).
    """
    l2: float = 0.01
    cmi: float = 0.0005                  # 0.001 in its README
    released: bool = False
    limit = "its code layer has no identity as a limit: without both terms and noise a linear layer is left"
    stackable = False                    # noise is drawn step by step

    def equip(self, net):
        if not hasattr(net, "code"):
            d, dev = net.dim, next(net.head.parameters()).device
            with drawing(key(self.seed, "code")):
                net.code = nn.Linear(d, 2 * d).to(dev)
            net.aim = nn.ParameterDict({"m": torch.zeros(net.head.out_features, d), "C": torch.ones(()),
                                        "s": torch.ones(net.head.out_features, d)}).to(dev)
        return net

    def private(self, net):
        return {k for k in net.state_dict() if k.startswith("aim.")}

    def local(self, client):
        client.scratch["gen"] = generator(client.seed, "code noise", client.round, client.id)
        super().local(client)

    def loss(self, net, x, y, client):
        m, s = net.code(net.body(x)).float().chunk(2, 1)
        s = F.softplus(s)
        z = m + s * torch.randn(m.shape, generator=client.scratch["gen"]).to(m, non_blocking=True)
        size = z.norm(dim=1) if self.released else z.square().sum(1)
        c = net.aim["C"]
        far = divergence(c * m, (c.abs() * s).clamp_min(1e-6), net.aim["m"][y], F.softplus(net.aim["s"])[y])
        return F.cross_entropy(net.head(z), y) + self.l2 * size.mean() + self.cmi * far.mean()

    def predict(self, net, x, client):
        return net.head(net.code(net.body(x)).chunk(2, 1)[0])


# the arithmetic

def slope(z, logits, y) -> dict[str, torch.Tensor]:
    """The gradient of mean cross-entropy in a linear head: E^T z / B and mean E, E = softmax - one-hot `(B, C)`."""
    error = logits.float().softmax(1) - F.one_hot(y, logits.shape[1])
    return {"weight": error.T @ z.float() / len(y), "bias": error.mean(0)}


def divergence(m, s, m_y, s_y) -> torch.Tensor:
    """KL( N(m, s^2) | N(m_y, s_y^2) ), summed over dimensions; all `(B, D)`, the result `(B,)`."""
    return ((s_y / s).log() + (s.square() + (m - m_y).square()) / (2 * s_y.square()) - 0.5).sum(1)
