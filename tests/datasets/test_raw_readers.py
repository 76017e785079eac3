"""Readers of raw files: tiny folders in the published layouts, and the real files where FEDLIB_RAW names them."""
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import raw_files
import torch
from conftest import RAW, ROOT, needs_raw, quiet
from PIL import Image

from fedlib.core.errors import UserError
from fedlib.datasets import download, prepare
from fedlib.readers import image_folder, office_caltech, pacs

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
fails = partial(raw_files.fails, size=32)


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
    ours, _, _ = image_folder.decode([path], size, "noise")
    theirs = transforms.PILToTensor()(transforms.Resize((size, size))(Image.open(path).convert("RGB")))
    assert torch.equal(torch.from_numpy(ours[0]), theirs)


def test_office_faults(tmp_path):
    fails(office_caltech, tmp_path, "no Office-Caltech-10 in", "caltech, amazon, webcam, dslr", "office_caltech10")
    office(tmp_path, OFFICE_31, domains=("amazon", "webcam", "dslr"))
    fails(office_caltech, tmp_path, "lacks the domain 'caltech'", "caltech10")
    office(tmp_path, OFFICE_31[1:], domains=("caltech",))
    fails(office_caltech, tmp_path, "domain 'caltech' lacks the class 'back_pack'")
    (tmp_path / "caltech" / "backpack").mkdir()
    fails(office_caltech, tmp_path, "'caltech', class 'back_pack': no pictures (.bmp, .jpeg, .jpg, .png")
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


def test_a_picture_starts_no_program_and_a_pipe_is_not_waited_for(tmp_path, monkeypatch):
    """Pillow gives PostScript to Ghostscript, whatever the file is called."""
    picture, pipe = tmp_path / "scan.jpg", tmp_path / "pipe.jpg"
    Image.new("RGB", (9, 9)).save(picture, "EPS")
    monkeypatch.setattr("subprocess.Popen", lambda *a, **k: pytest.fail("a program was started"))
    os.mkfifo(pipe)
    for path, why in ((picture, "cannot identify"), (pipe, "it is no regular file")):
        with pytest.raises(UserError, match=f"is not a readable image .{why}"):
            image_folder.decode([path], 8, "test")


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_arrays_are_resized_like_files(tmp_path, mode):
    image = Image.fromarray(np.random.default_rng(3).integers(0, 256, (28, 28, 3), dtype=np.uint8)).convert(mode)
    image.save(tmp_path / "noise.png")
    arrays = np.stack([np.asarray(image)] * 2)
    for size in (28, 32):
        assert (image_folder.resize_all(arrays, size, "noise")[1] == image_folder.decode(
            [tmp_path / "noise.png"], size, "noise")[0][0]).all()


def corrupt_files(folder: Path) -> dict:
    """{what is wrong with it: the file}, each made from a real image."""
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 70, 3), dtype=np.uint8))
    noise.save(folder / "whole.jpg")
    noise.save(folder / "whole.png")
    jpeg, png = (folder / "whole.jpg").read_bytes(), (folder / "whole.png").read_bytes()
    contents = {"cut.jpg": jpeg[:len(jpeg) // 2], "empty.jpg": b"", "text.jpg": b"404: not found\n" * 20,
                "chunk.png": png[:3000] + bytes(500) + png[3500:]}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return {name: folder / name for name in contents}


def test_corrupt_files_are_left_out(tmp_path):
    bad = corrupt_files(tmp_path)
    files = [tmp_path / "grey" / f"{i}.jpg" for i in range(9)]
    for i, f in enumerate(files):
        paint(f, 20 * i, side=(20, 10 + i))
    x, _, _ = image_folder.decode(files, 32, "whole")
    for at, name in zip((0, 3, 4, 12), bad):
        files.insert(at, bad[name])
    for name, path in bad.items():
        with pytest.raises(UserError, match=f"{name} is not a readable image.*--skip-corrupt"):
            image_folder.decode([path], 32, "bad")
    skip = []
    kept, sides, good = image_folder.decode(files, 32, "some bad", skip)
    assert np.array_equal(kept, x) and sides.tolist() == list(range(10, 19))
    assert [files[i].name for i in np.flatnonzero(~good)] == list(bad)
    assert [Path(note.split(": ")[0]).name for note in skip] == list(bad) and all(": " in note for note in skip)
    skip = []
    kept, sides, good = image_folder.decode(list(bad.values()), 32, "all bad", skip)
    assert kept.shape == (0, 3, 32, 32) and len(sides) == 0 and not good.any() and len(skip) == 4


def test_one_corrupt_among_thousands(tmp_path):
    paint(tmp_path / "good.png", 99)
    files = [tmp_path / "good.png"] * 3000
    files[1234] = corrupt_files(tmp_path)["cut.jpg"]
    with pytest.raises(UserError, match="cut.jpg is not a readable image"):
        image_folder.decode(files, 32, "thousands")
    skip = []
    x, _, good = image_folder.decode(files, 32, "thousands", skip)
    assert len(x) == 2999 and (x == 99).all() and np.flatnonzero(~good).tolist() == [1234] and "truncated" in skip[0]


def test_large_arrays_lie_in_a_file(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "store"))
    monkeypatch.setattr(image_folder, "IN_MEMORY", 10_000)
    files = [tmp_path / f"{i}.png" for i in range(8)]
    for i, f in enumerate(files):
        paint(f, 30 * i)
    files.insert(2, corrupt_files(tmp_path)["empty.jpg"])
    skip = []
    x, _, _ = image_folder.decode(files, 32, "large", skip)
    assert isinstance(x, np.memmap) and x[:, 0, 0, 0].tolist() == [30 * i for i in range(8)] and len(skip) == 1
    assert list((tmp_path / "store").iterdir()) == []  # the file has no name


def test_skipped_images_leave_the_split_of_the_others(tmp_path):
    office(tmp_path, OFFICE_31)
    whole, _ = office_caltech.read(tmp_path, 32, quiet)
    for place in ("amazon/bike/frame_0001", "amazon/mug/frame_0002"):  # images 4 and 26
        (tmp_path / f"{place}.png").write_bytes(b"")
    skip = []
    domains, about = office_caltech.read(tmp_path, 32, quiet, skip)
    kept = np.array([i not in (4, 26) for i in range(30)])
    for new, old in zip(domains["amazon"], whole["amazon"]):
        assert np.array_equal(new, old[kept])
    for new, old in zip(domains["webcam"], whole["webcam"]):
        assert np.array_equal(new, old)
    assert skip[0].startswith("amazon/bike/frame_0001.png: ") and skip[1].startswith("amazon/mug/frame_0002.png: ")
    assert "amazon 28 of 958" in about["notice"]
    assert len(about["names"]["amazon"]) == 28 and "bike/frame_0001" not in about["names"]["amazon"]
    assert about["names"]["amazon"][:4] == ["back_pack/frame_0000", "back_pack/frame_0001", "back_pack/frame_0002",
                                           "bike/frame_0000"]


def test_office_archive(tmp_path):
    """As GitHub packs it: one folder named after repository and branch."""
    folder = tmp_path / "made" / "Office_Caltech_DA_Dataset-main"
    classes = ("backpack", "bike", "calculator", "headphones", "keyboard", "laptop_computer", "monitor", "mouse", "mug",
               "projector")
    office(folder, classes, ("Caltech", "amazon", "webcam", "dslr"))
    (folder / "README.md").write_text("# Office_Caltech_DA_Dataset\n")
    shutil.make_archive(tmp_path / "mine" / "Office_Caltech_DA_Dataset", "zip", tmp_path / "made")
    raw = download.adopt(office_caltech.FILES, tmp_path / "mine", tmp_path / "raw", quiet)
    domains, _ = office_caltech.read(raw, 32, quiet)
    assert [x[:, 0, 0, 0].tolist() for x, _, _ in domains.values()] == [
        [20 * c + i for c in range(10) for i in range(3)]] * 4


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


@pytest.mark.parametrize("folder", ["Homework3-PACS-master/PACS", "kfold"])  # GitHub's archive, DomainBed's archive
def test_pacs_archives(tmp_path, folder):
    pacs_folder(tmp_path / "made" / folder)
    shutil.make_archive(tmp_path / "mine" / "PACS", "zip", tmp_path / "made")
    raw = download.adopt(pacs.FILES, tmp_path / "mine", tmp_path / "raw", quiet)
    domains, about = pacs.read(raw, 32, quiet)
    assert [x[:, 1, 5, 5].tolist() for x, _, _ in domains.values()] == [
        [30 * c + i for c in range(7) for i in range(3)]] * 4
    assert about["names"]["sketch"][:4] == ["dog/pic_000", "dog/pic_001", "dog/pic_002", "elephant/pic_000"]


def test_pacs_skipped_images(tmp_path):
    pacs_folder(tmp_path)
    pacs_lists(tmp_path / "splits")
    whole, _ = pacs.read(tmp_path, 32, quiet)
    for place in ("cartoon/dog/pic_001", "cartoon/horse/pic_000"):
        (tmp_path / f"{place}.png").write_bytes(b"no image")
    fails(pacs, tmp_path, "cartoon/dog/pic_001.png is not a readable image")
    skip = []
    domains, about = pacs.read(tmp_path, 32, quiet, skip)
    kept = np.array([i not in (1, 12) for i in range(21)])
    for new, old in zip(domains["cartoon"], whole["cartoon"]):
        assert np.array_equal(new, old[kept])
    assert [note.split(":")[0] for note in skip] == ["cartoon/dog/pic_001.png", "cartoon/horse/pic_000.png"]
    assert "cartoon 19 of 2344" in about["notice"] and len(about["names"]["cartoon"]) == 19
    assert about["names"]["cartoon"][0] == "dog/pic_000" and "horse/pic_000" not in about["names"]["cartoon"]


def test_pacs_with_other_classes_is_noticed(tmp_path, monkeypatch):
    pacs_folder(tmp_path)
    monkeypatch.setattr(pacs, "PUBLISHED", dict.fromkeys(pacs.DOMAINS, 21))
    monkeypatch.setattr(pacs, "PER_CLASS", dict.fromkeys(pacs.DOMAINS, (3,) * 7))
    assert pacs.read(tmp_path, 32, quiet)[1]["notice"] == ""
    (tmp_path / "photo/dog/pic_000.png").rename(tmp_path / "photo/house/moved.png")
    assert pacs.read(tmp_path, 32, quiet)[1]["notice"] == "classes differ: photo dog 2 of 3, photo house 4 of 3"


def test_published_classes_add_up():
    for reader in (pacs, office_caltech):
        assert {d: sum(n) for d, n in reader.PER_CLASS.items()} == reader.PUBLISHED
        assert all(len(n) == len(reader.CLASSES) for n in reader.PER_CLASS.values())


def test_pacs_faults(tmp_path):
    fails(pacs, tmp_path, "no PACS in", "photo, art_painting, cartoon, sketch")
    pacs_folder(tmp_path / "PACS")
    for f in (tmp_path / "PACS" / "sketch" / "person").iterdir():
        f.unlink()
    fails(pacs, tmp_path, "'sketch', class 'person'")
    (tmp_path / "PACS" / "sketch" / "person").rmdir()
    fails(pacs, tmp_path, "domain 'sketch' lacks the class 'person'")


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
    assert done.returncode == 2 and done.stderr.startswith("fedlib: no such folder") and done.stderr.count("\n") == 1


# The real files

@needs_raw
def test_real_office_caltech(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    prepared = prepare.load_set("office_caltech", 32)  # FEDLIB_RAW is set: prepared on the spot
    counts = {d: (n["train"], n["val"], n["test"]) for d, n in prepared.manifest["domains"].items()}
    assert counts == {"caltech": (899, 0, 224), "amazon": (768, 0, 190), "webcam": (237, 0, 58), "dslr": (127, 0, 30)}
    assert {d: n["per_class"] for d, n in prepared.manifest["domains"].items()} == OFFICE_PER_CLASS
    assert prepared.manifest["notice"] == ""
    x = prepared.tensors["dslr/x"]
    assert x.shape == (157, 3, 32, 32) and 30 < x.float().mean() < 220


@needs_raw
def test_real_pacs():
    place, folders = image_folder.find_domains(RAW, pacs.TITLE, pacs._USUAL, {d: (d,) for d in pacs.DOMAINS})
    for d, total in pacs.PUBLISHED.items():
        listed, y = image_folder.class_files(d, folders[d], dict.fromkeys(pacs.CLASSES, ()))
        assert len(listed) == total and np.bincount(y).tolist() == PACS_PER_CLASS[d]
    x, _, _ = image_folder.decode(listed[:500], 64, "sketch")
    assert (x[:, 0] == x[:, 1]).all() and (x == 255).mean() > 0.5  # black lines on white paper


# pictures as people have them

def read_back(path: Path, image, **how) -> np.ndarray:
    image.save(path, **how)
    x, _, good = image_folder.decode([path], 2, "one")
    assert good.all()
    return x[0]


def test_sixteen_bits_are_scaled_and_not_cut_off(tmp_path):
    levels = np.array([[0, 65535], [32768, 257]], dtype=np.uint16)
    for name in ("a.png", "a.tif"):
        assert read_back(tmp_path / name, Image.fromarray(levels))[0].tolist() == [[0, 255], [128, 1]]
    old = Image.fromarray(levels.astype(np.int32))      # as older releases of Pillow open such files
    assert np.asarray(image_folder.rgb(old))[..., 0].tolist() == [[0, 255], [128, 1]]


def test_a_picture_is_turned_as_its_camera_says(tmp_path):
    pixels = np.array([[[250, 0, 0], [0, 250, 0]], [[0, 0, 250], [9, 9, 9]]], dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6        # turn it a quarter clockwise to see it
    seen = read_back(tmp_path / "a.png", Image.fromarray(pixels), exif=exif).transpose(1, 2, 0)
    assert seen.tolist() == np.rot90(pixels, -1).tolist()


def test_what_is_transparent_is_white(tmp_path):
    pixels = np.array([[[0, 0, 0, 0], [0, 0, 0, 255]], [[200, 0, 0, 255], [0, 0, 0, 128]]], dtype=np.uint8)
    for name in ("a.png", "a.webp", "a.tiff"):
        how = {"lossless": True} if name == "a.webp" else {}
        seen = read_back(tmp_path / name, Image.fromarray(pixels), **how).transpose(1, 2, 0)
        assert seen.tolist() == [[[255] * 3, [0] * 3], [[200, 0, 0], [127] * 3]]
    palette = Image.fromarray(np.array([[0, 1], [1, 1]], dtype=np.uint8)).convert("P")
    palette.putpalette([10, 10, 10, 60, 60, 60])
    assert read_back(tmp_path / "p.png", palette, transparency=0)[0].tolist() == [[255, 60], [60, 60]]


def test_pixels_of_no_known_range_are_a_readers_fault(tmp_path):
    for name, image in (("a.tif", Image.fromarray(np.zeros((2, 2), dtype=np.float32))),
                        ("b.tif", Image.fromarray(np.full((2, 2), 70000, dtype=np.int32)))):
        image.save(tmp_path / name)
        with pytest.raises(UserError, match="range is not known|more than 16 bits"):
            image_folder.decode([tmp_path / name], 2, "one")


def test_files_that_are_no_pictures_are_counted_aloud(tmp_path):
    for name in ("1.png", "2.webp", "3.TIF"):
        paint(tmp_path / "site" / "a" / name, 9)
    for name in ("x.dcm", "y.dcm", "notes", ".hidden"):
        (tmp_path / "site" / "a" / name).touch()
    said = []
    files, y = image_folder.class_files("site", tmp_path / "site", {"a": ()}, said.append)
    assert [f.name for f in files] == ["1.png", "2.webp", "3.TIF"] and len(y) == 3
    assert said == ["site: 3 files are no pictures by their names and are ignored (2 .dcm, 1 without an ending)"]
