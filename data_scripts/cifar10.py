"""CIFAR-10: 32 px colour images of ten classes (Krizhevsky, 2009)."""
from fedlib.readers.cifar_files import CITATION, Cifar

NAME = "cifar10"
TITLE = "CIFAR-10"
DOMAINS = ("cifar10",)
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SIZES = (32,)
PUBLISHED = {"cifar10 train": 50000, "cifar10 test": 10000}
_CIFAR = Cifar(NAME, CLASSES, ("cifar-10-batches-bin", "cifar-10-batches-py"),
               (tuple(f"data_batch_{i}" for i in range(1, 6)), ("test_batch",)), (0, "labels"), 1)
FILES = _CIFAR.files("cifar-10-binary.tar.gz", NAME, "c32a1d4ab5d03f1284b67883e8d87530", 170052171)
HOW = "What torchvision left in cifar-10-batches-py will do; unpack archives other than cifar-10-binary.tar.gz."
ABOUT = {
    "source": "CIFAR-10 (32 px, colour)",
    "transform": "none",
    "split": "the published train and test sets",
    "licence": "none stated; for research",
    "citation": CITATION,
}


def read(root, size, say=print, skip=None):
    """The one domain as numpy arrays, and what the manifest adds.

    From cifar-10-batches-bin, else cifar-10-batches-py, else cifar10_subset.npz. UserError: none of them, one that is
    not complete, unreadable or garbled, labels out of range, a class without images.
    """
    return _CIFAR.read(root, size, PUBLISHED, say)


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
