"""Frozen encoders: what they compute, against the libraries they come from; texts; weights that cannot be had."""
import sys

import pytest
import torch
import torch.nn.functional as F
from conftest import RAW, needs_weights, one_line
from PIL import Image
from real_images import image, needs_images
from torch import nn

from fedlib.core.errors import UserError
from fedlib.models import encoders, nets
from fedlib.models.encoders import Encoder

PHOTOS = {"dog": range(151, 269), "elephant": (101, 385, 386), "guitar": (402, 546), "horse": (339,)}  # of ImageNet


# torchvision's encoders

@needs_weights
@pytest.mark.parametrize("name", encoders.DIMS)
def test_imagenet_encoders(name):
    encoder = encoders.load_encoder(f"{name}@64")
    z = encoder(torch.randint(0, 256, (3, 3, 40, 40), dtype=torch.uint8))
    assert z.shape == (3, encoder.dim) and z.dtype == torch.float32 and not z.requires_grad
    whole = encoders.load_encoder(name)
    assert encoder.weights == whole.weights and encoder.transform != whole.transform
    assert encoders.at_hand(name)


@needs_weights
def test_mobilenets_strided_convolutions_are_padded_right_and_below():
    net, normal = encoders.imagenet_net("mobilenet_v2")
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    first = net.features[0][0]
    assert normal == "half" and len(net.classifier[1].bias) == 1001
    assert torch.equal(first(x), F.conv2d(F.pad(x, (0, 1, 0, 1)), first.weight, stride=2))
    assert sum(m.stride == (2, 2) and m.padding == (0, 0) for m in net.modules() if isinstance(m, nn.Conv2d)) == 5
    assert net.eval().features(x).shape == (2, 1280, 2, 2)


def photos(count: int) -> tuple[torch.Tensor, list[str]]:
    """The first images of the classes that ImageNet has too, `(N, 3, 96, 96)`, and their classes."""
    paths = [p for c in PHOTOS for p in sorted((RAW / "PACS/photo" / c).iterdir())[:count]]
    return torch.stack([image(p) for p in paths]), [p.parent.name for p in paths]


@needs_images
@pytest.mark.parametrize("name, background", [("mobilenet_v2", 1), ("squeezenet1_1", 0)])
def test_photos_are_what_imagenet_calls_them(name, background):
    x, labels = photos(10)
    (net, _), encoder = encoders.imagenet_net(name), encoders.load_encoder(name)
    whole = Encoder(name, net, 0, 224, encoder.mean, encoder.std, "bilinear")
    found = (whole(x).argmax(1) - background).tolist()
    right = {c: sum(k in PHOTOS[c] for k, label in zip(found, labels) if label == c) for c in PHOTOS}
    assert sum(right.values()) >= 20 and right["dog"] >= 7 and right["elephant"] >= 5, right    # chance: one of 80


@needs_images
def test_the_mean_map_is_what_the_classifier_of_mobilenet_reads():
    x, _ = photos(1)
    (net, _), encoder = encoders.imagenet_net("mobilenet_v2"), encoders.load_encoder("mobilenet_v2")
    whole = Encoder("", net, 0, 224, encoder.mean, encoder.std, "bilinear")
    assert torch.allclose(net.classifier[1](encoder(x)), whole(x), atol=1e-4)


def test_without_weights(monkeypatch, tmp_path):
    from torchvision.models import WeightsEnum

    def no_connection(self, **_):
        raise OSError("Name or service not known")
    monkeypatch.setenv("FEDLIB_RAW", str(tmp_path))
    monkeypatch.setattr(WeightsEnum, "get_state_dict", no_connection)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(UserError) as caught:
        encoders.imagenet_net("squeezenet1_1")
    path = tmp_path / "weights" / encoders.FILES["squeezenet1_1"]
    assert one_line(caught) == (f"no weights of squeezenet1_1: {path} is not there, and torchvision's cannot be "
                                "downloaded (Name or service not known)")
    assert not encoders.at_hand("squeezenet1_1@96")
    path.parent.mkdir()
    path.write_bytes(b"nothing")
    with pytest.raises(UserError, match="does not hold the weights of squeezenet1_1"):
        encoders.imagenet_net("squeezenet1_1")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(UserError, match="needs torchvision: pip install torchvision"):
        encoders.torchvision_models()


def test_the_digest_sees_names_shapes_and_numbers():
    one, same, other = nn.Linear(2, 3), nn.Linear(2, 3), nn.Linear(3, 2)
    same.load_state_dict(one.state_dict())
    found = encoders.weights_digest(one)
    assert found == encoders.weights_digest(same) != encoders.weights_digest(nn.Sequential(same))
    assert found != encoders.weights_digest(other)
    same.bias.data[0] += 1e-3
    assert encoders.weights_digest(same) != found


# open_clip's encoders

def test_open_clip_equals_its_own_preprocessing_and_encode_image(monkeypatch):
    open_clip = pytest.importorskip("open_clip", reason="the extra clip is not installed")
    from open_clip import transform
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = open_clip.create_model("ViT-S-32-alt").eval()
    monkeypatch.setattr(open_clip, "create_model", lambda *_, **__: model)
    encoder = encoders.clip_encoder("ViT-S-32-alt", None)
    gen = torch.Generator().manual_seed(0)
    for side in (224, 64, 300):
        coarse = torch.randint(0, 256, (4, 3, 10, 10), generator=gen).float()
        x = F.interpolate(coarse, (side, side), mode="bilinear").round().to(torch.uint8)
        theirs = transform.image_transform_v2(transform.PreprocessCfg(**model.visual.preprocess_cfg), is_train=False)
        images = torch.stack([theirs(Image.fromarray(i.permute(1, 2, 0).numpy())) for i in x])
        with torch.inference_mode():
            wanted = model.encode_image(images)
        gap = ((encoder(x) - wanted).norm(dim=1) / wanted.norm(dim=1)).max()
        assert encoder.dim == wanted.shape[1] and gap < (1e-5 if side == 224 else 5e-3), (side, gap)


@pytest.mark.parametrize("model, tag, quick", [("ViT-B-32", "openai", True), ("ViT-B-32", "laion2b_s34b_b79k", False),
                                               ("convnext_base", "laion400m_s13b_b51k", False)])
def test_the_tag_decides_on_quickgelu(monkeypatch, model, tag, quick):
    open_clip = pytest.importorskip("open_clip", reason="the extra clip is not installed")
    asked = {}

    def no_connection(name, pretrained, **how):
        asked.update(how, name=name, pretrained=pretrained)
        raise RuntimeError("Failed to download. Try again")
    monkeypatch.setattr(open_clip, "create_model", no_connection)
    with pytest.raises(UserError, match=rf"weights {model}/{tag} could not be loaded \(Failed to download\)"):
        encoders.load_encoder(f"open_clip:{model}/{tag}")
    assert asked == {"name": model, "pretrained": tag, "force_quick_gelu": quick}


@pytest.mark.parametrize("name, words", {"open_clip:ViT-B32/openai": "did you mean 'ViT-B-32'?",
                                         "open_clip:ViT-B-32/opena": "did you mean 'openai'?",
                                         "open_clip:ViT-B-32": "unknown open_clip weights of ViT-B-32 ''",
                                         "clip:ViT-B-32/openai": "unknown encoder 'clip:ViT-B-32/openai'"}.items())
def test_unknown_models_and_weights(name, words):
    pytest.importorskip("open_clip", reason="the extra clip is not installed")
    for ask in (encoders.load_encoder, encoders.at_hand):
        with pytest.raises(UserError) as caught:
            ask(name)
        assert words in one_line(caught)


# texts

@pytest.fixture(scope="module")
def untrained_clip():
    pytest.importorskip("open_clip", reason="the extra clip is not installed")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return encoders.clip_encoder("ViT-S-32-alt", None)


def test_texts_are_open_clips_normalised(untrained_clip):
    import open_clip
    prompts = [f"a photo of a {name}" for name in ("dog", "cat", "house", "tree", "car")]
    t = untrained_clip.texts(prompts, batch=2)
    with torch.no_grad():
        theirs = untrained_clip.model.encode_text(open_clip.get_tokenizer("ViT-S-32-alt")(prompts))
    assert t.shape == (5, untrained_clip.dim) and t.dtype == torch.float32
    assert torch.allclose(t, theirs / theirs.norm(dim=1, keepdim=True), atol=1e-5)
    assert untrained_clip.texts([]).shape == (0, untrained_clip.dim)
    assert untrained_clip.scale == pytest.approx(1 / 0.07)


def test_a_head_of_texts_passes_gradients_on(untrained_clip):
    z = torch.ones(2, untrained_clip.dim, requires_grad=True)
    (z @ untrained_clip.texts(["a dog", "a cat"]).T).sum().backward()
    assert z.grad.norm() > 0


def test_the_model_is_frozen_and_its_digest_covers_the_image_tower(untrained_clip):
    model = untrained_clip.model
    assert untrained_clip.net is model.visual and not model.training
    assert not any(p.requires_grad for p in model.parameters())
    assert untrained_clip.weights == encoders.weights_digest(model.visual) != encoders.weights_digest(model)


def test_without_a_text_tower():
    encoder = Encoder("tiny", nn.Flatten(), 192, 8, [0.5] * 3, [0.5] * 3, "bilinear")
    assert encoder.model is None
    for ask in (lambda: encoder.texts(["a dog"]), lambda: encoder.scale, lambda: encoder.tokenizer):
        with pytest.raises(UserError) as caught:
            ask()
        assert one_line(caught) == ("encoder 'tiny' has no text tower; mini_clip and open_clip:MODEL/TAG have one")


def test_a_tokenizer_that_cannot_be_had(untrained_clip):
    def no_connection():
        raise OSError("Name or service not known\nmore")
    encoder = Encoder("other", untrained_clip.net, 384, 224, [0.5] * 3, [0.5] * 3, "bicubic", untrained_clip.model,
                      no_connection)
    with pytest.raises(UserError, match=r"the tokenizer of other could not be loaded \(Name or service not known\)$"):
        encoder.texts(["a dog"])


# whole nets that start from ImageNet's weights

@pytest.fixture
def published(monkeypatch, tmp_path):
    """A file of torchvision's own entries, with random numbers, for each net asked for."""
    from safetensors.torch import save_file
    from torchvision import models
    monkeypatch.setenv("FEDLIB_RAW", str(tmp_path))
    (tmp_path / "weights").mkdir()

    def make(name):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            net = models.get_model(name, weights=None)
        save_file(net.state_dict(), tmp_path / "weights" / encoders.NETS[name])
        return net.eval()
    return make


@pytest.mark.parametrize("arch,name", [("resnet18", "resnet18"), ("vit", "vit_b_32")])
def test_a_body_starts_from_the_published_weights(published, arch, name):
    theirs = published(name)
    setattr(theirs, "fc" if arch == "resnet18" else "heads", nn.Identity())
    ours = nets.build(nets.Arch(arch, start="imagenet"), 7, (3, 224, 224), 0).eval()
    plain = nets.build(nets.Arch(arch), 7, (3, 224, 224), 0).eval()
    x = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(ours.body(x), theirs(x))
        assert not torch.allclose(plain.body(x), theirs(x))
    assert ours.head.weight.shape == (7, 512 if arch == "resnet18" else 768)


def test_weights_that_do_not_fit_are_named(published):
    published("resnet18")
    with pytest.raises(UserError, match="published width"):
        nets.build(nets.Arch("resnet18", 8, start="imagenet"), 7, (3, 64, 64), 0)
    with pytest.raises(UserError, match="known for resnet18, resnet50, vit"):
        nets.build(nets.Arch("cnn4", start="imagenet"), 7, (3, 28, 28), 0)
    with pytest.raises(UserError, match="no weights of resnet50"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("torchvision.models.get_model", None)
        nets.build(nets.Arch("resnet50", start="imagenet"), 7, (3, 224, 224), 0)


@pytest.mark.parametrize("side,width", [(32, 64), (28, 96)])
def test_a_vit_cuts_seven_by_seven(side, width):
    with pytest.raises(UserError, match="7 x 7"):
        nets.build(nets.Arch("vit", width), 7, (3, side, side), 0)


def test_an_encoder_that_is_first_asked_for_without_derivatives_has_them_later():
    encoders.load_encoder.cache_clear()
    with torch.inference_mode():
        encoder = encoders.load_encoder("mini_clip").to("cpu")
    x = torch.full((1, 3, encoder.side, encoder.side), 100.0, requires_grad=True)
    encoder.features(x).sum().backward()
    assert x.grad.abs().sum() > 0
