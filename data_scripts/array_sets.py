"""Sets that come as arrays, a train and a test half each: one domain from both, and the checks that all need."""
import numpy as np

from fedlib.core.errors import UserError
from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.readers.image_folder import resize_all, room

KINDS = ("train", "test")
_CHUNK = 2**14  # images that are resized at once


def pooled(name: str, halves, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One domain (x uint8 (N,3,size,size), y, part) of its halves, [(images, y) train, (images, y) test].

    Images are uint8, grey (n,H,W) or RGB (n,H,W,3), of any memory layout; they are copied chunk by chunk, so the peak
    of memory is what the halves hold. Resized as image_folder.resize_all does.
    """
    y, part = labels_and_part([labels for _, labels in halves])
    x, at = room((len(y), 3, size, size)), 0
    for (images, _), kind in zip(halves, KINDS):
        for start in range(0, len(images), _CHUNK):
            piece = resize_all(images[start:start + _CHUNK], size, f"{name} {kind}")
            x[at:at + len(piece)] = piece
            at += len(piece)
    return x, y, part


def labels_and_part(halves) -> tuple[np.ndarray, np.ndarray]:
    """y int64 (N,) and part uint8 (N,) from the labels of the train and the test half."""
    y = np.concatenate(halves).astype(np.int64)
    return y, np.repeat(np.array([TRAIN, TEST], np.uint8), [len(labels) for labels in halves])


def check_labels(path, y: np.ndarray, n: int, classes: int):
    """UserError unless y holds one whole number in 0..classes-1 for each of the n > 0 images of a file."""
    if n == 0:
        raise UserError(f"{path} holds no images")
    if y.shape != (n,) or y.dtype.kind not in "iu" or not ((0 <= y) & (y < classes)).all():
        raise UserError(f"{path} does not hold {n} labels in 0..{classes - 1}, one per image")


def check_classes(name: str, halves, classes, place):
    """UserError when the train or the test labels of a domain lack a class."""
    for kind, y in zip(KINDS, halves):
        for k in np.flatnonzero(np.bincount(y, minlength=len(classes)) == 0):
            raise UserError(f"domain '{name}' lacks the class '{classes[k]}' in its {kind} part, in {place}")


def counts(domains: dict) -> dict:
    """{"<domain> train": n, "<domain> test": m, ...} of domains {d: (x, y, part)}."""
    return {f"{d} {kind}": int((part == code).sum())
            for d, (_, _, part) in domains.items() for kind, code in zip(KINDS, (TRAIN, TEST))}
