"""How far a profile is from the paper's experiment: every setting in which the two differ, computed from their runs."""
import pandas as pd

from fedlib.core import settings
from fedlib.experiments.tables import Table

NAMES = {"data.fraction": "a client's share of its domain", "data.pool": "share of the data", "data.size": "image size",
         "data.name": "dataset", "data.encoder": "encoder", "data.head": "frozen head from", "net.net": "net",
         "net.width": "width", "protocol.lr": "learning rate", "protocol.rounds": "rounds",
         "protocol.epochs": "local epochs", "protocol.batch": "batch", "protocol.weight_decay": "weight decay",
         "protocol.precision": "precision"}


def of_block(table: Table, block: str, profile: str) -> pd.DataFrame:
    """Lines (what, paper, profile) of a block: first what is so for all rows, then, with the rows' names, what is not.

    Empty where the paper's experiment is not planned for the block.
    """
    if not {"paper", profile} <= set(table.blocks[block]) or profile == "paper":
        return pd.DataFrame(columns=["what", "the paper", profile])
    rows = [r for r in table.rows if {"paper", profile} <= set(r.get("profiles", ("paper", "lite", "mini")))]
    unseen = next(iter(table.blocks[block]["columns"])) if table.leave_one_out else ""
    found = {r["name"]: differences(*(table.plan(r, block, p, table.seeds[0], unseen) for p in ("paper", profile)))
             for r in rows}
    lines = []
    for key in dict.fromkeys(k for some in found.values() for k in some):
        name, alike = NAMES.get(key, key.partition(".")[2]), {}
        for row, some in found.items():
            if key in some:
                alike.setdefault(str(some[key]), []).append(row)
        most = max(alike, key=lambda value: len(alike[value]))
        whole = sum(map(len, alike.values())) == len(found)
        for value in sorted(alike, key=most.__eq__):
            rows = alike[value]
            who = ("" if len(rows) == len(found) else "the other rows" if whole and value == most and len(rows) > 1
                   else "; ".join(rows))
            lines.append((name + f": {who}" * bool(who), *found[rows[0]][key]))
    lines.sort(key=lambda line: ": " in line[0])
    return pd.DataFrame(lines, columns=["what", "the paper", profile])


def differences(paper, here) -> dict[str, tuple]:
    """{"protocol.lr": (0.01, 0.05), ...}: the settings of two runs that differ; the work of a client as one line."""
    found = {}
    for part in ("data", "net", "protocol"):
        one, two = getattr(paper, part), getattr(here, part)
        found |= {f"{part}.{k}": (said(part, k, getattr(one, k)), said(part, k, getattr(two, k)))
                  for k in settings.fields(type(one)) if getattr(one, k) != getattr(two, k)}
    found |= {f"method.{k}": (paper.settings.get(k, "default"), here.settings.get(k, "default"))
              for k in {**paper.settings, **here.settings} if paper.settings.get(k) != here.settings.get(k)}
    epochs = [r.protocol.rounds * r.protocol.epochs for r in (paper, here)]
    if epochs[0] != epochs[1]:
        found["total.epochs of a client in all"] = tuple(epochs)
    return {k: v for k, v in found.items() if k != "protocol.precision" or "bf16" in v}     # TF32 is as good as float32


def said(part: str, name: str, value):
    """A setting as a reader knows it."""
    if (part, name, value) in (("net", "width", 0), ("data", "size", 0)):
        return "as published"
    if (part, name) in (("data", "fraction"), ("data", "pool")):
        return f"{100 * value:g} %"
    return value if value not in ("", ()) else "none"
