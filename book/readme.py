"""What holds, in tables: `python book/readme.py` writes them into README.md, where a test keeps them current, and
`book/build.py` into the book's first page.
"""
import json
import re
from pathlib import Path

from fedlib.engine import records
from fedlib.experiments import claims, evidence, tables
from fedlib.methods import METHODS
from fedlib.report import zoo

ROOT = Path(__file__).parent.parent
RESULTS = records.results_folder(ROOT / "results")

CONTROL = "FedAvg"
HEADER = ["paper", "table, dataset", "its method: printed", "ours", f"{CONTROL}: printed", "ours", "constant answer",
          "rows that learned", "settled", "are tuned", "seeds", "profile"]


def results_table() -> str:
    """Markdown: how the papers' claims stand; of each paper's first table a line for each dataset with records of ours.

    Average accuracy (out-of-domain accuracy, where a table has that in its place) of the paper's method and of FedAvg,
    as printed and as run, that of the constant answer, and how many rows are evidence.
    """
    lines = [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"]
    for ident in first_tables():
        paper, number = ident.split("/")
        about, table = tables.papers()[paper]["paper"], tables.load_table(ident)
        own, setting = about.get("row", about.get("name")), "ood_printed" if table.transfer else "avg"
        for profile in ("paper", "lite"):           # mini is not the paper's experiment
            cells = tables.compare(table, profile, RESULTS)
            cells = cells[(cells.setting == setting) & (cells.n > 0) & cells.printed.notna()]
            cells = cells[cells.row.map(table.printed_row) == cells.row]        # no variants of ours
            marks = evidence.of_rows(table, profile, RESULTS)
            floors = tables.constants(table, profile, RESULTS).query("row == @tables.CONSTANT")
            floors = floors.groupby(["block", "setting"]).value.mean()
            column = "ood" if table.transfer else "avg"
            for block, part in cells.groupby("block", sort=False):
                if {own, CONTROL} <= set(part.row):
                    ood = ", ood" * table.transfer
                    title = f"{about['name']} | {number}, {table.blocks[block]['title']}{ood}"
                    there = marks[(marks.block == block) & (marks.setting == column)]
                    forms = {r: tables.tuned_name(r) for r in part.row if tables.tuned_name(r) in set(there.row)}
                    rows = there[there.row.isin([forms.get(r, r) for r in part.row])]
                    floor = floors.get((block, column), float("nan"))
                    lines.append(f"| {title} | {standing(part, own)} | {floor:.1f} | {counts(rows)} | {profile} |")
    return "\n".join([answered(), "", *lines, ""])


def answered() -> str:
    """How many claims of the papers have which verdict, in a sentence."""
    made = claims.judge_all(RESULTS).verdict.value_counts().reindex(claims.VERDICTS, fill_value=0)
    decided = made[list(claims.DECIDED)]
    return (f"Answered by evidence: **{decided.sum()}** of {made.sum()} claims of the five papers ("
            + ", ".join(f"{n} {verdict}" for verdict, n in decided.items())
            + f"). With records that are not evidence: {made[claims.NOT_EVIDENCE]}. Not run: {made[claims.NOT_RUN]}.")


def standing(part, own: str) -> str:
    """"72.84 | 38.2 ± 6.8 | 57.50 | 30.1 ± 2.2"."""
    part = part.set_index("row")
    return " | ".join(tables.cell(part.loc[name]) for name in (own, CONTROL))


def counts(rows) -> str:
    """"9 of 10 | 2 of 10 | 0 of 10 | 2 to 3"."""
    least, most = rows.n.min(), rows.n.max()
    marks = [f"{rows[mark].eq(True).sum()} of {len(rows)}" for mark in ("learned", "settled", "tuned")]
    return " | ".join([*marks, str(least) if least == most else f"{least} to {most}"])


def leads() -> str:
    """Markdown: of each paper's first table and each dataset with records, its method's lead over FedAvg, printed and
    run, with the verdict that the claim "better than FedAvg" would have; then the datasets without records.
    """
    lines, absent = ["| | printed | ours | verdict |", "|---|---|---|---|"], []
    for ident in first_tables():
        about, table = tables.papers()[ident.split("/")[0]]["paper"], tables.load_table(ident)
        own, setting = about.get("row", about.get("name")), "ood_printed" if table.transfer else "avg"
        shown = tables.shown_blocks(table, "lite") if {own, CONTROL} <= {r["name"] for r in table.rows} else []
        known = [(tables.values(table, p, RESULTS), evidence.of_rows(table, p, RESULTS)) for p in ("paper", "lite")]
        for block in [b for b in shown if "printed" not in table.blocks[b]]:
            claim = {"block": block, "setting": setting, "better": own, "than": [CONTROL]}
            printed = claims.printed_difference(claim, CONTROL, table)
            found, name = best_known(table, claim, known), f"{about['name']}, {table.blocks[block]['title']}"
            if found["n"] and printed == printed:
                half = f" ± {found['half']:.1f}" if found["half"] == found["half"] else ""
                lines.append(f"| [{name}](../notebooks/{table.page}.ipynb) | {printed:+.1f} "
                             f"| {found['mean']:+.1f}{half} | {found['verdict']} |")
            elif printed == printed:
                absent.append(name)
    return "\n".join([*lines, "", f"Printed, and not run: {'; '.join(absent)}.", ""])


def best_known(table, claim: dict, known: list) -> dict:
    """The claim judged by the first (values, rows) that has records of it, on tuned rows where they are there."""
    for cells, rows in known:
        for one in (claims.in_tuned_form(claim), claim):
            found = claims.judge(one, cells[cells.row.isin([one["better"], *one["than"]])], rows, table)
            if found["verdict"] != claims.NOT_RUN:
                return found
    return found


def first_tables() -> list[str]:
    """The first table of each paper."""
    return sorted({i.split("/")[0]: i for i in reversed(tables.idents())}.values())


def artefacts() -> str:
    """Markdown: a fold for each paper with its tables and figures, what of them was run, and how their claims stand."""
    judged, parts = claims.judge_all(RESULTS), []
    for name, content in [(n, c) for n, c in tables.papers().items() if "name" in c["paper"]]:
        lines = ["| | mini | lite | paper | claims |", "|---|---|---|---|---|"]
        for table in [tables.load_table(f"{name}/{t}") for t in content["tables"]]:
            mine = judged[(judged.paper == name) & (judged.table == table.id.split("/")[1])]
            stands = ", ".join(f"{n} {v}" for v, n in mine.verdict.value_counts().reindex(claims.VERDICTS).dropna(
                ).astype(int).items()) or "–"
            runs = " | ".join(share(table, profile) for profile in tables.PROFILES)
            title = f"{words(table.id.split('/')[1])}{table.question or table.title}"
            lines.append(f"| [{title}](../notebooks/{table.page}.ipynb) | {runs} | {stands} |")
        title = f"{content['paper']['name']}: {len(content['tables'])} tables and figures"
        parts.append(f":::{{admonition}} {title}\n:class: dropdown\n" + "\n".join(lines) + "\n:::\n")
    return "\n".join(parts)


def words(name: str) -> str:
    """'Table 2: ' of table2, 'Figure 6: ' of figure6_tau; '' of another name."""
    found = re.match(r"(table|figure)(\d+)", name)
    return f"{found[1].capitalize()} {found[2]}: " if found else ""


def share(table, profile: str) -> str:
    """'all 30', '12 of 30', 'none of 30', or '–' where the profile has no runs."""
    planned = table.runs(profile)
    done = sum(p.done(RESULTS) for p in planned)
    return "–" if not planned else f"all {done}" if done == len(planned) else f"{done or 'none'} of {len(planned)}"


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
    """The text with its tables made anew."""
    for name, table in MADE.items():
        text = re.sub(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", lambda m, table=table: m[1] + table() + m[2], text,
                      flags=re.S)
    return text


MADE = {"results": results_table, "methods": methods_table, "answered": lambda: f"{answered()}\n", "leads": leads,
        "artefacts": artefacts}


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(renewed(readme.read_text()))
