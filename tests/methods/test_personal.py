"""pFedMe, Per-FedAvg, FedAMP and FedFomo against numbers worked out by hand, on nets of one weight."""
import math

import pytest
import torch
from by_hand import client_at, client_of, equal, one_weight, sent, server_of, set_weight, weight
from conftest import interrupted, result, small_run
from torch import nn, tensor

from fedlib.core import params
from fedlib.engine.loop import Simulation
from fedlib.methods import make, personal
from fedlib.methods.base import Protocol
from fedlib.methods.personal import at_rate, cloud, hold_out, mean_loss
from fedlib.models.nets import Net

SGD = Protocol(epochs=1, batch=1, lr=0.25)


def quadratic(net, x, y, client):
    """F(w; B) = mean_B (w - x)^2 / 2, with slope w - mean x."""
    return (net.head.weight - x).square().mean() / 2


def learner(name, values, protocol=SGD):
    """The method with the quadratic instead of cross-entropy."""
    method = make(name, values, protocol)
    method.loss = quadratic
    return method


# pFedMe

def test_pfedme_two_batches_of_two_inner_steps():
    client = client_at(1.0, [3.0, 3.0])
    method = learner("pFedMe", {"K": 2, "lam": 2.0, "personal_rate": 0.1, "eta": 0.05})
    method.local(client)
    # theta: 1 -> 1 - .1 (-2 + 0) = 1.2 -> 1.2 - .1 (-1.8 + 2 * .2) = 1.34;  w: 1 + .1 * .34 = 1.034
    # theta: 1.34 - .1 (-1.66 + 2 * .306) = 1.4448 -> 1.4448 - .1 (-1.5552 + 2 * .4108) = 1.51816
    equal(client.state["personal"]["head.weight"], [[1.51816]])
    equal(client.net.head.weight, [[1.034 + 0.1 * (1.51816 - 1.034)]])
    equal(method.upload(client)["params"]["head.weight"], [[1.082416]])
    assert len(client.scratch["losses"]) == 2


def test_pfedme_eta_is_the_protocols_unless_set():
    client = client_at(1.0, [3.0])
    learner("pFedMe", {"K": 1, "lam": 2.0, "personal_rate": 0.0}).local(client)
    equal(client.state["personal"]["head.weight"], [[1.5]])         # both rates 0.25
    equal(client.net.head.weight, [[1.25]])                         # 1 + .25 * 2 * .5


def test_pfedme_tests_theta_or_w():
    client = client_at(2.0, [1.0])
    client.state["personal"] = {"head.weight": tensor([[7.0]])}
    x = tensor([[3.0]])
    equal(make("pFedMe").predict(client.net, x, client), [[21.0]])
    equal(make("pFedMe", {"infer": "global"}).predict(client.net, x, client), [[6.0]])
    assert make("pFedMe").personal and not make("pFedMe", {"infer": "global"}).personal


@pytest.mark.parametrize("beta, wanted", [(1.0, 3.5), (0.5, 2.25), (3.0, 8.5), (0.0, 1.0)])
def test_pfedme_server_mixes(beta, wanted):
    server = server_of("pFedMe", {"beta": beta}, one_weight(1.0))
    server.aggregate({"0": sent(2.0), "1": sent(4.0, n=3)})         # mean 3.5
    equal(server.global_["head.weight"], [[wanted]])


def test_pfedme_mixes_no_batch_norm_statistics():
    net = Net(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(1)), nn.Linear(1, 1))
    server = server_of("pFedMe", {"beta": 3.0}, net)
    up = params.snapshot(net)
    server.aggregate({"0": {"params": {k: v + 1 for k, v in up.items()}, "n": tensor(1)}})
    for k, v in up.items():
        equal(server.global_[k], v + (1 if "running" in k else 3))


# Per-FedAvg

def test_perfedavg_takes_the_slope_where_the_inner_step_leads():
    client = client_at(1.0, [0.0])
    method = learner("PerFedAvg", {"alpha": 0.5, "beta": 0.125})
    client.scratch["beside"] = iter([(tensor([[5.0]]), tensor([0]))])
    opt = torch.optim.SGD(client.net.parameters(), SGD.lr)
    method.step(client.net, tensor([[2.0]]), tensor([0]), client, opt, method.loss)
    # w' = 1 - .5 (1 - 5) = 3; w = 1 - .125 (3 - 2), not 3 - .125
    assert weight(client.net) == 0.875


def test_perfedavg_outer_rate_is_the_protocols_at_0():
    client = client_at(1.0, [3.0])
    learner("PerFedAvg", {"alpha": 0.5, "beta": 0.0}).local(client)
    assert weight(client.net) == 1.25           # w' = 2; 1 - .25 (2 - 3)
    opt = torch.optim.SGD(client.net.parameters(), 0.1)
    assert at_rate(opt, 0.3).param_groups[0]["lr"] == at_rate(opt, 0.0).param_groups[0]["lr"] == 0.3


def test_perfedavg_has_one_rate_for_both_steps_where_asked():
    """PFLlib's: the protocol's, and that of the outer step where that has its own."""
    for given, same in (({}, 0.25), ({"beta": 0.125}, 0.125)):
        nets = []
        for setting in ({"one_rate": True, "alpha": 9.0}, {"alpha": same}):
            client = client_at(1.0, [3.0, 5.0, 9.0])
            learner("PerFedAvg", {"beta": 0.0} | given | setting).local(client)
            nets.append(weight(client.net))
        assert nets[0] == nets[1] != 1.0


def test_perfedavg_adapts_before_a_test_always_on_the_same_batch():
    client = client_at(1.0, [3.0, 5.0, 9.0])
    method = learner("PerFedAvg", {"alpha": 0.5})
    steps = set()
    for client.round in range(4):
        set_weight(client.net, 1.0)
        method.adapt(client)
        steps.add(weight(client.net))
    assert len(steps) == 1 and steps < {2.0, 3.0, 5.0}
    set_weight(client.net, 1.0)
    as_averaged = learner("PerFedAvg", {"adapted": False})
    as_averaged.adapt(client)
    assert weight(client.net) == 1.0 and method.personal and not as_averaged.personal


def test_perfedavg_has_as_many_outer_steps_as_fedavg():
    client = client_at(1.0, [3.0, 5.0, 9.0])
    learner("PerFedAvg", {}, Protocol(epochs=2, batch=1)).local(client)
    assert len(client.scratch["losses"]) == 6


# FedAMP

MODELS = {i: {"head.weight": tensor([[w]])} for i, w in (("0", 0.0), ("1", 1.0), ("2", 3.0))}


def test_fedamp_cloud_of_three_clients():
    near, far, other = math.exp(-1 / 2), math.exp(-9 / 2), math.exp(-4 / 2)
    xi = 0.5 / 2                                # alpha_k / sigma
    equal(cloud("0", MODELS, 0.5, 2.0)["head.weight"], [[xi * near * 1 + xi * far * 3]])
    equal(cloud("1", MODELS, 0.5, 2.0)["head.weight"], [[1 - xi * near * 1 + xi * other * 2]])
    equal(cloud("1", MODELS, 1.0, 1e-6)["head.weight"], [[1.0]])        # all weights underflow: its own net


def test_fedamp_cloud_weighs_up_to_1_and_keeps_the_rest_for_its_own():
    """The sheet's form: u = xi_0 w_0 + sum_j xi_j w_j with xi_0 = 1 - sum_j xi_j, which may be negative."""
    xi = [3 * math.exp(-1), 3 * math.exp(-4)]           # of clients 0 and 2 for client 1: alpha_k 3, sigma 1
    equal(cloud("1", MODELS, 3.0, 1.0)["head.weight"], [[(1 - sum(xi)) * 1 + xi[0] * 0 + xi[1] * 3]])
    assert 1 - sum(xi) < 0


def test_fedamp_server_keeps_the_last_net_of_each_client():
    server = server_of("FedAMP", {"alpha_k": 0.5, "sigma": 2.0}, one_weight(9.0))
    equal(server.broadcast("0")["params"]["head.weight"], [[9.0]])
    server.aggregate({"0": sent(5.0), "1": sent(1.0)})
    server.aggregate({"0": sent(0.0), "2": sent(3.0)})
    for i in MODELS:
        equal(server.broadcast(i)["params"]["head.weight"], cloud(i, MODELS, 0.5, 2.0)["head.weight"])
    equal(server.broadcast("3")["params"]["head.weight"], [[9.0]])      # took no part yet


@pytest.mark.parametrize("norm, penalty, slope", [("squared", 4 * 3 ** 2, 4 * 2 * 3), ("released", 4 * 3, 4)])
def test_fedamp_penalty(norm, penalty, slope):
    """lam / (2 alpha_k) = 4, |w - u| = 3; as released the pull does not grow with the distance."""
    client = client_at(5.0, [0.0], params={"head.weight": tensor([[2.0]])})
    method = make("FedAMP", {"lam": 16.0, "alpha_k": 2.0, "norm": norm})
    value = method.loss(client.net, tensor([[0.0]]), tensor([0]), client)       # one class: cross-entropy 0
    value.backward()
    equal(value, float(penalty))
    equal(client.net.head.weight.grad, [[float(slope)]])


@pytest.mark.parametrize("norm", ["squared", "released"])
def test_fedamp_penalty_has_no_slope_at_the_cloud_model(norm):
    client = client_at(2.0, [0.0], params={"head.weight": tensor([[2.0]])})
    make("FedAMP", {"norm": norm}).loss(client.net, tensor([[0.0]]), tensor([0]), client).backward()
    equal(client.net.head.weight.grad, [[0.0]])


@pytest.mark.parametrize("name", ["FedAMP", "FedFomo"])
def test_a_client_goes_on_with_its_own_net(name):
    simulation = Simulation(small_run(name, net="linear"))
    worker = simulation.workers[0]
    upload, _ = worker.train(simulation.message(0), 0)
    other = {**upload, "params": {k: v + 1 for k, v in upload["params"].items()}}
    simulation.server.aggregate({"0": upload, "1": other})
    worker.method.receive(worker.client, simulation.message(0))
    assert all(torch.equal(v, upload["params"][k]) for k, v in params.snapshot(worker.client.net).items())


def test_fedamp_sends_no_batch_norm_statistics():
    simulation = Simulation(small_run("FedAMP", net="resnet10"))
    net = simulation.workers[0].client.net
    assert set(simulation.message(0)["params"]) == {k for k, _ in net.named_parameters()}


# FedFomo

LOSSES = {1.0: 10.0, 2.0: 8.0, 5.0: 2.0, 0.0: 12.0}         # L(w): old 10, own 8


@pytest.fixture
def table(monkeypatch):
    """Losses from the table instead of data."""
    monkeypatch.setattr(personal, "mean_loss", lambda net, params, split, protocol: tensor(
        LOSSES[(params or net.state_dict())["head.weight"].item()]))


def fomo_client(net=2.0, old=1.0, **models):
    got = {"models": {j: {"head.weight": tensor([[w]])} for j, w in models.items()}}
    client = client_at(net, [3.0] * 10, **got)
    client.state["old"] = {"head.weight": tensor([[old]])}
    method = learner("FedFomo", {}, Protocol(epochs=0))
    return method, client


def test_fedfomo_weights_and_mixture(table):
    method, client = fomo_client(**{"2": 0.0, "0": 2.0, "1": 5.0})
    method.local(client)
    # (10 - 8) / 1, (10 - 2) / 4, (10 - 12) / 1 -> shares 1/2, 1/2, 0
    weights = client.scratch["weights"]
    assert list(weights) == ["0", "1", "2"]
    for j, wanted in (("0", 2.0), ("1", 2.0), ("2", -2.0)):
        equal(weights[j], wanted, rtol=1e-4, atol=0)
    equal(client.net.head.weight, [[3.5]], rtol=1e-4, atol=0)
    equal(client.state["old"]["head.weight"], client.net.head.weight.detach())
    equal(method.upload(client)["weights"]["2"], -2.0, rtol=1e-4, atol=0)


@pytest.mark.parametrize("models", [{"2": 0.0}, {}])
def test_fedfomo_keeps_its_net_when_none_is_better(table, models):
    method, client = fomo_client(**models)
    method.local(client)
    assert weight(client.net) == 2.0 and len(client.train) == 10


def test_fedfomo_server_sends_the_m_best():
    server = server_of("FedFomo", {"M": 2}, one_weight(0.0))
    assert server.broadcast("0") == {"params": {}, "models": {}}
    server.aggregate({i: sent(float(i)) for i in ("0", "1", "10", "2")})
    assert list(server.broadcast("2")["models"]) == ["2", "0"]          # its own, then ties by number
    reports = {"2": tensor(-1.5), "0": tensor(-1.0)}
    server.aggregate({"2": sent(7.0, weights=reports)})                 # now own -0.5, "0" -1, others 0
    assert list(server.broadcast("2")["models"]) == ["1", "10"]
    server.aggregate({"2": sent(7.0, weights={"10": tensor(0.25)})})
    assert list(server.broadcast("2")["models"]) == ["10", "1"]
    equal(server.P_["2"]["2"], -0.5)
    assert list(server.broadcast("0")["models"]) == ["0", "1"]          # another client's affinities are its own
    assert list(server.broadcast("7")["models"]) == ["0", "1"]          # took no part yet
    equal(server.models_["2"]["head.weight"], [[7.0]])


def test_fedfomo_loss_is_that_of_the_net_it_is_given():
    net = Net(nn.Flatten(), nn.Linear(1, 2, bias=False))
    client = client_of(params.load_params(net, {"head.weight": tensor([[0.0], [0.0]])}), [[1.0], [2.0]], [0, 1])
    equal(mean_loss(net, {}, client.train, SGD), math.log(2))
    given = {"head.weight": tensor([[1.0], [0.0]])}
    wanted = (math.log(1 + math.exp(-1)) + math.log(1 + math.exp(2))) / 2
    equal(mean_loss(net, given, client.train, SGD), wanted)


def test_held_out_part():
    client = client_at(0.0, [float(i) for i in range(10)])
    rest, held = hold_out(client, 0.25)
    assert len(held) == 2 and len(rest) == 8
    assert sorted(torch.cat([rest.x, held.x]).flatten().tolist()) == list(range(10))
    assert rest.x.flatten().tolist() == sorted(rest.x.flatten().tolist())
    client.round = 1
    assert torch.equal(hold_out(client, 0.25)[1].x, held.x)         # the same in every round
    for share in (0.0, 0.05):
        rest, held = hold_out(client, share)
        assert len(rest) == 10 and torch.equal(rest.x, client.train.x)
        assert sorted(held.x.flatten().tolist()) == list(range(10))


def test_fedfomo_bytes_are_m_nets_down(tmp_path):
    net = 4 * (10 * 3 * 28 * 28 + 10)
    first, second = result(small_run("FedFomo", {"M": 3}, net="linear"), tmp_path)
    assert first["bytes_down"] == 0 and second["bytes_down"] == 5 * 3 * net
    assert first["bytes_up"] == 5 * (net + 8) and second["bytes_up"] == 5 * (net + 8 + 3 * 4)


# all of them

@pytest.mark.parametrize("name", ["Ditto", "pFedMe", "PerFedAvg", "FedAMP", "FedFomo"])
def test_part_of_the_clients_and_interruptions(name, tmp_path):
    """Clients that took no part yet are tested too; a resumed run goes on exactly."""
    run = small_run(name, net="linear", rounds=4, participation=0.4)
    whole = result(run, tmp_path / "whole")

    for _ in whole:
        interrupted(run, tmp_path / "cut")
    assert result(run, tmp_path / "cut") == whole


@pytest.mark.parametrize("name, value", [("FedAMP", "released"), ("FedFomo", 0.5), ("pFedMe", "global")])
def test_fields_change_the_result(name, value, tmp_path):
    field = {"FedAMP": "norm", "FedFomo": "held", "pFedMe": "infer"}[name]
    rounds = [result(small_run(name, v, net="linear"), tmp_path)
              for v in ({}, {field: value})]
    assert [r["loss"] for r in rounds[0]] != [r["loss"] for r in rounds[1]]


def test_a_client_with_one_batch_takes_a_step():
    for name in ("Ditto", "pFedMe", "PerFedAvg", "FedAMP", "FedFomo"):
        client = client_at(1.0, [3.0, 3.0, 4.0, 5.0, 6.0], params={"head.weight": tensor([[1.0]])})
        learner(name, {}, Protocol(batch=32, lr=0.25)).local(client)
        assert len(client.scratch["losses"]) >= 1 and weight(client.net) > 1


# IFCA

def test_ifca_takes_the_net_that_serves_it_best_and_a_net_that_nobody_takes_stays():
    server = server_of("IFCA", {"k": 3}, one_weight(0.0))
    server.models_ = {"0": {"head.weight": tensor([[0.0]])}, "1": {"head.weight": tensor([[5.0]])},
                      "2": {"head.weight": tensor([[-9.0]])}}
    uploads = {}
    for i, (x, y) in enumerate([([4.0], 6.0), ([1.0], 0.1), ([1.0], 0.3)]):
        client = client_of(Net(nn.Flatten(), nn.Linear(1, 2, bias=False)), [x], [0], str(i))
        nets = {"0": [[0.0], [0.1]], "1": [[2.0], [-2.0]], "2": [[-1.0], [1.0]]} if i == 0 else {
            "0": [[1.0], [0.0]], "1": [[0.0], [1.0]], "2": [[0.5], [0.4]]}
        server.receive(client, {"models": {j: {"head.weight": tensor(w)} for j, w in nets.items()}})
        equal(client.net.head.weight, nets["1" if i == 0 else "0"])
        uploads[str(i)] = sent(y, n=i or 1, chosen=client.scratch["chosen"])
    server.aggregate(uploads)
    assert server.measured == {"chosen by 0": 1, "chosen by 1": 0, "chosen by 2": 0}
    equal(server.models_["0"]["head.weight"], [[(0.1 + 2 * 0.3) / 3]])
    equal(server.models_["1"]["head.weight"], [[6.0]])
    equal(server.models_["2"]["head.weight"], [[-9.0]])


def test_ifca_chooses_by_samples_of_all_classes(monkeypatch):
    """A client's images lie by class."""
    asked = []
    monkeypatch.setattr(personal, "mean_loss", lambda net, w, some, protocol: asked.append(some.y) or torch.tensor(0.0))
    server, net = server_of("IFCA", {"k": 1}, one_weight(0.0)), Net(nn.Flatten(), nn.Linear(1, 2, bias=False))
    client = client_of(net, [[0.0]] * 2000, [0] * 1500 + [1] * 500)
    server.receive(client, {"models": {"0": {"head.weight": tensor([[0.0], [0.1]])}}})
    assert len(asked[0]) == 1024 and 200 < int(asked[0].sum()) < 320


def test_ifcas_nets_start_apart_and_the_same_for_everyone():
    one, two = (Simulation(small_run("IFCA", {"k": 3})).server.models_ for _ in range(2))
    plain = Simulation(small_run("FedAvg")).server.global_
    assert all(torch.equal(v, plain[k]) for k, v in one["0"].items())
    weights = [next(v for k, v in m.items() if "conv" in k and v.dim() == 4) for m in one.values()]
    assert not any(torch.equal(weights[i], weights[j]) for i, j in ((0, 1), (0, 2), (1, 2)))
    assert all(torch.equal(v, two[j][k]) for j in one for k, v in one[j].items())


def test_choosing_leaves_statistics_that_a_client_keeps():
    kept = {name: Simulation(small_run(name, values, buffers="keep")).play().rounds
            for name, values in (("IFCA", {"k": 1}), ("FedAvg", {}))}
    assert [r["acc"] for r in kept["IFCA"]] == [r["acc"] for r in kept["FedAvg"]]
