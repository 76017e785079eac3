"""Tables as text, from numbers that went through JSON, as `fedlib show` and `fedlib compare` print them."""
import json

from fedlib.experiments import evidence
from fedlib.report import shown


def test_rows_of_which_nobody_knows_whether_they_settled_are_named():
    """A rate that falls to nothing, and no runs in half the rounds: the rise is nan, null in JSON."""
    flat = {"row": "flat", "rise": None, "settled": False, "diverged": False, "crumbs": False, "above": 9.0,
            "learned": True, "loss": 1.0, "n": 3, "missing": 0}
    assert evidence.unfinished([flat, {**flat, "row": "risen", "rise": evidence.STILL + 1}]) == [
        f"still rising, by up to {evidence.STILL + 1:.1f} points: risen",
        "not known whether more rounds would help, without runs of half as many: flat"]


def test_a_table_that_went_through_json_is_shown():
    found = json.loads(json.dumps(shown.shown("fedpall/table1", "lite")))
    said = shown.shown_text(found)
    assert "FedAvg, own statistics" in said and "FedHEAL, global" in said
    assert "FedHEAL, global, tuned" not in said, "a tuned row that nobody trained has no line"
    assert "  constant answer: " in said
