"""The command line: what it prints, its exit codes, and one line for every mistake with nothing half-written left."""
import json
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import small_paper
import torch
from conftest import numbers

from fedlib.core import machine
from fedlib.core.errors import UserError
from fedlib.datasets import prepare
from fedlib.engine import loop, records
from fedlib.experiments import batch, tables
from fedlib.methods import METHODS
from fedlib.report.page import Page


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A paper with one table of one run."""
    text = small_paper.content('{ name = "FedAvg" }, { name = "Ditto", profiles = ["paper"] }')
    small_paper.use(tmp_path, monkeypatch, text, "t,b,scans,FedAvg,accuracy,50.0\n")
    return tables.load_table("small/t").runs("mini")[0].run


def strict_json(text):
    """NaN is no JSON."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


# what there is

def test_methods_as_json(fedlib):
    code, out, err = fedlib("methods", "--json")
    listed = {m["name"]: m for m in strict_json(out)}
    assert code == 0 and err == "" and list(listed) == list(METHODS)
    assert all({"name", "kind", "settings", "limit"} <= set(m) and m["limit"] for m in listed.values())
    assert (listed["FedProx"]["kind"], listed["FedProx"]["settings"]) == ("drift", {"mu": 0.01, "hidden": 1.0})
    assert listed["FedProx"]["limit"] == "mu=0.0 equals FedAvg"
    assert listed["FedBN"]["limit"] == "as it is equals FedAvg on cnn4"


def test_datasets_and_tables_as_json(fedlib, small, tmp_path):
    listed = {d["name"]: d for d in strict_json(fedlib("datasets", "--json")[1])}
    assert {"mini_digits", "office_caltech", "pacs", "digits"} <= set(listed)
    assert listed["tiny_digits"] == listed["tiny_digits"] | {"domains": ["scans", "blended", "printed", "street"],
                                                            "classes": 10, "sizes": [28], "prepared": [28]}
    assert strict_json(fedlib("tables", "--json", "--results", tmp_path)[1]) == [
        {"table": "small/t", "title": "A small table", "records": {"mini": "0/1", "lite": "0/0", "paper": "0/0"}}]


@pytest.mark.parametrize("args", [("methods",), ("datasets",), ("tables",), (), ("-h",), ("train", "--help")])
def test_plain_listings(fedlib, args):
    code, out, err = fedlib(*args)
    assert code == 0 and err == "" and len(out) > 60


def test_the_list_of_commands_says_all_of_each_on_a_terminal_of_80_columns(fedlib, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    listed = fedlib("--help")[1].partition("Commands:")[2]
    assert "train " in listed and "..." not in listed


# training

def test_on_several_cores(fedlib, tmp_path):
    args = ("train", "FedAvg", "--data", "tiny_digits", "--rounds", 1, "--set", "net=linear")
    one, two = (fedlib(*args, "--out", tmp_path / str(n), "--cores", n)[0] for n in (1, 2))
    assert one == two == 0
    first, second = (records.read_record(next((tmp_path / str(n)).glob("*/*.json"))) for n in (1, 2))
    assert first["rounds"][0]["acc"] == second["rounds"][0]["acc"] and second["made"]["cores"] == 2
    for word in ("--save", "--threads=2"):
        code, _, err = fedlib(*args, "--out", tmp_path, "--cores", 2, word)
        assert code == 2 and f"leave {word.partition('=')[0]} out" in err


def test_training_twice_trains_once(fedlib, tmp_path, monkeypatch):
    args = ("train", "FedProx", "--data", "tiny_digits", "--rounds", 2, "--seed", 3, "--set", "mu=0.5", "--set",
            "net=linear", "--set", "clients=1,1,1,2", "--set", "fraction=0.4", "--out", tmp_path, "--json")
    code, out, _ = fedlib(*args)
    assert code == 0
    path, = tmp_path.glob("*/*")
    record = records.read_record(path)
    assert strict_json(out) == {"record": str(path), "acc": record["rounds"][-1]["acc"]}
    run = record["run"]
    assert (run["method"], run["settings"], run["seed"], run["protocol"]["rounds"]) == ("FedProx", {"mu": 0.5}, 3, 2)
    assert (run["net"]["net"], run["data"]["clients"], run["data"]["fraction"]) == ("linear", [1, 1, 1, 2], 0.4)
    assert [c["train"] for c in record["made"]["data"]["clients"]] == [20] * 5

    before = path.read_bytes(), path.stat().st_mtime_ns
    monkeypatch.setattr(loop, "all_rounds", lambda *a: pytest.fail("trained again"))
    assert fedlib(*args)[:2] == (0, out)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


def test_a_gpu_is_taken_where_there_is_one_and_said(monkeypatch):
    import torch
    from click.testing import CliRunner

    from fedlib import cli
    from fedlib.core import machine
    asked = []

    def refused(device):
        asked.append(device)
        raise UserError("enough")
    monkeypatch.setattr(machine, "check_device", refused)
    monkeypatch.setattr(machine, "described", lambda device: {"hardware": "A card"})
    for there, word, used, said in ((True, "auto", "cuda", "device: cuda (A card)\n"), (False, "auto", "cpu", ""),
                                    (True, "cuda:1", "cuda:1", ""), (True, "cpu", "cpu", "")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        done = CliRunner().invoke(cli.cli, ["train", "FedAvg", "--device", word])
        assert (asked[-1], done.stderr) == (used, said)
    assert {c: next(p.default for p in cli.cli.commands[c].params if p.name == "device") for c in cli.cli.commands
            if any(p.name == "device" for p in cli.cli.commands[c].params)} == dict.fromkeys(
        ("features", "train", "predict", "evaluate", "run", "tune", "campaign"), "auto") | dict.fromkeys(
        ("bench", "verify"), "cpu")


def test_a_folder_a_model_and_predictions_by_commands(fedlib, tmp_path, monkeypatch):
    """Bright or dark pictures of two sites: prepared, trained, kept, evaluated, and new ones told apart."""
    import numpy as np
    from PIL import Image
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "data"))
    rng = np.random.default_rng(0)
    for place in [f"in/{site}/{name}/{i}.png" for site in "ab" for name in ("dark", "light") for i in range(12)]:
        level = 60 if "dark" in place else 190
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.normal(level, 20, (20, 20)).clip(0, 255).astype(np.uint8)).save(tmp_path / place)
    assert fedlib("train", "FedAvg", "--data", "mine")[0] == 2
    code, out, _ = fedlib("data", "mine", "--from", tmp_path / "in", "--size", 16)
    assert code == 0 and "a     9 + 3  9 + 3  20 x 20 px; grey 24" in out
    train = ("train", "FedAvg", "--data", "mine", "--rounds", 5, "--set", "net=linear", "--set", "lr=0.001", "--out",
             tmp_path / "runs")
    assert fedlib(*train)[0] == 0
    code, out, err = fedlib(*train, "--save")
    model = tmp_path / "runs/mine" / out.split("model: ")[1].strip().split("/")[-1]
    assert code == 0 and err == "the record is there without its net: it is trained again to keep it\n"
    _, out, err = fedlib(*train, "--save", "--json")
    assert err == "the record is there: nothing is trained\n" and json.loads(out) == {
        "record": str(model.with_suffix(".json")), "acc": {"a": 100.0, "b": 100.0}, "model": str(model)}
    found = strict_json(fedlib("evaluate", model, "--data", "mine", "--json")[1])
    assert {d: (m["accuracy"], m["auc"]) for d, m in found["sites"].items()} == {"a": (100, 1), "b": (100, 1)}
    code, out, _ = fedlib("predict", model, tmp_path / "in/a", "--out", tmp_path / "p.csv")
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert code == 0 and f"24 predictions: {tmp_path / 'p.csv'}" in out and lines[0] == "path,label,dark,light"
    assert all(line.split(",")[1] == line.split("/")[-2] for line in lines[1:])
    assert fedlib("predict", model, tmp_path / "in/a")[1] == (tmp_path / "p.csv").read_text()
    (tmp_path / "in/a/dark/0.png").unlink()
    assert fedlib("data", "mine", "--from", tmp_path / "in", "--size", 16)[0] == 0
    for again in (train, ("evaluate", model, "--data", "mine")):
        code, out, err = fedlib(*again)
        assert (code, out) == (2, "") and "prepared again" in err


def test_a_preset_is_a_word_for_settings(fedlib, tmp_path):
    code, _, err = fedlib("train", "FedPall", "--data", "tiny_digits", "--rounds", 1, "--set", "preset=paper", "--set",
                          "net=linear", "--set", "mu=0.2", "--out", tmp_path)
    assert code == 0 and "fedlib:" not in err        # a slow machine has said how far it is
    settings = records.read_record(next(tmp_path.glob("*/*.json")))["run"]["settings"]
    assert (settings["kl"], settings["contrast"], settings["mu"], settings["delta"]) == ("paper", "paper", 0.2, 0.1)
    assert fedlib("train", "FedPall", "--set", "preset=papre")[0] == 2
    code, _, err = fedlib("train", "FedAvg", "--set", "preset=paper")
    assert code == 2 and "no setting 'preset'" in err


def test_texts_train_a_net_for_texts_where_none_is_named(fedlib, tmp_path):
    """mini_reviews: half of the answers are right by chance."""
    args = ("train", "FedAvg", "--data", "mini_reviews", "--rounds", 3, "--out", tmp_path, "--json")
    code, out, err = fedlib(*args)
    made = json.loads(out)
    assert code == 0 and err.startswith("net=fasttext optimiser=adam, as mini_reviews holds no images")
    assert min(made["acc"].values()) > 60
    run = records.read_record(Path(made["record"]))["run"]
    assert (run["net"]["net"], run["protocol"]["optimiser"]) == ("fasttext", "adam")
    code, out, err = fedlib(*args, "--set", "net=fasttext")
    assert code == 0 and "holds no images" not in err
    assert records.read_record(Path(json.loads(out)["record"]))["run"]["protocol"]["optimiser"] == "sgd"


def test_training_speaks_without_a_terminal_too(fedlib, tmp_path, monkeypatch):
    """A notebook, a log or a cluster saw nothing until the record was written."""
    args = ("train", "FedAvg", "--data", "tiny_digits", "--rounds", 2, "--set", "net=linear", "--json", "--out")
    code, out, err = fedlib(*args, tmp_path / "quick")
    assert (code, err) == (0, "")          # over before there was something to say
    monkeypatch.setattr("fedlib.cli.options.SECONDS", 0)
    code, slow, err = fedlib(*args, tmp_path / "slow")
    acc = strict_json(slow)["acc"]
    assert (code, strict_json(out)["acc"]) == (0, acc)
    said = f"FedAvg, tiny_digits at 28 px, seed 0: round 2 of 2, {sum(acc.values()) / len(acc):.1f} %"
    assert err.splitlines()[-1] == said


@pytest.mark.parametrize("has", [False, True])
def test_a_precision_that_is_slow_here_is_said(has, fedlib, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has)
    args = ("--data", "tiny_digits", "--rounds", "1", "--set", "width=2", "--set", "precision=bf16", "--device", "cpu")
    code, _, err = fedlib("train", "FedAvg", *args, "--out", tmp_path)
    assert code == 0 and ("has no instructions for bfloat16" in err) != has
    assert machine.slow("float32", "cpu") == machine.slow("bf16", "cuda:0") == ""


def test_a_table_is_trained_within_a_time_budget_and_shown(fedlib, small, tmp_path, monkeypatch):
    """A clock that ticks at every look: a round takes 5 s, of which it measures 2, one of them its checkpoint."""
    loop.train(tables.load_table("small/t").references("mini")[0].run, tmp_path / "r")
    ticks = count(1)
    clock = SimpleNamespace(monotonic=lambda: next(ticks))
    monkeypatch.setattr(loop, "time", clock)
    monkeypatch.setattr(batch, "time", clock)
    args = ("run", "small/t", "--results", tmp_path / "r", "--time-budget", "9s")
    path = small.path(tmp_path / "r")
    code, out, err = fedlib(*args)
    assert code == batch.STOPPED and err == "" and "stopped after round 2 of 4; run it again to continue" in out
    assert [p.name for p in path.parent.glob("FedAvg*")] == [path.with_suffix(".partial").name]
    code, out, _ = fedlib(*args)
    assert code == 0 and "» round 4/4" in out and "round 2/4" not in out
    assert [p.name for p in path.parent.glob("FedAvg*")] == [path.name]
    assert "2 of 2 records are in " in fedlib(*args)[1]

    whole = records.read_record(loop.train(small, tmp_path / "whole"))
    assert numbers(records.read_record(path)) == numbers(whole)
    shown = strict_json(fedlib("show", "small/t", "--results", tmp_path / "r", "--json")[1])
    assert (shown["table"], shown["profile"], shown["select"], shown["claims"]) == ("small/t", "mini", "last", [])
    last = whole["rounds"][-1]["acc"]
    cells = {(c["setting"], c["row"]): c for c in shown["cells"]}
    assert cells["scans", "FedAvg"] == {
        "block": "b", "setting": "scans", "row": "FedAvg", "printed": 50.0, "ours": last["scans"], "half": None, "n": 1,
        "difference": pytest.approx(last["scans"] - 50)}
    assert cells["avg", "FedAvg"]["ours"] == pytest.approx((last["scans"] + last["street"]) / 2)
    assert cells["avg", "Ditto"]["ours"] is None
    assert f"50.00 | {last['scans']:.1f}" in fedlib("show", "small/t", "--results", tmp_path / "r")[1]


def test_a_child_says_by_its_exit_code_that_time_stopped_it(fedlib, small, tmp_path):
    code, out, _ = fedlib("run", "small/t", "--only", small.digest, "--results", tmp_path, "--time-budget", "0.000001s")
    assert code == batch.STOPPED and "stopped after round 0 of 4" in out
    assert not list(tmp_path.glob("tiny_digits/*"))


def test_so_says_the_command_for_several_runs(fedlib, small, tmp_path):
    words = "run", "small/t", "--seeds", "0,1", "--results", tmp_path, "--time-budget", "0.000001s"
    for n, *more in ((4,), (2, "--only", "FedAvg")):       # two constant answers
        code, out, _ = fedlib(*words, *more)
        assert code == batch.STOPPED and f"{n} left" in out and f"0 of {n} records are in {tmp_path}" in out


@pytest.mark.parametrize("error", [click.Abort(), KeyboardInterrupt()])
def test_an_interruption_is_one_line(fedlib, error, monkeypatch):
    def interrupted(*args, **how):
        raise error
    monkeypatch.setattr(loop, "train", interrupted)
    code, out, err = fedlib("train", "FedAvg", "--data", "mini_digits", "--rounds", 1)
    assert code == 130 and err.lstrip() == "fedlib: interrupted; run it again to continue\n"


def test_a_name_that_is_nobodys_is_said(fedlib, small, tmp_path):
    assert "your own: fedlib data my_x --from FOLDER" in fedlib("data", "my_x")[2]
    assert "are of published sets" in fedlib("data", "my_x", "--from", tmp_path, "--download")[2]
    assert "unknown row 'FedAvgg'; did you mean 'FedAvg'" in fedlib("tune", "small/t", "--row", "FedAvgg")[2]
    other = replace(small, seed=9)
    rounds = [{"round": r, "acc": {"scans": 50.0, "street": 20.0}, "train_loss": 1.0} for r in range(1, 5)]
    for folder in ("fresh", "committed"):
        records.write_record(other.path(tmp_path / folder), {"run": other.spec, "made": {"seconds": 1.0},
                                                            "rounds": rounds})
    against = ("check", tmp_path / "fresh", "--results")
    assert "no record of small/t, profile mini, in " in fedlib(
        *against, tmp_path / "committed", "--table", "small/t", "--profile", "mini")[2]
    assert "is the folder of committed records itself" in fedlib(*against, tmp_path / "fresh")[2]


def test_check_compares_fresh_records_with_committed_ones(fedlib, small, tmp_path):
    fresh, committed = small.path(tmp_path / "fresh"), small.path(tmp_path / "committed")
    def one(street):
        return [{"round": r, "acc": {"scans": 50.0, "street": street}, "train_loss": 1.0} for r in range(1, 5)]
    record = {"run": small.spec, "made": {"seconds": 1.0}, "rounds": one(20.0)}
    records.write_record(fresh, record)
    args = ("check", tmp_path / "fresh", "--results", tmp_path / "committed", "--tolerance", 2)
    code, out, err = fedlib(*args)      # a mistyped folder of results
    assert code == 2 and f"of the 1 records in {tmp_path / 'fresh'} none has a committed one" in err
    assert fedlib(*args[:-1], "nan")[0] == 2
    for street, code, words in [(20.0, 0, ": 1 equal"), (23, 0, "1 differ by at most 1.50"), (15, 1, "2.50 poi")]:
        records.write_record(committed, record | {"rounds": one(street)})
        found, out, err = fedlib(*args)
        assert found == code and words in out and (small.digest in err) == bool(code)
    made = {"hardware": "a processor", "torch": "2.15.0", "threads": 1}
    for other, code in [(made, 1), (made | {"hardware": "another"}, 0), ({}, 0)]:       # alike: it must be equal
        records.write_record(fresh, record | {"made": {"seconds": 1.0} | made})
        records.write_record(committed, record | {"made": {"seconds": 1.0} | other, "rounds": one(20.1)})
        assert fedlib(*args)[0] == code


def test_check_looks_at_the_last_five_rounds_together(fedlib, small, tmp_path):
    """10 points in the last round alone are two in the mean of five."""
    run = replace(small, protocol=replace(small.protocol, rounds=6))
    for folder, last in (("fresh", 20.0), ("committed", 30.0)):
        rounds = [{"round": k, "acc": {"scans": 50.0, "street": last if k == 6 else 20.0}, "train_loss": 1.0}
                  for k in range(1, 7)]
        records.write_record(run.path(tmp_path / folder), {"run": run.spec, "made": {"seconds": 1.0}, "rounds": rounds})
    out = fedlib("check", tmp_path / "fresh", "--results", tmp_path / "committed")[1]
    assert "1 differ by at most 1.00 points in their last five rounds" in out


def test_check_sees_that_two_runs_stopped_in_another_round(fedlib, small, tmp_path):
    run = replace(small, protocol=replace(small.protocol, patience=1))
    for folder, val in (("fresh", [50, 40]), ("committed", [50, 60, 40])):
        rounds = [{"round": k + 1, "acc": {"scans": 50.0, "street": 20.0}, "val": {"scans": v, "street": v},
                   "train_loss": 1.0} for k, v in enumerate(val)]
        records.write_record(run.path(tmp_path / folder), {"run": run.spec, "made": {"seconds": 1.0}, "rounds": rounds})
    code, _, err = fedlib("check", tmp_path / "fresh", "--results", tmp_path / "committed")
    assert code == 1 and "differs by inf points" in err


# mistakes

BAD = {
    "command": ("trian FedAvg", "unknown command 'trian'; did you mean 'train'? (commands: "),
    "option": ("train FedAvg --out {out} --sede 1", "No such option"),
    "argument": ("train --out {out}", "name one method: METHOD (`fedlib methods` lists them) or --from FILE.py"),
    "method": ("train FedProks --out {out}", "unknown method 'FedProks'; did you mean 'FedProx'? (known: "),
    "method and setting": ("train FedProks --set mu=1 --out {out}", "did you mean 'FedProx'?"),
    "dataset": ("train FedAvg --data mini_digit --out {out}", "did you mean 'mini_digits'?"),
    "path": ("train FedAvg --data ../digits --out {out}", "name = '../digits' is not a dataset's name"),
    "size": ("train FedAvg --data tiny_digits --set size=30 --out {out}", "tiny_digits has no size 30 (sizes: 28)"),
    "domain": ("train FedAvg --data tiny_digits --set domains=scan --out {out}", "did you mean 'scans'?"),
    "clients": ("train FedAvg --data tiny_digits --set clients=2,1 --out {out}", "2 numbers for 4 domains"),
    "domain twice": ("train FedAvg --data tiny_digits --set domains=scans,scans --out {out}",
                     "each of which is named once"),
    "scale": ("train FedAMP --set sigma=0 --out {out}", "sigma = 0 is too small (at least 1e-09)"),
    "ridge": ("train AFL --set gamma=0 --out {out}", "gamma = 0 is too small"),
    "threads": ("train FedAvg --threads 100000 --out {out}", "100000 is not in the range"),
    "setting": ("train FedProx --set mo=1 --out {out}", "no setting 'mo' of FedProx, the protocol, the net or the "
                                                        "data; did you mean 'mu'? (there are: weights, mu, hidden, "),
    "no value": ("train FedProx --set mu --out {out}", "--set takes NAME=VALUE, not 'mu'"),
    "number": ("train FedProx --set mu=many --out {out}", "mu = 'many' is not a number"),
    "infinite": ("train FedProx --set mu=nan --out {out}", "mu = 'nan' is not a number"),
    "whole": ("train FedAvg --rounds 2.5 --out {out}", "rounds = '2.5' is not a whole number"),
    "truth": ("train FedProto --set average=maybe --out {out}", "average = 'maybe' is not true or false"),
    "choice": ("train FedAvg --set optimiser=sdg --out {out}", "did you mean 'sgd'? (allowed: 'sgd', 'adam', 'adamw', "
               "'adam_clip')"),
    "net": ("train FedAvg --set net=resnet --out {out}", "did you mean 'resnet"),
    "low": ("train FedAvg --rounds 0 --out {out}", "rounds = 0 is too small (at least 1)"),
    "negative": ("train FedAvg --set lr=-1 --out {out}", "lr = -1 is too small (at least 0)"),
    "high": ("train FedAvg --set participation=1.5 --out {out}", "participation = 1.5 is too large (at most 1)"),
    "share": ("train FedAvg --set fraction=20 --out {out}", "fraction = 20 is too large (at most 1)"),
    "overflow": ("train FedAvg --set lr=1e300 --out {out}", "lr = 1e300 is too large (at most 3e+38)"),
    "seed": ("train FedAvg --seed x --out {out}", "seed = 'x' is not a whole number"),
    "idle": ("train FedBN --out {out}", "FedBN has nothing to act on in the net cnn4, where it would be FedAvg; choose "
             "--set net=resnet10 or resnet18 or resnet50 or vit"),
    "idle, for texts": ("train FedBN --data mini_reviews --set net=fasttext --out {out}",
                        "in the net fasttext, where it would be FedAvg\n"),
    "idle, for features": ("train FedBN --set net=linear --set encoder=mini_clip --out {out}", "choose --set net="),
    "device": ("train FedAvg --device vulkan --out {out}", "device 'vulkan' cannot be used here (try cpu)"),
    "table": ("run i2pfl/tabel2 --results {out}", "unknown table 'i2pfl/tabel2'; did you mean 'i2pfl/table2'?"),
    "table shown": ("show table2 --results {out}", "/table2'? (known: "),
    "profile": ("run i2pfl/table2 --profile ligth --results {out}", "unknown profile 'ligth'; did you mean 'lite'?"),
    "profile shown": ("show i2pfl/table2 --profile full --results {out}", "'full' (known: mini, lite, paper)"),
    "selection": ("show i2pfl/table2 --select best --results {out}", "unknown selection 'best'; did you mean"),
    "seeds": ("run i2pfl/table2 --seeds 0,x --results {out}", "seed = 'x' is not a whole number"),
    "budget": ("run i2pfl/table2 --time-budget soon --results {out}", "'soon' is not a length of time (like 90s,"),
    "no budget": ("run i2pfl/table2 --time-budget 0m --results {out}", "'0m' is not a length of time"),
    "only": ("run i2pfl/table2 --only FedAvgg --results {out}", "unknown row, method or digest of i2pfl/table2 "
                                                                "'FedAvgg'; did you mean 'FedAvg'?"),
    "jobs": ("run i2pfl/table2 --jobs 0 --results {out}", "Invalid value for '--jobs'"),
    "own files": ("data mine --from {empty}", "no pictures (.bmp, .jpeg, .jpg, .png, .tif, .tiff, .webp) in {empty}"),
    "own files of a published name": ("data pacs --from {empty} --layout class/site", "pacs is a published set"),
    "own files nowhere": ("data mine --layout class/site", "where are the files of mine? Say --from FOLDER"),
    "model": ("predict {empty}/none {empty}", "{empty}/none is no kept model"),
    "model evaluated": ("evaluate {empty}/none --data tiny_digits", "`fedlib train --save` makes one"),
    "file of a method": ("train --from mine.py:Mine --out {out}", "'mine.py:Mine' names no method of a file"),
    "file of a dataset": ("train FedAvg --data mine.py:mine --out {out}", "'mine.py:mine' names no dataset of a file"),
    "raw folder": ("data office_caltech --from {empty}", "{empty}"),
    "no raw folder": ("data pacs --from {empty}/none", "no such folder: {empty}/none"),
    "data set": ("data office_cal --from {empty}", "did you mean 'office_caltech'?"),
    "nothing fresh": ("check {empty}", "no records in {empty}"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_mistake_is_one_line_and_leaves_nothing(case, fedlib, tmp_path, monkeypatch):
    out, empty = tmp_path / "out", tmp_path / "empty"
    empty.mkdir()
    if case.endswith("folder") or case == "data set":
        monkeypatch.setenv("FEDLIB_DATA", str(out))
    line, words = BAD[case]
    code, said, err = fedlib(*line.format(out=out, empty=empty).split())
    assert (code, said) == (2, "") and err.startswith("fedlib: ") and err.count("\n") == 1
    assert words.format(empty=empty) in err
    assert not out.exists() and not list(empty.iterdir())


# A whole record under the name of another run: copied there, or its settings were changed by hand.
ANOTHER = '{"run": {"seed": 1}, "rounds": [{"round": 1, "acc": {"street": 90}}], "made": {"seconds": 1}}'


@pytest.mark.parametrize("content", ["{", "[]", '{"run": {}, "rounds": [], "made": {}}', "\0\1", "5",
                                     '{"run": {}, "rounds": [1], "made": {}}', ANOTHER])
def test_a_record_that_is_none_is_named(content, fedlib, small, tmp_path):
    path = small.path(tmp_path / "r")
    path.parent.mkdir(parents=True)
    path.write_text(content)
    for command in ("show", "run"):
        code, out, err = fedlib(command, "small/t", "--results", tmp_path / "r")
        assert (code, out) == (2, "") and err.startswith(f"fedlib: {path} is not a record (") and err.count("\n") == 1
        assert ("another run" in err) == (content == ANOTHER)
    assert path.read_text() == content and len(list(path.parent.iterdir())) == 1


def test_nothing_but_a_record_is_to_be_deleted(fedlib, tmp_path):
    """`fedlib compare README.md` said "delete it and run it again"."""
    other = tmp_path / "README.md"
    other.write_text("mine")
    for words in (("compare", other), ("verify", other), ("verify", tmp_path)):
        code, _, err = fedlib(*words)
        assert code == 2 and "delete" not in err and str(words[1]) in err, err


def test_an_app_takes_no_other_projects_place(fedlib, tmp_path):
    mine = tmp_path / "pyproject.toml"
    mine.write_text('[project]\nname = "mine"\n')
    code, _, err = fedlib("flower", "FedAvg", "--out", tmp_path)
    assert code == 2 and f"{mine} is another project's" in err and "mine" in mine.read_text()
    assert not (tmp_path / "app.py").exists()
    for _ in range(2):      # its own it renews
        assert fedlib("flower", "FedAvg", "--data", "mini_reviews", "--set", "domains=a b,c", "--out",
                      tmp_path / "app")[0] == 0
    config = tomllib.loads((tmp_path / "app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert shlex.split(config["set"]) == ["net=fasttext", "optimiser=adam", "domains=a b,c"]    # as in `fedlib train`


@pytest.mark.parametrize("damage", ["truncated", "foreign"])
def test_a_damaged_prepared_set_is_named(damage, fedlib, tmp_path, monkeypatch):
    data, manifest = prepare.paths("tiny_digits", 28)
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path))
    for source in (data, manifest):
        shutil.copy(source, tmp_path)
    copied = tmp_path / data.name
    copied.write_bytes(copied.read_bytes()[:100_000] if damage == "truncated" else b"PK\3\4" + b"\0" * 99)
    code, out, err = fedlib("train", "FedAvg", "--data", "tiny_digits", "--rounds", 1, "--out", tmp_path / "out")
    assert (code, out) == (2, "") and err.count("\n") == 1 and not (tmp_path / "out").exists()
    assert f"{copied} is damaged or not ours" in err and "make it again: fedlib data tiny_digits" in err


def test_an_out_folder_that_cannot_be_written(fedlib, tmp_path):
    (tmp_path / "file").write_text("mine")
    code, out, err = fedlib("train", "FedAvg", "--data", "tiny_digits", "--rounds", 1, "--out", tmp_path / "file")
    assert (code, out) == (2, "") and err.count("\n") == 1 and "cannot write" in err and "Not a directory" in err
    assert (tmp_path / "file").read_text() == "mine"


def test_exit_code_and_stderr_of_the_real_command():
    done = subprocess.run([sys.executable, "-m", "fedlib", "run", "i2pfl/tabel2"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "") and done.stderr.count("\n") == 1
    assert "did you mean 'i2pfl/table2'?" in done.stderr


def test_partitions_are_listed_shown_drawn_and_written(fedlib, tmp_path):
    code, out, _ = fedlib("partition")
    assert code == 0 and "i2pfl_office" in out and "RethinkFL" in out
    listed = {line["name"]: line for line in strict_json(fedlib("partition", "--json")[1])}
    assert listed["mini"]["digest"] == strict_json(fedlib("partition", "mini", "--json")[1])["digest"]

    code, out, _ = fedlib("partition", "mini", "--seed", 3, "--picture", tmp_path / "who.png",
                          "--out", tmp_path / "i.json")
    assert code == 0 and "seed 3" in out and "street" in out and "all classes" in out
    assert (tmp_path / "who.png").read_bytes()[:4] == b"\x89PNG"
    written = json.loads((tmp_path / "i.json").read_text())
    assert f"digest {written['digest']}" in out and written["digest"] != listed["mini"]["digest"]
    sizes = [len(c["train"][c["domain"]]) for c in written["clients"]]
    assert sizes == [50] * 5 + [200] * 5
    code, _, err = fedlib("partition", "mni")
    assert code == 2 and "did you mean 'mini'" in err and err.count("\n") == 1


def test_storing_keeps_what_can_be_drawn(fedlib, tmp_path, monkeypatch):
    from fedlib.experiments import named_partitions
    monkeypatch.setattr(named_partitions, "FILE", tmp_path / "partitions.json")
    monkeypatch.delenv("FEDLIB_RAW", raising=False)
    monkeypatch.setenv("FEDLIB_DATA", str(tmp_path / "data"))
    assert fedlib("partition", "mini", "--store")[0] == 0
    code, out, _ = fedlib("partition", "feddtr_cub200", "--store")
    assert code == 1 and "feddtr_cub200: not drawn (cub200 at 64 px is not prepared; run: fedlib data cub200" in out
    assert list(named_partitions.stored()) == ["mini"]
    (tmp_path / "partitions.json").write_text("{")
    assert "is not a file of partitions" in fedlib("partition")[2]


def test_clients_together_on_request(fedlib, small, tmp_path):
    assert fedlib("run", "small/t", "--only", "FedAvg", "--stack", "2", "--results", tmp_path)[0] == 0
    assert records.read_record(small.path(tmp_path))["rounds"][-1]["stack"] == 2
    for wrong in ("0", "many", "-1"):
        code, _, err = fedlib("run", "small/t", "--stack", wrong, "--results", tmp_path)
        assert code == 2 and "neither auto nor a number" in err


@pytest.mark.parametrize("args", [("show", "small/t"), ("status",), ("tables",)], ids=lambda a: a[0])
def test_where_no_records_are_found_that_is_said(args, fedlib, small, tmp_path):
    """Outside a clone a table of dashes told nothing."""
    nowhere = tmp_path / "nowhere"
    code, _, err = fedlib(*args, "--results", nowhere)
    assert code == 0 and f"There is no folder of records at {nowhere}" in err and "FEDLIB_RESULTS" in err
    assert fedlib(*args, "--results", tmp_path)[2] == ""


def test_a_page_without_records_says_where_it_looked(small, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLIB_RESULTS", str(tmp_path / "nowhere"))
    assert f"no folder of records at {tmp_path / 'nowhere'}" in Page("small/t", "mini").about().data
    monkeypatch.setenv("FEDLIB_RESULTS", str(tmp_path))
    assert "no folder" not in Page("small/t", "mini").about().data


def test_batch_norm_of_one_sample_is_said(fedlib, tmp_path):
    words = "train FedAvg --data tiny_digits --rounds 1 --set net=resnet18 --set width=4 --set batch=1 --out"
    code, _, err = fedlib(*words.split(), tmp_path)
    assert code == 2 and "batch-norm has no spread of one" in err


def test_means_of_inputs_beside_features_of_another_length_are_said(fedlib, tmp_path):
    words = "train FedProto --data tiny_digits --rounds 1 --set of=inputs --out"
    code, _, err = fedlib(*words.split(), tmp_path)
    assert code == 2 and "take net = identity" in err and err.count("\n") == 1


def test_a_net_that_the_memory_does_not_hold_is_said(fedlib, tmp_path):
    words = "train FedAvg --data tiny_digits --rounds 1 --set width=3000000 --out"     # 300 TB, which nobody has
    code, _, err = fedlib(*words.split(), tmp_path)
    assert code == 2 and "take a smaller width" in err and err.count("\n") == 1


@pytest.mark.parametrize("words", [("fedpall/table1", "--csv", "--json"), ("--why", "table1-office-best", "--latex")])
def test_a_table_is_printed_in_one_form(words, fedlib):
    code, out, err = fedlib("show", *words)
    assert code == 2 and not out and err.count("\n") == 1 and "choose one" in err
