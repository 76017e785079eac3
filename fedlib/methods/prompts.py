"""Learned prompts: contexts in the text tower of a frozen encoder are what clients train and exchange."""
import dataclasses
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from fedlib.core.errors import UserError
from fedlib.core.losses import cosines, frame, lmmd
from fedlib.core.seeds import drawing, generator, key
from fedlib.methods.base import FedAvg, method

TEST_BATCH = 64     # images whose mean feature modulates a prompt at a test, as FedDEAP's code has it


@method
class ZeroShot(FedAvg):
    """argmax_c cos(z, g(prompt of c)): the encoder as it is, nothing is trained (Radford et al., arXiv:2103.00020).

    It belongs on net = "identity": a net with weights of its own would be tested as it was drawn.
    """
    limit = "there is nothing to turn off"
    stackable = False

    def local(self, client):
        """No training."""


@method
class FedCLIP(FedAvg):
    """(CE(s z_i t_{y_j}, i) + CE(s t_{y_i} z_j, i)) / 2: CLIP's contrastive loss of a batch, for an adapter behind it.

    z: the adapter's features `(B, D)`; t: the classes' vectors, a frozen head. Two images of one class in a batch are
    each other's negatives, as in the released code. symmetric = False: cross-entropy over the classes.
    Lu et al., 2023, arXiv:2302.13485.
    """
    symmetric: bool = True
    limit = dict(symmetric=False), "FedAvg"

    def loss(self, net, x, y, client):
        return self.matched(net.head(net.body(x)), y)

    def matched(self, logits, y):
        """The loss of logits `(B, C)`."""
        if not self.symmetric:
            return F.cross_entropy(logits, y)
        pairs, own = logits[:, y], torch.arange(len(y), device=y.device)    # image i against the text of image j
        return (F.cross_entropy(pairs, own) + F.cross_entropy(pairs.T, own)) / 2


@method
class FACMIC(FedCLIP):
    """FedCLIP + lam LMMD(z, z'): features of the client's own test images, without labels, are drawn to its classes.

    It looks at test images while it trains, which no other method here does: its accuracy is transductive. The
    predictions of z' stand for their classes. Its code compares features of unit length, those of the unlabelled images
    without the adapter, takes these from the domain held out, and divides by the classes on both sides.
    Wu et al., MICCAI 2024, arXiv:2410.14707.
    """
    lam: float = 1.0
    limit = dict(lam=0.0), "FedCLIP", "cnn4"     # the pass over z' moves batch-norm statistics
    replayable = False                   # two passes have one way back; as graphs they were not equal on an H200

    def loss(self, net, x, y, client):
        gen = generator(client.seed, "unlabelled", client.round, client.id, len(client.scratch.get("losses", [])))
        some = torch.randint(len(client.test), (len(y),), generator=gen).to(y.device)
        z, other = net.body(x), net.body(client.test.input(some))
        logits = net.head(z)
        classes = F.one_hot(y, logits.shape[1]).float(), net.head(other).detach().softmax(1)
        return self.matched(logits, y) + self.lam * lmmd(z, classes[0], other, classes[1])


@method
class PromptFL(FedAvg):
    """CE(s cos(z, g([V, e_c])), y) over contexts V `(C, m, W)`: FedAvg of V, nothing else travels.

    specific = False: one context for all classes, as PromptFL and CoOp have it; FedAPT's and FedDEAP's code learns one
    for each. tune_epochs: before a test a client goes on with a V of its own, and forgets it.
    Guo et al., IEEE TMC 2023, arXiv:2208.11625.
    """
    tokens: int = 16                     # m
    specific: bool = True
    tune_epochs: int = 0
    least = dict(tokens=1)
    stackable = False                    # the text tower keeps what it computed last
    limit = "no setting turns it off: without a context it is ZeroShot"

    personal = property(lambda self: self.tune_epochs > 0)

    def equip(self, net):
        if not hasattr(net.head, "learn"):
            raise UserError(f"{type(self).__name__} learns prompts: take net = identity and head = prompts")
        if net.head.context is None:
            net.head.context = net.head.learn(self.tokens, self.specific, generator(self.seed, "context"))
        return net

    def local(self, client):
        super().local(client)
        if self.tune_epochs:
            client.state["round"] = torch.tensor(client.round)

    def adapt(self, client):
        if self.tune_epochs:
            # The order of samples is that of the last round it took part in, which only a client's state holds.
            last = int(client.state.get("round", 0))
            self.fit(client.net, dataclasses.replace(client, round=last, scratch={}), self.loss, self.tune_epochs)

    def vectors(self, net, client):
        """The texts' features `(C, D)` of a test."""
        return net.head.texts(net.head.context)


def given(net):
    """t0 `(C, D)`: what the tower says of the classes in words. It is the same everywhere and does not travel."""
    if not hasattr(net, "given"):
        net.register_buffer("given", net.head.said("a photo of a"), persistent=False)
    return net.given


@method
class KgCoOp(PromptFL):
    """PromptFL + lam mean_c (1 - cos(t_c, t0_c)), t0_c = g("a photo of a" name): what is learned stays near words.

    Made for one place; here its contexts are averaged. specific = False is the paper's.
    Yao et al., CVPR 2023, arXiv:2303.13283.
    """
    lam: float = 8.0
    limit = dict(lam=0.0), "PromptFL"

    def loss(self, net, x, y, client):
        t = net.head.texts(net.head.context)
        away = (1 - F.cosine_similarity(t, given(net))).mean()
        return F.cross_entropy(net.head.logits(net.body(x), t), y) + self.lam * away


@method
class FedPGP(PromptFL):
    """CE(s cos(z, t_k), y) + mu CE([cos(t, t0), cos(t, t_k)] / tau, 0): t = g(V), t_k = g(V + U_k W_k), t0 of words.

    V is averaged, drawn to the words and away from what the client has of its own: U `(C, m, rank)` and W
    `(C, rank, W)`, which stay. specific = False is the paper's. Cui et al., ICML 2024, arXiv:2405.09771.
    """
    rank: int = 4                        # 0: nothing of its own
    mu: float = 1.0
    tau: float = 0.5
    least = dict(tokens=1, rank=0)
    limit = dict(rank=0, mu=0.0), "PromptFL"

    personal = property(lambda self: self.rank > 0 or self.tune_epochs > 0)

    def equip(self, net):
        net = super().equip(net)
        if self.rank and not hasattr(net.head, "left"):
            (count, m, width), gen = net.head.context.shape, generator(self.seed, "low rank")
            for name, shape in (("left", (count, m, self.rank)), ("right", (count, self.rank, width))):
                drawn = 0.02 * torch.randn(shape, generator=gen)
                setattr(net.head, name, nn.Parameter(drawn.to(net.head.words.device)))
        return net

    def private(self, net):
        return {"head.left", "head.right"} & set(net.state_dict())

    def vectors(self, net, client):
        head = net.head
        return head.texts(head.context + head.left @ head.right if self.rank else head.context)

    def loss(self, net, x, y, client):
        own = self.vectors(net, client)
        value = F.cross_entropy(net.head.logits(net.body(x), own), y)
        if self.mu:
            t = net.head.texts(net.head.context)
            sides = torch.stack([F.cosine_similarity(t, given(net)), F.cosine_similarity(t, own)], 1) / self.tau
            value = value + self.mu * F.cross_entropy(sides, torch.zeros_like(sides[:, 0], dtype=torch.long))
        return value

    def predict(self, net, x, client):
        return net.head.logits(net.body(x), self.vectors(net, client)) if self.rank else net(x)


@method
class FedTPG(PromptFL):
    """CE(s cos(z, g([V, e_c])), y), V = P(t): a network writes the context from what the tower says of the names.

    t = g(name) `(C, D)` of unit length; P's m queries look at t and give V `(1, m, W)`, for all classes; P is averaged
    and writes for names that nobody trained on, too. As released P has no further layers of self-attention.
    Qiu et al., ICLR 2024, arXiv:2310.06123.
    """
    tokens: int = 4
    limit = "no setting turns it off: the context is written, never a parameter"

    def equip(self, net):
        if not hasattr(net, "writer"):
            m, width = super().equip(net).head.context.shape[1:]        # what is written takes its place
            net.writer = Writer(m, width, net.head.in_features, key(self.seed, "writer")).to(net.head.words.device)
            net.head.context = None
        return net

    def vectors(self, net, client):
        if not hasattr(net, "names"):
            with torch.inference_mode(False), torch.no_grad():      # who is tested first may train later
                net.register_buffer("names", F.normalize(net.head.texts(None), dim=-1), persistent=False)
        return net.head.texts(net.writer(net.names))

    def loss(self, net, x, y, client):
        return F.cross_entropy(self.predict(net, x, client), y)

    def predict(self, net, x, client):
        return net.head.logits(net.body(x), self.vectors(net, client))


class Writer(nn.Module):
    """Texts' features `(C, D)` -> a context `(1, m, W)`: m queries attend to them, then a gated layer with a shortcut.

    FedTPG's, arXiv:2310.06123: four heads, x + W2 (h * gelu(h')), [h, h'] = W1 x of four times the width each.
    """

    def __init__(self, tokens: int, width: int, dim: int, seed: int):
        super().__init__()
        with drawing(seed):
            self.queries = nn.Parameter(0.02 * torch.randn(1, tokens, width))
            self.before, self.of_texts, self.between = nn.LayerNorm(width), nn.LayerNorm(dim), nn.LayerNorm(width)
            self.attend = nn.MultiheadAttention(width, 4, kdim=dim, vdim=dim, batch_first=True)
            self.gated, self.out = nn.Linear(width, 8 * width), nn.Linear(4 * width, width)

    def forward(self, t):
        t = self.of_texts(t)[None]
        x = self.attend(self.before(self.queries), t, t, need_weights=False)[0]
        h, gate = self.gated(self.between(x)).chunk(2, -1)
        return x + self.out(h * F.gelu(gate))


@method
class FedAPT(PromptFL):
    """CE(s cos(z, g([V + V * key_k, e_c])), y) + CE(q z, k): key_k ~ U(0, 1) fixed, the query q learns the domain k.

    A test mixes the keys for each image: a = softmax(standardised q z / t) and V + V * sum_k a_k key_k, a text pass for
    each image and class. At t = 0.01 a is nearly one-hot: mix = "nearest" takes its largest, N passes in all.
    Su et al., 2024, arXiv:2211.07864.
    """
    t: float = 0.01
    mix: Literal["nearest", "each"] = "nearest"
    limit = "no setting turns it off: keys of zero are PromptFL beside a query that nothing depends on"

    def equip(self, net):
        net = super().equip(net)
        if not hasattr(net, "query"):
            count, (_, m, width) = len(self.domains), net.head.context.shape
            with drawing(key(self.seed, "query")):
                net.query = nn.Linear(net.head.in_features, count, bias=False).to(net.head.words.device)
            keys = torch.rand(count, 1, m, width, generator=generator(self.seed, "keys"))
            net.register_buffer("keys", keys.to(net.head.words.device), persistent=False)
        return net

    def loss(self, net, x, y, client):
        z, k = net.body(x), self.domains.index(client.domain)
        t = net.head.texts(net.head.context * (1 + net.keys[k]))
        return F.cross_entropy(net.head.logits(z, t), y) + F.cross_entropy(net.query(z), torch.full_like(y, k))

    def predict(self, net, x, client):
        z = net.body(x)
        q = net.query(z)
        a = ((q - q.mean(1, keepdim=True)) / q.std(1, correction=0, keepdim=True).clamp(min=1e-6) / self.t).softmax(1)
        if self.mix == "nearest":
            return net.head.logits(z, net.head.texts(net.head.context * (1 + net.keys))[a.argmax(1)])
        keys = torch.einsum("bn,ncmw->bcmw", a, net.keys)
        return torch.cat([net.head.logits(part, net.head.texts(net.head.context * (1 + some)))
                          for part, some in zip(z.split(TEST_BATCH), keys.split(TEST_BATCH), strict=True)])


@method
class FedDEAP(PromptFL):
    """CE(s cos(z, t), y), t_c = g([P_G^c, P_D^c * mean z, e_c]): P_G is averaged, P_D stays; frames shape both.

    Networks T_S, T_D (D, D/2, D) turn image features to the vectors E_S^y of their class and E_D^k of their domain in
    equiangular frames: CE(cos(T(z), E) / etf_temp). With the networks held, P_G also follows CE(cos(T_S(t_c), E_S), c)
    with weight lam1, P_D CE(cos(T_D(t_c), E_D), k) with lam2. P_G, T_S and T_D are averaged; P_D is the client's.

    mode = "as_released": texts pass the networks without gradient, so lam1 and lam2 do nothing, and P_D gets the
    gradient of the first loss twice. modulation is the mean feature at a test: of the client's training images; as
    released of each batch of 64 test images in the order of the files, nearly one class a batch, which tells the label;
    of shuffled batches; of each image alone; or "none", no product in training either. As released training images come
    class by class too (the protocol's order = "classes"): only then does P_D learn what such a mean tells.
    Its paper: arXiv:2510.18837.
    """
    local_tokens: int = 16               # of P_D; 0: none
    lam1: float = 1.0
    lam2: float = 1.0
    networks: bool = True
    mode: Literal["paper", "as_released"] = "paper"
    modulation: Literal["train_mean", "batch_sorted", "batch_shuffled", "per_sample", "none"] = "train_mean"
    etf_temp: float = 1.0
    at_once = 1_000_000                  # batches of a test are cut from the whole of it; features are small
    limit = dict(local_tokens=0, networks=False), "PromptFL"

    personal = property(lambda self: self.local_tokens > 0 or self.tune_epochs > 0)

    def equip(self, net):
        net = super().equip(net)
        if self.local_tokens and not hasattr(net.head, "local"):
            net.head.local = net.head.learn(self.local_tokens, True, generator(self.seed, "local context"))
        if self.networks and not hasattr(net, "semantic"):
            dim = net.head.in_features
            net.semantic = Turn(dim, net.head.out_features, self.seed, "semantic").to(net.head.words.device)
            net.domain = Turn(dim, max(2, len(self.domains)), self.seed, "domain").to(net.head.words.device)
        return net

    def private(self, net):
        return {"head.local"} & set(net.state_dict())

    def loss(self, net, x, y, client):
        z, k = net.body(x), y.new_full((), self.domains.index(client.domain))
        paper = self.networks and self.mode == "paper"
        t = self.texts(net, z.mean(0), held="own")
        value = F.cross_entropy(net.head.logits(z, t), y)
        if self.networks:
            value = value + net.semantic.away(z, y, self.etf_temp) + net.domain.away(z, k.expand_as(y), self.etf_temp)
        if paper:
            value = value + self.lam1 * net.semantic.away(t, torch.arange(len(t), device=y.device), self.etf_temp, True)
        if self.local_tokens:
            t = self.texts(net, z.mean(0), held="shared")
            value = value + F.cross_entropy(net.head.logits(z, t), y) * (2 if self.mode == "as_released" else 1)
            if paper:
                value = value + self.lam2 * net.domain.away(t, k.expand(len(t)), self.etf_temp, True)
        return value

    def texts(self, net, mean, held: str = ""):
        """t under mean features `(D,)` or `(N, D)`; held: the prompt without gradient, "shared" P_G or "own" P_D."""
        shared, own = net.head.context, getattr(net.head, "local", None)
        if own is None:
            return net.head.texts(shared)
        shared, own = (v.detach() if held == name else v for name, v in (("shared", shared), ("own", own)))
        own = own if self.modulation == "none" else own * mean[..., None, None, :]
        return net.head.texts(torch.cat([shared.expand(*own.shape[:-2], -1, -1), own], -2))

    def vectors(self, net, client):
        """t under the mean feature of the client's training images."""
        return self.texts(net, net.body(client.train.input()).mean(0))

    def predict(self, net, x, client):
        z, head = net.body(x), net.head
        if not self.local_tokens or self.modulation in ("train_mean", "none"):
            return head.logits(z, self.vectors(net, client))
        if self.modulation == "per_sample":
            return torch.cat([head.logits(part, self.texts(net, part)) for part in z.split(TEST_BATCH)])
        order = torch.arange(len(z)) if self.modulation == "batch_sorted" else torch.randperm(
            len(z), generator=generator(client.seed, "test order", client.id))
        order = order.to(z.device)
        parts = [head.logits(part, self.texts(net, part.mean(0))) for part in z[order].split(TEST_BATCH)]
        return torch.cat(parts)[order.argsort()]


class Turn(nn.Sequential):
    """A network v -> T(v) of D, D/2 and D numbers, and the equiangular frame E `(C, D)` that it turns vectors to."""

    def __init__(self, dim: int, count: int, seed: int, what: str):
        with drawing(key(seed, what)):
            super().__init__(nn.Linear(dim, dim // 2), nn.ReLU(), nn.Linear(dim // 2, dim))
        self.register_buffer("frame", frame(dim, count, generator(seed, what, "frame")), persistent=False)

    def away(self, v, target, temp: float = 1.0, held: bool = False):
        """mean CE(cos(T(v), E) / temp, target); held: the gradient goes to v only."""
        turned = functional_call(self, {k: p.detach() for k, p in self.named_parameters()}, (v,)) if held else self(v)
        return F.cross_entropy(cosines(turned, self.frame) / temp, target)
