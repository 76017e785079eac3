"""A shared body under a head of one's own: which heads, features or statistics of others a client builds it from."""
import copy

import torch
import torch.nn.functional as F
from torch import nn

from fedlib.core.losses import align, class_means, cosines, mmd
from fedlib.core.params import load_params, mean, snapshot
from fedlib.core.seeds import drawing, generator, key
from fedlib.methods.base import FedAvg, autocast, linear, method, outputs
from fedlib.methods.prototypes import Prototypes, weighted
from fedlib.methods.sharing import FedPer, fit_part, tune


@method
class FedPAC(Prototypes):
    """h_k <- sum_j a_kj h_j, a_k = argmin_{a >= 0, sum a = 1} sum_j a_j^2 v_j + |m_k - sum_j a_j m_j|^2, h_k the head.

    m_j `(C, D)`: class means of client j's features, times the classes' shares of its samples; v_j: their variance,
    over n_j: the combination of heads whose expected loss on client k's features is the least, were heads linear in
    them. Both are of the received body. Then the head trains alone, and after it the body, by F_k + lam mean
    (z - P^y)^2 with P^c the mean over all samples of a class. Xu, Tong and Huang, ICLR 2023, arXiv:2306.11867.
    """
    lam: float = 1.0                     # 1 in PFLlib
    head_epochs: int = 1                 # 1 in PFLlib; the protocol's epochs are the body's
    combine: bool = True                 # False: heads stay, as in FedRep
    limit = dict(lam=0.0, head_epochs=10, combine=False), "FedRep"      # which trains the body for one epoch
    personal, private = True, FedPer.private

    def setup(self, net):
        super().setup(net)
        self.heads_ = {}

    def broadcast(self, client_id):
        own = {"head": self.heads_[client_id]} if client_id in self.heads_ else {}
        return super().broadcast(client_id) | own

    def receive(self, client, got):
        super().receive(client, got)
        load_params(client.net.head, got.get("head", {}))

    def local(self, client):
        z, classes = outputs(client.net.body, client.train, self.protocol), client.net.head.out_features
        means, counts = class_means(z, client.train.y, classes)
        m = means * (counts / counts.sum())[:, None]
        client.scratch |= {"m": m, "v": (z.square().sum() / len(z) - m.square().sum()) / len(z)}
        fit_part(self, client, "head", self.head_epochs)
        fit_part(self, client, "body", self.protocol.epochs)

    def loss(self, net, x, y, client):
        z = net.body(x)
        return F.cross_entropy(net.head(z), y) + self.lam * align(z, y, client.got["protos"], client.got["seen"])

    def upload(self, client):
        own = {"head": snapshot(client.net.head)} | {k: client.scratch[k] for k in ("m", "v")}
        return super().upload(client) | (own if self.combine else {})

    def merge(self, protos, counts):
        return weighted(protos, counts)

    def aggregate(self, uploads):
        super().aggregate(uploads)
        if self.combine:
            a = combinations(*(torch.stack([u[k] for u in uploads.values()]) for k in "mv"))
            heads = [u["head"] for u in uploads.values()]
            self.heads_ = self.heads_ | {i: mean(heads, row) for i, row in zip(uploads, a)}
            self.measured = {f"own share of {i}": round(float(row[k]), 4)
                             for k, (i, row) in enumerate(zip(uploads, a))}


@method
class FedAS(FedPer):
    """w <- sum_k f_k w_k / sum_k f_k, f_k = sum_B |grad F_k(w_k; B)|^2 over the batches B; heads stay.

    f_k estimates the trace of the Fisher information: nets that are still learning weigh most. Before its training and
    before a test a client pulls the features of the received body to the class means that its own last one had, by
    mean (z - P^y)^2, for `align_epochs`; PFLlib adds up the classes' means, at a rate of 0.01, and tests what was
    trained last (evaluate = "after"). Yang, Huang and Ye, CVPR 2024 (no preprint).
    """
    align_epochs: int = 1                # 1 in PFLlib
    fisher: bool = True                  # False: weights as FedAvg's
    limit = dict(align_epochs=0, fisher=False), "FedPer"

    def local(self, client):
        self.adapt(client)
        super().local(client)
        z = outputs(client.net.body, client.train, self.protocol)
        protos, counts = class_means(z, client.train.y, client.net.head.out_features)
        client.state["last"] = {"protos": protos, "seen": counts > 0}

    def adapt(self, client):
        if "last" in client.state:
            tune(self, client, "body", self.align_epochs, self.far)

    def far(self, net, x, y, client):
        """The distance of features from what they were."""
        return align(net.body(x), y, **client.state["last"])

    def upload(self, client):
        return super().upload(client) | ({"fisher": trace(client, self.protocol)} if self.fisher else {})

    def client_weights(self, uploads):
        if self.fisher:
            return [float(u["fisher"]) + 1e-12 for u in uploads.values()]
        return super().client_weights(uploads)


@method
class pFedFDA(FedPer):
    """w_c = S^-1 m_c, b_c = log pi_kc - m_c^T S^-1 m_c / 2: the head is what Gaussian classes of one covariance give.

    The body trains under the head of the server's m `(C, D)` and S `(D, D)` with the client's class shares pi_k. Then
    the client takes m <- beta m_k + (1 - beta) m, S alike, with m_k, S_k of its own features, S_k plus `ridge` I, and
    the beta of 0, 0.2, ..., 1 that has the least loss where one half of its samples gives m_k, S_k and the other is
    asked; these it sends, and its head is made of them, before a test anew. The authors search two betas by L-BFGS.
    McLaughlin and Su, NeurIPS 2024, arXiv:2411.00329.
    """
    ridge: float = 1.0                   # 1 in the released code, which adds 1e-4 + I
    local_only: bool = False             # True: beta = 1
    limit = "no setting trains the head by steps; with local_only clients share a body alone"

    def setup(self, net):
        super().setup(net)
        linear(net, type(self).__name__)
        self.means_ = torch.rand(net.head.out_features, net.dim, generator=generator(self.seed, "means"))
        self.cov_ = torch.eye(net.dim)

    def broadcast(self, client_id):
        return super().broadcast(client_id) | {"means": self.means_, "cov": self.cov_}

    def local(self, client):
        load_params(client.net.head, lda(*(client.got[k] for k in ("means", "cov")), self.prior(client)))
        fit_part(self, client, "body", self.protocol.epochs)
        self.adapt(client)

    def adapt(self, client):
        z, y = outputs(client.net.body, client.train, self.protocol), client.train.y
        common, prior = [client.got[k] for k in ("means", "cov")], self.prior(client)
        order = torch.randperm(len(y), generator=generator(client.seed, "halves", client.id)).to(y.device)
        parts = [(part, gaussians(z[part], y[part], common[0], self.ridge)) for part in (*order.tensor_split(2), order)]
        *halves, (_, whole) = parts if len(y) > 1 else parts[2:]

        def between(own, beta):
            return [torch.lerp(there, here, beta) for there, here in zip(common, own)]

        def asked(beta):
            heads = (lda(*between(own, beta), prior) for _, own in halves)
            return sum(float(F.cross_entropy(F.linear(z[other], **head), y[other]))
                       for head, (other, _) in zip(heads, reversed(halves)))

        beta = 1.0 if self.local_only else min((b / 5 for b in range(6)), key=asked)
        client.scratch |= dict(zip(("means", "cov"), between(whole, beta)))
        load_params(client.net.head, lda(*(client.scratch[k] for k in ("means", "cov")), prior))

    def prior(self, client):
        """pi_k `(C,)`, a little for every class."""
        return F.normalize(class_shares(client) + 1e-4, 1, 0)

    def upload(self, client):
        return super().upload(client) | {k: client.scratch[k] for k in ("means", "cov")}

    def aggregate(self, uploads):
        super().aggregate(uploads)
        said = mean([{k: u[k] for k in ("means", "cov")} for u in uploads.values()], self.client_weights(uploads))
        self.means_, self.cov_ = said["means"], said["cov"]


@method
class FedCP(FedAvg):
    """CE(H_k(r z) + H(s z), y) + lam MMD(z, z_w), (r, s) = softmax over the two of g(z c / |c|), c the sum of H_k's w.

    For each sample the policy g, averaged as the body is, parts every feature between the client's own head H_k and the
    received H, which stays as it came; z_w: features of the received body. Gumbel noise is added to g in training (in
    PFLlib in tests too). Up travels (H + H_k) / 2. Zhang et al., KDD 2023, arXiv:2307.01217.
    """
    lam: float = 1.0                     # 1 in PFLlib, 5 in the authors' script
    limit = "a policy has no setting at which it gives everything to one head"
    personal = True
    stackable = False                    # noise is drawn step by step

    def equip(self, net):
        if not hasattr(net, "policy"):
            linear(net, type(self).__name__)
            net.policy = layers(self.seed, net, lambda d: nn.Sequential(nn.Linear(d, 2 * d), nn.LayerNorm(2 * d),
                                                                       nn.ReLU()))
        return net

    def local(self, client):
        net, scratch = client.net, client.scratch
        own = load_params(copy.deepcopy(net.head), client.state.get("own", {}))
        scratch |= {"before": copy.deepcopy(net.body).requires_grad_(False).eval(),
                    "gen": generator(client.seed, "policy", client.round, client.id)}
        net.head.requires_grad_(False)
        self.fit(nn.ModuleList([net, own]), client, self.losses, self.protocol.epochs)
        net.head.requires_grad_(True)
        client.state["own"] = snapshot(own)
        load_params(net.head, mean([snapshot(net.head), client.state["own"]], [1, 1]))

    def losses(self, pair, x, y, client):
        """Cross-entropy of both heads' sum, and the distance from the received body's features."""
        net, own = pair
        z = net.body(x)
        noise = torch.rand((len(z), 2, net.dim), generator=client.scratch["gen"]).clamp_(1e-20, 1 - 1e-7)
        logits = both(net, own.weight, own.bias, z, -(-noise.log()).log().to(z, non_blocking=True))
        return F.cross_entropy(logits, y) + self.lam * mmd(z, client.scratch["before"](x))

    def predict(self, net, x, client):
        own = client.state.get("own") or dict(net.head.named_parameters())
        return both(net, own["weight"], own["bias"], net.body(x), 0)


@method
class GPFL(FedPer):
    """CE(H_k(v(z, q_k)), y) + CE(cos(v(z, q), e), y) + lam |v(z, q) - e_0^y| + mu/2 |e, v|^2; H_k stays.

    e `(C, D)`: vectors of the classes; v(z, q) = ReLU((1 + a(q)) z + b(q)), a and b a layer each: both are averaged, as
    the body is. q_k = sum_c pi_kc e_c, pi_k the client's class shares, q the mean of e, both of the received e_0: one
    body gives features for all and for oneself. |.| is the length over the whole batch, as in PFLlib, which
    takes q and q_k from the client's last e instead of the received. Zhang et al., ICCV 2023, arXiv:2308.10279.
    """
    lam: float = 0.01                    # the authors' script for small nets; 1e-4 for ResNet-18; 1 in PFLlib
    mu: float = 0.1                      # there; 0 for ResNet-18 and in PFLlib
    limit = "no setting turns the valve into the identity"

    def equip(self, net):
        if not hasattr(net, "valve"):
            parts = layers(self.seed, net, lambda d: nn.ModuleList([
                *(nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.LayerNorm(d)) for _ in range(2)),
                nn.Embedding(net.head.out_features, d)]))
            net.valve, net.kinds = parts[:2], parts[2]
        return net

    def local(self, client):
        client.scratch |= {"e": client.net.kinds.weight.detach().clone(), "share": class_shares(client)}
        super().local(client)

    def loss(self, net, x, y, client):
        z, e, share, kinds = net.body(x), client.scratch["e"], client.scratch["share"], net.kinds.weight
        common, own = turned(net.valve, z, e.mean(0)), net.head(turned(net.valve, z, share @ e))
        size = sum(p.square().sum() for p in (kinds, *net.valve.parameters())) if self.mu else torch.zeros(())
        return (F.cross_entropy(own, y) + F.cross_entropy(cosines(common, kinds), y)
                + self.lam * (common - e[y]).norm() + self.mu / 2 * (size - size.detach()))    # a decay

    def predict(self, net, x, client):
        return net.head(turned(net.valve, net.body(x), class_shares(client) @ net.kinds.weight))


# the arithmetic

def layers(seed: int, net, make):
    """New layers `make(D)` of a run's own draws, where the net is."""
    with drawing(key(seed, "layers")):
        return make(net.dim).to(next(net.head.parameters()).device)


def class_shares(client) -> torch.Tensor:
    """pi_k `(C,)`: the classes' shares of a client's training samples."""
    counts = client.train.y.bincount(minlength=client.net.head.out_features)
    return counts / counts.sum()


def combinations(m, v) -> torch.Tensor:
    """a `(K, K)`: each row the a of least sum_j a_j^2 v_j + |m_k - sum_j a_j m_j|^2 with a >= 0 and sum 1.

    m `(K, C, D)`, v `(K,)`. Accelerated projected gradients, all rows at once, in double precision and on the CPU: so
    many small steps keep a GPU waiting.
    """
    m, v = m.cpu().double().flatten(1), v.cpu().double().clamp(min=0)
    apart = m[:, None] - m[None]                                    # k, j
    P = apart @ apart.mT + v.diag()
    scale = torch.linalg.matrix_norm(P, ord=2).clamp(min=1e-12)[:, None]
    a = last = torch.full_like(P[0], 1 / len(v))
    for t in range(2000):
        ahead = a + t / (t + 3) * (a - last)
        last, a = a, on_simplex(ahead - (P @ ahead[..., None])[..., 0] / scale)
    return a


def on_simplex(x) -> torch.Tensor:
    """The nearest rows that are not negative and have sum 1: max(x - t, 0) with one t for each row."""
    ordered = x.sort(descending=True).values
    over = (ordered.cumsum(-1) - 1) / torch.arange(1, x.shape[-1] + 1, device=x.device)
    count = (ordered > over).sum(-1, keepdim=True)
    return (x - over.gather(-1, count - 1)).clamp(min=0)


def trace(client, protocol) -> torch.Tensor:
    """sum_B |grad F_k(w; B)|^2 over the client's training batches, in evaluation mode and without augmentation."""
    net = client.net.eval()
    own, total = [p for p in net.parameters() if p.requires_grad], 0.0
    for x, y in client.train.parts(protocol.batch):
        with autocast(protocol, x):
            loss = F.cross_entropy(net(x), y)
        total = total + sum(g.square().sum() for g in torch.autograd.grad(loss, own))
    return total


def gaussians(z, y, others, ridge: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Class means `(C, D)`, those of `others` for classes without a sample, and the covariance within plus ridge I."""
    means, counts = class_means(z, y, len(others))
    means = torch.where(counts[:, None] > 0, means, others)
    apart = z - means[y]
    return means, apart.T @ apart / max(1, len(y) - 1) + ridge * torch.eye(z.shape[1]).to(z)


def lda(means, cov, prior) -> dict[str, torch.Tensor]:
    """The head whose logits are log prior_c + log N(z | m_c, S) but for what all classes share; S a little rounder."""
    cov = cov.double()
    even = cov.diagonal().mean() * torch.eye(len(cov)).to(cov)
    weight = torch.linalg.solve(torch.lerp(cov, even, 1e-4), means.double().T).T
    return {"weight": weight.to(means), "bias": prior.log() - ((means * weight).sum(1) / 2).to(means)}


def both(net, weight, bias, z, noise) -> torch.Tensor:
    """Logits of an own head on r z and of the net's on s z, (r, s) as the policy says."""
    c = F.normalize(weight.detach().sum(0), dim=0)
    r, s = (net.policy(z * c).unflatten(1, (2, -1)) + noise).softmax(1).unbind(1)
    return F.linear(r * z, weight, bias) + net.head(s * z)


def turned(valve, z, q) -> torch.Tensor:
    """v(z, q) = ReLU((1 + a(q)) z + b(q))."""
    a, b = (layer(q) for layer in valve)
    return F.relu((1 + a) * z + b)
