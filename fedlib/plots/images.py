"""Images, and who holds how many."""
from fedlib.plots.looks import WIDTH, class_colours, legend, styled


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
