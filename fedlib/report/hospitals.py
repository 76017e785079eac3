"""Three hospitals that measured lumps, and a fourth that did not take part, made of one hospital's public data.

The numbers are real: 569 lumps of the breast, 30 measures of cell nuclei under a microscope each, benign or malignant
(Wolberg, Street and Mangasarian, Wisconsin Diagnostic Breast Cancer, UCI, CC BY 4.0), as scikit-learn brings them.
Who was measured where is made up, and so are the microscopes: each hospital has its own share of malignant lumps, and
a scale by which its lengths are too large. Sizes and scales were chosen so that a scale that differs is seen to matter.
"""
import csv
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer

from fedlib.core.seeds import key
from fedlib.datasets.registry import own_files
from fedlib.engine import records
from fedlib.engine.loop import train
from fedlib.engine.run import run_in_words

# benign and malignant lumps, how much larger a length is measured than it is, and one lump of how many is trained on
HOSPITALS = {"north": (126, 74, 1.0, 4), "east": (102, 18, 1.25, 4), "south": (24, 36, 0.8, 4)}
OUTSIDE = {"west": (75, 45, 0.7, 0)}
POWERS = {"radius": 1, "perimeter": 1, "area": 2}       # of a length


def write(folder: Path, agreed: bool = False, seed: int = 0) -> dict[str, Path]:
    """Write lumps.csv of the three hospitals and west.csv of the fourth, whose lumps are all test; returns where.

    agreed: after all have corrected their lengths.
    """
    data = load_breast_cancer()
    rng = np.random.default_rng(key("hospitals", seed))
    of = {label: list(rng.permutation(np.flatnonzero(data.target == k))) for k, label in enumerate(data.target_names)}
    names = [name.replace(" ", "_") for name in data.feature_names]
    powers = np.array([next((p for what, p in POWERS.items() if what in name), 0) for name in names])
    Path(folder).mkdir(parents=True, exist_ok=True)
    written = {}
    for file, places in {"lumps.csv": HOSPITALS, "west.csv": OUTSIDE}.items():
        rows = []
        for site, (*counts, scale, every) in places.items():
            factors = 1.0 if agreed else scale ** powers
            for label, count in zip(("benign", "malignant"), counts, strict=True):
                some = [of[label].pop() for _ in range(count)]
                rows += [[site, label, "train" if every and not n % every else "test",
                          *(f"{v:.5g}" for v in data.data[i] * factors)] for n, i in enumerate(some)]
        written[file] = Path(folder) / file
        with written[file].open("w", newline="") as out:
            lines = csv.writer(out, lineterminator="\n")
            lines.writerow(["site", "label", "split", *names])
            lines.writerows(rows)
    return written


def divided(folder: Path, draws, rounds: int, sets: list[str], device: str = "cpu") -> pd.DataFrame:
    """FedAvg minus Local, points of the mean accuracy over the hospitals, for several divisions of the lumps, one seed
    each: a line for each draw, columns "as measured" and "agreed".
    """
    found = {}
    for draw in draws:
        for column, agreed in (("as measured", False), ("agreed", True)):
            name = f"lumps_{draw}_{'agreed' if agreed else 'measured'}"
            csv_file = write(Path(folder) / name, agreed, draw)["lumps.csv"]
            own_files().prepare_own(name, csv_file, say=lambda line: None)
            mean = {}
            for method in ("FedAvg", "Local"):
                run = run_in_words(method, name, rounds, draw, [*sets, f"test_every={rounds}"])
                acc = records.read_record(train(run, Path(folder) / "runs", device))["rounds"][-1]["acc"]
                mean[method] = sum(acc.values()) / len(acc)
            found.setdefault(draw, {})[column] = mean["FedAvg"] - mean["Local"]
    return pd.DataFrame(found).T
