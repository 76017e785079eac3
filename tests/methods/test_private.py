"""Differential privacy at the client: the clip, the noise, what it is worth, and what may not be wrapped."""
import math

import pytest
import torch
from conftest import refusal, result, small_run

from fedlib.engine.loop import Simulation
from fedlib.methods import METHODS, make
from fedlib.methods.base import Protocol, method
from fedlib.methods.drift import FedProx
from fedlib.methods.private import DPFedAvg
from fedlib.probes import privacy


def change(values, name="DPFedAvg", client=0, **protocol):
    """What a client adds to the net it received, as one vector, and its upload."""
    simulation = Simulation(small_run(name, values, net="cnn4", **protocol))
    message = simulation.message(client)
    upload, _ = simulation.workers[client].train(message, 0)
    return torch.cat([(upload["params"][k] - v).flatten() for k, v in message["params"].items()]), upload


def test_a_long_step_is_cut_to_C_and_a_short_one_stays():
    whole, _ = change({"sigma": 0.0, "C": 1e9})
    plain, _ = change({}, "FedAvg")
    assert torch.equal(whole, plain) and whole.norm() > 0.1
    cut, _ = change({"sigma": 0.0, "C": 0.05})
    assert float(cut.norm()) == pytest.approx(0.05, rel=1e-3)
    assert torch.cosine_similarity(cut, whole, 0) > 0.9999


def test_a_step_that_is_zero_gets_the_noise_alone():
    """Where the loss has no slope left, or the rate is 0."""
    noise, _ = change({"sigma": 2.0, "C": 0.05}, lr=0.0)
    assert float(noise.std()) == pytest.approx(2.0 * 0.05, rel=0.02)


@pytest.mark.parametrize("m", [1, 5])
def test_the_noise_has_the_deviation_that_is_asked_for(m):
    """m = 5: five shares of the noise have sigma C in their sum."""
    silent, _ = change({"sigma": 0.0, "C": 0.05})
    noisy, _ = change({"sigma": 2.0, "C": 0.05, "m": m})
    added = noisy - silent
    assert float(added.std()) == pytest.approx(2.0 * 0.05 / math.sqrt(m), rel=0.02)
    assert abs(float(added.mean())) < 0.01
    other, _ = change({"sigma": 2.0, "C": 0.05, "m": m}, client=1)
    assert abs(float(torch.corrcoef(torch.stack([added, other]))[0, 1])) < 0.05


def test_nobody_tells_how_much_it_has_and_statistics_stay():
    refusal(lambda: Simulation(small_run("DPFedAvg", net="resnet18")), "batch-norm's statistics would leave without")
    simulation = Simulation(small_run("DPFedAvg", net="resnet18", buffers="keep"))
    message = simulation.message(0)
    upload, _ = simulation.workers[0].train(message, 0)
    assert int(upload["n"]) == 1 and not any("running" in k for k in message["params"])
    assert set(upload["params"]) == {k for k, _ in simulation.workers[0].client.net.named_parameters()}


def test_what_it_is_worth():
    """T rounds of noise sigma are one of sigma / sqrt T: by the closed form of Gaussian differential privacy."""
    T, sigma, delta = 16, 8.0, 1e-3
    epsilon = privacy.epsilon(delta, sigma, T ** 0.5)
    mu = T ** 0.5 / sigma
    phi = torch.distributions.Normal(0.0, 1.0).cdf
    reached = phi(torch.tensor(-epsilon / mu + mu / 2)) - math.exp(epsilon) * phi(torch.tensor(-epsilon / mu - mu / 2))
    assert float(reached) == pytest.approx(delta, rel=1e-2)


def test_it_wraps_a_method_that_sends_parameters_only(tmp_path):
    try:
        @method
        class DPFedProx(DPFedAvg, FedProx):
            """F_k + mu/2 |w_k - w|^2, clipped and noisy."""
        made = make("DPFedProx", {"mu": 5.0, "sigma": 0.0, "C": 1e9}, Protocol())
        assert made.mu == 5.0 and made.C == 1e9
        wrapped = result(small_run("DPFedProx", {"mu": 5.0, "sigma": 0.0, "C": 1e9}, net="cnn4"), tmp_path)
        assert wrapped == result(small_run("FedProx", {"mu": 5.0}, net="cnn4"), tmp_path)

        @method
        class DPGroupDRO(DPFedAvg, METHODS["GroupDRO"]):
            """Its clients send losses too."""
        refusal(lambda: change({}, "DPGroupDRO"), "sends before as well")
    finally:
        for name in ("DPFedProx", "DPGroupDRO"):
            METHODS.pop(name, None)
