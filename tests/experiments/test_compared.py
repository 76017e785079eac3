"""Runs that are there, side by side: rows and blocks from their records, differences by seed, forms, a picture."""
import json

import pytest
from conftest import result, small_run

from fedlib.core.errors import UserError
from fedlib.engine import records
from fedlib.engine.run import plan
from fedlib.experiments import compared
from fedlib.report import shown
from fedlib.report.page import Page

DATA = {"name": "tiny_digits", "domains": ["scans", "street"], "fraction": 0.5}


def kept(results, method, seed, accuracy, values=None, lr=0.05, data=None):
    """A record of a run with these accuracies in its two domains."""
    run = plan(method, values or {}, data or DATA, {"net": "linear"}, {"rounds": 2, "lr": lr}, seed)
    rounds = [{"round": r, "acc": dict(zip(run.data.domains, accuracy, strict=True)), "loss": 1.0, "train_loss": 1.0}
              for r in (1, 2)]
    records.write_record(run.path(results), {"run": run.spec, "made": {"seconds": 1.0}, "rounds": rounds})
    return run.path(results)


@pytest.fixture
def runs(tmp_path):
    for seed, gain in enumerate((1.0, 2.0, 3.0)):
        kept(tmp_path, "FedAvg", seed, (50 + seed, 60 + seed))
        kept(tmp_path, "FedProx", seed, (50 + seed + gain, 60 + seed + gain))
    kept(tmp_path, "FedProx", 0, (70, 80), {"mu": 1.0})
    return tmp_path


def test_rows_are_what_differs_and_differences_are_paired_by_seed(runs):
    table, found = shown.compared([runs])
    assert [r["name"] for r in table.rows] == ["FedAvg", "FedProx, mu = 0.01", "FedProx, mu = 1"]
    assert list(table.blocks) == ["tiny_digits"] and table.seeds == [0, 1, 2]
    near, far = found["differences"]
    assert (near["to"], near["mean"], near["n"]) == ("FedAvg", pytest.approx(2.0), 3)
    assert near["half"] == pytest.approx(4.302653 / 3**0.5)        # t of two degrees of freedom, deviation 1
    assert (far["mean"], far["half"], far["n"]) == (20.0, None, 1)
    text = shown.compared_text(table, found)
    assert "FedProx, mu = 0.01 minus FedAvg: +2.00 ± 2.48, n = 3" in text
    assert "FedProx, mu = 1 minus FedAvg: +20.00, n = 1" in text
    assert shown.compared([runs], to="FedProx, mu = 1")[1]["differences"][0]["mean"] == -20.0


def test_sets_that_were_trained_otherwise_have_rows_of_their_own_and_their_own_reference(runs):
    """A rate that is another set's is no part of a row's name; FedAvgM is not FedAvg; seeds are a block's."""
    other = {"name": "tiny_digits", "domains": ["scans", "street"], "fraction": 0.25}
    for method in ("FedAvgM", "FedAvg", "Local"):
        kept(runs, method, 7, (40, 50), lr=0.5, data=other)
    table, found = shown.compared([runs])
    names = {r["name"] for r in table.rows}
    assert {"FedAvg", "FedAvgM", "Local"} <= names and not any("lr" in name for name in names)
    assert {d["to"] for d in found["differences"]} == {"FedAvg"}
    assert [table.drawn(b, compared.PROFILE) for b in table.blocks] == [[0, 1, 2], [7]]
    again = shown.compared([runs], to="Local")[1]["differences"]
    assert {d["row"] for d in again} == {"FedAvg", "FedAvgM"}


@pytest.mark.parametrize(("method", "seed"), [("FedProx", 2), ("FedAvg", 1)], ids=["another row", "another seed"])
def test_runs_on_other_data_of_the_same_name_are_not_compared(runs, method, seed):
    """A set that was prepared anew with other rows was paired by seed with the old one: -58.33 ± 0.00."""
    for path in runs.rglob("*.json"):
        record = records.read_record(path)
        other = (record["run"]["method"], record["run"]["seed"]) == (method, seed)
        digest = ("b" if other else "a") * 64
        records.write_record(path, record | {"made": record["made"] | {"data": {"digest": digest}}})
    with pytest.raises(UserError, match="tiny_digits was prepared anew .* has the data (a{12}|b{12})"):
        shown.compared([runs])


def test_what_the_training_lacks_is_said(runs):
    """The constant answer is whatever record of Constant is there."""
    assert "  the constant answer was not run" in shown.compared_text(*shown.compared([runs]))
    for seed in range(3):
        kept(runs, "Constant", seed, (52 + seed, 62 + seed))
    path = kept(runs, "FedProx", 2, (55, 65))
    record = records.read_record(path)
    record["rounds"][0]["train_loss"] = 1e9
    records.write_record(path, record)
    told = shown.compared_text(*shown.compared([runs], to="Constant")).splitlines()
    assert "  diverged on the way: FedProx, mu = 0.01 (a training loss of 1e+09)" in told
    assert "  not above the constant answer: FedAvg, FedProx, mu = 0.01" in told
    assert "  Constant minus" not in "\n".join(told) and "  the constant answer was not run" not in told


def test_another_rate_is_another_row_and_other_data_another_block(runs):
    kept(runs, "FedAvg", 0, (40, 40), lr=0.5)
    kept(runs, "FedAvg", 0, (30, 30), data=DATA | {"fraction": 0.25})
    table, _ = compared.of_records([runs])
    assert {r["name"] for r in table.rows} == {"FedAvg, lr = 0.05", "FedAvg, lr = 0.5", "FedProx, mu = 0.01, lr = 0.05",
                                               "FedProx, mu = 1, lr = 0.05", "FedAvg"}      # the last on other data
    assert sorted(table.blocks) == ["tiny_digits fraction = 0.25", "tiny_digits fraction = 0.5"]


def test_it_is_a_page_as_a_papers_table(runs):
    page = Page(compared.of_records([runs])[0], "mini")
    page.results = runs
    assert page.ran == ["tiny_digits"] and page.averages.set_index("row").ours["FedAvg"] == 56.0
    assert len(page.against("FedAvg")) == 2


def test_forms_for_other_programs(runs):
    table, found = shown.compared([runs])
    form = {k: shown.as_form(table, found["profile"], found["cells"], k) for k in ("csv", "markdown", "latex", "html")}
    assert form["csv"].splitlines()[1].startswith("tiny_digits,scans,FedAvg,,51.0,")
    assert form["markdown"].splitlines()[2] == "| FedAvg | 56.0 ± 2.5 | 51.0 ± 2.5 | 61.0 ± 2.5 | 3 |"
    assert r"FedAvg & 56.0 $\pm$ 2.5 &" in form["latex"] and r"\caption{tiny\_digits}" in form["latex"]
    assert "<td>56.0 ± 2.5</td>" in form["html"]


def test_the_command(runs, fedlib):
    code, out, _ = fedlib("compare", runs, "--picture", runs / "curves.svg")
    assert code == 0 and "+2.00 ± 2.48" in out and "<svg" in (runs / "curves.svg").read_text()
    assert json.loads(fedlib("compare", runs, "--json")[1])["differences"][0]["n"] == 3
    for option, word, said in (("--picture", "curves.txt", "end it with .svg"), ("--to", "FedAgv", "mean 'FedAvg'?")):
        code, _, err = fedlib("compare", runs, option, word)
        assert code == 2 and said in err


def test_what_cannot_be_compared(runs, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    with pytest.raises(UserError, match="no record in"):
        compared.of_records([other])
    with pytest.raises(UserError, match="in one folder"):
        compared.of_records([runs, kept(other, "FedAvg", 4, (1, 2))])
    (other / "tiny_digits/FedAvg-0.json").write_text("{}")
    with pytest.raises(UserError, match="is not a record"):
        compared.of_records([other])


def test_a_trained_run_is_read(tmp_path):
    result(small_run(net="linear"), tmp_path)
    table, found = shown.compared([tmp_path])
    assert [r["name"] for r in table.rows] == ["FedAvg"] and found["differences"] == []
