"""Tables as text, from numbers that went through JSON, as `fedlib show` and `fedlib compare` print them."""
import json

from fedlib.experiments import evidence
from fedlib.report import shown


def test_rows_of_which_nobody_knows_whether_they_settled_are_shown():
    """A rate that falls to nothing, and no runs in half the rounds: the rise is nan, null in JSON."""
    found = json.loads(json.dumps(shown.shown("fedpall/table1", "lite")))
    unknown = [r for r in found["rows"] if r["rise"] is None and not r["settled"]]
    assert unknown
    some = [unknown[0], {**unknown[0], "row": "risen", "rise": evidence.STILL + 0.1}]
    assert evidence.unfinished(some)[-2:] == [
        f"still rising, by up to {evidence.STILL + 0.1:.1f} points: risen",
        f"not known whether more rounds would help, without runs of half as many: {unknown[0]['row']}"]
    assert "not known whether more rounds would help" in shown.shown_text(found)
