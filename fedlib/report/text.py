"""What pages say: differences in words, tables to read, source code, and one sentence where there is nothing yet."""
import html
import inspect
import sys
import textwrap

import pandas as pd
from IPython.display import Markdown, display

from fedlib.experiments.statistics import interval
from fedlib.report import plots

EMPTY = "No records in this profile yet."
LEFT = {"text-align": "left", "white-space": "normal"}


def sides(leads, base: str) -> str:
    """Of lines with row, mean and half: in words, whose lead over a base is beyond its interval, above and below."""
    ends = ((leads[sign * leads["mean"] > leads.half], word) for sign, word in ((1, "above"), (-1, "below")))
    return f"Beyond the interval of the lead over {base}: " + "; ".join(
        f"{word} {', '.join(some.row.str.removesuffix(', tuned')) or 'none'}" for some, word in ends)


def joined(frames) -> pd.DataFrame:
    """One below the other, without empty ones, whose columns have no types."""
    frames = list(frames)
    return pd.concat([frame for frame in frames if len(frame)] or frames)


def points(sample, form: str = "+.1f") -> str:
    """'+3.1 ± 0.8': the mean of paired differences and half of its 95 % interval; '–' of none."""
    mean, half = interval(sample)
    return "–" if pd.isna(mean) else f"{mean:{form}}" + ("" if pd.isna(half) else f" ± {half:{form.lstrip('+')}}")


def settings(values: dict, none: str = "its defaults") -> str:
    """'mu = 0.1, tau = 0.5'."""
    return ", ".join(f"{k} = {v}" for k, v in values.items()) or none


def or_empty(content, draw=None, empty: str = EMPTY):
    """The content, or what `draw` makes of it; where it is empty, the sentence that says so."""
    if content is None or len(content) == 0:
        return Markdown(empty)
    return draw(content) if draw else content


def lines(found, empty: str = EMPTY) -> Markdown:
    """A list of sentences; where there are none, the sentence that says so."""
    return Markdown("\n".join(f"- {line}" for line in found) or empty)


def table(frame: pd.DataFrame, form="{:.1f}", words: bool = False, index: bool = True):
    """A frame to read. form: of fractions, or by column; words: text, so to the left; index: with the rows' names."""
    if not len(frame):
        return Markdown(EMPTY)
    frame = frame.rename_axis(index={"block": "dataset"})      # a block's title is its data
    style = (frame if index else frame.reset_index(drop=True)).style.set_table_attributes('class="dataframe"')
    style = style.set_properties(**LEFT) if words else style
    for axis in (0, 1):         # labels that are numbers, without zeros at their end
        style = style.format_index(lambda label: f"{label:g}" if isinstance(label, float) else label, axis=axis)
    numbers = frame.select_dtypes("float").columns if isinstance(form, str) else None
    style = style.format(form, subset=numbers, na_rep="–") if numbers is not None else style.format(form, na_rep="–")
    return style if index else style.hide(axis="index")


def differences(frame: pd.DataFrame, row: str, by: str = "dataset", form: str = "{:+.1f}"):
    """Lines of `Page.compared` to read: printed where it is known, ours, half of its interval, n, rounds where a
    line's two rows had not as many. row: what they are.

    form: of the printed differences; ours have one digit. "printed ±": a column for their intervals. Columns of other
    names stand first, numbers with one digit.
    """
    wide = frame.rename(columns={"row": row, "mean": "ours", "half": "±"}).set_index([by, row])
    forms = {"printed": form, "printed ±": "{:.1f}", "ours": "{:+.1f}", "±": "{:.1f}", "n": "{}", "rounds": "{}"}
    empty = [k for k in ("printed", "printed ±", "rounds") if k in wide and wide[k].replace("", pd.NA).isna().all()]
    known = [k for k in forms if k in wide and k not in empty]
    wide = wide[[k for k in wide if k not in forms and k != "block"] + known]
    return table(wide, dict.fromkeys(wide.select_dtypes("float"), "{:.1f}") | {k: forms[k] for k in known})


def settled(frame: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Rows of the same lines whose interval lies above zero, and those below."""
    return tuple(list(frame[sign * frame["mean"] > frame.half].row) for sign in (1, -1))


def ends(frame: pd.DataFrame) -> str:
    """'+5.5 (one row) to +10.7 (another)': the lowest and the highest of the same lines."""
    least, most = frame.loc[frame["mean"].idxmin()], frame.loc[frame["mean"].idxmax()]
    return f"{least['mean']:+.1f} ({least.row}) to {most['mean']:+.1f} ({most.row})"


def dots(frame: pd.DataFrame, label: str, by: str = "dataset"):
    """The same lines as a figure, those with records: a dot and its interval for each, rows in the frame's order."""
    order = list(frame.row.unique())
    found = frame[frame.n > 0].sort_values("row", key=lambda rows: rows.map(order.index), kind="stable")
    return or_empty(found, lambda lines: plots.differences(lines, by=by, label=label))


def opened(number: str, title: str, place: int = 0) -> str:
    """The number of ours in a cell, below the printed one, with what it stands on: seen by pointer and by keyboard.

    title: "" opens nothing. place: 1 of the highest in its column, bold; 2 of the next, underlined.
    """
    printed, line, ours = number.rpartition("<br>")
    printed = f'<span class="printed">{printed}</span>' if printed else ""
    if ours in ("–", ""):
        return f"{printed}{line}{ours}"
    ours = {1: f"<b>{ours}</b>", 2: f"<u>{ours}</u>"}.get(place, ours)
    seen = f'<span class="number" tabindex="0" title="{html.escape(title)}">{ours}</span>' if title else ours
    return f"{printed}{line}{seen}"


def bars(frame: pd.DataFrame, groups: str, by: str, label: str = "accuracy (%)", high: float | None = 100):
    """Bars with intervals: a group for each value of one column, a bar for each of another, in the frame's order.

    frame: columns `ours` and `half` (half of the interval) beside these two.
    """
    def draw(lines):
        wide = [lines.pivot(index=groups, columns=by, values=v).loc[lines[groups].unique(), lines[by].unique()]
                for v in ("ours", "half")]
        return plots.bars(*(part.rename_axis(index=None, columns=None) for part in wide), label=label, high=high)
    return or_empty(frame, draw)


def titled(title: str, *content):
    """Show content below a line in bold."""
    display(Markdown(f"**{title}**"), *content)


def show_each(frame: pd.DataFrame, by: str, draw, empty: str = EMPTY):
    """What `draw` makes of the lines of each value of a column, below it; where there are none, the sentence."""
    for name, part in frame.groupby(by, sort=False) if len(frame) else ():
        titled(name, draw(part))
    if not len(frame):
        display(Markdown(empty))


def fold(summary: str, body: str, unfolded: bool = False) -> str:
    """HTML that a click on the summary unfolds."""
    return f"<details{' open' * unfolded}><summary>{summary}</summary>{body}</details>"


def source(*objects) -> Markdown:
    """The source of functions, classes or hooks, as Python code to read; of hooks, folded, the whole class as well."""
    classes = {name: getattr(sys.modules[o.__module__], name) for o in objects
               if (name := o.__qualname__.partition(".")[0]) != o.__qualname__}
    folds = [f"<details><summary>The whole class <code>{name}</code></summary>\n\n{python(cls)}\n\n</details>"
             for name, cls in classes.items() if cls not in objects]
    return Markdown("\n\n".join([*map(python, objects), *folds]))


def python(thing) -> str:
    """Its source as a block of Markdown."""
    return f"```python\n{textwrap.dedent(inspect.getsource(thing)).rstrip()}\n```"
