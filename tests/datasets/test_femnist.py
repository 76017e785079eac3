"""FEMNIST in LEAF's form: small files of it, every fault, and a client for each writer."""
import json

import numpy as np
import pytest
import torch
from conftest import quiet
from raw_files import fails

from fedlib.core.errors import UserError
from fedlib.datasets import prepare
from fedlib.datasets.partition import Data, federate
from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.engine import loop
from fedlib.engine.records import read_record
from fedlib.engine.run import plan
from fedlib.readers import femnist
from fedlib.report import catalogue

WRITERS = {"f0001_41": 62, "f0000_14": 30, "f0005_26": 11, "f0002_03": 2}     # images of each


def leaf(path, sizes: dict, first: int = 0) -> dict:
    """A file of LEAF; returns {writer: (pixels as bytes, labels)}. The k-th image of all is of class k mod 62."""
    rng, held, k = np.random.default_rng(len(sizes)), {}, first
    for user, n in sizes.items():
        held[user] = rng.integers(0, 256, (n, 784)), [(k + i) % 62 for i in range(n)]
        k += n
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({
        "users": list(sizes), "num_samples": [*sizes.values()],
        "user_data": {u: {"x": (x / 255).tolist(), "y": y} for u, (x, y) in held.items()}}))
    return held


@pytest.mark.parametrize("place", ["", "data", "femnist/data", "leaf/data/femnist/data"])
def test_all_data_is_read_writer_by_writer(place, tmp_path):
    some = list(WRITERS.items())
    held = leaf(tmp_path / place / "all_data" / "all_data_0.json", dict(some[:2]))
    held |= leaf(tmp_path / place / "all_data" / "all_data_1.json", dict(some[2:]), 92)
    domains, about = femnist.read(tmp_path, 28, quiet)
    x, y, part = domains["femnist"]
    assert list(about["users"]["femnist"].items()) == sorted(WRITERS.items())
    wanted = np.concatenate([held[u][0] for u in sorted(held)]).reshape(-1, 28, 28)
    assert all(np.array_equal(x[:, c], wanted) for c in range(3)) and x.dtype == np.uint8
    assert y.tolist() == [k for u in sorted(held) for k in held[u][1]]
    assert [(p == TEST).sum() for p in np.split(part, np.cumsum([30, 62, 2])[:3])] == [3, 7, 1, 2]
    assert about["notice"] == "subset: femnist 105 of 805263, of 4 of 3550 writers"
    assert catalogue.samples(femnist) == "805,263"
    assert femnist.read(tmp_path, 32, quiet)[0]["femnist"][0].shape == (105, 3, 32, 32)


def test_leafs_own_train_and_test_are_kept(tmp_path):
    leaf(tmp_path / "all_data" / "all_data_0.json", {"f9": 5})
    leaf(tmp_path / "train" / "all_data_0_train_9.json", WRITERS)
    leaf(tmp_path / "test" / "all_data_0_test_9.json", {"f0001_41": 3, "f0000_14": 1})
    domains, about = femnist.read(tmp_path, 28, quiet)
    _, _, part = domains["femnist"]
    assert about["users"]["femnist"] == {"f0000_14": 31, "f0001_41": 65, "f0002_03": 2, "f0005_26": 11}
    assert part.tolist() == [TRAIN] * 30 + [TEST] + [TRAIN] * 62 + [TEST] * 3 + [TRAIN] * 13


def test_faults(tmp_path):
    fails(femnist, tmp_path, "no FEMNIST in", "all_data/*.json", "LEAF's script makes it")
    path = tmp_path / "all_data" / "a.json"
    leaf(path, {"f1": 2})
    whole = path.read_text()
    for old, new, word in (('"y": [0', '"y": [62', "labels outside 0..61"), ('"y": [0', '"y": [true', "is no int"),
                           ('"y": [0', '"y": [0, 1', "784 pixels for each"), ('"x": [[', '"x": [[7, ', "784 pixels"),
                           ("0.", "7.", "pixels outside 0..1"), ("0.", "NaN, 0.", "784"), ('["f1"]', '["f2"]', "'f2'"),
                           ('"users"', '"user"', "has no 'users'"), ("{", "", "is no file of LEAF's FEMNIST")):
        assert old in whole
        path.write_text(whole.replace(old, new, 1))
        fails(femnist, tmp_path, word)
    path.write_text('{"users": ["f1"], "user_data": {"f1": {"x": [], "y": []}}}')
    fails(femnist, tmp_path, "holds no images")
    path.write_text(whole)
    (tmp_path / "all_data" / "b.json").write_text(whole)
    fails(femnist, tmp_path, "the writer f1 is in another file")
    (tmp_path / "all_data" / "b.json").unlink()
    with pytest.raises(UserError, match="no sample of the class"):
        prepare.prepare("femnist", 28, root=tmp_path, say=quiet)


@pytest.fixture
def prepared(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "store"))
    leaf(tmp_path / "raw" / "train" / "a.json", WRITERS)
    leaf(tmp_path / "raw" / "test" / "a.json", {"f0001_41": 3, "f0005_26": 2, "f0000_14": 1})
    return prepare.prepare("femnist", 28, root=tmp_path / "raw", say=quiet)


def test_a_client_for_each_writer_who_can_train_and_be_tested(prepared):
    federation = federate(Data("femnist", natural=True), 0)
    assert [(len(c.train), len(c.test)) for c in federation.clients] == [(30, 1), (62, 3), (11, 2)]
    assert federation.own_tests
    whole = prepare.load_set("femnist").tensors
    assert torch.equal(federation.clients[1].train.y, whole["femnist/y"][31:93])
    assert torch.equal(federation.clients[2].test.y, whole["femnist/y"][-2:])


def test_so_many_writers_are_drawn(prepared):
    def sizes(seed, **more):
        return [len(c.train) for c in federate(Data("femnist", natural=True, clients=(2,), **more), seed).clients]
    drawn = {tuple(sizes(seed)) for seed in range(9)}
    assert drawn == {(30, 62), (30, 11), (62, 11)} and sizes(3) == sizes(3)
    assert sizes(0, partition_seed=5) == sizes(1, partition_seed=5)
    with pytest.raises(UserError, match="3 users of femnist have training and test samples, not 4"):
        federate(Data("femnist", natural=True, clients=(4,)), 0)


def test_a_set_without_users_and_two_ways_to_divide(prepared):
    with pytest.raises(UserError, match="mini_digits does not say whose the samples of scans are"):
        federate(Data("mini_digits", natural=True), 0)
    with pytest.raises(UserError, match="dirichlet and natural are two ways to divide"):
        federate(Data("femnist", natural=True, dirichlet=0.1), 0)


def test_a_manifest_with_other_users_is_refused(prepared, tmp_path):
    place = tmp_path / "store" / "femnist-28.json"
    for count in (29, -30, 10 ** 6):
        users = prepared["users"]["femnist"] | {"f0000_14": count}
        place.write_text(json.dumps(prepared | {"users": {"femnist": users}}))
        with pytest.raises(UserError, match="does not say whose"):
            federate(Data("femnist", natural=True), 0)
    place.write_text(json.dumps(prepared | {"users": {"femnist": {"f": "many"}}}))
    with pytest.raises(UserError, match="is not the manifest"):
        federate(Data("femnist", natural=True), 0)


def test_trained_with_a_grey_channel_and_a_cohort(prepared, tmp_path):
    run = plan("FedAvg", {}, {"name": "femnist", "natural": True, "normalise": "grey"}, {"net": "cnn4", "width": 4},
               {"rounds": 2, "batch": 8, "cohort": 2}, 0)
    record = read_record(loop.train(run, tmp_path / "results"))
    assert [c["train"] for c in record["made"]["data"]["clients"]] == [30, 62, 11]
    assert set(record["rounds"][-1]["acc"]) == {"femnist"}
