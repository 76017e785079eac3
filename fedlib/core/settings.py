"""Settings are fields of dataclasses: unknown names, wrong types and impossible values are one-line errors."""
import dataclasses
import functools
import math
import typing

from fedlib.core.errors import UserError, nearest


@functools.cache        # a plan of thousands of runs asks for each class as often
def fields(cls) -> dict[str, tuple]:
    """name -> (type, default) of a dataclass."""
    hints = typing.get_type_hints(cls)
    return {f.name: (hints[f.name], f.default if f.default_factory is dataclasses.MISSING else f.default_factory())
            for f in dataclasses.fields(cls)}


def later(default):
    """A field that came after the first records: at its default it means what those did, and `spec` leaves it out."""
    return dataclasses.field(default=default, metadata={"later": True})


def spec(made) -> dict:
    """The settings as plain data for a run's digest: all fields, but a `later` one only away from its default."""
    return {f.name: getattr(made, f.name) for f in dataclasses.fields(made)
            if not (f.metadata.get("later") and getattr(made, f.name) == f.default)}


def make(cls, values: dict, what: str):
    """cls(**values) after checking every name, type and range. `what` names the thing in the error."""
    known = fields(cls)
    for name in values:
        if name not in known:
            raise UserError(f"{what} has no setting '{name}'{nearest(name, known)} "
                            f"(it has: {', '.join(known) or 'none'})")
    least, most = getattr(cls, "least", {}), getattr(cls, "most", {})
    return cls(**{k: convert(known[k][0], v, f"{what}: {k}", least.get(k, 0), most.get(k, 3e38))      # a float32's
                  for k, v in values.items()})


def convert(kind, value, what: str, least=0, most=math.inf):
    """The value as the annotated type, from TOML, JSON or a word of the command line."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        if value not in args:
            raise UserError(f"{what} = {value!r} is not allowed{nearest(str(value), args)} "
                            f"(allowed: {', '.join(map(repr, args))})")
        return value
    if origin is tuple:
        items = value.split(",") if isinstance(value, str) and value else (value or ())
        items = items if isinstance(items, list | tuple) else [items]
        return tuple(convert(args[0], v, what, least, most) for v in items)
    if kind is bool:
        return _bool(value, what)
    if kind in (int, float):
        return _number(kind, value, what, least, most)
    if not isinstance(value, str):
        raise UserError(f"{what} = {value!r} is not text")
    return value


def _bool(value, what):
    words = {"true": True, "false": False, "1": True, "0": False, "yes": True, "no": False}
    if isinstance(value, bool):
        return value
    if str(value).lower() not in words:
        raise UserError(f"{what} = {value!r} is not true or false")
    return words[str(value).lower()]


def _number(kind, value, what, least, most):
    try:
        number = kind(value) if not isinstance(value, bool) and float(value) == kind(float(value)) else None
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or not math.isfinite(number):
        raise UserError(f"{what} = {value!r} is not {'a whole number' if kind is int else 'a number'}")
    if number < least:
        raise UserError(f"{what} = {value} is too small (at least {least})")
    if number > most:
        raise UserError(f"{what} = {value} is too large (at most {most})")
    return number
