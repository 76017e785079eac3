"""What a kept model is worth on a prepared set, site by site: accuracy, AUC, F1, confusion, calibration."""
from collections import Counter

import numpy as np
import torch
from sklearn.calibration import calibration_curve
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, recall_score, roc_auc_score

from fedlib.core.errors import UserError, pick
from fedlib.core.federation import Split
from fedlib.datasets import prepare
from fedlib.datasets.partition import federate
from fedlib.datasets.registry import own_files
from fedlib.probes.kept_models import Kept, encoded, predicted

BINS = 15
COLUMNS = {"n": "{:d}", "accuracy": "{:.1f}", "balanced": "{:.1f}", "auc": "{:.3f}", "f1": "{:.1f}", "ece": "{:.1f}"}
HEADS = ("samples", "accuracy %", "balanced %", "AUC", "F1 %", "ECE %")


def evaluate(kept: Kept, name: str, client: str | None = None, every: bool = False) -> dict:
    """{"data", "part", "classes", "sites": {site: `measured`}, "all": of all sites together}.

    On the set that it was trained on: the clients' own test samples. On another: its test part, or with `every` all.
    client: whose net is asked, where each client has its own; else that of the site's name.
    UserError: a set of other classes or sizes, one that was prepared again, a site for which no net speaks.
    """
    found = {}
    for site, split in samples(kept, name, every).items():
        worker = kept.of(client or site)
        p = predicted(worker, encoded(kept.run, split.x) if split.x.dim() == 4 else split.x, split.normal)
        found[site] = split.y.numpy(), p.double().numpy()
    together = [np.concatenate(arrays) for arrays in zip(*found.values())]
    return {"data": name, "part": "all" if every else "test", "classes": kept.about["classes"],
            "sites": {site: measured(*arrays) for site, arrays in found.items()}, "all": measured(*together)}


def samples(kept: Kept, name: str, every: bool) -> dict[str, Split]:
    """What is tested at each site. Labels are those of the model."""
    about, run = kept.about, kept.run
    columns = about.get("columns") or []
    prepared = prepare.load_set(name, None if columns else about["size"])       # it may have more columns
    manifest, same = prepared.manifest, name == run.data.name
    if same and manifest["digest"] != about["data"]["digest"]:
        raise UserError(f"{name} was prepared again since this model was trained: its test part may hold what the "
                        "model was trained on; train again, or give the new files a name of their own")
    if same and not every:
        federation = federate(run.data, run.seed)
        several = Counter(c.domain for c in federation.clients)
        if about["shared"] and not federation.own_tests:
            several.clear()         # all clients of a domain have one net and one test part
        own = {f"{c.domain}:{c.id}" if several[c.domain] > 1 else c.domain: c.test for c in federation.clients}
        return own | (federation.unseen if about["shared"] else {})
    if manifest.get("kind", "images") != about["kind"]:
        raise UserError(f"{name} holds {manifest.get('kind', 'images')}; the model takes {about['kind']}")
    known = {c.casefold(): k for k, c in enumerate(about["classes"])}
    labels = torch.tensor([known[pick("class of the model", c.casefold(), known)] for c in manifest["classes"]])
    words = {w: i for i, w in enumerate(about["words"])}
    places = torch.tensor([words.get(w, 0) for w in manifest.get("words") or ()], dtype=torch.int32)
    found = {}
    for d in manifest["domains"]:
        x, y, part = (prepared.tensors[f"{d}/{k}"] for k in ("x", "y", "part"))
        index = torch.arange(len(y)) if every else (part == prepare.TEST).nonzero()[:, 0]
        if len(index):
            x = places[x[index].long()] if about["kind"] == "tokens" else x[index]
            if columns:
                had = manifest.get("columns") or []
                x = torch.from_numpy(own_files().own_numbers.rescaled(x.numpy(), had, columns))
            found[d] = Split(x, labels[y[index]], run.data.normalise)
    if not found:
        raise UserError(f"{name} has no test part; --all takes every sample")
    return found


def measured(y: np.ndarray, p: np.ndarray) -> dict:
    """Measures of labels `(N,)` and probabilities `(N, C)`, in percent but for AUC.

    balanced: mean recall of the classes that are there; f1: their mean F1; auc: mean over the classes that can be told
    from the rest here, of one against the rest, None where there are none; ece: `calibration_error`.
    """
    guess, there = p.argmax(1), np.unique(y)
    auc = {k: float(roc_auc_score(y == k, p[:, k])) for k in there.tolist() if len(there) > 1}
    of = {"labels": there, "average": "macro", "zero_division": 0}
    return {"n": len(y), "accuracy": 100 * accuracy_score(y, guess), "balanced": 100 * recall_score(y, guess, **of),
            "auc": float(np.mean(list(auc.values()))) if auc else None, "auc_by_class": auc,
            "f1": 100 * f1_score(y, guess, **of), "ece": 100 * calibration_error(guess == y, p.max(1)),
            "confusion": confusion_matrix(y, guess, labels=range(p.shape[1])).tolist()}


def calibration_error(right: np.ndarray, sure: np.ndarray) -> float:
    """sum_b n_b / N |mean right_b - mean sure_b| over BINS equal bins of the largest probability.

    Guo et al., ICML 2017, arXiv:1706.04599.
    """
    sure = sure.clip(0, 1)
    share, mean = calibration_curve(right.astype(int), sure, pos_label=1, n_bins=BINS)
    counts = np.bincount(np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], sure), minlength=BINS)
    return float(np.abs(share - mean) @ counts[counts > 0] / len(sure))


def in_words(found: dict) -> str:
    """The measures as a table, then how often each class was taken for which."""
    sites = found["sites"] | ({"all sites": found["all"]} if len(found["sites"]) > 1 else {})
    rows = [["", *HEADS], *([site, *(form.format(m[k]) if m[k] is not None else "-" for k, form in COLUMNS.items())]
                            for site, m in sites.items())]
    lines = aligned(rows)
    for site, m in sites.items():
        rows = [[site, *(f"as {c}" for c in found["classes"])],
                *([c, *map(str, row)] for c, row in zip(found["classes"], m["confusion"]) if sum(row))]
        lines += ["", *aligned(rows)]
    return "\n".join(lines)


def aligned(rows: list) -> list[str]:
    """Columns of text, the first to the left."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:]))]) for row in rows]
