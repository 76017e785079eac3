"""Memory: a hundred clients in one process."""
import subprocess
import sys

import pytest

HUNDRED = """
import copy, sys
from fedlib import machine, records, train
from fedlib.cost import random
from fedlib.data import Client
from fedlib.methods import make
from fedlib.nets import build
run = records.plan(sys.argv[1], {}, {"name": "random"}, {"net": "cnn4"}, {"rounds": 1, "batch": 10}, 0)
net, split = build(run.net, 100, (3, 32, 32), 0), random(10, 100, (3, 32, 32))
server = make(run.method, {}, run.protocol)
server.setup(net)
workers = [train.Worker(run, Client(str(i), "", split, split), copy.deepcopy(net)) for i in range(100)]
for number in range(1):
    server.aggregate({w.client.id: w.train(server.broadcast(w.client.id), number)[0] for w in workers})
print(machine.peak("cpu"))
"""


@pytest.mark.parametrize("method", ["FedDTR", "FedAMP"])     # FedAMP keeps most: every client's net at the server
def test_a_hundred_clients_with_the_papers_cnn_take_less_than_four_gigabytes(method):
    ran = subprocess.run([sys.executable, "-c", HUNDRED, method], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert 500 < int(ran.stdout) < 4 * 1024
