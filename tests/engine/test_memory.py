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
