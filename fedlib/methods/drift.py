"""The local objective: methods that hold a client's net near the others' while it trains."""
import copy
from typing import Literal

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from fedlib.core import settings
from fedlib.core.errors import UserError
from fedlib.core.params import each, load_params, mean, snapshot
from fedlib.methods.base import FedAvg, method, rate


@method
class FedProx(FedAvg):
    """F_k(w_k) + mu/2 |w_k - w|^2   (Li et al., MLSys 2020, arXiv:1812.06127).

    Released code of the domain papers (RethinkFL, MarsFL) multiplies mu by a further 0.01 that no paper names: their
    rows are hidden = 0.01, in effect mu = 1e-4.
    """
    mu: float = 0.01                     # 0.01 in I2PFL and FedPall, 0.001 in FedDTR
    hidden: float = settings.later(1.0)  # 0.01 in RethinkFL and MarsFL
    limit = dict(mu=0.0), "FedAvg"

    def loss(self, net, x, y, client):
        return super().loss(net, x, y, client) + self.hidden * self.mu / 2 * sq_dist(net, client.got["params"])


@method
class MOON(FedAvg):
    """F_k - mu log( e^{cos(z,z_g)/tau} / (e^{cos(z,z_g)/tau} + e^{cos(z,z_p)/tau}) ).

    z, z_g, z_p: features `(B, D)` of the net in training, of the received net and of the client's previous net. The two
    others are frozen and in evaluation mode (RethinkFL leaves them in training mode, so that their batch-norm
    statistics move). Features come from the body, as in RethinkFL; the paper adds a projection head.

    negative = "other" is FedPall's code, where all clients share one object: z_p is the net of the client before
    (cyclic). There it was trained in the same round; here, where clients train side by side, in the round before. The
    server has to send it: twice the bytes down, and every client sees a net trained on another's data alone.
    Li et al., CVPR 2021, arXiv:2103.16257.
    """
    mu: float = 5.0                      # 5 in the paper and RethinkFL, 1 in MarsFL and FedPall
    tau: float = 0.5                     # 1 in FedPall's code
    negative: Literal["own", "other"] = settings.later("own")
    limit = dict(mu=0.0), "FedAvg"

    def setup(self, net):
        super().setup(net)
        self.models_ = {}                # of the last round, by client; empty unless they are sent

    def broadcast(self, client_id):
        others = {"previous": self.models_[before(client_id, self.models_)]} if self.models_ else {}
        return super().broadcast(client_id) | others

    def aggregate(self, uploads):
        super().aggregate(uploads)
        if self.negative == "other":
            self.models_ = {i: u["params"] for i, u in uploads.items()}

    def local(self, client):
        previous = client.got.get("previous", client.state.get("previous", client.got["params"]))
        client.scratch["global"] = frozen(client.net, client.got["params"])
        client.scratch["previous"] = frozen(client.net, previous)
        super().local(client)
        client.state["previous"] = snapshot(client.net)

    def loss(self, net, x, y, client):
        z = net.body(x)
        with torch.no_grad():
            others = torch.stack([client.scratch[k].body(x) for k in ("global", "previous")])
        to_global, to_previous = F.cosine_similarity(z, others, dim=-1) / self.tau
        return F.cross_entropy(net.head(z), y) + self.mu * F.softplus(to_previous - to_global).mean()


class Corrected(FedAvg):
    """FedAvg whose server also keeps s, the mean of a state `{name: tensor}` that each client keeps for itself.

    A client's state starts at zero; what it changed by in a round tells the server the new mean, over the clients that
    ever took part (of others it knows nothing). Trainable entries only; buffers are averaged. weights: all clients
    alike, as in the papers, or by samples, in both means.
    """

    def setup(self, net):
        super().setup(net)
        self.s_, self.members_ = zeros(net), {}

    def aggregate(self, uploads):
        w, n = self.global_, {i: torch.tensor(float(v)) for i, v in zip(uploads, self.client_weights(uploads))}
        super().aggregate(uploads)
        change = mean([self.change(w, u) for u in uploads.values()], n.values())
        known, now = total(self.members_), total(n)
        self.members_ |= n
        self.s_ = {k: (known * s + now * change[k]) / total(self.members_) for k, s in self.s_.items()}
        self.global_ |= {k: self.move(w[k], self.global_[k], s) for k, s in self.s_.items()}


@method
class FedDyn(Corrected):
    """F_k(w_k) - <h_k, w_k> + alpha/2 |w_k - w|^2;  h_k <- h_k - alpha (w_k - w);  w <- mean w_k - mean h_k / alpha.

    Written in l_k = -h_k / alpha, the client's summed drift, so that nothing is divided by alpha:
    l_k <- l_k + (w_k - w), and w <- mean w_k + mean l_k. As alpha -> 0 the server still adds the drift: not FedAvg.
    The authors' code divides alpha by the client's relative size, clips gradients at 10 (here the protocol's clip), and
    tests means of the clients' nets, here w.

    form = "released" is RethinkFL's and MarsFL's: the penalty is computed on the global net, so that it has no gradient
    at the client, and the server averages. With weights = "samples" that is FedAvg, and so is what they print.
    Acar et al., ICLR 2021, arXiv:2111.04263.
    """
    alpha: float = 0.01                  # 0.01 in the authors' CIFAR-10 example and MarsFL
    weights: Literal["equal", "samples"] = "equal"
    form: Literal["paper", "released"] = "paper"
    limit = dict(form="released", weights="samples"), "FedAvg"

    def loss(self, net, x, y, client):
        penalty = dot(net, client.state.get("l", {})) + sq_dist(net, client.got["params"]) / 2
        penalty = penalty.detach() if self.form == "released" else penalty
        return super().loss(net, x, y, client) + self.alpha * penalty

    def local(self, client):
        super().local(client)
        step = self.change(client.got["params"], {"params": snapshot(client.net)})
        client.state["l"] = each("add", client.state.get("l", zeros(client.net)), step)

    def change(self, w, upload):
        """w_k - w: what l_k changed by."""
        return each("sub", {k: upload["params"][k] for k in w}, w)

    def move(self, w, y, l):
        """The next w, from the mean y of the clients' and the mean drift."""
        return y + l

    def aggregate(self, uploads):
        FedAvg.aggregate(self, uploads) if self.form == "released" else super().aggregate(uploads)


@method
class SCAFFOLD(Corrected):
    """F_k(y) + <c - c_k, y>;  c_k <- c_k - c + (w - y) / (K eta);  w <- w + eta_g mean(y - w);  c = mean c_k.

    Option II: K steps of rate eta from w to y, so that the new c_k is the mean gradient of F_k on the way. With
    momentum m a step goes further: K eta becomes eta sum_k (1 - m^k) / (1 - m), exact for a constant gradient. Control
    variates cover trainable parameters and travel both ways: c down, the change of c_k up, twice FedAvg's bytes.
    Released code (PFLlib) has no momentum.
    Karimireddy et al., ICML 2020, arXiv:1910.06378.
    """
    eta_g: float = 1.0                   # 1 in the paper's experiments
    scale: float = 1.0                   # of the correction c - c_k; 0: none
    weights: Literal["equal", "samples"] = "equal"
    limit = dict(scale=0.0, weights="samples"), "FedAvg"

    def setup(self, net):
        if self.protocol.optimiser != "sgd":
            raise UserError("SCAFFOLD reads the mean gradient from the way the net went: it needs optimiser sgd")
        super().setup(net)

    def broadcast(self, client_id):
        return super().broadcast(client_id) | {"c": self.s_}

    def local(self, client):
        w, c, c_k = client.got["params"], client.got["c"], client.state.get("c", zeros(client.net))
        tilt = client.scratch["tilt"] = each("mul", each("sub", c, c_k), self.scale)
        super().local(client)
        y, far = snapshot(client.net), reach(self.protocol, client.round, len(client.scratch["losses"]))
        client.scratch["change"] = {k: (w[k] - y[k]) / far - tilt[k] - c_k[k] for k in c}
        client.state["c"] = each("add", c_k, client.scratch["change"])

    def loss(self, net, x, y, client):
        return super().loss(net, x, y, client) + dot(net, client.scratch["tilt"])

    def upload(self, client):
        return super().upload(client) | {"change": client.scratch["change"]}

    def change(self, w, upload):
        """What c_k changed by."""
        return upload["change"]

    def move(self, w, y, c):
        """w + eta_g (y - w)."""
        return w.lerp(y, self.eta_g)


@method
class DBE(FedAvg):
    """F_k on head(z + m_k), m_k `(D,)` a memory of client k's own bias, + kappa mean (r_k - r)^2 / 2.

    r_k `(D,)` is the client's running mean feature, r_k <- (1 - mu) r_k + mu mean_B z, from zero in each round; r is
    the clients' mean, fixed before training. The local training without memory or regularisation that it
    comes from is here the first round, which also averages the nets (the authors' code throws that training away).
    m_k is trained with the net, and added wherever the client predicts. r_k travels up once, r down in each round.
    Zhang et al., NeurIPS 2023, arXiv:2311.14975.
    """
    kappa: float = 50.0                  # 50 in the authors' script (CNN on Fashion-MNIST), 1 in MPFT
    mu: float = 1.0                      # 1 there, 0.01 in MPFT
    memory_rate: float = 1.0             # learning rate of m_k over the protocol's, which stays; 0: no memory
    limit = dict(kappa=0.0, memory_rate=0.0), "FedAvg"

    personal = property(lambda self: self.memory_rate > 0)

    def setup(self, net):
        super().setup(net)
        self.mean_ = {}                  # {"mean": r} after the first round

    def broadcast(self, client_id):
        return super().broadcast(client_id) | self.mean_

    def local(self, client):
        zero = client.net.head.weight.new_zeros(client.net.dim)
        memory = client.state.get("memory", zero).clone().requires_grad_()
        client.scratch |= {"mean": zero, "memory": memory}
        super().local(client)
        client.state["memory"] = memory.detach()

    def step(self, net, x, y, client, opt, loss):
        if len(opt.param_groups) == 1:
            opt.add_param_group({"params": [client.scratch["memory"]], "lr": self.memory_rate * self.protocol.lr})
        return super().step(net, x, y, client, opt, loss)

    def loss(self, net, x, y, client):
        z, s = net.body(x), client.scratch
        s["mean"] = s["mean"].detach().lerp(z.mean(0).float(), self.mu)
        if "mean" not in client.got:
            return F.cross_entropy(net.head(z), y)
        far = (s["mean"] - client.got["mean"]).square().mean() / 2
        return F.cross_entropy(net.head(z + s["memory"]), y) + self.kappa * far

    def upload(self, client):
        first = {} if "mean" in client.got else {"mean": client.scratch["mean"].detach()}
        return super().upload(client) | first

    def aggregate(self, uploads):
        super().aggregate(uploads)
        if not self.mean_:
            self.mean_ = mean([{"mean": u["mean"]} for u in uploads.values()], self.client_weights(uploads))

    def predict(self, net, x, client):
        return net.head(net.body(x) + client.state.get("memory", 0))


def frozen(net, params: dict):
    """A copy of the net with these entries, without gradients, in evaluation mode."""
    return load_params(copy.deepcopy(net), params).requires_grad_(False).eval()


def before(client_id: str, ids) -> str:
    """The id before this one among `ids`, in the order of their numbers; before the first comes the last."""
    order = sorted(ids, key=number)
    return ([i for i in order if number(i) < number(client_id)] or order)[-1]


def number(client_id: str):
    """A key that puts "2" before "10": dicts come out of a checkpoint in another order."""
    return len(client_id), client_id


def total(weights: dict) -> float:
    """Their sum; 0 of none."""
    return sum(float(v) for v in weights.values())


def zeros(net) -> dict:
    """A zero for every trainable entry."""
    return {k: torch.zeros_like(p) for k, p in net.named_parameters()}


def sq_dist(net, params: dict) -> torch.Tensor:
    """|w - w'|^2 over the net's trainable parameters that `params` holds; the gradient flows to the net."""
    own = {k: p for k, p in net.named_parameters() if k in params}
    with torch.no_grad():
        far = each("sub", own, params)
        half = sum(d.sum() for d in each("mul", far, far).values()) / 2
    return 2 * Sloped.apply(half, list(far.values()), *own.values()) if own else 0


def dot(net, params: dict) -> torch.Tensor:
    """<w, w'> over the net's trainable parameters that `params` holds; the gradient flows to the net."""
    own = {k: p for k, p in net.named_parameters() if k in params}
    with torch.no_grad():
        value = sum(t.sum() for t in each("mul", own, params).values())
    return Sloped.apply(value, [params[k] for k in own], *own.values()) if own else 0


class Sloped(torch.autograd.Function):
    """A value whose gradient in the tensors is known, the slopes: a GPU computes it for all of them at once."""

    @staticmethod
    def forward(ctx, value, slopes, *tensors):
        ctx.slopes = slopes
        return value.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        return None, None, *torch._foreach_mul(ctx.slopes, grad)


def reach(protocol, number: int, steps: int) -> float:
    """eta sum_k (1 - m^k) / (1 - m): how far SGD with momentum m goes in so many steps of one gradient of length 1, at
    the rate eta of this round.
    """
    m = protocol.momentum
    return rate(protocol, number) * sum((1 - m ** k) / (1 - m) for k in range(1, steps + 1))
