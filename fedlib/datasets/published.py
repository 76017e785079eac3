"""What a publisher offers, apart from `download`: a machine that only trains needs nothing of that."""
from dataclasses import dataclass


@dataclass(frozen=True)
class File:
    """One file that a data set's publisher offers."""
    name: str                        # its path below the set's raw folder
    urls: tuple[str, ...]            # tried in this order
    hash: str = ""                   # "sha256:..." or "md5:..."; "": none is published, the counts of the set decide
    bytes: int = 0                   # about, for the check of free space; 0: unknown
    unpack: str | None = None        # an archive: the folder below the raw folder for its content ("" for itself)
    domains: tuple[str, ...] = ()    # the domains that need it; (): all
