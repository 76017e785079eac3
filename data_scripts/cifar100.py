"""CIFAR-100: 32 px colour images of a hundred classes (Krizhevsky, 2009)."""
from fedlib.readers.cifar_files import CITATION, Cifar

NAME = "cifar100"
TITLE = "CIFAR-100"
DOMAINS = ("cifar100",)
CLASSES = (  # the fine ones; the coarse labels are not used
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle", "bicycle", "bottle", "bowl", "boy",
    "bridge", "bus", "butterfly", "camel", "can", "castle", "caterpillar", "cattle", "chair", "chimpanzee",
    "clock", "cloud", "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin", "elephant",
    "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo", "keyboard", "lamp", "lawn_mower",
    "leopard", "lion", "lizard", "lobster", "man", "maple_tree", "motorcycle", "mountain", "mouse", "mushroom",
    "oak_tree", "orange", "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain", "plate",
    "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road", "rocket", "rose", "sea", "seal", "shark",
    "shrew", "skunk", "skyscraper", "snail", "snake", "spider", "squirrel", "streetcar", "sunflower",
    "sweet_pepper", "table", "tank", "telephone", "television", "tiger", "tractor", "train", "trout", "tulip",
    "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm")
SIZES = (32,)
PUBLISHED = {"cifar100 train": 50000, "cifar100 test": 10000}
_CIFAR = Cifar(NAME, CLASSES, ("cifar-100-binary", "cifar-100-python"), (("train",), ("test",)), (1, "fine_labels"), 2)
FILES = _CIFAR.files("cifar-100-binary.tar.gz", NAME, "03b5dce01913d631647c71ecec9e9cb8", 168513733)
HOW = "What torchvision left in cifar-100-python will do; unpack archives other than cifar-100-binary.tar.gz."
ABOUT = {
    "source": "CIFAR-100 (32 px, colour)",
    "transform": "none",
    "split": "the published train and test sets",
    "licence": "none stated; for research",
    "citation": CITATION,
}


def read(root, size, say=print, skip=None):
    """The one domain as numpy arrays, and what the manifest adds.

    From cifar-100-binary, else cifar-100-python, else cifar100_subset.npz. UserError: none of them, one that is not
    complete, unreadable or garbled, labels out of range, a class without images.
    """
    return _CIFAR.read(root, size, PUBLISHED, say)


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
