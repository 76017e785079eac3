"""Digits in seven looks: MNIST, USPS, SVHN, MNIST-M, SynthDigits, Synthetic Digits, and rendered ones."""
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedlib.core.errors import UserError
from fedlib.datasets.published import File
from fedlib.readers import mat_digits, mnist, rendered_digits, usps_files
from fedlib.readers.array_sets import KINDS, check_classes, check_labels, counts, labels_and_part, pooled
from fedlib.readers.image_folder import bare, check_listed, class_files, decode, subset_text

NAME = "digits"
TITLE = "Digits (MNIST, USPS, SVHN, MNIST-M, SynthDigits, SYN, rendered)"
DOMAINS = ("mnist", "usps", "svhn", "mnist_m", "synth_digits", "syn", "rendered_digits")
CLASSES = tuple("0123456789")
SIZES = (28, 32)
PARTIAL = True  # some of the domains make a set too; the notice names the absent ones
PUBLISHED = {"mnist train": 60000, "mnist test": 10000, "usps train": 7291, "usps test": 2007,
             "svhn train": 73257, "svhn test": 26032, "mnist_m train": 59001, "mnist_m test": 9001,
             "synth_digits train": 479400, "synth_digits test": 9553, "syn train": 10000, "syn test": 2000,
             **rendered_digits.PUBLISHED}
FILES = (
    *(replace(file, domains=("mnist",)) for file in mnist.FILES), *usps_files.FILES, *mat_digits.SVHN_FILES,
    File("mnist_m.tar.gz",
         ("https://drive.usercontent.google.com/download?id=0B_tExHiYS-0veklUZHFYT19KYjg&export=download&confirm=t",
          "https://cornell.box.com/shared/static/jado7quprg6hzzdubvwzh9umr75damwi"),
         "md5:859df31c91afe82e80e5012ba928f279", unpack="", domains=("mnist_m",)),
    *mat_digits.SYNTH_FILES)
HOW = ("syn needs an account: unpack the archive of https://www.kaggle.com/datasets/prasunroy/synthetic-digits into a "
       "folder syn beside the others. Where a program cannot get SynthDigits.zip or mnist_m.tar.gz, download them in a "
       "browser (links at http://yaroslav.ganin.net); without SynthDigits, rendered_digits stands in for it.")
_NONE = "none stated, for research"
_GANIN = "Ganin, Lempitsky: Unsupervised domain adaptation by backpropagation. ICML 2015"
_SOURCES = {  # source, licence, citation
    "mnist": ("MNIST (28 px, grey)", mnist.ABOUT["licence"], mnist.ABOUT["citation"]),
    "usps": ("USPS (16 px, grey)", _NONE, "Hull: A database for handwritten text recognition research. TPAMI 1994"),
    "svhn": ("SVHN, cropped digits (32 px, colour)", "non-commercial use only",
             "Netzer et al.: Reading digits in natural images with unsupervised feature learning. NIPS workshop 2011"),
    "mnist_m": ("MNIST-M (32 px, colour)", _NONE, _GANIN),
    "synth_digits": ("SynthDigits (32 px, colour)", _NONE, _GANIN),
    "syn": ("Synthetic Digits (Kaggle, colour, several sizes)", "see its page at Kaggle",
            "Roy et al.: Effects of degradations on deep neural network architectures. arXiv:1807.10108, 2018"),
    "rendered_digits": tuple(rendered_digits.ABOUT[key] for key in ("source", "licence", "citation")),
}

_MNIST_M_FOLDERS = ("", "mnist_m", "MNIST_M", "MNIST-M", "mnistm", "mnist_m/mnist_m")
_SYN_FOLDERS = ("", "syn", "SYN", "synthetic_digits", "synthetic-digits", "data/synthetic_digits",
                "synthetic_digits/synthetic_digits", "synthetic-digits/synthetic_digits",
                "synthetic-digits/data/synthetic_digits", "syn/data/synthetic_digits", "syn/synthetic_digits",
                "archive/data/synthetic_digits")


def about(domains) -> dict:
    """What the manifest says of the domains that a set has: source, licence, citation."""
    columns = zip(*(_SOURCES[d] for d in domains))
    source, licence, citation = (dict(zip(domains, column)) for column in columns)
    return {"source": "; ".join(source.values()), "citation": "; ".join(dict.fromkeys(citation.values())),
            "licence": "; ".join(f"{d}: {text}" for d, text in licence.items())}


ABOUT = {**about(DOMAINS), "split": "the published train and test sets; syn: its validation set is test"}


def read(root, size, say=print, skip=None):
    """The domains that the folder holds as numpy arrays, and what the manifest adds; an absent domain is a notice.

    rendered_digits is added whenever another domain is there. UserError: no domain at all, half a domain, a file that
    is not in the published format, a class without images.
    """
    domains, absent = {}, []
    for name in DOMAINS[:-1]:
        domain = read_domain(name, root, size, skip)
        if domain is None:
            absent.append(name)
        else:
            domains[name] = domain
            say(f"{name}: {len(domain[1])} images")
    if not domains:
        raise UserError(f"no digits in {root}: looked for MNIST/raw/train-images-idx3-ubyte.gz, usps/usps.h5, "
                        "svhn/train_32x32.mat, synth_digits/synth_train_32x32.mat, mnist_m/mnist_m_train_labels.txt "
                        "and syn/imgs_train")
    domains["rendered_digits"] = rendered_digits.draw(size)
    say(f"rendered_digits: {len(domains['rendered_digits'][1])} images")
    notices = [f"left out, not in the folder: {', '.join(absent)}" * bool(absent),
               subset_text(counts(domains), PUBLISHED), rendered_digits.NOTICE]
    return domains, {**about(domains), "notice": "; ".join(filter(None, notices)), "transform": (
        f"grey repeated to 3 channels; resized to {size}x{size} where the source has another size, bilinear with "
        "antialiasing; USPS: round(255 v) of values 0 to 1; rendered_digits drawn at that size")}


def read_domain(name: str, root: Path, size: int, skip=None):
    """(x, y, part) of one domain, or None when the folder has none of it."""
    found = (_ARRAYS | _IMAGES)[name](root)
    if found is None:
        return None
    if name in _ARRAYS:
        check_classes(name, [y for _, y in found], CLASSES, root)
        return pooled(name, found, size)
    files, labels = found
    check_classes(name, labels, CLASSES, root)
    x, _, good = decode(files, size, name, skip)
    y, part = labels_and_part(labels)
    return x, y[good], part[good]


def mnist_m(root: Path):
    """The .png files that the two label lists name, and the labels of each list; None when there are no lists."""
    names = [f"mnist_m_{kind}_labels.txt" for kind in KINDS]
    place = next((root / f for f in _MNIST_M_FOLDERS if any((root / f / name).is_file() for name in names)), None)
    if place is None:
        return None
    files, labels = [], []
    for kind, name in zip(KINDS, names):
        if not (place / name).is_file():
            raise UserError(f"MNIST-M in {place} lacks {name}")
        try:
            rows = [line.split() for line in (place / name).read_text(encoding="utf-8").splitlines() if line.strip()]
            labels.append(np.array([int(label) for _, label in rows], dtype=np.int64))
        except (ValueError, OverflowError):
            raise UserError(f"{place / name} has a line that is not 'name.png label'") from None
        check_labels(place / name, labels[-1], len(rows), 10)
        files += [place / f"mnist_m_{kind}" / image for image, _ in rows]
    check_listed(files, "MNIST-M")
    return files, labels


def syn(root: Path):
    """The files of Roy's Synthetic Digits, imgs_train/<0..9> and imgs_valid/<0..9>, and the labels of each; or None.

    In a folder whose name begins with 'syn' the two may also be called train and val.
    """
    for place, pair in ((root / f, p) for f in _SYN_FOLDERS for p in (("imgs_train", "imgs_valid"), ("train", "val"))):
        if any((place / kind).is_dir() for kind in pair) and (pair[1] != "val" or bare(place.name).startswith("syn")):
            break
    else:
        return None
    files, labels = [], []
    for kind in pair:
        if not (place / kind).is_dir():
            raise UserError(f"syn in {place} lacks the folder {kind}")
        found, y = class_files("syn", place / kind, dict.fromkeys(CLASSES, ()))
        files += found
        labels.append(y)
    return files, labels


_ARRAYS = {"mnist": mnist.read_halves, "usps": usps_files.read_halves, "svhn": mat_digits.svhn,
           "synth_digits": mat_digits.synth_digits}
_IMAGES = {"mnist_m": mnist_m, "syn": syn}


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
