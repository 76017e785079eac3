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
from fedlib.methods import make
from fedlib.report import verdicts

UNITS = {"ood": "% ood", "ood_printed": "% ood as printed"}
NTH = {1: "best", 2: "second", 3: "third"}
MEANS = {claims.SUPPORTED: "the 95 % interval of the difference lies above zero, over every rival, or all but one for "
                           "'second best'",
         claims.CONTRADICTED: "the interval lies below zero over a rival (two for 'second best'), at a level divided "
                              "by the number of rivals",
         claims.UNDECIDED: "the runs are evidence, and neither supported nor contradicted",
         claims.NOT_EVIDENCE: "a row did not learn, settle, or have a rate between others tried, or seeds are too few"}

WORDS = {"learned": "above the constant answer by more than the interval",
         "settled": "the last fifth of the rounds is at most a point above the fifth before",
         "tuned": "the rate and the main weight were chosen on held-out training samples"}


def box(*pages) -> HTML:
    """One box for the tables of a page: a question and cards for each."""
    return HTML('<div class="answer">' + "".join(map(_table, pages)) + "</div>")


def _table(page) -> str:
    cards = [*(card(page.printed_protocol, block) for block in whole(page)), *(card(page, b) for b in shown(page))]
    lines = [f'<p class="answer-question">{html.escape(page.table.question or page.table.title)}</p>',
             '<div class="answer-cards">' + "".join(map(_card, cards)) + "</div>" if cards else "", absent(page)]
    return "".join(lines)


def shown(page) -> list[str]:
    """The blocks with records of rows to compare: of the paper's data, else of embedded data; a variant of a block only
    where its rows are tuned."""
    ran = [b for b in compared(page) if b in page.table.headed(page.blocks[b])]
    return [b for b in ran if page.blocks[b] != "mini"] or [b for b in ran if page.blocks[b] == "mini"]


def compared(page) -> list[str]:
    """The blocks with two rows or all, and with what the table measures beside their records."""
    done = {b: {p.row for p, _ in page.found if p.block == b and p.done(page.results)} for b in page.ran}
    return [b for b, rows in done.items() if len(rows) >= min(2, len(page.rows))]


def whole(page) -> list[str]:
    """The blocks of which several rows were trained as the paper says, where the page shows less than that."""
    full = page.printed_protocol
    here = page.profile == "paper" or page.table.shows
    return [] if here else [b for b in shown(full) if len(readings(full, b)[1]) > 1]


def card(page, block: str) -> dict:
    """{"title", "own": the data are the paper's, "said": {"printed", "ours", or "one net" and "own nets": in words},
    "verdicts": {verdict: number}, "basis"}. Of a table that prints no accuracy, like one of costs, the page says the
    rest."""
    table, subject = page.table, subject_of(page, block)
    own, named = readings(page, block)
    ours = page.by(setting=table.mean_column(block)).loc[block].reindex(columns=named.values())
    prints = page.cells[(page.cells.block == block) & (page.cells.setting == table.mean_column(block))]
    printed = prints.set_index("row").printed.reindex(own).dropna()
    judged = page.judged
    judged = judged[judged.id.map({c["id"]: c["block"] for c in table.claims}) == block]
    # of costs, features and attacks the page says the rest
    about = "accuracy" in (metrics(table) or {"accuracy"}) and not table.measure and not table.shows
    unit, control = UNITS.get(table.mean_column(block), "%"), "" if subject else named.get("FedAvg", "")
    said = {"ours": placed(ours, named.get(subject, subject), unit, control) if about else ""}
    if not subject:     # one of many may be the best, where they answer one question: a net for all, or one's own
        own_net = {p.row: bool(make(p.run.method, p.run.settings).personal) for p, _ in page.found if p.block == block}
        kinds = {kind: [r for r in named.values() if own_net[r] == kind] for kind in (False, True)}
        if len(named) < 2:
            said = {}
        elif all(kinds.values()):   # two questions, answered where all rows are tuned
            tuned = about and all(map(tables.is_tuned, named.values()))
            said = {label: placed(ours[rows], "", unit, named.get(control, "")) for label, control, rows in
                    (("one net", "FedAvg", kinds[False]), ("own nets", "Local", kinds[True])) if tuned}
    said = {"printed": placed(printed.to_frame().T, subject, unit), **said}
    if not any(said.values()):
        said = {"ours": "nobody is named the best: the rows are not tuned" if about and not subject and len(named) > 1
                else "in the figures and tables below"}
    protocol = ", the paper's protocol" * (page.blocks[block] == "paper")
    return {"title": page.titles[block] + protocol, "own": page.blocks[block] != "mini", "said": said,
            "verdicts": judged.verdict.value_counts().reindex(claims.VERDICTS).dropna().astype(int).to_dict(),
            "basis": basis(page, block, list(named.values()))}


def readings(page, block: str) -> tuple[list[str], dict[str, str]]:
    """The paper's rows, no variants of ours and none that stands `aside`; and of those with a number the reading that
    is highest: MOON's other weight is MOON too. Of the row that the claims are about the lowest, since they must hold
    in each. Tuned, where all are.
    """
    table, named = page.table, page.table.blocks[block].get("claims_of", page.table.printed_as(block))
    printed = set(table.printed[table.printed.dataset == named].method)
    aside = {r["name"] for r in table.rows if r.get("aside")}
    own = [r for r in page.rows if table.printed_row(r) == r and (r in printed or not printed) and r not in aside]
    ours = page.cells[(page.cells.block == block) & (page.cells.setting == table.mean_column(block))]
    ours = ours.set_index("row").ours.dropna()
    for forms in ({r: tables.tuned_name(r) for r in page.rows}, {}):
        found = {r: [v for v in claims.variants(forms.get(r, r), table, forms, ours) if v in ours] for r in own}
        if forms and all(found[r] for r in own if r in ours):
            break
    subject = subject_of(page, block)
    return own, {r: (min if r == subject else max)(some, key=ours.get) for r, some in found.items() if some}


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


def placed(values: pd.DataFrame, subject: str, unit: str = "%", control: str = "") -> str:
    """'I2PFL best of 9 with 64.9 %, 5.0 ± 2.1 above FedPLVM'; without a subject the best row; "" without values.

    values: a line for each seed, a column for each row. Rows are compared on the seeds that both have, and the distance
    has half of its 95 % interval; that to the control as well.
    """
    means = values.mean().dropna()
    if not len(means):
        return ""
    common = values[means.index].dropna()
    row = subject if subject in means else (common if len(common) else values).mean().idxmax()
    gaps = {r: interval(gap) for r in means.index if r != row and len(gap := (values[row] - values[r]).dropna())}
    if not gaps:
        return f"{row} {means[row]:.1f} {unit}"
    rank, rival = 1 + sum(mean < 0 for mean, _ in gaps.values()), min(gaps, key=lambda r: gaps[r][0])
    far = [f"{abs(gap):.1f}{f' ± {half:.1f}' if half == half else ''} {'above' if gap >= 0 else 'below'} {r}"
           for r, (gap, half) in {r: gaps[r] for r in (rival, control) if r in gaps}.items()]
    return f"{row} {NTH.get(rank, f'number {rank}')} of {len(gaps) + 1} with {means[row]:.1f} {unit}, {', '.join(far)}"


def basis(page, block: str, rows: list[str]) -> str:
    """'lite, 20 rounds of 5 epochs, 3 seeds; of 9 rows 9 learned, 2 settled, 0 were tuned'."""
    protocols = [p.run.protocol for p, _ in page.found if p.block == block and p.row in rows]
    found = page.evidence[(page.evidence.block == block) & page.evidence.row.isin(rows)
                          & (page.evidence.setting == page.table.mean_column(block))]
    if not len(found):
        return "none of the printed rows was run"
    epochs = max(p.epochs for p in protocols)
    long = spanned([p.rounds for p in protocols], "round") + f" of {epochs} epochs" * (epochs > 1)
    unknown = found.learned.isna().sum()        # where the constant answer was not run
    counts = [f"{int(found[k].eq(True).sum())} {k}" + f" ({unknown} unknown)" * bool(k == "learned" and unknown)
              for k in ("learned", "settled", "tuned") if not (k == "tuned" and page.blocks[block] == "paper")]
    return (f"{page.blocks[block]} profile, {long}, {spanned(found.n, 'seed')}; of {len(found)} "
            f"row{'s' * (len(found) != 1)} "
            + ", ".join(counts))


def spanned(counts, what: str) -> str:
    """'3 seeds', or '2 to 3 seeds'."""
    least, most = int(min(counts)), int(max(counts))
    return f"{least} to {most} {what}s" if least < most else f"{most} {what}{'s' * (most != 1)}"


def absent(page) -> str:
    """What of the paper's data has no records, or of one row alone, and what would train it."""
    printed, profile, known = set(page.table.printed.dataset), page.profile, compared(page)
    gone = [b for b, content in page.table.blocks.items() if "printed" not in content and b not in known
            and (b in printed or "paper" in content)]
    why = {}
    for b in gone:
        rows = sorted({p.row for p, _ in page.found if p.block == b})
        alone = "" if profile in page.table.blocks[b] else "for a GPU"
        alone = f"but for <i>{html.escape(rows[0])}</i>" if len(rows) == 1 else alone
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
    said = "".join(f"<dt>{k}</dt><dd>{html.escape(words)}</dd>" for k, words in found["said"].items() if words)
    return (f'<div class="answer-card"><p class="answer-data">{title} {chips}</p>' + f"<dl>{said}</dl>" * bool(said)
            + f'<p class="answer-basis">{_explained(html.escape(found["basis"]))}</p></div>')


def _explained(basis: str) -> str:
    """What the words mean, where a mouse rests on one."""
    for word, meaning in WORDS.items():
        basis = basis.replace(f" {word}", f' <abbr title="{meaning}">{word}</abbr>')
    return basis
