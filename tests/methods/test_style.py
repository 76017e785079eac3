"""Looks of images: what is exchanged of a spectrum, the step that looks ahead, and what travels, each by hand."""
import pytest
import torch
import torch.nn.functional as F
from conftest import refusal, small_run

from fedlib.core.federation import Client, Split, as_input
from fedlib.engine.loop import Simulation
from fedlib.methods import make
from fedlib.methods.base import Protocol
from fedlib.methods.style import exchanged, window
from fedlib.models.nets import Arch, build


def images(count=4, side=12, seed=0):
    return torch.rand(count, 3, side, side, generator=torch.Generator().manual_seed(seed))


def amplitudes(pixels, r):
    return window(torch.fft.fft2(pixels), r).abs()


def test_the_zeroth_frequency_is_the_mean_colour():
    pixels, others = 0.4 + 0.2 * images(), 0.4 + 0.2 * images(seed=1)
    got = exchanged(pixels, amplitudes(others, 0), torch.tensor(1.0))
    assert torch.allclose(got, pixels + (others - pixels).mean((2, 3), keepdim=True), atol=1e-5)


@pytest.mark.parametrize("r", [0, 1, 3])
def test_only_the_window_moves_and_phases_stay(r):
    pixels, others, lam = 0.45 + 0.1 * images(), 0.45 + 0.1 * images(seed=1), torch.tensor(0.3)
    before, after = (torch.fft.fftshift(torch.fft.fft2(x), dim=(2, 3)) for x in (
        pixels, exchanged(pixels, amplitudes(others, r), lam)))
    theirs = torch.fft.fftshift(torch.fft.fft2(others), dim=(2, 3)).abs()
    inside = torch.zeros(12, 12, dtype=torch.bool)
    inside[6 - r:7 + r, 6 - r:7 + r] = True
    want = torch.where(inside, 0.7 * before.abs() + 0.3 * theirs, before.abs())
    assert torch.allclose(after.abs(), want, atol=1e-4)
    assert torch.allclose(after, torch.polar(want, before.angle()), atol=1e-4)


def test_ones_own_amplitudes_change_nothing_and_colours_stay_in_range():
    pixels = images()
    assert torch.allclose(exchanged(pixels, amplitudes(pixels, 2), torch.tensor(1.0)), pixels, atol=1e-5)
    bright = exchanged(pixels, 9 * amplitudes(pixels, 0), torch.tensor(1.0))
    assert float(bright.min()) >= 0 and float(bright.max()) == 1


def at_a_client(values, bank, x, y):
    """The method, and a client with a net on which it has just begun a round."""
    method = make("FedDG", values, Protocol(lr=0.1))
    client = Client("0", "", Split(x, y), Split(x, y), seed=0)
    client.net, client.got = build(Arch("cnn4", width=2), 3, (3, 28, 28), 0), {"bank": bank} if bank is not None else {}
    method.fit = lambda *_: None
    method.local(client)
    return method, client


def test_the_outer_loss_is_taken_after_a_step_and_its_gradient_is_first_order():
    x, y = (255 * images(6, 28)).to(torch.uint8), torch.tensor([0, 1, 2, 0, 1, 2])
    method, client = at_a_client({"eta": 0.2, "outer": 0.7}, amplitudes(images(1, 28, 3), 1), x, y)
    method.dressed = lambda x, client: x.flip(3)            # any other view will do
    net, seen = client.net, as_input(x)
    loss = method.loss(net, seen, y, client)
    got = torch.autograd.grad(loss, list(net.parameters()))
    ahead = build(Arch("cnn4", width=2), 3, (3, 28, 28), 0)
    inner = F.cross_entropy(net(seen), y)
    slopes = torch.autograd.grad(inner, list(net.parameters()))
    with torch.no_grad():
        for p, g in zip(ahead.parameters(), slopes):
            p -= 0.2 * g
    outer = F.cross_entropy(ahead(seen.flip(3)), y)
    there = torch.autograd.grad(outer, list(ahead.parameters()))
    assert loss.item() == pytest.approx((inner + 0.7 * outer).item(), rel=1e-5)
    for one, g, h in zip(got, slopes, there):
        assert torch.allclose(one, g + 0.7 * h, atol=1e-5)


def test_released_gives_each_image_anothers_colour_and_the_paper_goes_part_of_the_way():
    x, y = (255 * (0.4 + 0.2 * images(8, 28))).to(torch.uint8), torch.zeros(8, dtype=torch.int64)
    white = amplitudes(torch.full((1, 3, 28, 28), 0.6), 0)
    for values, part in (({"preset": "released"}, "whole"), ({"r": 0}, "between")):
        method, client = at_a_client(values, white, x, y)
        split = Split(x, y, "none")
        client.train = split
        colour = method.dressed(as_input(x, "none"), client).mean((1, 2, 3))
        before = as_input(x, "none").mean((1, 2, 3))
        share = (colour - before) / (0.6 - before)
        assert torch.allclose(share, torch.ones(8), atol=1e-3) == (part == "whole")
        assert (share > -1e-3).all() and (share < 1 + 1e-3).all()


def test_a_client_hears_of_the_others_only_and_of_nobody_in_the_first_round():
    simulation = Simulation(small_run("FedDG", {"bank": 4, "r": 2}, net="cnn4"))
    server = simulation.server
    assert "bank" not in server.broadcast("0")
    simulation.play(1)
    banks = server.banks_
    assert set(banks) == {w.client.id for w in simulation.workers}
    assert {b.shape for b in banks.values()} == {(4, 3, 5, 5)}
    heard = server.broadcast("0")["bank"]
    assert torch.equal(heard, torch.cat([banks[i] for i in banks if i != "0"]))
    kept = {i: b.clone() for i, b in banks.items()}
    simulation.play(1)
    assert all(torch.equal(server.banks_[i], b) for i, b in kept.items())       # drawn once


def test_what_is_no_image_and_a_window_as_large_as_the_image_are_refused():
    for run in (small_run("FedDG", net="adapter", data={"name": "tiny_features"}),
                small_run("FedDG", {"r": 14}, net="cnn4")):
        refusal(Simulation(run).play, "FedDG", "without an encoder", "half a side")
