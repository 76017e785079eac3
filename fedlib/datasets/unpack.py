"""Archives: zip and tar, unpacked where no member can leave the folder, be a link, or fill the disk."""
import bz2
import errno
import filecmp
import gzip
import lzma
import os
import re
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tqdm import tqdm

from fedlib.core.errors import UserError

CHUNK = 2**16        # bytes
RATIO = 200          # an archive may unpack to this many times its size,
LEAST = 10**9        # but always to so many bytes
MEMBERS = 10**6      # in one archive; the largest of ours has 0.2 million
DEPTH = 100          # folders in each other
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
BAR = {"unit": "B", "unit_scale": True, "leave": False, "disable": None}


class Fault(UserError):
    """A source or an archive that is no good; another source may be."""


def unpacked(archive: Path, target: Path, limit=None) -> tuple[int, list]:
    """Unpack a zip, or a tar (plain, gz, bz2, xz), into `target` beside what is there; the number of files, and the
    names that are now there. All are written aside first, then renamed.

    limit: bytes it may unpack to; None: RATIO times its own, at least LEAST. Hold the lock when others may do the same.
    UserError names archive and member, and nothing is unpacked: a member that would leave the folder, is a link, a
    device, there twice, encrypted, cut or corrupt; too many bytes; other content in its place; no space.
    """
    new = not target.exists()
    with disk(target, f" for the content of {archive.name}"):
        target.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{archive.name}.unpacking-", dir=target))
        try:
            count = _extract(archive, aside, limit or max(RATIO * archive.stat().st_size, LEAST))
            entries = sorted(entry.name for entry in aside.iterdir())
            for source, place in list(_moves(aside, target)):  # a list: all is checked before the first rename
                new = False
                os.rename(source, place)
            return count, entries
        finally:
            shutil.rmtree(aside)
            if new:
                target.rmdir()


def _extract(archive, folder, limit) -> int:
    """Write the members of an archive into an empty folder; what is written counts, not what the archive claims."""
    free = shutil.disk_usage(folder).free
    count = written = 0
    name = ""
    try:
        with tqdm(total=archive.stat().st_size, desc=f"unpacking {archive.name}", **BAR) as bar:
            for n, (name, kind, size, at, opened) in enumerate(_members(archive)):
                bar.update(at - bar.n)
                path = _inside(name, kind, folder)
                if n >= MEMBERS:
                    raise _Refused(f"is one of more than {MEMBERS} members")
                if path is None:
                    continue
                (path if kind == "folder" else path.parent).mkdir(parents=True, exist_ok=True)
                if kind == "folder":
                    continue
                with opened() as source, open(path, "xb") as out:
                    end = written + size
                    while chunk := source.read(CHUNK):
                        written += len(chunk)
                        if written > limit:
                            raise _Refused(f"unpacks to more than {human(limit)}, as a bomb does")
                        if written > free:
                            raise OSError(errno.ENOSPC, "")
                        out.write(chunk)
                if written != end:
                    raise _Refused("has not the size it claims")
                count += 1
        if not count:
            raise _Refused("no files")
    except _Refused as why:
        raise Fault(f"{archive} is refused: {name!r} {why}") from None
    except (FileExistsError, NotADirectoryError):
        raise Fault(f"{archive} is refused: {name!r} is there twice") from None
    except (OSError, EOFError, ValueError, RuntimeError, OverflowError, MemoryError, struct.error, zlib.error,
            lzma.LZMAError, zipfile.BadZipFile, tarfile.TarError) as error:
        if getattr(error, "errno", None) not in (None, errno.EINVAL, errno.ENAMETOOLONG):
            raise  # the disk's fault, not the archive's
        raise Fault(f"{archive} is cut or damaged at {name!r} ({' '.join(str(error).split())})") from None
    return count


class _Refused(Exception):
    """What a member is that may not be unpacked."""


def _inside(name, kind, folder) -> Path | None:
    """Where a member goes; None: nowhere (what macOS adds)."""
    parts = [p for p in name.split("/") if p not in ("", ".")]
    if name.startswith("/") or ".." in parts or re.match(r"[A-Za-z]:|.*[\\\0]", name, re.DOTALL):
        raise _Refused("would leave the folder")
    if len(parts) > DEPTH:
        raise _Refused("lies too deep")
    if kind not in ("file", "folder"):
        raise _Refused(f"is {kind}")
    macos = "__MACOSX" in parts or parts and (parts[-1] == ".DS_Store" or parts[-1].startswith("._"))
    return folder.joinpath(*parts) if parts and not macos else None


def _members(archive):
    """Yield (name, kind, bytes it claims, where the archive has it, a function that opens it) for each member."""
    with open(archive, "rb") as raw:
        head = raw.read(2)
        raw.seek(0)
        if head == b"PK":
            yield from _zip_members(raw)
        else:
            unpacker = {b"\x1f\x8b": gzip.open, b"BZ": bz2.open, b"\xfd7": lzma.open}.get(head)
            yield from _tar_members(raw, unpacker(raw) if unpacker else raw)


def _zip_members(raw):
    with zipfile.ZipFile(raw) as packed:
        for info in packed.infolist():
            mode = stat.S_IFMT(info.external_attr >> 16)
            kind = ("encrypted" if info.flag_bits & 1 else "a link" if mode == stat.S_IFLNK else
                    "no file" if mode not in (0, stat.S_IFREG, stat.S_IFDIR) else "folder" if info.is_dir() else "file")
            yield info.orig_filename, kind, info.file_size, info.header_offset, partial(packed.open, info)


def _tar_members(raw, stream):
    with tarfile.open(fileobj=_Bounded(stream), mode="r:") as packed:
        while (member := packed.next()) is not None:
            kind = ("a link" if member.issym() or member.islnk() else "no file" if member.size < 0 else
                    "folder" if member.isdir() else "file" if member.isreg() else "no file")
            yield member.name, kind, member.size, raw.tell(), partial(packed.extractfile, member)
            packed.members.clear()  # a million would fill the memory
        stream.seek(packed.offset)
        if stream.read(512) != bytes(512):  # tarfile takes a cut or damaged header for the end
            raise tarfile.ReadError("no end mark")
        while stream.read(CHUNK):  # on to the checksum of the compressed stream
            pass


class _Bounded:
    """A stream that refuses huge reads: a forged tar header cannot fill the memory."""
    def __init__(self, stream):
        self.stream, self.seek, self.tell = stream, stream.seek, stream.tell

    def read(self, n):
        if not 0 <= n <= 2**24:
            raise tarfile.ReadError("a header of absurd size")
        return self.stream.read(n)


def _moves(source, target):
    """Yield the renames that bring what `source` holds into `target`. UserError where a file of other content is."""
    for entry in sorted(source.iterdir()):
        place = target / entry.name
        if not os.path.lexists(place):
            yield entry, place
        elif entry.is_dir() and place.is_dir():
            yield from _moves(entry, place)
        elif not (entry.is_file() and place.is_file() and filecmp.cmp(entry, place, shallow=False)):
            raise UserError(f"{place} has other content than the archive's file of that name; move it away")


@contextmanager
def disk(folder, needed=""):
    """Say a fault of the disk as a UserError."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise UserError(f"no space left in {folder}{needed}") from None
        raise UserError(f"cannot read or write in {folder}: {error.strerror or error}") from None


def human(n) -> str:
    return f"{n / 1e9:.1f} GB" if n >= 1e8 else f"{n / 1e6:.1f} MB"
