"""PFLlib (arXiv:2312.04992) on a workload of `fedlib bench --whole`: its own loop, our clients, net and first weights.

    python workflow/others/pfllib.py users

It reads a client's samples from a file whenever it wants them, holds a net for each, and tests each with its own
statistics of batch-norm, on its share of the test images and on its training images. Ten thousand users are left out.
"""
import argparse
import contextlib
import json
import os
import sys
import time

import numpy as np
import torch

from fedlib.core import machine
from fedlib.core.federation import as_input
from fedlib.probes.whole_runs import INSTALLED, WARM, asked, first_net

CODE = (INSTALLED / "pfllib" / "code").resolve()
sys.path.insert(0, str(CODE / "system"))
from flcore.servers.serveravg import FedAvg  # noqa: E402 - it is no package

# What its main.py has where nobody asks for more.
DEFAULTS = {"device": "cpu", "algorithm": "FedAvg", "num_classes": 10, "random_join_ratio": False, "few_shot": 0,
            "time_select": False, "goal": "test", "time_threthold": 10000, "save_folder_name": "items", "top_cnt": 100,
            "auto_break": False, "client_drop_rate": 0.0, "train_slow_rate": 0.0, "send_slow_rate": 0.0,
            "dlg_eval": False, "dlg_gap": 100, "batch_num_per_client": 2, "num_new_clients": 0,
            "fine_tuning_epoch_new": 0, "learning_rate_decay": False, "learning_rate_decay_gamma": 0.99}


class Timed(FedAvg):
    """Its server, which notes when it has tested, and stops after the last test: it would train a round more."""

    def evaluate(self):
        super().evaluate()
        self.ends = [*getattr(self, "ends", []), time.perf_counter()]
        if len(self.ends) > self.global_rounds // self.eval_gap:
            raise StopIteration


def write(federation, name: str) -> None:
    """Files of the clients in its format, once; the test images are shared out among them."""
    clients, test = federation.clients, federation.clients[0].test
    shares = torch.arange(len(test)).chunk(len(clients))
    for kind in ("train", "test"):
        folder = CODE / "dataset" / name / kind
        folder.mkdir(parents=True, exist_ok=True)
        for i, client in enumerate(clients):
            here = folder / f"{i}.npz"
            if not here.exists():
                x, y = (client.train.x, client.train.y) if kind == "train" else (test.x[shares[i]], test.y[shares[i]])
                with here.with_suffix(".part").open("wb") as f:
                    np.savez_compressed(f, data={"x": as_input(x).numpy(), "y": y.numpy()})
                here.with_suffix(".part").rename(here)


def trained(run, federation, name: str, rounds: int, test_every: int) -> Timed:
    p, clients = run.protocol, federation.clients
    net = first_net(run, federation)
    server = Timed(argparse.Namespace(
        **DEFAULTS, model=net, dataset=name, num_clients=len(clients), join_ratio=(p.cohort or len(clients))
        / len(clients), global_rounds=rounds, local_epochs=p.epochs, batch_size=p.batch,
        local_learning_rate=p.lr, eval_gap=test_every), 0)
    with contextlib.suppress(StopIteration):
        server.train()
    return server


def main(name: str) -> dict | None:
    if name == "ten_thousand":      # it would read 20,000 files for a test: minutes, where the others take seconds
        return None
    run, federation = asked(name)
    write(federation, name)
    os.chdir(CODE / "system")       # it looks for its data from there
    with contextlib.redirect_stdout(sys.stderr):
        trained(run, federation, name, WARM, WARM)
        server = trained(run, federation, name, run.protocol.rounds, run.protocol.test_every)
    return {"seconds": server.ends[-1] - server.ends[0], "peak_mb": machine.peak("cpu"),
            "accuracy": 100 * server.rs_test_acc[-1], "version": (CODE / ".git" / "HEAD").read_text()[:7]}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
