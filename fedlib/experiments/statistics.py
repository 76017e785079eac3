"""What numbers allow to say: intervals, paired tests, power, and methods over many datasets."""
import functools
import math

import numpy as np
import pandas as pd

LEVEL = 0.95
POWER = 0.80
SAME = 1e-3         # points: what the rounding of records leaves of no difference
MOST = 1000         # seeds; beyond it a difference is out of reach


# one sample

def interval(sample, level: float = LEVEL) -> tuple[float, float]:
    """(mean, half width of its t-interval): mean ± t_{n-1} s / sqrt(n); the half is nan for fewer than two values."""
    sample = np.asarray(sample, dtype=float)
    if len(sample) < 2:
        return float(sample[0]) if len(sample) else float("nan"), float("nan")
    return float(sample.mean()), float(_t((1 + level) / 2, len(sample) - 1) * sample.std(ddof=1) / len(sample) ** 0.5)


@functools.cache
def _t(p: float, df: int) -> float:
    from scipy import stats  # slow to import, and a run does not need it
    return float(stats.t.ppf(p, df))


def p_value(sample) -> float:
    """Student's t-test of mean 0, two-sided; 1 where nothing varies, nan for fewer than two values.

    Test images are counted, so three seeds give one difference easily; that says nothing of the fourth.
    """
    from scipy import stats
    sample = np.asarray(sample, dtype=float)
    if len(sample) < 2:
        return float("nan")
    if np.ptp(sample) < SAME:
        return 1.0
    t = sample.mean() / (sample.std(ddof=1) / len(sample) ** 0.5)
    return float(2 * stats.t.sf(abs(t), len(sample) - 1))


def holm(ps: list[float]) -> list[float]:
    """Holm's adjusted p-values: max over the smaller ones of (m - rank) p, at most 1; nan stays and does not count."""
    order = sorted((p, i) for i, p in enumerate(ps) if p == p)
    adjusted, highest = [float("nan")] * len(ps), 0.0
    for rank, (p, i) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        adjusted[i] = highest
    return adjusted


def welch(first: float, second: float, n: int) -> float:
    """Half of the 95 % interval of the difference of two means of n runs each, from their standard deviations (Welch).

    For runs that are no pairs; nan where a deviation is.
    """
    from scipy import stats
    parts = first ** 2 / n, second ** 2 / n
    freedom = sum(parts) ** 2 / sum(part ** 2 / (n - 1) for part in parts)
    return float(stats.t.ppf((1 + LEVEL) / 2, freedom) * sum(parts) ** 0.5)


# power of a paired comparison

def power(effect: float, sd: float, n: int, level: float = LEVEL) -> float:
    """Chance that the two-sided t-test at 1 - level of n differences with mean `effect`, deviation `sd` finds it."""
    from scipy import stats
    if n < 2:
        return 0.0
    if sd == 0:
        return float(effect != 0)
    bound, shift = _t((1 + level) / 2, n - 1), abs(effect) / sd * n ** 0.5
    other = stats.nct.cdf(-bound, n - 1, shift)         # scipy has nan in places, where this is below 1e-10
    return float(stats.nct.sf(bound, n - 1, shift) + np.nan_to_num(other))


def seeds_needed(effect: float, sd: float) -> int:
    """The least number of seeds that finds a difference at 80 % power; 0: none up to MOST."""
    if not effect or math.isnan(sd) or math.isnan(effect):
        return 0
    low, high = 2, 2
    while power(effect, sd, high) < POWER:
        if high == MOST:
            return 0
        low, high = high, min(2 * high, MOST)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if power(effect, sd, middle) >= POWER else (middle + 1, high)
    return high


def least_difference(sd: float, n: int, level: float = LEVEL) -> float:
    """The least mean difference that n seeds or sets find at 80 % power, in the units of sd; nan for fewer than two."""
    if n < 2 or math.isnan(sd):
        return float("nan")
    low, high = 0.0, 1.0
    while power(high, 1.0, n, level) < POWER:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if power(middle, 1.0, n, level) >= POWER else (middle, high)
    return high * sd


# many methods on many datasets: a dataset counts once, its seeds are averaged first

def against(scores: pd.DataFrame, control: str) -> pd.DataFrame:
    """Each method (column) minus the control over the datasets (rows): mean, half of the 95 % interval, n, p, holm.

    Missing scores leave their dataset out of that comparison.
    """
    lines = {}
    for name in scores.columns.drop(control):
        gap = (scores[name] - scores[control]).dropna()
        lines[name] = dict(zip(("mean", "half"), interval(gap), strict=True)) | {"n": len(gap), "p": p_value(gap)}
    frame = pd.DataFrame(lines).T.astype({"n": int}) if lines else pd.DataFrame(columns=["mean", "half", "n", "p"])
    return frame.assign(holm=holm(list(frame.p)))


def interquartile_mean(scores: pd.DataFrame) -> pd.Series:
    """Of each method (column): the mean of the middle half of its scores, those of all datasets and seeds together."""
    from scipy import stats
    return scores.apply(lambda s: float(stats.trim_mean(s.dropna(), 0.25)) if s.notna().any() else float("nan"))


def profiles(scores: pd.DataFrame, levels) -> pd.DataFrame:
    """Of each method (column): the share of its scores that are above each level (a performance profile)."""
    return pd.DataFrame({level: (scores > level).sum() / scores.notna().sum() for level in levels}).T
