"""What FedPall's pages say, once more from the printed numbers, the plans and the records."""
import math

import pandas as pd
import pytest

from fedlib import Page
from fedlib.engine import records
from fedlib.experiments import statistics, tables
from fedlib.report import fedpall, text


@pytest.fixture(scope="module")
def page():
    return fedpall.with_spreads(Page("fedpall/table1", "lite", [0, 1, 2]))


# Table 1

def test_an_average_once_more_from_the_files(page):
    assert page.cells.ours.dropna().between(0, 100).all() and set(page.cells.block) == set(page.blocks)
    for block in page.ran:
        files = [p.run.path(page.results) for p, _ in page.found if (p.block, p.row) == (block, "FedAvg")]
        best = [max(sum(r["acc"].values()) / len(r["acc"]) for r in records.read_record(f)["rounds"]) for f in files]
        cell = page.averages[page.averages.block == block].set_index("row").loc["FedAvg"]
        assert files and cell.n == len(files) and cell.ours == pytest.approx(sum(best) / len(best))


def test_no_rule_beats_the_best_round_on_the_test_images(page):
    gain = page.compared({row: (row, row) for row in page.rows}, beside=page.chosen("last5")).query("n > 0")
    assert (gain["mean"] > -1e-9).all() and gain["mean"].max() > 1


def test_rows_of_the_paper_and_of_ours(page):
    assert len(page.printed_rows) == 12 and set(fedpall.spreads().index.unique("method")) == set(page.printed_rows)
    assert fedpall.variants(page)["FedBN, all norms"] == ("FedBN, all norms", "FedBN") and len(
        fedpall.variants(page)) == 4
    average = page.printed.avg.unstack("method")
    lead = average.FedPall - average.drop(columns="FedPall").max(axis=1)
    assert lead.round(1).to_dict() == {"office": 3.0, "digits": 1.1, "pacs": 1.1}


def test_a_printed_number_has_its_deviation_in_brackets(page):
    line = page.cells.set_index(["block", "row", "setting"]).loc[("office", "FedPall", "avg")]
    assert tables.cell(line).startswith("67.5 (2.7) | ")
    assert tables.cell(line.drop("spread")).startswith("67.50 | ")


def test_two_means_of_three_runs_by_hand():
    # variance of the difference 2.7^2 / 3 + 1.8^2 / 3 = 3.51; 3.48 degrees of freedom, t = 2.95
    assert statistics.welch(2.7, 1.8, 3) == pytest.approx(5.52, abs=0.02)
    assert statistics.welch(2.0, 2.0, 3) == pytest.approx(2.776 * math.sqrt(8 / 3), abs=0.01)     # 4 degrees
    assert fedpall.welch("office", "ADCOL") == statistics.welch(2.7, 1.8, 3)
    assert math.isnan(fedpall.welch("mini", "ADCOL"))


def test_places(page):
    places = fedpall.places(page)
    assert places.printed["Office-10", "avg"] == 1 and "Digits" in places.index.unique("dataset")
    ours = page.averages[page.averages.row.isin(page.printed_rows)].query("block == 'pacs'").set_index("row").ours
    assert places.ours["PACS", "avg"] == 1 + (ours > ours.FedPall).sum()
    assert places.loc["Digits"].ours.isna().all()       # nothing ran


def test_the_profiles_beside_the_papers_protocol(page):
    made = fedpall.protocols(page)
    assert made.loc["Digits", "share of the training images"].tolist() == ["10 %", "10%", "–"]
    assert made.loc["Office-10", "net"].tolist() == ["ResNet-50", "ResNet-50", "ResNet-18, width 16"]
    assert (made["the paper"][["Office-10", "Digits"]].xs("rounds", level=1) == 100).all()


def test_a_row_is_told_with_its_protocol(page):
    assert page.settings_in_words("FedHEAL") == "tau = 0.4, window = after, lr = 0.001, evaluate = after; " \
                                                "Digits: tau = 0.3"


def test_what_each_client_holds(page):
    held = page.held()
    assert held.loc["Office-10", "dslr"].tolist() == [126, 31] and "Digits" not in held.index.unique("dataset")


# what messages say about images

def test_information_is_below_its_ceiling_and_stands_beside_the_papers():
    noise = Page("fedpall/privacy", "lite", [0, 1, 2])
    told = fedpall.information(noise)
    assert len(told) >= 20 and (told.nats <= told.ceiling + 1e-4).all() and (told.nats >= 0).all()
    lines = fedpall.noises(noise, told)
    mini = told[(told.block == "mini") & (told.row == "mask")]
    assert lines.n["mini_digits (not in the paper)", "mask"] == f"{len(mini)}, 3"
    assert lines.information["mini_digits (not in the paper)", "mask"].startswith(f"– | {mini.nats.mean():.1f} ± ")
    assert lines.information["Office-10", "mask"].startswith("3.04 | ") and lines.accuracy[
        "Office-10", "mixture and mask"].startswith("67.60 | ")
    assert lines.information["Office-10", "none"].startswith("– | ")


@pytest.mark.parametrize("profile", tables.PROFILES)
def test_rows_differ_in_the_noise_alone(profile):
    table = tables.load_table("fedpall/privacy")
    for block in [b for b, content in table.blocks.items() if profile in content]:
        runs = [p.run for p in table.runs(profile, [0]) if p.block == block]
        assert len({run.settings["noise"] for run in runs}) == len(runs) == 5
        assert len({(run.data, run.net, run.protocol) for run in runs}) == 1


def test_bars_stand_in_the_order_of_the_frame():
    lines = pd.DataFrame({"group": ["b", "b", "a"], "bar": ["y", "x", "y"], "ours": [3.0, 2.0, 1.0], "half": 0.5})
    axes = text.bars(lines, "group", "bar").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["b", "a"]
    assert [bars[0].get_height() for bars in axes.containers if hasattr(bars[0], "get_height")] == [3.0, 2.0]
    assert text.bars(lines[:0], "group", "bar").data == text.EMPTY


# how differences are told

def test_differences_in_words():
    lines = pd.DataFrame({"row": ["a", "b", "c", "d"], "mean": [2.0, -3.0, 0.5, 1.0],
                          "half": [1.0, 2.0, 0.6, float("nan")]})
    assert text.settled(lines) == (["a"], ["b"]) and text.ends(lines) == "-3.0 (b) to +2.0 (a)"
