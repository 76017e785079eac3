"""AG News: the title and the first lines of news articles in four classes, as token ids (Zhang et al., 2015)."""
import csv
import io
from collections import Counter
from pathlib import Path

import numpy as np
from tqdm import tqdm

from fedlib.core.errors import UserError
from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.datasets.published import File
from fedlib.readers.image_folder import subset_text

NAME = "ag_news"
TITLE = "AG News"
KIND = "tokens"
DOMAINS = ("ag_news",)
CLASSES = ("World", "Sports", "Business", "Sci/Tech")
SIZES = (200, 100)
PUBLISHED = {"ag_news train": 120000, "ag_news test": 7600}
ABOUT = {
    "source": "AG's news topic classification dataset, version 3 (train.csv, test.csv)",
    "transform": "",  # read() says it, with the length
    "split": "the published train and test parts",
    "licence": "for research and any other non-commercial activity (readme.txt of the data set)",
    "citation": "Zhang, Zhao, LeCun: Character-level convolutional networks for text classification. NeurIPS 2015",
}
_URL = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv/"
FILES = (File("train.csv", (_URL + "train.csv",), "md5:b1a00f826fdfbd249f79597b59e1dc12", 29_500_000),
         File("test.csv", (_URL + "test.csv",), "md5:d52ea96a97a2d943681189a97654912d", 1_860_000))
HOW = ""

PAD = "<pad>"  # id 0, the only special: no text has an unknown word, since all are in the vocabulary
_USUAL = ("", "ag_news", "ag_news_csv", "AG_NEWS", "AGNews", "ag_news/ag_news_csv", "datasets/AG_NEWS")
_MADE_UP = "made up from the test part, as train.csv is absent: in each class, in file order, every 4th text is test"
# What the rules do to single characters, after lower case: set apart, dropped, or turned into a space.
_CHARACTERS = str.maketrans({c: f" {c} " for c in "'.,()!?"} | {'"': None, ";": " ", ":": " "})


def read(root, size, say=print, skip=None):
    """The texts as token ids, x int32 (N,size), and what the manifest adds: the words, in the order of their ids.

    Without train.csv the test part is divided, and the notice says so.
    UserError: no test.csv, or a file that is not class, title, description in UTF-8 with all four classes.
    """
    place = next((root / p for p in _USUAL for part in ("train", "test") if (root / p / f"{part}.csv").is_file()), None)
    if place is None:
        raise UserError(f"no {TITLE} in {root}: looked for train.csv and test.csv there and in {', '.join(_USUAL[1:])}")
    if not (place / "test.csv").is_file():
        raise UserError(f"{TITLE} in {place} lacks test.csv")
    y_test, texts = read_csv(place / "test.csv")
    found, split = {"ag_news train": 0, "ag_news test": len(y_test)}, {}
    if (place / "train.csv").is_file():
        y_train, texts_train = read_csv(place / "train.csv")
        found["ag_news train"] = len(y_train)
        y, texts = np.concatenate([y_train, y_test]), texts_train + texts
        part = np.repeat(np.array([TRAIN, TEST], np.uint8), [len(y_train), len(y_test)])
    else:
        y, part, split = y_test, every_fourth(y_test), {"split": _MADE_UP}
    x, words = encode(texts, size)
    say(f"ag_news: {len(x)} texts, {len(words)} words")
    transform = (f"title and description joined by a space; torchtext's basic_english tokens, cut or padded with {PAD} "
                 f"to {size} ids; ids: {PAD}, then all words of all texts, train and test pooled without labels, by "
                 "falling frequency, then by alphabet (as PFLlib when FedDTR was forked from it: 98,635 words)")
    notice = "; the split is ".join(filter(None, [subset_text(found, PUBLISHED), split.get("split")]))
    return {"ag_news": (x, y, part)}, {"transform": transform, "notice": notice, "words": words, **split}


def read_csv(path: Path) -> tuple[np.ndarray, list]:
    """Labels int64 (N,) in 0..3 and the N texts, title and description joined by a space.

    Backslashes, which stand where an article had a new line, stay as they are: torchtext keeps them too.
    UserError: not UTF-8, a quote that does not end, a row without three columns, a class that is not 1 to 4, no text of
    a class.
    """
    y, texts = [], []
    try:
        whole = path.read_text(encoding="utf-8")
        if whole.count('"') % 2:  # csv takes a file that is cut inside a quoted column for whole
            raise UserError(f"{path} is cut: a quoted column does not end")
        rows = csv.reader(io.StringIO(whole, newline=""))
        for row in filter(None, rows):
            if rows.line_num == 1 and row[0] == "Class Index":  # Kaggle's copy has a header
                continue
            if len(row) != 3:
                raise UserError(f"{path}, line {rows.line_num}: {len(row)} columns, not class, title, description")
            if row[0] not in ("1", "2", "3", "4"):
                raise UserError(f"{path}, line {rows.line_num}: the class is {row[0][:20]!r}, not 1, 2, 3 or 4")
            y.append(int(row[0]) - 1)
            texts.append(f"{row[1]} {row[2]}")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start})") from None
    except (OSError, csv.Error) as error:
        raise UserError(f"{path} cannot be read as csv ({error})") from None
    for label, name in enumerate(CLASSES):
        if label not in y:
            raise UserError(f"domain 'ag_news' lacks the class '{name}': no row of class {label + 1} in {path}")
    return np.array(y, dtype=np.int64), texts


def tokens(text: str) -> list[str]:
    """The words of a text by the rules of torchtext's basic_english.

    Lower case; ' . , ( ) ! ? are words of their own; double quotes are dropped; ; : <br /> and white space separate.
    """
    return text.lower().translate(_CHARACTERS).replace("<br />", " ").split()


def encode(texts: list, size: int) -> tuple[np.ndarray, list]:
    """x int32 (N,size): the ids of the words, cut or padded with 0; and the words in the order of their ids.

    <pad> comes first, then the words by falling frequency over all texts (what is cut off counts), equally
    frequent ones by alphabet: the order of torchtext's build_vocab_from_iterator.
    """
    words = vocabulary(texts)
    return ids(texts, words, size), words


def vocabulary(texts: list) -> list[str]:
    """<pad>, then all words of the texts in the order of `encode`."""
    counts = Counter(word for text in tqdm(texts, desc="words", unit="text", leave=False, disable=None)
                     for word in tokens(text))
    return [PAD, *sorted(counts.keys() - {PAD}, key=lambda word: (-counts[word], word))]


def ids(texts: list, words: list, size: int) -> np.ndarray:
    """x int32 (N,size): the places of each text's words in `words`, cut or padded with 0; others are left out."""
    places = {word: i for i, word in enumerate(words)}
    x = np.zeros((len(texts), size), dtype=np.int32)
    for row, text in zip(x, tqdm(texts, desc="ids", unit="text", leave=False, disable=None)):
        of_text = [places[word] for word in tokens(text) if word in places][:size]
        row[:len(of_text)] = of_text
    return x


def every_fourth(y: np.ndarray) -> np.ndarray:
    """A part for each sample, uint8 (N,): in each class the 4th, 8th, ... in file order is test, the others train."""
    part = np.full(len(y), TRAIN, dtype=np.uint8)
    for label in np.unique(y):
        part[np.flatnonzero(y == label)[3::4]] = TEST
    return part


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
