"""A table as the command `fedlib show` gives it: cells and verdicts, as plain data or as text."""
import json
from pathlib import Path

from fedlib.core.errors import pick
from fedlib.engine.records import results_folder
from fedlib.experiments import claims, tables


def shown(ident: str, profile: str, results: Path | None = None, rule: str | None = None, when: str = "") -> dict:
    """{"table", "profile", "select", "cells": [...], "claims": [...]}: printed and ours, and the claims' verdicts."""
    table, results = tables.load_table(ident), results_folder(results)
    pick("profile", profile, tables.PROFILES)
    cells = tables.compare(table, profile, results, rule, when=when)
    judged = claims.judge_claims(table, profile, results, rule, when)
    return {"table": ident, "profile": profile, "select": rule or table.select,
            "cells": json.loads(cells.to_json(orient="records")), "claims": judged.to_dict("records")}


def shown_text(found: dict) -> str:
    """The same for a reader."""
    import pandas as pd
    table, profile, cells = tables.load_table(found["table"]), found["profile"], pd.DataFrame(found["cells"])
    cells = cells.astype({k: float for k in ("printed", "ours", "half", "difference")})
    lines = [f"{table.title} ({table.id}), profile {profile}: {tables.PROFILES[profile]}",
             f"printed | ours ± half of the 95 % interval, n seeds; accuracy in %, {found['select']}; – is not run"]
    for block in tables.shown_blocks(table, profile):
        lines.append(f"\n{table.blocks[block]['title']}\n{tables.wide(table, cells, block).to_string()}")
    counts = pd.Series([c["verdict"] for c in found["claims"]], dtype=object).value_counts()
    lines.append("\nclaims: " + (", ".join(f"{n} {v}" for v, n in counts.items()) or "none"))
    lines += [f"  {c['verdict']}: {c['says']} [{c['evidence']}]" for c in found["claims"] if c["verdict"] != "not run"]
    return "\n".join(lines)
