"""A table filled: records -> values and curves -> cells beside what is printed -> text."""
import functools
from pathlib import Path

import pandas as pd

from fedlib.core.errors import UserError, pick
from fedlib.engine import records
from fedlib.engine.run import run_digest
from fedlib.experiments.rules import SELECT, select
from fedlib.experiments.statistics import interval
from fedlib.experiments.tables import Planned, Table, is_tuned

FAR = 1000.0        # a training loss above this has been through a blow-up, wherever it ended


def records_of(table: Table, profile: str, results: Path, seeds=None, when: str = "",
               planned: list[Planned] | None = None) -> list[tuple[Planned, dict]]:
    """The runs of the table, or those planned, that have a record, with it.

    In a leave-one-out table its `acc` is the unseen domain's.

    when: tested "before" or "after" the local training of a round; "": as each row says, "before" where it does not.
    Records that were tested at one time only have that one.
    """
    lines, times = [], {r["name"]: when or r.get("when", "before") for r in table.rows}
    for p in table.runs(profile, seeds) if planned is None else planned:
        if (path := p.run.path(results)).exists():
            record = dict(_read(path, path.stat().st_mtime_ns))
            for k in [k for k, wanted in (("unseen", p.unseen), ("transfer", table.transfer)) if wanted]:
                if k not in record["rounds"][0]:
                    raise UserError(f"{path} has no '{k}', which {table.id} shows; delete it and run it again")
            if p.unseen:
                record["rounds"] = [r | {"acc": r["unseen"]} for r in record["rounds"]]
            if table.transfer:
                record["rounds"] = [r | {"acc": r["transfer"] | {"rounds": r["round"]}} for r in record["rounds"]]
            if times.get(p.row, when) == "after":
                record["rounds"] = [r | {"acc": r.get("after", r["acc"])} for r in record["rounds"]]
            lines.append((p, record))
    check_seeds(lines)
    check_data([(p.block, record) for p, record in lines])
    return lines


def check_seeds(lines: list[tuple[Planned, dict]]):
    """UserError where one seed's rounds stand for another's too: no training repeats each loss to the last digit."""
    seen = {}
    for p, record in lines:
        losses = tuple(r.get("train_loss", 0.0) for r in record["rounds"])
        other = seen.setdefault((p.block, p.row, p.unseen, losses), p)
        if other.seed != p.seed and len(set(losses)) > 1:
            raise UserError(f"seeds {other.seed} and {p.seed} of {p.row} in {p.table} have the same numbers: one of "
                            f"the records {other.run.digest} and {p.run.digest} is a copy; delete it and run it again")


def check_data(lines: list[tuple[str, dict]]):
    """UserError where a block's records were trained on different data of one name: of (block, record)."""
    seen = {}
    for block, record in lines:
        run, made = record["run"], record["made"].get("data")
        first = seen.setdefault((block, run["data"].get("size")), (made, run)) if made else None
        if first and first[0]["digest"] != made["digest"]:
            raise UserError(f"{run['data']['name']} was prepared anew between two of these records: "
                            + " and ".join(f"{r['method']} {run_digest(r)} has the data {d['digest'][:12]}"
                                           for d, r in (first, (made, run)))
                            + "; delete those of the one or the other, they are not comparable")


@functools.lru_cache(4096)       # a page asks for each record several times
def _read(path: Path, changed: int) -> dict:
    return records.read_record(path)


def highest_loss(rounds: list[dict]) -> float:
    """The largest training loss of a round, in absolute terms; also of the rounds without a test."""
    return max(r.get("highest_loss", abs(r.get("train_loss", 0.0))) for r in rounds)


def fallen(table: Table, profile: str, results: Path, seeds=None, when="") -> set[tuple[str, str]]:
    """(block, row) of which a seed diverged on the way."""
    return {(p.block, p.row) for p, record in records_of(table, profile, results, seeds, when)
            if highest_loss(record["rounds"]) > FAR}


def values(table: Table, profile: str, results: Path, rule: str | None = None, seeds=None, when="",
           planned: list[Planned] | None = None) -> pd.DataFrame:
    """One line per record and column: block, setting (domain or avg), row, seed, value, lasting. `when`, `planned` as
    for `records_of`.

    "avg" is the mean over the domains, where none of the block's columns is missing. lasting: of the last five rounds
    where the best of all tests counts, else the value once more.
    """
    rule = pick("selection", rule or table.select, SELECT)
    lines = [(p.block, setting, p.row, p.seed, value, lasting.get(setting, float("nan")))
             for p, record in records_of(table, profile, results, seeds, when, planned)
             for lasting in [select(record, "last5" if rule == "best-test" else rule)]
             for setting, value in select(record, rule).items()]
    columns = ["block", "setting", "row", "seed", "value", "lasting"]
    domains = pd.DataFrame(lines, columns=columns)
    groups = domains.groupby(["block", "row", "seed"], sort=False)[["value", "lasting"]]
    averages = [(block, "avg", row, seed, *part.mean()) for (block, row, seed), part in groups
                if not table.transfer and len(part) == len(table.blocks[block]["columns"])]
    return pd.DataFrame(lines + averages, columns=columns)


def sound(table: Table, profile: str, results: Path, seeds=None, when="") -> pd.DataFrame:
    """`values` without the rows of which a seed diverged on the way: the other seeds would flatter them."""
    found = values(table, profile, results, seeds=seeds, when=when)
    lost = fallen(table, profile, results, seeds, when)
    return found[[place not in lost for place in zip(found.block, found.row)]]


def constants(table: Table, profile: str, results: Path, seeds=None, when="") -> pd.DataFrame:
    """`values` of the constant answers, in their one round."""
    return values(table, profile, results, "last", seeds, when, table.references(profile, seeds))


def curves(table: Table, profile: str, results: Path, seeds=None, when: str = "",
           planned: list[Planned] | None = None) -> pd.DataFrame:
    """Accuracy over rounds, averaged over the domains: block, method, round, mean over seeds, half of its interval.

    `when`, `planned` as for `records_of`. UserError: a table whose columns are measures of transfer: they have no mean.
    """
    if table.transfer:
        raise UserError(f"{table.id} has measures of transfer as columns; take the table of its domains")
    lines = [(p.block, p.row, p.seed, r["round"], acc)
             for p, record in records_of(table, profile, results, seeds, when, planned)
             for r in record["rounds"] for acc in r["acc"].values()]
    points = pd.DataFrame(lines, columns=["block", "method", "seed", "round", "accuracy"])
    means = points.groupby(["block", "method", "round", "seed"], sort=False)["accuracy"].mean()
    groups = means.groupby(["block", "method", "round"], sort=False)
    return pd.DataFrame([(*key, *interval(sample)) for key, sample in groups],
                        columns=["block", "method", "round", "mean", "half"])


def compare(table: Table, profile: str, results: Path, rule: str | None = None, seeds=None, when="") -> pd.DataFrame:
    """Printed and ours by cell: block, setting, row, printed, ours, half, n, difference; nan where there is none.

    A row of which a seed diverged on the way has no number of ours, though n seeds: the others would flatter it.
    """
    lost = fallen(table, profile, results, seeds, when)
    ours = values(table, profile, results, rule, seeds, when).groupby(["block", "setting", "row"])["value"].agg(list)
    printed = table.printed.set_index(["dataset", "setting", "method"])["value"].to_dict()
    lines = []
    for block in table.blocks:
        for setting in table.settings(block):
            for row in (r["name"] for r in table.rows):
                key, place = (block, setting, row), (table.printed_as(block), setting, table.printed_row(row))
                sample, paper = ours.get(key, []), printed.get(place, float("nan"))
                found = interval([] if (block, row) in lost else sample)
                lines.append((*key, paper, *found, len(sample)))
    cells = pd.DataFrame(lines, columns=["block", "setting", "row", "printed", "ours", "half", "n"])
    return cells.assign(difference=cells.ours - cells.printed)


def shown_blocks(table: Table, profile: str) -> list[str]:
    """Blocks to show in a profile: those it runs, and in lite and paper also those the paper prints."""
    printed = set(table.printed.dataset)
    return [b for b, content in table.blocks.items()
            if profile in content or (profile != "mini" and table.printed_as(b) in printed)]


def cell(line, join: str = " | ") -> str:
    """'64.91 | 57.5 ± 1.2': printed, then ours; a dash for what is not printed or was not run, a word for
    what diverged.

    '67.6 (2.7) | ...' where the line has the printed standard deviation, `spread`.
    """
    none = "diverged" if line.get("n") else "–"
    ours = none if pd.isna(line.ours) else f"{line.ours:.1f}" + ("" if pd.isna(line.half) else f" ± {line.half:.1f}")
    spread = line.get("spread", float("nan"))
    theirs = f"{line.printed:.2f}" if pd.isna(spread) else f"{line.printed:.1f} ({spread:.1f})"
    return ("–" if pd.isna(line.printed) else theirs) + join + ours


def wide(table: Table, cells: pd.DataFrame, block: str, join: str = " | ") -> pd.DataFrame:
    """One block as a table of text: rows are methods, columns their mean and domains; `join` stands between printed and
    ours.

    A block that the paper does not have shows ours alone. A tuned row without a record has no line.
    """
    content, part = table.blocks[block], cells[cells.block == block]
    text = part.apply(cell, axis=1, join=join)
    part = part.assign(text=text if part.printed.notna().any() else text.str.removeprefix("–" + join))
    shaped = part.pivot(index="row", columns="setting", values="text")
    columns = sorted(table.settings(block), key=lambda setting: setting != "avg")      # first what a reader looks for
    shaped = shaped.loc[[r["name"] for r in table.rows], columns]
    shaped["n"] = part[part.setting == table.settings(block)[-1]].set_index("row")["n"]
    shaped = shaped[[n > 0 or not is_tuned(row) for row, n in shaped.n.items()]]
    return shaped.rename(columns=content["columns"] | {"avg": "Avg"}).rename_axis(index=None, columns=None)


def side_by_side(table: Table, cells: pd.DataFrame, join: str = " | ", setting: str = "avg") -> pd.DataFrame:
    """One setting of the blocks side by side as text: rows are methods, columns are blocks with a cell not empty.

    A tuned row has no text where nothing was chosen for it: no run is planned there.
    """
    part = cells[cells.setting == setting]
    chosen = {r["name"]: {place.rsplit(".", 1)[0] for place in r["chosen"]} for r in table.rows if "chosen" in r}
    there = [block in chosen.get(row, {block}) for row, block in zip(part.row, part.block, strict=True)]
    part = part.assign(text=part.apply(cell, axis=1, join=join).where(there, ""))
    full = part[part.printed.notna() | part.ours.notna()].block.unique()
    shaped = part.pivot(index="row", columns="block", values="text")
    shaped = shaped.loc[[r["name"] for r in table.rows], [b for b in table.blocks if b in full]]
    return shaped.rename(columns={b: c["title"] for b, c in table.blocks.items()}).rename_axis(index=None, columns=None)


def provenance(table: Table, profile: str, results: Path) -> pd.DataFrame:
    """Where the numbers come from: one line per block with the records' protocol, code, hardware, data and cost.

    A run that was interrupted and went on elsewhere names both machines, codes or versions of torch. A tuned row that
    is as given has no runs of its own.
    """
    found = {(p.block, p.run.digest): (p, record["made"]) for p, record in records_of(table, profile, results)}
    lines = [{"block": p.block, "runs": not before, "net": f"{p.run.net.net}, width {p.run.net.width or 'published'}",
              "rounds x epochs": f"{p.run.protocol.rounds} x {p.run.protocol.epochs}",
              "hours": 0 if before else made["seconds"] / 3600,
              "data": made.get("data", {}).get("digest", "unknown")[:12],
              **{k: (made | before).get(k, "unknown") for k in ("hardware", "commit", "torch")}}
             for p, made in found.values() for before in ({}, *made.get("earlier", ()))]
    if not lines:
        return pd.DataFrame()
    together = {k: "sum" if k in ("runs", "hours") else lambda v: ", ".join(sorted(set(v))) for k in lines[0]}
    return pd.DataFrame(lines).groupby("block").agg(together).drop(columns="block").round(2)
