"""Numbers over rounds, rates and settings."""
import textwrap

from fedlib.report.plots.looks import (
    DASHES,
    OKABE_ITO,
    PALE,
    WIDTH,
    inside,
    legend,
    look,
    styled,
)

WIDE = 15.0     # points: an interval that reaches further to each side would fill the plot as a band


@styled
def curves(frame, by: str = "method", panel: str | None = None, label: str = "accuracy (%)", few=None):
    """Lines over rounds, one for each value of `by`, with a band where an interval is known.

    frame: one row for each point, with columns `round`, `mean`, `by`, optionally `half` (half-width of the interval)
    and `panel` (one small plot for each of its values, with the same scale in y). few: the lines in colour; the others
    are grey, without names and bands. A band ends where it reaches more than `WIDE` points to each side, and a
    line below says so.
    """
    import matplotlib.pyplot as plt
    panels = list(frame[panel].unique()) if panel else [None]
    columns = min(2, len(panels))
    rows, alone = -(-len(panels) // columns), frame[by].nunique() == 1
    others = [name for name in frame[by].unique() if few is not None and name not in few]
    frame = frame.sort_values(by, key=lambda names: names.isin(others), kind="stable")
    figure, axes = plt.subplots(rows, columns, figsize=(WIDTH, 3.6 if rows == 1 else 0.5 + 2.5 * rows), squeeze=False,
                                sharey=True)
    for ax in axes.flat[len(panels):]:
        ax.axis("off")
    wide = False
    for ax, name in zip(axes.flat, panels, strict=False):
        for line, part in (frame if name is None else frame[frame[panel] == name]).groupby(by, sort=False):
            part, ink = part.sort_values("round"), look(line)
            if line in others:
                ax.plot(part["round"], part["mean"], color=PALE, linewidth=1, zorder=1,
                        label="the other" if len(others) == 1 else f"the {len(others)} others")
                continue
            ink["linestyle"] = "-" if alone else ink["linestyle"]
            ax.plot(part["round"], part["mean"], label=line, markevery=max(1, len(part) // 8), **ink)
            if "half" in part and part["half"].notna().any():
                narrow = ~(part["half"] > WIDE) | ("%" not in label)
                wide |= not narrow.all()
                ax.fill_between(part["round"], part["mean"] - part["half"], part["mean"] + part["half"], where=narrow,
                                color=ink["color"], alpha=0.18, linewidth=0)
        ax.set_title(textwrap.fill(name or "", 30))
        ax.grid(True)
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes.flat[:len(panels)][-columns:]:       # the lowest of each column
        ax.set_xlabel("round")
    if "%" in label:        # with few seeds an interval may reach beyond what is possible
        low, high = axes[0, 0].get_ylim()
        axes[0, 0].set_ylim(max(low, 0), min(high, 100))
    for ax in axes[:, 0]:
        ax.set_ylabel(label)
    legend(figure, *axes.flat[:len(panels)], title=f"without a band: more than ± {WIDE:g} points" if wide else None)
    return figure


@styled
def lines(frame, x: str, y: str, by: str = "kind", panel: str | None = None, log: str = "", levels: dict | None = None,
          path: bool = False):
    """One number against another, a line for each value of `by`; the columns `x` and `y` name the axes.

    panel: a small plot for each of its values, with a scale of its own in y. log: the axes that are logarithmic, "x",
    "y", "xy" or "". levels: name -> height of a dashed line across, or {panel: height}. path: points are joined in the
    frame's order, not from left to right.
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator
    panels = list(frame[panel].unique()) if panel else [None]
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(WIDTH, 3.6 if rows == 1 else 0.5 + 2.4 * rows), squeeze=False)
    alone = {"linestyle": "-"} if frame[by].nunique() == 1 else {}
    for ax in axes.flat[len(panels):]:
        ax.axis("off")
    for ax, name in zip(axes.flat, panels, strict=False):
        for line, part in (frame if name is None else frame[frame[panel] == name]).groupby(by, sort=False):
            part = part if path else part.sort_values(x)
            ax.plot(part[x], part[y], label=line, markevery=max(1, len(part) // 8), **look(line) | alone)
        for i, (text, height) in enumerate((levels or {}).items()):
            here = height.get(name) if isinstance(height, dict) else height
            if here is not None:
                ax.axhline(here, color="black", linewidth=1, linestyle=DASHES[1 + i % 3], label=text)
        ax.set(xscale="log" if "x" in log else "linear", yscale="log" if "y" in log else "linear", title=name or "",
               xlabel=x)
        if "x" in log and apart(frame[x]):
            ax.set_xticks(sorted(frame[x].unique()), [f"{v:g}" for v in sorted(frame[x].unique())])
            ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        elif "x" in log and frame[x].max() < 1000 * frame[x].min():      # powers of ten would be too few
            ax.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            ax.xaxis.set_major_formatter(lambda v, _: f"{v:,.10g}")
            ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        elif "x" not in log and frame[x].dtype.kind == "i":        # there is no round 2.5
            ax.xaxis.get_major_locator().set_params(integer=True)
        if "y" in log and 0 < frame[y].max() < 10 * frame[y].min():         # a decade's ticks would be too few
            ax.yaxis.set_major_locator(LogLocator(2))
            ax.yaxis.set_major_formatter("{x:g}")
            ax.tick_params(axis="y", which="minor", left=False, labelleft=False)
        ax.grid(True)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel(y)
    legend(figure, *axes.flat[:len(panels)], columns=3)
    return figure


def apart(values) -> bool:
    """Is there room for each of the values on a logarithmic axis?"""
    import numpy as np
    places = np.log(np.sort(values.unique()))
    return 1 < len(places) < 8 and np.diff(places).min() > 0.08 * (places[-1] - places[0])


@styled
def tries(frame, columns: int = 3):
    """Validation accuracy over the learning rate, a small plot for each row of a table, all with the same axes.

    frame: a line for each try with row, lr, accuracy, and whether it is the one as `given`, has the `usual` weight, was
    `chosen`. Tries with the usual weight are joined; those with another are hollow; a ring marks the row as it is
    given, a star the try that was chosen.
    """
    import matplotlib.pyplot as plt
    from matplotlib.ticker import LogLocator, NullLocator
    names = list(frame.row.unique())
    columns = min(columns, len(names))
    rows = -(-len(names) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(WIDTH, 0.9 + 1.5 * rows), squeeze=False, sharex=True,
                                sharey=True)
    for ax in axes.flat[len(names):]:
        ax.axis("off")
    for ax, name in zip(axes.flat, names, strict=False):
        part = frame[frame.row == name].sort_values("lr")
        same, other = part[part.usual], part[~part.usual]
        ax.plot(same.lr, same.accuracy, color=OKABE_ITO[0], marker=".", label="weight as given")
        ax.plot(other.lr, other.accuracy, color=OKABE_ITO[1], marker="o", fillstyle="none", linestyle="none",
                label="another weight")
        for mark, size, ink, what in (("given", 11, "black", "as given"), ("chosen", 13, OKABE_ITO[1], "chosen")):
            here = part[part[mark]]
            ax.plot(here.lr, here.accuracy, color=ink, marker="o" if mark == "given" else "*", markersize=size,
                    fillstyle="none" if mark == "given" else "full", linestyle="none", label=what)
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(numticks=4))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.set_title(name, fontsize=9)
        ax.grid(True)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes.flat[:len(names)][-columns:]:
        ax.set_xlabel("learning rate")
        ax.tick_params(labelbottom=True)
    figure.supylabel("validation accuracy (%)", fontsize=11)
    legend(figure, *axes.flat[:len(names)])
    return figure


@styled
def sensitivity(frame, by: str = "dataset", setting: str = "setting", even: bool = False, best: dict | None = None):
    """Accuracy against a setting: a line for each value of `by`, with interval bars.

    frame: columns `by`, `setting` (the title of the x axis), `mean` and `half` (half-width of the interval, or nan).
    The x axis is logarithmic; even = True puts the values at even distances instead, as zero or weights near one need.
    best: of a line, the value that a paper calls the best; a ring stands around it.
    """
    import matplotlib.pyplot as plt
    values, names = sorted(frame[setting].unique()), list(frame[by].unique())
    place = {x: i if even else x for i, x in enumerate(values)}
    ring = {"marker": "o", "linestyle": "", "color": "black", "fillstyle": "none"}
    figure, ax = plt.subplots(figsize=(WIDTH, 3.6))
    for i, line in enumerate(names):
        part, ink = frame[frame[by] == line].sort_values(setting), look(line)
        beside = 0.012 * (i - (len(names) - 1) / 2)         # of the axis, so that bars do not hide each other
        x = part[setting].map(place)
        x = x + beside * (len(values) - 1) if even else x * (values[-1] / values[0]) ** beside
        ax.plot(x, part["mean"], label=line, **ink)
        ends = inside(part["mean"], part["half"], 0, 100)
        ax.errorbar(x, part["mean"], yerr=ends, fmt="none", ecolor=ink["color"], capsize=3, elinewidth=1)
        ringed = part[setting] == (best or {}).get(line)
        ax.plot(x[ringed], part["mean"][ringed], markersize=13, zorder=4, **ring)
    if best and frame[by].isin(list(best)).any():
        ax.plot([], [], markersize=9, label="best in the paper", **ring)
    if not even:
        ax.set_xscale("log")
    ax.set_xticks(list(place.values()), [f"{x:g}" for x in values])
    ax.minorticks_off()
    low, high = ax.get_ylim()
    ax.set_ylim(max(low, 0), min(high, 100))
    ax.set(xlabel=setting, ylabel="accuracy (%)", title=names[0] if len(names) == 1 else "")
    ax.grid(True)
    ax.spines[["top", "right"]].set_visible(False)
    legend(figure, ax)
    return figure
