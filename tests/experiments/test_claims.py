"""Verdicts: each, and each reason why there is none, on made-up records and on their borders; how often they err."""
import dataclasses
import json
import math
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import small_paper
from conftest import small_run

from fedlib.core.errors import UserError
from fedlib.engine import records
from fedlib.experiments import claims, evidence, filled, power, tables
from fedlib.experiments.claims import CONTRADICTED, NOT_EVIDENCE, NOT_RUN, SUPPORTED, UNDECIDED, judge_all, judge_claims
from fedlib.experiments.statistics import holm
from fedlib.models.nets import Arch
from fedlib.report import shown
from fedlib.report.page import Page

ROWS = ('{ name = "new", method = "FedAvg", tuned = true }, '
        '{ name = "x", method = "FedProx", tuned = true }, '
        '{ name = "y", method = "MOON", tuned = true }, '
        '{ name = "y, other weight", method = "MOON", printed = "y", settings = { mu = 1.0 }, tuned = true }')
CLAIMS = """
[[claims]]
id = "over-x"
source = "Table 1"
says = "new is above x."
table = "t"
block = "b"
setting = "avg"
better = "new"
than = ["x"]
[[claims]]
id = "best"
source = "Table 1"
says = "new is the best."
table = "t"
block = "b"
setting = "avg"
better = "new"
than = ["x", "y"]
"""
PRINTED = "t,b,avg,new,accuracy,70.0\nt,b,avg,x,accuracy,68.0\nt,b,avg,y,accuracy,69.0\n"


class Case:
    """A small table whose records are made up: accuracies by row, one for each seed."""

    def __init__(self, tmp_path, monkeypatch):
        text = small_paper.content(ROWS, range(3), "rounds = 10, lr = 0.05", CLAIMS)
        small_paper.use(tmp_path, monkeypatch, text, PRINTED)
        self.results, self.table = tmp_path / "results", tables.load_table("small/t")

    def change(self, **rows):
        """Other values of some rows."""
        self.table = dataclasses.replace(self.table, rows=[r | rows.get(r["name"], {}) for r in self.table.rows])

    def fill(self, constant=10.0, loss=1.0, **rows):
        rows = {{"other": "y, other weight"}.get(k, k): v for k, v in rows.items()}
        planned = 1 + max(max(r) if isinstance(r, dict) else len(r) - 1 for r in rows.values())
        self.table = dataclasses.replace(self.table, seeds=list(range(planned)))
        small_paper.fill(self.results, self.table.runs("mini"), lambda p: rows.get(p.row, {}).get(p.seed) if isinstance(
            rows.get(p.row), dict) else (rows.get(p.row, [])[p.seed:p.seed + 1] or [None])[0], loss)
        if constant is not None:
            seeds = range(max(map(len, rows.values())))
            small_paper.fill(self.results, self.table.references("mini", seeds), lambda p: constant)
        return judge_claims(self.table, "mini", self.results).set_index("id").loc["over-x"]


@pytest.fixture
def case(tmp_path, monkeypatch):
    return Case(tmp_path, monkeypatch)


@pytest.mark.parametrize("new, x, verdict", [
    ([60, 61, 62], [50, 51, 53], SUPPORTED),                # +9.7 ± 1.4
    ([50, 60, 70], [49, 58.9, 68.8], SUPPORTED),            # paired by seed: rows overlap, each seed leads by 1 to 1.2
    ([50, 51, 53], [60, 61, 62], CONTRADICTED),
    ([60, 61, 62, 50], [59, 62, 60, 51], UNDECIDED),
    ([60, 61, 62], [59, 60, 61], UNDECIDED),                # one image more each time, and the next?
    ([60, 61, 62.1], [59, 60, 61], SUPPORTED),
    ([60, 61, 62], [60, 62, 61], UNDECIDED),                # holds 0
    ([50, 50, 50], [50, 50, 50.001], UNDECIDED)])
def test_verdicts(case, new, x, verdict):
    line = case.fill(new=new, x=x)
    assert (line.verdict, line.reason) == (verdict, "")


def test_one_rival_refutes_a_best_whatever_became_of_the_others(case):
    """Ditto on PACS refutes that MPFT is best at home; that FedProx has not settled takes nothing from that."""
    rising = [[20] * 8 + [28, 30]] * 3
    for new, verdict in (([60, 61, 62], CONTRADICTED), ([80, 81, 82], NOT_EVIDENCE)):
        case.fill(new=new, x=[70, 71, 73], y=rising, other=[40, 41, 43])
        best = judge_claims(case.table, "mini", case.results).set_index("id").loc["best"]
        assert (best.verdict, best.reason) == (verdict, "" if verdict == CONTRADICTED else
                                               "still rising, by up to 9.0 points: y")
    case.fill(new=rising, x=[70, 71, 73], y=[60, 61, 62])
    best = judge_claims(case.table, "mini", case.results).set_index("id").loc["best"]
    assert (best.verdict, best.over) == (NOT_EVIDENCE, "x") and "new" in best.reason


def test_rows_with_the_same_numbers_answer_nothing(case):
    """MPFT's threshold never stopped the short runs: three of its values gave one net, and counted as undecided."""
    line = case.fill(new=[60, 61, 62], x=[60, 61, 62])
    assert line.verdict == NOT_EVIDENCE and "the same numbers with every seed" in line.reason


@pytest.mark.parametrize(("setting", "other", "form"), [("ood", True, "x, tuned"), ("ind", False, "x, tuned"),
                                                       ("ind", True, "x, tuned for ind")])
def test_a_claim_about_ind_is_about_rows_that_were_tuned_for_ind(case, setting, other, form):
    """FedProto on PACS gave up 3.5 points at home for ood, and a claim about its ind counted as contradicted."""
    won = {"settings": {}, "protocol": {"lr": 0.1}, "accuracy": 60.0, "given": 50.0}
    mine = won | {"tries": 2, "seeds": [100], "ind": won | {"protocol": {"lr": 0.3}} if other else won}
    given = [{k: v for k, v in row.items() if k != "tuned"} for row in case.table.rows]
    rows = [*given, *tables.tuned_rows(given, {"b.mini": {"new": mine | {"ind": won}, "x": mine}})]
    table = dataclasses.replace(case.table, rows=rows)
    claim = dict(block="b", setting=setting, better="new", than=["x"])
    asked = claims.in_tuned_form(claim, table, "mini")
    names = [r["name"] for r in table.rows]
    assert (asked["better"], asked["than"]) == ("new, tuned", [form])
    assert claims.rivals(asked, table, names) == [form] and claims.rivals(claim, table, names) == ["x"]
    assert ("x, tuned for ind" in names) == other and "new, tuned for ind" not in names
    for row in names:
        assert table.tuned(row, "mini", "b", setting) == (row in ("new, tuned", form)), row


def test_an_interval_that_ends_at_zero_does_not_lie_above():
    for shift, verdict in ((1e-6, SUPPORTED), (-1e-6, UNDECIDED)):
        mean, half = claims.interval([1.0, 2.0, 3.0])
        gaps = np.array([1.0, 2.0, 3.0]) - mean + half + shift
        assert claims.decided({"x": gaps})[0] == verdict
        assert claims.decided({"x": -gaps})[0] == (CONTRADICTED if verdict == SUPPORTED else UNDECIDED)


@pytest.mark.parametrize("given, reason", [
    (dict(new=[60, 61], x=[50, 51]), "only 2 seeds"),
    (dict(new=[60], x=[50]), "only 1 seed"),
    (dict(new=[60, 61, 62, 63, 64], x=[50, 51, 53]), "planned seeds have no record: 2 of x"),
    (dict(new=[60, 61, 62], x={0: 50, 2: 53}), "only 2 seeds; planned seeds have no record: 1 of x"),
    (dict(new=[60, 70, 50], x=[50, 75, 51], constant=45), "as wide as the whole column"),
    (dict(new=[60, 70, 50, 61], x=[50, 75, 51, 70], constant=45), "as wide as the whole column"),
    (dict(new=[60, 61, 62], x=[50, 51, 53], constant=None), "the constant answer was not run"),
    (dict(new=[60, 61, 62], x=[50, 51, 53], constant=52), "not above the constant answer: x"),
    (dict(new=[60, 61, 62], x=[50, 51, 53], constant=50), "not above the constant answer: x"),
    (dict(new=[[50] * 8 + [58.8, 60]] * 3, x=[30, 31, 33]), "still rising, by up to 9.4 points: new"),
    (dict(new=[60, 61, 62], x=[[55] * 8 + [51, 50]] * 3), "falling at its end, by up to 4.5 points: x"),
    (dict(new=[60, 61, 62], x=[50, 51, 53], loss=2e3), "diverged on the way: new (a training loss of 2e+03), x")])
def test_reasons_why_there_is_no_verdict(case, given, reason):
    line = case.fill(**given)
    assert line.verdict == NOT_EVIDENCE and reason in line.reason, line.reason
    assert line.direction in (SUPPORTED, CONTRADICTED, UNDECIDED)      # what the interval alone says stands beside it


@pytest.mark.parametrize(("half", "reason"), [
    (None, "not known whether more rounds would help, without runs of half as many: x"),
    (48.9, "still rising, by up to 1.1 points: x"), (49.1, ""), (60.0, "")])
def test_where_the_rate_falls_to_nothing_half_the_rounds_say_if_they_are_enough(case, half, reason):
    """FedAvg's curve on Office-10 was flat at the end of 60 rounds, 5 points above its end in 30."""
    case.change(x={"protocol": {"warmup": 1}})
    halves = case.table.halves("mini")
    assert {(p.row, p.run.protocol.rounds, p.run.protocol.warmup) for p in halves} == {("x", 5, 1)}
    if half:
        small_paper.fill(case.results, halves, lambda p: [70.0] * 4 + [half + p.seed])
    line = case.fill(new=[60, 61.5, 62], x=[[40] * 9 + [50 + k] for k in range(3)])      # x rises: the rate fell
    assert (line.verdict, line.reason) == ((NOT_EVIDENCE, reason) if reason else (SUPPORTED, ""))
    found = evidence.doubled(case.table, "mini", case.results).to_dict("records")
    assert found == ([{"block": "b", "row": "x", "n": 3, "half": half + 1, "whole": 51.0}] if half else [])


def test_a_row_has_settled_when_all_its_seeds_were_trained_in_half_the_rounds(case):
    case.change(x={"protocol": {"warmup": 1}})
    for done, settled in (((0, 1), False), ((0, 1, 2), True)):
        small_paper.fill(case.results, [p for p in case.table.halves("mini") if p.seed in done], lambda p: 50.0)
        line = case.fill(new=[60, 61, 62], x=[[50] * 10, [51] * 10, [50] * 10])
        assert (line.verdict == SUPPORTED) == settled and ("without runs of half" in line.reason) != settled


def test_just_settled_and_just_not():
    def curve(last):
        return [{"round": i + 1, "acc": {"a": v}} for i, v in enumerate([50.0] * 8 + [last, last])]
    assert evidence.rise(curve(51.0)) == 1.0 and not evidence.rise(curve(51.0)) > evidence.STILL
    assert evidence.rise(curve(51.1)) > evidence.STILL
    assert math.isnan(evidence.rise(curve(50.0)[:1])) and evidence.rise(curve(40.0)) == -10


@pytest.mark.parametrize(("new", "x", "verdict", "left"), [
    ([60, 60], [57, 58], UNDECIDED, "+0.0 ± 0.5 points over x"),       # 2 ahead; x rises by 1, and would gain 2 more
    ([60, 60], [57.6, 58], SUPPORTED, ""),                              # 0.8 more
    ([59, 60], [57, 58], SUPPORTED, ""),                                # both rise
    ([60, 60], [59, 58], SUPPORTED, ""),                                # a fall is no gain
    ([57, 58], [60, 60], UNDECIDED, "+0.0 ± 0.5 points over x"),
    ([57.6, 58], [60, 60], CONTRADICTED, "")])
def test_a_lead_must_stand_when_each_row_gains_what_twice_the_rounds_may_bring(case, new, x, verdict, left):
    def curves(before, last, *by_seed):
        return [[v + k for v in [40.0] * 6 + [before] * 2 + [last] * 2] for k in by_seed]
    line = case.fill(new=curves(*new, 0, 1, 2), x=curves(*x, 0, 1.2, 1.8))
    reason = f"going on as the curves rise, 20 rounds would leave {left}" * bool(left)
    assert (line.verdict, line.reason) == (verdict, reason) and line.direction != UNDECIDED
    assert "no number of seeds" not in line.evidence


def test_a_row_with_fewer_rounds_gains_as_often_as_it_takes_to_reach_the_others(case):
    """One method in 320 rounds is above itself in 80, where it counts as settled; doubled once, it would stay so."""
    case.change(x={"protocol": {"rounds": 5}}, new={"protocol": {"rounds": 20}})
    x = [[40.0] * 3 + [59.5 + k, 60.0 + k] for k in (0, 0.06, 0.09)]       # rises by 0.5, so by 1 with each doubling
    for lead, verdict in ((1.5, UNDECIDED), (2.5, UNDECIDED), (3.5, SUPPORTED)):
        line = case.fill(new=[[60.0 + lead + k] * 20 for k in (0, 0.1, 0)], x=x)
        assert (line.verdict, "40 rounds would leave" in line.reason) == (verdict, verdict == UNDECIDED)
        assert evidence.of_rows(case.table, "mini", case.results).groupby("row").rounds.max().to_dict() == {
            "new": 20, "x": 5}


def test_what_foretells_no_rival_is_none_that_is_doubted(case):
    """new gains 2 and is then level with x, which has settled; that y, still rising, would be far above is nothing."""
    new, x, rising = ([[v + k for v in curve] for k in (0, 0.2, 0.1)] for curve in (
        [40.0] * 6 + [57, 57, 58, 58], [60.0] * 10, [40.0] * 6 + [50, 50, 63, 63]))
    for others in ([30, 30, 30], rising):
        case.fill(new=new, x=[[v + k / 7 for v in c] for k, c in enumerate(x)], y=others, other=[30, 30, 30])
        best = judge_claims(case.table, "mini", case.results).set_index("id").loc["best"]
        assert (best.verdict, best.over) == (UNDECIDED, "x"), best.reason
        assert best.reason.startswith("going on as the curves rise, 20 rounds would leave")


@pytest.mark.parametrize("end, verdict", [(59.0, UNDECIDED), (50.0, SUPPORTED)])
def test_the_best_of_all_tests_must_not_decide_alone(case, end, verdict):
    """ADCOL's best test on PACS' features, 6 rounds of 25, was 1.7 points above FedPall's; at the end they were level.
    A curve that jumps has a higher maximum, whatever it stands for."""
    case.table = dataclasses.replace(case.table, select="best-test")
    line = case.fill(new=[[50.0, 64 + k] + [60.0 - k] * 8 for k in (0, 1, 3)], x=[[50.0, 59.5] + [end] * 8] * 3)
    reason = "the best of all tests is chosen on the test images; the last five rounds have -0.3 ± 3.8 points over x"
    assert (line.verdict, line.direction, line.reason) == (verdict, SUPPORTED, reason * (verdict == UNDECIDED))
    case.table = dataclasses.replace(case.table, select="last")
    assert case.fill(new=[60, 61, 62], x=[50, 51, 53]).verdict == SUPPORTED


def test_one_test_of_many_rounds_says_nothing_of_the_curve(case):
    case.change(x={"protocol": {"test_every": 10}})
    case.fill(new=[60, 61, 62])
    for p in [p for p in case.table.runs("mini") if p.row == "x"]:
        sums = dict.fromkeys(("bytes_up", "bytes_down", "seconds"), 1)
        record = small_paper.a_record(p, [50.0 + p.seed / 9] * 10)
        record["rounds"] = [({k: v for k, v in r.items() if k not in ("acc", "loss")} if r["round"] < 10 else r) | sums
                            for r in record["rounds"]]
        records.write_record(p.run.path(case.results), record)
    line = judge_claims(case.table, "mini", case.results).set_index("id").loc["over-x"]
    assert line.verdict == NOT_EVIDENCE and line.reason.startswith("not known whether more rounds would help")


def test_who_gains_nothing_by_twice_the_rounds(case):
    """A run that stopped before its last round would stop there again; where the rate falls, half the rounds say it."""
    def gain(rounds=10, stops=False, **protocol):
        case.change(x={"protocol": protocol})
        for p in [p for p in case.table.runs("mini") if p.row == "x"]:
            record = small_paper.a_record(p, [40.0] * (rounds - 2) + [50, 51])
            record["rounds"] = [r | ({"val": {"a": 50.0}} if stops else {}) for r in record["rounds"]]
            records.write_record(p.run.path(case.results), record)
        return evidence.of_rows(case.table, "mini", case.results).set_index(["setting", "row"]).loc["avg", "x"].gain
    assert gain() == evidence.GROWS * (50.5 - 40)
    assert gain(5, stops=True, patience=2) == 0
    assert gain(warmup=1) == 0          # not settled: half the rounds were not trained
    small_paper.fill(case.results, case.table.halves("mini"), lambda p: 50.0)
    assert gain(warmup=1) == 1


def test_what_a_rise_foretells(case):
    """Of 20 rounds the first ten end with a rise of 3, and the others bring 7 more; a row of ten rounds has no half."""
    curve = [40.0] * 6 + [50, 50, 53, 53] + [60.0] * 10
    case.change(new={"protocol": {"rounds": 20}})
    case.fill(new=[curve, curve, [v + 1 for v in curve]], x=[50.0, 51, 52])
    found = evidence.foretold(case.table, "mini", case.results).to_dict("records")
    assert found == [{"block": "b", "row": "new", "rise": 3.0, "gain": 7.0}]


def test_the_last_fifth_of_a_curve_and_its_largest_loss():
    """Of 20 rounds the last four, minus the four before; of two rounds the last. Round 0 is a test before training."""
    def curve(*values):
        return [{"round": i, "acc": {"a": v - 1, "b": v + 1}} for i, v in enumerate(values)]
    assert evidence.rise(curve(*[90] * 13, *[40, 50, 60, 70], *[61, 62, 63, 70])) == 64 - 55
    assert evidence.rise(curve(0, 40, 50)) == 10 and evidence.rise(curve(*[5] * 13, 30, 31)) == 30.5 - 5
    assert filled.highest_loss([{"train_loss": 2.0}, {"train_loss": -5.0}, {}]) == 5


def test_of_one_seed_nothing_is_known(case):
    assert case.fill(new=[60], x=[50]).reason == "only 1 seed"
    line = evidence.of_rows(case.table, "mini", case.results).set_index(["setting", "row"]).loc["avg", "new"]
    assert line.learned is None and line.above == 50 and math.isnan(line.half)


def test_untuned_rows_are_no_evidence_but_in_the_papers_own_experiment(case):
    rows = [dict(r, tuned=False) for r in case.table.rows]
    case.table = dataclasses.replace(case.table, rows=rows)
    assert case.fill(new=[60, 61, 62], x=[50, 51, 53]).reason == "compared as given, not tuned"
    rows[0]["tuned"] = True
    assert case.fill(new=[60, 61, 62], x=[50, 51, 53]).reason == "not tuned: x"
    assert case.table.tuned("x", "paper", "b", "avg") and not case.table.tuned("x", "lite", "b", "avg")


def test_what_is_not_run_is_said(case):
    assert (case.fill(new=[60, 61, 62]).verdict, case.fill(new=[60, 61, 62]).evidence) == (NOT_RUN, "no records of x")
    line = case.fill(new={0: 60, 1: 61, 2: 62}, x={3: 50, 4: 51, 5: 53})
    assert (line.verdict, line.evidence) == (NOT_RUN, "no seed in common")


def test_a_claim_over_several_rivals_needs_all_of_them_and_their_variants(case):
    def best(**rows):
        case.fill(**rows)
        return judge_claims(case.table, "mini", case.results).set_index("id").loc["best"]
    rows = dict(new=[60, 61, 62], x=[50, 51, 53], y=[40, 41, 43])
    line = best(**rows)
    assert (line.verdict, line.evidence) == (NOT_RUN, "no records of y, other weight")
    line = best(**rows, other=[40, 41, 43])
    assert (line.verdict, line.over, line.printed) == (SUPPORTED, "x", 2.0), line.reason
    line = best(**rows, other=[60.5, 60.9, 62.1])           # the rival's other weight is the rival too
    assert (line.verdict, line.over, line.printed) == (UNDECIDED, "y, other weight", 1.0)
    line = best(**rows | dict(other=[70, 71, 73]))
    assert (line.verdict, line.over) == (CONTRADICTED, "y, other weight")


def test_a_claim_about_a_row_with_two_readings_needs_both(case):
    """I2PFL's claim that MOON is above FedProto fell with one of MOON's two weights; the paper states none. Which
    counts must not depend on the order of the rows."""
    claim = dict(block="b", setting="avg", better="y", than=["x"])
    def verdict(one, other):
        case.fill(new=[1, 2, 3], x=[50, 51, 53], y=one, other=other)
        return claims.judge(claim, claims.values(case.table, "mini", case.results),
                            evidence.of_rows(case.table, "mini", case.results), case.table)["verdict"]
    above, below, among = [60, 61, 62], [40, 41, 42], [48, 52, 53]
    assert verdict(above, [62, 63, 64]) == SUPPORTED and verdict(below, [41, 42, 43]) == CONTRADICTED
    for one, other in ((above, below), (above, among), (below, among)):
        assert {verdict(one, other), verdict(other, one)} == {UNDECIDED}


def test_a_reading_that_is_planned_and_was_not_run_is_missing(case):
    """Left out, the reading with which FedPall loses its lead would have made a claim supported."""
    claim = {"id": "y", "source": "", "says": "", "block": "b", "setting": "avg", "better": "y", "than": ["x"]}
    case.table = dataclasses.replace(case.table, claims=case.table.claims + [claim])
    rows = dict(new=[1, 2, 3], x=[50, 51, 53], y=[60, 61, 62.5])
    for change, verdict in (({}, NOT_EVIDENCE), ({"profiles": ["lite"]}, SUPPORTED)):
        case.change(**{"y, other weight": change})
        case.fill(**rows)
        line = judge_claims(case.table, "mini", case.results).set_index("id").loc["y"]
        assert line.verdict == verdict and line.direction == SUPPORTED
        assert line.reason == "planned, and not run, is another reading: y, other weight" * (verdict == NOT_EVIDENCE)


def test_one_of_many_rivals_must_be_clearly_above():
    """-1.0 ± 0.9 contradicts a claim over one rival; over eight the level is stricter."""
    gaps = np.array([-0.6, -1.0, -1.3, -1.1])
    assert claims.decided({"x": gaps}) == (CONTRADICTED, ["x"])
    easy = {f"r{i}": np.array([5.0, 6.0, 9.0, 1.0]) for i in range(40)}
    assert claims.decided({"x": gaps} | easy)[0] == UNDECIDED


def test_the_rival_that_decides_is_the_one_that_comes_nearest():
    far, near, wide = np.array([9.0, 9.1, 9.2]), np.array([1.0, 1.1, 1.2]), np.array([4.0, 5.0, 6.0])
    for gaps in ({"far": far, "near": near}, {"near": near, "far": far}):
        assert claims.decided(gaps) == (SUPPORTED, ["near"])
    assert claims.decided({"near": near + 2, "wide": wide}) == (SUPPORTED, ["wide"])    # 5 - 2.5 is less than 3.1 - 0.2
    assert claims.decided({"far": -far, "near": -near}) == (CONTRADICTED, ["far"])


def test_best_or_second_best_leaves_room_for_one_rival():
    """What is truly second of eleven was contradicted in 477 of 500 draws, over the one rival that may be above."""
    high, low = np.array([-4.0, -4.1, -4.2]), np.array([6.0, 6.1, 6.2])
    sure, unsure = np.array([-2.0, -2.01, -2.02]), np.array([-9.0, 1.0, -2.0])
    assert claims.decided({"a": high, "b": low}, 2) == (SUPPORTED, ["a", "b"])
    assert claims.decided({"a": high, "b": sure, "c": low}, 2) == (CONTRADICTED, ["a", "b"])
    assert claims.decided({"a": sure, "b": unsure, "c": low}, 2)[0] == UNDECIDED     # one is above, perhaps
    draws = np.random.default_rng(0).normal(size=(500, 11, 5)) + np.array([0, 4, *[-6] * 9])[:, None]
    found = [claims.decided({str(r): row[0] - row[r] for r in range(1, 11)}, 2)[0] for row in draws]
    assert found.count(CONTRADICTED) < 5 and found.count(SUPPORTED) > 400
    three = {r: pd.Series(gap) for r, gap in {"a": high, "b": sure, "c": low}.items()}
    assert claims.compared(three, 2)["p"] == pytest.approx(3 * claims.p_value(three["a"]))
    assert claims.compared({"a": three["a"], "c": three["c"]}, 2)["p"] == claims.p_value(three["c"])


def test_a_printed_difference_has_a_sign(case):
    claim = case.table.claims[0]
    assert claims.printed_difference(claim, "x", case.table) == 2
    assert claims.printed_difference(claim | {"better": "x"}, "new", case.table) == -2
    assert math.isnan(claims.printed_difference(claim | {"setting": "scans"}, "x", case.table))


def test_the_p_value_of_a_claim_over_several_rivals():
    """The largest where all lie above; where one does not, the smallest of those below times the number of rivals."""
    clearly, barely, below = (pd.Series(s) for s in ([1.0, 1.2, 1.1], [0.2, 0.9, 0.1], [-1.0, -1.2, -0.5]))
    assert claims.compared({"x": clearly, "y": barely})["p"] == claims.p_value(barely) > claims.p_value(clearly)
    assert claims.compared({"x": clearly, "y": below, "z": barely})["p"] == 3 * claims.p_value(below)
    assert claims.compared({"x": pd.Series([-1.0, 1.0, 0.0]), "y": clearly})["p"] == 1


def test_the_size_of_a_difference_is_judged_apart(case):
    line = case.fill(new=[60, 61, 62, 60], x=[50, 51, 53, 51])
    assert (line.verdict, line.printed, line.agrees) == (SUPPORTED, 2.0, False)
    line = case.fill(new=[60, 61, 62, 60], x=[57.5, 59.2, 60.1, 57.9])
    assert (line.verdict, line.agrees) == (SUPPORTED, True)


def test_an_undecided_claim_says_how_many_seeds_would_show_the_printed_lead(case):
    line = case.fill(new=[60, 61, 62, 60], x=[59, 62, 60.5, 61])
    gap = np.array([1, -1, 1.5, -1])
    assert line.needs == claims.seeds_needed(2.0, gap.std(ddof=1)) > 4
    assert line.evidence.endswith(f"printed +2.00, within the interval; {line.needs} seeds would show such a lead")
    line = case.fill(new=[60, 61, 62, 60], x=[60.2, 60.9, 62.1, 59.9])      # there were enough
    assert (line.verdict, line.needs) == (UNDECIDED, 2)
    assert line.evidence.endswith("printed +2.00, outside the interval")


def test_a_reading_without_a_tuned_form_stands_as_it_is_given_and_released_code_is_none(case):
    """MPFT's baselines as released were rivals where they were tuned, and else left out without a word."""
    won = {"settings": {}, "protocol": {}, "accuracy": 60.0, "given": 50.0, "tries": 2, "seeds": [100]}
    given = [{k: v for k, v in row.items() if k != "tuned"} for row in case.table.rows]
    for released, than in ((False, ["y, tuned", "y, other weight"]), (True, ["y, tuned"])):
        given[-1]["aside"] = released
        tuned = tables.tuned_rows(given, {"b.mini": {"new": won, "y": won}})
        table = dataclasses.replace(case.table, rows=[*given, *tuned])
        asked = claims.in_tuned_form(dict(block="b", setting="avg", better="new", than=["y"]), table, "mini")
        assert claims.rivals(asked, table, [r["name"] for r in table.rows]) == than


def test_the_order_of_rivals_decides_nothing():
    one, bad = pd.Series([5.0]), pd.Series([-5.0, -5.5, -6.0])
    for gaps in ({"one": one, "bad": bad}, {"bad": bad, "one": one}):
        found = claims.compared(gaps)
        assert (found["direction"], found["over"]) == (CONTRADICTED, "bad") and found["p"] < 0.05


def test_the_rival_with_the_fewest_seeds_counts(case):
    case.fill(new=[60, 61, 62], x=[55, 56.1, 57.2], y=[40, 41.5], other=[40, 41, 43])
    best = judge_claims(case.table, "mini", case.results).set_index("id").loc["best"]
    assert (best.verdict, best.direction, best.n) == (NOT_EVIDENCE, SUPPORTED, 3) and "only 2 seeds" in best.reason


def test_rows_that_were_not_tuned_alike_are_no_evidence():
    good = {"tuned": True, "missing": 0, "diverged": False, "crumbs": False, "above": 5.0, "learned": True, "n": 3,
            "rise": 0.0, "settled": True, "end": False}
    rows = [good | {"row": r, "by": [tries, 100, 101]} for r, tries in (("a", 3), ("b", 3), ("c", 1))]
    assert evidence.faults(rows[:2]) == [] and evidence.faults(rows) == ["rows were not tuned alike"]
    rows[0] |= {"learned": None}        # of three seeds
    assert evidence.faults(rows[:2]) == ["the constant answer was not run with every seed"]


def test_the_same_runs_are_evidence_once(tmp_path, monkeypatch):
    again = CLAIMS.split("[[claims]]")[1].replace('id = "over-x"', 'id = "again"')
    text = small_paper.content(ROWS, range(3), "rounds = 10, lr = 0.05", CLAIMS + "\n[[claims]]" + again)
    small_paper.use(tmp_path, monkeypatch, text, PRINTED)
    table, results = tables.load_table("small/t"), tmp_path / "results"
    assert set(judge_all(results).verdict) == {NOT_RUN} and set(judge_all(results).profile) == {""}
    small_paper.fill(results, table.runs("mini"), lambda p: {"new": 60.0 + p.seed, "x": 50.0}.get(p.row, 40.0) + p.seed)
    small_paper.fill(results, table.references("mini"), lambda p: 10.0)
    every = judge_all(results).set_index("id")
    assert list(every.verdict) == [SUPPORTED, SUPPORTED, NOT_EVIDENCE] and set(every.profile) == {"mini"}
    assert every.loc["again"].reason == "the same numbers already stand behind over-x"
    assert list(every.holm.notna()) == [True, True, False]


def test_chances_are_adjusted_over_the_claims_of_a_paper(tmp_path, monkeypatch):
    papers = small_paper.use(tmp_path, monkeypatch, small_paper.content(ROWS, range(3), "lr = 0.05", CLAIMS), PRINTED)
    (papers / "other.toml").write_text(small_paper.content(ROWS, range(3), "lr = 0.1", CLAIMS))
    (papers / "other.csv").write_text((papers / "small.csv").read_text())
    for paper, far in (("small", 10.0), ("other", 3.0)):
        table = tables.load_table(f"{paper}/t")
        small_paper.fill(tmp_path, table.runs("mini"), lambda p, far=far: {
            "new": 50 + far + 2 * p.seed, "x": 50.0 + p.seed}.get(p.row, 47.0 - p.seed))
        small_paper.fill(tmp_path, table.references("mini"), lambda p: 10.0)
    every = judge_all(tmp_path)
    assert set(every.verdict) == {SUPPORTED} and every.p.nunique() == len(every) == 4
    for _, part in every.groupby("paper"):
        assert list(part.holm) == holm(list(part.p)) and (part.holm > part.p).any()


def test_two_columns_with_one_number_are_evidence_once(tmp_path, monkeypatch):
    """Every domain has the same accuracy here, as ind and ood have where all clients have one net."""
    over_x, best = (f"[[claims]]{part}" for part in CLAIMS.split("[[claims]]")[1:])
    there = over_x.replace('id = "over-x"', 'id = "there"').replace('"avg"', '"scans"')
    text = small_paper.content(ROWS, range(3), "rounds = 10, lr = 0.05", over_x + best + there)
    small_paper.use(tmp_path, monkeypatch, text, PRINTED)
    table = tables.load_table("small/t")
    height = {"new": [60.0, 62.0, 64.0], "x": [50.0, 51.0, 52.0]}
    small_paper.fill(tmp_path, table.runs("mini"), lambda p: height.get(p.row, [40.0, 41.0, 42.0])[p.seed])
    small_paper.fill(tmp_path, table.references("mini"), lambda p: 10.0)
    found = judge_claims(table, "mini", tmp_path).set_index("id")
    assert found.verdict.to_dict() == {"over-x": SUPPORTED, "best": SUPPORTED, "there": NOT_EVIDENCE}
    assert found.reason["there"] == "the same numbers already stand behind over-x"


def test_another_table_says_it_again_also_over_fewer_rivals(tmp_path, monkeypatch):
    """Two tables of the same rows: `again` names x alone where `best` names x and y; over y alone nothing was said."""
    over_x, best = (f"[[claims]]{part}" for part in CLAIMS.split("[[claims]]")[1:])
    again = over_x.replace('id = "over-x"', 'id = "again"').replace('table = "t"', 'table = "u"')
    second = f'[tables.u]\ntitle = "U"\nblocks = ["b"]\nseeds = [0, 1, 2]\nselect = "last"\nrows = [{ROWS}]\n'
    text = small_paper.content(ROWS, range(3), "rounds = 4, lr = 0.05", second + best + over_x + again)
    small_paper.use(tmp_path, monkeypatch, text, PRINTED)
    t, u, results = tables.load_table("small/t"), tables.load_table("small/u"), tmp_path / "results"
    small_paper.fill(results, t.runs("mini"), lambda p: {"new": 60.0 + p.seed, "x": 50.0}.get(p.row, 40.0) + p.seed)
    small_paper.fill(results, t.references("mini"), lambda p: 10.0)
    every = judge_all(results).set_index("id")
    assert every.verdict.to_dict() == {"best": SUPPORTED, "over-x": SUPPORTED, "again": NOT_EVIDENCE}
    assert every.reason["again"] == "the same runs already stand behind best"
    assert claims.said_before(t, "mini", results) == {} == claims.said_before(u, "mini", tmp_path / "none")
    assert claims.said_before(u, "mini", results) == {"again": every.loc["again", ["verdict", "reason"]].to_dict()}
    page = Page("small/u", "mini")
    page.results = results
    assert page.judged[["verdict", "reason"]].values.tolist() == [[NOT_EVIDENCE, every.reason["again"]]]


@pytest.mark.parametrize("ident", ["i2pfl/table2", "i2pfl/table3", "i2pfl/table7"])
def test_who_claims_to_be_above_moon_is_compared_with_both_of_its_weights(ident):
    table = tables.load_table(ident)
    there = {p.row for p in table.runs("lite")}
    over = [c for c in table.claims if "MOON" in c["than"]]
    assert over and all({"MOON", "MOON, mu = 1"} <= set(claims.rivals(c, table, there)) for c in over)
    assert all("MOON, mu = 1" not in claims.rivals(c, table, there) for c in table.claims if "MOON" not in c["than"])


def test_a_claim_of_averaged_prompts_over_adapters_names_those_of_the_paper():
    """"Such as FedCLIP and FACMIC" (FedDEAP, section 3.2): a linear layer of ours among them would decide it."""
    found = [c for c in tables.load_table("feddeap/table1").claims if c["better"] == "PromptFL"]
    assert len(found) == 4 and all(c["than"] == ["FedCLIP", "FACMIC"] for c in found)


def test_a_claim_is_judged_by_the_strongest_profile_that_decides_it(tmp_path, monkeypatch):
    """On a real table: MOON far above on lite, then below in the paper's own experiment."""
    monkeypatch.setattr(claims, "idents", lambda: ["i2pfl/table2", "i2pfl/table3"])
    table = tables.load_table("i2pfl/table2")
    small_paper.fill(tmp_path, table.runs("lite"), lambda p: 80.0 + p.seed if p.row.startswith("MOON") else 70.0)
    small_paper.fill(tmp_path, table.references("lite"), lambda p: 20.0)
    line = judge_all(tmp_path).set_index("id").loc["table2-pacs-contrastive-moon"]
    assert (line.profile, line.verdict, line.direction) == ("lite", NOT_EVIDENCE, SUPPORTED)     # nothing is tuned
    small_paper.fill(tmp_path, table.runs("paper"), lambda p: 60.0 + p.seed / 10 if p.row.startswith("MOON") else 70.0)
    small_paper.fill(tmp_path, table.references("paper"), lambda p: 20.0)
    every = judge_all(tmp_path).set_index("id")
    line = every.loc["table2-pacs-contrastive-moon"]
    assert (line.profile, line.verdict) == ("paper", CONTRADICTED)
    assert every.loc["table3-pacs-best"].profile == ""      # of a table that has no records


def test_a_profile_that_decides_goes_before_a_stronger_one_that_does_not(tmp_path, monkeypatch):
    """Two seeds on lite are no evidence; three on mini are; three on lite go before them."""
    lite = small_paper.content("", protocol="rounds = 5").split("[blocks.b.mini]")[1].split("[tables.t]")[0]
    text = small_paper.content(ROWS, range(3), "rounds = 4, lr = 0.05", f"[blocks.b.lite]{lite}" + CLAIMS)
    small_paper.use(tmp_path, monkeypatch, text, PRINTED)
    table, results = tables.load_table("small/t"), tmp_path / "results"

    def judged(profile, seeds):
        runs = [p for p in (*table.runs(profile), *table.references(profile)) if p.seed in seeds]
        values = {"new": 60.0, "x": 50.0, tables.CONSTANT: 10.0}
        small_paper.fill(results, runs, lambda p: values.get(p.row, 40.0) + p.seed * (2 if p.row == "new" else 1))
        line = judge_all(results).set_index("id").loc["over-x"]
        return line.profile, line.verdict
    assert judged("lite", (0, 1)) == ("lite", NOT_EVIDENCE)
    assert judged("mini", (0, 1, 2)) == ("mini", SUPPORTED)
    assert judged("lite", (2,)) == ("lite", SUPPORTED)


# what the command line says

def test_from_a_claim_to_its_records(case):
    case.fill(new=[60, 61, 62], x=[50, 51, 53])
    found = shown.why("over-x", case.results)
    assert found["claim"]["verdict"] == SUPPORTED and found["claim"]["n"] == 3
    values = {(r["row"], r["seed"]): r["value"] for r in found["records"]}
    assert values["new", 1] == 61 and values["x", 2] == 53 and values[tables.CONSTANT, 0] == 10
    text = shown.why_text(found)
    assert "supported" in text and "fedlib run small/t --profile mini --seeds 1 --only" in text
    listed = shown.claims_listing("small", case.results)
    assert json.loads(json.dumps(listed))[0]["id"] == "over-x" and set(listed[0]) == set(shown.CLAIM)
    assert "2 claims: 1 supported, 1 not run" in shown.claims_text(listed)
    with pytest.raises(UserError, match="unknown claim 'over-y'; did you mean 'over-x'"):
        shown.why("over-y", case.results)


def test_what_a_table_can_show(case):
    case.fill(new=[60, 61, 62], x=[50, 52, 53])
    line = power.of_blocks(case.table, "mini", case.results).iloc[0]
    assert line.seeds == 3 and line.printed == 1.0 and line.sd == pytest.approx(np.std([10, 9, 9], ddof=1))
    assert line.least == pytest.approx(power.least_difference(line.sd, 3))
    assert line.needs == claims.seeds_needed(1, line.sd)
    assert "3 seeds find" in power.in_words(power.of_blocks(case.table, "mini", case.results))
    assert "no records yet" in power.in_words(power.of_blocks(case.table, "mini", case.results / "none"))


# how often a verdict is wrong where nothing differs

@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("rivals", [1, 8])
def test_at_most_5_percent_of_empty_claims_are_decided(seeds, rivals):
    """10,000 tables in which all rows have the same mean and share half of their noise, seed by seed."""
    draws = np.random.default_rng(0).normal(size=(10_000, rivals + 1, seeds))
    found = [claims.decided({str(r): row[0] - row[r] for r in range(1, rivals + 1)})[0] for row in draws]
    wrong = sum(f != UNDECIDED for f in found) / len(found)
    assert wrong < 0.05 + 3 * (0.05 * 0.95 / 10_000) ** 0.5, wrong
    assert (wrong > 0.03) == (rivals == 1) or rivals > 1       # the test of one rival is exact, not timid


def test_a_model_for_all_is_judged_beside_one_answer_for_all(tmp_path, monkeypatch):
    """Where clients hold different classes, FedAvg cannot reach each one's own most frequent class: it learned all the
    same. A row with a model for each client must be above that."""
    text = small_paper.content('{ name = "FedAvg" }, { name = "Local" }', range(3), "rounds = 4, lr = 0.05")
    small_paper.use(tmp_path, monkeypatch, text.replace("fraction = 0.5", "dirichlet = 0.1, minimum = 1"))
    table, results = tables.load_table("small/t"), tmp_path / "results"
    assert {p.row for p in table.references("mini")} == {tables.CONSTANT, tables.COMMON}
    small_paper.fill(results, table.runs("mini"), lambda p: 50.0 + p.seed)
    small_paper.fill(results, table.references("mini"), lambda p: 70.0 if p.row == tables.CONSTANT else 20.0)
    rows = evidence.of_rows(table, "mini", results).query("setting == 'avg'").set_index("row")
    assert rows.learned.to_dict() == {"FedAvg": True, "Local": False}
    assert rows.above.to_dict() == {"FedAvg": 31.0, "Local": -19.0}


@pytest.mark.parametrize("how, found", [
    ({}, True), ({"batch": 7}, False), ({"least_batch": 4}, False), ({"net": "cnn4"}, False)])
def test_batch_norm_over_two_images_is_no_evidence(how, found):
    """Clients of 50 and 25 images: batches of 8 end with 2 and 1, those of 7 with 1 and 4."""
    run, sizes = small_run(**how), {"clients": [{"train": 50}, {"train": 25}]}
    assert evidence.crumbs(SimpleNamespace(run=run), {"made": {"data": sizes}}) == found
    assert not evidence.crumbs(SimpleNamespace(run=run), {"made": {}})
    grouped = dataclasses.replace(run, net=Arch("resnet10", 4, normalisation="group"))
    assert not evidence.crumbs(SimpleNamespace(run=grouped), {"made": {"data": sizes}})


def test_such_a_row_is_named():
    row = dict.fromkeys(("diverged", "tuned", "learned", "settled"), True) | {
        "diverged": False, "rise": 0, "above": 5, "missing": 0, "by": [], "end": False}
    assert evidence.faults([row | {"row": "x", "crumbs": True}, row | {"row": "y", "crumbs": False}]) == [
        "batch-norm over fewer than four images: x"]


def test_the_number_of_the_round_is_no_rise():
    """In a table of transfer it stands among the columns; it once made every run of MPFT's table rise."""
    flat = [{"round": r, "acc": {"ood": 50.0, "ind": 60.0, "rounds": r}} for r in range(1, 201)]
    assert evidence.rise(flat) == 0
    assert evidence.rise([r | {"acc": r["acc"] | {"ood": r["round"] / 2}} for r in flat]) == 10


# a claim about one column; several readings; rivals whose runs are no evidence

def by_domain(case, row: str, curves: dict):
    """Records of a row with a curve of its own in each domain, the same with every seed but for its number."""
    for p in [p for p in case.table.runs("mini") if p.row == row]:
        record = small_paper.a_record(p, [0.0] * 10)
        record["rounds"] = [r | {"acc": {d: curve[i] + p.seed * (row == "new") for d, curve in curves.items()}}
                            for i, r in enumerate(record["rounds"])]
        records.write_record(p.run.path(case.results), record)


def test_a_claim_about_one_domain_looks_at_the_curve_of_that_domain(case):
    """x rises in one domain and falls as much in the other: its mean stands still."""
    case.fill(new=[60, 61, 62], x=[50, 50, 50])
    by_domain(case, "x", {"scans": [40.0] * 6 + [45, 45, 50, 50], "street": [60.0] * 6 + [55, 55, 50, 50]})
    rows = evidence.of_rows(case.table, "mini", case.results).query("row == 'x'").set_index("setting")
    assert rows.rise.to_dict() == {"scans": 5.0, "street": -5.0, "avg": 0.0}
    assert rows.settled.to_dict() == {"scans": False, "street": False, "avg": True}
    assert rows.gain.to_dict() == {"scans": 10.0, "street": 0.0, "avg": 0.0}
    best = evidence.of_rows(case.table, "mini", case.results, "best-test").query("row == 'x'").set_index("setting")
    assert best.settled.to_dict() == {"scans": False, "street": True, "avg": True}      # a fall after it is nothing


@pytest.mark.parametrize("one, other", [((3, 3.2, 3.3), (10, 15, 17.5)), ((10, 15, 17.5), (3, 3.2, 3.3))])
@pytest.mark.parametrize("sign, verdict", [(1, SUPPORTED), (-1, CONTRADICTED)])
def test_of_several_readings_the_nearest_is_named_with_the_highest_p(case, one, other, sign, verdict):
    """y is above x, or below, with either weight: the smaller lead counts, and the order of the rows says nothing."""
    x = [50, 51, 51.5]
    case.fill(x=x, new=x, y=[v + sign * gap for v, gap in zip(x, one)],
              other=[v + sign * gap for v, gap in zip(x, other)])
    found = claims.judge({"block": "b", "setting": "avg", "better": "y", "than": ["x"]},
                         claims.values(case.table, "mini", case.results),
                         evidence.of_rows(case.table, "mini", case.results), case.table)
    assert (found["verdict"], round(found["mean"], 3)) == (verdict, sign * 3.167)
    assert found["p"] == pytest.approx(claims.p_value([10, 15, 17.5])) and claims.p_value([3, 3.2, 3.3]) < found["p"]
    assert found["evidence"].startswith("y, other weight: ") == (one[0] == 10)


def test_a_rival_that_is_no_evidence_does_not_hide_one_that_contradicts(case):
    """y is further ahead and still rises; x, with good runs, contradicts by itself, and p is that of x."""
    rising = [[60.0] * 8 + [80 + k, 80 + k] for k in (0, 0.5, 1)]
    case.fill(new=[50, 51, 52], x=[60, 61.2, 61.9], y=rising, other=rising)
    best = judge_claims(case.table, "mini", case.results).set_index("id").loc["best"]
    assert (best.verdict, best.over) == (CONTRADICTED, "x")
    assert best.p == pytest.approx(3 * claims.p_value(np.array([10, 10.2, 9.9])))


def test_what_has_no_verdict_does_not_stand_before_what_has(tmp_path, monkeypatch):
    """The first table's rows are as given, the second's tuned; the second's verdict is the only one."""
    over_x = f"[[claims]]{CLAIMS.split('[[claims]]')[1]}"
    again = over_x.replace('id = "over-x"', 'id = "again"').replace('table = "t"', 'table = "u"')
    second = f'[tables.u]\ntitle = "U"\nblocks = ["b"]\nseeds = [0, 1, 2]\nselect = "last"\nrows = [{ROWS}]\n'
    given = ROWS.replace(", tuned = true", "")
    small_paper.use(tmp_path, monkeypatch, small_paper.content(given, range(3), "rounds = 4, lr = 0.05",
                                                              second + over_x + again), PRINTED)
    u, results = tables.load_table("small/u"), tmp_path / "results"
    small_paper.fill(results, u.runs("mini"), lambda p: {"new": 60.0 + p.seed}.get(p.row, 50.0))
    small_paper.fill(results, u.references("mini"), lambda p: 10.0)
    every = judge_all(results).set_index("id")
    assert every.verdict.to_dict() == {"over-x": NOT_EVIDENCE, "again": SUPPORTED}
    assert claims.said_before(u, "mini", results) == {}


def test_two_columns_with_one_mean_are_two(case):
    """Three images one way, three the other: mean and interval are the same, the differences by seed are not."""
    case.fill(new=[60, 60, 60], x=[50, 50, 50])
    by_domain(case, "x", {"scans": [50.0] * 10, "street": [50.0] * 10})
    for p, scans in zip([p for p in case.table.runs("mini") if p.row == "x"], (3.0, 6.0, 3.5), strict=True):
        record = records.read_record(p.run.path(case.results))
        street = {0: 6.0, 1: 3.0, 2: 3.5}[p.seed]
        record["rounds"] = [r | {"acc": {"scans": 60 - scans, "street": 60 - street}} for r in record["rounds"]]
        records.write_record(p.run.path(case.results), record)
    by_domain(case, "new", {"scans": [60.0] * 10, "street": [60.0] * 10})
    one = {"id": "one", "source": "", "says": "", "block": "b", "better": "new", "than": ["x"], "setting": "scans"}
    table = dataclasses.replace(case.table, claims=[one, one | {"id": "two", "setting": "street"}])
    found = judge_claims(table, "mini", case.results)
    assert found["mean"].round(6).nunique() == 1 and list(found.verdict) == [SUPPORTED, SUPPORTED]


def test_rows_learn_when_the_constant_answer_has_each_of_their_seeds(case):
    """With the two seeds that flatter it alone nothing is known."""
    case.fill(constant=None, new=[60, 61, 62, 5, 6], x=[50, 51, 52, 3, 4])
    small_paper.fill(case.results, case.table.references("mini", [0, 1]), lambda p: 20.0)
    rows = evidence.of_rows(case.table, "mini", case.results).query("setting == 'avg'").set_index("row")
    assert rows.learned.isna().all()
    assert "the constant answer was not run with every seed" in evidence.faults(rows.reset_index().to_dict("records"))
    small_paper.fill(case.results, case.table.references("mini"), lambda p: 20.0)
    assert not evidence.of_rows(case.table, "mini", case.results).learned.any()


def test_the_best_of_many_rounds_is_not_what_a_row_learned(case):
    case.fill(constant=20, new=[60, 61, 62])
    for p in [p for p in case.table.runs("mini") if p.row == "x"]:
        curve = [20.0, 40.0 + p.seed] + [20.0 + p.seed / 9] * 8
        records.write_record(p.run.path(case.results), small_paper.a_record(p, curve))
    rows = evidence.of_rows(case.table, "mini", case.results, "best-test").set_index(["setting", "row"])
    assert rows.loc["avg", "x"][["mean", "learned"]].tolist() == [41, False] and rows.loc["avg", "new"].learned


def test_a_blow_up_between_two_tests_is_one(case):
    """The mean of five rounds is below the bound, one of them is not."""
    case.change(x={"protocol": {"test_every": 5}})
    case.fill(new=[60, 61, 62])
    for p in [p for p in case.table.runs("mini") if p.row == "x"]:
        record = small_paper.a_record(p, [50.0] * 10)
        record["rounds"] = [r | {"train_loss": 4500.0 + p.seed if r["round"] == 3 else 1.0} | dict.fromkeys(
            ("bytes_up", "bytes_down", "seconds"), 1) for r in record["rounds"]]
        record["rounds"] = [r if r["round"] % 5 == 0 else {k: v for k, v in r.items() if k not in ("acc", "loss")}
                            for r in record["rounds"]]
        records.write_record(p.run.path(case.results), record)
    line = evidence.of_rows(case.table, "mini", case.results).set_index(["setting", "row"]).loc["avg", "x"]
    assert line.diverged and line.loss == 4502
    read = records.read_record(p.run.path(case.results))["rounds"]
    assert [r["train_loss"] for r in read] == [901.2, 1.0] and [r["bytes_up"] for r in read] == [5, 5]


def test_a_mean_needs_every_domain(case):
    """A record whose last round lacks a domain, as one across machines may, has no mean there."""
    case.fill(new=[60, 61, 62], x=[50, 50, 50])
    path = next(p for p in case.table.runs("mini") if (p.row, p.seed) == ("x", 1)).run.path(case.results)
    record = json.loads(path.read_text())
    record["rounds"][-1] |= {"acc": {"scans": 90.0}, "absent": ["street"]}
    records.write_record(path, record)
    cells = filled.values(case.table, "mini", case.results).query("row == 'x' and setting == 'avg'")
    assert list(cells.seed) == [0, 2]


def test_tests_of_ones_own_count_together():
    """Two clients of a domain with 12 and 20 test images of their own: one of the 32; alike sizes: one test of all."""
    def of(*tests):
        return {"made": {"data": {"clients": [{"domain": d, "test": n} for d, n in tests]}}, "rounds": [{}]}
    assert power.smallest(of(("a", 12), ("a", 20), ("b", 40), ("b", 40))) == ("a", 32)
    assert power.smallest(of(("a", 90), ("b", 40), ("b", 40))) == ("b", 40)
    assert power.smallest(of(("a", 90)) | {"rounds": [{"unseen": {"b": 1.0}}]}) == power.smallest(None) == ("", 0)
