"""The privacy budget of noisy prototypes: as MPFT prints it (arXiv:2410.07738, appendix H), and exactly.

A client sends the mean of each class's features plus N(0, sigma^2) in every dimension, sigma = q s. Two points decide
what an epsilon says:

    The classical formula sigma = sqrt(2 ln(1.25/delta)) Delta / epsilon is proved for 0 < epsilon < 1 only (Dwork and
    Roth, 2014, theorem A.1). MPFT's Table 7 reads it backwards, for printed means from 1.10 up to 65. With delta = 1/n
    it stays on the safe side up to an epsilon of 6 to 8; above, the true epsilon is larger: of a class of 280 it is
    19.3 where the formula gives 14.4, and 459 where it gives 95. `epsilon` computes it.

    MPFT takes Delta from the distances of a client's own samples. That is no sensitivity of differential privacy:
    the neighbouring data may hold any sample in place of one, nearer or farther, and a Delta read off the data says
    something about them itself. `sensitivity_bound` is one, for features clipped to a norm.

And delta = 1/n is generous: to publish one sample drawn at random, as it is, is (0, 1/n)-private.
"""
import json
import math
from pathlib import Path

import pandas as pd
import torch
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtri
from torch import Tensor

from fedlib.core.errors import UserError
from fedlib.engine import records
from fedlib.engine.loop import train_beside
from fedlib.engine.run import Run

CHUNK = 512         # rows whose distances to all others are held at once


# sensitivity

def sensitivity(features: Tensor) -> float:
    """MPFT's Delta = max_{p,q} |d_p - d_q|_2 / n of a class mean: one sample replaced by another of the same data.

    features `(n, D)`: the samples of one class of one client. Data-dependent, hence no sensitivity of differential
    privacy (see above). It is 0 where n = 1, although such a class sends its sample itself. For clusters MPFT applies
    it to each cluster; that a replaced sample can move other samples between clusters is left out.
    """
    return diameter(features) / len(features)


def diameter(features: Tensor) -> float:
    """max_{p,q} |d_p - d_q|_2 of `(n, D)`: as `sensitivity`, of a sample that is sent as it is (random sampling).

    There is no mean, so no 1/n. That only a share r of the samples is drawn, in secret, lowers epsilon to
    log(1 + r (e^epsilon - 1)): where epsilon is large, by log(1/r) only (Balle et al., 2018, arXiv:1807.01647).
    """
    if features.dim() != 2 or not len(features):
        raise UserError(f"features of shape {tuple(features.shape)} are not (n, D) with at least one row")
    z = features.double()
    z = z - z.mean(0)       # distances stay, and lose no digits to a mean far from zero
    return max(float(torch.cdist(part, z[i * CHUNK:]).max()) for i, part in enumerate(z.split(CHUNK)))


def sensitivity_bound(radius: float, n: int = 1) -> float:
    """Delta = 2 R / n: replacing any of n samples, whatever the others are, where all features have norm <= R.

    A sensitivity of differential privacy, provided that R is chosen without the data and features are clipped to it.
    n = 1: a sample that is sent as it is.
    """
    return 2 * radius / n


# the Gaussian mechanism

def sigma_classical(epsilon: float, delta: float, sensitivity: float) -> float:
    """sigma = sqrt(2 ln(1.25/delta)) Delta / epsilon (Dwork and Roth, 2014). Sufficient for 0 < epsilon < 1 only."""
    _check(epsilon=epsilon, delta=delta, sensitivity=sensitivity)
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / epsilon


def epsilon_classical(delta: float, sigma: float, sensitivity: float) -> float:
    """epsilon = sqrt(2 ln(1.25/delta)) Delta / sigma, MPFT's. A guarantee only where the result lies below 1."""
    _check(sigma=sigma, delta=delta, sensitivity=sensitivity)
    return math.sqrt(2 * math.log(1.25 / delta)) * sensitivity / sigma


def delta(epsilon: float, sigma: float, sensitivity: float) -> float:
    """delta = Phi(m/2 - epsilon/m) - e^epsilon Phi(-m/2 - epsilon/m), m = Delta / sigma: the smallest, for any epsilon.

    Noise N(0, sigma^2 I) on a vector of L2 sensitivity Delta is (epsilon, delta)-private for this delta and for no
    smaller one (Balle and Wang, ICML 2018, arXiv:1805.06530, theorem 8).
    """
    _check(sigma=sigma, sensitivity=sensitivity)
    if not epsilon >= 0:
        raise UserError(f"epsilon is {epsilon:g}; it must be at least 0")
    return math.exp(_log_delta(epsilon, sensitivity / sigma)) if sensitivity > 0 else 0.0


def epsilon(delta: float, sigma: float, sensitivity: float) -> float:
    """The smallest epsilon >= 0 at which noise of deviation sigma is (epsilon, delta)-private; inverse of `delta`."""
    _check(sigma=sigma, delta=delta, sensitivity=sensitivity)
    m = sensitivity / sigma
    if m == 0 or delta >= 1 or _log_delta(0, m) <= math.log(delta):
        return 0.0
    high = m * (m / 2 - ndtri(delta))       # Phi(m/2 - high/m) = delta, and the exact delta lies below it
    return brentq(lambda e: _log_delta(e, m) - math.log(delta), 0, high * (1 + 1e-6))


def sigma(epsilon: float, delta: float, sensitivity: float) -> float:
    """The smallest (epsilon, delta)-private deviation: the analytic Gaussian mechanism; inverse of `epsilon`."""
    _check(epsilon=epsilon, delta=delta, sensitivity=sensitivity)
    if sensitivity == 0 or delta >= 1:
        return 0.0

    def excess(log_m):
        return _log_delta(epsilon, math.exp(log_m)) - math.log(delta)

    z = ndtri(delta)
    root = math.sqrt(z * z + 2 * epsilon)
    low = math.log(2 * epsilon / (root - z) if z < 0 else root + z)     # of m, as `high` above
    high = low + 1
    while excess(high) < 0:
        high += 1
    return sensitivity / math.exp(brentq(excess, low - 1e-6, high))


def _log_delta(epsilon: float, m: float) -> float:
    """log of `delta` by m = Delta / sigma; e^epsilon Phi(...) overflows as a product, not as a sum of logarithms."""
    first, second = log_ndtr(m / 2 - epsilon / m), epsilon + log_ndtr(-m / 2 - epsilon / m)
    return float(first + math.log1p(-math.exp(second - first))) if second < first else -math.inf


def _check(**values: float):
    allowed = {"delta": ("above 0, at most 1", lambda v: 0 < v <= 1), "sensitivity": ("at least 0", lambda v: v >= 0)}
    for name, value in values.items():
        words, right = allowed.get(name, ("above 0", lambda v: v > 0))
        if not right(value):
            raise UserError(f"{name} is {value:g}; it must be {words}")


# the budget of a client

def collect(run: Run, results: Path, **how) -> Path:
    """Store for each client and class the number of training samples, the largest distance of two of their features
    and the largest norm; returns the path. `how` and what it raises: as `train_beside`.
    """
    def content(simulation):
        clients = [{"id": w.client.id, "domain": w.client.domain, "classes": of_classes(w.client.train)}
                   for w in simulation.workers]
        return json.dumps({"digest": run.digest, "clients": clients}, indent=1).encode()

    return train_beside(run, results, "budget", content, **how)


def of_classes(split) -> list[dict]:
    """[{"class", "n", "diameter", "radius"}] of a client's features."""
    lines = []
    for c in split.y.unique().tolist():
        z = split[split.y == c].input()
        lines.append({"class": c, "n": len(z), "diameter": round(diameter(z), 6),
                      "radius": round(float(z.norm(dim=1).max()), 6)})
    return lines


def read(run: Run, results: Path) -> dict:
    """What `collect` stored. UserError when it was not measured."""
    form = {"class": int, "n": int, "diameter": float, "radius": float}
    return records.read_measured(run, results, "budget", {"clients": [{"id": str, "domain": str, "classes": [form]}]})


def epsilons(found: dict, sigma: float) -> pd.DataFrame:
    """One line per client and class: domain, client, class, n, and epsilon at delta = 1/n of a class mean with noise
    N(0, sigma^2): "printed" by MPFT's formula, "exact" with the same sensitivity (the largest distance of two of the
    client's samples, over n), "bound" exact with 2 R / n, R the largest norm.
    """
    lines = []
    for client in found["clients"]:
        for c in client["classes"]:
            n, delta = c["n"], 1 / c["n"]
            near, far = c["diameter"] / n, sensitivity_bound(c["radius"], n)
            lines.append({"domain": client["domain"], "client": client["id"], "class": c["class"], "n": n,
                          "printed": epsilon_classical(delta, sigma, near),
                          "exact": epsilon(delta, sigma, near), "bound": epsilon(delta, sigma, far)})
    return pd.DataFrame(lines)
