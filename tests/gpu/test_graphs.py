"""Bodies as CUDA graphs: every method gives the same numbers, and what a graph cannot do it is not asked for.

torch records graphs on a real GPU only. Here a recording is played by a stand-in with what is dangerous of one: it has
one place for its result and one for its slopes, writes over both each time, and does no second backward pass.

    PYTHONPATH=tests:tests/gpu:. python tests/gpu/test_graphs.py

trains every method on a real GPU both ways, and says which numbers differ.
"""
import copy
import gc
import multiprocessing
import os
import tempfile
import weakref
from pathlib import Path

import pytest
import torch
from conftest import METHOD_NAMES, result
from test_gpu import tiny
from torch.func import functional_call, vmap

from fedlib.core import machine
from fedlib.engine import graphs
from fedlib.models.nets import Arch, build


class Played(torch.autograd.Function):
    """A replay: the module's pass, its result and slopes in the recording's places."""

    @staticmethod
    def forward(ctx, recording, x, *params):
        with torch.enable_grad():
            recording["z"] = recording["module"](x)
        ctx.recording = recording
        return recording["out"].copy_(recording["z"]).detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, slope):
        recording = ctx.recording
        found = torch.autograd.grad(recording["z"], recording["params"], slope)
        for place, value in zip(recording["slopes"], found, strict=True):
            place.copy_(value)
        return None, None, *(p.detach() for p in recording["slopes"])


@pytest.fixture
def recordings(monkeypatch):
    """Every recording that was made, in their order."""
    made = []

    def record(module, args):
        params = [p for p in module.parameters() if p.requires_grad]
        x = args[0]
        recording = {"module": module, "params": params, "out": module(x).detach().clone(), "replays": 0,
                     "slopes": [torch.zeros_like(p) for p in params]}
        made.append(recording)

        def replay(x):
            recording["replays"] += 1
            return Played.apply(recording, x, *params)
        return replay
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", record)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: None)
    monkeypatch.setattr(machine, "graphs", lambda device: True)
    monkeypatch.setattr(graphs, "SEEN", 2)
    return made


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_method_gives_the_same_numbers(name, tmp_path, recordings, monkeypatch):
    run = tiny(name, epochs=2)
    replayed = result(run, tmp_path / "graphs")
    assert name != "FedAvg" or recordings[0]["replays"] > 1
    monkeypatch.setattr(machine, "graphs", lambda device: False)
    assert replayed == result(run, tmp_path / "plain")


@pytest.fixture
def body(recordings):
    net = build(Arch("cnn4", 2), 3, (3, 28, 28), 0)
    graphs.Replayed(net.body)
    return net.body


def test_a_shape_is_recorded_once_and_replayed_from_then_on(body, recordings):
    x = torch.rand(4, 3, 28, 28)
    for batch in (x, x, x, x[:3], x):
        body(batch).sum().backward()
    assert [r["replays"] for r in recordings] == [3]


def test_two_passes_before_one_way_back_have_a_place_each(body, recordings):
    x, y = torch.rand(2, 4, 3, 28, 28)
    for _ in range(2):
        body(x).sum().backward()
    one, other = body(x), body(y)
    expected = type(body).forward(body, x)
    assert torch.equal(one, expected) and not torch.equal(one, other)
    (one + other).sum().backward()
    body(x).sum().backward()
    assert recordings[0]["replays"] == 3


def test_nothing_is_recorded_while_a_pass_waits(body, recordings):
    """Its slopes would be collected on another stream than those of the recording."""
    x = torch.rand(4, 3, 28, 28)
    for _ in range(3):
        (body(x) + body(x)).sum().backward()
    assert [r["replays"] for r in recordings] == [2]


def test_other_entries_are_not_replayed(body, recordings):
    """Another net's, several nets' at once, a copy's, and those that no longer train."""
    x = torch.rand(4, 3, 28, 28)
    for _ in range(2):
        body(x).sum().backward()
    zero = {k: torch.zeros_like(v) for k, v in body.named_parameters()}
    assert not functional_call(body, zero, (x,)).any()
    several = {k: torch.stack([v, v]) for k, v in zero.items()}
    assert not vmap(lambda p: functional_call(body, p, (x,)))(several).any()
    twin = copy.deepcopy(body)
    with torch.no_grad():
        for p in twin.parameters():
            p.zero_()
    assert not twin(x).any() and twin.forward.body() is twin
    with torch.no_grad():
        assert torch.equal(body(x), type(body).forward(body, x))
    assert body(x.clone().requires_grad_()).requires_grad and recordings[0]["replays"] == 1
    body.requires_grad_(False)
    assert not body(x).requires_grad and len(recordings) == 1


def test_a_copy_ends_with_its_last_user(body):
    """MOON makes two for each client and round; on an H200 its record has 2.9 GB where FedAvg has 0.5."""
    gc.disable()
    try:
        twin = weakref.ref(copy.deepcopy(body))
        assert twin() is None
    finally:
        gc.enable()


def test_statistics_are_not_moved_by_recording(recordings):
    net = build(Arch("resnet10", 4), 3, (3, 32, 32), 0)
    plain, x = copy.deepcopy(net), torch.rand(4, 3, 32, 32)
    graphs.Replayed(net.body)
    for _ in range(3):
        assert torch.equal(net(x), plain(x))
        net(x)
        plain(x)
    assert all(map(torch.equal, net.state_dict().values(), plain.state_dict().values()))


def test_what_cannot_be_recorded_is_computed_as_ever(body, monkeypatch):
    def refuse(module, args):
        raise RuntimeError("operation not permitted when stream is capturing")
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", refuse)
    x = torch.rand(4, 3, 28, 28)
    assert all(torch.equal(body(x), type(body).forward(body, x)) for _ in range(4))


def test_the_switch_is_for_a_gpu_and_the_record_says_so(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    for switch, on in (("1", True), ("0", False)):
        monkeypatch.setenv("FEDLIB_GRAPHS", switch)
        assert machine.graphs("cuda:1") == on and not machine.graphs("cpu")
        assert machine.described("cuda:1").get("graphs", False) == on and "graphs" not in machine.described("cpu")


def test_channels_lie_beside_each_other_where_that_is_faster():
    given = [(p, d) for p in ("float32", "tf32", "bf16") for d in ("cpu", "cuda:0")]
    assert [g for g in given if machine.channels_last(*g)] == [("tf32", "cuda:0"), ("bf16", "cpu"), ("bf16", "cuda:0")]


def both_ways(name: str) -> tuple:
    """(method, were the numbers equal, how many recordings were made): two rounds on a GPU, plain and as graphs."""
    made, record = [], graphs.Replayed.recorded
    graphs.SEEN = 2
    graphs.Replayed.recorded = lambda self, x: made.append(record(self, x)) or made[-1]
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = []
            for switch in "01":
                os.environ["FEDLIB_GRAPHS"] = switch
                found.append(result(tiny(name, epochs=2), Path(folder) / switch, device="cuda"))
        return name, found[0] == found[1], sum(m is not None for m in made)
    except Exception as error:
        return name, f"{type(error).__name__}: {error}", 0
    finally:
        graphs.Replayed.recorded = record


if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        ends = pool.map(both_ways, METHOD_NAMES, chunksize=1)
    print(*(f"{name}: {same or 'other numbers'}" for name, same, _ in ends if same is not True),
          f"{sum(same is True for _, same, _ in ends)} of {len(ends)} methods have equal numbers, "
          f"{sum(made > 0 for *_, made in ends)} of them with graphs", sep="\n")
    raise SystemExit(any(same is False for _, same, _ in ends) or not any(made for *_, made in ends))
