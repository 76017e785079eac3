"""What a process starts ends with it: after any signal to a parent no training is left, and the next start goes on."""
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT

from fedlib.experiments import batch, tables

TABLE = """
[blocks.b]
title = "B"
columns = { street = "S" }
[blocks.b.mini]
data = { name = "mini_digits", domains = ["street"], fraction = 0.3 }
net = { net = "linear" }
protocol = { rounds = 100000, lr = 0.01 }
[tables.t]
title = "Runs without an end"
blocks = ["b"]
seeds = [0, 1]
select = "last"
rows = [{ name = "FedAvg" }, { name = "Local" }]
"""


def living(mark: str) -> list[int]:
    """Processes whose command line has this mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark in path.read_bytes().decode(errors="replace") and "State:\tZ" not in (
                    path.with_name("status").read_text()):
                found.append(int(path.parent.name))
        except OSError:     # it just ended
            continue
    return [p for p in found if p != os.getpid()]


def waited(true, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.05)
    return bool(true())


@pytest.fixture
def endless(tmp_path):
    """A table whose runs do not end, its command, and how to start that; whatever is left is killed."""
    (tmp_path / "endless.toml").write_text(TABLE)
    results = tmp_path / "results"
    command = [sys.executable, "-m", "fedlib", "run", f"{tmp_path}/endless.toml/t", "--profile", "mini", "--jobs", "2",
               "--results", str(results)]

    def start(before=()):
        process = subprocess.Popen([*before, *command], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))   # also under nohup
        assert waited(lambda: process.poll() or len([*results.glob("*/*.partial")]) == 2, 150)
        assert process.poll() is None, process.stderr.read()
        return process
    yield start, results
    for pid in living(str(results)):
        os.kill(pid, signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_training_outlives_what_started_it(how, endless):
    start, results = endless
    process = start()
    assert len(living(str(results))) == 3
    process.send_signal(how)
    assert waited(lambda: not living(str(results)), 5)
    assert process.wait() in (128 + how, -how)
    kept = [p.read_bytes() for p in results.glob("*/*.partial")]
    assert len(kept) == 2 and all(kept)         # the next start goes on from them


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_what_make_starts_ends_with_make_and_nohup_is_heard(endless, tmp_path):
    start, results = endless
    step = [sys.executable, str(ROOT / "workflow/step.py"), "Endless", "--"]
    process = start(["nohup", sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])", *step])
    process.send_signal(signal.SIGHUP)
    time.sleep(1)
    assert process.poll() is None and len(living(str(results))) == 5
    process.kill()
    assert waited(lambda: not living(str(results)), 8)
    process.stderr.close()


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_a_run_that_hangs_after_its_budget_is_ended(tmp_path, monkeypatch):
    """Here it is stopped; a run that still computes may finish its round."""
    (tmp_path / "endless.toml").write_text(TABLE)
    monkeypatch.setattr(batch, "STUCK", 0.5)
    planned = tables.load_table(f"{tmp_path}/endless.toml/t").runs("mini")[:1]
    begun, stopped = time.monotonic(), []

    def stop(line):
        if "round" in line and not stopped:
            stopped.extend(living(str(tmp_path / "results")))
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
    outcome = batch.execute(planned, tmp_path / "results", 1, budget=15, say=stop)
    assert stopped and outcome["left"] == 1 and len(outcome["failed"]) == 1
    assert time.monotonic() - begun < 60 and not living(str(tmp_path / "results"))
