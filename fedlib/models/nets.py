"""Nets: logits = head(body(x)). The body gives features `(N, D)`, the head is linear `(D, classes)`, or has layers."""
import copy
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.core.errors import UserError, pick
from fedlib.core.seeds import drawing, key
from fedlib.core.settings import later
from fedlib.models import encoders


@dataclass(frozen=True)
class Arch:
    """Which net. `width` is the number of channels of the first stage (ResNets) or layer (CNN), the size of the
    embedding (fasttext), of the first layer (mlp3, mlp_bn), of the inner one (adapter) or of a token (vit).
    """
    net: str = "cnn4"   # a name in BUILDERS
    # 0: the published width (CNN 32, ResNets 64, vit 768, fasttext 32, mlp3 1000, adapters D / 4), 256 of mlp_bn
    width: int = 0
    # hidden: FedPall's, two hidden layers with batch-norm. frozen: fixed vectors of the classes (models.class_heads),
    # their mean over the domains; own: each client has those of its domain. prompts: the encoder's text tower
    # (models.prompt_head).
    head: Literal["linear", "hidden", "frozen", "own", "prompts"] = later("linear")
    start: Literal["random", "imagenet"] = later("random")      # of the body: its first weights
    normalisation: Literal["batch", "group"] = later("batch")    # of a ResNet's body; group: no statistics of a batch
    tower: str = later("mini_clip")      # whose image tower the net "tower" is: mini_clip or open_clip:MODEL/TAG
    least: ClassVar[dict] = {}

    def __post_init__(self):
        pick("net", self.net, BUILDERS)


class Net(nn.Module):
    """A body that gives features and a head that gives logits."""

    def __init__(self, body: nn.Module, head: nn.Module):
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))

    @property
    def dim(self) -> int:
        """Length of a feature vector."""
        return self.head.in_features


def build(arch: Arch, classes: int, shape: tuple, seed: int, words: int = 0, head: Tensor | None = None,
          prompts: nn.Module | None = None) -> Net:
    """The net, its weights drawn from a stream of its own.

    `shape` is that of one sample: (3, H, W) images, (1, H, W) grey ones, (D,) features or, where `words` is the size of
    the vocabulary, (L,) token ids. head `(C, D)`: the classes' vectors of a frozen head; prompts: a head of prompts.
    UserError: a net for another kind of data.
    """
    data = "token ids" if words else "images" if len(shape) == 3 else "features"
    takes = TAKES.get(arch.net, ("images",))
    if data not in takes:
        fitting = ", ".join(n for n in BUILDERS if data in TAKES.get(n, ("images",)))
        raise UserError(f"the net {arch.net} needs {' or '.join(takes)}; these data are {data} of shape "
                        f"{tuple(shape)}: choose {fitting}")
    if data == "images" and shape[0] == 1 and (arch.net in ("vit", "tower") or arch.start == "imagenet"):
        raise UserError(f"the net {arch.net}{' from ImageNet' * (arch.start == 'imagenet')} takes three channels; "
                        "normalise = grey gives one")
    with drawing(key(seed, "net")):
        net = builder(arch)(classes, (words,) if words else shape, arch.width)
        if arch.normalisation == "group" and not grouped(net.body):
            raise UserError(f"normalisation = group takes the place of batch-norm, and {arch.net} has none")
        if arch.start == "imagenet":
            net.body.load_state_dict(trained(arch, net.body))
        if arch.head in ("frozen", "own"):
            return Net(net.body, FrozenHead(frozen(head, net)))
        if arch.head == "prompts":
            return Net(net.body, prompts)
        return Net(net.body, HiddenLayers(net.dim, classes)) if arch.head == "hidden" else net


def builder(arch: Arch):
    """What makes such a net of (classes, shape, width)."""
    return partial(image_tower, name=arch.tower) if arch.net == "tower" else BUILDERS[arch.net]


def has(arch: Arch, types: tuple) -> bool:
    """Has such a net, of any size, a module of these types?"""
    shape = (3, 28, 28) if "images" in TAKES.get(arch.net, ("images",)) else (8,)
    modules = builder(arch)(2, shape, 8).body.modules()
    return arch.head == "hidden" or any(isinstance(m, types) for m in modules)


def grouped(module: nn.Module) -> int:
    """Put a GroupNorm of 8 channels a group instead of each BatchNorm2d; returns how many there were.

    It has the same parameters under the same names and no statistics, so that small batches and other clients' domains
    do not disturb it (Hsieh et al., ICML 2020, arXiv:1910.00189).
    """
    found = 0
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(max(1, child.num_features // 8), child.num_features))
            found += 1
        found += grouped(child)
    return found


def trained(arch: Arch, body: nn.Module) -> dict:
    """ImageNet's weights of a body. UserError: there are none for this net, or they do not fit its sizes."""
    if arch.net not in PUBLISHED:
        raise UserError(f"ImageNet's weights are known for {', '.join(PUBLISHED)}, not for {arch.net}")
    entries, own = encoders.imagenet_net(PUBLISHED[arch.net])[0].state_dict(), body.state_dict()
    entries = {k: v for k, v in entries.items() if not k.startswith(("fc.", "heads."))}
    if {k: v.shape for k, v in entries.items()} != {k: v.shape for k, v in own.items()}:
        raise UserError(f"ImageNet's weights fit {arch.net} of the published width at 224 px only")
    return entries


def frozen(head: Tensor | None, net: Net) -> Tensor:
    """The vectors of a frozen head; UserError: there are none, or they do not fit the features."""
    if head is None:
        raise UserError("a frozen head needs vectors of the classes: head = \"texts\" or \"public\" in the data")
    if head.shape[1] != net.dim:
        raise UserError(f"the frozen head has {head.shape[1]} numbers for each class, the features {net.dim}")
    return head


class FrozenHead(nn.Module):
    """logits = H z / |z|, H `(C, D)` fixed: the classes' vectors times CLIP's scale. It neither trains nor travels."""

    def __init__(self, weight: Tensor):
        super().__init__()
        self.register_buffer("weight", weight.float(), persistent=False)
        self.out_features, self.in_features = weight.shape

    def forward(self, z: Tensor) -> Tensor:
        return nn.functional.normalize(z.float()) @ self.weight.T


class HiddenLayers(nn.Sequential):
    """D, D / 4, D / 4, outputs with batch-norm and ReLU: FedPall's classifier and, without bias, its amplifier."""

    def __init__(self, dim: int, outputs: int, bias: bool = True):
        inner, layers = max(1, dim // 4), []
        for inside in (dim, inner):
            layers += [nn.Linear(inside, inner, bias), nn.BatchNorm1d(inner), nn.ReLU()]
        super().__init__(*layers, nn.Linear(inner, outputs, bias))
        self.in_features, self.out_features = dim, outputs


class Halved(nn.MaxPool2d):
    """max-pool(ReLU(x)), the same numbers: on a CPU far faster where channels lie beside each other, and pooled first.

    A GPU keeps torch's order: under vmap the other one takes a launch more.
    """

    def forward(self, x):
        if x.device.type != "cpu":
            return super().forward(F.relu(x))
        if x.stride(1) == 1:
            return F.relu(super().forward(x))
        with torch.no_grad():
            last = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
            where = F.max_pool2d(last, self.kernel_size, return_indices=True)[1]
        return F.relu(x.flatten(2).gather(2, where.flatten(2)).view(where.shape))


def cnn4(classes: int, shape: tuple, width: int = 0) -> Net:
    """Two 5x5 convolutions and two linear layers; D = 16 width (McMahan et al., arXiv:1602.05629; FedDTR's CNN)."""
    width = width or 32
    side = (((shape[-1] - 4) // 2) - 4) // 2
    body = nn.Sequential(nn.Conv2d(shape[0], width, 5), Halved(2), nn.Identity(),
                         nn.Conv2d(width, 2 * width, 5), Halved(2), nn.Identity(),     # the ReLU's place
                         nn.Flatten(), nn.Linear(2 * width * side * side, 16 * width), nn.ReLU())
    return Net(body, nn.Linear(16 * width, classes))


def linear(classes: int, shape: tuple, width: int = 0) -> Net:
    """No body: a linear layer on the flattened input (softmax regression)."""
    return Net(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), classes))


class Mean(nn.Module):
    """The mean over the second dimension: (B, L, D) to (B, D)."""

    def forward(self, x):
        return x.mean(1)


def fasttext(classes: int, shape: tuple, width: int = 0) -> Net:
    """The mean of the words' vectors, then a linear layer without activation; D = width (fastText of PFLlib, FedDTR).

    Takes token ids (B, L), 0 for padding: it has the zero vector, and counts in the mean. `shape` is (words,).
    """
    width = width or 32
    body = nn.Sequential(nn.Embedding(shape[0], width, padding_idx=0), Mean(), nn.Linear(width, width))
    return Net(body, nn.Linear(width, classes))


def mlp3(classes: int, shape: tuple, width: int = 0) -> Net:
    """Three layers with ReLU, 10 : 5 : 1 wide; D = width / 10 (Zhao et al., MDAN; AmazonMLP of PFLlib and FedDTR)."""
    width = width or 1000
    sizes = [shape[0], width, max(1, width // 2), max(1, width // 10)]
    layers = [layer for inside, outside in zip(sizes, sizes[1:]) for layer in (nn.Linear(inside, outside), nn.ReLU())]
    return Net(nn.Sequential(*layers), nn.Linear(sizes[-1], classes))


def mlp_bn(classes: int, shape: tuple, width: int = 0) -> Net:
    """One layer with batch-norm and ReLU on a frozen encoder's features; D = width."""
    width, body = width or 256, nn.Sequential()
    body.add_module("fc1", nn.Linear(shape[0], width))
    body.add_module("bn1", nn.BatchNorm1d(width))
    body.add_module("relu", nn.ReLU())
    return Net(body, nn.Linear(width, classes))


class Adapter(nn.Module):
    """a x + b relu(W2 relu(W1 x)) without biases, on features of a frozen encoder."""

    def __init__(self, dim: int, inner: int, a: float = 1.0, b: float = 1.0):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, inner, bias=False), nn.ReLU(), nn.Linear(inner, dim, bias=False),
                                    nn.ReLU())
        self.a, self.b = a, b

    def forward(self, x):
        return self.a * x + self.b * self.layers(x)


class Attention(nn.Module):
    """x * softmax(W2 f(W1 x)): weights of the features that sum to 1."""

    def __init__(self, dim: int, *between: nn.Module):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(dim, dim), *between, nn.Linear(dim, dim), nn.Softmax(1))

    def forward(self, x):
        return x * self.layers(x)


def adapter(classes: int, shape: tuple, width: int = 0) -> Net:
    """MPFT's residual adapter of D, D / 4 and D features, a = b = 1 (arXiv:2410.07738)."""
    return Net(Adapter(shape[0], width or max(1, shape[0] // 4)), nn.Linear(shape[0], classes))


def clip_adapter(classes: int, shape: tuple, width: int = 0) -> Net:
    """CLIP-Adapter's (Gao et al., arXiv:2110.04544): as MPFT's, with a = 0.8 and b = 0.2."""
    return Net(Adapter(shape[0], width or max(1, shape[0] // 4), 0.8, 0.2), nn.Linear(shape[0], classes))


def attention(classes: int, shape: tuple, width: int = 0) -> Net:
    """FedCLIP's (Lu et al., arXiv:2302.13485), f = tanh: 525,312 parameters for D = 512."""
    return Net(Attention(shape[0], nn.Tanh()), nn.Linear(shape[0], classes))


def attention_bn(classes: int, shape: tuple, width: int = 0) -> Net:
    """FACMIC's (Wu et al., MICCAI 2024, arXiv:2410.14707): f = leaky ReLU after batch-norm."""
    return Net(Attention(shape[0], nn.BatchNorm1d(shape[0]), nn.LeakyReLU()), nn.Linear(shape[0], classes))


def square(classes: int, shape: tuple, width: int = 0) -> Net:
    """A linear layer of D to D features: CLIP-FC."""
    return Net(nn.Linear(shape[0], shape[0]), nn.Linear(shape[0], classes))


def identity(classes: int, shape: tuple, width: int = 0) -> Net:
    """Nothing between features and head."""
    return Net(nn.Identity(), nn.Linear(shape[0], classes))


def vit(classes: int, shape: tuple, width: int = 0) -> Net:
    """A vision transformer on 7 x 7 patches, 12 layers; at 224 px ViT-B/32 (Dosovitskiy et al., arXiv:2010.11929).

    torchvision's, whose sides are multiples of 7; width is a multiple of 64 or below 64.
    """
    width = width or 768
    if shape[-1] % 7 or width > 64 and width % 64:
        raise UserError(f"vit cuts images in 7 x 7 patches, of heads 64 wide: not {shape[-1]} px and width {width}")
    body = encoders.torchvision_models().VisionTransformer(shape[-1], shape[-1] // 7, 12, max(1, width // 64), width,
                                                           4 * width)
    body.heads = nn.Identity()
    return Net(body, nn.Linear(width, classes))


class ImageTower(nn.Module):
    """An encoder's image tower, to be trained further: images `(B, 3, S, S)` of any side -> features `(B, D)`.

    They come with mean and deviation 0.5 (normalise = "half" in the data) and get the encoder's own side and numbers.
    """

    def __init__(self, encoder: encoders.Encoder):
        super().__init__()
        self.net = copy.deepcopy(encoder.net).requires_grad_(True)
        self.side, self.mode = encoder.side, encoder.mode
        self.register_buffer("mean", encoder.mean.clone(), persistent=False)
        self.register_buffer("std", encoder.std.clone(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.side:
            x = F.interpolate(x, (self.side, self.side), mode=self.mode, antialias=True)
        z = self.net((x / 2 + 0.5 - self.mean) / self.std)
        return (z[0] if isinstance(z, tuple) else z).float()        # CoCa gives its tokens as well


def image_tower(classes: int, shape: tuple, width: int = 0, name: str = encoders.MINI) -> Net:
    """The image tower of an image-text model below a linear head."""
    encoder = encoders.load_encoder(name)
    return Net(ImageTower(encoder), nn.Linear(encoder.dim, classes))


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut (He et al., arXiv:1512.03385)."""
    expansion = 1

    def __init__(self, inside: int, planes: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = _shortcut(inside, planes, stride)

    def forward(self, x):
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.downsample(x))


class Bottleneck(nn.Module):
    """1x1, 3x3 (with the stride) and 1x1 convolutions, four times as many channels out."""
    expansion = 4

    def __init__(self, inside: int, planes: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, 4 * planes, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * planes)
        self.downsample = _shortcut(inside, 4 * planes, stride)

    def forward(self, x):
        out = torch.relu(self.bn1(self.conv1(x)))
        out = torch.relu(self.bn2(self.conv2(out)))
        return torch.relu(self.bn3(self.conv3(out)) + self.downsample(x))


def _shortcut(inside, outside, stride):
    if stride == 1 and inside == outside:
        return nn.Sequential()
    return nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))


def resnet(block, depths, stem: str):
    """A builder of ResNets, with torchvision's names. Stem "3x3": no stride, no pooling (FPL); "7x7": torchvision's."""
    def builder(classes: int, shape: tuple, width: int = 0) -> Net:
        width = width or 64
        body = nn.Sequential()
        kernel, stride, pad = (3, 1, 1) if stem == "3x3" else (7, 2, 3)
        body.add_module("conv1", nn.Conv2d(shape[0], width, kernel, stride, pad, bias=False))
        body.add_module("bn1", nn.BatchNorm2d(width))
        body.add_module("relu", nn.ReLU())
        if stem == "7x7":
            body.add_module("maxpool", nn.MaxPool2d(3, 2, 1))
        inside = width
        for stage, depth in enumerate(depths):
            planes, blocks = width * 2 ** stage, []
            for i in range(depth):
                blocks.append(block(inside, planes, 2 if stage and i == 0 else 1))
                inside = planes * block.expansion
            body.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        body.add_module("avgpool", nn.AdaptiveAvgPool2d(1))
        body.add_module("flatten", nn.Flatten())
        for module in body.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        return Net(body, nn.Linear(inside, classes))
    return builder


TAKES = {"linear": ("images", "features"), "mlp3": ("features",), "fasttext": ("token ids",),
         **dict.fromkeys(("mlp_bn", "adapter", "clip_adapter", "attention", "attention_bn", "square", "identity"),
                         ("features",))}
# others: images
BUILDERS = {"cnn4": cnn4, "linear": linear, "fasttext": fasttext, "mlp3": mlp3, "mlp_bn": mlp_bn,
            "adapter": adapter, "clip_adapter": clip_adapter, "attention": attention, "attention_bn": attention_bn,
            "square": square, "identity": identity,
            "resnet10": resnet(Block, (1, 1, 1, 1), "3x3"),
            "resnet18": resnet(Block, (2, 2, 2, 2), "7x7"),
            "resnet50": resnet(Bottleneck, (3, 4, 6, 3), "7x7"),
            "vit": vit, "tower": image_tower}
PUBLISHED = {"resnet18": "resnet18", "resnet50": "resnet50", "vit": "vit_b_32"}       # their names at torchvision


def net(*takes: str):
    """Register what makes a net, a function (classes, shape, width) -> Net, under its name: @net("images").

    takes: "images", "features", "token ids" (then shape is the size of the vocabulary). UserError: another kind.
    """
    def register(build):
        TAKES[build.__name__] = tuple(pick("kind of data", kind, ("images", "features", "token ids")) for kind in takes)
        BUILDERS[build.__name__] = build
        return build
    return register
