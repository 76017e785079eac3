"""The leaderboard: data sets are the units, rows whose settings do not fit are not compared, and what the page says."""
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from fedlib import Page
from fedlib.experiments import stated, statistics, tables
from fedlib.report import leaderboard, marks


@pytest.fixture(scope="module")
def board():
    return leaderboard.Board(Page("across/methods", "lite"))


@pytest.fixture(scope="module")
def found(board):
    return statistics.against(board.means[board.compared], "FedAvg")


def test_what_a_round_sends_and_takes_does_not_depend_on_how_often_it_is_tested():
    """Sums of two rounds from test to test, in the first of them of one; a test before training is no round."""
    def line(start, *rounds):
        every = [{"round": r, "acc": {"a": 50.0}, "bytes_up": 100 * n, "seconds": s * n} for r, n, s in rounds]
        page = SimpleNamespace(found=[(SimpleNamespace(block="b", row="x", seed=0), {"rounds": start + every})],
                               table=SimpleNamespace(select="last"))
        return leaderboard.measured(page).iloc[0][["up", "seconds"]].tolist()
    untrained = [{"round": 0, "acc": {"a": 10.0}, "bytes_up": 0, "seconds": 0.0}]
    assert line([], (1, 1, 3.0), (2, 1, 2.0)) == line(untrained, (1, 1, 3.0), (2, 1, 2.0)) == [100, 2.0]
    assert line([], (2, 2, 3.0), (4, 2, 2.0), (5, 1, 4.0)) == [100, 2.0]


# by hand

def small(evidence=(), **attributes):
    """A board of two sets, A and B, of which a test says what is known."""
    blocks = {b: {"one": {"data": {"name": name}}} for b, name in (("a", "pacs"), ("b", "digits"))}
    page = SimpleNamespace(titles={"a": "A", "b": "B"}, blocks={"a": "one", "b": "one"}, seeds=[0, 1, 2],
                           table=SimpleNamespace(rows=[{"name": "I2PFL", "settings": {"tau": 0.04}},
                                                       {"name": "FedProx"}], blocks=blocks))
    made = object.__new__(leaderboard.Board)
    columns = ["block", "row", "n", "learned", "rise", "loss", "diverged", "tuned"]
    vars(made).update({"page": page, "of_row": {"I2PFL": "I2PFL", "FedProx": "FedProx"},
                       "blocks": ["a", "b"], "names": ["A", "B"],
                       "evidence": pd.DataFrame(evidence, columns=columns)} | attributes)
    return made


FINE = [(block, row, 3, True, 0.0, 2.0, False, False) for block in "ab" for row in ("FedProx", "I2PFL")]


def test_a_row_without_a_fault_is_compared():
    assert small(FINE).why_unranked("FedProx") == ""


@pytest.mark.parametrize("changed, why", [
    ({"diverged": True, "loss": 6e5}, "diverged on the way on B (a training loss of 6e+05)"),
    ({"learned": False}, "not above the constant answer on B"),
    ({"n": 1, "learned": None}, "2 of 3 runs on B left no record")])
def test_why_a_row_is_unranked(changed, why):
    fine = small(FINE).evidence
    line = fine[(fine.row == "FedProx") & (fine.block == "b")].iloc[0].to_dict() | changed
    rest = fine[~((fine.row == "FedProx") & (fine.block == "b"))]
    made = small()
    made.evidence = pd.DataFrame([*rest.to_dict("records"), line])
    assert made.why_unranked("FedProx") == why


def test_a_row_without_any_record_of_a_set_is_unranked():
    assert small(FINE[:2]).why_unranked("FedProx") == "3 of 3 runs on B left no record"


def test_settings_that_a_paper_chose_for_a_set_are_compared_with_the_rows():
    """I2PFL's paper: tau 0.04, alpha 0.2 and lam_intra 2 on PACS; 0.07, 0.4 and 10 on Digits. The row: tau 0.04."""
    assert small().for_other_data("I2PFL") == [
        "I2PFL's paper has alpha = 0.2 (here 0.4), lam_intra = 2.0 (here 10.0) for A",
        "I2PFL's paper has tau = 0.07 (here 0.04) for B"]


SETS = {"office_caltech", "pacs", "digits", "mini_digits"}


@pytest.mark.parametrize("method, dataset, printed", [
    ("I2PFL", "office_caltech", {"I2PFL": {"alpha": 0.4, "lam_intra": 10.0, "tau": 0.02}}),
    ("I2PFL", "pacs", {"I2PFL": {"alpha": 0.2, "lam_intra": 2.0, "tau": 0.04}}),
    ("FedPall", "digits", {"FedPall": {"delta": 0.7, "mu": 0.3, "server_epochs": 1}}),
    ("FedHEAL", "digits", {"FedPall": {"tau": 0.3}}), ("FedHEAL", "pacs", {"FedPall": {"tau": 0.4}}),
    ("FedProx", "pacs", {}),                # the same everywhere
    ("FedRep", "digits", {}),               # head_epochs go with the budget: lite and mini have others too
    ("FedPLVM", "pacs", {}),                # lam in the lite profile alone
    ("I2PFL", "mini_digits", {})])          # no paper's set
def test_what_papers_chose_by_the_set(method, dataset, printed):
    assert stated.of_set(method, dataset, SETS) == printed


def test_what_a_paper_chose_by_another_set_says_nothing_of_these():
    assert stated.of_set("FedHEAL", "pacs", {"pacs", "office_caltech"}) == {}


def test_the_verdict_over_the_sets():
    gaps = pd.DataFrame({"up": [3.0, 3.1, 3.2, 3.1], "down": [-4.0, -1.0, -2.0, -1.5], "no": [1.0, -1.0, 2.0, -2.0]})
    scores = gaps.assign(FedAvg=0.0)
    said = small(gaps=gaps).verdict(statistics.against(scores, "FedAvg")).data.splitlines()
    assert said[0] == "- After Holm's correction over 3 comparisons **up** differs from FedAvg for sure on 4 sets."
    assert "2 leave zero out. Above it lie up (+3.1 ± 0.1" in said[1] and "below it down (-2.1 ± 2.1" in said[1]
    assert "If nothing differed, 0.2 of 3 would" in said[1]
    twice = scores.assign(less=scores.up - 2, more=scores.up + 2, low=scores.down - 5)
    said_of_all = small(gaps=gaps).verdict(statistics.against(twice, "FedAvg")).data.splitlines()[1]
    places = [said_of_all.index(f" {name} (") for name in ("more", "up", "less", "low", "down")]
    assert places == sorted(places)         # the largest difference first, above and below
    sd = gaps.std().median()                # of "down": 1.3
    assert f"deviation of {sd:.1f} points" in said[2]
    assert f"**{statistics.least_difference(sd, 4):.1f} points**" in said[2]
    assert f"{statistics.least_difference(sd, 4, 1 - 0.05 / 3):.1f} points at the level that" in said[2]


def test_a_second_look_by_hand():
    pairs = pd.DataFrame({"a": [0.0, 1, 2, 100], "b": [5.0, 5, 5, 5]})
    made = small(pairs=pairs, gaps=pd.DataFrame({"a": [0.5, 51], "b": [5.0, 5]}))
    look = made.second_look()
    assert look.loc["a"].tolist() == [25.75, 1.5] and list(look.index) == ["b", "a"]
    frame = made.profiles([0, 2], ["a"])
    assert list(frame) == ["points over FedAvg", "method", "share of sets and seeds"]
    assert frame["share of sets and seeds"].tolist() == [0.75, 0.25]


def test_what_transfers_is_said_by_signs_and_by_what_moves():
    gaps = pd.DataFrame({"up": [1.0, 2], "down": [-1.0, -3], "turns": [-9.0, 2]}, index=["A", "B"])
    tau = pd.DataFrame([[0.8, 0.3], [0.3, 0.6]], index=["A", "B"], columns=["A", "B"])
    said = small(gaps=gaps).transfer(tau).data
    assert "Two seeds of one set agree to τ = 0.70 on average" in said and "Two sets agree to τ = 0.30 on" in said
    assert "every set: **up**. Below it on every set: down. That is 2 of 3 methods" in said
    assert "Tossed coins would give 2," in said         # of 3 methods on 2 sets: 3 * 2 / 4 = 1.5
    assert "FedAvg: turns goes from -9.0 on A to +2.0 on B, down goes" in said


def test_groups_of_methods():
    gaps = pd.DataFrame({"Local": [1.0, 3], "FedPer": [3.0, 5], "FedProx": [-2.0, -4]}, index=["A", "B"])
    made = leaderboard.grouped(gaps, leaderboard.nets)
    half = stats.t.ppf(0.975, 1) * np.std([2, 4], ddof=1) / 2 ** 0.5
    assert made.loc["with personal nets"].tolist() == [2, f"+3.0 ± {half:.1f}", 2.0, 4.0]
    assert made.loc["with one net"].drop("over the sets").tolist() == [1, -2, -4]
    assert list(made.index) == ["with personal nets", "with one net"]


def test_leaders():
    lines = pd.DataFrame({"method": ["A", "A", "B", "B"], "accuracy": [10.0, 20, 40, 60], "worst": [1.0, 3, 2, 2],
                          "up": [1000, 1000, 5000, 5000], "seconds": [2.0, 1.0, 3.0, 4.0]})
    made = leaderboard.leaders(lines, passes={"A": 2, "B": 4})
    assert list(made.index) == ["B", "A"] and list(made.passes) == [4, 2] and list(made.n) == [2, 2]
    assert list(made["up (kB)"]) == [5, 1] and list(made.seconds) == [3, 1]
    assert made["worst (%)"]["B"] == "2.0 ± 0.0" and made["accuracy (%)"]["A"].startswith("15.0 ± ")


def test_an_order_has_four_methods_at_least():
    one, other = pd.Series([1, 2, 3, 4], list("abcd")), pd.Series([4, 3, 2, 1, 9], list("abcde"))
    both = leaderboard.order(one, other)
    assert both.tau == -1 and both.n == 4 and str(both).startswith("-1.00 (n = 4, p = ")
    assert str(leaderboard.order(one[:3], other)) == "–"


# from the records

def test_a_set_is_one_unit_whose_seeds_are_averaged_first(board, found):
    assert list(board.means.index) == board.names and (found.n == len(board.blocks)).all()
    lines = board.lines[board.lines.method.isin(["APFL", "FedAvg"])]
    means = [[lines[(lines.block == b) & (lines.method == m)].accuracy.sum() / 3 for b in board.blocks]
             for m in ("APFL", "FedAvg")]
    assert found.loc["APFL", "p"] == pytest.approx(stats.ttest_rel(*means).pvalue)
    assert found.loc["APFL", "mean"] == pytest.approx(np.subtract(*means).mean())
    assert list(board.gaps["APFL"]) == pytest.approx(np.subtract(*means))
    assert len(board.pairs) == 3 * len(board.blocks)
    assert np.allclose(board.pairs.groupby("block").mean().loc[board.blocks], board.gaps)


def test_rows_that_do_not_fit_are_not_compared(board, found):
    assert {"FedDTR", "I2PFL", "COPA"} <= set(board.unranked) and "FedAvg" in board.compared
    assert sorted([*board.compared, *board.unranked]) == sorted(board.methods)
    assert set(found.index) == set(board.gaps) == set(board.compared) - {"FedAvg"}
    rows = board.evidence[board.evidence.row.isin(board.compared)]
    assert not rows.diverged.any() and rows.learned.eq(True).all() and (rows.n == 3).all()
    assert "PACS (a training loss of 6e+05)" in board.unranked["COPA"]
    assert "lam_intra = 2.0 (here 10.0)" in board.unranked["I2PFL"]
    assert "2 of 3 runs on PACS left no record; diverged on the way on Digits" in board.unranked["FedDTR"]


def test_a_sets_table_marks_its_rows_and_ends_with_the_floors(board):
    for block in board.blocks:
        made, n = board.table(block), len(board.compared)
        assert list(made.index[-2:]) == [tables.CONSTANT, "chance"] and len(made) == len(board.methods) + 2
        assert {name.removesuffix(" *") for name in made.index[n:-2]} == set(board.unranked)
        assert (made["minus FedAvg"][n:-2] == "unranked").all() and (made["p (Holm)"][n:-2] == "–").all()
        floor = marks.floors_of(board.page, block)[tables.CONSTANT]
        domains = [value for name, value in floor.items() if name != "avg"]
        assert made.loc[tables.CONSTANT][:2].tolist() == [f"{np.mean(domains):.1f}", f"{min(domains):.1f}"]
        heights = [float(cell.partition(" ")[0]) for cell in made["accuracy (%)"][:n]]
        assert heights == sorted(heights, reverse=True)
        alone = board.of(block).pivot(index="seed", columns="method", values="accuracy")
        assert made.loc["MOON", "minus FedAvg"].startswith(f"{(alone.MOON - alone.FedAvg).mean():+.1f} ± ")
        rows = board.evidence[board.evidence.block == block].set_index("row")
        for row in ("FedAvg", "SCAFFOLD", "FedProto"):
            rise = rows.rise[row]
            assert made.loc[row, "settled"] == ("rises" if rise > 1 else "falls" if rise < -1 else "yes")
            assert made.loc[row, "learned"] == marks.WORDS[rows.learned[row]]


def test_the_floors_are_those_of_the_data(board):
    floors = {block: marks.floors_of(board.page, block) for block in board.blocks}
    assert floors["pacs"]["chance"]["avg"] == pytest.approx(100 / 7) and floors["mini"]["chance"]["street"] == 10
    assert all(f[tables.CONSTANT]["avg"] >= 0.9 * f["chance"]["avg"] for f in floors.values())


def test_the_protocol_is_the_same_on_all_sets(board):
    given = {k for b, p in board.page.blocks.items() for k in board.page.table.blocks[b][p]["protocol"]}
    assert given < set(board.alike()) and "net" in board.alike()
    assert (board.alike()["rounds"], board.alike()["epochs"]) == (10, 1)


# what the page says in words

def test_most_rows_still_rise_and_none_is_tuned(board):
    assert (board.evidence.rise > 1).mean() > 0.5 and not board.evidence.tuned.any()
    said = board.stands_on().data
    assert f"**{(board.evidence.rise > 1).sum()} of {len(board.evidence)}** rows still rise" in said
    assert "None of them is tuned." in said


def test_what_the_figures_show(board, found):
    # fig-standing, fig-profiles
    outside = {m: bool(r["mean"] > 0) for m, r in found.iterrows() if abs(r["mean"]) > r.half}
    assert outside == {"FedProto": True, "APFL": True, "FedPHP": True, "DBE": True, "FedPLVM": False,
                       "PerFedAvg": False}
    assert (found.holm > 0.05).all()
    assert found.half.idxmax() == "FedBABU" and found.half.FedBABU == pytest.approx(25, abs=0.5)
    far = board.gaps.FedBABU
    assert (far[["Digits", "mini_digits"]] < -25).all() and (far[["PACS", "Office-Caltech-10"]].abs() < 2).all()
    share = statistics.profiles(board.pairs, [-15, -10, 0, 5.5, 6.5, 10])
    assert (share.loc[0, ["APFL", "FedProto", "DBE"]] > 0.9).all() and (share.loc[0, ["MOON", "FedBABU"]] < 0.3).all()
    assert share.APFL[5.5] > share.FedProto[5.5] and share.APFL[6.5] < share.FedProto[6.5]
    assert share.FedBABU[-15] == 0.5 and (share.Local[-10], share.Local[10]) == (1, 0)


def test_some_rows_lose_on_digits_what_they_had(board):
    rise = board.evidence[board.evidence.block == "digits"].set_index("row").rise
    assert set(rise.index[rise < -5]) == {"FedBABU", "COPA"}


def test_the_solutions_of_the_exercises(board, found):
    some = board.means[board.compared].rank(axis=1, ascending=False).mean()
    every = board.means.rank(axis=1, ascending=False).mean()[board.compared]
    assert [(a, b) for a in some.index for b in some.index if some[a] < some[b] and every[a] > every[b]]
    worst = statistics.against(board.by_set("worst")[board.compared], "FedAvg")
    assert worst.half.median() > found.half.median() and (worst.holm > 0.05).all()
    four, eight, many = (statistics.least_difference(1.0, n) for n in (4, 8, 32))
    assert four / eight > 2 ** 0.5 and many / eight == pytest.approx(0.5, abs=0.07)
    assert [round(stats.t.ppf(0.975, n - 1), 2) for n in (4, 8)] == [3.18, 2.36]
