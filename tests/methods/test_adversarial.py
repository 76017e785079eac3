"""ADCOL and FedPall: by hand, and against references in double precision."""
import copy
import math
from dataclasses import replace
from functools import partial
from itertools import pairwise, product

import by_hand
import pytest
import torch
import torch.nn.functional as F
from by_hand import client_of, draw, drawn, same
from conftest import result, small_run
from torch import nn, tensor

from fedlib.core import params, seeds, settings
from fedlib.core.errors import UserError
from fedlib.core.federation import NORMALS, Split, batches
from fedlib.engine import loop
from fedlib.methods import adversarial, make
from fedlib.methods.adversarial import attraction, trained
from fedlib.methods.base import rate
from fedlib.methods.personal import redrawn
from fedlib.models.nets import Arch, HiddenLayers, Net, build

FORMS = pytest.mark.parametrize("form", ["released", "paper"])
NAMES = pytest.mark.parametrize("name", ["ADCOL", "FedPall"])
LABELS = torch.arange(12) % 4
D = 32      # features; 4 classes
equal = partial(by_hand.equal, rtol=1e-5, atol=1e-6)


def net_of(hidden=True, seed=0):
    """3 inputs; all weights are drawn."""
    head = HiddenLayers(D, 4) if hidden else nn.Linear(D, 4)
    return drawn(Net(nn.Sequential(nn.Linear(3, D), nn.BatchNorm1d(D), nn.Tanh()), head), seed=seed)


def amplifier(clients):
    """Entries of a net of the server whose answers are far from uniform."""
    return params.snapshot(drawn(HiddenLayers(D, clients, bias=False), 2))


def worker_of(name, values, net, x, y=LABELS, **more):
    return by_hand.worker_of(name, net, x, y, values, **{"batch": 4, **more})


def server_of(name, values=None, net=None, seed=0):
    return by_hand.server_of(name, values, net or net_of(), seed)


def begins(method, got, net=None):
    """A client that has everything for its local training, and has not trained."""
    client = client_of(net or net_of(), draw(12, 3), LABELS, got=got)
    method.fit = lambda *args: None
    method.local(client)
    return client


def message(count, shift=0.0, seed=0):
    """An upload of `count` features."""
    z, y = draw(count, D, seed=seed) + shift, torch.arange(count) % 4
    return {"params": {}, "n": tensor(count), "features": z, "labels": y, "counts": y.bincount(minlength=4),
            "protos": torch.stack([z[y == c].sum(0) / max(1, int((y == c).sum())) for c in range(4)])}


# references in double precision: plain formulas

def log_answers(entries, z):
    """log A(z): layers without bias, batch-norm with the statistics of the batch."""
    e, h = {k: v.double() for k, v in entries.items()}, z
    for linear, norm in ((0, 1), (3, 4)):
        h = h @ e[f"{linear}.weight"].T
        h = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()
        h = (h * e[f"{norm}.weight"] + e[f"{norm}.bias"]).clamp(min=0)
    h = h @ e["6.weight"].T
    return h - h.exp().sum(1, keepdim=True).log()


def divergence(log_a, form):
    """The mean over samples of KL(u || a) = -log K - mean_i log a_i, or of KL(a || u) = sum_i a_i log(K a_i)."""
    k, a = log_a.shape[1], log_a.exp()
    return (-math.log(k) - log_a.mean(1) if form == "released" else (a * (k * a).log()).sum(1)).mean()


def pull(z, y, protos, seen, tau, form):
    """-log( e^{cos / tau} / sum_c ... ), sample by sample."""
    total, g = z.sum() * 0, protos.double()
    for a, label in zip(z, y.tolist()):
        rivals = [c for c in range(len(g)) if seen[c] and (form == "released" or c != label)]
        if seen[label] and rivals:
            unit = a / a.norm()
            near = [unit @ g[c] / (g[c].norm() if form == "paper" else 1) for c in rivals]
            total = total + torch.stack(near).div(tau).exp().sum().log() - unit @ g[label] / g[label].norm() / tau
    return total / len(z)


# 1. how far the amplifier's answers are from uniform

@FORMS
@pytest.mark.parametrize("clients", [2, 4, 5])
def test_the_adversary_and_its_gradient_are_a_kl_divergence_in_double_precision(form, clients):
    method, z = make("ADCOL", {"kl": form}), draw(16, D, seed=50).requires_grad_()
    found, exact = method.adversary(z, begins(method, {"amplifier": amplifier(clients)})), z.detach().double()
    wanted = divergence(log_answers(amplifier(clients), exact.requires_grad_()), form)
    assert wanted > 0.1
    equal(found, wanted.detach())
    equal(torch.autograd.grad(found, z)[0], torch.autograd.grad(wanted, exact)[0])


def test_the_two_divergences_by_hand():
    """a = (1/4, 3/4): -log 2 - (log 1/4 + log 3/4) / 2 and 1/4 log 1/2 + 3/4 log 3/2."""
    client = client_of(None, None, None, scratch={"amplifier": lambda z: z})
    logits = tensor([[0.0, math.log(3)]]).expand(5, 2)
    equal(make("ADCOL").adversary(logits, client), -math.log(2) - math.log(3 / 16) / 2)
    equal(make("ADCOL", {"kl": "paper"}).adversary(logits, client), math.log(1 / 2) / 4 + 3 * math.log(3 / 2) / 4)


@FORMS
@pytest.mark.parametrize("clients", range(1, 8))
def test_uniform_answers_have_neither_value_nor_gradient(form, clients):
    method, z, entries = make("ADCOL", {"kl": form}), draw(16, D).requires_grad_(), amplifier(clients)
    entries["6.weight"].zero_()
    found = method.adversary(z, begins(method, {"amplifier": entries}))
    found.backward()
    assert found == 0 and (z.grad == 0).all()


@NAMES
def test_a_client_does_not_change_the_amplifier_it_trains_against(name):
    server, net, sent = server_of(name, {"mu": 10.0}), net_of(), amplifier(3)
    server.amplifier_ = copy.deepcopy(sent)
    worker = worker_of(name, {"mu": 10.0}, net, draw(12, 3), epochs=3)
    worker.train(server.broadcast("0"), 1)
    held = worker.client.scratch["amplifier"]
    assert held.training and all(p.grad is None and not p.requires_grad for p in held.parameters())
    assert all(torch.equal(p, sent[k]) for k, p in held.named_parameters())
    assert same(server.amplifier_, sent)        # with its running statistics


@NAMES
@pytest.mark.parametrize("hidden", [False, True])
def test_in_the_first_round_the_loss_is_cross_entropy_with_its_gradient(name, hidden):
    net, x = net_of(hidden), draw(12, 3)
    server = server_of(name, {"mu": 5.0, **({"delta": 5.0} if name == "FedPall" else {})}, net)
    client = begins(server, server.broadcast("0"), net)
    assert "amplifier" not in client.got and server.adversary(net.body(x), client) == 0
    losses = [method.loss(net, x, LABELS, client) for method in (server, make("FedAvg"))]
    assert losses[0] == losses[1]
    grads = [torch.autograd.grad(loss, list(net.parameters())) for loss in losses]
    assert all(torch.equal(a, b) for a, b in zip(*grads))


@pytest.mark.parametrize("name, values", [
    ("ADCOL", {}), ("ADCOL", {"mu": 2.0, "kl": "paper"}), ("FedPall", {}), ("FedPall", {"mu": 0.3, "delta": 0.7}),
    ("FedPall", {"preset": "paper", "mu": 2.0, "delta": 3.0, "tau": 0.5})])
def test_the_loss_is_the_weighted_sum_of_its_terms_in_double_precision(name, values):
    server, net, x = server_of(name, values), net_of(), draw(12, 3, seed=60)
    server.amplifier_, server.protos_, server.seen_ = amplifier(3), draw(4, D), tensor([True, True, True, False])
    client, exact = begins(server, server.broadcast("0"), net), copy.deepcopy(net).double()
    found, z = server.loss(net, x, LABELS, client), exact.body(x.double())
    wanted = F.cross_entropy(exact.head(z), LABELS) + server.mu * divergence(log_answers(amplifier(3), z), server.kl)
    if name == "FedPall":
        wanted = wanted + server.delta * pull(z, LABELS, draw(4, D), server.seen_, server.tau, server.contrast)
    equal(found, wanted.detach())
    slopes = [torch.autograd.grad(v, list(n.parameters())) for v, n in ((found, net), (wanted, exact))]
    for ours, theirs in zip(*slopes):
        equal(ours, theirs, rtol=1e-4, atol=1e-5)


# 2. attraction to the prototype of the class

@FORMS
@pytest.mark.parametrize("tau", [3.0, 0.2])
@pytest.mark.parametrize("seen", ["1111", "1011", "0110", "0100"])
def test_the_attraction_and_its_gradient_equal_a_loop_in_double_precision(form, tau, seen):
    protos, seen = draw(4, D, seed=2) * tensor([[0.1], [0.5], [1.0], [2.0]]), tensor([c == "1" for c in seen])
    z = draw(12, D, seed=1).requires_grad_()
    exact = z.detach().double().requires_grad_()
    found, wanted = attraction(z, LABELS, protos, seen, tau, form), pull(exact, LABELS, protos, seen, tau, form)
    equal(found, wanted.detach())
    equal(torch.autograd.grad(found, z)[0], torch.autograd.grad(wanted, exact)[0])


@pytest.mark.parametrize("form, label, wanted", [
    ("released", 0, math.log(math.exp(0.6) + math.exp(1.28)) - 1.2), ("paper", 0, 1.6 - 1.2),
    ("released", 1, math.log(math.exp(0.6) + math.exp(1.28)) - 1.6), ("paper", 1, 1.2 - 1.6)])
def test_the_attraction_by_hand(form, label, wanted):
    """Cosines of (3, 4) with G = (0.5, 0) and (0, 0.8) are 0.6 and 0.8; products 0.3 and 0.64; 1 / tau = 2."""
    protos = tensor([[0.5, 0.0], [0.0, 0.8]])
    equal(attraction(tensor([[3.0, 4.0]]), tensor([label]), protos, tensor([True, True]), 0.5, form), wanted)


@FORMS
def test_a_class_without_prototype_is_in_no_denominator_and_its_samples_add_nothing(form):
    z, protos, seen = draw(12, D).requires_grad_(), draw(4, D, seed=3), tensor([True, False, True, True])
    found = attraction(z, LABELS, protos, seen, 1.0, form)
    found.backward()
    mine = LABELS == 1
    assert (z.grad[mine] == 0).all() and (z.grad[~mine] != 0).any(1).all()
    equal(found, 9 / 12 * attraction(z[~mine], LABELS[~mine], protos, seen, 1.0, form))
    protos[1] = 1e6
    assert attraction(z, LABELS, protos, seen, 1.0, form) == found


@pytest.mark.parametrize("form, seen", [("released", "000"), ("paper", "000"), ("paper", "010")])
def test_without_prototypes_the_attraction_and_its_gradient_are_0(form, seen):
    """In the paper's form also when the only class with one is that of the samples."""
    z, y, seen = draw(5, D).requires_grad_(), tensor([1] * 5), tensor([c == "1" for c in seen])
    found = attraction(z, y, torch.zeros(3, D), seen, 3.0, form)
    found.backward()
    assert found == 0 and (z.grad == 0).all()


@pytest.mark.parametrize("classes", [2, 7, 10])
def test_with_tau_3_the_released_form_moves_by_two_thirds_around_log_c(classes):
    """Prototypes of length 1 or less; the two ends of one axis come near to both bounds."""
    seen, found = torch.ones(classes, dtype=torch.bool), []
    for seed in range(20):
        protos = F.normalize(draw(classes, 4, seed=seed)) * torch.rand(classes, 1, generator=seeds.generator(seed))
        found += [attraction(a[None], tensor([c]), protos, seen, 3.0, "released")
                  for c, a in enumerate(draw(classes, 4, seed=100 + seed))]
    for sign in (1, -1):       # z at its own short prototype, all others opposite; and the reverse
        axis = tensor([[1.0, 0.0]])
        protos = torch.cat([0.01 * axis, -axis.expand(classes - 1, 2)])
        found.append(attraction(sign * axis, tensor([0]), protos, seen, 3.0, "released"))
    assert all(math.log(classes) - 2 / 3 <= v <= math.log(classes) + 2 / 3 for v in found)
    low, high = math.log(1 + (classes - 1) * math.exp(-1 / 3)), math.log(1 + (classes - 1) * math.exp(1 / 3))
    equal(torch.stack(found[-2:]), [low - 1 / 3, high + 1 / 3], atol=0.01)


def test_the_papers_form_has_no_lower_bound_and_falls_with_the_angle():
    """z turns from the other prototype to its own, opposite: from 2 / tau to -2 / tau; the released form stays >= 0."""
    protos, seen = tensor([[1.0, 0.0], [-1.0, 0.0]]), tensor([True, True])
    angles = torch.linspace(0, math.pi, 20)
    for tau in (3.0, 0.5, 0.01):
        both = [[attraction(tensor([[-a.cos(), a.sin()]]), tensor([0]), protos, seen, tau, form).item() for a in angles]
                for form in ("paper", "released")]
        assert all(a > b for a, b in pairwise(both[0])) and all(a >= b >= 0 for a, b in pairwise(both[1]))
        equal(tensor(both[0])[[0, -1]], [2 / tau, -2 / tau])


# 3. what is sent instead of features

def sent(values, z, y=None, protos=0.0, seen=True, name="0", number=0, seed=0):
    y = torch.zeros(len(z), dtype=torch.int64) if y is None else y
    got = {"protos": torch.as_tensor(protos).expand(4, z.shape[1]), "seen": torch.as_tensor(seen).expand(4)}
    return make("FedPall", values).noisy(z, y, client_of(None, z, y, name, round=number, seed=seed, got=got))


def weights(values, count=6, dim=20, **more):
    """The factors of z and of G, `(count, dim)` each: what is sent of ones among zeros."""
    return sent(values, torch.ones(count, dim), **more), sent(values, torch.zeros(count, dim), protos=1.0, **more)


CHOICES = [dict(zip(("mask", "scope", "draws"), v))
           for v in product(["fixed", "iid"], ["client", "sample"], ["once", "round"])]


@pytest.mark.parametrize("noise", ["both", "mixture", "mask", "gaussian", "none"])
def test_each_noise_sends_what_its_formula_says(noise):
    """r = m (alpha z + (1 - alpha) G^y); "mask" has alpha = 1, "mixture" m = 1. Class 1 is not seen: alpha = 1."""
    z, y, protos = draw(12, 20, seed=1), LABELS, draw(4, 20, seed=2)
    seen = tensor([True, False, True, True])
    for choice in CHOICES:
        values = {"noise": noise, "alpha": 0.3, "keep": 0.7, **choice}
        found = sent(values, z, y, protos, seen, number=2)
        if noise in ("none", "gaussian"):
            assert torch.equal(found, z) == (noise == "none")
            assert torch.equal(found, sent(values, z, y, protos + 1, ~seen, number=2))      # no G in it
            continue
        own, of_g = weights(values, 12, number=2)
        mask = (own + of_g).round()
        equal(own + of_g, mask)
        assert set(mask.unique().tolist()) == ({1.0} if noise == "mixture" else {0.0, 1.0})
        assert (of_g.max() == 0) == (noise == "mask") and (of_g < 0.701).all()
        own, of_g = (torch.where(seen[y][:, None], a, b) for a, b in ((own, mask), (of_g, 0 * mask)))
        equal(found, own * z + of_g * protos[y])
        assert torch.equal(found[y == 1], (mask * z)[y == 1])


@pytest.mark.parametrize("dim, keep, kept", [(20, 0.9, 18), (2048, 0.9, 1843), (10, 0.55, 5), (8, 1.0, 8), (8, 0.0, 0)])
def test_a_fixed_mask_keeps_exactly_its_share_of_the_dimensions(dim, keep, kept):
    for scope, masks in (("client", 1), ("sample", 6)):
        mask = sent({"noise": "mask", "keep": keep, "scope": scope}, torch.ones(6, dim))
        assert (mask.sum(1) == kept).all() and mask.eq(0).logical_or(mask.eq(1)).all()
        if 8 < kept < dim:
            assert len(mask.unique(dim=0)) == masks


@pytest.mark.parametrize("scope, masks", [("client", 1), ("sample", 100)])
def test_an_iid_mask_keeps_about_its_share(scope, masks):
    """Within 5 standard deviations, of all entries and of their number in a sample."""
    mask = sent({"noise": "mask", "mask": "iid", "scope": scope}, torch.ones(100, 2000))
    mask = mask.unique(dim=0)
    assert len(mask) == masks and abs(mask.mean() - 0.9) < 5 * math.sqrt(0.09 / mask.numel())
    if scope == "sample":
        assert 0.5 < mask.sum(1).var() / (2000 * 0.09) < 1.6      # binomial, so that the number varies
        assert (mask.mean(0) - 0.9).abs().max() < 5.5 * 0.03      # and no dimension is preferred


@pytest.mark.parametrize("least", [0.8, 0.3])
def test_alpha_is_drawn_between_its_least_value_and_1_with_two_decimals(least):
    values = {"noise": "mixture", "alpha": least}
    clients = [weights(values, name=str(i))[0] for i in range(150)]
    assert all((a == a[0, 0]).all() for a in clients)
    samples = weights({**values, "scope": "sample"}, 150)[0]
    assert (samples == samples[:, :1]).all()
    for alpha in (torch.stack(clients)[:, 0, 0], samples[:, 0]):
        assert least - 1e-6 <= alpha.min() < least + 0.1 * (1 - least) and 1 >= alpha.max() > 1 - 0.1 * (1 - least)
        equal(100 * alpha, (100 * alpha).round(), rtol=0, atol=1e-4)
        assert len(alpha.unique()) > 15
        assert abs(alpha.mean() - (1 + least) / 2) < 4 * (1 - least) / math.sqrt(12 * 150)


@pytest.mark.parametrize("choice", CHOICES, ids=lambda c: "-".join(c.values()))
def test_alpha_and_mask_are_the_same_in_each_round_or_drawn_again(choice):
    """Each client has others, and so has each seed."""
    values = {"alpha": 0.1, **choice}
    first = weights(values, dim=100)[0]
    assert torch.equal(first, weights(values, dim=100)[0])
    later = weights(values, dim=100, number=1)[0]
    kept, alpha = torch.equal(first > 0, later > 0), torch.equal(first.amax(1), later.amax(1))
    assert kept == alpha == (choice["draws"] == "once")
    assert not any(torch.equal(first, weights(values, dim=100, **other)[0]) for other in ({"name": "1"}, {"seed": 1}))


def test_gaussian_noise_has_the_moments_of_a_standard_normal():
    z = 3 * draw(200, 100)
    noise = sent({"noise": "gaussian"}, z) - z
    assert abs(noise.mean()) < 0.03 and abs(noise.var() - 1) < 0.05 and abs((noise ** 4).mean() - 3) < 0.3
    assert abs((noise.abs() < 1).float().mean() - 0.6827) < 0.02
    assert abs((noise * z).mean()) < 0.1 and not torch.equal(noise, sent({"noise": "gaussian"}, z, name="1") - z)


# 4. the server's nets

def watched(monkeypatch):
    """What `trained` is called with: (net, its entries, momenta, labels, epochs) of each call."""
    calls = []

    def watch(net, moves, split, batch, epochs, lr, gen):
        calls.append((net, params.snapshot(net), dict(moves), split.y.tolist(), epochs))
        return trained(net, moves, split, batch, epochs, lr, gen)
    monkeypatch.setattr(adversarial, "trained", watch)
    return calls


@NAMES
def test_places_are_kept_and_a_new_client_starts_the_amplifier_anew(name, monkeypatch):
    """The classifier goes on in any case. Client i sends 5 + i features, and often not all take part."""
    server, calls = server_of(name, {"server_epochs": 2}), watched(monkeypatch)
    places, last, classifier = {}, ({}, {}), (params.snapshot(net_of().head), {})
    for ids in (["2"], ["2"], ["0", "2"], ["1"], ["0", "1"], ["2"], ["0", "1", "2"]):
        anew = not places.keys() >= set(ids)
        places |= {i: len(places) for i in ids if i not in places}
        server.aggregate({i: message(5 + int(i), seed=int(i)) for i in ids})
        assert {i: int(v) for i, v in server.places_.items()} == places
        (net, entries, moves, who, epochs), *others = calls
        assert who == [places[i] for i in ids for _ in range(5 + int(i))] and epochs == 2
        assert net.out_features == len(places) == len(server.broadcast("0")["amplifier"]["6.weight"])
        scratch = params.snapshot(redrawn(HiddenLayers(D, len(places), bias=False), seeds.key(0, "amplifier")))
        assert same(entries, scratch if anew else last[0]) and same(moves, {} if anew else last[1])
        assert len(others) == (name == "FedPall")
        for _, entries, moves, y, epochs in others:
            assert same(entries, classifier[0]) and same(moves, classifier[1]) and epochs == 2
            assert y == [k % 4 for i in ids for k in range(5 + int(i))]
            classifier = server.classifier_, server.classifier_moves_
        last = server.amplifier_, server.amplifier_moves_
        calls.clear()


def test_a_second_training_at_the_server_goes_on_as_one_run_of_sgd():
    """21 samples in batches of 5: the last one of each epoch is left out."""
    split, net = Split(draw(21, D), torch.arange(21) % 3), HiddenLayers(D, 3)
    start = params.snapshot(redrawn(net, 1))
    one, moves = trained(params.load_params(HiddenLayers(D, 3), start), {}, split, 5, 2, 0.01, seeds.generator(1))
    two, cold = (trained(params.load_params(HiddenLayers(D, 3), one), m, split, 5, 2, 0.01, seeds.generator(2))[0]
                 for m in (moves, {}))
    params.load_params(net, start).train()
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-5)
    for number in (1, 2):
        gen = seeds.generator(number)
        for _ in range(2):
            for z, y in batches(split, 5, "none", gen):
                opt.zero_grad()
                F.cross_entropy(net(z), y).backward()
                opt.step()
        assert same(params.snapshot(net), one if number == 1 else two)
    assert not same(two, cold) and moves.keys() == dict(net.named_parameters()).keys()


@pytest.mark.parametrize("bias", [False, True])
def test_training_at_the_server_learns_separable_features(bias):
    y = torch.arange(60) % 3
    split, net = Split(draw(60, D) + 6 * torch.eye(D)[y], y), HiddenLayers(D, 3, bias)
    net = redrawn(net, 0)
    before = F.cross_entropy(net.train()(split.x), y)
    after, _ = trained(net, {}, split, 10, 20, 0.01, seeds.generator(0))
    logits = params.load_params(HiddenLayers(D, 3, bias), after).eval()(split.x)      # with running statistics that fit
    assert F.cross_entropy(logits, y) < 0.2 * before and (logits.argmax(1) == y).float().mean() > 0.95


def test_the_amplifier_learns_whose_a_feature_is():
    server = server_of("ADCOL", {"server_epochs": 40})
    uploads = {i: message(20, shift=4 * torch.eye(D)[int(i)], seed=int(i)) for i in "201"}
    server.aggregate(uploads)
    answers = log_answers(server.amplifier_, torch.cat([u["features"] for u in uploads.values()]).double()).argmax(1)
    assert (answers == torch.arange(3).repeat_interleave(20)).float().mean() > 0.95


@pytest.mark.parametrize("hidden, layers", [(False, ["weight", "bias"]),
                                            (True, [f"{i}.{k}" for i in (0, 3, 6) for k in ("weight", "bias")])])
def test_of_the_classifier_its_layers_travel_and_its_batch_norm_never_does(hidden, layers):
    server = server_of("FedPall", net=net_of(hidden))
    for _ in range(2):
        down = server.broadcast("0")["classifier"]
        assert sorted(down) == sorted(layers) and all(torch.equal(v, server.classifier_[k]) for k, v in down.items())
        server.aggregate({"0": message(12)})
        assert not any(torch.equal(v, server.classifier_[k]) for k, v in down.items() if "weight" in k)     # it learned


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_clients_begin_with_the_classifiers_layers_and_their_own_batch_norm(hidden, replaced):
    server = server_of("FedPall", {"replace": replaced}, net_of(hidden, seed=100))
    server.aggregate({"0": message(12)})
    net, down = net_of(hidden), server.broadcast("0")
    net.train()(draw(12, 3))        # running statistics of its own
    before = params.snapshot(net)
    after = params.snapshot(begins(server, down, net).net)
    for k, v in after.items():
        layer = k.removeprefix("head.")
        if k.startswith("head.") and layer in down["classifier"]:
            assert torch.equal(v, down["classifier"][layer]) == replaced and torch.equal(v, before[k]) != replaced
        else:
            assert torch.equal(v, before[k])


# 5. prototypes

def means_of(points: dict):
    """An upload with class means {class: (mean, count)}."""
    up = message(12) | {"protos": torch.zeros(4, D), "counts": torch.zeros(4, dtype=torch.int64)}
    for c, (mean, count) in points.items():
        up["protos"][c, :2], up["counts"][c] = tensor(mean), count
    return up


@pytest.mark.parametrize("means, first, second", [("unit", [0.45, 0.85], [0.6, 0.8]), ("raw", [2.25, 3.5], [3.0, 4.0])])
def test_prototypes_are_means_weighted_by_counts_and_stay_when_nobody_has_the_class(means, first, second):
    """Class 0: (3, 4) three times and (0, 2) once, unit (0.6, 0.8) and (0, 1). Class 2 only later, class 3 never."""
    server, one = server_of("FedPall", {"means": means}), {"unit": 1.0, "raw": 7.0}[means]
    server.aggregate({"0": means_of({0: ([3.0, 4.0], 3)}), "1": means_of({0: ([0.0, 2.0], 1), 1: ([7.0, 0.0], 5)})})
    down = server.broadcast("0")
    assert down["seen"].tolist() == [True, True, False, False]
    equal(down["protos"][:, :2], [first, [one, 0.0], [0.0, 0.0], [0.0, 0.0]])
    server.aggregate({"1": means_of({2: ([3.0, 4.0], 2)})})
    down = server.broadcast("0")
    assert down["seen"].tolist() == [True, True, True, False]
    equal(down["protos"][:, :2], [first, [one, 0.0], second, [0.0, 0.0]])
    assert (down["protos"][:, 2:] == 0).all()


def test_clients_send_the_means_of_features_as_they_are_before_the_noise():
    up, _ = worker_of("FedPall", {"noise": "none"}, net_of(), draw(12, 3)).train(server_of("FedPall").broadcast("0"), 0)
    noisy, _ = worker_of("FedPall", {}, net_of(), draw(12, 3)).train(server_of("FedPall").broadcast("0"), 0)
    assert torch.equal(up["protos"], noisy["protos"]) and not torch.equal(up["features"], noisy["features"])
    assert up["counts"].tolist() == [3, 3, 3, 3]
    equal(up["protos"], torch.stack([up["features"][up["labels"] == c].double().mean(0) for c in range(4)]))


# 6. messages, and how features are collected

@NAMES
@pytest.mark.parametrize("size, collected", [(12, 12), (9, 8)])
def test_uploads_are_features_labels_and_a_count_and_no_entry_of_a_net_travels(name, size, collected):
    """Batches of 4; a last batch of one sample is left out."""
    server, worker = server_of(name), worker_of(name, {}, net_of(), draw(size, 3), LABELS[:size])
    for number in range(2):
        down = server.broadcast("0")
        up, _ = worker.train(down, number)
        extra = {"protos", "counts"} if name == "FedPall" else set()
        assert set(params.flatten(up)) == {"features", "labels", "n"} | extra and up["n"] == size
        assert up["features"].shape == (collected, D)
        wanted = collected * (4 * D + 8) + 8 + (4 * (4 * D + 8) if extra else 0)
        assert params.nbytes(up) == wanted
        others = {k for k in params.flatten(down) if not k.startswith("amplifier/")}
        assert others == ({f"classifier/{i}.{k}" for i in (0, 3, 6) for k in ("weight", "bias")} | {"protos", "seen"}
                          if extra else set())
        for part, travels in ((worker.client.net, up), (worker.client.net.body, down)):
            values = params.flatten(travels).values()
            assert not any(torch.equal(v, w) for v in params.snapshot(part).values() for w in values)
        server.aggregate({"0": up})
    assert server.broadcast("0")["amplifier"] and server.global_ == {}


@NAMES
@pytest.mark.parametrize("collect", ["train", "eval"])
def test_collecting_features_moves_batch_norm_statistics_in_training_mode_only(name, collect):
    """One pass over the training split, after the epochs; the head takes no part in it."""
    net, passes = net_of(), []
    net.body.register_forward_hook(lambda module, x, z: passes.append((module.training, len(z))))
    worker = worker_of(name, {"collect": collect}, net, draw(10, 3), LABELS[:10], epochs=2)
    worker.train(server_of(name).broadcast("0"), 0)
    assert passes == 2 * [(True, 4), (True, 4), (True, 2)] + [(collect == "train", n) for n in (4, 4, 2)]
    before = params.snapshot(net)
    z, _ = worker.method.features(worker.client)
    moved = {k for k, v in params.snapshot(net).items() if not torch.equal(v, before[k])}
    assert moved == ({"body.1.running_mean", "body.1.running_var"} if collect == "train" else set())
    assert not z.requires_grad and all(p.requires_grad for p in net.parameters())


@pytest.mark.parametrize("augment", ["none", "crop"])
def test_features_are_collected_augmented_and_in_the_order_of_a_shuffled_pass(augment):
    """Image i has the value 20 i, which its centre shows after any crop; a crop has black borders."""
    x, orders = (20 * torch.arange(12, dtype=torch.uint8)).view(12, 1, 1, 1).expand(12, 3, 12, 12), []
    worker = worker_of("ADCOL", {}, Net(nn.Flatten(), nn.Linear(432, 4)), x, augment=augment)
    for worker.client.round in (0, 1):
        z, y = worker.method.features(worker.client)
        pixels = 255 * (z.view(12, 3, 12, 12) * NORMALS["imagenet"][1] + NORMALS["imagenet"][0])
        orders.append((pixels[:, 0, 6, 6] / 20).round().int().tolist())
        assert y.tolist() == [i % 4 for i in orders[-1]]
        black = (pixels.amin((1, 2, 3)) < 1).sum()
        assert black == 1 if augment == "none" else black > 8
    assert all(sorted(o) == list(range(12)) != o for o in orders) and orders[0] != orders[1]


# 7. whole runs

OFF = {"ADCOL": {"mu": 0.0, "collect": "eval"},
       "FedPall": {"mu": 0.0, "delta": 0.0, "replace": False, "collect": "eval"}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """(rounds without times and bytes, the clients' nets, the server) of three rounds with a head of hidden layers."""
    folder, done = tmp_path_factory.mktemp("runs"), {}

    def run(name, values=None, **more):
        planned = replace(small_run(name, values or {}, rounds=3, **more), net=Arch("resnet10", 4, "hidden"))
        if planned.digest not in done:
            kept = []

            def after(simulation):
                nets = {w.client.id: w.client.net.state_dict() for w in simulation.workers}
                kept.extend([nets, simulation.server])
            rounds = result(planned, folder, after=after)
            done[planned.digest] = [{k: v for k, v in r.items() if "bytes" not in k} for r in rounds], *kept
        return done[planned.digest]
    return run


@NAMES
def test_with_everything_off_a_run_with_hidden_layers_equals_local(name, runs):
    (ours, nets, _), (theirs, others, _) = runs(name, OFF[name]), runs("Local")
    assert ours == theirs and all(same(nets[i], others[i]) for i in others)


@pytest.mark.parametrize("name, on", [("ADCOL", {"mu": 0.1}), ("FedPall", {"mu": 0.1}), ("FedPall", {"delta": 0.1}),
                                      ("FedPall", {"replace": True}), ("FedPall", {"collect": "train"})])
def test_each_part_alone_makes_a_difference(name, on, runs):
    (_, nets, _), (_, others, _) = runs(name, OFF[name] | on), runs("Local")
    changed = [{k for k in others[i] if not torch.equal(nets[i][k], others[i][k])} for i in others]
    assert all(changed)
    if "collect" in on:
        assert all("running" in k or "batches" in k for names in changed for k in names)


def test_with_half_of_the_clients_in_a_round_a_run_knows_those_who_took_part(runs):
    _, _, server = runs("FedPall", participation=0.5)
    chosen = [loop.sample(5, server.protocol, 0, number) for number in range(3)]
    known = list(dict.fromkeys(str(i) for some in chosen for i in some))
    assert {i: int(v) for i, v in server.places_.items()} == {i: n for n, i in enumerate(known)}
    assert len(server.amplifier_["6.weight"]) == len(known) > 2


# 8. presets

PAPER = {"kl": "paper", "contrast": "paper", "means": "raw", "mask": "iid", "scope": "sample", "draws": "round"}


def test_presets_are_settings_that_others_override():
    defaults = settings.spec(make("FedPall"))
    assert settings.spec(make("FedPall", {"preset": "paper"})) == defaults | PAPER
    assert settings.spec(make("FedPall", {"preset": "as_released"})) == defaults
    assert all(defaults[k] != v for k, v in PAPER.items())
    given, more = {"preset": "paper", "kl": "released", "mu": 0.7}, {"kl": "released", "mu": 0.7}
    assert settings.spec(make("FedPall", given)) == defaults | PAPER | more and "preset" in given
    assert small_run("FedPall", {"preset": "paper"}).digest == small_run("FedPall", PAPER).digest


@pytest.mark.parametrize("name, values, words", [
    ("FedPall", {"preset": "papers"}, "did you mean 'paper'.*as_released"),
    ("FedPall", {"preset": "paper", "klx": 1}, "no setting 'klx'"), ("FedPall", {"alpha": 1.5}, "too large"),
    ("FedPall", {"keep": -0.1}, "too small"), ("ADCOL", {"preset": "paper"}, "no setting 'preset'"),
    ("FedAvg", {"preset": "paper"}, "no setting 'preset'")])
def test_wrong_presets_and_values_are_refused(name, values, words):
    with pytest.raises(UserError, match=words):
        make(name, values)


# 9. sizes of the paper

def size(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize("outputs, bias, wanted", [(10, True, 1_318_922), (7, True, 1_317_383), (4, False, 1_314_816),
                                                   (5, False, 1_315_328)])
def test_classifier_and_amplifier_have_the_published_numbers_of_parameters(outputs, bias, wanted):
    assert size(HiddenLayers(2048, outputs, bias)) == wanted


def test_the_papers_arithmetic_of_traffic():
    """24.83 M floats of a net are 12,122 features; C and A are 5.61 and 5.59 % of the body, and 10.6 % of a net."""
    net, amp = build(Arch("resnet50", head="hidden"), 10, (3, 64, 64), 0), HiddenLayers(2048, 4, bias=False)
    assert (size(net.body), net.dim) == (23_508_032, 2048)
    assert round(size(net) / 1e6, 2) == 24.83 and size(net) // 2048 == 12_122
    assert [round(100 * size(n) / size(net.body), 2) for n in (net.head, amp)] == [5.61, 5.59]
    assert round(100 * (size(net.head) + size(amp)) / size(net), 1) == 10.6
    sent = params.snapshot(net, without=params.buffers(net))
    assert params.nbytes({"params": sent}) == 4 * size(net)     # what FedAvg sends, but for running statistics and n


# 10. randomness of the server

def test_what_the_server_draws_depends_on_the_seed_of_the_run(runs):
    def made(seed, epochs):
        server = server_of("FedPall", {"server_epochs": epochs}, seed=seed)
        torch.rand(7)       # global random state must not matter
        server.aggregate({i: message(40, seed=int(i)) for i in "01"})
        return server.amplifier_, server.classifier_
    for epochs in (0, 1):
        (a, c), again, (other, c_other) = made(3, epochs), made(3, epochs), made(4, epochs)
        assert same(a, again[0]) and same(c, again[1])
        assert not any(torch.equal(a[f"{i}.weight"], other[f"{i}.weight"]) for i in (0, 3, 6))
        assert same(c, c_other) == (epochs == 0)        # C starts as the clients' head; its order of samples is drawn
    assert [runs("FedPall", participation=0.5, seed=s)[2].seed for s in (0, 1)] == [0, 1]


# what was once wrong

@FORMS
def test_an_answer_that_is_certain_has_a_finite_gradient(form):
    """exp(-200) is 0 in single precision."""
    logits = tensor([[0.0, -200.0, 3.0]] * 2).requires_grad_()
    client = client_of(None, None, None, scratch={"amplifier": lambda z: z})
    found = make("ADCOL", {"kl": form}).adversary(logits, client)
    found.backward()
    exact = logits.detach().double().requires_grad_()
    wanted = divergence(exact.log_softmax(1), form)
    equal(found, wanted.detach())
    equal(logits.grad, torch.autograd.grad(wanted, exact)[0])


@FORMS
def test_the_attraction_is_in_single_precision_under_autocast(form):
    z, protos, seen = torch.rand(12, D), F.normalize(torch.rand(4, D)), torch.ones(4, dtype=torch.bool)
    exact = attraction(z, LABELS, protos, seen, 0.07, form)
    with torch.autocast("cpu", torch.bfloat16):
        found = attraction(z, LABELS, protos, seen, 0.07, form)
    assert found.dtype == torch.float32 and torch.allclose(found, exact, atol=1e-5)


@NAMES
def test_a_batch_of_one_sample_has_no_adversary(name):
    """Its batch-norm has no statistics; a client with one sample trains on as it would alone."""
    server, net = server_of(name), Net(nn.Sequential(nn.Linear(3, D), nn.Tanh()), nn.Linear(D, 4))
    server = server_of(name, net=net)
    server.aggregate({"0": message(8), "1": message(8)})
    worker_of(name, {}, net, draw(1, 3), LABELS[:1]).train(server.broadcast("0"), 1)


def test_the_servers_nets_train_at_a_rate_of_their_own_or_at_the_clients(monkeypatch, tmp_path):
    """One number in the released code; two nets are trained in each round."""
    asked = []
    monkeypatch.setattr(adversarial, "trained", lambda *given: asked.append(given[5]) or trained(*given))
    for own in (0.01, 0.0):
        run = small_run("FedPall", {"server_rate": own}, rounds=3, warmup=1)
        result(run, tmp_path)
        assert asked == [own or rate(run.protocol, number) for number in range(3) for _ in range(2)]
        asked.clear()
