"""Drawn pictures in folders: as many as asked for, the same for one seed, in looks of their own."""
import numpy as np
from PIL import Image

from fedlib.readers import image_folder
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


def test_the_odd_files_show_the_same_pictures(tmp_path):
    """Upright, in 8 bits, but for what is missing and broken, they are those that `draw` draws."""
    plain, files = shapes.draw(tmp_path / "plain", 4), shapes.odd(tmp_path / "odd", 4)
    assert len(files) == len(plain) - 4 + 2 and not (tmp_path / "odd/neon/triangle").exists()
    modes = {domain: {Image.open(f).mode for f in files if f.parts[-3] == domain and f.stem.isdigit()}
             for domain in shapes.DOMAINS}
    assert modes["chalk"] <= {"I;16", "I"} and modes["paper"] == {"P", "RGBA"} and modes["neon"] == {"RGB"}
    shown = np.asarray(image_folder.rgb(Image.open(tmp_path / "odd/neon/square/002.jpg")), int)
    same = np.asarray(Image.open(tmp_path / "plain/neon/square/002.png"), int)
    far = [np.abs(shown - np.rot90(same, turns)).mean() for turns in range(4)]
    assert far[0] < 12 and far[0] < min(far[1:]) - 3        # JPEG keeps less of the noise
