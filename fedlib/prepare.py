"""Prepared sets: the one format between raw files and a federation.

A set is two files in `folder()`: `<name>-<size>.safetensors` holds, for every domain d, `d/x` uint8 (N,3,size,size),
`d/y` int64 (N,) and `d/part` uint8 (N,); `<name>-<size>.json` is its manifest (counts, digest, source, transform,
split, licence). The set is there only when both are, and agree.
"""
import argparse
import hashlib
import importlib
import json
import os
import secrets
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from fedlib.errors import UserError, pick

FORMAT = 1
TRAIN, VAL, TEST, PUBLIC = range(4)  # public samples never enter a federation
PARTS = ("train", "val", "test", "public")
ABOUT = ("source", "transform", "split", "licence", "citation", "notice", "recipe")
HASH_LIMIT = 64 * 2**20  # load() hashes files below this size; verify() hashes any
DATASETS = {
    "mini_digits": "fedlib.mini_digits",
    "office_caltech": "data_scripts.office_caltech",
    "pacs": "data_scripts.pacs",
    "digits": "data_scripts.digits",
}
BUILT_IN = ("mini_digits",)  # needs no raw files


class Prepared(NamedTuple):
    """A prepared set: its manifest and its tensors `d/x`, `d/y`, `d/part`, memory-mapped from the file."""
    manifest: dict
    tensors: dict


def folder() -> Path:
    """Where prepared sets live: FEDLIB_DATA, else ~/.cache/fedlib."""
    return Path(os.environ.get("FEDLIB_DATA") or "~/.cache/fedlib").expanduser()


def module(name: str):
    """The module that reads a data set. UserError with the nearest name when it is unknown."""
    return importlib.import_module(DATASETS[pick("dataset", name, DATASETS)])


def prepare(name: str, size: int | None = None, root=None, say=print) -> dict:
    """Read the raw files below root (else FEDLIB_RAW), write the prepared set, return its manifest.

    UserError: unknown name or size, no root for a real set, raw files that are not as published, no space.
    """
    reader = module(name)
    size = _size(reader, size)
    root = root or os.environ.get("FEDLIB_RAW") or None
    if name not in BUILT_IN:
        if root is None:
            raise UserError(f"{name} needs its raw files: pass --from DIR, or set FEDLIB_RAW to the folder with them")
        root = Path(root).expanduser()
        if not root.is_dir():
            raise UserError(f"no such folder: {root} (raw files of {name})")
    domains, updates = reader.read(root, size, say)
    return write(name, size, reader.CLASSES, domains, {**reader.ABOUT, **updates})


def write(name: str, size: int, classes, domains: dict, about: dict) -> dict:
    """Write a set from numpy arrays, domains = {d: (x, y, part)}, and return its manifest.

    Both files are written under temporary names and then moved, the manifest last, so a reader never sees half a file.
    The bytes depend on the arrays only: two processes that prepare the same set at once write the same files.
    """
    tensors = {}
    for d, arrays in domains.items():
        for key, array in zip(("x", "y", "part"), arrays, strict=True):
            tensors[f"{d}/{key}"] = np.ascontiguousarray(array)
        _check_arrays(d, size, len(classes), *arrays)
    manifest = {"format": FORMAT, "name": name, "size": size, "classes": list(classes),
                "domains": {d: _counts(y, part, len(classes)) for d, (_, y, part) in domains.items()}}
    data, about_it = paths(name, size)
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        with _moved_into(about_it) as listing, _moved_into(data) as arrays:  # left in reverse: the manifest moves last
            safetensors.numpy.save_file(tensors, arrays, metadata={"fedlib": f"{name}-{size}"})
            manifest |= {"bytes": arrays.stat().st_size, "digest": _sha256(arrays)}
            manifest |= {key: about.get(key, "") for key in ABOUT}
            listing.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            arrays.chmod(listing.stat().st_mode & 0o777)  # safetensors writes for the owner only; follow the umask
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise UserError(f"cannot write {data}: {why} (FEDLIB_DATA names another folder)") from None
    return manifest


def load(name: str, size: int | None = None) -> Prepared:
    """The prepared set, memory-mapped. An absent one is built when that needs no raw files or FEDLIB_RAW names them.

    UserError: unknown name or size, a set that is not prepared, a file that is damaged or not ours.
    """
    reader = module(name)
    size = _size(reader, size)
    data, about_it = paths(name, size)
    if not (data.exists() and about_it.exists()) or _outdated(reader, about_it):
        if name not in BUILT_IN and not os.environ.get("FEDLIB_RAW"):
            raise UserError(f"{name} at {size} px is not prepared; run: {_command(name, size)}")
        print(f"preparing {name} at {size} px in {data.parent}", file=sys.stderr)
        prepare(name, size, say=lambda line: print(line, file=sys.stderr))
    return _open(name, size, hash_limit=HASH_LIMIT)


def verify(name: str, size: int | None = None) -> dict:
    """The manifest of a prepared set, after comparing the whole file with its sha256. UserError when they differ."""
    return _open(name, _size(module(name), size), hash_limit=float("inf")).manifest


def paths(name: str, size: int) -> tuple[Path, Path]:
    """The safetensors file and the manifest of a set."""
    return folder() / f"{name}-{size}.safetensors", folder() / f"{name}-{size}.json"


def main(name: str, argv=None) -> int:
    """The command line of one data script: prepare the set, print its counts. Returns the exit code."""
    reader = module(name)
    parser = argparse.ArgumentParser(description=f"{reader.TITLE}: from raw files to one prepared file.")
    parser.add_argument("--from", dest="root", metavar="DIR", help="folder with the raw files (default: FEDLIB_RAW)")
    parser.add_argument("--size", type=int, help=f"pixels: {_listed(reader.SIZES)} (default: {reader.SIZES[0]})")
    given = parser.parse_args(argv)
    try:
        print(summary(prepare(name, given.size, given.root)))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def summary(manifest: dict) -> str:
    """The counts of a manifest as lines a person reads."""
    lines = [f"{manifest['name']} at {manifest['size']} px: {paths(manifest['name'], manifest['size'])[0]}"]
    for d, n in manifest["domains"].items():
        lines.append(f"  {d:14}" + "  ".join(f"{part} {n[part]:6d}" for part in PARTS if n.get(part)))
    return "\n".join(lines + [f"  notice: {manifest['notice']}"] * bool(manifest["notice"]))


def _outdated(reader, listing: Path) -> bool:
    """Was an embedded set built by an older recipe? Then it is built again; a set from raw files stays as it is."""
    try:
        return reader.NAME in BUILT_IN and json.loads(listing.read_text())["recipe"] != reader.ABOUT.get("recipe", "")
    except (OSError, ValueError, KeyError, TypeError):
        return False        # `_open` says what is wrong with it


def _size(reader, size) -> int:
    size = reader.SIZES[0] if size is None else size
    if size not in reader.SIZES:
        raise UserError(f"{reader.NAME} has no size {size} (sizes: {_listed(reader.SIZES)})")
    return size


def _listed(values) -> str:
    return ", ".join(map(str, values))


def _command(name, size) -> str:
    return f"fedlib data {name}{'' if name in BUILT_IN else ' --from DIR'} --size {size}"


def _check_arrays(d, size, classes, x, y, part):
    n = len(x)
    if x.dtype != np.uint8 or x.shape != (n, 3, size, size):
        raise ValueError(f"{d}/x is {x.dtype} {x.shape}, not uint8 ({n}, 3, {size}, {size})")
    if y.dtype != np.int64 or y.shape != (n,) or not ((0 <= y) & (y < classes)).all():
        raise ValueError(f"{d}/y is not int64 ({n},) in 0..{classes - 1}")
    if part.dtype != np.uint8 or part.shape != (n,) or not (part < len(PARTS)).all():
        raise ValueError(f"{d}/part is not uint8 ({n},) in 0..{len(PARTS) - 1}")


def _counts(y, part, classes) -> dict:
    by_part = np.bincount(part, minlength=len(PARTS)).tolist()
    shown = {name: n for name, n in zip(PARTS, by_part, strict=True) if n or name != "public"}
    return shown | {"per_class": np.bincount(y, minlength=classes).tolist()}


@contextmanager
def _moved_into(path: Path):
    """A temporary path beside `path`: moved over it when the block succeeds, removed when it fails."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open(name, size, hash_limit) -> Prepared:
    data, about_it = paths(name, size)
    again = f"make it again: {_command(name, size)}"
    try:
        manifest = _read_manifest(about_it, name, size)
        wanted = {f"{d}/{key}": kind for d, n in manifest["domains"].items() for key, kind in _kinds(n, size).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{about_it} is not the manifest of {name} at {size} px ({_why(error)}); {again}") from None
    try:
        tensors = _read_tensors(data, manifest, wanted, hash_limit)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{data} is damaged or not ours ({_why(error)}); {again}") from None
    return Prepared(manifest, tensors)


def _why(error) -> str:
    text = str(error).splitlines()[0] if str(error) else type(error).__name__
    return f"no {text}" if isinstance(error, KeyError) else text


def _read_manifest(path, name, size) -> dict:
    manifest = json.loads(path.read_text(encoding="utf-8"))
    for key, value in {"format": FORMAT, "name": name, "size": size}.items():
        if manifest[key] != value:
            raise ValueError(f"{key} is {manifest[key]!r}, not {value!r}")
    for key, kind in {"classes": list, "domains": dict, "bytes": int, "digest": str}.items():
        if not isinstance(manifest[key], kind):
            raise ValueError(f"{key} is no {kind.__name__}")
    return manifest


def _kinds(counts, size) -> dict:
    n = sum(counts["per_class"])
    if n != sum(counts.get(part, 0) for part in PARTS):
        raise ValueError("its counts by part and by class differ")
    return {"x": ("U8", [n, 3, size, size]), "y": ("I64", [n]), "part": ("U8", [n])}


def _read_tensors(path, manifest, wanted, hash_limit) -> dict:
    found = path.stat().st_size
    if found != manifest["bytes"]:
        raise ValueError(f"it has {found} bytes, its manifest says {manifest['bytes']}")
    if found < hash_limit and _sha256(path) != manifest["digest"]:
        raise ValueError("its sha256 is not the manifest's digest")
    with safe_open(path, framework="pt") as file:
        slices = {key: file.get_slice(key) for key in file.keys()}
        if {key: (s.get_dtype(), list(s.get_shape())) for key, s in slices.items()} != wanted:
            raise ValueError("its tensors are not those of its manifest")
        return {key: file.get_tensor(key) for key in wanted}
