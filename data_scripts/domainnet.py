"""DomainNet: 345 classes in six domains (Peng et al., 2019); its first 10, 50, 100, 150 classes; DomainNet-126.

The official lists have gaps: painting_train.txt lacks t-shirt, painting_test.txt lacks syringe.
"""
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedlib.core.errors import UserError
from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.datasets.published import File
from fedlib.readers.image_folder import bare, check_listed, decode, find_domains, hold_out, subset_text, transform_text

_SIX = ("clipart", "painting", "real", "sketch", "quickdraw", "infograph")  # MPFT's order of clients
_FOUR = _SIX[:4]
_TRAIN = (33525, 50416, 120906, 48212, 120750, 36023)  # as _SIX
_TEST = {  # per number of classes; those of the first K from MPFT's released results
    345: (14604, 21850, 52041, 20916, 51750, 15582), 10: (308, 865, 974, 530, 1500, 174),
    50: (1811, 3530, 7370, 3122, 7500, 2096), 100: (3737, 6255, 14873, 4794, 15000, 3349),
    150: (6266, 9436, 23170, 7693, 22500, 5353)}
_BU = "http://csr.bu.edu/ftp/visda/2019/multi-source/"
_MME = "https://raw.githubusercontent.com/VisionLearningGroup/SSDA_MME/master/data/txt/multi/"
_ZIPS = {  # clipart and painting are the cleaned ones; md5 sums and sizes as in datasets-mila/datasets--domainnet
    "clipart": ("groundtruth/clipart.zip", "cd0d8f2d77a4e181449b78ed62bccf1e", 1270909081),
    "painting": ("groundtruth/painting.zip", "1ae32cdb4f98fe7ab5eb0a351768abfd", 3679366174),
    "real": ("real.zip", "dcc47055e8935767784b7162e7c7cca6", 6062039589),
    "sketch": ("sketch.zip", "658d8009644040ff7ce30bb2e820850f", 2633992926),
    "quickdraw": ("quickdraw.zip", "bdc1b6f09f277da1a263389efe0c7a66", 459920701),
    "infograph": ("infograph.zip", "720380b86f9e6ab4805bb38b6bd135f8", 4338659804)}
_LISTS = {
    "clipart_train.txt": "b4349693a7f9c05c53955725c47ed6cb", "clipart_test.txt": "f5ddbcfd657a3acf9d0f7da10db22565",
    "painting_train.txt": "7db0e7ca73ad9982f6e1f7f3ef372c0a", "painting_test.txt": "232b35dc53f26d414686ae579e38d9b5",
    "real_train.txt": "8ebf02c2075fadd564705f0dc7cd6291", "real_test.txt": "6098816791c3ebed543c71ffa11b9054",
    "sketch_train.txt": "1233bd18aa9a8a200bf4cecf1c34ef3e", "sketch_test.txt": "d8a222e4672cfd585298aa14d02ea441",
    "quickdraw_train.txt": "b732ced3939ac8efdd8c0a889dca56cc", "quickdraw_test.txt": "c1a828fdfe216fb109f1c0083a252c6f",
    "infograph_train.txt": "379b50054f4ac2018dca4f89421b92d9", "infograph_test.txt": "779626b50869edffe8ea6941c3755c71"}
_LISTS_126 = {  # sha256
    "clipart": "8f241bd8400c2e1676c8ff96a63b8917e488cc318cbcc4e97883d15567d03d92",
    "painting": "eafd460aa2fcc401b179ec3ca30f2519bf5977f94479be8d4def9cfeeba995e0",
    "real": "7a6e2eb06c4540acfbecb256be5cc2b40e5cb51ac407c87322b9801891def899",
    "sketch": "27f361fe47db52c522f84d7c0faf7801fe0e632ef9d2585cb31f68f794cb3d36"}

_USUAL = ("DomainNet", "domainnet")
_LIST_FOLDERS = ("", "splits", "txt", "list", "domainnet/txt")
_DRAWN = ("per class ceil(0.2 n) test, drawn with seed 123 (the rule of FedDEAP, whose own draw is not published); "
          "no val")
_GIVEN = "the lists <domain>_126_train.txt and <domain>_126_test.txt; no val"
_ABOUT = {
    "source": "DomainNet, cleaned version, http://ai.bu.edu/M3SDA",
    "licence": "partly copyrighted images, given by the publisher as fair use for non-commercial research",
    "citation": "Peng, Bai, Xia, Huang, Saenko, Wang: Moment matching for multi-source domain adaptation. ICCV 2019"}


@dataclass(frozen=True, eq=False)
class DomainNet:
    """One of the sets that are made of DomainNet's images: some of its domains, some of its classes."""
    NAME: str
    TITLE: str
    DOMAINS: tuple
    CLASSES: tuple   # numbers; the names come with the lists
    PUBLISHED: dict
    ABOUT: dict
    FILES: tuple
    lists: Callable  # (domain, folders to look in) -> [(list, its part)]
    labels: int      # how many the lists use
    HOW: str = "See http://ai.bu.edu/M3SDA: unpack the zips of the domains into one folder, put the lists beside them."
    SIZES: tuple = (64, 32, 96, 128, 224)
    RAW: str = "domainnet"

    def read(self, root, size, say=print, skip=None):
        """The domains as numpy arrays, and what the manifest adds: only images that the lists name are decoded.

        UserError: a domain or a list that is not there, a garbled list, listed images that are absent, a class without
        images.
        """
        place, folders = find_domains(root, self.TITLE, _USUAL, {d: (d,) for d in self.DOMAINS})
        lists = {d: self.lists(d, (place, root, folders[d])) for d in self.DOMAINS}
        undivided = [d for d, of_it in lists.items() if len(of_it) == 1]
        if 0 < len(undivided) < len(lists):
            raise UserError(f"{place} has train and test lists of some domains but lacks {undivided[0]}_126_train.txt")
        classes = {}
        listed = {d: self._listed(d, lists[d], folders[d], classes) for d in self.DOMAINS}  # all before the first pixel
        domains, shorter = {}, []
        for d, (files, y, part) in listed.items():
            x, sides, good = decode(files, size, d, skip)
            domains[d] = x, y[good], part[good]
            shorter.append(sides)
            say(f"{d}: {len(x)} images")
        updates = {"classes": [classes[k] for k in range(len(self.CLASSES))],
                   "transform": transform_text(size, np.concatenate(shorter)),
                   "notice": subset_text({key: _count(domains, key) for key in self.PUBLISHED}, self.PUBLISHED)}
        if self.lists is _lists_126:
            updates["split"] = _DRAWN if undivided else _GIVEN
        return domains, updates

    def _listed(self, domain, lists, folder, classes):
        """(files, labels, parts) of the images with labels below ours; `classes` takes the name of each label."""
        files, y, part = [], [], []
        for path, code in lists:
            for name, file, label in read_list(path, domain, self.labels):
                if label < len(self.CLASSES):
                    if bare(classes.setdefault(label, name)) != bare(name):
                        raise UserError(f"{path}: label {label} is '{name}' here and '{classes[label]}' elsewhere")
                    files.append(f"{folder}/{name}/{file}")
                    y.append(label)
                    part.append(code)
        absent = sorted(set(range(len(self.CLASSES))) - set(y))
        if absent:
            raise UserError(f"domain '{domain}' lacks the class '{classes.get(absent[0], absent[0])}': no line with "
                            f"label {absent[0]} in {' and '.join(path.name for path, _ in lists)}")
        check_listed(files, f"domain '{domain}'")
        y = np.array(y, dtype=np.int64)
        part = hold_out(y, 0.2, self.NAME, domain, 123) if len(lists) == 1 else np.array(part, dtype=np.uint8)
        return files, y, part


def read_list(path: Path, domain: str, labels: int) -> list:
    """[(class, file, label)] of a list with lines like 'clipart/aircraft_carrier/clipart_001_000001.jpg 0'."""
    rows = []
    for line in filter(str.strip, path.read_text(encoding="utf-8", errors="replace").splitlines()):
        found = re.fullmatch(r"([^/\\ ]+)/([^/\\]+)/([^/\\]+) (\d{1,4})\s*", line)
        if not found or found[1] != domain or {found[2], found[3]} & {".", ".."} or int(found[4]) >= labels:
            raise UserError(f"{path}: '{line[:80]}' is no line like '{domain}/airplane/{domain}_002_000001.jpg 1' with "
                            f"a label in 0..{labels - 1}")
        rows.append((found[2], found[3], int(found[4])))
    return rows


def _official_lists(domain, bases) -> list:
    """[(path, part)] of a domain's two lists."""
    return [(_list_of(bases, f"{domain}_{kind}.txt"), part) for kind, part in (("train", TRAIN), ("test", TEST))]


def _lists_126(domain, bases) -> list:
    """[(path, part)]: FedDEAP's train and test lists, else the one list of the 126 classes."""
    pair = [f"{domain}_126_{kind}.txt" for kind in ("train", "test")]
    if any(_first(bases, [name]) for name in pair):
        return list(zip([_list_of(bases, name) for name in pair], (TRAIN, TEST), strict=True))
    return [(_list_of(bases, f"labeled_source_images_{domain}.txt", f"{domain}_126.txt", f"{domain}_list.txt"), TRAIN)]


def _list_of(bases, *names) -> Path:
    found = _first(bases, names)
    if found is None:
        raise UserError(f"no list {' or '.join(names)} in {bases[0]}, nor in its folders "
                        f"{', '.join(filter(None, _LIST_FOLDERS))}")
    return found


def _first(bases, names) -> Path | None:
    places = (base / sub / name for name in names for base in bases for sub in _LIST_FOLDERS)
    return next((path for path in places if path.is_file()), None)


def _count(domains, key) -> int:
    """How many samples 'clipart test', 'clipart train' or 'clipart' has."""
    domain, _, kind = key.partition(" ")
    part = domains[domain][2]
    return int((part == {"train": TRAIN, "test": TEST}[kind]).sum()) if kind else len(part)


def _zip(domain) -> File:
    url, md5, size = _ZIPS[domain]
    return File(f"{domain}.zip", (_BU + url,), f"md5:{md5}", size, "", (domain,))


def _first_classes(k: int) -> DomainNet:
    """The images whose official label is below k; the labels follow the names of the classes in alphabetical order."""
    every = k == 345
    return DomainNet(
        NAME="domainnet" if every else f"domainnet_{k}",
        TITLE="DomainNet" if every else f"DomainNet, first {k} classes", lists=_official_lists, labels=345,
        DOMAINS=_SIX, CLASSES=tuple(map(str, range(k))),
        PUBLISHED={f"{d} {kind}": n for d, *counts in zip(_SIX, _TRAIN, _TEST[k], strict=True)
                   for kind, n in zip(("train", "test"), counts, strict=True) if every or kind == "test"},
        ABOUT=_ABOUT | {"split": "official lists <domain>_train.txt and <domain>_test.txt; no val"},
        FILES=tuple(File(name, (f"{_BU}domainnet/txt/{name}",), f"md5:{md5}", 5_000_000, domains=(name.split("_")[0],))
                    for name, md5 in _LISTS.items()) + tuple(map(_zip, _SIX)))


DOMAINNET, K10, K50, K100, K150 = map(_first_classes, (345, 10, 50, 100, 150))
D126 = DomainNet(
    NAME="domainnet_126", TITLE="DomainNet-126", lists=_lists_126, labels=126, DOMAINS=_FOUR,
    CLASSES=tuple(map(str, range(126))),
    PUBLISHED=dict(zip(_FOUR, (18703, 31502, 70358, 24582), strict=True)),
    ABOUT=_ABOUT | {"split": _DRAWN, "citation": _ABOUT["citation"] + "; Saito, Kim, Sclaroff, Darrell, Saenko: "
                    "Semi-supervised domain adaptation via minimax entropy. ICCV 2019 (the 126 classes)"},
    FILES=tuple(File(f"labeled_source_images_{d}.txt", (f"{_MME}labeled_source_images_{d}.txt",), f"sha256:{sha}",
                     3_000_000, domains=(d,)) for d, sha in _LISTS_126.items()) + tuple(map(_zip, _FOUR)))
SETS = {s.NAME: s for s in (DOMAINNET, K10, K50, K100, K150, D126)}


if __name__ == "__main__":
    from fedlib.cli import main
    named = len(sys.argv) > 1 and sys.argv[1] in SETS  # python data_scripts/domainnet.py domainnet_50 --size 32
    main("data", *([] if named else [DOMAINNET.NAME]))
