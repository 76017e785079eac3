"""Columns of numbers in a user's CSV: a row is a sample, as laboratory values or measurements are.

The net sees each column less its mean and divided by its deviation, both over the training part of all sites. A
federation would agree on them by two sums for each column; a kept model holds them, for new rows.
"""
import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedlib.core.errors import SHOWN, UserError

MISSING = {"", "na", "n/a", "nan", "null", "none", "?", "."}
TELLING = 2     # columns that say how a site differs
MOST = 10000    # columns
FAR = 1e30


class Column(NamedTuple):
    """A column and what it is scaled by."""
    name: str
    mean: float
    deviation: float


def number(value: str, column: str, where: str) -> float | None:
    """What a cell holds; None where it is empty. UserError: no number, or one too large to compute with."""
    if value.lower() in MISSING:
        return None
    try:
        found = math.nan if "_" in value else float(value)      # Python's 1_000 is nobody's number
    except ValueError:
        found = math.nan
    if FAR <= abs(found) < math.inf:
        raise UserError(f"{where}: {column} is '{value[:20]}', too large: {FAR:g} is the most")
    if not abs(found) < FAR:
        raise UserError(f"{where}: {column} is '{value[:20]}', which is no number (1.5 has a point; a category is a "
                        "column of 0 and 1 for each of its values; pictures stand in a column path, texts in text)")
    return found


def scales(names: list[str], rows: list[tuple]) -> list[Column]:
    """Each column's mean and deviation over the rows `(N, D)`; a column of one value has the deviation 1."""
    x = np.array(rows, dtype=np.float64)
    deviations = np.where(x.min(0) == x.max(0), 1.0, x.std(0))      # of equal fractions rounding leaves 1e-17
    return [Column(name, float(m), float(s)) for name, m, s in zip(names, x.mean(0), deviations, strict=True)]


def scaled(rows: list, columns: list) -> np.ndarray:
    """float32 (N, D): (x - mean) / deviation, column by column."""
    mean, deviation = (np.array([c[k] for c in columns]) for k in (1, 2))
    return ((np.array(rows, dtype=np.float64).reshape(-1, len(columns)) - mean) / deviation).astype(np.float32)


def rescaled(x: np.ndarray, had: list, wanted: list) -> np.ndarray:
    """Rows scaled by the columns `had` as a model that knows the columns `wanted` takes them, matched by name.

    UserError: one that is wanted is not there.
    """
    places = {c[0]: i for i, c in enumerate(had)}
    if absent := [c[0] for c in wanted if c[0] not in places]:
        raise UserError(f"the model wants the column {', '.join(absent[:SHOWN])}, which this set lacks")
    raw = np.asarray(x, dtype=np.float64) * [c[2] for c in had] + [c[1] for c in had]
    return scaled(raw[:, [places[c[0]] for c in wanted]], wanted)


def rows_in(table: list[dict], columns: list, path: Path, skip: list | None) -> tuple[list[str], list[tuple]]:
    """Names ("line 2 of new.csv") and numbers of a CSV's rows. skip: lines that lack a number are left out and noted.

    UserError: a column is absent, a cell is no number, or empty.
    """
    names, found = [], []
    for row in table:
        where = f"line {row['line']} of {path.name}"
        cells = {c[0]: number((row.get(c[0]) or "").strip(), c[0], where) for c in columns}
        empty = [name for name, value in cells.items() if value is None]
        if empty and skip is None:
            raise UserError(f"{where} has no {empty[0]}; --skip-corrupt leaves such rows out")
        if empty:
            skip.append(f"{where} has no {empty[0]}")
            continue
        names.append(where)
        found.append(tuple(cells.values()))
    return names, found


def looks(x: np.ndarray, columns: list) -> str:
    """How a site differs from all: 'mean radius +0.8, mean area +0.7' in deviations, the columns that tell most."""
    means = x.mean(0) if len(x) else np.zeros(len(columns))
    telling = np.argsort(-np.abs(means), kind="stable")[:TELLING]
    return ", ".join(f"{columns[i][0]} {means[i]:+.1f}" for i in telling) + f" deviations; {len(columns)} columns"


def doubtful(columns: list, rows: list) -> list[str]:
    """Lines about columns that are hardly measurements: one value only, or another whole number in every row."""
    x = np.array(rows, dtype=np.float64)
    one = [c[0] for c, values in zip(columns, x.T) if len(np.unique(values)) == 1]
    ids = [c[0] for c, values in zip(columns, x.T)
           if len(values) > 1 and len(np.unique(values)) == len(values) and (values == values.round()).all()]
    return ([f"one value in all rows: {', '.join(one[:SHOWN])}"] * bool(one)
            + [f"another whole number in every row, an identifier? Leave it out: {', '.join(ids[:SHOWN])}"] * bool(ids))
