"""A paper on one page: how its claims stand and why, its lead over FedAvg, and which of its tables were run."""
import html
import re
from pathlib import Path

import pandas as pd
from IPython.display import HTML, Markdown

from fedlib.experiments import claims, evidence, filled, tables
from fedlib.experiments.results import results_folder

CONTROL = "FedAvg"
SHORT = {r"only \d+ seeds?": "too few seeds", r"still rising.*": "still rising",
         r"falling at its end.*": "falling at its end",
         r"not known whether more rounds would help.*": "not known whether more rounds would help",
         r"the interval .* is as wide as the whole column.*": "the interval is as wide as the column",
         r"the same runs already stand behind .*": "the same runs stand behind another claim"}


# the lead over FedAvg

def first_table(paper: str) -> str:
    """The paper's first table."""
    return next(ident for ident in tables.idents() if ident.startswith(f"{paper}/"))


def leads(paper: str, results: Path | None = None) -> list[dict]:
    """The lead of the paper's method over FedAvg in its first table, a line for each printed data set, and for another
    run of one with tuned rows: title, printed, and, where it was run, mean, half, n and the verdict that the claim
    "better than FedAvg" would have; else n is 0. `again`: likewise on the same data as frozen features, or None.
    """
    results, ident = results_folder(results), first_table(paper)
    about, table = tables.papers()[paper]["paper"], tables.load_table(ident)
    own = about.get("row", about.get("name"))
    shown = filled.shown_blocks(table, "lite") if {own, CONTROL} <= {r["name"] for r in table.rows} else []
    known = [(p, filled.values(table, p, results), evidence.of_rows(table, p, results)) for p in ("paper", "lite")]
    again, lines = {b["claims_of"]: name for name, b in table.blocks.items() if "claims_of" in b}, []
    for block in [b for b in shown if b in table.headed("lite")]:
        claim = {"block": block, "setting": table.mean_column(block), "better": own, "than": [CONTROL]}
        printed = claims.printed_difference(claim, CONTROL, table)
        if printed == printed:
            found, more = (best_known(table, claim | {"block": b}, known) if b else None
                           for b in (block, again.get(block)))
            lines.append(found | {"title": f"{about['name']}, {table.blocks[block]['title']}", "page": table.page,
                                  "printed": printed, "again": more})
    return lines


def best_known(table, claim: dict, known: list) -> dict:
    """The claim judged by the first (profile, values, rows) that has records of it, on tuned rows where there are."""
    for profile, cells, rows in known:
        named = cells.row.map(tables.given_name).isin([claim["better"], *claim["than"]])
        found = claims.judge_tuned(claim, cells[named], rows, table, profile)
        if found["verdict"] != claims.NOT_RUN:
            break
    return found


def gap(lead: dict) -> str:
    """'+3.1 ± 0.8'; "" where it is no evidence: a number that says nothing is not printed."""
    if lead.get("verdict") == claims.NOT_EVIDENCE:
        return ""
    return f"{lead['mean']:+.1f}" + (f" ± {lead['half']:.1f}" if lead["half"] == lead["half"] else "")


# the answer

def box(paper: str, judged: pd.DataFrame, results: Path | None = None) -> HTML:
    """What the page begins with: how many claims have which verdict, why, and the lead over FedAvg, printed and ours.

    judged: the paper's lines of `verdicts.every`.
    """
    name, stands = tables.papers()[paper]["paper"]["name"], judged.verdict.value_counts()
    chips = " ".join(chip(v, f"{stands[v]} × ") for v in claims.VERDICTS if v in stands)
    lines = []
    for lead in leads(paper, results):
        ours = f"ours {gap(lead)} {chip(lead['verdict'])}" if lead["n"] else "not run"
        if (more := lead["again"]) and more["n"]:
            ours += f", on frozen features {gap(more)} {chip(more['verdict'])}"
        title = html.escape(lead["title"].removeprefix(f"{name}, "))
        lines.append(f"<dt>{title}</dt><dd>printed {lead['printed']:+.1f}, {ours}</dd>")
    whys = [f"{what} ({n} of {stands[verdict]} {verdict})" for verdict in (claims.NOT_EVIDENCE, claims.NOT_RUN)
            for what, n in reasons(judged, verdict).head(2).items()]
    over = f"<p>{name} minus {CONTROL}, in points:</p><dl>{''.join(lines)}</dl>" if lines else ""
    return HTML(f'<div class="answer"><p class="answer-question">How do the {len(judged)} claims of {name} stand?</p>'
                f"<p>{chips}</p>{over}"
                f'<p class="answer-basis">Most frequent reasons: {html.escape("; ".join(whys))}.</p></div>')


def chip(verdict: str, before: str = "") -> str:
    """The verdict as a word in a frame."""
    return f'<span class="verdict verdict-{verdict.replace(" ", "-")}">{before}{verdict}</span>'


def reasons(judged: pd.DataFrame, verdict: str) -> pd.Series:
    """How many claims of a verdict have which reason, the most frequent first; a claim may have several."""
    found = judged[judged.verdict == verdict]
    return pd.Series([r for line in found.itertuples() for r in short(line)], dtype=object).value_counts()


def short(claim) -> list[str]:
    """Why a claim has no verdict, in few words each."""
    parts = [part.partition(":")[0] for part in claim.reason.split("; ") if part]
    for long, few in SHORT.items():
        parts = [re.sub(f"^{long}$", few, part) for part in parts]
    return list(dict.fromkeys(parts))


# the claims

def claims_table(judged: pd.DataFrame) -> Markdown:
    """Every claim of the lines: a fold for each verdict that there is, a row for each claim with its reason and a link.

    Those without records begin folded.
    """
    parts = []
    for verdict in [v for v in claims.VERDICTS if (judged.verdict == v).any()]:
        some = judged[judged.verdict == verdict]
        rows = [f"| {plain(c.says)} [{table_name(c)}](../{page(c)}.ipynb) | {why(c)} |" for c in some.itertuples()]
        opened = " open" * (verdict != claims.NOT_RUN)
        parts.append(f"<details{opened}><summary>{chip(verdict)} {len(some)} of {len(judged)}</summary>\n\n"
                     "| the paper says | why this verdict |\n|---|---|\n" + "\n".join(rows) + "\n\n</details>")
    return wrapped("\n\n".join(parts))


def wrapped(tables: str) -> Markdown:
    """Markdown tables whose cells take several lines."""
    return Markdown(f'<div class="wrapped">\n\n{tables}\n\n</div>')


def why(claim) -> str:
    """Our number and what speaks against it, or why there is none."""
    few = plain("; ".join(short(claim)))
    if claim.verdict == claims.NOT_RUN:
        return few
    return plain(claim.evidence) + (f": {few}" if few else "") + f" ({claim.profile})"


def page(claim) -> str:
    """The page of the claim's table, "i2pfl/table2"."""
    return tables.load_table(f"{claim.paper}/{claim.table}").page


def table_name(claim) -> str:
    """'Table 2', 'Figure 6', or the paper's place where the table has another name."""
    return words(claim.table).rstrip(": ") or claim.source


def words(name: str) -> str:
    """'Table 2: ' of table2, 'Figure 6: ' of figure6_tau; '' of another name."""
    found = re.match(r"(table|figure)(\d+)", name)
    return f"{found[1].capitalize()} {found[2]}: " if found else ""


def plain(text: str) -> str:
    """A sentence as Markdown shows it, none of its signs taken for markup."""
    return re.sub(r"([\\`*_\[\]<>|$~])", r"\\\1", text)


# what was run

def artefacts(paper: str, judged: pd.DataFrame, to: str = "../", results: Path | None = None) -> str:
    """Markdown: a line for each table and figure, how many of its runs have a record in each profile, its claims.

    to: the way from the page to the notebooks.
    """
    results, lines = results_folder(results), ["| | mini | lite | paper | claims |", "|---|---|---|---|---|"]
    for table in [tables.load_table(f"{paper}/{t}") for t in tables.papers()[paper]["tables"]]:
        mine = judged[(judged.paper == paper) & (judged.table == table.id.split("/")[1])]
        stands = ", ".join(f"{n} {v}" for v, n in mine.verdict.value_counts().reindex(claims.VERDICTS).dropna(
            ).astype(int).items()) or "–"
        runs = " | ".join(share(table, profile, results) for profile in tables.PROFILES)
        title = f"{words(table.id.split('/')[1])}{table.question or table.title}"
        lines.append(f"| [{title}]({to}{table.page}.ipynb) | {runs} | {stands} |")
    return "\n".join(lines)


def state(paper: str, judged: pd.DataFrame, results: Path | None = None) -> Markdown:
    """The same on a page of the notebooks."""
    return wrapped(artefacts(paper, judged, results=results))


def share(table, profile: str, results: Path) -> str:
    """'all 30', '12 of 30', 'none of 30', or '–' where the profile has no runs."""
    planned = table.runs(profile)
    done = sum(p.done(results) for p in planned)
    return "–" if not planned else f"all {done}" if done == len(planned) else f"{done or 'none'} of {len(planned)}"
