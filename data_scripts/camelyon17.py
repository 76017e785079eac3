"""Camelyon17 as WILDS cuts it: 96 px patches of lymph nodes from five hospitals, tumour or not (Koh et al., 2021).

Patches of one slide resemble each other, so the parts are drawn by slide: no slide is in both. WILDS' own split keeps
two hospitals apart and holds out patches of the slides it trains on; leave a hospital out with `unseen`.
"""
import csv

import numpy as np

from fedlib.core.errors import UserError
from fedlib.core.seeds import key
from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.readers.image_folder import check_listed, decode, subset_text, transform_text

NAME = "camelyon17"
TITLE = "Camelyon17-WILDS"
DOMAINS = tuple(f"hospital_{i}" for i in range(5))
CLASSES = ("normal", "tumour")
SIZES = (32, 48, 64, 96)
PUBLISHED = dict(zip(DOMAINS, (59436, 34904, 85054, 129838, 146722)))
FILES = ()
HOW = ("WILDS' package gets it (10 GB): wilds.get_dataset('camelyon17', root_dir=DIR, download=True), or unpack the "
       "archive that https://wilds.stanford.edu/datasets names, with metadata.csv and patches/, into DIR.")
ABOUT = {
    "source": "Camelyon17-WILDS 1.0, https://wilds.stanford.edu/datasets/#camelyon17",
    "split": "by slide: of each hospital's slides ceil(0.2 n) are test, drawn with a fixed key; no val",
    "licence": "CC0 1.0",
    "citation": "Bandi et al.: From detection of individual metastases to classification of lymph node status at the "
                "patient level: the CAMELYON17 challenge. IEEE Transactions on Medical Imaging 38, 2019; Koh et al.: "
                "WILDS. ICML 2021, arXiv:2012.07421",
}

_FOLDERS = ("", "camelyon17_v1.0", "camelyon17")
_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center", "slide")


def read(root, size, say=print, skip=None):
    """The five hospitals as numpy arrays, patches in the order of metadata.csv, and what the manifest adds.

    UserError: no metadata.csv, or garbled; listed patches that are absent; a hospital without patches of a class.
    """
    place = next((root / f for f in _FOLDERS if (root / f / "metadata.csv").is_file()), None)
    if place is None:
        raise UserError(f"no {TITLE} in {root}: looked for metadata.csv there and in {', '.join(_FOLDERS[1:])}. {HOW}")
    listed = read_metadata(place / "metadata.csv")
    domains, groups, shorter = {}, {}, []
    for d, (files, y, _) in listed.items():     # all before the first pixel
        check_listed([place / f for f in files], f"hospital '{d}'")
        if len(set(y.tolist())) < len(CLASSES):
            raise UserError(f"{place / 'metadata.csv'}: '{d}' has patches of one class only")
    for d, (files, y, slides) in listed.items():
        x, sides, good = decode([place / f for f in files], size, d, skip)
        domains[d] = x, y[good], by_slide(slides, d)[good]
        groups[d] = sorted(set(slides[good].tolist()))
        shorter.append(sides)
        say(f"{d}: {len(x)} patches of {len(groups[d])} slides")
    return domains, {"transform": transform_text(size, np.concatenate(shorter)), "slides": groups,
                     "notice": subset_text({d: len(x) for d, (x, _, _) in domains.items()}, PUBLISHED)}


def read_metadata(path) -> dict:
    """{hospital: (files of its patches, labels int64 (N,), slides int64 (N,))}."""
    found = {d: ([], [], []) for d in DOMAINS}
    with open(path, encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = csv.DictReader(file)
        if not set(_COLUMNS) <= set(rows.fieldnames or ()):
            raise UserError(f"{path} lacks the columns {', '.join(sorted(set(_COLUMNS) - set(rows.fieldnames or ())))}")
        for number, row in enumerate(rows, start=2):
            numbers = [row[c] or "" for c in _COLUMNS]
            if not all(n.isascii() and n.isdigit() for n in numbers) or not int(row["center"]) < len(DOMAINS) or (
                    row["tumor"] not in ("0", "1")):
                raise UserError(f"{path}, line {number}: no whole numbers in {', '.join(_COLUMNS)}, or out of range")
            node = f"patient_{row['patient']}_node_{row['node']}"
            files, y, slides = found[DOMAINS[int(row["center"])]]
            files.append(f"patches/{node}/patch_{node}_x_{row['x_coord']}_y_{row['y_coord']}.png")
            y.append(int(row["tumor"]))
            slides.append(int(row["slide"]))
    return {d: (files, np.array(y, dtype=np.int64), np.array(slides, dtype=np.int64))
            for d, (files, y, slides) in found.items()}


def by_slide(slides, domain: str) -> np.ndarray:
    """Parts uint8 (N,): all patches of a slide in one of them."""
    names = np.unique(slides)
    test = np.random.default_rng(key("hold out", NAME, domain)).permutation(names)[:-(-len(names) // 5)]
    return np.where(np.isin(slides, test), TEST, TRAIN).astype(np.uint8)


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
