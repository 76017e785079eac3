"""Checkpoints of a made-up simulation: all that is kept comes back, and what is not of this run is refused."""
import json
import zlib
from types import SimpleNamespace

import pytest
import torch
from by_hand import same
from conftest import refusal
from safetensors import safe_open
from safetensors.torch import load, save
from torch import tensor

from fedlib.core.params import flatten, unflatten
from fedlib.engine import checkpoint
from fedlib.engine.checkpoint import CHECKPOINT, checksum, resume, same_entries, tidy

ROUNDS = [{"round": 1, "acc": {"scans": 50.0}}]


class Worker:
    """A client that keeps what it is given."""

    def __init__(self, name: str, kept: dict):
        self.client, self.own = SimpleNamespace(id=name), kept

    def kept(self):
        return self.own

    def restore(self, kept):
        self.own = kept


MADE = {"commit": "1a2b", "torch": "2.0", "data": {"digest": "0d", "split": (1, 2)}, "started": "today"}


def simulation(fill: float, rounds=(), made=MADE, **server):
    """Two clients and a server whose numbers are `fill`."""
    server = {"global_": {"w": torch.full((2, 3), fill)}, "t_": tensor(int(fill)), "a_": {}, "protocol": fill} | server
    workers = [Worker(name, {"state": {"z": torch.full((3,), fill)}} if name == "a" else {}) for name in "ab"]
    return SimpleNamespace(server=SimpleNamespace(**server), workers=workers, device="cpu", rounds=list(rounds),
                           run=SimpleNamespace(digest="0f"), made=made)


@pytest.fixture
def partial(tmp_path):
    path = tmp_path / "made" / "run.partial"
    checkpoint.checkpoint(path, simulation(7.0, ROUNDS, a_={"b": tensor(0.5)}))
    return path


def test_what_was_kept_comes_back(partial):
    """Also entries that come into being in a round; what has no underscore at its end is made anew, not kept."""
    found = simulation(1.0)
    resume(partial, found)
    assert torch.equal(found.server.global_["w"], torch.full((2, 3), 7.0)) and found.server.t_ == 7
    assert same(found.server.a_, {"b": tensor(0.5)}) and found.server.protocol == 1.0
    assert same(found.workers[0].own["state"], {"z": torch.full((3,), 7.0)}) and found.workers[1].own == {}
    assert found.rounds == ROUNDS


def goes_on(partial, **changed) -> dict:
    """What a run says of how it was made when it goes on with something changed."""
    found = simulation(1.0, made=MADE | changed)
    resume(partial, found)
    return found.made


def test_what_was_otherwise_before_a_kill_is_listed(partial):
    """The code, the library and the machine of each sitting; the time of its start is no difference."""
    assert goes_on(partial, started="tomorrow") == MADE | {"started": "tomorrow"}
    second = goes_on(partial, commit="3c4d", hardware="another")
    assert second == MADE | {"commit": "3c4d", "hardware": "another", "earlier": [{"rounds": 1, "commit": "1a2b"}]}
    more = [*ROUNDS, {"round": 2, "acc": {"scans": 60.0}}]
    checkpoint.checkpoint(partial, simulation(7.0, more, second))
    assert goes_on(partial, commit="3c4d", hardware="another") == second
    assert goes_on(partial)["earlier"] == [{"rounds": 1, "commit": "1a2b"},
                                           {"rounds": 2, "commit": "3c4d", "hardware": "another"}]


def test_other_data_are_refused(partial):
    """Also where only who holds what has changed."""
    for data in ({"digest": "0e", "split": (1, 2)}, {"digest": "0d", "split": (2, 1)}):
        refusal(lambda data=data: goes_on(partial, data=data), "the data are not those that this run began with")


def test_a_checkpoint_that_does_not_say_how_it_was_made_goes_on(partial):
    """As those of older versions."""
    resaved(partial, made={})
    assert goes_on(partial) == MADE


def test_without_a_file_nothing_changes(tmp_path):
    found = simulation(1.0)
    resume(tmp_path / "none.partial", found)
    assert found.rounds == [] and found.server.t_ == 1


def resaved(path, change=lambda tensors: None, sum=None, **about):
    tensors = load(path.read_bytes())
    change(tensors)
    with safe_open(path, "pt") as file:
        said = json.loads(file.metadata()["about"])
    said |= {"sum": checksum(tensors, ROUNDS) if sum is None else said["sum"] + sum} | about
    path.write_bytes(save(tensors, {"about": json.dumps(said)}))


@pytest.mark.parametrize("about, words", [
    ({"format": CHECKPOINT + 1}, "belongs to another run or version"),
    ({"format": CHECKPOINT - 1}, "belongs to another run or version"),
    ({"digest": "0e"}, "belongs to another run or version"),
    ({"sum": 1}, "its numbers are not those that were written"),
    ({"sum": -1}, "its numbers are not those that were written"),
    ({"rounds": []}, "it has no rounds"), ({"made": 1}, "is not a checkpoint"), ({"made": {"earlier": 1}}, "is not"),
    ({"rounds": [ROUNDS[0] | {"acc": {"scans": 51.0}}]}, "its numbers are not those that were written")])
def test_another_run_and_damage_are_told_apart(partial, about, words):
    resaved(partial, **about)
    found = simulation(1.0)
    refusal(lambda: resume(partial, found), words, partial)
    assert found.rounds == [] and found.server.t_ == 1 and found.workers[0].own["state"]["z"][0] == 1


@pytest.mark.parametrize("name, value, words", [
    ("server/t_", torch.zeros(1).long(), "its t_ is torch.int64 (1,), not torch.int64 ()"),
    ("server/t_", tensor(7, dtype=torch.int32), "its t_ is torch.int32 (), not torch.int64 ()"),
    ("server/global_/w", torch.ones(2, 3).double(), "is torch.float64 (2, 3), not torch.float32 (2, 3)"),
    ("server/global_/w", torch.ones(3, 2), "is torch.float32 (3, 2), not torch.float32 (2, 3)"),
    ("server/global_/w", torch.ones(1, 3), "is torch.float32 (1, 3), not torch.float32 (2, 3)"),
    ("server/global_/w", None, "it lacks global_/w"),
    ("server/other_", tensor(1), "parts that the run has not"),
    ("clients/c/state/z", tensor(1), "parts that the run has not"),
    ("more/x", tensor(1), "parts that the run has not")])
def test_another_version_of_the_code_is_refused(partial, name, value, words):
    resaved(partial, lambda tensors: tensors.pop(name) if value is None else tensors.update({name: value}))
    refusal(lambda: resume(partial, simulation(1.0)), words, "is not a checkpoint")


def test_entries_with_a_name_keep_their_shape_others_their_dimensions():
    """A list that grows with the rounds is one tensor of the server; weights have names."""
    same_entries({"seen_": torch.zeros(5), "more": tensor(1)}, {"seen_": torch.zeros(2)})
    with pytest.raises(ValueError, match="its w/a is"):
        same_entries({"w/a": torch.zeros(5)}, {"w/a": torch.zeros(2)})


def test_the_sum_is_over_names_types_shapes_numbers_and_rounds():
    """By hand, of one entry; the order of entries does not matter."""
    by_hand = zlib.crc32(b'[1]a torch.int16 (1, 2) \x01\x00\x02\x00')
    assert checksum({"a": tensor([[1, 2]], dtype=torch.int16)}, [1]) == by_hand
    some = {"a": tensor([1.0, 2.0]), "b": tensor(3)}
    assert checksum(some, ROUNDS) == checksum(dict(reversed(some.items())), ROUNDS)
    others = [some | {"a": tensor([1.0, 2.5])}, some | {"a": tensor([[1.0, 2.0]])}, some | {"b": tensor(3.0)},
              {"a": some["a"], "c": some["b"]}]
    assert len({checksum(s, ROUNDS) for s in (some, *others)} | {checksum(some, [])}) == 6
    assert flatten(unflatten({"a/b": 1})) == {"a/b": 1}


def test_what_a_killed_process_left_is_tidied_away(tmp_path):
    path, more = tmp_path / "run.json", tmp_path / "run.budget"
    left = [path.with_suffix(".partial"), path.with_suffix(".lock"), more]
    for there in ((), (0,), (1,), (2,), (0, 1, 2)):
        for k in there:
            left[k].touch()
        path.touch()
        tidy(path, more)
        assert [p.name for p in tmp_path.iterdir()] == ["run.json"]
    tidy(tmp_path / "none" / "run.json")
    (tmp_path / "run.partial").mkdir()          # it cannot be removed: that is no mistake of the run
    tidy(path)
