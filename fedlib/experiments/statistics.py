"""Many methods on many problems: ranks, Friedman's test, and how far apart mean ranks must be (Demšar, JMLR 2006)."""
import pandas as pd

from fedlib.core.errors import UserError


def ranks(scores: pd.DataFrame) -> pd.DataFrame:
    """The rank of each method (column) in each problem (row): 1 is the highest score, equal ones share their mean.

    A missing score has the last rank: a run that diverged has no accuracy.
    """
    return scores.rank(axis=1, ascending=False, na_option="bottom")


def critical_difference(methods: int, problems: int, alpha: float = 0.05) -> float:
    """CD = q_alpha sqrt(k (k + 1) / (6 N)): mean ranks of k methods on N problems that differ by more are different.

    q_alpha: the studentized range of k groups over sqrt(2) (Nemenyi's test; Demšar, JMLR 2006, equation 6 and table 5).
    UserError: fewer than two methods, or no problem.
    """
    if methods < 2 or problems < 1:
        raise UserError(f"a critical difference needs two methods and a problem, not {methods} and {problems}")
    from scipy import stats  # slow to import
    q = stats.studentized_range.ppf(1 - alpha, methods, float("inf")) / 2 ** 0.5
    return float(q * (methods * (methods + 1) / (6 * problems)) ** 0.5)


def friedman(ranked: pd.DataFrame) -> tuple[float, float]:
    """(chi-square, p): could all methods be equal? Friedman's test on ranks, corrected for equal ones.

    UserError: fewer than three methods or two problems.
    """
    if ranked.shape[1] < 3 or len(ranked) < 2:
        problems, methods = ranked.shape
        raise UserError(f"Friedman's test needs three methods and two problems, not {methods} and {problems}")
    from scipy import stats
    statistic, p = stats.friedmanchisquare(*(ranked[m] for m in ranked))
    return float(statistic), float(p)


def interval(sample) -> tuple[float, float]:
    """(mean, half width of the 95 % t-interval); the half width is nan for fewer than two values."""
    from scipy import stats  # slow to import, and a run does not need it

    sample = pd.Series(sample, dtype=float)
    half = stats.t.ppf(0.975, len(sample) - 1) * sample.std() / len(sample) ** 0.5 if len(sample) > 1 else float("nan")
    return sample.mean(), half


def welch(first: float, second: float, n: int) -> float:
    """Half of the 95 % interval of the difference of two means of n runs each, from their standard deviations (Welch).

    For runs that are no pairs; nan where a deviation is.
    """
    from scipy import stats
    parts = first ** 2 / n, second ** 2 / n
    freedom = sum(parts) ** 2 / sum(part ** 2 / (n - 1) for part in parts)
    return float(stats.t.ppf(0.975, freedom) * sum(parts) ** 0.5)
