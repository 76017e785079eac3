"""What a method costs in a round, against counts by hand and against a run."""
import dataclasses
import json

import pytest
import torch
from conftest import result, small_run

from fedlib.core.errors import UserError
from fedlib.core.params import nbytes, snapshot
from fedlib.methods import METHODS
from fedlib.models.nets import Arch, build
from fedlib.probes.cost import Live, cost, memory

HEAD = 4 * (32 * 10 + 10)                   # bytes of a head: 32 features, 10 classes
NET = 4 * (2 * 25 * 3 + 2) + 4 * (4 * 25 * 2 + 4) + 4 * (32 * 4 * 4 * 4 + 32) + HEAD      # cnn4 of width 2, 28 pixels
N = 8                                       # an upload's number of samples
PROTOS = 4 * 32 * 10
SEEN, COUNTS = 10, 8 * 10                   # a bool each; an int64 each


def of(method, clients=3, **arch):
    found = cost(method, Arch(**{"net": "cnn4", "width": 2, **arch}), 10, (3, 28, 28), clients)
    return found["bytes_down"], found["bytes_up"], found["forward"], found["backward"]


@pytest.mark.parametrize("method, wanted", {
    "FedAvg": (NET, NET + N, 1, 1),
    "Local": (0, N, 1, 1),
    "FedPer": (NET - HEAD, NET - HEAD + N, 1, 1),
    "MOON": (NET, NET + N, 3, 1),                       # two frozen nets beside the one in training
    "Ditto": (NET, NET + N, 2, 2),
    "FedProto": (PROTOS + SEEN, PROTOS + COUNTS + N, 2, 1),             # one more pass for the prototypes
    "SCAFFOLD": (2 * NET, 2 * NET + N, 1, 1),
    "FedGA": (NET, NET + N + 4, 0.9 + 2 * 0.1, 0.9),    # a tenth is kept back and measured twice
    "RUCR": (NET + HEAD + PROTOS + SEEN + COUNTS, NET + HEAD + PROTOS + COUNTS + N, 2, 1),
    "FedProc": (NET + PROTOS + SEEN, NET + PROTOS + COUNTS + N, 2, 1),
    "I2PFL": (NET + PROTOS + 8 * 10, NET + PROTOS + 8 * 10 + N, 2, 1),  # a class number for each prototype
    "COPA": (NET + 2 * HEAD, NET + N, 1, 1),            # the heads of all three clients
    "FedFomo": (3 * NET, NET + N + 3 * 4, 0.8 + 4 * 0.2, 0.8),          # the nets of all three clients
}.items())
def test_costs_by_hand(method, wanted):
    assert of(method) == pytest.approx(wanted)


def test_settings_of_a_table_count():
    few, many = (cost("pFedMe", Arch("cnn4", 2), 10, (3, 28, 28), 3, {"K": k}) for k in (1, 5))
    assert (few["forward"], many["forward"], many["backward"]) == (1, 5, 5)


def test_a_server_sends_no_more_nets_than_its_method_says():
    assert of("FedFomo", clients=7)[0] == 5 * NET


@pytest.mark.parametrize("method", ["FedAvg", "FedBN", "FedProto"])
def test_bytes_are_those_of_a_run(method, tmp_path):
    row = result(small_run(method), tmp_path)[-1]
    found = cost(method, Arch("resnet10", 4), 10, (3, 28, 28), 5)
    assert (5 * found["bytes_down"], 5 * found["bytes_up"]) == (row["bytes_down"], row["bytes_up"])


def test_nets_without_a_body_and_nets_for_features():
    floats = 4 * (48 * 2 + 2)
    assert cost("FedAvg", Arch("linear"), 2, (3, 4, 4), 2) == {
        "bytes_down": floats, "bytes_up": floats + N, "floats_down": floats, "floats_up": floats, "forward": 1,
        "backward": 0}
    assert cost("FedAvg", Arch("mlp3", 10), 2, (7,), 2)["bytes_down"] == 4 * (80 + 55 + 6 + 4)
    with pytest.raises(UserError, match="images"):
        cost("FedAvg", Arch("cnn4"), 2, (7,), 2)


def test_methods_lists_the_costs_of_every_method(fedlib):
    args = ("methods", "--net", "cnn4", "--width", 2, "--shape", "3,28,28", "--clients", 2)
    code, out, err = fedlib(*args, "--json")
    listed = {m["name"]: m for m in json.loads(out)}
    assert code == 0 and err == "" and list(listed) == list(METHODS)
    keys = {"name", "kind", "settings", "limit", "summary", "bytes_down", "bytes_up", "floats_down", "floats_up",
            "forward", "backward"}
    assert "features of a frozen encoder" in listed.pop("MPFT")["no_cost"]
    prompted = ("PromptFL", "KgCoOp", "FedPGP", "FedTPG", "FedAPT", "FedDEAP")
    assert "between the stages of a ResNet" in listed.pop("StableFDG")["no_cost"]
    assert all("learns prompts" in listed.pop(n)["no_cost"] for n in prompted)
    assert listed.pop("ZeroShot")["forward"] == listed.pop("Constant")["forward"] == 0
    assert all(set(m) == keys and m["bytes_up"] > 0 and m["forward"] >= 1 - 0.2 for m in listed.values())
    assert (listed["FedAvg"]["bytes_down"], listed["MOON"]["forward"]) == (NET, 3)


def test_methods_lists_no_costs_without_a_net_and_inherited_settings_once(fedlib):
    listed = {m["name"]: m for m in json.loads(fedlib("methods", "--json")[1])}
    assert "bytes_up" not in listed["FedAvg"]
    assert listed["FedAvg"]["settings"] == {"weights": "samples"} and listed["FedAvgM"]["settings"] == {"beta": 0.9}
    assert listed["FedGA"]["settings"]["weights"] == "equal"       # not FedAvg's default
    assert {listed[n]["kind"] for n in ("FedAvgM", "FedAdam", "FedGA", "FedHEAL", "RUCR")} == {"server"}


def test_methods_in_plain_text(fedlib, monkeypatch):
    monkeypatch.setattr("fedlib.report.zoo.METHODS", {n: METHODS[n] for n in ("FedAvg", "MOON")})
    out = fedlib("methods", "--net", "cnn4")[1]
    assert "a round of a client: 3.51 MB down, 3.51 MB up, 3 forward and 1 backward passes per sample" in out
    assert out.count("MB down") == 2 and "MB" not in fedlib("methods")[1]


@pytest.mark.parametrize("args, says", [
    (("--net", "resnet"), "did you mean 'resnet"), (("--net", "cnn4", "--shape", "a"), "--shape"),
    (("--net", "mlp3"), "needs features"), (("--clients", 0), "clients")])
def test_methods_refuses_what_cannot_be_counted(fedlib, args, says):
    code, out, err = fedlib("methods", *args)
    assert code == 2 and out == "" and says in err and err.count("\n") == 1


def test_bytes_of_the_tensors_that_are_alive():
    with Live() as live:
        a = torch.zeros(1000)
        b = a + 1
        c = b.view(10, 100)[2:]     # no memory of its own
        del a
        d = torch.ones(100, dtype=torch.int64)
    assert (live.most, live.now) == (8000, 4000 + 800)
    del b, c, d
    assert live.now == 0


def test_memory_is_of_nets_and_of_what_a_step_keeps():
    """Each client more is an upload more; the larger the batch, the more the layers keep for the way back."""
    def of(width=64, clients=(2, 1, 1, 1), batch=8):
        run = small_run(net="cnn4", data={"clients": clients, "fraction": 0.25}, batch=batch)
        return memory(dataclasses.replace(run, net=dataclasses.replace(run.net, width=width)))

    few, many = of(), of(clients=(4, 2, 2, 2))
    size = nbytes(snapshot(build(Arch("cnn4", 64), 10, (3, 28, 28), 0)))
    assert few["data"] == (5 * 12 + 4 * 50) * (3 * 28 * 28 + 8)        # two clients share a test split
    assert 4.9 * size < many["peak"] - many["data"] - (few["peak"] - few["data"]) < 6 * size
    assert few["peak"] > few["data"] + 8 * size         # five uploads, the net, its gradient, the server's
    narrow, wide = (of(width=4, batch=b)["peak"] for b in (100, 200))     # more than a test has
    image = 4 * (4 * 24 * 24 + 4 * 12 * 12)
    assert 100 * image < wide - narrow < 500 * image
