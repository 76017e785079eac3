"""What FedDTR's pages compute: the same records tested at two times, costs, text encoders, draws of the partition."""
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from fedlib.core.errors import UserError
from fedlib.core.losses import cosines
from fedlib.experiments import tables
from fedlib.experiments.claims import judge_claims
from fedlib.methods import make
from fedlib.methods.base import Protocol
from fedlib.models import text_encoders
from fedlib.models.nets import Net
from fedlib.report import text
from fedlib.report.page import Page

OURS = "FedDTR"
DIM = 512       # length of a feature of the paper's CNN


# before and after local training

def times(page: Page) -> dict[str, Page]:
    """A table read in three ways: each row tested when the printed table tests it, all before, all after training."""
    return {"as printed": page, "all before": page.at("before"), "all after": page.at("after")}


def by_time(timed: dict[str, Page]) -> pd.DataFrame:
    """Accuracy (%), mean over n seeds: a line for each block and method with records, a column for each time, and n."""
    cells = {name: page.averages.set_index(["block", "row"]) for name, page in timed.items()}
    columns = {name: each.ours for name, each in cells.items()} | {"n": next(iter(cells.values())).n}
    return pd.DataFrame(columns).dropna().rename_axis(["block", "method"])


def claims_by_time(timed: dict[str, Page]) -> pd.DataFrame:
    """The claims in the paper's words: the printed margin (points), the verdict with its evidence at each time, why it
    is no evidence as printed, a note.

    The margin is that of the claim's method over the best of those that it names.
    """
    page = next(iter(timed.values()))
    judged = {name: each.judged.set_index("id") for name, each in timed.items()}
    words = {name: frame.verdict + ("<br>" + frame.evidence).where(frame.verdict != "not run", "")
             for name, frame in judged.items()}
    first, margins = judged["as printed"], {}
    for claim in [c for c in page.table.claims if c["block"] in page.printed.index]:
        column = page.printed.avg[claim["block"]]
        margins[claim["id"]] = f"{column[claim['better']] - column[claim['than']].max():+.2f}"
    column = {"printed": pd.Series(margins).reindex(first.index, fill_value="–")} if margins else {}
    return first[["says"]].assign(**column, **words, reason=first.reason, note=first.note)


class Place(NamedTuple):
    """A method's place among several, and how far it is ahead of the best other one (points)."""
    place: int
    of: int
    ahead: float
    other: str

    def __str__(self) -> str:
        return f"{self.place} of {self.of} ({self.ahead:+.1f}, {self.other})"


def place(values: pd.Series, row: str = OURS) -> Place | None:
    """The place of a row by values of all rows; None where it has no value, or nothing to be compared with."""
    values = values.dropna()
    if row not in values or len(values) < 2:
        return None
    others = values.drop(row)
    return Place(int((others > values[row]).sum()) + 1, len(values), values[row] - others.max(), others.idxmax())


def places(timed: dict[str, Page]) -> pd.DataFrame:
    """FedDTR's places among the rows as given: a line for each block, printed and at each time, by the means over the
    seeds that all of them have.
    """
    page = next(iter(timed.values()))
    given = [row for row in page.rows if not tables.is_tuned(row)]
    printed = page.averages.pivot(index="block", columns="row", values="printed")[given]
    made = {"printed": {b: place(printed.loc[b]) for b in page.blocks}}
    for name, each in timed.items():
        wide = each.by().reindex(columns=given)
        made[name] = {b: place(wide.loc[b].dropna(axis=1, how="all").dropna().mean()) for b in each.ran}
    return pd.DataFrame(made, list(page.blocks)).astype(object)


def gains(page: Page) -> pd.DataFrame:
    """What an epoch at the client before the test is worth, in words: after minus before by seed, row x block."""
    gap = page.at("after").by() - page.at("before").by()
    if gap.empty:
        return gap
    made = gap.groupby(level="block").agg(lambda sample: text.points(sample.dropna())).T
    made = made.reindex(index=page.rows, columns=page.ran).rename(columns=page.titles)
    made.insert(0, "tested", made.index.map(page.times))
    return made.fillna("–").rename_axis(index=None, columns=None)


def every_claim(profile: str, results: Path) -> pd.DataFrame:
    """The paper's claims of all tables as `judge_claims` gives them, without those that are asked once more of
    features; after: the verdict with all rows tested after training.
    """
    frames = []
    for table in (tables.load_table(f"feddtr/{name}") for name in tables.papers()["feddtr"]["tables"]):
        judged, after = (judge_claims(table, profile, results, when=when) for when in ("", "after"))
        evidence = judged.evidence.where(judged.verdict != "not run", "–")
        own = [c["id"] for c in table.claims if "claims_of" not in table.blocks[c["block"]]]
        frames.append(judged.assign(evidence=evidence, after=after.verdict)[judged.id.isin(own)])
    return text.joined(frames).reset_index(drop=True)


# printed numbers, blocks in a row, the profiles' protocols

def printed(table: str) -> pd.DataFrame:
    """All that one of the paper's tables prints of one dataset: a line for each method, a column for each measure."""
    every = pd.read_csv(tables.PAPERS / "feddtr.csv")
    part = every[every.table == table]
    wide = part.pivot(index="method", columns="metric", values="value")
    return wide.loc[list(part.method.unique())].rename_axis(index=None, columns=None)


def along(page: Page, blocks: dict[str, float], setting: str, source: str = "ours", rows=None) -> pd.DataFrame:
    """Averages over a setting, as `plots.sensitivity` takes them. blocks: the value of each; source: or "printed"."""
    part = page.averages[page.averages.block.isin(blocks) & page.averages.row.isin(rows or page.rows)]
    part = part.assign(mean=part[source], half=part.half if source == "ours" else np.nan).dropna(subset="mean")
    return part.assign(**{setting: part.block.map(blocks)}).rename(columns={"row": "method"})


def lost(page: Page, steps: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """Points that each row loses between blocks, {name: (first, last)}: printed, and ours in words, paired by seed."""
    printed, made = page.averages.pivot(index="row", columns="block", values="printed"), {}
    for name, (first, last) in steps.items():
        if {first, last} <= set(printed):
            made[name, "printed"] = (printed[first] - printed[last]).drop(filter(tables.is_tuned, page.rows))
        if len(ours := page.between(last, first)):
            made[name, "ours"] = ours["Avg"]
    frame = pd.DataFrame(made).dropna(axis=1, how="all").rename_axis(index=None)
    frame = frame.reindex([row for row in page.rows if row in frame.index])
    return frame.fillna({column: "–" for column in frame if "ours" in column})


def protocols(page: Page, profiles=("paper", "lite")) -> pd.DataFrame:
    """What the profiles change in the paper's protocol: a line for each printed block and profile.

    samples: those that the clients hold in a record, and what the copy of the set lacks.
    """
    held, lines = {p.block: record["made"].get("data", {}) for p, record in page.found}, {}
    for block in [b for b in page.table.blocks if page.table.printed_as(b) in set(page.table.printed.dataset)]:
        for profile in profiles:
            if run := page.run(OURS, block, profile):
                net, protocol, data = run.net, run.protocol, run.data
                about = held.get(block, {}) if page.blocks.get(block) == profile else {}
                samples = sum(c["train"] + c["test"] for c in about.get("clients", []))
                lines[page.titles[block], profile] = {
                    "pool": f"{data.pool:.0%}", "samples": f"{samples:,}" if samples else "–",
                    "our copy": about.get("notice", "whole" if samples else "–"),
                    "net": f"{net.net}, width {net.width or 'published'}",
                    "rounds": protocol.rounds, "learning rate": f"{protocol.lr:g}", "batch": protocol.batch,
                    "least samples of a client": data.minimum if data.dirichlet else "–"}
    return pd.DataFrame(lines).T


# costs

def reached(record: dict, within: float) -> int:
    """The first round within so many points of the best accuracy of a run."""
    means = [sum(r["acc"].values()) / len(r["acc"]) for r in record["rounds"]]
    return next(i + 1 for i, mean in enumerate(means) if mean >= max(means) - within)


def costs(*pages: Page) -> pd.DataFrame:
    """What records of the rows as given measured: a line for each dataset and method, means over n seeds; ÷ FedAvg: as
    a multiple of its.

    seconds: of a round, the median of a run. peak MB: see `fedlib.core.machine.peak`. MB down, up: of one client in a
    round. within 0.5 points, within 2 points: the round that came so near to the best, see `reached`.
    """
    lines = {}
    found = [(page.titles, *line) for page in pages for line in page.found if not tables.is_tuned(line[0].row)]
    for titles, planned, record in found:
        rounds, share = record["rounds"], len(record["rounds"]) * len(record["made"]["data"]["clients"]) * 1e6
        lines[titles[planned.block].split(" (")[0], planned.row, planned.seed] = {
            "seconds": np.median([r["seconds"] for r in rounds]), "peak MB": record["made"].get("peak_mb"),
            **{f"MB {way}": sum(r[f"bytes_{way}"] for r in rounds) / share for way in ("down", "up")},
            "rounds": len(rounds), **{f"within {near:g} points": reached(record, near) for near in (0.5, 2)}}
    if not lines:
        return pd.DataFrame()
    runs = pd.DataFrame.from_dict(lines, orient="index").astype(float).rename_axis(["dataset", "method", "seed"])
    groups = runs.groupby(level=["dataset", "method"], sort=False)
    frame = groups.mean().assign(n=groups.size())
    for column, name, whole in ((1, "seconds ÷ FedAvg", frame.seconds),
                                (5, "bytes ÷ FedAvg", frame["MB down"] + frame["MB up"])):
        frame.insert(column, name, whole.div(whole.xs("FedAvg", level="method"), level="dataset"))
    return frame


# text encoders

def encoder(classes: list[str], dim: int, seed: int, **settings) -> nn.Module:
    """The text encoder with which a run starts that has these classes, features `(N, dim)`, seed and settings."""
    method = make(OURS, settings, Protocol())
    method.seed, method.classes = seed, classes
    return method.equip(Net(nn.Identity(), nn.Linear(dim, len(classes)))).text


@torch.no_grad()
def anchors(classes: list[str], dim: int, seed: int, **settings) -> Tensor:
    """T `(C, dim)` as a run starts with it, see `encoder`."""
    return encoder(classes, dim, seed, **settings)().clone()


def pairwise(vectors: Tensor) -> Tensor:
    """Cosines of all pairs of different vectors `(C, D)` -> `(C (C - 1),)`."""
    return cosines(vectors, vectors)[~torch.eye(len(vectors), dtype=torch.bool)]


def parameters(page: Page, rows=None, classes: int = 10, dim: int = DIM) -> pd.Series:
    """Parameters of the rows' text encoders, counted; nan where a package that one needs is not installed.

    CLIP's tower is cut out of the whole model: that takes more than a gigabyte.
    """
    prompts = text_encoders.class_prompts([str(c) for c in range(classes)])
    found = dict.fromkeys(rows or page.rows, np.nan)
    for row in found:
        kind, layers = (page.settings(row)[""].get(k, other) for k, other in (("text", "embedding"), ("layers", 1)))
        try:
            made = (text_encoders.ClipText(prompts, dim, pretrained=None) if kind == "clip"      # without its weights
                    else text_encoders.text_encoder(kind, prompts, dim, layers))
            found[row] = sum(p.numel() for p in made.parameters())
        except UserError:
            continue
    text_encoders.clip.cache_clear()
    return pd.Series(found, dtype=float)


def label_runs(page: Page) -> pd.DataFrame:
    """Runs of Table 6 that differ in the labels alone: dataset, encoder, seed, runs, are they equal in every accuracy?

    Compared in every round, before and after local training, where the same kind of machine trained them.
    """
    kinds, held = {r["name"]: r["settings"]["text"] for r in page.table.rows}, {}
    for planned, record in page.at("before").found:
        place = page.titles[planned.block], kinds[planned.row], planned.seed, record["made"]["hardware"]
        held.setdefault(place, []).append([(r["acc"], r["after"]) for r in record["rounds"]])
    lines = [(*place[:3], len(same), all(one == same[0] for one in same)) for place, same in held.items()
             if len(same) > 1]
    return pd.DataFrame(lines, columns=["dataset", "encoder", "seed", "runs", "equal"])


# draws of the partition

def spread(drawn: Page, fixed: Page) -> pd.DataFrame:
    """How far a draw of the partition alone moves a number (points): a line for each block and row of `drawn`.

    mean, range and sd are over its draws; sd, one partition: over the seeds of `fixed`, where only the net and the
    order of the batches change; FedDTR's lead over the row: its mean and sd over the draws, and as printed.
    """
    runs, still = drawn.by().reindex(columns=drawn.rows), fixed.by().reindex(columns=drawn.rows)
    paper = fixed.averages.pivot(index="block", columns="row", values="printed").reindex(columns=drawn.rows)
    lead, ahead = (-f.sub(f[OURS], axis=0).drop(columns=OURS) for f in (runs, paper))
    runs, still, lead = (f.groupby(level="block", sort=False) for f in (runs, still, lead))
    made = {"draws": runs.count(), "mean": runs.mean(), "range": runs.max() - runs.min(), "sd": runs.std(),
            "sd, one partition": still.std(), "FedDTR's lead": lead.mean(), "sd of lead": lead.std(), "printed": ahead}
    places = pd.MultiIndex.from_product([drawn.ran, drawn.rows], names=["block", "row"])
    return pd.DataFrame({k: f.stack().reindex(places) for k, f in made.items()}, places)


def deviations(drawn: Page) -> pd.DataFrame:
    """Each draw minus the mean of its row over the draws, as `plots.draws` takes them: dataset, draw, row, value."""
    runs = drawn.by().reindex(columns=drawn.rows).rename(index=drawn.titles)
    if runs.empty:
        return pd.DataFrame()
    gaps = (runs - runs.groupby(level="block").transform("mean")).stack()
    return gaps.rename("value").rename_axis(["dataset", "draw", "row"]).reset_index()
