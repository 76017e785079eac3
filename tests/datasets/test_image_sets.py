"""DomainNet, Tiny-ImageNet, CUB-200, HAM10000 and DDR, from small folders and archives in the published layouts."""
import csv
import io
import os
import re
import shutil
import subprocess
import sys
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import raw_files
from conftest import ROOT, quiet
from PIL import Image

from fedlib.datasets import download
from fedlib.readers import cub200, ddr, domainnet, ham10000, office_caltech, pacs, tiny_imagenet
from fedlib.readers.image_folder import hold_out

SIX = ("clipart", "painting", "real", "sketch", "quickdraw", "infograph")
FIRST_TWELVE = ("aircraft_carrier", "airplane", "alarm_clock", "ambulance", "angel", "animal_migration", "ant", "anvil",
                "apple", "arm", "asparagus", "axe")
TRAIN, TEST = 0, 2
fails = partial(raw_files.fails, size=32)


@cache
def jpeg(value: int, side=(12, 10)) -> bytes:
    """A JPEG of one grey level that tells which file it came from."""
    file = io.BytesIO()
    Image.new("RGB", side, (value,) * 3).save(file, "JPEG", quality=100)
    return file.getvalue()


def paint(path: Path, value: int, side=(12, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(jpeg(value, side))


def greys(x) -> list:
    """The level of each image: `paint` is exact to the last bit of JPEG."""
    assert (x == x[:, :1, :1, :1]).all()
    return x[:, 0, 0, 0].tolist()


def replace(path: Path, old: str, new: str):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


# DomainNet

def image_of(domain, name, label, i) -> str:
    return f"{domain}/{name}/{domain}_{label + 1:03}_{i:06}.{'png' if domain == 'quickdraw' else 'jpg'}"


def level(label, i) -> int:
    return (5 * label + i) % 250


def domainnet_folder(root: Path, lists: Path, domains=SIX, classes=FIRST_TWELVE, keep=10, per_class=4):
    """Official lists of all classes, images of the first `keep`; of each class the last image is in the test list."""
    lists.mkdir(parents=True, exist_ok=True)
    for d in domains:
        lines = {"train": [], "test": []}
        for label, name in enumerate(classes):
            for i in range(1, per_class + 1):
                image = image_of(d, name, label, i)
                lines["test" if i == per_class else "train"].append(f"{image} {label}\n")
                if label < keep:
                    paint(root / image, level(label, i))
        paint(root / d / classes[0] / "not_listed.jpg", 255)
        for kind, text in lines.items():
            (lists / f"{d}_{kind}.txt").write_text("".join(text))


@pytest.mark.parametrize("place, lists", [
    ("", ""), ("DomainNet", "DomainNet/splits"), ("domainnet", "domainnet/txt"), ("DomainNet", "list"),
    ("", "domainnet/txt")])
def test_domainnet_first_classes(tmp_path, place, lists):
    domainnet_folder(tmp_path / place, tmp_path / lists)
    domains, about = domainnet.K10.read(tmp_path, 32, quiet)
    assert tuple(domains) == SIX and about["classes"] == list(FIRST_TWELVE[:10])
    for x, y, part in domains.values():
        assert x.shape == (40, 3, 32, 32) and x.dtype == np.uint8 and y.dtype == np.int64 and part.dtype == np.uint8
        assert y.tolist() == [c for c in range(10) for _ in range(3)] + list(range(10))
        assert part.tolist() == [TRAIN] * 30 + [TEST] * 10
        assert greys(x) == [level(c, i) for c in range(10) for i in (1, 2, 3)] + [level(c, 4) for c in range(10)]
    assert about["notice"].startswith("subset: clipart test 10 of 308, painting test 10 of 865, real test 10 of 974")
    assert "sources: 10 px; 240 of 240 images enlarged" in about["transform"]


def test_domainnet_published_counts():
    """Those of the publisher's page (cleaned version) and, for the first classes, of MPFT's released results."""
    total = {d: domainnet.DOMAINNET.PUBLISHED[f"{d} train"] + domainnet.DOMAINNET.PUBLISHED[f"{d} test"] for d in SIX}
    assert total == {"clipart": 48129, "painting": 72266, "real": 172947, "sketch": 69128, "quickdraw": 172500,
                     "infograph": 51605}
    sums = {s.NAME: sum(s.PUBLISHED.values()) for s in (domainnet.K50, domainnet.K100, domainnet.K150)}
    assert sums == {"domainnet_50": 25429, "domainnet_100": 48008, "domainnet_150": 74418}
    assert domainnet.K10.PUBLISHED["quickdraw test"] == 1500 and domainnet.K150.PUBLISHED["infograph test"] == 5353


def test_domainnet_all_classes_and_the_gaps_of_its_lists(tmp_path):
    names = tuple(f"class_{k:03}" for k in range(345))
    domainnet_folder(tmp_path, tmp_path, classes=names, keep=345, per_class=2)
    for kind, label in (("train", 327), ("test", 300)):  # t-shirt and syringe of the official lists
        line = f"{image_of('painting', names[label], label, 1 if kind == 'train' else 2)} {label}\n"
        replace(tmp_path / f"painting_{kind}.txt", line, "")
    domains, about = domainnet.DOMAINNET.read(tmp_path, 32, quiet)
    assert about["classes"] == list(names) and {d: len(y) for d, (_, y, _) in domains.items()} == {
        d: 688 if d == "painting" else 690 for d in SIX}
    assert "clipart train 345 of 33525, clipart test 345 of 14604" in about["notice"]
    replace(tmp_path / "painting_test.txt", f"{image_of('painting', names[327], 327, 2)} 327\n", "")
    fails(domainnet.DOMAINNET, tmp_path, "domain 'painting' lacks the class 'class_327'", "label 327")


def lists_126(root: Path, name: str, per_class=6):
    for d in SIX[:4]:
        lines = [f"{image_of(d, f'class_{k:03}', k, i)} {k}" for k in range(126) for i in range(per_class)]
        path = root / name.format(d=d)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
        for k in range(126):
            for i in range(per_class):
                paint(root / image_of(d, f"class_{k:03}", k, i), level(k, i))


@pytest.mark.parametrize("name, n, held", [
    ("labeled_source_images_{d}.txt", 6, 2), ("splits/{d}_126.txt", 2, 1), ("txt/{d}_list.txt", 2, 1)])
def test_domainnet_126_drawn(tmp_path, name, n, held):
    lists_126(tmp_path, name, per_class=n)
    domains, about = domainnet.D126.read(tmp_path, 32, quiet)
    assert tuple(domains) == SIX[:4] and about["classes"][125] == "class_125"
    assert about["split"].startswith("per class ceil(0.2 n) test, drawn with seed 123")
    for x, y, part in domains.values():
        assert greys(x) == [level(k, i) for k in range(126) for i in range(n)] and set(part) == {TRAIN, TEST}
        assert np.bincount(y[part == TEST]).tolist() == [held] * 126 and len(y) == n * 126
    assert domains["clipart"][2].tolist() != domains["sketch"][2].tolist()
    assert f"clipart {n * 126} of 18703" in about["notice"]
    if n == 6:
        (tmp_path / "sketch_126_train.txt").write_text("sketch/class_000/sketch_001_000000.jpg 0\n")
        fails(domainnet.D126, tmp_path, "no list sketch_126_test.txt")
        (tmp_path / "sketch_126_test.txt").write_text((tmp_path / "labeled_source_images_sketch.txt").read_text())
        fails(domainnet.D126, tmp_path, "some domains but lacks clipart_126_train.txt")


def test_domainnet_126_of_feddeap(tmp_path):
    lists_126(tmp_path, "{d}/{d}_126.txt", per_class=3)
    for d in SIX[:4]:  # as its code reads them: <domain>/<domain>_126_train.txt
        lines = (tmp_path / d / f"{d}_126.txt").read_text().splitlines(keepends=True)
        (tmp_path / d / f"{d}_126_train.txt").write_text("".join(line for n, line in enumerate(lines) if n % 3))
        (tmp_path / d / f"{d}_126_test.txt").write_text("".join(lines[::3]))
    domains, about = domainnet.D126.read(tmp_path, 32, quiet)
    assert about["split"].startswith("the lists <domain>_126_train.txt")
    for x, y, part in domains.values():
        assert part.tolist() == [TRAIN] * 252 + [TEST] * 126 and y.tolist() == [*np.repeat(range(126), 2), *range(126)]
        assert greys(x[part == TEST]) == [level(k, 0) for k in range(126)]


def test_domainnet_archives(tmp_path):
    """clipart.zip holds clipart/<class>/<file>; the lists lie beside the zips."""
    domainnet_folder(tmp_path / "made", tmp_path / "mine")
    for d in SIX:
        shutil.make_archive(tmp_path / "mine" / d, "zip", tmp_path / "made", d)
    raw = download.adopt(domainnet.K10.FILES, tmp_path / "mine", tmp_path / "raw", quiet)
    domains, _ = domainnet.K10.read(raw, 32, quiet)
    assert greys(domains["quickdraw"][0])[:3] == [level(0, 1), level(0, 2), level(0, 3)]


def test_domainnet_faults(tmp_path):
    fails(domainnet.K10, tmp_path, "no DomainNet, first 10 classes in")
    domainnet_folder(tmp_path, tmp_path)
    train = tmp_path / "real_train.txt"
    whole = train.read_text()
    line = "real/airplane/real_002_000001.jpg 1\n"
    for other, *words in (
            ("real/airplane/real_002_000001.jpg", "real_train.txt", "is no line like"),
            ("real/airplane/real_002_000001.jpg 345", "label in 0..344"),
            ("real/airplane/real_002_000001.jpg one", "is no line like"),
            ("sketch/airplane/real_002_000001.jpg 1", "'sketch/airplane/real_002_000001.jpg 1' is no line"),
            ("real/../real_002_000001.jpg 1", "is no line like"), ("real/airplane 1", "is no line like"),
            ("real/angel/real_002_000001.jpg 1", "label 1 is 'angel' here and 'airplane' elsewhere")):
        replace(train, line, other + "\n")
        fails(domainnet.K10, tmp_path, *words)
        train.write_text(whole)
    for name in ("airplane/real_002_000001", "ant/real_007_000004"):
        (tmp_path / "real" / f"{name}.jpg").unlink()
    fails(domainnet.K10, tmp_path, "domain 'real': 2 of 40 listed images are absent", "the first is",
          "real_002_000001.jpg")
    train.write_text(re.sub(r".* 4\n", "", whole))
    replace(tmp_path / "real_test.txt", "real/angel/real_005_000004.jpg 4\n", "")
    fails(domainnet.K10, tmp_path, "domain 'real' lacks the class 'angel'")
    train.unlink()
    fails(domainnet.K10, tmp_path, "no list real_train.txt", "splits, txt, list")
    shutil.rmtree(tmp_path / "real")
    fails(domainnet.K10, tmp_path, "lacks the domain 'real'")


def test_domainnet_skips_corrupt_images(tmp_path):
    domainnet_folder(tmp_path, tmp_path)
    bad = tmp_path / image_of("sketch", "ant", 6, 2)
    bad.write_bytes(bad.read_bytes()[:300])
    fails(domainnet.K10, tmp_path, str(bad), "is not a readable image")
    skip = []
    x, y, part = domainnet.K10.read(tmp_path, 32, quiet, skip)[0]["sketch"]
    assert len(skip) == 1 and skip[0].startswith("sketch/ant/sketch_007_000002.jpg: ")
    assert greys(x) == [level(c, i) for c in range(10) for i in (1, 2, 3) if (c, i) != (6, 2)] + [
        level(c, 4) for c in range(10)]
    assert np.bincount(y).tolist() == [4] * 6 + [3] + [4] * 3 and part.tolist() == [TRAIN] * 29 + [TEST] * 10


def test_domainnet_script_takes_a_set(tmp_path):
    domainnet_folder(tmp_path / "raw", tmp_path / "raw")
    env = {**os.environ, "FEDLIB_DATA": str(tmp_path / "store"), "PYTHONPATH": str(ROOT)}
    script = [sys.executable, str(ROOT / "data_scripts" / "domainnet.py"), "domainnet_10", "--size", "32"]
    done = subprocess.run([*script, "--from", str(tmp_path / "raw")], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "domainnet_10 at 32 px" in done.stdout and (tmp_path / "store" / "domainnet_10-32.safetensors").is_file()


# Tiny-ImageNet

def wnid(k) -> str:
    return f"n{(k * 77 + 13) % 200 + 1440000:08}"


def tiny_folder(root: Path, per_class=2):
    """The published layout; wnids.txt is not sorted there either. The level of an image tells its id."""
    root.mkdir(parents=True, exist_ok=True)
    ids = [wnid(k) for k in range(200)]
    (root / "wnids.txt").write_text("\n".join(ids) + "\n")
    words = [f"{i}\tname {i[-3:]}, other name" for i in ids] + ["n09999999\tno class of ours"]
    words[0], words[1] = f"{ids[0]}\tcrane", f"{ids[1]}\tcrane, a machine"
    (root / "words.txt").write_text("\n".join(words) + "\n")
    for i in ids:
        (root / "train" / i).mkdir(parents=True)
        (root / "train" / i / f"{i}_boxes.txt").write_text(f"{i}_0.JPEG\t0\t0\t62\t62\n")
        for n in range(per_class):
            paint(root / "train" / i / "images" / f"{i}_{n}.JPEG", int(i[-3:]) % 250 + n, (64, 64))
    rows = []
    for n, i in enumerate(ids):
        paint(root / "val" / "images" / f"val_{n}.JPEG", int(i[-3:]) % 250, (64, 64))
        rows.append(f"val_{n}.JPEG\t{i}\t0\t32\t44\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(rows))
    paint(root / "test" / "images" / "test_0.JPEG", 255, (64, 64))


@pytest.mark.parametrize("archive", [False, True])
def test_tiny_imagenet(tmp_path, archive):
    tiny_folder(tmp_path / "made" / "tiny-imagenet-200")
    raw = tmp_path / "made"
    if archive:
        shutil.make_archive(tmp_path / "mine" / "tiny-imagenet-200", "zip", tmp_path / "made")
        raw = download.adopt(tiny_imagenet.FILES, tmp_path / "mine", tmp_path / "raw", quiet)
    domains, about = tiny_imagenet.read(raw, 64, quiet)
    (x, y, part), = domains.values()
    ids = sorted(wnid(k) for k in range(200))
    assert x.shape == (600, 3, 64, 64) and part.tolist() == [TRAIN] * 400 + [TEST] * 200
    assert y[:400].tolist() == [k for k in range(200) for _ in range(2)]
    assert y[400:].tolist() == [ids.index(wnid(k)) for k in range(200)]
    assert greys(x) == [int(ids[k][-3:]) % 250 + n for k in range(200) for n in range(2)] + [
        int(wnid(k)[-3:]) % 250 for k in range(200)]
    names = about["classes"]
    assert names[ids.index(wnid(0))] == f"crane {wnid(0)}" and names[ids.index(wnid(1))] == f"crane {wnid(1)}"
    assert names[ids.index(wnid(2))] == f"name {wnid(2)[-3:]}" and len(set(names)) == 200
    assert about["notice"] == "subset: tiny_imagenet train 400 of 100000, tiny_imagenet test 200 of 10000"


def test_tiny_imagenet_faults(tmp_path):
    fails(tiny_imagenet, tmp_path, "no Tiny-ImageNet in", "wnids.txt", size=64)
    tiny_folder(tmp_path)
    notes = tmp_path / "val" / "val_annotations.txt"
    whole = notes.read_text()
    for line, *words in (("val_0.JPEG", "val_annotations.txt", "is no line like"),
                         ("val_0.JPEG\tn00000001\t0\t0\t1\t1", "an id of wnids.txt"),
                         ("../val_0.JPEG\t" + wnid(0), "is no line like"),
                         (f"val_0.JPEG\t{wnid(1)}\t0\t1\t1\t1", f"lacks test images of the class '{wnid(0)}'"),
                         (f"val_777.JPEG\t{wnid(0)}\t0\t1\t1\t1", "1 of 200 listed images are absent", "val_777.JPEG")):
        notes.write_text(line + "\n" + whole.split("\n", 1)[1])
        fails(tiny_imagenet, tmp_path, *words, size=64)
    notes.unlink()
    fails(tiny_imagenet, tmp_path, "lacks", "val_annotations.txt", size=64)
    notes.write_text(whole)
    shutil.rmtree(tmp_path / "train" / wnid(7) / "images")
    fails(tiny_imagenet, tmp_path, f"lacks the class '{wnid(7)}'", size=64)
    (tmp_path / "wnids.txt").write_text(f"{wnid(0)}\n")
    fails(tiny_imagenet, tmp_path, "wnids.txt names 1 classes, not 200", size=64)


# CUB-200

def cub_folder(root: Path):
    """Three photos of each species, ids of images not in the order of their classes; the third of each is test."""
    root.mkdir(parents=True)
    species = [f"{k + 1:03}.Species_{k}" for k in range(200)]
    rows = [(f"{species[k]}/Species_{k}_{n:04}_{796000 + n}.jpg", k, n) for n in range(3) for k in range(200)]
    for path, k, n in rows:
        paint(root / "images" / path, k + 2 * n)
    lines = {"classes": [f"{k + 1} {name}" for k, name in enumerate(species)],
             "images": [f"{i} {path}" for i, (path, _, _) in enumerate(rows, 1)],
             "image_class_labels": [f"{i} {k + 1}" for i, (_, k, _) in enumerate(rows, 1)],
             "train_test_split": [f"{i} {int(n < 2)}" for i, (_, _, n) in enumerate(rows, 1)]}
    for name, text in lines.items():
        (root / f"{name}.txt").write_text("\n".join(text) + "\n")


@pytest.mark.parametrize("archive", [False, True])
def test_cub200(tmp_path, archive):
    cub_folder(tmp_path / "made" / "CUB_200_2011")
    raw = tmp_path / "made"
    if archive:
        (raw / "attributes.txt").write_text("1 has_bill_shape::curved_(up_or_down)\n")
        packed = shutil.make_archive(tmp_path / "CUB_200_2011", "gztar", raw)
        (tmp_path / "mine").mkdir()
        Path(packed).rename(tmp_path / "mine" / "CUB_200_2011.tgz")
        raw = download.adopt(cub200.FILES, tmp_path / "mine", tmp_path / "raw", quiet)
    domains, about = cub200.read(raw, 32, quiet)
    (x, y, part), = domains.values()
    assert y.tolist() == [*range(200)] * 3 and part.tolist() == [TRAIN] * 400 + [TEST] * 200
    assert greys(x) == [k + 2 * n for n in range(3) for k in range(200)]
    assert about["classes"][0] == "Species_0" and len(about["classes"]) == 200
    assert about["notice"] == "subset: cub200 train 400 of 5994, cub200 test 200 of 5794"


def test_cub200_faults(tmp_path):
    fails(cub200, tmp_path, "no CUB-200-2011 in", "images.txt")
    root = tmp_path / "CUB_200_2011"
    cub_folder(root)
    for name, old, new, *words in (
            ("images", "7 007.Species_6/", "7 ../Species_6/", "images.txt", "is not a number and a name"),
            ("image_class_labels", "\n9 9\n", "\n", "image_class_labels.txt lacks the image 9"),
            ("image_class_labels", "\n9 9\n", "\n9 201\n", "a value in 1..200"),
            ("image_class_labels", "\n9 9\n", "\n9 nine\n", "no number"),
            ("train_test_split", "\n9 1\n", "\n9 2\n", "a value in 0..1"),
            ("classes", "200 200.Species_199\n", "", "classes.txt names 199 classes")):
        whole = (root / f"{name}.txt").read_text()
        replace(root / f"{name}.txt", old, new)
        fails(cub200, tmp_path, *words)
        (root / f"{name}.txt").write_text(whole)
    (root / "images" / "003.Species_2" / "Species_2_0001_796001.jpg").unlink()
    fails(cub200, tmp_path, "1 of 600 listed images are absent", "Species_2_0001_796001.jpg")
    labels = root / "image_class_labels.txt"
    labels.write_text(re.sub(r" 3\n", " 4\n", labels.read_text()))
    fails(cub200, tmp_path, "domain 'cub200' lacks the class 'Species_2'")
    labels.unlink()
    fails(cub200, tmp_path, "lacks", "image_class_labels.txt")


# HAM10000

COLUMNS = ("lesion_id", "image_id", "dx", "dx_type", "age", "sex", "localization")


def ham_folder(root: Path, tabs=False, folders=("HAM10000_images_part_1", "HAM10000_images_part_2"), lesions=8):
    """Per class `lesions` lesions, each seen in one, two or three photos; rows by lesion, not by image."""
    rows = []
    for k, dx in enumerate(ham10000.CLASSES):
        for n in range(lesions):
            for _ in range(n % 3 + 1):
                image = f"ISIC_{24306 + (len(rows) * 37) % 499:07}"
                rows.append((f"HAM_{k * lesions + n:07}", image, dx, "histo", "80.0", "male", 'scalp, "left"'))
                paint(root / folders[len(rows) % 2] / f"{image}.jpg", 30 * k + n, (60, 45))
    with open(root / f"HAM10000_metadata{'.tab' if tabs else '.csv'}", "w", newline="") as file:
        csv.writer(file, delimiter="\t" if tabs else ",").writerows([COLUMNS, *rows])
    return rows


@pytest.mark.parametrize("tabs, folders", [
    (False, ("HAM10000_images_part_1", "HAM10000_images_part_2")),
    (False, ("ham10000_images_part1", "HAM10000_images")), (True, ("", ""))])
def test_ham10000(tmp_path, tabs, folders):
    rows = sorted(ham_folder(tmp_path, tabs, folders), key=lambda row: row[1])
    domains, about = ham10000.read(tmp_path, 32, quiet)
    (x, y, part), = domains.values()
    assert y.tolist() == [ham10000.CLASSES.index(row[2]) for row in rows]
    assert greys(x) == [30 * c + int(row[0][4:]) % 8 for row, c in zip(rows, y, strict=True)]
    lesions = {code: {row[0] for row, p in zip(rows, part, strict=True) if p == code} for code in (TRAIN, TEST)}
    assert not lesions[TRAIN] & lesions[TEST] and (len(lesions[TRAIN]), len(lesions[TEST])) == (42, 14)
    held = {(row[0], row[2]) for row, p in zip(rows, part, strict=True) if p == TEST}
    assert sorted(dx for _, dx in held) == sorted(ham10000.CLASSES * 2)  # ceil(0.25 * 8) of each class
    assert about["notice"] == f"subset: ham10000 {len(rows)} of 10015"


def test_ham10000_faults(tmp_path):
    fails(ham10000, tmp_path, "no HAM10000 in", "HAM10000_metadata.csv", "Accept the terms at")
    rows = ham_folder(tmp_path)
    path = tmp_path / "HAM10000_metadata.csv"
    whole = path.read_text()
    first = ",".join(rows[0][:3])
    for new, *words in ((f"{rows[0][0]},{rows[0][1]},wart", "line 2: no lesion_id, image_id and dx"),
                        (f"{rows[0][0]},,akiec", "line 2"), (f"{rows[0][0]},{rows[5][1]},akiec", rows[5][1], "twice"),
                        (f"{rows[-1][0]},{rows[0][1]},akiec", f"the lesion {rows[-1][0]} has two classes")):
        replace(path, first, new)
        fails(ham10000, tmp_path, *words)
        path.write_text(whole)
    path.write_text(whole.replace("dx", "diagnosis"))
    fails(ham10000, tmp_path, "no rows with the columns lesion_id, image_id, dx")
    path.write_text("\n".join(line for line in whole.splitlines() if ",bkl," not in line))
    fails(ham10000, tmp_path, "domain 'ham10000' lacks the class 'bkl'")
    path.write_text(whole)
    next(tmp_path.glob(f"*/{rows[3][1]}.jpg")).unlink()
    fails(ham10000, tmp_path, "listed images are absent", f"{rows[3][1]}.jpg")


# DDR

def fundus(path: Path, level: int, side):
    """A bright disc on black, as fundus cameras see it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    v, u = np.mgrid[-1:1:side[1] * 1j, -1:1:side[0] * 1j]
    Image.fromarray(np.where(u**2 + v**2 < 0.8, level, 0).astype(np.uint8)).convert("RGB").save(path, quality=95)


def ddr_folder(root: Path):
    """6 classes x 4 domains x 2 photos, spread over the three lists; returns {file name: its domain}."""
    lines, domain_of = {"train": [], "valid": [], "test": []}, {}
    for k in range(6):
        for d in ddr.DOMAINS:
            for n in range(2):
                kind = ("train", "valid", "test")[(k + n) % 3]
                name = f"007-{k:04}-{ddr.DOMAINS.index(d)}{n:02}.jpg"
                side = (300, 200) if d[0] == "H" else (240, 160)
                fundus(root / kind / name, (150 if d[1] == "B" else 60) + 5 * k, side)
                lines[kind].append(f"{name} {k}\n")
                domain_of[name] = d
    for kind, text in lines.items():
        (root / f"{kind}.txt").write_text("".join(text))
    return domain_of


@pytest.mark.parametrize("place", ["", "DR_grading", "DDR-dataset/DR_grading"])
def test_ddr(tmp_path, place):
    domain_of = ddr_folder(tmp_path / place)
    domains, about = ddr.read(tmp_path, 32, quiet)
    assert tuple(domains) == ddr.DOMAINS
    listed = [line.split() for kind in ("train", "valid", "test")
              for line in (tmp_path / place / f"{kind}.txt").read_text().splitlines()]
    for d, (x, y, part) in domains.items():
        assert y.tolist() == [int(k) for name, k in listed if domain_of[name] == d]
        assert np.bincount(y[part == TEST]).tolist() == [1] * 6 and len(y) == 12  # ceil(0.2 * 2) of each class
        middle = x[:, :, 16, 16].astype(int).mean(1)
        assert np.abs(middle - (150 if d[1] == "B" else 60) - 5 * y).max() <= 2
    assert about["notice"] == "subset: ddr 48 of 13673" and "160 to 200 px" in about["transform"]
    again, _ = ddr.read(tmp_path, 64, quiet)  # the size has no say in what is bright
    assert all((again[d][1] == domains[d][1]).all() and (again[d][2] == domains[d][2]).all() for d in domains)


def test_ddr_medians():
    assert ddr.upper_half(np.array([5, 1, 9, 3])).tolist() == [True, False, True, False]
    assert ddr.upper_half(np.full(5, 2)).tolist() == [False, False, False, True, True]  # exactly half of ties
    half = np.zeros((200, 100), np.uint8)
    half[:100] = 90
    assert abs(ddr.brightness(Image.fromarray(half)) - 90) < 1 and ddr.brightness(Image.new("L", (50, 50), 10)) == 0


def test_ddr_faults(tmp_path):
    fails(ddr, tmp_path, "no DDR in", "train.txt, valid.txt, test.txt", "nkicsl/DDR-dataset")
    domain_of = ddr_folder(tmp_path)
    train = tmp_path / "train.txt"
    whole = train.read_text()
    first = whole.split("\n")[0]
    for line in ("007-0000-000.jpg", "007-0000-000.jpg 6", "007-0000-000.jpg 12", "../train/007-0000-000.jpg 0"):
        replace(train, first, line)
        fails(ddr, tmp_path, "train.txt", "is no line like")
        train.write_text(whole)
    (tmp_path / "train" / first.split()[0]).unlink()
    fails(ddr, tmp_path, "1 of 48 listed images are absent", first.split()[0])
    train.write_text(whole.replace(first + "\n", ""))
    bad = next((tmp_path / "valid").iterdir())
    bad.write_bytes(bad.read_bytes()[:700])
    fails(ddr, tmp_path, bad.name, "is not a readable image")
    skip = []
    domains, _ = ddr.read(tmp_path, 32, quiet, skip)
    assert len(skip) == 1 and f"valid/{bad.name}: " in skip[0] and bad.name in domain_of
    assert sum(len(y) for _, y, _ in domains.values()) == 46 and {len(y) for _, y, _ in domains.values()} <= {11, 12}
    for kind in ("train", "valid", "test"):
        path = tmp_path / f"{kind}.txt"
        path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.endswith(" 3\n")))
    fails(ddr, tmp_path, "lacks the class 'Severe_Non-Proliferative_Diabetic_Retinopathy'")
    (tmp_path / "test.txt").unlink()
    fails(ddr, tmp_path, "lacks test.txt")


# All of them

READERS = (*domainnet.SETS.values(), tiny_imagenet, cub200, ham10000, ddr, pacs, office_caltech)


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.NAME)
def test_what_a_reader_says_of_itself(reader):
    assert len(set(reader.CLASSES)) == len(reader.CLASSES) and len(set(reader.SIZES)) == len(reader.SIZES)
    assert all(reader.ABOUT[key] or key == "split" for key in ("source", "split", "licence", "citation"))
    assert set(key.split(" ")[0] for key in reader.PUBLISHED) <= set(reader.DOMAINS)
    assert reader.HOW and "\n" not in reader.HOW
    assert len({f.name for f in reader.FILES}) == len(reader.FILES)
    for file in reader.FILES:
        assert re.fullmatch(r"|md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", file.hash) and file.bytes > 0
        assert file.urls and all(url.startswith(("https://", "http://")) for url in file.urls)
        assert set(file.domains) <= set(reader.DOMAINS)


def test_hold_out():
    y = np.repeat([0, 1, 2], [5, 6, 1])
    part = hold_out(y, 0.2, "a set", 123)
    assert np.bincount(y[part == TEST], minlength=3).tolist() == [1, 2, 1] and set(part) == {TRAIN, TEST}
    assert (hold_out(y, 0.2, "a set", 123) == part).all()
    assert any((hold_out(y, 0.2, "a set", seed) != part).any() for seed in range(5))
