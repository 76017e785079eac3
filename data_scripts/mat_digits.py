"""The .mat files of SVHN (Netzer et al., 2011) and SynthDigits (Ganin and Lempitsky, 2015): X (32,32,3,N), y (N,1)."""
import zlib
from pathlib import Path

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from fedlib.core.errors import UserError, first_line
from fedlib.datasets.published import File
from fedlib.readers.array_sets import check_labels

SVHN_FILES = tuple(
    File(f"svhn/{name}", (f"http://ufldl.stanford.edu/housenumbers/{name}",), f"md5:{md5}", size, domains=("svhn",))
    for name, md5, size in (("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373", 182040794),
                            ("test_32x32.mat", "eb5a983be6a315427106f1b164d9cef3", 64275384)))
SYNTH_FILES = (File(  # no hash is published, so the counts decide
    "SynthDigits.zip",
    ("https://drive.usercontent.google.com/download?id=0B9Z4d7lAwbnTSVR1dEFSRUFxOUU&export=download&confirm=t",),
    unpack="synth_digits", domains=("synth_digits",)),)
_SVHN = ("", "svhn", "SVHN", "data/svhn")
_SYNTH = ("", "synth_digits", "SynthDigits", "synthdigits", "syn_digits", "syndigits", "synth", "SYNTH", "syn", "SYN",
          "synth_digits/SynthDigits")


def svhn(root: Path):
    """The halves of SVHN, or None; its third file, extra_32x32.mat, is not used."""
    return _halves(root, _SVHN, "SVHN", "train_32x32.mat", "test_32x32.mat")


def synth_digits(root: Path):
    """The halves of SynthDigits, or None. They take 1.5 GB of memory, as its train file does unpacked."""
    return _halves(root, _SYNTH, "SynthDigits", "synth_train_32x32.mat", "synth_test_32x32.mat")


def _halves(root, folders, title, *names):
    places = [root / f for f in folders if any((root / f / name).is_file() for name in names)]
    if not places:
        return None
    for name in names:
        if not (places[0] / name).is_file():
            raise UserError(f"{title} in {places[0]} lacks {name}")
    return [read_mat(places[0] / name) for name in names]


def read_mat(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(images (n,32,32,3), y int64 (n,) in 0..9) from one file, the label 10 taken for 0, as SVHN writes it.

    UserError: no such .mat file (version 5 or 7), other shapes, labels out of range.
    """
    try:
        held = loadmat(path, variable_names=["X", "y"])
        x, y = held["X"], held["y"].ravel()
        labels = np.where(y == 10, 0, y).astype(np.int64)
    except (OSError, ValueError, TypeError, KeyError, IndexError, EOFError, NotImplementedError, AttributeError,
            MemoryError, OverflowError, zlib.error, MatReadError) as error:
        raise UserError(f"{path} is not a .mat file with X (32,32,3,N) and y (N,1) ({first_line(error)})") from None
    if x.dtype != np.uint8 or x.shape[:3] != (32, 32, 3):
        raise UserError(f"{path}: X is {x.dtype} {x.shape}, not uint8 (32, 32, 3, N)")
    if not np.array_equal(labels % 10, y % 10):
        raise UserError(f"{path} has labels that are not whole numbers")
    check_labels(path, labels, x.shape[3], 10)
    return x.transpose(3, 0, 1, 2), labels
