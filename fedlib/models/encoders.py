"""Frozen encoders by name: uint8 images in, features out; where they know texts, prompts in, embeddings out.

    squeezenet1_1, mobilenet_v2     torchvision's nets with ImageNet weights; features are the mean over the last map
    squeezenet1_1@96                the same on another side, a multiple of 32
    open_clip:ViT-B-32/openai       any model and tag of open_clip; features are its image embeddings, not normalised
    mini_clip                       an open_clip model of 32 px, trained on drawn digits, shipped with fedlib
"""
import functools
import hashlib
import importlib.util
import os
import re
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedlib.core.errors import UserError, first_line, pick
from fedlib.core.federation import NORMALS
from fedlib.models import mini_clip
from fedlib.models.clip_package import created, open_clip, silence

SIDE = 224
DIMS = {"squeezenet1_1": 512, "mobilenet_v2": 1280}
FILES = {"squeezenet1_1": "squeezenet1_1_imagenet.fp16.safetensors",        # in FEDLIB_RAW/weights
         "mobilenet_v2": "mobilenet_v2_imagenet_1001.fp16.safetensors"}
NETS = {name: f"{name}_imagenet.safetensors" for name in ("resnet18", "resnet50", "vit_b_32")}  # whole ones (nets.py)
CLASSIFIERS = ("classifier.1.bias", "fc.bias", "heads.head.bias")
CLIP_FILES = ("open_clip_model.safetensors", "open_clip_pytorch_model.bin")
MINI = "mini_clip"
KNOWN = (*FILES, MINI, "open_clip:MODEL/TAG")
BACKGROUND = 1001       # classes of a MobileNetV2 in TensorFlow's convention, the first of which is the background


class Encoder:
    """A net without gradients that takes uint8 images `(N, 3, S, S)` of any side S and gives float features `(N, D)`.

    It resizes and normalises them itself, where they are. dim: D; transform: what it does to images, as text; weights:
    SHA-256 over names, shapes and bytes of the net's entries. model: the whole image-text model that the net belongs
    to, frozen too, None where there is no text tower; tokenizer: a function that gets the texts' tokenizer.
    """

    def __init__(self, name: str, net: nn.Module, dim: int, side: int, mean, std, mode: str,
                 model: nn.Module | None = None, tokenizer: Callable[[], Callable] | None = None):
        self.name, self.dim, self.side, self.mode = name, dim, side, mode
        self.model = model and model.eval().requires_grad_(False)
        self._tokenizer = tokenizer
        # on a CPU convolutions take half the time in this order of memory
        self.net = net.eval().requires_grad_(False).to(memory_format=torch.channels_last)
        self.mean, self.std = (torch.as_tensor(v, dtype=torch.float32).view(3, 1, 1) for v in (mean, std))
        numbers = ["/".join(f"{v:.6g}" for v in t.flatten().tolist()) for t in (self.mean, self.std)]
        self.transform = (f"{side}x{side}, {mode} with antialiasing, in whole levels; "
                          f"mean {numbers[0]}, deviation {numbers[1]}")

    @torch.inference_mode()
    def __call__(self, x: Tensor) -> Tensor:
        return self.features(resized(x, self.side, self.mode))

    def features(self, levels: Tensor) -> Tensor:
        """What a call computes of images that have the right side, floats 0..255 of any fraction; differentiable."""
        z = self.net((levels / 255 - self.mean.to(levels.device)) / self.std.to(levels.device))
        return (z[0] if isinstance(z, tuple) else z).float()        # CoCa gives its tokens as well

    @torch.no_grad()        # not inference_mode: embeddings may become a head that others learn through
    def texts(self, prompts: list[str], batch: int = 256) -> Tensor:
        """Text embeddings t / |t|, `(n, D)` float32. UserError: the encoder has no text tower, or no tokenizer here."""
        self._check_texts()
        parts = [prompts[i:i + batch] for i in range(0, len(prompts), batch)]
        t = [self.model.encode_text(self.tokenizer(part).to(self.device)).float() for part in parts]
        return F.normalize(torch.cat(t), dim=1) if t else torch.empty(0, self.dim, device=self.device)

    @property
    def scale(self) -> float:
        """exp(logit_scale): what cosines of images and texts are multiplied by. UserError as `texts`."""
        self._check_texts()
        return self.model.logit_scale.exp().item()

    def _check_texts(self):
        if self.model is None:
            raise UserError(f"encoder '{self.name}' has no text tower; {MINI} and open_clip:MODEL/TAG have one")

    @functools.cached_property
    def tokenizer(self) -> Callable[[list[str]], Tensor]:
        """Texts to tokens `(n, L)`, got when first asked for: some are downloaded. UserError as `texts`."""
        self._check_texts()
        try:
            with silence():
                return self._tokenizer()
        except Exception as error:      # a download fails in many ways
            raise UserError(f"the tokenizer of {self.name} could not be loaded ({first_line(error)})") from error

    @property
    def device(self) -> torch.device:
        return next(self.net.parameters()).device

    @torch.inference_mode(False)
    def to(self, device) -> "Encoder":
        (self.net if self.model is None else self.model).to(device)
        return self

    @functools.cached_property
    def weights(self) -> str:
        return weights_digest(self.net)


def resized(x: Tensor, side: int, mode: str) -> Tensor:
    """Square images as floats 0..255 of another side, rounded to whole levels as an image library leaves them."""
    if x.dtype != torch.uint8 or x.dim() != 4 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"{x.dtype} {tuple(x.shape)} are no square images (N, 3, S, S) of uint8")
    if x.shape[-1] == side:
        return x.float()
    return F.interpolate(x.float(), (side, side), mode=mode, antialias=True).round().clamp(0, 255)


def weights_digest(net: nn.Module) -> str:
    """SHA-256 over the names, shapes and bytes of a net's entries, in the order of names."""
    sha = hashlib.sha256()
    for name, value in sorted(net.state_dict().items()):
        sha.update(f"{name} {value.dtype} {tuple(value.shape)} ".encode())
        sha.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return sha.hexdigest()


@functools.cache
@torch.inference_mode(False)        # what is kept must serve derivatives too, whoever asks for it first
def load_encoder(name: str) -> Encoder:
    """The encoder of this name, read once. UserError: no such name, a package that is not installed, no weights."""
    kind, colon, rest = name.partition(":")
    if colon and kind == "open_clip":
        return clip_encoder(*_model_and_tag(rest))
    net, (_, at, side) = _net(name), name.partition("@")
    return mini_encoder() if net == MINI else imagenet_encoder(name, net, _side(name, side) if at else SIDE)


def at_hand(name: str) -> bool:
    """Can the encoder be loaded without a download? UserError as `load_encoder`."""
    kind, colon, rest = name.partition(":")
    if colon and kind == "open_clip":
        model, tag = _model_and_tag(rest)
        from huggingface_hub import try_to_load_from_cache
        place = open_clip().pretrained.get_pretrained_cfg(model, tag).get("hf_hub", "").strip("/")
        return any(isinstance(try_to_load_from_cache(place, file), str) for file in CLIP_FILES if place)
    net = _net(name)
    if net == MINI:
        return importlib.util.find_spec("open_clip") is not None
    url = torchvision_models().get_model_weights(net)["IMAGENET1K_V1"].url
    return _own(net).is_file() or Path(torch.hub.get_dir(), "checkpoints", url.rsplit("/")[-1]).is_file()


def _net(name: str) -> str:
    """What stands before the side; mini_clip has one side only."""
    net = name.partition("@")[0]
    return pick("encoder", name if net == MINI else net, KNOWN)


def _side(name: str, text: str) -> int:
    if not re.fullmatch("[1-9][0-9]{1,3}", text) or int(text) % 32:
        raise UserError(f"encoder '{name}': the side after @ is a multiple of 32, like {name.partition('@')[0]}@96")
    return int(text)


# torchvision

def imagenet_encoder(name: str, kind: str, side: int) -> Encoder:
    """Body of a torchvision net, its last map averaged to `(N, D)`."""
    net, normal = imagenet_net(kind)
    mean, std = NORMALS[normal].flatten(1)
    body = nn.Sequential(net.features, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Encoder(name, body, DIMS[kind], side, mean, std, "bilinear")


def imagenet_net(name: str) -> tuple[nn.Module, str]:
    """The whole net with its classifier, and how images are normalised for it (a name in NORMALS).

    Weights are those of FEDLIB_RAW/weights; else torchvision's, which it downloads once.
    """
    from safetensors.torch import load_file
    models = torchvision_models()
    path = _own(name)
    if not path.is_file():
        return _downloaded(models, name, path), "imagenet"
    try:
        kept = {k: v.float() if v.is_floating_point() else v for k, v in load_file(path).items()}
        classes = next(len(kept[k]) for k in CLASSIFIERS if k in kept)
        net = models.get_model(name, weights=None, num_classes=classes)
        net.load_state_dict(kept)
    except Exception as error:      # safetensors and torch have errors of their own
        raise UserError(f"{path} does not hold the weights of {name} ({first_line(error)})") from None
    return (tensorflows(net), "half") if classes == BACKGROUND else (net, "imagenet")


def tensorflows(net: nn.Module) -> nn.Module:
    """A MobileNetV2 as TensorFlow computes it: strided convolutions are padded right and below only, eps is 0.001."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eps = 1e-3
        if isinstance(module, nn.Conv2d) and module.stride == (2, 2):
            module.padding = (0, 0)
            module.register_forward_pre_hook(lambda _, inputs: F.pad(inputs[0], (0, 1, 0, 1)))
    return net


def _own(name: str) -> Path:
    return Path(os.environ.get("FEDLIB_RAW") or "FEDLIB_RAW", "weights", (FILES | NETS)[name])


def torchvision_models():
    """The package's models. UserError: it is not installed."""
    try:
        from torchvision import models
    except ImportError as error:
        raise UserError("this net needs torchvision: pip install torchvision") from error
    return models


def _downloaded(models, name: str, path: Path) -> nn.Module:
    try:
        published = models.get_model_weights(name)["IMAGENET1K_V1"]
        kept = published.get_state_dict(progress=False, check_hash=True, weights_only=True)     # a pickle of tensors
        net = models.get_model(name, weights=None)
        net.load_state_dict(kept)
        return net
    except Exception as error:      # a download fails in many ways
        raise UserError(f"no weights of {name}: {path} is not there, and torchvision's cannot be downloaded "
                        f"({first_line(error)})") from error


# open_clip

def _model_and_tag(text: str) -> tuple[str, str]:
    model, slash, tag = text.partition("/")
    package = open_clip()
    pick("open_clip model", model, package.list_models())
    return model, pick(f"open_clip weights of {model}", tag if slash else "",
                       package.list_pretrained_tags_by_model(model))


def clip_encoder(model: str, tag: str | None) -> Encoder:
    """An open_clip model (`clip_package.created`) with its published evaluation transform."""
    net = created(model, tag)
    how = net.visual.preprocess_cfg
    side = how["size"][0] if isinstance(how["size"], tuple | list) else how["size"]
    with torch.inference_mode():
        z = net.encode_image(torch.zeros(1, 3, side, side))
    return Encoder(f"open_clip:{model}/{tag}", net.visual, z.shape[1], side, how["mean"], how["std"],
                   how["interpolation"], net, lambda: open_clip().get_tokenizer(model))


def mini_encoder() -> Encoder:
    """The model that fedlib ships; see mini_clip.py."""
    model = mini_clip.trained()
    return Encoder(MINI, model.visual, mini_clip.DIM, mini_clip.SIDE, mini_clip.MEAN, mini_clip.STD, mini_clip.MODE,
                   model, mini_clip.tokenizer)
