"""What a method asks of a GPU in a step and in a round, counted on the pretended one: it must not rise unseen.

    FEDLIB_PRETENDED_GPU=1 PYTHONPATH=tests:. python tests/gpu/test_launches.py

writes the table anew; look at its difference. On a real GPU torch's profiler counts the same, and the clock runs:

    PYTHONPATH=tests:. python tests/gpu/test_launches.py results
"""
import json
import multiprocessing
import statistics
import sys
import time
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pretend_gpu
import pytest
import torch
from conftest import METHOD_NAMES, small_run
from pretend_gpu import GPU

from fedlib import report
from fedlib.core import machine
from fedlib.core.files import write_bytes
from fedlib.engine.loop import Simulation
from fedlib.probes import bench
from fedlib.probes.cost import count_passes

TABLE = Path(report.__file__).with_name("launches.json")
WAITS = {"FACMIC": 2}       # of a step: it draws test images anew in each, and leaves classes out that no image has
STACKED = {"FedAvg": 123, "FedProx": 882}       # launches of a step of twenty clients with CNN4 (457 and 2,360 once)
FEW, MANY = 1, 3            # local epochs
BATCH = 5
STEPS = 4                   # of an epoch: two batches of two clients


def begun(name: str, epochs: int, data: dict | None = None, stack: int = 1, device=GPU, **how) -> Simulation:
    """Two clients that hold ten images each, after the first round."""
    data = data or {"clients": (1, 1), "domains": ("scans", "street"), "fraction": 0.2}
    run = small_run(name, data=data, lr=2e-4, batch=BATCH, epochs=epochs, rounds=9, augment="crop_flip", **how)
    simulation = Simulation(run, device=device, stack=stack)
    simulation.round()
    return simulation


@contextmanager
def pretended():
    """Counts of what is done inside, on the pretended GPU."""
    pretend_gpu.clear()
    yield pretend_gpu.counts


@contextmanager
def profiled():
    """The same on a real one; a copy counts as a launch. "warned": waits that torch warns of itself."""
    counts = Counter()
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as warned, \
            torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        yield counts
        torch.cuda.set_sync_debug_mode("default")
    for event in seen.key_averages():
        started = "LaunchKernel" in event.key or event.key in ("cudaMemcpyAsync", "cudaMemsetAsync")
        counts["launch"] += started * event.count
        counts["sync"] += event.key.endswith("Synchronize") * event.count
        counts["h2d"] += event.key.startswith("Memcpy HtoD") * event.count
    counts["warned"] = sum("synchronizing" in str(w.message) for w in warned)


def counted(name: str, epochs: int, counting=pretended, **how) -> dict:
    """{"launch", "sync", "h2d", "d2h"} of the second round, and the passes of a batch through the body."""
    simulation = begun(name, epochs, **how)
    passes = [count_passes(w.client.net) for w in simulation.workers]
    with counting() as counts:
        simulation.round()
    return dict(counts) | {k: sum(p[k] for p in passes) / BATCH for k in ("forward", "backward")}


def of_a_step(few: dict, many: dict) -> dict:
    """What the epochs that `many` has more took, a step in the mean."""
    return {k: round((many.get(k, 0) - few.get(k, 0)) / (STEPS * (MANY - FEW)), 3) for k in {*few, *many}}


def measured(name: str) -> dict:
    """Kernels, waits, bytes sent and passes of a step, in the mean; kernels and waits of all else in a round."""
    few, many = counted(name, FEW), counted(name, MANY)
    step = Counter(of_a_step(few, many))
    rest = {k: few.get(k, 0) - round(FEW * STEPS * step[k]) for k in ("launch", "sync")}
    return {"launches of a step": step["launch"], "waits of a step": float(step["sync"]),
            "bytes sent in a step": float(step["h2d"]), "passes forward": step["forward"],
            "passes backward": step["backward"], "launches of a round besides": rest["launch"],
            "waits of a round besides": rest["sync"]}


def on_cuda(name: str) -> dict | str:
    """The counts of a step on a real GPU; what a method lacks there in words."""
    try:
        step = of_a_step(*(counted(name, epochs, profiled, device="cuda") for epochs in (FEW, MANY)))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return {"launches of a step": step["launch"], "waits of a step": step["sync"], "copies to it": step["h2d"],
            "waits that torch warns of": step["warned"]}


def clocked(name: str, rounds: int = 5) -> float:
    """Milliseconds of a step there: rounds of more and of fewer epochs in turn, medians."""
    few, many = (begun(name, epochs, device="cuda") for epochs in (FEW, MANY))
    times = [[bench.clocked(s.round, "cuda") for s in (few, many)] for _ in range(rounds)]
    return round(1000 * statistics.median(b - a for a, b in times) / (STEPS * (MANY - FEW)), 4)


def on_this_gpu(results: Path) -> Path:
    """Both of every method, counts in several processes, times in this one alone; kept with the measurements."""
    made, start = machine.described("cuda"), time.monotonic()
    with multiprocessing.get_context("spawn").Pool(8) as pool:
        found = dict(zip(METHOD_NAMES, pool.map(on_cuda, METHOD_NAMES, chunksize=1), strict=True))
    print(f"counted in {time.monotonic() - start:.0f} s")
    for name, step in found.items():
        if isinstance(step, dict):
            step["ms of a step"] = clocked(name)
        print(f"{name:<24} {step}", flush=True)
    here = bench.path(results, made).with_suffix(".launches")
    write_bytes(here, (json.dumps({"made": made, "methods": found}, indent=1) + "\n").encode())
    return here


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
    few, many = (counted(name, epochs, data={"clients": (5,) * 4, "fraction": 1.0}, stack=20, net="cnn4")["launch"]
                 for epochs in (FEW, MANY))
    assert (many - few) / (2 * (MANY - FEW)) <= STACKED[name]


def test_the_table_is_of_all_methods():
    assert sorted(json.loads(TABLE.read_text())["methods"]) == METHOD_NAMES


if __name__ == "__main__" and sys.argv[1:]:
    print("kept in", on_this_gpu(Path(sys.argv[1])))
elif __name__ == "__main__":
    torch.cuda.get_device_name = lambda device=None: "a pretended GPU"
    about = {"net": "resnet10 of width 4, or what the method needs", "torch": torch.__version__}
    TABLE.write_text(json.dumps({"made": about, "methods": {n: measured(n) for n in METHOD_NAMES}}, indent=1) + "\n")
