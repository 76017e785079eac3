"""Intervals, tests and power against scipy and statsmodels; methods over data sets by hand."""
import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedlib.experiments import statistics

# paired differences

SAMPLES = [[1.0, 2.0, 4.0], [-0.5, 0.1, 0.3, 0.2, -0.1], [10.0, 10.1], [3.0, 3.0, 3.1]]


@pytest.mark.parametrize("sample", SAMPLES)
def test_intervals_and_p_values_are_scipys(sample):
    mean, half = statistics.interval(sample)
    low, high = stats.t.interval(0.95, len(sample) - 1, np.mean(sample), stats.sem(sample))
    assert (mean - half, mean + half) == (pytest.approx(low), pytest.approx(high))
    assert statistics.p_value(sample) == pytest.approx(stats.ttest_1samp(sample, 0).pvalue)
    low, high = stats.t.interval(0.99, len(sample) - 1, np.mean(sample), stats.sem(sample))
    assert statistics.interval(sample, 0.99)[1] == pytest.approx((high - low) / 2)


def test_p_values_of_samples_without_noise():
    assert statistics.p_value([0.0, 0.0]) == 1 and statistics.p_value([2.0, 2.0, 2.0]) == 1
    assert statistics.p_value([-2.0, -2.0]) == 1
    assert np.isnan(statistics.p_value([1.0])) and np.isnan(statistics.p_value([]))
    mean, half = statistics.interval([3.0])
    assert mean == 3 and np.isnan([half, *statistics.interval([])]).all()


def test_the_interval_of_two_means_is_scipys():
    first, second = [1.0, 2.0, 4.5, 3.0], [2.0, 9.0, 4.0, 0.5]
    low, high = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    assert statistics.welch(*(np.std(s, ddof=1) for s in (first, second)), 4) == pytest.approx((high - low) / 2)


def test_holm_is_statsmodels():
    """statsmodels.stats.multitest.multipletests(ps, method="holm"), version 0.15, of the same numbers."""
    ps = [0.01, 0.04, 0.03, 0.005]
    assert statistics.holm(ps) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert statistics.holm([0.6, 0.9]) == [1.0, 1.0] and statistics.holm([]) == []
    assert statistics.holm([0.02, float("nan"), 0.04])[::2] == pytest.approx([0.04, 0.04])


@pytest.mark.parametrize("effect, sd, n, printed", [
    (2.0, 1.0, 5, 0.9089), (1.0, 1.0, 10, 0.8031), (0.5, 1.0, 20, 0.5645)])
def test_power_is_that_of_the_t_test(effect, sd, n, printed):
    """statsmodels.stats.power.TTestPower().power(effect / sd, n, 0.05), version 0.15."""
    assert statistics.power(effect, sd, n) == statistics.power(-effect, sd, n) == pytest.approx(printed, abs=1e-4)


def test_power_of_one_difference_and_without_noise():
    assert statistics.power(5.0, 1.0, 1) == 0 == statistics.power(0.0, 0.0, 3)
    assert statistics.power(0.1, 0.0, 2) == 1 and 0 < statistics.power(5.0, 1.0, 2) < 1


def test_power_by_simulation():
    draws = np.random.default_rng(1).normal(1.5, 1.0, size=(20_000, 4))
    found = np.mean(stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05)
    assert statistics.power(1.5, 1.0, 4) == pytest.approx(found, abs=0.015)


@pytest.mark.parametrize("n", [2, 3, 4, 10, 100])
def test_power_rises_with_the_effect_wherever_scipy_has_no_lower_tail(n):
    """Of scipy's noncentral t, the lower tail is nan at a shift of 15 with 3 degrees of freedom, and elsewhere."""
    for level in (0.95, 1 - 0.05 / 24):
        found = [statistics.power(shift / n ** 0.5, 1.0, n, level) for shift in (0, 1, 3, 8, 10, 15, 20, 30, 37, 40)]
        assert found[0] == pytest.approx(1 - level) and all(np.diff(found) >= -1e-9)


def test_power_and_the_least_difference_at_another_level():
    draws = np.random.default_rng(2).normal(4.0, 1.0, size=(20_000, 4))
    found = np.mean(stats.ttest_1samp(draws, 0, axis=1).pvalue < 0.05 / 24)
    assert statistics.power(4.0, 1.0, 4, 1 - 0.05 / 24) == pytest.approx(found, abs=0.015)
    least = statistics.least_difference(2.0, 4, 1 - 0.05 / 24)
    assert statistics.power(least, 2.0, 4, 1 - 0.05 / 24) == pytest.approx(0.8, abs=1e-3)
    assert least > statistics.least_difference(2.0, 4) == statistics.least_difference(2.0, 4, 0.95)


def test_seeds_needed_are_the_fewest():
    for effect in np.linspace(0.2, 3, 15):
        n = statistics.seeds_needed(effect, 1.0)
        assert statistics.power(effect, 1.0, n) >= 0.8 > statistics.power(effect, 1.0, n - 1)
        assert type(n) is int and statistics.least_difference(1.0, n) <= effect
    assert statistics.seeds_needed(0.0, 1.0) == 0 == statistics.seeds_needed(0.01, 1.0)
    assert statistics.seeds_needed(0.1146, 1.0) == 600 and statistics.seeds_needed(0.0887, 1.0) == 1000
    assert statistics.seeds_needed(1.0, 0.0) == 2 and statistics.seeds_needed(float("nan"), 1.0) == 0
    assert statistics.power(statistics.least_difference(2.0, 3), 2.0, 3) == pytest.approx(0.8, abs=1e-3)
    assert np.isnan([statistics.least_difference(1.0, 1), statistics.least_difference(float("nan"), 5)]).all()
    assert statistics.power(statistics.least_difference(1.0, 2), 1.0, 2) == pytest.approx(0.8, abs=1e-3)


# methods over datasets

def test_methods_against_a_control_over_datasets():
    scores = pd.DataFrame({"FedAvg": [50, 60, 70, 80], "a": [52, 62, 72.5, 82.5], "b": [49, 61, 70, np.nan]})
    found = statistics.against(scores, "FedAvg")
    assert found.loc["a", "mean"] == 2.25 and list(found.n) == [4, 3]
    assert found.loc["a", "p"] == pytest.approx(stats.ttest_rel(scores.a, scores.FedAvg).pvalue)
    assert list(found.holm) == pytest.approx(statistics.holm(list(found.p)))


def test_second_looks():
    scores = pd.DataFrame({"a": [0, 40, 60, 100.0], "b": [10, 20, 30, np.nan]})
    assert statistics.interquartile_mean(scores)["a"] == 50 and statistics.interquartile_mean(scores)["b"] == 20
    found = statistics.profiles(scores, [15, 30, 50])         # above 30: no score of b, one of which is 30
    assert list(found.a) == [0.75, 0.75, 0.5] and list(found.b) == pytest.approx([2 / 3, 0, 0])
