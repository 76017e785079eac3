"""The answer that a table's page begins with: the question, and for each dataset what is printed, ours, the verdict.

The box says what our numbers stand on, and what was not run. Claims and verdicts are those of
`fedlib.experiments.claims`; nothing here decides anything.
"""
import html

import pandas as pd
from IPython.display import HTML

from fedlib.experiments import claims, tables
from fedlib.experiments.claims import NOT_RUN
from fedlib.experiments.statistics import interval
from fedlib.report import verdicts

NTH = {1: "best", 2: "second", 3: "third"}
MEANS = {claims.SUPPORTED: "the 95 % interval of the difference lies above zero, over every rival",
         claims.CONTRADICTED: "the interval lies below zero, over a rival",
         claims.UNDECIDED: "the runs are evidence, and the interval holds zero",
         claims.NOT_EVIDENCE: "a row did not learn, did not settle or was not tuned, or there are too few seeds"}


def box(*pages) -> HTML:
    """One box for the tables of a page: a question and cards for each."""
    return HTML('<div class="answer">' + "".join(map(_table, pages)) + "</div>")


def _table(page) -> str:
    cards = [card(page, block) for block in shown(page)]
    lines = [f'<p class="answer-question">{html.escape(page.table.question or page.table.title)}</p>',
             '<div class="answer-cards">' + "".join(map(_card, cards)) + "</div>" if cards else "", absent(page)]
    return "".join(lines)


def shown(page) -> list[str]:
    """The blocks with records: of the paper's data, else of embedded data; a variant of a block is not one."""
    ran = [b for b in page.ran if "printed" not in page.table.blocks[b]]
    return [b for b in ran if page.blocks[b] != "mini"] or [b for b in ran if page.blocks[b] == "mini"]


def card(page, block: str) -> dict:
    """{"title", "own": the data are the paper's, "printed", "ours": in words, "verdicts": {verdict: number},
    "basis"}. Of a table that prints no accuracy, like one of costs, the page says the rest."""
    table, subject = page.table, subject_of(page, block)
    column = next(c for c in ("ood_printed", "ood", "avg") if c in table.settings(block))
    cells = page.cells[(page.cells.block == block) & (page.cells.setting == column)].set_index("row")
    printed = cells.printed.dropna()
    # no variants of ours
    known = table.printed[table.printed.dataset == table.blocks[block].get("claims_of")].method     # the paper's rows
    own = [r for r in page.rows if table.printed_row(r) == r
           and (r in printed or printed.empty and (known.empty or r in set(known)))]
    rows = {r: tables.tuned_name(r) if pd.notna(cells.ours.get(tables.tuned_name(r))) else r for r in own}
    ours = cells.ours.reindex(rows.values()).set_axis(rows).dropna()
    by_seed = page.by(setting=column).loc[block].reindex(columns=rows.values()).set_axis(rows, axis=1)
    judged = page.judged()
    judged = judged[judged.id.map({c["id"]: c["block"] for c in table.claims}) == block]
    about = not metrics(table) or "accuracy" in metrics(table)
    unit = "% ood" if table.transfer else "%"
    return {"title": page.titles[block], "own": page.blocks[block] != "mini",
            "printed": placed(printed.reindex(own).dropna(), subject, unit),
            "ours": placed(ours, subject, unit, by_seed) if about else "",
            "verdicts": judged.verdict.value_counts().reindex(claims.VERDICTS).dropna().astype(int).to_dict(),
            "basis": basis(page, block, [rows[r] for r in ours.index])}


def metrics(table) -> set[str]:
    """What the paper prints in this table: "accuracy", "seconds", ...; empty where it prints no numbers."""
    paper, _, name = table.id.rpartition("/")
    typed = pd.read_csv(tables.PAPERS / f"{paper}.csv") if (tables.PAPERS / f"{paper}.csv").is_file() else None
    return set() if typed is None else set(typed[typed.table == name].metric)


def subject_of(page, block: str) -> str:
    """The row that is the paper's own, else the one that its claims on this block are about most often; else ""."""
    about = page.table.about
    if (own := about.get("row", about.get("name"))) in page.rows:
        return own
    better = pd.Series([c["better"] for c in page.table.claims if c["block"] == block], dtype=object)
    return better.mode().iloc[0] if len(better) else ""


def placed(values: pd.Series, subject: str, unit: str = "%", by_seed: pd.DataFrame | None = None) -> str:
    """'I2PFL best of 9 with 64.9 %, 5.0 above FedPLVM'; without a subject the best row; "" without values.

    by_seed: the rows' values, a line for each seed: the distance then has half of its 95 % interval, '5.0 ± 2.1 above'.
    """
    if not len(values):
        return ""
    ranks = values.rank(ascending=False, method="min").astype(int)
    row = subject if subject in values else values.idxmax()
    others = values.drop(row)
    if not len(others):
        return f"{row} {values[row]:.1f} {unit}"
    place, rival = NTH.get(ranks[row], f"number {ranks[row]}"), others.idxmax()
    gap, half = values[row] - others.max(), float("nan")
    if by_seed is not None:
        half = interval((by_seed[row] - by_seed[rival]).dropna())[1]
    return (f"{row} {place} of {len(values)} with {values[row]:.1f} {unit}, {abs(gap):.1f}"
            f"{f' ± {half:.1f}' if half == half else ''} {'above' if gap >= 0 else 'below'} {rival}")


def basis(page, block: str, rows: list[str]) -> str:
    """'lite, 20 rounds of 5 epochs, 3 seeds; of 9 rows 9 learned, 2 settled, 0 were tuned'."""
    protocols = {(p.run.protocol.rounds, p.run.protocol.epochs) for p, _ in page.found
                 if p.block == block and p.row in rows}
    found = page.evidence[(page.evidence.block == block) & page.evidence.row.isin(rows)
                          & (page.evidence.setting == ("ood" if page.table.transfer else "avg"))]
    if not len(found):
        return "none of the printed rows was run"
    rounds, epochs = max(protocols)
    long = f"{rounds} round{'s' * (rounds != 1)}" + f" of {epochs} epochs" * (epochs > 1)
    seeds = int(found.n.max())
    counts = [f"{int(found[k].eq(True).sum())} {word}" for k, word in
              (("learned", "learned"), ("settled", "settled"), ("tuned", "tuned"))
              if not (k == "tuned" and page.blocks[block] == "paper")]
    return (f"{page.blocks[block]} profile, {long}, {seeds} seed{'s' * (seeds != 1)}; of {len(found)} rows "
            + ", ".join(counts))


def absent(page) -> str:
    """What of the paper's data has no records, and what would train it."""
    printed, profile = set(page.table.printed.dataset), page.profile
    gone = [b for b, content in page.table.blocks.items() if "printed" not in content and b not in page.ran
            and (b in printed or "paper" in content)]
    why = {}
    for b in gone:
        alone = "" if profile in page.table.blocks[b] else "for a GPU"
        why.setdefault("; ".join(verdicts.lacking(page.table.blocks[b])) or alone, []).append(page.titles[b])
    words = ["<b>Not run:</b>"] if gone else []
    words += [f"{'; '.join(some)}{f' ({reason})' if reason else ''}." for reason, some in why.items()]
    planned = page.table.runs(profile, page.seeds)
    if missing := sum(not p.done(page.results) for p in planned):
        words.append(f"{missing} of {len(planned)} runs of the {profile} profile are missing: "
                     f"<code>fedlib run {page.table.id} --profile {profile}</code>")
    return f'<p class="answer-absent">{" ".join(words)}</p>' if words else ""


def _card(found: dict) -> str:
    chips = " ".join(f'<span class="verdict verdict-{v.replace(" ", "-")}" title="{MEANS[v]}">'
                     f'{f"{n} × " if n > 1 else ""}{v}</span>' for v, n in found["verdicts"].items() if v != NOT_RUN)
    title = html.escape(found["title"]) + ("" if found["own"] else " – not the paper's data")
    said = [(k, found[k]) for k in ("printed", "ours") if found[k]]
    return (f'<div class="answer-card"><p class="answer-data">{title} {chips}</p><dl>'
            + "".join(f"<dt>{k}</dt><dd>{html.escape(v)}</dd>" for k, v in said)
            + f'</dl><p class="answer-basis">{html.escape(found["basis"])}</p></div>')
