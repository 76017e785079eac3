"""Many methods under one protocol: who is ahead, on which sets, and how far an order on one set holds on another.

A problem is a set and a seed. It counts when nine tenths of the methods have a record; one without has the last rank.
"""
from functools import cached_property
from typing import NamedTuple

import pandas as pd
from IPython.display import Markdown
from scipy import stats

from fedlib.core import settings
from fedlib.engine.cost import cost
from fedlib.experiments import statistics, tables
from fedlib.experiments.statistics import interval
from fedlib.methods import METHODS
from fedlib.models.nets import Arch
from fedlib.report import text
from fedlib.report.page import Page

COUNTED = 0.9           # the share of methods that must have a record of a problem
FEW = 4                 # methods whose order is compared, at least
NETS = {True: "with personal nets", False: "with one net"}


def measured(page: Page) -> pd.DataFrame:
    """A line for each record: block, method, seed, accuracy (%) on average and in the worst domain, bytes that all
    clients send up in a round, seconds of the fastest round.
    """
    lines = []
    for p, record in page.found:
        acc, rounds = pd.Series(tables.select(record, page.table.select)), record["rounds"]
        lines.append((p.block, p.row, p.seed, acc.mean(), acc.min(), sum(r["bytes_up"] for r in rounds) / len(rounds),
                      min(r["seconds"] for r in rounds)))
    return pd.DataFrame(lines, columns=["block", "method", "seed", "accuracy", "worst", "up", "seconds"])


def leaders(lines: pd.DataFrame, **more) -> pd.DataFrame:
    """Lines of `measured` by method, the best first: accuracy and worst domain (mean ± half of the 95 % interval), kB
    up in a round, what `more` says ({method: value} by column), seconds of the fastest round, seeds.
    """
    by = lines.groupby("method")
    frame = pd.DataFrame({"accuracy (%)": by.accuracy.agg(_spread), "worst (%)": by.worst.agg(_spread),
                          "up (kB)": by.up.mean() / 1000})
    frame = frame.assign(**{name: frame.index.map(values) for name, values in more.items()})
    frame = frame.assign(seconds=by.seconds.min(), n=by.size())
    return frame.loc[by.accuracy.mean().sort_values(ascending=False, kind="stable").index].rename_axis(index=None)


def _spread(sample) -> str:
    return text.points(sample, ".1f")


def passes(table: tables.Table) -> dict[str, float]:
    """Of each row: passes of the net's body for a training sample in an epoch, forward and backward together.

    Counted on the small net of the leaderboard, `cnn4` of width 8, with four clients and images of `(3, 28, 28)`.
    """
    made = {r["name"]: cost(r["name"], Arch("cnn4", 8), 10, (3, 28, 28), 4, r.get("settings")) for r in table.rows}
    return {name: found["forward"] + found["backward"] for name, found in made.items()}


def nets(method: str) -> str:
    """Does each client end with a net of its own?"""
    return NETS[bool(METHODS[method]().personal)]


def grouped(ranks: pd.DataFrame, by) -> pd.DataFrame:
    """Mean ranks of groups of methods, the best first. ranks: a line for each method; by: what gives a method's group.

    methods: how many are in the group.
    """
    groups = ranks.groupby(by)
    frame = groups.mean().rename_axis(index=None)
    frame.insert(0, "methods", groups.size())
    return frame.sort_values("all")


class Board:
    """The methods (rows) of a page on the problems of its blocks.

    lines   of `measured`, those of problems that count      ranked  ranks: a line for each problem, a column a method
    blocks  those with problems that count                   sets    the set of each problem, in words
    scores  accuracies, shaped as `ranked`                   cd      critical difference of mean ranks
    ranks   mean rank of each method (lines) over all problems and on each set (columns)
    """

    def __init__(self, page: Page):
        self.page, self.methods, every = page, page.rows, measured(page)
        self.there = every.groupby("block").size().reindex(list(page.blocks), fill_value=0)
        size = every.groupby(["block", "seed"]).method.transform("size")
        self.lines = every[size >= COUNTED * len(self.methods)]
        self.blocks = [b for b in page.titles if b in set(self.lines.block)]
        scores = self.lines.pivot(index=["block", "seed"], columns="method", values="accuracy")
        self.scores = scores.reindex(columns=self.methods).loc[self.blocks]
        self.ranked = statistics.ranks(self.scores)
        self.sets = [page.titles[block] for block, _ in self.ranked.index]
        self.cd = statistics.critical_difference(len(self.methods), max(1, len(self.ranked)))

    @cached_property
    def ranks(self) -> pd.DataFrame:
        by_set = self.ranked.groupby("block").mean().loc[self.blocks].rename(index=self.page.titles).T
        by_set.insert(0, "all", self.ranked.mean())
        return by_set.rename_axis(columns=None)

    def of(self, block: str) -> pd.DataFrame:
        """The lines of a block."""
        return self.lines[self.lines.block == block]

    def runs(self, block: str) -> str:
        """'100 of 102': records of a block."""
        return f"{self.there[block]} of {len(self.methods) * len(self.page.seeds or self.page.table.seeds)}"

    def standing(self) -> Markdown:
        """Who is ahead by mean rank, whom the critical difference separates from FedAvg, and what is missing."""
        means, (_, p) = self.ranks["all"].sort_values(kind="stable"), statistics.friedman(self.ranked)
        count = self.lines.groupby("block").seed.nunique()
        tied = (means <= means.iloc[0] + self.cd).sum()
        better, worse = (", ".join(m for m in self.methods if sign * (means["FedAvg"] - means[m]) > self.cd) or "none"
                         for sign in (1, -1))
        part = [f"{title} ({self.runs(b)} runs)" for b, title in self.page.titles.items()
                if count.get(b, 0) < len(self.page.seeds or self.page.table.seeds)]
        none = sorted(self.scores.columns[self.scores.isna().any()])
        return text.lines(filter(None, [
            f"{len(means)} methods on {len(self.ranked)} problems ("
            + "; ".join(f"{self.page.titles[b]}, seeds: {count[b]}" for b in self.blocks)
            + f"). That all methods are equal is {'' if p < 0.05 else 'not '}ruled out (Friedman's test, p = {p:.1g}).",
            f"The best mean rank has **{means.index[0]}** ({means.iloc[0]:.1f}), then "
            + ", ".join(f"{m} ({r:.1f})" for m, r in means.iloc[1:5].items()) + ".",
            f"The critical difference is {self.cd:.1f} ranks. **{tied} of {len(means)}** methods cannot be told from "
            "the best.",
            f"Against FedAvg (rank {means['FedAvg']:.1f}): surely better are {better}; surely worse are {worse}.",
            f"Not counted in full yet, as runs are missing: {', '.join(part)}." if part else "",
            f"Runs without a record, which have the last rank: {', '.join(none)}." if none else ""]))

    def protocol(self) -> pd.DataFrame:
        """Where the sets differ: a column for each, from the definition and the first record of FedAvg."""
        made = {}
        for block, profile in self.page.blocks.items():
            content = self.page.table.blocks[block]
            held = self.page.clients(block) if self.there[block] else None
            made[self.page.titles[block]] = {"domains": ", ".join(content["columns"].values()),
                                             "pixels": content[profile]["data"].get("size", 28)} | {
                f"images to {part}": "–" if held is None else " + ".join(map(str, held[part]))
                for part in ("train", "test")} | {
                "profile": profile, "runs": self.runs(block)}
        return pd.DataFrame(made)

    def alike(self) -> dict:
        """What the definitions of all sets have in common: settings of the net and the protocol."""
        given = [self.page.table.blocks[b][p] for b, p in self.page.blocks.items()]
        both = [g["net"] | g["protocol"] for g in given]
        return {k: v for k, v in both[0].items() if all(b.get(k) == v for b in both)}

    def chosen(self) -> dict[str, str]:
        """{method: its settings that are not the library's defaults, with these}."""
        made = {}
        for row in self.page.table.rows:
            default = {k: v[1] for k, v in settings.fields(METHODS[row["name"]]).items()}
            made[row["name"]] = ", ".join(f"{k} = {v} (default {default[k]})"
                                          for k, v in row.get("settings", {}).items() if v != default[k])
        return {name: said for name, said in made.items() if said}

    def about(self, block: str) -> str:
        """A block in words: from where to where, who is surely above FedAvg, what the worst domain says, who fails."""
        part = self.of(block).groupby("method")[["accuracy", "worst"]].mean()
        pairs = self.scores.loc[block]
        gaps = [interval((pairs[m] - pairs["FedAvg"]).dropna()) for m in self.methods if m != "FedAvg"]
        above, below = (sum(sign * mean - half > 0 for mean, half in gaps) for sign in (1, -1))
        tau, guess = stats.kendalltau(part.accuracy, part.worst).statistic, self.chance(block)
        lost = ", ".join(part.index[part.accuracy < 1.5 * guess]) or "none"
        return (f"**{self.page.titles[block]}**: from {part.accuracy.min():.1f} to {part.accuracy.max():.1f} %, FedAvg "
                f"{part.accuracy['FedAvg']:.1f}, Local {part.accuracy['Local']:.1f}. Paired by seed, {above} of "
                f"{len(gaps)} methods are surely above FedAvg and {below} surely below. Best in the worst domain is "
                f"{part.worst.idxmax()} ({part.worst.max():.1f} %); order by mean and by worst domain agree to "
                f"τ = {tau:.2f}. Not far above guessing ({guess:.0f} %): {lost}.")

    def chance(self, block: str) -> float:
        """Accuracy of guessing (%): PACS has seven classes, the other sets have ten."""
        return 100 / (7 if block == "pacs" else 10)

    def agreement(self, other: pd.DataFrame, name: str) -> pd.DataFrame:
        """Kendall's tau between the methods' mean accuracies on two sets; on the diagonal that of two seeds on average.

        other: lines of `measured` of one more set, over the methods that it has; name: its name.
        """
        every = pd.concat([self.lines.assign(set=self.lines.block.map(self.page.titles)), other.assign(set=name)])
        every = every[every.method.isin(self.methods)]
        heights = every.pivot_table(index="method", columns="set", values="accuracy")
        tau = heights[[s for s in [*dict.fromkeys(self.sets), name] if s in heights]].corr(method="kendall")
        for one in tau:
            seeds = every[every.set == one].pivot(index="method", columns="seed", values="accuracy").corr("kendall")
            off = [seeds.iloc[i, j] for i in range(len(seeds)) for j in range(i)]
            tau.loc[one, one] = sum(off) / len(off) if off else float("nan")
        return tau.rename_axis(index="", columns="")

    def transfer(self, tau: pd.DataFrame) -> Markdown:
        """What the agreement says, who stands in one third on every set, and who changes places most."""
        inside = [tau.loc[s, s] for s in dict.fromkeys(self.sets) if pd.notna(tau.loc[s, s])]
        across = [(tau.iloc[i, j], tau.index[i], tau.index[j]) for i in range(len(tau)) for j in range(i)]
        places, third = self.ranks.drop(columns="all").rank(), len(self.methods) / 3
        top, last = (", ".join(places.index[on.all(axis=1)]) or "no method"
                     for on in (places <= third, places > 2 * third))
        spread = (places.max(axis=1) - places.min(axis=1)).sort_values(ascending=False).index[:3]
        low, high = min(across), max(across)
        moved = ", ".join(f"{m} stands at place {places.loc[m].min():.0f} on {places.loc[m].idxmin()} and at "
                          f"{places.loc[m].max():.0f} on {places.loc[m].idxmax()}" for m in spread)
        return Markdown(
            f"Two seeds of one set agree to τ = {sum(inside) / len(inside):.2f} on average, two sets to "
            f"{sum(a for a, _, _ in across) / len(across):.2f}. The sets that agree most are {high[1]} and {high[2]} "
            f"({high[0]:.2f}), the least {low[1]} and {low[2]} ({low[0]:.2f}). In the upper third on every set: "
            f"**{top}**. In the lower third on every set: {last}. What does not transfer: {moved}.")

    def beside(self, ident: str, same: dict[str, str]) -> pd.DataFrame:
        """A paper's table and this board: a line for each of its blocks with records in lite, or with a set here.

        same: {the paper's block: the set here}. own table, leaderboard: how the printed order of the averages agrees
        with ours in that very table, and with the set here. place, of: where the method that is best in print stands
        among ours.
        """
        table, lines = tables.load_table(ident), []
        cells = tables.compare(table, "lite", self.page.results)
        named = {r["name"]: r.get("method", r["name"]) for r in table.rows}
        cells = cells[(cells.setting == "avg") & cells.printed.notna() & cells.row.isin(set(table.printed.method))]
        heights = self.lines.pivot_table(index="method", columns="block", values="accuracy")
        for block, part in cells.groupby("block", sort=False):
            part = part.assign(method=part.row.map(named)).drop_duplicates("method").set_index("method")
            best, ours = part.printed.idxmax(), part.ours.dropna()
            if len(ours) >= FEW or block in same:
                here = heights.get(same.get(block), pd.Series(dtype=float))
                lines.append({"set": table.blocks[block]["title"], "own table": order(part.printed, part.ours),
                              "leaderboard": order(part.printed, here), "best in print": best,
                              "place": ours.rank(ascending=False).get(best, float("nan")), "of": len(ours)})
        return pd.DataFrame(lines)


class Order(NamedTuple):
    """How far two orders agree: Kendall's tau of n methods, and p, how easily chance alone gives as much."""
    tau: float
    n: int
    p: float

    def __str__(self):
        return "–" if pd.isna(self.tau) else f"{self.tau:+.2f} (n = {self.n}, p = {self.p:.2g})"


def order(one: pd.Series, other: pd.Series) -> Order:
    """The agreement of two columns over the lines that both have; nan below four of them."""
    both = pd.DataFrame({"one": one, "other": other}).dropna()
    found = stats.kendalltau(both.one, both.other) if len(both) >= FEW else (float("nan"), float("nan"))
    return Order(found[0], len(both), found[1])
