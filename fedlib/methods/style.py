"""How the others' images look: clients send what makes a look, not what is seen, and train on their images in it."""
import torch
import torch.nn.functional as F
from torch import Tensor

from fedlib.core.errors import UserError
from fedlib.core.federation import as_input, normals
from fedlib.core.seeds import generator
from fedlib.methods.base import FedAvg, method


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

    def setup(self, net):
        super().setup(net)
        self.banks_ = {}

    def broadcast(self, client_id):
        others = [bank for i, bank in self.banks_.items() if i != client_id]
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


# the arithmetic

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
