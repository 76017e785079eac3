"""What a step is made of: its arithmetic by hand, the optimiser's share, and stacks that are the same training."""
import dataclasses
import time

import pytest
import torch

from fedlib.probes import bench, steps

TINY = bench.Workload("", {"net": "linear"}, (8,), 3, 3, 10, 5)


def test_the_arithmetic_of_an_adapter():
    """512 to 128 to 512 and a head of 50: 2 FLOP a weight and sample forward; backward again by weights and, but for
    the first layer, by inputs.
    """
    layer, head, work = 512 * 128, 512 * 50, bench.WORKLOADS["adapters"]
    count, step, whole = steps.arithmetic(work)
    assert count == 6 * 247 and step == 2 * work.batch * (layer * 2 + layer * 3 + head * 2) and whole == count * step


def test_another_pass_forward_is_counted():
    work = dataclasses.replace(TINY, net={"net": "mlp3", "width": 4})
    once, twice = (steps.arithmetic(dataclasses.replace(work, passes=n)) for n in (1, 2))
    body = 2 * (8 * 4 + 4 * 2 + 2 * 1)          # its layers are halved
    assert twice[:2] == once[:2] and twice[2] - once[2] == 30 * body


def test_seconds_in_optimisers():
    class Slow(torch.optim.SGD):
        def step(self):
            time.sleep(0.02)
    opt = Slow([torch.nn.Parameter(torch.zeros(1))], 0.1)
    with steps.InOptimisers() as inside:
        time.sleep(0.5)
        opt.step()
    counted = inside.seconds
    assert 0.02 <= counted < 0.5        # on a busy machine too
    opt.step()
    assert inside.seconds == counted    # nothing is counted after it was closed


def test_the_fastest_turn_counts_and_the_first_does_not(monkeypatch):
    clock = iter([0.5, 9.0, 3.0, 8.0, 2.0, 7.0])
    monkeypatch.setattr(bench, "clocked", lambda call, device: next(clock))
    assert steps.fastest(None, None, turns=2) == [(2.0, 0.0), (7.0, 0.0)]


def test_a_bound_has_all_ways_of_a_step():
    found = steps.bound(TINY, 1)
    assert set(found) == set(bench.WAYS) and all(whole > inside > 0 for whole, inside in found.values())
    assert steps.product(64) > 0


@pytest.mark.parametrize("protocol", [{}, bench.ADAM])
def test_stacked_is_the_same_training(protocol):
    found = steps.stacked(dataclasses.replace(TINY, protocol=protocol), turns=1)
    assert found["difference"] < 1e-5 and all(v > 0 for k, v in found.items() if k != "difference")


def test_megabytes():
    weights = 8 * 3 + 3
    assert steps.megabytes(TINY) == pytest.approx(weights * 4 * 2 / 1e6)
    assert steps.megabytes(dataclasses.replace(TINY, protocol=bench.ADAM)) == pytest.approx(weights * 4 * 4 / 1e6)
