"""Amazon reviews: positive or negative, of books, dvds, electronics and kitchen appliances (Blitzer et al., 2007)."""
import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
from scipy.io import loadmat
from scipy.io.matlab import MatReadError
from scipy.sparse import coo_matrix, issparse
from sklearn.datasets import load_svmlight_file

from fedlib.core.errors import UserError, first_line
from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.datasets.published import File
from fedlib.readers.image_folder import subset_text

NAME = "amazon_reviews"
TITLE = "Amazon reviews"
KIND = "features"
DOMAINS = ("books", "dvd", "electronics", "kitchen")
CLASSES = ("negative", "positive")
SIZES = (5000,)
PUBLISHED = {"books train": 2000, "books test": 4465, "dvd train": 2000, "dvd test": 3586,
             "electronics train": 2000, "electronics test": 5681, "kitchen train": 2000, "kitchen test": 5945}
ABOUT = {
    "source": "Multi-domain sentiment dataset, in the form of Ganin et al. (JMLR 2016)",
    "transform": "counts of the 5,000 unigrams and bigrams of that form, as they are",
    "split": "the published train and test parts",
    "licence": "none stated; for research",
    "citation": "Blitzer, Dredze, Pereira: Biographies, Bollywood, boom-boxes and blenders: domain adaptation for "
                "sentiment classification. ACL 2007; Ganin et al.: Domain-adversarial training of neural networks. "
                "JMLR 2016",
}
_SOURCES = ("https://raw.githubusercontent.com/GRAAL-Research/domain_adversarial_neural_network/"
            "74eec5e0ae06bd6614bce048abba492c16a633e3/data/",
            "https://cdn.jsdelivr.net/gh/GRAAL-Research/domain_adversarial_neural_network@"
            "74eec5e0ae06bd6614bce048abba492c16a633e3/data/")
FILES = tuple(File(f"{name}.svmlight", tuple(f"{place}{name}.svmlight" for place in _SOURCES), f"sha256:{digest}", size)
              for name, digest, size in (
    ("books_train", "317f9a2ec34b81de770b63a84d8c5cc2dc16bd0be6e079d2ff5b5bad5213ea19", 1134070),
    ("books_test", "fe4605c7dcf0e0a9410fd2a32f247caaf9abb352cc6e4c3e0f400853163ad9c4", 2426071),
    ("dvd_train", "95f602aa08bf6b55758f7b0b18df3882fe30acb11987ee60b6b4bb3c44cba733", 1133356),
    ("dvd_test", "4fe1b1a15010f78d8d0c49fe362d35fd4677463a45f1ac02a9f410ae1e638060", 2039832),
    ("electronics_train", "7d0061f03ff3827e4f8036b051b5e5828fddc0cd115aa5b212cd28d624dc14e4", 872265),
    ("electronics_test", "641783bc941839c3a111d3488a1b7e3bd820a61ec14a129e7429b47703aa961d", 2461224),
    ("kitchen_train", "a70b5ebfe1413e0e16280360905f5c3b64389c435cd20c0165dc9d7f293b31b5", 771076),
    ("kitchen_test", "e1502b97a824eb12314be4447394fa736fecb781c0724e6529cd6733ac7ff6d8", 2280620)))
HOW = ("The same counts are also read from <domain>_train.mat and <domain>_test.mat (data, labels) and from the "
       "amazon.npz of MDAN and KD3A.")

_USUAL = ("", "amazon_reviews", "AmazonReview", "amazon_review", "amazon", "data")
_KINDS = {"train": TRAIN, "test": TEST}
_NPZ_TRAIN = 2000  # of a domain
_NPZ_SPLIT = (f"amazon.npz has no division: the first {_NPZ_TRAIN} reviews of each domain are train, as many as in "
              "Zhao et al. (Adversarial multiple source domain adaptation, NeurIPS 2018), the others test")
_BROKEN = (OSError, ValueError, TypeError, KeyError, IndexError, EOFError, NotImplementedError, zlib.error, BadZipFile,
           MatReadError)


def read(root, size, say=print, skip=None):
    """Per domain x float16 (N,5000) with counts, y, part; and what the manifest adds.

    The files are <domain>_<part>.svmlight or .mat, or amazon.npz. UserError: none of them, one that is absent,
    unreadable or of another shape, values that are no counts, labels other than -1 and 1, a part without a class.
    """
    place, suffix = find(root)
    if suffix == ".npz":
        parts = read_npz(place / "amazon.npz", size)
    else:
        parts = ((d, kind, *read_part(place / f"{d}_{kind}{suffix}", size)) for d in DOMAINS for kind in _KINDS)
    domains, counts = {}, {}
    for d, kind, x, y in parts:
        for label, name in enumerate(CLASSES):
            if label not in y:
                raise UserError(f"domain '{d}' lacks the class '{name}' in its {kind} part, in {place}")
        domains.setdefault(d, []).append((x, y, np.full(len(y), _KINDS[kind], dtype=np.uint8)))
        counts[f"{d} {kind}"] = len(y)
    for d, halves in domains.items():
        domains[d] = tuple(map(np.concatenate, zip(*halves)))
        say(f"{d}: {len(domains[d][1])} reviews")
    updates = {"split": _NPZ_SPLIT} if suffix == ".npz" else {}
    return domains, {"notice": subset_text(counts, PUBLISHED), **updates}


def find(root: Path) -> tuple[Path, str]:
    """The folder of the files and their kind: .svmlight, .mat or .npz. UserError: none, or not all eight of a kind."""
    names = [f"{d}_{kind}" for d in DOMAINS for kind in _KINDS]
    for place in (root / p for p in _USUAL):
        for suffix in (".svmlight", ".mat"):
            absent = [name for name in names if not (place / (name + suffix)).is_file()]
            if absent and len(absent) < len(names):
                raise UserError(f"{TITLE} in {place} lacks {absent[0]}{suffix}")
            if not absent:
                return place, suffix
        if (place / "amazon.npz").is_file():
            return place, ".npz"
    raise UserError(f"no {TITLE} in {root}: looked for books_train.svmlight, books_train.mat and amazon.npz there and "
                    f"in {', '.join(_USUAL[1:])}")


def read_part(path: Path, size: int) -> tuple[np.ndarray, np.ndarray]:
    """x, y of one .mat or .svmlight file."""
    try:
        if path.suffix == ".mat":
            held = loadmat(path, variable_names=["data", "labels"])
            data, labels = held["data"], held["labels"]
        else:
            data, labels = load_svmlight_file(path, n_features=size, zero_based=True)
    except _BROKEN as error:
        raise UserError(f"{path} is not {path.suffix[1:]} data with {size} features and labels "
                        f"({first_line(error)})") from None
    return counts_of(data, size, path), classes_of(labels, data.shape[0], path)


def read_npz(path: Path, size: int):
    """(domain, "train" or "test", x, y) from amazon.npz: sparse counts (xx_*) of all domains, one below the other.

    It holds the transpose of the matrix of reviews, and more features than the first `size`, which are used.
    """
    try:
        with np.load(path, allow_pickle=False) as held:
            rows, shape = held["offset"].ravel()[:5].astype(int).tolist(), held["xx_shape"][::-1]
            data = coo_matrix((held["xx_data"], (held["xx_col"], held["xx_row"])), shape=shape).tocsr()[:, :size]
            labels = held["yy"].ravel()
    except _BROKEN as error:
        raise UserError(f"{path} is not the amazon.npz with xx_data, xx_col, xx_row, xx_shape, yy and offset "
                        f"({first_line(error)})") from None
    if len(rows) != 5 or rows != sorted(rows) or rows[0] != 0 or rows[-1] != data.shape[0]:
        raise UserError(f"{path}: offset is {rows}, not where each of the 4 domains begins and the last ends")
    y = classes_of(labels, data.shape[0], path)
    for d, start, end in zip(DOMAINS, rows, rows[1:]):
        middle = min(start + _NPZ_TRAIN, end)
        for kind, part in (("train", slice(start, middle)), ("test", slice(middle, end))):
            yield d, kind, counts_of(data[part], size, path), y[part]


def counts_of(data, size: int, path: Path) -> np.ndarray:
    """A matrix, sparse or not, as float16 (N,size). UserError: another shape, or no counts that float16 holds."""
    if len(data.shape) != 2 or data.shape[1] != size:
        raise UserError(f"{path}: the data have the shape {data.shape}, not (reviews, {size})")
    counts = False
    if data.dtype.kind in "fiu":
        dense = data.astype(np.float32).toarray() if issparse(data) else data
        with np.errstate(over="ignore"):  # what overflows is infinite, and differs
            x = dense.astype(np.float16, order="C")
        counts = (x == dense).all() and (x >= 0).all() and (x == np.rint(x)).all()
    if not counts:
        raise UserError(f"{path}: the data are not counts of words: whole numbers, not negative, exact as float16")
    return x


def classes_of(labels, n: int, path: Path) -> np.ndarray:
    """y int64 (n,) in 0, 1 from labels -1, 1. UserError: other labels, or not one for each review."""
    labels = np.ravel(labels)
    if labels.shape != (n,) or not np.isin(labels, (-1, 1)).all():
        raise UserError(f"{path} does not hold {n} labels -1 or 1, one per review")
    return (labels > 0).astype(np.int64)


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
