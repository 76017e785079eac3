"""FedAvg, FedProx, MOON, FedProto and Ditto against numbers worked out by hand."""
import math

import torch
import torch.nn.functional as F
from by_hand import client_of, equal, scalar_net, worker_of
from conftest import small_run
from torch import nn, tensor

from fedlib.core import params, seeds
from fedlib.core.federation import as_input
from fedlib.core.losses import class_means
from fedlib.engine import loop
from fedlib.engine.loop import Simulation
from fedlib.methods import make
from fedlib.models.nets import Net, build


def test_fedavg_aggregates_three_numbers_of_two_clients():
    server = make("FedAvg")
    server.aggregate({"0": {"params": {"w": tensor([1.0, 2.0, 3.0])}, "n": tensor(10)},
                      "1": {"params": {"w": tensor([5.0, 6.0, -1.0])}, "n": tensor(30)}})
    equal(server.broadcast("0")["params"]["w"], [4.0, 5.0, 0.0])


def test_fedprox_adds_half_mu_of_the_squared_distance():
    here, there = scalar_net(2.0, 0.5), scalar_net(1.0)
    client = client_of(here, [[1.0]], [0], got={"params": params.snapshot(there)})
    prox = make("FedProx", {"mu": 0.3})
    x, y = client.train.x, client.train.y
    term = prox.loss(here, x, y, client) - F.cross_entropy(here(x), y)
    equal(term, 0.3 / 2 * (1 + 1 + 0.25 + 0.25))
    term.backward()
    equal(here.head.weight.grad, [[0.3 * 1.0], [0.3 * -1.0]])
    equal(here.head.bias.grad, [0.15, -0.15])


def moon(net, others, x, y, **values):
    client = client_of(net, [[0.0]], [0])
    client.scratch = dict(zip(("global", "previous"), others))
    return make("MOON", values).loss(net, x, y, client)


def test_moon_follows_its_definition():
    nets = [Net(nn.Linear(4, 3), nn.Linear(3, 2)).double() for _ in range(3)]
    gen = seeds.generator("moon")
    for p in (p for net in nets for p in net.parameters()):
        p.data = torch.randn(p.shape, generator=gen, dtype=torch.float64)
    x, y = torch.randn(5, 4, generator=gen, dtype=torch.float64), tensor([0, 1, 1, 0, 1])
    z, z_g, z_p = (net.body(x) for net in nets)
    cos = [(z * o).sum(1) / z.norm(dim=1) / o.norm(dim=1) for o in (z_g, z_p)]
    up, down = (torch.exp(c / 0.7) for c in cos)
    wanted = F.cross_entropy(nets[0](x), y) + 2.0 * (-torch.log(up / (up + down))).mean()
    equal(moon(nets[0], nets[1:], x, y, mu=2.0, tau=0.7), wanted, rtol=1e-12, atol=0)


def test_moon_is_log_2_when_previous_and_global_are_one():
    net, x, y = scalar_net(1.0), tensor([[2.0]]), tensor([1])
    found = moon(net, [scalar_net(1.0)] * 2, x, y, mu=5.0)
    equal(found - F.cross_entropy(net(x), y), 5 * math.log(2))


def test_moon_keeps_the_net_it_trained_and_starts_from_the_global_one():
    run = small_run("MOON", net="linear", rounds=1)
    worker = Simulation(run).workers[0]
    client, received = worker.client, params.snapshot(worker.client.net)
    for number in range(2):
        before = client.state.get("previous", received)
        worker.train({"params": received}, number)
        assert all(torch.equal(v, params.snapshot(client.scratch["previous"])[k]) for k, v in before.items())
        assert all(torch.equal(v, params.snapshot(client.scratch["global"])[k]) for k, v in received.items())
        assert all(torch.equal(v, params.snapshot(client.net)[k]) for k, v in client.state["previous"].items())


PROTOS = tensor([[[2.0, 4.0], [9.0, 9.0], [1.0, 1.0]],      # client 0 holds classes 0 and 2
                 [[4.0, 0.0], [7.0, 7.0], [8.0, 8.0]]])     # client 1 holds class 0
COUNTS = tensor([[5, 0, 2], [1, 0, 0]])


def test_prototypes_average_over_the_clients_that_hold_a_class():
    """Not by samples; a class nobody holds keeps its last prototype."""
    server = make("FedProto")
    equal(server.merge(PROTOS, COUNTS), [[3.0, 2.0], [0.0, 0.0], [1.0, 1.0]])
    server.setup(Net(nn.Flatten(), nn.Linear(2, 3)))
    assert not server.seen_.any()
    uploads = {str(k): {"params": {}, "n": tensor(1), "protos": p, "counts": c}
               for k, (p, c) in enumerate(zip(PROTOS, COUNTS))}
    server.aggregate(uploads)
    assert server.seen_.tolist() == [True, False, True]
    only_1 = {"1": {**uploads["1"], "counts": tensor([0, 3, 0])}}
    server.aggregate(only_1)
    assert server.seen_.all()
    equal(server.protos_, [[3.0, 2.0], [7.0, 7.0], [1.0, 1.0]])


def test_fedproto_loss_leaves_out_classes_without_a_prototype():
    net = Net(nn.Flatten(), nn.Linear(2, 3))
    x, y = tensor([[1.0, 1.0], [5.0, 6.0]]), tensor([0, 1])
    got = {"protos": tensor([[3.0, 2.0], [0.0, 0.0], [1.0, 1.0]]), "seen": tensor([True, False, True])}
    client = client_of(net, [[0.0, 0.0]], [0], got=got)
    term = make("FedProto", {"lam": 10.0}).loss(net, x, y, client) - F.cross_entropy(net(x), y)
    equal(term, 10 * (4 + 1) / 4)       # mean over 2 samples x 2 dimensions; the second sample adds 0


def test_fedproto_nearest_prototype_among_those_seen():
    net = Net(nn.Flatten(), nn.Linear(2, 3))
    got = {"protos": tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 3.0]]), "seen": tensor([True, False, True])}
    client = client_of(net, [[0.0, 0.0]], [0], got=got)
    method = make("FedProto", {"infer": "nearest"})
    x = tensor([[1.0, 0.1], [0.1, 1.0]])        # both are nearest to the prototype that is not there
    logits = method.predict(net, x, client)
    assert logits.argmax(1).tolist() == [0, 2] and logits.argmin(1).tolist() == [1, 1] and logits.isfinite().all()
    client.got = got | {"seen": torch.zeros(3, dtype=torch.bool)}
    equal(method.predict(net, x, client), net(x))


def test_class_means_and_counts():
    means, counts = class_means(tensor([[1.0, 0.0], [3.0, 2.0], [5.0, 5.0]]), tensor([2, 2, 0]), 4)
    equal(means, [[5.0, 5.0], [0.0, 0.0], [2.0, 1.0], [0.0, 0.0]])
    assert counts.tolist() == [1, 0, 2, 0]


def test_client_prototypes_are_means_of_plain_features_in_evaluation_mode():
    run = small_run("FedProto")
    client = loop.federate(run.data, 0).clients[0]
    client.net = build(run.net, 10, (3, 28, 28), 0).train()
    protos, counts = make("FedProto").prototypes(client)
    with torch.no_grad():
        z = client.net.eval().body(as_input(client.train.x))
    equal(protos[4], z[client.train.y == 4].mean(0))
    assert counts.tolist() == client.train.y.bincount(minlength=10).tolist()


def test_ditto_steps_by_hand():
    """One sample x = 1 of class 0, logits (w, -w) x, so dF/dw_0 = s - 1 and dF/dw_1 = 1 - s with s = softmax(w, -w)_0.

    Round 1 starts both nets at w, where the term has no gradient. Round 2 pulls v towards the w that came down.
    """
    lr, mu, w = 0.5, 0.4, 0.3

    def slope(v):
        return torch.softmax(tensor([v[0], v[1]]), 0) - tensor([1.0, 0.0])

    net = Net(nn.Flatten(), nn.Linear(1, 2, bias=False))
    worker = worker_of("Ditto", net, values={"mu": mu}, lr=lr)
    v = start = tensor([w, -w])
    for number, down in enumerate([start, tensor([1.0, 0.5])]):
        upload, _ = worker.train({"params": {"head.weight": down[:, None]}}, number)
        v = v - lr * (slope(v) + mu * (v - down))
        equal(upload["params"]["head.weight"][:, 0], down - lr * slope(down))
        equal(worker.client.state["personal"]["head.weight"][:, 0], v)
    equal(worker.method.predict(net, worker.client.test.x, worker.client)[0], v)
