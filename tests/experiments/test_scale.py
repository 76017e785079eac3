"""Thousands of runs: planning and looking at them takes seconds of computing, on whatever machine."""
import json
import time

import pytest
import small_paper

from fedlib.engine import records
from fedlib.engine.run import plan
from fedlib.experiments import status, tables

RUNS = 5000
ROUND = {"round": 1, "acc": {"scans": 91.234, "street": 42.567}, "loss": 1.234567, "train_loss": 1.234567,
         "bytes_up": 62800, "bytes_down": 62800, "seconds": 0.123}


@pytest.fixture
def large(tmp_path, monkeypatch):
    """A paper with one table of 5,000 runs."""
    text = small_paper.content('{ name = "FedAvg" }', range(RUNS), "rounds = 40, lr = 0.05", title="Large")
    return small_paper.use(tmp_path, monkeypatch, text, name="large")


def computing(work):
    """(what it returns, seconds of this process's processor): other processes on the machine do not count."""
    start = time.process_time()
    return work(), time.process_time() - start


def parsing(results):
    """Seconds that this machine needs to parse the records, and nothing else: the measure of its speed."""
    texts = [path.read_text() for path in results.rglob("*.json")]
    return computing(lambda: [json.loads(text) for text in texts])[1]


def test_five_thousand_runs_are_planned_in_less_than_ten_seconds(large):
    planned, seconds = computing(lambda: tables.load_table("large/t").runs("mini"))
    paths, more = computing(lambda: {p.run.path("results") for p in planned})
    assert len(paths) == RUNS and seconds + more < 10


def test_the_status_of_five_thousand_records_takes_little_more_than_reading_them(large, fedlib, tmp_path):
    results = tmp_path / "r"
    planned = tables.load_table("large/t").runs("mini")
    for p in planned[:-5]:
        path = p.run.path(results)
        path.parent.mkdir(parents=True, exist_ok=True)
        record = {"run": p.run.spec, "rounds": [ROUND | {"round": i} for i in range(1, 41)], "made": {"seconds": 3.6}}
        path.write_text(json.dumps(record, indent=1))       # 10 kB, as the committed ones have
    (code, out, _), seconds = computing(lambda: fedlib("status", "--results", results))
    assert code == 0 and "4995 done, 5 missing; 5.0 h so far, about 18 s of computing left" in out
    assert seconds < 6 * parsing(results)       # 3.7 times: 2.7 s where parsing takes 0.7


def test_the_estimate_of_thousands_of_runs_is_quick_too(large, tmp_path):
    """Half of them done: each of the rest is judged by the median of its row and block."""
    planned = tables.load_table("large/t").runs("mini")
    for p in planned[::2]:
        path = p.run.path(tmp_path)
        path.parent.mkdir(parents=True, exist_ok=True)
        rounds = [ROUND | {"round": i} for i in range(1, 41)]
        path.write_text(json.dumps({"run": p.run.spec, "rounds": rounds, "made": {"seconds": 7.2, "peak_mb": 100}}))
    found, seconds = computing(lambda: status.summary(planned, tmp_path))
    assert (found["done"], found["missing"], found["left"]) == (2500, 2500, pytest.approx(5.0)) and seconds < 5
    assert (found["peak_mb"], found["hardware"]) == (100, [])


def test_a_digest_is_computed_once(monkeypatch):
    run = plan("FedAvg", {}, {"name": "tiny_digits"}, {"net": "linear"}, {}, 0)
    first = run.digest
    monkeypatch.setattr(records.json, "dumps", lambda *a, **k: pytest.fail("computed again"))
    assert run.digest == first and first in str(run.path("r"))
