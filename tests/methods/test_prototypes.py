"""Prototype methods, COPA and FedProx's hidden factor: by hand, and against references in double precision."""
import copy
import math
import statistics
import sys
import time
from functools import partial
from itertools import product

import by_hand
import numpy as np
import pytest
import torch
from by_hand import client_of, draw, drawn, worker_of
from conftest import small_run
from scipy import stats
from torch import nn, tensor

from fedlib.core import params, seeds
from fedlib.core.errors import UserError
from fedlib.core.losses import contrast, cosines
from fedlib.engine import loop
from fedlib.methods import make
from fedlib.methods.base import OPTIMISERS, Protocol
from fedlib.methods.prototypes import clusters, reweighted
from fedlib.models.nets import Arch, Net, build

equal = partial(by_hand.equal, rtol=1e-5, atol=1e-6)


def net_of(dim=2, classes=4, body=None):
    """Features are the input itself, or what a body makes of it; all weights are drawn."""
    return drawn(Net(body or nn.Identity(), nn.Linear(dim, classes)))


def curved():
    """3 inputs, 5 features, 4 classes."""
    return net_of(5, 4, nn.Sequential(nn.Linear(3, 5), nn.Tanh()))


def server_of(name, values=None, net=None):
    return by_hand.server_of(name, values, net or net_of())


def sends(points: dict):
    """An upload of prototypes, {class: [point, ...]}."""
    return {"params": {}, "n": tensor(1), "protos": tensor([p for some in points.values() for p in some]),
            "of": tensor([c for c, some in points.items() for _ in some])}


def exchange(server, *messages):
    """One round; then what comes down, {class: its prototypes}."""
    server.aggregate({str(i): sends(m) for i, m in enumerate(messages)})
    got = server.broadcast("0")
    return {c: got["protos"][got["of"] == c] for c in got["of"].tolist()}


# references: numpy in double precision, a loop over samples

def double(*tensors):
    return [t.detach().double().numpy() if t.is_floating_point() else t.numpy() for t in tensors]


def cosine(a, b):
    return a @ b / math.sqrt(a @ a) / math.sqrt(b @ b)


def all_cosines(z, protos):
    return np.array([[cosine(a, b) for b in protos] for a in z]).reshape(len(z), len(protos))


def lse(values):
    return values.max() + np.log(np.exp(values - values.max()).sum())


def minus_log_softmax(logits, of, y):
    """The mean over samples; entries of one class are summed; a sample without any counts as 0."""
    return sum(lse(row) - lse(row[of == c]) for row, c in zip(logits, y) if c in of) / len(y)


def cross_entropy(head, z, y):
    weight, bias = double(head["weight"], head["bias"])
    return minus_log_softmax(z @ weight.T + bias, np.arange(len(bias)), y)


def own_cross_entropy(net, z, y):
    return cross_entropy(net.head.state_dict(), z, y)


# I2PFL's server, Eq. 3-5

@pytest.mark.parametrize("points, wanted", [
    ([[0.0, 0.0], [3.0, 0.0], [0.0, 6.0]], [24 / 30, 102 / 30]),            # mean (1, 2), d = 5, 8, 17
    ([[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0]], [1.0, 1.0]),         # a square: equal d
    ([[3.0, -1.0]], [3.0, -1.0]), ([[3.0, -1.0], [5.0, 2.0]], [4.0, 0.5]),  # one, two
    ([[0.1, 0.7]] * 3, [0.1, 0.7]), ([[0.0, 0.0]] * 3, [0.0, 0.0])])        # identical
def test_reweighting_by_hand(points, wanted):
    equal(reweighted(tensor(points)), [wanted])
    equal(reweighted(tensor(points[::-1])), [wanted])


@pytest.mark.parametrize("count", [3, 4, 7, 20])
def test_reweighting_is_its_formula_in_double_precision(count):
    points = draw(count, 128, seed=count).relu()
    p, = double(points)
    d = [((q - p.mean(0)) ** 2).sum() for q in p]
    equal(reweighted(points)[0], sum(w * q for w, q in zip(d, p)) / sum(d))


FIRST = {0: [[0.0, 0.0]], 1: [[1.0, 1.0]]}, {0: [[3.0, 0.0]]}, {0: [[0.0, 6.0]], 1: [[3.0, 5.0]]}
SECOND = {0: [[10.0, 0.0]], 2: [[7.0, 7.0]]}, {0: [[10.0, 2.0]]}, {0: [[10.0, 1.0]]}


@pytest.mark.parametrize("construct, first", [("reweight", [0.8, 3.4]), ("average", [1.0, 2.0])])
@pytest.mark.parametrize("ema", [0.99, 0.01, 0.0])
def test_prototypes_remember_their_past_with_the_weight_ema(construct, first, ema):
    """Class 1 is held by two clients of three and then by none, class 2 by one and only later, class 3 by nobody."""
    server = server_of("I2PFL", {"ema": ema, "construct": construct})
    assert len(server.broadcast("0")["of"]) == 0
    found = exchange(server, *FIRST)
    assert list(found) == [0, 1]
    equal(found[0], [first])
    equal(found[1], [[2.0, 3.0]])
    found = exchange(server, *SECOND)
    assert list(found) == [0, 1, 2] and all(len(p) == 1 for p in found.values())
    equal(found[0], [[ema * first[0] + (1 - ema) * 10, ema * first[1] + (1 - ema) * 1]])
    equal(found[1], [[2.0, 3.0]], rtol=0, atol=0)
    equal(found[2], [[7.0, 7.0]], rtol=0, atol=0)


def test_ema_0_is_no_memory_and_clusters_never_have_one():
    messages = [[{0: draw(1, 2, seed=i).tolist()} for i in some] for some in (range(5), range(5, 9))]
    for values in ({"ema": 0.0}, {"ema": 0.0, "construct": "average"}, {"construct": "cluster"}):
        server = server_of("I2PFL", values)
        exchange(server, *messages[0])
        assert torch.equal(exchange(server, *messages[1])[0], exchange(server_of("I2PFL", values), *messages[1])[0])


# GPCL, and the contrast of FedProc, FPL and FedPLVM

@pytest.mark.parametrize("tau", [0.02, 0.04, 0.07, 1.0])
@pytest.mark.parametrize("of", [[0, 1, 2, 3], [0, 0, 0, 1, 2, 2, 3, 1], [2, 0, 3]], ids=["one", "several", "missing"])
def test_the_contrast_is_a_log_softmax_of_cosines(tau, of):
    """Several prototypes of a class are summed; class 1 may have none."""
    z, protos, of = draw(16, 64, seed=1), 3 * draw(len(of), 64, seed=2), tensor(of)
    z, y = z + protos[torch.arange(16) % len(of)] / 3, torch.arange(16) % 4
    equal(cosines(z, protos), all_cosines(*double(z, protos)))
    wanted = minus_log_softmax(all_cosines(*double(z, protos)) / tau, of.numpy(), y.numpy())
    equal(contrast(cosines(z, protos) / tau, of, y), wanted)


def test_the_contrast_by_hand():
    """Cosines of (3, 4) with (1, 0), (0, 7) and (0, 1): 0.6, 0.8 and 0.8, times 1 / tau = 2."""
    logits, of = cosines(tensor([[3.0, 4.0]]), tensor([[1.0, 0.0], [0.0, 7.0], [0.0, 1.0]])) / 0.5, tensor([0, 1, 1])
    equal(contrast(logits, of, tensor([0])), math.log(1 + 2 * math.exp(0.4)))
    equal(contrast(logits, of, tensor([1])), math.log(1 + math.exp(-0.4) / 2))


def test_a_sample_of_a_class_without_prototype_adds_nothing():
    z, y, protos = draw(4, 8, seed=3).requires_grad_(), tensor([0, 2, 1, 2]), draw(2, 8, seed=4)
    value = contrast(cosines(z, protos) / 0.07, tensor([0, 1]), y)
    equal(value, contrast(cosines(z[[0, 2]], protos) / 0.07, tensor([0, 1]), y[[0, 2]]) / 2)
    value.backward()
    assert (z.grad[[1, 3]] == 0).all() and (z.grad[[0, 2]] != 0).any(1).all()


@pytest.mark.parametrize("method", ["I2PFL", "FPL", "FedPLVM", "FedProc"])
def test_without_prototypes_the_loss_is_cross_entropy_with_its_gradient(method):
    net, x, y = curved(), draw(6, 3), tensor([0, 1, 2, 3, 0, 1])
    server, client = server_of(method, {"lam_intra": 0.0} if method == "I2PFL" else {}, net), client_of(net, x, y)
    client.got, client.scratch = server.broadcast("0"), {"rng": np.random.default_rng(0), "epoch": []}
    grads = [torch.autograd.grad(loss, list(net.parameters()))
             for loss in (server.loss(net, x, y, client), make("FedAvg").loss(net, x, y, client))]
    equal(server.loss(net, x, y, client), own_cross_entropy(net, *double(net.body(x), y)))
    assert all(torch.equal(a, b) for a, b in zip(*grads))
    assert contrast(cosines(x, x[:0]), y[:0], y) == 0


# APA, Eq. 7-9

@pytest.mark.parametrize("moves, reduction, wanted", [
    ("sample", "mean", 13 / 3), ("sample", "sum", 11.0), ("class", "mean", 11 / 3), ("class", "sum", 10.0)])
def test_apa_by_hand(moves, reduction, wanted, monkeypatch):
    """h = 1, 3 of class 0 and 5 of class 1; mixed 3, 3 and 2: p~ = 3 and 2. Squares 4, 0, 9; of the means 1 and 9."""
    method, h, y = make("I2PFL", {"moves": moves, "reduction": reduction}), tensor([[1.0], [3.0], [5.0]]), [0, 0, 1]
    monkeypatch.setattr(method, "partners", lambda y, rng: (tensor([2, 2, 0]), tensor([0.5, 1.0, 0.25])))
    equal(method.intra(net_of(1), h, h, tensor(y), None), wanted)


def apa(net, x, y, j, gamma, method):
    """The same from Eq. 7-9, sample by sample, in the precision of the net and x."""
    def mix(a, i):
        return gamma[i] * a[i] + (1 - gamma[i]) * a[j[i]]
    h, terms = net.body(x), {}
    mixed = {"none": h, "feature": [mix(h, i) for i in range(len(y))],
             "input": [net.body(mix(x, i)[None])[0] for i in range(len(y))]}[method.mixup]
    for c in sorted(set(y)):
        mine = [i for i in range(len(y)) if y[i] == c]
        target = sum(mixed[i] for i in mine) / len(mine)
        target = target.detach() if method.detach else target
        centre = sum(h[i] for i in mine) / len(mine)
        terms[c] = [((h[i] if method.moves == "sample" else centre) - target).square().sum() for i in mine]
    if method.reduction == "sum":
        return sum(sum(t) / len(t) for t in terms.values())
    return sum(map(sum, terms.values())) / h.numel()


@pytest.mark.parametrize("mixup, partner", [("feature", "other"), ("feature", "any"), ("input", "other"),
                                            ("input", "any"), ("none", "other")])
@pytest.mark.parametrize("detach", [True, False])
def test_apa_and_its_gradient_equal_a_loop_in_double_precision(mixup, partner, detach):
    x, y = draw(9, 3), tensor([0, 1, 1, 3, 0, 1, 3, 3, 3])
    for moves, reduction, gamma in product(["sample", "class"], ["mean", "sum"], ["sample", "batch"]):
        net = curved()
        method = make("I2PFL", {"mixup": mixup, "partner": partner, "detach": detach, "moves": moves,
                                "reduction": reduction, "gamma": gamma})
        j, weight = method.partners(y, np.random.default_rng(5))
        found = method.intra(net, x, net.body(x), y, np.random.default_rng(5))
        exact = copy.deepcopy(net).double()
        wanted = apa(exact, x.double(), y.tolist(), j.tolist(), weight.double(), method)
        equal(found, wanted.detach())
        assert (found > 1e-4) == (mixup != "none" or moves == "sample")     # else it is the mean against itself
        for ours, theirs in zip(torch.autograd.grad(found, list(net.body.parameters())),
                                torch.autograd.grad(wanted, list(exact.body.parameters()))):
            equal(ours, theirs)


def test_a_gradient_through_the_target_is_another_one():
    x, y, slopes = draw(9, 3), tensor([0, 1, 1, 3, 0, 1, 3, 3, 3]), []
    for detach in (True, False):
        net = curved()
        make("I2PFL", {"detach": detach}).intra(net, x, net.body(x), y, np.random.default_rng(5)).backward()
        slopes.append(net.body[0].weight.grad)
    assert (slopes[0] - slopes[1]).abs().max() > 1e-2


@pytest.mark.parametrize("values", [{}, {"partner": "any"}, {"moves": "class", "reduction": "sum"}, {"detach": False},
                                    {"mixup": "input"}])
def test_a_batch_of_one_class_has_no_apa(values):
    net, x = curved(), draw(5, 3)
    found = make("I2PFL", values).intra(net, x, net.body(x), tensor([2] * 5), np.random.default_rng(0))
    found.backward()
    assert found == 0 and (net.body[0].weight.grad == 0).all()


def test_without_mixup_a_batch_of_one_class_is_pulled_to_its_mean():
    """Mean 2: squares 4, 1 and 1, 4 by class; their mean over samples and the one dimension."""
    h = tensor([[0.0], [3.0], [3.0]])
    equal(make("I2PFL", {"mixup": "none"}).intra(net_of(1), h, h, tensor([1, 1, 1]), None), (4 + 1 + 1) / 3)
    h, y = tensor([[0.0], [4.0], [5.0], [7.0]]), tensor([0, 0, 1, 1])       # means 2 and 6
    equal(make("I2PFL", {"mixup": "none"}).intra(net_of(1), h, h, y, None), (4 + 4 + 1 + 1) / 4)
    equal(make("I2PFL", {"mixup": "none", "reduction": "sum"}).intra(net_of(1), h, h, y, None), 4.0 + 1.0)


def test_i2pfls_loss_is_the_sum_of_its_three_terms():
    net, x, y = curved(), draw(8, 3), tensor([0, 1, 1, 3, 0, 1, 3, 2])
    protos, of = draw(3, 5, seed=7), tensor([0, 1, 3])
    method = make("I2PFL", {"lam_intra": 3.0, "lam_inter": 0.5, "tau": 0.04})
    client = client_of(net, x, y, got={"protos": protos, "of": of},
                       scratch={"rng": np.random.default_rng(1), "epoch": []})
    j, gamma = method.partners(y, np.random.default_rng(1))
    z, labels = double(net.body(x), y)
    pull = apa(copy.deepcopy(net).double(), x.double(), y.tolist(), j.tolist(), gamma.double(), method).item()
    inter = minus_log_softmax(all_cosines(z, double(protos)[0]) / 0.04, of.numpy(), labels)
    equal(method.loss(net, x, y, client), own_cross_entropy(net, z, labels) + 3 * pull + 0.5 * inter)


@pytest.mark.parametrize("partner", ["other", "any"])
def test_partners_are_drawn_evenly_from_those_allowed(partner):
    y, rng, method = tensor([0, 1, 1, 2, 0, 2, 2]), np.random.default_rng(0), make("I2PFL", {"partner": partner})
    allowed = (y[:, None] != y if partner == "other" else ~torch.eye(7, dtype=torch.bool)).numpy()
    counts = np.zeros((7, 7))
    for _ in range(600):
        counts[np.arange(7), method.partners(y, rng)[0].numpy()] += 1
    assert (counts[~allowed] == 0).all()
    assert min(stats.chisquare(row[ok]).pvalue for row, ok in zip(counts, allowed)) > 1e-3


@pytest.mark.parametrize("alpha", [0.2, 0.4, 1.0])
def test_gamma_is_a_draw_of_beta_for_each_sample_or_the_batch(alpha):
    y = torch.arange(40) % 3
    gamma = {}
    for scope, fold in product(["sample", "batch"], [False, True]):
        rng, method = np.random.default_rng(2), make("I2PFL", {"alpha": alpha, "gamma": scope, "fold": fold})
        gamma[scope, fold] = torch.stack([method.partners(y, rng)[1] for _ in range(200)]).numpy()
        assert gamma[scope, fold].shape == (200, 40)
    one = gamma["batch", False]
    assert (one == one[:, :1]).all() and len(np.unique(one)) > 150     # many round to 1
    for draws in (gamma["sample", False].ravel(), one[:, 0]):
        assert stats.kstest(draws, stats.beta(alpha, alpha).cdf).pvalue > 0.01
    for scope in ("sample", "batch"):
        assert gamma[scope, True].min() >= 0.5
        np.testing.assert_allclose(gamma[scope, True], np.maximum(gamma[scope, False], 1 - gamma[scope, False]),
                                   rtol=1e-6)


@pytest.mark.parametrize("size, counted", [(10, 10), (9, 8), (3, 3), (1, 1)])
def test_prototypes_of_the_last_epoch_are_made_of_its_features_alone(size, counted):
    """Batches of 4; a last batch of one sample is left out."""
    net, seen = curved(), []
    net.body.register_forward_hook(lambda module, x, z: seen.append(z.detach().clone()))
    worker = worker_of("I2PFL", net, draw(size, 3), torch.arange(size) % 4, {"source": "epoch"}, batch=4, epochs=3)
    upload, _ = worker.train(server_of("I2PFL", net=net).broadcast("0"), 0)
    z, y = worker.method.features(worker.client)
    assert len(z) == len(y) == counted and torch.equal(z, torch.cat(seen)[-counted:])
    assert sum(map(len, seen)) == 3 * counted       # no pass besides those of the training
    z, y = double(z, y)
    assert upload["of"].tolist() == sorted(set(y.tolist()))
    equal(upload["protos"], np.stack([z[y == c].mean(0) for c in sorted(set(y.tolist()))]))


def test_prototypes_of_the_trained_net_come_from_one_pass_in_evaluation_mode():
    net = net_of(5, 4, nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Dropout(0.5)))
    x, y, passes = draw(10, 3), torch.arange(10) % 3, []
    net.body.register_forward_hook(lambda module, x, z: passes.append((module.training, len(z))))
    worker = worker_of("I2PFL", net, x, y, batch=4, epochs=2)
    upload, _ = worker.train(server_of("I2PFL", net=net).broadcast("0"), 0)
    assert passes == 2 * [(True, 4), (True, 4), (True, 2)] + [(False, 10)]
    w, b, scale, shift, mean, var = double(*[net.state_dict()[f"body.{k}"] for k in (
        "0.weight", "0.bias", "1.weight", "1.bias", "1.running_mean", "1.running_var")])
    z = (double(x)[0] @ w.T + b - mean) / np.sqrt(var + 1e-5) * scale + shift
    equal(upload["protos"], np.stack([z[y.numpy() == c].mean(0) for c in range(3)]))


# FINCH

def rays(degrees, length=1.0):
    angles = torch.deg2rad(tensor(degrees, dtype=torch.float64))
    return (torch.stack([angles.cos(), angles.sin()], 1) * torch.as_tensor(length)).float()


def same_points(found, wanted):
    found, wanted = (sorted(torch.as_tensor(p).double().tolist()) for p in (found, wanted))
    equal(tensor(found), tensor(wanted))


@pytest.mark.parametrize("groups", [
    [[0.0]], [[0.0, 80.0]], [[0.0, 1.0, 40.0]],             # the third is linked to one of the mutual two
    [[0.0, 1.0], [50.0, 51.0]], [[0.0, 1.0, 3.0], [80.0, 82.0]],
    [[0.0, 2.0, 5.0, 7.0], [80.0, 82.0, 85.0, 87.0]],       # 8 points, 4 pairs, 2; all in one does not count
    [[0.0, 1.0, 10.0, 11.0], [50.0, 51.0, 60.0, 61.0]],     # pairs that are further apart than any first neighbours
    [[a + b + c + d for b in (0.0, 20.0) for c in (0.0, 5.0) for d in (0.0, 2.0)] for a in (0.0, 120.0)],
], ids=lambda groups: "+".join(str(len(g)) for g in groups))
def test_clusters_of_rays_are_those_known_by_hand(groups):
    """By angle alone: lengths count in the means only."""
    for stretch in (0.0, 1.0):
        points = [rays(g, 1 + stretch * torch.arange(len(g))[:, None]) for g in groups]
        same_points(clusters(torch.cat(points)), torch.stack([p.mean(0) for p in points]))


def joined(points):
    """Labels: each point is linked to its nearest by cosine, and the smallest number spreads along the links."""
    nearest = (9 * np.eye(len(points)) - all_cosines(points, points)).argmin(1)
    group = np.arange(len(points))
    for i, j in list(enumerate(nearest)) * len(points):
        group[i] = group[j] = min(group[i], group[j])
    return np.unique(group, return_inverse=True)[1]


def finch(points):
    """The means of the clusters: join points, then means, until nothing changes or one would be left."""
    labels = joined(points)
    while True:
        means = np.stack([points[labels == c].mean(0) for c in range(labels.max() + 1)])
        coarser = joined(means)[labels]
        if coarser.max() in (0, labels.max()):
            return means
        labels = coarser


def test_clusters_equal_a_plain_finch_in_double_precision_in_any_order():
    sizes = set()
    for count in [1, 2, 3, 4, 5, 8, 13, 20, 40, 60]:
        for seed in range(3):
            points = draw(count, 4, seed=100 * count + seed).abs()
            wanted = finch(double(points)[0])
            same_points(clusters(points), wanted)
            same_points(clusters(points[torch.randperm(count, generator=seeds.generator(count, seed))]), wanted)
            sizes.add(len(wanted))
    assert len(sizes) > 3


def test_without_the_package_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "finch", None)
    with pytest.raises(UserError, match="pip install finch-clust"):
        clusters(draw(3, 2))
    equal(exchange(server_of("I2PFL"), {0: [[1.0, 2.0]]})[0], [[1.0, 2.0]])     # which does without


# FPL, FedPLVM, FedProc

SEVERAL = draw(5, 6, seed=8).abs(), tensor([0, 0, 0, 1, 3])     # class 2 has none


def loss_of(name, values, net, x, y, **client):
    method = make(name, values, Protocol(rounds=5))
    return method.loss(net, x, y, client_of(net, x, y, **client))


def centres():
    """Of each class the mean of its prototypes."""
    protos, of = double(*SEVERAL)
    return {c: protos[of == c].mean(0) for c in (0, 1, 3)}


@pytest.mark.parametrize("lam, tau", [(1.0, 0.02), (0.3, 0.2)])
def test_fpls_loss_equals_double_precision(lam, tau):
    net, x, y = net_of(6), draw(8, 6, seed=9), torch.arange(8) % 4
    found = loss_of("FPL", {"lam": lam, "tau": tau}, net, x, y, got=dict(zip(("protos", "of"), SEVERAL)))
    z, labels, protos, of = double(x, y, *SEVERAL)
    align = sum(((a - centres()[c]) ** 2).mean() for a, c in zip(z, labels) if c != 2) / len(z)
    pull = minus_log_softmax(all_cosines(z, protos) / tau, of, labels)
    equal(found, own_cross_entropy(net, z, labels) + lam * (pull + align))


@pytest.mark.parametrize("lam, tau, alpha", [(100.0, 0.07, 0.25), (0.3, 0.5, 1.0)])
def test_fedplvms_loss_equals_double_precision(lam, tau, alpha):
    """Some cosines are negative, and count as 1e-6."""
    net, x, y = net_of(6), draw(8, 6, seed=9), torch.arange(8) % 4
    found = loss_of("FedPLVM", {"lam": lam, "tau": tau, "alpha": alpha}, net, x, y,
                    got=dict(zip(("protos", "of"), SEVERAL)))
    z, labels, protos, of = double(x, y, *SEVERAL)
    near = all_cosines(z, protos)
    assert 5 < (near < 1e-6).sum() < near.size - 5
    sparse = minus_log_softmax(np.maximum(near, 1e-6) ** alpha / tau, of, labels)
    far = sum((1 - cosine(a, centres()[c])) ** 2 for a, c in zip(z, labels) if c != 2) / len(z)
    equal(found, own_cross_entropy(net, z, labels) + lam * (sparse + 2 * far))


@pytest.mark.parametrize("method", ["FPL", "FedPLVM"])
def test_servers_keep_several_clusters_of_a_class_and_later_replace_them(method):
    """Three and two rays of class 0, from five clients; class 1 from one client, in the first round only."""
    first = [rays([d])[0].tolist() for d in (0.0, 1.0, 3.0, 80.0, 82.0)]
    server = server_of(method)
    found = exchange(server, {0: first[:1], 1: [[5.0, 5.0]]}, *[{0: [p]} for p in first[1:]])
    same_points(found[0], torch.stack([tensor(first[:3]).mean(0), tensor(first[3:]).mean(0)]))
    equal(found[1], [[5.0, 5.0]])
    found = exchange(server, {0: [[0.0, 3.0]]})
    equal(found[0], [[0.0, 3.0]])
    equal(found[1], [[5.0, 5.0]])


def test_fpls_centre_counts_clusters_alike_whatever_their_sizes():
    """Clusters (4, 0) of three clients and (0, 2) of two: the centre is (2, 1), where the loss has no alignment."""
    server = server_of("FPL")
    server.aggregate({str(i): sends({0: [p]}) for i, p in enumerate([[3.0, 0.0], [4.0, 0.0], [5.0, 0.0], [0.0, 2.0],
                                                                     [0.0, 2.0]])})
    got, net, y = server.broadcast("0"), net_of(), tensor([0])
    assert got["of"].tolist() == [0, 0]
    for x, wanted in (([[2.0, 1.0]], 0.0), ([[2.4, 0.8]], (0.4 ** 2 + 0.2 ** 2) / 2)):
        found = server.loss(net, tensor(x), y, client_of(net, tensor(x), y, got=got))
        equal(found, own_cross_entropy(net, *double(tensor(x), y)) + wanted)     # all prototypes are positive: no pull


def test_fedplvms_clients_send_clusters_of_their_features():
    """Two clusters of class 0, one of class 3, more prototypes than classes; FPL sends the two means."""
    x = torch.cat([rays([0.0, 1.0, 3.0, 80.0, 82.0]), rays([20.0, 21.0]) * 2])[[5, 0, 3, 1, 4, 2, 6]]
    y, net = tensor([3, 0, 0, 0, 0, 0, 3]), net_of()
    sent = make("FedPLVM").upload(client_of(net, x, y))
    assert sent["of"].tolist() == [0, 0, 3] and set(sent) == {"params", "n", "protos", "of"}
    same_points(sent["protos"][:2], torch.stack([x[[1, 3, 5]].mean(0), x[[2, 4]].mean(0)]))
    equal(sent["protos"][2], x[[0, 6]].mean(0))
    sent = make("FPL").upload(client_of(net, x, y))
    assert sent["of"].tolist() == [0, 3]
    equal(sent["protos"], torch.stack([x[y == 0].mean(0), x[y == 3].mean(0)]))


@pytest.mark.parametrize("number, weight", [(0, 1.0), (1, 0.75), (2, 0.5), (4, 0.0)])
@pytest.mark.parametrize("a, tau", [(1.0, 1.0), (0.4, 0.1)])
def test_fedproc_goes_from_prototypes_to_labels(number, weight, a, tau):
    """a_t = a (1 - t / 4); class 2 has no prototype, so that its samples are in the cross-entropy alone."""
    net, x, y, protos = net_of(6), draw(8, 6, seed=9), torch.arange(8) % 4, draw(4, 6, seed=10)
    seen = tensor([True, True, False, True])
    z, labels, p = double(x, y, protos)
    pull = minus_log_softmax(all_cosines(z, p[[0, 1, 3]]) / tau, np.array([0, 1, 3]), labels)
    wanted = (1 - a * weight) * own_cross_entropy(net, z, labels) + a * weight * pull
    equal(loss_of("FedProc", {"a": a, "tau": tau}, net, x, y, round=number, got={"protos": protos, "seen": seen}),
          wanted)
    equal(loss_of("FedProc", {"a": a}, net, x, y, round=number, got={"protos": protos, "seen": seen & False}),
          own_cross_entropy(net, z, labels))


def test_fedprocs_prototypes_count_clients_that_hold_the_class_alike():
    server = server_of("FedProc")
    protos = torch.zeros(2, 4, 2)
    protos[:, 0], protos[0, 1] = tensor([[1.0, 1.0], [3.0, 5.0]]), tensor([2.0, 0.0])
    for sent, counts in ((protos, [[9, 1, 0, 0], [1, 0, 0, 0]]), (protos + 1, [[0, 0, 1, 0], [2, 0, 0, 0]])):
        server.aggregate({str(i): {"params": {}, "n": tensor(1), "protos": p, "counts": tensor(c)}
                          for i, (p, c) in enumerate(zip(sent, counts))})
        if sent is protos:
            equal(server.broadcast("0")["protos"], [[2.0, 3.0], [2.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    assert server.broadcast("0")["seen"].tolist() == [True, True, True, False]
    equal(server.broadcast("0")["protos"], [[4.0, 6.0], [2.0, 0.0], [1.0, 1.0], [0.0, 0.0]])


# COPA

HEADS = {str(i): {"weight": draw(4, 5, seed=20 + i), "bias": draw(4, seed=30 + i)} for i in range(3)}


@pytest.mark.parametrize("lam", [1.0, 0.3])
def test_copas_foreign_heads_are_those_of_others(lam):
    """The sum over the two others: the head that client 1 sent itself does not count, and its own has their body."""
    net, x, y = curved(), draw(6, 3), tensor([0, 1, 2, 3, 0, 1])
    value = make("COPA", {"lam": lam}).loss(net, x, y, client_of(net, x, y, "1", got={"heads": HEADS}))
    z, labels = double(net.body(x), y)
    foreign = cross_entropy(HEADS["0"], z, labels) + cross_entropy(HEADS["2"], z, labels)
    equal(value, own_cross_entropy(net, z, labels) + lam * foreign)
    own = torch.autograd.grad(make("FedAvg").loss(net, x, y, None), list(net.parameters()))
    found = torch.autograd.grad(value, list(net.parameters()))
    assert [torch.equal(a, b) for a, b in zip(own, found)] == [False, False, True, True]


def test_copas_first_round_has_no_foreign_heads():
    net, x, y = curved(), draw(6, 3), tensor([0, 1, 2, 3, 0, 1])
    server = server_of("COPA", net=net)
    assert set(server.broadcast("0")) == {"params"}
    client = client_of(net, x, y, got=server.broadcast("0"))
    equal(server.loss(net, x, y, client), own_cross_entropy(net, *double(net.body(x), y)))
    assert torch.equal(server.predict(net, x, client), net(x))


def test_copas_heads_travel_frozen_and_are_never_averaged():
    """Two clients of three in the first round, one in the second: others keep the head they sent last."""
    server, x, y = server_of("COPA", net=curved()), draw(6, 3), tensor([0, 1, 2, 3, 0, 1])
    workers = {i: worker_of("COPA", curved(), x + int(i), y, client_id=i) for i in "012"}
    body, last = {"body.0.weight", "body.0.bias"}, {}
    for number, ids in enumerate(["01", "2", "02"]):
        got, uploads = server.broadcast("0"), {}
        assert set(got["params"]) == body and set(got.get("heads", {})) == set(last)
        for i, sent in last.items():
            assert all(torch.equal(v, sent[k]) and not v.requires_grad for k, v in got["heads"][i].items())
        for i in ids:
            uploads[i], _ = workers[i].train(got, number)
            last[i] = params.snapshot(workers[i].client.net.head)
            assert set(uploads[i]["params"]) == body and set(uploads[i]["head"]) == {"weight", "bias"}
        server.aggregate(uploads)
    assert not any(torch.equal(last[i]["weight"], last[j]["weight"]) for i, j in ("01", "02", "12"))


def test_copa_asks_all_heads_and_averages_their_probabilities():
    """Heads that say (3/4, 1/4) and (1/2, 1/2) for x = 1; the client's own says otherwise."""
    net, x, y = net_of(1, 2), tensor([[1.0]]), tensor([0])
    heads = {i: {"weight": tensor([[w], [0.0]]), "bias": torch.zeros(2)} for i, w in (("0", math.log(3)), ("1", 0.0))}
    client = client_of(net, x, y, got={"heads": heads})
    equal(make("COPA").predict(net, x, client), [[math.log(5 / 8), math.log(3 / 8)]])
    own = make("COPA", {"infer": "own"})
    assert torch.equal(own.predict(net, x, client), net(x))
    assert own.personal and not make("COPA").personal


# FedProx

@pytest.mark.parametrize("mu, hidden", [(0.01, 0.01), (10.0, 0.01)])
def test_fedproxs_hidden_factor_is_a_factor_of_mu(mu, hidden):
    trained = {}
    for values in ({"mu": mu, "hidden": hidden}, {"mu": mu * hidden}, {"mu": 0.0}):
        worker = worker_of("FedProx", curved(), draw(12, 3), torch.arange(12) % 4, values, batch=4, epochs=3)
        trained[len(trained)] = worker.train({"params": params.snapshot(worker.client.net)}, 0)[0]["params"]
    for k, v in trained[0].items():
        equal(v, trained[1][k])
        assert not torch.equal(v, trained[2][k])


# cost

def test_steps_of_fpl_and_fedplvm_cost_at_most_two_of_fedavg():
    """10 classes with 3 prototypes each; the measurements take turns."""
    x, y, steps = draw(32, 3, 32, 32), torch.arange(32) % 10, {}
    for name in ("FedAvg", "FPL", "FedPLVM"):
        method, net = make(name), build(Arch("resnet10", 16), 10, (3, 32, 32), 0).train()
        got = {"protos": draw(30, net.dim).abs(), "of": torch.arange(10).repeat_interleave(3)}
        steps[name] = method, net, client_of(net, x, y, got=got), OPTIMISERS["sgd"](Protocol(lr=1e-4), net)
    seconds = {name: [] for name in steps}
    for _ in range(17):
        for name, (method, net, client, opt) in steps.items():
            start = time.perf_counter()
            method.step(net, x, y, client, opt, method.loss)
            seconds[name].append(time.perf_counter() - start)
    median = {name: statistics.median(s[2:]) for name, s in seconds.items()}
    assert max(median["FPL"], median["FedPLVM"]) <= 2 * median["FedAvg"], median


# what was once wrong

def test_cosines_are_in_single_precision_under_autocast():
    z, protos = torch.rand(32, 128), torch.rand(10, 128)
    exact = cosines(z, protos)
    with torch.autocast("cpu", torch.bfloat16):
        found = cosines(z, protos)
    assert found.dtype == torch.float32 and torch.allclose(found, exact, atol=1e-5)


@pytest.mark.parametrize("name, values", [("FPL", {}), ("FedPLVM", {}), ("I2PFL", {"construct": "cluster"})])
def test_a_diverged_run_says_so(name, values, tmp_path):
    with pytest.raises(UserError, match="diverged"):
        loop.train(small_run(name, values, net="cnn4", lr=1e6), tmp_path)


@pytest.mark.parametrize("values", [{"alpha": 0.0}, {"ema": 1.5}])
def test_impossible_settings_are_refused(values):
    with pytest.raises(UserError):
        make("I2PFL", values)


@pytest.mark.parametrize("by, first", [("clients", 2.0), ("samples", 1.5)])
def test_fedproto_weighs_clients_alike_or_by_their_samples_of_the_class(by, first):
    """Class 0: one sample with mean 3, three with mean 1; class 1: only the second client has it."""
    method = make("FedProto", {"by": by})
    protos = torch.tensor([[[3.0], [9.0]], [[1.0], [4.0]]])
    merged = method.merge(protos, torch.tensor([[1, 0], [3, 2]]))
    assert merged.tolist() == [[first], [4.0]]
