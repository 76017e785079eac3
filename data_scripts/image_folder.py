"""Folders of images as data sets publish them: <domain>/<class>/<file>, with names that differ between releases."""
import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from fedlib.errors import UserError

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp"}


def bare(name: str) -> str:
    """A folder name without case, punctuation and Caltech's leading number: '003.Back-Pack' -> 'backpack'."""
    return re.sub(r"^\d+\.|[^a-z0-9]", "", name.lower())


def find_domains(root: Path, title: str, usual: tuple, spellings: dict) -> tuple[Path, dict]:
    """(the data set's folder, {domain: its folder}): root itself, or a folder of a usual name at most two levels below.

    UserError: no such folder, or one that lacks a domain.
    """
    inner = [root / a for a in usual]
    partial = None
    for place in [root, *inner, *(folder / b for folder in inner for b in usual)]:
        found = {d: _subfolder(place, names) for d, names in spellings.items()}
        if all(found.values()):
            return place, found
        if any(found.values()):
            partial = partial or (place, next(d for d, folder in found.items() if folder is None))
    if partial:
        place, d = partial
        raise UserError(f"{place} lacks the domain '{d}' of {title}: no folder named {' or '.join(spellings[d])}")
    raise UserError(f"no {title} in {root}: looked for the folders {', '.join(n[0] for n in spellings.values())} "
                    f"there and below {', '.join(usual)}")


def class_files(domain: str, folder: Path, spellings: dict) -> tuple[list, np.ndarray]:
    """The image files of one domain and their labels: classes in the order of `spellings`, names sorted in each.

    That is the order of torchvision's ImageFolder. UserError: a class folder that is missing or empty.
    """
    if (folder / "images").is_dir():  # Office-31 keeps amazon/images/back_pack
        folder = folder / "images"
    files, y = [], []
    for label, (name, known) in enumerate(spellings.items()):
        place = _subfolder(folder, (name, *known))
        if place is None:
            raise UserError(f"domain '{domain}' lacks the class '{name}': no folder of that name in {folder}")
        images = sorted((f for f in place.iterdir() if f.suffix.lower() in SUFFIXES and not f.name.startswith(".")),
                        key=lambda f: f.name)
        if not images:
            raise UserError(f"domain '{domain}', class '{name}': no .jpg or .png images in {place}")
        files += images
        y += [label] * len(images)
    return files, np.array(y, dtype=np.int64)


def decode(files: list, size: int, what: str) -> tuple[np.ndarray, np.ndarray]:
    """Read images as RGB and resize them as torchvision's Resize((size, size)) does on PIL images.

    Returns x uint8 (N,3,size,size) and the shorter side of each source (N,). UserError names a file that is no image.
    """
    x = np.empty((len(files), 3, size, size), dtype=np.uint8)
    shorter = np.empty(len(files), dtype=np.int64)

    def read(i):
        try:
            with Image.open(files[i]) as image:
                shorter[i] = min(image.size)
                x[i] = channels_first(image.convert("RGB"), size)
        except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
            raise UserError(f"{files[i]} is not a readable image ({str(error).splitlines()[0]})") from None

    _in_threads(read, len(files), what)
    return x, shorter


def resize_all(images: np.ndarray, size: int, what: str) -> np.ndarray:
    """Grey images uint8 (N,H,W) as x uint8 (N,3,size,size): resized as in `decode`, the one channel repeated."""
    x = np.empty((len(images), 3, size, size), dtype=np.uint8)
    if images.shape[1:] == (size, size):
        x[:] = images[:, None]
        return x

    def resize(i):
        x[i] = np.asarray(Image.fromarray(images[i]).resize((size, size), Image.Resampling.BILINEAR))

    _in_threads(resize, len(images), what)
    return x


def channels_first(image: Image.Image, size: int) -> np.ndarray:
    """An RGB image as uint8 (3,size,size), bilinear with antialiasing."""
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR)).transpose(2, 0, 1)


def transform_text(size: int, shorter: np.ndarray) -> str:
    """What the manifest says about the resize, with the size of the source images."""
    low, high = int(shorter.min()), int(shorter.max())
    text = (f"RGB; resized to {size}x{size}, bilinear with antialiasing (torchvision's Resize on PIL images); "
            f"shorter side of the sources: {low if low == high else f'{low} to {high}'} px")
    enlarged = int((shorter < size).sum())
    return text + (f"; {enlarged} of {len(shorter)} images enlarged" if enlarged else "")


def subset_text(found: dict, published: dict) -> str:
    """'' when the counts are the published ones, else 'subset: photo 7 of 1670, ...'."""
    other = [f"{d} {n} of {published[d]}" for d, n in found.items() if n != published[d]]
    return f"subset: {', '.join(other)}" if other else ""


def _subfolder(folder: Path, names) -> Path | None:
    if not folder.is_dir():
        return None
    wanted = {bare(n) for n in names}
    found = sorted(f for f in folder.iterdir() if f.is_dir() and bare(f.name) in wanted)
    if len(found) > 1:
        raise UserError(f"{folder} holds both {found[0].name} and {found[1].name}, two spellings of one name")
    return found[0] if found else None


def _in_threads(work, n: int, what: str):
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # PIL decodes and resizes outside the GIL
        for _ in tqdm(pool.map(work, range(n)), total=n, desc=what, unit="image", leave=False, disable=None):
            pass
