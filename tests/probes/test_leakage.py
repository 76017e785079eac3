"""The bound on mutual information, where it is known; and what it is measured on."""
import math

import pytest
import torch
from conftest import quiet, small_run

from fedlib.core.errors import UserError
from fedlib.core.federation import as_input
from fedlib.engine import loop, records
from fedlib.experiments import batch, tables
from fedlib.methods.base import outputs
from fedlib.probes import leakage


def gaussians(rho, dim=2, count=1600, seed=1):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(count, dim, generator=gen)
    return x, rho * x + math.sqrt(1 - rho ** 2) * torch.randn(count, dim, generator=gen)


@pytest.mark.parametrize("rho", [0.0, 0.6, 0.9])
def test_correlated_gaussians(rho):
    """I = -D/2 log(1 - rho^2). The bound lies below, by no more than a fifth and 0.1."""
    exact = -math.log(1 - rho ** 2)
    found = leakage.information(*gaussians(rho), steps=300, lr=1e-3)
    assert 0.8 * exact - 0.1 <= found <= exact + 0.1


def test_it_does_not_depend_on_the_global_random_state_or_the_scale():
    x, z = gaussians(0.9, count=400)
    first = leakage.information(x, z, steps=50)
    torch.rand(5)
    assert leakage.information(x, z, steps=50) == first
    assert leakage.information(x, 1000 * z + 7, steps=50) == pytest.approx(first, abs=1e-3)


def test_it_cannot_exceed_the_log_of_the_number_of_held_out_pairs():
    x = 10 * torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    assert leakage.information(x, x, steps=300) <= math.log(30) + 1e-5


def test_images_can_be_told_from_what_was_made_of_them():
    """One bit: whether the image is bright."""
    bright = torch.arange(400) % 2
    x = bright.view(-1, 1, 1, 1) * torch.ones(400, 3, 16, 16) + 0.1 * torch.rand(400, 3, 16, 16)
    assert leakage.information(x, bright[:, None].float(), steps=75, batch=64) == pytest.approx(math.log(2), abs=0.1)


def test_what_is_measured_is_each_image_beside_what_its_client_would_send(tmp_path):
    run, seen = small_run("FedPall", {"noise": "mask"}), []
    loop.train(run, tmp_path, after=seen.append)
    simulation, = seen
    workers, (x, z) = simulation.workers, leakage.sent(simulation)
    first = workers[0].client
    n = len(first.train)
    assert torch.equal(x[:n], as_input(first.train.x)) and len(x) == len(z) == sum(len(w.client.train) for w in workers)
    raw = outputs(first.net.body, first.train, run.protocol)
    hidden = (z[:n] == 0).all(0)
    assert torch.equal(z[:n][:, ~hidden], raw[:, ~hidden]) and hidden.sum() >= raw.shape[1] - int(0.9 * raw.shape[1])


def test_it_lies_beside_a_record_that_stays_as_it_was(tmp_path, monkeypatch):
    run = small_run("FedPall")
    loop.train(run, tmp_path / "plain")
    monkeypatch.setattr(leakage, "information", lambda x, z, seed: float(len(x) == len(z)) + seed)
    with pytest.raises(UserError, match="fedlib run"):
        leakage.read(run, tmp_path)
    leakage.collect(run, tmp_path)
    found = leakage.read(run, tmp_path)
    images = sum(c["train"] for c in records.read_record(run.path(tmp_path))["made"]["data"]["clients"])
    assert found == {"digest": run.digest, "round": 2, "pairs": images - images // 2, "nats": 1.0 + run.seed}
    plain, beside = (records.read_record(run.path(f))["rounds"] for f in (tmp_path / "plain", tmp_path))
    assert [r["acc"] for r in plain] == [r["acc"] for r in beside]


def test_a_run_of_the_privacy_table_is_done_when_it_was_measured(tmp_path, monkeypatch):
    planned = next(p for p in tables.load_table("fedpall/privacy").runs("mini", [0]) if p.row == "none")
    assert planned.measure == "leakage" and not any(p.measure for p in tables.load_table("fedpall/table1").runs("mini"))
    small = planned._replace(run=small_run("FedPall", {"noise": "none"}))
    monkeypatch.setattr(leakage, "information", lambda x, z, seed: 0.5)
    loop.train(small.run, tmp_path)
    assert not small.done(tmp_path)
    batch.one(small, tmp_path, say=quiet)
    assert small.done(tmp_path) and leakage.read(small.run, tmp_path)["nats"] == 0.5
