"""What a paper says about a table in words, and a verdict on it from records.

    supported      the 95 % interval of the paired difference lies above 0, over every rival; over all but one where a
                   claim says "best or second best" (`rank` = 2)
    contradicted   it lies below 0 over one rival (over `rank` of them), at a level divided by the number of rivals;
                   only these rows must be evidence
    undecided      neither, on runs that are evidence; or a lead, either way, that is gone when each row gains what
                   twice the rounds of the longest may bring, or, where the best of all tests counts, in the last five
                   rounds: then `reason` says so
    not evidence   fewer than three seeds or fewer than planned, an interval as wide as the column, rows that give the
                   same numbers, or a row that did not learn, did not settle, diverged or was not tuned for this column,
                   by as many tries as the others and within the rates tried; or another reading of the better row that
                   is planned has no record: `reason` says which
    not run        a row has no record

So where nothing differs, at most 5 % of the claims are called supported or contradicted.
"""
from pathlib import Path

import numpy as np
import pandas as pd

from fedlib.experiments import evidence
from fedlib.experiments.filled import values
from fedlib.experiments.statistics import LEVEL, SAME, holm, interval, p_value, seeds_needed
from fedlib.experiments.tables import Table, given_name, idents, is_tuned, load_table

SUPPORTED, CONTRADICTED, UNDECIDED, NOT_EVIDENCE, NOT_RUN = VERDICTS = (
    "supported", "contradicted", "undecided", "not evidence", "not run")
DECIDED = (SUPPORTED, CONTRADICTED, UNDECIDED)
FEWEST = 3          # seeds
COLUMNS = ["id", "source", "says", "verdict", "rows", "reason", "direction", "over", "mean", "half", "n", "printed",
           "agrees", "needs", "p", "evidence", "note"]


def judge_claims(table: Table, profile: str, results: Path, rule: str | None = None, when: str = "") -> pd.DataFrame:
    """Every claim on the table with its verdict in this profile: COLUMNS, see `judge`.

    See `judge_tuned`. Two columns may hold one number, as ind and ood do where all clients have one net: that decides
    once.
    """
    cells = values(table, profile, results, rule, when=when)
    rows = evidence.of_rows(table, profile, results, rule, when)
    lines, first = [], {}
    for c in table.claims:
        found = judge_tuned(c, cells, rows, table, profile)
        if found["verdict"] in DECIDED:
            behind = c["block"], c["better"], *c["than"], found["gap"]
            if first.setdefault(behind, c["id"]) != c["id"]:
                found |= {"verdict": NOT_EVIDENCE, "reason": f"the same numbers already stand behind {first[behind]}"}
        lines.append({k: c[k] for k in ("id", "source", "says")} | found | {"note": c.get("note", "")})
    return pd.DataFrame(lines, columns=COLUMNS)


def judge_tuned(claim: dict, cells: pd.DataFrame, rows: pd.DataFrame, table: Table, profile: str) -> dict:
    """`judge` of the tuned rows where all that the claim names are there in that form, else of the rows as they are
    given; `rows` says which."""
    claim = claim | {"planned": {p.row for p in table.runs(profile) if p.block == claim["block"]}}
    tuned = judge(in_tuned_form(claim, table, profile), cells, rows, table) | {"rows": "tuned"}
    return tuned if tuned["verdict"] != NOT_RUN else judge(claim, cells, rows, table) | {"rows": "as given"}


def in_tuned_form(claim: dict, table: Table, profile: str) -> dict:
    """The claim about the tuned rows of the same methods, tuned for its column; `forms`: of every row."""
    forms = {r["name"]: table.tuned_form(r["name"], profile, claim["block"], claim["setting"])
             for r in table.rows if not is_tuned(r["name"])}
    return claim | {"better": forms[claim["better"]], "than": [forms[r] for r in claim["than"]], "forms": forms}


def variants(row: str, table: Table, forms: dict, there) -> list[str]:
    """The row, and other readings of what the paper calls so: MOON's other weight is MOON too. A row beside the
    comparison (`aside`), like released code with its faults, is none. A reading without a tuned form stands as given.
    """
    named = given_name(row)
    other = [r["name"] for r in table.rows if r.get("printed") == named != r["name"]
             and not is_tuned(r["name"]) and not r.get("aside")]
    return [row, *(forms[r] if forms.get(r) in there else r for r in other)]


def rivals(claim: dict, table: Table, there) -> list[str]:
    """The rows that a claim names and their other readings, but for those of its better row."""
    forms = claim.get("forms", {})
    own = variants(claim["better"], table, forms, there)
    every = [v for row in claim["than"] for v in variants(row, table, forms, there)]
    return list(dict.fromkeys([*claim["than"], *(v for v in every if v not in own)]))


def judge(claim: dict, cells: pd.DataFrame, rows: pd.DataFrame, table: Table) -> dict:
    """The verdict of one claim from `values` and `evidence.of_rows`. Of a better row with several readings it is
    supported or contradicted when each is that is planned here.

    direction: what the intervals alone say. Of the rival that decides, `over`: mean and half of the difference paired
    by seed, n, the printed difference, whether ours agrees with its size, for an undecided claim the seeds it needs to
    find the printed difference (0: none would). p: of the whole claim.
    """
    part = cells[(cells.block == claim["block"]) & (cells.setting == claim["setting"])]
    by_row, lasting = (part.pivot(index="seed", columns="row", values=k) for k in ("value", "lasting"))
    better, *others = variants(claim["better"], table, claim.get("forms", {}), by_row)
    missing = [r for r in others if r not in by_row and r in claim.get("planned", ())]
    found = [judge_one(claim | {"better": row}, by_row, lasting, rows, table, rivals(claim, table, by_row))
             for row in [better, *(r for r in others if r in by_row)]]
    nearest = {SUPPORTED: -1, CONTRADICTED: 1}      # to zero
    weakest = max(found, key=lambda f: (VERDICTS.index(f["verdict"]), f["direction"] == UNDECIDED,
                                        nearest.get(f["verdict"], 0) * f["mean"]))
    weakest |= {"p": max(f["p"] for f in found if f["verdict"] == weakest["verdict"])}
    if weakest.get("better", claim["better"]) != claim["better"]:
        weakest |= {"evidence": f"{weakest['better']}: {weakest['evidence']}"}
    if {SUPPORTED, CONTRADICTED} == {f["verdict"] for f in found}:      # MOON's weight decides, which nobody states
        weakest |= {"verdict": UNDECIDED, "direction": UNDECIDED, "p": max(f["p"] for f in found)}
    if missing and weakest["verdict"] != NOT_RUN:
        reasons = evidence.named("planned, and not run, is another reading", missing)
        weakest |= {"verdict": NOT_EVIDENCE, "reason": "; ".join(filter(None, [*reasons, weakest["reason"]]))}
    return weakest


def judge_one(claim: dict, by_row: pd.DataFrame, lasting: pd.DataFrame, rows: pd.DataFrame, table: Table,
              than: list[str]) -> dict:
    """`judge` of one reading of the better row, over the rivals `than`."""
    empty = {"reason": "", "direction": "", "over": "", "mean": float("nan"), "half": float("nan"), "n": 0,
             "printed": float("nan"), "agrees": None, "needs": 0, "p": float("nan")}
    if missing := [r for r in [claim["better"], *than] if r not in by_row]:
        return empty | {"verdict": NOT_RUN, "evidence": f"no records of {', '.join(missing)}"}
    gaps = {r: (by_row[claim["better"]] - by_row[r]).dropna() for r in than}
    if not all(map(len, gaps.values())):
        return empty | {"verdict": NOT_RUN, "evidence": "no seed in common"}
    column = rows[(rows.block == claim["block"]) & (rows.setting == claim["setting"])]
    doubted = {r for r in than if len(gaps[r]) < FEWEST
               or evidence.faults(column[column.row.isin([claim["better"], r])].to_dict("records"))}
    found = empty | compared(gaps, claim.get("rank", 1), doubted) | {"better": claim["better"]}
    against = found.pop("against")
    gap, printed = gaps[found["over"]], printed_difference(claim, found["over"], table)
    found |= {"printed": printed, "agrees": bool(abs(found["mean"] - printed) <= found["half"])
              if printed == printed and found["half"] == found["half"] else None}
    needed = against if found["direction"] == CONTRADICTED else than
    reasons = faults(found, column, [claim["better"], *needed], min(len(gaps[r]) for r in needed))
    verdict = NOT_EVIDENCE if reasons else found["direction"]
    if verdict == UNDECIDED:
        found["needs"] = seeds_needed(printed, gap.std())
    found |= {"evidence": in_words(found, verdict), "gap": tuple(gap.round(6))}
    if verdict in (SUPPORTED, CONTRADICTED):
        later = {r: (lasting[claim["better"]] - lasting[r]).dropna() for r in than}
        if reasons := passing(gaps, later, claim, column, doubted, found):
            verdict = UNDECIDED
    return found | {"verdict": verdict, "reason": "; ".join(reasons)}


def compared(gaps: dict[str, pd.Series], rank: int = 1, doubted: set = frozenset()) -> dict:
    """{"direction", "against", "over", "mean", "half", "n", "p"} of the gaps to each rival; doubted: see `decided`."""
    direction, against = decided(gaps, rank, doubted)
    by_chance = {r: p_value(gap) if len(gap) > 1 else 1.0 for r, gap in gaps.items()}
    below = sorted(by_chance[r] for r, gap in gaps.items() if gap.mean() <= 0)
    above = sorted((by_chance[r] for r, gap in gaps.items() if gap.mean() > 0), reverse=True)
    p = min(1.0, len(gaps) * below[rank - 1]) if len(below) >= rank else above[rank - 1 - len(below)]
    if direction == CONTRADICTED:       # by those that decide
        p = min(1.0, len(gaps) * max(by_chance[r] for r in against))
    mean, half = interval(gaps[against[-1]])
    return {"direction": direction, "against": against, "over": against[-1], "mean": mean, "half": half,
            "n": len(gaps[against[-1]]), "p": p}


def decided(gaps: dict, rank: int = 1, doubted: set = frozenset()) -> tuple[str, list[str]]:
    """(what the intervals say, the `rank` rivals that come nearest, last the one that decides) of {rival: differences}.

    Supported needs every interval above 0, but for rank - 1. Contradicted needs `rank` below 0 at the level
    1 - 0.05 / k of k rivals: one of many rivals is soon above by chance; a doubted rival, whose runs are no evidence,
    contradicts only where not enough others do. A difference that is the same with every seed has no end that would be
    known.
    """
    bounds = {r: open_ended(gap) for r, gap in gaps.items()}
    lower = {r: mean - half for r, (mean, half) in bounds.items()}
    upper = {r: sum(open_ended(gap, 1 - (1 - LEVEL) / len(gaps))) for r, gap in gaps.items()}
    least, nearest = (sorted(ends, key=ends.get)[:rank] for ends in
                      (lower, {r: mean for r, (mean, _) in bounds.items()}))
    below = sorted(upper, key=lambda r: (upper[r] >= 0, r in doubted, upper[r]))[:rank]
    if lower[least[-1]] > 0:
        return SUPPORTED, least
    return (CONTRADICTED, below) if upper[below[-1]] < 0 else (UNDECIDED, nearest)


def open_ended(gap: pd.Series, level: float = LEVEL) -> tuple[float, float]:
    """`interval`, with half = inf of one seed, and where several give one difference: that of one test image, say."""
    mean, half = interval(gap, level)
    return mean, half if gap.max() - gap.min() >= SAME else float("inf")


def faults(found: dict, rows: pd.DataFrame, named: list[str], n: int) -> list[str]:
    """Why a comparison is no evidence, in words. rows: `evidence.of_rows` of its column; n: the fewest common seeds."""
    reasons = [f"only {n} seed{'s' * (n > 1)}"] if n < FEWEST else []
    if found["mean"] == found["half"] == 0:
        reasons.append("the rows give the same numbers with every seed: what is compared does nothing here")
    lowest = (rows["mean"] - rows["above"]).min()       # the constant answer's
    span = rows["mean"].max() - min(rows["mean"].min(), lowest if lowest == lowest else float("inf"))
    if found["n"] >= FEWEST and 2 * found["half"] >= span:
        reasons.append(f"the interval (± {found['half']:.1f}) is as wide as the whole column ({span:.1f} points)")
    return reasons + evidence.faults(rows[rows.row.isin(named)].to_dict("records"))


def passing(gaps: dict, lasting: dict, claim: dict, rows: pd.DataFrame, doubted: set, found: dict) -> list[str]:
    """Why a lead may be one of speed, or of a lucky test: what is left when each row gains what the curves foretell for
    twice the rounds of the longest of them, and what there is in the last five rounds (`lasting`, as `gaps`)."""
    rows = rows.set_index("row").loc[[claim["better"], *gaps]]
    most = rows.rounds.max()
    gains = rows.gain * (1 + np.log2(most / rows.rounds))       # as much again with each doubling
    every = {f"going on as the curves rise, {2 * most:.0f} rounds would leave":
             {r: gap + gains[claim["better"]] - gains[r] for r, gap in gaps.items()},
             "the best of all tests is chosen on the test images; the last five rounds have": lasting}
    judged = {why: compared(later, claim.get("rank", 1), doubted) for why, later in every.items()}
    return [f"{why} {later['mean']:+.1f} ± {later['half']:.1f} points over {later['over']}"
            for why, later in judged.items() if later["direction"] != found["direction"]]


def printed_difference(claim: dict, over: str, table: Table) -> float:
    """What the paper prints for `better` minus this rival; nan where one of the two is not printed."""
    place = (table.printed.dataset == table.printed_as(claim["block"])) & (table.printed.setting == claim["setting"])
    of = table.printed[place].drop_duplicates("method").set_index("method").value
    ours, theirs = (of.get(table.printed_row(row), float("nan")) for row in (claim["better"], over))
    return float(ours - theirs)


def in_words(found: dict, verdict: str) -> str:
    """'+4.26 ± 3.86 points over MOON, n = 3; printed +1.15, within the interval; 9 seeds would show such a lead'."""
    half = f" ± {found['half']:.2f}" if found["half"] == found["half"] else ""
    same = ", the same with every seed" * bool(half and found["half"] < SAME)
    said = f"{found['mean']:+.2f}{half} points over {found['over']}, n = {found['n']}{same}"
    if found["printed"] != found["printed"]:
        return said
    said += f"; printed {found['printed']:+.2f}"
    if found["agrees"] is not None and not same:
        said += f", {'within' if found['agrees'] else 'outside'} the interval"
    if verdict == UNDECIDED and not found["needs"]:
        said += "; no number of seeds would show such a lead"
    if verdict == UNDECIDED and found["needs"] > found["n"]:
        said += f"; {found['needs']} seeds would show such a lead"
    return said


def judge_all(results: Path, paper: str = "") -> pd.DataFrame:
    """Every claim of a paper or of all, once: paper, table, block, profile and COLUMNS, and holm.

    The verdict is that of the strongest profile that decides it: paper, then lite, then mini; where none does, of the
    strongest with records; profile is "" where nothing ran. A claim that the same runs already decide is no second
    piece of evidence, see `once`. holm: p adjusted over the decided claims of the paper.
    """
    lines, seen = [], []
    wanted = [ident for ident in idents() if ident.startswith(f"{paper}/" if paper else "")]
    for table in filter(lambda t: t.claims, map(load_table, wanted)):
        of, name = table.id.split("/")
        every = {p: judge_claims(table, p, results).set_index("id") for p in ("paper", "lite", "mini")}
        for claim in table.claims:
            block = table.blocks[claim["block"]]
            judged = [(p, every[p].loc[claim["id"]]) for p in every if p in block]
            order = sorted(judged, key=lambda pair: (VERDICTS.index(pair[1].verdict) >= 3,
                                                     pair[1].verdict == NOT_RUN))
            profile, line = order[0] if order else ("", every["paper"].loc[claim["id"]])
            line = {"paper": of, "table": name, "block": claim["block"], "id": claim["id"],
                    "profile": profile if line.verdict != NOT_RUN else ""} | line.to_dict()
            if line["verdict"] in DECIDED:
                line |= once(claim, line["rows"], table, profile, seen)
            lines.append(line)
    frame = pd.DataFrame(lines)
    decided = frame.verdict.isin(DECIDED)
    frame["holm"] = float("nan")
    for _, part in frame[decided].groupby("paper"):
        frame.loc[part.index, "holm"] = holm(list(part.p))
    return frame


def once(claim: dict, form: str, table: Table, profile: str, seen: list) -> dict:
    """{} for the first claim that these runs decide, else the verdict and the reason of one that says it again.

    Another table says it again also where it names fewer rivals. form: are the rows "tuned" or "as given"? seen:
    (table, claim, `digests`), grows by the first.
    """
    setting, better, than = digests(table, in_tuned_form(claim, table, profile) if form == "tuned" else claim, profile)
    for ident, first, (s, b, t) in seen:
        if (s, b) == (setting, better) and (t == than or (ident != table.id and than < t)):
            return {"verdict": NOT_EVIDENCE, "reason": f"the same runs already stand behind {first}"}
    seen.append((table.id, claim["id"], (setting, better, than)))
    return {}


def said_before(table: Table, profile: str, results: Path) -> dict[str, dict]:
    """{id: what `once` says} of the table's claims that an earlier table of the paper makes with the same runs."""
    seen, paper, said = [], table.id.split("/")[0], {}
    mine = {c["block"] for c in table.claims if profile in table.blocks[c["block"]]}
    earlier = [i for i in idents() if i.split("/")[0] == paper]
    for ident in earlier[:earlier.index(table.id) + 1] if table.id in earlier else []:
        other = table if ident == table.id else load_table(ident)
        if mine & {c["block"] for c in other.claims}:
            judged = judge_claims(other, profile, results).set_index("id")
            decided = [c for c in other.claims if c["block"] in mine and judged.verdict[c["id"]] in DECIDED]
            said = {c["id"]: once(c, judged["rows"][c["id"]], other, profile, seen) for c in decided}
    return {ident: found for ident, found in said.items() if found}


def digests(table: Table, claim: dict, profile: str) -> tuple:
    """What a claim is decided by: the runs of its better row and of its rivals, and the column."""
    planned = [p for p in table.runs(profile) if p.block == claim["block"]]
    than = rivals(claim, table, {p.row for p in planned})
    return (claim["setting"], frozenset(p.run.digest for p in planned if p.row == claim["better"]),
            frozenset(p.run.digest for p in planned if p.row in than))
