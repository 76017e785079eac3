"""Do a paper's printed numbers add up? Means against their parts, accuracies against whole numbers of images.

Frames of printed numbers are those of `Page.printed`: a line for each dataset and method, a column for each domain and
one, "avg", for their mean; in percent.
"""
import pandas as pd

from fedlib.experiments import tables

ROUNDED, CUT = 0.0051, 0.0101       # how far two printed digits may be off: rounded, and cut off instead


def means(printed: pd.DataFrame) -> pd.DataFrame:
    """The printed mean and that of the domains' numbers, of lines that have both: printed, mean."""
    return pd.DataFrame({"printed": printed.avg, "mean": printed.drop(columns="avg").mean(axis=1)}).dropna()


def wrong_means(printed: pd.DataFrame, slack: float = ROUNDED) -> pd.DataFrame:
    """Of `means` the lines whose two numbers are apart."""
    both = means(printed)
    return both[(both.printed - both["mean"]).abs() > slack]


def nearest(value: float, n: int) -> float:
    """100 k / n, the accuracy (%) on n images that is nearest to the value."""
    return 100 * round(value * n / 100) / n


def counts(printed: pd.DataFrame, sizes: dict) -> pd.DataFrame:
    """Each printed accuracy beside the nearest k / n: dataset, domain, method, printed, n, nearest, apart.

    sizes: {dataset: {domain: test images}}; numbers of other datasets are left out.
    """
    lines = [(dataset, domain, method, value, n, near := nearest(value, n), abs(near - value))
             for dataset, of in sizes.items() for domain, n in of.items()
             for method, value in printed.loc[dataset][domain].dropna().items()]
    return pd.DataFrame(lines, columns=["dataset", "domain", "method", "printed", "n", "nearest", "apart"])


def fitting(values, sizes) -> list[int]:
    """The numbers of images among `sizes` for which every one of the accuracies is a k / n, rounded."""
    return [n for n in sizes if all(abs(nearest(v, n) - v) <= ROUNDED for v in values)]


def fits(value: float, n: int, slack: float = ROUNDED) -> bool:
    """May a printed accuracy (%) be a k / n? slack: how far apart the two may be."""
    return abs(nearest(value, n) - value) < slack


def chance(n: int, low: float, high: float, digits: int = 2, slack: float = ROUNDED) -> float:
    """The share of all numbers with so many digits in [low, high) that may be a k / n: what `fits` says by chance."""
    unit = 10 ** digits
    every = range(round(low * unit), round(high * unit))
    return sum(fits(v / unit, n, slack) for v in every) / len(every)


def of_paper(paper: str, metric: str = "accuracy") -> pd.DataFrame:
    """All that a paper's tables print of a metric, in its order: a line for each table, dataset and method."""
    every = pd.read_csv(tables.PAPERS / f"{paper}.csv")
    part = every[every.metric == metric]
    wide = part.pivot(index=["table", "dataset", "method"], columns="setting", values="value")
    order = part[["table", "dataset", "method"]].drop_duplicates()
    return wide.loc[list(order.itertuples(index=False, name=None)), list(part.setting.unique())]
