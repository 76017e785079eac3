"""Faults while a run is under way: kills, damaged files, a full disk, two processes, divergence, failed runs."""
import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import numbers, small_run
from safetensors.torch import save

from fedlib import batch, cli, machine, records, tables, train
from fedlib.errors import UserError

HERE = Path(__file__).parent


class Cut(Exception):
    pass


def cut(event):
    raise Cut


@pytest.fixture
def halfway(tmp_path):
    """A run that was interrupted after its first round: (run, its checkpoint)."""
    run = small_run("FedProto", {"average": True}, net="linear")
    with pytest.raises(Cut):
        train.train(run, tmp_path, say=cut)
    return run, run.path(tmp_path).with_suffix(".partial")


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def same(record, other):
    """Equal in every number except times."""
    timeless = [dict(r["made"], started=0, seconds=0, peak_mb=0) for r in (record, other)]
    return record["run"] == other["run"] and numbers(record) == numbers(other) and timeless[0] == timeless[1]


# kills

def test_a_run_killed_in_mid_round_continues_to_the_same_record(tmp_path):
    """kill -9 while the third or a later round trains, then the same run again."""
    sets = {"average": "true", "net": "cnn4", "width": "4", "fraction": "0.3"}
    command = [sys.executable, "-m", "fedlib", "train", "FedProto", "--data", "mini_digits", "--rounds", "6",
               "--out", str(tmp_path / "killed"), *(w for k, v in sets.items() for w in ("--set", f"{k}={v}"))]
    run = records.plan("FedProto", {"average": True}, {"name": "mini_digits", "fraction": 0.3},
                       {"net": "cnn4", "width": 4}, {"rounds": 6}, 0)
    path = run.path(tmp_path / "killed")
    partial = path.with_suffix(".partial")
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    written = []
    while len(written) < 2:
        assert process.poll() is None, "it ended before it could be killed"
        if partial.exists() and (moment := partial.stat().st_mtime_ns) not in written:
            written.append(moment)
        time.sleep(0.005)
    time.sleep((written[1] - written[0]) / 1e9 / 2)
    process.kill()
    assert process.wait() == -signal.SIGKILL and partial.exists() and not path.exists()

    events = []
    train.train(run, tmp_path / "killed", say=lambda e: events.append(e["round"]))
    assert events[0] > 2 and events[-1] == 6
    assert names(path.parent) == [path.name]
    assert same(records.read(path), records.read(train.train(run, tmp_path / "whole")))


KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
import conftest
from fedlib import train
calls = []
def fsync(file):
    calls.append(file)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
train.train(conftest.small_run("MOON", net="linear", rounds=3), Path(sys.argv[1]))
"""


def test_a_run_killed_while_it_writes_leaves_no_rubbish(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, tmp_path / "killed"], cwd=HERE,
                          env=os.environ | {"PYTHONPATH": str(HERE.parent)})
    assert done.returncode == -signal.SIGKILL
    run = small_run("MOON", net="linear", rounds=3)
    path = run.path(tmp_path / "killed")
    assert len(names(path.parent)) == 3      # checkpoint of round 1, half of the next one, lock
    train.train(run, tmp_path / "killed")
    assert names(path.parent) == [path.name]
    assert same(records.read(path), records.read(train.train(run, tmp_path / "whole")))


# damaged checkpoints

@pytest.mark.parametrize("share", [0, 1, 8, 0.01, 0.5, -1])
def test_a_truncated_checkpoint_is_named(share, halfway, tmp_path):
    run, partial = halfway
    content = partial.read_bytes()
    left = content[:share if isinstance(share, int) else int(share * len(content))]
    partial.write_bytes(left)
    with pytest.raises(UserError) as caught:
        train.train(run, tmp_path)
    assert f"{partial} is not a checkpoint" in str(caught.value) and "delete it" in str(caught.value)
    assert names(partial.parent) == [partial.name] and partial.read_bytes() == left


@pytest.mark.parametrize("about", [None, {"format": 1, "digest": "another"}, {"format": 0}])
def test_a_foreign_checkpoint_is_refused(about, halfway, tmp_path):
    run, partial = halfway
    if about and "digest" not in about:
        about["digest"] = run.digest
    partial.write_bytes(save({"x": torch.zeros(1)}, about and {"about": json.dumps(about | {"rounds": []})}))
    with pytest.raises(UserError, match="belongs to another run or version; delete it"):
        train.train(run, tmp_path)


# a full disk

@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("kind", [".partial", ".json"])
def test_a_full_disk_is_named_and_leaves_nothing_half_written(call, kind, tmp_path, monkeypatch):
    run = small_run(net="linear")
    real, full = getattr(os, call), []

    def refuse(*args):
        target = os.fspath(args[1]) if call == "replace" else os.readlink(f"/proc/self/fd/{args[0]}")
        if target.removesuffix(".tmp").endswith(kind):
            full.append(target)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refuse)
        with pytest.raises(UserError, match="cannot write .*: No space left on device"):
            train.train(run, tmp_path)
    path = run.path(tmp_path)
    assert full and names(path.parent) == ([] if kind == ".partial" else [path.with_suffix(".partial").name])
    train.train(run, tmp_path)
    assert names(path.parent) == [path.name]


# two at once

def test_a_run_is_trained_by_one_process_at_a_time(tmp_path):
    run = small_run(net="linear")
    with train.locked(run.path(tmp_path)):
        with pytest.raises(train.Busy, match="is being trained by another process"):
            train.train(run, tmp_path)
        train.train(small_run(net="linear", seed=1), tmp_path)      # another run is free
    run.path(tmp_path).with_suffix(".lock").touch()                 # what a killed process leaves
    train.train(run, tmp_path)
    assert {p.suffix for p in run.path(tmp_path).parent.iterdir()} == {".json"}


def test_a_run_that_another_process_finished_meanwhile_is_not_trained_again(tmp_path, monkeypatch):
    run = small_run(net="linear")
    path, there = run.path(tmp_path), iter([False, True])
    monkeypatch.setattr(train, "loop", lambda *a: pytest.fail("trained again"))
    monkeypatch.setattr(type(path), "exists", lambda p: next(there) if p == path else os.path.exists(p))
    assert train.train(run, tmp_path) == path and next(there, None) is None


# divergence

def test_a_diverged_run_says_so_and_leaves_no_record(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["fedlib", "train", "FedProx", "--data", "tiny_digits", "--out", str(tmp_path),
                                      "--set", "mu=1e25", "--set", "lr=0.1", "--rounds", "3", "--set", "batch=8"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    out, err = capsys.readouterr()
    assert stop.value.code == 2 and out == "" and err.count("\n") == 1
    assert "FedProx (seed 0) diverged in round" in err and "lower lr (0.1)" in err
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


def test_divergence_in_a_later_round_leaves_no_checkpoint(tmp_path, monkeypatch):
    measure, losses = train.measure, iter([1.0, float("inf")])
    monkeypatch.setattr(train, "measure", lambda *a: measure(*a) | {"loss": next(losses)})
    with pytest.raises(UserError, match="diverged in round 2"):
        train.train(small_run(net="linear"), tmp_path)
    assert names(tmp_path / "tiny_digits") == []


def test_a_test_loss_that_overflows_in_one_domain_does_not_end_a_run(tmp_path, monkeypatch):
    score, bad = train.Worker.score, float("nan")
    monkeypatch.setattr(train.Worker, "score", lambda self, split, **how: score(self, split, **how) | (
        {"loss": bad} if self.client.domain == "scans" else {}))
    rows = records.read(train.train(small_run(net="linear"), tmp_path))["rounds"]
    assert all(r["loss"] == r["loss"] for r in rows)
    monkeypatch.setattr(train.Worker, "score", lambda self, split, **how: score(self, split, **how) | {"loss": bad})
    with pytest.raises(UserError, match="diverged in round 1"):
        train.train(small_run(net="linear", seed=1), tmp_path)


# many runs

PAPER = """
[paper]
title = "Small"
[blocks.b]
title = "B"
columns = { scans = "S" }
[blocks.b.mini]
data = { name = "tiny_digits", domains = ["scans"], clients = [2], fraction = 0.5 }
net = { net = "cnn4", width = 2 }
protocol = { rounds = 2, lr = 0.05, batch = 8 }
[blocks.b.lite]
data = { name = "tiny_digits", domains = ["scans"] }
net = { net = "linear" }
protocol = { rounds = 1000000 }
[tables.t]
title = "A small table"
blocks = ["b"]
seeds = [0, 1]
select = "last"
rows = [{ name = "FedProx", settings = { mu = 1e30 }}, { name = "FedAvg" }]
"""


@pytest.fixture
def planned(tmp_path, monkeypatch):
    """A table whose FedProx runs diverge, here and in the processes that are started."""
    papers = tmp_path / "papers"
    papers.mkdir()
    (papers / "small.toml").write_text(PAPER)
    (papers / "small.csv").write_text("table,dataset,setting,method,metric,value\n")
    (tmp_path / "sitecustomize.py").write_text(
        f"import pathlib, conftest\nfrom fedlib import tables\ntables.PAPERS = pathlib.Path({str(papers)!r})\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path, HERE, HERE.parent))))
    monkeypatch.setattr(tables, "PAPERS", papers)
    return tables.load("small/t").runs


def test_a_failed_run_stops_no_other_and_two_jobs_give_the_records_of_one(planned, tmp_path):
    bad, *good = [p for p in planned("mini") if (p.row, p.seed) != ("FedProx", 1)]
    outcome = batch.execute("small/t", "mini", [bad, *good], tmp_path / "r", jobs=2, say=lambda line: None)
    assert (outcome["done"], outcome["stopped"], outcome["left"]) == (2, 0, 1)
    problem, = outcome["failed"]
    log = tmp_path / "r" / ".logs" / f"FedProx-{bad.run.digest}.log"
    assert problem.startswith("FedProx, b, seed 0: FedProx (seed 0) diverged in round 1") and str(log) in problem
    assert "diverged" in log.read_text() and names(log.parent) == [log.with_suffix(".failed").name, log.name]
    assert names(tmp_path / "r" / "tiny_digits") == sorted(p.run.path(tmp_path).name for p in good)
    for p in good:
        alone = records.read(train.train(p.run, tmp_path / "alone"))
        assert same(records.read(p.run.path(tmp_path / "r")), alone)


def test_a_spent_budget_is_no_failure(planned, tmp_path):
    todo = [p for p in planned("lite") if p.row == "FedAvg"]
    start = time.monotonic()
    outcome = batch.execute("small/t", "lite", todo, tmp_path / "r", jobs=1, budget=0.3, say=lambda line: None)
    assert outcome == {"done": 0, "failed": [], "stopped": 1, "left": 2} and time.monotonic() - start < 60
    assert names(tmp_path / "r" / "tiny_digits") == [todo[0].run.path(tmp_path).with_suffix(".partial").name]


def test_patience_without_a_validation_split_is_refused(tmp_path, monkeypatch):
    keep = train.federate

    def without_val(spec, seed):
        federation = keep(spec, seed)
        for c in federation.clients:
            c.val = None
        return federation

    monkeypatch.setattr(train, "federate", without_val)
    with pytest.raises(UserError, match="validation split"):
        train.train(small_run(patience=2), tmp_path)
    assert not list(tmp_path.rglob("*"))


def test_a_record_can_be_made_without_git_and_never_names_another_repository(tmp_path, monkeypatch):
    assert machine.commit() not in ("", "unknown") or not (HERE.parent / ".git").exists()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "machine.py"))      # installed inside somebody's repository
    (tmp_path / "machine.py").touch()
    assert machine.commit() == "unknown"
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))                               # no git at all
    assert machine.commit() == "unknown"
