"""The playground computes what fedlib computes, and what its page says of it happens."""
import functools
import json
import re
import shutil
import subprocess
from collections import OrderedDict

import pytest
import torch
from conftest import ROOT
from torch import nn

from fedlib.core.federation import Client, Federation, Split
from fedlib.core.params import load_params
from fedlib.engine.loop import Diverged, Simulation
from fedlib.engine.run import plan
from fedlib.models.nets import Net

CORE = ROOT / "book/_static/playground/federation.js"
PAGE = ROOT / "book/playground.md"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ROUNDS = 5
RUNS = {"FedAvg": {}, "FedProx": {"mu": 0.3}, "FedBN": {}, "FedProto": {"lam": 0.3}, "Local": {}}


@functools.cache
def javascript(expression: str):
    """The value of an expression in which `federation` is the playground's arithmetic: by Node, or else in Chromium."""
    if node := shutil.which("node") or shutil.which("nodejs"):
        program = f"const federation = require({json.dumps(str(CORE))}); console.log(JSON.stringify({expression}))"
        return json.loads(subprocess.run([node, "-e", program], capture_output=True, text=True, check=True).stdout)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None) or pytest.skip("needs Node or Chromium")
    sync = pytest.importorskip("playwright.sync_api", reason="needs Node, or playwright beside Chromium")
    with sync.sync_playwright() as playwright:
        page = playwright.chromium.launch(executable_path=browser).new_page()
        page.add_script_tag(path=CORE)
        return json.loads(page.evaluate(f"() => JSON.stringify({expression})"))


def played(rounds: int, settings: dict) -> list[dict]:
    """The playground's states before each round and after the last."""
    return javascript(f"""[...Array({rounds})].reduce(states => [...states, federation.play(states.at(-1))],
                                                       [federation.begin({json.dumps(settings)})])""")


class Double(nn.Module):
    """Numbers in double precision, as JavaScript has them; fedlib feeds its nets with single ones."""

    def forward(self, x):
        return x.double()


def net_of(entries: dict) -> Net:
    """The playground's net in PyTorch, with these entries."""
    norm = {"norm": nn.BatchNorm1d(8)} if "body.norm.weight" in entries else {}
    body = OrderedDict(wide=Double(), hidden=nn.Linear(2, 8), **norm, tanh=nn.Tanh(), features=nn.Linear(8, 2))
    net = Net(nn.Sequential(body), nn.Linear(2, 3)).double()
    shapes = net.state_dict()
    return load_params(net, {k: torch.tensor(v, dtype=torch.float64).view_as(shapes[k]) for k, v in entries.items()})


def split_of(points: dict) -> Split:
    return Split(torch.tensor(points["x"]), torch.tensor(points["y"]))


def simulation(method: str, values: dict, begun: dict) -> Simulation:
    """fedlib's own federation of the same data, start and settings."""
    clients = [Client(c["name"], c["name"], split_of(c["train"]), split_of(c["test"])) for c in begun["clients"]]
    protocol = {"rounds": ROUNDS, "epochs": begun["settings"]["steps"], "lr": begun["settings"]["lr"],
                "batch": len(begun["clients"][0]["train"]["y"]), "evaluate": "both"}
    run = plan(method, values, {}, {}, protocol, 0)
    return Simulation(run, Federation(clients, ["0", "1", "2"], {}, {}), net=net_of(begun["clients"][0]["path"][0]))


def close(ours, entries: dict, tolerance: float):
    assert ours.keys() == entries.keys()
    for name, value in ours.items():
        torch.testing.assert_close(value.double().flatten(), torch.tensor(entries[name], dtype=torch.float64),
                                   rtol=tolerance, atol=tolerance, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("norm", [False, True], ids=["plain", "norm"])
@pytest.mark.parametrize("method", RUNS)
def test_it_computes_what_fedlib_computes(method, norm):
    """Each client's net after each round, the server's, the prototypes, the loss and every accuracy.

    Prototypes are kept in single precision by fedlib: what is drawn to them differs from the sixth digit on.
    """
    settings = {"method": method, "norm": norm, "steps": 7, "lr": 0.2, "turn": 20, "seed": 3, **RUNS[method]}
    states, tolerance = played(ROUNDS, settings), 1e-5 if method == "FedProto" else 1e-9
    theirs = simulation(method, RUNS[method], states[0])
    for state in states[1:]:
        row = theirs.round()
        for worker, client in zip(theirs.workers, state["clients"], strict=True):
            own = {k: v for k, v in worker.client.net.state_dict().items() if v.is_floating_point()}
            close(own, client["path"][-1], tolerance)
            assert row["acc"][client["name"]] == pytest.approx(client["acc"], abs=1e-3)
            assert row["after"][client["name"]] == pytest.approx(client["after"], abs=1e-3)
        close(theirs.server.global_, state["server"], tolerance)
        assert row["train_loss"] == pytest.approx(state["loss"], abs=2e-6)
        if method == "FedProto":
            torch.testing.assert_close(theirs.server.protos_, torch.tensor(state["protos"]), rtol=1e-5, atol=1e-5)
    assert max(c["acc"] for c in states[-1]["clients"]) > 60        # it has learned, so that there was something to compare
