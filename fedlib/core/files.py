"""Files that are there whole or not at all, and locks that one process holds."""
import fcntl
import os
import secrets
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from fedlib.core.errors import UserError


class Busy(UserError):
    """Another process works on the same run."""


def write_bytes(path: Path, content: bytes):
    """Write to a temporary file in the same folder, then rename; UserError when the disk refuses.

    The caller holds a lock, so there is one writer, and the temporary name is fixed: the next one overwrites what a
    killed one left.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


@contextmanager
def moved_into(path: Path):
    """A temporary path beside `path`: moved over it when the block succeeds, removed when it fails.

    What a killed process left is removed a day later.
    """
    for stray in path.parent.glob(f".{path.name}.*.tmp"):
        with suppress(FileNotFoundError):       # another process's, just moved
            if time.time() - stray.stat().st_mtime > 86400:
                stray.unlink()
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path):
    """Hold the run's lock file; Busy when another process has it."""
    lock = path.with_suffix(".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        file = open(lock, "a+")
    except OSError as error:
        raise UserError(f"cannot write {lock}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.seek(0)
            who = file.read(20) or "just started"
            raise Busy(f"{path.stem} is being trained by another process ({who})") from error
        if not os.fstat(file.fileno()).st_nlink:        # it was unlinked between the two calls
            raise Busy(f"{path.stem} was just finished by another process")
        try:
            with suppress(OSError):     # for who waits; a full disk shall not stop anyone here
                file.truncate(0)
                os.write(file.fileno(), str(os.getpid()).encode())
            yield
        finally:
            lock.unlink(missing_ok=True)
