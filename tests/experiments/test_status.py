"""What a table lacks and what that may cost; the record that a failure leaves."""
import fcntl
import json
import subprocess
import sys

import pytest
import small_paper
import torch
from conftest import interrupted, quiet

from fedlib.core.errors import UserError
from fedlib.core.files import Busy, locked
from fedlib.engine import loop, records
from fedlib.experiments import batch, failures, status, tables
from fedlib.experiments.results import results_folder


@pytest.fixture
def table(tmp_path, monkeypatch):
    text = small_paper.content('{ name = "FedAvg" }, { name = "FedProx" }', (0, 1))
    small_paper.use(tmp_path, monkeypatch, text)
    return tables.load_table("small/t")


def keep(planned, results, seconds):
    made = {"seconds": seconds}
    record = small_paper.a_record(planned, 1.0)
    records.write_record(planned.run.path(results), record | {"made": made})


def test_every_state_is_seen_and_the_rest_is_estimated(table, tmp_path):
    results = tmp_path / "r"
    one, two, three, four = table.runs("mini")      # seed 0: FedAvg, FedProx; seed 1: the same
    assert status.summary(table.runs("mini"), results)["guessed"] == 4
    keep(one, results, 7200.0)
    found = status.summary(table.runs("mini"), results)
    assert [found[k] for k in status.STATES] == [1, 0, 0, 0, 3] and found["hours"] == 2.0
    assert (found["left"], found["guessed"]) == (6.0, 0)        # the only basis is the block's
    constant = table.references("mini")[0]
    keep(constant, results, 0.01)
    assert status.summary([constant, one, two, three, four], results)["left"] == 6.0    # an answer is no training
    keep(two, results, 3600.0)
    assert status.summary(table.runs("mini"), results)["left"] == 3.0       # now each row has its own
    interrupted(three.run, results, rounds=3)
    assert status.state(three, results) == "stopped" and status.begun(three, results) == 0.75
    assert status.summary(table.runs("mini"), results)["left"] == pytest.approx(0.25 * 2 + 1)
    with locked(four.run.path(results)):
        assert status.state(four, results) == "running"
    assert status.state(four, results) == "missing"
    four.run.path(results).with_suffix(".lock").touch()         # left by a killed process: nobody holds it
    assert status.state(four, results) == "missing"
    failures.write(four, UserError("no disk"), results)
    assert status.summary(table.runs("mini"), results)["failed"] == 1


def test_a_lock_of_another_process_counts(table, tmp_path):
    one = table.runs("mini")[0]
    lock = one.run.path(tmp_path).with_suffix(".lock")
    lock.parent.mkdir()
    code = f"import fcntl, sys; f = open({str(lock)!r}, 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(1, flush=True); " \
           "sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        assert status.state(one, tmp_path) == "running"
        with pytest.raises(BlockingIOError), open(lock) as mine:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other.stdin.close()


def test_a_measure_in_progress_is_seen_aside(table, tmp_path):
    one = table.runs("mini")[0]._replace(features=("scans",))
    aside = one.run.path(tmp_path / ".features")
    interrupted(one.run, tmp_path / ".features")
    assert aside.with_suffix(".partial").exists()
    assert status.state(one, tmp_path) == "stopped" and status.begun(one, tmp_path) == 0.25


@pytest.mark.parametrize("hours,said", [(0.001, "4 s"), (0.5, "30 min"), (2.25, "2.2 h")])
def test_clock(hours, said):
    assert status.clock(hours) == said


def test_an_overview_in_words():
    found = dict.fromkeys(status.STATES, 0) | {"done": 3, "failed": 1, "hours": 2.0, "left": 0.5, "guessed": 2}
    assert status.line(found) == ("3 done, 1 failed; 2.0 h so far, about 30 min of computing left, "
                                  "2 runs with no record to judge by")


# failures

@pytest.mark.parametrize("error,kind", [(UserError("lower lr"), "mistake"), (MemoryError(), "memory"),
                                        (loop.Diverged("the loss is not finite"), "diverged"),
                                        (torch.cuda.OutOfMemoryError("CUDA out of memory"), "memory"),
                                        (ZeroDivisionError("division"), "bug")])
def test_a_failure_leaves_where_why_and_the_command_and_a_success_removes_it(table, tmp_path, monkeypatch, error, kind):
    one = table.runs("mini")[0]

    def broken(*args, **how):
        raise error
    real = loop.train
    monkeypatch.setattr(loop, "train", broken)
    with pytest.raises(type(error)):
        batch.one(one, tmp_path)
    found = failures.read(one, tmp_path)
    assert (found["row"], found["block"], found["seed"], found["kind"]) == ("FedAvg", "b", 0, kind)
    assert found["why"] == (str(error) or "MemoryError") and any("broken" in line for line in found["trace"])
    assert found["command"] == f"fedlib run small/t --profile mini --seeds 0 --only {one.run.digest} --device cpu"
    assert found["run"] == json.loads(json.dumps(one.run.spec)) and found["made"]["hardware"]
    monkeypatch.setattr(loop, "train", real)
    batch.one(one, tmp_path, say=quiet)
    assert failures.read(one, tmp_path) is None and one.done(tmp_path)


def test_a_failure_that_cannot_be_kept_hides_no_error(table, tmp_path, monkeypatch):
    def broken(*args, **how):
        raise ZeroDivisionError("the real one")

    def full(path, content):
        raise UserError("cannot write: no space left")
    monkeypatch.setattr(loop, "train", broken)
    monkeypatch.setattr(records, "write_bytes", full)
    with pytest.raises(ZeroDivisionError, match="the real one"):
        batch.one(table.runs("mini")[0], tmp_path)


@pytest.mark.parametrize("error", [loop.OutOfTime("in time"), Busy("another"), KeyboardInterrupt()])
def test_a_stop_is_no_failure(table, tmp_path, monkeypatch, error):
    def stopped(*args, **how):
        raise error
    monkeypatch.setattr(loop, "train", stopped)
    with pytest.raises(type(error)):
        batch.one(table.runs("mini")[0], tmp_path)
    assert failures.read(table.runs("mini")[0], tmp_path) is None


class Fake:
    """Stands for a child process: it ends at once, as `ends` says."""
    ends: list = []

    def __init__(self, planned, command, log, left=None):
        self.planned, self.log, self.last, self.command = planned, log, "", command
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        self.code = self.ends.pop(0)(planned)
        self.process = self

    def poll(self):
        return self.code

    def problem(self):
        return "no memory"

    terminate = wait = lambda self: None


def test_who_lacked_memory_beside_others_is_tried_again_alone(table, tmp_path, monkeypatch):
    results, todo, order = tmp_path / "r", table.runs("mini"), []

    def full(planned):
        order.append(planned.run.digest)
        failures.write(planned, torch.cuda.OutOfMemoryError("CUDA out of memory"), results)
        return 1

    def fine(planned):
        order.append(planned.run.digest)
        keep(planned, results, 1.0)
        failures.clear(planned, results)
        return 0
    monkeypatch.setattr(batch, "Child", Fake)
    Fake.ends = [full, fine, full, fine, fine, full]
    outcome = batch.execute(todo, results, jobs=2, say=quiet)
    assert order == [p.run.digest for p in (*todo, todo[0], todo[2])]
    assert outcome["done"] == 3 and len(outcome["failed"]) == 1 and outcome["left"] == 1
    assert status.state(todo[2], results) == "failed"


def test_a_run_that_another_process_trains_is_left_to_it(table, tmp_path, monkeypatch):
    results, todo = tmp_path / "r", table.runs("mini")[:3]
    order = []

    def fine(planned):
        order.append(planned.run.digest)
        keep(planned, results, 1.0)
        return 0
    monkeypatch.setattr(batch, "Child", Fake)
    Fake.ends = [fine, fine]
    with locked(todo[1].run.path(results)):
        outcome = batch.execute(todo, results, jobs=1, say=quiet)
    assert order == [todo[0].run.digest, todo[2].run.digest]
    assert outcome == {"done": 2, "failed": [], "stopped": 0, "elsewhere": 1, "left": 1}


def test_a_killed_process_is_told_from_a_mistake(table, tmp_path, monkeypatch):
    results, todo = tmp_path / "r", table.runs("mini")[:1]
    monkeypatch.setattr(batch, "Child", Fake)
    Fake.ends = [lambda planned: -9]
    batch.execute(todo, results, jobs=2, say=quiet)
    found = failures.read(todo[0], results)
    assert found["kind"] == "killed" and "signal 9" in found["why"]


def test_the_command(table, tmp_path, fedlib):
    one, two, *_ = table.runs("mini")
    keep(one, tmp_path, 90.0)
    failures.write(two, UserError("lower lr"), tmp_path)
    code, out, _ = fedlib("status", "small/t", "--results", tmp_path)
    assert code == 0 and "1 done, 1 failed, 2 missing; 2 min so far" in out
    assert f"failed: FedProx, b, seed 0: lower lr (mistake)\n        {failures.command(two)}" in out
    found = json.loads(fedlib("status", "--results", tmp_path, "--json", "--profile", "mini")[1])
    assert found["tables"][0]["left"] == pytest.approx(3 * 90 / 3600) and found["failed"][0]["why"] == "lower lr"
    assert fedlib("status", "small/u", "--results", tmp_path)[0] == 2


def test_a_plan_knows_its_table():
    planned = tables.load_table("i2pfl/table2").runs("mini")[0]
    assert (planned.table, planned.profile) == ("i2pfl/table2", "mini")


def test_a_table_of_ones_own_leaves_nothing_in_a_checkout_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDLIB_RESULTS", raising=False)
    checkout, here = results_folder(table="i2pfl/table2"), results_folder(table="mine.toml/weights")
    assert (checkout.parent / "pyproject.toml").is_file() and here == tmp_path / "results"
    here.mkdir()
    assert results_folder(table="i2pfl/table2") == here
