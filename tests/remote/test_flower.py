"""Across machines: the same numbers as in one process, over real Flower processes on the loopback interface.

The commands are those of the page "From the notebook to real machines", with other addresses. Every process is
started in a group of its own and ended by its id.
"""
import contextlib
import copy
import json
import os
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import tomllib
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import METHOD_NAMES, ROOT, numbers, quiet, result, small_run
from safetensors.torch import save
from slurm_host import free_ports

pytest.importorskip("flwr", reason="needs the extra flower")

from flwr.app import ConfigRecord, Error, Message, RecordDict
from flwr.common import bytes_to_ndarray
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

from fedlib import cli
from fedlib.core import params
from fedlib.core.errors import UserError
from fedlib.datasets import feature_cache, prepare
from fedlib.datasets.partition import federate
from fedlib.engine import loop, records
from fedlib.engine.run import run_in_words
from fedlib.engine.worker import Worker, Workers, initial_net
from fedlib.remote import flower, secure, wire

PAGE = ROOT / "notebooks/use/machines.ipynb"
DOMAINS = ("scans", "blended", "printed", "street")


# all nodes in this process: no network, every method

class Grid:
    """Stands where Flower's grid stands; a message waits for a node that is dead until it lives."""

    def __init__(self, nodes: dict):
        self.nodes, self.sent, self.dead = nodes, {}, set()

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        for m in messages:
            m.metadata.__dict__["_message_id"] = f"message {len(self.sent)}"
            self.sent[m.metadata.message_id] = m
        return [m.metadata.message_id for m in messages]

    def answer(self, message, context):
        return flower.answer(message, context)

    def pull_messages(self, ids):
        alive = [m for m in map(self.sent.get, ids) if m.metadata.dst_node_id not in self.dead]
        return [self.answer(m, types.SimpleNamespace(run_config={}, node_config=self.nodes[m.metadata.dst_node_id]))
                for m in alive]

    def send_and_receive(self, messages, timeout):
        return self.pull_messages(self.push_messages(messages))


SECRET_OF = flower.secret_of


@pytest.fixture
def here(tmp_path, monkeypatch):
    """run -> (its Nodes in this process, a folder); `kind` is the grid's class."""
    def make(run, kind=Grid, secret=(), **config):
        monkeypatch.setattr(flower, "planned", lambda config: run)
        monkeypatch.setattr(flower, "secret_of", lambda folder: secret)
        nodes = {d: {"domain": d, "state": str(tmp_path / d), **config.get(d, {})} for d in DOMAINS}
        grid = kind(dict(enumerate(nodes.values(), 10)))
        return flower.Nodes(grid, run, 2.0), tmp_path
    return make


def run_of(name, **protocol):
    return small_run(name, data={"clients": ()}, **protocol)


def trained(nodes, run, folder):
    return records.read_record(loop.train(run, folder, workers=nodes, federation=nodes.gather()))


def comparable(record):
    return [{k: v for k, v in r.items() if k not in ("wire", "absent")} for r in numbers(record)]


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_method_gives_the_numbers_of_one_process(name, here):
    run = run_of(name)
    nodes, folder = here(run)
    there = trained(nodes, run, folder / "there")
    assert comparable(there) == result(run, folder / "alone")
    assert there["made"]["transport"].startswith("flower ")
    assert not any("absent" in r for r in there["rounds"])
    assert all(c.train.x.device.type == "meta" for c in (n.client for n in nodes))      # the server has no samples


def test_noise_between_machines_is_no_servers_to_draw_again(here, tmp_path):
    """With the seed alone the server could subtract it."""
    run = run_of("DPFedAvg", net="cnn4")
    nodes, folder = here(run, secret=("mine",))
    assert comparable(trained(nodes, run, folder / "there")) != result(run, folder / "alone")
    first = SECRET_OF(tmp_path)
    assert SECRET_OF(tmp_path) == first and len(first[0]) == 64
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    other = tmp_path / "other"
    other.mkdir()
    assert SECRET_OF(other) != first


def test_partial_participation_and_states_of_several_rounds(here):
    run = run_of("SCAFFOLD", rounds=4, participation=0.5)
    nodes, folder = here(run)
    there = trained(nodes, run, folder / "there")
    assert comparable(there) == result(run, folder / "alone")
    assert all(len(list((folder / d).glob("*/*.safetensors"))) <= 2 for d in DOMAINS)


# behind masks

class MaskedGrid(Grid):
    """Each node's app with Flower's mod around it, as Flower runs it; `seen`: what the server could read."""

    def __init__(self, nodes):
        super().__init__(nodes)
        self.state, self.seen, self.secure = {i: RecordDict() for i in nodes}, [], True

    def answer(self, message, context):
        context = types.SimpleNamespace(run_config={"secure": self.secure}, node_config=context.node_config,
                                        state=self.state[message.metadata.dst_node_id])
        if message.metadata.message_type != "train":
            return flower.answer(message, context)
        sent = Message(copy.deepcopy(message.content), dst_node_id=message.metadata.dst_node_id,
                       message_type="train", group_id=message.metadata.group_id)
        reply = secure.masked(sent, context, flower.answer)
        reply.metadata.__dict__.update(_src_node_id=message.metadata.dst_node_id,
                                       _reply_to_message_id=message.metadata.message_id)
        self.seen.append(reply)
        return reply


def masked(here, run, kind=MaskedGrid):
    nodes, folder = here(run, kind)
    nodes.grid = secure.Masked(nodes.grid)
    nodes.made = {"transport": "flower, SecAgg+"}
    return nodes, folder


# Their servers need the mean only. The others say what else they exchange, or that the mean is not enough.
MEANS = {"APFL", "Constant", "DPFedAvg", "Ditto", "FACMIC", "FFALoRA", "FedALA", "FedAPT", "FedAdam", "FedAvg",
         "FedAvgM", "FedBABU", "FedBN", "FedCLIP", "FedCP", "FedDEAP", "FedDecorr", "FedDyn", "FedETF", "FedLC",
         "FedNTD", "FedPGP", "FedPHP", "FedPer", "FedProx", "FedRep", "FedRoD", "FedSAM", "FedSR", "FedTPG",
         "FineTuned", "GPFL", "KgCoOp", "LGFedAvg", "LoRA", "Local", "MOON", "PerFedAvg", "PromptFL", "ZeroShot",
         "pFedMe"}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHOD_NAMES)
def test_a_method_gives_about_the_same_behind_masks_or_says_that_it_cannot(name, here):
    """The same message goes down in the second round, but for what was rounded."""
    run, down = run_of(name, rounds=1), []

    def last(simulation):
        down.append({k: v for i in range(4) for k, v in params.flatten({str(i): simulation.message(i)}).items()})

    nodes, folder = masked(here, run)
    try:
        loop.train(run, folder / "there", workers=nodes, federation=nodes.gather(), after=last)
    except UserError as error:
        assert f"{name}'s server looks at each upload" in str(error) or f"{name} exchanges '" in str(error)
        assert name not in MEANS and not nodes.grid.seen        # before anything was sent
        return
    assert name in MEANS
    loop.train(run, folder / "alone", after=last)
    there, alone = down
    assert there.keys() == alone.keys()
    assert all((there[k] - alone[k]).abs().max() < 1e-5 * max(1, alone[k].abs().max()) for k in alone)


def test_the_page_counts_the_methods_that_go_behind_masks():
    assert f"{len(MEANS)} of this book's" in PAGE.read_text()


def test_no_upload_can_be_read_but_the_mean_of_all(here):
    """What left a node is a row of numbers like any other; only with the other three does it become the mean."""
    run = run_of("FedAvg", rounds=1)
    nodes, folder = masked(here, run)
    record, = trained(nodes, run, folder / "there")["rounds"]
    assert 2 * record["bytes_up"] < record["wire"]["up"] < 2 * record["bytes_up"] + 4 * 16000     # keys, shares
    sent = [bytes_to_ndarray(b) for reply in nodes.grid.seen for b in
            reply.content.config_records[RECORD_KEY_CONFIGS].get(Key.MASKED_PARAMETERS, ())]
    assert len(nodes.grid.seen) == 4 * 4 and not any(r.content.array_records.get("block") for r in nodes.grid.seen)
    numbers = np.concatenate([a.ravel() for a in sent if a.size > 8]) / 2 ** 32
    assert abs(np.histogram(numbers, 8, (0, 1))[0] / len(numbers) - 1 / 8).max() < 0.05       # as even as noise


class Losing(MaskedGrid):
    """printed is gone when the masked uploads are due."""

    def answer(self, message, context):
        stage = message.content.config_records.get(RECORD_KEY_CONFIGS, {}).get(Key.STAGE)
        if context.node_config["domain"] == "printed" and stage == Stage.COLLECT_MASKED_VECTORS:
            reply = Message(Error(0), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = message.metadata.dst_node_id
            return reply
        return super().answer(message, context)


def test_the_mean_of_the_others_is_read_when_a_node_is_lost_on_the_way(here):
    run = run_of("FedAvg", rounds=1)
    nodes, folder = masked(here, run, Losing)
    record = trained(nodes, run, folder / "there")
    assert list(record["rounds"][0]["absent"]["train"]) == ["printed"]
    expected = without(run, folder / "alone", {(0, "printed")})
    assert record["rounds"][0]["loss"] == pytest.approx(expected[0]["loss"], rel=0.02)


class Loud(MaskedGrid):
    """printed sends something that is no masked upload."""

    def answer(self, message, context):
        reply = super().answer(message, context)
        if context.node_config["domain"] == "printed" and not reply.has_error():
            reply.content.config_records[RECORD_KEY_CONFIGS] = ConfigRecord({Key.MASKED_PARAMETERS: [b"!"]})
        return reply


def test_a_sum_that_cannot_be_read_ends_the_round_and_keeps_the_checkpoint(here):
    run = run_of("FedAvg", rounds=2)
    nodes, folder = masked(here, run, Loud)
    with pytest.raises(UserError, match="no client gave an answer"):
        trained(nodes, run, folder / "there")


def test_a_node_may_insist_on_masks(here, caplog):
    run = run_of("FedAvg", rounds=1)
    nodes, folder = here(run, MaskedGrid, printed={"secure": True})
    nodes.grid.secure = False
    record = trained(nodes, run, folder / "there")
    assert list(record["rounds"][0]["absent"]["train"]) == ["printed"]
    assert "sends nothing without masks" in caplog.text


def test_two_are_too_few_for_a_secret(here):
    run = run_of("FedAvg", rounds=1)
    nodes, folder = masked(here, run)
    federation = nodes.gather()
    for node in list(nodes)[2:]:
        node.address = None
        nodes.grid.nodes.pop(next(i for i, c in nodes.grid.nodes.items() if c["domain"] == node.client.domain))
    with pytest.raises(UserError, match="a mean of fewer than 3 tells what each sent"):
        loop.train(run, folder / "there", workers=nodes, federation=federation)


def test_a_step_that_masks_cannot_carry_is_said_at_the_node(here, monkeypatch, caplog):
    monkeypatch.setattr(secure, "RANGE", 1e-9)
    run = run_of("FedAvg", rounds=1)
    nodes, folder = masked(here, run)
    with pytest.raises(UserError, match="no client gave an answer"):
        trained(nodes, run, folder / "there")
    assert "changed by more than 1e-09 in one round" in caplog.text


def test_flowers_masks_have_32_bits():
    """So the page may say it: seeds of 32 bytes that agree in a sum of their words give the same mask."""
    one = bytes(range(32))
    other = bytes(4) + bytes(i ^ j for i, j in zip(one[:4], one[4:8], strict=True)) + one[8:]
    masks = [pseudo_rand_gen(seed, 2 ** 32, [(9,)])[0] for seed in (one, other)]
    assert one != other and (masks[0] == masks[1]).all()


# who does not keep to it

class Faulty(Grid):
    """printed sends something else in its first training."""

    def answer(self, message, context):
        reply, verb = super().answer(message, context), message.metadata.message_type
        if verb == "train" and context.node_config["domain"] == "printed" and message.metadata.group_id == "1":
            about, block = flower.opened(reply)
            reply.content = flower.content(about, self.change(block))
        return reply

    def change(self, block):
        return block


def flipped(name, change):
    """A change of one entry of a block."""
    def change_block(self, block):
        flat = wire.load(block)
        flat[name] = change(flat[name])
        return save(flat)
    return change_block


FAULTS = {
    "not finite": flipped("params/head.bias", lambda t: t * float("nan")),
    "float32 (3,)": flipped("params/head.bias", lambda t: t[:3].clone()),
    "float64": flipped("params/head.bias", lambda t: t.double()),
    "within": flipped("n", lambda t: t * 1000),
    "times those of the others": flipped("params/head.bias", lambda t: t * 1e12),
    r"unknown entry '\x1b[2J'": lambda self, block: save(wire.load(block) | {"\x1b[2J": torch.ones(1)}),
    "unknown entry 'more'": lambda self, block: save(wire.load(block) | {"more": torch.ones(1)}),
    "larger than any": lambda self, block: block + bytes(10 ** 7),
    "not a safetensors block": lambda self, block: block[:-1],
    "lacks the entry 'n'": lambda self, block: save({k: v for k, v in wire.load(block).items() if k != "n"}),
}


@pytest.mark.parametrize("said", FAULTS)
def test_a_garbled_message_is_refused_in_one_line_and_the_round_goes_on(said, here, caplog):
    run = run_of("FedAvg")

    class Garbled(Faulty):
        change = FAULTS[said]

    nodes, folder = here(run, Garbled)
    record = trained(nodes, run, folder / "there")
    assert list(record["rounds"][0]["absent"]) == ["train"] and "absent" not in record["rounds"][1]
    (domain, why), = record["rounds"][0]["absent"]["train"].items()
    assert domain == "printed" and said in why and "\n" not in why
    assert comparable(record) == without(run, folder / "alone", {(0, "printed")})


SAYS = [({"loss": float("nan")}, "no finite number"), ({"loss": -float("inf")}, "no finite number"),
        ({"loss": 10 ** 400}, "OverflowError"), ({"loss": [1]}, "no finite number"), ({}, "no finite number"),
        ({"loss": 1.0, "after": {}}, "no finite number"), ({"loss": 1.0, "after": 1}, "a score that is none"),
        ([], "not of this app")]


@pytest.mark.parametrize("about, said", SAYS)
def test_what_a_node_says_beside_its_message_ends_no_run(about, said, here, caplog):
    """A loss of nan ended the run and its checkpoint, a whole number of 400 digits the server."""
    run = run_of("FedAvg")

    class Liar(Faulty):
        def answer(self, message, context):
            reply, verb = Grid.answer(self, message, context), message.metadata.message_type
            if verb == "train" and context.node_config["domain"] == "printed" and message.metadata.group_id == "1":
                reply.content = flower.content(about, flower.opened(reply)[1])
            return reply

    nodes, folder = here(run, Liar)
    record = trained(nodes, run, folder / "there")
    (domain, why), = record["rounds"][0]["absent"]["train"].items()
    assert domain == "printed" and said in why and "\n" not in why and "absent" not in record["rounds"][1]
    assert comparable(record) == without(run, folder / "alone", {(0, "printed")})


def test_a_second_node_does_not_take_anothers_place(here, caplog):
    run = run_of("FedAvg")
    nodes, folder = here(run)
    nodes.gather()
    node = nodes[0]
    first, hello = node.address, dict(node.hello)
    nodes.admit(10 ** 6, hello)
    assert node.address == first and 10 ** 6 not in nodes.asked and f"node {first} speaks for" in caplog.text
    node.address = None         # it has left
    nodes.admit(10 ** 6, hello)
    assert node.address == 10 ** 6


def test_a_domain_can_be_bound_to_a_node_before_any_speaks_for_it(here, caplog, tmp_path):
    run = run_of("FedAvg", rounds=1)
    nodes, folder = here(run)
    bound = flower.Nodes(nodes.grid, run, 2.0, {"scans": "10", "printed": "99"})
    record = trained(bound, run, folder / "there")
    assert list(record["rounds"][0]["absent"]["train"]) == ["printed"] and "printed is node 99" in caplog.text
    with pytest.raises(UserError, match="unknown domain 'scan'"):
        flower.Nodes(nodes.grid, run, 2.0, {"scan": "10"})
    words = ["flower", "FedAvg", "--data", "mini_digits", "--out", tmp_path / "app"]
    assert cli.call([*words, "--node", "scans=10", "--node", "printed=99"]) == 0
    config = tomllib.loads((tmp_path / "app/pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert json.loads(config["nodes"]) == {"scans": "10", "printed": "99"}
    assert cli.call([*words, "--node", "scans"]) == 2


def test_what_a_node_keeps_is_its_owners_alone(here):
    run = run_of("FedBN", rounds=1)
    nodes, folder = here(run)
    trained(nodes, run, folder / "there")
    kept = [place for d in DOMAINS for place in (folder / d).iterdir()]
    assert len(kept) == 4 and {place.stat().st_mode & 0o777 for place in kept} == {0o700}


def without(run, folder, absent):
    """The rounds of a run in this process in which some clients' trainings (round, domain) do not arrive."""
    federation = federate(run.data, run.seed)

    class Lossy(Workers):
        def train(self, places, messages, number):
            kept = [w.kept() for w in self]
            kept = [params.unflatten({k: v.clone() for k, v in params.flatten(s).items()}) for s in kept]
            ends = [super(Lossy, self).train([i], [m], number)[0] for i, m in zip(places, messages)]
            for k, i in enumerate(places):
                if (number, self[i].client.domain) in absent:
                    ends[k] = None
                    self[i].restore(kept[i])
            return ends

    workers = Lossy(Worker(run, c, initial_net(run, federation)) for c in federation.clients)
    return result(run, folder, workers=workers, federation=federation)


def test_other_classes_or_shapes_are_turned_away_and_the_others_go_on(here, caplog):
    run = run_of("FedAvg")
    nodes, folder = here(run, blended={"data": "mini_digits", "domain": "nowhere"})
    hello = flower.Place.hello
    odd = {"street": {"classes": list("abc")}, "printed": {"shape": [3, 9, 9]}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flower.Place, "hello", lambda self: hello(self) | odd.get(self.client.domain, {}))
        nodes.grid.nodes[14] = {"domain": "scans", "state": str(folder / "second")}
        record = trained(nodes, run, folder / "there")
    assert all(set(r["acc"]) == {"scans"} for r in record["rounds"])
    assert set(record["rounds"][0]["absent"]["train"]) == {"blended", "printed", "street"}


def test_a_node_that_is_silent_costs_one_wait_and_comes_back(here):
    run = run_of("FedBN", rounds=4)
    nodes, folder = here(run)
    beat = []

    def say(event):
        nodes.grid.dead = {13} if event["round"] == 1 else set()
        if event["round"] == 2:      # it says who it is only when it is asked again
            beat.append(nodes[3].address)

    record = records.read_record(loop.train(run, folder / "there", workers=nodes, federation=nodes.gather(), say=say))
    assert beat == [None]
    assert record["rounds"][1]["absent"] == {"train": {"street": "no answer in 2 s"},
                                             "evaluate": {"street": "not connected"}}
    assert [sorted(r.get("absent", {})) for r in record["rounds"]] == [[], ["evaluate", "train"], [], []]
    alone = without(run, folder / "alone", {(1, "street")})
    for ours, theirs in zip(comparable(record), alone, strict=True):
        assert all(theirs["acc"][d] == v for d, v in ours["acc"].items())


def test_a_server_that_was_stopped_continues_from_its_checkpoint(here):
    run = run_of("FedBN", rounds=3)
    nodes, folder = here(run)

    class Stop(Exception):
        pass

    def stop(event):
        raise Stop

    for _ in range(2):
        with pytest.raises(Stop):
            loop.train(run, folder / "there", workers=nodes, federation=nodes.gather(), say=stop)
        nodes = flower.Nodes(nodes.grid, run, 2.0)      # a new process knows nothing
    record = trained(nodes, run, folder / "there")
    assert comparable(record) == result(run, folder / "alone")


def test_a_node_without_its_state_does_not_start_afresh(here, caplog):
    run = run_of("FedBN", rounds=3)
    nodes, folder = here(run)
    record = records.read_record(loop.train(run, folder / "there", workers=nodes, federation=nodes.gather(),
                                      say=lambda event: shutil.rmtree(folder / "street", ignore_errors=True)))
    assert set(record["rounds"][1]["absent"]["train"]) == {"street"}
    assert "own log" in record["rounds"][1]["absent"]["train"]["street"]


def test_the_server_learns_nothing_of_what_went_wrong_in_a_node(here, monkeypatch):
    run = run_of("FedAvg")
    nodes, folder = here(run)
    monkeypatch.setattr(Worker, "end", lambda self: 1 / 0 if self.client.domain == "street" else end(self))
    record = trained(nodes, run, folder / "there")
    assert "division" not in json.dumps(record)
    assert set(record["rounds"][0]["absent"]["train"]) == {"street"}


end = Worker.end


@pytest.mark.parametrize("setting", ["clients=2,1,1,1", "unseen=street", "mixed=0.2", "cross=true", "tuning=0.2",
                                     "natural=true", "split=feddtr"])
def test_what_one_domain_a_machine_cannot_have_is_said(setting):
    config = {"method": "FedAvg", "data": "mini_digits", "rounds": 2, "seed": 0, "set": setting}
    with pytest.raises(UserError, match=setting.partition("=")[0]):
        flower.planned(config)


@pytest.mark.parametrize("hello", [
    {"train": -1}, {"train": 10 ** 12}, {"train": "5"}, {"classes": "abc"}, {"classes": [1, 2]}, {"shape": []},
    {"shape": [10 ** 8, 10 ** 8]}, {"shape": [3, 2048, 2048]}, {"domain": "elsewhere"}, {"data": None}])
def test_a_greeting_that_cannot_be_is_refused(hello):
    whole = {"domain": "scans", "classes": ["a", "b"], "shape": [3, 8, 8], "words": 0, "train": 5, "test": 5, "val": 0,
             "data": "", "held": ""}

    def reply(said):
        asked = flower.Message(flower.content({}, b""), dst_node_id=2, message_type="query")
        return flower.Message(flower.content(said, b""), reply_to=asked)

    assert flower.greeting(reply(whole), ["scans"]) == whole
    with pytest.raises(UserError):
        flower.greeting(reply(whole | hello), ["scans"])


# real processes


def commands(name: str, **swaps) -> str:
    """The text of a block of the page, with other words instead of some."""
    text = "".join(line for cell in json.loads(PAGE.read_text())["cells"] for line in [*cell["source"], "\n"])
    block = text.split(f":name: {name}\n")[1].split("```")[0].strip().replace("\\\n", " ")
    for old, new in swaps.items():
        assert old in block, f"the page's {name} has no {old}"
        block = block.replace(old, str(new))
    return block


def listens(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


class Machines:
    """A server and its nodes, each with a folder of its own below `folder`: TLS, and nodes with registered keys."""

    patience = 240.0    # seconds for an answer; shorter where six runs at once have shown how fast this machine is

    def __init__(self, folder: Path):
        self.folder, self.running, self.numbers = folder, {}, {}
        self.fleet, self.control, self.server = free_ports(3)
        self.own = dict(zip([*DOMAINS, "stranger"], free_ports(5)))
        for name in ("server", *self.own):
            (folder / name).mkdir(parents=True)
        home = folder / "server/home"
        home.mkdir()
        self.do("server", commands("cmd-certificate", **{"server.example.org": "localhost"}))
        for name in self.own:
            shutil.copy(folder / "server/server.crt", folder / name)
            self.do(name, commands("cmd-key"))
        text = commands("cmd-config", **{"9093": self.control, "/etc/fedlib": folder / "server"})
        (home / "config.toml").write_text(text)
        self.link()
        for name in DOMAINS:
            key = folder / name / "node.key.pub"
            printed = self.do("server", commands("cmd-register", **{"node.key.pub": key}), tries=20)
            self.numbers[name] = re.search(r"SuperNode\s+(\d+)", printed)[1]
            self.node(name)

    def environment(self, name: str) -> dict:
        here = str(Path(sys.executable).parent)
        return os.environ | {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(self.folder / name / "home"),
                             "PATH": f"{here}:{os.environ['PATH']}", "FEDLIB_DATA": str(prepare.folder()),
                             "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def do(self, name: str, command: str, tries: int = 1) -> str:
        """A command that ends."""
        for _ in range(tries):
            done = subprocess.run(shlex.split(command), cwd=self.folder / name, env=self.environment(name),
                                  capture_output=True, text=True, timeout=600)
            if not done.returncode:
                return done.stdout
            time.sleep(1)
        raise AssertionError(f"{command}: {done.stdout} {done.stderr}")

    def start(self, name: str, command: str):
        """A command that goes on, in a process group of its own; its output is in <name>/log."""
        log = open(self.folder / name / "log", "a")
        self.running[name] = subprocess.Popen(shlex.split(command), cwd=self.folder / name, stdout=log, stderr=log,
                                              env=self.environment(name), start_new_session=True)
        log.close()

    def link(self):
        """Start the SuperLink, and wait for its database: two first calls at once would both make it, and break it."""
        self.start("server", commands("cmd-superlink", **{
            "0.0.0.0:9092": f"127.0.0.1:{self.fleet}", "9093": self.control, "9091": self.server}))
        self.wait(lambda: all(listens(port) for port in (self.fleet, self.control, self.server)) and self.database())

    def database(self) -> bool:
        with contextlib.closing(sqlite3.connect(self.folder / "server/superlink.db")) as base:
            try:
                return bool(base.execute("select * from alembic_version").fetchall())
            except sqlite3.OperationalError:
                return False

    def node(self, name: str, domain: str | None = None, again: bool = True):
        """again: as a service manager does; a server that starts may end a node, or refuse one that was killed."""
        command = commands("cmd-supernode", **{
            "server.example.org:9092": f"localhost:{self.fleet}", "9094": self.own[name], "scans": domain or name,
            "/var/lib/fedlib": self.folder / name / "state"})
        self.start(name, shlex.join(["sh", "-c", f"until {command}; do sleep 3; done"]) if again else command)

    def said(self, name: str) -> str:
        return (self.folder / name / "log").read_text()

    def app(self, words: str, out: str = "app"):
        start = commands("cmd-app").split()
        assert start[:2] == ["fedlib", "flower"]
        assert cli.call([start[1], *words.split(), "--out", self.folder / "server" / out]) == 0

    def run(self, app: str = "app"):
        return self.do("server", commands("cmd-run", **{"app ": f"{app} ", " --stream": ""}), tries=10)

    def wait(self, done, seconds: float = 600):
        end = time.monotonic() + seconds
        while not done():
            if time.monotonic() > end:
                pytest.fail("\n".join(f"{n}: ... {self.said(n)[-500:]}" for n in self.running))
            time.sleep(0.5)

    def kill(self, name: str, how=signal.SIGKILL):
        """End a process and those that it started, by its id; they watch their parents, and follow."""
        process = self.running.pop(name)
        for signal_ in (how, signal.SIGKILL):       # the second for what is slow to go
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal_)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)

    def close(self):
        for name in list(self.running):
            self.kill(name, signal.SIGTERM)


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    prepare.load_set("mini_digits")
    made = Machines(tmp_path_factory.mktemp("machines"))
    yield made
    made.close()


BASE = "--data mini_digits --rounds 2 --timeout 240 --set fraction=0.05 --set batch=16 --set lr=0.05"
NET = f"{BASE} --set net=resnet10 --set width=4"
# Two of them test in a message of its own, in one round; the others with training, in two.
RUNS = {"FedAvg": NET, "MPFT": f"{BASE} --set net=adapter --set encoder=mini_clip"}
RUNS = {name: words.replace("--rounds 2", "--rounds 1") for name, words in RUNS.items()}
RUNS |= dict.fromkeys(["FedBN", "FedProto", "I2PFL", "FedPall"], f"{NET} --set evaluate=after")
RUNS["FedPall"] += " --set noise=none"      # between machines noise has keys that one process does not know


def planned(words: str):
    """The run of a command's words."""
    name, *rest = words.split()
    pairs = list(zip(rest[::2], rest[1::2], strict=True))
    options = dict(pairs)
    return run_in_words(name, options["--data"], options["--rounds"], 0, [v for k, v in pairs if k == "--set"])


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_six_methods_over_tls_with_registered_nodes_equal_one_process(machines, tmp_path):
    feature_cache.ensure_features("mini_digits", None, "mini_clip", say=quiet)
    federation = machines
    federation.node("stranger", "scans", again=False)        # its key is not registered
    paths = {name: planned(f"{name} {words}").path(federation.folder / "server/runs") for name, words in RUNS.items()}
    for name, words in RUNS.items():        # all at once: most of their time is waiting for Flower's next question
        federation.app(f"{name} {words}", name)
        federation.run(name)
    behind = f"FedProx {RUNS['FedAvg']}"
    own = " ".join(f"--node {domain}={number}" for domain, number in federation.numbers.items())
    federation.app(f"{behind} --secure {own}", "masked")
    federation.run("masked")
    runs = {name: planned(f"{name} {words}") for name, words in RUNS.items()}
    alone = {name: records.read_record(loop.train(run, tmp_path)) for name, run in runs.items()}
    federation.wait(lambda: all(p.exists() for p in paths.values()))
    for name, path in paths.items():        # a server that is busy may lose a node, which comes back: then once more
        if any("absent" in r for r in records.read_record(path)["rounds"]):
            path.unlink()
            federation.run(name)
            federation.wait(path.exists)
    slowest = 0.0
    for name, path in paths.items():
        ours, theirs = records.read_record(path), alone[name]
        assert ours["run"] == theirs["run"] and ours["made"]["transport"].startswith("flower")
        for r, s in zip(ours["rounds"], theirs["rounds"], strict=True):
            assert "absent" not in r, (name, r["absent"])
            slowest = max(slowest, r["seconds"])
            assert r["acc"] == pytest.approx(s["acc"], abs=1e-5) and r["loss"] == pytest.approx(s["loss"], abs=1e-5)
            assert (r["bytes_up"], r["bytes_down"]) == (s["bytes_up"], s["bytes_down"])
            for way in ("up", "down"):          # 8 bytes and a header for each of the four messages
                extra = r["wire"][way] - r[f"bytes_{way}"]
                assert 4 * 10 <= extra <= 4 * (16 + 120 * 60), (name, way, extra)
    file = planned(behind).path(federation.folder / "server/runs")
    federation.wait(file.exists)
    record, open_ = records.read_record(file), records.read_record(loop.train(planned(behind), tmp_path))
    assert record["made"]["transport"].endswith(", SecAgg+")
    assert record["rounds"][0]["loss"] == pytest.approx(open_["rounds"][0]["loss"], rel=1e-3)
    federation.patience = min(federation.patience, max(20.0, 3 * slowest))
    federation.wait(lambda: federation.running["stranger"].poll() is not None)
    assert not (federation.folder / "stranger/state").exists()
    assert "No SuperNode found with the given public key" in federation.said("stranger")


GARBLED = """from fedlib.remote import flower
from fedlib.remote.flower import client, server

__all__ = ["client", "server"]
honest = flower.Place.answer


def answer(self, verb, asked, block):
    said, up = honest(self, verb, asked, block)
    if verb == "train" and asked["round"] == 0 and self.client.domain == "printed":
        up = up[:-4] + b"\\xff" * 4
    return said, up


flower.Place.answer = answer
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_garbled_message_a_killed_node_and_a_killed_server_lose_nothing(machines, tmp_path):
    federation = machines
    words = f"FedBN {NET} --set evaluate=after".replace("--timeout 240", f"--timeout {federation.patience:.0f}")
    federation.app(words)
    (federation.folder / "server/app/app.py").write_text(GARBLED)
    path = planned(words).path(federation.folder / "server/runs")
    path.unlink(missing_ok=True)        # the same run stands there from the six
    partial, received = path.with_suffix(".partial"), "Receiving: train message"
    before = federation.said("street").count(received)
    federation.run()
    federation.wait(lambda: federation.said("street").count(received) > before)
    federation.kill("street")           # with the first round's message in its hands
    federation.wait(partial.exists)
    federation.kill("server")           # after the first round
    federation.node("street")
    federation.link()
    late = words.replace(f"--timeout {federation.patience:.0f}", "--timeout 240")       # nodes may come back late
    federation.app(late, "again")
    federation.run("again")
    federation.wait(path.exists)
    record = records.read_record(path)
    first, second = record["rounds"]
    assert set(first["absent"]["train"]) == {"printed", "street"}
    assert "not finite" in first["absent"]["train"]["printed"]
    assert "absent" not in second, second["absent"]
    alone = without(planned(words), tmp_path, {(0, "printed"), (0, "street")})
    for ours, theirs in zip(comparable(record), alone, strict=True):
        assert ours["acc"] == pytest.approx({d: theirs["acc"][d] for d in ours["acc"]}, abs=1e-5)
    # Flower's words for a node that is refused, and for a heartbeat that is, are the only ones of the kind
    for name in ("server", *DOMAINS):
        said = federation.said(name)
        refused = said.count("RuntimeError: generator didn't yield") + said.count("in send_node_heartbeat")
        assert said.count("Traceback") == refused, said[-2000:]


@pytest.mark.parametrize("ends, code, said", [
    ("threading.Thread(target=lambda: 1 / 0).start() or time.sleep(1000)", 1, "ZeroDivisionError"),
    ("None", 2, "start the node again")])
def test_a_node_that_hears_no_more_ends_by_an_error(ends, code, said, tmp_path):
    """As when its heartbeat has died, or Flower's node has returned: its service manager starts it again."""
    words = f"""import threading, time
from fedlib import cli
from fedlib.remote import node
node.flower_supernode = lambda: {ends}
raise SystemExit(cli.call(["node", "--port", "1"]))"""
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, timeout=200, cwd=tmp_path,
                          env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == code and said in done.stderr
