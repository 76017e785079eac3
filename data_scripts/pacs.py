"""PACS: seven classes as photos, art paintings, cartoons and sketches (Li et al., 2017)."""
from pathlib import Path

import numpy as np

from fedlib.core.errors import UserError
from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.datasets.published import File
from fedlib.readers.image_folder import (
    bare,
    class_files,
    classes_text,
    decode,
    find_domains,
    subset_text,
    transform_text,
)

NAME = "pacs"
TITLE = "PACS"
DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
SIZES = (64, 32, 96, 112, 128, 224)
PUBLISHED = {"photo": 1670, "art_painting": 2048, "cartoon": 2344, "sketch": 3929}
PER_CLASS = {"photo": (189, 202, 182, 186, 199, 280, 432), "art_painting": (379, 255, 285, 184, 201, 295, 449),
             "cartoon": (389, 457, 346, 135, 324, 288, 405), "sketch": (772, 740, 753, 608, 816, 80, 160)}
FILES = (File(  # two archives with the same images; GitHub packs its own anew, so the counts decide, not a hash
    "PACS.zip",
    ("https://github.com/MachineLearning2020/Homework3-PACS/archive/refs/heads/master.zip",
     "https://drive.usercontent.google.com/download?id=1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd&export=download&confirm=t"),
    bytes=191_000_000, unpack=""),)
HOW = ("Where both sources are gone: any folder <domain>/<class>/<file> of PACS will do. The official split lists "
       "(photo_train_kfold.txt, ...) are not in these archives; put them into a folder 'splits' beside the domains.")
ABOUT = {
    "source": "PACS",
    "split": "",  # read() says which of the two was used
    "licence": "none stated; for research",
    "citation": "Li, Yang, Song, Hospedales: Deeper, broader and artier domain generalization. ICCV 2017",
}
OFFICIAL = "official lists: train_kfold is train, crossval_kfold is test (held out)"
FALLBACK = "no official lists found: file index i of a domain, in ImageFolder order: i mod 10 == 9 test, else train"

_USUAL = ("PACS", "pacs", "kfold", "images", "Raw images", "Homework3-PACS-master", "Homework3-PACS")
_LISTS = ("", "splits", "pacs_label", "pacs_split", "Train val splits and h5py files pre-read")
_KINDS = {"train": TRAIN, "crossval": TEST}


def read(root, size, say=print, skip=None):
    """The four domains as numpy arrays, and what the manifest adds (the split in use, notices).

    UserError: see fedlib.readers.image_folder; also a set of split lists that lacks one, or a list of something else.
    """
    place, folders = find_domains(root, TITLE, _USUAL, {d: (d,) for d in DOMAINS})
    listed = {d: class_files(d, folders[d], dict.fromkeys(CLASSES, ()), say) for d in DOMAINS}
    lists = split_lists(place)
    domains, names, counts, notices, shorter = {}, {}, {}, [], []
    for d, (files, y) in listed.items():
        if lists is None:
            part = np.where(np.arange(len(y)) % 10 == 9, TEST, TRAIN)
        else:
            part, notice = official_part(d, files, lists)
            notices.append(notice)
        used = np.flatnonzero(part >= 0)
        x, sides, good = decode([files[i] for i in used], size, d, skip)
        counts[d] = np.bincount(np.delete(y, used[~good]), minlength=len(CLASSES)).tolist()
        used = used[good]
        domains[d] = x, y[used], part[used].astype(np.uint8)
        names[d] = [f"{CLASSES[y[i]]}/{files[i].stem}" for i in used]
        shorter.append(sides)
        say(f"{d}: {len(x)} images")
    notices = [subset_text({d: sum(n) for d, n in counts.items()}, PUBLISHED),
               classes_text(counts, PER_CLASS, CLASSES), *notices]
    return domains, {"names": names, "transform": transform_text(size, np.concatenate(shorter)),
                     "split": FALLBACK if lists is None else OFFICIAL, "notice": "; ".join(filter(None, notices))}


def split_lists(place: Path) -> Path | None:
    """The folder of the official lists (<domain>_train_kfold.txt, <domain>_crossval_kfold.txt), or None."""
    names = [f"{d}_{kind}_kfold.txt" for d in DOMAINS for kind in _KINDS]
    for folder in (base / sub for base in (place, place.parent) for sub in _LISTS):
        there = [name for name in names if (folder / name).is_file()]
        if there and len(there) < len(names):
            raise UserError(f"{folder} has split lists but lacks {min(set(names) - set(there))}")
        if there:
            return folder
    return None


def official_part(domain: str, files: list, lists: Path) -> tuple[np.ndarray, str]:
    """Per file its part by the official lists, -1 in neither; and a notice when files and lists do not match."""
    part_of = {}
    for kind, part in _KINDS.items():
        path = lists / f"{domain}_{kind}_kfold.txt"
        for line in filter(str.strip, path.read_text(encoding="utf-8", errors="replace").splitlines()):
            folders = line.rsplit(maxsplit=1)[0].split("/")
            if len(folders) < 3 or bare(folders[-3]) != bare(domain):
                raise UserError(f"{path}: '{line[:60]}' is no line like '{domain}/dog/056_0001.jpg 1'")
            part_of[bare(folders[-2]), folders[-1]] = part
    part = np.array([part_of.get((bare(f.parent.name), f.name), -1) for f in files])
    unlisted, absent = int((part < 0).sum()), len(part_of) - int((part >= 0).sum())
    if unlisted == len(files):
        raise UserError(f"the split lists in {lists} name none of the images of '{domain}'")
    counted = {"images in neither list left out": unlisted, "listed images absent": absent}
    notes = ", ".join(f"{n} {what}" for what, n in counted.items() if n)
    return part, notes and f"{domain}: {notes}"


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
