"""Drawn pictures in folders: as many as asked for, the same for one seed, in looks of their own."""
import numpy as np
from PIL import Image

from fedlib.report import shapes


def test_folders_of_pictures(tmp_path):
    files = shapes.draw(tmp_path / "one", count=2, seed=3)
    assert len(files) == 2 * len(shapes.DOMAINS) * len(shapes.CORNERS) == len(list(tmp_path.rglob("*.png")))
    again, other = (shapes.draw(tmp_path / name, 2, seed) for name, seed in (("again", 3), ("other", 4)))
    assert all(a.read_bytes() == b.read_bytes() for a, b in zip(files, again, strict=True))
    assert any(a.read_bytes() != b.read_bytes() for a, b in zip(files, other, strict=True))


def test_a_domain_has_its_ground():
    for domain, (ground, _, _) in shapes.DOMAINS.items():
        picture = shapes.picture(domain, "circle", np.random.default_rng(0))
        assert isinstance(picture, Image.Image) and picture.size == (48, 48)
        corner = np.asarray(picture)[:8, :8].reshape(-1, 3).mean(0)
        assert np.abs(corner - ground).max() < 10
