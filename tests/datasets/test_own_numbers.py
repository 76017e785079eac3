"""A user's own columns of numbers: how they are scaled, what is refused, what a kept model makes of new rows."""
import csv
import json

import numpy as np
import pytest
from conftest import one_line, quiet

from fedlib import cli
from fedlib.core.errors import UserError
from fedlib.datasets import prepare
from fedlib.datasets.partition import Data, federate
from fedlib.engine.run import plan
from fedlib.probes import kept_models, predictions, scores
from fedlib.readers import own_numbers
from fedlib.readers.own_files import prepare_own
from fedlib.report import hospitals

HEAD = ("label", "site", "split", "Width", "height")
ROWS = [("ill", "a", "train", 1, 10), ("well", "a", "train", 3, 10), ("ill", "b", "train", 5, 40),
        ("well", "b", "train", 7, 20), ("ill", "a", "test", 4, 20), ("well", "b", "test", 4, 20)]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "prepared"))
    monkeypatch.delenv("FEDLIB_RAW", raising=False)


def table(path, rows=ROWS, head=HEAD):
    with path.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([head, *rows])
    return path


def fails(path, **how) -> str:
    with pytest.raises(UserError) as caught:
        prepare_own("mine", path, say=quiet, **how)
    return one_line(caught)


def test_columns_are_scaled_by_the_training_part_of_all_sites(tmp_path):
    lines = []
    manifest = prepare_own("mine", table(tmp_path / "t.csv"), say=lines.append)
    assert (manifest["kind"], manifest["size"]) == ("features", 2)
    assert manifest["columns"] == [("width", 4.0, 5 ** 0.5), ("height", 20.0, 150 ** 0.5)]
    x = prepare.load_set("mine").tensors
    np.testing.assert_allclose(x["a/x"].numpy(), np.array([[-3, -10], [-1, -10], [0, 0]]) / [5 ** 0.5, 150 ** 0.5],
                               rtol=1e-6)
    assert x["b/x"][2].tolist() == [0, 0] and x["b/y"].tolist() == [0, 1, 1]
    assert [len(c.train) for c in federate(Data("mine"), 0).clients] == [2, 2]
    assert any("a     1 + 1  1 + 0" in line and "width -0.6, height -0.5 deviations; 2 columns" in line
               for line in lines), lines


def test_rows_without_a_number_are_counted_and_doubtful_columns_named(tmp_path):
    rows = [(*row, i, 1) for i, row in enumerate(ROWS)] + [("ill", "a", "train", "NA", 1, 9, 1)]
    lines = []
    manifest = prepare_own("mine", table(tmp_path / "t.csv", rows, (*HEAD, "id", "same")), say=lines.append)
    said = "\n".join(lines)
    assert "ignored: 1 rows without width" in said and sum(n["train"] for n in manifest["domains"].values()) == 4
    assert "one value in all rows: same" in said
    assert "another whole number in every row, an identifier? Leave it out: id" in said
    assert np.isfinite(prepare.load_set("mine").tensors["a/x"].numpy()).all()


@pytest.mark.parametrize("value, words", [("1,5", "width is '1,5', which is no number"), ("inf", "width is 'inf'"),
                                          ("f", "a category is a column of 0 and 1"), ("1_000", "width is '1_000'"),
                                          ("1e200", "width is '1e200', too large: 1e+30 is the most")])
def test_a_cell_that_is_no_number_is_named(value, words, tmp_path):
    line = fails(table(tmp_path / "t.csv", [*ROWS, ("ill", "a", "train", value, 1)]))
    assert words in line and "t.csv, line 8" in line


def test_mistakes_in_a_table(tmp_path):
    path = table(tmp_path / "t.csv")
    assert "has 2 columns of numbers: leave out --size" in fails(path, size=5)
    assert "has the column width twice" in fails(table(path, head=(*HEAD[:3], "width", "Width")))
    assert "no usable rows" in fails(table(path, []))


@pytest.fixture
def kept(tmp_path):
    """A model of two columns."""
    prepare_own("mine", table(tmp_path / "t.csv", ROWS * 4), say=quiet)
    run = plan("FedAvg", {}, {"name": "mine"}, {"net": "linear"}, {"rounds": 8, "lr": 0.5, "batch": 4}, 0)
    return kept_models.load(kept_models.keep(run, tmp_path / "r"))


def test_a_kept_model_scales_new_rows_by_its_own_columns(kept, tmp_path):
    """Columns in another order, one more, and a set whose own mean and deviation differ: the same probabilities."""
    new = [(h, w, 99, "x") for _, _, _, w, h in ROWS]
    path = table(tmp_path / "new.csv", new, ("HEIGHT", "width", "more", "note"))
    rows = predictions.predict(kept, [path])
    assert [row[0] for row in rows[:2]] == ["line 2 of new.csv", "line 3 of new.csv"]
    mine = prepare.load_set("mine").tensors
    found = kept_models.predicted(next(iter(kept.workers.values())), mine["a/x"][:1], "imagenet")[0].tolist()
    np.testing.assert_allclose(rows[0][2:], found, rtol=1e-5)
    assert predictions.as_csv(kept, rows).startswith("row,label,ill,well\nline 2 of new.csv,")
    other = [("ill", "c", "test", 10 * h, w) for _, _, _, w, h in ROWS] + [("well", "c", "train", 5000, 70)]
    prepare_own("other", table(tmp_path / "o.csv", other, (*HEAD[:3], "tenfold", "width")), say=quiet)
    with pytest.raises(UserError, match="the model wants the column height, which this set lacks"):
        scores.evaluate(kept, "other")
    prepare_own("other", table(tmp_path / "o.csv", [(*r[:3], r[3] / 10, r[4], 0) for r in other],
                               (*HEAD[:3], "height", "width", "more")), say=quiet)
    split = scores.samples(kept, "other", every=False)["c"]
    assert prepare.load_set("other").tensors["c/x"].shape[1] == 3
    np.testing.assert_allclose(split.x.numpy()[:4], np.concatenate([mine["a/x"][:2], mine["b/x"][:2]]), atol=1e-5)


def test_a_new_row_without_a_number_is_named_or_left_out(kept, tmp_path):
    path = table(tmp_path / "new.csv", [(1, 10), ("", 10)], ("width", "height"))
    with pytest.raises(UserError, match="line 3 of new.csv has no width; --skip-corrupt leaves such rows out"):
        predictions.predict(kept, [path])
    skipped = []
    assert len(predictions.predict(kept, [path], skip=skipped)) == 1 and skipped == ["line 3 of new.csv has no width"]
    with pytest.raises(UserError, match="lacks the column height"):
        predictions.predict(kept, [table(path, [(1,)], ("width",))])
    with pytest.raises(UserError, match=r"this model takes .csv with the columns width, height"):
        predictions.predict(kept, [tmp_path / "prepared"])


def test_a_model_of_published_features_still_takes_no_rows(kept):
    """Without columns in its file it cannot know what a row means."""
    bare = kept._replace(about=kept.about | {"columns": []})
    with pytest.raises(UserError, match="takes features as mine has them"):
        predictions.predict(bare, ["x.csv"])


def test_a_column_of_one_value_is_not_scaled_by_rounding():
    """Three times 0.1 has a deviation of 1e-17 in floating point: a new row's 0.2 would become 7e15."""
    column, = own_numbers.scales(["a"], [(0.1,)] * 3)
    assert np.std([0.1] * 3) > 0 and column.deviation == 1.0 and abs(own_numbers.scaled([(0.2,)], [column])[0, 0]) < 1


def test_scaling_there_and_back():
    rng = np.random.default_rng(0)
    raw = rng.normal(5, 3, (20, 3))
    one, other = (own_numbers.scales(["a", "b", "c"], some) for some in (raw[:10], raw[10:]))
    again = own_numbers.rescaled(own_numbers.scaled(raw, one), one, other[::-1])
    np.testing.assert_allclose(again, own_numbers.scaled(raw, other)[:, ::-1], atol=1e-5)


def test_the_hospitals_lumps_are_those_of_the_public_set(tmp_path):
    """No lump stands twice, and only lengths and areas are changed, by the hospital's scale."""
    from sklearn.datasets import load_breast_cancer
    files = hospitals.write(tmp_path)
    rows = [row for path in files.values() for row in csv.DictReader(path.open())]
    public = {f"{x[6]:.5g} {x[7]:.5g} {x[9]:.5g}": (x, y) for x, y in zip(*load_breast_cancer(return_X_y=True))}
    keys = [f"{float(r['mean_concavity']):.5g} {float(r['mean_concave_points']):.5g} "
            f"{float(r['mean_fractal_dimension']):.5g}" for r in rows]
    assert len(rows) == len(set(keys)) == 500 and set(keys) <= set(public)
    for row, k in zip(rows, keys, strict=True):
        x, y = public[k]
        scale = (hospitals.HOSPITALS | hospitals.OUTSIDE)[row["site"]][2]
        assert row["label"] == ("malignant", "benign")[y]
        assert float(row["mean_radius"]) == pytest.approx(scale * x[0], rel=1e-4)
        assert float(row["worst_area"]) == pytest.approx(scale ** 2 * x[23], rel=1e-4)
        assert float(row["mean_texture"]) == pytest.approx(x[1], rel=1e-4)
    same = list(csv.DictReader(hospitals.write(tmp_path / "u", agreed=True)["lumps.csv"].open()))
    assert [r["mean_texture"] for r in same] == [r["mean_texture"] for r in rows[:380]]


def test_the_command_line_takes_a_table(tmp_path, capsys):
    path = table(tmp_path / "t.csv")
    assert cli.call(["data", "mine", "--from", str(path)]) == 0
    assert "mine at 2 features" in capsys.readouterr().out
    manifest = json.loads(prepare.paths("mine", 2)[1].read_text())
    assert manifest["columns"][0][0] == "width" and "divided by their deviation" in manifest["transform"]


def test_a_label_that_is_a_measurement_is_doubted(tmp_path):
    """A class for nearly every row: a quantity was taken for a category."""
    lines = []
    for labels, doubted in (([f"{i / 7:.3f}" for i in range(6)], True), ([row[0] for row in ROWS], False)):
        rows = [(label, *row[1:]) for label, row in zip(labels, ROWS)]
        prepare_own("mine", table(tmp_path / "t.csv", rows), say=lines.append)
        assert any("6 classes in 6 samples: is the label a measurement?" in line for line in lines) == doubted
        lines.clear()
