"""Methods, datasets and nets of a user's own file, named on the command line: mine.py:MyMethod, mine.py:my_set."""
import importlib.util
import sys
from pathlib import Path

from fedlib.core.errors import UserError, pick
from fedlib.datasets.registry import DATASETS
from fedlib.methods.base import METHODS
from fedlib.models.nets import BUILDERS, TAKES

KNOWN = METHODS, DATASETS, BUILDERS, TAKES


def method_name(word: str) -> str:
    """The method that a file registers by @method, as it is known from now on. UserError: no such file or method."""
    return registered(word, METHODS, "method")


def dataset_name(word: str) -> str:
    """The same of a dataset, registered by @dataset, by its NAME or its class; other words stay as they are."""
    return registered(word, DATASETS, "dataset") if ".py" in word else word


def net_word(word: str) -> str:
    """A setting in words: of net=FILE.py:NAME the net's name, as it is known from now on. Others stay as they are."""
    name, _, value = word.partition("=")
    return f"net={registered(value, BUILDERS, 'net')}" if name == "net" and ".py" in value else word


def registered(word: str, known: dict, what: str) -> str:
    """The name under which the file's object lies in `known`. The file runs once, and may not replace what is there."""
    place, _, name = word.rpartition(":")
    path = Path(place).expanduser().resolve()
    if path.suffix != ".py" or not path.is_file():
        raise UserError(f"'{word}' names no {what} of a file: write FILE.py:NAME, with a file that is there")
    own = load(path)
    found = {k: v for k, v in known.items() if getattr(v, "__module__", getattr(v, "__name__", "")) == own}
    found |= {getattr(v, "__name__", k): v for k, v in found.items()}
    if not found:
        raise UserError(f"{path} registers no {what}: write @{what} above its class (from fedlib import {what})")
    mine = found[pick(f"{what} of {path.name}", name, found)]
    return next(k for k, v in known.items() if v is mine)


def load(path: Path) -> str:
    """Run the file once; the name of its module. UserError: there is none, or it fails."""
    path, own = path.resolve(), f"own_{path.stem}"
    if not path.is_file():
        raise UserError(f"{path} is not there")
    if getattr(sys.modules.get(own), "__file__", None) != str(path):
        run(path, own)
    return own


def run(path: Path, own: str):
    """Import the file as a module of this name. UserError: it fails, or takes a name that fedlib has."""
    before = [dict(known) for known in KNOWN]
    spec = importlib.util.spec_from_file_location(own, path)
    sys.modules[own] = module = importlib.util.module_from_spec(spec)
    sys.path.append(str(path.parent))       # for files that lie beside it
    try:
        spec.loader.exec_module(module)
        taken = [k for now, old in zip(KNOWN, before) for k in old if now[k] is not old[k]]
        if taken:
            raise UserError(f"{path} registers {taken[0]}, which is there already: give it another name")
    except Exception as error:      # whatever the file does
        del sys.modules[own]
        for now, old in zip(KNOWN, before):
            now.clear()
            now.update(old)
        if isinstance(error, UserError):
            raise
        trace = error.__traceback__
        while trace.tb_next:
            trace = trace.tb_next
        line = getattr(error, "lineno", None) or trace.tb_lineno
        raise UserError(f"{path} cannot be run ({type(error).__name__}: {error}; line {line})") from error
