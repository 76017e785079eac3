"""A record that was changed by hand: what no training writes is refused where it is read, whoever reads it."""
import copy
import json
import os

import pytest
import small_paper
from conftest import result, small_run

from fedlib.core.errors import UserError
from fedlib.engine import records
from fedlib.experiments import batch, filled, tables


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(the run, its record)."""
    run, folder = small_run(net="linear", rounds=3), tmp_path_factory.mktemp("trained")
    result(run, folder)
    return run, json.loads(run.path(folder).read_text())


def each(change):
    """The change in every round's accuracies."""
    def apply(record):
        for r in record["rounds"]:
            r["acc"] = change(r["acc"])
    return apply


def last(**entries):
    return lambda record: record["rounds"][-1].update(entries)


FORGED = {
    "the worst domain left out": each(lambda acc: {d: v for d, v in acc.items() if v > min(acc.values())}),
    "a domain that is not there": each(lambda acc: acc | {"heaven": 100.0}),
    "a domain renamed": each(lambda acc: {d + "s": v for d, v in acc.items()}),
    "one domain in the last round only": lambda record: record["rounds"][-1].update(
        acc=dict(list(record["rounds"][-1]["acc"].items())[:1])),
    "no domain": each(lambda acc: {}),
    "rounds reversed": lambda record: record["rounds"].reverse(),
    "the best round twice": lambda record: record["rounds"].append(copy.deepcopy(record["rounds"][-1])),
    "a round left out": lambda record: record["rounds"].pop(1),
    "the first round left out": lambda record: record["rounds"].pop(0),
    "the last round left out": lambda record: record["rounds"].pop(),
    "no training losses": lambda record: [r.pop("train_loss") for r in record["rounds"]],
    "a round more": lambda record: record["rounds"].append(copy.deepcopy(record["rounds"][-1]) | {"round": 4}),
    "no rounds": lambda record: record["rounds"].clear(),
    "a truth for a number": each(lambda acc: dict.fromkeys(acc, True)),
    "a word for a number": each(lambda acc: dict.fromkeys(acc, "90")),
    "nothing for a number": each(lambda acc: dict.fromkeys(acc)),
    "more than all": each(lambda acc: dict.fromkeys(acc, 101.0)),
    "less than nothing": each(lambda acc: dict.fromkeys(acc, -1.0)),
    "a number as large as it can be": each(lambda acc: dict.fromkeys(acc, 1e308)),
    "no number": each(lambda acc: dict.fromkeys(acc, float("nan"))),
    "a list": each(lambda acc: list(acc.values())),
    "a round as a word": last(round="3"),
    "a round as a truth": last(round=True),
    "a loss without end": last(loss=float("inf")),
    "a loss that is none": last(train_loss=float("nan")),
    "no training loss at the end": lambda record: record["rounds"][-1].pop("train_loss"),
    "another method": lambda record: record["run"].update(method="FedProx"),
    "another seed": lambda record: record["run"].update(seed=1),
    "another rate": lambda record: record["run"]["protocol"].update(lr=0.5),
    "other clients": lambda record: record["made"]["data"]["clients"][0].update(domain="heaven"),
    "clients that are words": lambda record: record["made"]["data"].update(clients=["street"]),
    "domains that are a number": lambda record: record["made"]["data"].update(clients=3),
    "a loss of 400 digits": last(train_loss=10 ** 400),
    "bytes in words": last(bytes_up="many"),
    "fewer bytes than none": last(bytes_down=-5),
    "less than no time": last(seconds=-9.0),
    "a larger loss hidden": last(highest_loss=0.1),
    "other domains after training": lambda record: [r.update(after={"heaven": 99.0}) for r in record["rounds"]],
    "validation of nothing": lambda record: [r.update(val={}) for r in record["rounds"]],
    "absent as a truth": last(absent=True, acc={"scans": 99.9}),
    "a terminal's orders": lambda record: record["made"].update(hardware="\x1b[2Jfoo\nround 9: 99 %"),
    "memory in words": lambda record: record["made"].update(peak_mb="much"),
    "no duration": lambda record: record["made"].pop("seconds"),
    "no making": lambda record: record.pop("made"),
}


@pytest.mark.parametrize("kind", FORGED)
def test_what_no_training_writes_is_refused(kind, trained, tmp_path):
    run, record = trained
    forged = copy.deepcopy(record)
    FORGED[kind](forged)
    path = run.path(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(record))
    assert records.read_record(path)
    path.write_text(json.dumps(forged))
    with pytest.raises(UserError, match="is not a record"):
        records.read_record(path)


def test_one_name_twice_and_endless_files_are_refused(trained, tmp_path):
    run, record = trained
    path, text = run.path(tmp_path), json.dumps(record)
    path.parent.mkdir(parents=True)
    path.write_text(text.replace('"rounds":', '"rounds": [], "rounds":', 1))
    with pytest.raises(UserError, match="says 'rounds' twice"):
        records.read_record(path)
    path.write_text(text + " " * records.LARGEST)
    with pytest.raises(UserError, match="larger than 8 MiB"):
        records.read_record(path)
    path.unlink()
    os.mkfifo(path)         # who reads one waits
    with pytest.raises(UserError, match="it is no file, or one larger"):
        records.read_record(path)


def test_one_seeds_rounds_do_not_stand_for_anothers(tmp_path, monkeypatch):
    """'62.0 ± 0.0, n = 3' was a copy of seed 0."""
    small_paper.use(tmp_path, monkeypatch, small_paper.content('{ name = "FedAvg" }', range(3)))
    table, results = tables.load_table("small/t"), tmp_path / "results"
    small_paper.fill(results, table.runs("mini"), lambda p: [50.0 + p.seed, 60.0, 61.0, 62.0])
    assert len(filled.values(table, "mini", results)) > 3
    one, two, _ = [p.run.path(results) for p in table.runs("mini")]
    rounds = json.loads(one.read_text())["rounds"]
    for r in rounds:
        r["train_loss"] = 1 / r["round"]
    for path in (one, two):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"rounds": rounds}))
    filled._read.cache_clear()
    with pytest.raises(UserError, match="seeds 0 and 1 of FedAvg in small/t have the same numbers"):
        filled.values(table, "mini", results)


@pytest.mark.parametrize("kind", ["acc", "unseen", "after"])
def test_check_compares_whatever_was_measured(kind, trained, tmp_path):
    run, record = trained
    here = copy.deepcopy(record)
    for r in here["rounds"]:
        r.update(unseen={"street": 20.0}, after=dict(r["acc"]))
    there = copy.deepcopy(here)
    domain = next(iter(there["rounds"][-1][kind]))
    for r in there["rounds"]:
        r[kind] = r[kind] | {domain: r[kind][domain] + 30.0 if r[kind][domain] < 70 else r[kind][domain] - 30.0}
    for folder, content in (("fresh", here), ("committed", there)):
        content["made"]["threads"] = folder       # of other machines: near is enough, 15 points in a domain is not
        records.write_record(run.path(tmp_path / folder), content)
    [(_, same, gap)] = batch.differences(tmp_path / "fresh", tmp_path / "committed")
    assert not same and gap >= 15.0
