"""pfl-research (arXiv:2404.06430) on a workload of `fedlib bench --whole`: its own loop, our clients and first weights.

    python workflow/others/pfl_research.py users
"""
import importlib.metadata
import json
import sys
import time

import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import nn

from fedlib.core import machine
from fedlib.core.federation import as_input
from fedlib.probes.whole_runs import TESTED, WARM, asked, first_net

NEVER = float("nan")        # users are not tested before and after their training, only the shared net is


class Net(nn.Module):
    """Our net with the two functions that pfl asks for."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def loss(self, x, y):
        self.train()
        return F.cross_entropy(self.net(as_input(x)), y)

    @torch.inference_mode()
    def metrics(self, x, y):
        self.eval()
        return {"right": Weighted(int((self.net(as_input(x)).argmax(1) == y).sum()), len(y))}


def shuffled(client) -> PyTorchTensorDataset:
    """A client's samples in a new order: pfl leaves the order to the data."""
    order = torch.randperm(len(client.train))
    return PyTorchTensorDataset((client.train.x[order], client.train.y[order]), user_id=client.id)


def trained(run, federation, rounds: int, test_every: int) -> tuple[Net, float]:
    """The net after so many rounds, and seconds."""
    clients, p = federation.clients, run.protocol
    net = Net(first_net(run, federation))
    users = FederatedDataset(lambda i: shuffled(clients[i]),
                             get_user_sampler("minimize_reuse", torch.randperm(len(clients)).tolist()))
    test = PyTorchTensorDataset((clients[0].test.x, clients[0].test.y))
    model = PyTorchModel(net, local_optimizer_create=torch.optim.SGD,
                         central_optimizer=torch.optim.SGD(net.parameters(), lr=1.0))
    train = NNTrainHyperParams(local_batch_size=p.batch, local_num_epochs=p.epochs, local_learning_rate=p.lr)
    testing = CentralEvaluationCallback(test, NNEvalHyperParams(local_batch_size=TESTED), frequency=test_every,
                                        distribute_evaluation=False)
    start = time.perf_counter()
    FederatedAveraging().run(
        NNAlgorithmParams(central_num_iterations=rounds, train_cohort_size=p.cohort or len(clients),
                          evaluation_frequency=NEVER, val_cohort_size=0),
        SimulatedBackend(training_data=users, val_data=None), model, train, None, [testing])
    return net, time.perf_counter() - start


def main(name: str) -> dict:
    run, federation = asked(name)
    trained(run, federation, WARM, WARM)
    net, seconds = trained(run, federation, run.protocol.rounds, run.protocol.test_every)
    test = federation.clients[0].test
    with torch.inference_mode():
        right = sum(net.metrics(x, y)["right"].weighted_value
                    for x, y in zip(test.x.split(TESTED), test.y.split(TESTED), strict=True))
    return {"seconds": seconds, "peak_mb": machine.peak("cpu"), "accuracy": 100 * right / len(test),
            "version": importlib.metadata.version("pfl")}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
