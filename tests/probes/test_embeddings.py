"""Features beside a record: which net, which images, what a record and an interruption change."""
import json

import pytest
import torch
from conftest import numbers, small_run
from safetensors import safe_open

from fedlib.core.errors import UserError
from fedlib.core.federation import as_input
from fedlib.core.params import load_params
from fedlib.engine import loop, records
from fedlib.experiments import tables
from fedlib.probes import embeddings

SHOWN = ("scans", "street")


def test_they_are_those_of_the_last_global_net(tmp_path):
    run, seen = small_run("FedProto", {"average": True}), {}

    def look(simulation):
        seen["net"] = simulation.server.global_
        seen["worker"] = simulation.workers[-1]        # street's only client

    loop.train(run, tmp_path / "plain", after=look)
    embeddings.collect(run, SHOWN, tmp_path)
    z, y, domains = embeddings.read(run, SHOWN, tmp_path)
    client = seen["worker"].client
    load_params(client.net, seen["net"])
    every = client.net.eval().body(as_input(client.test.x)).half().float()
    here = torch.tensor([d == "street" for d in domains])
    nearest = torch.cdist(z[here], every, compute_mode="donot_use_mm_for_euclid_dist")     # a product would cancel
    assert nearest.min(1).values.max() < 1e-3 and torch.equal(y[here], client.test.y[nearest.argmin(1)])
    assert len(nearest.argmin(1).unique()) == min(len(client.test), embeddings.IMAGES) and set(domains) == set(SHOWN)


def test_a_record_that_is_there_stays_and_one_that_is_not_is_made(tmp_path):
    run = small_run()
    first = embeddings.collect(run, SHOWN, tmp_path)
    made = numbers(records.read_record(run.path(tmp_path)))
    with safe_open(first, "pt") as file:
        about = json.loads(file.metadata()["about"])
    assert about == {"digest": run.digest, "round": 2, "acc": made[-1]["acc"]}
    before = run.path(tmp_path).read_bytes()
    kept = {k: v for k, v in zip("zyd", embeddings.read(run, SHOWN, tmp_path), strict=True)}
    first.unlink()
    embeddings.collect(run, SHOWN, tmp_path)
    assert run.path(tmp_path).read_bytes() == before
    assert torch.equal(embeddings.read(run, SHOWN, tmp_path)[0], kept["z"])
    assert [p.name for p in (tmp_path / ".features" / "tiny_digits").iterdir()] == []


def test_an_interrupted_collection_continues(tmp_path):
    run = small_run(rounds=3)

    class Cut(Exception):
        pass

    def cut(event):
        raise Cut

    with pytest.raises(Cut):
        embeddings.collect(run, SHOWN, tmp_path / "cut", say=cut)
    heard = []
    embeddings.collect(run, SHOWN, tmp_path / "cut", say=heard.append)
    assert [e["round"] for e in heard] == [2, 3]
    embeddings.collect(run, SHOWN, tmp_path / "whole")
    assert torch.equal(*(embeddings.read(run, SHOWN, tmp_path / k)[0] for k in ("cut", "whole")))


def test_a_figures_run_is_done_with_its_features(tmp_path):
    planned = tables.load_table("i2pfl/figure4").runs("mini", [0])[0]
    plain = next(p for p in tables.load_table("i2pfl/table2").runs("mini", [0]) if p.row == planned.row)
    assert planned.run.digest == plain.run.digest and planned.features == ("printed", "street")
    records.write_record(planned.run.path(tmp_path), {})
    assert plain.done(tmp_path) and not planned.done(tmp_path)
    planned.run.beside(tmp_path, "features").touch()
    assert planned.done(tmp_path)


def test_features_that_were_not_collected_are_named(tmp_path):
    with pytest.raises(UserError, match="fedlib run"):
        embeddings.read(small_run(), SHOWN, tmp_path)
