"""Clients dealt out to processes: the record of one process, with kills and errors."""
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import METHOD_NAMES, interrupted, numbers, small_run

from fedlib.core.errors import UserError
from fedlib.engine import loop, records
from fedlib.engine.loop import Simulation
from fedlib.engine.worker import Worker
from fedlib.remote import cores
from fedlib.remote.cores import Cores, among


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_method_gives_the_same(name, tmp_path):
    run = small_run(name, participation=0.6, rounds=2, evaluate="both")
    one, several = (loop.train(run, tmp_path / str(n), deal=among(n)) for n in (1, 3))
    assert numbers(records.read_record(one)) == numbers(records.read_record(several))
    assert records.read_record(several)["made"]["cores"] == 3


def test_tests_on_unseen_domains_and_on_the_splits_of_others(tmp_path):
    made = [small_run(data={"unseen": ("street",)}), small_run("FedPer", cross=True)]
    for run in made:
        one, several = (records.read_record(loop.train(run, tmp_path / str(n), deal=among(n))) for n in (1, 2))
        assert numbers(one) == numbers(several)


@pytest.mark.parametrize("name", ["FedPer", "SCAFFOLD", "APFL", "FedDEAP"])
@pytest.mark.parametrize("before, after", [(2, 1), (1, 2), (3, 2)])
def test_a_run_that_was_cut_goes_on_with_as_many_cores_as_one_likes(name, before, after, tmp_path):
    run = small_run(name, rounds=3)
    whole = numbers(records.read_record(loop.train(run, tmp_path / "whole")))
    assert interrupted(run, tmp_path, rounds=2, deal=among(before)).exists()
    assert numbers(records.read_record(loop.train(run, tmp_path, deal=among(after)))) == whole


def test_what_is_raised_at_a_client_is_raised_here(tmp_path):
    run = small_run(rounds=2)

    def fail(worker, message, number):
        raise UserError(f"client {worker.client.id} fails")

    with pytest.MonkeyPatch().context() as patched, pytest.raises(UserError, match="client . fails"):
        patched.setattr(Worker, "train", fail)
        loop.train(run, tmp_path, deal=among(2))


def test_a_process_that_ends_is_an_error_and_the_run_goes_on_later(tmp_path):
    run = small_run(rounds=2)
    with pytest.MonkeyPatch().context() as patched, pytest.raises(UserError, match="too little memory"):
        patched.setattr(Worker, "train", lambda *_: os._exit(1))
        loop.train(run, tmp_path, deal=among(2))
    assert loop.train(run, tmp_path, deal=among(2)).exists()


def test_no_process_outlives_the_one_that_asked(tmp_path):
    code = ("import time; from conftest import small_run; from fedlib.engine.loop import Simulation\n"
            "from fedlib.remote.cores import Cores\n"
            "s = Simulation(small_run()); s.workers = Cores(s, 3); s.round()\n"
            "import multiprocessing as m; print(*(c.pid for c in m.active_children()), flush=True); time.sleep(60)")
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                              env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})
    children = list(map(int, parent.stdout.readline().split()))
    assert len(children) == 3 and all(Path(f"/proc/{c}").exists() for c in children)
    parent.kill()
    parent.wait()
    until = time.monotonic() + 20
    while any(Path(f"/proc/{c}").exists() for c in children) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(Path(f"/proc/{c}").exists() for c in children)


def test_cores_are_for_a_cpu_and_no_more_than_clients(tmp_path):
    made = Simulation(small_run())
    made.device = "cuda:0"
    with pytest.raises(UserError, match="for a CPU, not for cuda:0"):
        Cores(made, 2)
    made.device = "cpu"
    cores = Cores(made, 64)
    loads = [sum(len(w.client.train) for w in cores if cores.homes[w.place] == home) for home in range(5)]
    assert cores.made == {"cores": 5} and sorted(cores.homes.values()) == [0, 1, 2, 3, 4] and min(loads) > 0


# whichever is faster

def clock(monkeypatch, alone: float, dealt: float):
    """Rounds that take so long in one process, and so long where clients are dealt out."""
    times = iter([0, 9, 9 + alone, 99, 99 + dealt])
    monkeypatch.setattr(cores, "time", SimpleNamespace(monotonic=lambda: next(times)))


@pytest.mark.parametrize("name, alone, dealt", [("FedPer", 2, 1), *((name, 1, 2) for name in METHOD_NAMES)])
def test_a_trial_gives_the_same_whatever_is_faster(name, alone, dealt, tmp_path, monkeypatch):
    run = small_run(name, participation=0.6, rounds=5, test_every=3)
    one = loop.train(run, tmp_path / "one")
    clock(monkeypatch, alone, dealt)
    made = Simulation(run)
    made.workers = Cores(made, 2, tried=True)
    where = [made.workers.dealt for _ in range(5) if made.round()]      # after each round
    assert where == [False, False, True, True, dealt < alone] and made.over
    assert made.workers.made == ({"cores": 2} if dealt < alone else {})
    assert numbers({"rounds": made.rounds}) == numbers(json.loads(one.read_text()))


def test_a_run_on_trial_that_was_cut_goes_on(tmp_path):
    run = small_run("FedPer", rounds=9)
    whole = numbers(records.read_record(loop.train(run, tmp_path / "whole")))
    for rounds in (1, 3, 4):
        assert interrupted(run, tmp_path, rounds=rounds, deal=among("auto")).exists()
    assert numbers(records.read_record(loop.train(run, tmp_path, deal=among("auto")))) == whole


def test_the_command_takes_auto(fedlib, tmp_path):
    how = ["train", "FedAvg", "--data", "tiny_digits", "--rounds", "1", "--set", "net=linear", "--out", tmp_path]
    assert fedlib(*how, "--cores", "auto")[0] == 0
    code, _, said = fedlib(*how, "--cores", "many")
    assert code == 2 and "'many' is not a valid integer" in said
    assert "leave --save out" in fedlib(*how, "--seed", "1", "--cores", "auto", "--save")[2]
