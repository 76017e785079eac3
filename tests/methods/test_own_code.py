"""Methods and datasets of a user's own file or package: found by name, never instead of what is there."""
import os
import subprocess
import sys

import pytest
from conftest import ROOT, refusal

from fedlib.datasets.registry import DATASETS
from fedlib.methods import METHODS, own_code
from fedlib.models.nets import BUILDERS, TAKES

METHOD = """
from fedlib import FedAvg, method

@method
class {name}(FedAvg):
    mu: float = 0.1
    limit = dict(mu=0.0), "FedAvg"

    def loss(self, net, x, y, client):
        return super().loss(net, x, y, client) + self.mu * sum(p.square().sum() for p in net.parameters())
"""
SET = """
import numpy as np
from fedlib import dataset
from beside import CLASSES

@dataset
class Noise:
    NAME, TITLE, DOMAINS, CLASSES, SIZES, BUILT_IN = "my_noise", "Noise", ("a", "b"), CLASSES, (28,), True
    ABOUT, FILES, HOW = {}, (), ""

    @staticmethod
    def read(root, size, say=print, skip=None):
        x = np.random.default_rng(0).integers(0, 255, (40, 3, 28, 28), dtype=np.uint8)
        part = np.repeat(np.array([0, 2], np.uint8), [30, 10])
        return {d: (x, np.arange(40) % 2, part) for d in Noise.DOMAINS}, {}
"""


NET = """
from torch import nn
from fedlib import Net, net

@net("images")
def wide_cnn(classes, shape, width=0):
    width = width or 16
    body = nn.Sequential(nn.Conv2d(shape[0], width, 3, 4), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(2),
                         nn.Flatten())
    return Net(body, nn.Linear(4 * width, classes))
"""


@pytest.fixture(autouse=True)
def forgotten(monkeypatch, tmp_path):
    """What a test registers is gone after it."""
    before = [(known, dict(known)) for known in (METHODS, DATASETS, BUILDERS, TAKES)]
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for known, old in before:
        for name in set(known) - set(old):
            del known[name]
    for name in [n for n in sys.modules if n.startswith("own_") or n == "beside"]:
        del sys.modules[name]


def write(path, text):
    path.write_text(text)
    return path


def test_a_method_and_a_set_of_one_file_are_trained(fedlib, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "data"))
    write(tmp_path / "beside.py", "CLASSES = ('x', 'y')")
    mine = write(tmp_path / "mine.py", METHOD.format(name="MyDecay") + SET)
    words = ("--data", f"{mine}:my_noise", "--rounds", 1, "--set", "net=linear", "--out", tmp_path / "runs")
    code, out, _ = fedlib("train", "--from", f"{mine}:MyDecay", *words, "--set", "mu=0.5", "--save")
    path, = (tmp_path / "runs/my_noise").glob("MyDecay-*.json")
    assert code == 0 and f"record: {path}" in out
    METHODS.pop("MyDecay"), sys.modules.pop("own_mine"), DATASETS.pop("my_noise")      # as in another process
    code, _, err = fedlib("evaluate", path, "--data", "tiny_digits")
    assert code == 2 and "is of the method MyDecay, which is not known here" in err
    code, _, err = fedlib("compare", tmp_path / "runs")
    assert code == 2 and "unknown method 'MyDecay'" in err and "name its file: --from FILE.py" in err
    code, out, _ = fedlib("evaluate", path, "--data", f"{mine}:Noise", "--from", f"{mine}:MyDecay")
    assert code == 0 and "all sites" in out
    code, out, _ = fedlib("compare", tmp_path / "runs", "--from", mine)
    assert code == 0 and "MyDecay" in out


def test_a_net_of_a_file_is_trained_and_kept(fedlib, tmp_path):
    mine = write(tmp_path / "mine.py", NET)
    words = ("--data", "tiny_digits", "--rounds", 2, "--set", f"net={mine}:wide_cnn", "--out", tmp_path / "runs")
    code, out, err = fedlib("train", "FedBN", *words, "--set", "width=4", "--save")
    path, = (tmp_path / "runs/tiny_digits").glob("FedBN-*.json")
    assert code == 0 and f"record: {path}" in out, err
    assert '"net": "wide_cnn"' in path.read_text()
    for known in (BUILDERS, TAKES):
        known.pop("wide_cnn")
    del sys.modules["own_mine"]         # as in another process
    code, _, err = fedlib("evaluate", path, "--data", "tiny_digits")
    assert code == 2 and "unknown net 'wide_cnn'" in err
    assert fedlib("compare", path)[0] == 2 and fedlib("compare", path, "--from", f"{mine}:wide_cnn")[0] == 0
    for known in (BUILDERS, TAKES):
        known.pop("wide_cnn")
    del sys.modules["own_mine"]
    code, out, err = fedlib("evaluate", path, "--data", "tiny_digits", "--from", f"{mine}:wide_cnn", "--client",
                            "scans")
    assert code == 0 and "scans" in out, err


def test_nets_of_a_file_that_do_not_fit(tmp_path):
    mine = write(tmp_path / "mine.py", NET)
    refusal(lambda: own_code.net_word(f"net={mine}:wide"), "did you mean 'wide_cnn'?")
    assert own_code.net_word("net=linear") == "net=linear" and own_code.net_word("mu=0.1") == "mu=0.1"
    assert own_code.net_word(f"net={mine}:wide_cnn") == "net=wide_cnn" and TAKES["wide_cnn"] == ("images",)
    taken, linear = write(tmp_path / "taken.py", NET.replace("wide_cnn", "linear")), BUILDERS["linear"]
    refusal(lambda: own_code.net_word(f"net={taken}:linear"), "registers linear, which is there already")
    assert BUILDERS["linear"] is linear and TAKES["linear"] == ("images", "features")
    text = write(tmp_path / "text.py", NET.replace('"images"', '"sounds"'))
    refusal(lambda: own_code.net_word(f"net={text}:wide_cnn"), "kind of data 'sounds'")


def test_mistakes_in_files_of_ones_own(tmp_path):
    mine = write(tmp_path / "mine.py", METHOD.format(name="MyDecay"))
    for word in ("mine.py", str(mine), f"{tmp_path}/absent.py:MyDecay", "MyDecay"):
        refusal(lambda word=word: own_code.method_name(word), "write FILE.py:NAME")
    refusal(lambda: own_code.method_name(f"{mine}:MyDecy"), "did you mean 'MyDecay'?")
    refusal(lambda: own_code.dataset_name(f"{mine}:my_set"), "registers no dataset: write @dataset")
    assert own_code.dataset_name("pacs") == "pacs" and own_code.method_name(f"{mine}:MyDecay") == "MyDecay"
    taken, fedavg = write(tmp_path / "taken.py", METHOD.format(name="FedProx")), METHODS["FedProx"]
    refusal(lambda: own_code.method_name(f"{taken}:FedProx"), "registers FedProx, which is there already")
    assert METHODS["FedProx"] is fedavg and "own_taken" not in sys.modules
    for text, words in (("x = 1\nx.y", "AttributeError"), ("def f(:", "line 1"), ("import not_here", "not_here")):
        refusal(lambda text=text: own_code.method_name(f"{write(tmp_path / 'bad.py', text)}:A"), "cannot be run", words)


def test_a_package_names_its_methods_and_sets_as_entry_points(tmp_path):
    """In a process of its own: they are read when fedlib is imported."""
    about = tmp_path / "mine-1.0.dist-info"
    about.mkdir()
    write(about / "METADATA", "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    write(about / "entry_points.txt", "[fedlib.methods]\nMyDecay = mine:MyDecay\n"
          "[fedlib.datasets]\nmy_noise = mine:Noise\npacs = mine:Noise\n")
    write(tmp_path / "beside.py", "CLASSES = ('x', 'y')")
    write(tmp_path / "mine.py", METHOD.format(name="MyDecay") + SET)
    program = ("from fedlib import METHODS; from fedlib.datasets.registry import reader_of as r; "
               "print(METHODS['MyDecay'].mu, r('my_noise').TITLE, r('pacs').TITLE)")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT,
                          env=os.environ | {"PYTHONPATH": f"{ROOT}:{tmp_path}"})
    assert done.stdout == "0.1 Noise PACS\n", done.stderr
