"""Arithmetic against numbers worked out by hand, by another formula or by another library."""
import math

import pytest
import torch
import torch.nn.functional as F
from conftest import numbers, small_run
from torch import nn, tensor

from fedlib.core import params, seeds
from fedlib.core.federation import Client, Split, as_input, augment, batches, rotate
from fedlib.core.losses import class_means
from fedlib.datasets.partition import Data, federate
from fedlib.engine import loop, records
from fedlib.engine.evaluate import stalled
from fedlib.engine.run import plan
from fedlib.engine.worker import Worker
from fedlib.methods import make
from fedlib.methods.base import Protocol
from fedlib.models.nets import Arch, Net, build


def equal(found, wanted, **tolerance):
    torch.testing.assert_close(found, tensor(wanted) if not isinstance(wanted, torch.Tensor) else wanted,
                               check_dtype=False, **tolerance)


def scalar_net(weight, bias=0.0):
    """logits = (weight, -weight) z, z the one input feature."""
    net = Net(nn.Flatten(), nn.Linear(1, 2))
    params.load_params(net, {"head.weight": tensor([[weight], [-weight]]), "head.bias": tensor([bias, -bias])})
    return net


def client_with(net, x, y, **got):
    split = Split(tensor(x), tensor(y))
    return Client("0", "d", split, split, net=net, got=got)


# params

def test_mean_is_weighted_by_samples():
    dicts = [{"a": tensor([1.0, 2.0]), "b": tensor(10.0)}, {"a": tensor([5.0, 0.0]), "b": tensor(-2.0)}]
    found = params.mean(dicts, [tensor(3), tensor(1)])
    equal(found["a"], [2.0, 1.5])
    equal(found["b"], 7.0)


def test_sq_dist_and_its_gradient():
    net = scalar_net(3.0, 1.0)
    distance = params.sq_dist(net, {"head.weight": tensor([[1.0], [0.0]])})      # (3-1)^2 + (-3)^2; not the bias
    equal(distance, 13.0)
    distance.backward()
    equal(net.head.weight.grad, [[4.0], [-6.0]])
    assert net.head.bias.grad is None


@pytest.mark.parametrize("arch, layers, missed", [("resnet18", 20, 3), ("resnet50", 53, 4)])
@pytest.mark.parametrize("head", ["linear", "hidden"])
def test_norm_layers_are_found_by_type_and_by_name_some_are_missed(arch, layers, missed, head):
    net = build(Arch(arch, 4, head), 10, (3, 32, 32), 0)
    by_type = params.names(net, params.NORM)
    layers += 2 * (head == "hidden")
    assert len(by_type) == 5 * layers       # weight, bias, running mean and variance, step counter
    by_name = make("FedBN", {"norms": "name"}).private(net)
    assert make("FedBN").private(net) == by_type and by_name < by_type
    lost = {k.rsplit(".", 1)[0] for k in by_type - by_name}
    assert len(lost) == missed and all(k.endswith("downsample.1") for k in lost)


def test_read_copies_floats_only_and_load_keeps_the_rest():
    net = build(Arch("resnet10", 4), 10, (3, 28, 28), 0)
    sent = params.snapshot(net, without={"head.bias"})
    left_out = {k for k in net.state_dict() if k.endswith("num_batches_tracked")} | {"head.bias"}
    assert set(sent) == set(net.state_dict()) - left_out and len(left_out) == 13
    bias = net.head.bias.clone()
    sent["head.weight"].zero_()
    assert net.head.weight.abs().sum() > 0      # a copy, not a view
    params.load_params(net, sent)
    assert net.head.weight.abs().sum() == 0 and torch.equal(net.head.bias, bias)


def test_messages_flatten_and_their_bytes():
    message = {"params": {"a.w": torch.zeros(2, 3), "b": {"c": torch.zeros(4, dtype=torch.float64)}},
               "n": tensor(7), "seen": torch.zeros(5, dtype=torch.bool)}
    flat = params.flatten(message)
    assert list(flat) == ["params/a.w", "params/b/c", "n", "seen"]
    assert params.unflatten(flat) == message
    assert params.nbytes(message) == 6 * 4 + 4 * 8 + 8 + 5


# methods

def test_fedavg_aggregates_three_numbers_of_two_clients():
    server = make("FedAvg")
    server.aggregate({"0": {"params": {"w": tensor([1.0, 2.0, 3.0])}, "n": tensor(10)},
                      "1": {"params": {"w": tensor([5.0, 6.0, -1.0])}, "n": tensor(30)}})
    equal(server.broadcast("0")["params"]["w"], [4.0, 5.0, 0.0])


def test_fedprox_adds_half_mu_of_the_squared_distance():
    here, there = scalar_net(2.0, 0.5), scalar_net(1.0)
    client = client_with(here, [[1.0]], [0], params=params.snapshot(there))
    prox = make("FedProx", {"mu": 0.3})
    x, y = client.train.x, client.train.y
    term = prox.loss(here, x, y, client) - F.cross_entropy(here(x), y)
    equal(term, 0.3 / 2 * (1 + 1 + 0.25 + 0.25))
    term.backward()
    equal(here.head.weight.grad, [[0.3 * 1.0], [0.3 * -1.0]])
    equal(here.head.bias.grad, [0.15, -0.15])


def moon(net, others, x, y, **values):
    client = client_with(net, [[0.0]], [0])
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
    client = loop.federate(run.data, 0).clients[0]
    worker = Worker(run, client, build(run.net, 10, (3, 28, 28), 0))
    received = params.snapshot(client.net)
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
    client = client_with(net, [[0.0, 0.0]], [0], **got)
    term = make("FedProto", {"lam": 10.0}).loss(net, x, y, client) - F.cross_entropy(net(x), y)
    equal(term, 10 * (4 + 1) / 4)       # mean over 2 samples x 2 dimensions; the second sample adds 0


def test_fedproto_nearest_prototype_among_those_seen():
    net = Net(nn.Flatten(), nn.Linear(2, 3))
    got = {"protos": tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 3.0]]), "seen": tensor([True, False, True])}
    client = client_with(net, [[0.0, 0.0]], [0], **got)
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

    run = plan("Ditto", {"mu": mu}, {}, {}, {"lr": lr}, 0)
    net = Net(nn.Flatten(), nn.Linear(1, 2, bias=False))
    split = Split(tensor([[1.0]]), tensor([0]))
    worker = Worker(run, Client("0", "d", split, split), net)
    v = start = tensor([w, -w])
    for number, down in enumerate([start, tensor([1.0, 0.5])]):
        upload, _ = worker.train({"params": {"head.weight": down[:, None]}}, number)
        v = v - lr * (slope(v) + mu * (v - down))
        equal(upload["params"]["head.weight"][:, 0], down - lr * slope(down))
        equal(worker.client.state["personal"]["head.weight"][:, 0], v)
    equal(worker.method.predict(net, split.x, worker.client)[0], v)


# random numbers and batches

def test_keyed_generators():
    def draw(*parts):
        return torch.rand(4, generator=seeds.generator(*parts)).tolist()
    assert draw(0, "order", 3, "1") == draw(0, "order", 3, "1")
    keys = [(0, "order", 3, "1"), (1, "order", 3, "1"), (0, "draw", 3, "1"), (0, "order", 31), (0, "order", 3, 1)]
    assert len({tuple(draw(*k)) for k in keys}) == len(keys)
    assert 0 <= seeds.key("x") < 2 ** 63


def test_augment_by_hand():
    x = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4).repeat(3, 3, 1, 1)
    x[2] += 100
    # offset = pad is the identity; [5, 2] moves one row up and two columns right; the mirror turns each row around
    found = augment(x, tensor([[4, 4, 0], [4, 4, 1], [5, 2, 1]]), flip=True)
    assert torch.equal(found[0], x[0]) and torch.equal(found[1], x[1].flip(-1))
    assert found[2, 1].tolist() == [[106, 105, 0, 0], [110, 109, 0, 0], [114, 113, 0, 0], [0, 0, 0, 0]]
    assert torch.equal(augment(x, tensor([[4, 4, 1]] * 3), flip=False), x)


def test_rotation_by_hand():
    x = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3).repeat(4, 3, 1, 1)
    found = rotate(x, tensor([0, 90, -90, 180]))
    assert torch.equal(found[0], x[0]) and torch.equal(found[3], x[3].flip(1, 2))
    assert {tuple(found[i, 0].flatten().tolist()) for i in (1, 2)} == {
        (3, 6, 9, 2, 5, 8, 1, 4, 7), (7, 4, 1, 8, 5, 2, 9, 6, 3)}
    corner = rotate(torch.full((1, 3, 9, 9), 255, dtype=torch.uint8), tensor([30]))[0, 0]
    assert corner[0, 0] == 0 and corner[4, 4] == 255 and set(corner.unique().tolist()) == {0, 255}


def test_flip_and_rotate_turns_by_at_most_30_degrees():
    """A bright bar through the centre: its angle is read from its pixels."""
    x = torch.zeros(400, 3, 33, 33, dtype=torch.uint8)
    x[:, :, 16, 16:] = 255
    split = Split(x, torch.zeros(400, dtype=torch.int64), "none")
    (seen, _), = batches(split, 400, "flip_rotate", seeds.generator(0, "turn"))
    rows, columns = ((seen[:, 0] > 0.5).float().sum(d) for d in (2, 1))
    middle = torch.arange(33) - 16.0
    up, right = ((mass * middle).sum(1) / mass.sum(1) for mass in (rows, columns))
    degrees = (up / right.abs()).atan() * 180 / torch.pi
    assert degrees.abs().max() < 33 and degrees.min() < -25 and degrees.max() > 25
    assert 150 < (right < 0).sum() < 250


@pytest.mark.parametrize("size, batch, left_out", [(10, 4, 0), (9, 4, 1), (1, 4, 0), (5, 1, 0), (3, 8, 0)])
def test_an_epoch_holds_every_sample_once(size, batch, left_out):
    """But for a last batch of one, which batch-norm cannot take."""
    split = Split(torch.arange(size, dtype=torch.float32)[:, None], torch.arange(size))
    gen = seeds.generator(0, "order", 0, "0")
    epochs = [list(batches(split, batch, "crop_flip", gen)) for _ in range(2)]
    for epoch in epochs:
        seen = torch.cat([y for _, y in epoch]).tolist()
        assert len(seen) == len(set(seen)) == size - left_out
        assert all(len(y) <= batch and torch.equal(x[:, 0], y.float()) for x, y in epoch)
    if size > 4:
        assert [y.tolist() for _, y in epochs[0]] != [y.tolist() for _, y in epochs[1]]


def test_images_are_normalised_with_imagenets_statistics():
    x = tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1)
    equal(as_input(x).flatten(), [-0.485 / 0.229, (1 - 0.456) / 0.224, (0.2 - 0.406) / 0.225])
    assert as_input(tensor([[300.0]])).item() == 300
    equal(as_input(x, "half").flatten(), [-1, 1, -0.6])
    equal(as_input(x, "none").flatten(), [0, 1, 0.2])


def test_how_images_are_normalised_belongs_to_the_data():
    federation = federate(Data("tiny_digits", clients=(2, 1, 1, 1), normalise="half"), 0)
    splits = [s for c in federation.clients for s in (c.train, c.test, c.val, c.train[:3], c.train.to("cpu"))]
    assert {s.normal for s in splits} == {"half"}
    (x, _), = batches(splits[3], 3, "none", seeds.generator(0))
    assert x.min() == -1 and x.max() <= 1


# nets

@pytest.mark.parametrize("net, classes, shape, count", [
    ("resnet10", 10, (3, 32, 32), 4_903_242), ("resnet18", 7, (3, 64, 64), 11_180_103),
    ("cnn4", 10, (1, 28, 28), 582_026), ("cnn4", 10, (3, 32, 32), 878_538)])
def test_parameter_counts(net, classes, shape, count):
    net = build(Arch(net), classes, shape, 0)
    assert sum(p.numel() for p in net.parameters()) == count
    assert net.eval()(torch.zeros(2, *shape)).shape == (2, classes)


def test_resnet50_features():
    with torch.device("meta"):
        assert sum(p.numel() for p in build(Arch("resnet50"), 7, (3, 64, 64), 0).body.parameters()) == 23_508_032


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_resnets_are_torchvisions_but_for_the_heads_name(name):
    models = pytest.importorskip("torchvision").models
    published = models.get_model(name, weights=None, num_classes=7)
    state = {"head." + k[3:] if k.startswith("fc.") else "body." + k: v for k, v in published.state_dict().items()}
    ours = build(Arch(name), 7, (3, 64, 64), 0)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {k: v.shape for k, v in state.items()}
    ours.load_state_dict(state)
    x = torch.randn(2, 3, 64, 64, generator=seeds.generator("images"))
    for train_mode in (True, False):        # the first pass moves the running statistics that the second one uses
        torch.testing.assert_close(ours.train(train_mode)(x), published.train(train_mode)(x))


def test_a_net_depends_on_its_seed_only():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (build(Arch("cnn4", 4), 10, (3, 28, 28), s).head.weight for s in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


# the protocol

def test_stalled_by_hand():
    def stops(values, patience):
        rounds = [{"val": {"a": v, "b": 0}, "acc": {"a": 0}} for v in values]
        return stalled(rounds, Protocol(patience=patience))

    assert not stops((1, 3, 2), 2) and stops((1, 3, 2, 2), 2)
    assert not stops((1, 3, 2, 4), 2)       # improved in the last round
    assert stops((3, 3, 3), 2)              # equal is no improvement
    assert not stops((3, 2, 1), 0)          # 0: never
    assert not stops((), 2) and not stalled([{"acc": {"a": 1}}] * 9, Protocol(patience=2))
    loss, by_loss = [{"val": {"a": 0}, "val_loss": v} for v in (3.0, 1.0, 1.0, 2.0)], Protocol(patience=2, stop="loss")
    assert stalled(loss, by_loss) and not stalled(loss[:3], by_loss)


def rows(run, folder):
    return numbers(records.read_record(loop.train(run, folder)))


def test_early_stopping_is_the_same_after_an_interruption(tmp_path):
    run = small_run(net="linear", rounds=40, lr=0.2, patience=2)
    whole = rows(run, tmp_path / "whole")
    assert 3 <= len(whole) < 40
    means = [sum(r["val"].values()) for r in whole]
    assert len(means) - 1 - means.index(max(means)) == 2

    def cut(event):
        raise InterruptedError

    for _ in whole:     # also after the last round, when all that is missing is the record
        with pytest.raises(InterruptedError):
            loop.train(run, tmp_path / "cut", say=cut)
    assert rows(run, tmp_path / "cut") == whole


def test_two_of_five_clients_take_part(tmp_path):
    def sample(participation, number, low=0.0):
        return loop.sample(5, Protocol(participation=participation, participation_low=low), 0, number)

    chosen = [sample(0.4, number) for number in range(30)]
    assert all(len(c) == len(set(c)) == 2 for c in chosen) and {i for c in chosen for i in c} == set(range(5))
    assert sample(0.0, 0) and sample(1.0, 0) == list(range(5))
    drawn = {len(sample(0.8, number, low=0.4)) for number in range(60)}
    assert drawn == {2, 3, 4}           # PFLlib's random join ratio: a share drawn in each round
    net = 4 * (10 * 3 * 28 * 28 + 10)
    for row in rows(small_run(net="linear", participation=0.4), tmp_path):
        assert row["bytes_down"] == 2 * net and row["bytes_up"] == 2 * (net + 8)


def test_tests_before_after_and_both(tmp_path):
    before, after, both = (rows(small_run(evaluate=e), tmp_path) for e in ("before", "after", "both"))
    domains = ["scans", "blended", "printed", "street"]
    assert "after" not in before[0] and "val" not in after[0]
    for b, a, t in zip(before, after, both, strict=True):
        assert list(a["acc"]) == list(b["acc"]) == domains
        assert a["acc"] == a["after"] == t["after"] and t["acc"] == b["acc"] != a["acc"]


def test_who_does_not_train_is_tested_with_what_the_round_began_with(tmp_path):
    how = {"evaluate": "both", "participation": 0.4, "rounds": 3, "net": "linear"}
    before, after = ([r[k] for r in rows(small_run("Local", **how), tmp_path)] for k in ("acc", "after"))
    assert before == after              # a local net is the same when it is sent nothing
    changed = 0
    last = {}
    for number, row in enumerate(rows(small_run("FedAvg", **how), tmp_path)):
        trained = {("scans", "scans", "blended", "printed", "street")[i]
                   for i in loop.sample(5, Protocol(participation=0.4), 0, number)}
        for d in row["acc"]:
            assert number == 0 or d in trained or row["after"][d] == last[d]
            changed += d in trained and row["after"][d] != row["acc"][d]
        last = row["acc"]
    assert changed


def test_unseen_domains_are_tested_and_not_trained(tmp_path):
    run = small_run(data={"unseen": ("printed",)})
    path = loop.train(run, tmp_path)
    record = records.read_record(path)
    assert [c["domain"] for c in record["made"]["data"]["clients"]] == ["scans", "scans", "blended", "street"]
    for row in record["rounds"]:
        assert list(row["acc"]) == ["scans", "blended", "street"] and list(row["unseen"]) == ["printed"]


def test_kept_buffers_stay_at_the_client(tmp_path):
    run = small_run(buffers="keep")
    federation = loop.federate(run.data, 0)
    net = build(run.net, 10, (3, 28, 28), 0)
    server = make(run.method, run.settings, run.protocol)
    server.setup(net)
    worker = Worker(run, federation.clients[0], net)
    worker.train(server.broadcast("0"), 0)
    mean = net.body.bn1.running_mean.clone()
    assert mean.abs().sum() > 0
    worker.method.receive(worker.client, server.broadcast("0"))
    assert torch.equal(net.body.bn1.running_mean, mean) and "body.bn1.running_mean" in worker.kept()["net"]


def test_bfloat16_changes_the_numbers_and_still_learns(tmp_path):
    rounds = {p: numbers(records.read_record(loop.train(small_run(precision=p), tmp_path))) for p in ("float32", "bf16")}
    losses = {p: r[-1]["loss"] for p, r in rounds.items()}
    assert losses["bf16"] != losses["float32"] and abs(losses["bf16"] - losses["float32"]) < 0.5
