"""What tuning chose, as a page shows it: the tries, the choice, what it does to the verdicts."""
from pathlib import Path

import pytest
import small_paper

from fedlib import Page
from fedlib.experiments import tables, tune
from fedlib.report import plots, tuning

RESULTS = Path(__file__).parents[2] / "results"
ROWS = '{ name = "FedAvg" }, { name = "FedProx" }'


@pytest.fixture
def page(tmp_path, monkeypatch):
    """FedProx is above FedAvg as given, below when both are tuned."""
    text = small_paper.content(ROWS, range(3), "rounds = 2, lr = 0.05", small_paper.CLAIM)
    small_paper.use(tmp_path, monkeypatch, text)
    results = tmp_path / "results"
    monkeypatch.setenv("FEDLIB_RESULTS", str(results))
    table = tables.load_table("small/t")
    best = {"FedAvg": (0.15, 0), "FedProx": (0.05, 0.1)}
    small_paper.fill(results, tune.tries(table, "mini"), lambda p: 70.0 if (p.run.protocol.lr, p.run.settings.get(
        "mu", 0)) == best[p.row] else 100 * p.run.protocol.lr)
    tune.keep(table, tune.choose(table, "mini", results))
    table = tables.load_table("small/t")
    at = {"FedAvg": 50.0, "FedProx": 60.0, "FedAvg, tuned": 75.0, "FedProx, tuned": 65.0}
    uneven = {"FedProx, tuned": 1.1}       # a lead that is the same with every seed would decide nothing
    small_paper.fill(results, table.runs("mini"), lambda p: at[p.row] + p.seed * uneven.get(p.row, 1))
    small_paper.fill(results, table.references("mini"), lambda p: 10.0)
    return Page("small/t", "mini")


def test_the_tries_of_each_row_and_what_they_chose(page):
    found = tuning.tries(page, "b")
    assert found.groupby("row", sort=False).size().to_dict() == {"FedAvg": 8, "FedProx": 8}
    assert found.chosen.sum() == found.given.sum() == 2 and (found[found.chosen].accuracy == 70).all()
    assert found[found.row == "FedAvg"].usual.all()             # it has no weight
    assert found[found.row == "FedProx"].usual.sum() == 4       # the others have ten times or a tenth of it
    chosen = tuning.choices(page, "b")
    assert list(chosen.chosen) == ["rate 0.15", "rate 0.05, weight 0.1"]
    assert list(chosen["test, as given"]) == [51, 61] and list(chosen["test, tuned"]) == [76, pytest.approx(66.1)]
    figure = plots.tries(found)
    assert [ax.get_title() for ax in figure.axes] == ["FedAvg", "FedProx"]
    assert figure.axes[0].get_xscale() == "log"


def test_a_rate_at_the_end_of_the_grid_says_so(page):
    small_paper.fill(page.results, tune.tries(page.table, "mini"), lambda p: 100 * p.run.protocol.lr)
    tune.keep(page.table, tune.choose(page.table, "mini", page.results))
    chosen = tuning.choices(Page("small/t", "mini"), "b").chosen
    assert list(chosen) == ["rate 0.5, the last one tried", "rate 0.15, the last one tried, weight 0.01"]


def test_a_verdict_that_tuning_turns(page):
    line, = tuning.verdicts(page).to_dict("records")
    assert line == {"says": "FedProx is above FedAvg.", "as given": "undecided (+10.0 ± 0.0)",
                    "tuned": "contradicted (-9.9 ± 0.2)"}


def test_a_table_without_tuned_rows_says_so(page, monkeypatch):
    (tables.PAPERS / tables.TUNED).unlink()
    shown = Page("small/t", "mini").show_tuning()
    assert "No row of this table is tuned: `fedlib tune small/t --profile mini`" in shown.data


def test_the_committed_choices_are_those_of_the_committed_tries():
    for ident, places in tables.tuned_settings().items():
        table = tables.load_table(ident)
        for place, rows in places.items():
            block, profile = place.rsplit(".", 1)
            for row, kept in rows.items():
                again = tune.choose(table, profile, RESULTS, [block], [row], kept["tries"], tuple(kept["seeds"]))
                assert again[place][row] == kept, (ident, place, row)
