"""A kept model says what the trained federation said: for every method, for texts and features, on new files."""
import csv
import json
from functools import partial

import numpy as np
import pytest
from conftest import PROMPTED, refusal, small_run
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file

from fedlib.datasets import feature_cache, prepare
from fedlib.engine import loop, records
from fedlib.engine.loop import Simulation
from fedlib.probes import kept_models, predictions, scores


def last(run, folder) -> dict:
    return records.read_record(run.path(folder))["rounds"][-1]


def test_a_kept_model_scores_what_its_record_says(method_name, tmp_path):
    """One client a domain: what the last round tested is what the file gives, to the last picture."""
    run = small_run(method_name, data={"clients": (1, 1, 1, 1)})
    kept = kept_models.load(kept_models.keep(run, tmp_path))
    found = scores.evaluate(kept, run.data.name)["sites"]
    assert {d: pytest.approx(m["accuracy"], abs=1e-4) for d, m in found.items()} == last(run, tmp_path)["acc"]
    assert kept.about["acc"] == last(run, tmp_path)["acc"]


@pytest.mark.parametrize("protocol", [{"evaluate": "after"}, {"buffers": "keep"}, {"precision": "bf16"}])
def test_the_nets_that_were_tested_are_those_that_are_kept(protocol, tmp_path):
    run = small_run(data={"clients": (1, 1, 1, 1)}, **protocol)
    kept = kept_models.load(kept_models.keep(run, tmp_path))
    assert kept.about["shared"] == ("precision" in protocol) and len(kept.workers) == (1 if kept.about["shared"] else 4)
    found = scores.evaluate(kept, run.data.name)["sites"]
    assert {d: pytest.approx(m["accuracy"], abs=1e-4) for d, m in found.items()} == last(run, tmp_path)["acc"]


def test_features_of_a_frozen_encoder_and_a_head_of_texts(tmp_path):
    feature_cache.ensure_features("tiny_digits", None, "mini_clip", say=lambda line: None)
    run = small_run("FedAvg", net="adapter", data={"encoder": "mini_clip", "head": "texts", "clients": (1, 1, 1, 1)})
    kept = kept_models.load(kept_models.keep(run, tmp_path))
    found = scores.evaluate(kept, "tiny_digits")["sites"]
    assert {d: pytest.approx(m["accuracy"], abs=1e-4) for d, m in found.items()} == last(run, tmp_path)["acc"]
    x = prepare.load_set("tiny_digits").tensors["scans/x"][:4]
    ours = kept_models.predicted(kept.of(None), kept_models.encoded(run, x), "imagenet")
    cached = feature_cache.load_features("tiny_digits", None, "mini_clip").tensors["scans"][:4]
    assert ours.sub(kept_models.predicted(kept.of(None), cached, "imagenet")).abs().max() < 0.01


def test_a_record_without_its_net_is_trained_again_and_stays(tmp_path):
    run = small_run(net="linear")
    loop.train(run, tmp_path)
    before = run.path(tmp_path).read_bytes()
    path = kept_models.keep(run, tmp_path)
    assert path == run.path(tmp_path).with_suffix(".safetensors") and run.path(tmp_path).read_bytes() == before
    made = path.read_bytes()
    assert kept_models.keep(run, tmp_path) == path and path.read_bytes() == made


def test_only_what_a_prediction_asks_for_is_kept():
    """SCAFFOLD's control variates are as large as its net, and predict nothing."""
    def names(method, **values):
        simulation = Simulation(small_run(method, values)).play(1)
        worker = simulation.workers[0]
        return {k.split("/")[0] for k in kept_models.flatten(
            kept_models.entries(worker, simulation.server, simulation.run))}
    assert names("SCAFFOLD") == {"net"} and names("Ditto") == {"net", "state"}
    assert names("Constant") == {"net", "counts"}
    assert names("FedProto", infer="nearest") == {"net", "got"}


def test_files_that_are_no_models(tmp_path):
    run = small_run(net="linear")
    path = kept_models.keep(run, tmp_path / "runs")
    for name, content in {"text": b"no model", "short": path.read_bytes()[:500]}.items():
        (tmp_path / name).write_bytes(content)
        refusal(partial(kept_models.load, tmp_path / name), "is no kept model")
    refusal(lambda: kept_models.load(tmp_path / "absent"), "is no kept model")
    with safe_open(path, "pt") as file:
        about, held = json.loads(file.metadata()["about"]), {k: file.get_tensor(k) for k in file.keys()}

    def changed(tensors, **entries):
        save_file(tensors, tmp_path / "changed", {"about": json.dumps(about | entries)})
        return refusal(lambda: kept_models.load(tmp_path / "changed"))
    assert "no kept model" in changed(held, format=2) and "no kept model" in changed(held, clients=[])
    assert "does not fit its net" in changed({k: v[:1] for k, v in held.items()})
    assert "does not fit its net" in changed({"0/net/other": held["0/net/head.bias"]})
    assert "--from FILE.py:METHOD" in changed(held, run=about["run"] | {"method": "Mine"})
    assert "another version" in changed(held, run=about["run"] | {"version": 99})
    assert "no kept model" in changed(held, size=-1) and "no kept model" in changed(held, size=40)
    assert "not finite" in changed({k: v / 0 * 0 if v.is_floating_point() else v for k, v in held.items()})
    assert "--from FILE.py:METHOD" in changed(held, run=about["run"] | {"method": ["FedAvg"]})
    assert "changed" in changed(held, run=about["run"] | {"settings": 5})
    assert "changed" in changed(held | {"0": held["0/net/head.bias"].clone()})
    assert "changed" in changed(held | {"0/state": held["0/net/head.bias"].clone()})


def test_a_net_of_ones_own_must_be_named(tmp_path):
    run = small_run("FedPer")
    kept = kept_models.load(kept_models.keep(run, tmp_path))
    assert list(kept.workers) == ["scans:0", "scans:1", "blended", "printed", "street"]
    assert list(scores.evaluate(kept, "tiny_digits")["sites"]) == list(kept.workers)
    picture = tmp_path / "a.png"
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(picture)
    refusal(lambda: predictions.predict(kept, [picture]), "--client", "scans:0", "street")
    refusal(lambda: predictions.predict(kept, [picture], "strete"), "did you mean 'street'?")
    rows = predictions.predict(kept, [picture], "street")
    assert rows[0][0] == str(picture) and sum(rows[0][2:]) == pytest.approx(1)
    assert predictions.predict(kept, [picture], "printed")[0][2:] != rows[0][2:]


def test_predictions_are_those_of_the_prepared_pictures(tmp_path):
    """Pictures of the set's own size, written as files, and read again."""
    kept = kept_models.load(kept_models.keep(small_run(), tmp_path / "runs"))
    x = prepare.load_set("tiny_digits").tensors["street/x"][:6]
    for i, picture in enumerate(x):
        (tmp_path / "new/more").mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(tmp_path / f"new/more/{i}.png")
    (tmp_path / "new/notes.txt").write_text("no picture")
    text = predictions.as_csv(kept, predictions.predict(kept, [tmp_path / "new"]))
    rows = list(csv.DictReader(text.splitlines()))
    p = kept_models.predicted(kept.of(None), x, "imagenet")
    classes = kept.about["classes"]
    assert [r["path"] for r in rows] == [str(tmp_path / f"new/more/{i}.png") for i in range(6)]
    assert [r["label"] for r in rows] == [classes[i] for i in p.argmax(1).tolist()]
    assert [[float(r[c]) for c in classes] for r in rows] == [pytest.approx(row, abs=1e-4) for row in p.tolist()]
    (tmp_path / "new/bad.jpg").write_text("no picture")
    refusal(lambda: predictions.predict(kept, [tmp_path / "new"]), "bad.jpg is not a readable image")
    skipped = []
    assert len(predictions.predict(kept, [tmp_path / "new"], None, skipped)) == 6 and "bad.jpg" in skipped[0]
    refusal(lambda: predictions.predict(kept, [tmp_path / "runs"]), "nothing to predict in")


def test_prompts_are_kept_with_what_names_them(tmp_path):
    run = small_run("PromptFL", PROMPTED["PromptFL"])
    kept = kept_models.load(kept_models.keep(run, tmp_path))
    assert kept.run == run and kept.of(None).client.classes == prepare.load_set("tiny_digits").manifest["classes"]
