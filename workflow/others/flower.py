"""Flower's simulation (arXiv:2007.14390) on a workload of `fedlib bench --whole`: its own loop, our clients and net.

    python workflow/others/flower.py users

One actor on one core. Its processes, and the images that the actor makes for itself, come to be in first rounds that do
not count and teach nothing.
"""
import functools
import importlib.metadata
import json
import os
import sys
import time

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from fedlib.core import machine
from fedlib.core.federation import as_input
from fedlib.probes.whole_runs import TESTED, WARM, asked, first_net

NAME = "FEDLIB_WHOLE"       # the variable that tells the actor which workload it is
client, server, found = ClientApp(), ServerApp(), {}


@functools.cache
def work():
    """Run, federation and net of this process."""
    run, federation = asked(os.environ[NAME])
    return run, federation, first_net(run, federation)


@client.train()
def train(message: Message, context) -> Message:
    run, federation, net = work()
    mine = federation.clients[context.node_config["partition-id"]].train
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    opt = torch.optim.SGD(net.train().parameters(), run.protocol.lr)
    for _ in range(run.protocol.epochs):
        for index in torch.randperm(len(mine)).split(run.protocol.batch):
            opt.zero_grad()
            F.cross_entropy(net(as_input(mine.x[index])), mine.y[index]).backward()
            opt.step()
    warm = message.content["config"]["server-round"] <= WARM
    said = MetricRecord({"num-examples": len(mine), "peak": machine.peak("cpu")})
    arrays = message.content["arrays"] if warm else ArrayRecord(net.state_dict())
    return Message(RecordDict({"arrays": arrays, "metrics": said}), reply_to=message)


@server.main()
def main(grid, context):
    run, federation, net = work()
    p, test, ends = run.protocol, federation.clients[0].test, []

    def tested(number, arrays):
        """After each round, counted without those before."""
        if number > WARM and p.tests(number - WARM):
            net.load_state_dict(arrays.to_torch_state_dict())
            net.eval()
            with torch.inference_mode():
                right = sum(int((net(as_input(x)).argmax(1) == y).sum())
                            for x, y in zip(test.x.split(TESTED), test.y.split(TESTED), strict=True))
            found["accuracy"] = 100 * right / len(test)
        ends.append(time.perf_counter())

    every = len(federation.clients)         # it would begin with those that are there, fewer than were asked for
    some = p.cohort or every
    strategy = FedAvg(fraction_train=some / every, fraction_evaluate=0.0, min_train_nodes=some,
                      min_available_nodes=every)
    done = strategy.start(
        grid=grid, initial_arrays=ArrayRecord(net.state_dict()), num_rounds=p.rounds + WARM, evaluate_fn=tested)
    found["seconds"] = ends[-1] - ends[WARM]
    last = done.train_metrics_clientapp[p.rounds + WARM]
    found["peak_mb"] = last["peak"] + machine.peak("cpu")       # of both processes


if __name__ == "__main__":
    import flower as here  # what is sent to the actor has to be in a module that it can import

    os.environ[NAME] = sys.argv[1]
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 1}}
    run_simulation(here.server, here.client, len(here.work()[1].clients), backend_config=resources)
    print(json.dumps(here.found | {"version": importlib.metadata.version("flwr")}))
