"""What a method asks of a GPU in a step and in a round, counted on the pretended one: it must not rise unseen.

    FEDLIB_PRETENDED_GPU=1 PYTHONPATH=tests:. python tests/gpu/test_launches.py

writes the table anew; look at its difference.
"""
import json
from pathlib import Path

import pretend_gpu
import pytest
import torch
from conftest import METHOD_NAMES, small_run
from pretend_gpu import GPU

from fedlib import report
from fedlib.engine.loop import Simulation

TABLE = Path(report.__file__).with_name("launches.json")
WAITS = {"FACMIC": 2}       # of a step: it draws test images anew in each, and leaves classes out that no image has
FEW, MANY = 1, 3            # local epochs, of two batches each


def counted(name: str, epochs: int) -> dict:
    """{"launch", "sync", "h2d", "d2h"} of the second round of two clients that hold ten images each."""
    data = {"clients": (1, 1), "domains": ("scans", "street"), "fraction": 0.2}
    run = small_run(name, data=data, lr=2e-4, batch=5, epochs=epochs, rounds=3, augment="crop_flip")
    simulation = Simulation(run, device=GPU)
    simulation.round()
    pretend_gpu.clear()
    simulation.round()
    return dict(pretend_gpu.counts)


def measured(name: str) -> dict:
    """Kernels, waits and bytes sent of a step, in the mean; kernels and waits of all else in a round."""
    few, many = counted(name, FEW), counted(name, MANY)
    steps = 2 * 2
    step = {k: (many.get(k, 0) - few.get(k, 0)) / (steps * (MANY - FEW)) for k in ("launch", "sync", "h2d")}
    rest = {k: few.get(k, 0) - round(FEW * steps * step[k]) for k in ("launch", "sync")}
    return {"launches of a step": step["launch"], "waits of a step": step["sync"], "bytes sent in a step": step["h2d"],
            "launches of a round besides": rest["launch"], "waits of a round besides": rest["sync"]}


@pytest.fixture(autouse=True)
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "a pretended GPU")
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_no_method_asks_for_more_than_it_did(name):
    found, known = measured(name), json.loads(TABLE.read_text())["methods"][name]
    assert found.keys() == known.keys()
    assert not {k: (known[k], found[k]) for k in found if found[k] > known[k]}
    assert found["waits of a step"] == WAITS.get(name, 0)


def test_the_table_is_of_all_methods():
    assert sorted(json.loads(TABLE.read_text())["methods"]) == METHOD_NAMES


if __name__ == "__main__":
    torch.cuda.get_device_name = lambda device=None: "a pretended GPU"
    about = {"net": "resnet10 of width 4, or what the method needs", "torch": torch.__version__}
    TABLE.write_text(json.dumps({"made": about, "methods": {n: measured(n) for n in METHOD_NAMES}}, indent=1) + "\n")
