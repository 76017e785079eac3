"""What a kept model says of new samples, as a CSV: what was read, the label, a probability for each class."""
import csv
import io

import torch

from fedlib.core.errors import UserError
from fedlib.datasets.registry import own_files
from fedlib.probes.kept_models import Kept, encoded, predicted

FIRST = {"images": "path", "tokens": "text", "features": "row"}


def predict(kept: Kept, places: list, client: str | None = None, skip: list | None = None) -> list[list]:
    """[what was read, its label, *probabilities] of each picture in files and folders, or text or row in a CSV.

    client: whose net is asked, where each has its own. skip: as in `fedlib.readers.image_folder.decode`.
    UserError: nothing to read, a picture that is none, a model that takes features.
    """
    about = kept.about
    worker = kept.of(client)
    columns = about.get("columns") or []
    if about["kind"] == "features" and not columns:
        raise UserError(f"this model takes features as {about['data']['name']} has them, not pictures or texts")
    names, x = own_files().new(places, about["kind"], about["size"], about["words"], skip, columns)
    p = predicted(worker, encoded(kept.run, torch.from_numpy(x)), kept.run.data.normalise)
    return [[name, about["classes"][int(row.argmax())], *row.tolist()] for name, row in zip(names, p)]


def as_csv(kept: Kept, rows: list[list]) -> str:
    """The predictions with a line of names; probabilities with four digits."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    out.writerow([FIRST[kept.about["kind"]], "label", *kept.about["classes"]])
    out.writerows([*row[:2], *(f"{p:.4f}" for p in row[2:])] for row in rows)
    return text.getvalue()
