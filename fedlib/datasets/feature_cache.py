"""Features of a frozen encoder, computed once for a prepared set and read by every run.

Beside the set lies `<name>-<size>-<encoder>-<key>.safetensors`: for each domain d a tensor `d` float16 (N, D), its rows
in the set's order, and where the encoder has a text tower the domain's text head `head/d` float32 (C, D). Labels and
parts stay in the set. The file's metadata say what it was made of; the key digests that: encoder, its weights, its
transform, the type of numbers, the set and the templates of the texts. Pieces of a pass that is not finished lie in
the folder `.<file>.pieces`.
"""
import hashlib
import json
import re
import shutil
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from fedlib.core import machine
from fedlib.core.errors import UserError, first_line
from fedlib.core.files import moved_into
from fedlib.datasets import prepare
from fedlib.models import class_heads, encoders
from fedlib.models.encoders import Encoder

FORMAT = 2
DTYPE = "float16"
PIECE = 1024        # images between two writes; a killed pass repeats fewer than that
SPOTS = 2           # rows of each domain that are computed anew for a file made elsewhere
HEAD = "head/"
CLOSE = 0.02        # largest |z - z'| / |z'| of such a row: processors round differently
KEY = ("encoder", "weights", "transform", "dtype", "set", "texts")


class Features(NamedTuple):
    """What was made of what, {domain: `(N, D)` float16}, memory-mapped from the file, and {domain: its text head}."""
    about: dict
    tensors: dict
    heads: dict


# read

def load_features(name: str, size: int | None, encoder: str) -> Features:
    """The features of a prepared set under an encoder, which need not be here; "NAME#1a2b" asks for weights 1a2b...

    UserError: not made yet, several weights of the same name, a file that is damaged.
    """
    manifest = prepare.load_set(name, size).manifest
    wanted, _, weights = encoder.partition("#")
    there = {path: about for path, about in _there(manifest, wanted).items() if about["weights"].startswith(weights)}
    command = f"fedlib features --encoder {wanted} --data {name} --size {manifest['size']}"
    if not there:
        raise UserError(f"{name} at {manifest['size']} px has no features of {encoder}; run: {command} (or with --from "
                        "FILE, made on another machine from the same prepared set)")
    if len(there) > 1:
        pins = ", ".join(f"{wanted}#{about['weights'][:8]}" for about in there.values())
        files = ", ".join(path.name for path in there)
        raise UserError(f"{name} at {manifest['size']} px has features of {len(there)} encoders {encoder} with other "
                        f"weights or transforms: name one of {pins}, or delete those not meant ({files})")
    path = next(iter(there))
    try:
        return _read(path, manifest, whole=path.stat().st_size < prepare.HASH_LIMIT)
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{path} is damaged or not ours ({first_line(error)}); delete it and run: {command}") from None


def origin(features: Features) -> dict:
    """What a record says of its features."""
    return {k: features.about[k] for k in ("encoder", "weights", "transform", "dtype", "content")}


def path_of(about: dict) -> Path:
    """Where features lie: beside their prepared set, named by what they were made of."""
    key = hashlib.sha256(json.dumps([FORMAT, *(about[k] for k in KEY)]).encode()).hexdigest()[:12]
    return prepare.folder() / f"{about['name']}-{about['size']}-{_plain(about['encoder'])}-{key}.safetensors"


def _plain(encoder: str) -> str:
    return re.sub(r"[^\w.-]", "_", encoder)


def _there(manifest: dict, encoder: str) -> dict[Path, dict]:
    """The files of this encoder for this very set; UserError: one is damaged."""
    texts = class_heads.texts_digest(manifest)
    start, found = f"{manifest['name']}-{manifest['size']}-{_plain(encoder)}-", {}
    for path in sorted(prepare.folder().glob(f"{start}*.safetensors")):
        try:
            about = _about(path)
        except (OSError, ValueError, SafetensorError) as error:
            raise UserError(f"{path} is damaged or not ours ({first_line(error)}); delete it") from None
        made_of = about["encoder"], about["set"], about["texts"] or texts
        if path == path_of(about) and made_of == (encoder, manifest["digest"], texts):     # not of older templates
            found[path] = about
    return found


def _about(path: Path) -> dict:
    """The metadata of a feature file. ValueError: it has none, or lacks something."""
    with safe_open(path, "pt") as file:
        about = json.loads((file.metadata() or {}).get("about", "null"))
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise ValueError("it holds no features of this format")
    kinds = dict.fromkeys((*KEY, "name", "content"), str) | {"size": int, "dim": int}
    if any(type(about.get(k)) is not kind for k, kind in kinds.items()):
        raise ValueError("its metadata are not whole")
    return about


def _read(path: Path, manifest: dict, whole: bool) -> Features:
    """ValueError unless its tensors are those of the set and, with `whole`, have the digest that it states."""
    about = _about(path)
    shapes = {d: [sum(n["per_class"]), about["dim"]] for d, n in manifest["domains"].items()}
    looks = [*shapes, class_heads.PLAIN] if about["texts"] else []
    made = {f"{HEAD}{d}": [len(manifest["classes"]), about["dim"]] for d in looks}
    with safe_open(path, "pt") as file:
        slices = {d: file.get_slice(d) for d in file.keys()}
        if {d: s.get_shape() for d, s in slices.items()} != shapes | made:
            raise ValueError(f"its tensors are not {shapes | made}")
        if about["dtype"] != DTYPE or any(slices[d].get_dtype() != prepare.DTYPES[DTYPE] for d in shapes):
            raise ValueError(f"its numbers are not {DTYPE}")
        tensors = {d: file.get_tensor(d) for d in slices}
    if whole and content(tensors) != about["content"]:
        raise ValueError("its numbers are not those that were written")
    return Features(about, {d: tensors[d] for d in shapes}, {d: tensors[f"{HEAD}{d}"] for d in looks})


def content(tensors: dict) -> str:
    """SHA-256 over the domains' names and numbers."""
    sha = hashlib.sha256()
    for d, z in sorted(tensors.items()):
        sha.update(f"{d} {tuple(z.shape)} ".encode())
        for rows in torch.as_tensor(z).split(8 * PIECE):
            sha.update(rows.contiguous().numpy())
    return sha.hexdigest()


def summary(path: Path) -> str:
    """Where features lie, their counts, what they were made of and how fast, as lines a person reads."""
    about = _about(path)
    with safe_open(path, "pt") as file:
        counts = {d: file.get_slice(d).get_shape()[0] for d in file.keys() if not d.startswith(HEAD)}
    made, width = about.get("made") or {}, max(map(len, counts))
    lines = [f"{about['encoder']} of {about['name']} at {about['size']} px: {path}",
             *(f"  {d:{width}}  {n:6d} x {about['dim']}" for d, n in counts.items()),
             f"  weights {about['weights'][:12]}; {about['transform']}"]
    if made.get("seconds"):
        lines.append(f"  {made['images']} images in {made['seconds']} s on {made['device']}, "
                     f"{made['images'] / made['seconds']:.0f} a second")
    return "\n".join(lines)


# make

def ensure_features(name: str, size: int | None, encoder: str, device: str = "cpu", say=print):
    """Make the features where there are none; raises what `load_features` and `make_features` raise."""
    wanted, pin, _ = encoder.partition("#")
    if pin or _there(prepare.load_set(name, size).manifest, wanted):
        load_features(name, size, encoder)
    else:
        make_features(name, size, encoders.load_encoder(wanted).to(device), say=say)


def make_features(name: str, size: int | None, encoder: Encoder, batch: int = 64, say=print) -> Path:
    """One pass over a prepared set of images; returns the path of its features, at once where they are there.

    The encoder computes on its own device. A pass that was interrupted goes on after its last whole piece; a second
    process waits and finds the features made. UserError: no images, a feature that is not finite, a full disk.
    """
    prepared = prepare.load_set(name, size)
    about = described(prepared.manifest, encoder)
    path = path_of(about)
    if path.exists():
        return path
    from fedlib.datasets.download import disk, locked
    pieces = path.with_name(f".{path.name}.pieces")
    with locked(pieces, say, "another process computes the same features; waiting"), disk(path.parent):
        if not path.exists():
            start = time.monotonic()
            machine.settle(encoder.device)
            images = encode(prepared, encoder, batch, pieces)
            made = {"torch": torch.__version__, "device": str(encoder.device), "tf32": False, "images": images,
                    "seconds": round(time.monotonic() - start, 2)}
            join(prepared.manifest, pieces, path, about | {"made": made},
                 class_heads.text_heads(encoder, prepared.manifest) if about["texts"] else {})
        shutil.rmtree(pieces, ignore_errors=True)
    return path


def described(manifest: dict, encoder: Encoder) -> dict:
    """What the key digests, and what one wants to know besides. UserError: the set holds no images."""
    if manifest.get("kind", "images") != "images":
        raise UserError(f"{manifest['name']} holds {manifest['kind']}; encoders take images")
    return {"format": FORMAT, "encoder": encoder.name, "weights": encoder.weights, "transform": encoder.transform,
            "dtype": DTYPE, "set": manifest["digest"], "name": manifest["name"], "size": manifest["size"],
            "dim": encoder.dim, "texts": class_heads.texts_digest(manifest) if encoder.model is not None else ""}


def encode(prepared, encoder: Encoder, batch: int, pieces: Path) -> int:
    """Compute the pieces that are not there yet, with a progress bar; returns how many images that took."""
    from tqdm import tqdm
    count = {d: sum(n["per_class"]) for d, n in prepared.manifest["domains"].items()}
    todo = [(d, at, _piece(pieces, i, at)) for i, d in enumerate(count) for at in range(0, count[d], PIECE)]
    left = [(d, at, path) for d, at, path in todo if not _whole(path, min(PIECE, count[d] - at), encoder.dim)]
    done = sum(count.values()) - sum(min(PIECE, count[d] - at) for d, at, _ in left)
    with tqdm(total=sum(count.values()), initial=done, unit="image", desc=encoder.name, disable=None) as bar:
        for d, at, path in left:
            rows = []
            for x in prepared.tensors[f"{d}/x"][at:at + PIECE].split(batch):
                rows.append(encoded(encoder, x))
                bar.update(len(x))
            with moved_into(path) as temporary, open(temporary, "wb") as file:
                np.save(file, torch.cat(rows).numpy())
    return sum(count.values()) - done


def encoded(encoder: Encoder, x: torch.Tensor) -> torch.Tensor:
    """Features `(N, D)` float16 on the CPU. UserError: one is not finite, or too many images at once."""
    try:
        z = encoder(x.to(encoder.device)).half().cpu()
    except torch.OutOfMemoryError:
        raise UserError(f"{len(x)} images at once are too many for {encoder.device}; lower --batch") from None
    if not z.isfinite().all():
        raise UserError(f"{encoder.name} gives features that are not finite as {DTYPE}")
    return z


def _whole(path: Path, rows: int, dim: int) -> bool:
    """Is the piece there, and all of it? A machine that lost its power may have left an empty one."""
    try:
        return np.load(path, mmap_mode="r").shape == (rows, dim)
    except (OSError, ValueError, EOFError):
        return False


def _piece(pieces: Path, number: int, at: int) -> Path:
    return pieces / f"{number}-{at}.npy"


def join(manifest: dict, pieces: Path, path: Path, about: dict, made: dict):
    """One file of all pieces and of the text heads `made`, under its name when it is whole."""
    tensors = {d: np.concatenate([np.load(_piece(pieces, i, at)) for at in range(0, sum(n["per_class"]), PIECE)])
               for i, (d, n) in enumerate(manifest["domains"].items())}
    write_features(path, tensors | {f"{HEAD}{d}": head.cpu().numpy() for d, head in made.items()}, about)


def write_features(path: Path, tensors: dict, about: dict):
    """The file of {domain: `(N, D)` float16 array} and of text heads."""
    about = about | {"content": content(tensors)}
    with moved_into(path) as temporary:
        prepare.save(tensors, temporary, path.stem, about=json.dumps(about))


# made elsewhere

def adopt(source: Path, name: str, size: int | None, encoder: str, say=print) -> Path:
    """Verify a file that was made on another machine, and copy it beside the prepared set; returns the copy's path.

    Verified are what it was made of, shapes, that numbers are finite and those that were written; and where the encoder
    is at hand its weights, transform and SPOTS rows of each domain. UserError says what is wrong.
    """
    prepared = prepare.load_set(name, size)
    try:
        about = _about(source)
        _check_key(about, prepared.manifest, encoder)
        features = _read(source, prepared.manifest, whole=True)
        for d, z in features.tensors.items():
            if not all(rows.isfinite().all() for rows in z.split(8 * PIECE)):
                raise ValueError(f"features of {d} are not finite")
        if encoders.at_hand(encoder):
            spot_check(prepared, features, encoders.load_encoder(encoder))
        else:
            say(f"the weights of {encoder} are not here, so no row was computed anew")
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"{source} is not taken: {first_line(error)}") from None
    path = path_of(about)
    from fedlib.datasets.download import disk
    with disk(path.parent), moved_into(path) as temporary:
        shutil.copyfile(source, temporary)
    return path


def _check_key(about: dict, manifest: dict, encoder: str):
    for what, found, wanted in (("encoder", about["encoder"], encoder),
                                ("set", f"{about['name']}-{about['size']}", f"{manifest['name']}-{manifest['size']}"),
                                ("digest of the prepared set", about["set"][:12], manifest["digest"][:12])):
        if found != wanted:
            raise ValueError(f"its {what} is {found}, not {wanted}")


def spot_check(prepared, features: Features, encoder: Encoder):
    """ValueError where weights or transform are others than here, or where rows computed anew are not close."""
    here = described(prepared.manifest, encoder)
    for what in ("weights", "transform", "dim", "texts"):
        if here[what] != features.about[what]:
            raise ValueError(f"its {what} of {encoder.name} are others than here ({_short(features.about[what])}, not "
                             f"{_short(here[what])})")
    for d, z in features.tensors.items():
        index = torch.linspace(0, len(z) - 1, min(SPOTS, len(z))).long()
        again = encoded(encoder, prepared.tensors[f"{d}/x"][index]).float()
        if ((z[index].float() - again).norm(dim=1) > CLOSE * again.norm(dim=1)).any():
            raise ValueError(f"rows of {d} computed anew are others")


def _short(value) -> str:
    return str(value) if len(str(value)) != 64 else str(value)[:12]
