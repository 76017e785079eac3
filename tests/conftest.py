"""Small runs that many tests share."""
import os

import pytest
import torch

from fedlib import records
from fedlib.methods import METHODS

os.environ.setdefault("FEDLIB_DATA", os.path.join(os.path.dirname(__file__), "..", "build", "data"))
torch.set_num_threads(1)

METHOD_NAMES = sorted(METHODS)


def small_run(method="FedAvg", values=None, net="resnet10", seed=0, data=None, **protocol):
    """Two rounds on a tenth of mini_digits: two clients hold scans, one each of the other domains; 1 s."""
    data = {"name": "mini_digits", "fraction": 0.1, "clients": (2, 1, 1, 1), **(data or {})}
    protocol = {"rounds": 2, "epochs": 1, "batch": 16, "lr": 0.05, "momentum": 0.9, "augment": "crop", **protocol}
    return records.plan(method, values or {}, data, {"net": net, "width": 4}, protocol, seed)


def numbers(record: dict) -> list[dict]:
    """The rounds of a record without times."""
    return [{k: v for k, v in r.items() if k != "seconds"} for r in record["rounds"]]


@pytest.fixture(scope="session", params=METHOD_NAMES)
def method_name(request):
    return request.param
