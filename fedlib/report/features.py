"""Features of nets on test images, as they were kept beside records: pictures, and how far groups lie apart.

kept: {(block, row, seed): (z, y, domains)}; z `(N, D)`: features, y `(N,)`: labels, domains: N names.
"""
import numpy as np
import pandas as pd
from IPython.display import Markdown, display

from fedlib.probes import embeddings
from fedlib.report import plots, text

EMPTY = "No features in this profile yet."


def collected(page) -> dict[tuple, tuple]:
    """What was kept beside the records of a page, in the profiles that it shows."""
    return {(p.block, p.row, p.seed): embeddings.read(p.run, p.features, page.results) for p, _ in page.found
            if p.done(page.results)}


def beside(page, kept: dict):
    """For each block the t-SNE pictures of its rows beside each other, of the first seed."""
    for block in dict.fromkeys(b for b, _, _ in kept):
        seed = min(s for b, _, s in kept if b == block)
        text.titled(f"{page.titles[block]}, profile {page.blocks[block]}, seed {seed}",
                    plots.tsnes({row: found for (b, row, s), found in kept.items() if (b, s) == (block, seed)}))
    if not kept:
        display(Markdown(EMPTY))


def pictures(page, kept: dict, draw=plots.tsne, **how):
    """A picture of the first seed of each block and row: what draw(z, y, domains, ...) gives."""
    for block, row, seed in kept:
        if seed == min(s for b, _, s in kept if b == block):
            text.titled(f"{page.titles[block]}, {row}, profile {page.blocks[block]}, seed {seed}",
                        draw(*kept[block, row, seed], **how))
    if not kept:
        display(Markdown(EMPTY))


def silhouette(z, groups) -> float:
    """The mean silhouette of points `(N, D)` in groups, by cosine distance: 1 apart, 0 mixed, below 0 among others.

    nan where there is one group alone, or each point is one.
    """
    from sklearn.metrics import silhouette_score  # slow to import
    groups = list(groups)
    return float(silhouette_score(z, groups, metric="cosine")) if 1 < len(set(groups)) < len(groups) else float("nan")


def silhouettes(page, kept: dict) -> pd.DataFrame:
    """A line for each run: dataset, method, seed, images, and the silhouettes by class, by class inside a domain (the
    mean over domains) and by domain.
    """
    lines = []
    for (block, row, seed), (z, y, domains) in kept.items():
        z, y, domains = z.numpy(), y.numpy(), np.array(domains)
        inside = [silhouette(z[domains == d], y[domains == d]) for d in dict.fromkeys(domains)]
        lines.append((page.titles[block], row, seed, len(y), silhouette(z, y), sum(inside) / len(inside),
                      silhouette(z, domains)))
    return pd.DataFrame(lines, columns=["dataset", "method", "seed", "images", "by class", "by class, in a domain",
                                        "by domain"])
