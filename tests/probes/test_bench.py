"""What the benchmark compares: the same work in three ways; how it keeps and reads measurements."""
import dataclasses
import json

import pytest
import torch

from fedlib.core import machine
from fedlib.core.errors import UserError
from fedlib.core.federation import as_input
from fedlib.probes import bench

TINY = dataclasses.replace(bench.SMALL, clients=3, samples=10, batch=4, net={"net": "cnn4", "width": 2})


def steps(one, way) -> tuple[int, int]:
    """(samples that went forward, backward) through the body in one call; ours runs copies of the net."""
    count = {"forward": 0, "backward": 0}

    def forward(module, x, z):
        count["forward"] += len(z)
        if z.requires_grad:
            z.register_hook(lambda slope: count.update(backward=count["backward"] + len(slope)))
    nets = [one.net, *(w.client.net for w in one.workers)]
    hooks = [net.body.register_forward_hook(forward) for net in nets]
    way()
    for hook in hooks:
        hook.remove()
    return count["forward"], count["backward"]


@pytest.mark.parametrize("method,passes", [("FedAvg", 1), ("FPL", 2)])
def test_all_three_do_the_same_passes(method, passes):
    one = bench.Round(dataclasses.replace(TINY, method=method, passes=passes), together=1)
    one.ours()          # FPL's first round has no prototypes to compare with, but it makes some
    ours, plain = steps(one, one.ours), steps(one, one.plain)
    assert ours == plain == (passes * 30, 30)
    full = 3 * 3 * 4    # the floor has whole batches only
    assert steps(one, one.floor) == (full + (passes - 1) * 30, full)


@pytest.mark.parametrize("together", [1, 3])
def test_ours_is_a_round_of_fedavg(together):
    one = bench.Round(TINY, together=together)
    before = {k: v.clone() for k, v in one.server.global_.items()}
    uploads = one.ours()
    for k, v in one.server.global_.items():
        assert torch.allclose(v, sum(u["params"][k] for u in uploads.values()) / 3, atol=1e-6)
        assert not torch.equal(v, before[k])
    split = one.workers[0].client.train
    assert len(split) == 10 and as_input(split.x).shape == (10, 3, 28, 28) and one.together == together


def test_every_workload_is_one_that_fedlib_can_run():
    for name, work in bench.WORKLOADS.items():
        small = dataclasses.replace(work, clients=2, samples=3, batch=3)
        if work.method == "PromptFL":
            continue        # its tower is as large as CLIP's; tests/methods/test_prompts.py has a small one
        assert bench.Round(small, together=1).ours(), name


def test_a_measurement_has_ratios_of_pairs(monkeypatch):
    monkeypatch.setitem(bench.WORKLOADS, "tiny", TINY)
    clock = iter([2.0, 1.0, 6.0, 4.0, 2.0, 8.0, 3.0, 2.0, 3.0])
    monkeypatch.setattr(bench, "clocked", lambda call, device: next(clock))
    found = bench.measure("tiny", together=1)
    assert found["seconds"] == {"ours": 3.0, "floor": 2.0, "plain": 6.0}
    assert found["overhead"] == 1.0 and found["gain"] == 2.0 and len(found["pairs"]) == 3
    assert found["upload_bytes"] == sum(4 * p.numel() for p in bench.Round(TINY).net.parameters())


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_slope(power):
    assert bench.slope([[n, 3 * n ** power] for n in (2, 4, 8)]) == pytest.approx(power, abs=1e-6)


MEASURED = {"seconds": {"ours": 1.0, "floor": 0.9, "plain": 2.0}, "overhead": 0.11, "gain": 2.0, "stack": 1}


def test_measurements_are_kept_and_read(monkeypatch, tmp_path):
    """Each in its own process; one that fails is named and left out; another code starts afresh."""
    class Done:
        returncode, stderr = 0, ""

        def __init__(self, name):
            self.stdout = "a warning\n" + json.dumps({"title": name} | MEASURED)
            if name == "resnet18":
                self.returncode, self.stderr = 1, "fedlib.core.errors.UserError: no memory\n"
    said, calls = [], []
    monkeypatch.setattr(bench.subprocess, "run", lambda c, **_: calls.append(c) or Done(c[-2]))
    monkeypatch.setattr(machine, "commit", lambda: "one")
    here = bench.everything(tmp_path, say=said.append)
    assert here.parent == tmp_path / "bench" and here.suffix == ".bench" and len(calls) == len(bench.WORKLOADS) + 1
    found, = bench.read(tmp_path).values()
    assert set(found["workloads"]) == set(bench.WORKLOADS) - {"resnet18"} and found["growth"]["title"] == "growth"
    assert any("resnet18: not measured" in line and "no memory" in line for line in said)
    bench.everything(tmp_path, only="cnn4_20")
    assert len(next(iter(bench.read(tmp_path).values()))["workloads"]) == len(bench.WORKLOADS) - 1
    monkeypatch.setattr(machine, "commit", lambda: "two")
    monkeypatch.setattr(bench, "WORKLOADS", {"cnn4_20": bench.CNN})
    bench.everything(tmp_path)
    assert list(next(iter(bench.read(tmp_path).values()))["workloads"]) == ["cnn4_20"]


def test_names_of_workloads(fedlib):
    with pytest.raises(UserError, match="adapters"):
        bench.measure("adapter")
    code, _, err = fedlib("bench", "--only", "adapter")
    assert code == 2 and "adapters" in err


def test_lines_of_text():
    found = {"title": "x"} | MEASURED
    head, line = bench.lines({"x": found})
    assert "+11%" in line and "2.00" in line and len(head) == len(line)
