"""Texts beside images, as methods that learn prompts leave them: margins of images, distances between texts.

kept: {(block, method, seed): (z, y, domains, texts)}; z `(N, D)`: images' features of length 1, y `(N,)`: their labels,
domains: N names, texts: domain -> features of the classes' texts `(C, D)`, of length 1 too.
"""
import numpy as np
import pandas as pd
import torch
from torch.nn.functional import normalize

from fedlib.probes import embeddings


def collected(page) -> dict[tuple, tuple]:
    """What was kept beside the records of a page, in the profiles that it shows."""
    made = {}
    for planned, _ in page.found:
        if planned.done(page.results):
            z, y, domains = embeddings.read(planned.run, planned.features, page.results)
            texts = embeddings.texts(planned.run, planned.features, page.results)
            made[planned.block, planned.row, planned.seed] = (normalize(z), y, np.array(domains),
                                                              {d: normalize(t) for d, t in texts.items()})
    return made


def margins(kept: dict) -> pd.DataFrame:
    """Means over the images of each run and domain: own, other, margin, right (%).

    own: the cosine of an image and the text of its class; other: that of the nearest other text; margin: own - other;
    right: the share of images with a margin above 0.
    """
    lines = []
    for key, (z, y, domains, texts) in kept.items():
        for domain, t in texts.items():
            here = domains == domain
            cosines, label = z[here] @ t.T, y[here][:, None]
            own, other = cosines.gather(1, label)[:, 0], cosines.scatter(1, label, -2.0).max(1).values
            lines.append((*key, domain, *(float(v.mean()) for v in (own, other, own - other)),
                          100 * float((own > other).float().mean())))
    return pd.DataFrame(lines, columns=["block", "method", "seed", "domain", "own", "other", "margin", "right"])


def gain(margins: pd.DataFrame, method: str, other: str) -> pd.DataFrame:
    """Method minus other, means over the domains: a line for each block and seed, a column for each measure."""
    by = margins.groupby(["method", "block", "seed"])[["own", "other", "margin", "right"]].mean()
    return (by.loc[method] - by.loc[other]).dropna() if {method, other} <= set(margins.method) else by.iloc[:0]


def spread(vectors: torch.Tensor) -> tuple[float, float]:
    """Mean cosine distances of `(K, C, D)`, K domains: (same class in two domains, two classes in one domain)."""
    v = normalize(vectors, dim=-1)
    domains, classes = v.shape[:2]
    cos = torch.einsum("kcd,lmd->kclm", v, v)
    k, c = torch.arange(domains), torch.arange(classes)
    same_class = cos[:, c, :, c].permute(1, 2, 0)[~torch.eye(domains, dtype=bool)]
    same_domain = cos[k, :, k, :][:, ~torch.eye(classes, dtype=bool)]
    return 1 - float(same_class.mean()), 1 - float(same_domain.mean())


def spreads(kept: dict) -> pd.DataFrame:
    """`spread` of each run's texts, and of the class means of its images: a line for each of the two."""
    lines = []
    for key, (z, y, domains, texts) in kept.items():
        means = torch.stack([torch.stack([z[(domains == d) & (y == c).numpy()].mean(0) for c in y.unique()])
                             for d in texts])
        for what, vectors in (("texts", torch.stack(list(texts.values()))), ("images' means", means)):
            lines.append((*key, what, *spread(vectors)))
    return pd.DataFrame(lines, columns=["block", "method", "seed", "vectors", "same class, other domain",
                                        "same domain, other class"])
