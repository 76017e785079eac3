"""Which round counts, by hand and on the zoo's records."""
import math

import pytest
from scipy import stats

from fedlib import Page
from fedlib.core.errors import UserError
from fedlib.report import selection


def record(*accuracies):
    return {"rounds": [{"round": i + 1, "acc": {"a": acc - 5, "b": acc + 5}} for i, acc in enumerate(accuracies)]}


def test_tremble_is_the_noise_of_a_round_and_not_its_rise():
    assert selection.tremble(record(10, 20, 30, 40)) == 0
    assert selection.tremble(record(*[0] * 20, 50, 54, 50, 54, 50, 54, 50, 54, 50, 54)) == pytest.approx(
        math.sqrt(16 - (4 / 9) ** 2) / math.sqrt(2))       # nine steps of 4 up or down, the last ten rounds only


def test_a_line_for_each_record_with_every_rule_it_allows():
    zoo = Page("zoo/methods", "mini")
    found = selection.rounds(zoo, "domains")
    assert len(found) == 29 * 3 and set(found.block) == {"domains"} and found.notna().all(axis=None)
    assert (found["best-test"] >= found[["last", "last5", "best-val"]].max(axis=1) - 1e-9).all()
    labels = selection.rounds(zoo, "labels")
    assert labels["best-val"].isna().all() and labels["last5"].notna().all()


def test_a_page_by_another_rule_has_the_numbers_of_that_rule():
    zoo = Page("zoo/methods", "mini")
    assert zoo.chosen("last5").averages.equals(zoo.averages)
    gain = zoo.chosen("best-test").averages.ours - zoo.chosen("last").averages.ours
    assert gain.min() >= 0 and gain.max() > 1
    with pytest.raises(UserError, match="validation"):
        zoo.chosen("best-val").averages     # noqa: B018


def test_bonferroni_with_few_seeds_as_the_lesson_says():
    factor = {n: stats.t.ppf(1 - 0.025 / 26, n - 1) / stats.t.ppf(0.975, n - 1) for n in (3, 10)}
    assert round(factor[3], 1) == 5.3 and factor[10] < 2
