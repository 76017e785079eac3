"""The rendered stand-in for SynthDigits: counts, keyed random numbers, contrast, what the images show, its label."""
import hashlib

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from fedlib.core.errors import UserError
from fedlib.datasets import prepare
from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.readers import mini_digits, rendered_digits

FEW = {"train": 4000, "test": 2000}


@pytest.fixture(scope="module")
def drawn():
    return rendered_digits.draw(32, FEW)


@pytest.fixture(scope="module")
def luma(drawn):
    """Grey values 0..255 (N,32,32)."""
    return np.tensordot(drawn[0].astype(np.float32), mini_digits._LUMA.astype(np.float32), ([1], [0]))


def digest(*arrays) -> str:
    return hashlib.sha256(b"".join(a.tobytes() for a in arrays)).hexdigest()


def test_shapes_and_counts(drawn):
    x, y, part = drawn
    assert (x.dtype, y.dtype, part.dtype) == (np.uint8, np.int64, np.uint8) and x.shape == (6000, 3, 32, 32)
    assert part.tolist() == [TRAIN] * 4000 + [TEST] * 2000
    for code, n in ((TRAIN, 400), (TEST, 200)):
        assert np.bincount(y[part == code]).tolist() == [n] * 10


def test_an_image_does_not_depend_on_how_many_are_drawn_nor_on_numpys_global_state(drawn):
    np.random.seed(5)
    before = np.random.get_state()[1].copy()
    x, y, _ = rendered_digits.draw(32, {"train": 2100, "test": 50})
    assert digest(x[:2100], y[:2100]) == digest(drawn[0][:2100], drawn[1][:2100])
    assert digest(x[2100:], y[2100:]) == digest(drawn[0][4000:4050], drawn[1][4000:4050])
    assert np.array_equal(np.random.get_state()[1], before)


def test_no_image_twice(drawn):
    assert len({image.tobytes() for image in drawn[0]}) == 6000


def test_both_sizes_show_the_same_digits(drawn):
    """An image of 28 px, enlarged, is nearer to its own of 32 px than to any other of its class."""
    from PIL import Image
    x, y, _ = rendered_digits.draw(28, {"train": 200, "test": 10})
    assert np.array_equal(y[:200], drawn[1][:200])
    large = np.stack([np.asarray(Image.fromarray(i.transpose(1, 2, 0)).resize((32, 32))) for i in x[:200]])
    far = ((large[:, None].astype(np.float32) - drawn[0][None, :200].transpose(0, 1, 3, 4, 2)) ** 2).mean((2, 3, 4))
    assert np.array_equal(far.argmin(1), np.arange(200))
    assert np.abs(large.transpose(0, 3, 1, 2).astype(int) - drawn[0][:200]).mean() < 4  # grey levels: as large, too


def test_every_digit_stands_out(luma):
    """Blur thins a stroke; half of the least contrast remains somewhere in nearly every image."""
    seen = np.quantile(luma, 0.99, axis=(1, 2)) - np.quantile(luma, 0.01, axis=(1, 2))
    least = rendered_digits.MIN_CONTRAST
    assert (seen > least / 2).mean() > 0.995 and np.median(seen) > 1.5 * least


def test_the_published_recipe_varies_what_it_says(drawn, luma):
    x = drawn[0].astype(int)
    colour = np.ptp(x.mean((2, 3)), axis=1)
    assert (colour > 30).mean() > 0.8  # colours, not greys
    edge = np.concatenate([luma[:, :, 0], luma[:, :, -1]], 1)
    cut = np.ptp(edge, axis=1) > 20
    assert 0.4 < cut.mean() < 0.85  # neighbours are cut at the sides; a number of one digit has none
    sharp = np.abs(np.diff(luma, axis=2)).max((1, 2)) / np.ptp(luma, axis=(1, 2))
    assert np.quantile(sharp, 0.9) > 1.5 * np.quantile(sharp, 0.1)  # more and less blur
    dark_on_light = luma[:, 12:20, 12:20].mean((1, 2)) < np.median(luma, axis=(1, 2))
    assert 0.4 < dark_on_light.mean() < 0.6


def test_the_digit_in_the_middle_is_the_labelled_one(drawn, luma):
    """A linear model on |grey - ground| tells the classes far above chance, though it cannot align the digits."""
    ground = np.median(np.concatenate([luma[:, 0], luma[:, -1]], 1), axis=1)[:, None, None]
    features = np.abs(luma - ground)[:, 2:-2, 6:-6]
    features = (features / features.max((1, 2), keepdims=True)).reshape(len(luma), -1)
    y, part = drawn[1:]
    model = LogisticRegression(C=0.01, max_iter=200).fit(features[part == TRAIN], y[part == TRAIN])
    assert model.score(features[part == TEST], y[part == TEST]) > 0.6


def test_it_is_labelled_a_stand_in():
    about = rendered_digits.ABOUT
    assert "stand-in for SynthDigits" in rendered_digits.TITLE and about["notice"] == (
        "rendered_digits is a regenerated stand-in for synth_digits, not the published images")


def test_prepared_without_raw_files(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    monkeypatch.setenv("FEDLIB_RAW", str(tmp_path / "not there"))
    monkeypatch.setattr(rendered_digits, "COUNTS", {"train": 30, "test": 20})
    manifest = prepare.load_set("rendered_digits", 28).manifest
    assert list(manifest["domains"]) == ["rendered_digits"]
    assert [manifest["domains"]["rendered_digits"][part] for part in ("train", "val", "test")] == [30, 0, 20]
    assert manifest["notice"] == rendered_digits.NOTICE and manifest["recipe"] == "1"


def test_sizes():
    with pytest.raises(UserError, match="rendered_digits has no size 64"):
        rendered_digits.read(None, 64, print)
