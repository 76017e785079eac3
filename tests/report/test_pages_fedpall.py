"""What FedPall's pages say, once more from the printed numbers, the plans and the records."""
import itertools
import math

import pandas as pd
import pytest
import torch

from fedlib import Page
from fedlib.core.params import nbytes, snapshot
from fedlib.engine import records
from fedlib.experiments import filled, statistics, tables
from fedlib.methods import make
from fedlib.models.nets import Arch, HiddenLayers, build
from fedlib.probes.cost import cost
from fedlib.report import fedpall, printed, text


@pytest.fixture(scope="module")
def page():
    return fedpall.with_spreads(Page("fedpall/table1", "lite", [0, 1, 2]))


# Table 1

def test_an_average_once_more_from_the_files(page):
    assert page.cells.ours.dropna().between(0, 100).all() and set(page.cells.block) == set(page.blocks)
    for block in page.ran:
        files = [p.run.path(page.results) for p, _ in page.found if (p.block, p.row) == (block, "FedPall")]
        best = [max(sum(r["acc"].values()) / len(r["acc"]) for r in records.read_record(f)["rounds"]) for f in files]
        cell = page.averages[page.averages.block == block].set_index("row").loc["FedPall"]
        assert files and cell.n == len(files) and cell.ours == pytest.approx(sum(best) / len(best))


def test_no_rule_beats_the_best_round_on_the_test_images(page):
    gain = page.compared({row: (row, row) for row in page.rows}, beside=page.chosen("last5")).query("n > 0")
    assert (gain["mean"] > -1e-9).all() and gain["mean"].max() > 1


def test_rows_of_the_paper_and_of_ours(page):
    assert len(page.printed_rows) == 12 and set(fedpall.spreads().index.unique("method")) == set(page.printed_rows)
    assert fedpall.variants(page)["FedBN, all norms"] == ("FedBN, all norms", "FedBN") and len(
        fedpall.variants(page)) == 7
    average = page.printed.avg.unstack("method")
    lead = average.FedPall - average.drop(columns="FedPall").max(axis=1)
    assert lead.round(1).to_dict() == {"office": 3.0, "digits": 1.1, "pacs": 1.1}


def test_a_net_of_ones_own_is_compared_where_all_controls_ran(page):
    """Tuned rows with FedPall's tuned form; each the mean of differences paired by seed."""
    found = fedpall.own_net(page)
    assert len(found) == len(fedpall.CONTROLS) * found.dataset.nunique() and found.n.min() > 1
    line = found[(found.block == "pacs_features") & (found.row == "FedAvg, tested after training")].iloc[0]
    ours = page.averages[page.averages.block == "pacs_features"].set_index("row").ours
    assert line.tuned and line.n > 1
    assert line["mean"] == pytest.approx(ours["FedPall, one rate, tuned"]
                                         - ours["FedAvg, tested after training, tuned"])


def test_a_printed_number_has_its_deviation_in_brackets(page):
    line = page.cells.set_index(["block", "row", "setting"]).loc[("office", "FedPall", "avg")]
    assert filled.cell(line).startswith("67.5 (2.7) | ")
    assert filled.cell(line.drop("spread")).startswith("67.50 | ")


def test_two_means_of_three_runs_by_hand():
    # variance of the difference 2.7^2 / 3 + 1.8^2 / 3 = 3.51; 3.48 degrees of freedom, t = 2.95
    assert statistics.welch(2.7, 1.8, 3) == pytest.approx(5.52, abs=0.02)
    assert statistics.welch(2.0, 2.0, 3) == pytest.approx(2.776 * math.sqrt(8 / 3), abs=0.01)     # 4 degrees
    assert fedpall.welch("office", "ADCOL") == statistics.welch(2.7, 1.8, 3)
    assert math.isnan(fedpall.welch("mini", "ADCOL"))


def test_places(page):
    places = fedpall.places(page)
    assert places.printed["Office-10", "avg"] == 1 and "Digits" in places.index.unique("dataset")
    twelve = page.averages[page.averages.row.isin(page.printed_rows)]
    ours = twelve[twelve.block == "pacs_features"].set_index("row").ours
    assert places.ours[page.titles["pacs_features"], "avg"] == 1 + (ours > ours.FedPall).sum()
    assert places.loc["Digits"].ours.isna().all()       # nothing ran


def test_the_profiles_beside_the_papers_protocol(page):
    made = fedpall.protocols(page)
    assert made.loc["Digits", "share of the training images"].tolist() == ["10 %", "10%", "–"]
    assert made.loc["Office-10", "net"].tolist() == ["ResNet-50", "ResNet-50", "ResNet-18, width 16"]
    assert (made["the paper"][["Office-10", "Digits"]].xs("rounds", level=1) == 100).all()


def test_a_row_is_told_with_its_protocol(page):
    assert page.settings_in_words("FedHEAL") == "tau = 0.4, window = after, lr = 0.001, evaluate = after; " \
        "Digits: tau = 0.3; Office-10, lite: lr = 0.1; PACS, lite: lr = 0.01; " \
        "Office-10, frozen features, lite: lr = 0.01; PACS, frozen features, lite: lr = 0.01; mini, mini: lr = 0.05"
    assert page.settings_in_words("FedProx, tuned").endswith("; PACS, frozen features, lite: lr = 0.03")     # chosen


def test_what_each_client_holds(page):
    held = page.held()
    assert held.loc["Office-10", "dslr"].tolist() == [126, 31] and "Digits" not in held.index.unique("dataset")


# the printed table by itself

def test_three_runs_from_their_mean_and_deviation():
    assert fedpall.triples(77.4, 3.2, 31) == [(23, 24, 25)] and fedpall.triples(77.4, 3.2, 31, ddof=0) == []
    assert fedpall.triples(50.0, 50.0, 2) == [(0, 1, 2)]
    table, std = printed.of_paper("fedpall").loc["table1"].loc["office"], fedpall.spreads().loc["office"]
    found = [sum(bool(fedpall.triples(*pair, 31, ddof)) for pair in zip(table.dslr, std.dslr, strict=True))
             for ddof in (1, 0)]
    assert found == [11, 0]


def test_entries_are_three_runs_on_our_test_images():
    held, table = fedpall.held(), printed.of_paper("fedpall").loc["table1"]
    fit = {s: sum(printed.fits(v, 3 * n, fedpall.ONE_DIGIT) for v in table.loc["office"][s])
           for s, n in held.test["office"].items()}
    assert fit == {"amazon": 12, "caltech": 12, "dslr": 12, "webcam": 11}
    assert held.train["digits"].tolist() == [5600, 7943, 743, 39116, 5600] and held.test["office", "dslr"] == 31


def test_what_the_numbers_say_against_the_text(page):
    said = fedpall.contradicted(page)["the numbers say"].tolist()
    assert said[0].startswith("Not on 5 of 13: Amazon (number 3)") and said[0].endswith("the best on 6.")
    assert said[1] == "By 3.0 (Office-10), 2.1 (Digits), 2.0 (PACS)."
    assert "33.7 there, 11.0 points below" in said[2] and "4.6 less" in said[2] and said[3].startswith("By 1.8 points")
    assert said[4].startswith("The figure's best is 69.12 (mu = 0.2, delta = 0.2), 1.6 above")


def test_a_row_of_ours_changes_what_it_names(page):
    rows = {row["name"]: row for row in page.table.rows}
    assert rows["RUCR"]["settings"]["rectified"] == "start" and rows["FedHEAL"]["settings"]["window"] == "after"
    assert page.table.select == "best-test"
    runs = {(p.row, p.block): p.run for p in page.table.runs("lite", [0])}
    for row, (_, released) in fedpall.variants(page).items():
        for block in {b for r, b in runs if r == row}:
            run, base = runs[row, block], runs[released, block]
            moved = {k for k, _ in run.settings.items() ^ base.settings.items()}
            assert moved or run.protocol != base.protocol
            assert row != "FedPall, as printed" or {"kl", "contrast", "means", "mask", "scope", "draws"} <= moved


def test_messages_weigh_what_a_round_counts():
    arch = Arch("cnn4", 2, "hidden")
    found, net, server = cost("FedPall", arch, 10, (3, 28, 28), 4), build(arch, 10, (3, 28, 28), 0), make("FedPall")
    server.setup(net)
    amplifier = snapshot(HiddenLayers(net.dim, 4, bias=False))
    assert found["bytes_down"] == nbytes(server.broadcast("0")) + nbytes(amplifier)
    up = {"z": torch.zeros(20, net.dim), "y": torch.zeros(20, dtype=torch.long), "g": torch.zeros(10, net.dim)}
    assert 0 <= found["bytes_up"] - nbytes(up) <= 100       # counts, and the number of images
    stays = make("FedBN", {"norms": "name"}).private(build(Arch("resnet50", head="hidden"), 10, (3, 64, 64), 0))
    assert any(k.startswith("head") for k in stays) and not any("downsample" in k for k in stays)


# Figures 3 to 6

@pytest.fixture(scope="module")
def five():
    return Page("fedpall/figure5", "lite", [0, 1, 2])


def test_rows_that_name_the_same_run_share_it(five):
    runs = {k: {(p.row, p.block): p.run for p in tables.load_table(f"fedpall/figure{k}").runs("lite", [0])}
            for k in (3, 5, 6)}
    for block in {b for _, b in runs[3]}:
        full = runs[3]["CE + InfoNCE + KL", block]
        assert runs[6]["with", block] == full
        assert runs[3]["CE", block].settings == full.settings | {"mu": 0.0, "delta": 0.0}
        assert runs[6]["without", block].settings == full.settings | {"replace": False}
    of = fedpall.weights(five)
    assert set(of.values()) == set(itertools.product((0.1, 0.2, 0.5, 1.0), repeat=2))
    for (row, block), run in runs[5].items():
        assert (run.settings["mu"], run.settings["delta"]) == of[row]
        assert row != "mu = 0.1, delta = 0.1" or run == runs[3]["CE + InfoNCE + KL", block]


def test_the_heat_map_has_what_was_run(five):
    cells = fedpall.heat(five)
    mini = cells[cells.block == "mini"]
    assert mini.title.unique().tolist() == ["mini_digits (not in the paper): 16 of 16 cells, n = 3 seeds each"]
    best = mini.loc[mini.ours.idxmax()]
    assert best.ours == pytest.approx(five.by().loc["mini"][f"mu = {best.mu}, delta = {best.delta}"].mean())
    assert len(fedpall.heat_map(mini).axes[0].texts) == 16


def test_how_far_the_weights_move_accuracy(five):
    cells = fedpall.heat(five)
    moved, mini = fedpall.ranges(five, cells).loc["mini_digits (not in the paper)"], cells[cells.block == "mini"]
    assert moved["best minus worst"] == pytest.approx(mini.ours.max() - mini.ours.min())
    gap = five.by().loc["mini"][moved["best cell"]] - five.by().loc["mini"]["mu = 0.1, delta = 0.1"]
    assert moved["minus 0.1, 0.1"] == pytest.approx(gap.mean()) and moved.n == 3
    columns = [part.ours for _, part in mini.groupby("delta")]
    assert moved["by mu alone"] == pytest.approx(max(ours.max() - ours.min() for ours in columns))


def test_the_two_printed_cells_in_both_readings(five):
    found = fedpall.readings(five)
    assert five.printed.avg.max() == five.printed.avg["office", "mu = 0.2, delta = 0.2"] == 69.12
    assert list(found.index) == [("mu = 0.2, delta = 0.2", "as printed"), ("mu = 1.0, delta = 0.2", "as printed"),
                                 ("mu = 1.0, delta = 0.2", "exchanged")]
    assert found["our cell"].tolist()[1:] == ["mu = 1.0, delta = 0.2", "mu = 0.2, delta = 1.0"]


def test_what_the_classifier_is_worth_on_caltech_is_printed():
    six = Page("fedpall/figure6", "lite", [0, 1, 2])
    gaps = six.by_domain("with", "without").set_index(["block", "row"])
    assert list(gaps.index.unique("block")) == [block for block, _ in itertools.groupby(gaps.index, lambda at: at[0])]
    assert gaps.printed["office", "caltech"] == pytest.approx(15.6) and gaps.printed.notna().sum() == 1


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


def test_a_tuned_row_is_compared_with_the_tuned_form_of_the_other():
    page, whole = Page("fedpall/figure3", "lite"), "CE + InfoNCE + KL"
    by_seed = page.by().loc["office_features"]
    for gaps, sign in ((page.against(whole), 1), (page.ahead(whole), -1)):
        mine = gaps[gaps.block == "office_features"].set_index("row")["mean"]
        for form in ("", ", tuned"):
            assert mine[f"CE{form}"] == pytest.approx(sign * (by_seed[f"CE{form}"] - by_seed[f"{whole}{form}"]).mean())
        assert "CE, tuned" not in set(gaps[gaps.block == "mini"].row)       # nothing is tuned there
