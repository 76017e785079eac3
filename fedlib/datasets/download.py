"""Raw files: downloaded from several sources in order, resumed, verified, unpacked; or adopted from a user's folder."""
import errno
import fcntl
import json
import os
import re
import shutil
import threading
import time
import warnings
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import requests
from tqdm import tqdm
from urllib3.exceptions import HTTPError, ReadTimeoutError

from fedlib.core.errors import UserError
from fedlib.datasets.unpack import BAR, CHUNK, Fault, disk, human, unpacked

with warnings.catch_warnings():     # pooch looks for the progress bars of notebooks, which are not used
    warnings.simplefilter("ignore")
    import pooch

PAUSES = (1, 4, 15)  # seconds before a dropped connection is taken up again
TIMEOUT = (20, 60)   # seconds: to connect, without a byte
ENOUGH = 2**20       # bytes: a connection that brought more before it dropped starts the pauses anew
_held = set()        # (folder, thread) of each lock that this process has
pooch.get_logger().setLevel("WARNING")


# What callers use

def fetch(files, folder, say=print) -> list[dict]:
    """Get every file that `folder` lacks, unpack the archives; per file {"name", "url", "sha256", "bytes"}.

    The url is "" for a file that was put there by hand. UserError: no source has a good copy, no space, an archive that
    may not be unpacked. What arrived so far stays in `<name>.part` and is continued next time.
    """
    folder = Path(folder)
    if not all(_noted(f, folder) for f in files):
        with locked(folder, say), disk(folder):
            for f in files:
                _noted(f, folder) or _get(f, folder, say)
    return got(files, folder)


def fetch_what_answers(files, mine, say):
    """Domain by domain; one whose source is dead is said and left out, but not all. UserError: none could be had."""
    for domains in dict.fromkeys(f.domains for f in files):
        try:
            fetch([f for f in files if f.domains == domains], mine, say)
        except UserError as error:
            say(f"{', '.join(domains)} left out: {error}")
    if not got(files, mine):
        raise UserError("no source of any domain answers; the lines above say why")


def got(files, folder) -> list[dict]:
    """{"name", "url", "sha256", "bytes"} of those of the files that are in `folder`, or were unpacked there."""
    notes = filter(None, (_noted(f, Path(folder)) for f in files))
    return [{key: note[key] for key in ("name", "url", "sha256", "bytes")} for note in notes]


def adopt(files, root, folder, say=print) -> Path | None:
    """Unpack a user's archives, which `root` holds under their published names, into `folder`; link all else there.

    Returns `folder`, or None when there are no archives: then root itself is to be read. UserError: as fetch.
    """
    root, folder = Path(root), Path(folder)
    places = {f: next((p for p in (root / f.name, root / Path(f.name).name) if p.is_file()), None) for f in files}
    if not any(path and f.unpack is not None for f, path in places.items()):
        return None
    with locked(folder, say), disk(folder):
        for file, path in places.items():
            if path and file.unpack is None:
                _link(path, folder / file.name, say)
            elif path and not _noted(file, folder, path):
                note = _settle(file, path, folder, "", own=False)
                other = "; it has not the published hash" * (note["hash"] != file.hash)
                say(f"{path} unpacked into {folder / file.unpack}{other}")
        _link_rest(root, folder, set(places.values()), say)
    return folder


@contextmanager
def locked(folder, say=print, busy="another process is getting the same files; waiting"):
    """Hold the folder's lock: other processes that get the same files wait. May be nested. UserError: not writable."""
    folder = Path(folder)
    key = os.path.realpath(folder), threading.get_ident()
    if key in _held:
        yield
        return
    with disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(folder / ".lock", "a")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(busy)
            fcntl.flock(lock, fcntl.LOCK_EX)
    with lock:
        _held.add(key)
        try:
            yield
        finally:
            _held.discard(key)


# From a source to a file with a note, `.<name>.json`

def _get(file, folder, say) -> dict:
    """The note of one file: of the one that lies there when it is good, else of the first good source's."""
    target = folder / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_file():
        old = _read_json(_note(target))
        try:
            return _settle(file, target, folder, old["url"] if _is_of(old, target) else "", own=True)
        except Fault as fault:
            say(f"{fault}; getting it again")
            target.unlink()
    failed = []
    for url in file.urls:
        host = urlsplit(url).hostname or url
        try:
            _download(url, file, target)
            note = _settle(file, target, folder, url, own=True)
        except Fault as fault:
            target.unlink(missing_ok=True)
            failed.append(f"{host}: {fault}")
            say(f"{file.name} not from {host}: {fault}")
        else:
            say(f"{file.name}: {human(note['bytes'])} from {host}")
            return note
    raise UserError(f"cannot get {file.name} ({'; '.join(failed) or 'no source is known'}): "
                    f"put the file into {target.parent} yourself or pass --from DIR")


def _settle(file, path, folder, url, own) -> dict:
    """Note a whole file and unpack an archive. own: it is in our folder, must have its hash, goes once unpacked."""
    digest = pooch.file_hash(path, "sha256")
    match = not file.hash or file.hash == f"sha256:{digest}" or pooch.hashes.hash_matches(path, file.hash)
    if own and not match:
        raise Fault(f"{path} has not the published hash")
    note = {"name": file.name, "url": url, "sha256": digest, "bytes": path.stat().st_size,
            "time": path.stat().st_mtime_ns, "hash": file.hash if match else "", "unpacked": None}
    if own:
        _write_json(_note(path), note)  # before unpacking too: after a kill the source is still known
    if file.unpack is None:
        return note
    target = folder / file.unpack
    for stray in target.glob(f".{path.name}.unpacking-*"):  # of a process that was killed
        shutil.rmtree(stray)
    try:
        _, entries = unpacked(path, target)
    except Fault as fault:
        raise (UserError(str(fault)) if file.hash and match else fault) from None  # verified: all sources have it
    note |= {"unpacked": file.unpack, "entries": entries}
    _write_json(_note(folder / file.name), note)
    if own:
        path.unlink()
    return note


def _noted(file, folder, archive=None) -> dict | None:
    """The note of a file that lies there as noted, or was unpacked; with `archive`: unpacked from just that one."""
    note = _read_json(_note(folder / file.name))
    if not note or note["unpacked"] != file.unpack or file.hash and not archive and note["hash"] != file.hash:
        return None
    source = folder / file.name if file.unpack is None else archive
    there = all((folder / file.unpack / entry).exists() for entry in note.get("entries", ()))
    return note if there and (source is None or _is_of(note, source)) else None


def _link_rest(root, folder, archives, say):
    """Link what else lies in a user's folder: unpacked sets, other formats. Links to an earlier folder go."""
    if root.resolve() == folder.resolve():
        return
    for old in folder.iterdir():
        if old.is_symlink() and old.readlink().parent != root.resolve():
            old.unlink()
    for entry in root.iterdir():
        if entry not in archives and not entry.name.startswith(".") and not os.path.lexists(folder / entry.name):
            _link(entry, folder / entry.name, say)


def _link(path, target, say):
    if target.exists() and target.samefile(path):
        return
    if target.exists():
        say(f"{target} replaced by {path}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    try:
        target.symlink_to(path.resolve())
    except OSError:  # a file system without links
        shutil.copytree(path, target) if path.is_dir() else shutil.copyfile(path, target)


# Download

def _download(url, file, target):
    """One file from one source to its final place, by way of `<name>.part`. Fault: the source is no good."""
    part, arriving = target.with_name(target.name + ".part"), target.with_name(".arriving")
    for again in (False, True):
        continued = part.exists()
        shutil.rmtree(arriving, ignore_errors=True)
        try:
            pooch.retrieve(url, file.hash or None, target.name, arriving, downloader=partial(_resume, file, part))
        except ValueError:  # pooch's word for a wrong hash
            _remove(part)
            if again or not continued:  # else the part was of another file
                raise Fault("it has not the published hash") from None
        else:
            os.replace(arriving / target.name, target)
            _remove(part)
            return
        finally:
            shutil.rmtree(arriving, ignore_errors=True)


def _resume(file, part, url, output, _):
    """A downloader for pooch: add to `part`, over dropped connections, until it is whole; then `output` is the same."""
    start, tries = _length(part), 0
    while True:
        before = _length(part)
        try:
            if _continue(file, part, url):
                break
        except (requests.ConnectionError, requests.Timeout, HTTPError) as error:
            tries = 1 if _length(part) - before > ENOUGH else tries + 1
            if _length(part) == start or tries > len(PAUSES):
                silent = isinstance(error, (requests.Timeout, ReadTimeoutError))
                raise Fault("no answer" if silent else "no connection, or it dropped") from None
            time.sleep(PAUSES[tries - 1])
        except requests.RequestException as error:
            raise Fault(type(error).__name__) from None
    os.unlink(output)
    try:
        os.link(part, output)  # the part stays until the hash is known: a kill now loses nothing
    except OSError:
        os.replace(part, output)


def _continue(file, part, url) -> bool:
    """One request for what the part lacks. True: it is whole; False: it was of another file and is removed."""
    known = _read_json(_note(part))
    mine = known.get("url") == url
    offset = _length(part) if mine or file.hash else 0  # a hash tells whether two sources fit together
    headers = {"Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
        if mine and known["stamp"]:
            headers["If-Range"] = known["stamp"]
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
        code, total, stamp = answer.status_code, _total(answer), _stamp(answer)
        other = known.get("total") not in (None, 0, total) or mine and stamp not in ("", known["stamp"])
        if offset and code == 416 and total == offset:
            return True
        if offset and (code == 416 or code == 206 and (other or f"bytes {offset}-" not in answer.headers.get(
                "Content-Range", ""))):
            _remove(part)
            return False
        if code not in ((200, 206) if offset else (200,)):
            raise Fault(f"{code} {answer.reason}")
        if "text/html" in answer.headers.get("Content-Type", "") and Path(file.name).suffix not in (".html", ".txt"):
            raise Fault("a web page, not the file")
        need = (total or file.bytes) - _length(part)
        needed = f", {human(need)} needed for {file.name}"
        with disk(part.parent, needed):
            if need > shutil.disk_usage(part.parent).free:
                raise OSError(errno.ENOSPC, "")
            with (open(part, "ab" if code == 206 else "wb") as out,
                  tqdm(total=total or None, initial=out.tell(), desc=file.name, **BAR) as bar):
                _write_json(_note(part), {"url": url, "stamp": stamp, "total": total})
                for chunk in answer.raw.stream(CHUNK, decode_content=False):  # a .gz stays packed
                    out.write(chunk)
                    bar.update(len(chunk))
    if _length(part) < total:
        raise requests.ConnectionError
    return True


def _total(answer) -> int:
    """The bytes of the whole file by the server's word; 0: unknown."""
    found = re.search(r"/(\d+)$", answer.headers.get("Content-Range", ""))
    return int(found[1] if found else answer.headers.get("Content-Length", 0) if answer.status_code == 200 else 0)


def _stamp(answer) -> str:
    """What tells this version of the file from others and may be sent as If-Range (no weak ETag may), or ''."""
    tag = answer.headers.get("ETag", "")
    return tag if tag.startswith('"') else answer.headers.get("Last-Modified", "")


def _note(path) -> Path:
    return path.with_name(f".{path.name}.json")


def _is_of(note, path) -> bool:
    """Is the file still the one that was noted?"""
    return path.is_file() and [note.get("bytes"), note.get("time")] == [path.stat().st_size, path.stat().st_mtime_ns]


def _read_json(path) -> dict:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _write_json(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    os.replace(new, path)


def _remove(part):
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)


def _length(path) -> int:
    return path.stat().st_size if path.exists() else 0
