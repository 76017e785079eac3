"""Ranks and critical differences against the example and the table that Demšar (JMLR 2006) prints."""
import pandas as pd
import pytest

from fedlib.core.errors import UserError
from fedlib.experiments import statistics

# His table 6: ranks of C4.5, +m, +cf and +m+cf on 14 data sets, as printed.
PRINTED = pd.DataFrame([
    [4, 3, 2, 1], [1, 2, 3, 4], [4, 1, 2, 3], [4, 1, 3, 2], [4, 2, 3, 1], [1, 2.5, 4, 2.5], [3, 2, 4, 1],
    [2.5, 2.5, 4, 1], [4, 3, 2, 1], [2.5, 2.5, 2.5, 2.5], [4, 2.5, 1, 2.5], [3, 2, 4, 1], [4, 1, 2, 3], [3, 1, 4, 2]],
    columns=["C4.5", "C4.5+m", "C4.5+cf", "C4.5+m+cf"])


def test_ranks_and_their_means_are_the_printed_ones():
    ranked = statistics.ranks(-PRINTED)
    assert (ranked == PRINTED).all().all()
    assert ranked.mean().round(3).tolist() == [3.143, 2.0, 2.893, 1.964]


def test_a_missing_score_is_the_last():
    ranked = statistics.ranks(pd.DataFrame({"a": [50.0], "b": [float("nan")], "c": [60.0]}))
    assert ranked.iloc[0].to_dict() == {"a": 2, "b": 3, "c": 1}


@pytest.mark.parametrize("alpha, printed", [
    (0.05, [1.960, 2.343, 2.569, 2.728, 2.850, 2.949, 3.031, 3.102, 3.164]),
    (0.10, [1.645, 2.052, 2.291, 2.459, 2.589, 2.693, 2.780, 2.855, 2.920])])
def test_the_critical_values_are_those_of_his_table_5(alpha, printed):
    for k, q in zip(range(2, 11), printed, strict=True):
        assert statistics.critical_difference(k, 1, alpha) / (k * (k + 1) / 6) ** 0.5 == pytest.approx(q, abs=1.1e-3)


def test_the_critical_difference_of_his_example():
    assert statistics.critical_difference(4, 14) == pytest.approx(1.25, abs=0.005)
    assert statistics.critical_difference(4, 14, 0.10) == pytest.approx(1.12, abs=0.005)


def test_friedman_is_his_statistic_over_the_correction_for_equal_ranks():
    statistic, p = statistics.friedman(PRINTED)
    equal = 3 * (2 ** 3 - 2) + (4 ** 3 - 4)             # three pairs and one set of four
    assert statistic * (1 - equal / (14 * 4 * (4 ** 2 - 1))) == pytest.approx(9.28, abs=0.01)
    assert 0.01 < p < 0.03


def test_too_few_are_refused_in_one_line():
    for wrong in (lambda: statistics.critical_difference(1, 5), lambda: statistics.critical_difference(3, 0),
                  lambda: statistics.friedman(PRINTED.iloc[:1])):
        with pytest.raises(UserError, match="not"):
            wrong()
