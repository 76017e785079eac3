"""Clients that take nets in turns: the same numbers as with a net each, and as many nets as train at once."""
import pytest
import torch
from conftest import METHOD_NAMES, numbers, small_run

from fedlib.engine.loop import Simulation
from fedlib.engine.run import plan
from fedlib.engine.worker import Workers, initial_net, workers
from fedlib.probes.cost import made_up


def played(run, **how):
    simulation = Simulation(run, **how).play()
    return numbers({"rounds": simulation.rounds}), simulation


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_method_gives_the_same_as_with_a_net_each(name):
    run = small_run(name, participation=0.6, rounds=3)
    (own, apart), (shared, together) = played(run), played(run, share=True)
    assert shared == own
    assert sum(w.client.net is not None for w in apart.workers) == 5
    assert sum(w.client.net is not None for w in together.workers) == 1
    for one, other in zip(apart.workers, together.workers, strict=True):
        kept = one.kept()["net"], other.kept()["net"]
        assert kept[0].keys() == kept[1].keys() and all(torch.equal(v, kept[1][k]) for k, v in kept[0].items())


@pytest.mark.parametrize("stack", [1, 2, 3, 5])
def test_there_are_as_many_nets_as_train_at_once(stack):
    _, simulation = played(small_run("FedPer"), share=True, stack=stack)
    nets = {id(w.client.net) for w in simulation.workers if w.client.net is not None}
    assert len(nets) == stack == len(simulation.workers.seated)


def test_a_head_of_the_own_domain_comes_with_the_client():
    federation = made_up([12] * 5, 4, (8,), head=True)
    for k, client in enumerate(federation.clients):
        client.head = torch.full((4, 8), float(k))
    run = plan("FedAvg", {}, {"name": "random"}, {"net": "adapter", "head": "own"}, {"rounds": 1}, 0)
    simulation = Simulation(run, federation, share=True)
    for k in (3, 1, 4, 0):
        assert (simulation.workers.at(k).client.net.head.weight == k).all() and len(simulation.workers.seated) == 1


def test_who_never_trained_has_the_first_net_again():
    run = small_run("Local", buffers="keep")
    simulation = Simulation(run, share=True)
    first = {k: v.clone() for k, v in simulation.workers[0].client.net.state_dict().items()}
    simulation.exchange([0, 1])
    begun = simulation.workers.at(2).client.net.state_dict()
    assert all(torch.equal(v, begun[k]) for k, v in first.items() if v.is_floating_point())
    assert not torch.equal(simulation.workers.at(0).client.net.state_dict()["body.conv1.weight"],
                           first["body.conv1.weight"])


def test_one_net_serves_hundreds_of_clients():
    run = small_run("FedAvg", net="linear", cohort=3)
    clients = [c for _ in range(100) for c in Simulation(run).federation.clients]
    for c in clients:
        c.net = None
    made = workers(run, clients, initial_net(run, Simulation(run).federation), "cpu", share=True)
    assert isinstance(made, Workers) and len(made) == 500 and len(made.seated) == 1
    made.seat([7, 300])
    made.seat([300, 301])
    assert sorted(made.seated) == [300, 301]
