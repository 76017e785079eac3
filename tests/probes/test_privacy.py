"""Privacy budgets: the printed formula, the exact one, where they part, and what is measured beside a record."""
import math

import pandas as pd
import pytest
import torch
from conftest import quiet, small_run

from fedlib.core.errors import UserError
from fedlib.core.federation import Split, as_input
from fedlib.datasets.partition import federate
from fedlib.engine import loop
from fedlib.experiments import batch, tables
from fedlib.probes import privacy

DELTAS = (1e-12, 1e-5, 1 / 280, 0.3)
EPSILONS = (0.01, 0.5, 1.0, 8.0, 65.0, 1000.0)


def features(n, dim=7, seed=0, scale=1.0):
    return scale * torch.randn(n, dim, generator=torch.Generator().manual_seed(seed))


# sensitivity

def test_sensitivity_by_hand():
    z = torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0], [-3.0, -4.0]])
    assert privacy.diameter(z) == pytest.approx(10) and privacy.sensitivity(z) == pytest.approx(2.5)
    assert privacy.sensitivity(z[:1]) == 0


def test_it_is_how_far_the_mean_moves_when_a_sample_is_replaced_by_another():
    z = features(9)
    moves = [(z.mean(0) - torch.cat([z[:p], z[q:q + 1], z[p + 1:]]).mean(0)).norm() for p in range(9) for q in range(9)]
    assert privacy.sensitivity(z) == pytest.approx(float(max(moves)), rel=1e-5)


@pytest.mark.parametrize("ends", [(0, 1), (0, 49), (20, 21), (13, 44), (48, 49)])
def test_chunks_see_all_pairs(monkeypatch, ends):
    z = features(50, scale=0.1)
    z[ends[0]], z[ends[1]] = 5.0, -5.0
    monkeypatch.setattr(privacy, "CHUNK", 7)
    assert privacy.diameter(z) == pytest.approx(10 * math.sqrt(7))


def test_a_mean_far_from_zero_costs_no_digits():
    z = features(30, scale=1e-3).double()
    assert privacy.diameter(z + 1e3) == pytest.approx(privacy.diameter(z), rel=1e-6)


def test_the_bound_holds_for_any_replacement_within_the_radius():
    z = torch.nn.functional.normalize(features(40)) * 3
    assert privacy.sensitivity(z) <= privacy.sensitivity_bound(3, 40) == pytest.approx(6 / 40)
    far = torch.cat([-z[:1], z[1:]])
    assert float((z.mean(0) - far.mean(0)).norm()) == pytest.approx(privacy.sensitivity_bound(3, 40))
    assert privacy.sensitivity_bound(3) == 6


# the exact mechanism

@pytest.mark.parametrize("epsilon, delta, sigma", [      # get_sigma_gaussian of dp-accounting 0.6.0
    (1, 1e-5, 3.7306316348159374), (0.5, 1 / 280, 3.824443017847126), (8, 1e-3, 0.4800137524801932)])
def test_sigma_against_dp_accounting(epsilon, delta, sigma):
    assert privacy.sigma(epsilon, delta, 1) == pytest.approx(sigma, rel=1e-9)
    assert privacy.sigma(epsilon, delta, 2.5) == pytest.approx(2.5 * sigma, rel=1e-9)


@pytest.mark.parametrize("sigma, delta, epsilon", [      # get_epsilon_gaussian of dp-accounting 0.6.0
    (1, 1e-5, 4.377178095681137), (0.2, 1 / 280, 25.15438075653008), (0.05, 1 / 280, 252.86455574213804)])
def test_epsilon_against_dp_accounting(sigma, delta, epsilon):
    assert privacy.epsilon(delta, sigma, 1) == pytest.approx(epsilon, rel=1e-9)


@pytest.mark.parametrize("epsilon, sigma, delta", [      # mpmath 1.3.0 with 60 digits
    (0, 1, 0.382924922548026), (1, 1, 0.126936737506644), (65, 0.05, 0.999999999988784),
    (300, 0.05, 2.27277488231947e-7), (2000, 0.02, 2.82028905553357e-51), (20, 0.5, 2.01602880130604e-20)])
def test_delta_in_many_digits(epsilon, sigma, delta):
    assert privacy.delta(epsilon, sigma, 1) == pytest.approx(delta, rel=1e-10)


@pytest.mark.parametrize("delta", DELTAS)
@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_three_invert_each_other(epsilon, delta):
    sigma = privacy.sigma(epsilon, delta, 0.3)
    assert privacy.epsilon(delta, sigma, 0.3) == pytest.approx(epsilon, rel=1e-8)
    assert privacy.delta(epsilon, sigma, 0.3) == pytest.approx(delta, rel=1e-8)


def test_more_noise_less_epsilon_and_less_delta():
    sigmas = [0.01 * 1.5 ** i for i in range(20)]
    for values in ([privacy.epsilon(1e-5, s, 1) for s in sigmas], [privacy.delta(2, s, 1) for s in sigmas],
                   [privacy.sigma(e, 1e-5, 1) for e in EPSILONS], [privacy.sigma(1, d, 1) for d in DELTAS],
                   [privacy.epsilon(d, 0.5, 1) for d in DELTAS], [privacy.delta(e, 0.5, 1) for e in EPSILONS[:-1]]):
        assert all(a > b or a == b == 1 for a, b in zip(values, values[1:])), values


def test_limits():
    assert privacy.delta(1, 1e9, 1) == 0 and privacy.delta(1, 1e-6, 1) == 1
    assert privacy.epsilon(1e-5, 1e9, 1) == 0 == privacy.epsilon(1, 0.1, 1)       # the total variation is below delta
    assert privacy.epsilon(1e-5, 1, 0) == 0 == privacy.delta(1, 1, 0) == privacy.sigma(1, 1e-5, 0)
    assert privacy.epsilon(1e-5, 1e-4, 1) == pytest.approx(1e8 / 2, rel=1e-3)     # m^2 / 2 + O(m) for large m


def test_the_classical_noise_suffices_below_one_and_not_everywhere_above():
    for delta in DELTAS[:3]:
        for epsilon in (0.01, 0.1, 0.5, 0.99):
            assert privacy.sigma_classical(epsilon, delta, 1) > privacy.sigma(epsilon, delta, 1)
    for n, holds, fails in ((10, 5.7, 5.8), (280, 7.1, 7.2), (10_000, 7.9, 8.0)):
        assert privacy.sigma_classical(holds, 1 / n, 1) > privacy.sigma(holds, 1 / n, 1)
        assert privacy.sigma_classical(fails, 1 / n, 1) < privacy.sigma(fails, 1 / n, 1)


def test_printed_epsilons_above_the_range_understate():
    """14.37 is the printed formula's mean over DomainNet's Quickdraw, of 280 images a class, at sigma = 0.01."""
    sigma = privacy.sigma_classical(14.37, 1 / 280, 1)
    assert privacy.epsilon_classical(1 / 280, sigma, 1) == pytest.approx(14.37)
    assert privacy.epsilon(1 / 280, sigma, 1) == pytest.approx(19.338, abs=1e-3)
    assert privacy.delta(14.37, sigma, 1) > 17 / 280


# the budget of a client

def client():
    labels = torch.tensor([0] * 12 + [2] * 30 + [3])
    return features(43, scale=2.0), labels


def lines(z, y, sigma) -> pd.DataFrame:
    """`epsilons` of one client with these features, by class."""
    one = {"id": "0", "domain": "d", "classes": privacy.of_classes(Split(z, y))}
    return privacy.epsilons({"clients": [one]}, sigma).set_index("class")


def test_the_printed_budget_by_hand():
    z, y = client()
    found = lines(z, y, 0.05)
    assert list(found.index) == [0, 2, 3] and found.n.to_dict() == {0: 12, 2: 30, 3: 1}     # delta = 1/n
    wanted = math.sqrt(2 * math.log(1.25 * 30)) * privacy.sensitivity(z[12:42]) / 0.05
    assert found.printed[2] == pytest.approx(wanted, rel=1e-6)
    assert found.printed[3] == 0        # a class of one sample sends it, and has no printed epsilon


def test_the_printed_budget_is_one_number_over_sigma():
    found = {s: lines(*client(), s) for s in (0.01, 0.05, 0.1, 0.5)}
    for s, budget in found.items():
        assert budget.printed.mean() * s == pytest.approx(found[0.01].printed.mean() * 0.01, rel=1e-12)
    assert found[0.01].exact.mean() * 0.01 > 2 * found[0.5].exact.mean() * 0.5      # the true epsilon is not


def test_the_exact_budget_knows_data_and_radius():
    z, y = client()
    found = lines(z, y, 0.1)
    assert found.exact[0] == pytest.approx(privacy.epsilon(1 / 12, 0.1, privacy.sensitivity(z[:12])), rel=1e-5)
    radius = float(z[:12].norm(dim=1).max())
    wanted = privacy.epsilon(1 / 12, 0.1, privacy.sensitivity_bound(radius, 12))
    assert found.bound[0] == pytest.approx(wanted, rel=1e-5)
    assert all(found.bound[c] > found.exact[c] for c in (0, 2)) and found.bound.max() > found.bound.mean()


@pytest.mark.parametrize("call, words", [
    (lambda: privacy.sigma(0, 1e-5, 1), "epsilon is 0; it must be above 0"),
    (lambda: privacy.epsilon(0, 1, 1), "delta is 0; it must be above 0, at most 1"),
    (lambda: privacy.epsilon(1.5, 1, 1), "delta is 1.5"), (lambda: privacy.delta(-1, 1, 1), "epsilon is -1"),
    (lambda: lines(*client(), 0), "sigma is 0"),
    (lambda: privacy.epsilon(0.1, 1, -1), "sensitivity is -1; it must be at least 0"),
    (lambda: privacy.sensitivity(torch.zeros(0, 3)), "at least one row")])
def test_mistakes(call, words):
    with pytest.raises(UserError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


# beside a record

@pytest.fixture
def run():
    return small_run("MPFT", {"server_epochs": 1}, rounds=1)


def test_a_budget_file_says_what_the_features_say(run, tmp_path):
    with pytest.raises(UserError, match="fedlib run"):
        privacy.read(run, tmp_path)
    privacy.collect(run, tmp_path)
    found, clients = privacy.read(run, tmp_path), federate(run.data, run.seed).clients
    assert found["digest"] == run.digest and [c["id"] for c in found["clients"]] == [c.id for c in clients]
    one, split = found["clients"][0]["classes"][3], clients[0].train
    z = as_input(split.x[split.y == one["class"]])
    assert one["n"] == len(z) and one["diameter"] == pytest.approx(privacy.diameter(z), abs=1e-5)
    assert one["radius"] == pytest.approx(float(z.norm(dim=1).max()), abs=1e-5)
    assert sum(c["n"] for c in found["clients"][0]["classes"]) == len(split)


def test_the_budget_of_a_file_is_that_of_the_features(run, tmp_path):
    privacy.collect(run, tmp_path)
    found = privacy.read(run, tmp_path)
    one, other = (privacy.epsilons(found, s) for s in (0.1, 0.5))
    assert (one.printed / other.printed).dropna().round(9).unique().tolist() == [5.0]
    split = federate(run.data, run.seed).clients[0].train
    z = {c: as_input(split.x[split.y == c]) for c in split.y.unique().tolist()}
    printed = [privacy.epsilon_classical(1 / len(x), 0.1, privacy.sensitivity(x)) for x in z.values()]
    assert one[one.client == "0"].printed.mean() == pytest.approx(sum(printed) / len(printed), rel=1e-5)
    exact = max(privacy.epsilon(1 / len(x), 0.1, privacy.sensitivity(x)) for x in z.values())
    assert one[one.client == "0"].exact.max() == pytest.approx(exact, rel=1e-5)
    assert (one.bound >= one.exact).all()       # no two features lie further apart than twice the largest norm


def test_the_table_measures_it_and_is_done_then(run, tmp_path):
    planned = next(iter(tables.load_table("mpft/table7").runs("mini", [1])))
    assert planned.measure == "budget" and not any(p.measure for p in tables.load_table("mpft/table1").runs("mini"))
    small = planned._replace(run=run)
    loop.train(run, tmp_path)
    assert not small.done(tmp_path)
    batch.one(small, tmp_path, say=quiet)
    assert small.done(tmp_path)
