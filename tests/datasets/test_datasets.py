"""Every data set that lies in FEDLIB_RAW: raw files, prepared set, federation, one round of FedAvg."""
import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT, needs_raw

from fedlib.datasets import prepare
from fedlib.datasets.partition import federate
from fedlib.datasets.registry import reader_of
from fedlib.engine import records
from fedlib.engine.loop import train
from fedlib.engine.run import plan

COMPLETE = {"office_caltech", "pacs", "mnist", "amazon_reviews"}
# What one round is trained on: a small net, few samples for each client.
RUNS = {
    "office_caltech": ({"size": 32, "clients": [3, 2, 1, 4], "fraction": 0.2}, "resnet10"),
    "pacs": ({"size": 64, "split": "feddeap_pacs_released", "fraction": 0.05}, "resnet18"),
    "digits": ({"size": 28, "domains": ["mnist", "usps", "mnist_m"], "fraction": 0.01}, "cnn4"),
    "mnist": ({"split": "feddtr", "clients": [100], "pathological": 2}, "cnn4"),
    "fashion_mnist": ({"split": "feddtr", "clients": [20], "dirichlet": 0.1, "minimum": 40}, "cnn4"),
    "cifar10": ({"split": "feddtr", "clients": [20], "dirichlet": 0.1, "minimum": 40}, "cnn4"),
    "cifar100": ({"split": "feddtr", "clients": [20], "pathological": 10}, "cnn4"),
    "ag_news": ({"split": "feddtr", "clients": [20], "dirichlet": 0.1}, "fasttext"),
    "amazon_reviews": ({"split": "feddtr"}, "mlp3"),
}


@needs_raw
@pytest.mark.parametrize("name", RUNS)
def test_raw_files_to_one_round(name, tmp_path):
    data, net = RUNS[name]
    run = plan("FedAvg", {}, {"name": name, **data}, {"net": net, "width": 4},
                       {"rounds": 1, "batch": 32, "lr": 0.01, "participation": 0.2}, 0)
    federation = federate(run.data, 0)
    reader, manifest = reader_of(name), prepare.load_set(name, run.data.size or None).manifest
    found = {d: n["train"] + n["val"] + n["test"] for d, n in manifest["domains"].items()}
    published = {d: sum(n for key, n in reader.PUBLISHED.items() if key.split()[0] == d) for d in found}
    complete = {d for d in found if found[d] == published[d]}
    if name in COMPLETE:
        assert found == published and not manifest["notice"]
    elif name == "digits":
        assert {"mnist", "usps"} <= complete and "mnist_m train 9000 of 59001" in manifest["notice"]
    else:
        assert not complete and "subset" in manifest["notice"]
        assert federation.about["notice"] == manifest["notice"]     # so it is in the record
    record = records.read_record(train(run, tmp_path))
    assert set(record["rounds"][0]["acc"]) == set(federation.domains)
    assert record["made"]["data"]["digest"] == manifest["digest"]


# The peak of this process alone: ru_maxrss would count its parent's, from before exec.
PEAK = """
def peak():
    return next(int(line.split()[1]) / 2**20 for line in open("/proc/self/status") if line.startswith("VmHWM"))
"""
PREPARE = PEAK + """
import json, time
from fedlib.datasets import prepare
start = time.process_time()
prepare.prepare("pacs", 64, say=lambda line: None)
print(json.dumps([time.process_time() - start, peak()]))
"""
LOAD = PEAK + """
import json, time
import torch
from fedlib.datasets import prepare
before, start = peak(), time.process_time()
x = prepare.load_set("pacs", 64).tensors["sketch/x"]
print(json.dumps([time.process_time() - start, peak() - before, len(x)]))
"""


@needs_raw
def test_pacs_is_prepared_in_a_minute_and_little_memory(tmp_path):
    """All 9,991 images to 64 px: at most 60 s and 1.5 GB; loading is memory-mapped and takes less than 0.5 s."""
    def measured(code):
        env = os.environ | {"FEDLIB_DATA": str(tmp_path), "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env, check=True)
        return json.loads(done.stdout)
    seconds, gigabytes = measured(PREPARE)
    assert seconds < 60 and gigabytes < 1.5, (seconds, gigabytes)
    seconds, gigabytes, n = measured(LOAD)
    assert seconds < 0.5 and gigabytes < 0.06 and n == 3929, (seconds, gigabytes)      # the file has 123 MB
