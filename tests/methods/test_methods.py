"""Every method: its limit, determinism, resume, one missing class, and the boundary between server and client."""
import copy
import multiprocessing as mp

import pytest
import torch
from conftest import METHOD_NAMES, interrupted, result, small_run
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes

from fedlib.core import params, settings
from fedlib.core.federation import Split
from fedlib.core.seeds import generator
from fedlib.datasets.partition import Data, federate
from fedlib.engine import loop
from fedlib.engine.loop import Simulation
from fedlib.engine.worker import Worker, initial_net
from fedlib.methods import METHODS
from fedlib.methods.base import Protocol
from fedlib.models.nets import Arch, build


def accuracies(rounds):
    return [(r["acc"], r["val"], r["loss"]) for r in rounds]


@pytest.mark.parametrize("protocol", [{}, {"buffers": "keep", "keep_optimiser": True, "warmup": 1, "evaluate": "both"}],
                         ids=["plain", "all kept"])
@pytest.mark.parametrize("name", METHOD_NAMES)
def test_limit_equals_the_other_method(name, protocol, tmp_path):
    limit = METHODS[name].limit
    assert limit, f"{name} declares no limit and no reason"
    if isinstance(limit, str):
        pytest.skip(limit)
    values, other, net = (*limit, "resnet10")[:3]
    if name == "Ditto":         # its personal net's moments begin anew in each round, as its text says
        protocol = protocol | {"keep_optimiser": False}
    ours = result(small_run(name, values, net=net, **protocol), tmp_path)
    theirs = result(small_run(other, net=net, **protocol), tmp_path)
    assert accuracies(ours) == accuracies(theirs)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_no_setting_of_a_method_hides_one_of_the_protocol_net_or_data(name):
    """`fedlib train --set epochs=5` must mean one thing."""
    others = [settings.fields(cls) for cls in (Protocol, Arch, Data)]
    assert not set(settings.fields(METHODS[name])) & set().union(*others)


def test_fedproto_with_averaging_has_fedavg_as_its_limit(tmp_path):
    ours = result(small_run("FedProto", {"lam": 0.0, "average": True}), tmp_path)
    assert accuracies(ours) == accuracies(result(small_run(), tmp_path))


@pytest.mark.parametrize("name", [n for n in METHOD_NAMES if isinstance(METHODS[n].limit, tuple)])
def test_away_from_its_limit_a_method_differs(name, tmp_path):
    """A limit test alone would pass for a method that does nothing."""
    values = {"FedProx": {"mu": 1.0}}.get(name, {})
    ours = result(small_run(name, values, rounds=3), tmp_path)       # FedProc is FedAvg in the first and last round
    assert accuracies(ours) != accuracies(result(small_run(METHODS[name].limit[1], rounds=3), tmp_path))


def test_two_runs_of_one_seed_are_equal_and_two_seeds_differ(method_name, tmp_path):
    first = result(small_run(method_name), tmp_path / "a")
    torch.rand(7)       # global random state must not matter
    assert result(small_run(method_name), tmp_path / "b") == first
    if method_name not in ("ZeroShot", "Constant"):       # nothing is drawn
        assert result(small_run(method_name, seed=1), tmp_path / "a") != first


def test_an_interrupted_run_continues_exactly(method_name, tmp_path):
    run = small_run(method_name, rounds=4, participation=0.6, buffers="keep")      # not all have met the server
    whole = result(run, tmp_path / "whole")
    for _ in range(3):      # cut after each of the rounds before the last
        interrupted(run, tmp_path / "cut")
    assert result(run, tmp_path / "cut") == whole
    assert sorted(p.suffix for p in (tmp_path / "cut" / run.data.name).iterdir()) == [".json"]


def test_a_class_that_no_client_holds(method_name, tmp_path, monkeypatch):
    keep = loop.federate

    def without_class_3(spec, seed):
        federation = keep(spec, seed)
        for c in federation.clients:
            c.train = c.train[c.train.y != 3]
        return federation

    monkeypatch.setattr(loop, "federate", without_class_3)
    rounds = result(small_run(method_name), tmp_path)
    assert all(0 <= v <= 100 for r in rounds for v in r["acc"].values())


@pytest.mark.parametrize("buffers", ["average", "keep"])
def test_private_entries_never_travel(method_name, buffers, tmp_path):
    """What goes over the wire holds no private name, and the server never holds one."""
    simulation = Simulation(small_run(method_name, buffers=buffers))
    worker, message = simulation.workers[0], simulation.message(0)
    upload, _ = worker.train(message, 0)
    stays = worker.method.stays(worker.client.net)
    assert not stays & set(upload.get("params", {})) and not stays & set(message["params"])
    assert all(isinstance(v, torch.Tensor) for v in params.flatten(upload).values())
    assert not any(v.requires_grad for v in params.flatten(upload).values())
    if buffers == "keep":
        assert not any("running" in k for k in params.flatten(upload))


def test_a_method_object_at_a_client_keeps_nothing(method_name):
    """State lives in the client: another client's worker may use an equal method object."""
    simulation = Simulation(small_run(method_name))
    worker = simulation.workers[0]
    before = set(vars(worker.method))
    worker.train(simulation.message(0), 0)
    assert set(vars(worker.method)) == before and not any(k.endswith("_") for k in before)


def test_testing_leaves_no_trace(method_name):
    simulation = Simulation(small_run(method_name))
    worker = simulation.workers[0]
    worker.train(simulation.message(0), 0)
    before = params.flatten({"kept": worker.kept(), "net": params.snapshot(worker.client.net)})
    before = {k: v.clone() for k, v in before.items()}
    worker.test(simulation.message(0), {})
    after = params.flatten({"kept": worker.kept(), "net": params.snapshot(worker.client.net)})
    assert before.keys() == after.keys() and all(torch.equal(before[k], after[k]) for k in before)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_only_facmic_looks_at_test_samples_before_it_is_tested(name):
    """With other samples to be tested on a client sends and predicts the same. FACMIC says that it looks at them."""
    said = []
    for other in (False, True):
        simulation = Simulation(small_run(name, {"shots": 2} if name == "MPFT" else {}))     # adapts to some samples
        worker = simulation.workers[1]
        method, client = worker.method, worker.client
        if other:
            client.test = Split(client.test.x.flip(0)[:9], torch.full((9,), 7), client.test.normal)
        for number in range(2):
            upload, _ = worker.train(simulation.message(1), number)
            simulation.server.aggregate({client.id: upload})
        worker.begin(simulation.message(1), 2)
        method.adapt(client)
        with torch.no_grad():
            logits = method.predict(client.net.eval(), client.train.input(torch.arange(8)), client)
        said.append(params.flatten(upload) | {"logits": logits})
    assert all(torch.equal(v, said[1][k]) for k, v in said[0].items()) == (name != "FACMIC")


# each client in a process of its own, messages as bytes


def serve(pipe):
    """A client's process: builds its own part of the federation, answers with bytes."""
    torch.set_num_threads(1)
    worker = None
    while (request := pipe.recv()) is not None:
        verb, *args = request
        if verb == "join":
            run, number = args
            federation = federate(run.data, run.seed)
            worker = Worker(run, federation.clients[number], initial_net(run, federation))
            pipe.send(None)
        elif verb == "train":
            upload, said = worker.train(params.unflatten(from_bytes(args[0])), args[1])
            pipe.send((to_bytes(params.flatten(upload)), said))
        elif verb == "test":
            pipe.send(worker.test(params.unflatten(from_bytes(args[0])), {}))
        elif verb == "kept":
            pipe.send(to_bytes({k: v.contiguous() for k, v in params.flatten(worker.kept()).items()}))


class Remote:
    """Stands where a Worker stands; the client is elsewhere."""

    def __init__(self, pipe, run, number):
        self.pipe = pipe
        self.client = federate(run.data, run.seed).clients[number]      # for its id only
        self.client.net = "in the other process"
        self.ask("join", run, number)

    def ask(self, *request):
        self.pipe.send(request)
        return self.pipe.recv()

    def train(self, got, number):
        upload, said = self.ask("train", to_bytes(params.flatten(got)), number)
        return params.unflatten(from_bytes(upload)), said

    def test(self, got, unseen, others):
        return self.ask("test", to_bytes(params.flatten(got)))

    def kept(self):
        return params.unflatten(from_bytes(self.ask("kept")))


@pytest.fixture(scope="module")
def pipes():
    context = mp.get_context("spawn")
    ends, processes = [], []
    for _ in range(5):
        here, there = context.Pipe()
        processes.append(context.Process(target=serve, args=(there,), daemon=True))
        processes[-1].start()
        ends.append(here)
    yield ends
    for end, process in zip(ends, processes, strict=True):
        end.send(None)
        process.join(10)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_clients_in_other_processes_give_equal_results(name, pipes, tmp_path):
    run = small_run(name)
    here = result(run, tmp_path / "here")
    there = result(run, tmp_path / "there", workers=[Remote(p, run, i) for i, p in enumerate(pipes)])
    assert there == here


def test_a_transport_may_change_the_order_of_entries():
    """COPA sums the losses of the others' heads; rounding must not depend on the order in which they came."""
    run = small_run("COPA")
    net, gen = build(Arch("resnet10", 4), 10, (3, 28, 28), 0), generator(0)
    heads = {str(i): {k: torch.randn(v.shape, generator=gen) for k, v in params.snapshot(net.head).items()}
             for i in range(12)}
    got, uploads = {"params": params.snapshot(net), "heads": heads}, []
    for order in (sorted(heads), sorted(heads, key=int, reverse=True)):
        worker = Worker(run, federate(run.data, run.seed).clients[0], copy.deepcopy(net))
        uploads.append(params.flatten(worker.train(got | {"heads": {k: heads[k] for k in order}}, 0)[0]))
    assert all(torch.equal(v, uploads[1][k]) for k, v in uploads[0].items())


def test_bytes_are_those_of_the_messages(tmp_path):
    """FedAvg: every float entry of the net down and up to each of 5 clients, and n (8 bytes) up."""
    run = small_run()
    net = build(Arch("resnet10", 4), 10, (3, 28, 28), 0)
    floats = sum(4 * v.numel() for v in net.state_dict().values() if v.is_floating_point())
    row = result(run, tmp_path)[0]
    assert row["bytes_down"] == 5 * floats and row["bytes_up"] == 5 * (floats + 8)
