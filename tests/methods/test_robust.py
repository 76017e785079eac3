"""Means that one liar cannot steer: by hand, and that what a liar says changes little."""
import pytest
import torch

from fedlib.methods import make
from fedlib.models.nets import Arch, build

HONEST = [1.0, 2.0, 3.0, 4.0]


def averaged(name, values, said):
    """The server's bias after a round in which each client says one number for every entry; it starts at 0."""
    method, net = make(name, values), build(Arch("linear"), 2, (3,), 0)
    method.setup(net)
    method.global_ = {k: torch.zeros_like(v) for k, v in method.global_.items()}
    same = method.global_.items()
    uploads = {str(i): {"params": {k: torch.full_like(v, s) for k, v in same}, "n": torch.tensor(1 + i)}
               for i, s in enumerate(said)}
    before = {i: {k: v.clone() for k, v in u["params"].items()} for i, u in uploads.items()}
    method.aggregate(uploads)
    assert all(torch.equal(u["params"][k], before[i][k]) for i, u in uploads.items() for k in u["params"])
    got = {float(v) for entry in method.global_.values() for v in entry.flatten()}
    assert len(got) == 1
    return got.pop()


@pytest.mark.parametrize(("trim", "said", "mean"), [
    (0.25, [1.0, 2.0, 3.0, 100.0], 2.5), (0.5, [1.0, 2.0, 3.0, 100.0], 2.5), (0.5, [5.0, 1.0, 100.0], 5.0),
    (0.2, [-100.0, 1.0, 2.0, 3.0, 100.0], 2.0), (0.2, [7.0], 7.0), (0.2, [1.0, 3.0], 2 / 3 * 3 + 1 / 3)])
def test_a_trimmed_mean_by_hand(trim, said, mean):
    assert averaged("TrimmedMean", {"trim": trim}, said) == pytest.approx(mean)


def test_krum_takes_the_one_amid_the_others():
    """Of 1, 2, 2.5, 100 with f = 1 each counts its nearest: 2 and 2.5 are nearest to each other, the first wins."""
    assert averaged("Krum", {"f": 1}, [1.0, 2.0, 2.5, 100.0]) == 2.0
    two = averaged("Krum", {"f": 1, "m": 2}, [1.0, 2.0, 2.5, 100.0])
    assert two == pytest.approx((2 * 2.0 + 3 * 2.5) / 5)       # weighted by samples
    assert averaged("Krum", {}, [3.0]) == 3.0


def test_a_long_step_is_as_long_as_the_median():
    """Steps of 1, 2, 3, 100: torch's median is the lower one, 2, so 3 and 100 count as 2."""
    assert averaged("NormClipping", {}, [1.0, 2.0, 3.0, 100.0]) == pytest.approx((1 + 2 * 2 + 3 * 2 + 4 * 2) / 10)
    assert averaged("NormClipping", {"c": 1e9}, HONEST) == pytest.approx(3.0)


@pytest.mark.parametrize(("name", "values"), [("TrimmedMean", {}), ("TrimmedMean", {"trim": 0.5}), ("Krum", {}),
                                              ("Krum", {"m": 3}), ("NormClipping", {})])
@pytest.mark.parametrize("lie", [1e6, -1e6, 3e38])
def test_what_one_says_moves_little(name, values, lie):
    """Without a bound the mean of five would be a fifth of the lie."""
    assert abs(averaged(name, values, [*HONEST, lie])) <= max(HONEST)
    assert abs(averaged("FedAvg", {}, [*HONEST, lie])) > 1e5


@pytest.mark.parametrize(("name", "values"), [("TrimmedMean", {}), ("TrimmedMean", {"trim": 0.5}), ("Krum", {}),
                                              ("Krum", {"m": 3}), ("NormClipping", {})])
@pytest.mark.parametrize("part", ["statistics", "weights"])
def test_a_lie_in_one_kind_of_numbers_hides_in_no_other(name, values, part):
    """Statistics a thousand times a weight, honest clients a hundredth apart; one client lies in one kind."""
    method, net = make(name, values), build(Arch("resnet10", width=2), 2, (3, 32, 32), 0)
    method.setup(net)
    statistics = set(method.global_) - set(method.trained)
    assert statistics
    liars = statistics if part == "statistics" else set(method.trained)
    size = {k: 1000.0 if k in statistics else 1.0 for k in method.global_}
    method.global_ = {k: torch.full_like(v, size[k]) for k, v in method.global_.items()}

    def sent(step, lies=False):
        by = {k: size[k] * (-5.0 if lies and k in liars else 1 + step) for k in size}
        return {"params": {k: torch.full_like(v, by[k]) for k, v in method.global_.items()}, "n": torch.tensor(1)}
    method.aggregate({str(i): sent(0.01 * i) for i in range(1, 5)} | {"liar": sent(0.025, lies=True)})
    for k, v in method.global_.items():
        assert (v / size[k] - 1).abs().max() < 0.06, k
