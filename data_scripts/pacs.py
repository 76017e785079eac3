"""PACS: seven classes as photos, art paintings, cartoons and sketches (Li et al., 2017)."""
from pathlib import Path

import numpy as np

from data_scripts.image_folder import bare, class_files, decode, find_domains, subset_text, transform_text
from fedlib.errors import UserError
from fedlib.prepare import TEST, TRAIN, main

NAME = "pacs"
TITLE = "PACS"
DOMAINS = ("photo", "art_painting", "cartoon", "sketch")
CLASSES = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
SIZES = (64, 32, 96, 112, 128, 224)
PUBLISHED = {"photo": 1670, "art_painting": 2048, "cartoon": 2344, "sketch": 3929}
ABOUT = {
    "source": "PACS",
    "split": "",  # read() says which of the two was used
    "licence": "none stated; for research",
    "citation": "Li, Yang, Song, Hospedales: Deeper, broader and artier domain generalization. ICCV 2017",
}
OFFICIAL = "official lists: train_kfold is train, crossval_kfold is test (held out)"
FALLBACK = "no official lists found: file index i of a domain, in ImageFolder order: i mod 10 == 9 test, else train"

_USUAL = ("PACS", "pacs", "kfold", "images", "Raw images")
_LISTS = ("", "splits", "pacs_label", "pacs_split", "Train val splits and h5py files pre-read")
_KINDS = {"train": TRAIN, "crossval": TEST}


def read(root, size, say=print):
    """The four domains as numpy arrays, and what the manifest adds (the split in use, notices).

    UserError: see data_scripts.image_folder; also a set of split lists that lacks one, or a list of something else.
    """
    place, folders = find_domains(root, TITLE, _USUAL, {d: (d,) for d in DOMAINS})
    listed = {d: class_files(d, folders[d], dict.fromkeys(CLASSES, ())) for d in DOMAINS}
    notices = [subset_text({d: len(y) for d, (_, y) in listed.items()}, PUBLISHED)]
    lists = split_lists(place)
    domains, shorter = {}, []
    for d, (files, y) in listed.items():
        if lists is None:
            part = np.where(np.arange(len(y)) % 10 == 9, TEST, TRAIN)
        else:
            part, notice = official_part(d, files, lists)
            notices.append(notice)
        used = part >= 0
        x, sides = decode([f for f, use in zip(files, used, strict=True) if use], size, d)
        domains[d] = x, y[used], part[used].astype(np.uint8)
        shorter.append(sides)
        say(f"{d}: {len(x)} images")
    return domains, {"transform": transform_text(size, np.concatenate(shorter)),
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
    raise SystemExit(main(NAME))
