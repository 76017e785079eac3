"""The cache of frozen features: kills, two writers, files made elsewhere, federations over features."""
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import RAW, needs_weights, one_line
from real_images import image, needs_images
from safetensors.torch import load_file
from torch import nn

from fedlib.core.errors import UserError
from fedlib.core.seeds import generator
from fedlib.datasets import feature_cache, prepare
from fedlib.datasets.partition import Data, federate
from fedlib.datasets.registry import DATASETS
from fedlib.engine import loop, records
from fedlib.engine.run import plan
from fedlib.models import class_heads, encoders
from fedlib.models.encoders import Encoder

EACH = 12       # images of each class and domain of the few of PACS
SET = ("tiny_digits", 28)


class Slow(nn.Module):
    """Writes down each batch, then waits."""

    def __init__(self, log: Path | None, seconds: float):
        super().__init__()
        self.log, self.seconds = log, seconds

    def forward(self, x):
        if self.log:
            with open(self.log, "a") as file:
                file.write(f"{len(x)}\n")
        time.sleep(self.seconds)
        return x


def tiny(seed=0, log=None, seconds=0.0, scale=1.0) -> Encoder:
    """A linear map of 8 x 8 pixels to 6 numbers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Flatten(), Slow(log, seconds), nn.Linear(192, 6))
    net[2].weight.data *= scale
    return Encoder("tiny", net, 6, 8, [0.5] * 3, [0.5] * 3, "bilinear")


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A folder with the prepared tiny_digits and nothing else; pieces of ten images."""
    prepare.load_set("tiny_digits")
    old = prepare.folder()
    (tmp_path / "store").mkdir()
    for path in old.glob("*_digits-28.*"):
        os.symlink(path.resolve(), tmp_path / "store" / path.name)
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "store"))
    monkeypatch.setattr(feature_cache, "PIECE", 10)
    return tmp_path / "store"


@pytest.fixture
def at_hand(monkeypatch):
    """The tiny encoder can be loaded by its name."""
    monkeypatch.setattr(encoders, "at_hand", lambda name: True)
    monkeypatch.setattr(encoders, "load_encoder", lambda name: tiny())


def made(store) -> list[str]:
    """What lies beside the prepared sets."""
    return sorted(p.name for p in store.iterdir() if not p.is_symlink())


def directly(encoder, domain):
    return encoder(prepare.load_set(*SET).tensors[f"{domain}/x"])


# the cache

def test_features_are_the_encoders_in_the_sets_order(store):
    encoder = tiny()
    path = feature_cache.make_features(*SET, encoder, batch=7)
    about, tensors, no_texts = feature_cache.load_features(*SET, "tiny")
    assert list(tensors) == list(prepare.load_set(*SET).manifest["domains"])
    for d, z in tensors.items():
        assert z.dtype == torch.float16 and torch.allclose(z.float(), directly(encoder, d), rtol=2e-3, atol=2e-3)
    assert about["texts"] == "" and no_texts == {}
    assert about["weights"] == encoder.weights and about["set"] == prepare.load_set(*SET).manifest["digest"]
    assert about["made"]["images"] == sum(map(len, tensors.values())) and made(store) == [path.name]
    assert feature_cache.summary(path).startswith(f"tiny of tiny_digits at 28 px: {path}\n")


class Reader:
    """Stands for a text tower: a prompt's vector depends on its letters only."""
    scale = 7.0

    def texts(self, prompts):
        z = torch.stack([torch.randn(6, generator=generator("prompt", p)) for p in prompts])
        return torch.nn.functional.normalize(z)


def reading(encoder):
    """The encoder with a text tower."""
    encoder.__class__ = type("Reading", (Reader, Encoder), {})
    encoder.model = nn.Identity()
    return encoder


def test_heads_of_texts_lie_in_the_same_file(store):
    encoder = reading(tiny())
    feature_cache.make_features(*SET, encoder)
    kept = feature_cache.load_features(*SET, "tiny")
    assert list(kept.heads) == [*kept.tensors, class_heads.PLAIN] and kept.about["texts"]
    vectors = encoder.texts(class_heads.prompts("street", "3"))
    assert len(vectors) == 3
    wanted = 7 * torch.nn.functional.normalize(vectors.mean(0), dim=0)
    assert torch.allclose(kept.heads["street"][3], wanted, atol=1e-6)
    federation = federate(Data("tiny_digits", encoder="tiny", head="texts"), 0)
    own = [kept.heads[d] for d in kept.tensors]
    assert torch.allclose(federation.head, torch.stack(own).mean(0))
    assert torch.equal(federation.clients[3].head, kept.heads["street"])
    plain = federate(Data("tiny_digits", encoder="tiny", head="plain"), 0)
    assert torch.allclose(plain.head[3], 7 * encoder.texts(["a photo of a 3."])[0], atol=1e-5)
    assert all(torch.equal(c.head, kept.heads[class_heads.PLAIN]) for c in plain.clients)


def test_other_templates_are_other_features(store, monkeypatch):
    first = feature_cache.make_features(*SET, reading(tiny()))
    monkeypatch.setattr(class_heads, "templates", lambda: {"other": ["the {}"]})
    with pytest.raises(UserError, match="has no features of tiny"):
        feature_cache.load_features(*SET, "tiny")
    assert feature_cache.make_features(*SET, reading(tiny())) != first
    assert len(feature_cache.load_features(*SET, "tiny").heads) == 5     # the older file stays, and is not read


def test_no_text_tower_no_heads_of_texts(store):
    feature_cache.make_features(*SET, tiny())
    with pytest.raises(UserError, match="tiny has no text tower"):
        federate(Data("tiny_digits", encoder="tiny", head="texts"), 0)
    with pytest.raises(UserError, match="name an encoder"):
        federate(Data("tiny_digits", head="texts"), 0)


def test_a_run_makes_the_features_it_lacks(store, at_hand):
    feature_cache.ensure_features(*SET, "tiny")
    assert len(made(store)) == 1
    feature_cache.ensure_features(*SET, "tiny")
    assert len(made(store)) == 1
    with pytest.raises(UserError, match="no features of tiny#abc"):
        feature_cache.ensure_features(*SET, "tiny#abc")


def test_the_pass_is_made_once(store, tmp_path):
    first = feature_cache.make_features(*SET, tiny(log=tmp_path / "log"))
    said = (tmp_path / "log").read_text()
    assert feature_cache.make_features(*SET, tiny(log=tmp_path / "log")) == first
    assert (tmp_path / "log").read_text() == said


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_features_are_memory_mapped(store):
    path = feature_cache.make_features(*SET, tiny())
    kept = feature_cache.load_features(*SET, "tiny")
    assert str(path.resolve()) in Path("/proc/self/maps").read_text() and len(kept.tensors) == 4


def _make(encoder):
    feature_cache.make_features(*SET, encoder, batch=5)


def test_a_killed_pass_goes_on_with_what_it_had(store, tmp_path):
    path = feature_cache.make_features(*SET, tiny(), batch=5)
    whole = path.read_bytes()
    path.unlink()
    child = multiprocessing.get_context("fork").Process(target=_make, args=(tiny(seconds=0.05),))
    child.start()
    pieces = path.with_name(f".{path.name}.pieces")
    until = time.monotonic() + 30
    while len(list(pieces.glob("*.npy"))) < 3 and time.monotonic() < until:
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGKILL)
    child.join(30)
    there = len(list(pieces.glob("*.npy")))
    assert there >= 3 and not path.exists()
    (pieces / "0-0.npy").write_bytes(b"")       # as a machine that lost its power may leave it
    log = tmp_path / "log"
    assert feature_cache.make_features(*SET, tiny(log=log), batch=5) == path
    total = sum(map(len, feature_cache.load_features(*SET, "tiny").tensors.values()))
    assert sum(map(int, log.read_text().split())) == total - 10 * (there - 1)
    assert load_file(path).keys() and made(store) == [path.name]
    path.with_name("whole").write_bytes(whole)
    once, again = load_file(path.with_name("whole")), load_file(path)
    assert all(torch.equal(once[d], again[d]) for d in once)


def test_two_writers_share_one_pass(store, tmp_path):
    log, context = tmp_path / "log", multiprocessing.get_context("fork")
    both = [context.Process(target=_make, args=(tiny(log=log, seconds=0.01),)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    total = sum(map(len, feature_cache.load_features(*SET, "tiny").tensors.values()))
    assert sum(map(int, log.read_text().split())) == total and len(made(store)) == 1


def test_a_second_writer_says_that_it_waits(store):
    from fedlib.datasets.download import locked
    encoder, said = tiny(), []
    path = feature_cache.path_of(feature_cache.described(prepare.load_set(*SET).manifest, encoder))
    second = threading.Thread(target=feature_cache.make_features, args=(*SET, encoder), kwargs={"say": said.append})
    with locked(path.with_name(f".{path.name}.pieces")):
        second.start()
        second.join(1)
        assert second.is_alive() and not path.exists()
        assert said == ["another process computes the same features; waiting"]
    second.join(60)
    assert path.exists() and feature_cache.load_features(*SET, "tiny")


def test_other_weights_are_another_file(store):
    paths = [feature_cache.make_features(*SET, tiny(seed)) for seed in (0, 1)]
    assert len(set(paths)) == 2
    with pytest.raises(UserError) as caught:
        feature_cache.load_features(*SET, "tiny")
    pin = f"tiny#{tiny(1).weights[:8]}"
    assert "features of 2 encoders tiny" in one_line(caught) and pin in str(caught.value)
    assert feature_cache.load_features(*SET, pin).about["weights"] == tiny(1).weights


def test_features_of_another_preparation_are_not_taken(store, monkeypatch):
    feature_cache.make_features(*SET, tiny())
    manifest = prepare.load_set(*SET).manifest
    assert feature_cache._there(manifest, "tiny") and not feature_cache._there(manifest | {"digest": "0" * 64}, "tiny")
    with pytest.raises(UserError, match=r"no features of tin; run: fedlib features --encoder tin --data tiny_digits"):
        feature_cache.load_features(*SET, "tin")


def test_what_no_encoder_takes(store, monkeypatch):
    with pytest.raises(UserError, match="tiny gives features that are not finite as float16"):
        feature_cache.make_features(*SET, tiny(scale=1e9))
    with pytest.raises(UserError, match="mini_reviews holds tokens; encoders take images"):
        feature_cache.make_features("mini_reviews", None, tiny())
    with pytest.raises(ValueError, match="no square images"):
        tiny()(torch.zeros(2, 3, 8, 9, dtype=torch.uint8))


def test_a_full_disk_is_one_line(store, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")
    monkeypatch.setattr(np, "save", full)
    with pytest.raises(UserError, match="no space left in"):
        feature_cache.make_features(*SET, tiny())
    assert [p for p in store.rglob("*.tmp")] == []


# files made elsewhere, and damage

def elsewhere(store, tmp_path, encoder=None) -> Path:
    """A file of the features that is no longer where it was made."""
    path = feature_cache.make_features(*SET, encoder or tiny())
    return path.rename(tmp_path / "from_elsewhere.safetensors")


def rewritten(path, tensors=None, **changes) -> Path:
    """The same file with other numbers or metadata, its content digest made to agree."""
    about = feature_cache._about(path) | changes
    feature_cache.write_features(path, tensors or {d: z.numpy() for d, z in load_file(path).items()}, about)
    return path


def test_a_copied_file_is_taken(store, tmp_path, at_hand):
    source, said = elsewhere(store, tmp_path), []
    taken = feature_cache.adopt(source, *SET, "tiny", said.append)
    assert taken == feature_cache.make_features(*SET, tiny()) and source.read_bytes() == taken.read_bytes() and not said
    assert set(feature_cache.load_features(*SET, "tiny").tensors) == set(prepare.load_set(*SET).manifest["domains"])


def test_without_the_encoder_no_row_is_computed_anew(store, tmp_path, monkeypatch):
    monkeypatch.setattr(encoders, "at_hand", lambda name: False)
    said = []
    feature_cache.adopt(elsewhere(store, tmp_path), *SET, "tiny", said.append)
    assert said == ["the weights of tiny are not here, so no row was computed anew"]


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


def other_rows(path):
    rewritten(path, {d: z.flip(0).numpy() for d, z in load_file(path).items()})


def not_finite(path):
    tensors = {d: z.numpy() for d, z in load_file(path).items()}
    tensors["street"][3, 2] = np.inf
    rewritten(path, tensors)


def fewer_rows(path):
    rewritten(path, {d: z[:-1].numpy() for d, z in load_file(path).items()})


def wider(path):
    rewritten(path, {d: z.float().numpy() for d, z in load_file(path).items()})


FAULTS = {
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:-100]), ""),
    "empty": (lambda path: path.write_bytes(b""), ""),
    "no tensors": (lambda path: path.write_bytes(b"PK\3\4 nothing of ours"), ""),
    "foreign": (lambda path: path.write_bytes(prepare.paths(*SET)[0].read_bytes()), "it holds no features"),
    "flipped": (flip, "its numbers are not those that were written"),
    "other rows": (other_rows, "computed anew are others"),
    "infinite": (not_finite, "features of street are not finite"),
    "fewer rows": (fewer_rows, "its tensors are not"),
    "float32": (wider, "its numbers are not float16"),
    "other encoder": (lambda path: rewritten(path, encoder="other"), "its encoder is other, not tiny"),
    "other set": (lambda path: rewritten(path, set="0" * 64), "its digest of the prepared set is 000000000000, not "),
    "other size": (lambda path: rewritten(path, size=32), "its set is tiny_digits-32, not tiny_digits-28"),
    "other weights": (lambda path: rewritten(path, weights="0" * 64), "its weights of tiny are others than here (000"),
    "other transform": (lambda path: rewritten(path, transform="none"), "its transform of tiny are others than here"),
    "no weights": (lambda path: rewritten(path, weights=None), "its metadata are not whole"),
    "absent": (lambda path: path.unlink(), ""),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_corrupted_file_is_refused(store, tmp_path, at_hand, fault):
    source = elsewhere(store, tmp_path)
    damage, words = FAULTS[fault]
    damage(source)
    before = made(store)
    with pytest.raises(UserError) as caught:
        feature_cache.adopt(source, *SET, "tiny")
    assert one_line(caught).startswith(f"{source} is not taken: ") and words in str(caught.value)
    assert made(store) == before


@pytest.mark.parametrize("damage", [flip, lambda p: p.write_bytes(b""), lambda p: p.write_bytes(p.read_bytes()[:-9])])
def test_damage_is_named_when_features_are_read(store, damage):
    path = feature_cache.make_features(*SET, tiny())
    damage(path)
    with pytest.raises(UserError) as caught:
        feature_cache.load_features(*SET, "tiny")
    assert one_line(caught).startswith(f"{path} is damaged or not ours (")
    path.unlink()
    feature_cache.make_features(*SET, tiny())
    assert feature_cache.load_features(*SET, "tiny")


# federations over features

def test_a_federation_holds_features_and_says_so(store):
    feature_cache.make_features(*SET, tiny())
    plain, over = (federate(Data("tiny_digits", encoder=name), 0) for name in ("", "tiny"))
    assert over.clients[0].train.x.shape == (50, 6) and over.about["encoder"]["weights"] == tiny().weights
    assert "encoder" not in plain.about and over.about["partition"] == plain.about["partition"]
    for one, other in zip(plain.clients, over.clients, strict=True):
        assert torch.equal(one.train.y, other.train.y) and torch.equal(one.test.y, other.test.y)
        assert torch.allclose(tiny()(one.test.x), other.test.x.float(), rtol=2e-3, atol=2e-3)


def test_digests_of_runs_without_an_encoder_are_as_before():
    run = plan("FedAvg", {}, {"name": "tiny_digits"}, {"net": "linear"}, {}, 0)
    assert "encoder" not in run.spec["data"]
    assert run.digest != plan("FedAvg", {}, {"name": "tiny_digits", "encoder": "tiny"}, {"net": "linear"}, {}, 0).digest


@pytest.mark.parametrize("method, net", [("FedAvg", "linear"), ("FedProto", "adapter"), ("FedBN", "mlp3")])
def test_methods_train_on_features(store, tmp_path, method, net):
    feature_cache.make_features(*SET, tiny())
    run = plan(method, {}, {"name": "tiny_digits", "encoder": "tiny"}, {"net": net},
               {"rounds": 1, "epochs": 2, "lr": 0.1}, 0)
    record = records.read_record(loop.train(run, tmp_path))
    assert len(record["rounds"]) == 1 and record["made"]["data"]["encoder"]["encoder"] == "tiny"
    assert record["made"]["data"]["encoder"]["weights"] == tiny().weights


def test_a_run_without_its_features_says_how_to_make_them(store, fedlib, tmp_path):
    code, _, said = fedlib("train", "FedAvg", "--data", "tiny_digits", "--set", "encoder=mobilenet_v2@96", "--set",
                           "net=linear", "--out", tmp_path)
    assert code == 2 and said.count("\n") == 1
    assert "run: fedlib features --encoder mobilenet_v2@96 --data tiny_digits --size 28" in said


@pytest.mark.parametrize("words, said", {
    ("--encoder", "squeezenet", "--data", "tiny_digits"): "unknown encoder 'squeezenet'; did you mean 'squeezenet1_1'?",
    ("--encoder", "mobilenet_v2@50", "--data", "tiny_digits"): "the side after @ is a multiple of 32",
    ("--encoder", "squeezenet1_1", "--data", "tiny_digit"): "did you mean 'tiny_digits'?",
    ("--encoder", "squeezenet1_1", "--data", "tiny_digits", "--from", "absent.safetensors"): "is not taken",
    ("--encoder", "squeezenet1_1", "--data", "tiny_digits", "--device", "abacus"): "device 'abacus' cannot be used",
}.items())
@needs_weights
def test_mistakes_of_the_command_line(store, fedlib, words, said):
    code, _, error = fedlib("features", *words)
    assert code == 2 and said in error and error.count("\n") == 1 and made(store) == []


@needs_weights
def test_the_command_line_makes_and_takes_features(store, fedlib, tmp_path):
    words = ("features", "--encoder", "squeezenet1_1@32", "--data", "tiny_digits")
    code, out, _ = fedlib(*words)
    assert code == 0 and "street" in out and "x 512" in out and "a second" in out
    source = (store / made(store)[0]).rename(tmp_path / "copied")
    assert fedlib(*words, "--from", source)[:2] == (0, out)


@pytest.fixture
def few_pacs(store, monkeypatch):
    """Twelve images of each class and domain of PACS as a set of its own, every third held out."""
    from fedlib.readers import pacs
    reader = types.ModuleType("few_pacs")
    reader.NAME = reader.TITLE = "few_pacs"
    reader.CLASSES, reader.DOMAINS, reader.SIZES = pacs.CLASSES, pacs.DOMAINS, (96,)
    reader.ABOUT, reader.BUILT_IN = pacs.ABOUT, True

    def read(root, size, say):
        domains = {}
        for d in pacs.DOMAINS:
            paths = [p for c in pacs.CLASSES for p in sorted((RAW / "PACS" / d / c).iterdir())[:EACH]]
            y = np.repeat(np.arange(len(pacs.CLASSES)), EACH)
            part = np.where(np.arange(len(y)) % 3 == 2, prepare.TEST, prepare.TRAIN).astype(np.uint8)
            domains[d] = np.stack([image(p).numpy() for p in paths]), y, part
        return domains, {}

    reader.read = read
    monkeypatch.setitem(DATASETS, "few_pacs", "few_pacs")
    monkeypatch.setitem(sys.modules, "few_pacs", reader)
    return "few_pacs"


@needs_images
def test_real_features_carry_over_to_another_domain(few_pacs, tmp_path):
    """A linear head on MobileNetV2's features, trained on the other domains, tells photos apart (chance: 14 %)."""
    feature_cache.make_features(few_pacs, 96, encoders.load_encoder("mobilenet_v2@96"))
    data = {"name": few_pacs, "encoder": "mobilenet_v2@96", "unseen": ("photo",)}
    run = plan("FedAvg", {}, data, {"net": "linear"}, {"rounds": 10, "epochs": 2, "lr": 0.003, "batch": 16}, 0)
    last = records.read_record(loop.train(run, tmp_path))["rounds"][-1]
    assert last["unseen"]["photo"] > 35 and min(last["acc"].values()) > 35, last


def test_metadata_are_plain_json(store):
    path = feature_cache.make_features(*SET, tiny())
    assert json.loads(json.dumps(feature_cache._about(path)))["format"] == feature_cache.FORMAT
