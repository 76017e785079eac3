"""A registered node that lies: what hypothesis draws from every entry of every method's upload ends no run."""
import copy
import types

import hostile
import pytest
import torch
from conftest import METHOD_NAMES, small_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

pytest.importorskip("flwr", reason="needs the extra flower")

from fedlib.core.params import flatten
from fedlib.engine.loop import Simulation
from fedlib.remote import flower, wire

DOMAINS = ("scans", "blended", "printed", "street")
LIAR = 2                # printed
DRAWS = 30              # of each method; above 1,600 of all
FILLS = [0, 1, -1, 7, 1e-40, 3e38, -3e38, float("nan"), float("inf"), -float("inf")]
COUNTS = [0, 1, -1, 7, 2 ** 31, 2 ** 62, -2 ** 62]
CHANGES = [*["fill"] * 4, *["times"] * 3, "one", "one", "drop", "name", "more", "type", "shape"]
TYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8, torch.bool]


@st.composite
def lied(draw, about: dict, block: bytes):
    """(about, block): one to three entries dropped, renamed, added, of another type, shape or value; or other bytes."""
    how = draw(st.sampled_from(["entries"] * 6 + ["bytes", "header", "about"]))
    if how == "bytes":
        return about, draw(hostile.garbled(block))
    if how == "header":
        return about, draw(hostile.crafted(block))
    if how == "about":
        return draw(hostile.changed(about)), block
    flat = wire.load(block)
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(sorted(flat)))
        t = flat[name]
        kind = draw(st.sampled_from(CHANGES))
        if kind == "drop" and len(flat) > 1:
            del flat[name]
        elif kind == "name":
            other = draw(st.sampled_from([name + "x", "", "\x1b[2J", "params", name.upper(), "x" * 3000]))
            flat[other] = flat.pop(name)
        elif kind == "more":
            flat[draw(st.sampled_from(["more", "params/more", "n2"]))] = t.clone()
        elif kind == "type":
            flat[name] = t.to(draw(st.sampled_from(TYPES)))
        elif kind == "shape":
            flat[name] = draw(st.sampled_from([t[None], t.reshape(-1), t.reshape(-1)[:0], t.reshape(-1)[:1].sum(),
                                               torch.cat([t.reshape(-1)] * 2)])).clone()
        elif kind == "times":
            flat[name] = (t * draw(st.sampled_from([-1, 0, -50, 1e3, 1e12]))).to(t.dtype)
        else:
            fill = draw(st.sampled_from(FILLS if t.dtype in (torch.float32, torch.float64) else COUNTS))
            flat[name] = t.clone() if t.is_floating_point() else t.to(torch.int64, copy=True)
            (flat[name] if kind == "fill" or not t.dim() else flat[name].reshape(-1)[:1]).fill_(fill)
    return about, save({k: v.contiguous() for k, v in flat.items()})


class Replies:
    """A grid whose nodes were asked once: it gives the same replies again, the liar's as it is told."""

    def __init__(self, tmp_path, run):
        self.nodes = {10 + i: {"domain": d, "state": str(tmp_path / d)} for i, d in enumerate(DOMAINS)}
        self.run, self.kept, self.lie, self.sent = run, {}, None, {}

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        for m in messages:
            m.metadata.__dict__["_message_id"] = f"message {len(self.sent)}"
            self.sent[m.metadata.message_id] = m
        return [m.metadata.message_id for m in messages]

    def pull_messages(self, ids):
        return [self.reply(self.sent[i]) for i in ids]

    def reply(self, message):
        verb, address = message.metadata.message_type, message.metadata.dst_node_id
        if (verb, address) not in self.kept:
            context = types.SimpleNamespace(run_config={}, node_config=self.nodes[address])
            self.kept[verb, address] = flower.opened(flower.answer(message, context))
        about, block = self.kept[verb, address]
        if verb == "train" and address == 10 + LIAR and self.lie:
            about, block = self.lie
        return flower.Message(flower.content(about, block), reply_to=message)

    def send_and_receive(self, messages, timeout):
        return self.pull_messages(self.push_messages(messages))


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_no_answer_that_can_be_drawn_ends_a_round(name, tmp_path, monkeypatch):
    """Turned away in one line, or taken and averaged without an error, into numbers that are finite."""
    run = small_run(name, data={"clients": ()})
    monkeypatch.setattr(flower, "planned", lambda config: run)
    grid = Replies(tmp_path, run)
    nodes = flower.Nodes(grid, run, 1.0)
    simulation = Simulation(run, nodes.gather(), workers=nodes)
    places = list(range(len(DOMAINS)))
    messages = list(map(simulation.message, places))
    honest, drawn = nodes.train(places, messages, 0), []
    assert all(honest), nodes.absent

    @given(st.data())
    @settings(max_examples=DRAWS, deadline=None, database=None, derandomize=True,
              suppress_health_check=list(HealthCheck))
    def one(data):
        grid.lie = data.draw(lied(*grid.kept["train", 10 + LIAR]))
        nodes.absent, server = {}, copy.deepcopy(simulation.server)
        drawn.append(0)
        found = nodes.train(places, messages, 0)
        assert all(found[i] for i in places if i != LIAR)
        if found[LIAR] is None:
            drawn[-1] = 1
            why = nodes.absent["train"]["printed"]
            assert why and why.isprintable() and len(why) < 400
        server.aggregate({nodes[i].client.id: found[i][0] for i in places if found[i]})
        down = flatten(server.broadcast(nodes[0].client.id))
        assert all(v.isfinite().all() for v in down.values() if v.is_floating_point())

    one()
    assert len(drawn) == DRAWS and 5 < sum(drawn) < DRAWS       # some are turned away, some are a liar's right
