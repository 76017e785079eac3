"""Sharing methods by hand: which entries travel, how own and shared ones mix, and what survives a round."""
import copy
import dataclasses
import math
from functools import partial

import by_hand
import pytest
import torch
import torch.nn.functional as F
from by_hand import equal, same
from conftest import interrupted, result, small_run
from torch import nn, tensor

from fedlib.core import params, seeds
from fedlib.core.errors import UserError
from fedlib.core.losses import mmd
from fedlib.engine.loop import Simulation
from fedlib.methods import make
from fedlib.methods.sharing import last_layers, mix, settled
from fedlib.models.nets import Arch, Net, build

LR = 0.5
worker_of = partial(by_hand.worker_of, lr=LR)


def slope(logits, label=0):
    """d CE / d logits = softmax - one-hot."""
    return torch.softmax(torch.as_tensor(logits), 0) - F.one_hot(tensor(label), len(logits))


def line(*weights):
    """logits = weights * x for one input feature: no body, no bias."""
    net = Net(nn.Flatten(), nn.Linear(1, len(weights), bias=False))
    return params.load_params(net, {"head.weight": tensor(weights)[:, None]})


def down(weights):
    return {"params": {"head.weight": torch.as_tensor(weights)[:, None]}}


def head(message):
    return message["head.weight"][:, 0]


def scores(run, folder):
    return [(r["acc"], r["loss"]) for r in result(run, folder)]


# parts of a net

def test_last_layers_are_modules_with_parameters_in_the_order_of_definition():
    cnn, resnet = build(Arch("cnn4", 2), 10, (3, 28, 28), 0), build(Arch("resnet10", 2), 10, (3, 28, 28), 0)
    assert last_layers(cnn, 0) == set()
    assert last_layers(cnn, 1) == {"head.weight", "head.bias"}
    assert last_layers(cnn, 2) == {"head.weight", "head.bias", "body.7.weight", "body.7.bias"}
    assert last_layers(cnn, 4) == last_layers(cnn, 99) == set(cnn.state_dict())
    assert {k.rpartition(".")[0] for k in last_layers(resnet, 3)} == {"head"} | {
        f"body.layer4.0.downsample.{i}" for i in (0, 1)}
    assert "body.layer4.0.downsample.1.running_mean" in last_layers(resnet, 2)     # statistics go with their layer


def test_mix_is_exact_at_both_ends():
    a, b = ({"w": torch.randn(50, generator=seeds.generator(k)), "b": tensor([k])} for k in (1.0, 3.0))
    assert all(torch.equal(mix(a, b, 0.0)[k], a[k]) and torch.equal(mix(a, b, 1.0)[k], b[k]) for k in a)
    ones = {k: torch.ones_like(v) for k, v in a.items()}
    assert all(torch.equal(mix(a, b, ones)[k], b[k]) for k in a)
    equal(mix(a, b, 0.25)["b"], [1.5])
    equal(mix(a, b, {"w": 0.0, "b": tensor([0.75])})["b"], [2.5])


@pytest.mark.parametrize("method, travels", [("FedPer", "body"), ("FedRep", "body"), ("FedBABU", "body"),
                                             ("LGFedAvg", "head")])
def test_body_or_head_stays(method, travels):
    simulation = Simulation(small_run(method, {"head_epochs": 1} if method == "FedRep" else {}))
    worker, sent = simulation.workers[0], simulation.message(0)
    net = worker.client.net
    assert set(sent["params"]) == {k for k in params.snapshot(net) if k.startswith(travels)}
    upload, _ = worker.train(sent, 0)
    assert set(upload["params"]) == set(sent["params"])
    trained = params.snapshot(net)
    worker.method.receive(worker.client, sent)
    for k, v in params.snapshot(net).items():
        assert torch.equal(v, sent["params"][k] if k.startswith(travels) else trained[k])
    assert set(worker.kept()["net"]) == {k for k in trained if not k.startswith(travels)}


# FedRep, FedBABU

def test_fedrep_steps_by_hand():
    """logits = b h for one sample: dF/dh = b s and dF/db = h.s, s = softmax(b h) - (1, 0); weight decay d adds d w.

    First one step of h, b as it was; then one step of b under the new h. What is fixed does not decay.
    """
    d, b, h = 0.1, 0.8, tensor([0.5, -0.2])
    net = Net(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))
    params.load_params(net, {"body.weight": tensor([[b]]), "head.weight": h[:, None]})
    worker = worker_of("FedRep", net, values={"head_epochs": 1}, weight_decay=d)
    received = b
    for number in range(2):
        upload, _ = worker.train({"params": {"body.weight": tensor([[received]])}}, number)
        h = h - LR * (received * slope(received * h) + d * h)
        b = received - LR * (h @ slope(received * h) + d * received)
        equal(upload["params"]["body.weight"], [[b]])
        equal(net.head.weight[:, 0], h)
        received = -0.3                 # the body comes down anew, the head goes on
    assert all(p.requires_grad for p in net.parameters())


def test_fedrep_counts_the_epochs_of_each_part():
    """Three steps of the one part, none of the other; a part without parameters is passed by."""
    b, h = 0.8, tensor([0.5, -0.2])
    for heads, bodies in [(3, 0), (0, 3)]:
        net = Net(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))
        params.load_params(net, {"head.weight": h[:, None]})
        worker = worker_of("FedRep", net, values={"head_epochs": heads, "body_epochs": bodies})
        worker.train({"params": {"body.weight": tensor([[b]])}}, 0)
        hand_b, hand_h = tensor(b), h
        for _ in range(3):
            s = slope(hand_b * hand_h)
            hand_b, hand_h = hand_b - LR * (bodies > 0) * (hand_h @ s), hand_h - LR * (heads > 0) * hand_b * s
        equal(net.body.weight, hand_b[None, None])
        equal(net.head.weight[:, 0], hand_h)
    net = line(0.5, -0.2)
    assert worker_of("FedRep", net, values={"head_epochs": 0}).train({}, 0)[1] == {"loss": 0.0}
    equal(net.head.weight[:, 0], h)


def test_fedbabu_without_tuning_is_fedrep_without_head_epochs(tmp_path):
    ours = result(small_run("FedBABU", {"tune_epochs": 0}), tmp_path)
    assert ours == result(small_run("FedRep", {"head_epochs": 0}), tmp_path)
    assert scores(small_run("FedBABU"), tmp_path) != [(r["acc"], r["loss"]) for r in ours]


@pytest.mark.parametrize("net", ["resnet10", "linear"])
def test_fedbabu_never_trains_its_head_in_rounds(net):
    worker = Simulation(small_run("FedBABU", net=net)).workers[0]
    net = worker.client.net
    first, start = copy.deepcopy(net.head.state_dict()), params.snapshot(net.body)
    worker.train({"params": {f"body.{k}": v for k, v in start.items()}}, 0)
    worker.test({"params": {f"body.{k}": v for k, v in start.items()}}, {})
    assert all(torch.equal(v, first[k]) for k, v in net.head.state_dict().items())
    assert not start or any(not torch.equal(v, start[k]) for k, v in params.snapshot(net.body).items())


@pytest.mark.parametrize("name", ["FedBABU", "FineTuned"])
def test_a_net_is_tuned_for_a_test_by_hand(name):
    """Two steps from h, whatever round it is; the body here is fixed at b or trained with h."""
    b, h = 0.8, tensor([0.5, -0.2])
    for tunes, warmup in (("net", 0), ("head", 0), ("net", 4)):
        net = Net(nn.Linear(1, 1, bias=False), nn.Linear(1, 2, bias=False))
        params.load_params(net, {"head.weight": h[:, None]})
        worker = worker_of(name, net, values={"tune_epochs": 2, "tunes": tunes})
        worker.method.protocol = dataclasses.replace(worker.method.protocol, warmup=warmup)     # not of tests
        worker.client.round = 7
        worker.method.receive(worker.client, {"params": {"body.weight": tensor([[b]])}})
        worker.method.adapt(worker.client)
        hand_b, hand_h = tensor(b), h
        for _ in range(2):
            s = slope(hand_b * hand_h)
            hand_b, hand_h = hand_b - LR * (tunes == "net") * (hand_h @ s), hand_h - LR * hand_b * s
        equal(net.body.weight, hand_b[None, None])
        equal(net.head.weight[:, 0], hand_h)
        assert worker.client.round == 7 and not worker.client.scratch


def test_what_is_tuned_for_a_test_is_forgotten():
    simulation = Simulation(small_run("FineTuned"))
    worker, message = simulation.workers[0], simulation.message(0)
    worker.train(message, 0)
    before = params.snapshot(worker.client.net)
    tuned = worker.test(message, {})
    assert same(before, params.snapshot(worker.client.net)) and tuned == worker.test(message, {})
    plain = Simulation(small_run("FedAvg")).workers[0]
    assert tuned["test"]["loss"] != plain.test(message, {})["test"]["loss"]


# FedRoD

def test_fedrod_losses_by_hand():
    """z = x. Client counts (3, 1, 0): the generic logits move by log 3, log 1 = 0 and -inf."""
    h, own, z = tensor([0.4, -0.1, 0.3]), tensor([1.0, 0.2, -0.5]), 2.0
    worker = worker_of("FedRoD", line(*h.tolist()), [[2.0]] * 4, [0, 0, 0, 1])
    client, pair = worker.client, nn.ModuleList([worker.client.net, nn.Linear(1, 3, bias=False)])
    params.load_params(pair[1], {"weight": own[:, None]})
    client.scratch["prior"] = tensor([math.log(3), 0.0, -math.inf])
    value = worker.method.losses(pair, tensor([[z]]), tensor([1]), client)
    e = [3 * math.exp(0.8), math.exp(-0.2)]
    both = (h + own) * z
    equal(value, math.log(sum(e)) + 0.2 + math.log(both.exp().sum()) - both[1])
    value.backward()
    share = e[0] / sum(e)
    equal(pair[0].head.weight.grad[:, 0], [z * share, -z * share, 0.0])    # the absent class is left alone
    equal(pair[1].weight.grad[:, 0], z * slope(both, 1))
    plain = make("FedRoD", {"robust": False}).losses(pair, tensor([[z]]), tensor([1]), client)
    equal(plain - value, -math.log(sum(e)) + math.log((h * z).exp().sum()))


def test_fedrod_keeps_its_own_head_and_adds_it():
    """Both heads are w at first; the two gradients come from the same logits o = w x, before either step."""
    w = tensor([0.3, -0.3])
    worker = worker_of("FedRoD", line(0.0, 0.0), [[1.0], [1.0]], [0, 1], batch=2)
    own = w
    x = tensor([[1.0]])
    worker.method.receive(worker.client, down(w))
    equal(worker.method.predict(worker.client.net, x, worker.client)[0], w)       # before a first training: H alone
    for number, received in enumerate([w, tensor([0.7, 0.1])]):
        upload, _ = worker.train(down(received), number)
        own = own - LR * (slope(received + own, 0) + slope(received + own, 1)) / 2
        equal(head(upload["params"]), received - LR * (slope(received, 0) + slope(received, 1)) / 2)   # counts 1, 1
        equal(worker.client.state["own"]["weight"][:, 0], own)
    assert set(upload) == {"params", "n"} and set(upload["params"]) == {"head.weight"}
    trained = head(upload["params"])
    equal(worker.method.predict(worker.client.net, x, worker.client)[0], trained + own)
    generic = make("FedRoD", {"infer": "generic"})
    equal(generic.predict(worker.client.net, x, worker.client)[0], trained)
    assert worker.method.personal and not generic.personal


def test_fedrods_own_head_does_not_train_the_body():
    net = Net(nn.Linear(2, 3), nn.Linear(3, 2))
    worker = worker_of("FedRoD", net, [[1.0, 2.0], [0.5, -1.0]], [0, 1], {"robust": False})
    x, y = worker.client.train.x, worker.client.train.y
    worker.method.losses(nn.ModuleList([net, copy.deepcopy(net.head)]), x, y, worker.client).backward()
    found = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    F.cross_entropy(net(x), y).backward()
    assert all(torch.equal(g, p.grad) for g, p in zip(found, net.parameters()))


# FedPHP

def test_mmd_by_hand():
    """Points 0 and 1 against 3 and 5 on a line: squared distances 0 1 1 0, 0 4 4 0 and 9 25 4 16."""
    def k(squared):
        return sum(math.exp(-squared / (2 * a)) for a in (10, 15, 20, 50))
    x, y = tensor([[0.0], [1.0]], requires_grad=True), tensor([[3.0], [5.0]])
    wanted = (2 * k(0) + 2 * k(1)) / 4 + (2 * k(0) + 2 * k(4)) / 4 - 2 * (k(9) + k(25) + k(4) + k(16)) / 4
    equal(mmd(x, y), wanted)
    equal(mmd(x, y[:1], bandwidths=(2,)), (2 + 2 * math.exp(-1 / 4)) / 4 + 1 - math.exp(-9 / 4) - math.exp(-4 / 4))
    same = mmd(x, x.detach())
    equal(same, 0.0)
    same.backward()
    equal(x.grad, [[0.0], [0.0]])       # and not nan, where distances are zero


def test_fedphp_inherits_by_hand():
    """mu_t = 0, 0.9/4, 1.8/4. Without a body z = z_q and the MMD is 0: a step of w is (1 - lam) of the plain one."""
    lam = 0.2
    worker = worker_of("FedPHP", line(0.0, 0.0), values={"lam": lam}, rounds=4)
    q = None
    for number, received in enumerate([tensor([0.3, -0.3]), tensor([1.0, 0.5]), tensor([-0.2, 0.4])]):
        upload, _ = worker.train(down(received), number)
        w = received - LR * (1 - lam) * slope(received)
        q = w if number == 0 else (1 - 0.225 * number) * w + 0.225 * number * q
        equal(head(upload["params"]), w)
        equal(head(worker.client.state["q"]), q)
    net, x = worker.client.net, tensor([[1.0]])
    equal(worker.method.predict(net, x, worker.client)[0], q)
    equal(make("FedPHP", {"infer": "w"}).predict(net, x, worker.client)[0], w)
    assert set(upload["params"]) == {"head.weight"}


def test_fedphp_pulls_features_to_those_of_the_inherited_net():
    net = Net(nn.Linear(2, 3), nn.Linear(3, 2))
    worker = worker_of("FedPHP", net, [[1.0, 2.0], [0.5, -1.0]], [0, 1], {"lam": 0.3})
    client, inherited = worker.client, copy.deepcopy(net)
    nn.init.constant_(inherited.body.bias, 2.0)
    client.scratch["inherited"] = inherited
    x, y = client.train.x, client.train.y
    value = worker.method.loss(net, x, y, client)
    equal(value, 0.7 * F.cross_entropy(net(x), y) + 0.3 * mmd(net.body(x), inherited.body(x)))
    value.backward()
    assert net.body.bias.grad.norm() > 0 and inherited.body.bias.grad is None


def test_fedphp_teaches_with_the_inherited_net_of_the_round_before():
    worker = Simulation(small_run("FedPHP", net="linear")).workers[0]
    received = params.snapshot(worker.client.net)
    for number in range(2):
        before = worker.client.state.get("q", received)
        worker.train({"params": received}, number)
        teacher = worker.client.scratch["inherited"]
        assert all(torch.equal(v, before[k]) for k, v in params.snapshot(teacher).items()) and not teacher.training


# FedALA

def hand_weights(a, old, new, eta, passes):
    """A, after so many passes over the one sample x = 1 of class 0."""
    for _ in range(passes):
        start = old + a * (new - old)
        a = (a - eta * slope(start) * (new - old)).clamp(0, 1)
    return a


def test_fedala_learns_its_weights_by_hand():
    """Nothing in round 0. Then 11 passes at first, since the loss moves by less than 0.1, and one pass later.

    A class-0 weight that rose and a class-1 weight that fell locally: w - w_k = (-, +), where A must shrink; the third
    entry moved the other way, and A stays 1.
    """
    eta, first = 0.2, tensor([0.3, -0.3, 0.1])
    worker = worker_of("FedALA", line(0.0, 0.0, 0.0), values={"eta": eta, "share": 1.0})
    client = worker.client
    upload, _ = worker.train(down(first), 0)
    assert "A" not in client.state
    old = first - LR * slope(first)
    equal(head(upload["params"]), old)
    a = torch.ones(3)
    for number, new, passes in [(1, tensor([0.2, 0.0, -0.4]), 11), (2, tensor([0.1, 0.1, -0.9]), 1)]:
        a = hand_weights(a, old, new, eta, passes)
        start = old + a * (new - old)
        tested = worker.test(down(new), {})["test"]["loss"]      # it starts from the mix, too
        assert tested == pytest.approx(float(F.cross_entropy(start[None], tensor([0]))), abs=2e-6)
        upload, _ = worker.train(down(new), number)
        equal(head(client.state["A"]), a)
        old = start - LR * slope(start)
        equal(head(upload["params"]), old)
        equal(head(client.state["local"]), old)
    assert (a[:2] < 1).all() and a[2] == 1 and (a > 0).all()


def test_fedala_limits_of_the_first_learning():
    def weights(**values):
        worker = worker_of("FedALA", line(0.0, 0.0), [[1.0]] * 4, [0] * 4, values)
        worker.train(down(tensor([0.3, -0.3])), 0)
        worker.train(down(tensor([0.1, 0.1])), 1)
        return head(worker.client.state["A"])
    assert torch.equal(weights(share=0.0), torch.ones(2)) and torch.equal(weights(eta=0.0), torch.ones(2))
    assert (weights(eta=1e4) == 0).all()             # clipped
    few, many = weights(eta=0.05, passes=1), weights(eta=0.05, passes=11)
    assert (many < few).all() and torch.equal(many, weights(eta=0.05, passes=100))
    with pytest.raises(UserError):
        make("FedALA", {"share": 80})


def test_fedala_mixes_the_last_layers_only():
    worker = Simulation(small_run("FedALA", {"layers": 2}, net="cnn4")).workers[0]
    net = worker.client.net
    first = params.snapshot(net)
    worker.train({"params": first}, 0)
    local = params.snapshot(net)
    new = {k: v + 0.01 * torch.randn(v.shape, generator=seeds.generator(k)) for k, v in first.items()}
    worker.method.receive(worker.client, {"params": new})
    assert set(worker.client.state["A"]) == last_layers(net, 2)
    for k, v in params.snapshot(net).items():
        if k in last_layers(net, 2):
            a = worker.client.state["A"][k]
            assert not torch.equal(v, new[k]) and not torch.equal(v, local[k]) and 0 <= a.min() < a.max() <= 1
            torch.testing.assert_close(v, local[k] + a * (new[k] - local[k]))
        else:
            assert torch.equal(v, new[k])


def test_fedala_learns_on_a_copy():
    """What came down is in the net, batch-norm statistics included; only the last layer is mixed."""
    worker = Simulation(small_run("FedALA", {"passes": 12})).workers[0]
    net = worker.client.net
    first = params.snapshot(net)
    worker.train({"params": first}, 0)
    worker.method.receive(worker.client, {"params": first})
    assert all(torch.equal(v, first[k]) == (k not in last_layers(net, 1)) for k, v in params.snapshot(net).items())
    assert all(p.requires_grad for p in net.parameters())


def test_settled_by_hand():
    """The last 10 of 5, 1, ..., 1, x: with nine 1 and x = 1 + d their standard deviation is 0.3 d."""
    def said(*losses):
        return settled([tensor(v) for v in losses])
    assert not said(*[1.0] * 10) and said(*[1.0] * 11) and said(5.0, *[1.0] * 10)
    assert said(*[1.0] * 10, 1.32) and not said(*[1.0] * 10, 1.34)
    assert not said(*[math.nan] * 12)


# APFL

def test_apfl_steps_by_hand():
    """v, alpha and w step from what all three were before. v = w at first, where alpha has no slope.

    alpha moves in the first batch of a round only: of the two epochs in a round here, the first.
    """
    alpha, start = 0.4, tensor([0.3, -0.3])
    worker = worker_of("APFL", line(0.0, 0.0), values={"alpha": alpha}, epochs=2)
    x, client = tensor([[1.0]]), worker.client
    worker.method.receive(client, down(start))
    equal(worker.method.predict(client.net, x, client)[0], start)       # before a first training
    v = start
    for number, received in enumerate([start, tensor([1.0, 0.5]), tensor([-0.4, 0.2])]):
        upload, _ = worker.train(down(received), number)
        w, before = received, alpha
        for epoch in range(2):
            s, difference = slope(alpha * v + (1 - alpha) * w), v - w
            v, w = v - LR * alpha * s, w - LR * slope(w)
            if epoch == 0:
                alpha = alpha - LR * float(difference @ s)
        assert 0 < alpha < 1 and (alpha == before) == (number == 0)
        equal(head(upload["params"]), w)
        equal(head(client.state["v"]), v)
        equal(client.state["alpha"], alpha)
    new = tensor([0.9, 0.1])
    worker.method.receive(client, down(new))
    equal(worker.method.predict(client.net, x, client)[0], alpha * v + (1 - alpha) * new)     # the new w is in the mix
    assert not any(t.requires_grad for t in params.flatten(client.state).values())


@pytest.mark.parametrize("received, wanted", [((-9.0, 9.0), 1.0), ((9.0, -9.0), 0.0)])
def test_apfls_alpha_stays_between_0_and_1(received, wanted):
    """A shared net that is far worse than v moves alpha to 1; one that beats a bad v moves it to 0."""
    worker = worker_of("APFL", line(0.0, 0.0), lr=1.0)
    worker.client.state = {"v": {"head.weight": tensor([[-0.8 * received[0]], [-0.8 * received[1]]])},
                           "alpha": tensor(0.5)}
    worker.train(down(tensor(received)), 1)
    assert worker.client.state["alpha"] == wanted
    fixed = worker_of("APFL", line(0.0, 0.0), values={"adaptive": False}, lr=1.0)
    fixed.client.state = {"v": worker.client.state["v"], "alpha": tensor(0.5)}
    fixed.train(down(tensor(received)), 1)
    assert fixed.client.state["alpha"] == 0.5


def test_apfls_mix_does_not_move_the_statistics_of_the_shared_net(tmp_path):
    worker, plain = (Simulation(small_run(name)).workers[0] for name in ("APFL", "FedAvg"))
    sent = {"params": params.snapshot(worker.client.net)}
    (ours, _), (theirs, _) = worker.train(sent, 0), plain.train(sent, 0)
    assert all(torch.equal(v, theirs["params"][k]) for k, v in ours["params"].items())


# all of them

CHEAP = {"FedPer": {}, "FedRep": {"head_epochs": 1}, "FedBABU": {"tune_epochs": 1}, "LGFedAvg": {"layers": 2},
         "FedRoD": {}, "FedPHP": {}, "FedALA": {"passes": 12}, "APFL": {}}


@pytest.mark.parametrize("method", CHEAP)
def test_two_of_five_clients_a_round_and_an_interruption(method, tmp_path):
    """A client that was left out for a while, in a process that was started afresh, goes on as if nothing had been."""
    run = small_run(method, CHEAP[method], net="cnn4", rounds=4, participation=0.4)
    whole = result(run, tmp_path / "whole")

    for _ in range(3):
        interrupted(run, tmp_path / "cut")
    assert result(run, tmp_path / "cut") == whole


@pytest.mark.parametrize("method", CHEAP)
def test_a_client_without_a_class_and_a_last_batch_of_one(method):
    run = small_run(method, CHEAP[method], batch=8)
    simulation = Simulation(run)
    worker = simulation.workers[2]
    worker.client.train = worker.client.train[(worker.client.train.y != 3).nonzero()[:17, 0]]
    for number in range(2):
        upload, said = worker.train(simulation.message(2), number)
        simulation.server.aggregate({"2": upload})
        assert math.isfinite(said["loss"]) and all(v.isfinite().all() for v in params.flatten(upload).values())
    assert math.isfinite(worker.test(simulation.message(2), {})["test"]["loss"])


@pytest.mark.parametrize("method", ["FedRoD", "FedPHP", "FedALA", "APFL"])
def test_bfloat16(method, tmp_path):
    run = small_run(method, CHEAP[method], net="cnn4", rounds=2, precision="bf16")
    assert math.isfinite(result(run, tmp_path)[-1]["loss"])
