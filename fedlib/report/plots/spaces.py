"""Features and nets as points: in a plane, by t-SNE, or as averages on their way."""
from fedlib.report.plots.looks import (
    DARK,
    DIM,
    LIGHT,
    LINE,
    MARKERS,
    OKABE_ITO,
    PALE,
    WIDTH,
    class_colours,
    colour,
    legend,
    look,
    styled,
)

MANY = 1000     # points of a figure that are drawn as a picture, since as shapes they would weigh too much


@styled
def tsne(features, labels, domains, classes=None, seed: int = 0, marks=None):
    """Features `(N, D)` on a plane by t-SNE, twice: coloured by domain and by class.

    labels: N class indices; domains: N domain names; classes: class names. Near points were near in `D` dimensions;
    distances between far groups and the sizes of groups mean nothing. marks: name -> points `(M, D)`, laid out with the
    features and drawn in black on both halves.
    """
    import matplotlib.pyplot as plt
    import numpy as np
    features, labels, domains = np.asarray(features), np.asarray(labels), np.asarray(domains)
    marks = {name: np.asarray(points) for name, points in (marks or {}).items()}
    every = np.concatenate([features, *marks.values()])
    places = laid_out(every, seed)
    ends = np.cumsum([len(features), *map(len, marks.values())])
    places, *spots = np.split(places, ends[:-1])
    names, inks = classes or [str(k) for k in range(labels.max() + 1)], class_colours(labels.max() + 1)
    figure, axes = plt.subplots(1, 2, figsize=(WIDTH, 3.9))
    many = len(features) > MANY
    for domain in dict.fromkeys(domains.tolist()):
        here, ink = domains == domain, look(domain)
        axes[0].scatter(*places[here].T, s=7, color=ink["color"], marker=ink["marker"], linewidths=0, label=domain,
                        rasterized=many)
    for k in np.unique(labels):
        axes[1].scatter(*places[labels == k].T, s=7, color=inks[k], linewidths=0, label=names[k], rasterized=many)
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


def laid_out(points, seed: int):
    """Points `(N, D)` in a plane by t-SNE, `(N, 2)`."""
    from sklearn.manifold import TSNE
    return TSNE(perplexity=min(30, (len(points) - 1) / 3), init="pca", random_state=seed).fit_transform(points)


@styled
def tsnes(panels: dict, classes=None, seed: int = 0, columns: int = 2):
    """Several sets of features by t-SNE beside each other: the colour is the class, the marker the domain.

    panels: title -> (features `(N, D)`, N class indices, N domain names); classes: class names, once in the legend.
    """
    import matplotlib.pyplot as plt
    import numpy as np
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(WIDTH, 0.5 + 2.7 * rows), squeeze=False)
    many = sum(len(labels) for _, labels, _ in panels.values()) > MANY
    for ax in axes.flat[len(panels):]:
        ax.axis("off")
    for ax, (title, found) in zip(axes.flat, panels.items(), strict=False):
        features, labels, domains = map(np.asarray, found)
        places, inks = laid_out(features, seed), np.array(class_colours(labels.max() + 1))
        for domain in dict.fromkeys(domains.tolist()):
            here, marker = domains == domain, look(domain)["marker"]
            ax.scatter(*places[here].T, s=8, c=inks[labels[here]], marker=marker, linewidths=0,
                       rasterized=many)
            ax.plot([], [], linestyle="", marker=marker, color=DIM, label=domain)
        for k in np.unique(labels):
            ax.plot([], [], linestyle="", marker="o", color=inks[k], label=classes[k] if classes else str(k))
        ax.set(xticks=[], yticks=[], title=title)
    legend(figure, *axes.flat[:len(panels)], columns=7)
    return figure


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
                color=ink["color"] if labels is None else DIM)
    for name, here in groups.items():
        at = [np.median(places[here], axis=0)] if several else places[here]
        for x, y in at:
            ax.text(x, y, name, color=inks[here][0], size=15 if several else 12, weight="bold", ha="center",
                    va="center", path_effects=[withStroke(linewidth=2, foreground="white")])
    for i, j, between in mixed:
        ax.plot(*places[[i, j]].T, color=LINE, linewidth=1.2, zorder=0.9)
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
    legend(figure, ax, columns=3 if marks else 4)
    return figure


@styled
def chosen(cloud, panels: dict):
    """Points `(N, D)` in grey on the plane of their two main directions, a small plot for each choice of them.

    panels: title -> points `(M, D)`, drawn as crosses; their number stands behind the title.
    """
    import matplotlib.pyplot as plt
    import numpy as np
    from sklearn.decomposition import PCA
    shadow = PCA(2, random_state=0).fit(np.asarray(cloud))
    figure, axes = plt.subplots(1, len(panels), figsize=(WIDTH, 2.5), sharex=True, sharey=True, squeeze=False)
    for ax, (title, points) in zip(axes[0], panels.items(), strict=True):
        ax.scatter(*shadow.transform(np.asarray(cloud)).T, s=5, color=PALE, linewidths=0)
        ax.scatter(*shadow.transform(np.asarray(points)).T, s=40, marker="X", color=OKABE_ITO[0], edgecolors="white",
                   linewidths=0.5)
        ax.set(title=f"{title}: {len(points)}", xticks=[], yticks=[])
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
        ax.plot(np.cos(circle), np.sin(circle), color=LINE, linewidth=1, linestyle="--")
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
    legend(figure, *grid.flat[:len(panels)])
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
    legend(figure, ax, columns=3)
    return figure


@styled
def ways(panels: dict, loss, best: dict, optimum, columns: int = 2, height: float = 1.75, points: dict | None = None,
         window: tuple = ((-3, 2), (-1.4, 1.4))):
    """Ways of clients in the plane of two weights, a small map for each panel; grey lines are heights of the loss.

    panels: title -> [(w before `(2,)`, {client: its way `(T, 2)`}, w after `(2,)`)], one for each round shown. loss:
    of places `(..., 2)`; best: client -> lowest point of its own loss; optimum: that of `loss`. points: name -> places
    `(N, 2)`, a chain of dots in every panel. window: the limits of both axes.
    """
    import matplotlib.pyplot as plt
    import numpy as np
    import torch
    rows = -(-len(panels) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(WIDTH, 0.75 + height * rows), sharex=True, sharey=True,
                                squeeze=False)
    across, up = np.meshgrid(np.linspace(*window[0], 120), np.linspace(*window[1], 80))
    heights = loss(torch.tensor(np.stack([across, up], -1)))
    inks = {name: (OKABE_ITO[(0, 3, 2, 1)[i % 4]], "sD^v"[i % 4]) for i, name in enumerate(best)}
    for ax, (title, rounds) in zip(axes.flat, panels.items(), strict=False):
        ax.contour(across, up, heights, levels=float(loss(optimum)) + np.geomspace(0.005, 1.2, 9), colors=PALE,
                   linewidths=0.8)
        for name, (ink, marker) in inks.items():
            ax.plot(*best[name], marker=marker, color=ink, markersize=8, markerfacecolor="white", linestyle="",
                    label=f"best for {name}")
        ax.plot(*optimum, "P", color=OKABE_ITO[2], markersize=9, linestyle="", label="best for both")
        for before, moved, after in rounds:
            for name, way in moved.items():
                ax.plot(*torch.cat([before[None], way]).T, color=inks[name][0], linewidth=1.5)
                ax.plot(*way[-1], color=inks[name][0], marker=inks[name][1], markersize=4)
            ax.plot(*before, "o", color="black", markersize=4, label="w before")
            ax.plot(*after, "*", color="black", markersize=9, linestyle="", label="average")
        for name, places in (points or {}).items():
            ax.plot(*places.T, ".-", color="black", label=name, linewidth=1)
        ax.set(title=title, xlim=window[0], ylim=window[1])
    for ax in axes[-1]:
        ax.set_xlabel("$w_1$")
    for ax in axes[:, 0]:
        ax.set_ylabel("$w_2$")
    legend(figure, axes.flat[0], columns=3)
    return figure


@styled
def prototypes(panels: dict, classes: int = 5):
    """Features in a plane (small marks) and their class means (large, with the class on it); domains have markers.

    panels: title -> [(features `(N, 2)`, labels `(N,)`, prototypes `(C, 2)`, domain)].
    """
    import matplotlib.pyplot as plt
    from matplotlib.patheffects import withStroke
    figure, axes = plt.subplots(1, len(panels), figsize=(WIDTH, 3.6), squeeze=False)
    inks, rim = class_colours(classes), [withStroke(linewidth=1.5, foreground=DARK)]
    for ax, (title, groups) in zip(axes[0], panels.items(), strict=True):
        for points, labels, protos, domain in groups:
            marker = look(domain)["marker"]
            for k in range(classes):
                ax.scatter(*points[labels == k].T, s=9, color=inks[k], marker=marker, alpha=0.35, linewidths=0)
                ax.scatter(*protos[k], s=150, color=inks[k], marker=marker, edgecolors="black", linewidths=0.8,
                           zorder=3)
                ax.text(*protos[k], str(k), weight="bold", size=8, color=LIGHT, zorder=4, ha="center", va="center",
                        path_effects=rim)
            ax.plot([], [], linestyle="", marker=marker, color=DIM, label=domain)
        ax.set(title=title, xlabel="feature 1", xticks=[], yticks=[])
    axes[0, 0].set_ylabel("feature 2")
    legend(figure, axes[0, 0])
    return figure


@styled
def maps(losses: dict, protos, own: int):
    """What a loss says of every place of a plane (light: little), a map for each loss, with the classes' prototypes.

    losses: title -> a function of one feature `(1, 2)`; protos `(C, 2)`; own: the class that has a dark rim.
    """
    import matplotlib.pyplot as plt
    import numpy as np
    import torch
    side = 1.3 * float(protos.abs().max())
    x, y = np.meshgrid(np.linspace(-side, side, 90), np.linspace(-side, side, 90))
    places = torch.tensor(np.stack([x, y], -1).reshape(-1, 1, 2), dtype=torch.float32)
    figure, axes = plt.subplots(1, len(losses), figsize=(WIDTH, 3.2), sharex=True, sharey=True)
    for ax, (title, loss) in zip(axes, losses.items(), strict=True):
        ax.contourf(x, y, np.reshape([float(loss(z)) for z in places], x.shape), levels=14, cmap="YlGnBu")
        for k, place in enumerate(protos):
            rim = DARK if k == own else "#b8b8b8"        # on a map, whose colours are the same on a dark page
            ax.text(*place, str(k), ha="center", va="center", weight="bold", size=13 if k == own else 11,
                    color=DARK, bbox={"boxstyle": "circle", "facecolor": LIGHT, "edgecolor": rim})
        ax.plot(0, 0, "+", color=DARK)
        ax.set(title=title, xlabel="feature 1", xticks=[], yticks=[], aspect="equal")
    axes[0].set_ylabel("feature 2")
    return figure


@styled
def contest(moments: dict, classes, sides=("left site", "right site"), kinds=("lower class", "upper class")):
    """Two sites in a plane against a net that tells them apart, at several moments beside each other.

    moments: title -> (net, places `(2, N, 2)` of both sites' samples, ways `(2, 2)`): the ground says with which
    probability the net takes a place for the first site's, arrows say where each site goes. classes `(2, N)`: 0 or 1.
    """
    import matplotlib.pyplot as plt
    import torch
    import torch.nn.functional as F
    figure, axes = plt.subplots(1, len(moments), figsize=(WIDTH, 2.7), sharex=True, sharey=True, squeeze=False)
    reach = torch.linspace(-3, 3, 31)
    ground = torch.stack(torch.meshgrid(reach, reach, indexing="xy"), -1).flatten(0, 1)
    for ax, (title, (net, places, ways)) in zip(axes[0], moments.items(), strict=True):
        with torch.no_grad():
            first = net(ground).softmax(1)[:, 0].view(len(reach), -1)
        ax.contourf(reach, reach, first, levels=torch.linspace(0, 1, 9), cmap="RdBu", alpha=0.35)
        for k, (ink, side) in enumerate(zip((OKABE_ITO[0], OKABE_ITO[3]), sides, strict=True)):
            for c, (marker, kind) in enumerate(zip("o^", kinds, strict=True)):
                ax.scatter(*places[k][classes[k] == c][:60].T, s=9, color=ink, marker=marker, linewidths=0,
                           label=f"{side}, {kind}")
            middle = places[k].mean(0)
            ax.annotate("", middle + F.normalize(ways[k], dim=0), middle,
                        arrowprops={"arrowstyle": "-|>", "color": "black", "lw": 1.8})
        ax.set(title=title, xticks=[], yticks=[], aspect="equal")
    legend(figure, axes[0, 0], columns=2)
    return figure


@styled
def rays(panels: dict, name: str = "E"):
    """Vectors from one point, in the plane or in space, each with its number at its end.

    panels: title -> vectors `(n, 2)` or `(n, 3)`; name: what they are called.
    """
    import matplotlib.pyplot as plt
    figure = plt.figure(figsize=(WIDTH, 2.9))
    for i, (title, vectors) in enumerate(panels.items()):
        solid = vectors.shape[1] == 3
        ax = figure.add_subplot(1, len(panels), i + 1, projection="3d" if solid else None)
        for k, v in enumerate(vectors):
            ax.plot(*zip([0] * len(v), v, strict=True), color=OKABE_ITO[k], marker=MARKERS[k], markevery=[1])
            ax.text(*(1.25 * v), f"${name}_{k + 1}$", ha="center", va="center")
        ax.set(title=title, aspect="equal")
        ax.tick_params(labelleft=False, labelbottom=False)
        ax.margins(0.25)
        if solid:
            ax.set_zticklabels([])
    return figure


@styled
def planes(panels: dict, domains, labels, unnamed=()):
    """Sets of points beside each other, each on the plane of its two main directions (PCA); a domain has its marker.

    panels: title -> points `(N, D)`; domains, labels: N names. A label is written amid its points, but for the panels
    in `unnamed`.
    """
    import matplotlib.pyplot as plt
    import numpy as np
    from sklearn.decomposition import PCA
    domains, labels = np.asarray(domains), np.asarray(labels)
    figure, axes = plt.subplots(1, len(panels), figsize=(WIDTH, 2.6), squeeze=False)
    for ax, (title, points) in zip(axes[0], panels.items(), strict=True):
        places = PCA(2, random_state=0).fit_transform(np.asarray(points))
        for name in dict.fromkeys(domains.tolist()):
            ax.scatter(*places[domains == name].T, s=26, marker=look(name)["marker"], color=colour(name), alpha=0.8,
                       linewidths=0, label=name)
        for name in dict.fromkeys(labels.tolist() if title not in unnamed else ()):
            ax.text(*places[labels == name].mean(0), name, ha="center", va="center", fontsize=9)
        ax.set(title=title, xticks=[], yticks=[])
    legend(figure, axes[0, 0])
    return figure
