"""Each row's rate and main weight, chosen alike for all rows on images that are no test images of the run.

Every row has the same number of tries from one grid: factors of the learning rate that its profile gives and of the
method's main weight; a method without one tries as many rates. A try trains on four fifths of each client's training
samples and is tested on the rest (`Data.tuning`), with seeds that no table uses. Where the test images go with the
seed (clients that hold out their own, in a partition drawn anew), a try has seen what other seeds test. The first try
is the row as it is given. It stays unless another is better with every seed and by WORTH points in the mean: what noise
chooses would only add noise. Of those that are, the best mean wins. Where its rate is the lowest or the highest of all,
the next one is tried as well, and so on, at most FURTHER (`reaching`): the grid must not choose in the row's place.
Tries are records as others: they resume and can be looked at.
Gulrajani and Lopez-Paz, ICLR 2021, arXiv:2007.01434: a comparison is that of methods with their model selection.
"""
import copy
import json
import math
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import pandas as pd

from fedlib.core.errors import UserError, pick
from fedlib.core.files import write_bytes
from fedlib.core.settings import fields
from fedlib.experiments import filled, rules, tables
from fedlib.experiments.tables import Planned, Table
from fedlib.methods import METHODS

SHARE = 0.2
WORTH = 0.5         # points
SEEDS = (100, 101)
GRID = ((1, 1), (0.3, 1), (3, 1), (0.1, 1), (1, 0.1), (1, 10), (0.3, 0.1), (0.3, 10))      # of rate and weight
RATES = (1, 0.3, 3, 0.1, 0.03, 10, 0.5, 2)
LADDER = [of * 10.0 ** power for power in range(-5, 5) for of in (1, 3)]        # factors of the rate, one after another
FURTHER = 5         # rates beyond the end of the grid
PENALTIES = (1.0, 100.0, 1e4, 0.01, 1e3, 1e5, 10.0, 1e6)      # of closed forms, in the scale of the features
TRIES = len(GRID)
MAIN = {"FedProx": "mu", "MOON": "mu", "FedDyn": "alpha", "DBE": "kappa", "Ditto": "mu", "pFedMe": "lam",
        "FedAMP": "lam", "PerFedAvg": "alpha", "FedPHP": "lam", "FedALA": "eta", "APFL": "alpha", "COPA": "lam",
        "FedProto": "lam", "FPL": "lam", "FedPLVM": "lam", "I2PFL": "lam_intra", "ADCOL": "mu", "FedPall": "mu",
        "RUCR": "lam", "FACMIC": "lam", "FedDEAP": "lam1", "FedAdam": "eta", "FedGA": "s0", "MPFT": "server_epochs",
        "GroupDRO": "eta", "FedGMA": "tau", "FedSAM": "rho", "FedIIR": "gamma", "FedSR": "l2", "FedLC": "tau",
        "FedNTD": "beta", "FedDecorr": "beta", "FedETF": "scale", "KgCoOp": "lam", "FedPGP": "mu", "FedPAC": "lam",
        "FedCP": "lam", "GPFL": "lam", "pFedFDA": "ridge", "FedDG": "outer"}
RATE = {"MPFT": "server_lr", "FedPFT": "server_lr", "PerFedAvg": "beta"}     # 0: the protocol's, as the others have
PENALTY = {"Fed3R": "lam", "AFL": "lam", "FedCGS": "lam"}     # and of those that do not train
MOST = {"FedALA": 1.0, "APFL": 0.99, "FedGMA": 1.0}        # what a weight may be at most


def tries(table: Table, profile: str, blocks=None, rows=None, count: int = TRIES, seeds=SEEDS) -> list[Planned]:
    """The runs that a choice needs, in the order of rows, tries and seeds; of the blocks and rows named, or of all.

    Where a block leaves one domain out after the other, a try does so too, and the choice is one for all folds of the
    block: a domain that one fold leaves out trains in the others.
    UserError: a block that the profile does not have, more tries than the grid has.
    """
    if not 1 <= count <= TRIES:
        raise UserError(f"the grid has {TRIES} tries, so there cannot be {count}")
    there = [b for b, content in table.blocks.items() if profile in content]
    for block in blocks or ():
        pick(f"block of {table.id} in {profile}", block, there)
    made = []
    for block in blocks or there:
        for row in [r for r in table.rows if not r.get("tuned") and (not rows or r["name"] in rows)]:
            if profile in row.get("profiles", tables.PROFILES):
                folds = table.blocks[block]["columns"] if table.leave_one_out else [""]
                for given, seed, unseen in product(grid(table, row, block, profile, count), seeds, folds):
                    run = table.plan(row, block, profile, seed, unseen, given | {"data": {"tuning": SHARE}})
                    made.append(Planned(row["name"], block, seed, run, "", (), "", table.id, profile))
    return made


def grid(table: Table, row: dict, block: str, profile: str, count: int = TRIES) -> list[dict]:
    """[{"settings", "protocol"}]: what each try changes in a row. The first changes nothing; last come the rates beyond
    the end that were tried for what is chosen (`further`)."""
    run = table.plan(row, block, profile, SEEDS[0])
    given = run.settings | {k: d for k, (_, d) in fields(METHODS[run.method]).items() if k not in run.settings}
    rate, main = rate_of(run), MAIN.get(run.method, "")
    if table.rates_only or main and not given[main] or given.get("one_rate"):
        main = ""       # the table is about it, an ablation turns the term off, or it is the rate
    if penalty := PENALTY.get(run.method):
        values = dict.fromkeys((given[penalty], *PENALTIES))
        return [{"settings": {penalty: value}, "protocol": {}} for value in [*values][:count]]
    found, pairs = [], (GRID if main else [(f, 1) for f in RATES])[:count]
    for of_rate, of_weight in [*pairs, *((f, 1) for f in table.choice(row["name"], profile, block).get("further", ()))]:
        settings, protocol = {}, {}
        if rate:
            settings[rate] = rounded(given[rate] * of_rate)
        elif of_rate != 1:
            protocol["lr"] = rounded(run.protocol.lr * of_rate)
        weight = min(given[main] * of_weight, MOST.get(run.method, float("inf"))) if main else 0
        if main and weight != given[main]:
            settings[main] = max(1, round(weight)) if isinstance(given[main], int) else rounded(weight)
        if (tried := {"settings": settings, "protocol": protocol}) not in found:      # a weight may be at its most
            found.append(tried)
    return found


def rate_of(run) -> str:
    """The setting that is the rate a run trains at; "" where that is the protocol's."""
    name = RATE.get(run.method, "")
    return name if run.settings.get(name) else ""


def rate(run, tried: dict) -> float:
    """The rate that a run trains at with what a try changes in it."""
    name = rate_of(run)
    return tried["settings"].get(name, run.settings.get(name)) if name else tried["protocol"].get("lr", run.protocol.lr)


def beyond(table: Table, row: dict, block: str, profile: str, won: dict) -> float:
    """The factor of the next rate, where the one that won is the lowest or the highest of the row's tries, or the only
    one; 0: it lies within them, or the row is a closed form."""
    run = table.plan(row, block, profile, SEEDS[0])
    tried, mine = {rate(run, t) for t in grid(table, row, block, profile, won["tries"])}, rate(run, won)
    if run.method in PENALTY or min(tried) < mine < max(tried):
        return 0
    factor = mine / rate(run, {"settings": {}, "protocol": {}})
    step = min(range(len(LADDER)), key=lambda i: abs(math.log(LADDER[i] / factor)))
    return rounded(LADDER[step + (1 if mine == max(tried) else -1)])


def reaching(table: Table) -> Table:
    """The table with one more rate to try for each row whose best lies at the end of those that were tried."""
    given, made = {r["name"]: r for r in table.rows}, []
    for row in table.rows:
        chosen = dict(row.get("chosen", {}))
        for place, won in chosen.items():
            at, further = (table, given[tables.given_name(row["name"])], *place.rsplit(".", 1)), won.get("further", [])
            ends = [f for w in (won, won | won.get(tables.IND, {})) if (f := beyond(*at, w))]
            if ends and len(further) < FURTHER:
                chosen[place] = won | {"further": [*further, ends[0]]}
        made.append(row | {"chosen": chosen} if chosen else row)
    return replace(table, rows=made)


def rounded(value: float) -> float:
    """Two significant digits: 0.0030000000000000005 is 0.003."""
    return float(f"{value:.2g}")


def scores(table: Table, profile: str, results: Path, blocks=None, rows=None, count: int = TRIES,
           seeds=SEEDS, by: str = "ood") -> pd.DataFrame:
    """One line for each row and try of a block: block, row, number, lr, weight, n, accuracy (%, on validation samples),
    gain (points).

    accuracy: the mean over domains and seeds, by the table's rule; nan where another try of the row has more records,
    since what diverges with some seeds, or on the way, must not be judged by the others. n: runs that did not. gain:
    over the row as it is given, with the seed where it is the least (of its mean over the domains left out). by: the
    column that counts in a table of transfer.
    """
    planned = tries(table, profile, blocks, rows, count, seeds)
    of = {(p.block, p.row, p.run.digest): record for p, record in filled.records_of(table, profile, results,
                                                                                    planned=planned)}
    lines, numbers = {}, {}
    for p in planned:
        known = numbers.setdefault((p.block, p.row), {})
        settings = json.dumps({"settings": p.run.settings, "lr": p.run.protocol.lr}, sort_keys=True)
        number = known.setdefault(settings, len(known))
        line = lines.setdefault((p.block, p.row, number), {
            "lr": p.run.settings[rate_of(p.run)] if rate_of(p.run) else p.run.protocol.lr,
            "weight": p.run.settings.get(MAIN.get(p.run.method, "")), "values": {}})
        record = of.get((p.block, p.row, p.run.digest))
        if record and filled.highest_loss(record["rounds"]) <= filled.FAR:       # else its row would have no number
            value = rules.select(record, table.select)
            accuracy = value[by] if table.transfer else sum(value.values()) / len(value)
            line["values"][p.seed, p.run.data.unseen] = accuracy
    most = {(b, r): max(len(lines[b, r, n]["values"]) for n in known.values()) for (b, r), known in numbers.items()}
    made = []
    for (b, r, n), line in lines.items():
        own, given = (pd.Series(x["values"], dtype=float) for x in (line, lines[b, r, 0]))
        made.append({"block": b, "row": r, "number": n, "lr": line["lr"], "weight": line["weight"], "n": len(own),
                     "accuracy": own.mean() if len(own) == most[b, r] else float("nan"), "gain": least(own - given)})
    return pd.DataFrame(made, columns=["block", "row", "number", "lr", "weight", "n", "accuracy", "gain"])


def least(gains: pd.Series) -> float:
    """Of gains by (seed, domain left out) that of the seed where the mean over its domains is the least: they are one
    choice."""
    return gains.groupby(level=0).mean().min()


def best(part: pd.DataFrame):
    """The line of `scores` that wins among the tries of one row, those with an accuracy."""
    part = part.dropna(subset="accuracy")
    given = part[part.number == 0]
    if len(given):
        part = part[(part.number == 0) | (part.gain > 0) & (part.accuracy - given.accuracy.iloc[0] >= WORTH)]
    return part.loc[part.accuracy.idxmax()]


def choose(table: Table, profile: str, results: Path, blocks=None, rows=None, count: int = TRIES, seeds=SEEDS) -> dict:
    """{"block.profile": {row: {"settings", "protocol", "tries", "seeds", "accuracy", "given"}}} of the rows with tries.

    A row whose tries are not all there, or have diverged, is chosen from those that are; one without any is left out.
    lost: how many runs of its tries have no number, where some have none. accuracy: of the best try; given: of the row
    as it is, 0 where it has none. A table of transfer chooses by ood, and its `ind` is what ind would choose: a net of
    one's own is a little worse at home where it is best abroad.
    """
    how, made = (table, profile, results, blocks, rows, count, seeds), {}
    asked = Counter((p.block, p.row) for p in tries(table, profile, blocks, rows, count, seeds))
    at_home = dict(list(scores(*how, tables.IND).groupby(["block", "row"]))) if table.transfer else {}
    for (block, name), part in scores(*how).groupby(["block", "row"], sort=False):
        lost, part = asked[block, name] - part.n.sum(), part[part.n > 0]
        if len(part):
            tried = grid(table, next(r for r in table.rows if r["name"] == name), block, profile, count)
            own = won(part, tried) | {"tries": count, "seeds": list(seeds)}
            own |= {"lost": int(lost)} if lost else {}
            if further := table.choice(name, profile, block).get("further"):
                own["further"] = further
            if table.transfer:
                own |= {tables.IND: won(at_home[block, name].query("n > 0"), tried)}
            made.setdefault(f"{block}.{profile}", {})[name] = own
    return made


def won(part: pd.DataFrame, tried: list[dict]) -> dict:
    """What the winner among `scores` of a row changes, its accuracy, and that of the row as it is given."""
    winner = best(part)
    return tried[winner.number] | {"accuracy": round(float(winner.accuracy), 4),
                                   "given": round(float(part.accuracy[part.number == 0].sum()), 4)}


def keep(table: Table, chosen: dict, path: Path | None = None):
    """Write what was chosen where `load_table` finds it."""
    path = path or tables.tuned_file(table.id)
    known = tables.tuned_settings(path)
    every = copy.deepcopy(known)
    for place, rows in chosen.items():
        every.setdefault(table.id, {}).setdefault(place, {}).update(rows)
    if every != known:
        write_bytes(path, (json.dumps(every, indent=1, sort_keys=True) + "\n").encode())
