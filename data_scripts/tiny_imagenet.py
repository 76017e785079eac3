"""Tiny-ImageNet-200: 64 px images of 200 ImageNet classes (Le and Yang, 2015)."""
import numpy as np

from fedlib.core.errors import UserError
from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.datasets.published import File
from fedlib.readers.image_folder import check_listed, classes_text, decode, images_in, subset_text, transform_text

NAME = "tiny_imagenet"
TITLE = "Tiny-ImageNet"
DOMAINS = ("tiny_imagenet",)
CLASSES = tuple(map(str, range(200)))  # words.txt names them
SIZES = (64,)
PUBLISHED = {"tiny_imagenet train": 100000, "tiny_imagenet test": 10000}
PER_CLASS = {"tiny_imagenet train": (500,) * 200, "tiny_imagenet test": (50,) * 200}
FILES = (File("tiny-imagenet-200.zip", ("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
              "md5:90528d7ca1a48142e341f4ef8d21d0de", 248_100_043, ""),)
HOW = "Unpack tiny-imagenet-200.zip; the folder holds wnids.txt, words.txt, train and val."
ABOUT = {
    "source": "Tiny-ImageNet-200 of Stanford's CS231n, http://cs231n.stanford.edu",
    "split": "train is train, val is test; the published test folder has no labels and is left out",
    "licence": "none stated; images of ImageNet, for non-commercial research",
    "citation": "Le, Yang: Tiny ImageNet visual recognition challenge. CS 231N, Stanford, 2015",
}

_FOLDERS = ("", "tiny-imagenet-200", "tiny_imagenet", "tiny-imagenet")


def read(root, size, say=print, skip=None):
    """The one domain as numpy arrays, classes in the order of their sorted WordNet ids, and what the manifest adds.

    UserError: a list or a folder that is not there, a garbled list, a class without images.
    """
    place = next((root / f for f in _FOLDERS if (root / f / "wnids.txt").is_file()), None)
    if place is None:
        raise UserError(f"no {TITLE} in {root}: looked for wnids.txt there and in {', '.join(_FOLDERS[1:])}")
    wnids = sorted({line.strip() for line in _lines(place / "wnids.txt")})
    if len(wnids) != len(CLASSES):
        raise UserError(f"{place / 'wnids.txt'} names {len(wnids)} classes, not {len(CLASSES)}")
    files, y = [], []
    for found, labels in (train_images(place, wnids), val_images(place, wnids)):
        files.append(found)
        y += labels
    x, sides, good = decode([f for half in files for f in half], size, NAME, skip)
    y = np.array(y, dtype=np.int64)[good]
    part = np.repeat(np.array([TRAIN, TEST], np.uint8), [len(half) for half in files])[good]
    say(f"{NAME}: {len(x)} images")
    names = class_names(place, wnids)
    counts = {f"{NAME} {kind}": np.bincount(y[part == code], minlength=len(wnids)).tolist()
              for kind, code in (("train", TRAIN), ("test", TEST))}
    notices = [subset_text({key: sum(n) for key, n in counts.items()}, PUBLISHED),
               classes_text(counts, PER_CLASS, names)]
    return {NAME: (x, y, part)}, {"classes": names, "transform": transform_text(size, sides),
                                  "notice": "; ".join(filter(None, notices))}


def train_images(place, wnids) -> tuple[list, list]:
    """Files and labels of train/<wnid>/images/*.JPEG, names sorted in each class."""
    files, y = [], []
    for label, wnid in enumerate(wnids):
        folder = place / "train" / wnid / "images"
        found = images_in(folder) if folder.is_dir() else []
        if not found:
            raise UserError(f"domain '{NAME}' lacks the class '{wnid}': no images in {folder}")
        files += found
        y += [label] * len(found)
    return files, y


def val_images(place, wnids) -> tuple[list, list]:
    """Files and labels of val/images, in the order of val_annotations.txt: 'val_0.JPEG<tab>n03444034<tab>0 ...'."""
    path = place / "val" / "val_annotations.txt"
    label_of = {wnid: k for k, wnid in enumerate(wnids)}
    files, y = [], []
    for line in _lines(path):
        name, *rest = line.split("\t")
        if "/" in name or not rest or rest[0] not in label_of:
            raise UserError(f"{path}: '{line[:80]}' is no line like 'val_0.JPEG<tab>n03444034<tab>0<tab>32' with an id "
                            "of wnids.txt")
        files.append(place / "val" / "images" / name)
        y.append(label_of[rest[0]])
    absent = [wnids[k] for k in range(len(wnids)) if k not in set(y)]
    if absent:
        raise UserError(f"domain '{NAME}' lacks test images of the class '{absent[0]}' in {path}")
    check_listed(files, f"{TITLE}, val")
    return files, y


def class_names(place, wnids) -> list:
    """The first word of each class in words.txt ('n01443537<tab>goldfish, Carassius auratus'), unique by its id."""
    words = dict(line.split("\t", 1) for line in _lines(place / "words.txt") if "\t" in line)
    names = [words.get(wnid, wnid).split(",")[0].strip() for wnid in wnids]
    return [f"{name} {wnid}" if names.count(name) > 1 else name for name, wnid in zip(names, wnids, strict=True)]


def _lines(path) -> list:
    if not path.is_file():
        raise UserError(f"{TITLE} lacks {path}")
    return [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
