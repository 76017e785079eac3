"""A table of runs that are there, whatever they were planned for: rows and blocks are read from their records."""
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from fedlib.core.errors import UserError, pick
from fedlib.engine import records
from fedlib.engine.run import Run, planned
from fedlib.experiments.filled import check_data, values
from fedlib.experiments.statistics import interval
from fedlib.experiments.tables import CONSTANT, PRINTED, Planned, Table

PROFILE = "mini"        # the word under which such a table has its runs; it has no other


@dataclass(frozen=True)
class Compared(Table):
    """A table whose runs are given: `made`."""
    made: tuple = ()

    def runs(self, profile: str, seeds=None) -> list[Planned]:
        return [p for p in self.made if seeds is None or p.seed in seeds]

    def drawn(self, block: str, profile: str) -> list[int]:
        return sorted({p.seed for p in self.made if p.block == block})

    def references(self, profile: str, seeds=None) -> list[Planned]:
        return [p._replace(row=CONSTANT) for p in self.runs(profile, seeds) if p.run.method == "Constant"]


def of_records(files: list[Path], select: str = "last") -> tuple[Compared, Path]:
    """The table of these records, files or folders of them, and the folder that they lie in.

    A block is what was trained on; a row is a method with the settings, of it, the net and the protocol, in which the
    runs differ. UserError: none, one that is no record, a seed twice in one cell, records of several folders.
    """
    paths = sorted({path for given in map(Path, files)
                    for path in (given.rglob("*-*.json") if given.is_dir() else [given])})
    if not paths:
        raise UserError(f"no record in {', '.join(map(str, files))}")
    found = {path: records.read_record(path) for path in paths}
    runs = {path: _planned(path, record) for path, record in found.items()}
    folders = {path.parents[1] for path in paths}
    if len(folders) > 1 or any(run.path(path.parents[1]) != path for path, run in runs.items()):
        raise UserError("the records of a comparison lie as `fedlib train --out FOLDER` leaves them, in one folder: "
                        f"{', '.join(map(str, sorted(folders)))}")
    every = list(runs.values())
    blocks, rows, made, trained = {}, {}, {}, []
    for path, run in runs.items():
        block = " ".join([run.data.name, *differing("data", run, every)])
        beside = [r for r in every if r.data == run.data]
        row = ", ".join([run.method, *differing("settings", run, [r for r in beside if r.method == run.method]),
                         *(word for part in ("net", "protocol") for word in differing(part, run, beside))])
        if other := made.get((block, row, run.seed)):
            raise UserError(f"{path} and {other.run.path(path.parents[1])} differ in nothing that a row shows")
        columns = blocks.setdefault(block, {"title": block, "columns": {}, PROFILE: {}})["columns"]
        columns |= {domain: domain for domain in found[path]["rounds"][-1]["acc"]}
        rows.setdefault(row, {"name": row, "method": run.method})
        trained.append((block, found[path]))
        made[block, row, run.seed] = Planned(row, block, run.seed, run, "", (), "", "compared", PROFILE)
    check_data(trained)
    table = Compared("compared", "Runs compared", blocks, list(rows.values()), sorted({r.seed for r in every}), select,
                     pd.DataFrame(columns=PRINTED), [], {}, False, {}, {}, "", False, made=tuple(made.values()))
    return table, folders.pop()


def _planned(path: Path, record: dict) -> Run:
    try:
        return planned(record["run"])
    except UserError as error:
        raise UserError(f"{path}: {error}; of your own? name its file: --from FILE.py") from error


def differing(part: str, run: Run, among: list[Run]) -> list[str]:
    """'mu = 0.1' for each setting of a part of the run, "settings", "data", "net" or "protocol", that differs among
    these."""
    specs = [r.spec[part] for r in among]
    return [f"{k} = {shown(v)}" for k, v in run.spec[part].items()
            if k != "name" and any(spec.get(k) != v for spec in specs)]


def shown(value) -> str:
    """A setting's value for a reader: '0.1', '3, 2, 1'."""
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(shown, value)) if isinstance(value, list | tuple) else str(value)


def differences(table: Compared, results: Path, to: str = "", rule: str | None = None) -> pd.DataFrame:
    """Every row minus the row `to` (of each block FedAvg, or the first), paired by seed: block, row, to, mean, half of
    the 95 % interval, n; the mean over the domains."""
    names, given = [row["name"] for row in table.rows], to and pick("row", to, [row["name"] for row in table.rows])
    cells = values(table, PROFILE, results, rule)
    wide = cells[cells.setting == "avg"].pivot(index=["block", "seed"], columns="row", values="value")
    lines = []
    for block, part in wide.groupby("block"):
        here = [row for row in names if row in part and part[row].notna().any()]
        to = given or next((row for row in here if row.partition(",")[0] == "FedAvg"), here[0])
        gaps = {row: (part[row] - part[to]).dropna() for row in here if to in here and row != to}
        lines += [(block, row, to, *interval(gap), len(gap)) for row, gap in gaps.items() if len(gap)]
    return pd.DataFrame(lines, columns=["block", "row", "to", "mean", "half", "n"])
