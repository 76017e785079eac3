"""What holds, in tables: `python book/readme.py` writes them into README.md, where a test keeps them current, and the
records' checksums into lists beside them; `book/build.py` writes them into the book's first page.
"""
import functools
import hashlib
import json
import re
from pathlib import Path

import yaml

from fedlib.experiments import claims, evidence, filled, tables
from fedlib.experiments.results import results_folder
from fedlib.methods import METHODS
from fedlib.report import api, overview, verdicts, zoo
from fedlib.report.overview import CONTROL

ROOT = Path(__file__).parent.parent
RESULTS = results_folder(ROOT / "results")

SUMS, UNFINISHED = "SHA256SUMS", {".partial", ".lock"}
HEADER = ["paper", "table, dataset", "its method: printed", "ours", f"{CONTROL}: printed", "ours", "constant answer",
          "rows that learned", "settled", "are tuned", "seeds", "profile"]


def results_table() -> str:
    """Markdown: of each paper's first table a line for each dataset of which rows are tuned, or trained as the paper
    says; the others by name.

    Average accuracy (of transfer the out-of-domain accuracy by the printed formula) of the paper's method, in the
    reading with the lowest, and of FedAvg, as printed and as run (tuned, where they are), that of the constant answer,
    and how many rows are evidence.
    """
    lines, untuned = [f"| {' | '.join(HEADER)} |", "|---" * len(HEADER) + "|"], []
    for ident in first_tables():
        paper, number = ident.split("/")
        about, table = tables.papers()[paper]["paper"], tables.load_table(ident)
        own = about.get("row", about.get("name"))
        for profile in ("paper", "lite"):           # mini is not the paper's experiment
            cells = filled.compare(table, profile, RESULTS)
            marks = evidence.of_rows(table, profile, RESULTS)
            floors = filled.constants(table, profile, RESULTS).query("row == @tables.CONSTANT")
            floors = floors.groupby(["block", "setting"]).value.mean()
            for block, part in cells.groupby("block", sort=False):
                column = table.mean_column(block)
                part = part[(part.setting == column) & (part.n > 0)]
                there, how = marks[(marks.block == block) & (marks.setting == column)], table.blocks[block]
                known = table.printed[table.printed.dataset == how.get("claims_of", table.printed_as(block))].method
                forms = {r: form for r in known for form in (r, tables.tuned_name(r)) if form in set(part.row)}
                if not {own, CONTROL} <= set(forms):
                    continue
                there = there[there.row.isin(forms.values())]
                if profile == "lite" and not there.tuned.eq(True).any():
                    untuned.append(f"{about['name']}'s {how['title']}")
                    continue
                tuned = {r["name"]: tables.tuned_name(r["name"]) for r in table.rows}
                readings = claims.variants(forms[own], table, tuned, set(part.row))
                lowest = part[part.row.isin(readings)].set_index("row").ours.idxmin()
                title = f"{about['name']} | {number}, {how['title']}{', ood as printed' * table.transfer}"
                floor = floors.get((block, column), float("nan"))
                lines.append(f"| {title} | {standing(part, [lowest, forms[CONTROL]])} | {floor:.1f} | "
                             f"{counts(there, profile)} | {profile} |")
    return "\n".join([*lines, "", f"Run as well, with no row tuned and so no evidence: {'; '.join(untuned)}.", ""])


def answered() -> str:
    """Markdown: how many claims of the papers have which verdict, a line for each kind of data."""
    every = verdicts.every(RESULTS)
    stands = every.groupby(["data", "verdict"]).size().unstack(fill_value=0)
    stands = stands.reindex(index=verdicts.KINDS, columns=claims.VERDICTS, fill_value=0)
    own = every[every.data == verdicts.KINDS[0]]
    lines = [f"| {kind} | {line.sum()} | {' | '.join(map(str, line))} |" for kind, line in stands.iterrows()]
    head = ["asked of", "claims", *claims.VERDICTS]
    return "\n".join([
        f"| {' | '.join(head)} |", "|---" * len(head) + "|", *lines, "",
        "Frozen features are the same data through an encoder that is not trained, below a small net; other data are "
        "most of them small embedded sets. Neither is the papers' experiment. Of the papers' own data, "
        f"{verdicts.together(own)} for or against a paper hold when all claims of its paper count together (Holm); "
        f"{own.kind.str.endswith('not at hand').sum()} of those not run want data or weights that were not at hand."])


def standing(part, rows: list[str]) -> str:
    """"72.84 | 38.2 ± 6.8 | 57.50 | 30.1 ± 2.2"."""
    part = part.set_index("row")
    return " | ".join(filled.cell(part.loc[name]) for name in rows)


def counts(rows, profile: str) -> str:
    """"9 of 10 | 2 of 10 | 0 of 10 | 2 to 3"; in the paper profile the rates are as printed, and not tuned by us."""
    least, most = rows.n.min(), rows.n.max()
    marks = [f"{rows[mark].eq(True).sum()} of {len(rows)}" for mark in ("learned", "settled", "tuned")]
    marks[2] = "as printed" if profile == "paper" else marks[2]
    return " | ".join([*marks, str(least) if least == most else f"{least} to {most}"])


def leads() -> str:
    """Markdown: of each paper's first table and each dataset with records, its method's lead over FedAvg, printed, run,
    and run on frozen features, with the verdict that the claim "better than FedAvg" would have; then those not run.
    """
    found = [lead for ident in first_tables() for lead in overview.leads(ident.split("/")[0], RESULTS)]
    lines = [f"| [{lead['title']}](../notebooks/{lead['page']}.ipynb) | {lead['printed']:+.1f} | {judged(lead)} "
             f"| {judged(lead['again'])} |" for lead in found if ran(lead)]
    absent = "; ".join(lead["title"] for lead in found if not ran(lead))
    return "\n".join(["| | printed | ours | ours, frozen features |", "|---|---|---|---|", *lines, "",
                      f"Printed, and not run: {absent}.", ""])


def ran(lead: dict) -> bool:
    """Whether there is a number of ours, from images or from features."""
    return bool(lead["n"] or lead["again"] and lead["again"]["n"])


def judged(lead: dict | None) -> str:
    """'+7.3 ± 0.8, supported'."""
    if lead is None or not lead["n"]:
        return "–" if lead is None else "not run"
    return ", ".join(filter(None, (overview.gap(lead), lead["verdict"])))


def first_tables() -> list[str]:
    """The first table of each paper."""
    return sorted({i.split("/")[0]: i for i in reversed(tables.idents())}.values())


def artefacts() -> str:
    """Markdown: a fold for each paper with its tables and figures, what of them was run, and how their claims stand."""
    judged, parts = claims.judge_all(RESULTS), []
    for name, content in [(n, c) for n, c in tables.papers().items() if "name" in c["paper"]]:
        title = f"{content['paper']['name']}: {len(content['tables'])} tables and figures"
        lines = overview.artefacts(name, judged, "../notebooks/", RESULTS)
        parts.append(f":::{{admonition}} {title}\n:class: dropdown\n{lines}\n:::\n")
    return "\n".join(parts)


def cited() -> str:
    """Markdown: BibTeX of the kit, from CITATION.cff, and of the papers, as the bibliography has them."""
    kit = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    who = " and ".join(f"{{{a['name']}}}" if "name" in a else f"{a['family-names']}, {a['given-names']}"
                       for a in kit["authors"])
    fields = {"author": who, "title": kit["title"], "version": kit["version"], "license": kit["license"],
              "doi": kit.get("doi"), "url": kit.get("repository-code")}
    lines = [f"  {k:<7} = {{{v}}}," for k, v in fields.items() if v]
    parts = ["## This kit", "\n".join(["```bibtex", "@software{fedlib,", *lines, "}", "```"]), "## The five papers"]
    every = (ROOT / "book/references.bib").read_text(encoding="utf-8")
    for name, content in [(n, c) for n, c in tables.papers().items() if "name" in c["paper"]]:
        entry = re.search(rf"^@\w+\{{{name},.*?^\}}", every, re.S | re.M)[0]
        parts += [f"**{content['paper']['name']}**", f"```bibtex\n{entry}\n```"]
    return "\n\n".join(parts) + "\n"


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


def sums() -> dict[Path, str]:
    """{list: its text}: SHA-256 of every record in its folder's list, and of what lies beside the folders and of these
    lists in the first, each as `sha256sum -c` in its folder reads it: no number can be changed without a line there.
    """
    below = [p for p in RESULTS.iterdir() if not p.name.startswith(".")]
    lists = {folder / SUMS: listed(folder, contents(folder.rglob("*"))) for folder in below if folder.is_dir()}
    return lists | {RESULTS / SUMS: listed(RESULTS, contents(below) | {p: t.encode() for p, t in lists.items()})}


def contents(paths) -> dict[Path, bytes]:
    """Of the files among them that are finished, but for lists."""
    return {p: p.read_bytes() for p in paths if p.is_file() and p.name != SUMS and p.suffix not in UNFINISHED}


def listed(folder: Path, found: dict[Path, bytes]) -> str:
    """The lines of `sha256sum` in the folder, by name."""
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {path.relative_to(folder).as_posix()}\n"
                   for path, content in sorted(found.items()))


def renewed(text: str) -> str:
    """The text with its tables made anew."""
    for name, table in MADE.items():
        text = re.sub(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", lambda m, table=table: m[1] + table() + m[2], text,
                      flags=re.S)
    return text


MADE = {"results": results_table, "methods": methods_table, "answered": lambda: f"{answered()}\n", "leads": leads,
        "artefacts": artefacts, "cite": cited}
MADE |= {f"api_{name}": functools.partial(lambda name: f"{api.package(name).data}\n", name) for name in api.PACKAGES}


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(renewed(readme.read_text()))
    for path, text in sums().items():
        path.write_text(text)
