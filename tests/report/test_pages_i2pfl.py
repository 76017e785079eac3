"""What I2PFL's pages say, once more from the printed numbers, the plans and the records."""
import ast
import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from scipy import stats

from fedlib import Page
from fedlib.engine import records
from fedlib.experiments import tables
from fedlib.methods import make
from fedlib.methods.prototypes import reweighted
from fedlib.report import answer, i2pfl, printed, text, zoo

ROOT = Path(__file__).resolve().parents[2]
EVERY = printed.of_paper("i2pfl")


@pytest.fixture(scope="module")
def pages():
    return {k: Page(f"i2pfl/table{k}", "lite", [0, 1, 2]) for k in (4, 5)}


def last5(run, results) -> float:
    """The average accuracy of a run over its last five rounds, from the file."""
    rounds = records.read_record(run.path(results))["rounds"][-5:]
    return sum(sum(r["acc"].values()) / len(r["acc"]) for r in rounds) / 5


def test_all_that_the_paper_prints():
    assert EVERY.count().sum() == 585 and EVERY.index.unique("table").size == 6
    assert EVERY.loc["table2"].loc["office"].dslr["I2PFL"] == 66.0


def test_most_entries_are_five_rounds_of_one_run():
    images = {"caltech": 224, "amazon": 190, "webcam": 58, "dslr": 30}
    office = EVERY.xs("office", level="dataset")
    fit = {t: sum(printed.fits(v, 5 * n) for s, n in images.items() for v in office.loc[t][s])
           for t in office.index.unique("table")}
    assert fit == {"table2": 34, "table3": 3, "table4": 15, "table5": 9, "table6": 9, "table7": 36}
    assert printed.chance(150, 30, 90) == pytest.approx(90 / 6000) and printed.chance(4, 0, 100, digits=0) == 0.04


def test_six_averages_are_not_those_of_their_domains():
    off = printed.wrong_means(EVERY, slack=0.00501)
    assert len(off) == 6 and (off.printed - off["mean"]).abs().max() == pytest.approx(0.7)


def test_more_clients_train_on_a_larger_share():
    shares, changes = i2pfl.shares(), i2pfl.changes()
    assert shares.loc["PACS", "sketch"].tolist() == [4, 3, 1.0, pytest.approx(0.9)]     # 4 x 30 % is all
    assert shares.loc["Digits", "syn"].tolist() == [7, 5, pytest.approx(0.07), pytest.approx(0.05)]
    assert changes.loc["Digits", "avg"].tolist()[3] == 0 and changes.loc["PACS", "cartoon"].tolist()[3] == 9
    assert round(changes.loc["PACS", "cartoon"].change, 1) == 19.6


def test_what_the_tables_say_against_the_text():
    leads = i2pfl.leads("table2").loc["PACS"]
    assert leads["second best"] == "FedPLVM" and round(leads["ahead of it"], 2) == 0.45
    said = i2pfl.contradicted()["the table says"].tolist()
    assert said[0] == "On SYN it is number 4 of 9, 1.17 points below FedPLVM." and "in 1 of 4" in said[1]
    assert "Office-10 2.86 over averaging, 1.00 over clustering" in said[3] and "68.00 against 66.00" in said[4]


def test_tables_4_and_5_share_runs_and_their_rows_are_what_they_are_called(pages):
    runs = {k: {(p.row, p.block, p.seed): p.run for p in page.table.runs("lite")} for k, page in pages.items()}
    for (row, block, seed), run in runs[5].items():
        assert row != "reweighting" or run == runs[4]["full", block, seed]
        assert row != "clustering" or run.settings["construct"] == "cluster"


def test_rows_are_compared_seed_by_seed(pages):
    gap = pages[4].against("full").set_index(["block", "row"])
    assert gap.printed["office", "w/o EMA"] == pytest.approx(-1.49) and gap.n["mini", "w/o EMA"] == 3
    runs = {(p.row, p.seed): p.run for p in pages[4].table.runs("mini")}
    by_hand = [last5(runs["w/o EMA", s], pages[4].results) - last5(runs["full", s], pages[4].results) for s in range(3)]
    assert gap["mean"]["mini", "w/o EMA"] == pytest.approx(sum(by_hand) / 3)
    assert not gap.index.isin([("mini", "full")]).any()


@pytest.mark.parametrize("table", ["table2", "table7"])
def test_an_average_once_more_from_the_files(table):
    page = Page(f"i2pfl/{table}", "lite", [0, 1, 2])
    assert page.cells.ours.dropna().between(0, 100).all() and set(page.cells.block) == set(page.blocks)
    for block in page.ran:
        found = [last5(p.run, page.results) for p, _ in page.found if (p.block, p.row) == (block, "FedAvg")]
        cell = page.averages[page.averages.block == block].set_index("row").loc["FedAvg"]
        assert found and cell.n == len(found) and cell.ours == pytest.approx(sum(found) / len(found))


def test_rows_of_two_tables_are_compared(pages):
    fair = pages[4].compared({"fair": ("w/o EMA", "clustering")}, beside=pages[5]).set_index("block")
    assert fair.printed.dropna().round(2).tolist() == [-0.28, -0.49, -0.67]
    runs = [{p.seed: p.run for p in pages[k].table.runs("mini") if p.row == row}
            for k, row in ((4, "w/o EMA"), (5, "clustering"))]
    by_hand = [last5(runs[0][s], pages[4].results) - last5(runs[1][s], pages[5].results) for s in range(3)]
    assert fair["mean"]["mini"] == pytest.approx(sum(by_hand) / 3) and fair.n["mini"] == 3


def test_differences_are_read_and_drawn(pages):
    gaps = pages[5].against("reweighting")
    html = text.differences(gaps.assign(field="x"), "minus the method", form="{:+.2f}").to_html()
    assert "-2.86" in html and "minus the method" in html and ">x<" in html
    assert len(text.dots(gaps, "points").axes[0].get_yticks()) == gaps.row.nunique() >= 2
    assert text.dots(gaps[gaps.n < 0], "points").data == text.EMPTY


@pytest.mark.parametrize("profile", ["mini", "lite"])
def test_a_decision_changes_what_it_names(profile):
    table = tables.load_table("i2pfl/decisions")
    runs = {(p.row, p.block): p.run for p in table.runs(profile, [0])}
    given = {row["name"]: row.get("settings", {}) for row in table.rows}
    for (row, block), run in runs.items():
        default = runs["default", block]
        assert {k for k, v in run.settings.items() if v != default.settings[k]} == set(given[row])
        assert run.data == default.data and run.protocol == default.protocol


def test_table_7_differs_from_table_2_in_the_clients_alone():
    two, seven = (tables.load_table(f"i2pfl/table{k}") for k in (2, 7))
    for profile in tables.PROFILES:
        plans = {(p.row, p.block): p.run for p in two.runs(profile, [0])}
        for p in seven.runs(profile, [0]):
            other = plans[p.row, p.block]
            assert (p.run.settings, p.run.net, p.run.protocol) == (other.settings, other.net, other.protocol)
            assert len(set(p.run.data.clients)) == 1 and p.run.data.fraction == other.data.fraction


def test_an_average_over_unseen_domains_is_that_of_four_runs():
    page = Page("i2pfl/table3", "mini", [0, 1, 2])
    cell = page.averages.set_index("row").loc["FedAvg"]
    runs = [p.run for p in page.table.runs("mini", [0, 1, 2]) if p.row == "FedAvg"]
    rounds = [r for run in runs for r in records.read_record(run.path(page.results))["rounds"][-5:]]
    assert cell.n == 3 and len(runs) == 12
    assert cell.ours == pytest.approx(sum(sum(r["unseen"].values()) for r in rounds) / len(rounds))


def test_a_column_of_a_domain_that_nobody_trained_on_has_an_arrow(monkeypatch):
    shown = []
    monkeypatch.setattr(text, "titled", lambda title, table, *more: shown.append(list(table.columns)))
    Page("i2pfl/table3", "mini").show()
    Page("i2pfl/table7", "mini").show()
    assert shown[0] == ["Avg", *(f"→ {c}" for c in shown[1][1:5]), "n", "learned", "settled", "tuned"]


def test_the_papers_rates_are_not_called_ours(monkeypatch):
    """The paper's own experiment takes its rates, which counts as tuned, and is no choice on validation data."""
    shown = []
    monkeypatch.setattr(text, "titled", lambda title, table, *more: shown.append(table.data))
    page = Page("i2pfl/table2", "paper")
    page.show("office")
    assert set(shown[0].loc[["I2PFL", "FPL"], "tuned"]) == {"as printed"}
    assert page.table.tuned("FPL", "paper", "office", "")
    assert "tuned" not in answer.basis(page, "office", ["I2PFL", "FPL"])
    assert "tuned" in answer.basis(Page("i2pfl/table2", "lite"), "office", ["I2PFL", "FPL"])


def test_blocks_without_records_have_no_differences():
    assert Page("i2pfl/table3", "lite").between("office", "office_full").empty


FIGURES = ("figure6_tau", "figure6_alpha", "figure7_intra", "figure7_inter", "figure8")


def test_the_papers_best_values_are_in_the_grids_and_are_table_2s_row():
    two = tables.load_table("i2pfl/table2")
    for page in [Page(f"i2pfl/{name}", "lite", [0]) for name in FIGURES]:
        assert set(i2pfl.best(page).values()) <= set(i2pfl.grid(page).values()) and "mini" in page.titles
        for profile in tables.PROFILES:
            runs = [p for p in two.runs(profile, [0]) if p.row == "I2PFL" and p.block in page.table.blocks]
            digests = {(p.block, p.run.digest) for p in page.table.runs(profile, [0])}
            assert runs and {(p.block, p.run.digest) for p in runs} <= digests


def test_our_best_value_is_judged_beside_the_papers(monkeypatch):
    page = Page("i2pfl/figure6_tau", "lite", [0, 1, 2])
    assert i2pfl.varied(page) == "tau" and i2pfl.best(page) == {
        "Digits": 0.07, "Office-10": 0.02, "PACS": 0.04, "PACS, frozen features (not in the paper)": 0.04}
    runs = pd.DataFrame({"tau = 0.02": [50.0, 60.0], "tau = 0.07": [58.0, 69.0], "tau = 0.5": [10.0, 90.0]},
                        pd.MultiIndex.from_tuples([("office", 0), ("office", 1)], names=["block", "seed"]))
    monkeypatch.setattr(Page, "by", lambda self: runs)
    monkeypatch.setattr(page, "ran", ["office"])
    line = i2pfl.agreement(page).data.loc["Office-10"]
    assert line[["run", "paper", "ours", "gain", "n"]].tolist() == ["3 of 5", 0.02, 0.07, 8.5, 2]
    assert line["our best is"] == "another, its interval leaves out zero"      # 8.5 ± 6.4
    runs["tau = 0.07"] = [58.0, 90.0]
    assert i2pfl.agreement(page).data.loc["Office-10", "our best is"] == "another, not settled"
    assert i2pfl.agreement(page).data.loc["Office-10", "ours"] == 0.07
    monkeypatch.setattr(page, "ran", [])
    assert i2pfl.agreement(page).data == i2pfl.TWO_VALUES


# the method's page

def test_every_setting_has_a_reason():
    cells = json.loads((ROOT / "notebooks/i2pfl/method.ipynb").read_text())["cells"]
    source = next("".join(c["source"]) for c in cells if "why = {" in "".join(c["source"]))
    why = next(node for node in ast.parse(source).body if isinstance(node, ast.Assign) and node.targets[0].id == "why")
    choices = zoo.choices("I2PFL").set_index("setting")
    assert list(ast.literal_eval(why.value)) == list(choices.index)
    assert choices.default["ema"] == "0.99" and choices.alternatives["construct"] == "average, cluster"
    assert choices.alternatives["fold"] == "True" and choices.alternatives["tau"] == "a number"


def test_the_solutions_of_the_exercises():
    assert torch.allclose(reweighted(torch.tensor([[0.0], [8.0]])), torch.tensor([[4.0]]))
    assert torch.allclose(reweighted(torch.tensor([[10.0]] + [[0.0]] * 9)), torch.tensor([[9.0]]))
    line = torch.tensor([-3.0, 2.9, 2.9] + [0.0] * 10)[:, None]       # away from the farthest
    assert round(float(line.mean()), 2) == 0.22 and round(float(reweighted(line)), 2) == 0.43
    assert (line - line.mean()).abs().argmax() == 0
    folded = 2 * stats.beta(0.4, 0.4).expect(lambda g: g, lb=0.5, ub=1)
    assert abs(folded - 0.84) < 0.01
    own = make("I2PFL")
    assert (own.lam_intra, own.lam_inter, own.alpha, own.ema) == (10, 1, 0.4, 0.99)
