"""A head of one's own by hand: combinations of heads, Gaussian heads, a policy over two, a valve, an alignment."""
import copy

import pytest
import torch
import torch.nn.functional as F
from by_hand import client_of, draw, equal
from conftest import refusal, small_run
from scipy.optimize import minimize
from torch import nn
from torch.distributions import MultivariateNormal

from fedlib.core.federation import as_input
from fedlib.core.losses import mmd
from fedlib.core.seeds import generator
from fedlib.engine.loop import Simulation
from fedlib.engine.run import plan
from fedlib.methods import make
from fedlib.methods.base import outputs
from fedlib.methods.own_heads import both, combinations, gaussians, lda, on_simplex, trace, turned
from fedlib.models.nets import Net


def begun(name, values=None, **how):
    """A simulation's first client, trained for one round on the first message, and its upload."""
    simulation = Simulation(small_run(name, values, **how))
    worker = simulation.workers[0]
    upload, _ = worker.train(simulation.message(0), 0)
    return simulation, worker, upload


# FedPAC

def test_the_nearest_point_of_a_simplex():
    equal(on_simplex(torch.tensor([[0.2, 0.3, 0.5], [1.0, 1.0, -5.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0]])),
          [[0.2, 0.3, 0.5], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [1 / 3, 1 / 3, 1 / 3]])


def test_clients_alike_share_by_their_variances_and_leave_a_stranger_out():
    m, v = torch.tensor([[[1.0]], [[1.0]], [[50.0]]]), torch.tensor([1.0, 3.0, 1.0])
    a = combinations(m, v)
    equal(a, [[0.75, 0.25, 0.0], [0.75, 0.25, 0.0], [0.0, 0.0, 1.0]], atol=1e-3, rtol=0)


@pytest.mark.parametrize("seed", range(4))
def test_no_solver_finds_better_combinations(seed):
    gen = torch.Generator().manual_seed(seed)
    m, v = torch.randn(6, 3, 4, generator=gen) * 0.3, torch.rand(6, generator=gen)
    a = combinations(m, v)
    assert (a >= 0).all() and (a.sum(1) - 1).abs().max() < 1e-9
    for k, row in enumerate(a):
        def worth(x, k=k):
            x = torch.as_tensor(x)
            return float((x.square() * v).sum() + (m[k].flatten() - x @ m.double().flatten(1)).square().sum())
        found = minimize(worth, [1 / 6] * 6, bounds=[(0, 1)] * 6, tol=1e-12,
                         constraints={"type": "eq", "fun": lambda x: sum(x) - 1})
        assert worth(row) <= found.fun + 1e-8


def test_fedpac_says_what_the_received_body_gives():
    simulation = Simulation(small_run("FedPAC"))
    worker, message = simulation.workers[0], simulation.message(0)
    worker.begin(message, 0)
    z, y = outputs(worker.client.net.body, worker.client.train, worker.method.protocol), worker.client.train.y
    worker.method.local(worker.client)
    upload, _ = worker.end()
    n, own = len(y), torch.stack([z[y == c].sum(0) / len(y) for c in range(10)])
    assert torch.allclose(upload["m"], own, atol=1e-5)
    second = sum(z[y == c].T @ z[y == c] for c in range(10)).trace() / n        # sum_c p_c tr E[z z^T | c]
    assert float(upload["v"]) == pytest.approx(float((second - own.square().sum()) / n), rel=1e-4)


def test_the_loss_of_fedpac_by_hand():
    """Features are pulled to the means of their classes, but where a class has none yet."""
    net, x, y = Net(nn.Linear(3, 5), nn.Linear(5, 4)), draw(8, 3), torch.arange(8) % 4
    protos = draw(4, 5, seed=1)
    client = client_of(net, x, y, got={"protos": protos, "seen": torch.tensor([True, True, False, True])})
    far = sum((z - protos[c]).square().sum() for z, c in zip(net.body(x), y) if c != 2) / (8 * 5)
    found = make("FedPAC", {"lam": 0.3}).loss(net, x, y, client)
    equal(found, F.cross_entropy(net(x), y) + 0.3 * far)


def test_fedpacs_class_means_are_those_of_all_samples():
    assert make("FedPAC").merge(torch.tensor([[[1.0]], [[4.0]]]), torch.tensor([[1], [2]])).tolist() == [[3.0]]


def test_each_client_of_fedpac_gets_a_head_of_its_own():
    simulation = Simulation(small_run("FedPAC"))
    simulation.round()
    heads = [simulation.message(i)["head"]["weight"] for i in range(5)]
    assert not any(torch.equal(heads[0], h) for h in heads[1:])
    assert "head" not in Simulation(small_run("FedPAC")).message(0)
    simulation.workers[0].begin(simulation.message(0), 1)
    equal(simulation.workers[0].client.net.head.weight, heads[0])


# FedAS

def test_the_trace_is_the_sum_of_squared_gradients():
    simulation = Simulation(small_run("FedAS", net="linear", batch=8))
    client, protocol = simulation.workers[0].client, simulation.workers[0].method.protocol
    net, total = client.net, 0.0
    for x, y in zip(client.train.x.split(8), client.train.y.split(8)):
        x = as_input(x)
        error = (net(x).detach().softmax(1) - F.one_hot(y, 10)) / len(y)
        total += float((error.T @ x.flatten(1)).square().sum() + error.sum(0).square().sum())
    assert float(trace(client, protocol).detach()) == pytest.approx(total, rel=1e-4)


def test_who_still_learns_weighs_most():
    method = make("FedAS")
    said = {"0": {"fisher": torch.tensor(3.0), "n": torch.tensor(1)}, "1": {"fisher": torch.tensor(1.0),
                                                                          "n": torch.tensor(99)}}
    assert method.client_weights(said) == pytest.approx([3.0, 1.0])
    assert [int(w) for w in make("FedAS", {"fisher": False}).client_weights(said)] == [1, 99]


def test_features_are_pulled_to_what_they_were():
    simulation, worker, upload = begun("FedAS", net="cnn4", augment="none", lr=0.02)
    client = worker.client
    worker.begin(simulation.message(0), 1)

    def far():
        with torch.no_grad():
            return float(worker.method.far(client.net, as_input(client.train.x), client.train.y, client))
    before, head = far(), client.net.head.weight.clone()
    worker.method.adapt(client)
    assert far() < before
    equal(client.net.head.weight, head)


# pFedFDA

def test_a_gaussian_head_has_the_log_densities():
    gen = torch.Generator().manual_seed(0)
    means, root, z = (torch.randn(n, 4, generator=gen) for n in (3, 4, 7))
    cov, prior = root @ root.T + torch.eye(4), torch.tensor([0.5, 0.3, 0.2])
    got = F.linear(z, **lda(means, cov, prior))
    rounder = torch.lerp(cov, cov.trace() / 4 * torch.eye(4), 1e-4)
    wanted = torch.stack([MultivariateNormal(m, rounder).log_prob(z) for m in means], 1) + prior.log()
    assert torch.allclose(got.log_softmax(1), wanted.log_softmax(1), atol=1e-4)


def test_gaussians_of_samples():
    z, y = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 5.0]]), torch.tensor([0, 0, 2])
    means, cov = gaussians(z, y, torch.full((3, 2), 9.0), 0.5)
    equal(means, [[1.0, 0.0], [9.0, 9.0], [5.0, 5.0]])
    equal(cov, [[1.5, 0.0], [0.0, 0.5]])        # scatter 2 over n - 1 = 2, plus 0.5 I


def believed(spread: float, count: int, values=None):
    """What a client takes over from its own samples: two classes around +-1, where the server says 0 and I; its net."""
    x, y = draw(count, 2) * spread, torch.arange(count) % 2
    x[:, 0] += 2.0 * y - 1
    net, method = Net(nn.Flatten(), nn.Linear(2, 2)), make("pFedFDA", values or {"ridge": 0.01})
    client = client_of(net, x, y, got={"means": torch.zeros(2, 2), "cov": torch.eye(2)})
    method.adapt(client)
    own = gaussians(x, y, torch.zeros(2, 2), method.ridge)[0]
    return float((client.scratch["means"] * own).sum() / own.square().sum()), client, method


def test_a_client_believes_itself_as_far_as_its_other_half_says():
    assert believed(0.3, 60)[0] == pytest.approx(1.0)
    assert believed(3.0, 16)[0] < 0.5
    assert believed(3.0, 16, {"local_only": True})[0] == pytest.approx(1.0)
    assert believed(0.3, 1)[0] == pytest.approx(0.0)       # no other half


def test_the_head_is_made_of_what_is_sent():
    _, client, method = believed(1.0, 30)
    equal(client.net.head.weight, lda(client.scratch["means"], client.scratch["cov"], method.prior(client))["weight"])


def test_the_body_trains_under_the_servers_head():
    simulation = Simulation(small_run("pFedFDA"))
    worker, message, heads = simulation.workers[0], simulation.message(0), []
    fit = worker.method.fit
    worker.method.fit = lambda net, *rest: heads.append(net.head.weight.clone()) or fit(net, *rest)
    worker.train(message, 0)
    wanted = lda(message["means"], message["cov"], worker.method.prior(worker.client))["weight"]
    equal(heads[0], wanted)


# FedCP

def pair():
    net = Simulation(small_run("FedCP")).workers[0].client.net
    return net, torch.randn(6, net.dim, generator=generator(0, "z"))


def test_two_equal_heads_give_the_whole_feature_once():
    net, z = pair()
    with torch.no_grad():
        got = both(net, net.head.weight, net.head.bias, z, torch.randn(6, 2, net.dim, generator=generator(1)))
        assert torch.allclose(got, net.head(z) + net.head.bias, atol=1e-5)      # r + s = 1; the bias counts twice


def test_a_feature_goes_where_the_policy_says():
    net, z = pair()
    with torch.no_grad():
        noise = torch.zeros(6, 2, net.dim)
        noise[:, 1] = 1e4
        got = both(net, torch.randn_like(net.head.weight), torch.zeros(10), z, noise)
        assert torch.allclose(got, net.head(z), atol=1e-5)


def test_the_received_head_stays_as_it_came_and_half_of_it_goes_up():
    simulation, worker, upload = begun("FedCP")
    came, own = simulation.message(0)["params"], worker.client.state["own"]
    assert not torch.equal(own["weight"], came["head.weight"])
    equal(upload["params"]["head.weight"], (came["head.weight"] + own["weight"]) / 2)
    assert not torch.equal(upload["params"]["policy.0.weight"], came["policy.0.weight"])


def test_the_loss_of_fedcp_by_hand():
    simulation, worker, _ = begun("FedCP", {"lam": 0.7}, net="cnn4")
    client, net = worker.client, worker.client.net.eval()
    own, before = (copy.deepcopy(part) for part in (net.head, net.body))
    for p in (*own.parameters(), *before.parameters()):
        nn.init.normal_(p, 0, 0.3, generator=generator(0, "other"))
    client.scratch |= {"before": before, "gen": generator(1)}
    x, y = torch.rand(4, 3, 28, 28, generator=generator(2)), torch.tensor([0, 1, 2, 2])
    gumbel = -(-torch.rand((4, 2, net.dim), generator=generator(1)).log()).log()
    z = net.body(x)
    wanted = F.cross_entropy(both(net, own.weight, own.bias, z, gumbel), y) + 0.7 * mmd(z, before(x))
    assert mmd(z, before(x)) > 0.01
    equal(worker.method.losses((net, own), x, y, client), wanted, rtol=1e-4, atol=1e-5)


def test_a_test_has_no_noise():
    _, worker, _ = begun("FedCP")
    x = torch.rand(4, 3, 28, 28)
    worker.client.net.eval()
    with torch.no_grad():
        equal(*(worker.method.predict(worker.client.net, x, worker.client) for _ in range(2)))


# GPFL

def test_a_valve_without_a_say_lets_features_pass():
    valve = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.LayerNorm(2)) for _ in range(2))
    for k, layer in enumerate(valve):
        nn.init.zeros_(layer[2].weight)
        nn.init.constant_(layer[2].bias, float(k))      # a = 0, b = 1
    equal(turned(valve, torch.tensor([[2.0, -3.0]]), torch.zeros(2)), [[3.0, 0.0]])


def test_the_loss_of_gpfl_by_hand():
    """The decay is in the gradient alone."""
    simulation = Simulation(small_run("GPFL", {"lam": 0.3, "mu": 0.2}))
    worker = simulation.workers[0]
    worker.begin(simulation.message(0), 0)
    client, net, method = worker.client, worker.client.net.eval(), worker.method
    e = net.kinds.weight.detach().clone()
    client.scratch |= {"e": e, "share": torch.eye(10)[2]}
    x, y = torch.rand(4, 3, 28, 28), torch.tensor([0, 1, 2, 2])
    z = net.body(x)
    mine, common = turned(net.valve, z, e[2]), turned(net.valve, z, e.mean(0))
    size = sum(p.square().sum() for p in [*net.valve.parameters(), net.kinds.weight])
    wanted = (F.cross_entropy(net.head(mine), y)
              + F.cross_entropy(torch.cosine_similarity(common[:, None], e[None], dim=2), y)
              + 0.3 * (common - e[y]).square().sum().sqrt())
    found = method.loss(net, x, y, client)
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    of = [net.valve[0][0].weight, net.kinds.weight]
    cosines = torch.cosine_similarity(common[:, None], net.kinds.weight[None], dim=2)       # e moves here
    wanted = wanted - F.cross_entropy(torch.cosine_similarity(common[:, None], e[None], dim=2), y)
    wanted = wanted + F.cross_entropy(cosines, y) + 0.1 * size
    for ours, theirs in zip(*(torch.autograd.grad(v, of, retain_graph=True) for v in (found, wanted)), strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_gpfl_keeps_its_head_and_asks_with_what_its_client_has():
    simulation, worker, upload = begun("GPFL")
    assert {"valve.0.0.weight", "kinds.weight"} < set(upload["params"])
    assert not any(k.startswith("head.") for k in upload["params"])
    client = worker.client
    assert float(client.scratch["share"].sum()) == pytest.approx(1.0)
    equal(client.scratch["e"], simulation.message(0)["params"]["kinds.weight"])


# all

@pytest.mark.parametrize("name", ["pFedFDA", "FedCP", "COPA", "Fed3R"])
def test_a_hidden_head_is_refused(name):
    run = plan(name, {}, {"name": "tiny_digits"}, {"net": "resnet10", "width": 4, "head": "hidden"}, {}, 0)
    refusal(lambda: Simulation(run), f"{name} needs a linear head")


@pytest.mark.parametrize("name", ["FedPAC", "FedAS", "pFedFDA", "FedCP", "GPFL"])
def test_a_client_that_was_never_trained_can_be_tested(name):
    simulation = Simulation(small_run(name))
    scores = simulation.workers[1].test(simulation.message(1), {})
    assert 0 <= scores["test"]["acc"] <= 100 and scores["test"]["loss"] < 1e3
