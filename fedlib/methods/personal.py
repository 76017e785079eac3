"""A model of one's own: methods that keep a whole personal net beside the shared one."""
import copy
from typing import Literal

import torch
import torch.nn.functional as F
from torch.func import functional_call

from fedlib.core import settings
from fedlib.core.federation import batches
from fedlib.core.params import buffers, each, load_params, mean, snapshot
from fedlib.core.seeds import drawing, generator, key
from fedlib.methods.base import FedAvg, autocast, method, rate
from fedlib.methods.drift import sq_dist


class Personal(FedAvg):
    """FedAvg whose clients use another net than the one that travels: the one in their state."""
    personal = True

    def predict(self, net, x, client):
        return functional_call(net, client.state.get("personal", {}), x)


@method
class Ditto(Personal):
    """v_k <- argmin F_k(v) + mu/2 |v - w|^2 beside FedAvg's w; v_k is what the client uses.

    The personal net trains first, against the w just received, then the shared one; its optimiser is new in each round.
    mu = 0 (the default of much released code) is local training. Li et al., ICML 2021, arXiv:2012.04221.
    """
    mu: float = 1.0
    personal_epochs: int = 1             # of the personal net; FedAvg's part follows the protocol
    limit = dict(mu=0.0), "Local"        # with as many personal_epochs as the protocol's epochs

    def local(self, client):
        personal = load_params(copy.deepcopy(client.net), client.state.get("personal", client.got["params"]))
        self.fit(personal, client, self.near_global, self.personal_epochs)
        client.state["personal"] = snapshot(personal)
        super().local(client)

    def near_global(self, net, x, y, client):
        """F_k(v) + mu/2 |v - w|^2."""
        return self.loss(net, x, y, client) + self.mu / 2 * sq_dist(net, client.got["params"])


@method
class pFedMe(Personal):
    """theta_k ~ argmin F_k(theta) + lam/2 |theta - w_k|^2;  w_k <- w_k - eta lam (w_k - theta_k).

    For each batch K steps of theta_k, then one of w_k; theta_k starts at the w received and goes on from batch to
    batch. The server takes w <- (1 - beta) w + beta mean w_k. theta_k is what the client uses (the paper's PM);
    infer = "global" tests w (its GM). Momentum and weight decay of the protocol apply to the steps of theta_k. Only
    trainable parameters are pulled and mixed; batch-norm statistics are those that theta_k saw, averaged. The released
    optimisers, PFLlib's too, add a decay of 0.001 theta to each inner step: the protocol's weight decay, off here.
    PFLlib's option defaults, lam = 1 and beta = 0, freeze w; and what it tests is never theta_k but w_k, in later
    versions w.
    Dinh et al., NeurIPS 2020, arXiv:2006.08848.
    """
    K: int = 5
    lam: float = 15.0
    personal_rate: float = 0.01          # of theta's steps; 0.1 in PFLlib's examples for its CNN; 0: the protocol's lr
    eta: float = 0.0                     # of w_k's steps; 0: the protocol's lr, 0.005 in FedDTR
    beta: float = 1.0                    # 3 in PFLlib's issue 102
    infer: Literal["personal", "global"] = "personal"
    least = {"K": 1}
    limit = dict(K=1, lam=1.0, eta=1.0, personal_rate=0.0, infer="global"), "FedAvg"     # eta lam = 1: w_k is theta_k

    personal = property(lambda self: self.infer == "personal")

    def aggregate(self, uploads):
        w = self.global_
        super().aggregate(uploads)
        self.global_ |= {k: w[k].lerp(self.global_[k], self.beta) for k in self.trained}

    def local(self, client):
        client.scratch["w"] = snapshot(client.net, without=buffers(client.net))
        super().local(client)
        client.state["personal"] = snapshot(client.net)
        load_params(client.net, client.scratch["w"])

    def step(self, net, x, y, client, opt, loss):
        for _ in range(self.K):
            value = super().step(net, x, y, client, at_rate(opt, self.personal_rate), self.near_own)
        with torch.no_grad():
            w, theta = client.scratch["w"], dict(net.named_parameters())
            client.scratch["w"] = each("lerp", w, theta, (self.eta or rate(self.protocol, client.round)) * self.lam)
        return value

    def near_own(self, net, x, y, client):
        """F_k(theta) + lam/2 |theta - w_k|^2."""
        return self.loss(net, x, y, client) + self.lam / 2 * sq_dist(net, client.scratch["w"])

    def predict(self, net, x, client):
        return super().predict(net, x, client) if self.personal else net(x)


@method
class PerFedAvg(FedAvg):
    """w' = w_k - alpha grad F_k(w_k; B'),  w_k <- w_k - beta grad F_k(w'; B): first-order MAML.

    B' is drawn from the client's data beside each batch B of the epoch, as in the paper: as many outer steps as
    FedAvg's, twice the passes. FedPall pairs consecutive batches and skips an odd last one (half the steps); PFLlib
    trains twice a round on the halves of double batches (as many as here). Before a test the client takes one step of
    rate alpha on a batch of its training data, always the same; adapted = False is FedPall's test of the averaged net.
    Fallah et al., NeurIPS 2020, arXiv:2002.07948.
    """
    alpha: float = 0.01                  # 0.01 in FedPall
    beta: float = 0.001                  # 0.01 in FedPall; 0: the protocol's lr, as PFLlib has it now
    adapted: bool = True
    one_rate: bool = settings.later(False)           # alpha is the rate of the outer step, as in PFLlib
    limit = dict(alpha=0.0, beta=0.0, adapted=False), "FedAvg", "cnn4"   # the pass over B' moves batch-norm statistics

    personal = property(lambda self: self.adapted)

    def local(self, client):
        client.scratch["beside"] = endless(client, self.protocol, client.round)
        super().local(client)

    def step(self, net, x, y, client, opt, loss):
        w = snapshot(net, without=buffers(net))
        self.inner(net, next(client.scratch["beside"]), client)
        back = each("sub", w, snapshot(net))
        value = super().step(net, x, y, client, at_rate(opt, self.beta), loss)      # the gradient at w' ...
        load_params(net, each("add", back, snapshot(net)))      # ... moves w
        return value

    def inner(self, net, batch, client):
        """w - alpha grad F_k(w; batch), in place."""
        alpha = (self.beta or rate(self.protocol, client.round)) if self.one_rate else self.alpha
        super().step(net, *batch, client, torch.optim.SGD(net.parameters(), alpha), self.loss)

    def adapt(self, client):
        if self.adapted:
            self.inner(client.net.train(), next(endless(client, self.protocol, "test")), client)


class Own(FedAvg):
    """Each client goes on with its own net, whole; what comes from others is only looked at."""
    personal = True

    def receive(self, client, got):
        load_params(client.net, client.state.get("own", got.get("params", {})))

    def local(self, client):
        super().local(client)
        client.state["own"] = snapshot(client.net)


@method
class FedAMP(Own):
    """F_k(w_k) + lam/(2 alpha_k) |w_k - u_k|^2;  u_k = w_k + alpha_k/sigma sum_j e^{-|w_k - w_j|^2/sigma} (w_j - w_k).

    The server makes the cloud model u_k of client k from the last nets of all that have taken part; the client goes on
    with its own net. Similar nets attract each other. A weight is nothing when |w_k - w_j|^2 is far above sigma (then
    u_k is the client's own last net), and u_k lies among the nets when alpha_k <= sigma / (K - 1). Distances cover
    trainable parameters; nothing uses another's batch-norm statistics, so they stay.
    norm = "released" is |w_k - u_k|, not squared, as PFLlib's line reads: a pull of length lam / (2 alpha_k) however
    far u_k is. With the values of its examples (1000, 0.1, 1) that is nearly Local, and the square, a step of lr lam /
    sigma of the way to each other net, would throw nets past each other at rates above 0.01 or so. PFLlib takes it of
    `.data` (since March 2023; before, it was the square), so there it has no gradient, and FedAMP is Local.
    Huang et al., AAAI 2021, arXiv:2007.03797.
    """
    alpha_k: float = 10.0                # ours, for the square; 1000 in PFLlib's examples
    sigma: float = 100.0                 # ours; 0.1, 5e-3 or 5e-7 in PFLlib's examples
    lam: float = 1.0                     # 1 in PFLlib's examples
    norm: Literal["squared", "released"] = "squared"
    least = dict(alpha_k=1e-9, sigma=1e-9)
    limit = dict(lam=0.0), "Local"

    def setup(self, net):
        super().setup(net)
        self.models_ = {}                # the last net of each client

    def private(self, net):
        return buffers(net)

    def broadcast(self, client_id):
        if client_id not in self.models_:
            return {"params": self.global_}
        return {"params": cloud(client_id, self.models_, self.alpha_k, self.sigma)}

    def aggregate(self, uploads):
        self.models_ |= {i: u["params"] for i, u in uploads.items()}

    def loss(self, net, x, y, client):
        far = sq_dist(net, client.got["params"])
        far = far.clamp(min=1e-24).sqrt() if self.norm == "released" else far       # the root has no slope at 0
        return super().loss(net, x, y, client) + self.lam / (2 * self.alpha_k) * far


@method
class FedFomo(Own):
    """w_k <- sum_j p_j w_j, p_j ~ max(0, (L_k(old_k) - L_k(w_j)) / |w_j - old_k|), sum p_j = 1; then train.

    L_k: loss on a part of the client's training data that it holds out (drawn once); old_k: its net before its last
    training; no p_j above 0: its net stays. (The paper's old_k + sum_j p_j (w_j - old_k) is the same.) The server sends
    the M nets with the largest affinity P_kj, at first 1 for the client's own and 0 for others; what a client reports,
    its weights before max and scaling, is added to P. So a client sees nets trained on another's data alone, and M nets
    travel down. Ties go to the lower number; the paper explores at random. Zhang et al., ICLR 2021, arXiv:2012.08565.
    """
    M: int = 5                           # PFLlib's
    held: float = 0.2                    # share held out; 0: L_k on all training data, nothing held out
    most = {"held": 0.9}
    limit = dict(M=0, held=0.0), "Local"

    def setup(self, net):
        super().setup(net)
        self.models_, self.P_ = {}, {}   # the last net of each client; affinities by client and client

    def broadcast(self, client_id):
        likes = self.P_.get(client_id, {})
        best = sorted(self.models_, key=lambda j: (-float(likes.get(j, 0)), len(j), j))[:self.M]
        return {"params": {}, "models": {j: self.models_[j] for j in best}}

    def aggregate(self, uploads):
        for i, u in uploads.items():
            self.models_[i], likes = u["params"], self.P_.setdefault(i, {i: torch.ones(())})
            likes |= {j: likes.get(j, 0) + weight for j, weight in u.get("weights", {}).items()}

    def local(self, client):
        whole = client.train
        client.train, held = hold_out(client, self.held)
        old = load_params(copy.deepcopy(client.net), client.state.get("old", {})).eval()
        client.scratch["weights"] = weights = worth(old, client.got.get("models", {}), held, self.protocol)
        models, p = [client.got["models"][j] for j in weights], [max(0.0, float(v)) for v in weights.values()]
        load_params(client.net, mean(models, p) if sum(p) else {})
        client.state["old"] = snapshot(client.net)
        super().local(client)
        client.train = whole

    def upload(self, client):
        return super().upload(client) | {"weights": client.scratch["weights"]}


@method
class IFCA(FedAvg):
    """Client k trains w_j with j = argmin_i F_k(w_i), over `k` nets; w_j <- the mean over the clients that chose it.

    All nets travel down, one up, with its number. F_k: mean loss on (at most 1,024) training samples, batch-norm with
    their own statistics: averaged ones lag behind, and a net would seem worse for having been trained. The first net
    starts as FedAvg's, each other one with new draws of its layers; a net that nobody chose stays. A test chooses in
    the same way, on training samples. Ghosh et al., NeurIPS 2020, arXiv:2006.04088.
    """
    k: int = 2
    least = {"k": 1}
    limit = dict(k=1), "FedAvg"

    personal = property(lambda self: self.k > 1)

    def setup(self, net):
        super().setup(net)
        self.models_ = {"0": self.global_} | {str(j): snapshot(redrawn(net, key(self.seed, "net", j)), self.stays(net))
                                              for j in range(1, self.k)}

    def broadcast(self, client_id):
        return {"params": {}, "models": self.models_}

    def receive(self, client, got):
        models, some = got["models"], client.train
        if len(some) > 1024:             # they lie by class
            some = some[torch.randperm(len(some), generator=generator(client.seed, "choice", client.id))[:1024]]
        own = snapshot(client.net, without=models["0"])     # statistics that the client keeps move as it chooses
        client.net.train(len(some) > 1)
        losses = {j: mean_loss(load_params(client.net, w), {}, some, self.protocol) for j, w in models.items()}
        best = min(sorted(models), key=lambda j: float(losses[j]))
        client.scratch["chosen"] = torch.tensor(int(best))
        load_params(client.net, own | models[best])

    def upload(self, client):
        return super().upload(client) | {"chosen": client.scratch["chosen"]}

    def aggregate(self, uploads):
        chosen = {i: str(int(u["chosen"])) for i, u in uploads.items()}
        self.measured = {f"chosen by {i}": int(j) for i, j in chosen.items()}
        for j in self.models_:
            if j in chosen.values():
                super().aggregate({i: u for i, u in uploads.items() if chosen[i] == j})
                self.models_ = self.models_ | {j: self.global_}


def redrawn(net, seed: int):
    """A copy of the net whose layers have drawn their first values anew."""
    net = copy.deepcopy(net)
    with drawing(seed):
        for layer in net.modules():
            if hasattr(layer, "reset_parameters"):
                layer.reset_parameters()
    return net


def at_rate(opt, lr: float):
    """The optimiser with this learning rate; 0: with its own."""
    for group in opt.param_groups:
        group["lr"] = lr or group["lr"]
    return opt


def endless(client, protocol, *key):
    """Batches of the client's training data without end, drawn apart from those of the epochs."""
    gen = generator(client.seed, "beside", *key, client.id)
    while True:
        yield from batches(client.train, protocol.batch, protocol.augment, gen, protocol.order, protocol.least_batch)


def cloud(own: str, models: dict, alpha_k: float, sigma: float) -> dict:
    """u = w + sum_j xi_j (w_j - w), xi_j = alpha_k/sigma e^{-|w - w_j|^2 / sigma}, over the other models, by client."""
    w, u = models[own], dict(models[own])
    for j in sorted(set(models) - {own}):
        step = each("sub", models[j], w)
        xi = alpha_k / sigma * torch.exp(-sum(step[k].square().sum() for k in sorted(step)) / sigma)
        u = each("add", u, each("mul", step, xi))
    return u


def hold_out(client, share: float):
    """(training part, held-out part) of the client's training data, the same in every round; 0: the whole, twice."""
    size = int(share * len(client.train))
    order = torch.randperm(len(client.train), generator=generator(client.seed, "hold out", client.id))
    order = order.to(client.train.y.device)
    return client.train[order[size:].sort().values], client.train[order[:size] if size else order]


def worth(old, models: dict, split, protocol) -> dict:
    """(L(old) - L(w_j)) / |w_j - old| of each model, by client in a fixed order; L: `mean_loss` on the split."""
    before = mean_loss(old, {}, split, protocol) if models else 0
    return {j: (before - mean_loss(old, models[j], split, protocol)) / (sq_dist(old, models[j]).detach().sqrt() + 1e-5)
            for j in sorted(models)}


@torch.no_grad()
def mean_loss(net, params: dict, split, protocol):
    """Cross-entropy on the split of the net with these entries."""
    with autocast(protocol, split.y):
        sums = [F.cross_entropy(functional_call(net, params, x).float(), y, reduction="sum")
                for x, y in split.parts(1024)]
    return sum(sums) / len(split)
