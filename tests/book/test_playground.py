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
from fedlib.engine.loop import Simulation
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
    assert max(c["acc"] for c in states[-1]["clients"]) > 60        # it has learned


@pytest.mark.parametrize("lr, falls", [(0.01, False), (3, True)])
def test_no_number_is_drawn_that_is_none(lr, falls):
    """With extreme settings a federation is either said to have diverged or finite in all that is drawn."""
    ends = javascript(f"""Object.keys(federation.METHODS).flatMap(method => [false, true].map(norm => {{
        const settings = {{method, norm, steps: 10, lr: {lr}, mu: 10, lam: 3, shift: 2.5, turn: 90}};
        let state = federation.begin(settings), fallen = false;
        for (let round = 0; round < 4 && !fallen; round++) {{
            const next = federation.play(state);
            fallen = federation.diverged(next);
            if (!fallen) state = next;
        }}
        const drawn = [federation.drift(state) ?? 0, state.protos ?? 0,
                       state.clients.map(c => [c.acc, c.net, c.trained])];
        return [fallen, !JSON.stringify(drawn).includes("null")];
    }}))""")
    assert all(finite for _, finite in ends)
    assert any(fallen for fallen, _ in ends) == falls


# --- what the page says ---

TEXT = PAGE.read_text(encoding="utf-8")
LESSONS = dict(re.findall(r"^\d\. \*\*(.+?)\.\*\* (.+?)\n(?=\n|::::)", TEXT, re.M | re.S))


def tries(lesson: str) -> list[tuple[dict, int]]:
    """What the buttons of a lesson set up, and for how many rounds they play it."""
    found = re.findall(r"data-try='(\{.*?\})' data-rounds=\"(\d+)\"", LESSONS[lesson])
    return [(json.loads(settings), int(rounds)) for settings, rounds in found]


def ended(settings: dict, rounds: int, then: str = "") -> dict:
    """Where a run ends; `then` are statements that change `state` further."""
    return javascript(f"""(() => {{
        let state = federation.begin({json.dumps(settings)});
        const play = rounds => {{ for (let i = 0; i < rounds; i++) state = federation.play(state); }};
        play({rounds}); {then}
        const moves = federation.drift(state);
        return {{acc: state.clients.map(c => c.acc), after: state.clients.map(c => c.after), protos: state.protos,
                 own: state.clients.map(c => c.protos), far: moves && moves.far, cancels: moves && moves.cancels,
                 travels: federation.traffic(state), fallen: federation.diverged(state)}} }})()""")


def mean(values) -> float:
    return sum(values) / len(values)


def test_a_shift_lowers_accuracy_at_once():
    (run,) = tries("Shift")
    down = "state = federation.moved(state, [[0, 0], [0, 0], [0, -1.5]]);"       # three times 0.5
    before, moved, later = ended(*run), ended(*run, down), ended(*run, f"{down} play(40)")
    assert min(before["acc"]) > 95
    assert moved["acc"][:2] == before["acc"][:2] and moved["acc"][2] < before["acc"][2] - 30
    assert later["acc"][2] > moved["acc"][2] + 15 and before["cancels"] < 0.7 and later["cancels"] > 0.98


def test_many_steps_drift_under_a_shift():
    runs = tries("Drift")
    assert [settings["steps"] * rounds for settings, rounds in runs] == [200] * 3
    assert "200 local steps" in LESSONS["Drift"]
    few, many, alike = (ended(*run) for run in runs)
    assert min(few["acc"]) > 90 and min(many["after"]) > 95 and max(many["acc"]) < 75
    assert min(alike["acc"]) > 95 and mean(alike["far"]) < mean(many["far"]) / 5


def test_one_step_each_is_a_step_on_the_loss_of_all():
    """The average of the clients' nets equals one net after a step on the mean of their gradients."""
    first, second = played(1, {"steps": 1})
    theirs = simulation("FedAvg", {}, first)
    net, clients = net_of(first["clients"][0]["path"][0]), theirs.federation.clients
    x, y = torch.cat([c.train.x for c in clients]), torch.cat([c.train.y for c in clients])
    nn.functional.cross_entropy(net(x), y).backward()
    torch.optim.SGD(net.parameters(), first["settings"]["lr"]).step()
    close(net.state_dict(), second["server"], 1e-9)


def test_a_rope_holds_the_clients_and_gains_no_accuracy():
    *runs, overshooting = tries("A rope")
    free, loose, short = (ended(*run) for run in runs)
    assert mean(free["far"]) > 1.5 * mean(loose["far"]) > 3 * mean(short["far"])
    assert max(mean(loose["acc"]), mean(short["acc"])) <= mean(free["acc"])
    assert overshooting[0]["lr"] * overshooting[0]["mu"] > 2 and ended(*overshooting)["fallen"]


def test_a_norm_layer_of_ones_own_undoes_a_move_and_not_a_turn():
    shared, own, turned = (ended(*run) for run in tries("A look of one's own"))
    assert max(shared["acc"]) < 75 and min(own["acc"]) > 95
    assert min(turned["acc"]) < 50 and mean(turned["acc"]) < 70 and turned["cancels"] > 0.98


def test_prototypes_bring_features_together():
    """Nothing but 3 classes x (2 features and a count) travels."""
    strangers, together = (ended(*run) for run in tries("Prototypes"))

    def apart(end):
        return max(torch.dist(torch.tensor(p), torch.tensor(q)).item()
                   for own in end["own"] for p, q in zip(own, end["protos"], strict=True))
    assert min(strangers["acc"] + together["acc"]) > 95 and apart(strangers) > 10 * apart(together)
    assert together["travels"] == 9 and "nine numbers" in LESSONS["Prototypes"]


def test_the_page_counts_rightly():
    begun = played(0, {})[0]
    assert ended({}, 1)["travels"] == 51 and "51 weights" in TEXT
    assert {len(c[split]["y"]) for c in begun["clients"] for split in ("train", "test")} == {60}
    assert "60 points for training and 60 for tests" in TEXT


def test_it_is_small_and_asks_nobody():
    files = [PAGE, *CORE.parent.iterdir()]
    assert sum(f.stat().st_size for f in files) < 100_000
    assert not [f.name for f in files if re.search(r"https?:|import |fetch\(|XMLHttp", f.read_text(encoding="utf-8"))]
