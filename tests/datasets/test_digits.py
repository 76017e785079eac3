"""Digits: each domain in small files of its published formats, every fault, and the real files where there are any."""
import bz2
import gzip
import io
import tarfile
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import RAW, needs_raw, quiet
from PIL import Image
from raw_files import fails
from scipy.io import savemat

from fedlib.datasets import download, prepare
from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.readers import array_sets, digits, mnist, rendered_digits, usps_files

TEN = np.arange(10)


@pytest.fixture(scope="module")
def few_rendered():
    return {size: rendered_digits.draw(size, {"train": 20, "test": 10}) for size in rendered_digits.SIZES}


@pytest.fixture(autouse=True)
def render_few(few_rendered, monkeypatch):
    """All other domains are small here, so this one is too: its first images, not all 50,000."""
    monkeypatch.setattr(rendered_digits, "draw", few_rendered.get)


def named(value) -> str:
    return value if isinstance(value, str) else "file"


# Small files in the published formats; each maker returns the pixels (n,H,W) or (n,H,W,3) of train and test

def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def mnist_folder(folder: Path, gz=True, dots=False) -> list:
    folder.mkdir(parents=True, exist_ok=True)
    rng, made = np.random.default_rng(2), []
    for kind, n in (("train", 20), ("t10k", 10)):
        x, y = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), (np.arange(n) % 10).astype(np.uint8)
        for what, array in (("images-idx3", x), ("labels-idx1", y)):
            name = f"{kind}-{what.replace('-idx', '.idx') if dots else what}-ubyte"
            (folder / (name + ".gz" * gz)).write_bytes(gzip.compress(idx(array)) if gz else idx(array))
        made.append(x)
    return made


def usps_values(n: int) -> np.ndarray:
    """Values as published: -1 to 1 in steps of 0.001, both ends among them."""
    values = np.random.default_rng(n).integers(-1000, 1001, (n, 256)) / 1000
    values[0, :2] = -1, 1
    return values


def usps_h5(path: Path, sizes=(20, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        for kind, n in zip(("train", "test"), sizes):
            file[f"{kind}/data"] = ((usps_values(n) + 1) / 2).astype(np.float32)
            file[f"{kind}/target"] = (np.arange(n) % 10).astype(np.int32)


def usps_libsvm(folder: Path, packed=True, sizes=(20, 10)):
    folder.mkdir(parents=True, exist_ok=True)
    for name, n in zip(("usps", "usps.t"), sizes):
        text = "".join(f"{i % 10 + 1} " + " ".join(f"{k}:{v:g}" for k, v in enumerate(row, 1)) + " \n"
                       for i, row in enumerate(usps_values(n))).encode()
        (folder / (name + ".bz2" * packed)).write_bytes(bz2.compress(text) if packed else text)


def mat_files(folder: Path, prefix: str, zero: int, packed=True) -> list:
    """zero: how the file writes the label of the digit 0."""
    folder.mkdir(parents=True, exist_ok=True)
    rng, made = np.random.default_rng(3), []
    for kind, n in (("train", 20), ("test", 10)):
        x, y = rng.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), np.arange(n) % 10
        y[y == 0] = zero
        savemat(folder / f"{prefix}{kind}_32x32.mat", {"X": x.transpose(1, 2, 3, 0), "y": y.astype(np.uint8)[:, None]},
                do_compression=packed)
        made.append(x)
    return made


def paint(path: Path, value: int, side=(32, 32)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", side, (value, 0, 255 - value)).save(path)


def mnist_m_folder(folder: Path):
    for kind, n in (("train", 20), ("test", 10)):
        for i in range(n):
            paint(folder / f"mnist_m_{kind}" / f"{i:08}.png", 10 * i)
        (folder / f"mnist_m_{kind}_labels.txt").write_text("".join(f"{i:08}.png {9 - i % 10}\n" for i in range(n)))


def syn_folder(folder: Path, kinds=("imgs_train", "imgs_valid")):
    for kind, n in zip(kinds, (2, 1)):
        for digit in range(10):
            for i in range(n):
                paint(folder / kind / str(digit) / f"{digit}_{i:05}.jpg", 20 * digit, side=(40 + i, 60))


def only(root, name, size=32):
    """One domain of a folder that has just that one (and the rendered digits)."""
    domains, about = digits.read(root, size, quiet)
    assert list(domains) == [name, "rendered_digits"]
    x, y, part = domains[name]
    assert (x.dtype, y.dtype, part.dtype) == (np.uint8, np.int64, np.uint8) and x.shape == (len(y), 3, size, size)
    assert part.tolist() == [TRAIN] * 20 + [TEST] * 10
    return x, y, about


# The domains

@pytest.mark.parametrize("place, gz, dots", [
    ("MNIST/raw", True, False), ("mnist/raw", False, False), ("", False, True), ("MNIST", True, True)])
def test_mnist(tmp_path, place, gz, dots):
    train, test = mnist_folder(tmp_path / place, gz, dots)
    x, y, about = only(tmp_path, "mnist", 28)
    assert y.tolist() == [*range(10)] * 3
    assert all(np.array_equal(x[:20, c], train) and np.array_equal(x[20:, c], test) for c in range(3))
    absent = "left out, not in the folder: usps, svhn, mnist_m, synth_digits, syn; subset: mnist train 20 of 60000"
    assert about["notice"].startswith(absent)
    assert only(tmp_path, "mnist", 32)[0].std() > 0


@pytest.mark.parametrize("make, place", [
    (usps_h5, "usps/usps.h5"), (usps_h5, "usps.h5"), (usps_libsvm, ""), (usps_libsvm, "usps"),
    (lambda folder: usps_libsvm(folder, packed=False), "USPS")])
def test_usps(tmp_path, make, place):
    make(tmp_path / place)
    x, y, _ = only(tmp_path, "usps")
    grey = np.rint((usps_values(20)[3].reshape(16, 16) + 1) / 2 * 255).astype(np.uint8)
    assert np.array_equal(x[3, 1], np.asarray(Image.fromarray(grey).resize((32, 32), Image.Resampling.BILINEAR)))
    assert y.tolist() == [*range(10)] * 3 and (x[:, 0] == x[:, 2]).all()


def test_both_forms_of_usps_give_the_same_pixels(tmp_path):
    usps_h5(tmp_path / "a" / "usps.h5", (200, 10))
    usps_libsvm(tmp_path / "b", sizes=(200, 10))
    for (ours, y), (theirs, other_y) in zip(*(usps_files.read_halves(tmp_path / f) for f in "ab"), strict=True):
        assert np.array_equal(ours, theirs) and np.array_equal(y, other_y) and {0, 255} <= set(ours.ravel())


@pytest.mark.parametrize("name, place, prefix, zero, packed", [
    ("svhn", "svhn", "", 10, True), ("svhn", "", "", 10, False), ("svhn", "SVHN", "", 0, True),
    ("synth_digits", "SynthDigits", "synth_", 0, True), ("synth_digits", "syn", "synth_", 10, False)])
def test_mat_files(tmp_path, monkeypatch, name, place, prefix, zero, packed):
    monkeypatch.setattr(array_sets, "_CHUNK", 7)  # more than one chunk in either half, the last one smaller
    train, test = mat_files(tmp_path / place, prefix, zero, packed)
    x, y, _ = only(tmp_path, name)
    assert np.array_equal(x, np.concatenate([train, test]).transpose(0, 3, 1, 2)) and y.tolist() == [*range(10)] * 3
    x, _, _ = only(tmp_path, name, 28)
    small = Image.fromarray(train[9]).resize((28, 28), Image.Resampling.BILINEAR)
    assert np.array_equal(x[9], np.asarray(small).transpose(2, 0, 1))


@pytest.mark.parametrize("place", ["", "mnist_m", "MNIST-M", "mnist_m/mnist_m"])
def test_mnist_m(tmp_path, place):
    mnist_m_folder(tmp_path / place)
    x, y, _ = only(tmp_path, "mnist_m")
    values = [10 * i for i in (*range(20), *range(10))]
    assert x[:, :, 0, 0].tolist() == [[v, 0, 255 - v] for v in values] and y.tolist() == [*range(9, -1, -1)] * 3


def test_a_corrupt_image_can_be_left_out(tmp_path):
    mnist_m_folder(tmp_path)
    (tmp_path / "mnist_m_train" / "00000004.png").write_bytes(b"no image")
    fails(digits, tmp_path, "00000004.png", "not a readable image")
    skipped = []
    x, y, part = digits.read(tmp_path, 32, quiet, skipped)[0]["mnist_m"]
    assert len(skipped) == 1 and "00000004.png" in skipped[0]
    assert x[:6, 0, 0, 0].tolist() == [0, 10, 20, 30, 50, 60] and y[:6].tolist() == [9, 8, 7, 6, 4, 3]
    assert np.bincount(part).tolist() == [19, 0, 10]


@pytest.mark.parametrize("place, kinds", [
    ("syn", ("train", "val")), ("synthetic_digits", ("imgs_train", "imgs_valid")), ("", ("imgs_train", "imgs_valid")),
    ("synthetic-digits/data/synthetic_digits", ("imgs_train", "imgs_valid"))])
def test_syn(tmp_path, place, kinds):
    syn_folder(tmp_path / place, kinds)
    x, y, _ = only(tmp_path, "syn")
    assert y.tolist() == [digit for digit in range(10) for _ in range(2)] + [*range(10)]
    assert np.abs(x[:, 0, 9, 9].astype(int) - 20 * y).max() < 4  # JPEG


def test_folders_train_and_val_of_another_set_are_no_syn(tmp_path):
    syn_folder(tmp_path / "other", ("train", "val"))
    fails(digits, tmp_path / "other", "no digits in")
    syn_folder(tmp_path / "syn", ("train", "val"))
    assert len(only(tmp_path / "syn", "syn")[1]) == 30  # a user who names that folder itself


def test_all_domains_together(tmp_path, few_rendered):
    mnist_folder(tmp_path / "MNIST" / "raw")
    usps_libsvm(tmp_path / "usps")
    mat_files(tmp_path / "svhn", "", 10)
    mat_files(tmp_path / "SynthDigits", "synth_", 0)
    mnist_m_folder(tmp_path / "mnist_m")
    syn_folder(tmp_path / "syn")
    said = []
    domains, about = digits.read(tmp_path, 32, said.append)
    assert tuple(domains) == digits.DOMAINS and [line.split(":")[0] for line in said] == [*digits.DOMAINS]
    assert all(np.array_equal(a, b) for a, b in zip(domains["rendered_digits"], few_rendered[32], strict=True))
    assert "left out" not in about["notice"] and "syn train 20 of 10000" in about["notice"]
    assert {key: about[key] for key in ("source", "licence", "citation")} == digits.about(digits.DOMAINS)


def test_rendered_digits_are_called_a_stand_in(tmp_path):
    mnist_folder(tmp_path)
    notice = digits.read(tmp_path, 28, quiet)[1]["notice"]
    assert notice.endswith("rendered_digits is a regenerated stand-in for synth_digits, not the published images")


def test_the_manifest_names_the_domains_that_are_there(tmp_path):
    usps_h5(tmp_path / "usps.h5")
    about = digits.read(tmp_path, 28, quiet)[1]
    assert about["source"].startswith("USPS") and "MNIST" not in about["source"] and "Hull" in about["citation"]
    assert about["licence"].startswith("usps: none stated") and "svhn" not in about["licence"]


def test_prepared(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "store"))
    mat_files(tmp_path / "svhn", "", 10)
    manifest = prepare.prepare("digits", 32, tmp_path, quiet)
    assert manifest["domains"]["svhn"] == {"train": 20, "val": 0, "test": 10, "per_class": [3] * 10}
    assert prepare.load_set("digits", 32).tensors["svhn/y"].tolist() == [*range(10)] * 3


# Downloads

def test_each_file_is_for_one_domain():
    wanted = {d: [f.name for f in digits.FILES if f.domains == (d,)] for d in digits.DOMAINS}
    assert {d: len(names) for d, names in wanted.items()} == {
        "mnist": 4, "usps": 2, "svhn": 2, "mnist_m": 1, "synth_digits": 1, "syn": 0, "rendered_digits": 0}
    assert sum(map(len, wanted.values())) == len(digits.FILES)
    assert [f.name for f in mnist.FILES] == wanted["mnist"] and mnist.RAW == digits.NAME  # one download for both


def test_archives_and_downloaded_files_are_read(tmp_path):
    """The archives as published, unpacked where FILES says, beside plain files under the names of FILES."""
    root, store = tmp_path / "mine", tmp_path / "store"
    mnist_m_folder(tmp_path / "a" / "mnist_m")
    mat_files(tmp_path / "b", "synth_", 0)
    mnist_folder(root / "MNIST" / "raw")
    usps_libsvm(root / "usps")
    mat_files(root / "svhn", "", 10)
    with tarfile.open(root / "mnist_m.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "a" / "mnist_m", "mnist_m")
    with zipfile.ZipFile(root / "SynthDigits.zip", "w") as archive:
        for path in sorted((tmp_path / "b").iterdir()):
            archive.write(path, path.name)
    assert download.adopt(digits.FILES, root, store, quiet) == store
    domains, _ = digits.read(store, 32, quiet)
    assert [d for d in digits.DOMAINS if d not in domains] == ["syn"]


# Faults

def test_no_digits(tmp_path):
    fails(digits, tmp_path, "no digits in", "MNIST/raw", "usps.h5", "train_32x32.mat", "mnist_m_train_labels.txt",
          "imgs_train")


def test_mnist_faults(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    mnist_folder(raw)
    images = raw / "train-images-idx3-ubyte.gz"
    whole = images.read_bytes()
    plain = gzip.decompress(whole)
    wrong_sum = whole[:-8] + bytes(4) + whole[-4:]
    huge = plain[:4] + b"\xff" * 12 + plain[16:]
    for broken in (whole[:-50], b"no gzip", wrong_sum, b"", *map(gzip.compress, (
            plain[:-1], plain + b"x", b"", plain[:9], b"\0\0\x0d\3" + plain[4:], b"\0\0\x08\1" + plain[4:], huge))):
        images.write_bytes(broken)
        fails(digits, tmp_path, images)
    images.unlink()
    fails(digits, tmp_path, "lacks train-images-idx3-ubyte")
    images.write_bytes(whole)
    (raw / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.full(10, 11, np.uint8))))
    fails(digits, tmp_path, "t10k-labels-idx1-ubyte.gz", "labels in 0..9")
    (raw / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.full(9, 1, np.uint8))))
    fails(digits, tmp_path, "t10k-labels-idx1-ubyte.gz", "10 labels")
    (raw / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.full(10, 1, np.uint8))))
    fails(digits, tmp_path, "domain 'mnist' lacks the class '0' in its test part")


def test_usps_h5_faults(tmp_path):
    path = tmp_path / "usps.h5"
    path.write_bytes(b"not an h5 file")
    fails(digits, tmp_path, path, "is not usps.h5 with")
    with h5py.File(path, "w") as file:
        file["train/data"] = np.zeros((3, 256))
    fails(digits, tmp_path, path, "is not usps.h5 with")
    for values, word in ((np.full((10, 256), 1.5), "values outside of 0..1"), (np.zeros((10, 250)), "is not usps.h5"),
                         (np.full((10, 256), np.nan), "values outside"), (np.zeros((9, 256)), "9 labels in 0..9")):
        usps_h5(path)
        with h5py.File(path, "a") as file:
            del file["test/data"]
            file["test/data"] = values
        fails(digits, tmp_path, path, word)


@pytest.mark.parametrize("broken, word", [
    (b"no bz2", "usps.t.bz2 is not USPS in LIBSVM's format"), ("cut", "usps.t.bz2 is not USPS in LIBSVM's format"),
    (bz2.compress(b"1 1:x\n"), "is not USPS in LIBSVM's"), (bz2.compress(b"1 257:1\n"), "is not USPS in LIBSVM's"),
    (bz2.compress(b"11 1:1\n"), "1 labels in 0..9"), (bz2.compress(b"0 1:1\n"), "1 labels in 0..9"),
    (bz2.compress(b"1.5 1:1\n"), "not whole numbers"), (bz2.compress(b"1 1:2\n"), "values outside of -1..1"),
    (bz2.compress(b""), "holds no images"), (None, "lacks usps.t.bz2")], ids=named)
def test_usps_libsvm_faults(tmp_path, broken, word):
    usps_libsvm(tmp_path)
    path = tmp_path / "usps.t.bz2"
    if broken == "cut":
        broken = path.read_bytes()[:-100]
    path.write_bytes(broken) if broken is not None else path.unlink()
    fails(digits, tmp_path, word)


def in_mat(**arrays) -> bytes:
    file = io.BytesIO()
    savemat(file, arrays)
    return file.getvalue()


GOOD_X, GOOD_Y = np.zeros((32, 32, 3, 10), np.uint8), TEN[:, None]


@pytest.mark.parametrize("content, word", [
    (b"", "is not a .mat file"), (b"no mat file " * 99, "is not a .mat file"), ("cut", "is not a .mat file"),
    (in_mat(X=GOOD_X), "is not a .mat file with X (32,32,3,N) and y"),
    (in_mat(X=GOOD_X.transpose(3, 0, 1, 2), y=GOOD_Y), "X is uint8 (10, 32, 32, 3)"),
    (in_mat(X=GOOD_X.astype(np.float32), y=GOOD_Y), "X is float32"), (in_mat(X=GOOD_X, y=GOOD_Y[1:]), "10 labels"),
    (in_mat(X=GOOD_X, y=GOOD_Y + 2), "labels in 0..9"), (in_mat(X=GOOD_X, y=GOOD_Y - 1), "labels in 0..9"),
    (in_mat(X=GOOD_X, y=GOOD_Y + 0.5), "not whole numbers"), (in_mat(X=GOOD_X, y="text"), "is not a .mat file"),
    (in_mat(X=GOOD_X, y=GOOD_Y % 9), "domain 'svhn' lacks the class '9' in its test part"),
    (None, "lacks test_32x32.mat")],
    ids=named)
def test_mat_faults(tmp_path, content, word):
    mat_files(tmp_path / "svhn", "", 10)
    path = tmp_path / "svhn" / "test_32x32.mat"
    if content == "cut":
        content = path.read_bytes()[:-200]
    path.write_bytes(content) if content is not None else path.unlink()
    fails(digits, tmp_path, word, tmp_path)


def test_half_of_synth_digits(tmp_path):
    mat_files(tmp_path / "SYN", "synth_", 0)
    (tmp_path / "SYN" / "synth_train_32x32.mat").unlink()
    fails(digits, tmp_path, "SynthDigits in", "lacks synth_train_32x32.mat")


def test_mat_files_of_version_7_3_are_refused(tmp_path):
    mat_files(tmp_path, "", 10)
    with h5py.File(tmp_path / "test_32x32.mat", "w", userblock_size=512) as file:
        file["X"] = GOOD_X
    with open(tmp_path / "test_32x32.mat", "r+b") as file:  # as MATLAB marks its HDF5 files
        file.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM")
    fails(digits, tmp_path, "test_32x32.mat is not a .mat file")


def test_mnist_m_faults(tmp_path):
    mnist_m_folder(tmp_path)
    image = tmp_path / "mnist_m_test" / "00000002.png"
    image.unlink()
    fails(digits, tmp_path, "MNIST-M: 1 of 30 listed images are absent", image)
    labels = tmp_path / "mnist_m_train_labels.txt"
    for line, word in (("00000000.png\n", "not 'name.png label'"), ("00000000.png x\n", "not 'name.png label'"),
                       ("00000000.png 10\n", "labels in 0..9"), ("", "holds no images")):
        labels.write_text(line)
        fails(digits, tmp_path, labels, word)
    (tmp_path / "mnist_m_test_labels.txt").unlink()
    mnist_m_folder(tmp_path / "other")
    (tmp_path / "other" / "mnist_m_test_labels.txt").unlink()
    fails(digits, tmp_path / "other", "lacks mnist_m_test_labels.txt")


def test_syn_faults(tmp_path):
    syn_folder(tmp_path / "syn")
    for f in (tmp_path / "syn" / "imgs_train" / "3").iterdir():
        f.unlink()
    fails(digits, tmp_path, "domain 'syn', class '3': no pictures (.bmp")
    (tmp_path / "syn" / "imgs_train" / "3").rmdir()
    fails(digits, tmp_path, "domain 'syn' lacks the class '3'", "imgs_train")
    (tmp_path / "syn" / "imgs_train").rename(tmp_path / "syn" / "elsewhere")
    fails(digits, tmp_path, "lacks the folder imgs_train")


# The real files

@pytest.fixture(scope="module")
def real():
    return {name: digits.read_domain(name, RAW, 28) for name in ("mnist", "usps", "mnist_m")}


@needs_raw
def test_real_mnist(real):
    x, y, part = real["mnist"]
    assert np.bincount(part).tolist() == [60000, 0, 10000] and (x[:, 0] == x[:, 1]).all() and (x[:, 0] == x[:, 2]).all()
    assert y[:5].tolist() == [5, 0, 4, 1, 9] and y[60000:60005].tolist() == [7, 2, 1, 0, 4]
    assert np.bincount(y[:60000]).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert np.bincount(y).tolist() == list(mnist.PER_CLASS["mnist"])
    assert x[0, 0].sum(dtype=int) == 27525 and x[60000, 2].sum(dtype=int) == 18454
    assert abs(x[:60000, 0].mean() / 255 - 0.1307) < 5e-5  # the mean that everybody normalises with


@needs_raw
def test_real_usps(real):
    x, y, part = real["usps"]
    assert np.bincount(y[part == TRAIN]).tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    assert np.bincount(y[part == TEST]).tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]


@needs_raw
def test_real_usps_in_libsvms_form_is_the_same(tmp_path):
    """What LIBSVM publishes are the values of usps.h5, times 2, minus 1."""
    (images, y), _ = usps_files.read_halves(RAW)
    with h5py.File(RAW / "usps" / "usps.h5") as file:
        values = (2 * file["train/data"][:300].astype(float) - 1).round(4)
    lines = [f"{label + 1} " + " ".join(f"{k}:{v:g}" for k, v in enumerate(row, 1)) for row, label in zip(values, y)]
    (tmp_path / "usps").write_text("\n".join(lines) + "\n")
    theirs, labels = usps_files.read_libsvm(tmp_path / "usps")
    assert np.array_equal(theirs, images[:300]) and np.array_equal(labels, y[:300])


@needs_raw
def test_real_mnist_m_against_mnist(real):
    """MNIST-M is |photo - digit|: image i of its test list carries the label of MNIST's test image i."""
    x, y, part = real["mnist_m"]
    assert np.bincount(part).tolist() == [9000, 0, 3000]
    names = (RAW / "mnist_m" / "mnist_m_test_labels.txt").read_text().split()[::2]
    test = real["mnist"][1][60000:]
    assert x.std() > 40 and (y[part == TEST] == test[[int(name[:8]) for name in names]]).all()


@needs_raw
def test_real_digits(real, monkeypatch):
    monkeypatch.setattr(digits, "read_domain", lambda name, root, size, skip: real.get(name))  # read once is enough
    domains, about = digits.read(RAW, 28, quiet)
    assert list(domains) == ["mnist", "usps", "mnist_m", "rendered_digits"]
    assert "subset: mnist_m train 9000 of 59001, mnist_m test 3000 of 9001, rendered" in about["notice"]
    assert about["notice"].startswith("left out, not in the folder: svhn, synth_digits, syn; ")
