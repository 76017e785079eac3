"""What a message of a run may hold: names, types, shapes, rows and ranges, at each border and just beyond."""
import pytest
import torch
from conftest import refusal, small_run
from safetensors.torch import save
from torch import tensor

from fedlib.core.params import nbytes
from fedlib.engine.loop import Simulation
from fedlib.remote import wire
from fedlib.remote.wire import Entry

ROWS, CLASSES = 6, 5
EXPECTED = {"params/w": Entry("torch.float32", (2, 3), (), True),
            "n": Entry("torch.int64", (), (), True),
            "z": Entry("torch.float32", (4, 3), (4, 5), True),          # a row for each sample,
            "y": Entry("torch.int64", (4,), (4, 5), True),              # and its label
            "seen/a": Entry("torch.bool", (2,), (), False)}


def message(**changes):
    whole = {"params": {"w": torch.ones(3, 2).T}, "n": tensor(ROWS), "z": torch.zeros(ROWS, 3),
             "y": tensor([0, 1, 2, 3, 4, 0])}
    return whole | changes


def unpacked(rows=ROWS, **changes):
    return wire.unpack(wire.pack(message(**changes)), EXPECTED, rows, CLASSES)


def test_what_was_packed_comes_out():
    found = unpacked(params={"w": torch.ones(2, 3, requires_grad=True)}, seen={"a": tensor([True, False])})
    assert found.keys() == {"params", "n", "z", "y", "seen"} and found["seen"]["a"].tolist() == [True, False]
    assert torch.equal(found["params"]["w"], torch.ones(2, 3)) and found["y"].tolist() == [0, 1, 2, 3, 4, 0]
    assert "seen" not in unpacked()                                 # which not every message has


@pytest.mark.parametrize("changes", [
    {"n": tensor(0)}, {"z": torch.zeros(0, 3), "y": torch.zeros(0).long()}, {"z": torch.zeros(1, 3), "y": tensor([4])},
    {"y": torch.zeros(ROWS).long()}, {"z": torch.full((ROWS, 3), -3e38)}])
def test_what_lies_on_the_border_is_taken(changes):
    found = unpacked(**changes)
    assert all(torch.equal(found[k], v) for k, v in changes.items())


def test_there_may_be_as_many_rows_as_classes_where_there_are_fewer_samples():
    few = {"z": torch.zeros(CLASSES, 3), "y": torch.zeros(CLASSES).long(), "n": tensor(CLASSES)}
    assert len(unpacked(rows=2, **few)["z"]) == CLASSES
    refusal(lambda: unpacked(rows=2, **few | {"n": tensor(ROWS)}), "'n' in a message is not within 0 and 5")


@pytest.mark.parametrize("changes, words", [
    ({"more": tensor(1)}, "has an unknown entry 'more'"),
    ({"params": {}}, "lacks the entry 'params/w'"),
    ({"n": tensor(ROWS + 1)}, "'n' in a message is not within 0 and 6"),
    ({"n": tensor(-1)}, "'n' in a message is not within 0 and 6"),
    ({"n": tensor([1])}, "'n' in a message is int64 (1,), not int64 ()"),
    ({"n": tensor(1.0)}, "'n' in a message is float32 (), not int64 ()"),
    ({"params": {"w": torch.ones(3, 2)}}, "is float32 (3, 2), not float32 (2, 3)"),
    ({"params": {"w": torch.ones(2, 3, 1)}}, "is float32 (2, 3, 1), not float32 (2, 3)"),
    ({"params": {"w": tensor([[1, 1, 1], [1, 1, torch.inf]])}}, "'params/w' in a message is not finite"),
    ({"z": torch.full((ROWS, 3), torch.nan)}, "'z' in a message is not finite"),
    ({"z": torch.zeros(ROWS, 2)}, "'z' in a message is float32 (6, 2), not float32 ('any', 3)"),
    ({"z": torch.zeros(ROWS + 1, 3), "y": torch.zeros(ROWS + 1).long()}, " (7,"),
    ({"z": torch.zeros(ROWS - 1, 3)}, "rows, others of it "),
    ({"y": tensor([0, 1, 2, 3, 4, 5])}, "'y' in a message is not within 0 and 4"),
    ({"y": tensor([0, 1, 2, 3, 4, -1])}, "'y' in a message is not within 0 and 4"),
    ({"y": tensor(0)}, "'y' in a message is int64 (), not int64 ('any',)"),
    ({"seen": {"a": torch.ones(3).bool()}}, "'seen/a' in a message is bool (3,), not bool (2,)"),
    ({"params": {"w": torch.ones(300, 300)}}, "bytes is larger than any of this run")])
def test_what_lies_beyond_is_refused(changes, words):
    refusal(lambda: unpacked(**changes), words)


def test_rows_are_bounded_also_where_they_are_wide():
    expected = {"z": Entry("torch.float32", (4, 9), (4, 5), True), "of/long": Entry("torch.float32", (99,), (), True)}

    def rows(n):
        block = wire.pack({"z": torch.zeros(n, 9), "of": {"long": torch.zeros(99)}})
        return wire.unpack(block, expected, ROWS, CLASSES)
    assert len(rows(ROWS)["z"]) == ROWS
    refusal(lambda: rows(ROWS + 1), "'z' in a message is float32 (7, 9), not float32 ('any', 9)")


@pytest.mark.parametrize("block", [b"", b"{}", save({"n": tensor(1)})[:-1], bytes(100), b"\xff" * 100])
def test_what_is_no_block_is_refused(block):
    refusal(lambda: wire.unpack(block, EXPECTED, ROWS, CLASSES), "a message is not a safetensors block")


def test_the_largest_message_by_hand():
    """w, six z, six y, two bools and n; names, 20 bytes a dimension and 100 an entry; 16 more."""
    bound = 6 * 4 + 6 * 3 * 4 + 6 * 8 + 2 + 8 + 16 + len("params/w" "n" "z" "y" "seen/a") + 20 * 6 + 5 * 100
    assert wire.largest(EXPECTED, 6) == bound
    whole = message(seen={"a": tensor([True, True])})
    block = wire.pack(whole)
    assert len(block) <= bound and wire.envelope(block) == len(block) - nbytes(whole)
    refusal(lambda: wire.unpack(bytes(bound + 1), EXPECTED, ROWS, CLASSES), f"of {bound + 1} bytes is larger")
    refusal(lambda: wire.unpack(bytes(bound), EXPECTED, ROWS, CLASSES), "is not a safetensors block")


def test_what_messages_have_in_common():
    """z differs in rows, w does not; what is there for client a can be there for b, but need not."""
    some = [{"w": torch.ones(2), "z": torch.ones(3, 4), "of/a": tensor(1), "n": tensor(1)},
            {"w": torch.ones(2), "of/a": tensor(1), "n": tensor(2)},
            {"w": torch.ones(2), "z": torch.ones(1, 4), "of/a": tensor(2), "n": tensor(3),
             "b/x/a": torch.ones(2).bool()}]
    assert wire.entries(some, ["a", "b"]) == {
        "w": Entry("torch.float32", (2,), (), True), "z": Entry("torch.float32", (3, 4), (3, -1, 1), False),
        "n": Entry("torch.int64", (), (), True), "of/a": Entry("torch.int64", (), (), True),
        "of/b": Entry("torch.int64", (), (), False), "b/x/a": Entry("torch.bool", (2,), (), False),
        "a/x/a": Entry("torch.bool", (2,), (), False), "b/x/b": Entry("torch.bool", (2,), (), False)}


def test_a_rehearsal_shows_what_depends_on_a_clients_samples(monkeypatch):
    """Clients of 3, 4 and 5 samples of as many classes send a row for each. One trains, then two, then all twice."""
    rounds, exchange = [], Simulation.exchange
    monkeypatch.setattr(Simulation, "exchange", lambda s, who: rounds.append((s.number, who)) or exchange(s, who))
    found = wire.rehearse(small_run("MPFT"), list("abc"), [str(k) for k in range(10)], (49,))
    assert found["up"]["protos"].rows == found["up"]["of"].rows == (3, 3, 4, 3, 4, 5, 3, 4, 5)
    assert found["up"]["n"] == Entry("torch.int64", (), (), True)
    assert rounds == [(0, [0]), (1, [0, 1]), (2, [0, 1, 2]), (3, [0, 1, 2])]
    assert not any(e.rows or not e.always for e in found["down"].values())
