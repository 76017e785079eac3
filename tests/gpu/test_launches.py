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
from fedlib.probes.cost import count_passes

TABLE = Path(report.__file__).with_name("launches.json")
WAITS = {"FACMIC": 2}       # of a step: it draws test images anew in each, and leaves classes out that no image has
STACKED = {"FedAvg": 123, "FedProx": 882}       # launches of a step of twenty clients with CNN4 (457 and 2,360 once)
FEW, MANY = 1, 3            # local epochs, of two batches each
BATCH = 5
COUNTED = ("launch", "sync", "h2d", "forward", "backward")


def counted(name: str, epochs: int, data: dict | None = None, stack: int = 1, **how) -> dict:
    """{"launch", "sync", "h2d", "d2h"} of the second round of two clients that hold ten images each, and the passes of
    a batch through the body.
    """
    data = data or {"clients": (1, 1), "domains": ("scans", "street"), "fraction": 0.2}
    run = small_run(name, data=data, lr=2e-4, batch=BATCH, epochs=epochs, rounds=3, augment="crop_flip", **how)
    simulation = Simulation(run, device=GPU, stack=stack)
    simulation.round()
    passes = [count_passes(w.client.net) for w in simulation.workers]
    pretend_gpu.clear()
    simulation.round()
    return dict(pretend_gpu.counts) | {k: sum(p[k] for p in passes) / BATCH for k in ("forward", "backward")}


def measured(name: str) -> dict:
    """Kernels, waits, bytes sent and passes of a step, in the mean; kernels and waits of all else in a round."""
    few, many = counted(name, FEW), counted(name, MANY)
    steps = 2 * 2
    step = {k: round((many.get(k, 0) - few.get(k, 0)) / (steps * (MANY - FEW)), 3) for k in COUNTED}
    rest = {k: few.get(k, 0) - round(FEW * steps * step[k]) for k in ("launch", "sync")}
    return {"launches of a step": step["launch"], "waits of a step": step["sync"], "bytes sent in a step": step["h2d"],
            "passes forward": step["forward"], "passes backward": step["backward"],
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


@pytest.mark.parametrize("name", STACKED)
def test_stacked_clients_share_their_launches(name):
    few, many = (counted(name, epochs, {"clients": (5,) * 4, "fraction": 1.0}, 20, net="cnn4")["launch"]
                 for epochs in (FEW, MANY))
    assert (many - few) / (2 * (MANY - FEW)) <= STACKED[name]


def test_the_table_is_of_all_methods():
    assert sorted(json.loads(TABLE.read_text())["methods"]) == METHOD_NAMES


if __name__ == "__main__":
    torch.cuda.get_device_name = lambda device=None: "a pretended GPU"
    about = {"net": "resnet10 of width 4, or what the method needs", "torch": torch.__version__}
    TABLE.write_text(json.dumps({"made": about, "methods": {n: measured(n) for n in METHOD_NAMES}}, indent=1) + "\n")
