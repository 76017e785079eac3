"""How the others' images look: clients send what makes a look, not what is seen, and train on their images in it."""
from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.core.errors import UserError
from fedlib.core.federation import as_input, normals
from fedlib.core.seeds import drawing, generator, key
from fedlib.methods.base import FedAvg, autocast, method
from fedlib.methods.drift import number

STAGES = ("layer1", "layer2", "layer3")      # of a ResNet: behind them looks change


@method
class FedDG(FedAvg):
    """CE(x; w) + outer CE(x'; w - eta grad CE(x; w)); x': x with low frequencies as strong as in another's image.

    A client sends the amplitudes of `bank` of its images (of all, if it has fewer), at frequencies -r .. r, drawn once;
    each step draws an image of another client for each of its own: |F x'| = (1 - lam) |F x| + lam |F other| at those
    frequencies, phases as they were, lam ~ U(0, 1). The first round has no bank yet. The inner step is first-order, as
    in the released code, which has outer = 1, takes the mean colour alone and the other's whole: preset = "released".
    r = 1 is the window of the authors' demonstration, 0.003 of 384 pixels; their loader's bank is an eighth of the
    images. The third term of the loss, over contours of a segmentation, has no place here. Liu et al., CVPR 2021,
    arXiv:2103.06030.
    """
    r: int = 1
    outer: float = 1.0
    eta: float = 0.001
    bank: int = 32
    whole: bool = False                  # lam = 1
    limit = dict(outer=0.0), "FedAvg", "cnn4"
    presets = {"released": dict(r=0, whole=True)}
    least = dict(bank=1)
    stackable = False                    # images of others are drawn step by step
    replayable = False                   # a pass has two ways back

    def setup(self, net):
        super().setup(net)
        self.banks_ = {}

    def broadcast(self, client_id):
        others = [self.banks_[i] for i in sorted(self.banks_, key=number) if i != client_id]
        return super().broadcast(client_id) | ({"bank": torch.cat(others)} if others else {})

    def aggregate(self, uploads):
        super().aggregate(uploads)
        self.banks_ |= {i: u["bank"] for i, u in uploads.items()}

    def local(self, client):
        sides = client.train.x.shape[2:]
        if len(sides) != 2 or 2 * self.r >= min(sides):
            raise UserError(f"FedDG exchanges the frequencies -{self.r} to {self.r} of images: choose data without an "
                            "encoder, and r below half a side")
        client.scratch["gen"] = generator(client.seed, "looks", client.round, client.id)
        super().local(client)

    def loss(self, net, x, y, client):
        inner = F.cross_entropy(net(x), y)
        if "bank" not in client.got:
            return inner
        own = {k: p for k, p in net.named_parameters() if p.requires_grad}
        slopes = torch.autograd.grad(inner, own.values(), retain_graph=True)
        ahead = {k: p - self.eta * g for (k, p), g in zip(own.items(), slopes)}
        seen = self.dressed(x, client)
        return inner + self.outer * F.cross_entropy(torch.func.functional_call(net, ahead, seen), y)

    def dressed(self, x, client) -> Tensor:
        """Each image of a batch in the look of one of the bank's, drawn anew, normalised as it came."""
        gen, bank = client.scratch["gen"], client.got["bank"]
        chosen = torch.randint(len(bank), (len(x),), generator=gen).to(x.device, non_blocking=True)
        lam = torch.rand(len(x), 1, 1, 1, generator=gen).to(x.device, non_blocking=True)
        mean, std = normals(client.train.normal, x.device)
        pixels = exchanged(x * std + mean, bank[chosen], torch.ones_like(lam) if self.whole else lam)
        return (pixels - mean) / std

    def upload(self, client):
        drawn = torch.randperm(len(client.train), generator=generator(client.seed, "bank", client.id))[:self.bank]
        mean, std = normals(client.train.normal, client.train.y.device)
        pixels = as_input(client.train.x[drawn.to(client.train.y.device)], client.train.normal) * std + mean
        return super().upload(client) | {"bank": window(torch.fft.fft2(pixels), self.r).abs()}


@method
class StableFDG(FedAvg):
    """CE(H [mean_p z, sum_p a_p z], y), z the last map of images whose inner maps change their looks on the way.

    A look: each channel's mean and deviation over a map. Each of these happens in a step with chance p. Behind stage 1
    half of the batch gets looks N(M, S^2), M and S mean and deviation of another client's looks there; k-means++ picks
    who stays. Behind stages 1 to 3 looks become lam l_i + (1 - lam) l_j, lam ~ Beta(mix, mix); before the first time
    the batch grows by `more` of its size, of classes that it has least of, in looks l + alpha (l - mean l).

    a = softmax_p <k_p, mean_p (q + q') / 2>: q, k `(keys,)` of unit length from the place's channels; q' in training of
    the next image of the class in the batch. What others' looks are comes with the upload, one round late; the released
    code asks for it in a trip of its own, gives the kept looks to the batch's first images, and adds a supplemental
    batch where a class has one image. Park et al., NeurIPS 2023, arXiv:2311.00227.
    """
    p: float = 0.5
    alpha: float = 3.0
    more: float = 1.0
    mix: float = 0.1
    keys: int = 30                       # 0: the mean alone, no attention
    limit = dict(p=0.0, keys=0), "FedAvg"
    least = dict(keys=0)
    most = dict(p=1)
    stackable = False                    # looks are drawn step by step

    def equip(self, net):
        if not hasattr(net.body, STAGES[-1]) or not isinstance(net.head, nn.Linear):
            raise UserError("StableFDG changes looks between the stages of a ResNet: choose net = resnet10, resnet18 "
                            "or resnet50, and head = linear")
        if not isinstance(net.body, Staged):
            net.body, device = Staged(OrderedDict(net.body.named_children())), net.head.weight.device
            if self.keys:
                with drawing(key(self.seed, "highlighter")):
                    net.body.avgpool = Highlighter(net.head.in_features, self.keys).to(device)
                    net.head = nn.Linear(2 * net.head.in_features, net.head.out_features).to(device)
        return net

    def setup(self, net):
        super().setup(net)
        self.looks_, self.turn_ = {}, torch.tensor(0)

    def broadcast(self, client_id):
        others = sorted(i for i in self.looks_ if i != client_id)
        place = (int(self.turn_) + sum(i < client_id for i in others)) % max(1, len(others))    # each goes to one
        return super().broadcast(client_id) | ({"look": self.looks_[others[place]]} if others else {})

    def aggregate(self, uploads):
        super().aggregate(uploads)
        self.looks_, self.turn_ = self.looks_ | {i: u["look"] for i, u in uploads.items()}, self.turn_ + 1

    def local(self, client):
        body = client.net.body
        first = body[:[name for name, _ in body.named_children()].index(STAGES[0]) + 1].eval()
        with torch.no_grad(), autocast(self.protocol, client.train.y):
            looks = torch.cat([look(first(x).float()) for x, _ in client.train.parts(128)])
        client.scratch["look"] = torch.stack([looks.mean(0), (looks.var(0, correction=0) + 1e-6).sqrt()])
        client.scratch["gen"] = generator(client.seed, "looks", client.round, client.id)
        super().local(client)

    def upload(self, client):
        return super().upload(client) | {"look": client.scratch["look"]}

    def loss(self, net, x, y, client):
        gen, theirs, labels = client.scratch["gen"], client.got.get("look"), [y]

        def behind(name, z):
            if name == STAGES[0] and theirs is not None and torch.rand((), generator=gen) < self.p:
                z = shifted(z, theirs, gen)
            if name in STAGES and torch.rand((), generator=gen) < self.p:
                more = 0 if len(labels) > 1 else int(self.more * len(y))
                chosen = scarce(labels[-1], more, net.head.out_features, gen)
                labels.append(torch.cat([labels[-1], labels[-1][chosen]]))
                z = mixed(z, chosen, self.alpha, self.mix, gen)
            if name == "layer4" and self.keys:
                net.body.avgpool.partner = partners(labels[-1])
            return z

        logits = net.head(net.body(x, behind))
        net.body.avgpool.partner = None
        return F.cross_entropy(logits, labels[-1])


class Staged(nn.Sequential):
    """A body whose maps somebody may change on the way: behind(stage's name, map) -> map."""

    def forward(self, z, behind=lambda name, z: z):
        for name, stage in self.named_children():
            z = behind(name, stage(z))
        return z


class Highlighter(nn.Module):
    """[mean_p z_p, sum_p a_p z_p] `(B, 2 C)` of maps z `(B, C, H, W)`, a as StableFDG has it.

    Image i shares its query with image partner[i], `(B,)`, if there are partners: in training.
    """

    def __init__(self, channels: int, keys: int):
        super().__init__()
        self.query, self.key, self.partner = nn.Conv2d(channels, keys, 1), nn.Conv2d(channels, keys, 1), None

    def forward(self, z: Tensor) -> Tensor:
        q, k = (F.normalize(part(z).flatten(2), dim=1) for part in (self.query, self.key))
        q = q.mean(2, keepdim=True)
        if self.partner is not None:
            q = (q + q[self.partner]) / 2
        z = z.flatten(2)
        a = (q * k).sum(1, keepdim=True).softmax(2)
        return torch.cat([z.mean(2), (a * z).sum(2)], 1)


# the arithmetic

def look(z: Tensor) -> Tensor:
    """Each channel's mean and deviation over a map: `(B, C, H, W)` -> `(B, 2 C)`."""
    return torch.cat([z.mean((2, 3)), (z.var((2, 3), correction=0) + 1e-6).sqrt()], 1)


def dressed(z: Tensor, own: Tensor, new: Tensor) -> Tensor:
    """Maps `(B, C, H, W)` of looks `own` in the looks `new`, both `(B, 2 C)`; no gradient goes to a new look."""
    (m, s), (to_m, to_s) = (v[..., None, None].chunk(2, 1) for v in (own, new.detach()))
    return to_s * (z - m) / s + to_m


def shifted(z: Tensor, theirs: Tensor, gen) -> Tensor:
    """Half of a batch in looks N(M, S^2), `theirs` `(2, 2 C)` = M, S; deviations below 0 are 0."""
    own = look(z.detach())
    drawn = theirs[0] + theirs[1] * torch.randn(own.shape, generator=gen).to(z.device, non_blocking=True)
    m, s = drawn.chunk(2, 1)
    stays = spread_out(own, len(z) - len(z) // 2, gen)
    return dressed(z, own, torch.where(stays[:, None], own, torch.cat([m, s.clamp(min=0)], 1)))


def spread_out(points: Tensor, count: int, gen) -> Tensor:
    """k-means++: which `(N,)` of the points are chosen, each with a chance ~ its squared distance to those before.

    The first is any of them (Arthur and Vassilvitskii, SODA 2007). argmax(log p + Gumbel noise) draws with chance p.
    """
    noise = -torch.empty(count, len(points)).exponential_(generator=gen).log().to(points.device, non_blocking=True)
    far, chosen = torch.ones_like(noise[0]), torch.zeros_like(noise[0], dtype=torch.bool)
    for step, draw in enumerate(noise):
        one = (far.log() + draw).argmax(0, keepdim=True)
        away = (points - points.index_select(0, one)).square().sum(1)
        far, chosen = torch.minimum(far, away) if step else away, chosen.index_fill(0, one, True)
    return chosen


def scarce(y: Tensor, count: int, classes: int, gen) -> Tensor:
    """Places `(count,)` in a batch: one after the other of a class that it then has least of, by lot among equals."""
    n = F.one_hot(y, classes).sum(0)[:, None]
    lots = torch.rand(classes, count, generator=gen).to(y.device, non_blocking=True)
    when = n + torch.arange(count, device=y.device) + lots      # how many there are when this one comes
    kinds = torch.where(n > 0, when, torch.inf).flatten().topk(count, largest=False).indices // max(1, count)
    lots = torch.rand(count, len(y), generator=gen).to(y.device, non_blocking=True)
    return torch.where(y == kinds[:, None], lots, -1).argmax(1)


def mixed(z: Tensor, chosen: Tensor, alpha: float, mix: float, gen) -> Tensor:
    """Maps and copies of the chosen ones, these with looks l + alpha (l - mean l), then all with looks of two mixed."""
    own = look(z)
    new = torch.cat([own, own[chosen] + alpha * (own[chosen] - own.mean(0))])
    z, own = torch.cat([z, z[chosen]]), torch.cat([own, own[chosen]])
    lam = torch._sample_dirichlet(torch.full((len(z), 2), mix), generator=gen)[:, :1].to(z.device, non_blocking=True)
    other = torch.randperm(len(z), generator=gen).to(z.device, non_blocking=True)
    return dressed(z, own, lam * new + (1 - lam) * new[other])


def partners(y: Tensor) -> Tensor:
    """The place of the next sample of the same class in a batch, after the last the first, oneself if alone: `(B,)`."""
    places = torch.arange(len(y), device=y.device)
    ahead = (places - places[:, None] - 1).remainder(len(y))        # of oneself: the most
    return ahead.where(y == y[:, None], len(y)).argmin(1)


def window(spectrum: Tensor, r: int) -> Tensor:
    """The frequencies -r .. r of both directions `(N, C, 2 r + 1, 2 r + 1)`; the zeroth, in the middle, is the sum."""
    low = torch.arange(-r, r + 1, device=spectrum.device)
    return spectrum[..., low[:, None], low]


def exchanged(pixels: Tensor, theirs: Tensor, lam) -> Tensor:
    """Images in 0 .. 1 `(B, C, H, W)`, amplitudes near zero moved a share lam towards `theirs`, as of `window`."""
    spectrum, r = torch.fft.fft2(pixels), theirs.shape[-1] // 2
    low, own = torch.arange(-r, r + 1, device=pixels.device), window(spectrum, r)
    spectrum[..., low[:, None], low] = torch.polar(own.abs().lerp(theirs, lam), own.angle())
    return torch.fft.ifft2(spectrum).real.clamp(0, 1)
