"""Many methods under one protocol: what each is worth beside FedAvg, over data sets and on each of them.

A data set is one unit and its seeds are averaged first: three seeds on one set say nothing about a fourth set. A row
is compared where its settings are known to fit all sets; the others are unranked, each with its reason.
"""
from functools import cached_property
from typing import NamedTuple

import pandas as pd
from IPython.display import Markdown
from scipy import stats

from fedlib.experiments import filled, rules, stated, statistics, tables
from fedlib.experiments.evidence import STILL
from fedlib.experiments.statistics import LEVEL
from fedlib.methods import METHODS
from fedlib.models.nets import Arch
from fedlib.probes.cost import cost
from fedlib.report import marks, text
from fedlib.report.page import Page

CONTROL = "FedAvg"
COUNTED = 0.9           # the share of its runs that a set must have records of
FEW = 4                 # methods whose order is compared, at least
NETS = {True: "with personal nets", False: "with one net"}
UNRANKED = "unranked"


def measured(page: Page) -> pd.DataFrame:
    """A line for each record: block, method, seed, accuracy (%) on average and in the worst domain, bytes that all
    clients send up in a round, seconds of the fastest round.
    """
    lines = []
    for p, record in page.found:
        acc, rounds = pd.Series(rules.select(record, page.table.select)), record["rounds"]
        ends = [0, *(r["round"] for r in rounds)]       # what was sent and the seconds are of all rounds since a test
        each = [r["seconds"] / (end - start) for r, start, end in zip(rounds, ends, ends[1:]) if end > start]
        lines.append((p.block, p.row, p.seed, acc.mean(), acc.min(), sum(r["bytes_up"] for r in rounds) / ends[-1],
                      min(each)))
    return pd.DataFrame(lines, columns=["block", "method", "seed", "accuracy", "worst", "up", "seconds"])


def leaders(lines: pd.DataFrame, **more) -> pd.DataFrame:
    """Lines of `measured` by method, the highest first: accuracy and worst domain (mean ± half of the 95 % interval),
    kB up in a round, what `more` says ({method: value} by column), seconds of the fastest round, seeds.
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


def grouped(gaps: pd.DataFrame, by) -> pd.DataFrame:
    """Differences from FedAvg by groups of methods: how many, their mean over the sets with half of its 95 % interval,
    and on each set. gaps: a line for each set, a column for each method; by: what gives a method's group.
    """
    groups = gaps.T.groupby(by)
    frame = groups.mean().rename_axis(index=None)
    order = frame.mean(axis=1).sort_values(ascending=False, kind="stable").index
    frame.insert(0, "over the sets", [text.points(line) for line in frame.to_numpy()])
    frame.insert(0, "methods", groups.size())
    return frame.loc[order].rename_axis(columns=None)


class Board:
    """The methods (rows) of a page on the sets (blocks) that have records.

    lines    of `measured`, on those sets           means     accuracies: a line for each set, its seeds averaged
    blocks   those sets                             gaps      the same minus FedAvg's, of the methods compared
    names    the sets in words                      pairs     the same, but a line for each set and seed
    evidence of each row and set, as `evidence.of_rows` has it
    unranked {method: why it is not compared}       compared  the other methods
    """

    tuned = False       # are the rows compared as tries have chosen them?

    def __init__(self, page: Page):
        self.page = page
        self.methods = [name for name in page.rows if not tables.is_tuned(name)]
        self.of_row = {r["name"]: r.get("method", r["name"]) for r in page.table.rows}
        every, rows = self.in_form(measured(page), "method"), self.in_form(page.evidence, "row")
        self.there = every.groupby("block").size().reindex(list(page.blocks), fill_value=0)
        self.blocks = [b for b in page.blocks if self.there[b] >= COUNTED * self.planned]
        self.names = [page.titles[b] for b in self.blocks]
        self.lines = every[every.block.isin(self.blocks)]
        self.evidence = rows[(rows.setting == "avg") & rows.block.isin(self.blocks)]
        self.unranked = {m: why for m in self.methods if (why := self.why_unranked(m))}
        self.compared = [m for m in self.methods if m not in self.unranked]

    def in_form(self, lines: pd.DataFrame, column: str) -> pd.DataFrame:
        """The lines of rows in this board's form, as given or tuned, under the names of the rows as given."""
        here = lines[lines[column].map(tables.is_tuned) == self.tuned]
        return here.assign(**{column: here[column].map(tables.given_name)})

    @property
    def planned(self) -> int:
        """Runs of a set."""
        return len(self.methods) * len(self.page.seeds or self.page.table.seeds)

    @cached_property
    def means(self) -> pd.DataFrame:
        return self.by_set("accuracy")

    @cached_property
    def gaps(self) -> pd.DataFrame:
        return self.beyond(self.means)

    @cached_property
    def pairs(self) -> pd.DataFrame:
        return self.beyond(self.lines.pivot(index=["block", "seed"], columns="method", values="accuracy"))

    def by_set(self, column: str) -> pd.DataFrame:
        """A column of the lines, averaged over the seeds: a line for each set, a column for each method."""
        wide = self.lines.pivot_table(index="block", columns="method", values=column)
        return wide.reindex(index=self.blocks, columns=self.methods).set_axis(self.names).rename_axis(columns=None)

    def beyond(self, scores: pd.DataFrame) -> pd.DataFrame:
        """Scores minus FedAvg's, of the other methods that are compared."""
        return scores[self.compared].sub(scores[CONTROL], axis=0).drop(columns=CONTROL)

    def of(self, block: str) -> pd.DataFrame:
        """The lines of a block."""
        return self.lines[self.lines.block == block]

    def heights(self, block: str) -> pd.Series:
        """The accuracies of a block by method, the seeds averaged."""
        return self.of(block).groupby("method").accuracy.mean()

    def runs(self, block: str) -> str:
        """'100 of 102': records of a block."""
        return f"{self.there[block]} of {self.planned}"

    # which rows are compared

    def why_unranked(self, method: str) -> str:
        """Why a method is not compared, in words; "" where nothing is known to speak against its settings."""
        found = self.evidence[self.evidence.row == method].assign(name=lambda t: t.block.map(self.page.titles))
        seeds = len(self.page.seeds or self.page.table.seeds)
        there = found.set_index("block").n.reindex(self.blocks, fill_value=0)
        why = [f"{seeds - n} of {seeds} runs on {self.page.titles[b]} left no record" for b, n in there.items()
               if n < seeds]
        blown, lost = found[found.diverged], found["name"][found.learned.eq(False)]
        if len(blown):
            why.append("diverged on the way on " + _listed(f"{name} (a training loss of {loss:.0e})" for name, loss in
                                                           zip(blown["name"], blown.loss, strict=True)))
        if len(lost):
            why.append(f"not above the constant answer on {_listed(lost)}")
        return "; ".join(why + self.for_other_data(method))

    def for_other_data(self, method: str) -> list[str]:
        """Settings that a paper chose for one of the sets, and that the row does not have there, in words.

        Of none where the board is tuned: there they were chosen on these sets.
        """
        if self.tuned:
            return []
        rows = {r["name"]: r.get("settings", {}) for r in self.page.table.rows}
        here, places = stated.defaults(self.of_row[method]) | rows[method], {}
        datasets = {b: self.page.table.blocks[b][self.page.blocks[b]]["data"]["name"] for b in self.blocks}
        for block, dataset in datasets.items():
            for paper, values in stated.of_set(self.of_row[method], dataset, set(datasets.values())).items():
                other = ", ".join(f"{k} = {v} (here {here[k]})" for k, v in values.items() if v != here[k])
                places.setdefault((paper, other), []).append(self.page.titles[block])
        return [f"{paper}'s paper has {other} for {_listed(sets)}" for (paper, other), sets in places.items() if other]

    def stands_on(self) -> Markdown:
        """How many rows learned, settled and were tuned, and how far the control still rises."""
        rows, control = self.evidence, self.evidence[self.evidence.row == CONTROL].rise
        rising, falling = (rows.rise > STILL).sum(), (rows.rise < -STILL).sum()
        unknown = rows.learned.isna().sum()
        part = [f"{title} ({self.runs(b)} runs)" for b, title in self.page.titles.items()
                if b in self.page.blocks and self.there[b] < self.planned]
        said = [f"{len(self.methods)} methods on {len(self.blocks)} sets ({', '.join(self.names)}) are {len(rows)} "
                f"rows of {_seeds(rows.n.max())}.",
                f"**{rising} of {len(rows)}** rows still rise by more than a point in the last fifth of their rounds, "
                f"{CONTROL} itself by {control.min():.1f} to {control.max():.1f} points; {falling} fall by more than a "
                "point.",
                f"{rows.learned.eq(True).sum()} rows are above the constant answer by more than their interval, "
                f"{rows.learned.eq(False).sum()} are not" + (f"; of {unknown} it is not known." if unknown else "."),
                f"{rows.tuned.sum() or 'None'} of them {'is' if rows.tuned.sum() < 2 else 'are'} tuned"
                + (f"; the rate of {rows.end.sum()} is the last of those tried." if rows.end.any() else ".")]
        return text.lines([*(said if len(rows) else []),
                           *([f"Runs without a record: {', '.join(part)}."] if part else [])])

    # over the sets

    def verdict(self, found: pd.DataFrame) -> Markdown:
        """What comparisons over the sets say. found: of `statistics.against`."""
        sure, sd, n, k = found.index[found.holm < 1 - LEVEL], self.gaps.std().median(), len(self.gaps), len(found)
        alone = [found[s * found["mean"] > found.half].sort_values("mean", ascending=s < 0) for s in (1, -1)]
        above, below = (", ".join(map(_effect, part.itertuples())) or "none" for part in alone)
        least = [statistics.least_difference(sd, n, level) for level in (LEVEL, 1 - (1 - LEVEL) / max(1, k))]
        return text.lines([
            f"After Holm's correction over {k} comparisons **{', '.join(sure) or 'no method'}** differs from {CONTROL} "
            f"for sure on {n} sets.",
            f"Each interval taken alone, {sum(map(len, alone))} leave zero out. Above it lie {above}; below it {below}."
            f" If nothing differed, {(1 - LEVEL) * k:.1f} of {k} would do so by chance.",
            f"A method's difference varies from set to set, with a standard deviation of {sd:.1f} points for the "
            f"median method. So the least difference that {n} sets find at 80 % power is **{least[0]:.1f} points** if "
            f"nothing else is tested, and {least[1]:.1f} points at the level that Holm's correction asks of the first "
            f"of {k}. To find 2 points takes {statistics.seeds_needed(2, sd)} sets, and no other test."])

    def second_look(self) -> pd.DataFrame:
        """Of each method compared: the mean difference from FedAvg over sets and seeds, and that of the middle half."""
        frame = pd.DataFrame({"mean": self.gaps.mean(), "middle half": statistics.interquartile_mean(self.pairs)})
        return frame.sort_values("middle half", ascending=False)

    def profiles(self, levels, methods) -> pd.DataFrame:
        """How often methods are more than so many points above FedAvg: that level, method, share of sets and seeds."""
        wide = statistics.profiles(self.pairs[list(methods)], levels)
        wide = wide.rename_axis(index=f"points over {CONTROL}", columns="method")
        return wide.stack().rename("share of sets and seeds").reset_index()

    # the protocol

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
        for row in [r for r in self.page.table.rows if r["name"] in self.methods]:
            default = stated.defaults(self.of_row[row["name"]])
            made[row["name"]] = ", ".join(f"{k} = {v} (default {default[k]})"
                                          for k, v in row.get("settings", {}).items() if v != default[k])
        return {name: said for name, said in made.items() if said}

    # set by set

    def against(self, block: str, control: str = CONTROL, kind: str = "") -> pd.DataFrame:
        """`statistics.against` a control on one set, where seeds are the pairs; kind: of methods, as `nets` has it."""
        scores = self.of(block).pivot(index="seed", columns="method", values="accuracy")
        some = [m for m in self.compared if m == control or not kind or nets(self.of_row[m]) == kind]
        return statistics.against(scores[some], control)

    def table(self, block: str, **more) -> pd.DataFrame:
        """`leaders` of a set with the differences from FedAvg and the marks of each row; unranked rows follow, then the
        constant answer and chance.
        """
        frame, found = leaders(self.of(block), **more), self.against(block)
        rows = self.evidence[self.evidence.block == block].set_index("row")
        gaps = {m: f"{r['mean']:+.1f} ± {r.half:.1f}" for m, r in found.iterrows()}
        frame.insert(2, f"minus {CONTROL}", [UNRANKED if m in self.unranked else gaps.get(m, "–") for m in frame.index])
        frame.insert(3, "p (Holm)", [_p(found.holm.get(m)) for m in frame.index])
        said = {"learned": rows.learned.map(marks.WORDS), "settled": rows.rise.map(_moves),
                "tuned": rows.tuned.map(marks.WORDS)}
        for place, mark in enumerate(said, 4):
            frame.insert(place, mark, frame.index.map(said[mark]))
        last = frame.index.isin(list(self.unranked))
        frame = pd.concat([frame[~last], frame[last].rename(index="{} *".format)])
        floors = marks.floors_of(self.page, block)
        domains = self.page.table.blocks[block]["columns"]
        below = {name: {"accuracy (%)": f"{at['avg']:.1f}", "worst (%)": f"{min(at[d] for d in domains):.1f}"}
                 for name, at in floors.items()}
        return pd.concat([frame.astype(object), pd.DataFrame(below, dtype=object).T]).reindex(columns=frame.columns)

    def about(self, block: str) -> str:
        """A block in words: heights, which rows are evidence, who differs from FedAvg, what three seeds can show."""
        rows, found = self.evidence[self.evidence.block == block].set_index("row"), self.against(block)
        heights, floor = self.means.loc[self.page.titles[block]], marks.floors_of(self.page, block)
        constant = floor[tables.CONSTANT]["avg"] if tables.CONSTANT in floor else float("nan")
        alone = [found.index[sign * found["mean"] > found.half] for sign in (1, -1)]
        above, below = (", ".join(part) or "none" for part in alone)
        sure, sd, n = list(found.index[found.holm < 1 - LEVEL]), self.pairs.loc[block].std().median(), rows.n.max()
        lost, least = list(rows.index[rows.learned.eq(False)]), statistics.least_difference(sd, n)
        power = f" {_seeds(n)} find {least:.1f} points or more, in one test." if least == least else ""
        return (f"**{self.page.titles[block]}**: {CONTROL} {heights[CONTROL]:.1f} %, Local {heights['Local']:.1f}, the "
                f"constant answer {constant:.1f}. Not above it: {', '.join(lost) or 'none'}. Of {len(rows)} rows "
                f"{(rows.rise > STILL).sum()} still rise and {(rows.rise < -STILL).sum()} fall. Paired by seed, "
                f"{len(alone[0]) + len(alone[1])} of {len(found)} intervals leave zero out (above: {above}; below: "
                f"{below}); after Holm's correction {', '.join(sure) or 'none'}." + power)

    # what transfers

    def agreement(self, other: pd.DataFrame, name: str) -> pd.DataFrame:
        """Kendall's tau between the methods' mean accuracies on two sets; on the diagonal that of two seeds on average.

        Over the methods compared. other: lines of `measured` of one more set, over those that it has; name: its name.
        """
        every = pd.concat([self.lines.assign(set=self.lines.block.map(self.page.titles)), other.assign(set=name)])
        every = every[every.method.isin(self.compared)]
        heights = every.pivot_table(index="method", columns="set", values="accuracy")
        tau = heights[[s for s in [*self.names, name] if s in heights]].corr(method="kendall")
        for one in tau:
            seeds = every[every.set == one].pivot(index="method", columns="seed", values="accuracy").corr("kendall")
            off = [seeds.iloc[i, j] for i in range(len(seeds)) for j in range(i)]
            tau.loc[one, one] = sum(off) / len(off) if off else float("nan")
        return tau.rename_axis(index="", columns="")

    def transfer(self, tau: pd.DataFrame) -> Markdown:
        """What the agreement says, whose difference from FedAvg has one sign on every set, and whose moves most."""
        inside = [tau.loc[s, s] for s in self.names if pd.notna(tau.loc[s, s])]
        across = [(tau.iloc[i, j], tau.index[i], tau.index[j]) for i in range(len(tau)) for j in range(i)]
        low, high, gaps = min(across), max(across), self.gaps
        above, below = (list(gaps.columns[(sign * gaps > 0).all()]) for sign in (1, -1))
        chance = gaps.shape[1] * 2 / 2 ** len(gaps)
        moves = (gaps.max() - gaps.min()).sort_values(ascending=False).index[:3]
        moved = ", ".join(f"{m} goes from {gaps[m].min():+.1f} on {gaps[m].idxmin()} to {gaps[m].max():+.1f} on "
                          f"{gaps[m].idxmax()}" for m in moves)
        seeds = [f"Two seeds of one set agree to τ = {sum(inside) / len(inside):.2f} on average."] if inside else []
        return text.lines([
            *seeds, f"Two sets agree to τ = {sum(a for a, _, _ in across) / len(across):.2f} on average: most "
            f"{high[1]} and {high[2]} ({high[0]:.2f}), least {low[1]} and {low[2]} ({low[0]:.2f}).",
            f"Above {CONTROL} on every set: **{', '.join(above) or 'no method'}**. Below it on every set: "
            f"{', '.join(below) or 'no method'}. That is {len(above) + len(below)} of {gaps.shape[1]} methods with one "
            f"sign on all {len(gaps)} sets. Tossed coins would give {chance:.0f}, but these signs hang together: all "
            f"differences are from the same {CONTROL}.",
            f"What does not transfer, in points over {CONTROL}: {moved}."])

    def beside(self, ident: str, same: dict[str, str]) -> pd.DataFrame:
        """A paper's table and this board: a line for each of its blocks with records in lite, or with a set here. The
        same nets tested otherwise (`printed`) are no second case.

        same: {the paper's block: the set here}. own table, leaderboard: how the printed order of the averages agrees
        with ours in that very table, and with the methods compared on the set here. place, of: where the method that is
        best in print stands among ours.
        """
        table, lines = tables.load_table(ident), []
        cells = filled.compare(table, "lite", self.page.results)
        named = {r["name"]: r.get("method", r["name"]) for r in table.rows}
        cells = cells[(cells.setting == "avg") & cells.printed.notna() & cells.row.isin(set(table.printed.method))]
        heights = self.lines[self.lines.method.isin(self.compared)]
        heights = heights.pivot_table(index="method", columns="block", values="accuracy")
        own = [b for b, content in table.blocks.items() if "printed" not in content]
        for block, part in cells[cells.block.isin(own)].groupby("block", sort=False):
            part = part.assign(method=part.row.map(named)).drop_duplicates("method").set_index("method")
            best, ours = part.printed.idxmax(), part.ours.dropna()
            if len(ours) >= FEW or block in same:
                here = heights.get(same.get(block), pd.Series(dtype=float))
                lines.append({"set": table.blocks[block]["title"], "own table": order(part.printed, part.ours),
                              "leaderboard": order(part.printed, here), "best in print": best,
                              "place": ours.rank(ascending=False).get(best, float("nan")), "of": len(ours)})
        return pd.DataFrame(lines)


def _listed(names) -> str:
    """'a, b and c'."""
    *most, last = list(names)
    return f"{', '.join(most)} and {last}" if most else last


def _seeds(n: int) -> str:
    """'3 seeds'."""
    return f"{n} seed" if n == 1 else f"{n} seeds"


def _effect(line) -> str:
    """'APFL (+6.9 ± 2.6, p = 0.08 by Holm)'."""
    return f"{line.Index} ({line.mean:+.1f} ± {line.half:.1f}, p = {line.holm:.2g} by Holm)"


def _p(p) -> str:
    """'0.09' or '< 0.01'; '–' of none."""
    return "–" if p is None or p != p else "< 0.01" if p < 0.01 else f"{p:.2f}"


def _moves(rise: float) -> str:
    """Does a curve still rise, does it fall, or has it settled?"""
    return "rises" if rise > STILL else "falls" if rise < -STILL else "yes"


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
