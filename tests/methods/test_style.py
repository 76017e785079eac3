"""Looks of images: what is exchanged of a spectrum, the step that looks ahead, and what travels, each by hand."""
import copy

import pytest
import torch
import torch.nn.functional as F
from conftest import refusal, small_run

from fedlib.core.federation import Client, Split, as_input
from fedlib.core.params import load_params
from fedlib.engine.loop import Simulation
from fedlib.methods import make
from fedlib.methods.base import Protocol
from fedlib.methods.style import (
    Highlighter,
    dressed,
    exchanged,
    look,
    mixed,
    partners,
    scarce,
    shifted,
    spread_out,
    window,
)
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


# StableFDG


def drawn(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_map_in_its_own_look_is_itself_and_in_anothers_has_that_look():
    z, others = images(5), 3 * images(5, seed=1) - 1
    assert torch.allclose(dressed(z, look(z), look(z)), z, atol=1e-5)
    assert torch.allclose(look(dressed(z, look(z), look(others))), look(others), atol=1e-3)
    m, s = look(z).chunk(2, 1)
    assert torch.allclose(m, z.mean((2, 3))) and torch.allclose(s, z.flatten(2).std(2, correction=0), atol=1e-5)


def test_half_of_a_batch_gets_anothers_look():
    z, theirs = images(8), torch.stack([torch.tensor([5.0] * 3 + [2.0] * 3), torch.zeros(6)])
    got = look(shifted(z, theirs, drawn()))
    moved = (got - theirs[0]).abs().amax(1) < 1e-2
    assert moved.sum() == 4 and torch.allclose(got[~moved], look(z)[~moved], atol=1e-4)
    dark = shifted(z, torch.stack([torch.full((6,), -1.0), torch.zeros(6)]), drawn())      # no deviation below 0
    flat = look(dark)[:, 3:].amax(1) < 1e-2
    assert flat.sum() == 4


def test_kmeans_plus_plus_takes_far_points_and_none_twice():
    points = torch.cat([torch.zeros(6, 2), torch.full((1, 2), 100.0), torch.tensor([[-100.0, 100.0]])])
    for seed in range(20):
        chosen = spread_out(points, 3, drawn(seed))
        assert chosen.sum() == 3 and chosen[6] and chosen[7]
    first = torch.stack([spread_out(points, 1, drawn(seed)) for seed in range(400)]).float().mean(0)
    assert (first - 1 / 8).abs().max() < 0.06       # any of them, alike
    two = torch.stack([spread_out(torch.tensor([[0.0], [1.0], [3.0]]), 2, drawn(seed)) for seed in range(2000)])
    # pairs by hand: first 0: 1/10 and 9/10; first 1: 1/5 and 4/5; first 3: 9/13 and 4/13
    pairs = {(True, True, False): (1 / 10 + 1 / 5) / 3, (True, False, True): (9 / 10 + 9 / 13) / 3,
             (False, True, True): (4 / 5 + 4 / 13) / 3}
    for pair, chance in pairs.items():
        assert (two == torch.tensor(pair)).all(1).float().mean() == pytest.approx(chance, abs=0.04)


def test_scarce_classes_fill_up_and_absent_ones_stay_away():
    y = torch.tensor([0, 0, 0, 0, 2, 2, 3])
    for count, want in ((1, [4, 0, 2, 2]), (3, [4, 0, 3, 3]), (5, [4, 0, 4, 4]), (8, [5, 0, 5, 5])):
        places = scarce(y, count, 4, drawn(count))
        assert torch.cat([y, y[places]]).bincount(minlength=4).tolist() == want
    seen = torch.cat([y[scarce(y, 6, 4, drawn(s))] for s in range(300)]).bincount(minlength=4)
    assert seen[0] + seen[2] + seen[3] == 1800 and abs(int(seen[2]) - 300 * 7 / 3) < 60      # one tie, by lot
    assert len(scarce(y, 0, 4, drawn())) == 0
    assert {int(p) for s in range(60) for p in scarce(y, 2, 4, drawn(s)) if y[p] == 2} == {4, 5}


def test_copies_go_past_the_mean_and_looks_are_mixed_in_pairs():
    z, chosen = images(4), torch.tensor([1, 3])
    own, far = look(z), mixed(z, chosen, 3.0, 1e6, drawn())      # mix -> infinity: lam = 1/2
    new = torch.cat([own, own[chosen] + 3 * (own[chosen] - own.mean(0))])
    gen = drawn()
    torch._sample_dirichlet(torch.full((6, 2), 1e6), generator=gen)
    other = torch.randperm(6, generator=gen)
    want = dressed(torch.cat([z, z[chosen]]), torch.cat([own, own[chosen]]), (new + new[other]) / 2)
    assert far.shape == (6, 3, 12, 12) and torch.allclose(far, want, atol=2e-3)


@pytest.mark.parametrize(("p", "more", "count"), [(1.0, 1.0, 12), (1.0, 0.5, 9), (0.0, 1.0, 6)])
def test_a_batch_grows_once_however_many_stages_mix(p, more, count):
    method, x, y = make("StableFDG", {"p": p, "more": more}, Protocol()), images(6, 28), torch.arange(6) % 3
    client = Client("0", "", Split(x, y), Split(x, y), net=build(Arch("resnet10", width=4), 3, (3, 28, 28), 0))
    method.seed, client.scratch = 0, {"gen": drawn()}
    net, sizes = method.equip(client.net), []
    net.head.register_forward_hook(lambda head, z, logits: sizes.append(len(logits)))
    method.loss(net, x, y, client)
    assert sizes == [count]


def test_a_highlighter_by_hand():
    part, z = Highlighter(2, 3), images(3)[:, :2, :2, :2]
    for partner in (None, torch.tensor([1, 0, 2])):
        part.partner = partner
        got = part(z)
        for i in range(3):
            unit = [[F.normalize(w.weight[:, :, 0, 0] @ z[j, :, r, c] + w.bias, dim=0) for r in range(2)
                     for c in range(2)] for w, j in ((part.query, i), (part.query, i if partner is None
                                                                       else int(partner[i])), (part.key, i))]
            q = sum((a + b) / 2 for a, b in zip(unit[0], unit[1])) / 4
            a = torch.stack([q @ k for k in unit[2]]).softmax(0)
            want = torch.cat([z[i].mean((1, 2)), (z[i].flatten(1) * a).sum(1)])
            assert torch.allclose(got[i], want, atol=1e-5)


def test_partners_are_the_next_of_the_class():
    assert partners(torch.tensor([0, 1, 0, 2, 1, 0])).tolist() == [2, 4, 5, 3, 1, 0]


def test_each_round_each_client_hears_of_another_and_each_look_goes_to_one():
    server = make("StableFDG", {}, Protocol())
    server.setup(build(Arch("resnet10", width=4), 3, (3, 28, 28), 0))
    assert "look" not in server.broadcast("2")
    names = ["0", "1", "10", "2"]
    for turn in range(4):
        server.looks_, server.turn_ = {i: torch.tensor(float(i)) for i in names}, torch.tensor(turn)
        heard = {i: str(int(server.broadcast(i)["look"])) for i in names}
        assert sorted(heard.values()) == sorted(names) and all(i != j for i, j in heard.items())
    server.looks_ = {"0": torch.tensor(0.0)}
    assert "look" not in server.broadcast("0")


def test_a_look_is_of_the_training_images_under_the_net_that_came():
    simulation = Simulation(small_run("StableFDG"))
    worker, before = simulation.workers[0], copy.deepcopy(simulation.server.global_)
    upload, _ = worker.train(simulation.message(0), 0)
    net = simulation.server.equip(build(Arch("resnet10", width=4), 10, (3, 28, 28), 0))
    load_params(net, before).eval()
    x = worker.client.train.input()
    with torch.no_grad():
        z = net.body.layer1(net.body.relu(net.body.bn1(net.body.conv1(x))))
    want = torch.stack([look(z).mean(0), look(z).std(0, correction=0)])
    assert torch.allclose(upload["look"], want, atol=1e-4)


def test_nets_without_stages_are_refused():
    for how in ({"net": "cnn4"}, {"net": "adapter", "data": {"name": "tiny_features"}}):
        refusal(lambda how=how: Simulation(small_run("StableFDG", **how)), "StableFDG", "resnet10")
