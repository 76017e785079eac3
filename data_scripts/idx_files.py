"""The idx files of MNIST and Fashion-MNIST: four of them, packed with gzip or not."""
import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from fedlib.core.errors import UserError
from fedlib.datasets.published import File
from fedlib.readers.array_sets import check_labels

PARTS = ("train", "t10k")
NAMES = tuple(f"{kind}-{what}-ubyte" for kind in PARTS for what in ("images-idx3", "labels-idx1"))
_LIMIT = 2**31  # bytes; more than any published idx file has


def files(folder: str, sources, hashes, sizes) -> tuple[File, ...]:
    """The four .gz files to download into `folder`; md5 `hashes` and `sizes` in the order of NAMES."""
    return tuple(File(f"{folder}/{name}.gz", tuple(f"{source}{name}.gz" for source in sources), f"md5:{md5}", size)
                 for name, md5, size in zip(NAMES, hashes, sizes, strict=True))


def read_halves(root: Path, folders, title: str, classes: int = 10):
    """[(images (n,28,28), y) train, (images, y) test] from the four files, or None when there are no images.

    UserError: a file that is absent, unreadable or no idx file, labels that are not one of 0..classes-1 per image.
    """
    images = {kind: find(root, folders, f"{kind}-images-idx3-ubyte") for kind in PARTS}
    if not any(images.values()):
        return None
    halves = []
    for kind, path in images.items():
        labels = find(root, folders, f"{kind}-labels-idx1-ubyte")
        if path is None or labels is None:
            what = "images-idx3" if path is None else "labels-idx1"
            raise UserError(f"{title} in {root} lacks {kind}-{what}-ubyte (.gz or not)")
        pixels, y = read_idx(path, 3), read_idx(labels, 1)
        check_labels(labels, y, len(pixels), classes)
        halves.append((pixels, y))
    return halves


def find(root: Path, folders, name: str) -> Path | None:
    """The file of that name, .gz or not; some unpackers write train-images.idx3-ubyte."""
    names = [spelled + gz for spelled in (name, name.replace("-idx", ".idx")) for gz in ("", ".gz")]
    return next((root / f / n for f in folders for n in names if (root / f / n).is_file()), None)


def read_idx(path: Path, dims: int) -> np.ndarray:
    """A uint8 array from an idx file: magic 0x0000 08 <dims>, big-endian sizes, the bytes. UserError: anything else."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            head = file.read(4 + 4 * dims)
            shape = np.frombuffer(head[4:].ljust(4 * dims, b"\0"), ">u4").tolist()
            count = math.prod(shape)
            raw = file.read(count + 1) if count < _LIMIT else b""  # one more: to the end, where gzip has its checksum
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({error})") from None
    if head[:4] != bytes((0, 0, 8, dims)) or len(head) != 4 + 4 * dims or len(raw) != count:
        raise UserError(f"{path} is not an idx file of {dims}-dimensional bytes, or it is cut")
    return np.frombuffer(raw, np.uint8).reshape(shape)
