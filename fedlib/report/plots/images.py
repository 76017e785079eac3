"""Images, who holds how many, and what travels in a round."""
from fedlib.report.plots.looks import DARK, OKABE_ITO, WIDTH, class_colours, colour, legend, styled


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
        legend(figure, ax, title=counts.columns.name, columns=10 if max(map(len, map(str, counts.columns))) < 3 else 4)
    return figure


@styled
def exchange(messages: dict, server: str = "server", stays: str = "samples\nstate"):
    """A round over machines: the server above its nodes, bytes down and up beside the arrows.

    messages: domain -> (bytes down, bytes up); server, stays: what is written in the server's box, and in each node's.
    """
    import matplotlib.pyplot as plt
    figure, ax = plt.subplots(figsize=(WIDTH, 2.8))
    box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": "black"}
    ax.plot([-0.4, len(messages) - 0.6], [1, 1], color="black", lw=1.2)
    ax.text((len(messages) - 1) / 2, 1.06, server, ha="center", va="bottom")
    for at, (domain, sizes) in enumerate(messages.items()):
        ax.text(at, 0, f"{domain}\n{stays}", ha="center", va="top", bbox=box)
        for size, side, ink in zip(sizes, (-0.06, 0.06), (OKABE_ITO[0], OKABE_ITO[3]), strict=True):
            ends = ((at + side, 0.08), (at + side, 0.97))[::1 if side < 0 else -1]
            ax.annotate("", *ends, arrowprops={"arrowstyle": "-|>", "color": ink, "lw": 1.5})
            ax.text(at + 1.7 * side, 0.5, f"{size / 1000:,.1f} kB {'down' if side < 0 else 'up'}", color=ink,
                    rotation=90, ha="right" if side < 0 else "left", va="center")
    ax.set(xlim=(-0.6, len(messages) - 0.4), ylim=(-0.5, 1.15))
    ax.axis("off")
    return figure


@styled
def words(frame, inks: dict):
    """A word in each box of a table, with the colour that it has in `inks`. frame: rows and columns are named."""
    import matplotlib.pyplot as plt
    figure, ax = plt.subplots(figsize=(WIDTH, 0.8 + 0.36 * len(frame)))
    for i, row in enumerate(frame.to_numpy()):
        for j, word in enumerate(row):
            ax.barh(i, 0.94, 0.86, left=j + 0.03, color=inks[word])
            ax.text(j + 0.5, i, word, ha="center", va="center", size=9, color=DARK)
    ax.set_yticks(range(len(frame)), frame.index)
    ax.set_xticks([j + 0.5 for j in range(frame.shape[1])], frame.columns)
    ax.set(xlim=(0, frame.shape[1]), ylim=(len(frame) - 0.5, -0.5))
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return figure


@styled
def shares(panels: dict, label: str = "class"):
    """Who holds which classes: the area of a dot is the share of a class in a client's samples.

    panels: title -> DataFrame of counts, rows clients ("0 photo": the domain gives the colour), columns classes.
    """
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(1, len(panels), figsize=(WIDTH, 3.4), sharey=True, squeeze=False)
    for ax, (title, frame) in zip(axes[0], panels.items(), strict=True):
        for i, (client, counts) in enumerate(frame.iterrows()):
            ax.scatter(range(len(counts)), [i] * len(counts), 250 * counts / counts.sum(),
                       color=colour(client.split(" ", 1)[-1]), edgecolor="black", linewidth=0.4)
        ax.set(title=title, xlabel=label, xlim=(-0.7, frame.shape[1] - 0.3), ylim=(len(frame) - 0.4, -0.6))
        ax.set_xticks(range(frame.shape[1]), frame.columns)
        ax.set_yticks(range(len(frame)), frame.index)
    return figure


@styled
def boxes(parts):
    """A row of boxes, one for each vector of a sequence: [(word in it, how many, below the group, colour, hatch)]."""
    import matplotlib.pyplot as plt
    figure, ax = plt.subplots(figsize=(WIDTH, 1.4))
    place = 0
    for word, count, below, ink, hatch in parts:
        for i in range(place, place + count):
            ax.add_patch(plt.Rectangle((i + 0.05, 0), 0.9, 1, facecolor=ink, edgecolor="black", hatch=hatch,
                                       alpha=0.45))
            ax.text(i + 0.5, 0.5, word, ha="center", va="center", fontsize=9,
                    bbox={"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8})
        ax.text(place + count / 2, -0.2, below, ha="center", va="top", linespacing=1.4)
        place += count
    ax.set(xlim=(0, place), ylim=(-1.4, 1.05))
    ax.axis("off")
    return figure
