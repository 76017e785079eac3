"""Readers of raw files: tiny folders in the published layouts, and the real files where FEDLIB_RAW names them."""
import gzip
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from data_scripts import digits, image_folder, office_caltech, pacs
from fedlib import prepare
from fedlib.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
RAW = os.environ.get("FEDLIB_RAW")
needs_raw = pytest.mark.skipif(not RAW, reason="FEDLIB_RAW does not name a folder of raw files")
GONG = ("backpack", "touring-bike", "calculator", "head-phones", "computer-keyboard", "laptop-101",
        "computer-monitor", "computer-mouse", "coffee-mug", "video-projector")
OFFICE_31 = ("back_pack", "bike", "calculator", "headphones", "keyboard", "laptop_computer", "monitor", "mouse",
             "mug", "projector", "ruler")  # ruler: a class that Office-31 has and Office-10 has not
# Images per class in the published sets, classes in our order.
OFFICE_PER_CLASS = {
    "caltech": [151, 110, 100, 138, 85, 128, 133, 94, 87, 97], "amazon": [92, 82, 94, 99, 100, 100, 99, 100, 94, 98],
    "webcam": [29, 21, 31, 27, 27, 30, 43, 30, 27, 30], "dslr": [12, 21, 12, 13, 10, 24, 22, 12, 8, 23]}
PACS_PER_CLASS = {
    "photo": [189, 202, 182, 186, 199, 280, 432], "art_painting": [379, 255, 285, 184, 201, 295, 449],
    "cartoon": [389, 457, 346, 135, 324, 288, 405], "sketch": [772, 740, 753, 608, 816, 80, 160]}


def quiet(line):
    pass


def paint(path: Path, value: int, mode="RGB", side=(12, 10)):
    """An image of one grey level that tells which file it came from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", side, (value,) * 3).convert(mode).save(path)


def office(root: Path, classes, domains=("caltech10", "amazon", "webcam", "dslr"), inside="", per_class=3) -> Path:
    for d in domains:
        for c, name in enumerate(classes):
            for i in range(per_class):
                paint(root / d / inside / name / f"frame_{i:04}.png", 20 * c + i)
    return root


def pacs_folder(root: Path, per_class=3, suffix=".png") -> Path:
    for d in pacs.DOMAINS:
        for c, name in enumerate(pacs.CLASSES):
            for i in range(per_class):
                paint(root / d / name / f"pic_{i:03}{suffix}", 30 * c + i)
    return root


def pacs_lists(folder: Path, per_class=3):
    folder.mkdir(exist_ok=True)
    for d in pacs.DOMAINS:
        for kind, held_out in (("train", False), ("crossval", True)):
            lines = [f"{d}/{name}/pic_{i:03}.png {c + 1}" for c, name in enumerate(pacs.CLASSES)
                     for i in range(per_class) if (i == 1) == held_out]
            (folder / f"{d}_{kind}_kfold.txt").write_text("\n".join(lines) + "\n")


def fails(reader, root, *words, size=32) -> str:
    with pytest.raises(UserError) as caught:
        reader.read(root, size, quiet)
    text = str(caught.value)
    assert "\n" not in text and all(word in text for word in words), text


# Office-Caltech-10

@pytest.mark.parametrize("layout", [
    dict(classes=GONG, inside=""), dict(classes=OFFICE_31, inside="images"),
    dict(classes=[f"{i:03}.{n.title()}" for i, n in enumerate(GONG)], domains=("Caltech", "Amazon", "Webcam", "DSLR"))])
@pytest.mark.parametrize("place", ["", "office_caltech10", "OfficeCaltech10", "office_caltech_10/office_caltech_10"])
def test_office_layouts(tmp_path, layout, place):
    office(tmp_path / place, **layout)
    domains, about = office_caltech.read(tmp_path, 32, quiet)
    assert list(domains) == ["caltech", "amazon", "webcam", "dslr"]
    for x, y, part in domains.values():
        assert y.tolist() == [c for c in range(10) for _ in range(3)]
        assert x[:, :, 5, 5].tolist() == [[20 * c + i] * 3 for c in range(10) for i in range(3)]
        assert part.tolist() == [0 if i % 10 <= 7 else 2 for i in range(30)]
    assert about["notice"].startswith("subset: caltech 30 of 1123, amazon 30 of 958")
    assert "sources: 10 px; 120 of 120 images enlarged" in about["transform"]


def test_what_is_no_image_is_passed_over_and_grey_becomes_rgb(tmp_path):
    office(tmp_path, OFFICE_31)
    for name in ("Thumbs.db", "._frame_0000.png", "notes.txt"):
        (tmp_path / "amazon" / "mug" / name).write_bytes(b"no image")
    paint(tmp_path / "amazon" / "mug" / "zz.JPG", 77, mode="L")
    paint(tmp_path / "amazon" / "mug" / "zzz.png", 153, mode="P")
    x, y, _ = office_caltech.read(tmp_path, 32, quiet)[0]["amazon"]
    assert (y == 8).sum() == 5 and x[y == 8][3:, :, 0, 0].tolist() == [[77] * 3, [153] * 3]


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("size", [32, 224])
def test_resize_is_torchvisions(tmp_path, mode, size):
    transforms = pytest.importorskip("torchvision.transforms")
    noise = np.random.default_rng(1).integers(0, 256, (90, 130, 3), dtype=np.uint8)
    path = tmp_path / "noise.png"
    Image.fromarray(noise).convert(mode).save(path)
    ours, _ = image_folder.decode([path], size, "noise")
    theirs = transforms.PILToTensor()(transforms.Resize((size, size))(Image.open(path).convert("RGB")))
    assert torch.equal(torch.from_numpy(ours[0]), theirs)


def test_office_faults(tmp_path):
    fails(office_caltech, tmp_path, "no Office-Caltech-10 in", "caltech, amazon, webcam, dslr", "office_caltech10")
    office(tmp_path, OFFICE_31, domains=("amazon", "webcam", "dslr"))
    fails(office_caltech, tmp_path, "lacks the domain 'caltech'", "caltech10")
    office(tmp_path, OFFICE_31[1:], domains=("caltech",))
    fails(office_caltech, tmp_path, "domain 'caltech' lacks the class 'back_pack'")
    (tmp_path / "caltech" / "backpack").mkdir()
    fails(office_caltech, tmp_path, "'caltech', class 'back_pack': no .jpg or .png")
    office(tmp_path, GONG[:1], domains=("caltech",))
    (tmp_path / "caltech" / "back_pack").mkdir()
    fails(office_caltech, tmp_path, "both back_pack and backpack")


@pytest.mark.parametrize("content", [b"", b"no image", "half"])
def test_corrupt_image(tmp_path, content, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "store"))
    office(tmp_path, OFFICE_31)
    bad = tmp_path / "webcam" / "mouse" / "frame_0001.png"
    if content == "half":
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (99, 99, 3), dtype=np.uint8)).save(bad)
        content = bad.read_bytes()[:9000]
    bad.write_bytes(content)
    fails(office_caltech, tmp_path, str(bad), "is not a readable image")
    with pytest.raises(UserError):
        prepare.prepare("office_caltech", root=tmp_path, say=quiet)
    assert not (tmp_path / "store").exists()


# PACS

@pytest.mark.parametrize("place", ["", "PACS", "kfold", "PACS/kfold", "pacs"])
@pytest.mark.parametrize("suffix", [".png", ".jpg", ".JPEG"])
def test_pacs_fallback_split(tmp_path, place, suffix):
    pacs_folder(tmp_path / place, suffix=suffix)
    domains, about = pacs.read(tmp_path, 64, quiet)
    assert list(domains) == list(pacs.DOMAINS) and about["split"] == pacs.FALLBACK
    for x, y, part in domains.values():
        assert x.shape == (21, 3, 64, 64) and y.tolist() == [c for c in range(7) for _ in range(3)]
        assert np.flatnonzero(part == 2).tolist() == [9, 19] and set(part) == {0, 2}
    assert about["notice"].startswith("subset: photo 21 of 1670")


@pytest.mark.parametrize("lists", [
    "PACS", "PACS/splits", "pacs_label", "PACS/Train val splits and h5py files pre-read"])
def test_pacs_official_lists(tmp_path, lists):
    pacs_folder(tmp_path / "PACS")
    pacs_lists(tmp_path / lists)
    domains, about = pacs.read(tmp_path, 32, quiet)
    assert about["split"] == pacs.OFFICIAL and "list" not in about["notice"]
    for _, _, part in domains.values():
        assert part.tolist() == [0, 2, 0] * 7


def test_pacs_lists_that_do_not_match(tmp_path):
    pacs_folder(tmp_path, per_class=4)
    pacs_lists(tmp_path / "splits")
    (tmp_path / "sketch" / "dog" / "pic_002.png").unlink()
    domains, about = pacs.read(tmp_path, 32, quiet)
    assert len(domains["photo"][1]) == 21 and len(domains["sketch"][1]) == 20
    assert "photo: 7 images in neither list left out" in about["notice"]
    assert "sketch: 7 images in neither list left out, 1 listed images absent" in about["notice"]
    (tmp_path / "splits" / "photo_train_kfold.txt").write_text("photo/dog/other.png 1\n")
    (tmp_path / "splits" / "photo_crossval_kfold.txt").write_text("photo/dog/another.png 1\n")
    fails(pacs, tmp_path, "name none of the images of 'photo'")
    (tmp_path / "splits" / "photo_crossval_kfold.txt").write_text("dog 1\n")
    fails(pacs, tmp_path, "photo_crossval_kfold.txt", "'dog 1' is no line like")
    (tmp_path / "splits" / "cartoon_crossval_kfold.txt").unlink()
    fails(pacs, tmp_path, "lacks cartoon_crossval_kfold.txt")


def test_pacs_faults(tmp_path):
    fails(pacs, tmp_path, "no PACS in", "photo, art_painting, cartoon, sketch")
    pacs_folder(tmp_path / "PACS")
    for f in (tmp_path / "PACS" / "sketch" / "person").iterdir():
        f.unlink()
    fails(pacs, tmp_path, "'sketch', class 'person'")
    (tmp_path / "PACS" / "sketch" / "person").rmdir()
    fails(pacs, tmp_path, "domain 'sketch' lacks the class 'person'")


# Digits

def idx(array: np.ndarray) -> bytes:
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def mnist_folder(folder: Path, gz: bool, dots=False):
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(2)
    made = {}
    for kind, n in (("train", 20), ("t10k", 10)):
        x, y = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8), (np.arange(n) % 10).astype(np.uint8)
        for what, array in (("images-idx3", x), ("labels-idx1", y)):
            name = f"{kind}-{what.replace('-idx', '.idx') if dots else what}-ubyte"
            (folder / (name + ".gz" * gz)).write_bytes(gzip.compress(idx(array)) if gz else idx(array))
        made[kind] = x
    return made


def usps_file(path: Path):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = np.linspace(0, 1, 12 * 256, dtype=np.float32).reshape(12, 256)
    with h5py.File(path, "w") as file:
        for kind in ("train", "test"):
            file[f"{kind}/data"], file[f"{kind}/target"] = data, np.arange(12, dtype=np.int32) % 10
    return data


def mnist_m_folder(folder: Path, n=6):
    for kind in ("train", "test"):
        for i in range(n):
            paint(folder / f"mnist_m_{kind}" / f"{i:08}.png", 10 * i, side=(32, 32))
        (folder / f"mnist_m_{kind}_labels.txt").write_text("".join(f"{i:08}.png {9 - i}\n" for i in range(n)))


@pytest.mark.parametrize("place, gz, dots", [
    ("MNIST/raw", True, False), ("mnist/raw", False, False), ("", False, True), ("MNIST", True, True)])
def test_mnist_layouts(tmp_path, place, gz, dots):
    made = mnist_folder(tmp_path / place, gz, dots)
    domains, about = digits.read(tmp_path, 28, quiet)
    x, y, part = domains["mnist"]
    assert list(domains) == ["mnist"] and part.tolist() == [0] * 20 + [2] * 10 and y.tolist() == list(range(10)) * 3
    assert all(np.array_equal(x[:20, c], made["train"]) and np.array_equal(x[20:, c], made["t10k"]) for c in range(3))
    assert about["notice"].startswith("left out, not in the folder: usps, mnist_m; subset: mnist train 20 of 60000")
    assert digits.read(tmp_path, 32, quiet)[0]["mnist"][0].shape == (30, 3, 32, 32)


def test_usps_and_mnist_m(tmp_path):
    data = usps_file(tmp_path / "usps" / "usps.h5")
    mnist_m_folder(tmp_path / "mnist_m")
    domains, about = digits.read(tmp_path, 32, quiet)
    x, y, part = domains["usps"]
    grey = Image.fromarray(np.rint(255 * data[3]).astype(np.uint8).reshape(16, 16))
    assert np.array_equal(x[3, 1], np.asarray(grey.resize((32, 32), Image.Resampling.BILINEAR)))
    assert y.dtype == np.int64 and part.tolist() == [0] * 12 + [2] * 12
    x, y, part = domains["mnist_m"]
    assert x[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40, 50] * 2 and y.tolist() == [9, 8, 7, 6, 5, 4] * 2
    assert "left out, not in the folder: mnist;" in about["notice"]


def test_digit_faults(tmp_path):
    fails(digits, tmp_path, "no digits in", "MNIST/raw", "usps.h5", "mnist_m_train_labels.txt")
    raw = tmp_path / "MNIST" / "raw"
    mnist_folder(raw, gz=True)
    images = raw / "train-images-idx3-ubyte.gz"
    whole = images.read_bytes()
    for broken in (whole[:-50], b"no gzip", gzip.compress(gzip.decompress(whole)[:-1]), gzip.compress(b"")):
        images.write_bytes(broken)
        fails(digits, tmp_path, str(images))
    images.unlink()
    fails(digits, tmp_path, "lacks train-images-idx3-ubyte")
    images.write_bytes(whole)
    (raw / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(np.full(10, 11, np.uint8))))
    fails(digits, tmp_path, "t10k-labels-idx1-ubyte.gz", "labels in 0..9")


def test_usps_faults(tmp_path):
    (tmp_path / "usps.h5").write_bytes(b"not an h5 file")
    fails(digits, tmp_path, "usps.h5", "is not usps.h5 with")
    with h5py.File(tmp_path / "usps.h5", "w") as file:
        file["train/data"] = np.zeros((3, 256))
    fails(digits, tmp_path, "usps.h5", "is not usps.h5 with")


def test_mnist_m_faults(tmp_path):
    mnist_m_folder(tmp_path)
    (tmp_path / "mnist_m_test" / "00000002.png").unlink()
    fails(digits, tmp_path, "00000002.png", "not a readable image")
    (tmp_path / "mnist_m_train_labels.txt").write_text("00000000.png\n")
    fails(digits, tmp_path, "mnist_m_train_labels.txt", "not 'name.png label'")
    (tmp_path / "mnist_m_test_labels.txt").unlink()
    (tmp_path / "mnist_m_train_labels.txt").write_text("00000000.png 1\n")
    fails(digits, tmp_path, "lacks mnist_m_test_labels.txt")


# The script itself

def test_script_runs(tmp_path):
    office(tmp_path / "raw", GONG)
    env = {**os.environ, "FEDLIB_DATA": str(tmp_path / "store"), "PYTHONPATH": str(ROOT)}
    script = [sys.executable, str(ROOT / "data_scripts" / "office_caltech.py"), "--size", "32", "--from"]
    done = subprocess.run([*script, str(tmp_path / "raw")], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "office_caltech at 32 px" in done.stdout
    assert sorted(f.name for f in (tmp_path / "store").iterdir()) == [
        "office_caltech-32.json", "office_caltech-32.safetensors"]
    done = subprocess.run([*script, str(tmp_path / "none")], env=env, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: no such folder") and done.stderr.count("\n") == 1


# The real files

@needs_raw
def test_real_office_caltech(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    prepared = prepare.load("office_caltech", 32)  # FEDLIB_RAW is set: prepared on the spot
    counts = {d: (n["train"], n["val"], n["test"]) for d, n in prepared.manifest["domains"].items()}
    assert counts == {"caltech": (899, 0, 224), "amazon": (768, 0, 190), "webcam": (237, 0, 58), "dslr": (127, 0, 30)}
    assert {d: n["per_class"] for d, n in prepared.manifest["domains"].items()} == OFFICE_PER_CLASS
    assert prepared.manifest["notice"] == ""
    x = prepared.tensors["dslr/x"]
    assert x.shape == (157, 3, 32, 32) and 30 < x.float().mean() < 220


@needs_raw
def test_real_pacs():
    place, folders = image_folder.find_domains(Path(RAW), pacs.TITLE, pacs._USUAL, {d: (d,) for d in pacs.DOMAINS})
    for d, total in pacs.PUBLISHED.items():
        listed, y = image_folder.class_files(d, folders[d], dict.fromkeys(pacs.CLASSES, ()))
        assert len(listed) == total and np.bincount(y).tolist() == PACS_PER_CLASS[d]
    x, _ = image_folder.decode(listed[:500], 64, "sketch")
    assert (x[:, 0] == x[:, 1]).all() and (x == 255).mean() > 0.5  # black lines on white paper


@needs_raw
def test_real_digits():
    (x, y), (x_test, y_test) = digits.read_mnist(Path(RAW), 28)
    assert x.shape == (60000, 3, 28, 28) and x_test.shape == (10000, 3, 28, 28)
    assert y[:5].tolist() == [5, 0, 4, 1, 9] and y_test[:5].tolist() == [7, 2, 1, 0, 4]
    assert np.bincount(y).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert x[0, 0].sum(dtype=int) == 27525 and x_test[0, 2].sum(dtype=int) == 18454
    assert abs(x[:, 0].mean() / 255 - 0.1307) < 5e-5  # the mean that everybody normalises with
    (x, y), (x_test, y_test) = digits.read_usps(Path(RAW), 28)
    assert len(x) == 7291 and len(x_test) == 2007
    assert np.bincount(y).tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    assert np.bincount(y_test).tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]


@needs_raw
def test_real_mnist_m_against_mnist():
    """MNIST-M is |photo - digit|: image i of its test list carries the label of MNIST's test image i."""
    (_, _), (x, y) = digits.read_mnist_m(Path(RAW), 32)
    (_, _), (_, mnist) = digits.read_mnist(Path(RAW), 28)
    names = (Path(RAW) / "mnist_m" / "mnist_m_test_labels.txt").read_text().split()[::2]
    assert x.std() > 40 and (y == mnist[[int(name[:8]) for name in names]]).all()
