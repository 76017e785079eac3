"""Whole runs beside a plain loop: both learn alike, what is kept is read again; learning nothing is no measure."""
import json
import runpy
from pathlib import Path

import pytest
import torch

from fedlib.core.errors import UserError
from fedlib.core.federation import as_input
from fedlib.models.nets import Halved, build
from fedlib.probes import whole_runs
from fedlib.report import costs

ROOT = Path(__file__).parents[2]
TINY = whole_runs.Whole("tiny", 4, 40, 28, 200, {"net": "linear"},
                        {"rounds": 4, "cohort": 4, "batch": 10, "lr": 0.003, "test_every": 2})
KEPT = {way: {"seconds": s, "peak_mb": 900, "accuracy": 60.0} for way, s in (("ours", 2.5), ("plain", 2.0))}


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setitem(whole_runs.WHOLE, "tiny", TINY)
    monkeypatch.setattr(whole_runs, "LONG", 0.0)


def test_both_ways_learn_as_much(tiny):
    """All clients take part and all have as many samples, so the two differ by the order of samples only."""
    found = {way: whole_runs.once("tiny", way) for way in whole_runs.WAYS}
    assert min(f["accuracy"] for f in found.values()) > 60
    assert abs(found["ours"]["accuracy"] - found["plain"]["accuracy"]) < 5
    assert all(f["seconds"] > 0 and f["peak_mb"] > 100 for f in found.values())


def test_others_get_a_net_of_torchs_own_layers_with_the_same_numbers():
    run, federation = whole_runs.asked("users")
    net = whole_runs.first_net(run, federation)
    mine = build(run.net, 10, (3, 32, 32), run.seed)
    assert {type(m) for m in net.modules()}.isdisjoint({Halved}) and Halved in {type(m) for m in mine.modules()}
    x = as_input(federation.clients[0].train.x[:4])
    assert torch.equal(net(x), mine(x))


@pytest.mark.parametrize("net", ["cnn4", "linear"])
def test_the_plain_loop_with_our_pool_is_asked_where_the_net_has_one(monkeypatch, net):
    """And learns to the last bit what the plain loop learns: both draw the same orders."""
    size = {"width": 4} if net == "cnn4" else {}
    monkeypatch.setitem(whole_runs.WHOLE, "tiny", TINY._replace(net={"net": net} | size))
    monkeypatch.setattr(whole_runs, "WAYS", dict(whole_runs.WAYS))
    script = runpy.run_path(str(ROOT / "workflow/others/plain_with_fedlibs_pool.py"))
    torch.manual_seed(0)
    found = script["main"]("tiny")
    assert (found is None) == (net == "linear")
    if found:
        torch.manual_seed(0)
        assert found["accuracy"] == whole_runs.once("tiny", "plain")["accuracy"] and found["version"]


@pytest.mark.parametrize("side", [28, 0])
def test_samples_are_views_of_one_tensor(side):
    clients = whole_runs.made_up(TINY._replace(side=side)).clients
    assert clients[0].train.x.shape[1:] == ((3, 28, 28) if side else (whole_runs.FEATURES,))
    assert len({c.train.x.untyped_storage().data_ptr() for c in clients}) == 1
    assert not torch.equal(clients[0].train.x, clients[1].train.x) and clients[0].test is clients[3].test


def test_a_run_that_learns_nothing_is_no_measure(tiny, monkeypatch, tmp_path):
    """A system may leave a workload out; it is asked once."""
    class Done:
        def __init__(self, accuracy):
            found = {"seconds": 1.0, "peak_mb": 500, "accuracy": accuracy}
            self.returncode, self.stdout = 0, "a warning\n" + json.dumps(found if accuracy else None)
    values = iter([])
    monkeypatch.setattr(whole_runs.subprocess, "run", lambda *_, **__: Done(next(values)))
    (tmp_path / "theirs.py").touch()
    values = iter([60.0, 61.0, None] + [60.0, 61.0] * (whole_runs.PAIRS - 1))
    found = whole_runs.measure("tiny", others=tmp_path)
    assert found["ratio"] == [1.0, 1.0, 1.0] and not found["others"] and not list(values) and found["turns"] == 5
    for pair in ([11.0, 10.0], [60.0, 50.0]):
        values = iter(pair * whole_runs.PAIRS)
        with pytest.raises(UserError, match="learn too little, or differ in it"):
            whole_runs.measure("tiny")


def test_a_short_run_has_more_turns_and_the_plain_loop_with_it(tiny, monkeypatch, tmp_path):
    """Theirs takes four times as long, so that five turns are enough; each turn has a ratio of its own."""
    taken = {"plain": 2.0, "ours": 2.0, "theirs": 8.0}
    monkeypatch.setattr(whole_runs, "LONG", 30.0)
    monkeypatch.setattr(whole_runs, "apart", lambda way, command: {
        "seconds": taken[way], "peak_mb": 500, "accuracy": 60.0, "version": "1.0"})
    (tmp_path / "theirs.py").touch()
    found = whole_runs.measure("tiny", others=tmp_path)
    assert found["turns"] == 15 and found["others"]["theirs"]["turns"] == 5
    assert found["others"]["theirs"]["ratio"] == [4.0, 4.0, 4.0] and found["ratio"] == [1.0, 1.0, 1.0]


def test_another_system_runs_in_its_own_process_with_its_own_packages(tmp_path):
    """A script that says what it was asked, and where its packages would be; one that fails is named."""
    script = tmp_path / "theirs.py"
    script.write_text("import json, os, sys\nprint('a word')\n"
                      "print(json.dumps([sys.argv[1:], os.environ['PYTHONPATH']]))")
    asked, packages = whole_runs.apart("theirs", [str(script), "tiny"])
    assert asked == ["tiny"] and packages.endswith("build/others/theirs")
    script.write_text("import sys\nsys.exit('no such package')")
    with pytest.raises(UserError, match="theirs failed: no such package"):
        whole_runs.apart("theirs", [str(script), "tiny"])


def test_what_was_measured_is_kept_read_and_shown(tiny, monkeypatch, tmp_path):
    other = {"theirs": KEPT["plain"] | {"ratio": [3.0, 2.9, 3.1], "turns": 5, "version": "1.0"}}
    monkeypatch.setattr(whole_runs, "measure", lambda name, others: {
        "title": name, "turns": 9, "ratio": [1.25, 1.2, 1.4], **KEPT, "others": other if name == "users" else {}})
    said = []
    here = whole_runs.everything(tmp_path, say=said.append)
    assert said == [f"» {name}" for name in whole_runs.WHOLE] and here.suffix == ".whole"
    (hardware, found), = whole_runs.read(tmp_path).items()
    assert list(found["runs"]) == list(whole_runs.WHOLE)
    head, first, second, *lines = whole_runs.lines(found["runs"])
    assert len(lines) == len(whole_runs.WHOLE) - 1 and "1.25 (1.20, 1.40)" in first and len(first) == len(head)
    assert "the same with theirs 1.0" in second and "3.00 (2.90, 3.10)" in second and len(second) == len(head)
    shown = []
    monkeypatch.setattr(costs.text, "display", lambda *each: shown.extend(each))
    costs.whole({hardware: found})
    title, table = shown[0].data, shown[1].data
    assert title == f"**On {hardware}**"
    assert table["of the plain loop's"].tolist() == ["1.25", "3.00"] + ["1.25"] * len(lines)
    assert table.turns.tolist()[:2] == [9, 5]
    assert table["memory, MB"][0] == "900 (900)" and table.system[:2].tolist() == ["fedlib", "theirs 1.0"]
    bars = costs.beside({hardware: found}).axes[0]
    assert [t.get_text() for t in bars.get_yticklabels()][0] == "users"
    assert costs.NOTHING in costs.beside({}).data
    assert costs.NOTHING in costs.whole({}).data
    whole_runs.everything(tmp_path, only="tiny", say=said.append)
    assert said[-1] == "» tiny" and list(whole_runs.opened(here)["runs"]) == list(whole_runs.WHOLE)
    monkeypatch.setattr(whole_runs.machine, "commit", lambda: "another")
    whole_runs.everything(tmp_path, only="tiny", say=said.append)
    codes = {name: one["commit"] for name, one in whole_runs.opened(here)["runs"].items()}
    assert codes.pop("tiny") == "another" and "another" not in codes.values()
    here.write_text("{}")
    with pytest.raises(UserError, match="is not a measurement"):
        whole_runs.read(tmp_path)


def test_the_command_names_what_it_knows(fedlib):
    code, _, err = fedlib("bench", "--whole", "--only", "thousands")
    assert code == 2 and "did you mean 'thousand'?" in err
    code, _, err = fedlib("bench", "--whole", "--device", "cuda")
    assert code == 2 and "--whole measures on a CPU" in err
    code, _, err = fedlib("bench", "--others", ".")
    assert code == 2 and "add --whole" in err
