"""Many methods, each with the settings that its own tries have chosen: who differs from a control for sure."""
import pandas as pd
from IPython.display import Markdown

from fedlib.experiments.evidence import STILL
from fedlib.experiments.statistics import LEVEL
from fedlib.report import text
from fedlib.report.leaderboard import NETS, Board, nets, order

ONE, OWN = NETS[False], NETS[True]


class TunedBoard(Board):
    """The tuned rows of a page, under the names of the rows as given."""
    tuned = True

    def leads(self, control: str, kind: str) -> pd.DataFrame:
        """`against` a control on every set, a line for each set and method; first is who leads in the sets' mean."""
        found = [self.against(b, control, kind).rename_axis("row").reset_index().assign(dataset=self.page.titles[b])
                 for b in self.blocks]
        every = pd.concat(found) if found else pd.DataFrame(columns=["row", "mean", "half", "dataset"])
        place = every.groupby("row")["mean"].mean().sort_values(ascending=False, kind="stable").index
        return every.set_index("row").loc[place].reset_index()

    def standing(self, control: str, kind: str) -> Markdown:
        """Who differs from the control for sure: on each set, and on all. A row that still moves is not counted."""
        lines, sides = [], {1: [], -1: []}
        for block, title in zip(self.blocks, self.names, strict=True):
            found = self.against(block, control, kind)
            moving = [m for m in self.moving(block) if m in found.index or m == control]
            settled = found[~found.index.isin(moving)] if control not in moving else found[:0]
            firm = settled[settled.holm < 1 - LEVEL]
            for sign, side in sides.items():
                side.append(firm[sign * firm["mean"] > 0].sort_values("mean", ascending=sign < 0))
            said = ["; ".join(f"{m} {r['mean']:+.1f} ± {r.half:.1f}" for m, r in side[-1].iterrows()) or "none"
                    for side in sides.values()]
            alone = [(sign * settled["mean"] > settled.half).sum() for sign in sides]
            lines.append(f"**{title}**, {control} {self.means.loc[title, control]:.1f} %: above it for sure {said[0]}. "
                         f"Below it: {said[1]}. Undecided: {len(settled) - len(firm)} of {len(settled)}; each interval "
                         f"alone: {alone[0]} above, {alone[1]} below."
                         + (f" Still moving: {', '.join(moving)}." if moving else ""))
        above, below = (", ".join(m for m in side[0].index if all(m in s.index for s in side)) or "none"
                        for side in sides.values()) if lines else ("", "")
        every = [f"**On all {len(lines)} sets** above {control} for sure: {above}; below it: {below}."]
        return text.lines(lines + every[:len(lines) > 1])

    def moving(self, block: str) -> list[str]:
        """The rows that still move by more than a point in the last fifth of their rounds."""
        rows = self.evidence[self.evidence.block == block]
        return list(rows.row[rows.rise.abs() > STILL])

    def beside_the_best(self, names: list[str], kind: str = ONE) -> Markdown:
        """On each set: these methods minus the best of the others of a kind that no longer move, paired by seed.

        The best is chosen by the very accuracies that are compared, so it looks a little better than it is.
        """
        lines = []
        for block, title in zip(self.blocks, self.names, strict=True):
            others = [m for m in self.compared if m not in [*names, *self.moving(block)]
                      and nets(self.of_row[m]) == kind]
            best = self.heights(block)[others].idxmax()
            found = self.against(block, best).reindex(names).dropna(subset="mean")
            said = ", ".join(f"{m} {r['mean']:+.1f} ± {r.half:.1f}" for m, r in found.iterrows())
            lines.append(f"**{title}**, minus {best}, the best of the others that have settled "
                         f"({self.heights(block)[best]:.1f} %): {said}.")
        return text.lines(lines)

    def changed_by_tuning(self, given: "Board") -> Markdown:
        """On each set: how many rows tuning changed, what that brought on test images, and what it did to the order."""
        lines = []
        for block, title in zip(self.blocks, self.names, strict=True):
            both = pd.DataFrame({"given": given.heights(block), "tuned": self.heights(block)}).dropna()
            gain = (both.tuned - both.given)[both.tuned != both.given].sort_values()
            if len(gain):
                ends = f"from {gain.iloc[0]:+.1f} ({gain.index[0]}) to {gain.iloc[-1]:+.1f} ({gain.index[-1]})"
                lines.append(f"**{title}**: other settings than given for {len(gain)} of {len(both)} rows. On test "
                             f"images these change by {gain.median():+.1f} points in the median, {ends}. The orders of "
                             f"all rows before and after agree to τ = {order(both.given, both.tuned)}.")
        return text.lines(lines)
