"""Cross-checks: runs of PFLlib and of fedlib on the same data, net, start, minibatches and settings."""
import json
from pathlib import Path

import pandas as pd

from fedlib.experiments.results import results_folder

CODES = {"PFLlib": "pfllib", "fedlib": "fedlib"}


def read(path: Path | None = None) -> dict:
    """{"settings", "methods"}; nothing in either where the file is not there: an installed package does not have it.

    "methods": {name: {"pfllib" and "fedlib": {seed: accuracy (%) by round}, "differences", "verified": sentences}}.
    """
    path = path or results_folder() / "crosschecks.json"
    return json.loads(path.read_text()) if path.exists() else {"settings": {}, "methods": {}}


def setting(checks: dict) -> pd.DataFrame:
    """What both programs ran, a line for each part."""
    given = checks["settings"]
    if not given:
        return pd.DataFrame()
    data, nets = given["data"], given["nets"]
    parts = {"data": f"{data['name']}, {data['samples']}",
             "partition": f"20 clients, Dir({data['dirichlet']}), digest {data['partition']}",
             "net": f"cnn4, width {nets['all but FedBN']['width']}; FedBN: resnet10, width {nets['FedBN']['width']}",
             "protocol": ", ".join(f"{k} {v}" for k, v in given["protocol"].items()),
             "PFLlib": given["pfllib"]["commit"][:12], "accuracy": given["what"]}
    return pd.Series(parts, name="").to_frame()


def curves(checks: dict) -> pd.DataFrame:
    """Accuracy (%) of each method after each round, first seed: index method and round, a column for each code."""
    lines = [(name, i + 1, *pair) for name, runs in checks["methods"].items()
             for i, pair in enumerate(zip(*(next(iter(runs[key].values())) for key in CODES.values()), strict=True))]
    return pd.DataFrame(lines, columns=["method", "round", *CODES]).set_index(["method", "round"])


def explained(checks: dict) -> pd.DataFrame:
    """A line for each method: where the two codes differ, and what showed it."""
    lines = {name: (runs["differences"], runs["verified"]) for name, runs in checks["methods"].items()}
    return pd.DataFrame.from_dict(lines, orient="index", columns=["in the two codes", "shown by"])
