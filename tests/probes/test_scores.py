"""Measures of a kept model, against what can be computed by hand."""
import shutil

import numpy as np
import pytest
from conftest import refusal, small_run

from fedlib.datasets import prepare
from fedlib.datasets.registry import DATASETS
from fedlib.probes import kept_models, scores
from fedlib.readers import mini_digits

Y = np.array([0, 0, 0, 1, 1, 1])
P = np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.2, 0.8], [0.4, 0.6], [0.55, 0.45]])


def test_six_samples_by_hand():
    """4 of 6 are right; of 9 pairs the rank of 7 is right; F1 is 2 / 3 in both classes."""
    m = scores.measured(Y, P)
    assert (m["n"], m["confusion"]) == (6, [[2, 1], [1, 2]])
    assert m["accuracy"] == m["balanced"] == m["f1"] == pytest.approx(200 / 3)
    ranks = np.mean([P[j, 1] > P[i, 1] for i in range(3) for j in range(3, 6)])
    assert m["auc"] == pytest.approx(ranks) and m["auc_by_class"] == pytest.approx({0: ranks, 1: ranks})
    # bins of a fifteenth: 0.9; 0.6 and 0.6 and 0.55 lie in [8/15, 9/15] (searchsorted to the left); 0.7; 0.8
    assert m["ece"] == pytest.approx(100 / 6 * (0.1 + abs(2 - 0.6 - 0.6 - 0.55) + 0.7 + 0.2))


def test_a_class_that_is_missing_counts_nowhere():
    """Three classes, of which the site has two; the third is guessed once."""
    p = np.column_stack([P * 0.9, [0.1] * 6])
    p[0] = [0.1, 0.1, 0.8]
    m = scores.measured(Y, p)
    assert m["balanced"] == pytest.approx(100 * (1 / 3 + 2 / 3) / 2) and sorted(m["auc_by_class"]) == [0, 1]
    assert m["confusion"] == [[1, 1, 1], [1, 2, 0], [0, 0, 0]]
    one = scores.measured(Y[:3], P[:3])
    assert one["auc"] is None and one["balanced"] == pytest.approx(200 / 3)


def test_calibration_of_those_who_are_as_sure_as_they_are_right():
    right = np.array([1, 1, 1, 0] * 5, dtype=bool)
    assert scores.calibration_error(right, np.full(20, 0.75)) == pytest.approx(0)
    assert scores.calibration_error(right, np.full(20, 1.0000001)) == pytest.approx(0.25)
    assert scores.calibration_error(~right & False, np.full(20, 0.4)) == pytest.approx(0.4)


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A folder of prepared sets with tiny_digits, into which a test may prepare others."""
    there = prepare.load_set("tiny_digits") and prepare.paths("tiny_digits", 28)
    for path in there:
        shutil.copy(path, tmp_path)
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    monkeypatch.setitem(DATASETS, "turned_digits", Turned)


class Turned:
    """Two domains of tiny_digits under other names, its classes in another order."""
    NAME, TITLE, DOMAINS, SIZES, BUILT_IN, ABOUT = "turned_digits", "T", ("scans", "far"), (28, 32), True, {}
    CLASSES = tuple(c.upper() for c in mini_digits.CLASSES[::-1])

    @staticmethod
    def read(root, size, say):
        tensors = prepare.load_set("tiny_digits").tensors
        found = {d: [tensors[f"{of}/{k}"].numpy() for k in ("x", "y", "part")]
                 for d, of in zip(Turned.DOMAINS, ("scans", "street"))}
        return {d: (x, 9 - y, part) for d, (x, y, part) in found.items()}, {}


def test_on_another_set_labels_are_matched_by_their_names(elsewhere, tmp_path):
    shared = kept_models.load(kept_models.keep(small_run(rounds=4), tmp_path / "r"))
    here, there = (scores.evaluate(shared, name) for name in ("tiny_digits", "turned_digits"))
    assert there["sites"]["scans"] == here["sites"]["scans"] and there["sites"]["far"] == here["sites"]["street"]
    assert there["all"]["n"] == sum(m["n"] for m in there["sites"].values()) and here["all"]["n"] == 120
    every = scores.evaluate(shared, "turned_digits", every=True)
    assert every["part"] == "all" and every["all"]["n"] == 200

    own = kept_models.load(kept_models.keep(small_run("FedPer", data={"clients": (1, 1, 1, 1)}), tmp_path / "r"))
    refusal(lambda: scores.evaluate(own, "turned_digits"), "unknown client 'far'", "scans")
    assert len(scores.evaluate(own, "turned_digits", "street")["sites"]) == 2


def test_sets_that_do_not_fit(elsewhere, tmp_path, monkeypatch):
    kept = kept_models.load(kept_models.keep(small_run(net="linear"), tmp_path / "r"))
    refusal(lambda: scores.evaluate(kept, "mini_reviews"), "has no size 28")
    monkeypatch.setattr(Turned, "CLASSES", ("cat", *Turned.CLASSES[1:]))
    refusal(lambda: scores.evaluate(kept, "turned_digits"), "unknown class of the model 'cat'")
    about = kept.about | {"data": kept.about["data"] | {"digest": "0" * 64}}
    refusal(lambda: scores.evaluate(kept._replace(about=about), "tiny_digits"), "was prepared again since")


def test_in_words_a_site_is_a_line_and_a_square():
    found = {"data": "d", "part": "test", "classes": ["a", "b"],
             "sites": {"north": scores.measured(Y, P), "south": scores.measured(Y[:3], P[:3])},
             "all": scores.measured(Y, P)}
    lines = scores.in_words(found).splitlines()
    assert lines[1].split() == ["north", "6", "66.7", "66.7", "0.778", "66.7", f"{found['all']['ece']:.1f}"]
    assert lines[2].split()[:5] == ["south", "3", "66.7", "66.7", "-"] and lines[3].startswith("all sites")
    assert [line.split() for line in lines[5:8]] == [["north", "as", "a", "as", "b"], ["a", "2", "1"], ["b", "1", "2"]]
