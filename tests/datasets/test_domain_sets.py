"""Office-Home, VLCS, TerraIncognita and Camelyon17, from small folders in the published layouts."""
import csv
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import raw_files
from conftest import quiet
from PIL import Image

from fedlib.datasets import prepare
from fedlib.engine import loop
from fedlib.engine.records import read_record
from fedlib.engine.run import plan
from fedlib.readers import camelyon17
from fedlib.readers.domain_folders import OFFICE_HOME, SETS, TERRA, VLCS
from fedlib.readers.image_folder import hold_out

TRAIN, TEST = 0, 2
fails = partial(raw_files.fails, size=32)
AS_PUBLISHED = {        # how the publishers write the names of domains and of some classes
    "office_home": ("OfficeHomeDataset_10072016", ("Art", "Clipart", "Product", "Real World"),
                    {"alarm_clock": "Alarm_Clock", "tv": "TV", "toothbrush": "ToothBrush", "flipflops": "Flipflops"}),
    "vlcs": ("VLCS", ("VOC2007", "LabelMe", "Caltech101", "SUN09"), {}),
    "terra_incognita": ("terra_incognita", ("location_100", "location_38", "location_43", "location_46"), {})}
WITHOUT = {("terra_incognita", "location_43"): ("dog", "squirrel")}      # animals that are not seen there


def paint(path: Path, grey: int, side=(12, 10)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", side, (grey,) * 3).save(path)


def folders(root: Path, made, per_class=5) -> Path:
    """The set as DomainBed lays it out: `per_class` pictures, and one file that is none."""
    top, domains, spelled = AS_PUBLISHED[made.NAME]
    for d, folder in zip(made.DOMAINS, domains, strict=True):
        for k, name in enumerate(made.CLASSES):
            if name not in WITHOUT.get((made.NAME, d), ()):
                for i in range(per_class):
                    paint(root / top / folder / spelled.get(name, name) / f"{i:05}.png", (3 * k + i) % 250)
        (root / top / folder / "notes.txt").write_text("no picture")
    return root


@pytest.mark.parametrize("name", SETS)
def test_the_layouts_of_domainbed(name, tmp_path):
    made = SETS[name]
    domains, about = made.read(folders(tmp_path, made), 32, quiet)
    assert tuple(domains) == made.DOMAINS
    for d, (x, y, part) in domains.items():
        here = [k for k, c in enumerate(made.CLASSES) if c not in WITHOUT.get((name, d), ())]
        assert y.tolist() == [k for k in here for _ in range(5)] and x.shape == (len(y), 3, 32, 32)
        assert x[:, 0, 0, 0].tolist() == [(3 * k + i) % 250 for k in here for i in range(5)]
        assert np.bincount(y[part == TEST], minlength=len(made.CLASSES)).tolist() == [
            int(k in here) for k in range(len(made.CLASSES))]
        assert part.tolist() == hold_out(y, 0.2, name, d).tolist()
        assert about["names"][d][0] == f"{made.CLASSES[here[0]]}/00000"
    assert about["notice"].startswith(f"subset: {made.DOMAINS[0]} ")
    assert sum(made.PUBLISHED.values()) == {"office_home": 15588, "vlcs": 10729, "terra_incognita": 24788}[name]


def test_the_version_of_terra_incognita_that_is_there_now_is_named(tmp_path, monkeypatch):
    counts = {d: len(TERRA.CLASSES) - len(WITHOUT.get((TERRA.NAME, d), ())) for d in TERRA.DOMAINS}
    monkeypatch.setitem(vars(TERRA), "OTHER", ((counts, TERRA.OTHER[0][1]),))
    _, about = TERRA.read(folders(tmp_path, TERRA, per_class=1), 32, quiet)
    assert about["notice"] == "the 24,330 images that the source offers now; papers used 24,788"
    assert sum(TERRA.PUBLISHED.values()) == 24788


def test_what_is_missing_is_named(tmp_path):
    folders(tmp_path, VLCS)
    fails(OFFICE_HOME, tmp_path, "no Office-Home in")
    place = tmp_path / "VLCS"
    for d in place.iterdir():
        (d / "dog").rename(d / "dogs and cats")
    fails(VLCS, tmp_path, "no domain of VLCS has the class 'dog'")
    for folder in (place / "SUN09").iterdir():
        folder.rename(folder.with_name(f"other {folder.name}"))
    fails(VLCS, tmp_path, "domain 'sun09': no class folder with pictures in")
    (place / "SUN09").rename(place / "moon")
    fails(VLCS, tmp_path, "lacks the domain 'sun09' of VLCS")


# Camelyon17

COLUMNS = ("", "patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split")


def hospitals(root: Path, slides=5, patches=4) -> list:
    """metadata.csv and patches as WILDS has them; patches of the hospitals come mixed."""
    rows = [(f"{20 * c + s:03}", c, s, p) for p in range(patches) for s in range(slides) for c in range(5)]
    lines = []
    for number, (patient, c, s, p) in enumerate(rows):
        x, y = 3328 + 32 * p, 21792 + 32 * s
        lines.append((number, patient, s % 5, x, y, p % 2, 10 * c + s, c, 0))
        node = f"patient_{patient}_node_{s % 5}"
        paint(root / "patches" / node / f"patch_{node}_x_{x}_y_{y}.png", 40 * c + 4 * s + p, (96, 96))
    with open(root / "metadata.csv", "w", newline="") as file:
        csv.writer(file).writerows([COLUMNS, *lines])
    return lines


@pytest.mark.parametrize("place", ["", "camelyon17_v1.0"])
def test_camelyon17_keeps_slides_together(place, tmp_path):
    (tmp_path / place).mkdir(exist_ok=True)
    hospitals(tmp_path / place)
    domains, about = camelyon17.read(tmp_path, 32, quiet)
    for c, (d, (x, y, part)) in enumerate(domains.items()):
        grey = x[:, 0, 0, 0].astype(int)
        assert d == f"hospital_{c}" and x.shape == (20, 3, 32, 32)
        assert (grey // 40 == c).all() and ((grey - 40 * c) % 2 == y).all()
        slides = (grey - 40 * c) // 4
        assert set(slides[part == TEST]) and not set(slides[part == TEST]) & set(slides[part == TRAIN])
        assert (part == TEST).sum() == 4        # ceil(0.2 * 5) of the slides
        assert about["slides"][d] == [10 * c + s for s in range(5)]
    assert about["notice"].startswith("subset: hospital_0 20 of 59436")
    assert sum(camelyon17.PUBLISHED.values()) == 455954


def test_camelyon17_faults(tmp_path):
    fails(camelyon17, tmp_path, "no Camelyon17-WILDS in", "metadata.csv", "WILDS' package gets it")
    hospitals(tmp_path)
    path = tmp_path / "metadata.csv"
    whole = path.read_text()
    for old, new, *words in (("tumor", "tumour", "lacks the columns tumor"), (",3328,", ",../3,", "line 2: no whole"),
                             (",0,0,0,0\n", ",0,0,7,0\n", "line 2"), (",0,0,0,0\n", ",2,0,0,0\n", "line 2")):
        assert old in whole.replace("\r\n", "\n")
        path.write_text(whole.replace("\r\n", "\n").replace(old, new, 1))
        fails(camelyon17, tmp_path, *words)
    path.write_text("\n".join(line for line in whole.splitlines() if not line.endswith(",4,0") or ",1,4" in line))
    fails(camelyon17, tmp_path, "'hospital_4' has patches of one class only")
    path.write_text(whole)
    next((tmp_path / "patches").glob("*/*.png")).unlink()
    fails(camelyon17, tmp_path, "listed images are absent")


@pytest.mark.parametrize("name", [*SETS, "camelyon17"])
def test_prepared_and_trained_without_one_domain(name, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "store"))
    raw = tmp_path / "raw"
    raw.mkdir()
    hospitals(raw) if name == "camelyon17" else folders(raw, SETS[name])
    manifest = prepare.prepare(name, 32, root=raw, say=quiet)
    *_, last = manifest["domains"]
    run = plan("FedAvg", {}, {"name": name, "size": 32, "unseen": [last]}, {"net": "cnn4", "width": 4},
               {"rounds": 1, "batch": 8}, 0)
    (record,) = read_record(loop.train(run, tmp_path / "results"))["rounds"]
    assert set(record["unseen"]) == {last} and set(record["acc"]) == set(manifest["domains"]) - {last}
