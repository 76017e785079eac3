"""Figures: one look for the whole book. Every function returns a matplotlib Figure; nothing is shown or saved here.

Figures stand on solid white, so that they read on a light and on a dark page, and are drawn small (5.8 inches wide,
type of 11 points), so that they read on a phone. Colours are those of Okabe and Ito (https://jfly.uni-koeln.de/color/),
which people with colour-blindness tell apart; a marker, a dash or a printed number says the same again.
"""
import functools

from fedlib.seeds import key

WIDTH = 5.8      # inches
OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#4D4D4D", "#8C6D00")
MARKERS = "os^DvPX*"
DASHES = ("-", "--", "-.", ":")
# (colour, marker, dash) of the names that share a figure most often; the domains as on the book's first page.
METHOD_LOOKS = ("FedAvg", "FedProto", "FedBN", "I2PFL", "MOON", "FedProx", "Local", "Ditto")
DOMAIN_LOOKS = (("scans", "caltech", "photo", "mnist"), ("blended", "amazon", "art_painting", "usps"),
                ("printed", "webcam", "cartoon", "mnist_m"), ("street", "dslr", "sketch", "svhn"), ("syn",))
DOMAIN_INKS = (3, 2, 1, 4, 5)
# Further names that share figures, as (ink, marker, dash): data sets, and the other methods of the papers' tables.
MORE_LOOKS = {"Digits": (0, "o", "-"), "Office-10": (3, "D", "-"), "PACS": (2, "^", "-"), "mini_digits": (6, "s", "-"),
              "MPFT": (3, "D", "-"), "DBE": (2, "^", "-"), "mean": (3, "D", "-"), "r = 0.1": (5, "o", ":"),
              "r = 0.3": (0, "s", "-"), "r = 0.5": (2, "^", "--"), "r = 0.7": (1, "v", "-."), "r = 0.9": (6, "P", "-"),
              "FedDyn": (2, "*", ":"), "FedPLVM": (2, "X", "-."), "FedProc": (6, "s", "-."), "COPA": (6, "o", ":"),
              "FPL": (7, "D", "-."), "FedGA": (7, "^", ":"), "FedPall": (3, "D", "-"), "ADCOL": (7, "P", "-"),
              "FedRep": (1, "*", "-."), "PerFedAvg": (6, "s", "-."), "RUCR": (5, "o", ":"), "FedHEAL": (0, "^", ":"),
              "CE": (6, "s", "-"), "CE + InfoNCE": (1, "^", "-"), "CE + KL": (5, "v", "-"),
              "CE + InfoNCE + KL": (3, "D", "-"), "without": (5, "s", "-"), "with": (3, "D", "-"),
              "FedDTR": (3, "D", "-"), "FedPer": (2, "^", "-"), "FedALA": (4, "v", "-"), "FedAMP": (6, "P", "-"),
              "pFedMe": (7, "X", ":"), "FedFomo": (5, "o", ":"), "FedPHP": (0, "^", ":"), "FedRoD": (2, "s", "-."),
              "ood": (0, "o", "-"), "ind": (3, "s", "-"), "Average": (0, "o", "-"), "Random 0.1": (3, "D", "-"),
              "β = 0": (6, "o", "-"), "β = 10": (0, "s", "-."), "β = 100": (2, "^", "-"), "β = 1000": (3, "D", ":"),
              "printed formula": (3, "D", "-"), "exact": (0, "o", "-"), "one image": (0, "o", "-"),
              "class mean": (3, "s", "-")}
RC = {"figure.dpi": 150, "figure.facecolor": "white", "savefig.facecolor": "white", "axes.facecolor": "white",
      "figure.constrained_layout.use": True, "font.size": 11, "axes.titlesize": 11, "axes.labelsize": 11,
      "xtick.labelsize": 10, "ytick.labelsize": 10, "legend.fontsize": 10, "legend.frameon": False,
      "legend.handletextpad": 0.5, "legend.columnspacing": 1.2, "axes.edgecolor": "#808080", "grid.color": "#e4e4e4",
      "axes.axisbelow": True, "lines.linewidth": 1.8, "lines.markersize": 5}


def look(name: str) -> dict:
    """Colour, marker and dash of a method or a domain. They depend on the name alone, never on what else is drawn.

    A variant of a method, "MOON, mu = 1", is drawn as the method with a broken line; a remark in brackets, "PACS (not
    run)", changes nothing.
    """
    name = name.split(" (")[0]
    if ", " in name:
        return look(name.split(", ")[0]) | {"linestyle": "--"}
    name = {"alone": "Local", "SingleSet": "Local"}.get(name, name)
    if name == "pooled":
        return {"color": "black", "marker": "P", "linestyle": "--"}
    if name in METHOD_LOOKS:
        i = METHOD_LOOKS.index(name)
        return {"color": OKABE_ITO[i], "marker": MARKERS[i], "linestyle": "-"}
    if name in MORE_LOOKS:
        ink, marker, dash = MORE_LOOKS[name]
        return {"color": OKABE_ITO[ink], "marker": marker, "linestyle": dash}
    for i, names in enumerate(DOMAIN_LOOKS):
        if name in names:
            return {"color": OKABE_ITO[DOMAIN_INKS[i]], "marker": MARKERS[i], "linestyle": "-"}
    ink, shape, dash = key("look", name), key("marker", name), key("dash", name)
    return {"color": OKABE_ITO[ink % len(OKABE_ITO)], "marker": MARKERS[shape % len(MARKERS)],
            "linestyle": DASHES[1 + dash % 3]}


def colour(name: str) -> str:
    """The colour of a method or a domain."""
    return look(name)["color"]


def class_colours(classes: int) -> list:
    """As many colours as classes: seaborn's "colorblind" up to ten, then steps of viridis."""
    import seaborn as sns
    return sns.color_palette("colorblind" if classes <= 10 else "viridis", classes)


def styled(draw):
    """Draw in the book's look; the figure is closed, so that a notebook shows it once: where it is returned."""
    @functools.wraps(draw)
    def drawn(*args, **kwargs):
        import matplotlib.pyplot as plt
        with plt.rc_context(RC):
            figure = draw(*args, **kwargs)
            figure.canvas.draw()        # text takes its size from the look now, not when the figure is shown
        plt.close(figure)
        return figure
    return drawn


@styled
def grid(images: dict, columns=None):
    """Sample images, one row for each name. images: name -> uint8 `(N, 3, H, W)`; columns: N titles."""
    import matplotlib.pyplot as plt
    most = max(len(x) for x in images.values())
    size = (WIDTH - 0.9) / most
    figure, axes = plt.subplots(len(images), most, figsize=(WIDTH, size * len(images) + (0.25 if columns else 0)),
                                squeeze=False, gridspec_kw={"wspace": 0.04, "hspace": 0.04})
    for row, (name, x) in zip(axes, images.items(), strict=True):
        for ax in row:
            ax.axis("off")
        for ax, image in zip(row, x, strict=False):
            ax.imshow(image.permute(1, 2, 0).cpu().numpy(), interpolation="nearest")
        row[0].text(-0.15, 0.5, name, transform=row[0].transAxes, ha="right", va="center")
    for ax, title in zip(axes[0], columns or (), strict=False):
        ax.set_title(title)
    return figure


@styled
def matrix(values, label: str = "accuracy (%)", low: float = 0, high: float = 100, form: str = ".0f"):
    """Heat map with every value printed in its cell. values: DataFrame; index and columns names title the axes."""
    import matplotlib.pyplot as plt
    import seaborn as sns
    figure, ax = plt.subplots(figsize=(WIDTH * 0.9, 1.1 + 0.6 * len(values)))
    sns.heatmap(values.astype(float), ax=ax, annot=True, fmt=form, vmin=low, vmax=high, cmap="YlGnBu", linewidths=2,
                linecolor="white", annot_kws={"size": 12}, cbar_kws={"label": label})
    ax.set(xlabel=values.columns.name or "", ylabel=values.index.name or "")
    ax.tick_params(length=0)
    ax.tick_params(axis="y", rotation=0)
    return figure


@styled
def curves(frame, by: str = "method", panel: str | None = None, label: str = "accuracy (%)"):
    """Lines over rounds, one for each value of `by`, with a band where an interval is known.

    frame: one row for each point, with columns `round`, `mean`, `by`, optionally `half` (half-width of the interval)
    and `panel` (one small plot for each of its values, all with the same axes).
    """
    import matplotlib.pyplot as plt
    panels = list(frame[panel].unique()) if panel else [None]
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(WIDTH, 3.6 if rows == 1 else 0.5 + 2.2 * rows), squeeze=False,
                                sharex=True, sharey=True)
    for ax in axes.flat[len(panels):]:
        ax.axis("off")
    for ax, name in zip(axes.flat, panels, strict=False):
        for line, part in (frame if name is None else frame[frame[panel] == name]).groupby(by, sort=False):
            part, ink = part.sort_values("round"), look(line)
            ax.plot(part["round"], part["mean"], label=line, markevery=max(1, len(part) // 8), **ink)
            if "half" in part and part["half"].notna().any():
                ax.fill_between(part["round"], part["mean"] - part["half"], part["mean"] + part["half"],
                                color=ink["color"], alpha=0.18, linewidth=0)
        ax.set_title(name or "")
        ax.grid(True)
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes.flat[:len(panels)][-columns:]:       # the lowest of each column
        ax.set_xlabel("round")
        ax.tick_params(labelbottom=True)
    if "%" in label:        # with few seeds an interval may reach beyond what is possible
        low, high = axes[0, 0].get_ylim()
        axes[0, 0].set_ylim(max(low, 0), min(high, 100))
    for ax in axes[:, 0]:
        ax.set_ylabel(label)
    _legend(figure, *axes.flat[:len(panels)])
    return figure


@styled
def bars(values, half=None, label: str = "accuracy (%)", low: float = 0, high: float | None = 100):
    """Grouped bars. values: DataFrame, rows are groups (domains), columns bars (methods); half: intervals likewise."""
    import matplotlib.pyplot as plt
    import numpy as np
    figure, ax = plt.subplots(figsize=(WIDTH, 3.4))
    width = 0.8 / values.shape[1]
    for i, name in enumerate(values.columns):
        place = np.arange(len(values)) + (i - (values.shape[1] - 1) / 2) * width
        ax.bar(place, values[name], width * 0.92, color=colour(name), label=name,
               yerr=None if half is None else half[name], capsize=3, error_kw={"elinewidth": 1})
    ax.set_xticks(range(len(values)), values.index)
    ax.set(ylabel=label, ylim=(low, high))
    ax.grid(True, axis="y")
    ax.spines[["top", "right"]].set_visible(False)
    _legend(figure, ax)
    return figure


@styled
def radar(values, low: float = 0, high: float = 100, label: str = "accuracy (%)"):
    """One closed line for each row (method) over the columns (domains).

    Every axis runs from `low` at the centre to `high` at the rim, and the figure says so. The area means nothing: it
    depends on the order of the domains, and a `low` above zero makes small differences look large. Read the rings.
    """
    import matplotlib.pyplot as plt
    import numpy as np
    angles = np.linspace(0, 2 * np.pi, values.shape[1], endpoint=False)
    figure, ax = plt.subplots(figsize=(WIDTH * 0.9, WIDTH * 0.9), subplot_kw={"projection": "polar"})
    for name, row in values.iterrows():
        ax.plot(np.append(angles, angles[0]), [*row, row.iloc[0]], label=name, **look(name))
    ax.set_theta_zero_location("N")
    ax.set_theta_direction(-1)
    ax.set_rorigin(low)
    ax.set_ylim(low, high)
    rings = np.linspace(low, high, 5)[1:]
    ax.set_rgrids(rings, [f"{ring:g}" for ring in rings], angle=np.degrees(np.pi / values.shape[1]), color="#404040",
                  bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}, zorder=5)
    ax.set_xticks(angles, values.columns)
    ax.tick_params(axis="x", pad=4)
    for text, angle in zip(ax.get_xticklabels(), angles, strict=True):      # names at the sides stand off the rim
        text.set_horizontalalignment("center" if abs(np.sin(angle)) < 0.1 else "left" if angle < np.pi else "right")
    ax.set_title(f"{label},\nfrom {low:g} (centre) to {high:g} (rim)", pad=10)
    _legend(figure, ax)
    return figure


@styled
def tsne(features, labels, domains, classes=None, seed: int = 0, together: bool = False, marks=None):
    """Features `(N, D)` on a plane by t-SNE, twice: coloured by domain and by class.

    labels: N class indices; domains: N domain names; classes: class names. Near points were near in `D` dimensions;
    distances between far groups and the sizes of groups mean nothing. together = True draws them once, larger: the
    colour is the class and the marker the domain; on one point of each domain and class, amid the others, stands the
    name of the class. marks: name -> points `(M, D)`, laid out with the features and drawn in black on both halves.
    """
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.patheffects import withStroke
    from sklearn.manifold import TSNE
    features, labels, domains = np.asarray(features), np.asarray(labels), np.asarray(domains)
    marks = {name: np.asarray(points) for name, points in (marks or {}).items()}
    every = np.concatenate([features, *marks.values()])
    places = TSNE(perplexity=min(30, (len(every) - 1) / 3), init="pca", random_state=seed).fit_transform(every)
    ends = np.cumsum([len(features), *map(len, marks.values())])
    places, *spots = np.split(places, ends[:-1])
    names, inks = classes or [str(k) for k in range(labels.max() + 1)], class_colours(labels.max() + 1)
    if together:
        figure, ax = plt.subplots(figsize=(WIDTH, 4.9))
        for domain in dict.fromkeys(domains.tolist()):
            here, marker = domains == domain, look(domain)["marker"]
            ax.scatter(*places[here].T, s=26, c=np.array(inks)[labels[here]], marker=marker, edgecolors="white",
                       linewidths=0.4)
            ax.plot([], [], linestyle="", marker=marker, color="#4d4d4d", label=domain)
            for k in np.unique(labels[here]):       # a class may lie in as many places as there are domains
                group = places[here & (labels == k)]
                amid = group[np.square(group - np.median(group, axis=0)).sum(axis=1).argmin()]
                ax.text(*amid, names[k], color=inks[k], size=12, weight="bold", ha="center", va="center",
                        path_effects=[withStroke(linewidth=2.5, foreground="white")])
        ax.set(xticks=[], yticks=[])
        _legend(figure, ax)
        return figure
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 3.9))
    for domain in dict.fromkeys(domains.tolist()):
        here, ink = domains == domain, look(domain)
        axes[0].scatter(*places[here].T, s=7, color=ink["color"], marker=ink["marker"], linewidths=0, label=domain)
    for k in np.unique(labels):
        axes[1].scatter(*places[labels == k].T, s=7, color=inks[k], linewidths=0, label=names[k])
    for ax, title, columns in zip(axes, ("by domain", "by class"), (2, 5), strict=True):
        for spot, marker, size in zip(spots, "X*Pd", (22, 40, 70, 40)):
            ax.scatter(*spot.T, s=size, color="black", marker=marker, edgecolors="white", linewidths=0.5, zorder=3)
        ax.set(xticks=[], yticks=[], title=title)
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.02), ncols=columns, markerscale=2.5, handletextpad=0.1,
                  columnspacing=0.6, borderpad=0.2)
    for name, marker in zip(marks, "X*Pd"):
        axes[0].plot([], [], linestyle="", marker=marker, color="black", markersize=7, label=f" {name}")
    if marks:
        handles, texts = axes[0].get_legend_handles_labels()
        count = len(texts) - len(marks)
        figure.legend(handles[count:], texts[count:], loc="outside lower center", ncols=len(marks))
    return figure


@styled
def holdings(counts, label: str = "training images"):
    """Who holds what: a bar for each client, its classes stacked. counts: DataFrame, rows clients, columns classes.

    More than twelve classes get no legend: their colours run from the first to the last.
    """
    import matplotlib.pyplot as plt
    figure, ax = plt.subplots(figsize=(WIDTH, 1.2 + (0.38 if len(counts) <= 12 else 0.2) * len(counts)))
    many = counts.shape[1] > 12
    left = [0] * len(counts)
    for name, ink in zip(counts.columns, class_colours(counts.shape[1]), strict=True):
        ax.barh(range(len(counts)), counts[name], left=left, color=ink, edgecolor="white",
                linewidth=0 if many else 0.6, label=name)
        left = [a + b for a, b in zip(left, counts[name], strict=True)]
    ax.set_yticks(range(len(counts)), counts.index)
    ax.invert_yaxis()
    ax.set_xlabel(f"{label}; dark to light: class {counts.columns[0]} to {counts.columns[-1]}" if many else label)
    ax.spines[["top", "right"]].set_visible(False)
    if not many:
        _legend(figure, ax, title=counts.columns.name, columns=10 if max(map(len, map(str, counts.columns))) < 3 else 4)
    return figure


@styled
def drift(moves: dict, average):
    """One round seen from above: how far each client moved from the server's parameters, and their average.

    moves: client -> `(P,)`, w_k - w; average: `(P,)`. The plane is that of the two main directions of the moves: of the
    P directions it shows the two in which the clients differ most, and arrows may look shorter than they are.
    """
    import matplotlib.pyplot as plt
    import torch
    stack = torch.stack(list(moves.values())).double().cpu()
    plane = torch.linalg.svd(stack, full_matrices=False).Vh[:2].T
    figure, ax = plt.subplots(figsize=(WIDTH, 4.2))
    for name, end in zip(moves, stack @ plane, strict=True):
        ax.annotate("", end.tolist(), (0, 0), arrowprops={"arrowstyle": "-|>", "color": colour(name), "lw": 2})
        ax.plot(*end, color=colour(name), marker=look(name)["marker"], linestyle="", label=name)
    ax.plot(0, 0, "o", color="black", label="$w$ before", zorder=3)
    ax.plot(*(average.double().cpu() @ plane), "*", color="black", markersize=14, label="$w$ after", zorder=3)
    ax.set(xlabel="first main direction", ylabel="second main direction")
    ax.set_aspect("equal", adjustable="datalim")
    ax.margins(0.15)
    ax.grid(True)
    ax.spines[["top", "right"]].set_visible(False)
    _legend(figure, ax, columns=3)
    return figure


def _legend(figure, *axes, title=None, columns: int = 4):
    """One legend for the figure, below it: beside it there is no room on a phone."""
    handles = {}
    for ax in axes:
        for handle, name in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(name, handle)
    if len(handles) > 1:
        figure.legend(handles.values(), handles, loc="outside lower center", ncols=min(columns, len(handles)),
                      title=title, handlelength=1.2 if columns > 4 else 1.8)


@styled
def plane(points, domains, labels=None, names=None, marks=None, mixed=()):
    """Points `(N, D)` on the plane of their two main directions (PCA); each domain has its marker.

    domains: N names; labels: N class indices that give the colours, else the domains do. The classes' names are printed
    amid their points or, where there is one domain only, in place of them. marks: name -> a point `(D,)` in black, an
    arrow from each to the next. mixed: triples (i, j, point on the line from i to j), a star in the colour of i. The
    axes say what share of the variance a direction carries; the rest is not seen.
    """
    import matplotlib.pyplot as plt
    import numpy as np
    from matplotlib.colors import to_rgb
    from matplotlib.patheffects import withStroke
    from sklearn.decomposition import PCA
    points, domains = np.asarray(points), np.asarray(domains)
    shadow = PCA(2, random_state=0).fit(points)
    places, inks = shadow.transform(points), np.array([to_rgb(colour(d)) for d in domains])
    groups = {}
    if labels is not None:
        labels = np.asarray(labels)
        inks = np.array(class_colours(labels.max() + 1))[labels]
        groups = {str(k if names is None else names[k]): labels == k for k in np.unique(labels)}
    figure, ax = plt.subplots(figsize=(WIDTH, 4.9))
    several = len(set(domains.tolist())) > 1
    for name in dict.fromkeys(domains.tolist()) if several or labels is None else ():
        here, ink = domains == name, look(name)
        ax.scatter(*places[here].T, s=50, c=inks[here], marker=ink["marker"], edgecolors="white", linewidths=0.6)
        ax.plot([], [], linestyle="", marker=ink["marker"], label=name,
                color=ink["color"] if labels is None else "#4d4d4d")
    for name, here in groups.items():
        at = [np.median(places[here], axis=0)] if several else places[here]
        for x, y in at:
            ax.text(x, y, name, color=inks[here][0], size=15 if several else 12, weight="bold", ha="center",
                    va="center", path_effects=[withStroke(linewidth=2, foreground="white")])
    for i, j, between in mixed:
        ax.plot(*places[[i, j]].T, color="#808080", linewidth=1.2, zorder=0.9)
        ax.plot(*shadow.transform(np.asarray(between)[None]).T, "*", color=inks[i], markeredgecolor="black",
                markersize=13, zorder=3)
    ends = [shadow.transform(np.asarray(at)[None])[0] for at in (marks or {}).values()]
    for name, end, marker in zip(marks or (), ends, "P*Xd"):
        ax.plot(*end, marker, color="black", markeredgecolor="white", markersize=13, label=name)
    for start, end in zip(ends, ends[1:]):
        ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": "black", "lw": 1.5, "shrinkB": 5})
    ax.update_datalim(places)
    ax.autoscale_view()
    ax.set(**{f"{axis}label": f"{which} main direction ({share:.0%} of the variance)" for axis, which, share in
              zip("xy", ("first", "second"), shadow.explained_variance_ratio_)})
    ax.set_aspect("equal", adjustable="datalim")
    ax.margins(0.08)
    ax.grid(True)
    ax.spines[["top", "right"]].set_visible(False)
    _legend(figure, ax, columns=3 if marks else 4)
    return figure


@styled
def shadows(panels: dict, axes=("", "")):
    """Unit vectors on a plane, two panels beside each other on the same axes; a dashed circle has length 1.

    panels: title -> (groups, arrows). groups: name -> places `(N, 2)`; its order gives the colour and the marker.
    arrows: name -> place `(2,)`, drawn from the origin, the name at its tip. What is shorter than 1 points out of the
    plane. Where all places of a panel lie close to the origin, an inset shows them larger.
    """
    import matplotlib.pyplot as plt
    import numpy as np

    def draw(ax, groups, arrows, size):
        for i, (name, places) in enumerate(groups.items()):
            ax.scatter(*np.asarray(places).reshape(-1, 2).T, s=size, color=OKABE_ITO[(3, 0, 6)[i % 3]],
                       marker="^o+"[i % 3], label=name, linewidths=0.8, alpha=0.8, zorder=4 - i % 3)
        for tip in arrows.values():
            ax.annotate("", [float(t) for t in tip], (0, 0), zorder=2, annotation_clip=False,
                        arrowprops={"arrowstyle": "-|>", "color": "black", "lw": 1.4, "shrinkA": 0, "shrinkB": 0})

    rows, circle = -(-len(panels) // 2), np.linspace(0, 2 * np.pi, 200)
    figure, grid = plt.subplots(rows, 2, figsize=(WIDTH, 0.6 + 2.8 * rows), sharex=True, sharey=True, squeeze=False)
    sets = {title: np.concatenate([np.asarray(x).reshape(-1, 2) for x in groups.values()])
            for title, (groups, _) in panels.items()}
    low = min(0.0, *(float(x.min()) for x in sets.values() if len(x))) - 0.1
    for ax, (title, (groups, arrows)) in zip(grid.flat, panels.items()):
        ax.plot(np.cos(circle), np.sin(circle), color="#808080", linewidth=1, linestyle="--")
        draw(ax, groups, arrows, 20)
        for name, tip in arrows.items():
            ax.text(*(1.12 * float(t) for t in tip), name, ha="center", va="center")
        ax.set(title=title, xlim=(low, 1.25), ylim=(low, 1.25), aspect="equal")
        ax.grid(True)
        ax.spines[["top", "right"]].set_visible(False)
        reach = float(np.abs(sets[title]).max()) if len(sets[title]) else 1.0
        if reach < 0.2:
            near = ax.inset_axes([0.42, 0.4, 0.58, 0.58])
            draw(near, groups, {k: [0.95 * reach * float(t) for t in tip] for k, tip in arrows.items()}, 12)
            ends = min(0.0, float(sets[title].min())) - 0.15 * reach, 1.15 * reach
            near.set(xlim=ends, ylim=ends, aspect="equal")
            near.tick_params(labelsize=8, length=2, pad=1)
            near.locator_params(nbins=3)
    for ax in grid.flat[len(panels):]:
        ax.axis("off")
    for ax in grid[-1]:
        ax.set_xlabel(axes[0])
    for ax in grid[:, 0]:
        ax.set_ylabel(axes[1])
    _legend(figure, *grid.flat[:len(panels)])
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
        ax.errorbar(x, part["mean"], yerr=part["half"], fmt="none", ecolor=ink["color"], capsize=3, elinewidth=1)
        ringed = part[setting] == (best or {}).get(line)
        ax.plot(x[ringed], part["mean"][ringed], markersize=13, zorder=4, **ring)
    if best and frame[by].isin(list(best)).any():
        ax.plot([], [], markersize=9, label="best in the paper", **ring)
    if not even:
        ax.set_xscale("log")
    ax.set_xticks(list(place.values()), [f"{x:g}" for x in values])
    ax.minorticks_off()
    low, high = ax.get_ylim()       # with few seeds an interval may reach beyond what is possible
    ax.set_ylim(max(low, 0), min(high, 100))
    ax.set(xlabel=setting, ylabel="accuracy (%)", title=names[0] if len(names) == 1 else "")
    ax.grid(True)
    ax.spines[["top", "right"]].set_visible(False)
    _legend(figure, ax)
    return figure


@styled
def lines(frame, x: str, y: str, by: str = "kind", panel: str | None = None, log: str = "", levels: dict | None = None):
    """One number against another, a line for each value of `by`; the columns `x` and `y` name the axes.

    panel: a small plot for each of its values, with a scale of its own in y. log: the axes that are logarithmic, "x",
    "y", "xy" or "". levels: name -> height of a dashed line across.
    """
    import matplotlib.pyplot as plt
    panels = list(frame[panel].unique()) if panel else [None]
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(WIDTH, 3.6 if rows == 1 else 0.5 + 2.4 * rows), squeeze=False)
    for ax in axes.flat[len(panels):]:
        ax.axis("off")
    for ax, name in zip(axes.flat, panels, strict=False):
        for line, part in (frame if name is None else frame[frame[panel] == name]).groupby(by, sort=False):
            part = part.sort_values(x)
            ax.plot(part[x], part[y], label=line, markevery=max(1, len(part) // 8), **look(line))
        for i, (text, height) in enumerate((levels or {}).items()):
            ax.axhline(height, color="black", linewidth=1, linestyle=DASHES[1 + i % 3], label=text)
        ax.set(xscale="log" if "x" in log else "linear", yscale="log" if "y" in log else "linear", title=name or "",
               xlabel=x)
        if "x" in log and frame[x].nunique() < 8:
            ax.set_xticks(sorted(frame[x].unique()), [f"{v:g}" for v in sorted(frame[x].unique())])
            ax.tick_params(axis="x", which="minor", bottom=False, labelbottom=False)
        ax.grid(True)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[:, 0]:
        ax.set_ylabel(y)
    _legend(figure, *axes.flat[:len(panels)], columns=3)
    return figure


@styled
def differences(frame, row: str = "row", by: str = "dataset", label: str = "difference (points)"):
    """Differences to a reference, the line at zero: a dot with its interval for each `row`, from top to bottom.

    frame: columns `row`, `by` (dots beside each other, in colours of their own), `mean` and `half` (half-width of the
    interval, or nan). A full dot says that the interval does not reach zero.
    """
    import matplotlib.pyplot as plt
    rows, groups = list(frame[row].unique()), list(frame[by].unique())
    apart = 0.7 / len(groups)
    figure, ax = plt.subplots(figsize=(WIDTH, 1.3 + len(rows) * max(0.34, 0.17 * len(groups))))
    ax.axvline(0, color="#808080", linewidth=1)
    for i, group in enumerate(groups):
        part, ink = frame[frame[by] == group], look(group)
        place = part[row].map(rows.index) + (i - (len(groups) - 1) / 2) * apart
        ax.errorbar(part["mean"], place, xerr=part["half"], linestyle="", capsize=3, elinewidth=1, color=ink["color"])
        full = part["mean"].abs() > part["half"]
        for kind, face in ((full, ink["color"]), (~full, "white")):
            ax.plot(part["mean"][kind], place[kind], linestyle="", marker=ink["marker"], color=ink["color"],
                    markerfacecolor=face, zorder=3)
        ax.plot([], [], linestyle="", marker=ink["marker"], color=ink["color"], label=group)
    ax.set_yticks(range(len(rows)), rows)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set(xlabel=label, title=groups[0] if len(groups) == 1 else "")
    ax.grid(True, axis="x")
    ax.spines[["top", "right"]].set_visible(False)
    _legend(figure, ax)
    return figure


@styled
def draws(frame, row: str = "row", by: str = "draw", panel: str = "dataset", label: str = "accuracy (%)", bar=None):
    """One dot for each `row` and each value of `by`, rows from top to bottom; a line joins the dots of one `by`.

    frame: columns `row`, `by`, `panel` (plots below each other, with a scale of their own) and `value`. Lines that do
    not cross say that the rows move together. bar: {name: {panel: length}}, a length from zero to compare with.
    """
    import matplotlib.pyplot as plt
    rows, panels, several = list(frame[row].unique()), list(frame[panel].unique()), list(frame[by].unique())
    height = len(panels) * (1.0 + 0.34 * (len(rows) + len(bar or ()))) + 0.5
    figure, axes = plt.subplots(len(panels), figsize=(WIDTH, height), squeeze=False)
    for ax, name in zip(axes[:, 0], panels, strict=True):
        part = frame[frame[panel] == name]
        for i, one in enumerate(several):
            line = part[part[by] == one].set_index(row)["value"].reindex(rows).dropna()
            ax.plot(line, [rows.index(r) for r in line.index], color=OKABE_ITO[i % len(OKABE_ITO)], linewidth=0.8,
                    marker=MARKERS[i % len(MARKERS)], label=str(one))
        lengths = {k: v[name] for k, v in (bar or {}).items() if name in v}
        ax.barh(range(len(rows), len(rows) + len(lengths)), lengths.values(), 0.4, color="#b0b0b0")
        ax.set_yticks(range(len(rows) + len(lengths)), [*rows, *lengths])
        ax.set_ylim(len(rows) + len(lengths) - 0.5, -0.5)
        ax.set_title(name)
        ax.grid(True, axis="x")
        ax.spines[["top", "right"]].set_visible(False)
    axes[-1, 0].set_xlabel(label)
    _legend(figure, *axes[:, 0], title=by, columns=5)
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
        ax.set_title(name)
        ax.set_yticks(range(len(rows)), rows)
        ax.set_ylim(len(rows) - 0.5, -0.5)
        ax.margins(x=0.1)
        ax.grid(True, axis="x")
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes.flat[:len(panels)][-columns:]:       # the lowest of each column
        ax.set_xlabel(label)
    for which, face in zip(names, ("white", "#4d4d4d"), strict=True):
        axes[0, 0].plot([], [], marker="o", linestyle="", color="#4d4d4d", markerfacecolor=face, label=which)
    if rings and "ring" in frame:
        axes[0, 0].plot([], [], marker="o", linestyle="", color="black", fillstyle="none", markersize=10, label=rings)
    _legend(figure, axes[0, 0])
    return figure
