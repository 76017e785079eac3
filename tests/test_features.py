"""Features beside a record: which net, which images, what a record and an interruption change."""
import json

import pytest
import torch
from conftest import numbers, small_run
from safetensors import safe_open

from fedlib import features, records, tables, train
from fedlib.data import as_input
from fedlib.errors import UserError

SHOWN = ("scans", "street")


def test_they_are_those_of_the_last_global_net(tmp_path):
    run, seen = small_run("FedProto", {"average": True}), {}

    def look(server, workers, rounds):
        seen["net"] = server.global_
        seen["worker"] = workers[-1]        # street's only client

    train.train(run, tmp_path / "plain", after=look)
    features.collect(run, SHOWN, tmp_path)
    z, y, domains = features.read(run, SHOWN, tmp_path)
    client = seen["worker"].client
    train.load(client.net, seen["net"])
    every = client.net.eval().body(as_input(client.test.x)).half().float()
    here = torch.tensor([d == "street" for d in domains])
    nearest = torch.cdist(z[here], every, compute_mode="donot_use_mm_for_euclid_dist")     # a product would cancel
    assert nearest.min(1).values.max() < 1e-3 and torch.equal(y[here], client.test.y[nearest.argmin(1)])
    assert len(nearest.argmin(1).unique()) == min(len(client.test), features.IMAGES) and set(domains) == set(SHOWN)


def test_a_record_that_is_there_stays_and_one_that_is_not_is_made(tmp_path):
    run = small_run()
    first = features.collect(run, SHOWN, tmp_path)
    made = numbers(records.read(run.path(tmp_path)))
    with safe_open(first, "pt") as file:
        about = json.loads(file.metadata()["about"])
    assert about == {"digest": run.digest, "round": 2, "acc": made[-1]["acc"]}
    before = run.path(tmp_path).read_bytes()
    kept = {k: v for k, v in zip("zyd", features.read(run, SHOWN, tmp_path), strict=True)}
    first.unlink()
    features.collect(run, SHOWN, tmp_path)
    assert run.path(tmp_path).read_bytes() == before
    assert torch.equal(features.read(run, SHOWN, tmp_path)[0], kept["z"])
    assert [p.name for p in (tmp_path / ".features" / "tiny_digits").iterdir()] == []


def test_an_interrupted_collection_continues(tmp_path):
    run = small_run(rounds=3)

    class Cut(Exception):
        pass

    def cut(event):
        raise Cut

    with pytest.raises(Cut):
        features.collect(run, SHOWN, tmp_path / "cut", say=cut)
    heard = []
    features.collect(run, SHOWN, tmp_path / "cut", say=heard.append)
    assert [e["round"] for e in heard] == [2, 3]
    features.collect(run, SHOWN, tmp_path / "whole")
    assert torch.equal(*(features.read(run, SHOWN, tmp_path / k)[0] for k in ("cut", "whole")))


def test_a_figures_run_is_done_with_its_features(tmp_path):
    planned = tables.load("i2pfl/figure4").runs("mini", [0])[0]
    plain = next(p for p in tables.load("i2pfl/table2").runs("mini", [0]) if p.row == planned.row)
    assert planned.run.digest == plain.run.digest and planned.features == ("printed", "street")
    records.write(planned.run.path(tmp_path), {})
    assert plain.done(tmp_path) and not planned.done(tmp_path)
    planned.run.beside(tmp_path, "features").touch()
    assert planned.done(tmp_path)


def test_features_that_were_not_collected_are_named(tmp_path):
    with pytest.raises(UserError, match="fedlib run"):
        features.read(small_run(), SHOWN, tmp_path)
