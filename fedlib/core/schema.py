"""Plain data from files, JSON and TOML, that anybody may have written or damaged: read strictly, checked before use."""
import json
import math
import tomllib
from collections import Counter
from typing import Any


def parsed(text: str | bytes) -> Any:
    """JSON. ValueError: it is none, nested too deeply, or says one thing twice."""
    try:
        return json.loads(text, object_pairs_hook=once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def once(pairs: list[tuple]) -> dict:
    """An object whose names are all different."""
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError(f"it says '{Counter(k for k, _ in pairs).most_common(1)[0][0]}' twice")
    return made


def toml(text: str) -> dict:
    """TOML. ValueError: it is none, or nested too deeply."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check(value, form, at: str = "it"):
    """The value, when it has the form; else a ValueError that says where it has not.

    A form is a type (float: any finite number; object: anything), [form]: a list of these, {str: form}: a dict with
    any names, or {"name": form, "name?": form}: a dict with names that are there or, with ?, may be; others may be too.
    """
    if isinstance(form, list):
        for i, v in enumerate(_of(value, list, at)):
            check(v, form[0], f"{at}[{i}]")
    elif isinstance(form, dict) and str in form:
        for k, v in _of(value, dict, at).items():
            check(v, form[str], f"{at}.{k}")
    elif isinstance(form, dict):
        _of(value, dict, at)
        for name, kind in form.items():
            key = name.removesuffix("?")
            if key in value:
                check(value[key], kind, f"{at}.{key}")
            elif key == name:
                raise ValueError(f"{at} has no '{key}'")
    elif form is float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not _finite(value):
            raise ValueError(f"{at} is no number")
    else:
        _of(value, form, at)
    return value


def _of(value, kind, at: str):
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"{at} is no {getattr(kind, '__name__', kind)}")
    return value


def _finite(value) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:       # a whole number of hundreds of digits
        return False
