"""Fashion-MNIST: ten kinds of clothing, in the format of MNIST (Xiao et al., 2017)."""
import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from fedlib.core.errors import UserError
from fedlib.readers import idx_files
from fedlib.readers.array_sets import check_classes, check_labels, counts, pooled
from fedlib.readers.image_folder import classes_text, subset_text
from fedlib.readers.mnist import transform

NAME = "fashion_mnist"
TITLE = "Fashion-MNIST"
DOMAINS = ("fashion_mnist",)
CLASSES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
SIZES = (28, 32)
PUBLISHED = {"fashion_mnist train": 60000, "fashion_mnist test": 10000}
PER_CLASS = {"fashion_mnist": (7000,) * 10}
FILES = idx_files.files(
    "FashionMNIST/raw", ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
                         "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/"),
    ("8d4fb7e6c68d591d4c3dfef9ec88bf0d", "25c81989df183df01b3e8a0aad5dffbe",
     "bef4ecab320f06d8554ea6380940ec79", "bb300cfdad3c16e7a12a480ee83cd310"),
    (26421880, 29515, 4422102, 5148))
HOW = "What torchvision left in FashionMNIST/raw will do, unpacked or not."
ABOUT = {
    "source": "Fashion-MNIST (28 px, grey)",
    "split": "the published train and test sets",
    "licence": "MIT",
    "citation": "Xiao, Rasul, Vollgraf: Fashion-MNIST: a novel image dataset for benchmarking machine learning "
                "algorithms. arXiv:1708.07747, 2017",
}
SPLIT_LOST = "official split lost: per class, in file order, every 7th image is test, as many as in the published split"

_FOLDERS = ("", "FashionMNIST/raw", "fashion_mnist", "fashion-mnist", "fashion", "FashionMNIST", "fashion_mnist/raw",
            "data/FashionMNIST/raw", "data/fashion")


def read(root, size, say=print, skip=None):
    """The one domain as numpy arrays, and what the manifest adds, from the idx files or from fashion_mnist*.npz.

    UserError: one of the four files absent, unreadable or no idx file; an .npz without x and y; labels out of range; a
    class without images.
    """
    halves, updates = idx_files.read_halves(root, _FOLDERS, TITLE), {}
    if halves is None:
        halves, updates = read_npz(find_npz(root)), {"split": SPLIT_LOST}
    check_classes(NAME, [y for _, y in halves], CLASSES, root)
    domain = pooled(NAME, halves, size)
    say(f"{NAME}: {len(domain[1])} images")
    per_class = {NAME: np.bincount(domain[1], minlength=len(CLASSES)).tolist()}
    notices = subset_text(counts({NAME: domain}), PUBLISHED), classes_text(per_class, PER_CLASS, CLASSES)
    return {NAME: domain}, {"transform": transform(size), "notice": "; ".join(filter(None, notices)), **updates}


def find_npz(root: Path) -> Path:
    """The one file fashion_mnist*.npz. UserError: none, or several."""
    found = sorted(path for f in _FOLDERS for path in (root / f).glob("fashion_mnist*.npz"))
    if not found:
        raise UserError(f"no {TITLE} in {root}: looked for {idx_files.NAMES[0]} (.gz or not) and fashion_mnist*.npz "
                        f"there and in {', '.join(_FOLDERS[1:])}")
    if len(found) > 1:
        raise UserError(f"{root} holds both {found[0].name} and {found[1].name}, one of them is to be moved away")
    return found[0]


def read_npz(path: Path):
    """Train and test (images (n,28,28), y) from one .npz with x (N,28,28) uint8 and y: every 7th of a class is test."""
    try:
        with np.load(path) as held:
            x, y = held["x"], held["y"]
    except (OSError, ValueError, KeyError, EOFError, zlib.error, BadZipFile) as error:
        raise UserError(f"{path} is not an .npz with x and y ({error})") from None
    if x.dtype != np.uint8 or x.shape[1:] != (28, 28):
        raise UserError(f"{path}: x is {x.dtype} {x.shape}, not uint8 (N, 28, 28)")
    check_labels(path, y, len(x), len(CLASSES))
    rank = np.empty(len(y), int)  # of an image among those of its class
    for k in range(len(CLASSES)):
        rank[y == k] = np.arange((y == k).sum())
    test = rank % 7 == 6
    return [(x[~test], y[~test]), (x[test], y[test])]


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
