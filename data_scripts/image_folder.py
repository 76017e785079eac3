"""Folders of images as data sets publish them: <domain>/<class>/<file>, with names that differ between releases."""
import math
import os
import re
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
from tqdm import tqdm

from fedlib.core.errors import UserError, first_line
from fedlib.core.seeds import key
from fedlib.datasets.prepare import TEST, TRAIN, folder

IN_MEMORY = 256 * 2**20  # bytes; larger arrays of decoded images lie in a file
SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".tif", ".tiff", ".webp"}
FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP")      # no PostScript, which starts a program


def bare(name: str) -> str:
    """A folder name without case, punctuation and Caltech's leading number: '003.Back-Pack' -> 'backpack'."""
    return re.sub(r"^\d+\.|[^a-z0-9]", "", name.lower())


def find_domains(root: Path, title: str, usual: tuple, spellings: dict) -> tuple[Path, dict]:
    """(the data set's folder, {domain: its folder}): root itself, or a folder of a usual name at most two levels below.

    UserError: no such folder, or one that lacks a domain.
    """
    inner = [root / a for a in usual]
    partial = None
    for place in [root, *inner, *(outer / b for outer in inner for b in usual)]:
        found = {d: _subfolder(place, names) for d, names in spellings.items()}
        if all(found.values()):
            return place, found
        if any(found.values()):
            partial = partial or (place, next(d for d, folder in found.items() if folder is None))
    if partial:
        place, d = partial
        raise UserError(f"{place} lacks the domain '{d}' of {title}: no folder named {' or '.join(spellings[d])}")
    raise UserError(f"no {title} in {root}: looked for the folders {', '.join(n[0] for n in spellings.values())} "
                    f"there and below {', '.join(usual)}; pictures of your own need a name that no set has")


def class_files(domain: str, folder: Path, spellings: dict, say=print, complete=True) -> tuple[list, np.ndarray]:
    """The image files of one domain and their labels: classes in the order of `spellings`, names sorted in each.

    That is the order of torchvision's ImageFolder. say gets a line on files that are no pictures by their names.
    UserError: a class folder that is missing or empty; with complete = False only a domain without any picture.
    """
    if (folder / "images").is_dir():  # Office-31 keeps amazon/images/back_pack
        folder = folder / "images"
    files, y, ignored = [], [], Counter()
    for label, (name, known) in enumerate(spellings.items()):
        place = _subfolder(folder, (name, *known))
        if place is None and not complete:
            continue
        if place is None:
            raise UserError(f"domain '{domain}' lacks the class '{name}': no folder of that name in {folder}")
        images = images_in(place)
        if not images and complete:
            kinds = ", ".join(sorted(SUFFIXES))
            raise UserError(f"domain '{domain}', class '{name}': no pictures ({kinds}) in {place}")
        files += images
        y += [label] * len(images)
        ignored += Counter(f.suffix.lower() or "without an ending" for f in set(place.iterdir()) - set(images)
                           if f.is_file() and not f.name.startswith("."))
    if not files:
        raise UserError(f"domain '{domain}': no class folder with pictures in {folder}")
    if ignored:
        say(f"{domain}: {ignored.total()} files are no pictures by their names and are ignored "
            f"({', '.join(f'{n} {kind}' for kind, n in sorted(ignored.items()))})")
    return files, np.array(y, dtype=np.int64)


def images_in(folder: Path) -> list:
    """The image files of a folder, sorted by name; hidden files (macOS writes some) are no images."""
    return sorted((f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES and not f.name.startswith(".")),
                  key=lambda f: f.name)


def check_listed(files: list, what: str):
    """UserError when files that a list names are absent: how many, and the first."""
    absent = [f for f in files if not os.path.isfile(f)]
    if absent:
        raise UserError(f"{what}: {len(absent)} of {len(files)} listed images are absent, the first is {absent[0]}")


def hold_out(y: np.ndarray, share: float, *names) -> np.ndarray:
    """Parts uint8 (N,) where none are published: per class ceil(share n) are TEST, drawn with a key of these names."""
    rng = np.random.default_rng(key("hold out", *names))
    part = np.full(len(y), TRAIN, dtype=np.uint8)
    for k in np.unique(y):
        index = np.flatnonzero(y == k)
        part[rng.permutation(index)[:math.ceil(share * len(index))]] = TEST
    return part


def decode(files: list, size: int, what: str, skip: list | None = None,
           look=lambda i, image: None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Read images as `rgb` and resize them as torchvision's Resize((size, size)) does on PIL images.

    Returns x uint8 (N,3,size,size), the shorter side of each source (N,), and which of the files these are: bool
    (len(files),). A file that is no image is a UserError that names it; with a list as `skip` it is left out instead
    and noted there. look(i, image) sees every file as it was opened.
    """
    x = room((len(files), 3, size, size))
    shorter = np.empty(len(files), dtype=np.int64)

    def read(i, image):
        look(i, image)
        shorter[i] = min(image.size)
        x[i] = channels_first(rgb(image), size)

    good = each_image(files, read, what, skip)
    if not good.all():
        for new, old in enumerate(np.flatnonzero(good)):  # in place: x may be larger than the memory
            x[new] = x[old]
    return x[:good.sum()], shorter[good], good


def each_image(files: list, work, what: str, skip: list | None = None) -> np.ndarray:
    """Call work(i, the opened image i) for every file, in threads; returns which files are images, bool (len(files),).

    UserError and `skip`: as in `decode`.
    """
    good = np.ones(len(files), dtype=bool)
    faults = {}

    def read(i):
        try:
            if isinstance(files[i], str | Path) and Path(files[i]).exists() and not Path(files[i]).is_file():
                raise OSError("it is no regular file")      # a pipe would be waited for
            with Image.open(files[i], formats=FORMATS) as image:
                work(i, image)
        except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
            why = first_line(error)
            if skip is None:
                raise UserError(f"{files[i]} is not a readable image ({why}); --skip-corrupt leaves such files out "
                                "and writes their names into the manifest") from None
            good[i], faults[i] = False, why

    _in_threads(read, len(files), what)
    if faults:
        skip += [f"{'/'.join(Path(files[i]).parts[-3:])}: {faults[i]}" for i in sorted(faults)]
    return good


def room(shape: tuple) -> np.ndarray:
    """An uninitialised uint8 array; a large one lies in a nameless file of the prepared sets' folder, not in memory.

    UserError when the disk has no room for it (allocated at once: a mapped file that outgrows its disk kills Python).
    """
    count = int(np.prod(shape))
    if count < IN_MEMORY:
        return np.empty(shape, dtype=np.uint8)
    try:
        folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder()) as file:
            os.posix_fallocate(file.fileno(), 0, count)
            return np.memmap(file, dtype=np.uint8, mode="r+", shape=shape)
    except OSError as error:
        raise UserError(f"no room for {count / 1e9:.1f} GB of decoded images in {folder()}: {error.strerror} "
                        "(FEDLIB_DATA names another folder)") from None


def resize_all(images: np.ndarray, size: int, what: str) -> np.ndarray:
    """Images uint8, grey (N,H,W) or RGB (N,H,W,3), as x uint8 (N,3,size,size).

    Resized as in `decode`; the one channel of grey images is repeated.
    """
    x = room((len(images), 3, size, size))
    if images.shape[1:3] == (size, size):
        x[:] = images[:, None] if images.ndim == 3 else images.transpose(0, 3, 1, 2)
        return x

    def resize(i):
        small = np.asarray(Image.fromarray(images[i]).resize((size, size), Image.Resampling.BILINEAR))
        x[i] = small if small.ndim == 2 else small.transpose(2, 0, 1)

    _in_threads(resize, len(images), what)
    return x


def rgb(image: Image.Image) -> Image.Image:
    """A picture as viewers show it: upright as its EXIF says, 16 bits scaled to 8, on white where it is transparent.

    A file with none of these comes out as torchvision's loader reads it. ValueError: pixels of no known range.
    """
    image = ImageOps.exif_transpose(image)
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers, whose range is not known")
    if image.mode.startswith("I"):      # grey with 16 bits, which some releases of Pillow open as 32
        levels = np.asarray(image, dtype=np.int64)
        if levels.min() < 0 or levels.max() > 65535:
            raise ValueError("its pixels have more than 16 bits")
        image = Image.fromarray(((levels * 255 + 32767) // 65535).astype(np.uint8))
    if "A" in image.getbands() or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    return image.convert("RGB")


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


def classes_text(found: dict, published: dict, classes) -> str:
    """'' unless a domain has the published total but other classes; then 'classes differ: photo dog 188 of 189, ...'.

    Both dictionaries hold {domain: counts in the order of `classes`}.
    """
    other = [f"{d} {name} {n} of {wanted}" for d, counts in found.items() if sum(counts) == sum(published[d])
             for name, n, wanted in zip(classes, counts, published[d], strict=True) if n != wanted]
    return f"classes differ: {', '.join(other)}" if other else ""


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
