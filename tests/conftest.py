"""Small runs that many tests share."""
import os
import sys
from pathlib import Path
from unittest.mock import patch

import pretend_gpu
import pytest
import torch

from fedlib.core.errors import UserError
from fedlib.datasets import feature_cache, prepare
from fedlib.datasets.registry import DATASETS
from fedlib.engine import loop, records
from fedlib.engine.run import plan
from fedlib.engine.worker import Workers
from fedlib.methods import METHODS

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
os.environ.setdefault("FEDLIB_DATA", str(ROOT / "build" / "data"))
DATASETS |= {"tiny_digits": "tiny_digits", "tiny_features": "tiny_features"}
ON_FEATURES = ("MPFT",)     # methods that need them
PLAIN_NETS = ("DPFedAvg",)  # methods that refuse a net with statistics of batches
PROMPTED = {"ZeroShot": {}, "PromptFL": {"tokens": 4}, "KgCoOp": {"tokens": 4}, "FedPGP": {"tokens": 4},
            "FedAPT": {"tokens": 4}, "FedTPG": {"tokens": 4},
            "FedDEAP": {"tokens": 4, "local_tokens": 4}}        # methods that need a text tower
torch.set_num_threads(1)
# Before the first derivative: torch then makes a thread for each kind of device, and such a process cannot be forked.
PRETENDED = os.environ.get("FEDLIB_PRETENDED_GPU") == "1"
if PRETENDED:
    pretend_gpu.install()
collect_ignore = [] if PRETENDED else ["gpu"]
RAW = Path(os.environ.get("FEDLIB_RAW") or "-")       # real images, texts and weights, where there are any
needs_raw = pytest.mark.skipif(not os.environ.get("FEDLIB_RAW"), reason="FEDLIB_RAW names no folder of raw files")
needs_weights = pytest.mark.skipif(not (RAW / "weights").is_dir(), reason="FEDLIB_RAW has no ImageNet weights")

METHOD_NAMES = sorted(METHODS)


def small_run(method="FedAvg", values=None, net="resnet10", seed=0, data=None, **protocol):
    """Two rounds of five clients with 25 or 50 images each: two hold scans, one each of the other domains."""
    if method in ON_FEATURES and net == "resnet10":
        net, data, values = "adapter", {"name": "tiny_features", **(data or {})}, {"server_epochs": 3, **(values or {})}
    net = "cnn4" if method in PLAIN_NETS and net == "resnet10" else net
    arch = {"net": net, "width": 4}
    if method in PROMPTED and net == "resnet10":
        feature_cache.ensure_features("tiny_digits", None, "mini_clip", say=quiet)
        arch, data = {"net": "identity", "head": "prompts"}, {"encoder": "mini_clip", **(data or {})}
        values = PROMPTED[method] | (values or {})
    data = {"name": "tiny_digits", "fraction": 0.5, "clients": (2, 1, 1, 1), **(data or {})}
    protocol = {"rounds": 2, "epochs": 1, "batch": 8, "lr": 0.05, "momentum": 0.9, "augment": "crop", **protocol}
    return plan(method, values or {}, data, arch, protocol, seed)


def numbers(record: dict) -> list[dict]:
    """The rounds of a record without times."""
    def timeless(r):
        return {k: timeless(v) if isinstance(v, dict) else v for k, v in r.items() if k != "seconds"}
    return [timeless(r) for r in record["rounds"]]


def result(run, folder, **how) -> list[dict]:
    """The rounds of a run that is trained here, without times."""
    return numbers(records.read_record(loop.train(run, folder, **how)))


def close(one, other):
    """Equal numbers but for rounding; what is told of the stack itself is left out."""
    if isinstance(one, dict):
        assert one.keys() - {"stack"} == other.keys() - {"stack"}
        for k in one.keys() - {"stack"}:
            close(one[k], other[k])
    else:
        assert one == pytest.approx(other, rel=1e-4, abs=1e-4)


def interrupted(run, folder, rounds: int = 1, **how) -> Path:
    """Train so many rounds more and stop there; returns the checkpoint."""
    before_the_last = iter(range(rounds - 1))

    def cut(event):
        if next(before_the_last, None) is None:
            raise InterruptedError
    with pytest.raises(InterruptedError), patch.object(Workers, "spare", 0):     # a checkpoint after each
        loop.train(run, folder, say=cut, **how)
    return run.path(folder).with_suffix(".partial")


def refusal(call, *words) -> str:
    """The line of the UserError that a call ends by; it holds the words."""
    with pytest.raises(UserError) as caught:
        call()
    text = one_line(caught)
    assert all(str(word) in text for word in words), text
    return text


def quiet(line):
    """Takes what is said, and says nothing."""


def one_line(caught) -> str:
    """The text of an exception that was caught, which has one line."""
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.fixture(params=METHOD_NAMES)
def method_name(request):
    return request.param


@pytest.fixture
def fedlib(monkeypatch, capsys):
    """Call the command line in this process: (exit code, stdout, stderr)."""
    from fedlib import cli  # needs click, which tests of the core do without
    prepare.load_set("tiny_digits")
    capsys.readouterr()

    def call(*args):
        monkeypatch.setattr(sys, "argv", ["fedlib", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        return stop.value.code, *capsys.readouterr()
    return call
