"""Memory: a hundred clients in one process."""
import subprocess
import sys

import pytest

HUNDRED = """
import sys
from fedlib.core import machine
from fedlib.probes.cost import made_up
from fedlib.engine.loop import Simulation
from fedlib.engine.run import plan
run = plan(sys.argv[1], {}, {"name": "random"}, {"net": "cnn4"}, {"rounds": 1, "batch": 10}, 0)
simulation = Simulation(run, made_up([10] * 100, 100, (3, 32, 32)))
simulation.server.aggregate(simulation.exchange(list(range(100)))[0])
print(machine.peak("cpu"))
"""


@pytest.mark.parametrize("method", ["FedDTR", "FedAMP"])     # FedAMP keeps most: every client's net at the server
def test_a_hundred_clients_with_the_papers_cnn_take_less_than_four_gigabytes(method):
    ran = subprocess.run([sys.executable, "-c", HUNDRED, method], capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    assert 500 < int(ran.stdout) < 4 * 1024


THOUSANDS = """
import sys, tempfile, time
from pathlib import Path
from fedlib.core import machine
from fedlib.engine.loop import train
from fedlib.engine.run import plan
from fedlib.probes.cost import made_up
clients, net = int(sys.argv[1]), {"net": "cnn4", "width": 32}
run = plan("FedAvg", {}, {"name": "random"}, net, {"rounds": 3, "batch": 5, "cohort": 4, "test_every": 3}, 0)
federation = made_up([5] * clients, 10, (3, 28, 28))
for client in federation.clients:       # one domain, one test split
    client.domain, client.test = "all", federation.clients[0].test
federation.about = {"digest": "made up", "clients": []}
start = time.monotonic()
train(run, Path(tempfile.mkdtemp()), federation=federation)
print(machine.peak("cpu"), time.monotonic() - start)
"""


def test_thousands_of_clients_cost_their_data_and_little_more():
    """A net of 0.6 million weights for each of 4,000 clients would take 9 GB."""
    few, many = (subprocess.run([sys.executable, "-c", THOUSANDS, str(n)], capture_output=True, text=True, timeout=300)
                 for n in (40, 4000))
    assert few.returncode == many.returncode == 0, few.stderr + many.stderr
    (least, quick), (most, slow) = (map(float, ran.stdout.split()) for ran in (few, many))
    data = 4000 * 5 * 3 * 28 * 28 / 2**20
    assert most - least < data + 4000 * 0.02 + 30       # MB; 20 kB a client
    assert slow - quick < 4000 * 0.001                  # a millisecond to set up
