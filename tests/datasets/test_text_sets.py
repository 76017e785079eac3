"""AG News and Amazon reviews: small files in the published formats, and the real ones where FEDLIB_RAW names them."""
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import RAW, needs_raw, quiet
from raw_files import fails
from scipy.io import savemat
from scipy.sparse import coo_matrix
from sklearn.datasets import dump_svmlight_file

from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.readers import ag_news, amazon_reviews

# AG News

def row(label, title="Oil up", description="Prices rose."):
    """A line as published: every column quoted, quotes inside doubled."""
    return ",".join('"' + str(v).replace('"', '""') + '"' for v in (label, title, description)) + "\n"


def news(folder: Path, part="test", rows="", per_class=1) -> Path:
    """A csv of `per_class` texts of each class, then `rows`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{part}.csv").write_text("".join(row(c) for c in (3, 1, 2, 4)) * per_class + rows, encoding="utf-8")
    return folder


@pytest.mark.parametrize("text, words", [
    ("You can now install TorchText using pip!", "you can now install torchtext using pip !"),
    ("Basic English Normalization for a Line of Text   ' \" . <br /> , ( ) ! ? ; :   ",
     "basic english normalization for a line of text ' . , ( ) ! ?"),
    ("don't", "don ' t"), ("AT&amp;T; #36;10", "at&amp t #36 10"), ('say "so"', "say so"), ("3.5%\tup\n", "3 . 5% up"),
    ("a<br />b <BR /> c", "a b c"), ("two--dashes -- here", "two--dashes -- here"), ("", ""), ("ÉTÉ 日本", "été 日本")])
def test_basic_english(text, words):
    assert ag_news.tokens(text) == words.split()


def test_vocabulary_falls_in_frequency_then_by_alphabet_and_counts_what_is_cut_off():
    x, words = ag_news.encode(["b a c", "c z z z z z z", "Z b", "k j i h g f e d"], 4)
    assert words == ["<pad>", "z", "b", "c", "a", *"defghijk"]
    assert x.dtype == np.int32 and x.tolist() == [[2, 4, 3, 0], [3, 1, 1, 1], [1, 2, 0, 0], [12, 11, 10, 9]]


def test_a_special_in_a_text_is_that_special():
    x, words = ag_news.encode(["b a <pad>"], 6)
    assert words == ["<pad>", "a", "b"] and x.tolist() == [[2, 1, 0, 0, 0, 0]]


def test_quoting(tmp_path):
    title, description = 'The "Big" one, at last', 'He said: "no, ""never"""\nand left\\again; C:\\dir'
    path = news(tmp_path, rows=row(2, title, description) + '4,plain,"a, b"\n\n') / "test.csv"
    y, texts = ag_news.read_csv(path)
    assert y.dtype == np.int64 and y.tolist() == [2, 0, 1, 3, 1, 3]
    assert texts[4:] == [f"{title} {description}", "plain a, b"]
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert [ag_news.tokens(t) for t in ag_news.read_csv(path)[1]] == [ag_news.tokens(t) for t in texts]
    path.write_text("Class Index,Title,Description\n" + path.read_text())
    assert ag_news.read_csv(path)[0].tolist() == y.tolist()


@pytest.mark.parametrize("place", ["", "ag_news", "ag_news_csv", "AG_NEWS", "datasets/AG_NEWS"])
def test_both_parts(tmp_path, place):
    news(tmp_path / place, "train", per_class=2)
    news(tmp_path / place, "test", rows=row(1, "word", "new " * 300))
    domains, about = ag_news.read(tmp_path, 100, quiet)
    (x, y, part), = domains.values()
    assert list(domains) == ["ag_news"] and x.shape == (13, 100) and x.dtype == np.int32
    assert y.tolist() == [2, 0, 1, 3] * 3 + [0] and part.tolist() == [TRAIN] * 8 + [TEST] * 5
    assert about["notice"] == "subset: ag_news train 8 of 120000, ag_news test 5 of 7600" and "split" not in about
    of_row = [about["words"][i] for i in x[0]]
    assert of_row[:6] == ["oil", "up", "prices", "rose", ".", "<pad>"] and set(of_row[5:]) == {"<pad>"}
    assert x[12].tolist() == [about["words"].index("word")] + [about["words"].index("new")] * 99
    assert about["words"][1] == "new", "the words of train and test are counted together"


def test_without_train_the_test_part_is_divided(tmp_path):
    rows = "".join(row(c) for c in (1, 1, 1, 2, 2, 2, 1, 1, 1, 1, 2))
    (_, y, part), = (out := ag_news.read(news(tmp_path, rows=rows), 200, quiet))[0].values()
    for label, parts in {0: "RRRTRRRT", 1: "RRRTR", 2: "R", 3: "R"}.items():
        assert part[y == label].tolist() == [{"R": TRAIN, "T": TEST}[p] for p in parts]
    made_up = out[1]["split"]
    assert made_up.startswith("made up from the test part") and out[1]["notice"] == (
        f"subset: ag_news train 0 of 120000, ag_news test 15 of 7600; the split is {made_up}")


def test_ag_news_faults(tmp_path):
    fails(ag_news, tmp_path, "no AG News in", "train.csv", "ag_news_csv")
    news(tmp_path, "train")
    fails(ag_news, tmp_path, "lacks test.csv")
    for rows, *words in [(row(5), "line 5", "'5'"), (row("World"), "line 5", "'World'"), (row(0), "'0'"),
                         ('"1","title"\n', "line 5", "2 columns"), ('"1","t","d","more"\n', "4 columns"),
                         ('"1","title","cut in the mid', "cut", "does not end")]:
        news(tmp_path, rows=rows)
        fails(ag_news, tmp_path, str(tmp_path / "test.csv"), *words)
    (news(tmp_path) / "test.csv").write_text(row(1) + row(2) + row(4))
    fails(ag_news, tmp_path, "domain 'ag_news' lacks the class 'Business'", "class 3", "test.csv")
    (tmp_path / "test.csv").write_text("")
    fails(ag_news, tmp_path, "lacks the class 'World'")
    news(tmp_path, rows=row(1, "Caf\u00e9"))
    (tmp_path / "test.csv").write_bytes((tmp_path / "test.csv").read_text(encoding="utf-8").encode("latin-1"))
    fails(ag_news, tmp_path, "test.csv is not UTF-8", "byte")
    news(tmp_path, rows=row(1, "x" * 200_000))
    fails(ag_news, tmp_path, "cannot be read as csv", "field limit")


@needs_raw
def test_the_real_ag_news():
    domains, about = ag_news.read(RAW, 200, quiet)
    x, y, part = domains["ag_news"]
    test = y[part == TEST] if "split" not in about else y  # a copy without train.csv
    assert len(test) == 7600 and np.bincount(test).tolist() == [1900] * 4
    assert (x[:, 0] > 0).all() and x.max() == len(about["words"]) - 1
    assert about["words"][:4] == ["<pad>", ".", "the", ","]
    if "split" in about:
        assert len(about["words"]) == 25271 and np.bincount(y[part == TEST]).tolist() == [475] * 4


def test_a_thousand_texts_take_less_than_their_share_of_a_minute():
    draw = np.random.default_rng(0).zipf(1.3, (1000, 40)) % 10**5
    texts = [" ".join(map(str, line)) + ", and so on." for line in draw]
    start = time.perf_counter()
    x, _ = ag_news.encode(texts, 200)
    assert x.shape == (1000, 200) and 127.6 * (time.perf_counter() - start) < 60


# Amazon reviews

def reviews(n=6, seed=0, most=84):
    """Counts (n,5000) and labels -1, 1, alternating."""
    rng = np.random.default_rng(seed)
    data = rng.integers(0, most + 1, (n, 5000)) * (rng.random((n, 5000)) < .02)
    return data.astype(float), np.where(np.arange(n) % 2, 1., -1.)


def save(path: Path, data, labels):
    if path.suffix == ".mat":
        savemat(path, {"data": data, "labels": labels[None]}, do_compression=True)
    else:
        dump_svmlight_file(data, labels, str(path), zero_based=True)


def amazon(folder: Path, suffix=".mat") -> dict:
    """The eight files; returns what they hold."""
    folder.mkdir(parents=True, exist_ok=True)
    held = {}
    for i, d in enumerate(amazon_reviews.DOMAINS):
        for j, kind in enumerate(("train", "test")):
            held[d, kind] = reviews(4 + i + 4 * j, 10 * i + j)
            save(folder / f"{d}_{kind}{suffix}", *held[d, kind])
    return held


def npz(path: Path, held: dict, **other) -> list:
    """amazon.npz: all domains below each other, transposed, with 40 features more, as MDAN reads it."""
    data, labels = (np.concatenate([a[k] for a in held.values()]) for k in (0, 1))
    wide = coo_matrix(np.concatenate([data, np.ones((len(data), 40))], axis=1).T)
    counts = np.array([len(held[d, "train"][1]) + len(held[d, "test"][1]) for d in amazon_reviews.DOMAINS])
    entries = {"xx_data": wide.data, "xx_row": wide.row, "xx_col": wide.col, "xx_shape": np.array(wide.shape),
               "yy": labels[:, None], "offset": np.concatenate([[0], counts.cumsum()])[:, None]}
    np.savez_compressed(path, **{k: v for k, v in {**entries, **other}.items() if v is not None})
    return counts.tolist()


@pytest.mark.parametrize("suffix", [".mat", ".svmlight"])
@pytest.mark.parametrize("place", ["", "amazon_reviews", "data"])
def test_amazon(tmp_path, suffix, place):
    held = amazon(tmp_path / place, suffix)
    domains, about = amazon_reviews.read(tmp_path, 5000, quiet)
    assert list(domains) == ["books", "dvd", "electronics", "kitchen"]
    for d, (x, y, part) in domains.items():
        (x_train, l_train), (x_test, l_test) = held[d, "train"], held[d, "test"]
        assert x.dtype == np.float16 and np.array_equal(x, np.concatenate([x_train, x_test]))
        assert y.dtype == np.int64 and y.tolist() == [int(v > 0) for v in [*l_train, *l_test]]
        assert part.dtype == np.uint8 and part.tolist() == [TRAIN] * len(l_train) + [TEST] * len(l_test)
    assert about["notice"].startswith("subset: books train 4 of 2000, books test 8 of 4465") and "split" not in about


def test_amazon_npz(tmp_path, monkeypatch):
    held = amazon(tmp_path / "mat")
    monkeypatch.setattr(amazon_reviews, "_NPZ_TRAIN", 5)
    (tmp_path / "AmazonReview").mkdir()
    counts = npz(tmp_path / "AmazonReview" / "amazon.npz", held)
    domains, about = amazon_reviews.read(tmp_path, 5000, quiet)
    for (d, (x, y, part)), n in zip(domains.items(), counts):
        assert np.array_equal(x, np.concatenate([held[d, "train"][0], held[d, "test"][0]])) and x.dtype == np.float16
        assert part.tolist() == [TRAIN] * 5 + [TEST] * (n - 5)
        assert y.tolist() == [int(v > 0) for v in [*held[d, "train"][1], *held[d, "test"][1]]]
    assert "no division" in about["split"] and "books train 5 of 2000" in about["notice"]


def test_amazon_npz_faults(tmp_path):
    held, path = amazon(tmp_path / "mat"), tmp_path / "amazon.npz"
    npz(path, held, yy=None)
    fails(amazon_reviews, tmp_path, "amazon.npz", "xx_shape, yy and offset", "yy")
    npz(path, held, offset=np.array([0, 5, 4, 9, 12]))
    fails(amazon_reviews, tmp_path, "offset is [0, 5, 4, 9, 12]")
    npz(path, held, xx_data=np.array([object()] * 3))
    fails(amazon_reviews, tmp_path, "amazon.npz", "pickle")
    npz(path, held)
    path.write_bytes(path.read_bytes()[:-300])
    fails(amazon_reviews, tmp_path, "is not the amazon.npz")


@pytest.mark.parametrize("suffix", [".mat", ".svmlight"])
def test_amazon_faults(tmp_path, suffix):
    fails(amazon_reviews, tmp_path, "no Amazon reviews in", "books_train.mat", "amazon.npz")
    amazon(tmp_path, suffix)
    path = tmp_path / f"dvd_test{suffix}"
    data, labels = reviews()
    for x, y, *words in [(data, labels * 2, "6 labels -1 or 1"), (data, (labels + 1) / 2, "labels"),
                         (data / 2, labels, "not counts"), (-data, labels, "not counts"),
                         (data * 1000, labels, "exact as float16"),
                         (data[::2], labels[::2], "domain 'dvd' lacks the class 'positive' in its test part")]:
        save(path, x, y)
        fails(amazon_reviews, tmp_path, *words)
    save(path, np.concatenate([data, data + 1], axis=1), labels)
    fails(amazon_reviews, tmp_path, str(path), "5000")
    path.write_bytes(b"no such thing")
    fails(amazon_reviews, tmp_path, str(path), "is not", "data with 5000 features")
    path.unlink()
    fails(amazon_reviews, tmp_path, f"lacks dvd_test{suffix}")


def test_mat_faults(tmp_path):
    amazon(tmp_path)
    path = tmp_path / "books_train.mat"
    whole, (data, labels) = path.read_bytes(), reviews()
    save(path, data, labels[:5])
    fails(amazon_reviews, tmp_path, "books_train.mat does not hold 6 labels")
    save(path, data[:, :4999], labels)
    fails(amazon_reviews, tmp_path, "shape (6, 4999), not (reviews, 5000)")
    data[2, 3] = np.nan
    save(path, data, labels)
    fails(amazon_reviews, tmp_path, "not counts")
    savemat(path, {"fts": data, "labels": labels})
    fails(amazon_reviews, tmp_path, "is not mat data", "data")
    path.write_bytes(whole[:len(whole) // 2])
    fails(amazon_reviews, tmp_path, "is not mat data")


@needs_raw
def test_the_real_amazon_reviews():
    domains, about = amazon_reviews.read(RAW, 5000, quiet)
    assert about["notice"] == "" and sum(len(y) for _, y, _ in domains.values()) == 27677
    per_class = {"books": [2201, 2264], "dvd": [1779, 1807], "electronics": [2824, 2857], "kitchen": [2991, 2954]}
    for d, (x, y, part) in domains.items():
        assert np.bincount(y[part == TRAIN]).tolist() == [1000, 1000]
        assert np.bincount(y[part == TEST]).tolist() == per_class[d] and x.max() <= 84 and x.dtype == np.float16


def test_files_are_the_eight_of_the_four_domains():
    assert {f.name for f in amazon_reviews.FILES} == {f"{d}_{k}.svmlight" for d in amazon_reviews.DOMAINS
                                                      for k in ("train", "test")}
    assert all(len(f.hash) == 71 and f.bytes and f.name in f.urls[0] for f in amazon_reviews.FILES)
    assert [f.name for f in ag_news.FILES] == ["train.csv", "test.csv"]
