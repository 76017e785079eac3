"""MNIST: handwritten digits of two groups of writers (LeCun et al., 1998)."""
import numpy as np

from fedlib.core.errors import UserError
from fedlib.readers import idx_files
from fedlib.readers.array_sets import check_classes, counts, pooled
from fedlib.readers.image_folder import classes_text, subset_text

NAME = "mnist"
TITLE = "MNIST"
DOMAINS = ("mnist",)
CLASSES = tuple("0123456789")
SIZES = (28, 32)
RAW = "digits"  # the raw files are those of the set `digits`
PUBLISHED = {"mnist train": 60000, "mnist test": 10000}
PER_CLASS = {"mnist": (6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958)}
FILES = idx_files.files(
    "MNIST/raw", ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    ("f68b3c2dcbeaaa9fbdd348bbdeb94873", "d53e105ee54ea40749a09fcbcd1e9432",
     "9fb629c4189551a2d022fa330f9573f3", "ec29112dd5afa0611ce80d1b7f02629c"),
    (9912422, 28881, 1648877, 4542))
HOW = "What torchvision left in MNIST/raw will do, unpacked or not."
ABOUT = {
    "source": "MNIST (28 px, grey)",
    "split": "the published train and test sets",
    "licence": "CC BY-SA 3.0",
    "citation": "LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition. Proc. IEEE "
                "1998",
}

_FOLDERS = ("", "MNIST/raw", "mnist/raw", "MNIST", "mnist", "raw", "mnist/MNIST/raw", "data/MNIST/raw")


def read(root, size, say=print, skip=None):
    """The one domain as numpy arrays, and what the manifest adds.

    UserError: one of the four files absent, unreadable or no idx file; labels out of range; a class without images.
    """
    halves = read_halves(root)
    if halves is None:
        raise UserError(f"no {TITLE} in {root}: looked for {idx_files.NAMES[0]} (.gz or not) there and in "
                        f"{', '.join(_FOLDERS[1:])}")
    check_classes(NAME, [y for _, y in halves], CLASSES, root)
    domain = pooled(NAME, halves, size)
    say(f"{NAME}: {len(domain[1])} images")
    return {NAME: domain}, {"transform": transform(size), "notice": notice(domain)}


def read_halves(root):
    """[(images (n,28,28), y) train, (images, y) test], or None when the folder has no MNIST."""
    return idx_files.read_halves(root, _FOLDERS, TITLE)


def notice(domain) -> str:
    """'' when all counts are the published ones; the classes tell MNIST from sets with files of the same names."""
    per_class = {NAME: np.bincount(domain[1], minlength=10).tolist()}
    notices = subset_text(counts({NAME: domain}), PUBLISHED), classes_text(per_class, PER_CLASS, CLASSES)
    return "; ".join(filter(None, notices))


def transform(size: int) -> str:
    """What the manifest says about grey images of 28 px."""
    resized = f"; resized to {size}x{size}, bilinear" if size != 28 else ""
    return f"grey repeated to 3 channels{resized}"


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
