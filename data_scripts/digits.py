"""Digits: MNIST (LeCun et al., 1998), USPS (Hull, 1994) and MNIST-M (Ganin and Lempitsky, 2015)."""
import gzip
import zlib
from pathlib import Path

import numpy as np

from data_scripts.image_folder import decode, resize_all, subset_text
from fedlib.errors import UserError
from fedlib.prepare import TEST, TRAIN, main

NAME = "digits"
TITLE = "Digits (MNIST, USPS, MNIST-M)"
DOMAINS = ("mnist", "usps", "mnist_m")
CLASSES = tuple("0123456789")
SIZES = (28, 32)
PUBLISHED = {"mnist train": 60000, "mnist test": 10000, "usps train": 7291, "usps test": 2007,
             "mnist_m train": 59001, "mnist_m test": 9001}
ABOUT = {
    "source": "MNIST (28 px, grey), USPS (16 px, grey), MNIST-M (32 px, colour)",
    "split": "the published train and test sets",
    "licence": "MNIST: CC BY-SA 3.0; USPS and MNIST-M: none stated, for research",
    "citation": "LeCun, Bottou, Bengio, Haffner: Gradient-based learning applied to document recognition. Proc. IEEE "
                "1998; Hull: A database for handwritten text recognition research. TPAMI 1994; Ganin, Lempitsky: "
                "Unsupervised domain adaptation by backpropagation. ICML 2015",
}

_MNIST_FOLDERS = ("", "MNIST/raw", "mnist/raw", "MNIST", "mnist", "raw", "mnist/MNIST/raw")
_USPS_FILES = ("usps.h5", "usps/usps.h5", "USPS/usps.h5")
_MNIST_M_FOLDERS = ("", "mnist_m", "MNIST_M", "MNIST-M", "mnistm")


def read(root, size, say=print):
    """The domains that the folder holds as numpy arrays, and what the manifest adds; an absent domain is a notice.

    UserError: no domain at all, half a domain, or a file that is not in the published format.
    """
    domains = {}
    for domain, reader in {"mnist": read_mnist, "usps": read_usps, "mnist_m": read_mnist_m}.items():
        halves = reader(root, size)
        if halves:
            domains[domain] = _joined(halves)
            say(f"{domain}: {len(domains[domain][1])} images")
    if not domains:
        raise UserError(f"no digits in {root}: looked for MNIST/raw/train-images-idx3-ubyte.gz, usps/usps.h5 and "
                        "mnist_m/mnist_m_train_labels.txt")
    absent = [d for d in DOMAINS if d not in domains]
    counts = {f"{d} {kind}": int((part == code).sum())
              for d, (_, _, part) in domains.items() for kind, code in (("train", TRAIN), ("test", TEST))}
    notices = [f"left out, not in the folder: {', '.join(absent)}" * bool(absent), subset_text(counts, PUBLISHED)]
    return domains, {"transform": f"grey repeated to 3 channels; resized to {size}x{size} where the source has another "
                                  "size, bilinear with antialiasing; USPS: round(255 v)",
                     "notice": "; ".join(filter(None, notices))}


def read_mnist(root: Path, size: int):
    """[(x, y) train, (x, y) test] from the four idx files (.gz or not), or None when there are none."""
    images = {kind: _idx_file(root, kind, "images-idx3") for kind in ("train", "t10k")}
    if not any(images.values()):
        return None
    halves = []
    for kind, path in images.items():
        labels = _idx_file(root, kind, "labels-idx1")
        if path is None or labels is None:
            what = "images-idx3" if path is None else "labels-idx1"
            raise UserError(f"MNIST in {root} lacks {kind}-{what}-ubyte (.gz or not)")
        pixels, y = read_idx(path, 3), read_idx(labels, 1)
        _check_labels(labels, y, len(pixels))
        halves.append((resize_all(pixels, size, f"mnist {kind}"), y))
    return halves


def read_idx(path: Path, dims: int) -> np.ndarray:
    """A uint8 array from an idx file: magic 0x0000 08 <dims>, big-endian sizes, the bytes."""
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({error})") from None
    start = 4 + 4 * dims
    shape = np.frombuffer(raw[4:start].ljust(4 * dims, b"\0"), ">u4").astype(int)
    if raw[:4] != bytes((0, 0, 8, dims)) or len(raw) - start != shape.prod():
        raise UserError(f"{path} is not an idx file of {dims}-dimensional bytes, or it is cut")
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_usps(root: Path, size: int):
    """[(x, y) train, (x, y) test] from usps.h5 (<part>/data floats in 0..1, <part>/target), or None when absent."""
    import h5py

    path = next((root / name for name in _USPS_FILES if (root / name).is_file()), None)
    if path is None:
        return None
    halves = []
    try:
        with h5py.File(path) as file:
            for kind in ("train", "test"):
                data, y = file[kind]["data"][()].reshape(-1, 16, 16), file[kind]["target"][()]
                pixels = np.rint(255 * data.clip(0, 1)).astype(np.uint8)
                _check_labels(path, y, len(pixels))
                halves.append((resize_all(pixels, size, f"usps {kind}"), y))
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise UserError(f"{path} is not usps.h5 with train|test / data (N,256), target ({error})") from None
    return halves


def read_mnist_m(root: Path, size: int):
    """[(x, y) train, (x, y) test] from the .png files that the label lists name, or None when there are no lists."""
    place = next((root / name for name in _MNIST_M_FOLDERS
                  if any((root / name / f"mnist_m_{kind}_labels.txt").is_file() for kind in ("train", "test"))), None)
    if place is None:
        return None
    halves = []
    for kind in ("train", "test"):
        labels = place / f"mnist_m_{kind}_labels.txt"
        if not labels.is_file():
            raise UserError(f"MNIST-M in {place} lacks {labels.name}")
        try:
            rows = [line.split() for line in labels.read_text(encoding="utf-8").splitlines() if line.strip()]
            y = np.array([int(label) for _, label in rows])
        except ValueError:
            raise UserError(f"{labels} has a line that is not 'name.png label'") from None
        _check_labels(labels, y, len(rows))
        halves.append((decode([place / f"mnist_m_{kind}" / name for name, _ in rows], size, f"mnist_m {kind}")[0], y))
    return halves


def _idx_file(root: Path, kind: str, what: str) -> Path | None:
    names = [f"{kind}-{w}-ubyte{gz}" for w in (what, what.replace("-idx", ".idx")) for gz in ("", ".gz")]
    return next((root / f / n for f in _MNIST_FOLDERS for n in names if (root / f / n).is_file()), None)


def _check_labels(path, y, n):
    if n == 0 or y.shape != (n,) or not ((0 <= y) & (y <= 9)).all():
        raise UserError(f"{path} does not hold {n} labels in 0..9, one per image")


def _joined(halves):
    (x_train, y_train), (x_test, y_test) = halves
    part = np.repeat(np.array([TRAIN, TEST], np.uint8), [len(y_train), len(y_test)])
    return np.concatenate([x_train, x_test]), np.concatenate([y_train, y_test]).astype(np.int64), part


if __name__ == "__main__":
    raise SystemExit(main(NAME))
