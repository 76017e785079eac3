"""HAM10000: dermatoscopic photos of pigmented skin lesions (Tschandl et al., 2018), used for FedDTR's ISIC row.

That paper does not say which of the ISIC sets it took, nor how it was split. Several photos show one lesion, so the
parts are drawn by lesion: no lesion is in both.
"""
import csv

import numpy as np

from fedlib.core.errors import UserError
from fedlib.readers.image_folder import bare, check_listed, classes_text, decode, hold_out, subset_text, transform_text

NAME = "ham10000"
TITLE = "HAM10000"
DOMAINS = ("ham10000",)
CLASSES = ("akiec", "bcc", "bkl", "df", "mel", "nv", "vasc")
SIZES = (64, 32, 96, 128, 224)
PUBLISHED = {"ham10000": 10015}
PER_CLASS = {"ham10000": (327, 514, 1099, 115, 1113, 6705, 142)}
FILES = ()
HOW = ("Accept the terms at https://doi.org/10.7910/DVN/DBW86T (Harvard Dataverse) and download "
       "HAM10000_images_part_1.zip, HAM10000_images_part_2.zip and HAM10000_metadata; unpack the zips into two folders "
       "of these names in DIR and put the metadata beside them as HAM10000_metadata.csv.")
ABOUT = {
    "source": "HAM10000, https://doi.org/10.7910/DVN/DBW86T",
    "split": "none published; per class ceil(0.25 n) of the lesions are test, drawn with a fixed key; no lesion is in "
             "both parts; no val",
    "licence": "CC BY-NC 4.0",
    "citation": "Tschandl, Rosendahl, Kittler: The HAM10000 dataset, a large collection of multi-source dermatoscopic "
                "images of common pigmented skin lesions. Scientific Data 5, 2018",
}

_FOLDERS = ("", "HAM10000", "ham10000")
_METADATA = ("HAM10000_metadata.csv", "HAM10000_metadata", "HAM10000_metadata.tab", "HAM10000_metadata.txt")


def read(root, size, say=print, skip=None):
    """The one domain as numpy arrays, images in the order of their ids, and what the manifest adds.

    UserError: no metadata, or garbled; listed images that are absent; a class without images; a lesion of two classes.
    """
    path = next((root / f / m for f in _FOLDERS for m in _METADATA if (root / f / m).is_file()), None)
    if path is None:
        raise UserError(f"no {TITLE} in {root}: looked for {' or '.join(_METADATA)} there and in "
                        f"{', '.join(_FOLDERS[1:])}. {HOW}")
    ids, lesions, y = read_metadata(path)
    files = image_files(path.parent, ids)
    part = by_lesion(path, lesions, y)
    x, sides, good = decode(files, size, NAME, skip)
    y, part = y[good], part[good]
    say(f"{NAME}: {len(x)} images")
    notices = [subset_text({NAME: len(x)}, PUBLISHED),
               classes_text({NAME: np.bincount(y, minlength=len(CLASSES)).tolist()}, PER_CLASS, CLASSES)]
    return {NAME: (x, y, part)}, {"transform": transform_text(size, sides),
                                  "notice": "; ".join(filter(None, notices))}


def read_metadata(path):
    """(image ids, their lesions, labels int64 (N,)) of HAM10000_metadata.csv, sorted by image id."""
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        head = file.readline()
        file.seek(0)
        rows = list(csv.DictReader(file, delimiter="\t" if "\t" in head else ","))  # Dataverse also gives tabs
    wanted = ("lesion_id", "image_id", "dx")
    if not rows or not all(column in rows[0] for column in wanted):
        raise UserError(f"{path} has no rows with the columns {', '.join(wanted)}")
    for number, row in enumerate(rows, start=2):
        if row["dx"] not in CLASSES or not row["image_id"] or not row["lesion_id"] or "/" in row["image_id"]:
            raise UserError(f"{path}, line {number}: no lesion_id, image_id and dx ({', '.join(CLASSES)})")
    rows.sort(key=lambda row: row["image_id"])
    ids = [row["image_id"] for row in rows]
    twice = next((a for a, b in zip(ids, ids[1:]) if a == b), None)
    if twice:
        raise UserError(f"{path} has the image {twice} twice")
    y = np.array([CLASSES.index(row["dx"]) for row in rows], dtype=np.int64)
    absent = sorted(set(range(len(CLASSES))) - set(y.tolist()))
    if absent:
        raise UserError(f"domain '{NAME}' lacks the class '{CLASSES[absent[0]]}' in {path}")
    return ids, [row["lesion_id"] for row in rows], y


def image_files(place, ids) -> list:
    """The file of every image: in `place`, or in its folders HAM10000_images_part_1, HAM10000_images_part_2, ..."""
    folders = [place, *sorted(f for f in place.iterdir() if f.is_dir() and bare(f.name).startswith("ham10000images"))]
    there = {f.stem: f for folder in folders for f in folder.iterdir() if f.suffix.lower() == ".jpg"}
    files = [there.get(i, folders[-1] / f"{i}.jpg") for i in ids]
    check_listed(files, TITLE)
    return files


def by_lesion(path, lesions, y) -> np.ndarray:
    """Parts uint8 (N,): all photos of a lesion in one of them."""
    names, first, lesion = np.unique(lesions, return_index=True, return_inverse=True)
    two = np.flatnonzero(y != y[first][lesion])
    if len(two):
        raise UserError(f"{path}: the lesion {names[lesion[two[0]]]} has two classes")
    return hold_out(y[first], 0.25, NAME)[lesion]


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
