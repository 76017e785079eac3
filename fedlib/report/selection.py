"""Which round counts: how much the rounds of a record tremble, and what each rule of selection makes of them."""
import math

import numpy as np
import pandas as pd

from fedlib.experiments import rules
from fedlib.report.page import Page

RULES = ("last", "last5", "best-test", "best-val")


def rounds(page: Page, *blocks: str) -> pd.DataFrame:
    """A line for each record of these blocks: table, block, row, seed, rounds, tremble, accuracy (%) by each of RULES.

    All are means over the domains. "best-val" is nan where a record has no validation images.
    """
    lines = []
    for planned, record in [found for found in page.found if found[0].block in blocks]:
        known = [rule for rule in RULES if rule != "best-val" or "val" in record["rounds"][0]]
        lines.append({"table": page.table.id, "block": planned.block, "row": planned.row, "seed": planned.seed,
                      "rounds": len(record["rounds"]), "tremble": tremble(record),
                      **{rule: np.mean(list(rules.select(record, rule).values())) for rule in known}})
    return pd.DataFrame(lines, columns=["table", "block", "row", "seed", "rounds", "tremble", *RULES])


def tremble(record: dict, last: int = 10) -> float:
    """s / sqrt 2 in points, s the deviation of the steps between the last rounds: a step has the noise of two."""
    means = [np.mean(list(row["acc"].values())) for row in record["rounds"][-last:]]
    return np.diff(means).std() / math.sqrt(2)
