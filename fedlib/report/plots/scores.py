"""Numbers by method and domain, and differences of them."""
import textwrap

from fedlib.report.plots.looks import (
    DARK,
    DIM,
    INK,
    LIGHT,
    LINE,
    MARKERS,
    OKABE_ITO,
    PALE,
    WIDTH,
    colour,
    inside,
    legend,
    look,
    styled,
)

FAR = 4.0       # an interval that reaches so many times as far as most do not set the axis


@styled
def matrix(values, label: str = "accuracy (%)", low: float = 0, high: float = 100, form: str = ".0f",
           row: float = 0.6):
    """Heat map with every value printed in its cell. values: DataFrame; index and columns names title the axes.

    A scale with zero inside has two colours that part there. An empty cell has a dash. row: inches that a line takes;
    in narrow lines the numbers are smaller.
    """
    import matplotlib.pyplot as plt
    import numpy as np
    import seaborn as sns
    values, size = values.astype(float), 12 if row > 0.5 else 9
    figure, ax = plt.subplots(figsize=(WIDTH * 0.9, 1.1 + row * len(values)))
    sns.heatmap(values, ax=ax, annot=True, fmt=form, vmin=low, vmax=high, cmap="RdBu" if low < 0 < high else "YlGnBu",
                linewidths=2, linecolor="white", annot_kws={"size": size}, cbar_kws={"label": label})
    for number in ax.texts:         # on a cell, whose colour is the same on a dark page
        number.set_color(LIGHT if number.get_color() == "w" else DARK)
    for i, j in np.argwhere(values.isna().to_numpy()):
        ax.text(j + 0.5, i + 0.5, "–", ha="center", va="center", color=DIM, size=size)
    ax.collections[0].colorbar.solids.set_rasterized(True)
    ax.set(xlabel=values.columns.name or "", ylabel=values.index.name or "")
    ax.tick_params(length=0)
    ax.tick_params(axis="y", rotation=0)
    return figure


@styled
def bars(values, half=None, label: str = "accuracy (%)", low: float = 0, high: float | None = 100):
    """Grouped bars. values: DataFrame, rows are groups (domains), columns bars (methods); half: intervals likewise.

    What was never run has no bar and no name; where it was not run for one group only, the place says so.
    """
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.patheffects import withStroke
    values = values.dropna(axis=0, how="all").dropna(axis=1, how="all")
    figure, ax = plt.subplots(figsize=(WIDTH, 3.4))
    width, inks = 0.8 / values.shape[1], [colour(name) for name in values.columns]
    for i, name in enumerate(values.columns):
        place = np.arange(len(values)) + (i - (values.shape[1] - 1) / 2) * width
        ends = None if half is None else inside(values[name], half.loc[values.index, name], low, high)
        drawn = ax.bar(place, values[name], width * 0.92, color=inks[i], label=name, edgecolor="white", linewidth=0,
                       hatch="//" * inks[:i].count(inks[i]),        # there are more methods than colours
                       yerr=ends, capsize=3, error_kw={"elinewidth": 1, "ecolor": INK})
        for part in drawn.errorbar.get_children() if drawn.errorbar else ():    # to be seen on every colour
            part.set_path_effects([withStroke(linewidth=2.5, foreground="white")])
        for x in place[values[name].isna()]:
            ax.annotate("not run", (x, low), (0, 4), textcoords="offset points", rotation=90, ha="center",
                        va="bottom", color=DIM, fontsize=9)
    room = 65 // len(values)        # characters below a group
    ax.set_xticks(range(len(values)), [textwrap.fill(str(k), room, break_long_words=False) for k in values.index])
    ax.set(ylabel=label, ylim=(low, high))
    ax.grid(True, axis="y")
    ax.spines[["top", "right"]].set_visible(False)
    legend(figure, ax)
    return figure


@styled
def domains(values, half=None, few=None, label: str = "accuracy (%)"):
    """By domain, from top to bottom, a dot with its interval for each of a few methods, and a tick for each other.

    values: DataFrame, rows methods, columns domains; half: intervals likewise. few: the methods in colour, below each
    other; the others share a grey line.
    """
    import matplotlib.pyplot as plt
    few = [name for name in values.index if few is None or name in few]
    others = values.drop(index=few)
    lanes = len(few) + (len(others) > 0)
    figure, ax = plt.subplots(figsize=(WIDTH, 1.0 + (0.25 + 0.17 * lanes) * values.shape[1]))
    lane = 0.8 / lanes
    for i, domain in enumerate(values):
        ax.axhspan(i - 0.48, i + 0.48, color=LINE, alpha=0.07, linewidth=0)
        for j, name in enumerate(few):
            at, x, ink = i + (j - (lanes - 1) / 2) * lane, values.loc[name, domain], look(name)
            ends = None if half is None else inside([x], [half.loc[name, domain]], 0, 100)
            ax.errorbar([x], [at], xerr=ends, linestyle="", color=ink["color"], capsize=2, elinewidth=1)
            ax.plot(x, at, linestyle="", marker=ink["marker"], color=ink["color"], label=name if i == 0 else None)
        ax.plot(others[domain], [i + (lanes - 1) / 2 * lane] * len(others), linestyle="", marker="|", markersize=8,
                color=LINE, label=f"the {len(others)} others" if i == 0 and len(others) else None)
    ax.set_yticks(range(values.shape[1]), values.columns)
    ax.set_ylim(values.shape[1] - 0.5, -0.5)
    ax.set_xlabel(label)
    ax.grid(True, axis="x")
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    legend(figure, ax)
    return figure


@styled
def runs(frame, row: str = "row", by: str = "dataset", label: str = "accuracy (%)"):
    """Every run as a mark, rows from top to bottom, with a line at the mean of a row's runs.

    frame: columns `row`, `by` (marks below each other, in colours of their own) and `value`. For what has a bound, as
    what cannot be negative, and few runs: an interval around the mean would reach beyond.
    """
    import matplotlib.pyplot as plt
    rows, groups = list(frame[row].unique()), list(frame[by].unique())
    apart = 0.7 / len(groups)
    figure, ax = plt.subplots(figsize=(WIDTH, 1.3 + len(rows) * max(0.3, 0.15 * len(groups))))
    for i, group in enumerate(groups):
        part, ink = frame[frame[by] == group], look(group)
        place = part[row].map(rows.index) + (i - (len(groups) - 1) / 2) * apart
        ax.plot(part["value"], place, linestyle="", marker=ink["marker"], color=ink["color"], markerfacecolor="none",
                label=group)
        means = part.groupby(row)["value"].mean()
        ax.plot(means, [rows.index(r) + (i - (len(groups) - 1) / 2) * apart for r in means.index], linestyle="",
                marker="|", markersize=9, markeredgewidth=2.5, color=ink["color"], zorder=3)
    ax.set_yticks(range(len(rows)), rows)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlabel(label)
    ax.grid(True, axis="x")
    ax.spines[["top", "right"]].set_visible(False)
    legend(figure, ax)
    return figure


@styled
def differences(frame, row: str = "row", by: str = "dataset", label: str = "difference (points)"):
    """Differences to a reference, the line at zero: a dot with its interval for each `row`, from top to bottom.

    frame: columns `row`, `by` (dots beside each other, in colours of their own), `mean` and `half` (half-width of the
    interval, or nan). A full dot says that the interval does not reach zero. An interval that reaches `FAR` times as
    far as most dots and intervals do ends at the rim, where its half-width is written.
    """
    import matplotlib.pyplot as plt
    rows, groups = list(frame[row].unique()), list(frame[by].unique())
    apart = 0.7 / len(groups)
    figure, ax = plt.subplots(figsize=(WIDTH, 1.3 + len(rows) * max(0.34, 0.14 * len(groups))))
    ax.axvline(0, color=LINE, linewidth=1)
    reach = frame["mean"].abs() + frame["half"].fillna(0)
    far = frame["half"] > FAR * reach.median()
    edge, frame = 1.15 * max(reach[~far].max(), frame["mean"].abs().max()), frame.assign(far=far)
    for i, group in enumerate(groups):
        part, ink = frame[frame[by] == group], look(group)
        place = part[row].map(rows.index) + (i - (len(groups) - 1) / 2) * apart
        half = part["half"].mask(part["far"], 2 * edge)
        ax.errorbar(part["mean"], place, xerr=half, linestyle="", capsize=3, elinewidth=1, color=ink["color"])
        for y, length in zip(place[part["far"]], part["half"][part["far"]], strict=True):
            ax.annotate(f"± {length:.0f}", (edge, y), (4, 0), textcoords="offset points", color=DIM, fontsize=9,
                        va="center", annotation_clip=False)
        full = part["mean"].abs() > part["half"]
        for kind, face in ((full, ink["color"]), (~full, "white")):
            ax.plot(part["mean"][kind], place[kind], linestyle="", marker=ink["marker"], color=ink["color"],
                    markerfacecolor=face, zorder=3)
        ax.plot([], [], linestyle="", marker=ink["marker"], color=ink["color"], label=group)
    if far.any():
        ax.set_xlim(-edge, edge)
    ax.set_yticks(range(len(rows)), rows)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set(xlabel=label, title=groups[0] if len(groups) == 1 else "")
    ax.grid(True, axis="x")
    ax.spines[["top", "right"]].set_visible(False)
    legend(figure, ax)
    return figure


@styled
def draws(frame, row: str = "row", by: str = "draw", panel: str = "dataset", label: str = "accuracy (%)", bar=None):
    """One dot for each `row` and each value of `by`, rows from top to bottom; the dots of one `by` look the same.

    frame: columns `row`, `by`, `panel` (plots below each other, with a scale of their own) and `value`. Where the dots
    stand in the same order in each row, the rows move together. bar: {name: {panel: length}}, a length from zero to
    compare with.
    """
    import matplotlib.pyplot as plt
    rows, panels, several = list(frame[row].unique()), list(frame[panel].unique()), list(frame[by].unique())
    height = len(panels) * (1.0 + 0.34 * (len(rows) + len(bar or ()))) + 0.5
    figure, axes = plt.subplots(len(panels), figsize=(WIDTH, height), squeeze=False)
    for ax, name in zip(axes[:, 0], panels, strict=True):
        part = frame[frame[panel] == name]
        for i, one in enumerate(several):
            line = part[part[by] == one].set_index(row)["value"].reindex(rows).dropna()
            ax.plot(line, [rows.index(r) for r in line.index], color=OKABE_ITO[i % len(OKABE_ITO)], linestyle="",
                    marker=MARKERS[i % len(MARKERS)], label=str(one))
        lengths = {k: v[name] for k, v in (bar or {}).items() if name in v}
        ax.barh(range(len(rows), len(rows) + len(lengths)), lengths.values(), 0.4, color=PALE)
        ax.set_yticks(range(len(rows) + len(lengths)), [*rows, *lengths])
        ax.set_ylim(len(rows) + len(lengths) - 0.5, -0.5)
        ax.set_title(name)
        ax.grid(True, axis="x")
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel(label)
    legend(figure, *axes[:, 0], title=by, columns=5)
    return figure


@styled
def pairs(frame, row: str = "row", panel: str = "dataset", names: tuple = ("before", "after"),
          label: str = "accuracy (%)", rings: str | None = None):
    """Two values of each row with a line between them, the first hollow and the second full; a small plot per panel.

    frame: columns `row`, `panel` and the two `names`. rings: where there is a column `ring`, what it says in words; a
    ring stands around the value that it names. Every plot has a scale of its own.
    """
    import matplotlib.pyplot as plt
    rows, panels = list(frame[row].unique()), list(frame[panel].unique())
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(WIDTH, 0.8 + lines * (0.75 + 0.2 * len(rows))), squeeze=False,
                                sharey=True)
    for ax in axes.flat[len(panels):]:
        ax.axis("off")
    for ax, name in zip(axes.flat, panels, strict=False):
        part = frame[frame[panel] == name]
        place = part[row].map(rows.index)
        ax.hlines(place, part[names[0]], part[names[1]], color=[colour(r) for r in part[row]], linewidth=2)
        for which, full in zip(names, (False, True), strict=True):
            for x, y, ink in zip(part[which], place, part[row].map(colour), strict=True):
                ax.plot(x, y, marker="o", color=ink, markerfacecolor=ink if full else "white", zorder=3)
            if "ring" in part:
                here = part["ring"] == which
                ax.plot(part[which][here], place[here], marker="o", linestyle="", color="black", fillstyle="none",
                        markersize=10, zorder=4)
        ax.set_title(textwrap.fill(name, 30))
        ax.set_yticks(range(len(rows)), rows)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.margins(x=0.1)
        ax.grid(True, axis="x")
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes.flat[:len(panels)][-columns:]:       # the lowest of each column
        ax.set_xlabel(label)
    for which, face in zip(names, ("white", DIM), strict=True):
        axes[0, 0].plot([], [], marker="o", linestyle="", color=DIM, markerfacecolor=face, label=which)
    if rings and "ring" in frame:
        axes[0, 0].plot([], [], marker="o", linestyle="", color="black", fillstyle="none", markersize=10, label=rings)
    legend(figure, axes[0, 0])
    return figure


@styled
def effects(found, gaps, label: str = "difference (points)"):
    """Mean differences to a reference with their intervals, the highest on top; small marks are those of single sets.

    found: DataFrame with a line for each row of the figure, columns `mean` and `half` (half-width of the interval);
    gaps: a line for each set, a column for each row. A full dot says that the interval leaves out zero.
    """
    import matplotlib.pyplot as plt
    found = found.sort_values("mean", ascending=False, kind="stable")
    place = [i - 0.12 for i in range(len(found))]
    below = [i + 0.24 for i in range(len(found))]        # so that a dot hides no mark
    figure, ax = plt.subplots(figsize=(WIDTH, 1.4 + 0.27 * len(found)))
    ax.axvline(0, color=LINE, linewidth=1)
    for name, line in gaps.iterrows():
        ink = look(name)
        ax.plot(line[found.index], below, linestyle="", marker=ink["marker"], color=ink["color"], markersize=4,
                markerfacecolor="none", label=name)
    full = found["mean"].abs() > found["half"]
    dot = {"linestyle": "", "marker": "o", "markersize": 6, "color": "black"}
    ax.errorbar(found["mean"], place, xerr=found["half"], linestyle="", color="black", capsize=2, elinewidth=1)
    for kind, face in ((full, "black"), (~full, "white")):
        there = [y for y, here in zip(place, kind, strict=True) if here]
        ax.plot(found["mean"][kind], there, markerfacecolor=face, zorder=4, **dot)
    ax.plot([], [], label=f"mean of {len(gaps)} sets", **dot)
    ax.set_yticks(range(len(found)), found.index)
    ax.set_ylim(len(found) - 0.4, -0.6)
    ax.set_xlabel(label)
    ax.grid(True, axis="x")
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right"]].set_visible(False)
    legend(figure, ax, columns=3)
    return figure


@styled
def tally(counts, label: str = "claims", inks: dict | None = None):
    """Stacked bars with their numbers written in where there is room: rows from top to bottom, a piece for each column.

    counts: DataFrame of whole numbers. inks: column -> (colour of the piece, colour of its number).
    """
    import matplotlib.pyplot as plt
    figure, ax = plt.subplots(figsize=(WIDTH, 1.2 + 0.42 * len(counts)))
    start = counts.iloc[:, 0] * 0
    for i, name in enumerate(counts):
        piece, ink = (inks or {}).get(name, (OKABE_ITO[i % len(OKABE_ITO)], "white"))
        ax.barh(range(len(counts)), counts[name], 0.72, left=start, color=piece, edgecolor="white", label=name)
        for at, (left, n) in enumerate(zip(start, counts[name], strict=True)):
            if n >= 0.025 * counts.sum(axis=1).max():      # else the bar is as narrow as its number
                ax.text(left + n / 2, at, str(n), ha="center", va="center", fontsize=9,
                        color={"white": LIGHT, "black": DARK}.get(ink, ink))
        start = start + counts[name]
    ax.set_yticks(range(len(counts)), counts.index)
    ax.set_ylim(len(counts) - 0.5, -0.5)
    ax.set_xlabel(label)
    ax.tick_params(axis="y", length=0)
    ax.spines[["top", "right", "left"]].set_visible(False)
    legend(figure, ax)
    return figure


@styled
def lengths(panels: dict, label: str, stacked: bool = True, reference: float | None = None,
            linear: float | None = None):
    """Horizontal bars, rows from top to bottom: for each column a piece after the last one, or a bar below it.

    panels: title -> DataFrame, at most five columns; plots beside each other, each with a scale of its own and the
    same rows. reference: where a line stands. linear: above this length the scale is logarithmic.
    """
    import matplotlib.pyplot as plt
    rows, several = next(iter(panels.values())).index, max(frame.shape[1] for frame in panels.values())
    if several > 5:
        raise ValueError(f"{several} columns: there are five looks")
    height = 0.32 if stacked else 0.17 * several
    figure, axes = plt.subplots(1, len(panels), figsize=(WIDTH if len(panels) == 1 else 8, 1 + height * len(rows)),
                                sharey=True, squeeze=False)
    for ax, (title, frame) in zip(axes[0], panels.items(), strict=True):
        left, thick = 0, 0.8 if stacked else 0.8 / several
        looks = zip((OKABE_ITO[k] for k in (0, 1, 6, 2, 3)), ("", "//", "..", "xx", "--"))
        for i, (name, (ink, hatch)) in enumerate(zip(frame, looks)):
            at = [k if stacked else k + thick * (i - (several - 1) / 2) for k in range(len(rows))]
            ax.barh(at, frame[name], 0.92 * thick, left=left, color=ink, hatch=hatch, edgecolor="white", linewidth=0,
                    label=name)
            left = left + frame[name] if stacked else 0
        if linear:
            ax.set_xscale("symlog", linthresh=linear)
        if reference is not None:
            ax.axvline(reference, color="black", linewidth=1)
        ax.set_yticks(range(len(rows)), rows)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set(**{k: words if len(panels) == 1 else textwrap.fill(words, 56 // len(panels))
                  for k, words in (("title", title), ("xlabel", label))})
        ax.spines[["top", "right"]].set_visible(False)
    legend(figure, *axes[0])
    return figure
