"""FedProx's and MOON's released forms, FedDyn, SCAFFOLD and DBE against numbers worked out by hand."""
import pytest
import torch
import torch.nn.functional as F
from by_hand import client_at, client_of, equal, one_weight, scalar_net, sent, server_of, set_weight, weight
from conftest import interrupted, result, small_run
from torch import nn, tensor

from fedlib.core import params, seeds
from fedlib.core.errors import UserError
from fedlib.core.federation import Federation
from fedlib.engine.loop import Simulation
from fedlib.engine.run import plan
from fedlib.methods import make
from fedlib.methods.base import Protocol
from fedlib.methods.drift import before, dot, reach, sq_dist
from fedlib.models.nets import Arch, Net, build

SGD = Protocol(epochs=2, batch=1, lr=0.25)


def test_sq_dist_and_its_gradient():
    net = scalar_net(3.0, 1.0)
    distance = sq_dist(net, {"head.weight": tensor([[1.0], [0.0]])})      # (3-1)^2 + (-3)^2; not the bias
    equal(distance, 13.0)
    distance.backward()
    equal(net.head.weight.grad, [[4.0], [-6.0]])
    assert net.head.bias.grad is None


def test_distance_and_product_are_what_is_written_down_to_the_last_bit():
    net = build(Arch("resnet10", 4), 10, (3, 28, 28), 0)
    other = {k: torch.randn(v.shape, generator=seeds.generator(0, k)) for k, v in params.snapshot(net).items()}
    plain = {sq_dist: lambda p, q: (p - q).square().sum(), dot: lambda p, q: (p * q).sum()}
    for short, long in plain.items():
        found = []
        for value in (short(net, other), sum(long(p, other[k]) for k, p in net.named_parameters())):
            found.append([value, *torch.autograd.grad(0.3 * value, list(net.parameters()))])
        assert all(map(torch.equal, *found)) and short(net, {}) == 0


def entry(w: float) -> dict:
    return {"head.weight": tensor([[w]])}


def test_a_later_field_leaves_the_names_of_records_alone():
    assert "negative" not in str(small_run("MOON").spec)
    assert "negative" in str(small_run("MOON", {"negative": "other"}).spec)


# MOON with another client's net

def test_the_client_before():
    ids = ["10", "2", "0", "7"]
    assert [before(i, ids) for i in ("0", "2", "7", "10")] == ["10", "0", "2", "7"]
    assert before("5", ids) == "2" and before("0", ["3", "4"]) == "4" and before("3", ["3"]) == "3"


def test_moon_with_anothers_net_gets_it_from_the_server():
    own, other = (make("MOON", {"negative": n}) for n in ("own", "other"))
    for server in (own, other):
        server.setup(one_weight(0.0))
        assert set(server.broadcast("0")) == {"params"}         # first round: nothing to send
        server.aggregate({i: sent(float(i)) for i in ("0", "1", "2")})
    assert set(own.broadcast("1")) == {"params"}
    for i, wanted in (("0", 2.0), ("1", 0.0), ("2", 1.0)):
        equal(other.broadcast(i)["previous"]["head.weight"], [[wanted]])


def test_moon_with_anothers_net_trains_against_it():
    for got, wanted in (({}, 5.0), ({"previous": entry(9.0)}, 9.0)):
        client = client_at(1.0, [1.0], params=entry(1.0), **got)
        client.state["previous"] = entry(5.0)
        make("MOON", {}, Protocol(epochs=0)).local(client)
        assert weight(client.scratch["previous"]) == wanted and weight(client.scratch["global"]) == 1.0


def test_moon_with_anothers_net_costs_twice_the_bytes_down(tmp_path):
    own, other = (result(small_run("MOON", {"negative": n}, net="cnn4"), tmp_path) for n in ("own", "other"))
    assert other[0]["bytes_down"] == own[0]["bytes_down"] and other[1]["bytes_down"] == 2 * own[1]["bytes_down"]
    assert other[0]["loss"] == own[0]["loss"] and other[1]["loss"] != own[1]["loss"]


# FedDyn

def test_feddyn_loss_and_its_slope():
    client = client_at(3.0, [0.0], params=entry(1.0))
    client.state["l"] = entry(0.5)
    method = make("FedDyn", {"alpha": 0.2})
    value = method.loss(client.net, tensor([[0.0]]), tensor([0]), client)       # one class: cross-entropy 0
    value.backward()
    equal(value, 0.2 * (3 * 0.5 + (3 - 1) ** 2 / 2))
    equal(client.net.head.weight.grad, [[0.2 * (0.5 + 2)]])     # = -h + alpha (w_k - w), h = -alpha l


def test_feddyn_as_released_has_no_slope():
    client = client_at(3.0, [0.0], params=entry(1.0))
    client.state["l"] = entry(0.5)
    make("FedDyn", {"form": "released"}).loss(client.net, tensor([[0.0]]), tensor([0]), client).backward()
    equal(client.net.head.weight.grad, [[0.0]])


def test_feddyn_client_state_adds_up():
    client = client_at(1.0, [3.0], params=entry(1.0))
    method = make("FedDyn", {}, SGD)
    method.loss = lambda net, x, y, client: (net.head.weight - 3).square().sum() / 2
    method.local(client)                        # 1 -> 1.5 -> 1.875
    equal(client.state["l"]["head.weight"], [[0.875]])
    client.got = {"params": entry(2.0)}
    set_weight(client.net, 2.0)
    method.local(client)                        # 2 -> 2.25 -> 2.4375
    equal(client.state["l"]["head.weight"], [[0.875 + 0.4375]])


def feddyn_h(w, rounds, alpha, clients):
    """The paper's server: h <- h - alpha / N sum (w_k - w), w <- mean w_k - h / alpha."""
    h = 0.0
    for models in rounds:
        h -= alpha / clients * sum(m - w for m in models)
        w = sum(models) / len(models) - h / alpha
    return w


def test_feddyn_server_two_rounds():
    server = server_of("FedDyn", {}, one_weight(1.0))
    server.aggregate({"0": sent(2.0), "1": sent(4.0, n=9)})
    # plain mean 3, drifts 1 and 3: 3 + 2 = 5
    equal(server.global_["head.weight"], [[5.0]])
    server.aggregate({"0": sent(5.0), "1": sent(2.0, n=9)})
    # plain mean 3.5, drifts 1 + 0 and 3 - 3: 3.5 + 0.5
    equal(server.global_["head.weight"], [[4.0]])
    assert feddyn_h(1.0, [[2.0, 4.0], [5.0, 2.0]], 0.01, 2) == pytest.approx(4.0)


def test_feddyn_counts_clients_as_they_come():
    server = server_of("FedDyn", {}, one_weight(1.0))
    server.aggregate({"0": sent(2.0)})                          # 2 + 1 / 1
    equal(server.global_["head.weight"], [[3.0]])
    server.aggregate({"1": sent(5.0)})                          # 5 + (1 + 2) / 2
    equal(server.global_["head.weight"], [[6.5]])
    server.aggregate({"0": sent(6.5)})                          # 6.5 + (1 + 0 + 2) / 2
    equal(server.global_["head.weight"], [[8.0]])


def test_feddyn_by_samples_and_as_released():
    cases = (({"weights": "samples"}, 3.5 + 2.5), ({"form": "released"}, 3.0),
             ({"form": "released", "weights": "samples"}, 3.5))
    for values, wanted in cases:
        server = server_of("FedDyn", values, one_weight(1.0))
        server.aggregate({"0": sent(2.0), "1": sent(4.0, n=3)})
        equal(server.global_["head.weight"], [[wanted]])


# SCAFFOLD

def test_scaffold_client():
    client = client_at(1.0, [3.0], params=entry(1.0), c=entry(0.5))
    client.state["c"] = entry(0.25)
    method = make("SCAFFOLD", {}, SGD)
    slopes = []

    def quadratic(net, x, y, client):
        slopes.append(weight(net) - 3)
        tilt = client.scratch["tilt"]["head.weight"]
        return (net.head.weight - 3).square().sum() / 2 + (net.head.weight * tilt).sum()

    method.loss = quadratic
    method.local(client)
    # y: 1 - .25 (-2 + .25) = 1.4375 -> 1.4375 - .25 (-1.5625 + .25) = 1.765625
    assert weight(client.net) == 1.765625
    wanted = 0.25 - 0.5 + (1 - 1.765625) / (2 * 0.25)           # c_k - c + (w - y) / (K eta)
    equal(client.state["c"]["head.weight"], [[wanted]])
    equal(client.state["c"]["head.weight"], [[sum(slopes) / 2]])        # the mean slope on the way
    equal(method.upload(client)["change"]["head.weight"], [[wanted - 0.25]])


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0])
def test_scaffold_loss_is_tilted(scale):
    client = client_at(3.0, [0.0], params=entry(3.0), c=entry(0.5))
    client.state["c"] = entry(0.1)
    method = make("SCAFFOLD", {"scale": scale}, Protocol(epochs=1, batch=1, lr=0.25))
    method.local(client)                        # one class: the tilt is all there is
    equal(client.net.head.weight, [[3 - 0.25 * scale * 0.4]])
    equal(client.state["c"]["head.weight"], [[0.0]], atol=1e-6, rtol=0)      # the mean slope of F at any scale
    equal(method.loss(client.net, tensor([[0.0]]), tensor([0]), client), scale * 0.4 * weight(client.net))


def test_scaffold_server():
    server = server_of("SCAFFOLD", {"eta_g": 0.5}, one_weight(1.0))
    equal(server.broadcast("0")["c"]["head.weight"], [[0.0]])
    server.aggregate({"0": sent(2.0, change=entry(4.0)), "1": sent(4.0, n=9, change=entry(2.0))})
    equal(server.global_["head.weight"], [[2.0]])               # 1 + .5 ((1 + 3) / 2)
    equal(server.broadcast("0")["c"]["head.weight"], [[3.0]])
    server.aggregate({"1": sent(2.0, n=9, change=entry(-1.0))})         # c <- c + 1/N sum: 3 - 1/2
    equal(server.broadcast("0")["c"]["head.weight"], [[2.5]])


def test_scaffold_server_by_samples():
    server = server_of("SCAFFOLD", {"weights": "samples"}, one_weight(1.0))
    server.aggregate({"0": sent(2.0, change=entry(4.0)), "1": sent(4.0, n=3, change=entry(2.0))})
    equal(server.global_["head.weight"], [[3.5]])
    equal(server.s_["head.weight"], [[2.5]])
    server.aggregate({"0": sent(2.0, change=entry(-4.0))})      # (0 * 1 + 2 * 3) / 4
    equal(server.s_["head.weight"], [[1.5]])


def test_scaffold_moves_no_batch_norm_statistics():
    net = Net(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(1)), nn.Linear(1, 1))
    server = server_of("SCAFFOLD", {"eta_g": 2.0}, net)
    up, change = params.snapshot(net), {k: torch.zeros_like(p) for k, p in net.named_parameters()}
    server.aggregate({"0": {"params": {k: v + 1 for k, v in up.items()}, "n": tensor(1), "change": change}})
    for k, v in up.items():
        equal(server.global_[k], v + (1 if "running" in k else 2))


def test_reach_is_how_far_torchs_sgd_goes():
    assert reach(Protocol(lr=0.5), 0, 3) == 1.5 and reach(Protocol(lr=0.5, warmup=5), 0, 3) == pytest.approx(0.3)
    assert reach(Protocol(lr=0.5, momentum=0.5), 0, 3) == 0.5 * (1 + 1.5 + 1.75)
    p = nn.Parameter(tensor(0.0))
    opt = torch.optim.SGD([p], 0.1, momentum=0.9)
    for _ in range(7):
        p.grad = tensor(-1.0)
        opt.step()
    assert reach(Protocol(lr=0.1, momentum=0.9), 0, 7) == pytest.approx(p.item(), rel=1e-6)


@pytest.mark.parametrize("warmup, number", [(0, 0), (4, 1), (1, 3)])
def test_scaffolds_control_variate_is_the_mean_gradient_at_any_rate(warmup, number):
    client = client_at(1.0, [0.0], params=entry(1.0), c=entry(0.0))
    client.round = number
    method = make("SCAFFOLD", {}, Protocol(epochs=3, batch=1, lr=0.25, warmup=warmup, rounds=5))
    method.loss = lambda net, x, y, client: 2 * net.head.weight.sum()       # a gradient of 2 everywhere
    method.local(client)
    equal(client.state["c"]["head.weight"], [[2.0]], atol=1e-6, rtol=0)


def test_scaffold_refuses_adam():
    with pytest.raises(UserError, match="needs optimiser sgd"):
        make("SCAFFOLD", {}, Protocol(optimiser="adam")).setup(one_weight(0.0))


def test_scaffold_doubles_the_bytes(tmp_path):
    net = 4 * (10 * 3 * 28 * 28 + 10)
    row = result(small_run("SCAFFOLD", net="linear"), tmp_path)[1]
    assert row["bytes_down"] == 5 * 2 * net and row["bytes_up"] == 5 * (2 * net + 8)


def slope_at_the_end(name, values, protocol, rounds):
    """Slope of the mean of F_k at the end: logistic regression, two clients of unlike data, classes that overlap."""
    gen = seeds.generator("two clients")
    clients = []
    for k, (centre, share) in enumerate(((-1.0, 0.3), (2.0, 0.9))):
        x = torch.randn(20, 1, generator=gen) + centre
        y = (torch.rand(20, generator=gen) < share).long()
        clients.append(client_of(None, x, y, str(k)))
    simulation = Simulation(plan(name, values, {}, {}, protocol, 0), Federation(clients, ["0", "1"], {}, {}),
                            net=scalar_net(0.0))
    for number in range(rounds):
        simulation.server.aggregate(simulation.exchange([0, 1])[0])
        simulation.rounds.append({"round": number + 1})
    net = params.load_params(scalar_net(0.0), simulation.server.global_)
    sum(F.cross_entropy(net(c.train.x), c.train.y) for c in clients).backward()
    return max(p.grad.abs().max().item() / 2 for p in net.parameters())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_scaffold_and_feddyn_reach_the_optimum_that_fedavg_misses(momentum):
    protocol = {"epochs": 20, "batch": 20, "lr": 0.5 * (1 - momentum), "momentum": momentum}
    fedavg, scaffold, feddyn = (slope_at_the_end(name, values, protocol, 120) for name, values in
                                (("FedAvg", {}), ("SCAFFOLD", {}), ("FedDyn", {"alpha": 0.3})))
    assert fedavg > 0.01 and scaffold < 1e-4 and feddyn < 1e-4


# DBE

def dbe(values=None, net=None, **got):
    """Features are the inputs, D = 2."""
    client = client_of(net or Net(nn.Flatten(), nn.Linear(2, 3)), [[1.0, 2.0], [3.0, 6.0]], [0, 1], got=got)
    method = make("DBE", values or {}, Protocol(epochs=0))
    method.local(client)
    return method, client


def test_dbe_loss():
    mean = tensor([1.0, 0.0])
    method, client = dbe({"kappa": 3.0, "mu": 0.25}, mean=mean)
    client.scratch["memory"] = tensor([0.5, -1.0])
    x, y = client.train.x, client.train.y
    # batch mean (2, 4); running (0.5, 1), then 0.75 of it + (0.5, 1)
    for running in ([0.5, 1.0], [0.875, 1.75]):
        found = method.loss(client.net, x, y, client)
        far = tensor(running) - mean
        equal(client.scratch["mean"], running)
        equal(found, F.cross_entropy(client.net.head(x + tensor([0.5, -1.0])), y) + 3 * (far[0] ** 2 + far[1] ** 2) / 4)


def test_dbe_regularisation_pulls_the_body():
    body = nn.Linear(2, 2, bias=False)
    net = Net(body, nn.Linear(2, 3))
    method, client = dbe({"kappa": 4.0, "mu": 0.5}, net, mean=tensor([0.0, 0.0]))
    x, y = client.train.x, client.train.y
    slopes = []
    for kappa in (4.0, 0.0):
        client.scratch["mean"] = torch.zeros(2)
        body.weight.grad = None
        make("DBE", {"kappa": kappa, "mu": 0.5}).loss(net, x, y, client).backward()
        slopes.append(body.weight.grad)
    # kappa mean_d (r_d^2 / 2), r = z / 2 with z the mean feature: slope kappa / D * r_d * 1/2 * mean x
    r = (body.weight.detach() @ x.mean(0)) / 2
    equal(slopes[0] - slopes[1], (4 / 2 * r / 2)[:, None] * x.mean(0), rtol=1e-4, atol=1e-5)


def test_dbe_first_round_is_fedavgs_and_sends_the_mean():
    server = server_of("DBE", {}, Net(nn.Flatten(), nn.Linear(2, 3)))
    assert set(server.broadcast("0")) == {"params"}
    method, client = dbe({"mu": 0.25})
    x, y = client.train.x, client.train.y
    equal(method.loss(client.net, x, y, client), F.cross_entropy(client.net(x), y).item())
    upload = method.upload(client)
    equal(upload["mean"], [0.5, 1.0])
    server.aggregate({"0": upload, "1": {**upload, "mean": tensor([4.5, 1.0]), "n": tensor(6)}})
    equal(server.broadcast("0")["mean"], [3.5, 1.0])            # 2 and 6 samples
    server.aggregate({"0": {"params": upload["params"], "n": tensor(2)}})
    equal(server.broadcast("1")["mean"], [3.5, 1.0])            # fixed
    client.got = {"mean": tensor([3.5, 1.0])}
    assert "mean" not in method.upload(client)


def test_dbe_trains_its_memory_with_the_net():
    for rate, momentum in ((1.0, 0.0), (0.5, 0.0), (0.0, 0.9)):
        net = Net(nn.Flatten(), nn.Linear(2, 3))
        client = client_of(net, [[1.0, 2.0], [3.0, 6.0]], [0, 1], got={"mean": torch.zeros(2)})
        x, y, m = client.train.x, client.train.y, torch.zeros(2, requires_grad=True)
        F.cross_entropy(net.head(x + m), y).backward()
        method = make("DBE", {"kappa": 0.0, "memory_rate": rate}, Protocol(lr=0.2, batch=2, momentum=momentum))
        method.local(client)
        equal(client.state["memory"], -0.2 * rate * m.grad)
        equal(method.predict(net, x, client), net.head(x + client.state["memory"]))


def test_dbe_without_memory_is_not_personal():
    assert make("DBE").personal and not make("DBE", {"memory_rate": 0.0}).personal


# all of them

@pytest.mark.parametrize("name, values", [
    ("FedDyn", {}), ("SCAFFOLD", {}), ("SCAFFOLD", {"weights": "samples"}), ("DBE", {}),
    ("MOON", {"negative": "other"})])
def test_part_of_the_clients_and_interruptions(name, values, tmp_path):
    run = small_run(name, values, net="cnn4", rounds=4, participation=0.4)
    whole = result(run, tmp_path / "whole")

    for _ in whole:
        interrupted(run, tmp_path / "cut")
    assert result(run, tmp_path / "cut") == whole
