"""FL-bench (KarhouTam/FL-bench) on a workload of `fedlib bench --whole`: its own server, our clients, net and weights.

    python workflow/others/fl_bench.py users

It holds all images as floats and fetches a batch image by image. Ten thousand users are left out: 6 GB of floats.
"""
import contextlib
import json
import pickle
import sys
import tempfile
import time

import numpy as np
import torch

from fedlib.core import machine
from fedlib.core.federation import as_input
from fedlib.probes.whole_runs import INSTALLED, WARM, asked, first_net

CODE = (INSTALLED / "fl_bench" / "code").resolve()
sys.path.insert(0, str(CODE))
from data.utils.datasets import BaseDataset  # noqa: E402 - it is no package
from hydra.core.hydra_config import HydraConfig  # noqa: E402
from omegaconf import OmegaConf  # noqa: E402
from src.server.fedavg import FedAvgServer  # noqa: E402
from src.utils.constants import DEFAULTS  # noqa: E402
from src.utils.models import DecoupledModel  # noqa: E402


class Images(BaseDataset):
    """Its data set, of what a net takes: nothing is left to rescale."""

    def _rescale_data(self):
        pass


class Server(FedAvgServer):
    """Its server, whose net and samples are given."""

    def __init__(self, args, net, images):
        self.net, self.images = net, images
        super().__init__(args)

    def init_model(self, model=None, **how):
        model = DecoupledModel()
        model.base, model.classifier = self.net.body, self.net.head
        super().init_model(model, **how)

    def get_dataset(self):
        return self.images


def write(federation) -> None:
    """Who holds which samples, in its format; the test images are one client's, since all are tested together."""
    sizes = np.cumsum([0] + [len(c.train) for c in federation.clients])
    none, test = np.arange(0), np.arange(sizes[-1], sizes[-1] + len(federation.clients[0].test))
    held = [{"train": np.arange(*ends), "val": none, "test": none} for ends in zip(sizes, sizes[1:])]
    held[0]["test"] = test
    folder = CODE / "data" / "ours"
    folder.mkdir(exist_ok=True)
    (folder / "args.json").write_text("{}")
    ids = list(range(len(held)))
    separation = {"train": ids, "val": [], "test": [], "total": len(ids)}
    (folder / "partition.pkl").write_bytes(pickle.dumps({"separation": separation, "data_indices": held}))


def trained(run, federation, images, rounds: int, test_every: int) -> tuple[float, Server]:
    """Seconds of its training, tests included, and the server after it."""
    p, count = run.protocol, len(federation.clients)
    net = first_net(run, federation)
    asks = {"dataset": {"name": "ours", "split": "sample"}, "optimizer": {"lr": p.lr}, "common": {
        "join_ratio": (p.cohort or count) / count, "global_epoch": rounds, "local_epoch": p.epochs,
        "batch_size": p.batch, "client_side_evaluation": False, "use_cuda": False, "save_log": False,
        "save_learning_curve_plot": False, "save_metrics": False,
        "test": {"client": {"interval": -1, "test": False}, "server": {"interval": test_every, "test": True}}}}
    server = Server(OmegaConf.merge(OmegaConf.create(DEFAULTS), asks), net, images)
    start = time.perf_counter()
    server.train()
    return time.perf_counter() - start, server


def main(name: str) -> dict | None:
    if name == "ten_thousand":
        return None
    run, federation = asked(name)
    write(federation)
    splits = [*(c.train for c in federation.clients), federation.clients[0].test]
    images = Images(torch.cat([as_input(s.x) for s in splits]), torch.cat([s.y for s in splits]), list(range(10)))
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory() as folder:
        HydraConfig.instance().cfg = OmegaConf.create({"hydra": {"runtime": {"output_dir": folder}}})
        trained(run, federation, images, WARM, WARM)
        seconds, server = trained(run, federation, images, run.protocol.rounds, run.protocol.test_every)
    tested = server.test_results[run.protocol.rounds]["centralized"]["after"]["test"]
    return {"seconds": seconds, "peak_mb": machine.peak("cpu"), "accuracy": float(tested.accuracy),
            "version": (CODE / ".git" / "HEAD").read_text()[:7]}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
