"""Every method in the form that its tries chose: who differs from a control for sure, by hand."""
import pandas as pd
import pytest
from test_leaderboard import small

from fedlib.experiments.statistics import interval
from fedlib.report.tuned_board import ONE, OWN, TunedBoard


def tuned_board(**gaps):
    """Two sets, five seeds: FedAvg 60 %, Local 70 %, others so far above FedAvg on A and B. FedProx moves on B."""
    noise = [-0.4, -0.2, 0.0, 0.2, 0.4]
    gaps = {"FedAvg": (0, 0), "Local": (10, 10)} | gaps
    lines = pd.DataFrame([(b, m, s, 60 + gap[k] + noise[(s + i) % 5] * (m != "FedAvg"))
                          for k, b in enumerate("ab") for i, (m, gap) in enumerate(gaps.items()) for s in range(5)],
                         columns=["block", "method", "seed", "accuracy"])
    rise = [(b, m, 3.0 if (b, m) == ("b", "FedProx") else 0.0) for b in "ab" for m in gaps]
    made = object.__new__(TunedBoard)
    vars(made).update(vars(small(lines=lines, compared=list(gaps), of_row={m: m for m in gaps})))
    made.evidence = pd.DataFrame(rise, columns=["block", "row", "rise"])
    vars(made)["means"] = lines.pivot_table(index="block", columns="method", values="accuracy").set_axis(["A", "B"])
    return made


def test_who_stands_above_the_control_for_sure():
    board = tuned_board(FedPer=(20, 20), FedNova=(5, 4), FedProx=(3, 3), MOON=(0.1, -0.1), FedLC=(-2, -2))
    said = board.standing("FedAvg", ONE).data.splitlines()
    assert said[0] == ("- **A**, FedAvg 60.0 %: above it for sure FedNova +5.0 ± 0.4; FedProx +3.0 ± 0.4. Below it: "
                       "FedLC -2.0 ± 0.4. Undecided: 1 of 4; each interval alone: 2 above, 1 below.")
    assert "above it for sure FedNova +4.0 ± 0.4. Below it: FedLC" in said[1]
    assert said[1].endswith("1 of 3; each interval alone: 1 above, 1 below. Still moving: FedProx.")
    assert said[2] == "- **On all 2 sets** above FedAvg for sure: FedNova; below it: FedLC."
    own = board.standing("Local", OWN).data       # its own kind is Local's and FedPer's
    assert "above it for sure FedPer +10.0 ± " in own and "FedNova" not in own


def test_where_the_control_moves_nobody_is_above_it():
    board = tuned_board(FedNova=(5, 4))
    board.evidence.loc[board.evidence.row == "FedAvg", "rise"] = 2.0
    said = board.standing("FedAvg", ONE).data
    assert "for sure none" in said and "Still moving: FedAvg" in said and "FedNova" not in said


def test_leads_are_ordered_by_their_mean_over_the_sets():
    leads = tuned_board(FedNova=(5, 4), FedProx=(9, 1), MOON=(0, 0)).leads("FedAvg", ONE)
    assert list(leads.row.unique()) == ["FedProx", "FedNova", "MOON"] and list(leads.dataset[:2]) == ["A", "B"]
    assert leads["mean"][0] == pytest.approx(9) and {"half", "holm", "n"} <= set(leads)


def test_what_tuning_changed():
    given, tuned = tuned_board(FedProx=(1, 1), MOON=(0, 0)), tuned_board(FedProx=(4, 3), MOON=(0, 0))
    said = tuned.changed_by_tuning(given).data.splitlines()
    assert said[0].startswith("- **A**: other settings than given for 1 of 4 rows. On test images these change by +3.0 "
                              "points in the median, from +3.0 (FedProx) to +3.0 (FedProx). The orders ")


def test_a_tuned_board_has_tuned_rows_under_the_names_of_the_rows_as_given():
    lines = pd.DataFrame({"method": ["FedAvg", "FedAvg, tuned", "Local"], "accuracy": [1.0, 2.0, 3.0]})
    board = object.__new__(TunedBoard)
    assert board.in_form(lines, "method").values.tolist() == [["FedAvg", 2.0]]
    assert small().in_form(lines, "method").accuracy.tolist() == [1.0, 3.0]
    assert board.for_other_data("I2PFL") == []      # its settings were chosen on these sets


def test_methods_beside_the_best_of_the_others():
    """FedProx is the highest on B, and still moves there."""
    board = tuned_board(FedNova=(5, 4), FedProx=(3, 6), AFL=(7, 7), FedPer=(20, 20))
    said = board.beside_the_best(["AFL", "Fed3R"]).data.splitlines()
    half = interval([0.4, -0.6, -0.6, 0.4, 0.4])[1]      # AFL's noise minus FedNova's
    best = "the best of the others that have settled"
    assert said[0] == f"- **A**, minus FedNova, {best} (65.0 %): AFL +2.0 ± {half:.1f}."
    assert said[1].startswith(f"- **B**, minus FedNova, {best} (64.0 %): AFL +3.0 ± ")
