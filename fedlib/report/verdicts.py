"""Every claim of every paper with its verdict: how many there are, how they stand, and why some have none."""
import html
from pathlib import Path

import pandas as pd
from IPython.display import HTML, Markdown

from fedlib.experiments import tables
from fedlib.experiments.claims import (
    CONTRADICTED,
    DECIDED,
    NOT_EVIDENCE,
    NOT_RUN,
    SUPPORTED,
    UNDECIDED,
    judge_all,
)
from fedlib.experiments.results import results_folder
from fedlib.experiments.statistics import LEVEL
from fedlib.report import overview, text

PAPERS = ("i2pfl", "fedpall", "feddtr", "mpft", "feddeap")
SIGNS = {SUPPORTED: "✔", CONTRADICTED: "✘", UNDECIDED: "◐", NOT_EVIDENCE: "○", NOT_RUN: "–"}
INKS = {SUPPORTED: ("#009E73", "white"), CONTRADICTED: ("#D55E00", "white"), UNDECIDED: ("#56B4E9", "black"),
        NOT_EVIDENCE: ("#b3b3b3", "black"), NOT_RUN: ("#e6e6e6", "black")}     # of a piece of a bar, of its number
KINDS = ("the paper's data", "its data, frozen features", "other data")
# Sets, and domains of the digits, that were not at hand when the records were made.
ABSENT = {"domainnet": "DomainNet", "ddr": "DDR", "tiny_imagenet": "Tiny-ImageNet", "cub200": "CUB-200-2011",
          "ham10000": "HAM10000"}
DOMAINS = {"svhn": "SVHN", "syn": "Synthetic Digits", "synth_digits": "SynthDigits"}
WIDTHS = {"claim": 44, "verdict": 16, "evidence": 30, "profile": 10}        # of the columns, %


def every(results: Path | None = None, paper: str = "") -> pd.DataFrame:
    """The claims of a paper or of all as `claims.judge_all` gives them, and of each: the paper's name, the kind of data
    (KINDS), and why it has no verdict: `reason` in words, `kind` in short, "" where it has one (an undecided lead has
    a reason too).
    """
    results = results_folder(results)
    found, names = judge_all(results, paper), {p: tables.papers()[p]["paper"]["name"] for p in PAPERS}
    made = {ident: tables.load_table(ident) for ident in dict.fromkeys(found.paper + "/" + found.table)}
    places = [made[f"{c.paper}/{c.table}"] for c in found.itertuples()]
    whys = [why(c, t, results) if c.verdict == NOT_RUN else
            ("" if c.verdict in DECIDED else overview.short(c)[0], c.reason)
            for c, t in zip(found.itertuples(), places, strict=True)]
    beyond = {(t.id, c["id"]) for t in made.values() for c in t.claims if c.get("beyond")}
    kinds = [KINDS[2] if (t.id, c.id) in beyond else kind(t.blocks[c.block])
             for t, c in zip(places, found.itertuples(), strict=True)]
    return found.assign(name=found.paper.map(names), data=kinds, kind=[k for k, _ in whys],
                        reason=[r for _, r in whys])


def kind(block: dict) -> str:
    """Which of KINDS a block's data are; a claim may ask of a set that the paper's table does not have (`beyond`)."""
    return KINDS[1 if "claims_of" in block else 0 if {"lite", "paper"} & set(block) else 2]


def lacking(block: dict) -> list[str]:
    """What the block's runs need that was not at hand, in words: "SVHN was not at hand"."""
    data = block[next(p for p in ("lite", "paper", "mini") if p in block)]["data"]
    missing = [f"{title} was not at hand" for name, title in ABSENT.items() if data["name"].startswith(name)]
    some = sorted(DOMAINS[d] for d in data.get("domains", []) if d in DOMAINS)
    missing += [f"{', '.join(some)} were not at hand"] * bool(some)
    return missing + ["CLIP's weights were not at hand"] * data.get("encoder", "").startswith("open_clip")


def why(claim, table: tables.Table, results: Path) -> tuple[str, str]:
    """Why a claim has no verdict: the kind of reason, and the reason in words."""
    block = table.blocks[claim.block]
    if missing := lacking(block):
        return missing[0], "; ".join(missing)
    profile = next(p for p in ("lite", "paper", "mini") if p in block)
    given = next(c for c in table.claims if c["id"] == claim.id)
    done = [p.done(results) for p in table.runs(profile)
            if p.block == claim.block and p.row in (given["better"], *given["than"])]
    kind = "not trained to the end" if any(done) else "not started"
    return kind, f"{kind}: {sum(done)} of {len(done)} runs in {profile}"


def together(claims: pd.DataFrame) -> str:
    """How many verdicts hold when all decided claims of a paper count as one question, in words: Holm's p < 0.05."""
    said = claims[claims.verdict.isin((SUPPORTED, CONTRADICTED))]
    return f"{(said.holm < 1 - LEVEL).sum()} of these {len(said)} verdicts"


def counts(claims: pd.DataFrame) -> pd.DataFrame:
    """How many: a line for each paper and kind of data, a column for each verdict."""
    found = claims.groupby(["paper", "data", "verdict"]).size().unstack(fill_value=0)
    found = found.reindex(columns=list(SIGNS), fill_value=0)
    found = found.loc[[(p, k) for p in PAPERS for k in KINDS if (p, k) in found.index]]
    names = claims.drop_duplicates("paper").set_index("paper").name
    return found.set_axis([f"{names[p]}, {k}" for p, k in found.index])


def summary(claims: pd.DataFrame) -> Markdown:
    """The same in words, for the papers' own data."""
    real, again, other = (claims[claims.data == k] for k in KINDS)
    stands = real.verdict.value_counts().reindex(list(SIGNS), fill_value=0)
    first = real[(real.verdict == NOT_EVIDENCE) & ~real.reason.str.startswith("the same ")]      # no repeats
    alone = first.direction.value_counts().reindex(DECIDED, fill_value=0)
    more, beside = (some.verdict.value_counts().reindex(DECIDED, fill_value=0) for some in (again, other))
    return Markdown(
        f"There are **{len(real)}** claims about the papers' own data. Of these "
        f"**{stands[SUPPORTED]}** are supported, **{stands[CONTRADICTED]}** contradicted, {stands[UNDECIDED]} "
        f"undecided; {stands[NOT_EVIDENCE]} have records that are not evidence, and {stands[NOT_RUN]} are not run. Of "
        f"those without evidence the intervals alone would call {alone[SUPPORTED]} supported and {alone[CONTRADICTED]} "
        "contradicted: a run that was not tuned, or has not settled, may say the opposite when it is. Each interval is "
        "right in 95 % of all cases, and there are many: counted together with all decided claims of their paper "
        f"(Holm), {together(real)} for or against a paper hold. "
        f"{len(again)} are asked once more of the same data as features of a frozen encoder, with a small "
        "trained net on top: there "
        f"{', '.join(f'{n} are {verdict}' for verdict, n in more.items())}. {len(other)} are asked of other data, most "
        f"of small embedded sets: {', '.join(f'{n} are {verdict}' for verdict, n in beside.items())}.")


def folds(claims: pd.DataFrame, paper: str) -> HTML:
    """The claims of a paper: a fold for each table, which says how they stand and how to train it again."""
    return HTML("".join(map(_fold, (part for _, part in claims[claims.paper == paper].groupby("table", sort=False)))))


def _fold(part: pd.DataFrame) -> str:
    first, stands = part.iloc[0], part.verdict.value_counts()
    ident = f"{first.paper}/{first.table}"
    table = tables.load_table(ident)
    profiles = [p for p in ("paper", "lite", "mini") if p in set(part.profile)]
    profiles = profiles or [p for p in ("lite", "paper") if table.runs(p)][:1]
    commands = "<br>".join(f"<code>fedlib run {ident} --profile {p} &amp;&amp; fedlib show {ident} --profile {p}</code>"
                           for p in profiles)
    head = "".join(f'<th style="text-align: left; width: {w}%">{t}</th>' for t, w in WIDTHS.items())
    how = ", ".join(f"{sign} {stands[v]} {v}" for v, sign in SIGNS.items() if v in stands)
    return text.fold(
        f"<b>{html.escape(table.title)}</b> ({html.escape(first.source)}): {how}",
        f'<p>{commands}</p><table class="dataframe claims" style="table-layout: fixed; width: 100%; '
        f'overflow-wrap: anywhere; text-align: left"><thead><tr>{head}</tr></thead><tbody>'
        + "".join(map(_row, part.itertuples())) + "</tbody></table>")


def _row(claim) -> str:
    says, evidence, note, reason = map(html.escape, (claim.says, claim.evidence, claim.note, claim.reason))
    chance = f"p = {claim.p:.2g}, together with the paper's other claims {claim.holm:.2g}" * (claim.holm == claim.holm)
    cells = [says + (f"<br><small>{note}</small>" if note else ""), f"{SIGNS[claim.verdict]} {claim.verdict}",
             evidence + "".join(f"<br><small>{more}</small>" for more in (reason, chance) if more),
             claim.profile or "–"]
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
