"""Faults while a run is under way: kills, damaged files, a full disk, two processes, divergence, failed runs."""
import dataclasses
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
from conftest import ROOT, TESTS, interrupted, numbers, quiet, small_run
from killed_runs import short
from safetensors import safe_open
from safetensors.torch import load, save

from fedlib import cli
from fedlib.core import machine
from fedlib.core.errors import UserError
from fedlib.core.files import Busy, locked, write_bytes
from fedlib.datasets import prepare
from fedlib.engine import loop, records
from fedlib.engine.checkpoint import CHECKPOINT, checksum, resume
from fedlib.engine.evaluate import measure_round
from fedlib.engine.run import plan
from fedlib.engine.worker import Worker
from fedlib.experiments import batch, failures, status, tables


@pytest.fixture
def halfway(tmp_path):
    """A run that was interrupted after its first round: (run, its checkpoint)."""
    run = small_run("FedProto", {"average": True}, net="linear")
    return run, interrupted(run, tmp_path)


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
    run = plan("FedProto", {"average": True}, {"name": "mini_digits", "fraction": 0.3},
                       {"net": "cnn4", "width": 4}, {"rounds": 6}, 0)
    path = run.path(tmp_path / "killed")
    partial = path.with_suffix(".partial")
    env = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
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
    loop.train(run, tmp_path / "killed", say=lambda e: events.append(e["round"]))
    assert events[0] > 2 and events[-1] == 6
    assert names(path.parent) == [path.name]
    assert same(records.read_record(path), records.read_record(loop.train(run, tmp_path / "whole")))


KILLED_WHILE_WRITING = """
import os, signal, sys
from pathlib import Path
import conftest
from fedlib.engine import loop
calls = []
def fsync(file):
    calls.append(file)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
os.fsync = fsync
loop.train(conftest.small_run("MOON", net="linear", rounds=3), Path(sys.argv[1]))
"""


def test_a_run_killed_while_it_writes_leaves_no_rubbish(tmp_path):
    prepare.load_set("tiny_digits")         # it writes too
    done = subprocess.run([sys.executable, "-c", KILLED_WHILE_WRITING, tmp_path / "killed"], cwd=TESTS,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == -signal.SIGKILL
    run = small_run("MOON", net="linear", rounds=3)
    path = run.path(tmp_path / "killed")
    assert len(names(path.parent)) == 3      # checkpoint of round 1, half of the next one, lock
    loop.train(run, tmp_path / "killed")
    assert names(path.parent) == [path.name]
    assert same(records.read_record(path), records.read_record(loop.train(run, tmp_path / "whole")))


def killed(what: str, folder: Path, how) -> dict:
    """What tests/killed_runs.py saw."""
    ran = subprocess.run([sys.executable, TESTS / "killed_runs.py", what, folder, str(how)], capture_output=True,
                         text=True, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{TESTS}"})
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.timeout(1800)
def test_fifty_kills_at_random_moments_lose_nothing(tmp_path):
    run = short(rounds=60)
    found = killed("random", tmp_path / "killed", 50)
    assert found["kills"] == 50 and found["progress"] == sorted(found["progress"]) and len(set(found["progress"])) > 5
    assert names(run.path(tmp_path / "killed").parent) == [run.path(tmp_path).name]
    assert same(*(records.read_record(p) for p in (run.path(tmp_path / "killed"), loop.train(run, tmp_path / "whole"))))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind,least,endings", [("train", 12, [".json"]), ("budget", 20, [".budget", ".json"])])
def test_a_kill_at_any_operation_on_a_file_loses_nothing(kind, least, endings, tmp_path):
    run = short()
    found = killed("each", tmp_path, kind)
    assert found["killed"] == len(found["left"]) >= least
    files = [run.path("").with_suffix(e).as_posix() for e in endings]
    assert all(left == files for left in found["left"]), found
    whole = records.read_record(loop.train(run, tmp_path / "whole"))
    for number in range(1, found["killed"] + 1):
        assert same(records.read_record(run.path(tmp_path / str(number))), whole)


# damaged records and checkpoints

def cuts(content: bytes):
    """What a power cut may leave of a file: its beginning, and its beginning with zeros to its length."""
    for k in range(len(content)):
        yield content[:k]
        if content[k:].strip(b"\0"):
            yield content[:k] + bytes(len(content) - k)


def test_a_record_cut_at_any_byte_is_no_record(tmp_path):
    run = short()
    path = loop.train(run, tmp_path)
    content, whole = path.read_bytes(), records.read_record(path)
    for left in cuts(content):
        path.write_bytes(left)
        if left.strip(b"\0\n") == content.strip():      # all but the newline at its end
            assert left[len(content) - 1:] or records.read_record(path) == whole
            continue
        with pytest.raises(UserError, match="is not a record .*; move it away and run it again"):
            records.read_record(path)


def test_a_checkpoint_cut_at_any_byte_is_no_checkpoint(tmp_path):
    run = short("FedAvg")
    partial = interrupted(run, tmp_path)
    content, simulation = partial.read_bytes(), loop.Simulation(run)
    resume(partial, simulation)
    assert len(simulation.rounds) == 1
    for left in cuts(content):
        partial.write_bytes(left)
        with pytest.raises(UserError, match="is not a checkpoint .*; delete it to start the run afresh"):
            resume(partial, simulation)
    assert partial.read_bytes() == left


def test_a_temporary_file_cut_at_any_byte_is_overwritten_and_never_read(tmp_path, monkeypatch):
    run = short()
    path = loop.train(run, tmp_path / "whole")
    content, again = path.read_bytes(), run.path(tmp_path / "again")
    again.parent.mkdir(parents=True)
    planned = tables.Planned("FedDyn", "b", 0, run)
    monkeypatch.setattr(os, "fsync", lambda file: None)     # thousands of them
    for k in range(len(content)):
        again.with_name(f".{again.name}.tmp").write_bytes(content[:k])
        assert status.state(planned, tmp_path / "again") == "missing"
        assert not batch.differences(tmp_path / "again", tmp_path / "whole")
        write_bytes(again, content)
        assert names(again.parent) == [again.name] and again.read_bytes() == content
        again.unlink()


# damaged checkpoints

@pytest.mark.parametrize("share", [0, 1, 8, 0.01, 0.5, -1])
def test_a_truncated_checkpoint_is_named(share, halfway, tmp_path):
    run, partial = halfway
    content = partial.read_bytes()
    left = content[:share if isinstance(share, int) else int(share * len(content))]
    partial.write_bytes(left)
    with pytest.raises(UserError) as caught:
        loop.train(run, tmp_path)
    assert f"{partial} is not a checkpoint" in str(caught.value) and "delete it" in str(caught.value)
    assert names(partial.parent) == [partial.name] and partial.read_bytes() == left


@pytest.mark.parametrize("about", [None, {"format": 1, "digest": "another"}, {"format": 0}])
def test_a_foreign_checkpoint_is_refused(about, halfway, tmp_path):
    run, partial = halfway
    if about and "digest" not in about:
        about["digest"] = run.digest
    partial.write_bytes(save({"x": torch.zeros(1)}, about and {"about": json.dumps(about | {"rounds": []})}))
    with pytest.raises(UserError, match="belongs to another run or version; delete it"):
        loop.train(run, tmp_path)


def resaved(partial: Path, change, **about):
    """The checkpoint with other tensors or metadata, and a right sum."""
    tensors = load(partial.read_bytes())
    with safe_open(partial, "pt") as file:
        said = json.loads(file.metadata()["about"])
    change(tensors)
    said |= {"sum": checksum(tensors, said["rounds"])} | about
    partial.write_bytes(save(tensors, {"about": json.dumps(said)}))


@pytest.mark.parametrize("change,words", [
    (lambda t: t.update({"server/global_/head.weight": t["server/global_/head.weight"].double()}), "torch.float64"),
    (lambda t: t.update({"server/global_/head.weight": torch.ones(1, 1)}), r"\(1, 1\)"),
    (lambda t: t.pop("server/global_/head.weight"), "it lacks global_/head.weight"),
    (lambda t: t.update({"server/aggregate": torch.ones(1)}), "parts that the run has not"),
    (lambda t: t.update({"clients/9/state/z": torch.ones(1)}), "parts that the run has not"),
    (lambda t: t.update({"clients/0/net/head.weight": torch.ones(1)}), "client 0 keeps is of another net")])
def test_a_checkpoint_of_another_version_of_the_code_is_refused(change, words, halfway, tmp_path):
    """Its format and its run are the same, but not what it holds: torch would fit some of it silently."""
    run, partial = halfway
    resaved(partial, lambda tensors: None)
    records.read_record(loop.train(run, tmp_path))        # the same, saved again, is taken
    run.path(tmp_path).unlink()
    interrupted(run, tmp_path)
    resaved(partial, change)
    with pytest.raises(UserError, match=f"is not a checkpoint .*{words}"):
        loop.train(run, tmp_path)


@pytest.mark.parametrize("other", ["format", "seed", "version"])
def test_a_checkpoint_of_another_run_under_this_name_is_refused(other, halfway, tmp_path, monkeypatch):
    run, partial = halfway
    if other == "format":
        resaved(partial, lambda tensors: None, format=CHECKPOINT + 1)
    elif other == "seed":
        run = small_run("FedProto", {"average": True}, net="linear", seed=1)
    else:
        monkeypatch.setattr(loop.make("FedProto").__class__, "version", 99)
        run = dataclasses.replace(run)      # a run remembers its digest
    assert other == "format" or run.path(tmp_path).with_suffix(".partial") != partial
    partial.rename(run.path(tmp_path).with_suffix(".partial"))
    with pytest.raises(UserError, match="belongs to another run or version; delete it"):
        loop.train(run, tmp_path)


# a clock that jumps

def test_a_clock_that_jumps_changes_nothing(tmp_path, monkeypatch):
    whole = records.read_record(loop.train(short(), tmp_path / "whole"))
    jumps = iter(range(10**6))
    monkeypatch.setattr(time, "time", lambda: 1e9 * (-1) ** next(jumps))

    class Clock(machine.datetime.datetime):
        @classmethod
        def now(cls, zone=None):
            return cls(1970 + next(jumps) % 2 * 100, 1, 1, tzinfo=zone)
    monkeypatch.setattr(machine.datetime, "datetime", Clock)
    jumped = records.read_record(loop.train(short(), tmp_path / "jumped"))
    assert same(jumped, whole) and jumped["made"]["started"][:4] in ("1970", "2070")
    assert 0 <= jumped["made"]["seconds"] < 300 and all(0 <= r["seconds"] < 300 for r in jumped["rounds"])
    planned = tables.Planned("FedDyn", "b", 0, short(rounds=10**6), table="t", profile="mini")
    start = time.monotonic()
    with pytest.raises(loop.OutOfTime):
        batch.one(planned, tmp_path / "budget", budget=0.5, say=quiet)
    assert time.monotonic() - start < 120


def test_only_the_clean_up_of_a_day_asks_for_the_time_of_day():
    asks = [p.name for p in sorted((ROOT / "fedlib").rglob("*.py")) if "time.time()" in p.read_text()]
    assert asks == ["files.py"]


# a full disk, a folder that cannot be written

def in_a_room_of_its_own(script: str, *mounts: str, folder: Path) -> dict:
    """What a Python script prints as JSON in a process with its own mounts below the folder. Skipped without root."""
    if subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode:
        pytest.skip("mounts need root")
    folder.mkdir(exist_ok=True)
    ran = subprocess.run(["unshare", "-m", "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh", sys.executable, "-c",
                          script, folder], capture_output=True, text=True, cwd=TESTS,
                         env=os.environ | {"PYTHONPATH": f"{ROOT}:{TESTS}", "OMP_NUM_THREADS": "1"})
    if "mount:" in ran.stderr:
        pytest.skip("this root may not mount")
    assert ran.returncode == 0 and "Traceback" not in ran.stderr, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


FULL = """
import contextlib, io, json, sys
from pathlib import Path
import killed_runs
from fedlib import cli
from fedlib.core.errors import UserError
from fedlib.engine import loop, records
place, seen = Path(sys.argv[1]), []
run = killed_runs.short(rounds=3)
def fill(event):
    with contextlib.suppress(OSError), open(place / "full", "ab", buffering=0) as file:
        while file.write(b"x" * 256):
            pass
try:
    loop.train(run, place, say=fill)
except UserError as error:
    seen.append(str(error))
left = [p.suffix for p in run.path(place).parent.iterdir()]
err = io.StringIO()
with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
    code = cli.call(["train", "FedAvg", "--data", "tiny_features", "--rounds", "1", "--set", "net=linear",
                     "--out", place / "o"])
(place / "full").unlink()
rounds = []
loop.train(run, place, say=lambda e: rounds.append(e["round"]))
print(json.dumps({"said": seen, "left": left, "code": code, "err": err.getvalue(), "rounds": rounds,
                  "record": records.read_record(run.path(place)),
                  "end": [p.suffix for p in run.path(place).parent.iterdir()]}))
"""


@pytest.mark.timeout(900)
def test_a_disk_that_is_full_in_mid_run_loses_nothing(tmp_path):
    where = tmp_path / "disk"
    found = in_a_room_of_its_own(FULL, f"mount -t tmpfs -o size=256k tmpfs {where}", folder=where)
    text, = found["said"]
    assert "cannot write" in text and text.endswith("No space left on device")
    assert found["left"] == [".partial"] and found["rounds"] == [2, 3] and found["end"] == [".json"]
    assert found["code"] == 2 and found["err"].count("\n") == 1 and "No space left on device" in found["err"]
    assert same(found["record"], records.read_record(loop.train(short(rounds=3), tmp_path / "whole")))


READ_ONLY = """
import contextlib, io, json, sys
import conftest
from fedlib import cli
place, found = sys.argv[1], {}
for command in (["train", "FedAvg", "--data", "tiny_features", "--set", "net=linear", "--rounds", "1", "--out", place],
                *(["run", "i2pfl/table2", "--only", "FedAvg", "--seeds", "7", "--results", place, *how]
                  for how in (["--jobs", "1"], ["--seeds", "7,8"])),
                ["show", "i2pfl/table2", "--results", place], ["status", "i2pfl/table2", "--results", place],
                ["tables", "--results", place]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.call(command)
    found[" ".join([command[0], command[-1]])] = code, err.getvalue()
print(json.dumps(list(found.values())))
"""


@pytest.mark.timeout(900)
def test_a_folder_that_can_only_be_read(tmp_path):
    """Writing is refused in one line, and what only reads works."""
    prepare.load_set("tiny_features")
    where = tmp_path / "r"
    found = in_a_room_of_its_own(READ_ONLY, f"mount --bind {where} {where}", f"mount -o remount,ro,bind {where}",
                                 folder=where)
    for code, err in found[:3]:
        assert code in (1, 2) and err.count("\n") == 1 and "Read-only file system" in err
    assert found[3:] == [[0, ""]] * 3
    assert not any(where.iterdir())


def test_a_limit_on_the_size_of_files_is_named(tmp_path):
    code = ("import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
            "import conftest\nfrom fedlib import cli\nsys.exit(cli.call(sys.argv[1:]))")
    prepare.load_set("tiny_features")
    ran = subprocess.run([sys.executable, "-c", code, "train", "FedAvg", "--data", "tiny_features", "--set",
                          "net=linear", "--rounds", "2", "--out", tmp_path / "r"], capture_output=True, text=True,
                         cwd=TESTS, env=os.environ | {"PYTHONPATH": f"{ROOT}:{TESTS}"})
    lines = [line for line in ran.stderr.splitlines() if "FedAvg: " not in line]        # the progress bar's
    assert ran.returncode == 2 and len(lines) == 1 and lines[0].endswith("File too large"), ran.stderr
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


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
            loop.train(run, tmp_path)
    path = run.path(tmp_path)
    assert full and names(path.parent) == ([] if kind == ".partial" else [path.with_suffix(".partial").name])
    loop.train(run, tmp_path)
    assert names(path.parent) == [path.name]


# two at once

def test_a_run_is_trained_by_one_process_at_a_time(tmp_path):
    run = small_run(net="linear")
    with locked(run.path(tmp_path)):
        with pytest.raises(Busy, match=rf"is being trained by another process \({os.getpid()}\)"):
            loop.train(run, tmp_path)
        loop.train(small_run(net="linear", seed=1), tmp_path)      # another run is free
    run.path(tmp_path).with_suffix(".lock").touch()                 # what a killed process leaves
    loop.train(run, tmp_path)
    assert {p.suffix for p in run.path(tmp_path).parent.iterdir()} == {".json"}


def test_a_lock_that_is_gone_is_nobodys(tmp_path, monkeypatch):
    """Another process ended, and unlinked it, after this one had opened it: a third one may hold a new file."""
    import fcntl
    real = fcntl.flock

    def late(file, how):
        (tmp_path / "run.lock").unlink()
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(Busy, match="was just finished by another process"), locked(tmp_path / "run.json"):
        pytest.fail("held")


def test_a_run_that_another_process_finished_meanwhile_is_not_trained_again(tmp_path, monkeypatch):
    run = small_run(net="linear")
    path, there = run.path(tmp_path), iter([False, True])
    monkeypatch.setattr(loop, "all_rounds", lambda *a: pytest.fail("trained again"))
    monkeypatch.setattr(type(path), "exists", lambda p: next(there) if p == path else os.path.exists(p))
    assert loop.train(run, tmp_path) == path and next(there, None) is None


@pytest.mark.timeout(900)
def test_four_processes_that_begin_the_same_run_at_once_make_one_record(tmp_path):
    run, found = short(), killed("race", tmp_path, 5)
    assert all(set(codes) <= {0, 3} and 0 in codes for codes in found["codes"]), found
    assert 3 in sum(found["codes"], [])
    assert found["left"] == [[run.path("").as_posix()]] * 5
    whole = records.read_record(loop.train(run, tmp_path / "whole"))
    assert all(same(records.read_record(run.path(tmp_path / str(i))), whole) for i in range(5))


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
    measure, losses = measure_round, iter([1.0, float("inf")])
    monkeypatch.setattr(loop, "measure_round", lambda *a: measure(*a) | {"loss": next(losses)})
    with pytest.raises(UserError, match="diverged in round 2"):
        loop.train(small_run(net="linear"), tmp_path)
    assert names(tmp_path / "tiny_digits") == []


def test_a_test_loss_that_overflows_in_one_domain_does_not_end_a_run(tmp_path, monkeypatch):
    score, bad = Worker.score, float("nan")
    monkeypatch.setattr(Worker, "score", lambda self, split, **how: score(self, split, **how) | (
        {"loss": bad} if self.client.domain == "scans" else {}))
    rows = records.read_record(loop.train(small_run(net="linear"), tmp_path))["rounds"]
    assert all(r["loss"] == r["loss"] for r in rows)
    monkeypatch.setattr(Worker, "score", lambda self, split, **how: score(self, split, **how) | {"loss": bad})
    with pytest.raises(UserError, match="diverged in round 1"):
        loop.train(small_run(net="linear", seed=1), tmp_path)


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
        "import pathlib, conftest\nfrom fedlib.experiments import tables\n"
        f"tables.PAPERS = pathlib.Path({str(papers)!r})\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (tmp_path, TESTS, ROOT))))
    monkeypatch.setattr(tables, "PAPERS", papers)
    return tables.load_table("small/t").runs


def test_a_failed_run_stops_no_other_and_two_jobs_give_the_records_of_one(planned, tmp_path):
    bad, *good = [p for p in planned("mini") if (p.row, p.seed) != ("FedProx", 1)]
    outcome = batch.execute([bad, *good], tmp_path / "r", jobs=2, say=quiet)
    assert (outcome["done"], outcome["stopped"], outcome["left"]) == (2, 0, 1)
    problem, = outcome["failed"]
    log = tmp_path / "r" / ".logs" / f"FedProx-{bad.run.digest}.log"
    assert problem.startswith("FedProx, b, seed 0: FedProx (seed 0) diverged in round 1") and str(log) in problem
    assert "diverged" in log.read_text() and names(log.parent) == [log.with_suffix(".failed").name, log.name]
    failure = failures.read(bad, tmp_path / "r")
    assert failure["kind"] == failures.DIVERGED and "diverged in round 1: the loss is not finite" in failure["why"]
    assert names(tmp_path / "r" / "tiny_digits") == sorted(p.run.path(tmp_path).name for p in good)
    for p in good:
        alone = records.read_record(loop.train(p.run, tmp_path / "alone"))
        assert same(records.read_record(p.run.path(tmp_path / "r")), alone)


def test_a_spent_budget_is_no_failure(planned, tmp_path):
    todo = [p for p in planned("lite") if p.row == "FedAvg"]
    start = time.monotonic()
    outcome = batch.execute(todo, tmp_path / "r", jobs=1, budget=0.3, say=quiet)
    assert time.monotonic() - start < 60
    assert outcome == {"done": 0, "failed": [], "stopped": 1, "elsewhere": 0, "left": 2}
    assert names(tmp_path / "r" / "tiny_digits") == [todo[0].run.path(tmp_path).with_suffix(".partial").name]


def test_patience_without_a_validation_split_is_refused(tmp_path, monkeypatch):
    keep = loop.federate

    def without_val(spec, seed):
        federation = keep(spec, seed)
        for c in federation.clients:
            c.val = None
        return federation

    monkeypatch.setattr(loop, "federate", without_val)
    with pytest.raises(UserError, match="validation split"):
        loop.train(small_run(patience=2), tmp_path)
    assert not list(tmp_path.rglob("*"))


def test_a_record_can_be_made_without_git_and_never_names_another_repository(tmp_path, monkeypatch):
    assert machine.commit() not in ("", "unknown") or not (ROOT / ".git").exists()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    monkeypatch.setattr(machine, "__file__", str(tmp_path / "machine.py"))      # installed inside somebody's repository
    (tmp_path / "machine.py").touch()
    assert machine.commit() == "unknown"
    monkeypatch.undo()
    monkeypatch.setenv("PATH", str(tmp_path))                               # no git at all
    assert machine.commit() == "unknown"
