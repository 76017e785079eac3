"""Drawn pictures of three shapes in three looks, as a folder of files: they stand for pictures of your own."""
import shutil
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

DOMAINS = {     # ground, ink, is the shape filled?
    "chalk": ((35, 70, 55), (230, 230, 220), False),
    "paper": ((245, 240, 225), (40, 40, 90), True),
    "neon": ((15, 5, 30), (255, 60, 180), False)}
CORNERS = {"circle": 40, "square": 4, "triangle": 3}


def draw(folder: Path, count: int = 40, seed: int = 0) -> list[Path]:
    """Draw `count` pictures of each shape in each domain: <folder>/<domain>/<shape>/000.png, ... Returns the files."""
    rng, files = np.random.default_rng(seed), []
    for domain in DOMAINS:
        for shape in CORNERS:
            place = Path(folder) / domain / shape
            place.mkdir(parents=True)
            for i in range(count):
                files.append(place / f"{i:03}.png")
                picture(domain, shape, rng).save(files[-1])
    return files


def odd(folder: Path, count: int = 40, seed: int = 0) -> list[Path]:
    """The same as places store them: chalk in 16 bits, paper with palette or alpha, neon turned by EXIF. The files.

    neon has no triangle, one file that is no picture, and a note.
    """
    folder, turned = Path(folder), Image.Exif()
    turned[0x0112] = 6      # to be shown with a quarter turn to the right
    for i, path in enumerate(draw(folder, count, seed)):
        image = Image.open(path)
        if "chalk" in path.parts[-3]:
            Image.fromarray(np.asarray(image.convert("L"), np.uint16) * 257).save(path)
        elif "paper" in path.parts[-3]:
            (image.quantize(64) if i % 2 else image.convert("RGBA")).save(path)
        else:
            image.rotate(90).save(path.with_suffix(".jpg"), exif=turned, quality=95)
            path.unlink()
    shutil.rmtree(folder / "neon/triangle")
    (folder / "neon/square/scan.jpg").write_bytes(b"cut off while it was copied")
    (folder / "neon/note.txt").write_text("the triangles follow")
    return sorted(path for path in folder.rglob("*") if path.is_file())


def picture(domain: str, shape: str, rng: np.random.Generator, side: int = 48) -> Image.Image:
    """One shape at a place, of a size and with a turn of its own, under noise."""
    ground, ink, filled = DOMAINS[domain]
    image = Image.new("RGB", (side, side), ground)
    r, (cx, cy), turn = rng.uniform(10, 18), rng.uniform(20, 28, 2), rng.normal(0.8, 0.2)
    angles = turn + 2 * np.pi * np.arange(CORNERS[shape]) / CORNERS[shape]
    corners = [(cx + r * np.cos(a), cy + r * np.sin(a)) for a in angles]
    ImageDraw.Draw(image).polygon(corners, fill=ink if filled else None, outline=ink, width=1 if filled else 3)
    noisy = np.asarray(image) + rng.normal(0, 14, (side, side, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
