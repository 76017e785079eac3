"""Write the results and the methods into README.md: `python book/readme.py`. A test keeps them current."""
import json
import re
from pathlib import Path

from fedlib.engine import records
from fedlib.experiments import tables
from fedlib.methods import METHODS
from fedlib.report import zoo

ROOT = Path(__file__).parent.parent
MARKS = {k: re.compile(rf"(<!-- {k} -->\n).*?(<!-- /{k} -->)", re.S) for k in ("results", "methods")}

HEADER = """| paper | table, dataset | its method: printed | ours | best other: printed | ours | seeds | profile |
|---|---|---|---|---|---|---|---|
"""


def results_table() -> str:
    """Markdown: of each paper's first table a line for each dataset that has records of ours.

    Average accuracy (out-of-domain accuracy, where a table has that in its place) of the paper's method and its place
    among the printed rows that we ran, as printed and as run; the best other method, as printed and as run.
    """
    lines = []
    for ident in sorted({i.split("/")[0]: i for i in reversed(tables.idents())}.values()):
        paper, number = ident.split("/")
        about, table = tables.papers()[paper]["paper"], tables.load_table(ident)
        own, setting = about.get("row", about.get("name")), "ood_printed" if table.transfer else "avg"
        for profile in ("paper", "lite"):           # mini is not the paper's experiment
            cells = tables.compare(table, profile, records.results_folder(ROOT / "results"))
            cells = cells[(cells.setting == setting) & (cells.n > 0) & cells.printed.notna()]
            cells = cells[cells.row.map(table.printed_row) == cells.row]        # no variants of ours
            for block, part in cells.groupby("block", sort=False):
                if own in set(part.row) and not set(part.row) <= set(variants(table, own)):
                    ood = ", ood" * table.transfer
                    title = f"{about['name']} | {number}, {table.blocks[block]['title']}{ood}"
                    lines.append(f"| {title} | {standing(part, own, variants(table, own))} | {profile} |")
    return HEADER + "\n".join(lines) + "\n"


def variants(table, own: str) -> list[str]:
    """The rows of the paper's method, as MPFT has five: none of them is another method."""
    methods = {r["name"]: r.get("method", r["name"]) for r in table.rows}
    return [name for name, method in methods.items() if method == methods[own]]


def standing(part, own: str, mine: list[str]) -> str:
    """"72.84 (1 of 9) | 38.2 ± 6.8 (4 of 9) | FedPLVM 67.85 | FedDyn 43.1 ± 6.6 | 3"."""
    part, both = part.set_index("row"), ("printed", "ours")
    ranks = part[list(both)].rank(ascending=False, method="min").loc[own].astype(int)
    place = {of: f"({ranks[of]} of {len(part)})" for of in both}
    printed, ours = tables.cell(part.loc[own]).split(" | ")
    first = {of: part[of].drop(mine, errors="ignore").idxmax() for of in both}
    others = [f"{first[of]} {tables.cell(part.loc[first[of]]).split(' | ')[i]}" for i, of in enumerate(first)]
    least, most = part.n.min(), part.n.max()
    seeds = str(least) if least == most else f"{least} to {most}"
    return f"{printed} {place['printed']} | {ours} {place['ours']} | {others[0]} | {others[1]} | {seeds}"


def methods_table() -> str:
    """Markdown: every method with the file that holds it and the page that shows it, a line for each kind of change."""
    lines = ["| what changes | methods | file | page |", "|---|---|---|---|"]
    for kind in dict.fromkeys(map(zoo.kind, METHODS)):
        names = ", ".join(f"`{name}`" for name in zoo.of_kind(kind))
        file = "base" if kind == "averaging" else kind
        page = "concepts/01_federated_averaging" if kind == "averaging" else f"zoo/{kind}"
        first = json.loads((ROOT / "notebooks" / f"{page}.ipynb").read_text())["cells"][0]["source"][0].strip("# \n")
        lines.append(f"| {kind.replace('_', ' ')} | {names} | [{file}.py](fedlib/methods/{file}.py) "
                     f"| [{first}](notebooks/{page}.ipynb) |")
    return "\n".join(lines) + "\n"


def renewed(text: str) -> str:
    """The README with its tables made anew."""
    for name, table in (("results", results_table), ("methods", methods_table)):
        text = MARKS[name].sub(lambda m, table=table: m[1] + table() + m[2], text)
    return text


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(renewed(readme.read_text()))
