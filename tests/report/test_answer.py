"""The box that a page begins with says what is printed, what ours is, the verdict, and what was not run."""
import dataclasses
import re

import pandas as pd
import pytest
import small_paper

from fedlib import Page
from fedlib.experiments import tables
from fedlib.report import answer

ROWS = '{ name = "FedProx" }, { name = "FedAvg" }, { name = "MOON" }, { name = "MOON, mild", method = "MOON", ' \
       'printed = "MOON", settings = { mu = 0.1 } }'
PRINTED = "t,b,avg,FedProx,accuracy,90.0\nt,b,avg,FedAvg,accuracy,88.5\nt,b,avg,MOON,accuracy,80.0\n" \
          "t,far,avg,FedProx,accuracy,70.0\n"
FAR = """
[blocks.far]
title = "Far, away"
columns = { scans = "S" }
[blocks.far.paper]
data = { name = "tiny_digits", domains = ["scans"] }
net = { net = "linear" }
protocol = { rounds = 1 }
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    text = small_paper.content(ROWS, range(3), "rounds = 4, epochs = 2, lr = 0.05", small_paper.CLAIM + FAR)
    text = text.replace('blocks = ["b"]', 'question = "Is FedProx <better>?"\nblocks = ["b", "far"]')
    text = text.replace("[blocks.b.mini]", "[blocks.b.lite]")
    small_paper.use(tmp_path, monkeypatch, text, PRINTED)
    monkeypatch.setenv("FEDLIB_RESULTS", str(tmp_path / "results"))
    table = tables.load_table("small/t")
    at = {"FedProx": 60.0, "FedAvg": 61.0, "MOON": 50.0, "MOON, mild": 75.0}
    small_paper.fill(tmp_path / "results", table.runs("lite"), lambda p: None if (p.row, p.seed) == ("MOON", 2) else
                     [0, 0, 0, at[p.row] + p.seed])
    small_paper.fill(tmp_path / "results", table.references("lite"), lambda p: 10.0)
    return Page("small/t", "lite")


def test_a_card_says_place_and_distance_printed_and_ours(page):
    found = answer.card(page, "b")
    assert found["said"]["printed"] == "FedProx best of 3 with 90.0 %, 1.5 above FedAvg"
    # the other weight of MOON is MOON too
    assert found["said"]["ours"] == "FedProx third of 3 with 61.0 %, 15.0 ± 0.0 below MOON, mild"
    assert found["verdicts"] == {"not evidence": 1} and found["own"]
    assert found["basis"] == "lite profile, 4 rounds of 2 epochs, 3 seeds; of 3 rows 3 learned, 0 settled, 0 tuned"


def test_a_row_aside_takes_no_place(page):
    rows = [r | {"aside": r["name"] == "FedAvg"} for r in page.table.rows]
    page.table = dataclasses.replace(page.table, rows=rows)
    assert answer.card(page, "b")["said"]["ours"] == "FedProx second of 2 with 61.0 %, 15.0 ± 0.0 below MOON, mild"


def test_of_the_row_that_is_judged_the_lowest_reading_stands(page):
    """A claim must hold in each reading of its better row, so the highest would promise too much."""
    rows = [r | ({"printed": "FedProx"} if r["name"] == "MOON" else {}) for r in page.table.rows]
    page.table = dataclasses.replace(page.table, rows=rows)
    assert answer.card(page, "b")["said"]["ours"].startswith("MOON second of 2 with 50.5 %, 11.0 ± 0.0 below FedAvg")


def test_without_the_constant_answer_it_is_unknown_who_learned(page):
    for path in page.results.rglob("Constant-*.json"):
        path.unlink()
    assert "of 3 rows 0 learned (3 unknown), 0 settled" in answer.card(Page("small/t", "lite"), "b")["basis"]


def test_the_box_says_what_was_not_run_and_escapes_what_it_says(page):
    text = answer.box(page).data
    assert "Is FedProx &lt;better&gt;?" in text and "\n\n" not in text
    assert "<b>Not run:</b> Far, away (for a GPU)." in text
    assert "1 of 12 runs of the lite profile are missing: <code>fedlib run small/t --profile lite</code>" in text
    assert re.search(r'verdict-not-evidence" title="[^"]+">not evidence<', text)
    assert text.count(f'<abbr title="{answer.WORDS["settled"]}">settled</abbr>') == text.count("answer-basis") > 0


@pytest.mark.parametrize("values, subject, words", [
    ({}, "a", ""), ({"a": 50.0}, "a", "a 50.0 %"),
    ({"a": 50.0, "b": 50.0}, "b", "b best of 2 with 50.0 %, 0.0 above a"),
    ({"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}, "a", "a number 4 of 4 with 1.0 %, 3.0 below d"),
    ({"a": 1.0, "b": 2.0}, "", "b best of 2 with 2.0 %, 1.0 above a")])
def test_places(values, subject, words):
    assert answer.placed(pd.DataFrame([values], dtype=float), subject) == words


def test_places_are_those_on_common_seeds():
    """B's third seed lifts its mean above A's, which has none."""
    values = pd.DataFrame({"a": [60.0, 61.0, None], "b": [50.0, 51.0, 99.0]})
    assert answer.placed(values, "a") == "a best of 2 with 60.5 %, 10.0 ± 0.0 above b"
    three = values.assign(FedAvg=values["b"] - 5)
    assert answer.placed(three, "", "%", "FedAvg") == \
        "a best of 3 with 60.5 %, 10.0 ± 0.0 above b, 15.0 ± 0.0 above FedAvg"
    assert answer.placed(three, "FedAvg", "%", "FedAvg") == answer.placed(three, "FedAvg")


def test_every_table_asks_a_question():
    asked = {ident: tables.load_table(ident).question for ident in tables.idents()}
    assert all(q.endswith("?") and len(q) < 120 for q in asked.values()), asked
    assert len(set(asked.values())) == len(asked)


def test_where_nothing_is_printed_a_card_has_the_rows_of_the_paper():
    """Rows of ours that weigh clients otherwise are no rivals, on features of a set as on the set itself."""
    found = answer.card(Page("i2pfl/table2", "lite"), "office_features")
    said = found["said"]
    assert " of 9 with " in said["ours"] and "equal weights" not in said["ours"] and not said["printed"]


def test_one_net_for_all_and_nets_of_ones_own_are_two_answers_of_tuned_rows():
    said = answer.card(Page("across/features", "lite"), "office_features")["said"]
    assert list(said) == ["printed", "one net", "own nets"]
    assert said["one net"].endswith("above FedAvg, tuned") and said["own nets"].endswith("above Local, tuned")
    assert " of 32 with " in said["one net"] and " of 27 with " in said["own nets"]
    # without tuning nobody is called the best
    assert answer.card(Page("across/methods", "lite"), "office")["said"] == {
        "ours": "nobody is named the best: the rows are not tuned"}


def test_what_no_number_answers_says_where_the_answer_is():
    assert answer.card(Page("mpft/figure5", "lite"), "pacs")["said"] == {"ours": "in the figures and tables below"}
    assert " of 3 with " in answer.card(Page("feddtr/table6", "lite"), "mnist")["said"]["printed"]      # that is one


def test_a_variant_of_a_block_has_a_card_where_its_rows_are_tuned():
    """The paper's schedule on a smaller net is tuned, and better evidence; other test images are not."""
    shown = answer.shown(Page("i2pfl/table2", "lite"))
    assert "office_16" in shown and "pacs_all" not in shown


def test_one_row_alone_and_features_that_were_not_kept_have_no_card():
    tau, features = Page("i2pfl/figure6_tau", "lite"), Page("i2pfl/figure4", "lite")
    assert answer.shown(tau) == ["pacs_features"] and "PACS (but for <i>tau = 0.04</i>)" in answer.absent(tau)
    assert answer.shown(features) == ["mini"] and "Office-10; PACS." in answer.absent(features)


def test_what_was_trained_as_the_paper_says_comes_first():
    """I2PFL's Office-10 was, on a GPU; a page of that profile says it once."""
    lite, full = (answer.box(Page("i2pfl/table2", profile)).data for profile in ("lite", "paper"))
    assert lite.index("Office-10, the paper&#x27;s protocol") < lite.index("Office-10, the paper&#x27;s schedule")
    assert full.count("paper&#x27;s protocol") == 1
    assert answer.whole(Page("i2pfl/figure4", "lite")) == []        # its answer is pictures
