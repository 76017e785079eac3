"""What a protocol says: early stopping, who takes part, when a test is, unseen domains, kept buffers, bfloat16."""
import json
import weakref

import pytest
import torch
from conftest import interrupted, result, small_run

from fedlib.core.errors import UserError
from fedlib.engine import loop, records
from fedlib.engine.evaluate import measure_round, stalled
from fedlib.engine.loop import Simulation
from fedlib.engine.worker import Workers
from fedlib.methods.base import FedAvg, Protocol


def test_stalled_by_hand():
    def stops(values, patience):
        rounds = [{"round": k, "val": {"a": v, "b": 0}, "acc": {"a": 0}} for k, v in enumerate(values)]
        return stalled(rounds, Protocol(patience=patience))

    assert not stops((1, 3, 2), 2) and stops((1, 3, 2, 2), 2)
    assert not stops((1, 3, 2, 4), 2)       # improved in the last round
    assert stops((3, 3, 3), 2)              # equal is no improvement
    assert not stops((3, 2, 1), 0)          # 0: never
    assert not stops((), 2) and not stalled([{"acc": {"a": 1}}] * 9, Protocol(patience=2))
    by_loss = Protocol(patience=2, stop="loss")
    loss = [{"round": k, "val": {"a": 0}, "val_loss": v} for k, v in enumerate((3.0, 1.0, 1.0, 2.0))]
    assert stalled(loss, by_loss) and not stalled(loss[:3], by_loss)
    some = [{"round": k} | ({"val": {"a": -k}} if k % 5 == 0 else {}) for k in range(1, 11)]
    assert stalled(some, Protocol(patience=5)) and not stalled(some, Protocol(patience=6))      # rounds, not tests
    assert not stalled(some[:9], Protocol(patience=1))      # its last round has no test


def test_validation_loss_is_a_mean_over_samples():
    simulation = Simulation(small_run("FedPer", net="linear", data={"domains": ("scans", "street"), "clients": (1, 1)}))
    few, many = simulation.workers
    few.client.val, many.client.val = few.client.train[:10], many.client.train[:20]
    a, b = (w.score(w.client.val)["loss"] for w in (few, many))
    assert measure_round(simulation, [])["val_loss"] == pytest.approx((10 * a + 20 * b) / 30, abs=1e-5) and a != b


def test_early_stopping_is_the_same_after_an_interruption(tmp_path):
    run = small_run(net="linear", rounds=40, lr=0.2, patience=2)
    whole = result(run, tmp_path / "whole")
    assert 3 <= len(whole) < 40
    means = [sum(r["val"].values()) for r in whole]
    assert len(means) - 1 - means.index(max(means)) == 2

    for _ in whole:     # also after the last round, when all that is missing is the record
        interrupted(run, tmp_path / "cut")
    assert result(run, tmp_path / "cut") == whole


def test_two_of_five_clients_take_part(tmp_path):
    def sample(participation, number, low=0.0):
        return loop.sample(5, Protocol(participation=participation, participation_low=low), 0, number)

    chosen = [sample(0.4, number) for number in range(30)]
    assert all(len(c) == len(set(c)) == 2 for c in chosen) and {i for c in chosen for i in c} == set(range(5))
    assert sample(0.0, 0) and sample(1.0, 0) == list(range(5))
    drawn = {len(sample(0.8, number, low=0.4)) for number in range(60)}
    assert drawn == {2, 3, 4}           # PFLlib's random join ratio: a share drawn in each round
    net = 4 * (10 * 3 * 28 * 28 + 10)
    for row in result(small_run(net="linear", participation=0.4), tmp_path):
        assert row["bytes_down"] == 2 * net and row["bytes_up"] == 2 * (net + 8)


def test_a_cohort_is_a_number_of_clients(tmp_path):
    for cohort, count in ((1, 1), (3, 3), (9, 5)):
        assert {len(loop.sample(5, Protocol(cohort=cohort, participation=0.4), 0, n)) for n in range(9)} == {count}
    assert result(small_run(net="linear", cohort=2), tmp_path) == result(small_run(net="linear", participation=0.4),
                                                                         tmp_path)


@pytest.mark.parametrize("evaluate", ["before", "after", "both"])
def test_a_test_in_every_third_round_and_in_the_last(evaluate, tmp_path):
    how = {"net": "linear", "rounds": 7, "participation": 0.4, "evaluate": evaluate}
    every, run = result(small_run("FedPer", **how), tmp_path), small_run("FedPer", test_every=3, **how)
    path = loop.train(run, tmp_path)
    written, read = json.loads(path.read_text())["rounds"], records.read_record(path)["rounds"]
    assert [r["round"] for r in written] == list(range(1, 8)) and [r["round"] for r in read] == [3, 6, 7]
    assert all(("acc" in r) == (r["round"] in (3, 6, 7)) for r in written)
    assert [r["train_loss"] for r in written] == [r["train_loss"] for r in every]
    for row, since in zip(read, (every[:3], every[3:6], every[6:]), strict=True):
        assert {k: row[k] for k in records.BY_NAME if k in row} == \
            {k: since[-1][k] for k in records.BY_NAME if k in since[-1]} and row["loss"] == since[-1]["loss"]
        assert row["bytes_up"] == sum(r["bytes_up"] for r in since)
        assert row["train_loss"] == pytest.approx(sum(r["train_loss"] for r in since) / len(since), abs=1e-6)
    for _ in range(7):
        interrupted(run, tmp_path / "cut")
    assert result(run, tmp_path / "cut") == result(run, tmp_path)
    small = small_run(net="linear", rounds=3, test_every=2, initial=True)
    assert [r["round"] for r in result(small, tmp_path)] == [0, 2, 3]


@pytest.mark.parametrize("evaluate, method", [("before", "FedPer"), ("both", "FedPer"), ("after", "FedAvg")])
def test_a_test_asks_some_clients_of_each_domain_and_the_last_all(evaluate, method, tmp_path, monkeypatch):
    """Each round anew; who is asked says what it says when all are."""
    heard, run = [], small_run(method, net="linear", rounds=6, participation=0.2, evaluate=evaluate, test_clients=1)
    test = Workers.test

    def listen(self, places, asked):
        heard.append(list(places))
        return test(self, places, asked)
    monkeypatch.setattr(Workers, "test", listen)
    few, asked = result(run, tmp_path), heard[:]
    every = result(small_run(method, net="linear", rounds=6, participation=0.2, evaluate=evaluate), tmp_path)
    assert all({"scans", "blended", "printed", "street"} == set(r["acc"]) for r in few)
    if evaluate == "before":    # two clients hold scans
        assert [len(places) for places in asked] == [4] * 5 + [5] and len({*map(tuple, asked[:5])}) == 2
        assert few != every and [r["acc"]["street"] for r in few] == [r["acc"]["street"] for r in every]
    assert few[-1] == every[-1] and [r["train_loss"] for r in few] == [r["train_loss"] for r in every]
    for _ in range(6):
        interrupted(run, tmp_path / "cut")
    assert result(run, tmp_path / "cut") == few


def test_a_cross_test_asks_all(tmp_path):
    both = [result(small_run("Local", net="linear", cross=True, test_clients=n), tmp_path) for n in (0, 1)]
    assert both[0] == both[1]


@pytest.mark.parametrize("forge", [lambda r: r[2].pop("acc"), lambda r: r[0].update(acc=r[2]["acc"]),
                                   lambda r: r[0].pop("bytes_up"), lambda r: r[1].update(seconds=float("nan")),
                                   lambda r: r[6].pop("acc"), lambda r: r.pop(1)])
def test_a_record_with_other_tests_than_asked_for_is_refused(forge, tmp_path):
    path = loop.train(small_run(net="linear", rounds=7, test_every=3), tmp_path)
    record = json.loads(path.read_text())
    forge(record["rounds"])
    path.write_text(json.dumps(record))
    with pytest.raises(UserError, match="is not a record"):
        records.read_record(path)


@pytest.mark.parametrize("asked, expected", [("auto", [1, 9]), ("every", [*range(1, 17)]), ("off", [])])
def test_checkpoints_take_a_thirtieth_of_the_time_or_what_is_asked(asked, expected, tmp_path, monkeypatch):
    """On a clock that each round moves by 1 and each checkpoint by 1/4."""
    now, written = [0.0], []
    monkeypatch.setenv("FEDLIB_CHECKPOINT", asked)
    monkeypatch.setattr(loop.time, "monotonic", lambda: now[0])
    first = Simulation.round

    def round_(simulation):
        now[0] += 1
        return first(simulation)

    def checkpoint(partial, simulation):
        now[0] += 0.25
        written.append(simulation.number)

    monkeypatch.setattr(Simulation, "round", round_)
    monkeypatch.setattr(loop, "checkpoint", checkpoint)
    path = loop.train(small_run(net="linear", rounds=17), tmp_path)
    assert written == expected      # and none after the last: the record is written
    rounds = records.read_record(path)["rounds"]
    assert [r["round"] for r in rounds if r["seconds"] > 0.1] == written


def test_an_unknown_wish_for_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_CHECKPOINT", "evry")
    with pytest.raises(UserError, match="did you mean 'every'"):
        loop.train(small_run(net="linear"), tmp_path)


def test_tests_before_after_and_both(tmp_path):
    before, after, both = (result(small_run(evaluate=e), tmp_path) for e in ("before", "after", "both"))
    domains = ["scans", "blended", "printed", "street"]
    assert "after" not in before[0] and "val" not in after[0]
    for b, a, t in zip(before, after, both, strict=True):
        assert list(a["acc"]) == list(b["acc"]) == domains
        assert a["acc"] == a["after"] == t["after"] and t["acc"] == b["acc"] != a["acc"]


def test_who_does_not_train_is_tested_with_what_the_round_began_with(tmp_path):
    how = {"evaluate": "both", "participation": 0.4, "rounds": 3, "net": "linear"}
    before, after = ([r[k] for r in result(small_run("Local", **how), tmp_path)] for k in ("acc", "after"))
    assert before == after              # a local net is the same when it is sent nothing
    changed = 0
    last = {}
    for number, row in enumerate(result(small_run("FedAvg", **how), tmp_path)):
        trained = {("scans", "scans", "blended", "printed", "street")[i]
                   for i in loop.sample(5, Protocol(participation=0.4), 0, number)}
        for d in row["acc"]:
            assert number == 0 or d in trained or row["after"][d] == last[d]
            changed += d in trained and row["after"][d] != row["acc"][d]
        last = row["acc"]
    assert changed


def test_unseen_domains_are_tested_and_not_trained(tmp_path):
    run = small_run(data={"unseen": ("printed",)})
    path = loop.train(run, tmp_path)
    record = records.read_record(path)
    assert [c["domain"] for c in record["made"]["data"]["clients"]] == ["scans", "scans", "blended", "street"]
    for row in record["rounds"]:
        assert list(row["acc"]) == ["scans", "blended", "street"] and list(row["unseen"]) == ["printed"]


def test_kept_buffers_stay_at_the_client(tmp_path):
    simulation = Simulation(small_run(buffers="keep"))
    worker = simulation.workers[0]
    worker.train(simulation.message(0), 0)
    net = worker.client.net
    mean = net.body.bn1.running_mean.clone()
    assert mean.abs().sum() > 0
    worker.method.receive(worker.client, simulation.message(0))
    assert torch.equal(net.body.bn1.running_mean, mean) and "body.bn1.running_mean" in worker.kept()["net"]


def test_bfloat16_changes_the_numbers_and_still_learns(tmp_path):
    rounds = {p: result(small_run(precision=p), tmp_path) for p in ("float32", "bf16")}
    losses = {p: r[-1]["loss"] for p, r in rounds.items()}
    assert losses["bf16"] != losses["float32"] and abs(losses["bf16"] - losses["float32"]) < 0.5


def test_a_test_has_the_room_of_the_uploads(monkeypatch, tmp_path):
    """A net for each client: when a round is tested, the server has made one of them."""
    uploads, aggregate, test = [], FedAvg.aggregate, Workers.test

    def aggregated(self, given):
        uploads.extend(weakref.ref(t) for u in given.values() for t in u["params"].values())
        aggregate(self, given)

    def tested(self, places, asked):
        assert uploads and not any(t() is not None for t in uploads)
        return test(self, places, asked)
    monkeypatch.setattr(FedAvg, "aggregate", aggregated)
    monkeypatch.setattr(Workers, "test", tested)
    assert len(result(small_run(), tmp_path)) == 2
