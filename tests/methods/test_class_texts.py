"""FedDTR: the loss against its formula, who moves what, messages."""
import copy

import pytest
import torch
import torch.nn.functional as F
from conftest import small_run

from fedlib.core.federation import Client, Federation, as_input
from fedlib.core.params import nbytes
from fedlib.engine import loop, records
from fedlib.engine.loop import Simulation
from fedlib.methods.class_texts import frequencies
from fedlib.models.nets import Arch, build
from fedlib.probes.cost import random

NAMES = ["cat", "dog", "horse"]


def a_client(values=None, count=12, dim_width=2, arch="cnn4"):
    """A worker of FedDTR with random images of three classes and what the server sent it."""
    run = small_run("FedDTR", values, net=arch)
    net, split = build(Arch(arch, dim_width), 3, (3, 28, 28), 0), random(count, 3, (3, 28, 28))
    federation = Federation([Client("0", "a", split, split, classes=NAMES)], NAMES, {}, {})
    simulation = Simulation(run, federation, net=net)
    worker = simulation.workers[0]
    worker.client.got = simulation.message(0)
    worker.method.receive(worker.client, worker.client.got)
    return simulation.server, worker


@pytest.mark.parametrize("values", [{}, {"scale": 1.0}, {"text": "mlp"}, {"u": 0.5}])
def test_the_loss_by_its_formula(values):
    _, worker = a_client(values)
    client, method, net = worker.client, worker.method, worker.client.net
    torch.manual_seed(1)
    for p in (*net.text.parameters(), *net.head.parameters()):
        p.data += 0.1 * torch.randn_like(p)         # so that own and global differ
    anchors = client.scratch["anchors"] = torch.randn(3, net.dim)
    x, y = as_input(client.train.x), client.train.y
    z, own = net.body(x).double(), net.text().double()
    got, scale = {k: v.double() for k, v in client.got["head"].items()}, values.get("scale", 100.0)
    prior = torch.bincount(y, minlength=3).double() / len(y) @ own
    h = net.head.double()
    logits = F.linear(z + prior, h.weight, h.bias) + F.linear(z, got["weight"], got["bias"])
    pull = [-torch.log_softmax(scale * F.cosine_similarity(z[:, None], t[None], dim=2), 1)[range(len(y)), y].mean()
            for t in (anchors.double(), own)]
    wanted = -torch.log_softmax(logits, 1)[range(len(y)), y].mean() + values.get("u", 1.0) * sum(pull)
    net.float()
    assert torch.allclose(method.loss(net, x, y, client).double(), wanted, rtol=1e-4)


def slopes(values, part):
    """The gradient that the loss gives a part of the net, after its texts and head moved away from the server's."""
    _, worker = a_client(values)
    client, net = worker.client, worker.client.net
    torch.manual_seed(1)
    for p in (*net.text.parameters(), *net.head.parameters()):
        p.data += 0.1 * torch.randn_like(p)
    client.scratch["anchors"] = torch.randn(3, net.dim)
    worker.method.loss(net, as_input(client.train.x), client.train.y, client).backward()
    return torch.cat([p.grad.flatten() if p.grad is not None else torch.zeros(p.numel())
                      for p in getattr(net, part).parameters()])


def test_texts_learn_from_fixed_features_only():
    assert slopes({}, "text").abs().sum() > 0
    assert slopes({"u": 0.0}, "text").abs().sum() == 0                              # P_k is fixed in the loss
    assert slopes({"u": 0.0, "detach": False}, "text").abs().sum() > 0
    assert torch.equal(slopes({}, "head"), slopes({"u": 0.0}, "head"))              # the texts do not move the head
    assert not torch.equal(slopes({}, "body"), slopes({"detach": False}, "body"))   # through the averaged head
    assert torch.allclose(slopes({"freeze": False, "prior": False}, "text"), slopes({"prior": False}, "text"),
                          rtol=1e-3, atol=1e-7)                                     # Eq. 1 or Eq. 2: the same for T_k
    assert not torch.allclose(slopes({"freeze": False}, "body"), slopes({}, "body"), rtol=1e-3)


def test_the_prior_is_the_clients_mean_text():
    _, worker = a_client(count=8)                    # classes 0, 1, 2, 0, 1, 2, 0, 1
    assert frequencies(worker.client, 4).tolist() == pytest.approx([3 / 8, 3 / 8, 2 / 8, 0])


def test_what_travels_is_body_texts_and_head():
    server, worker = a_client()
    net, client = worker.client.net, worker.client
    up, _ = worker.train(server.broadcast("0"), 0)
    counted = sum(p.numel() for part in (net.body, net.text, net.head) for p in part.parameters())
    assert nbytes(server.broadcast("0")) == 4 * counted and nbytes(up) == 4 * counted + 8      # and the count n
    assert set(server.broadcast("0")["params"]) == {k for k in net.state_dict() if not k.startswith("head.")}
    own = copy.deepcopy(net.head.state_dict())
    server.aggregate({"0": up, "1": {k: {n: v + 1 for n, v in d.items()} if isinstance(d, dict) else d
                                     for k, d in up.items()}})
    assert torch.allclose(server.head_["bias"], up["head"]["bias"] + 0.5)
    worker.method.receive(client, server.broadcast("0"))
    assert torch.equal(net.head.weight, own["weight"])      # the own head stays as it was
    assert torch.allclose(net.text.weight, up["params"]["text.weight"] + 0.5)


def test_the_anchors_of_a_round_are_the_servers_texts():
    server, worker = a_client()
    sent = server.broadcast("0")
    worker.train(sent, 0)
    assert torch.equal(worker.client.scratch["anchors"], sent["params"]["text.weight"])
    assert not torch.equal(worker.client.net.text.weight, sent["params"]["text.weight"])


def test_alone_without_texts_is_local(tmp_path):
    bare = {"u": 0.0, "prior": False, "dual": False, "alone": True}
    ours, theirs = (records.read_record(loop.train(small_run(*which), tmp_path))["rounds"]
                    for which in (("FedDTR", bare), ("Local",)))
    assert [r["acc"] for r in ours] == [r["acc"] for r in theirs]
    up, _ = a_client({"alone": True, "dual": False})[1].train({}, 0)
    assert set(up) == {"params", "n"} and not up["params"]


def test_texts_without_text_do_not_care_for_labels(tmp_path):
    """Table 6 with the released encoder is a tautology; with the paper's, the vectors at least differ."""
    def accuracies(**values):
        rounds = records.read_record(loop.train(small_run("FedDTR", values), tmp_path))["rounds"]
        return [r["acc"] for r in rounds], [r["train_loss"] for r in rounds]
    assert accuracies() == accuracies(labels="digits") == accuracies(labels="alphanumeric")
    assert accuracies(text="mlp")[1] != accuracies(text="mlp", labels="digits")[1]
