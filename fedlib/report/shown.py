"""Tables, claims and what stands behind them as the command line gives them: as plain data, or as text."""
import json
import re
from pathlib import Path

import pandas as pd

from fedlib.core.errors import UserError, pick
from fedlib.experiments import claims, evidence, failures, filled, rules, tables
from fedlib.experiments import compared as comparisons
from fedlib.experiments import power as powers
from fedlib.experiments.results import results_folder
from fedlib.probes import cost

CLAIM = ["id", "paper", "table", "block", "profile", "rows", "verdict", "reason", "direction", "over", "mean", "half",
         "n", "printed", "agrees", "needs", "p", "holm", "says", "source", "note"]


def plain(frame: pd.DataFrame) -> list[dict]:
    """A frame as JSON has it: null for what is missing."""
    return json.loads(frame.to_json(orient="records"))


# a table

def shown(ident: str, profile: str, results: Path | None = None, rule: str | None = None, when: str = "") -> dict:
    """{"table", "profile", "select", "cells": [...], "rows": [...], "constants": [...], "claims": [...]}: printed and
    ours, what makes each row evidence or not, what a constant answer has, the claims' verdicts.
    """
    table, results = tables.load_table(ident), results_folder(results)
    pick("profile", profile, tables.PROFILES)
    cells = filled.compare(table, profile, results, rule, when=when)
    rows = evidence.of_rows(table, profile, results, rule, when)
    judged = claims.judge_claims(table, profile, results, rule, when)
    floors = filled.constants(table, profile, results, when=when).groupby(["block", "setting", "row"], sort=False)
    floors = floors.value.agg(["mean", "count"]).reset_index().rename(columns={"count": "n"})
    return {"table": table.id, "profile": profile, "select": rule or table.select, "cells": plain(cells),
            "rows": plain(rows), "constants": plain(floors), "claims": plain(judged)}


def as_form(table: tables.Table | str, profile: str, cells: list[dict], form: str) -> str:
    """The cells for another program: "csv" has a line for each, "markdown", "latex", "html" a table for each block."""
    table, cells = tables.load_table(table), frame_of(cells)
    if form == "csv":
        return cells.to_csv(index=False).rstrip("\n")
    write = {"markdown": in_markdown, "latex": in_latex, "html": lambda frame, title: frame.to_html(border=0)}[form]
    return "\n\n".join(write(filled.wide(table, cells, b), table.blocks[b]["title"])
                       for b in filled.shown_blocks(table, profile) if (cells[cells.block == b].n > 0).any())


def frame_of(cells: list[dict]) -> pd.DataFrame:
    """Cells as `filled.compare` has them."""
    return pd.DataFrame(cells).astype({k: float for k in ("printed", "ours", "half", "difference")})


def in_markdown(frame: pd.DataFrame, title: str) -> str:
    """A table of text in Markdown."""
    lines = [[title, *map(str, frame.columns)], ["---"] * (len(frame.columns) + 1),
             *([str(row), *map(str, line)] for row, line in zip(frame.index, frame.values, strict=True))]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def in_latex(frame: pd.DataFrame, title: str) -> str:
    """The same in LaTeX, for the package booktabs."""
    signs = {"±": r"$\pm$", "–": "--", r"\|": r"$\vert$"}
    plain = frame.astype(str).replace({k: v.replace("\\", "\\\\") for k, v in signs.items()}, regex=True)
    return plain.rename(index=escaped, columns=escaped).style.to_latex(hrules=True, caption=escaped(title))


def escaped(text) -> str:
    """Text in which LaTeX finds no commands."""
    return re.sub(r"([_%&#$])", r"\\\1", str(text))


# runs of one's own, side by side

def compared(files: list[Path], to: str = "", rule: str | None = None) -> tuple[tables.Table, dict]:
    """Runs that are there as a table, and {"profile", "results", "cells", "rows", "differences"}:
    `fedlib.experiments.compared`."""
    table, results = comparisons.of_records(files)
    return table, {"profile": comparisons.PROFILE, "results": str(results),
                   "cells": plain(filled.compare(table, comparisons.PROFILE, results, rule)),
                   "rows": plain(evidence.of_rows(table, comparisons.PROFILE, results, rule)),
                   "differences": plain(comparisons.differences(table, results, to, rule))}


def draw_curves(table: tables.Table, results: Path, picture: Path):
    """The mean over the domains after each round, a panel for each block, as a file. UserError: of no known kind."""
    from fedlib.report import plots
    frame = filled.curves(table, comparisons.PROFILE, Path(results))
    save(plots.curves(frame, panel="block" if frame.block.nunique() > 1 else None), picture)


def save(figure, picture: Path):
    """The figure as a file. UserError: of no known kind, or it cannot be written."""
    kinds = (".svg", ".pdf", ".png")
    if picture.suffix not in kinds:
        raise UserError(f"'{picture}' is no picture's name: end it with {', '.join(kinds)}")
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(picture, bbox_inches="tight")
    except OSError as error:
        raise UserError(f"cannot write {picture}: {error.strerror}") from error


def compared_text(table: tables.Table, found: dict) -> str:
    """The same for a reader."""
    cells, trained = frame_of(found["cells"]), {r["name"] for r in table.rows if r["method"] != "Constant"}
    lines = ["accuracy in %, ± half of the 95 % interval, n seeds"]
    for block in table.blocks:
        lines.append(f"\n{table.blocks[block]['title']}\n{filled.wide(table, cells, block).to_string()}")
        lines += [f"  {d['row']} minus {d['to']}: {d['mean']:+.2f}"
                  + ("" if d["half"] is None else f" ± {d['half']:.2f}") + f", n = {d['n']}"
                  for d in found["differences"] if d["block"] == block]
        mean = [r for r in found["rows"] if (r["block"], r["setting"]) == (block, "avg") and r["row"] in trained]
        lines += [f"  {fault}" for fault in evidence.unfinished(mean)]
    return "\n".join(lines)


def shown_text(found: dict) -> str:
    """The same for a reader."""
    table, profile, cells = tables.load_table(found["table"]), found["profile"], frame_of(found["cells"])
    lines = [f"{table.title} ({table.id}), profile {profile}: {tables.PROFILES[profile]}",
             f"printed | ours ± half of the 95 % interval, n seeds; accuracy in %, {found['select']}; – is not run"]
    for block in filled.shown_blocks(table, profile):
        lines.append(f"\n{table.blocks[block]['title']}\n{filled.wide(table, cells, block).to_string()}")
        place = block, "ood" if table.transfer else "avg"
        lines += [f"  {c['row']}: {c['mean']:.2f}" for c in found["constants"] if (c["block"], c["setting"]) == place]
        mean = {r["row"]: r for r in found["rows"] if (r["block"], r["setting"]) == place}
        mean = [r for row, r in mean.items() if tables.tuned_name(row) not in mean]     # of two forms the tuned counts
        lines += [f"  {fault}" for fault in evidence.faults(mean)] if mean else []
    counts = pd.Series([c["verdict"] for c in found["claims"]], dtype=object).value_counts()
    lines.append("\nclaims: " + (", ".join(f"{n} {v}" for v, n in counts.items()) or "none"))
    lines += [f"  {c['verdict']}: {c['says']} [{c['evidence']}]" + f" ({c['reason']})" * bool(c["reason"])
              for c in found["claims"] if c["verdict"] != claims.NOT_RUN]
    return "\n".join(lines)


def power(ident: str, profile: str, seeds, results: Path) -> list[dict]:
    """What the seeds and test images of a table's blocks can show: `fedlib.experiments.power`."""
    return plain(powers.of_blocks(tables.load_table(ident), profile, results, len(seeds) if seeds else None))


def memory(ident: str, profile: str, results: Path, say=lambda line: None) -> list[dict]:
    """What a run of each block and row needs: block, row, and in MB data, peak, record (on a GPU, where there is one).

    `fedlib.probes.cost.memory`; it takes some seconds a row. Data that are not here: "why", and no numbers.
    """
    table = tables.load_table(ident)
    records = [(p, r["made"]) for p, r in filled.records_of(table, profile, results)]
    on_gpu = {(p.block, p.row): made["peak_mb"] for p, made in records if made["device"].startswith("cuda")}
    found = {}
    for p in table.runs(profile, table.seeds[:1]):
        if (p.block, p.row) not in found and not tables.is_tuned(p.row):
            say(f"{p.row}, {p.block} …")
            try:
                needs = {k: round(n / 2**20) for k, n in cost.memory(p.run).items()}
            except UserError as error:
                needs = {"data": None, "peak": None, "why": str(error)}
            found[p.block, p.row] = {"block": p.block, "row": p.row, **needs, "record": on_gpu.get((p.block, p.row))}
    return list(found.values())


def memory_text(found: list[dict]) -> str:
    """The same for a reader."""
    return "\n".join(f"     –     {m['row']}, {m['block']}: {m['why']}" if "why" in m else
                     f"{m['peak']:>6} MB  {m['row']}, {m['block']}: all tensors at the peak of a round, samples "
                     f"{m['data']} MB" + f"; a record on a GPU: {m['record']} MB" * bool(m["record"]) for m in found)


def power_text(found: list[dict]) -> str:
    """The same for a reader."""
    numbers = ("sd", "least", "image", "printed")
    return powers.in_words(pd.DataFrame(found, columns=powers.COLUMNS).astype(dict.fromkeys(numbers, float)))


def reproduced(ident: str, profile: str, fresh: Path, results: Path | None = None) -> pd.DataFrame:
    """Printed, committed and fresh averages of the runs that have a fresh record: block, row, seeds, printed,
    committed, fresh, difference, equal (in every accuracy of every round). UserError: none.
    """
    table, lines = tables.load_table(ident), []
    there = {p.run.digest: r for p, r in filled.records_of(table, profile, results_folder(results))}
    made = filled.records_of(table, profile, fresh)
    if not made:
        raise UserError(f"no record of {ident}, profile {profile}, in {fresh}")
    cells = filled.compare(table, profile, fresh)
    printed = cells[cells.setting == table.settings(cells.block.iloc[0])[-1]].set_index(["block", "row"]).printed
    for block, row in dict.fromkeys((p.block, p.row) for p, _ in made):
        pairs = [(r, there.get(p.run.digest)) for p, r in made if (p.block, p.row) == (block, row)]
        new, old = ([_mean(rules.select(pair[i], table.select)) for pair in pairs if pair[1]] for i in (0, 1))
        lines.append({"block": table.blocks[block]["title"], "row": row, "seeds": len(pairs),
                      "printed": printed[block, row], "committed": pd.Series(old, dtype=float).mean(),
                      "fresh": _mean({i: _mean(rules.select(r, table.select)) for i, (r, _) in enumerate(pairs)}),
                      "equal": all(o and [x["acc"] for x in o["rounds"]] == [x["acc"] for x in r["rounds"]]
                                   for r, o in pairs)})
        lines[-1]["difference"] = pd.Series(new, dtype=float).mean() - lines[-1]["committed"]
    return pd.DataFrame(lines)


def _mean(values: dict) -> float:
    return sum(values.values()) / len(values)


def reproduced_text(frame: pd.DataFrame) -> str:
    """The same for a reader: a table for each block, and what agrees."""
    lines = []
    for block, part in frame.groupby("block", sort=False):
        wide = part.set_index("row")[["printed", "committed", "fresh", "difference", "equal"]].rename_axis(None)
        wide["equal"] = wide["equal"].map({True: "yes", False: "no"})
        text = wide.to_string(float_format="{:.2f}".format, na_rep="–")
        lines.append(f"{block}: average accuracy (%) over {part.seeds.max()} of the table's seeds\n{text}")
    same, known = int(frame["equal"].sum()), frame[frame.committed.notna()]
    far = f"; the others differ by at most {known.difference.abs().max():.2f} points" if same < len(known) else ""
    return "\n\n".join(lines) + f"\n\n{same} of {len(frame)} rows are equal in every accuracy of every round{far}."


# all claims

def claims_listing(paper: str | None = None, results: Path | None = None) -> list[dict]:
    """Every claim, or those of a paper, as {CLAIM}."""
    judged = claims.judge_all(results_folder(results))
    if paper:
        judged = judged[judged.paper == pick("paper", paper, list(dict.fromkeys(judged.paper)))]
    return plain(judged[CLAIM])


def claims_text(found: list[dict]) -> str:
    """The same for a reader: how many of each verdict, then a line for each claim that has records."""
    counts = pd.Series([c["verdict"] for c in found], dtype=object).value_counts()
    lines = [f"{len(found)} claims: " + ", ".join(f"{n} {v}" for v, n in counts.items())]
    for c in found:
        if c["verdict"] != claims.NOT_RUN:
            half = "" if c["half"] is None else f" ± {c['half']:.2f}"
            lines.append(f"{c['id']}  [{c['profile']}]  {c['verdict']}" + f" ({c['reason']})" * bool(c["reason"])
                         + f": {c['mean']:+.2f}{half} over {c['over']}, n = {c['n']}")
    return "\n".join(lines)


def why(ident: str, results: Path | None = None) -> dict:
    """{"claim": as in `claims_listing`, "records": [{"row", "seed", "value", "file", "command", "commit",
    "hardware"}]}: what stands behind a claim's verdict. UserError: no such claim.
    """
    results = results_folder(results)
    judged = claims.judge_all(results)
    claim = judged[judged.id == pick("claim", ident, list(judged.id))].iloc[[0]]
    line = plain(claim[CLAIM])[0]
    table, lines = tables.load_table(f"{line['paper']}/{line['table']}"), []
    given = next(c for c in table.claims if c["id"] == ident)
    given = claims.in_tuned_form(given, table, line["profile"]) if line["rows"] == "tuned" else given
    if line["profile"]:
        names, forms = [r["name"] for r in table.rows], given.get("forms", {})
        wanted = [*claims.variants(given["better"], table, forms, names), *claims.rivals(given, table, names)]
        planned = [*table.runs(line["profile"]), *table.references(line["profile"])]
        mine = [p for p in planned if p.block == given["block"] and p.row in (*wanted, tables.CONSTANT, tables.COMMON)]
        cells = filled.values(table, line["profile"], results, planned=mine)
        cells = cells[cells.setting == given["setting"]].set_index(["row", "seed"]).value
        for p, record in filled.records_of(table, line["profile"], results, planned=mine):
            made = record["made"]
            lines.append({"row": p.row, "seed": p.seed, "value": round(float(cells[p.row, p.seed]), 2),
                          "file": str(p.run.path(results)), "command": f"{failures.command(p)} --results again",
                          "commit": made.get("commit", ""), "hardware": made.get("hardware", "")})
    return {"claim": line, "records": lines}


def why_text(found: dict) -> str:
    """The same for a reader."""
    claim = found["claim"]
    lines = [f"{claim['id']} ({claim['paper']}, {claim['source']}): {claim['says']}",
             f"{claim['verdict']}" + f": {claim['reason']}" * bool(claim["reason"])]
    if found["records"]:
        half = "" if claim["half"] is None else f" ± {claim['half']:.2f}"
        lines.append(f"profile {claim['profile']}: {claim['mean']:+.2f}{half} points over {claim['over']}, "
                     f"n = {claim['n']}, p = {claim['p']:.3g}" if claim["p"] is not None else "one seed")
    for r in found["records"]:
        lines.append(f"  {r['row']}, seed {r['seed']}: {r['value']:.2f} %  {r['file']}\n    {r['command']}\n"
                     f"    commit {r['commit']}; {r['hardware']}")
    return "\n".join(lines)
