"""The zoo's pages: one for each kind of method, and the numbers that their texts state."""
import json
from pathlib import Path

import pytest
import torch

from fedlib import METHODS, Arch
from fedlib.models import nets
from fedlib.probes.cost import cost
from fedlib.report import crosschecks, zoo

ROOT = Path(__file__).resolve().parents[2]
PAGES = {path.stem: json.loads(path.read_text()) for path in (ROOT / "notebooks/zoo").glob("*.ipynb")}


def test_every_kind_of_method_has_a_page_that_shows_it_and_names_its_file():
    assert set(PAGES) == {zoo.kind(name) for name in METHODS} - {"averaging"} | {"crosschecks"}
    for kind, page in PAGES.items():
        text = "".join("".join(cell["source"]) for cell in page["cells"])
        assert kind == "crosschecks" or f'zoo.of_kind("{kind}")' in text and f"`fedlib/methods/{kind}.py`" in text


def test_adapters_and_mpft_as_the_features_page_counts_them():
    def numbers(net):
        made = nets.build(Arch(net=net, head="frozen"), 10, (512,), 0, head=torch.ones(10, 512))
        return sum(p.numel() for p in made.parameters())
    assert (numbers("adapter"), numbers("attention")) == (131_072, 525_312)
    assert 24 * 131_072 / 512 == 6_144                              # up alone
    assert (2 * 24 * 131_072 - 131_072) / 512 == 12_032             # up and down; MPFT sends one adapter down
    costs = zoo.costs(["FedAvg", "MPFT"], net={"net": "adapter", "head": "frozen"}, shape=(512,))
    assert list(costs["forward passes"]) == [1, 0]


@pytest.mark.parametrize(("name", "more", "networks"), [("PromptFL", {}, 0), ("FedDEAP", {"local_tokens": 4}, 2)])
def test_prompts_cost_their_vectors_and_networks(name, more, networks):
    up = cost(name, Arch(net="identity", head="prompts"), 10, (128,), 10, {"tokens": 4} | more)["bytes_up"]
    assert up == 4 * (10 * 4 * 128 + networks * (128 * 64 + 64 + 64 * 128 + 128)) + 8


def test_feddeaps_message_in_the_exercise():
    context, network = 126 * 16 * 512, 512 * 256 + 256 + 256 * 512 + 512
    assert (context, network) == (1_032_192, 262_912)
    assert round(2 * (context + 2 * network) / 2**20, 2) == 2.97
    assert round(2 * (24 * 126 * 512 + network) / 2**20, 2) == 3.45


def test_crosschecks_compare_round_by_round(tmp_path):
    path = tmp_path / "crosschecks.json"
    assert crosschecks.explained(crosschecks.read(path)).empty and crosschecks.curves(crosschecks.read(path)).empty
    runs = {"pfllib": {"0": [10.0, 20.0]}, "fedlib": {"0": [10.0, 23.5]}, "differences": "one", "verified": "so"}
    path.write_text(json.dumps({"settings": {}, "methods": {"FedAvg": runs}}))
    checks = crosschecks.read(path)
    curves = crosschecks.curves(checks)
    assert list(curves.fedlib - curves.PFLlib) == [0, 3.5] and list(curves.index) == [("FedAvg", 1), ("FedAvg", 2)]
    assert crosschecks.explained(checks).loc["FedAvg", "shown by"] == "so" and crosschecks.setting(checks).empty


def test_fedavg_is_the_same_program_twice():
    checks = crosschecks.read(ROOT / "results/crosschecks.json")
    fedavg = crosschecks.curves(checks).loc["FedAvg"]
    assert len(fedavg) == 20 and (fedavg.fedlib == fedavg.PFLlib).all() and "partition" in crosschecks.setting(checks).T
