"""A record from elsewhere is trusted when its run is planned, its data are ours, and a round comes out again."""
import datetime
import json

import pytest
import small_paper
from conftest import interrupted

from fedlib.core.errors import UserError
from fedlib.datasets import prepare
from fedlib.engine import loop, records
from fedlib.engine.run import plan, planned
from fedlib.experiments import tables, verify


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(papers, run, record): one run of a small table, trained."""
    folder = tmp_path_factory.mktemp("trained")
    papers = small_paper.place(folder / "papers", small_paper.content('{ name = "FedAvg" }', (0,)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "PAPERS", papers)
        run = tables.load_table("small/t").runs("mini")[0].run
    return papers, run, records.read_record(loop.train(run, folder))


@pytest.fixture
def given(trained, tmp_path, monkeypatch):
    papers, run, record = trained
    monkeypatch.setattr(tables, "PAPERS", papers)
    return lambda change=lambda r: None: written(tmp_path, run, json.loads(json.dumps(record)), change)


def written(folder, run, record, change):
    change(record)
    records.write_record(run.path(folder), record)
    return run.path(folder)


def test_an_honest_record_is_trusted(given, fedlib):
    path = given()
    found = verify.verify(path, rounds=2)
    assert found["trusted"] and found["planned"] == ["small/t mini"] and found["data"]
    assert [(r["round"], r["equal"]) for r in found["rounds"]] == [(1, True), (2, True)]
    code, out, _ = fedlib("verify", path)
    assert code == 0 and "1 of 4 rounds trained again, and they agree" in out and "round 1:" in out


def test_records_are_drawn_by_the_day(given, tmp_path, fedlib):
    """Those with long rounds, and those of other data, are left out."""
    path, first = given(), datetime.date(2026, 1, 1)
    record = records.read_record(path)
    run = record["run"]
    for seed in range(1, 9):
        other = planned(run | {"seed": seed})
        change = {7: {"seconds": 1e6}, 8: {"data": {"digest": "0" * 64}}}.get(seed, {})
        records.write_record(other.path(tmp_path), record | {"run": other.spec, "made": record["made"] | change})
    every = verify.drawn(tmp_path, 99, first)
    assert len(every) == 7 and len({*every}) == 7
    assert verify.drawn(tmp_path, 3, first) == every[:3]
    assert any(verify.drawn(tmp_path, 3, first + datetime.timedelta(days)) != every[:3] for days in range(1, 9))
    code, out, _ = fedlib("verify", tmp_path, "--draw", 1)
    assert out.count("round 1:") == 1 and code == ("NOT" in out)
    for stray in ("[", "[]", '{"digest": 3}'):      # in the folder of prepared sets
        (prepare.folder() / "x.json").write_text(stray)
        assert verify.drawn(tmp_path, 99, first) == every
    every[0].write_text("{")        # is drawn, and said
    assert every[0] in verify.drawn(tmp_path, 99, first)
    code, out, err = fedlib("verify", tmp_path, "--draw", 9)
    assert code == 1 and f"{every[0]}: NOT verified" in out and "away" not in out + err
    with pytest.raises(UserError, match="is of data that are prepared here"):
        verify.drawn(tmp_path / "none", 3, first)


@pytest.mark.parametrize("change", [
    lambda r: r["rounds"][0].update(acc={d: max(0, v - 40) for d, v in r["rounds"][0]["acc"].items()}),
    lambda r: r["rounds"][0].update(train_loss=2 * r["rounds"][0]["train_loss"]),
    lambda r: [x.update(transfer={"ood": 99.0}) for x in r["rounds"]],
    lambda r: r["rounds"][0].update(acc=dict(zip(acc := r["rounds"][0]["acc"], [100.0, *[0.0] * (len(acc) - 1)]))),
    lambda r: r["rounds"][0].update(bytes_up=1),
    lambda r: r["made"]["data"].update(digest="0" * 64)],
    ids=["accuracy", "loss", "transfer", "one domain", "bytes", "data"])
def test_a_forged_record_is_not(given, fedlib, change):
    path = given(change)
    assert not verify.verify(path)["trusted"]
    code, out, _ = fedlib("verify", path)
    assert code == 1 and "NOT verified" in out


def test_one_forged_round_is_enough(given):
    found = verify.verify(given(lambda r: r["rounds"][0].update(train_loss=2 * r["rounds"][0]["train_loss"])), rounds=2)
    assert [r["close"] for r in found["rounds"]] == [False, True] and not found["trusted"]


def test_a_record_that_was_cut_is_none(given, fedlib):
    code, _, err = fedlib("verify", given(lambda r: r["rounds"].pop()))
    assert code == 2 and "it ends before the rounds that were asked for" in err


def test_one_bad_record_does_not_hide_the_others_and_nothing_is_to_be_deleted(given, fedlib, tmp_path):
    good, bad = given(), tmp_path / "FedAvg-0123456789ab.json"
    bad.write_text("{")
    code, out, err = fedlib("verify", bad, good)
    assert code == 1 and out.index(f"{bad}: NOT verified") < out.index(f"{good}: 1 of 4 rounds trained again")
    assert "delete" not in out + err and "delete" not in fedlib("verify", bad)[2]
    listed = json.loads(fedlib("verify", bad, good, "--json")[1])
    assert [f["trusted"] for f in listed] == [False, True] and "is not a record" in listed[0]["why"]
    assert "name its record alone" in fedlib("verify", bad, good, "--checkpoint", bad)[2]


def test_a_forged_end_is_found_from_a_checkpoint(given, trained, tmp_path):
    _, run, _ = trained
    interrupted(run, tmp_path / "aside", rounds=2)
    checkpoint = run.path(tmp_path / "aside").with_suffix(".partial")
    honest = verify.verify(given(), checkpoint=checkpoint)
    assert honest["trusted"] and [r["round"] for r in honest["rounds"]] == [3]

    def forge(record):
        record["rounds"][2]["acc"] = dict.fromkeys(record["rounds"][2]["acc"], 100.0)
        record["rounds"][2]["train_loss"] = 0.0
    path = given(forge)
    assert verify.verify(path)["trusted"]           # the first round is as it was
    assert not verify.verify(path, checkpoint=checkpoint)["trusted"]

    def other(record):
        record["rounds"][0]["loss"] += 1
    with pytest.raises(UserError, match="has other numbers than"):
        verify.verify(given(other), checkpoint=checkpoint)


def test_a_run_that_no_table_plans_is_not_trusted(given, trained, tmp_path, fedlib):
    spec = trained[1].spec
    other = plan("FedAvg", spec["settings"], spec["data"], spec["net"], spec["protocol"], 77)
    path = loop.train(other, tmp_path)
    found = verify.verify(path)
    assert not found["planned"] and not found["trusted"] and found["rounds"][0]["equal"]
    assert "no table plans such a run" in fedlib("verify", path)[1]


def test_another_version_is_refused(given, tmp_path):
    path = given()
    record = json.loads(path.read_text())
    record["run"]["version"] = 99
    new = path.with_name(f"FedAvg-{records.run_digest(record['run'])}.json")
    records.write_record(new, record)
    with pytest.raises(UserError, match="another version"):
        verify.verify(new)
