"""Stacked clients: equal to one after the other for every method that allows it, nets, optimisers, unequal clients."""
import copy
import json
import threading
from types import SimpleNamespace

import pytest
import torch
from conftest import METHOD_NAMES, close, interrupted, numbers, result, small_run

from fedlib.engine import loop, records, stack
from fedlib.methods import METHODS, make
from fedlib.methods.base import FedAvg, Protocol

FITTING = [n for n in METHOD_NAMES if stack.fits(make(n, {}, Protocol()))]


def gentle_run(*args, **how):
    """A small run whose rounding stays small: large steps blow it up until an image is judged otherwise."""
    return small_run(*args, **{"lr": 2e-4} | how)


def both(run, tmp_path, k=5):
    alone = result(run, tmp_path / "alone")
    together = result(run, tmp_path / "together", stack=k)
    assert together[-1].get("stack") == k and "stack" not in alone[-1]
    for a, b in zip(alone, together, strict=True):
        close(a, b)
    return alone


def test_which_methods_can_be_stacked():
    own = {n for n in METHOD_NAMES if any(k in vars(c) for c in METHODS[n].__mro__ if c not in FedAvg.__mro__
                                          for k in ("fit", "step"))}
    assert own == {"DBE", "pFedMe", "PerFedAvg", "APFL", "FedSAM"}
    assert set(FITTING) == set(METHOD_NAMES) - own - {"ZeroShot", "PromptFL", "KgCoOp", "FedPGP", "FedAPT", "FedTPG",
                                                      "FedDEAP", "FedSR", "LoRA", "FFALoRA", "LoRAFAIR", "FedCP",
                                                      "FedDG", "StableFDG"}
    assert not stack.fits(make("FedAvg", {}, Protocol(keep_optimiser=True)))


@pytest.mark.parametrize("name", FITTING)
def test_every_such_method_gives_the_same(name, tmp_path):
    both(gentle_run(name), tmp_path)


@pytest.mark.parametrize("net", ["cnn4", "resnet10", "linear"])
@pytest.mark.parametrize("protocol", [
    {"optimiser": "sgd", "momentum": 0.9, "weight_decay": 1e-3}, {"optimiser": "adam", "lr": 1e-4},
    {"optimiser": "adamw", "lr": 1e-4, "weight_decay": 0.1}, {"clip": 0.3}, {"epochs": 3, "batch": 7},
    {"batch": 1000, "order": "classes"}, {"warmup": 1}], ids=str)
def test_nets_and_protocols(net, protocol, tmp_path):
    both(gentle_run(net=net, **protocol), tmp_path)


def test_kept_statistics_and_some_of_the_clients(tmp_path):
    both(gentle_run(buffers="keep", rounds=3), tmp_path)
    assert [r["stack"] for r in result(gentle_run(participation=0.6, rounds=3), tmp_path / "p", stack=2)] == [2, 2, 2]
    alone = result(gentle_run(participation=0.6, rounds=3), tmp_path / "q")
    for a, b in zip(alone, numbers(records.read_record(gentle_run(participation=0.6, rounds=3).path(tmp_path / "p")))):
        close(a, b)


def test_bf16_is_close(tmp_path):
    run = gentle_run(precision="bf16", rounds=1)
    one, other = (result(run, tmp_path / str(k), stack=k)[0]["train_loss"] for k in (1, 5))
    assert one == pytest.approx(other, rel=0.02)


def test_each_client_gets_its_own_update(tmp_path):
    """A wrong sum over clients would move all nets alike: without averaging they differ as they should."""
    seen = {}

    def look(key):
        def after(simulation):
            seen[key] = [copy.deepcopy(w.client.net.state_dict()) for w in simulation.workers]
        return after
    run = gentle_run("Local", rounds=1, lr=0.002)
    for k in (1, 5):
        loop.train(run, tmp_path / str(k), stack=k, after=look(k))
    for one, other in zip(seen[1], seen[5], strict=True):
        assert all(torch.allclose(one[k].float(), v.float(), atol=1e-5) for k, v in other.items())
    assert not torch.allclose(seen[5][0]["head.weight"], seen[5][1]["head.weight"], atol=1e-4)
    assert all(torch.equal(one[k], other[k]) for one, other in zip(seen[1], seen[5], strict=True)
               for k in one if k.endswith("num_batches_tracked"))


def test_a_resumed_run_goes_on_stacked(tmp_path):
    run = gentle_run(rounds=3)
    interrupted(run, tmp_path / "cut", stack=5)
    assert result(run, tmp_path / "cut", stack=5) == result(run, tmp_path / "whole", stack=5)


@pytest.mark.parametrize("gain,taken", [(5.0, 5), (1.1, 1)])
def test_auto_takes_what_is_worth_it_and_remembers(gain, taken, tmp_path, monkeypatch):
    monkeypatch.setattr(stack, "prepare", SimpleNamespace(folder=lambda: tmp_path / "data"))
    calls = []
    monkeypatch.setattr(stack, "gain", lambda workers: calls.append(len(workers)) or gain)
    run = gentle_run()
    first = result(run, tmp_path / "a", stack="auto")
    assert first == result(run, tmp_path / "b", stack="auto") and calls == [5, 5]     # in the first run only, twice
    assert first[0].get("stack", 1) == taken
    assert list(json.loads((tmp_path / "data" / "stack.json").read_text()).values()) == [taken]
    result(gentle_run("APFL"), tmp_path / "c", stack="auto")
    assert calls == [5, 5]  # trains in its own way: nothing to measure


@pytest.mark.parametrize("name", ["FedProto", "SCAFFOLD", "I2PFL", "FedFomo"])
def test_measuring_changes_nothing(name, tmp_path, monkeypatch):
    run = gentle_run(name, rounds=2)
    plain = result(run, tmp_path / "plain")
    monkeypatch.setattr(stack, "prepare", SimpleNamespace(folder=lambda: tmp_path / "data"))
    monkeypatch.setattr(stack, "GAIN", float("inf"))
    assert result(run, tmp_path / "measured", stack="auto") == plain
    assert json.loads((tmp_path / "data" / "stack.json").read_text())


def test_a_mistake_in_one_client_ends_all(tmp_path, monkeypatch):
    """The error is told, no thread stays behind, and every method has its own training again."""
    before, MOON = threading.active_count(), METHODS["MOON"]
    loss, methods = MOON.loss, []

    def fails(self, net, x, y, client):
        methods.append(self)
        if client.id == "2":
            raise ZeroDivisionError("of this client")
        return loss(self, net, x, y, client)
    monkeypatch.setattr(MOON, "loss", fails)
    with pytest.raises(ZeroDivisionError, match="of this client"):
        loop.train(gentle_run("MOON"), tmp_path, stack=5)
    assert threading.active_count() == before and methods and not any("fit" in vars(m) for m in methods)

    def falls(self, client):
        raise ZeroDivisionError("around its training")
    monkeypatch.setattr(MOON, "local", falls)
    with pytest.raises(ZeroDivisionError, match="around its training"):
        loop.train(gentle_run("MOON"), tmp_path, stack=5)
    assert threading.active_count() == before
