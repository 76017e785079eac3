"""What a paper says about a table in words, and a verdict on it from records."""
from pathlib import Path

import pandas as pd

from fedlib.experiments.statistics import interval
from fedlib.experiments.tables import Table, idents, load_table, values


def judge_claims(table: Table, profile: str, results: Path, rule: str | None = None, when: str = "") -> pd.DataFrame:
    """Every claim on the table with its verdict in this profile: id, source, says, verdict, evidence, note.

    Each comparison is paired by seed. reproduced: every 95 % interval of better - than lies above 0. partly: every mean
    does, not every interval. not reproduced: some mean is 0 or below. not run: a record is missing.
    """
    cells = values(table, profile, results, rule, when=when)
    lines = [{k: c[k] for k in ("id", "source", "says")} | judge(c, cells) | {"note": c.get("note", "")}
             for c in table.claims]
    return pd.DataFrame(lines, columns=["id", "source", "says", "verdict", "evidence", "note"])


def judge_all(results: Path, paper: str = "") -> pd.DataFrame:
    """Every claim of a paper or of all, once: paper, table, block, id, source, says, profile, verdict, evidence, note.

    The verdict is that of the strongest profile that decides it: paper, then lite, then mini. profile is "" where none
    does; the evidence is then that of the strongest profile in which the block can be run.
    """
    frames = []
    wanted = [ident for ident in idents() if ident.startswith(f"{paper}/" if paper else "")]
    for table in filter(lambda t: t.claims, map(load_table, wanted)):
        blocks = pd.Series({c["id"]: c["block"] for c in table.claims}, dtype=object)
        lines = []
        for profile in ("paper", "lite", "mini"):
            found = judge_claims(table, profile, results)
            found = found.assign(profile=profile, block=found.id.map(blocks))
            lines.append(found[[profile in table.blocks[b] for b in found.block]])
        of, name = table.id.split("/")
        lines = pd.concat(lines).assign(paper=of, table=name)
        open_ = lines.verdict == "not run"
        lines = lines.assign(open=open_).sort_values("open", kind="stable").drop_duplicates("id")
        frames.append(lines.set_index("id").loc[[c["id"] for c in table.claims]].reset_index())
    every = pd.concat(frames, ignore_index=True)
    every.loc[every.open, "profile"] = ""
    return every[["paper", "table", "block", "id", "source", "says", "profile", "verdict", "evidence", "note"]]


def judge(claim: dict, cells: pd.DataFrame) -> dict:
    """{"verdict", "evidence"} of one claim from the lines of `values`."""
    part = cells[(cells.block == claim["block"]) & (cells.setting == claim["setting"])]
    by_row = part.pivot(index="seed", columns="row", values="value")
    missing = [r for r in [claim["better"], *claim["than"]] if r not in by_row]
    if missing:
        return {"verdict": "not run", "evidence": f"no records of {', '.join(missing)}"}
    gaps = {r: (by_row[claim["better"]] - by_row[r]).dropna() for r in claim["than"]}
    bounds = {r: interval(gap) for r, gap in gaps.items()}
    if any(len(gap) < 2 for gap in gaps.values()):
        return {"verdict": "not run", "evidence": "fewer than two seeds in common"}
    worst = min(bounds, key=lambda r: bounds[r][0])
    mean, half = bounds[worst]
    evidence = f"{mean:+.2f} ± {half:.2f} points over {worst}, n = {len(gaps[worst])}"
    if mean <= 0:
        return {"verdict": "not reproduced", "evidence": evidence}
    settled = all(m - h > 0 for m, h in bounds.values())
    return {"verdict": "reproduced" if settled else "partly", "evidence": evidence}
