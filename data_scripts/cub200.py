"""CUB-200-2011: photos of 200 species of birds (Wah et al., 2011)."""
import re

import numpy as np

from fedlib.core.errors import UserError
from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.datasets.published import File
from fedlib.readers.image_folder import check_listed, decode, subset_text, transform_text

NAME = "cub200"
TITLE = "CUB-200-2011"
DOMAINS = ("cub200",)
CLASSES = tuple(map(str, range(200)))  # classes.txt names them
SIZES = (64, 32, 96, 128, 224)
PUBLISHED = {"cub200 train": 5994, "cub200 test": 5794}
FILES = (File("CUB_200_2011.tgz",
              ("https://data.caltech.edu/records/65de6-vp158/files/CUB_200_2011.tgz?download=1",
               "http://www.vision.caltech.edu/visipedia-data/CUB-200-2011/CUB_200_2011.tgz"),
              "md5:97eceeb196236b17998738112f37df78", 1_150_585_339, ""),)
HOW = "Unpack CUB_200_2011.tgz of https://data.caltech.edu/records/65de6-vp158."
ABOUT = {
    "source": "CUB-200-2011, https://data.caltech.edu/records/65de6-vp158",
    "split": "train_test_split.txt: 1 is train, 0 is test; no val",
    "licence": "none stated in the archive; photos of Flickr users, for research",
    "citation": "Wah, Branson, Welinder, Perona, Belongie: The Caltech-UCSD Birds-200-2011 dataset. Technical report "
                "CNS-TR-2011-001, California Institute of Technology, 2011",
}

_FOLDERS = ("", "CUB_200_2011", "CUB_200_2011/CUB_200_2011", "cub200")


def read(root, size, say=print, skip=None):
    """The one domain as numpy arrays, images in the order of images.txt, and what the manifest adds.

    UserError: a list that is not there, is garbled or does not fit the others; images that are absent; a class without
    images.
    """
    place = next((root / f for f in _FOLDERS if (root / f / "images.txt").is_file()), None)
    if place is None:
        raise UserError(f"no {TITLE} in {root}: looked for images.txt there and in {', '.join(_FOLDERS[1:])}")
    names = [re.sub(r"^\d+\.", "", name) for name in _table(place / "classes.txt").values()]
    if len(names) != len(CLASSES):
        raise UserError(f"{place / 'classes.txt'} names {len(names)} classes, not {len(CLASSES)}")
    images = _table(place / "images.txt")
    y = _numbers(place / "image_class_labels.txt", images, 1, len(names)) - 1
    part = np.where(_numbers(place / "train_test_split.txt", images, 0, 1) == 1, TRAIN, TEST).astype(np.uint8)
    absent = sorted(set(range(len(names))) - set(y.tolist()))
    if absent:
        raise UserError(f"domain '{NAME}' lacks the class '{names[absent[0]]}': {place / 'image_class_labels.txt'} has "
                        f"no image of class {absent[0] + 1}")
    files = [f"{place}/images/{image}" for image in images.values()]
    check_listed(files, TITLE)
    x, sides, good = decode(files, size, NAME, skip)
    y, part = y[good], part[good]
    say(f"{NAME}: {len(x)} images")
    counts = {f"{NAME} train": int((part == TRAIN).sum()), f"{NAME} test": int((part == TEST).sum())}
    return {NAME: (x, y, part)}, {"classes": names, "transform": transform_text(size, sides),
                                  "notice": subset_text(counts, PUBLISHED)}


def _table(path) -> dict:
    """{id: text} of a list with lines like '1 001.Black_footed_Albatross/Black_Footed_Albatross_0046_18.jpg'."""
    if not path.is_file():
        raise UserError(f"{TITLE} lacks {path}")
    rows = [line.split() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    wrong = next((row for row in rows if len(row) != 2 or ".." in row[1] or row[1].startswith("/")), None)
    if wrong:
        raise UserError(f"{path}: '{' '.join(wrong)[:80]}' is not a number and a name or value")
    return dict(rows)


def _numbers(path, images, low, high) -> np.ndarray:
    """The value of every image in a list of 'id value' lines, int64 (N,)."""
    values = _table(path)
    try:
        array = np.array([int(values[i]) for i in images], dtype=np.int64)
    except KeyError as error:
        raise UserError(f"{path} lacks the image {error.args[0]} of images.txt") from None
    except ValueError as error:
        raise UserError(f"{path}: a value that is no number ({error})") from None
    if len(array) == 0 or array.min() < low or array.max() > high:
        raise UserError(f"{path} does not hold a value in {low}..{high} for every image")
    return array


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
