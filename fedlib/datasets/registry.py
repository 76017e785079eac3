"""The datasets by name, and what reads each.

A reader is a module, a class or any other object with

    NAME, TITLE         what the set is called, in a command and in words
    CLASSES, DOMAINS    their names
    SIZES               pixels per side, tokens or features that it can be prepared with; the first is the default
    ABOUT               {"source", "licence", "citation", "split", ...}: what the manifest says of it
    FILES               what can be downloaded (`fedlib.datasets.published.File`); where there is nothing, HOW says why
    read(root, size, say, skip=None) -> {domain: (x, y, part)}, {what changes in ABOUT}; skip: a list that takes the
                        names of files left out as unreadable, None: such a file is an error

and, where it differs, KIND = "images" | "tokens" | "features", BUILT_IN = True (needs no raw files), RAW (the folder
of raw files that several sets share), PARTIAL = True (some of the domains will do).
"""
import importlib
import importlib.util
import sys
from importlib.metadata import entry_points
from pathlib import Path

from fedlib.core.errors import pick

SCRIPTS = Path(__file__).parents[2] / "data_scripts"


def dataset(reader):
    """Register a reader under its NAME; also as a decorator of a class."""
    DATASETS[reader.NAME] = reader
    return reader


def reader_of(name: str):
    """What reads a dataset. UserError when the name is unknown."""
    known = DATASETS if name in DATASETS else every()
    reader = known[pick("dataset", name, known)]
    if isinstance(reader, str):
        place, _, one_of_it = reader.partition(":")
        reader = importlib.import_module(place)
        reader = getattr(reader, one_of_it) if one_of_it else reader
    return reader


def every() -> dict:
    """All datasets: fedlib's, those that packages and programs registered, and users' own files that are prepared."""
    own = importlib.import_module("fedlib.readers.own_sets").prepared()
    return DATASETS | {name: reader for name, reader in own.items() if name not in DATASETS}


def own_files():
    """What reads pictures, texts and numbers of a user's own: the module data_scripts/own_files.py."""
    return importlib.import_module("fedlib.readers.own_files")


def built_in(name: str) -> bool:
    """Does the set need no raw files?"""
    return getattr(reader_of(name), "BUILT_IN", False)


def shipped() -> dict[str, str]:
    """{name: module[:object]} of fedlib's own sets. In a checkout the readers lie beside it, installed or not."""
    if "fedlib.readers" not in sys.modules and (SCRIPTS / "__init__.py").is_file():
        spec = importlib.util.spec_from_file_location("fedlib.readers", SCRIPTS / "__init__.py")
        sys.modules["fedlib.readers"] = sys.modules["fedlib"].readers = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["fedlib.readers"])
    readers = importlib.import_module("fedlib.readers").READERS
    return {name: f"fedlib.readers.{place}" for name, place in readers.items()}


# name -> a reader, or where it is; other packages name theirs as entry points: NAME = "module:object"
DATASETS = {point.name: point.value for point in entry_points(group="fedlib.datasets")} | shipped()
