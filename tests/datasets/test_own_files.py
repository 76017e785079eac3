"""Pictures and texts of a user's own: what is read, what is ignored, who is tested, and one line for every mistake."""
import numpy as np
import pytest
from conftest import one_line, quiet
from PIL import Image

from fedlib.core.errors import UserError
from fedlib.datasets import prepare
from fedlib.datasets.partition import Data, federate
from fedlib.datasets.prepare import TEST, TRAIN, VAL
from fedlib.datasets.registry import reader_of
from fedlib.readers import own_files
from fedlib.readers.own_files import Sample, parts_of, prepare_own


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "prepared"))
    monkeypatch.delenv("FEDLIB_RAW", raising=False)


def paint(path, level=100, mode="L", side=(12, 10), **how):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, side, level).save(path, **how)


def folders(root, sites=("north", "south"), classes=("ill", "well"), n=8):
    for s, site in enumerate(sites):
        for k, name in enumerate(classes):
            for i in range(n):
                paint(root / site / name / f"{i}.png", 10 * (10 * s + 5 * k) + i)
    return root


def prepared(root, **how):
    """(manifest, what was said) of the set "mine"."""
    lines = []
    return prepare_own("mine", root, 16, say=lines.append, **how), "\n".join(lines)


def fails(root, **how) -> str:
    with pytest.raises(UserError) as caught:
        prepare_own(how.pop("name", "mine"), root, how.pop("size", 16), say=quiet, **how)
    assert not (root.parent / "prepared").exists()
    return one_line(caught)


def counts(manifest) -> dict:
    return {d: [n[p] for p in ("train", "val", "test")] for d, n in manifest["domains"].items()}


# folders

def test_a_folder_becomes_a_set_that_is_found_by_its_name(tmp_path):
    manifest, said = prepared(folders(tmp_path / "in"))
    assert (manifest["classes"], counts(manifest)) == (["ill", "well"], {"north": [12, 0, 4], "south": [12, 0, 4]})
    assert "north  6 + 2  6 + 2  12 x 10 px; grey 16" in said and "ignored" not in said
    reader = reader_of("mine")
    assert (reader.NAME, reader.SIZES, reader.CLASSES) == ("mine", (16,), ("ill", "well"))
    tensors = prepare.load_set("mine").tensors
    for s, site in enumerate(("north", "south")):       # each picture has the label of its folder
        x, y = (tensors[f"{site}/{k}"] for k in "xy")
        assert sorted(x[:, 0, 0, 0].tolist()) == sorted(100 * s + 50 * k + i for k in range(2) for i in range(8))
        assert y.tolist() == (x[:, 0, 0, 0] % 100 >= 50).long().tolist()
    assert [len(c.test) for c in federate(Data("mine"), 0).clients] == [4, 4]
    listed = {line["name"]: line for line in prepare.listing()}
    assert listed["mine"]["prepared"] == [16] and listed["mine"]["domains"] == ["north", "south"]
    prepare_own("mine", tmp_path / "in", 32, say=quiet)
    assert reader_of("mine").SIZES == (16, 32)
    prepare.paths("mine", 16)[0].unlink()
    with pytest.raises(UserError, match="mine at 16 px is not prepared; run: fedlib data mine --size 16 --from DIR"):
        prepare.load_set("mine", 16)


def test_two_readings_are_the_same_and_another_seed_draws_another_test(tmp_path):
    folders(tmp_path / "in")
    first, again, other = (prepared(tmp_path / "in", seed=s)[0]["digest"] for s in (0, 0, 1))
    assert first == again != other


def test_a_site_may_lack_a_class(tmp_path):
    folders(tmp_path / "in")
    folders(tmp_path / "in", ("west",), ("well",))
    manifest, said = prepared(tmp_path / "in")
    assert manifest["domains"]["west"]["per_class"] == [0, 8] and "west has no ill" in said
    assert "west   none   6 + 2" in said and len(federate(Data("mine"), 0).clients) == 3


def test_folders_of_splits_are_taken_as_they_are(tmp_path):
    for split, n in (("train", 5), ("Validation", 2), ("test", 3)):
        folders(tmp_path / "in", (f"north/{split}",), n=n)
    manifest, said = prepared(tmp_path / "in")
    assert counts(manifest) == {"north": [10, 4, 6]} and manifest["split"] == "as given"
    assert "5 + 2 + 3" in said


@pytest.mark.parametrize("layout, where", [("class/site", "{c}/{s}"), ("site/class/patient", "{s}/{c}/p{i}"),
                                           ("split/site/class", "train/{s}/{c}"), ("split/class", "test/{s}{c}")])
def test_another_layout_is_said(layout, where, tmp_path):
    for s in ("a", "b"):
        for c in ("x", "y"):
            for i in range(4):
                paint(tmp_path / "in" / where.format(s=s, c=c, i=i) / f"{i}.png")
    manifest, _ = prepared(tmp_path / "in", layout=layout)
    assert list(manifest["domains"]) == (["all"] if "site" not in layout else ["a", "b"])
    assert manifest["classes"] == (["ax", "ay", "bx", "by"] if "site" not in layout else ["x", "y"])


def test_odd_pictures_come_out_as_a_viewer_shows_them(tmp_path):
    root, levels = folders(tmp_path / "in", n=1), {}
    grey = np.full((10, 12), 100, np.uint16)
    exif = Image.Exif()
    exif[0x0112] = 6        # the camera was turned: 12 x 10 is shown as 10 x 12
    half = Image.fromarray(np.repeat([[200, 50]], 10, 0).repeat(6, 1).astype(np.uint8))
    odd = {"sixteen.png": Image.fromarray(grey * 257), "clear.png": Image.new("LA", (12, 10), (0, 0)),
           "palette.png": Image.new("RGB", (12, 10), (10, 200, 30)).quantize(4),
           "scan.tif": Image.new("L", (12, 10), 7),
           "web.webp": Image.new("RGB", (12, 10), (50, 50, 50))}
    for name, image in odd.items():
        image.save(root / "north/ill" / name, **({"lossless": True} if name.endswith("webp") else {}))
    half.save(root / "north/ill/turned.png", exif=exif)
    _, said = prepared(root)
    x = prepare.load_set("mine").tensors["north/x"]
    names = sorted([*odd, "0.png", "turned.png"])
    levels = {name: x[i, :, 0, 0].tolist() for i, name in enumerate(names)}
    assert levels["sixteen.png"] == [100] * 3 and levels["clear.png"] == [255] * 3 and levels["scan.tif"] == [7] * 3
    assert levels["palette.png"] == [10, 200, 30] and levels["web.webp"] == [50] * 3
    turned = x[names.index("turned.png"), 0]
    assert turned[0, 0] == turned[0, 15] > 150 and turned[15, 0] < 80       # light above, dark below
    for words in ("grey of 16 bits 1", "palette 1", "grey with alpha 1", "1 turned by EXIF"):
        assert words in said


def test_what_is_ignored_is_counted(tmp_path):
    root = folders(tmp_path / "in")
    for name in ("north/ill/scan.dcm", "north/ill/README", "north/notes.txt", "north/ill/.hidden.png",
                 "__MACOSX/north/ill/1.png"):
        paint(root / name, format="PNG")
    paint(root / "north/ill/deep/er/1.png")
    paint(root / "lost.png")
    manifest, said = prepared(root)
    assert counts(manifest) == {"north": [12, 0, 4], "south": [12, 0, 4]}
    line = said.splitlines()[-1]
    assert line.startswith("ignored: 2 pictures that do not lie as site/class or site/split/class (the first is ")
    assert all(words in said for words in ("1 .dcm", "1 .txt", "1 files without an ending"))


def test_a_site_without_pictures_is_named(tmp_path):
    root = folders(tmp_path / "in")
    (root / "empty").mkdir()
    (root / "gifs").mkdir()
    (root / "gifs/a.gif").write_bytes(b"GIF89a")
    _, said = prepared(root)
    assert "2 folders without a picture that can be read: empty, gifs" in said


def test_a_folder_or_a_name_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    def walk(root, onerror, **how):
        onerror(PermissionError(13, "Permission denied", str(root / "north")))
    with monkeypatch.context() as patch:
        patch.setattr(own_files.os, "walk", walk)
        assert "north cannot be read (Permission denied)" in fails(folders(tmp_path / "in"))
    paint(tmp_path / "in" / "Bad\udce9" / "ill" / "1.png", format="PNG")
    assert "is not UTF-8: " in fails(tmp_path / "in")


def test_capitals_make_no_class_and_grades_are_in_order(tmp_path):
    folders(tmp_path / "in", ("a",), ("Grade 2", "grade 10"))
    folders(tmp_path / "in", ("b",), ("grade 2", "grade 10"), n=4)
    manifest, said = prepared(tmp_path / "in")
    assert manifest["classes"] == ["Grade 2", "grade 10"] and "taken as one class: Grade 2, grade 2" in said


def test_a_corrupt_file_is_named_or_left_out(tmp_path):
    root = folders(tmp_path / "in")
    (root / "south/ill/9.jpg").write_bytes(b"no picture")
    assert "south/ill/9.jpg is not a readable image" in (line := fails(root)) and "--skip-corrupt" in line
    manifest, said = prepared(root, skip_corrupt=True)
    assert "1 pictures that cannot be read" in said and manifest["skipped"][0].startswith("south/ill/9.jpg: ")
    for path in (root / "south").glob("*/*"):
        path.write_bytes(b"no picture")
    with pytest.raises(UserError, match="no picture of south can be read"):
        prepared(root, skip_corrupt=True)


def test_mistakes_in_folders(tmp_path):
    (tmp_path / "in").mkdir()
    assert "no pictures (.bmp, .jpeg" in fails(tmp_path / "in")
    assert "did you mean 'office_caltech'?" in fails(tmp_path / "in", name="office_cal")
    assert "pacs is a published set" in fails(tmp_path / "in", name="pacs")
    assert "'my-set' is not a dataset's name" in fails(tmp_path / "in", name="my-set")
    assert "no such folder or file" in fails(tmp_path / "absent")
    root = folders(tmp_path / "in")
    assert "layout 'site/kind' is not made of site, split, class, patient" in fails(root, layout="site/kind")
    assert "no picture in" in (line := fails(root, layout="site/class/patient")) and "north/ill/0.png" in line
    assert "size = 8 is not allowed" in fails(root, size=8)
    folders(tmp_path / "one", classes=("ill",))
    assert "has one class only, 'ill'" in fails(tmp_path / "one")
    folders(tmp_path / "splits", ("train", "test"))
    assert "are splits (test, train), not sites" in fails(tmp_path / "splits")
    with pytest.raises(UserError, match="Say --from FOLDER, or --from FILE.csv"):
        prepare_own("mine", None)


# CSV

HEAD = "path,label,site"


def listed(tmp_path, *rows, head=HEAD, encoding="utf-8"):
    path = tmp_path / "list.csv"
    path.write_bytes("\n".join([head, *rows]).encode(encoding))
    return path


def pictures(tmp_path, n=12):
    for i in range(n):
        paint(tmp_path / f"p/{i}.png", 10 * i)
    return [f"p/{i}.png,{'ill' if i % 2 else 'well'},{'north' if i < n // 2 else 'south'}" for i in range(n)]


@pytest.mark.parametrize("comma, encoding", [(",", "utf-8"), (";", "utf-8-sig"), ("\t", "utf-8")])
def test_a_csv_of_pictures(comma, encoding, tmp_path):
    rows = [row.replace(",", comma) for row in pictures(tmp_path)]
    path = listed(tmp_path, *rows, f"p/0.png{comma}{comma}north", head="Path,LABEL, site ".replace(",", comma),
                  encoding=encoding)
    manifest, said = prepared(path)
    assert counts(manifest) == {"north": [4, 0, 2], "south": [4, 0, 2]} and "ignored: 1 rows without label" in said
    assert prepare.load_set("mine").tensors["south/x"][:, 0, 0, 0].tolist() == [60, 70, 80, 90, 100, 110]


def test_a_csv_says_its_split_and_patients(tmp_path):
    rows = [f"{row},{'test' if i % 6 > 3 else 'train'},p{i // 2}" for i, row in enumerate(pictures(tmp_path))]
    manifest, _ = prepared(listed(tmp_path, *rows, head=f"{HEAD},split,patient"))
    assert counts(manifest) == {"north": [4, 0, 2], "south": [4, 0, 2]}
    assert manifest["split"] == "as given; no patient is in two parts"
    rows[4] = rows[4].replace("p2", "p0")
    assert "patient p0 is in two parts, train and test" in fails(listed(tmp_path / "p", *[
        r.replace("p/", "") for r in rows], head=f"{HEAD},split,patient").rename(tmp_path / "p/x.csv"))


def test_a_site_to_evaluate_on_has_no_training_part(tmp_path):
    rows = [f"{row},{'test' if 'south' in row else 'train' if i < 4 else 'test'}"
            for i, row in enumerate(pictures(tmp_path))]
    manifest, said = prepared(listed(tmp_path, *rows, head=f"{HEAD},split"))
    assert counts(manifest)["south"] == [0, 0, 6] and "south has nothing to train on, so it cannot be a client" in said


def test_mistakes_in_a_csv(tmp_path):
    rows = pictures(tmp_path)

    def fault(*rows, head=HEAD, encoding="utf-8"):
        return fails(listed(tmp_path, *rows, head=head, encoding=encoding))
    assert "lacks the column label (it has: path, class, site)" in fault(*rows, head="path,class,site")
    assert "lacks the column path (or text, or columns of numbers)" in fault(*rows, head="label,site")
    assert "line 2: file is 'p/0.png', which is no number" in fault(*rows, head="file,label,site")
    assert "has the columns path and text" in fault(*rows, head="path,label,site,text")
    assert "line 14: p/0.png stands in line 2 too" in fault(*rows, rows[0])
    assert "1 of 13 listed images are absent" in fault(*rows, "p/99.png,ill,north")
    assert "line 2: the split 'tset' is not" in fault(rows[0] + ",tset", head=f"{HEAD},split")
    assert "is not UTF-8 text (byte " in fault(*rows, "p/0.png,krank,Zürich", encoding="latin-1")
    assert "no usable rows" in fault() and "lacks the column label (it has: none)" in fails(listed(tmp_path, head=""))


# parts

def test_no_patient_is_on_both_sides_even_at_two_sites():
    rng = np.random.default_rng(0)
    samples = [Sample("ab"[rng.integers(2)], "xyz"[rng.integers(3)], str(i), None, f"p{rng.integers(60)}")
               for i in range(400)]
    parts = parts_of(samples, 0)
    sides = {}
    for s, part in zip(samples, parts, strict=True):
        sides.setdefault(s.patient, set()).add(part)
    assert all(len(some) == 1 for some in sides.values())
    for cell in {(s.site, s.label) for s in samples}:
        held = [part == TEST for s, part in zip(samples, parts, strict=True) if (s.site, s.label) == cell]
        assert 0.12 < np.mean(held) < 0.38
    assert parts == parts_of(samples, 0) != parts_of(samples, 1)


@pytest.mark.parametrize("n, test", [(1, 0), (2, 0), (3, 1), (4, 1), (8, 2), (10, 2), (100, 25)])
def test_without_patients_a_quarter_of_each_class_is_held_out(n, test):
    samples = [Sample("a", label, str(i)) for label in "xy" for i in range(n)]
    parts = parts_of(samples, 3)
    assert parts[:n].count(TEST) == parts[n:].count(TEST) == test


def test_a_patient_with_a_given_part_takes_all_samples_along():
    samples = [Sample("a", "x", "1", VAL, "p"), Sample("a", "x", "2", None, "p"), Sample("a", "y", "3", TRAIN)]
    assert parts_of(samples, 0) == [VAL, VAL, TRAIN]


# texts

def test_a_csv_of_texts_has_the_words_of_its_training_part(tmp_path):
    rows = [f'"{word} day, really",{label},{site},{split}' for site in "ab" for word, label, split in (
        ("good", "pos", "train"), ("bad", "neg", "train"), ("fine", "pos", "test"), ("dull", "neg", "test"))]
    path = listed(tmp_path, *rows, head="text,label,site,split")
    manifest = prepare_own("mine", path, 6, say=quiet)
    assert manifest["kind"] == "tokens" and counts(manifest) == {"a": [2, 0, 2], "b": [2, 0, 2]}
    words = manifest["words"]
    assert words[0] == "<pad>" and set(words[1:]) == {"day", ",", "really", "good", "bad"}
    x = prepare.load_set("mine").tensors["a/x"]
    assert [[words[i] for i in row if i] for row in x.tolist()] == [
        ["good", "day", ",", "really"], ["bad", "day", ",", "really"], ["day", ",", "really"], ["day", ",", "really"]]
    assert len(federate(Data("mine"), 0).clients) == 2
    with pytest.raises(UserError, match="lacks the column text"):
        own_files.new([listed(tmp_path, "a", head="word")], "tokens", 6, words)
