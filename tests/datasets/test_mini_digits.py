"""The embedded dataset: counts, disjoint parts, determinism, contrast, and a domain shift that is there."""
import hashlib
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from conftest import quiet
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from fedlib.core.errors import UserError
from fedlib.readers import mini_digits

TRAIN, TEST = 0, 2


@pytest.fixture(scope="module")
def domains():
    made, updates = mini_digits.read(None, 28, quiet)
    assert updates == {}
    return made


def digest(made) -> str:
    hashed = hashlib.sha256()
    for domain in sorted(made):
        for array in made[domain]:
            hashed.update(array.tobytes())
    return hashed.hexdigest()


def test_shapes_and_types(domains):
    assert tuple(domains) == mini_digits.DOMAINS
    for x, y, part in domains.values():
        assert x.dtype == np.uint8 and y.dtype == np.int64 and part.dtype == np.uint8
        assert x.shape == (len(y), 3, 28, 28) and part.shape == y.shape


@pytest.mark.parametrize("domain", mini_digits.DOMAINS)
def test_counts_are_the_listed_ones(domains, domain):
    _, y, part = domains[domain]
    for code, n in enumerate(mini_digits.PER_CLASS[domain]):
        assert np.bincount(y[part == code], minlength=10).tolist() == [n] * 10
    assert len(y) == 10 * sum(mini_digits.PER_CLASS[domain])


def test_two_builds_are_equal(domains):
    assert digest(mini_digits.read(None, 28, quiet)[0]) == digest(domains)


def test_a_build_neither_reads_nor_moves_numpys_global_state(domains):
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    street = mini_digits._make_street(mini_digits.labels("street")[0])  # alone, and after another seed
    assert np.array_equal(street, domains["street"][0])
    assert np.array_equal(np.random.get_state()[1], before)


def test_every_scan_is_used_once_at_most():
    used = np.concatenate([mini_digits.sources("scans"), mini_digits.sources("blended")])
    assert len(np.unique(used)) == len(used) == 1740


@pytest.mark.parametrize("domain", ["scans", "blended"])
def test_labels_are_those_of_the_source_scans(domain):
    y, _ = mini_digits.labels(domain)
    assert np.array_equal(load_digits().target[mini_digits.sources(domain)], y)


def test_scans_show_their_source(domains):
    """Averaged back to 8x8, an upsampled scan is nearer to its own source than to any other scan."""
    scans, source = load_digits().images, mini_digits.sources("scans")
    x = domains["scans"][0][:, 0].astype(float) * 16 / 255
    small = np.stack([[x[:, 7 * r // 2:7 * (r + 1) // 2 + 1, 7 * c // 2:7 * (c + 1) // 2 + 1].mean((1, 2))
                       for c in range(8)] for r in range(8)]).transpose(2, 0, 1)
    far = ((small[:100, None] - scans[None]) ** 2).sum((2, 3))
    assert np.array_equal(far.argmin(1), source[:100])


@pytest.mark.parametrize("domain", mini_digits.DOMAINS)
def test_no_image_twice(domains, domain):
    x = domains[domain][0]
    assert len(np.unique(x.reshape(len(x), -1), axis=0)) == len(x)


@pytest.mark.parametrize("domain", ["printed", "street"])
def test_colours_keep_the_least_contrast(domain):
    glyph, start, end = mini_digits._colours(domain, 2000, gradient=domain == "street") @ np.array([.299, .587, .114])
    least = mini_digits.MIN_CONTRAST[domain]
    for share in (0, 0.3, 0.7, 1):  # anywhere along the gradient
        assert (np.abs(glyph - (1 - share) * start - share * end) >= least - 1e-9).all()


@pytest.mark.parametrize("domain", ["printed", "street"])
def test_glyphs_stand_out_in_the_finished_images(domains, domain):
    luma = np.einsum("nchw,c->nhw", domains[domain][0], [.299, .587, .114]).reshape(len(domains[domain][0]), -1)
    assert np.ptp(luma, axis=1).min() > 45
    assert np.median(np.ptp(luma, axis=1)) > 90


def test_the_glyph_is_inside_the_image():
    """No part of a printed digit is cut off: the ink never touches the border."""
    ink = mini_digits._ink("printed", mini_digits.labels("printed")[0])
    border = np.concatenate([ink[:, [0, -1]].ravel(), ink[:, :, [0, -1]].ravel()])
    assert border.max() < 0.05 and ink.max((1, 2)).min() > 0.4


def test_domain_shift(domains):
    """A linear classifier of the scans knows the scans, and little of what it has not seen."""
    def flat(domain, code):
        x, y, part = domains[domain]
        return x[part == code].mean(1).reshape(-1, 784) / 255, y[part == code]

    net = LogisticRegression(max_iter=300).fit(*flat("scans", TRAIN))
    accuracy = {domain: net.score(*flat(domain, TEST)) for domain in mini_digits.DOMAINS}
    assert accuracy["scans"] > 0.9
    for other in ("blended", "printed", "street"):
        assert accuracy["scans"] - accuracy[other] > 0.3, accuracy


@pytest.mark.parametrize("size", [32, 0, "28"])
def test_another_size_is_refused(size):
    with pytest.raises(UserError, match=f"no size {size}.*allowed: 28"):
        mini_digits.read(None, size, quiet)


def test_a_matplotlib_without_the_italic_font_draws_the_same(tmp_path, monkeypatch):
    """Its releases before 3.11 lack cmti10."""
    fonts, there = tmp_path / "fonts" / "ttf", Path(matplotlib.get_data_path(), "fonts", "ttf")
    fonts.mkdir(parents=True)
    before = mini_digits._masks("printed")
    for name in set(mini_digits.FONTS["printed"]) - {"cmti10"}:
        (fonts / f"{name}.ttf").symlink_to(there / f"{name}.ttf")
    monkeypatch.setattr(matplotlib, "get_data_path", lambda: str(tmp_path))
    assert np.array_equal(mini_digits._masks("printed"), before)
