"""Frozen encoders: the server trains on what clients send of their features, once."""
import copy
import math
import time
import warnings
from typing import Literal

import torch
import torch.nn.functional as F

from fedlib.core.errors import UserError
from fedlib.core.federation import Split
from fedlib.core.params import load_params, snapshot
from fedlib.core.seeds import generator
from fedlib.methods.base import FedAvg, method, warmed

LAST = 20       # batches whose losses say whether the server's training has converged


@method
class MPFT(FedAvg):
    """A <- argmin_A sum_k sum_{p in P_k} CE(H a / |a|, c(p)), a = p + A(p), at the server; all in one round.

    P_k: what client k sends of its features x of a frozen encoder, for each class c: their mean ("mean"), ceil(r n_c)
    k-means centres ("cluster") or as many samples ("random"); with noise, p + q N(0, s^2 I). The server trains the
    adapter A on all of them (AdamW, warm-up, cosine) until the losses of the last 20 batches have a standard deviation
    below `threshold`, as in the released code; the paper speaks of a variance. Prototypes are not normalised.

    With shots = F a client goes on for one epoch on its first F samples of each class, with CE + beta KL(global |
    own), as personalisation before a test. The released KL is the mean over batch and classes; "sum" is Eq. 10.
    Zhang et al., ICLR 2025, arXiv:2410.07738.
    """
    sampling: Literal["mean", "cluster", "random"] = "mean"
    rate: float = 0.1                    # r
    threshold: float = 0.001
    server_epochs: int = 200             # at most
    server_batch: int = 10
    server_lr: float = 0.001
    server_warmup: int = 10              # epochs
    q: float = 0.0                       # 0: no noise
    s: float = 0.05
    shots: int = 0                       # F; 0: no local adaptation
    beta: float = 0.0
    local_lr: float = 0.0001             # 0.001, of which the first epoch of the warm-up takes a tenth
    kd: Literal["mean", "sum"] = "mean"
    limit = "no setting turns it off: with sampling = \"random\" and rate = 1 the server trains on everyone's features"
    least = dict(server_epochs=1, server_batch=1)
    most = dict(rate=1)

    personal = property(lambda self: self.shots > 0)

    # server

    def setup(self, net):
        super().setup(net)
        self.net = copy.deepcopy(net)

    def aggregate(self, uploads):
        x, y = (torch.cat([u[k] for u in uploads.values()]) for k in ("protos", "of"))
        self.measured = converge(self, load_params(self.net, self.global_), x, y)
        self.global_ = snapshot(self.net)

    # client

    def local(self, client):
        """No training: the features are those of the frozen encoder."""

    def upload(self, client):
        protos, of = pool(client.train.input(), client.train.y, self, generator(client.seed, "protos", client.id))
        draws = generator(client.seed, "noise", client.id, *client.secret)
        noise = torch.randn(protos.shape, generator=draws).to(protos.device)
        return {"protos": protos + self.q * self.s * noise, "of": of, "n": torch.tensor(len(client.train))}

    def adapt(self, client):
        if self.shots:
            distil(self, client, first(client.train, self.shots))


def converge(method: MPFT, net, x, y) -> dict:
    """Train the net on prototypes `(P, D)` of classes `(P,)`; returns what it took, for the record.

    The order is drawn once and what does not fill a batch is left out, as in the released code.
    """
    start, batch, losses = time.monotonic(), min(method.server_batch, len(y)), []
    order = torch.randperm(len(y), generator=generator(method.seed, "protos"))[:len(y) - len(y) % batch].to(y.device)
    pieces = list(zip(x[order].split(batch), y[order].split(batch), strict=True))
    opt = torch.optim.AdamW(net.train().parameters(), method.server_lr, fused=True)
    for epoch in range(method.server_epochs):
        opt.param_groups[0]["lr"] = method.server_lr * warmed(epoch, method.server_warmup, method.server_epochs)
        losses += [step(opt, net, F.cross_entropy(net(p), c)) for p, c in pieces]
        last = torch.stack(losses[-LAST:])
        if len(losses) > LAST and last.std(correction=0) < method.threshold:
            break
    return {"prototypes": len(y), "epochs": epoch + 1, "steps": len(losses), "loss": round(float(last.mean()), 6),
            "seconds": round(time.monotonic() - start, 3)}


def distil(method: MPFT, client, few: Split):
    """One epoch in batches of 8 of CE + beta KL(softmax(global) | softmax(own)); the own starts from the global."""
    anchor = copy.deepcopy(client.net).eval().requires_grad_(False)
    opt = torch.optim.AdamW(client.net.train().parameters(), method.local_lr)
    order = torch.randperm(len(few), generator=generator(client.seed, "shots", client.id)).to(few.y.device)
    for index in order.split(8):
        x, y = few.input(index), few.y[index]
        logits, old = client.net(x), anchor(x)
        apart = F.kl_div(logits.log_softmax(1), old.log_softmax(1), log_target=True, reduction="none").sum(1).mean()
        apart = apart / (old.shape[1] if method.kd == "mean" else 1)
        step(opt, client.net, F.cross_entropy(logits, y) + method.beta * apart)


def pool(x, y, method: MPFT, gen) -> tuple[torch.Tensor, torch.Tensor]:
    """All prototypes `(P, D)` of a client's features and their classes `(P,)`. UserError: x are no features."""
    if x.dim() != 2 or not x.is_floating_point():      # token ids are of two dimensions as well
        raise UserError("MPFT takes features of a frozen encoder: name one in the data (encoder = ...)")
    classes = y.unique()
    parts = [prototypes(x[y == c], method.sampling, method.rate, gen) for c in classes]
    return torch.cat(parts), classes.repeat_interleave(torch.tensor([len(p) for p in parts], device=y.device))


def prototypes(x, sampling: str, rate: float, gen) -> torch.Tensor:
    """Prototypes `(P, D)` of one class's features `(n, D)`; P = 1 for the mean, else ceil(rate n)."""
    if sampling == "mean" or len(x) == 1:
        return x.mean(0, keepdim=True)
    count = math.ceil(rate * len(x) - 1e-9)     # 0.3 * 10 is 3
    if sampling == "random":
        return x[torch.randperm(len(x), generator=gen)[:count].to(x.device)]
    from sklearn.cluster import KMeans
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")         # equal features: fewer centres than asked for
        made = KMeans(count, random_state=0, n_init=1).fit(x.cpu().numpy())
    return torch.as_tensor(made.cluster_centers_, device=x.device)


def first(split: Split, count: int) -> Split:
    """The first samples of each class, at most `count`."""
    index = torch.cat([(split.y == c).nonzero()[:count, 0] for c in split.y.unique()])
    return split[index.sort().values]


def step(opt, net, loss) -> torch.Tensor:
    """One step with the gradient's norm at most 1; returns the loss, still on the device."""
    opt.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    opt.step()
    return loss.detach()
