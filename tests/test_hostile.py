"""Files that somebody crafted or damaged: refused in one line, and nothing in them is executed."""
import contextlib
import copy
import dataclasses
import hashlib
import importlib.util
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import nbformat
import pytest
import small_paper
import tiny_features
import torch
from conftest import ROOT, interrupted, quiet, small_run
from hostile import changed, crafted, garbled, toml, unpacked
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors
from safetensors.torch import save

from fedlib import cli
from fedlib.core.errors import UserError
from fedlib.core.params import flatten
from fedlib.datasets import feature_cache, prepare, splits
from fedlib.datasets.partition import Data, federate
from fedlib.engine import loop, records, stack
from fedlib.engine.checkpoint import checksum, resume
from fedlib.engine.loop import Simulation
from fedlib.experiments import batch, failures, filled, named_partitions, rules, status, tables
from fedlib.experiments.claims import judge_claims
from fedlib.models import encoders, mini_clip
from fedlib.probes import bench, embeddings, leakage

CASES = 1000
LOTS = settings(max_examples=CASES, deadline=None, database=None, derandomize=True,
                suppress_health_check=list(HealthCheck))
CLAIM = """
[[claims]]
id = "c"
source = "here"
says = "One is better."
table = "t"
block = "b"
setting = "avg"
better = "FedAvg"
than = ["FedProx"]
"""
ROWS = '{ name = "FedAvg" }, { name = "FedProx", at = { mini = { mu = 0.1 } }, profiles = ["mini"] }'
PAPER = small_paper.content(ROWS, protocol='rounds = 2, lr = 0.05, evaluate = "both"', more=CLAIM)
RULES = ("last", "last5", "best-val", "best-val-loss", "best-test")


def every(strategy, call, least: int = CASES // 10):
    """Call with CASES cases: each gives an answer or is refused by a UserError, and both happen."""
    seen = Counter()

    @LOTS
    @given(strategy)
    def each(case):
        try:
            call(case)
            seen["taken"] += 1
        except UserError as error:
            seen["refused"] += 1
            assert str(error)
    each()
    assert seen.total() >= CASES and seen["refused"] >= least, seen
    return seen


def answer(*words):
    """The command line in this process; UserError when it said one line and returned 2."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli.call([str(w) for w in words])
    lines = err.getvalue().splitlines()
    assert (code, len(lines)) in ((0, 0), (2, 1)), err.getvalue()
    if code:
        raise UserError(lines[0])
    return out.getvalue()


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A table of two runs, the first of which has a record: (the folder of papers, results, the planned runs)."""
    papers = small_paper.use(tmp_path, monkeypatch, PAPER)
    planned = tables.load_table("small/t").runs("mini")
    loop.train(planned[0].run, tmp_path / "r")
    return papers, tmp_path / "r", planned


# plain data

def test_papers(small):
    papers, results, _ = small
    real = tomllib.loads(PAPER)

    def read(text):
        (papers / "small.toml").write_bytes(text)
        for ident in tables.idents():
            for profile in tables.PROFILES:
                tables.load_table(ident).runs(profile)
        answer("status", "small/t", "--results", results)
    every(changed(real).map(lambda v: toml(v).encode()) | garbled(PAPER.encode()), read)


def test_partitions(tmp_path, monkeypatch):
    listed = tomllib.loads(named_partitions.LISTED.read_text())
    real = {k: listed[k] for k in ("i2pfl_office", "i2pfl_office_without", list(listed)[-1])}
    monkeypatch.setattr(named_partitions, "LISTED", tmp_path / "p.toml")
    every(changed(real).map(lambda v: toml(v).encode()) | garbled(toml(real).encode()),
          lambda text: (named_partitions.LISTED.write_bytes(text), answer("partition", "--json")))


def test_stored_partitions(tmp_path, monkeypatch):
    kept = named_partitions.stored()
    real = {k: kept[k] | {"clients": kept[k]["clients"][:2]} for k in list(kept)[:2]}
    monkeypatch.setattr(named_partitions, "FILE", tmp_path / "p.json")

    def read(text):
        named_partitions.FILE.write_bytes(text)
        for found in named_partitions.stored().values():
            assert isinstance(found["digest"], str) and all(isinstance(n, int) for c in found["clients"]
                                                            for n in c["per_class"])
        named_partitions.load_named("i2pfl_office")
    every(json_or_bytes(real), read)


def json_or_bytes(real):
    return changed(real).map(lambda v: json.dumps(v).encode()) | garbled(json.dumps(real, indent=1).encode())


def test_stored_splits(tmp_path, monkeypatch):
    y = torch.arange(10).repeat(2)
    domain = splits.Domain("pacs", "photo", y, torch.zeros(20, dtype=torch.uint8), "00ff")
    real = {"says": "", "domains": {"photo": {"samples": 20, "names": "00ff", "test": f"{0b1011 << 9:05x}"},
                                    "sketch": {"samples": 3, "names": "11", "test": "5"}}}
    monkeypatch.setattr(splits, "STORED", tmp_path)
    rule = splits.stored("s")

    def read(text):
        (tmp_path / "s.json").write_bytes(text)
        parts = rule(domain)
        assert len(parts.train) + len(parts.test) == 20
    every(json_or_bytes(real), read)


def test_records(small):
    _, results, planned = small
    path, table = planned[0].run.path(results), tables.load_table("small/t")
    real = json.loads(path.read_text())

    def read(text):
        path.write_bytes(text)
        answer("status", "small/t", "--profile", "mini", "--results", results)
        record = records.read_record(path)
        for rule in RULES:
            with contextlib.suppress(UserError):
                assert all(0 <= v <= 100 for v in rules.select(record, rule).values())
        batch.differences(results, results)
        if read.calls % 20 == 0:        # pandas is slow
            filled.compare(table, "mini", results, when="after")
            filled.curves(table, "mini", results)
            judge_claims(table, "mini", results)
            filled.provenance(table, "mini", results)
        read.calls += 1
    read.calls = 0
    every(json_or_bytes(real), read)


def test_a_leave_one_out_record_needs_the_unseen_domain(small):
    _, results, _ = small
    table = tables.load_table("small/t")
    unseen = [p._replace(unseen="street") for p in table.runs("mini")]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(UserError, match="has no 'unseen', which small/t shows"):
        patch.setattr(tables.Table, "runs", lambda *a: unseen)
        filled.values(table, "mini", results)


def test_failures(small):
    """A damaged failure record is no reason for a command to fail."""
    _, results, planned = small
    failures.write(planned[1], UserError("lower lr"), results)
    path = failures.path(planned[1].run, results)
    real = json.loads(path.read_text())
    damaged = Counter()

    def read(text):
        path.write_bytes(text)
        said = answer("status", "small/t", "--profile", "mini", "--results", results)
        assert "1 failed" in said and "failed: " in said
        damaged[failures.read(planned[1], results)["kind"] == failures.UNKNOWN] += 1
    every(json_or_bytes(real), read, least=0)
    assert damaged[True] > CASES // 10


def test_measurements(small):
    _, results, planned = small
    run = planned[0].run
    path, real = run.beside(results, "leakage"), {"digest": run.digest, "round": 6, "pairs": 500, "nats": 1.093}
    every(json_or_bytes(real), lambda text: (path.write_bytes(text), leakage.read(run, results)["nats"] + 1))


def test_machines_measured(tmp_path):
    folder = tmp_path / "bench"
    folder.mkdir()
    one = {"title": "a", "seconds": {"ours": 1.0, "floor": 1.0, "plain": 2.0}, "overhead": 0.1, "gain": 2.0, "stack": 1}
    every(json_or_bytes({"made": {"hardware": "h"}, "workloads": {"a": one, "b": one}}), lambda text: (
        (folder / "a.bench").write_bytes(text), [bench.lines(m["workloads"]) for m in bench.read(tmp_path).values()]))


def test_what_stacking_remembers(tmp_path, monkeypatch):
    """It is measured again where the file is damaged; what is found is used as a number of clients."""
    simulation = Simulation(small_run(net="linear"))
    monkeypatch.setattr(prepare, "folder", lambda: tmp_path)
    monkeypatch.setattr(stack, "gain", lambda workers: 10.0)

    def choose():
        return stack.choose("auto", simulation.run, simulation.workers[:2], map(simulation.message, (0, 1)), 0, "cpu")
    assert choose() == 2
    real, seen = json.loads((tmp_path / "stack.json").read_text()), Counter()

    def read(text):
        (tmp_path / "stack.json").write_bytes(text)
        seen[choose()] += 1
    every(json_or_bytes(real), read, least=0)
    assert seen.keys() == {1, 2}


# prepared sets

@pytest.fixture
def store(tmp_path, monkeypatch):
    """tiny_features in a folder of its own, where it is not made again: (tensors, manifest)."""
    prepare.load_set("tiny_features")
    paths = prepare.paths("tiny_features", 49)
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    for p in paths:
        shutil.copy(p, tmp_path / p.name)
    monkeypatch.setattr(tiny_features, "BUILT_IN", False)
    return prepare.paths("tiny_features", 49)


def test_manifests(store):
    real = json.loads(store[1].read_text())
    every(json_or_bytes(real), lambda text: (store[1].write_bytes(text), federate(Data("tiny_features"), 0)))


def test_tensors_of_prepared_sets(store):
    """The manifest agrees with the bytes, so what is wrong must be found inside the file."""
    content, manifest = store[0].read_bytes(), json.loads(store[1].read_text())

    def read(case):
        store[0].write_bytes(case)
        store[1].write_text(json.dumps(manifest | {"bytes": len(case), "digest": hashlib.sha256(case).hexdigest()}))
        federate(Data("tiny_features"), 0)
    every(crafted(content), read)


def test_features_of_encoders(tmp_path, monkeypatch):
    """A file beside the set, and one that is brought from elsewhere."""
    monkeypatch.setattr(encoders, "at_hand", lambda name: False)
    manifest = prepare.load_set("tiny_features").manifest
    about = {"format": feature_cache.FORMAT, "encoder": "mini_clip", "weights": "ab", "transform": "none", "texts": "",
             "dtype": "float16", "set": manifest["digest"], "name": "tiny_features", "size": 49, "dim": 4}
    tensors = {d: torch.zeros(sum(n["per_class"]), 4).half().numpy() for d, n in manifest["domains"].items()}
    real = prepare.load_set("tiny_features")
    monkeypatch.setattr(prepare, "load_set", lambda *a: real)
    monkeypatch.setattr(prepare, "folder", lambda: tmp_path / "here")
    (tmp_path / "here").mkdir()
    path = feature_cache.path_of(about)
    feature_cache.write_features(path, tensors, about)
    content = path.read_bytes()
    feature_cache.load_features("tiny_features", 49, "mini_clip")

    def read(case):
        (tmp_path / "brought").write_bytes(case)
        path.write_bytes(content)
        if read.turn:
            feature_cache.adopt(tmp_path / "brought", "tiny_features", 49, "mini_clip", quiet)
        else:
            path.write_bytes(case)
        read.turn = not read.turn
        feature_cache.load_features("tiny_features", 49, "mini_clip")
    read.turn = False
    every(crafted(content), read)


# checkpoints and weights

@pytest.fixture
def partial(tmp_path):
    """A checkpoint after the first round, and what starts anew from it: (path, start)."""
    run = small_run("FedPer", net="linear", data={"name": "tiny_features", "clients": ()})
    federation = federate(run.data, run.seed)
    path = interrupted(run, tmp_path)

    def start():
        clients = [copy.copy(c) for c in federation.clients]
        simulation = Simulation(run, dataclasses.replace(federation, clients=clients))
        resume(path, simulation)
        server = {k: v for k, v in vars(simulation.server).items() if k.endswith("_")}
        return simulation.rounds, flatten({"server": server, "clients": {w.client.id: w.kept()
                                                                         for w in simulation.workers}})
    return path, start


def test_checkpoints(partial, small):
    """Whatever is taken is what was written."""
    path, start = partial
    content, (rounds, state) = path.read_bytes(), start()
    planned = small[2][0]._replace(run=small_run("FedPer", net="linear", data={"name": "tiny_features", "clients": ()}))

    def read(case):
        path.write_bytes(case)
        assert 0 <= status.begun(planned, path.parent.parent) <= 1
        found, again = start()
        assert again.keys() == state.keys() and all(torch.equal(again[k], v) for k, v in state.items())
        assert [r["round"] for r in found] == [r["round"] for r in rounds]
    every(crafted(content), read, least=CASES // 2)


def test_checkpoints_with_a_right_sum(partial):
    """Other names, types and shapes are found where the sum agrees, and where it is another version's too."""
    path, start = partial
    tensors = load_tensors(path.read_bytes())
    about = json.loads(unpacked(path.read_bytes())[0]["__metadata__"]["about"])
    shapes = {k: v.shape for k, v in start()[1].items()}

    def read(case):
        names, dtype, shape, rounds = case
        wrong = dict(tensors)
        for name, how in names.items():
            value = wrong.pop(name)
            if how == "type":
                wrong[name] = value.to(dtype)
            elif how == "shape":
                wrong[name] = value.new_zeros(shape)
            elif how == "name":
                wrong[name.replace("clients", "server") + "/x"] = value
        rounds = about | {"rounds": rounds, "sum": checksum(wrong, rounds)}
        path.write_bytes(save(wrong, {"about": json.dumps(rounds)}))
        assert {k: v.shape for k, v in start()[1].items()} == shapes
    how = st.sampled_from(["type", "shape", "name", "drop"])
    ways = st.dictionaries(st.sampled_from(sorted(tensors)), how, max_size=2)
    dtypes = st.sampled_from([torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool])
    every(st.tuples(ways, dtypes, st.lists(st.integers(0, 3), max_size=3), st.just(about["rounds"])
                    | changed(about["rounds"])), read)


def test_weights(tmp_path, monkeypatch):
    net = torch.nn.Linear(4, 2)
    monkeypatch.setattr(mini_clip, "FILE", tmp_path / "w.safetensors")
    monkeypatch.setattr(mini_clip, "TABLE", "weight")
    monkeypatch.setattr(mini_clip, "untrained", lambda words: copy.deepcopy(net))
    monkeypatch.setattr(mini_clip, "drawn_rows", lambda: torch.zeros(2, 4))
    content = save({"weight": torch.ones(2, 4).half(), "bias": torch.ones(2).half(), "tokens": torch.arange(2)},
                   {"about": "{}"})

    def read(case):
        mini_clip.FILE.write_bytes(case)
        assert {k: v.shape for k, v in mini_clip.trained().state_dict().items()} == {"weight": (2, 4), "bias": (2,)}
    every(crafted(content), read)


def test_features_beside_a_record(tmp_path):
    run = small_run(net="linear")
    path = run.beside(tmp_path, "features")
    path.parent.mkdir()
    content = save({"scans/z": torch.zeros(3, 4).half(), "scans/y": torch.zeros(3).long(),
                    "street/z": torch.zeros(2, 4).half(), "street/y": torch.zeros(2).long()}, {"about": "{}"})

    def read(case):
        path.write_bytes(case)
        z, y, domains = embeddings.read(run, ["scans", "street"], tmp_path)
        assert len(z) == len(y) == len(domains)
    every(crafted(content), read)


# notebooks and the book's memory

@pytest.fixture(scope="module")
def build():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "book")        # as when it is started as a script
        return importlib.import_module("build")


def test_notebooks(build, tmp_path):
    cells = [nbformat.v4.new_markdown_cell("# One"),
             nbformat.v4.new_code_cell('profile = "mini"', metadata={"tags": ["parameters"]}),
             nbformat.v4.new_code_cell("print(1)")]
    real = json.loads(nbformat.writes(nbformat.v4.new_notebook(cells=cells)))
    path = tmp_path / "one.ipynb"

    def read(text):
        path.write_bytes(text)
        try:
            assert all(isinstance(name, str) for name in build.parameters(path))
        except build.Broken as error:
            raise UserError(str(error)) from None
    every(json_or_bytes(real), read)


def test_what_the_book_remembers(build, tmp_path):
    """Damaged, it means that nothing is done."""
    stamps = tmp_path / "digests.json"

    def read(text):
        stamps.write_bytes(text)
        assert all(isinstance(v, str) for kv in build.remembered(stamps).items() for v in kv)
    every(json_or_bytes({"concepts/one": "ab", "book": "cd"}), read, least=0)
    assert build.remembered(tmp_path / "absent") == {}


# nothing is executed

class Bomb:
    """A pickle that writes a file when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture(params=["pickle", "torch"])
def bomb(request, tmp_path):
    """(bytes, the file that they would write)."""
    trap = tmp_path / "trapped"
    if request.param == "pickle":
        return pickle.dumps(Bomb(trap)), trap
    torch.save({"weight": Bomb(trap)}, tmp_path / "b.pt")
    return (tmp_path / "b.pt").read_bytes(), trap


def test_a_bomb_explodes_where_it_is_trusted(bomb, tmp_path):
    content, trap = bomb
    with contextlib.suppress(Exception):
        torch.load(io.BytesIO(content), weights_only=False)
    assert trap.exists()


def test_no_reader_executes(bomb, partial, store, tmp_path, monkeypatch):
    content, trap = bomb
    path, start = partial
    path.write_bytes(content)
    with pytest.raises(UserError, match="is not a checkpoint"):
        start()
    store[0].write_bytes(content)
    manifest = json.loads(store[1].read_text())
    store[1].write_text(json.dumps(manifest | {"bytes": len(content), "digest": hashlib.sha256(content).hexdigest()}))
    with pytest.raises(UserError, match="is damaged or not ours"):
        prepare.load_set("tiny_features")
    monkeypatch.setattr(mini_clip, "FILE", tmp_path / "b.pt")
    mini_clip.FILE.write_bytes(content)
    with pytest.raises(UserError, match="does not hold the weights"):
        mini_clip.trained()
    monkeypatch.setenv("FEDLIB_RAW", str(tmp_path))
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / encoders.FILES["squeezenet1_1"]).write_bytes(content)
    with pytest.raises(UserError, match="does not hold the weights"):
        encoders.load_encoder.__wrapped__("squeezenet1_1")
    assert not trap.exists()


def test_downloaded_weights_do_not_execute(bomb, tmp_path, monkeypatch):
    """torchvision's and open_clip's files are pickles: of tensors only."""
    from torchvision import models
    content, trap = bomb
    monkeypatch.setenv("FEDLIB_RAW", str(tmp_path / "none"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    name = models.get_model_weights("squeezenet1_1")["IMAGENET1K_V1"].url.rsplit("/")[-1]
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / name).write_bytes(content)
    with pytest.raises(UserError, match="no weights of squeezenet1_1"):
        encoders.imagenet_net("squeezenet1_1")
    (tmp_path / "own.pt").write_bytes(content)
    with pytest.raises(UserError, match="could not be loaded"):
        encoders.clip_encoder("ViT-S-32-alt", str(tmp_path / "own.pt"))
    assert not trap.exists()


# nothing is sent, no port is opened

WATCH = """
import os, sys
def hook(event, args):
    # urllib3 asks whether there is IPv6 when it is imported: a socket on ::1 that never listens and is closed at once
    probe = event == "socket.bind" and args[1][:2] == ("::1", 0) and "_has_ipv6" == sys._getframe(1).f_code.co_name
    if not probe and event in ("socket.connect", "socket.bind", "socket.sendto", "socket.getaddrinfo",
                               "socket.gethostbyname"):
        with open(os.environ["WATCHED"], "a") as file:
            file.write(f"{event} {args[1:]}\\n")
        raise OSError("no network here")
sys.addaudithook(hook)
"""
ALL = """
import json, os, sys
import conftest
from fedlib import cli
place = sys.argv[1]
codes = [cli.call(words) for words in (
    ["train", "FedAvg", "--data", "tiny_features", "--set", "net=linear", "--rounds", "1", "--out", place + "/o"],
    ["features", "--encoder", "mini_clip", "--data", "tiny_digits"], ["methods"], ["datasets"], ["partition"],
    ["tables", "--results", place], ["status", "i2pfl/table2", "--results", place],
    ["show", "i2pfl/table2", "--results", place],
    ["run", "i2pfl/table2", "--only", "FedAvg", "--seeds", "7,8", "--time-budget", "1s", "--results", place])]
names = {"__name__": "__main__"}
for cell in [c for c in json.load(open(sys.argv[2]))["cells"] if c["cell_type"] == "code"][1:3]:
    exec("".join(cell["source"]), names)        # parameters, imports
seen = os.path.exists(os.environ["WATCHED"]) and open(os.environ["WATCHED"]).read()
os.environ["FEDLIB_DATA"] = place
print(json.dumps([codes, seen, cli.call(["data", "digits", "--download", "--domains", "usps"])]))
"""


@pytest.mark.timeout(900)
def test_nothing_is_sent_unless_a_download_is_asked_for(tmp_path):
    """Watched in every process, those that a table's runs have too; the download at the end shows that it is seen."""
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    watched, page = tmp_path / "watched", ROOT / "notebooks/concepts/01_federated_averaging.ipynb"
    env = {k: v for k, v in os.environ.items() if k not in ("FEDLIB_RAW", "FEDLIB_RESULTS")}
    env |= {"WATCHED": str(watched), "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "tests"))),
            "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([sys.executable, "-c", ALL, tmp_path / "r", page], capture_output=True, text=True, env=env)
    assert ran.returncode == 0, ran.stderr
    codes, seen, download = json.loads(ran.stdout.splitlines()[-1])
    assert codes == [0] * (len(codes) - 1) + [3] and download == 2, ran.stderr        # 3: the budget of "run" is spent
    assert not seen and "socket" in watched.read_text(), seen
