"""Images from features: the attack finds the image where the features determine it, and its quality is measured."""
import json
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import needs_weights, small_run
from torch import nn

from fedlib.core.errors import UserError
from fedlib.core.seeds import key
from fedlib.engine.run import Run
from fedlib.models import encoders
from fedlib.models.encoders import Encoder
from fedlib.probes import inversion

SIDE = 16


def linear(dim=3 * SIDE ** 2) -> Encoder:
    """Orthonormal rows: with as many as pixels the features determine the image."""
    layer = nn.Linear(3 * SIDE ** 2, dim)
    square = torch.randn(3 * SIDE ** 2, 3 * SIDE ** 2, generator=torch.Generator().manual_seed(0))
    layer.weight.data, layer.bias.data = torch.linalg.qr(square)[0][:dim].clone(), torch.zeros(dim)
    return Encoder("linear", nn.Sequential(nn.Flatten(), layer), dim, SIDE, [0.5] * 3, [0.5] * 3, "bilinear")


def convolutional() -> Encoder:
    """Two random convolutions, their maps averaged to 32 numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.Tanh(), nn.Conv2d(16, 32, 3, 2, 1), nn.Tanh(),
                            nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Encoder("convolutional", net, 32, 32, [0.5] * 3, [0.5] * 3, "bicubic")


def photos(count: int, side: int) -> torch.Tensor:
    """Pieces of scikit-learn's two photographs, uint8 `(N, 3, side, side)`."""
    from sklearn.datasets import load_sample_images
    whole = torch.stack([torch.from_numpy(p.copy()) for p in load_sample_images().images]).permute(0, 3, 1, 2).float()
    pieces = [whole[i % 2:i % 2 + 1, :, 40 * i:40 * i + 200, 100:300] for i in range(count)]
    return F.interpolate(torch.cat(pieces), (side, side), mode="bilinear", antialias=True).round().to(torch.uint8)


def brief(rows) -> list:
    return [(row["step"], row["mse"], row["image"]) for row in rows]


# the differentiable path

@pytest.mark.parametrize("made", [linear, convolutional])
def test_features_are_what_a_call_gives_and_have_a_derivative(made):
    encoder = made()
    x = photos(3, encoder.side)
    levels = x.float().requires_grad_(True)
    z = encoder.features(levels)
    assert torch.equal(z, encoder(x))
    assert torch.allclose(inversion.seen(encoder, x[1:2] / 255), encoder(x)[1], atol=1e-5)
    z.sum().backward()
    assert levels.grad.abs().max() > 0 and not encoder(x).requires_grad


def test_a_small_image_is_resized_as_the_encoder_does():
    encoder, x = convolutional(), photos(1, 20)
    assert torch.allclose(inversion.seen(encoder, x / 255), encoder(x)[0], atol=2e-3)     # whole levels are rounding


# the attack

def test_an_image_that_its_features_determine_is_found():
    encoder, x = linear(), photos(1, SIDE)
    rows = inversion.invert(encoder, encoder(x)[0], steps=400, lr=0.1, original=x[0] / 255)
    assert rows[0]["psnr"] < 15 and rows[-1]["psnr"] > 40 and rows[-1]["ssim"] > 0.99, rows[-1]


def test_an_image_that_its_features_leave_open_is_not():
    encoder, x = linear(60), photos(1, SIDE)
    last = inversion.invert(encoder, encoder(x)[0], steps=400, original=x[0] / 255)[-1]
    assert last["mse"] < 1e-6 and last["psnr"] < 20, last


def test_of_a_class_mean_it_finds_the_mean_image():
    encoder, x = linear(), photos(5, SIDE)
    found = inversion.invert(encoder, encoder(x).mean(0), steps=400, lr=0.1)[-1]["image"]
    assert inversion.quality(found, (x / 255).mean(0))["psnr"] > 40
    assert max(inversion.quality(found, one / 255)["psnr"] for one in x) < 25


def test_features_come_near():
    encoder, x = convolutional(), photos(1, 32)
    rows = inversion.invert(encoder, encoder(x)[0], steps=150)
    assert rows[-1]["mse"] < rows[0]["mse"] / 1000


@needs_weights
def test_features_of_squeezenet_come_near():
    encoder, x = encoders.load_encoder("squeezenet1_1@64"), photos(1, 64)
    target = encoder(x)[0]
    rows = inversion.invert(encoder, target, steps=100)
    assert rows[-1]["mse"] < rows[0]["mse"] / 10 and rows[-1]["mse"] < 0.1 * float(target.square().mean())


def test_the_prior_smooths():
    encoder, x = linear(60), photos(1, SIDE)
    plain, smooth = (inversion.invert(encoder, encoder(x)[0], prior, steps=300, original=x[0] / 255)[-1]
                     for prior in (0.0, 1.0))
    assert smooth["tv"] < plain["tv"] / 2 and smooth["psnr"] > plain["psnr"] + 1, (plain, smooth)


def test_an_image_depends_on_its_seed_only():
    encoder = convolutional()
    target = encoder(photos(1, 32))[0]
    first, again, other = (inversion.invert(encoder, target, steps=5, every=5, seed=seed) for seed in (3, 3, 4))
    assert all(torch.equal(a["image"], b["image"]) and a["mse"] == b["mse"] for a, b in zip(first, again))
    assert not torch.equal(first[0]["image"], other[0]["image"])
    drawn = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(key(3, "inversion", 32)))
    assert torch.equal(first[0]["image"], (0.1 * drawn).sigmoid()[0])


def test_rows_and_what_is_said():
    encoder, said = convolutional(), []
    target = encoder(photos(1, 32))[0]
    rows = inversion.invert(encoder, target, steps=7, every=3, side=20, start=0.0, say=said.append)
    assert [row["step"] for row in rows] == [0, 3, 6, 7] and all(a is b for a, b in zip(rows, said))
    assert set(rows[0]) == {"step", "mse", "tv", "image"} and rows[0]["image"].shape == (3, 20, 20)
    assert rows[0]["tv"] == 0 and (rows[0]["image"] == 0.5).all() and not rows[-1]["image"].requires_grad
    mse = (encoder.features(torch.full((1, 3, 32, 32), 127.5)) - target).square().mean()
    assert rows[0]["mse"] == pytest.approx(float(mse), rel=1e-4)


# quality

def test_quality_by_hand():
    x = 0.4 + 0.2 * torch.rand(3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    off = inversion.quality(x + 0.1, x)
    assert off["mse"] == pytest.approx(0.01, rel=1e-4) and off["psnr"] == pytest.approx(20, abs=1e-3)
    assert inversion.quality(x, x) == {"mse": 0, "psnr": math.inf, "ssim": pytest.approx(1)}
    assert 0.5 < off["ssim"] < 1 and inversion.quality(1 - x, x)["ssim"] < 0


def test_baselines_are_other_images_and_their_mean():
    x = photos(6, SIDE) / 255
    found = inversion.baselines(x[0], x[1:])
    each = [inversion.quality(one, x[0]) for one in x[1:]]
    assert found["other"]["ssim"] == pytest.approx(sum(q["ssim"] for q in each) / 5)
    assert found["mean image"] == inversion.quality(x[1:].mean(0), x[0])
    assert found["mean image"]["mse"] < found["other"]["mse"]
    assert found["grey"]["mse"] == pytest.approx(float((x[0] - 0.5).square().mean()), rel=1e-5)


@pytest.mark.parametrize("call, words", [
    (lambda e, x: inversion.invert(e, e(x)), r"target has shape \(1, 32\); convolutional has features \(32,\)"),
    (lambda e, x: inversion.invert(e, e(x)[0], steps=0), "steps, every and side are at least 1"),
    (lambda e, x: inversion.invert(e, e(x)[0], prior=-1.0), "prior and start are not below it"),
    (lambda e, x: inversion.quality(x[0], x[0]), "floats in 0..1, .* torch.uint8"),
    (lambda e, x: inversion.quality(x[0].float(), x[0] / 255), "floats in 0..1"),
    (lambda e, x: inversion.quality(x[0, :, :8, :8] / 255, x[0, :, :8, :8] / 255), "at least 11"),
    (lambda e, x: inversion.baselines(x[0] / 255, x[:0] / 255), "with at least one image")])
def test_mistakes(call, words):
    with pytest.raises(UserError, match=words) as caught:
        call(convolutional(), photos(1, 32))
    assert "\n" not in str(caught.value)


# the attack on a federation

@pytest.fixture
def images_run(monkeypatch):
    """A run on features of a linear encoder that can be inverted: 14 x 14 pixels, as many numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(588, 588, bias=False))
    nn.init.orthogonal_(net[1].weight, generator=torch.Generator().manual_seed(0))
    encoder = Encoder("turned", net, 588, 14, [0.5] * 3, [0.5] * 3, "bilinear")
    monkeypatch.setattr(encoders, "load_encoder", lambda name: encoder)
    run = small_run("MPFT", {"server_epochs": 1}, rounds=1)
    data = run.data.__class__(**vars(run.data) | {"name": "tiny_digits", "encoder": "turned", "clients": ()})
    return run, Run(run.method, run.settings, data, run.net, run.protocol, run.seed)


def test_each_client_loses_one_training_image_of_a_class_that_it_holds_twice(images_run):
    _, run = images_run
    found = list(inversion.victims(run))
    assert [d for _, d, _ in found] == ["scans", "blended", "printed", "street"]
    for _, _, images in found:
        assert len(images) > 1 and 0 <= images.min() and images.max() <= 1


def test_the_numbers_of_an_attack_lie_beside_the_record(images_run, tmp_path, monkeypatch):
    trained, run = images_run
    calls, victims = [], inversion.victims

    def attacked(encoder, images, kind, steps, seed):
        calls.append((kind, steps, seed, len(images)))
        return torch.ones(4) * 2, [{"step": 0, "mse": 1.0, "psnr": 9.0, "ssim": 0.1, "tv": 0.0, "image": images[0]}]

    monkeypatch.setattr(inversion, "attacked", attacked)
    monkeypatch.setattr(inversion, "victims", lambda trained: victims(run))
    with pytest.raises(UserError, match="fedlib run"):
        inversion.read(trained, tmp_path)
    inversion.collect(trained, tmp_path, steps=7)
    found = inversion.read(trained, tmp_path)
    assert len(calls) == 4 * len(inversion.KINDS) and {c[:3] for c in calls} == {(k, 7, 0) for k in inversion.KINDS}
    first = found["attacks"][0]
    assert first["power"] == 4 and first["rows"] == [{"step": 0, "mse": 1.0, "psnr": 9.0, "ssim": 0.1, "tv": 0.0}]
    assert set(first["guesses"]) == {"other", "mean image", "grey"} and "image" not in json.dumps(first["rows"])
    assert trained.path(tmp_path).exists()


def test_an_attack_on_an_encoder_that_can_be_inverted_finds_the_image(images_run, monkeypatch):
    _, run = images_run
    encoder = encoders.load_encoder("turned")
    images = next(iter(inversion.victims(run)))[2]
    small = nn.functional.interpolate(images, (14, 14), mode="bilinear", antialias=True)
    target, rows = inversion.attacked(encoder, small, "one image", 600, 0)
    assert rows[-1]["mse"] < 0.05 * target.square().mean() and rows[-1]["psnr"] > 20 > rows[0]["psnr"] + 5
    mean, _ = inversion.attacked(encoder, small, "class mean", 1, 0)
    levels = (255 * small).round().to(torch.uint8)
    assert torch.allclose(mean, encoder(levels).mean(0), atol=1e-5) and not torch.allclose(mean, target)
