"""What the privacy budget of prototypes depends on, kept beside a record: Table 7 is computed from it."""
import json
from pathlib import Path

import pandas as pd

from fedlib import records
from fedlib.data import as_input
from fedlib.train import beside


def collect(run: records.Run, results: Path, **how) -> Path:
    """Store for each client and class the number of training samples, the largest distance of two of their features
    and the largest norm; returns the path. `how` and what it raises: as `train.beside`.
    """
    def content(server, workers, rounds):
        clients = [{"id": w.client.id, "domain": w.client.domain, "classes": of_classes(w.client.train)}
                   for w in workers]
        return json.dumps({"digest": run.digest, "clients": clients}, indent=1).encode()

    return beside(run, results, "budget", content, **how)


def of_classes(split) -> list[dict]:
    """[{"class", "n", "diameter", "radius"}] of a client's features."""
    from fedlib import privacy  # scipy is slow to import, and a plan does not need it
    lines = []
    for c in split.y.unique().tolist():
        z = as_input(split.x[split.y == c])
        lines.append({"class": c, "n": len(z), "diameter": round(privacy.diameter(z), 6),
                      "radius": round(float(z.norm(dim=1).max()), 6)})
    return lines


def read(run: records.Run, results: Path) -> dict:
    """What `collect` stored. UserError when it was not measured."""
    form = {"class": int, "n": int, "diameter": float, "radius": float}
    return records.measured(run, results, "budget", {"clients": [{"id": str, "domain": str, "classes": [form]}]})


def epsilons(found: dict, sigma: float) -> pd.DataFrame:
    """One line per client and class: domain, client, class, n, and epsilon at delta = 1/n of a class mean with noise
    N(0, sigma^2): "printed" by MPFT's formula, "exact" with the same sensitivity (the largest distance of two of the
    client's samples, over n), "bound" exact with 2 R / n, R the largest norm.
    """
    from fedlib import privacy
    lines = []
    for client in found["clients"]:
        for c in client["classes"]:
            n, delta = c["n"], 1 / c["n"]
            near, far = c["diameter"] / n, privacy.sensitivity_bound(c["radius"], n)
            lines.append({"domain": client["domain"], "client": client["id"], "class": c["class"], "n": n,
                          "printed": privacy.epsilon_classical(delta, sigma, near),
                          "exact": privacy.epsilon(delta, sigma, near), "bound": privacy.epsilon(delta, sigma, far)})
    return pd.DataFrame(lines)
