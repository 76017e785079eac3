"""The files of USPS (Hull, 1994): usps.h5, or usps.bz2 and usps.t.bz2 of LIBSVM, which torchvision downloads."""
from pathlib import Path

import h5py
import numpy as np
from sklearn.datasets import load_svmlight_file

from fedlib.core.errors import UserError, first_line
from fedlib.datasets.published import File
from fedlib.readers.array_sets import KINDS, check_labels

_SOURCE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass/"
FILES = (File("usps/usps.bz2", (f"{_SOURCE}usps.bz2",), "md5:ec16c51db3855ca6c91edd34d0e9b197", 6_600_000,
              domains=("usps",)),
         File("usps/usps.t.bz2", (f"{_SOURCE}usps.t.bz2",), "md5:8ea070ee2aca1ac39742fdd1ef5ed118", 1_900_000,
              domains=("usps",)))
_FOLDERS = ("", "usps", "USPS", "data/usps")
_NAMES = ("usps", "usps.t")


def read_halves(root: Path):
    """[(images (n,16,16), y) train, (images, y) test], or None when the folder has no USPS.

    UserError: one file of the two of LIBSVM, a file that is not in its format, labels out of range.
    """
    for place in (root / f for f in _FOLDERS):
        if (place / "usps.h5").is_file():
            return read_h5(place / "usps.h5")
        found = [next((p for p in (place / f"{name}.bz2", place / name) if p.is_file()), None) for name in _NAMES]
        if any(found):
            if not all(found):
                raise UserError(f"USPS in {place} lacks {_NAMES[found.index(None)]}.bz2")
            return [read_libsvm(path) for path in found]
    return None


def read_h5(path: Path):
    """Both halves from usps.h5: train|test / data (n,256) in 0..1, target (n,)."""
    halves = []
    try:
        with h5py.File(path) as file:
            for kind in KINDS:
                data, y = file[kind]["data"][()].reshape(-1, 16, 16), file[kind]["target"][()]
                images = pixels(path, data, 0)
                check_labels(path, y, len(images), 10)
                halves.append((images, y))
    except (OSError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"{path} is not usps.h5 with train|test / data (N,256), target ({error})") from None
    return halves


def read_libsvm(path: Path):
    """One half from a file of LIBSVM, bz2 or not: lines '<label 1..10> 1:<value> ... 256:<value>', values in -1..1."""
    try:
        data, labels = load_svmlight_file(path, n_features=256, zero_based=False)
    except (OSError, EOFError, ValueError, OverflowError) as error:
        raise UserError(f"{path} is not USPS in LIBSVM's format ({first_line(error)})") from None
    y = labels.astype(np.int64) - 1
    if not np.array_equal(y + 1, labels):
        raise UserError(f"{path} has labels that are not whole numbers")
    check_labels(path, y, data.shape[0], 10)
    return pixels(path, data.toarray().reshape(-1, 16, 16), -1), y


def pixels(path: Path, values: np.ndarray, low: int) -> np.ndarray:
    """Values in low..1 as uint8. UserError when some are outside."""
    if len(values) and not (low <= values.min() and values.max() <= 1):  # NaN too
        raise UserError(f"{path} has values outside of {low}..1")
    shares = ((values.astype(float) - low) / (1 - low)).round(4)  # as published: both forms give the same pixels
    return np.rint(255 * shares).astype(np.uint8)
