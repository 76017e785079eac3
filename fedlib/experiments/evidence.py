"""What makes the runs of a row evidence: they learned, they settled, they did not diverge; and how they were tuned."""
import functools
import json
from pathlib import Path

import pandas as pd
from torch import nn

from fedlib.experiments import filled, tables, tune
from fedlib.experiments.statistics import interval
from fedlib.experiments.tables import Table
from fedlib.methods import make
from fedlib.models import nets

STILL = 1.0         # points: a row that rises by more has not settled, nor one that falls by more where its end counts
ENDS = ("last", "last5")
GROWS = 2.0         # points that twice the rounds bring for each point of `rise`, about; `foretold` measures it
FEW = 4             # images: a batch of fewer has no variance to speak of


def heights(rounds: list[dict], setting: str = "avg") -> list[float]:
    """%: the accuracy of each round with a test in a column, or its mean over the columns.

    A table of transfer has the number of the round among its columns: it rises whatever is learned, and does not count.
    """
    every = [[v for k, v in r["acc"].items() if k == setting or setting == "avg" and k != "rounds"] for r in rounds]
    return [sum(values) / len(values) for values in every if values]


def rise(rounds: list[dict], setting: str = "avg") -> float:
    """Points: the mean accuracy of the last fifth of the rounds minus that of the fifth before; nan of one round."""
    means = heights([r for r in rounds if r["round"]], setting)
    size = max(1, len(means) // 5)
    if len(means) < 2:
        return float("nan")
    return sum(means[-size:]) / size - sum(means[-2 * size:-size]) / len(means[-2 * size:-size])


def level(rounds: list[dict], setting: str = "avg") -> float:
    """%: where a training ends, the mean accuracy of the last tenth of its rounds."""
    every = heights(rounds[-max(1, len(rounds) // 10):], setting)
    return sum(every) / len(every)


def foretold(table: Table, profile: str, results: Path) -> pd.DataFrame:
    """What a rise foretells: a line for each block and row with three seeds, 20 rounds and a rate that is held. rise:
    that of half of its rounds; gain: what the other half brought, the `level` of all rounds minus that of the half."""
    lines = []
    for p, record in filled.records_of(table, profile, results):
        rounds = [r for r in record["rounds"] if r["round"]]
        first = rounds[:len(rounds) // 2]
        if len(first) >= 10 and not p.run.protocol.warmup:
            lines.append((p.block, p.row, rise(first), level(rounds) - level(first)))
    found = pd.DataFrame(lines, columns=["block", "row", "rise", "gain"]).astype({"rise": float, "gain": float})
    groups = found.groupby(["block", "row"], sort=False)
    return groups.mean()[groups.size() >= 3].reset_index()


def runs_out(p: tables.Planned, rounds: list[dict]) -> bool:
    """Did its rate fall to nothing, so that its curve is flat at the end whatever more rounds would bring?"""
    return bool(p.run.protocol.warmup) and rounds[-1]["round"] == p.run.protocol.rounds > 1


def halves(table: Table, profile: str, results: Path, seeds=None) -> list[tables.Planned]:
    """The runs in half the rounds that `of_rows` looks for: of those that have a record and ran out."""
    ended = {place(p) for p, record in filled.records_of(table, profile, results, seeds)
             if runs_out(p, record["rounds"])}
    return [p for p in table.halves(profile, seeds) if place(p) in ended]


def in_half(table: Table, profile: str, results: Path, seeds=None, when: str = "") -> dict[tuple, list[dict]]:
    """By the place of the run that they halve, the rounds of those that have a record."""
    found = filled.records_of(table, profile, results, seeds, when, table.halves(profile, seeds))
    return {place(p): record["rounds"] for p, record in found}


def doubled(table: Table, profile: str, results: Path, seeds=None, when: str = "") -> pd.DataFrame:
    """A line for each block and row with runs in half the rounds: n (seeds), and the mean `level` of half and whole."""
    shorter = in_half(table, profile, results, seeds, when)
    lines = [(p.block, p.row, level(shorter[place(p)]), level(record["rounds"]))
             for p, record in filled.records_of(table, profile, results, seeds, when) if place(p) in shorter]
    groups = pd.DataFrame(lines, columns=["block", "row", "half", "whole"]).groupby(["block", "row"], sort=False)
    return groups.agg(n=("half", "size"), half=("half", "mean"), whole=("whole", "mean")).reset_index()


def crumbs(p: tables.Planned, record: dict) -> bool:
    """Did a client end its epochs with a batch of fewer than FEW under batch-norm? Weights jump there: two alike images
    have a variance near 0, and what is divided by it is large."""
    batch, least = p.run.protocol.batch, p.run.protocol.least_batch
    sizes = [c["train"] for c in record["made"].get("data", {}).get("clients", [])]
    return any(least <= n % batch < FEW for n in sizes) and normed(p.run.net)


@functools.cache
def normed(net: nets.Arch) -> bool:
    """Has such a net statistics of a batch?"""
    return net.normalisation == "batch" and nets.has(net, (nn.modules.batchnorm._BatchNorm,))


def place(p: tables.Planned) -> tuple:
    """Where a run stands in its table."""
    return p.block, p.row, p.seed, p.unseen


def of_rows(table: Table, profile: str, results: Path, rule: str | None = None, when: str = "",
            seeds=None) -> pd.DataFrame:
    """One line for each block, column and row with records: n, mean, missing, above, half, learned, rise, settled,
    gain, rounds, loss, diverged, crumbs, tuned, by, end.

    missing: planned seeds without a record: a run whose loss is no number leaves none, and the others would flatter it.
    by: the tries and seeds of a tuned row's choice. end: is its rate the lowest or the highest that was tried?

    above: points over the constant answer (one for all, where there is that, of a row with one model for all), paired
    by seed, and half of their 95 % interval, of the last five rounds where the rule is the best test, since the best of
    many tests lies above a constant answer by chance; learned: the interval lies above 0; None of one seed, or where
    the constant answer was not run with each. rise: by `rise`, of this column; of runs whose rate fell to nothing their
    `level` minus that in half the rounds: not settled until each seed has been trained so. settled: True of a row of
    one round, not of one that was tested once in several; one that falls has not settled where its end counts, since
    fewer rounds would say something else. gain: the points that twice the rounds may bring, GROWS times
    the rise; where the rate fell to nothing, the rise once more; nothing where a run stopped before its last round.
    rounds: of its longest run.
    """
    cells = filled.values(table, profile, results, rule, seeds, when)
    floors = {place: part.set_index("seed").value for place, part in
              filled.constants(table, profile, results, seeds, when).groupby(["row", "block", "setting"])}
    curves, losses, lengths, shared, open_ends, judged_there, crumbed = {}, {}, {}, set(), set(), set(), set()
    shorter = in_half(table, profile, results, seeds, when)
    at_home = {r["name"] for r in table.rows if (when or r.get("when")) == "after"}     # own nets, whatever the method
    for p, record in filled.records_of(table, profile, results, seeds, when):
        rounds, half = record["rounds"], shorter.get(place(p))
        open_ends |= {(p.block, p.row)} if runs_out(p, rounds) and not half else set()
        for setting in ["avg", *rounds[-1]["acc"]]:
            moved, grows = float("nan"), 1.0
            if not runs_out(p, rounds):
                moved, grows = rise(rounds, setting), GROWS * (rounds[-1]["round"] == p.run.protocol.rounds)
                judged_there |= {(p.block, p.row)} if (rule or table.select) in ENDS else set()
            elif half:
                moved = level(rounds, setting) - level(half, setting)
            curves.setdefault((p.block, setting, p.row), []).append((moved, grows * moved))
        lengths[p.block, p.row] = max(1, rounds[-1]["round"], lengths.get((p.block, p.row), 0))
        open_ends |= {(p.block, p.row)} if sum(r["round"] > 0 for r in rounds) == 1 < rounds[-1]["round"] else set()
        losses.setdefault((p.block, p.row), []).append(filled.highest_loss(rounds))
        crumbed |= {(p.block, p.row)} if crumbs(p, record) else set()
        after = p.row in at_home or p.run.protocol.evaluate == "after"
        personal = after or make(p.run.method, p.run.settings).personal
        shared |= set() if personal else {(p.block, p.row)}
    lines, ends = [], {(block, row): at_end(table, row, profile, block) for block, row in losses}
    for (block, setting, row), part in cells.groupby(["block", "setting", "row"], sort=False):
        sample = part.set_index("seed").value
        own = floors.get((tables.CONSTANT, block, setting), sample[:0])
        floor = floors.get((tables.COMMON, block, setting), own) if (block, row) in shared else own
        over = (part.set_index("seed").lasting - floor).dropna()
        (mean, half), learned = interval(over), None
        if 1 < len(over) == len(sample):
            learned = bool(mean - half > 0)
        rises, gains = zip(*curves[block, "avg" if setting == "rounds" else setting, row], strict=True)
        loss = max(losses[block, row])
        rising, gain = pd.Series(rises).mean(), pd.Series(gains).fillna(0).mean()
        falling = rising < -STILL and (block, row) in judged_there
        settled = not (rising > STILL or falling or (block, row) in open_ends)
        planned = len(seeds or table.drawn(block, profile))
        lines.append({"block": block, "setting": setting, "row": row, "n": len(sample), "mean": sample.mean(),
                      "missing": max(0, planned - len(sample)), "by": table.chosen_by(row, profile, block),
                      "above": mean, "half": half, "learned": learned, "rise": rising, "settled": settled,
                      "gain": max(0.0, gain), "rounds": lengths[block, row], "loss": loss,
                      "diverged": loss > filled.FAR, "crumbs": (block, row) in crumbed,
                      "tuned": table.tuned(row, profile, block, setting), "end": ends[block, row]})
    return pd.DataFrame(lines, columns=["block", "setting", "row", "n", "mean", "missing", "above", "half", "learned",
                                        "rise", "settled", "gain", "rounds", "loss", "diverged", "crumbs", "tuned",
                                        "by", "end"])


def at_end(table: Table, row: str, profile: str, block: str) -> bool:
    """Was the rate of a tuned row chosen at the end of those that were tried, so that a better one may lie beyond?"""
    won = table.choice(row, profile, block) if tables.is_tuned(row) else {}
    given = next(r for r in table.rows if r["name"] == tables.given_name(row))
    return bool(won) and bool(tune.beyond(table, given, block, profile, won))


def faults(rows: list[dict]) -> list[str]:
    """Why runs are no evidence, in words, a sentence for each kind of fault; rows: lines of `of_rows`."""
    return unfinished(rows) + untuned(rows)


def untuned(rows: list[dict]) -> list[str]:
    """Those of the faults that lie in the tuning."""
    given = [r["row"] for r in rows if not r["tuned"]]
    if len(given) == len(rows) > 1:
        return ["compared as given, not tuned"]
    unlike = {json.dumps(r["by"]) for r in rows if r["tuned"]}      # tries and seeds
    return (named("not tuned", given) + ["rows were not tuned alike"] * (len(unlike) > 1)
            + named("a rate at the end of those that were tried", [r["row"] for r in rows if r["end"]]))


def unfinished(rows: list[dict]) -> list[str]:
    """Those of the faults that lie in the training."""
    found = named("planned seeds have no record", [f"{r['missing']:.0f} of {r['row']}" for r in rows if r["missing"]])
    found += named("diverged on the way", [f"{r['row']} (a training loss of {r['loss']:.0e})" for r in rows
                                          if r["diverged"]])
    found += named("batch-norm over fewer than four images", [r["row"] for r in rows if r["crumbs"]])
    if any(pd.isna(r["above"]) for r in rows):
        found.append("the constant answer was not run")
    elif any(r["learned"] is None and r["n"] > 1 for r in rows):
        found.append("the constant answer was not run with every seed")
    found += named("not above the constant answer", [r["row"] for r in rows if r["learned"] is False])
    rising = [r for r in rows if (r["rise"] or 0) > STILL]      # None: a table's nan in JSON
    most = max((r["rise"] for r in rising), default=0)
    found += named(f"still rising, by up to {most:.1f} points", [r["row"] for r in rising])
    falling = [r for r in rows if not r["settled"] and (r["rise"] or 0) < -STILL]
    least = min((r["rise"] for r in falling), default=0)
    found += named(f"falling at its end, by up to {-least:.1f} points", [r["row"] for r in falling])
    return found + named("not known whether more rounds would help, without runs of half as many",
                         [r["row"] for r in rows if not r["settled"] and r not in rising + falling])


def named(what: str, some: list[str]) -> list[str]:
    """["still rising: FedAvg, MOON (tuned)"], where all are tuned forms; nothing of nobody."""
    tuned = " (tuned)" * all(map(tables.is_tuned, some))
    return [f"{what}: {', '.join(map(tables.given_name, some) if tuned else some)}{tuned}"] if some else []
