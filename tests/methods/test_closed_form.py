"""Heads in closed form: what clients send, what the server makes of it, and that the split does not matter."""
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import refusal, small_run

from fedlib.core.federation import Client, Split
from fedlib.core.seeds import generator
from fedlib.engine.loop import Simulation
from fedlib.methods import make
from fedlib.methods.base import Protocol
from fedlib.methods.closed_form import mixture
from fedlib.models.nets import Arch, build

NAMES = ["a", "b", "c"]


@pytest.fixture(scope="module")
def cloud():
    """300 features of three classes whose centres are 3 apart."""
    gen = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 3
    return 3 * torch.eye(3, 6)[y] + torch.randn(300, 6, generator=gen), y


def solved(name, cloud, clients=1, values=None, order=None):
    """The server's net after one round in which so many clients hold the samples, in consecutive parts."""
    method, (x, y) = make(name, values), cloud
    net = build(Arch("identity"), len(NAMES), (x.shape[1],), 0)
    method.seed, method.classes = 0, NAMES
    method.setup(net)
    parts = (torch.arange(len(y)) if order is None else order).chunk(clients)
    held = [Client(str(k), "", Split(x[i], y[i]), Split(x[i], y[i]), classes=NAMES) for k, i in enumerate(parts)]
    for client in held:
        client.net = net
    method.aggregate({c.id: method.upload(c) for c in held})
    return method.global_


def design(x):
    return F.pad(x.double(), (0, 1), value=1.0)


@pytest.mark.parametrize("clients", [1, 4, 100])
@pytest.mark.parametrize(("name", "values", "lam"), [("Fed3R", {"lam": 0.5, "unit": False}, 0.5), ("AFL", {}, 0.0),
                                                     ("AFL", {"lam": 2.0, "gamma": 7.0}, 2.0)])
def test_of_any_number_of_clients_it_is_the_pooled_ridge_regression(cloud, clients, name, values, lam):
    x, y = cloud
    z, targets = design(x), F.one_hot(y, 3).double()
    penalty = lam ** 0.5 * torch.eye(7, dtype=torch.double)     # ridge regression as least squares on more rows
    wanted = torch.linalg.lstsq(torch.cat([z, penalty]), torch.cat([targets, torch.zeros(7, 3).double()])).solution
    for order in (None, y.argsort()):       # mixed clients, and clients of one class
        got = solved(name, cloud, clients, values, order)
        assert torch.allclose(got["head.weight"].double(), wanted[:-1].T, atol=1e-6)
        assert torch.allclose(got["head.bias"].double(), wanted[-1], atol=1e-6)


def test_fed3r_by_hand():
    """Features 1 and -1 of two classes: A = [[2, 0], [0, 2]], B = [[1, -1], [1, 1]]; with lam = 2 W = B / 4."""
    points = torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1])
    got = solved("Fed3R", points, 2, {"lam": 2.0, "unit": False})
    assert got["head.weight"].tolist() == [[0.25], [-0.25], [0.0]] and got["head.bias"].tolist() == [0.25, 0.25, 0.0]
    unit = solved("Fed3R", points, 2, {"lam": 2.0})
    assert unit["head.weight"].tolist() == [[1.0], [-1.0], [0.0]] and unit["head.bias"].tolist() == [1.0, 1.0, 0.0]


def test_fewer_samples_than_features_and_no_penalty_still_fit_what_is_there():
    x, y = torch.eye(3, 8), torch.arange(3)
    got = solved("AFL", (x, y), 3)
    assert torch.allclose(x @ got["head.weight"].T + got["head.bias"], torch.eye(3), atol=1e-6)


def test_fedcgs_is_naive_bayes_with_the_covariance_of_all_features(cloud):
    x, y = cloud
    keep = (y != 2) | (torch.arange(300) < 150)         # classes of different frequency
    x, y = x[keep], y[keep]
    got, S = solved("FedCGS", (x, y), 4), np.cov(x.double().numpy(), rowvar=False)
    for c in range(3):
        mean = x[y == c].double().mean(0).numpy()
        w, share = np.linalg.solve(S, mean), float((y == c).double().mean())
        assert np.allclose(got["head.weight"][c], w, atol=1e-5)
        assert float(got["head.bias"][c]) == pytest.approx(np.log(share) - mean @ w / 2, abs=1e-4)


def test_a_class_that_nobody_holds_is_finite(cloud):
    x, y = cloud
    for name in ("Fed3R", "AFL", "FedCGS", "FedPFT"):
        got = solved(name, (x[y != 2], y[y != 2]), 2)
        assert all(v.isfinite().all() for v in got.values())
        says = (x[y != 2] @ got["head.weight"].T + got["head.bias"])[:, :2].argmax(1)
        assert (says == y[y != 2]).double().mean() > 0.9, name


def test_a_mixture_of_one_is_mean_and_variance_and_counts_are_kept(cloud):
    x = cloud[0].double()
    means, variances, n = mixture(x, 1, 0)
    assert torch.allclose(means[0].double(), x.mean(0), atol=1e-6) and n.tolist() == [300]
    assert torch.allclose(variances[0].double(), x.var(0, correction=0), atol=1e-4)
    means, variances, n = mixture(x, 3, 0)
    assert len(n) == 3 and float(n.sum()) == pytest.approx(300) and (n > 80).all() and (variances > 0.5).all()
    assert mixture(x[:10], 10, 0)[2].tolist() == [10]       # of few samples no Gaussian is a sample


def test_fedpft_learns_from_what_was_drawn_and_sends_no_sample(cloud):
    x, y = cloud
    got = solved("FedPFT", cloud, 4, {"K": 2})
    assert ((x @ got["head.weight"].T + got["head.bias"]).argmax(1) == y).double().mean() > 0.9
    method, client = make("FedPFT", {"K": 2}), Client("0", "", Split(x, y), Split(x, y), classes=NAMES)
    client.net = build(Arch("identity"), 3, (6,), 0)
    sent = method.upload(client)
    shapes = {"means": (6, 6), "variances": (6, 6), "share": (6,), "of": (6,), "n": ()}
    assert {k: tuple(v.shape) for k, v in sent.items()} == shapes
    method.setup(client.net)
    method.seed, method.classes, before = 0, NAMES, method.global_
    method.aggregate({"0": sent | {"share": 1e9 * sent["share"], "variances": -sent["variances"]}})
    assert all(v.isfinite().all() and v.shape == before[k].shape for k, v in method.global_.items())    # a liar's


def test_fedpft_draws_with_the_deviations_that_were_sent():
    """One step of SGD from a head of zeros, of three samples of class 0 with variances (4, 9)."""
    method = make("FedPFT", {"server_epochs": 1, "server_lr": 0.1}, Protocol())
    method.seed, method.classes, method.global_ = 0, NAMES, {"head.weight": torch.zeros(3, 2),
                                                             "head.bias": torch.zeros(3)}
    method.aggregate({"0": {"means": torch.tensor([[1.0, 2.0]]), "variances": torch.tensor([[4.0, 9.0]]),
                            "share": torch.ones(1), "of": torch.zeros(1, dtype=torch.int64), "n": torch.tensor(3)}})
    x = torch.tensor([1.0, 2.0]) + torch.randn((3, 2), generator=generator(0, "drawn")) * torch.tensor([2.0, 3.0])
    error = torch.full((3,), 1 / 3) - torch.eye(3)[0]
    assert torch.allclose(method.global_["head.weight"], -0.1 * error[:, None] * x.mean(0), atol=1e-6)


def test_the_body_stays_and_only_the_head_is_solved():
    simulation = Simulation(small_run("Fed3R", net="cnn4"))
    before = {k: v.clone() for k, v in simulation.server.global_.items()}
    simulation.play(1)
    after = simulation.server.global_
    assert {k for k in after if not torch.equal(before[k], after[k])} == {"head.weight", "head.bias"}


def test_another_head_is_refused():
    refusal(lambda: make("AFL").setup(build(Arch("cnn4", 2, head="hidden"), 3, (3, 28, 28), 0)), "AFL", "head = linear")
