"""Prepared sets: the one format between raw files and a federation.

A set is two files in `folder()`: `<name>-<size>.safetensors` holds, for every domain d, `d/x`, `d/y` int64 (N,) and
`d/part` uint8 (N,); `<name>-<size>.json` is its manifest (counts, digest, source, transform, split, licence). x is
uint8 (N,3,size,size) images, int32 (N,size) token ids or float16 (N,size) features. The set is there only when both
files are, and agree.
"""
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from fedlib.core import schema
from fedlib.core.errors import UserError, first_line, pick
from fedlib.core.files import moved_into
from fedlib.datasets.registry import built_in, every, reader_of

FORMAT = 1
TRAIN, VAL, TEST, PUBLIC = range(4)  # public samples never enter a federation
PARTS = ("train", "val", "test", "public")
ABOUT = ("source", "transform", "split", "licence", "citation", "notice", "recipe", "files", "skipped", "names",
         "words", "columns")
HASH_LIMIT = 64 * 2**20  # load_set() hashes files below this size; verify() hashes any
CHUNK = 16 * 2**20
MANIFEST = {"classes": [str], "domains": {str: {"per_class": [int]}}, "bytes": int, "digest": str, "kind?": str,
            "notice?": str, "split?": str, "names?": {str: str}, "words?": list | str,      # what readers use
            "columns?": list | str, "users?": {str: {str: int}}}
DTYPES = {"int64": "I64", "int32": "I32", "float32": "F32", "float16": "F16", "uint8": "U8"}    # as safetensors orders
KINDS = {"images": ("uint8",), "tokens": ("int32",), "features": ("float16", "float32")}
UNITS = {"images": "px", "tokens": "tokens", "features": "features"}


class Prepared(NamedTuple):
    """A prepared set: its manifest and its tensors `d/x`, `d/y`, `d/part`, memory-mapped from the file."""
    manifest: dict
    tensors: dict


def folder() -> Path:
    """Where prepared sets live: FEDLIB_DATA, else ~/.cache/fedlib."""
    return Path(os.environ.get("FEDLIB_DATA") or "~/.cache/fedlib").expanduser()


def prepare(name: str, size: int | None = None, root=None, say=print, skip_corrupt: bool = False,
            download: bool = False, domains: tuple = ()) -> dict:
    """Read the raw files below root, else FEDLIB_RAW, else downloaded ones; write the set; return its manifest.

    skip_corrupt leaves unreadable images out and names them in the manifest; download fetches the published files even
    where FEDLIB_RAW is set, only those of `domains` if any are named.
    UserError: unknown name, size or domain, raw files that are not as published, no space, no source that answers.
    """
    reader = reader_of(name)
    size = _size(reader, size)
    for d in domains:
        pick(f"domain of {name}", d, reader.DOMAINS)
    if domains and not getattr(reader, "PARTIAL", False):
        raise UserError(f"{name} is prepared with all its domains: leave out --domains")
    place, files = raw_files(reader, root, say, download, domains)
    skipped = [] if skip_corrupt else None
    try:
        arrays, updates = reader.read(place, size, say, *([skipped] if skip_corrupt else []))
    except UserError as error:
        if not files:
            raise
        raise UserError(f"{error} (downloaded into {place}; delete that folder to get the files again)") from None
    if skipped:
        say(f"left out, not readable: {len(skipped)} images, the first is {skipped[0]}")
    skipped = [line.replace(f"{place}/", "") for line in skipped or []]      # a manifest names no folder of its maker
    about = {**reader.ABOUT, **updates, "kind": _kind(reader), "files": files, "skipped": skipped}
    return write_set(name, size, updates.get("classes", reader.CLASSES), arrays, about)


def raw_files(reader, root, say, download: bool = False, domains: tuple = ()) -> tuple[Path | None, list]:
    """The folder to read from, and what was downloaded into it: [{"name", "url", "sha256", "bytes"}].

    An archive under its published name in the user's folder is unpacked beside the prepared sets, never in that folder.
    """
    if built_in(reader.NAME):
        return None, []
    from fedlib.datasets.download import adopt, fetch, fetch_what_answers, got, locked

    mine = folder() / "raw" / getattr(reader, "RAW", reader.NAME)
    root = root or (None if download else os.environ.get("FEDLIB_RAW")) or None
    if root is not None:
        root = Path(root).expanduser()
        if not root.is_dir():
            raise UserError(f"no such folder: {root} (raw files of {reader.NAME})")
        return adopt(reader.FILES, root, mine / "own", say) or root, []     # apart from what fetch trusts and replaces
    if not reader.FILES:
        raise UserError(f"{reader.NAME} cannot be downloaded by a program. {reader.HOW} "
                        f"Then: fedlib data {reader.NAME} --from DIR")
    wanted = [f for f in reader.FILES if not (f.domains and domains) or set(f.domains) & set(domains)]
    with locked(mine, say):
        if getattr(reader, "PARTIAL", False) and not domains:
            fetch_what_answers(wanted, mine, say)
        else:
            fetch(wanted, mine, say)
        return mine, got(reader.FILES, mine)        # also those that an earlier call brought


def write_set(name: str, size: int, classes, domains: dict, about: dict) -> dict:
    """Write a set from numpy arrays, domains = {d: (x, y, part)}, and return its manifest.

    Both files are written under temporary names and then moved, the manifest last, so a reader never sees half a file.
    The bytes depend on the arrays only: two processes that prepare the same set at once write the same files.
    """
    tensors, kind = {}, about.get("kind", "images")
    for d, arrays in domains.items():
        for key, array in zip(("x", "y", "part"), arrays, strict=True):
            tensors[f"{d}/{key}"] = np.ascontiguousarray(array)
        _check_arrays(d, kind, size, len(classes), *arrays)
    _check_classes(name, classes, domains)
    manifest = {"format": FORMAT, "name": name, "kind": kind, "size": size, "classes": list(classes),
                "domains": {d: _counts(y, part, len(classes)) for d, (_, y, part) in domains.items()}}
    data, about_it = paths(name, size)
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        with moved_into(about_it) as listing, moved_into(data) as arrays:  # left in reverse: the manifest moves last
            manifest["digest"] = save(tensors, arrays, f"{name}-{size}")
            manifest["bytes"] = arrays.stat().st_size
            manifest |= {key: about.get(key, "") for key in ABOUT}
            manifest["users"] = about.get("users") or {}
            manifest["names"] = {d: _of_names(names) for d, names in (about.get("names") or {}).items()}
            listing.write_text(json.dumps(manifest, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {data}: {error.strerror or error} (FEDLIB_DATA names another folder)") from None
    return manifest


def load_set(name: str, size: int | None = None) -> Prepared:
    """The prepared set, memory-mapped. An absent one is built when that needs no raw files or FEDLIB_RAW names them.

    UserError: unknown name or size, a set that is not prepared, a file that is damaged or not ours.
    """
    reader = reader_of(name)
    size = _size(reader, size)
    data, about_it = paths(name, size)
    if not (data.exists() and about_it.exists()) or _outdated(reader, about_it):
        if not built_in(name) and not os.environ.get("FEDLIB_RAW"):
            raise UserError(f"{name} at {with_unit(name, size)} is not prepared; run: {_command(name, size)}")
        print(f"preparing {name} at {with_unit(name, size)} in {data.parent}", file=sys.stderr)
        prepare(name, size, say=lambda line: print(line, file=sys.stderr))
    return _open(name, size, hash_limit=HASH_LIMIT)


def verify(name: str, size: int | None = None) -> dict:
    """The manifest of a prepared set, after comparing the whole file with its sha256. UserError when they differ."""
    return _open(name, _size(reader_of(name), size), hash_limit=float("inf")).manifest


def paths(name: str, size: int) -> tuple[Path, Path]:
    """The safetensors file and the manifest of a set."""
    return folder() / f"{name}-{size}.safetensors", folder() / f"{name}-{size}.json"


def summary(manifest: dict) -> str:
    """The counts of a manifest as lines a person reads."""
    name, size = manifest["name"], manifest["size"]
    width, skipped, notice = max(map(len, manifest["domains"])), manifest.get("skipped"), manifest["notice"]
    lines = [f"{name} at {with_unit(name, size)}: {paths(name, size)[0]}",
             *(f"  {d:{width}}  " + "  ".join(f"{part} {n[part]:6d}" for part in PARTS if n.get(part))
               for d, n in manifest["domains"].items())]
    lines += [f"  skipped: {len(skipped or ())} unreadable images, named in the manifest"] * bool(skipped)
    return "\n".join(lines + [f"  notice: {notice}"] * bool(notice))


def _outdated(reader, listing: Path) -> bool:
    """Was an embedded set built by an older recipe? Then it is built again; a set from raw files stays as it is."""
    try:
        return built_in(reader.NAME) and schema.parsed(listing.read_text())["recipe"] != reader.ABOUT.get("recipe", "")
    except (OSError, ValueError, KeyError, TypeError):
        return False        # `_open` says what is wrong with it


def _size(reader, size) -> int:
    size = reader.SIZES[0] if size is None else size
    if size not in reader.SIZES:
        raise UserError(f"{reader.NAME} has no size {size} (sizes: {', '.join(map(str, reader.SIZES))})")
    return size


def _kind(reader) -> str:
    return getattr(reader, "KIND", "images")


def with_unit(name, size) -> str:
    return f"{size} {UNITS[_kind(reader_of(name))]}"


def _command(name, size) -> str:
    if built_in(name):
        return f"fedlib data {name} --size {size}"
    by_hand = not getattr(reader_of(name), "FILES", ())
    return f"fedlib data {name} --size {size}{' --from DIR' * by_hand}" + " (or with --from DIR)" * (not by_hand)


def _shape(kind, n, size) -> tuple:
    return (n, 3, size, size) if kind == "images" else (n, size)


def _check_arrays(d, kind, size, classes, x, y, part):
    n = len(x)
    if str(x.dtype) not in KINDS[kind] or x.shape != _shape(kind, n, size):
        raise ValueError(f"{d}/x is {x.dtype} {x.shape}, not {KINDS[kind][0]} {_shape(kind, n, size)}")
    if y.dtype != np.int64 or y.shape != (n,) or not ((0 <= y) & (y < classes)).all():
        raise ValueError(f"{d}/y is not int64 ({n},) in 0..{classes - 1}")
    if part.dtype != np.uint8 or part.shape != (n,) or not (part < len(PARTS)).all():
        raise ValueError(f"{d}/part is not uint8 ({n},) in 0..{len(PARTS) - 1}")


def _check_classes(name, classes, domains):
    held = np.unique(np.concatenate([y for _, y, _ in domains.values()]))
    absent = [str(classes[k]) for k in sorted(set(range(len(classes))) - set(held.tolist()))]
    if absent:
        raise UserError(f"{name}: no sample of the class '{absent[0]}'"
                        + (f" and of {len(absent) - 1} others" if absent[1:] else "") + "; the raw files are not whole")


def _of_names(names: list) -> str:
    """What two copies of a set with the same files in the same order have in common."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]


def save(tensors: dict, path: Path, title: str, **about: str) -> str:
    """Write a safetensors file chunk by chunk (the library would hold all of it in memory); returns its sha256.

    The bytes are those of safetensors.numpy.save_file: by falling size of the type, then by name.
    """
    rank = list(DTYPES)
    order = sorted(tensors, key=lambda k: (rank.index(str(tensors[k].dtype)), k))
    header, start = {"__metadata__": {"fedlib": title, **about}}, 0
    for key in order:
        a = tensors[key]
        header[key] = {"dtype": DTYPES[str(a.dtype)], "shape": list(a.shape), "data_offsets": [start, start + a.nbytes]}
        start += a.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    sha = hashlib.sha256()
    with open(path, "wb") as file:
        for piece in (len(text).to_bytes(8, "little"), text, *(tensors[key] for key in order)):
            whole = memoryview(piece if isinstance(piece, bytes) else piece.reshape(-1).view(np.uint8))
            for at in range(0, len(whole), CHUNK):
                file.write(whole[at:at + CHUNK])
                sha.update(whole[at:at + CHUNK])
        file.flush()
        os.fsync(file.fileno())
    return sha.hexdigest()


def _counts(y, part, classes) -> dict:
    by_part = np.bincount(part, minlength=len(PARTS)).tolist()
    shown = {name: n for name, n in zip(PARTS, by_part, strict=True) if n or name != "public"}
    return shown | {"per_class": np.bincount(y, minlength=classes).tolist()}


def _open(name, size, hash_limit) -> Prepared:
    data, about_it = paths(name, size)
    again = f"make it again: {_command(name, size)}"
    try:
        manifest = _read_manifest(about_it, name, size)
        wanted = {f"{d}/{key}": shape for d, n in manifest["domains"].items()
                  for key, shape in _shapes(n, manifest.get("kind", "images"), size).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{about_it} is not the manifest of {name} at {with_unit(name, size)} ({first_line(error)}); "
                        f"{again}") from None
    try:
        tensors = _read_tensors(data, manifest, wanted, hash_limit)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{data} is damaged or not ours ({first_line(error)}); {again}") from None
    return Prepared(manifest, tensors)


def _read_manifest(path, name, size) -> dict:
    manifest = schema.parsed(path.read_text(encoding="utf-8"))
    schema.check(manifest, {"format": object, "name": object, "size": object})
    for key, value in {"format": FORMAT, "name": name, "size": size}.items():
        if manifest[key] != value:
            raise ValueError(f"{key} is {manifest[key]!r}, not {value!r}")
    return schema.check(manifest, MANIFEST)


def _shapes(counts, kind, size) -> dict:
    n = sum(counts["per_class"])
    if n != sum(counts.get(part, 0) for part in PARTS):
        raise ValueError("its counts by part and by class differ")
    return {"x": ([DTYPES[t] for t in KINDS[kind]], list(_shape(kind, n, size))), "y": (["I64"], [n]),
            "part": (["U8"], [n])}


def _read_tensors(path, manifest, wanted, hash_limit) -> dict:
    found = path.stat().st_size
    if found != manifest["bytes"]:
        raise ValueError(f"it has {found} bytes, its manifest says {manifest['bytes']}")
    with open(path, "rb") as file:
        if found < hash_limit and hashlib.file_digest(file, "sha256").hexdigest() != manifest["digest"]:
            raise ValueError("its sha256 is not the manifest's digest")
    with safe_open(path, framework="pt") as file:
        slices = {key: file.get_slice(key) for key in file.keys()}
        if slices.keys() != wanted.keys() or not all(
                s.get_dtype() in wanted[key][0] and list(s.get_shape()) == wanted[key][1] for key, s in slices.items()):
            raise ValueError("its tensors are not those of its manifest")
        tensors = {key: file.get_tensor(key) for key in wanted}
    classes = len(manifest["classes"])
    for d, n in manifest["domains"].items():
        y, part = tensors[f"{d}/y"], tensors[f"{d}/part"]
        if len(y) and (y.min() < 0 or y.max() >= classes) or part.numpy().max(initial=0) >= len(PARTS) \
                or _counts(y.numpy(), part.numpy(), classes) != {k: n[k] for k in (*PARTS, "per_class") if k in n}:
            raise ValueError(f"the labels of {d} are not those of its manifest")
    return tensors


# the command's list

def listing() -> list[dict]:
    """One entry for each dataset: name, title, domains, classes, sizes, those prepared here, licence."""
    readers = {name: reader_of(name) for name in every()}
    return [{"name": name, "title": r.TITLE, "domains": list(r.DOMAINS), "classes": len(r.CLASSES),
             "sizes": list(r.SIZES), "prepared": [s for s in r.SIZES if all(p.exists() for p in paths(name, s))],
             "licence": r.ABOUT.get("licence", "")} for name, r in readers.items()]


def listing_text(lines: list[dict]) -> str:
    """The entries for a reader."""
    return "\n".join(f"{line['name']:<15} {line['title']}\n{'':<15} {line['classes']} classes; domains "
                     f"{', '.join(line['domains'])}\n{'':<15} prepared: "
                     + (", ".join(with_unit(line["name"], s) for s in line["prepared"]) or "not yet") + "\n"
                     for line in lines)
