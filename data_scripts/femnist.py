"""FEMNIST: characters by 3,550 writers, as LEAF gives them: a client for each writer (Caldas et al., 2018).

`natural = true` makes each writer a client with test samples of its own.
"""
import numpy as np

from fedlib.core import schema
from fedlib.core.errors import UserError
from fedlib.core.seeds import key
from fedlib.datasets.prepare import TEST, TRAIN
from fedlib.readers.image_folder import resize_all, room, subset_text

NAME = "femnist"
TITLE = "FEMNIST"
DOMAINS = ("femnist",)
CLASSES = (*"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",)
SIZES = (28, 32)
PUBLISHED = {"femnist": 805263}
WRITERS = 3550
KINDS = {"train": TRAIN, "test": TEST}
FILES = ()
HOW = ("LEAF's script makes it of NIST's Special Database 19: data/femnist/preprocess.sh -s niid --sf 1.0 -k 0 "
       "-t sample, in https://github.com/TalwalkarLab/leaf.")
ABOUT = {
    "source": "FEMNIST of LEAF (28 px, grey, black on white), of NIST's Special Database 19",
    "split": "LEAF's train and test where they are, else of each writer's images ceil(0.1 n) are test, drawn with a "
             "fixed key; no val",
    "licence": "of NIST's database: public domain; LEAF's scripts: BSD 2-Clause",
    "citation": "Caldas et al.: LEAF: a benchmark for federated settings. arXiv:1812.01097; Cohen et al.: EMNIST. "
                "IJCNN 2017, arXiv:1702.05373",
}

_FOLDERS = ("", "data", "femnist", "femnist/data", "leaf/data/femnist/data", "data/femnist/data")
_FORM = {"users": [str], "user_data": {str: {"x": list, "y": [int]}}}
_CHUNK = 2**14      # images that are resized at once


def read(root, size, say=print, skip=None):
    """The one domain as numpy arrays, writer after writer, and what the manifest adds: `users`, images of each.

    UserError: no LEAF files, or one that is garbled; a writer who is in two files of one part.
    """
    place, found = next(((root / f, parts) for f in _FOLDERS if (parts := listed(root / f))), (root, {}))
    if not found:
        raise UserError(f"no {TITLE} in {root}: looked for all_data/*.json, or train/*.json and test/*.json, there and "
                        f"in {', '.join(_FOLDERS[1:])}. {HOW}")
    writers, seen = {}, set()       # by name: [(images (n,28,28), labels (n,), parts (n,)), ...]
    for kind, paths in found.items():
        for path in paths:
            for user, x, y in read_leaf(path):
                if (user, kind) in seen:
                    raise UserError(f"{path}: the writer {user} is in another file of {place} too")
                seen.add((user, kind))
                part = drawn(user, len(y)) if kind == "all_data" else np.full(len(y), KINDS[kind], np.uint8)
                writers.setdefault(user, []).append((x, y, part))
        say(f"{kind}: {len(paths)} files of {place}")
    users = {user: n for user in sorted(writers) if (n := sum(len(y) for _, y, _ in writers[user]))}
    if not users:
        raise UserError(f"{place} holds no images")
    images, y, part = map(np.concatenate, zip(*(piece for user in users for piece in writers[user])))
    x = room((len(y), 3, size, size))
    for start in range(0, len(y), _CHUNK):
        x[start:start + _CHUNK] = resize_all(images[start:start + _CHUNK], size, NAME)
    say(f"{NAME}: {len(y)} images of {len(users)} writers")
    resized = f"; resized to {size}x{size}, bilinear" if size != 28 else ""
    notice = subset_text({NAME: len(y)}, PUBLISHED)
    return {NAME: (x, y, part)}, {
        "transform": f"grey repeated to 3 channels{resized}", "users": {NAME: users},
        "notice": notice and f"{notice}, of {len(users)} of {WRITERS} writers"}


def listed(place) -> dict:
    """{kind: LEAF's files of it} below a folder: train and test, else all_data; {} where there are none."""
    found = {kind: sorted((place / kind).glob("*.json")) for kind in (*KINDS, "all_data")}
    whole = next((some for some in (tuple(KINDS), ("all_data",)) if all(found[kind] for kind in some)), ())
    return {kind: found[kind] for kind in whole}


def read_leaf(path):
    """Yield (writer, images uint8 (n,28,28), labels int64 (n,)). UserError: not LEAF's form, or values out of range."""
    try:
        held = schema.check(schema.parsed(path.read_text(encoding="utf-8")), _FORM)
        for user in held["users"]:
            data = held["user_data"][user]
            if {len(image) for image in data["x"]} - {784} or len(data["x"]) != len(data["y"]):
                raise ValueError(f"{user} has not 784 pixels for each label")
            x, y = np.array(data["x"], dtype=np.float64).reshape(-1, 28, 28), np.array(data["y"], dtype=np.int64)
            if not ((x >= 0) & (x <= 1)).all() or not ((y >= 0) & (y < len(CLASSES))).all():
                raise ValueError(f"{user} has pixels outside 0..1, or labels outside 0..{len(CLASSES) - 1}")
            yield user, (255 * x).round().astype(np.uint8), y
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is no file of LEAF's FEMNIST ({error})") from None


def drawn(user: str, n: int) -> np.ndarray:
    """Parts uint8 (n,) of a writer's n images: ceil(0.1 n) are test."""
    part = np.full(n, TRAIN, np.uint8)
    part[np.random.default_rng(key("hold out", NAME, user)).permutation(n)[:-(-n // 10)]] = TEST
    return part


if __name__ == "__main__":
    from fedlib.cli import main
    main("data", NAME)
