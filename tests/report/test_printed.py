"""A paper's arithmetic by hand: means of rounded numbers, accuracies on so many images."""
import pandas as pd
import pytest

from fedlib.report import printed


@pytest.fixture
def numbers():
    index = pd.MultiIndex.from_tuples([("a", "one"), ("a", "two"), ("b", "one")], names=["dataset", "method"])
    return pd.DataFrame({"x": [50.0, 50.0, None], "y": [75.0, 66.67, None], "z": [None, None, 33.34],
                         "avg": [62.50, 58.40, 33.34]}, index)


def test_a_mean_that_is_none_is_found(numbers):
    assert printed.means(numbers)["mean"].round(3).tolist() == [62.5, 58.335, 33.34]
    assert printed.wrong_means(numbers).index.tolist() == [("a", "two")]
    assert printed.wrong_means(numbers, 0.1).empty


def test_an_accuracy_on_n_images_is_a_whole_number_of_them(numbers):
    found = printed.counts(numbers, {"a": {"x": 4, "y": 4}, "b": {"z": 3}}).set_index(["dataset", "domain", "method"])
    assert found.nearest[("a", "y", "two")] == 75 and found.apart[("a", "y", "two")] == pytest.approx(8.33)
    assert found.apart.drop([("a", "y", "two"), ("b", "z", "one")]).eq(0).all()
    assert printed.ROUNDED < found.apart[("b", "z", "one")] < printed.CUT       # 33.33 is 1 of 3, 33.34 is not


def test_the_number_of_images_follows_from_the_decimals():
    assert printed.fitting([33.33, 66.67], range(1, 13)) == [3, 6, 9, 12]
    assert printed.fitting([33.33, 50.0], range(1, 13)) == [6, 12]
