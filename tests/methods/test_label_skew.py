"""Methods for skewed labels and sizes: each rule by hand, and against the arithmetic written out."""
import math

import pytest
import torch
import torch.nn.functional as F
from by_hand import client_of
from conftest import result, small_run

from fedlib.engine.loop import Simulation
from fedlib.methods import make
from fedlib.methods.base import Protocol
from fedlib.methods.drift import reach
from fedlib.methods.label_skew import SimplexHead, correlated, others
from fedlib.models.nets import Arch, build


def averaged(said, steps, samples):
    """FedNova's entries after clients said these numbers for all of them; they start at 0."""
    method, net = make("FedNova"), build(Arch("linear"), 2, (3,), 0)
    method.setup(net)
    method.global_ = {k: torch.zeros_like(v) for k, v in method.global_.items()}
    method.aggregate({str(i): {"params": {k: torch.full_like(v, w) for k, v in method.global_.items()},
                               "n": torch.tensor(n), "a": torch.tensor(float(a))}
                      for i, (w, a, n) in enumerate(zip(said, steps, samples, strict=True))})
    return float(method.global_["head.bias"][0])


@pytest.mark.parametrize(("said", "steps", "samples", "wanted"), [
    ([2.0, 8.0], [1, 4], [1, 1], 2.5 * 2.0),            # both move by 2 a step; 2.5 steps in the mean
    ([2.0, 8.0], [1, 4], [3, 1], 1.75 * 2.0),
    ([3.0, 8.0], [1, 4], [1, 1], 2.5 * 2.5),            # 3 and 2 a step
    ([2.0, 8.0], [5, 5], [1, 1], 5.0),                  # FedAvg's mean
    ([1.0, 1.0, 1.0], [1, 1, 1e30], [1, 1, 1], 34.0 * (2 + 0.01) / 3)])     # 100 times the median at most
def test_a_client_counts_by_its_step_and_not_by_their_number(said, steps, samples, wanted):
    assert averaged(said, steps, samples) == pytest.approx(wanted)


@pytest.mark.parametrize("r", [0.0, 0.5, 0.9])
def test_a_client_is_counted_as_far_as_sgd_goes(r):
    """A gradient of 1 in every step moves a weight by lr times that number."""
    w = torch.zeros(1, requires_grad=True)
    opt = torch.optim.SGD([w], lr=0.1, momentum=r)
    for _ in range(7):
        w.grad = torch.ones(1)
        opt.step()
    assert float(w.detach()) == pytest.approx(-reach(Protocol(lr=0.1, momentum=r), 0, 7), rel=1e-5)
    assert reach(Protocol(lr=1.0, momentum=r), 0, 7) == pytest.approx((7 - r * (1 - r ** 7) / (1 - r)) / (1 - r))


def test_fednova_is_fedavg_where_all_take_as_many_steps(tmp_path):
    nova, average = (result(small_run(name), tmp_path) for name in ("FedNova", "FedAvg"))
    assert [r["acc"] for r in nova] == [r["acc"] for r in average]
    assert [r["loss"] for r in nova] == [r["loss"] for r in average]
    nova, average = (result(small_run(name, data={"fraction": 1.0}), tmp_path) for name in ("FedNova", "FedAvg"))
    assert [r["loss"] for r in nova] != [r["loss"] for r in average]        # 25 samples here, 50 there


@pytest.fixture
def four():
    """(net of four classes, x, y of 16, 1, 3 and no samples)."""
    gen = torch.Generator().manual_seed(0)
    y = torch.tensor([0] * 16 + [1] + [2] * 3)
    return build(Arch("linear"), 4, (3,), 0), torch.randn(len(y), 3, generator=gen), y


def loss_of(name, values, four):
    """The loss of the received net on the client's data, as it is before the first step."""
    net, x, y = four
    method = make(name, values, Protocol(lr=0.0))
    client = client_of(net, x, y, got={"params": dict(net.state_dict())})
    method.local(client)
    return method.loss(net, x, y, client), net, x, y


def test_fedlc_asks_rare_classes_for_a_margin(four):
    loss, net, x, y = loss_of("FedLC", {"tau": 2.0}, four)
    margin = torch.tensor([2 / 2, 2.0, 2 / 3 ** 0.25, 200.0])
    assert torch.allclose(loss, F.cross_entropy(net(x) - margin, y))
    loss.backward()
    assert net.head.weight.grad[3].abs().max() < 1e-20      # nothing pushes the class that is not there


def test_fedntd_is_free_about_the_true_class(four):
    net, x, y = four
    h = net(x)
    for i in range(len(y)):
        kept = [c for c in range(4) if c != y[i]]
        assert torch.allclose(others(h, y)[i], h[i, kept].log_softmax(0), atol=1e-6)
    method = make("FedNTD", {"beta": 3.0, "tau": 2.0})
    client = client_of(net, x, y)
    client.scratch["global"] = build(Arch("linear"), 4, (3,), 1)
    p, q = (torch.stack([n(x)[i, [c for c in range(4) if c != y[i]]].div(2).softmax(0) for i in range(len(y))])
            for n in (net, client.scratch["global"]))
    wanted = F.cross_entropy(net(x), y) + 3 * 4 * (q * (q / p).log()).sum(1).mean()
    assert torch.allclose(method.loss(net, x, y, client), wanted, atol=1e-6)


def test_correlations_of_features_are_those_of_torch():
    gen = torch.Generator().manual_seed(0)
    z = torch.randn(50, 4, generator=gen) @ torch.randn(4, 4, generator=gen)
    K = torch.corrcoef(z.T)
    wanted = (K.square().sum() - 4) / 16
    assert correlated(z) == pytest.approx(float(wanted) * (49 / 50) ** 2, rel=1e-4)
    B, K = 50, K * 49 / 50
    net = build(Arch("linear"), 3, (4,), 0)
    y = torch.arange(B) % 3
    off = (B * K)[~torch.eye(4, dtype=bool)].square().mean() / B      # as the released code has it
    for released, far in ((True, off), (False, correlated(z))):
        loss = make("FedDecorr", {"beta": 2.0, "released": released}).loss(net, z, y, None)
        assert float((loss - F.cross_entropy(net(z), y)).detach()) == pytest.approx(2 * float(far), rel=1e-4)


@pytest.mark.parametrize("classes", [2, 5, 10])
def test_the_vectors_of_a_simplex_are_equally_far_apart(classes):
    head = SimplexHead(7, classes, 2.0, seed=3)
    products = head.V @ head.V.T
    wanted = torch.full((classes, classes), -1 / (classes - 1)).fill_diagonal_(1.0)
    assert torch.allclose(products, wanted, atol=1e-5)
    assert torch.equal(head.V, SimplexHead(7, classes, 2.0, seed=3).V) and "V" not in head.state_dict()
    assert head(torch.randn(4, 7)).abs().max() <= 2 + 1e-5


def test_fedetf_leaves_missing_classes_alone_and_sends_no_vectors(four):
    loss, net, x, y = loss_of("FedETF", {}, (make("FedETF").equip(four[0]), *four[1:]))
    prior = torch.tensor([16, 1, 3, 0]).log()
    assert torch.allclose(loss, F.cross_entropy(net(x) + prior, y))
    loss.backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())
    message = Simulation(small_run("FedETF")).message(0)["params"]
    assert {k for k in message if k.startswith("head.")} == {"head.scale", "head.project.weight", "head.project.bias"}
    assert math.isclose(float(message["head.scale"]), 1.0)
