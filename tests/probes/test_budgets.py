"""What is measured beside MPFT's records: sizes and distances that a budget follows from, and attacks on prototypes."""
import json

import pytest
import torch
from conftest import small_run
from torch import nn

from fedlib.core.errors import UserError
from fedlib.core.federation import as_input
from fedlib.datasets.partition import federate
from fedlib.engine import loop
from fedlib.engine.run import Run
from fedlib.experiments import batch, tables
from fedlib.models import encoders
from fedlib.models.encoders import Encoder
from fedlib.probes import inversion, privacy


@pytest.fixture
def run():
    return small_run("MPFT", {"server_epochs": 1}, rounds=1)


def test_a_budget_file_says_what_the_features_say(run, tmp_path):
    with pytest.raises(UserError, match="fedlib run"):
        privacy.read(run, tmp_path)
    privacy.collect(run, tmp_path)
    found, clients = privacy.read(run, tmp_path), federate(run.data, run.seed).clients
    assert found["digest"] == run.digest and [c["id"] for c in found["clients"]] == [c.id for c in clients]
    one, split = found["clients"][0]["classes"][3], clients[0].train
    z = as_input(split.x[split.y == one["class"]])
    assert one["n"] == len(z) and one["diameter"] == pytest.approx(privacy.diameter(z), abs=1e-5)
    assert one["radius"] == pytest.approx(float(z.norm(dim=1).max()), abs=1e-5)
    assert sum(c["n"] for c in found["clients"][0]["classes"]) == len(split)


def test_the_printed_budget_is_one_number_over_sigma_and_agrees_with_that_of_the_features(run, tmp_path):
    privacy.collect(run, tmp_path)
    found = privacy.read(run, tmp_path)
    one, other = (privacy.epsilons(found, s) for s in (0.1, 0.5))
    assert (one.printed / other.printed).dropna().round(9).unique().tolist() == [5.0]
    split = federate(run.data, run.seed).clients[0].train
    wanted = privacy.budget_printed(as_input(split.x), split.y, 0.1)
    assert one[one.client == "0"].printed.mean() == pytest.approx(wanted.mean, rel=1e-5)
    exact = privacy.budget_exact(as_input(split.x), split.y, 0.1)
    assert one[one.client == "0"].exact.max() == pytest.approx(exact.max, rel=1e-5)
    assert (one.bound >= one.exact).all()       # no two features lie further apart than twice the largest norm


def test_the_table_measures_it_and_is_done_then(run, tmp_path):
    planned = next(iter(tables.load_table("mpft/table7").runs("mini", [1])))
    assert planned.measure == "budget" and not any(p.measure for p in tables.load_table("mpft/table1").runs("mini"))
    small = planned._replace(run=run)
    loop.train(run, tmp_path)
    assert not small.done(tmp_path)
    batch.one(small, tmp_path, say=lambda line: None)
    assert small.done(tmp_path)


@pytest.fixture
def images_run(monkeypatch):
    """A run on features of a linear encoder that can be inverted: 14 x 14 pixels, as many numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Flatten(), nn.Linear(588, 588, bias=False))
    nn.init.orthogonal_(net[1].weight, generator=torch.Generator().manual_seed(0))
    encoder = Encoder("turned", net, 588, 14, [0.5] * 3, [0.5] * 3, "bilinear")
    monkeypatch.setattr(encoders, "load", lambda name: encoder)
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
