"""MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100: each published form made small, every fault, and the real files."""
import gzip
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
from conftest import RAW, needs_raw, quiet
from raw_files import fails

from fedlib.datasets import download, prepare
from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.readers import array_sets, cifar10, cifar100, fashion_mnist, mnist

PER_CLASS = {"train": 3, "test": 2}


def read(reader, root, size=None):
    domains, about = reader.read(root, size or reader.SIZES[0], quiet)
    assert tuple(domains) == reader.DOMAINS
    x, y, part = domains[reader.NAME]
    assert (x.dtype, y.dtype, part.dtype) == (np.uint8, np.int64, np.uint8)
    assert x.shape == (len(y), 3, *[size or reader.SIZES[0]] * 2) and part.shape == y.shape
    return x, y, part, about


# The four idx files of MNIST and Fashion-MNIST

def idx_folder(folder: Path, gz=True):
    """3 train and 2 test images of each class; returns the pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, made = np.random.default_rng(0), []
    for kind, n in zip(("train", "t10k"), PER_CLASS.values()):
        x, y = rng.integers(0, 256, (10 * n, 28, 28), dtype=np.uint8), np.repeat(np.arange(10, dtype=np.uint8), n)
        for what, array in (("images-idx3", x), ("labels-idx1", y)):
            head = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
            data = head + array.tobytes()
            (folder / f"{kind}-{what}-ubyte{'.gz' * gz}").write_bytes(gzip.compress(data) if gz else data)
        made.append(x)
    return np.concatenate(made)


@pytest.mark.parametrize("reader, place", [(mnist, "MNIST/raw"), (mnist, ""), (fashion_mnist, "FashionMNIST/raw"),
                                           (fashion_mnist, "fashion"), (fashion_mnist, "")])
@pytest.mark.parametrize("gz", [True, False])
def test_idx_sets(tmp_path, reader, place, gz):
    pixels = idx_folder(tmp_path / place, gz)
    x, y, part, about = read(reader, tmp_path)
    assert all(np.array_equal(x[:, c], pixels) for c in range(3))
    assert y.tolist() == [*np.repeat(range(10), 3), *np.repeat(range(10), 2)]
    assert part.tolist() == [TRAIN] * 30 + [TEST] * 20
    assert about == {"transform": "grey repeated to 3 channels",
                     "notice": f"subset: {reader.NAME} train 30 of 60000, {reader.NAME} test 20 of 10000"}
    assert "32x32" in read(reader, tmp_path, 32)[3]["transform"]


def test_the_two_sets_do_not_take_each_others_folders(tmp_path):
    idx_folder(tmp_path / "MNIST" / "raw")
    fails(fashion_mnist, tmp_path, "no Fashion-MNIST in", "FashionMNIST/raw", "fashion_mnist*.npz")
    idx_folder(tmp_path / "b" / "FashionMNIST" / "raw")
    fails(mnist, tmp_path / "b", "no MNIST in", "train-images-idx3-ubyte (.gz or not)", "MNIST/raw")


def test_fashion_taken_for_mnist_is_noticed(tmp_path, monkeypatch):
    """Where both are in the folder that the user names, only the classes tell."""
    idx_folder(tmp_path)
    for reader, counts in ((mnist, [4, 6] + [5] * 8), (fashion_mnist, [5] * 10)):
        monkeypatch.setattr(reader, "PUBLISHED", {f"{reader.NAME} train": 30, f"{reader.NAME} test": 20})
        monkeypatch.setattr(reader, "PER_CLASS", {reader.NAME: counts})
    assert read(mnist, tmp_path)[3]["notice"] == "classes differ: mnist 0 5 of 4, mnist 1 5 of 6"
    assert read(fashion_mnist, tmp_path)[3]["notice"] == ""


@pytest.mark.parametrize("reader", [mnist, fashion_mnist])
def test_idx_faults(tmp_path, reader):
    idx_folder(tmp_path)
    images, labels = tmp_path / "train-images-idx3-ubyte.gz", tmp_path / "t10k-labels-idx1-ubyte.gz"
    whole = images.read_bytes()
    images.write_bytes(whole[:-50])
    fails(reader, tmp_path, images, "cannot be read")
    images.write_bytes(labels.read_bytes())
    fails(reader, tmp_path, images, "3-dimensional")
    images.write_bytes(whole)
    good = labels.read_bytes()
    for values, words in (([10] * 20, "labels in 0..9"), ([1] * 19, "20 labels"), ([1] * 20, "in its test part")):
        labels.write_bytes(gzip.compress(b"\0\0\x08\1" + len(values).to_bytes(4, "big") + bytes(values)))
        fails(reader, tmp_path, words)
    labels.write_bytes(good)
    images.unlink()
    fails(reader, tmp_path, "lacks train-images-idx3-ubyte")


def test_fashion_npz(tmp_path):
    rng, y = np.random.default_rng(1), np.tile(np.arange(10), 20)
    x = rng.integers(0, 256, (200, 28, 28), dtype=np.uint8)
    (tmp_path / "fashion_mnist").mkdir()
    path = tmp_path / "fashion_mnist" / "fashion_mnist_20k.npz"
    np.savez_compressed(path, x=x, y=y)
    ours, labels, part, about = read(fashion_mnist, tmp_path)
    test = [70 * i + 60 + k for i in range(2) for k in range(10)]  # the 7th and the 14th of the 20 of each class
    assert np.array_equal(ours[part == TEST, 1], x[test]) and np.array_equal(labels[part == TEST], y[test])
    rest = np.setdiff1d(np.arange(200), test)
    assert np.array_equal(ours[part == TRAIN, 0], x[rest]) and np.array_equal(labels[part == TRAIN], y[rest])
    assert about["split"] == fashion_mnist.SPLIT_LOST and "test 20 of 10000" in about["notice"]
    for arrays, word in (({"x": x}, "is not an .npz with x and y"), ({"x": x[:, 1:], "y": y}, "not uint8 (N, 28, 28)"),
                         ({"x": x, "y": y[1:]}, "200 labels"), ({"x": x, "y": y + 0.5}, "labels in 0..9"),
                         ({"x": x, "y": y // 2}, "lacks the class 'Sandal'")):
        np.savez(path, **arrays)
        fails(fashion_mnist, tmp_path, word)
    path.write_bytes(b"no zip")
    fails(fashion_mnist, tmp_path, path, "is not an .npz")
    np.savez(path, x=np.array([{}]), y=y)
    fails(fashion_mnist, tmp_path, path, "is not an .npz")
    np.savez(path.with_name("fashion_mnist_a.npz"), x=x, y=y)
    fails(fashion_mnist, tmp_path, "both fashion_mnist_20k.npz and fashion_mnist_a.npz".split(" and ")[1])


# CIFAR

FIVE = [f"data_batch_{i}" for i in range(1, 6)]
FORMS = {cifar10: ("cifar-10-batches-bin", "cifar-10-batches-py", FIVE, "test_batch"),
         cifar100: ("cifar-100-binary", "cifar-100-python", ["train"], "test")}


def cifar_arrays(reader, seed=0):
    """Per half pixels (n,3072), red, green, blue as published, and labels: 5 train and 1 test image of each class."""
    rng, k = np.random.default_rng(seed), len(reader.CLASSES)
    return [(rng.integers(0, 256, (n * k, 3072), dtype=np.uint8), np.tile(np.arange(k), n)) for n in (5, 1)]


def batches(reader):
    """(name, pixels, labels) of each file of a set."""
    (x, y), (x_test, y_test) = cifar_arrays(reader)
    _, _, train, test = FORMS[reader]
    yield from zip(train, np.split(x, len(train)), np.split(y, len(train)))
    yield test, x_test, y_test


def binary_folder(reader, folder: Path):
    folder.mkdir(parents=True)
    for name, pixels, labels in batches(reader):
        columns = [labels % 20, labels] if reader is cifar100 else [labels]  # coarse, fine
        (folder / f"{name}.bin").write_bytes(np.column_stack([*columns, pixels]).astype(np.uint8).tobytes())


def text(value: str) -> bytes:
    """A text as a pickle of Python 2 holds it: BINSTRING."""
    return b"T" + len(value).to_bytes(4, "little") + value.encode("latin1")


def python2_pickle(pixels: np.ndarray, labels, key: str) -> bytes:
    """A batch as CIFAR publishes it: pickled by Python 2 and a numpy of 2009, protocol 2."""
    def number(n):
        return b"J" + int(n).to_bytes(4, "little", signed=True)

    data = (b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text("b") + b"\x87R("  # empty array
            + b"K\1" + number(pixels.shape[0]) + number(pixels.shape[1]) + b"\x86"               # version, shape
            + b"cnumpy\ndtype\n" + text("u1") + b"K\0K\1\x87R(K\3" + text("|")
            + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89T" + len(pixels.tobytes()).to_bytes(4, "little")
            + pixels.tobytes() + b"tb")
    return (b"\x80\2}(" + text("data") + data + text(key) + b"](" + b"".join(map(number, labels)) + b"e"
            + text("batch_label") + text("testing batch 1 of 1") + b"u.")


def pickle_folder(reader, folder: Path, new=False):
    folder.mkdir(parents=True)
    key = "fine_labels" if reader is cifar100 else "labels"
    for name, pixels, labels in batches(reader):
        ours = pickle.dumps({"data": pixels, key: labels.tolist()}, protocol=5)
        (folder / name).write_bytes(ours if new else python2_pickle(pixels, labels, key))


def npz_file(reader, path: Path, **changed):
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = {"classes": np.array(reader.CLASSES)}
    for kind, (x, y) in zip(PER_CLASS, cifar_arrays(reader)):
        arrays |= {f"x_{kind}": x.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), f"y_{kind}": y}
    arrays |= changed
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})


MAKERS = {
    "binary": lambda r, root: binary_folder(r, root / FORMS[r][0]),
    "binary in cifar": lambda r, root: binary_folder(r, root / "cifar" / FORMS[r][0]),
    "pickles": lambda r, root: pickle_folder(r, root / FORMS[r][1]),
    "pickles of Python 3": lambda r, root: pickle_folder(r, root / FORMS[r][1], new=True),
    "npz": lambda r, root: npz_file(r, root / "cifar" / f"{r.NAME}_subset.npz"),
    "npz alone": lambda r, root: npz_file(r, root / f"{r.NAME}.npz", classes=None)}


@pytest.mark.parametrize("form", MAKERS)
@pytest.mark.parametrize("reader", FORMS)
def test_cifar_forms(tmp_path, reader, form):
    MAKERS[form](reader, tmp_path)
    x, y, part, about = read(reader, tmp_path)
    pixels, labels = map(np.concatenate, zip(*cifar_arrays(reader)))
    assert np.array_equal(x.reshape(-1, 3072), pixels) and np.array_equal(y, labels)
    k = len(reader.CLASSES)
    assert part.tolist() == [TRAIN] * 5 * k + [TEST] * k
    assert about == {"notice": f"subset: {reader.NAME} train {5 * k} of 50000, {reader.NAME} test {k} of 10000"}


@pytest.mark.parametrize("reader", FORMS)
@pytest.mark.parametrize("which", [0, 1])
def test_a_user_may_name_the_folder_itself(tmp_path, reader, which):
    folder = tmp_path / FORMS[reader][which]
    (binary_folder, pickle_folder)[which](reader, folder)
    assert len(read(reader, folder)[1]) == 6 * len(reader.CLASSES)


def test_python2_pickles_are_such():
    """The files that the tests write are what plain pickle reads as the array."""
    (x, y), _ = cifar_arrays(cifar10)
    read_back = pickle.loads(python2_pickle(x, y, "labels"), encoding="latin1")
    assert np.array_equal(read_back["data"], x) and read_back["labels"] == y.tolist()


def test_class_names_decide_what_a_label_of_an_npz_means(tmp_path):
    order = np.random.default_rng(0).permutation(10)
    npz_file(cifar10, tmp_path / "cifar10.npz", classes=np.array(cifar10.CLASSES)[order])
    _, y, _, _ = read(cifar10, tmp_path)
    assert y.tolist() == [order[k] for k in range(10)] * 6
    npz_file(cifar10, tmp_path / "cifar10.npz", classes=np.array(["plane", *cifar10.CLASSES[1:]]))
    fails(cifar10, tmp_path, "its classes are not those of cifar10")


def test_classes_of_cifar():
    assert len(set(cifar100.CLASSES)) == 100 and list(cifar100.CLASSES) == sorted(cifar100.CLASSES)
    assert [cifar100.CLASSES[k] for k in (0, 19, 49, 99)] == ["apple", "cattle", "mountain", "worm"]


@pytest.mark.parametrize("reader", FORMS)
def test_binary_faults(tmp_path, reader):
    fails(reader, tmp_path, f"no {reader.NAME} in", FORMS[reader][0], FORMS[reader][1], f"{reader.NAME}_subset.npz")
    folder = tmp_path / FORMS[reader][0]
    binary_folder(reader, folder)
    path = folder / (FORMS[reader][3] + ".bin")
    whole = path.read_bytes()
    record = len(whole) // len(reader.CLASSES)
    for content, word in ((whole[:-1], "or it is cut"), (b"", "or it is cut"), (b"\xff" * len(whole), "labels in 0.."),
                          (whole[record:], f"lacks the class '{reader.CLASSES[0]}' in its test part")):
        path.write_bytes(content)
        fails(reader, tmp_path, word)
    path.unlink()
    fails(reader, tmp_path, folder, f"lacks {path.name}")


def test_a_missing_train_batch(tmp_path):
    binary_folder(cifar10, tmp_path / "cifar-10-batches-bin")
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").unlink()
    fails(cifar10, tmp_path, "lacks data_batch_3.bin")


class Shell:
    def __reduce__(self):
        return os.system, ("touch was_here",)


class Reader:
    def __reduce__(self):
        return eval, ("open('was_here', 'w')",)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("attack", [Shell(), {"data": Reader()}, [Path("x")], np.array([Shell()], dtype=object)])
def test_pickles_that_run_something_are_refused(tmp_path, monkeypatch, attack, protocol):
    monkeypatch.chdir(tmp_path)
    pickle_folder(cifar10, tmp_path / "cifar-10-batches-py")
    path = tmp_path / "cifar-10-batches-py" / "data_batch_2"
    path.write_bytes(pickle.dumps(attack, protocol=protocol))
    fails(cifar10, tmp_path, path, "is refused: as a pickle it asks for")
    assert not (tmp_path / "was_here").exists()


@pytest.mark.parametrize("name", ["numpy.core.multiarray\nfromfile", "numpy\nload", "numpy\nndarray.tofile",
                                  "numpy.f2py.crackfortran\nmyeval", "builtins\ngetattr"])
def test_only_arrays_are_allowed(tmp_path, name):
    pickle_folder(cifar100, tmp_path / "cifar-100-python")
    (tmp_path / "cifar-100-python" / "test").write_bytes(f"c{name}\n.".encode())
    fails(cifar100, tmp_path, name.replace("\n", "."))


@pytest.mark.parametrize("content, word", [
    (b"", "is not a pickled CIFAR batch"), (b"no pickle", "is not a pickled CIFAR batch"), ("cut", "is not a pickled"),
    ([], "does not hold a CIFAR batch"), ({"labels": [1]}, "does not hold a CIFAR batch with data and labels"),
    ({"data": np.zeros((1, 3072), np.uint8)}, "does not hold"), ({"data": [1], "labels": [1]}, "does not hold"),
    ({"data": np.zeros((1, 3072)), "labels": [1]}, "does not hold"),
    ({"data": np.zeros((1, 9), np.uint8), "labels": [1]}, "not uint8 (N, 3072)"),
    ({"data": np.zeros((1, 3072), np.uint8), "labels": [10]}, "labels in 0..9"),
    ({"data": np.zeros((2, 3072), np.uint8), "labels": [1]}, "2 labels in 0..9"),
    ({"data": np.zeros((1, 3072), np.uint8), "labels": ["cat"]}, "does not hold"),
    ({"data": np.zeros((2, 3072), np.uint8), "labels": [[1], [1, 2]]}, "does not hold")], ids=range(13))
def test_pickle_faults(tmp_path, content, word):
    folder = tmp_path / "cifar-10-batches-py"
    pickle_folder(cifar10, folder)
    path = folder / "test_batch"
    if content == "cut":
        content = path.read_bytes()[:-2000]
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
    fails(cifar10, tmp_path, path, word)
    path.unlink()
    fails(cifar10, tmp_path, "lacks test_batch")


def said(code: str, *shape: int, of: bytes, places=b"NNN", what=("data", "labels")) -> bytes:
    """A pickle whose array says to have this type and shape, and these bytes; the other entry is [1]."""
    def number(n):
        return b"\x8a\x08" + n.to_bytes(8, "little", signed=True)

    return (b"\x80\2}(" + text(what[0]) + b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + text("b")
            + b"\x87R(K\1(" + b"".join(map(number, shape)) + b"tcnumpy\ndtype\n" + text(code) + b"K\0K\1\x87R(K\3"
            + text("|") + places + b"J\xff\xff\xff\xffJ\xff\xff\xff\xffK\0tb\x89T" + len(of).to_bytes(4, "little") + of
            + b"tb" + text(what[1]) + b"](K\1eu.")


@pytest.mark.parametrize("forged", [
    said("O8", 1, of=b"A" * 8), said("O8", 1, of=b"A" * 8, what=("labels", "data")),   # numpy: an object's address
    said("u1", 2**40, 3072, of=b"A"), said("u1", -1, 3072, of=b"A" * 3072), said("u1", of=b"A"),
    said("u1", 1, 3072, of=b"A" * 3072, places=b"(K\1K\1")], ids=range(6))
def test_what_a_pickle_says_of_an_array_is_not_believed(tmp_path, forged):
    """numpy's constructors ended the process."""
    pickle_folder(cifar10, tmp_path / "cifar-10-batches-py")
    path = tmp_path / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(forged)
    fails(cifar10, tmp_path, path)


@pytest.mark.parametrize("changed, word", [
    ({"x_test": None}, "is not an .npz with"), ({"y_train": np.arange(50)}, "labels in 0..9"),
    ({"x_train": np.zeros((50, 3, 32, 32), np.uint8)}, "not uint8 (N, 32, 32, 3)"),
    ({"x_test": np.zeros((10, 32, 32, 3))}, "float64"),
    ({"y_test": np.zeros(10, int)}, "lacks the class 'automobile'")])
def test_cifar_npz_faults(tmp_path, changed, word):
    npz_file(cifar10, tmp_path / "cifar" / "cifar10_subset.npz", **changed)
    fails(cifar10, tmp_path, word)
    (tmp_path / "cifar" / "cifar10_subset.npz").write_bytes(b"PK no zip")
    fails(cifar10, tmp_path, "cifar10_subset.npz is not an .npz with")


@pytest.mark.parametrize("reader", FORMS)
def test_the_archive_is_read(tmp_path, monkeypatch, reader):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "store"))
    binary_folder(reader, tmp_path / "made" / FORMS[reader][0])
    (tmp_path / "mine").mkdir()
    with tarfile.open(tmp_path / "mine" / reader.FILES[0].name, "w:gz") as tar:
        tar.add(tmp_path / "made" / FORMS[reader][0], FORMS[reader][0])
    manifest = prepare.prepare(reader.NAME, None, tmp_path / "mine", quiet)
    assert manifest["domains"][reader.NAME]["per_class"] == [6] * len(reader.CLASSES)
    assert manifest["classes"] == list(reader.CLASSES) and manifest["split"] == "the published train and test sets"


def test_downloads_lie_where_they_are_looked_for(tmp_path):
    for reader in (mnist, fashion_mnist):
        for file in reader.FILES:
            (tmp_path / file.name).parent.mkdir(parents=True, exist_ok=True)
            assert file.hash.startswith("md5:") and len(file.hash) == 36 and file.unpack is None
        idx_folder((tmp_path / reader.FILES[0].name).parent)
        assert len(read(reader, tmp_path)[1]) == 50
        assert download.adopt(reader.FILES, tmp_path, tmp_path / "store") is None  # read in place


def test_pooled_is_the_same_in_chunks(monkeypatch):
    rng = np.random.default_rng(0)
    halves = [(rng.integers(0, 256, (n, 20, 20, 3), dtype=np.uint8), np.arange(n) % 3) for n in (12, 5)]
    whole = array_sets.pooled("any", halves, 24)
    monkeypatch.setattr(array_sets, "_CHUNK", 5)
    in_chunks = array_sets.pooled("any", halves, 24)
    assert all(np.array_equal(a, b) for a, b in zip(whole, in_chunks, strict=True)) and len(whole[0]) == 17


# The real files; MNIST's are in test_digits.py

@needs_raw
def test_real_fashion():
    x, y, part, about = read(fashion_mnist, RAW)
    assert np.bincount(y[part == TRAIN]).tolist() == [1715] * 10 and np.bincount(y[part == TEST]).tolist() == [285] * 10
    assert about["notice"] == "subset: fashion_mnist train 17150 of 60000, fashion_mnist test 2850 of 10000"
    bright = [x[y == k, 0].mean() for k in range(10)]
    assert min(bright) == bright[5] and max(bright) == bright[4]  # sandals are thin, coats fill the frame


@needs_raw
@pytest.mark.parametrize("reader, train, test, bluest, reddest", [
    (cifar10, 1000, 200, {"ship", "airplane"}, {"frog", "deer"}),
    (cifar100, 80, 20, {"shark", "dolphin"}, {"orange", "poppy"})])
def test_real_cifar(reader, train, test, bluest, reddest):
    x, y, part, about = read(reader, RAW)
    k, name = len(reader.CLASSES), reader.NAME
    assert np.bincount(y[part == TRAIN]).tolist() == [train] * k and np.bincount(y[part == TEST]).tolist() == [test] * k
    assert about["notice"] == f"subset: {name} train {k * train} of 50000, {name} test {k * test} of 10000"
    assert np.abs(x.mean((0, 2, 3)) / 255 - (0.4914, 0.4822, 0.4465)).max() < 0.02  # CIFAR-10's usual normalisation
    blue = (x[:, 2].astype(float) - x[:, 0]).mean((1, 2))  # more blue than red
    order = [reader.CLASSES[i] for i in np.argsort([blue[y == c].mean() for c in range(k)])]
    assert set(order[-2:]) == bluest and set(order[:2]) == reddest
