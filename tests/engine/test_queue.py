"""Runs from a file: in a process that has torch, numpy and safetensors only; killed, and gone on with."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT, numbers, refusal, result, small_run

from fedlib.core import machine
from fedlib.datasets.registry import DATASETS
from fedlib.engine import queue, records
from fedlib.engine.run import plan

# What such a machine lacks.
BARE = """
import sys
sys.modules.update(dict.fromkeys(["pandas", "scipy", "sklearn", "click", "tqdm", "PIL", "matplotlib", "torchvision",
    "requests", "urllib3", "pooch", "yaml", "IPython", "nbformat", "open_clip", "flwr", "skimage", "h5py", "finch",
    "huggingface_hub"]))
from fedlib.datasets.registry import DATASETS
DATASETS |= {"tiny_digits": "tiny_digits"}
from fedlib.engine import queue
from pathlib import Path
queue.work(Path(sys.argv[1]), Path(sys.argv[2]), "cpu", None)
"""


def start(tmp_path, file):
    program = tmp_path / "bare.py"
    program.write_text(BARE)
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]), "FEDLIB_CHECKPOINT": "every"}
    return subprocess.Popen([sys.executable, str(program), str(file), str(tmp_path / "r")], env=env, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_a_bare_machine_trains_them_is_killed_and_goes_on(tmp_path):
    runs = [small_run(m, rounds=40, net="linear") for m in ("FedAvg", "FedProx")]
    queue.write([*runs, runs[0]], tmp_path / "queue.json")
    assert [r.digest for r in queue.read(tmp_path / "queue.json")] == [r.digest for r in runs]
    first, partial = start(tmp_path, tmp_path / "queue.json"), runs[0].path(tmp_path / "r").with_suffix(".partial")
    deadline = time.monotonic() + 120
    while not partial.exists() and first.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    first.send_signal(signal.SIGKILL)
    assert partial.exists(), first.communicate()[0]
    first.wait()
    second = start(tmp_path, tmp_path / "queue.json")
    said = second.communicate(timeout=200)[0]
    assert second.returncode == 0 and said.count("done:") == 2, said
    for run in runs:
        assert numbers(records.read_record(run.path(tmp_path / "r"))) == result(run, tmp_path / "here")


def test_a_copy_names_the_commit_that_it_is_of(monkeypatch):
    monkeypatch.delenv("FEDLIB_COMMIT", raising=False)
    known = machine.commit()
    monkeypatch.setenv("FEDLIB_COMMIT", "1a2b3c4")
    assert machine.described("cpu")["commit"] == "1a2b3c4" != known


def test_nothing_is_begun_that_would_not_end(tmp_path, monkeypatch, capsys):
    """The first took ten seconds, and eight are left."""
    runs = [small_run(m, net="linear") for m in ("FedAvg", "FedProx")]
    queue.write(runs, tmp_path / "queue.json")
    clock = iter([0.0, 10.0, 10.0])
    monkeypatch.setattr(queue.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(queue.loop, "train", lambda run, *_, **__: None)
    queue.work(tmp_path / "queue.json", tmp_path / "r", "cpu", 18.0, finish=True)
    said = capsys.readouterr().out.splitlines()
    assert "done: FedAvg" in said[0] and said[1:] == ["[0] no time for another"]
    clock = iter([0.0, 10.0, 10.0, 20.0])
    queue.work(tmp_path / "queue.json", tmp_path / "r", "cpu", 18.0)
    assert capsys.readouterr().out.count("done") == 2


def test_sets_that_are_prepared_need_nothing_that_downloads():
    names = sorted(DATASETS.keys() - {"tiny_digits", "tiny_features"})
    program = ("import sys; sys.modules.update(dict.fromkeys(['requests', 'urllib3', 'pooch', 'pandas', 'click']))\n"
               f"from fedlib.datasets.registry import DATASETS, reader_of\nfor name in {names}:\n"
               f"    reader_of(name)")
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert not done.returncode, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
def test_what_trains_ends_with_the_queue_that_is_killed(tmp_path):
    data = {"name": "mini_digits", "domains": ["street"], "fraction": 0.3}
    run = plan("FedAvg", {}, data, {"net": "linear"}, {"rounds": 100_000}, 0)
    queue.write([run], tmp_path / "queue.json")
    partial, command = run.path(tmp_path / "r").with_suffix(".partial"), [sys.executable, "-m", "fedlib.engine.queue"]
    process = subprocess.Popen([*command, tmp_path / "queue.json", "--results", tmp_path / "r"], cwd=ROOT,
                               stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not partial.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    trains = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()
    deadline = time.monotonic() + 5
    while any(map(runs_still, trains)) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [pid for pid in trains if runs_still(pid)]
    for pid in left:
        os.kill(int(pid), signal.SIGKILL)
    assert partial.exists() and trains and not left


def runs_still(pid: str) -> bool:
    try:
        return "\nState:\tZ" not in Path("/proc", pid, "status").read_text()
    except OSError:
        return False


def test_its_answer_says_what_is_left_and_a_failure_ends_nothing_else(tmp_path, capfd, monkeypatch):
    runs = [small_run("FedAvg", lr=1e38, net="linear"), small_run("FedAvg", net="linear")]
    queue.write(runs, tmp_path / "q.json")
    queue.work(tmp_path / "q.json", tmp_path / "r", "cpu", None)
    said = capfd.readouterr().out
    assert "failed: FedAvg" in said and "diverged" in said and said.count("done:") == 1
    monkeypatch.setattr(queue.multiprocessing, "get_context", lambda kind: Here)
    assert queue.main([str(tmp_path / "q.json"), "--results", str(tmp_path / "r"), "--minutes", "9"]) == 3
    assert "1 of 2 runs have records" in capfd.readouterr().out


def test_what_failed_for_one_worker_is_not_tried_by_the_next(tmp_path, capfd):
    runs = [small_run("FedAvg", lr=1e38, net="linear"), small_run("FedProx", lr=1e38, net="linear")]
    queue.write(runs, tmp_path / "q.json")
    assert queue.main([str(tmp_path / "q.json"), "--results", str(tmp_path / "r"), "--jobs", "3"]) == 3
    said = capfd.readouterr().out
    assert said.count("failed: FedAvg") == said.count("failed: FedProx") == 1


class Here:
    """A process that is this one."""

    @staticmethod
    def RawArray(kind, size):
        return [0] * size

    class Process:
        def __init__(self, target, args):
            self.target, self.args = target, args

        def start(self):
            self.target(*self.args)

        def join(self):
            pass


def test_a_file_of_another_version_or_none_is_said(tmp_path):
    run = small_run("FedAvg")
    (tmp_path / "q.json").write_text(json.dumps({"runs": [run.spec | {"version": 99}]}))
    assert "another version of FedAvg (version 99)" in refusal(lambda: queue.read(tmp_path / "q.json"))
    (tmp_path / "q.json").write_text("[]")
    assert "holds no runs" in refusal(lambda: queue.read(tmp_path / "q.json"))
    (tmp_path / "q.json").write_text(json.dumps({"runs": [{"method": "FedAvg"}]}))
    assert "does not say its settings" in refusal(lambda: queue.read(tmp_path / "q.json"))
    with pytest.raises(SystemExit):
        queue.main([])
    assert not list(Path(tmp_path).glob("*/*.json"))
