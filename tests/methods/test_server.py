"""The server's step against numbers worked out by hand."""
import copy
import math
import typing
from dataclasses import replace

import by_hand
import pytest
import torch
import torch.nn.functional as F
from by_hand import equal, worker_of
from conftest import METHOD_NAMES, interrupted, result, small_run
from torch import nn, tensor

from fedlib.core import params, settings
from fedlib.core.federation import Client, Split
from fedlib.engine.loop import Simulation
from fedlib.engine.run import plan
from fedlib.engine.worker import Worker
from fedlib.methods import METHODS, make
from fedlib.methods import server as methods
from fedlib.methods.base import FedAvg, zipped
from fedlib.models.nets import Net


def tiny_net():
    """One feature, two logits, and a batch-norm layer for the sake of its buffers."""
    net = Net(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(1)), nn.Linear(1, 2))
    with torch.no_grad():
        net.head.weight.zero_()
    return net


def server_of(name, values=None, rounds=4):
    """A server whose net has the head weights (0, 0)."""
    return by_hand.server_of(name, values, tiny_net(), rounds=rounds)


def sends(server, weights, n=1, **more):
    """An upload: the server's entries but for the head's two weights; the running mean is their first one."""
    entries = server.global_ | {"head.weight": tensor(weights)[:, None], "body.1.running_mean": tensor(weights[:1])}
    return {"params": entries, "n": tensor(n)} | more


def head(server):
    return server.broadcast("0")["params"]["head.weight"][:, 0]


def running_mean(server):
    return server.broadcast("0")["params"]["body.1.running_mean"]


# weights of clients in FedAvg's mean

UPLOADS = {"0": {"params": {"a": tensor([1.0, 2.0]), "b": tensor(4.0)}, "n": tensor(1)},
           "1": {"params": {"a": tensor([5.0, 0.0]), "b": tensor(8.0)}, "n": tensor(3)}}


def test_clients_count_by_samples_or_alike():
    found = {}
    for weights in ("samples", "equal"):
        server = make("FedAvg", {"weights": weights})
        server.aggregate(UPLOADS)
        found[weights] = server.global_
    equal(found["samples"]["a"], [4.0, 0.5])
    equal(found["samples"]["b"], 7.0)
    equal(found["equal"]["a"], [3.0, 1.0])
    equal(found["equal"]["b"], 6.0)


def test_zipped_weights_multiply_tensors_by_number():
    """Shares 1/4 and 3/4: the first tensor gets 1/4 of the sum over clients, the second 3/4, a third nothing."""
    dicts = [u["params"] | {"c": tensor(2.0)} for u in UPLOADS.values()]
    found = zipped(dicts, [1, 3], ["a", "b", "c"])
    equal(found["a"], [6.0 / 4, 2.0 / 4])
    equal(found["b"], 12.0 * 3 / 4)
    equal(found["c"], 0.0)
    assert list(zipped(dicts, [1, 3], ["b"])) == ["b"]      # more clients than tensors
    equal(zipped(dicts, [1, 3], ["b"])["b"], 3.0)


def test_zipped_weights_shrink_mptfs_adapter_as_its_sheet_says():
    """Six clients with as many samples as DomainNet-50's: 0.427 and 0.833 of the plain mean."""
    n = [1811, 3530, 7370, 3122, 7500, 2096]
    dicts = [{"W1": tensor([1.0 + i]), "W2": tensor([1.0 + i])} for i in range(6)]
    found, plain = zipped(dicts, n, ["W1", "W2"]), params.mean(dicts, [1] * 6)
    equal(found["W1"] / plain["W1"], [0.427], atol=5e-4, rtol=0)
    equal(found["W2"] / plain["W2"], [0.833], atol=5e-4, rtol=0)


def test_zipped_weights_count_parameters_in_the_nets_order_and_average_buffers():
    """Two clients: the batch-norm's weight and bias, which come first, are the two tensors; the head becomes zero."""
    server = server_of("FedAvg", {"weights": "zipped"})
    uploads = {"0": sends(server, [4.0, 4.0], 1), "1": sends(server, [8.0, 8.0], 3)}
    uploads["0"]["params"] = dict(reversed(uploads["0"]["params"].items()))     # a message may come in another order
    server.aggregate(uploads)
    equal(server.global_["body.1.weight"], [2 * 1 / 4])     # both clients have 1
    equal(server.global_["body.1.bias"], [0.0])
    equal(head(server), [0.0, 0.0])
    equal(running_mean(server), [7.0])


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_a_method_that_states_its_weights_anew_uses_the_same_words(name):
    words = typing.get_args(settings.fields(FedAvg)["weights"][0])
    assert set(typing.get_args(settings.fields(METHODS[name])["weights"][0])) <= set(words)


@pytest.mark.parametrize("name", ["FedProx", "MOON", "FedBN", "FedAvgM", "FedAdam", "FedGA", "FedHEAL"])
def test_methods_honour_the_weights(name):
    """The first step of each is a multiple of the mean's (0, whatever the head was): 3 and 1 to equal parts."""
    ratio = {}
    for weights in ("samples", "equal"):
        server = server_of(name, {"weights": weights})
        gap = {"gap": tensor(0.0)} if name == "FedGA" else {}
        server.aggregate({"0": sends(server, [1.0, 0.0], 3, **gap), "1": sends(server, [0.0, 1.0], 1, **gap)})
        ratio[weights] = float(head(server)[0] / head(server)[1])
    assert ratio["equal"] == 1 and ratio["samples"] > 1.0 + 1e-3
    if name != "FedAdam":       # whose steps are not linear
        assert ratio["samples"] == pytest.approx(3)


def test_weights_are_part_of_a_run_only_when_they_are_set():
    """Records made before the setting was there keep their digests."""
    assert small_run("FedAvg").settings == {} and small_run("FedProx").settings == {"mu": 0.01}
    assert small_run("FedAvg", {"weights": "equal"}).settings == {"weights": "equal"}
    assert small_run("FedGA").settings == {"weights": "equal", "s0": 0.2, "sign": "minus"}


# server optimisers

def test_fedavgm_by_hand():
    """D = 4.5, then 6 - 4.5 = 1.5: m = 4.5, then 0.5 x 4.5 + 1.5 = 3.75; buffers are averaged."""
    server = server_of("FedAvgM", {"beta": 0.5})
    server.aggregate({"0": sends(server, [3.0, 0.0], 1), "1": sends(server, [5.0, 0.0], 3)})
    equal(head(server), [4.5, 0.0])
    server.aggregate({"0": sends(server, [6.0, 0.0])})
    equal(head(server), [4.5 + 3.75, 0.0])
    equal(running_mean(server), [6.0])


def test_fedadam_by_hand():
    """beta1 = 1/2, beta2 = 3/4, tau = 1/10. Round 1: D = 2, m = 1, v = 0.75 x 0.01 + 0.25 x 4 = 1.0075.

    Round 2: D = -1, m = 0.5 - 0.5 = 0, v moves on, w stays. Round 3: D = 0.5, m = 0.25.
    """
    server = server_of("FedAdam", {"eta": 0.2, "beta1": 0.5, "beta2": 0.75, "tau": 0.1})
    w = 0.2 * 1 / (math.sqrt(1.0075) + 0.1)
    server.aggregate({"0": sends(server, [2.0, 0.0])})
    equal(head(server), [w, 0.0])
    server.aggregate({"0": sends(server, [w - 1.0, 0.0])})
    equal(head(server), [w, 0.0])
    v = 0.75 * (0.75 * 1.0075 + 0.25 * 1) + 0.25 * 0.25
    server.aggregate({"0": sends(server, [w + 0.5, 0.0])})
    equal(head(server), [w + 0.2 * 0.25 / (math.sqrt(v) + 0.1), 0.0])
    equal(running_mean(server), [w + 0.5])


# FedGA

def test_fedga_adjusts_its_weights_by_hand():
    a = tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    found = methods.adjusted(a, tensor([0.2, -0.1, 0.0]), 0.3)
    equal(found, tensor([0.4, 0.35, 0.2], dtype=torch.float64) / 0.95)
    equal(methods.adjusted(a, torch.zeros(3), 0.3), a)
    clipped = methods.adjusted(tensor([0.05, 0.95], dtype=torch.float64), tensor([1.0, 0.5]), 0.2)     # -0.05, 0.9
    equal(clipped, tensor([0.0, 1.0], dtype=torch.float64), atol=1e-11, rtol=0)
    assert methods.adjusted(tensor([1e-12, 1e-12]), tensor([1.0, 1.0]), 0.2).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("sign, first, second", [("minus", 0.4, 0.475), ("plus", 0.6, 0.525)])
def test_fedga_weighs_a_round_with_the_gaps_of_the_rounds_before(sign, first, second):
    """T = 4: s_1 = 0.2, s_2 = 0.15. Client 0 gains by the first average and loses, as much as client 1 gains, by the
    second: its weight moves by s_1 / 2 = 0.1 and back by s_2 / 2 = 0.075.
    """
    server = server_of("FedGA", {"sign": sign})
    for gaps, wanted in (((0.0, 0.0), 0.5), ((0.3, -0.3), first), ((-0.1, 0.1), second)):
        server.aggregate({"0": sends(server, [1.0, 0.0], 9, gap=tensor(gaps[0])),
                          "1": sends(server, [0.0, 1.0], 1, gap=tensor(gaps[1]))})
        equal(head(server), [wanted, 1 - wanted])
        equal(running_mean(server), [wanted])       # buffers with the same weights


def fedga_worker(split, val=None, **protocol):
    """A client of FedGA with the net (w, -w) x."""
    net = Net(nn.Flatten(), nn.Linear(1, 2, bias=False))
    return Worker(plan("FedGA", {}, {}, {}, protocol, 0), Client("0", "d", split, split, val), net)


def test_fedga_clients_compare_what_came_with_what_they_had_sent():
    """Without steps (lr = 0) what they had sent is what had come: 3 of 4 right with w > 0, 1 of 4 with w < 0."""
    split = Split(tensor([[1.0], [2.0], [-1.0], [3.0]]), tensor([0, 0, 0, 0]))
    worker, gaps = fedga_worker(split, split, lr=0.0), []
    for number, w in enumerate([1.0, -1.0, 1.0, 1.0]):
        upload, _ = worker.train({"params": {"head.weight": tensor([[w], [-w]])}}, number)
        gaps.append(upload["gap"].item())
    assert gaps == [0.0, -0.5, 0.5, 0.0]


def test_fedga_without_a_validation_split_keeps_a_tenth_of_the_training_split_back():
    split = Split(torch.arange(40, dtype=torch.float32)[:, None], torch.zeros(40, dtype=torch.int64))
    worker, trained = fedga_worker(split, batch=100), []
    step = worker.method.step
    worker.method.step = lambda net, x, *rest: trained.append(x[:, 0].tolist()) or step(net, x, *rest)
    for number in range(2):
        worker.train({"params": params.snapshot(worker.client.net)}, number)
    assert len(trained[0]) == 36 and sorted(trained[0]) == sorted(trained[1])       # always the same tenth
    assert len(worker.client.train) == 40 and worker.method.upload(worker.client)["n"] == 40


# FedHEAL

def test_fedheal_masks_entries_that_change_their_sign():
    """Signs of four entries over four rounds, tau = 0.6: past shares of this round's sign, by round."""
    signs = [[1.0, 1, 1, -1], [1, -1, 1, -1], [1, 1, -1, 1], [1, -1, 1, -1]]
    kept = {"before": [[1, 1, 1, 1],            # no past
                       [1, 0, 1, 1],            # 1, 0, 1, 1
                       [1, 0, 0, 0],            # 1, 1/2, 0, 0
                       [1, 0, 1, 1]],           # 1, 1/3, 2/3, 2/3
            "after": [[1, 1, 1, 1], [1, 0, 1, 1],           # 1, 1/2, 1, 1
                      [1, 1, 0, 0],             # 1, 2/3, 1/3, 1/3
                      [1, 0, 1, 1]]}            # 1, 2/4, 3/4, 3/4
    for window, wanted in kept.items():
        server = server_of("FedHEAL", {"tau": 0.6, "window": window})
        assert [server.mask("0", {"a": tensor(s)})["a"].int().tolist() for s in signs] == wanted
        assert server.mask("1", {"a": tensor([-1.0])})["a"].item()      # another client has a past of its own
    server = server_of("FedHEAL", {"tau": 0.6})         # an entry that stood still did not fall
    assert [server.mask("0", {"a": tensor(s)})["a"].tolist() for s in ([0.0, 0.0], [1.0, -1.0])][1] == [True, False]


def test_fedheal_where_nobody_moves():
    """Every mask is 0 or every update is: the shares of 0 are equal, not undefined."""
    server = server_of("FedHEAL")
    uploads = {"0": {"n": tensor(1)}, "1": {"n": tensor(1)}}
    for _ in range(2):
        equal(server.fair(uploads, [tensor(0.0), tensor(0.0)]), [0.5, 0.5])


def test_fedheal_moves_weights_to_clients_that_moved_far():
    """p = (1/4, 3/4) stays in round 1. beta = 0.4. Lengths 1 and 4: e = 0.4 (0.2, 0.8); then, lengths 1 and 1,
    e = 0.6 (0.08, 0.32) + 0.4 (0.5, 0.5).
    """
    server = server_of("FedHEAL")
    uploads = {"0": {"n": tensor(1)}, "1": {"n": tensor(3)}}
    equal(server.fair(uploads, [tensor(9.0), tensor(1.0)]), [0.25, 0.75])
    p = tensor([0.25 + 0.08, 0.75 + 0.32]) / 1.4
    equal(server.fair(uploads, [tensor(1.0), tensor(4.0)]), p)
    equal(server.fair(uploads, [tensor(1.0), tensor(1.0)]), (p + tensor([0.248, 0.392])) / 1.64)


def test_fedheal_shares_an_entry_among_those_who_keep_it():
    old = tensor([1.0, 1.0, 1.0])
    values = [tensor([2.0, 2.0, 2.0]), tensor([5.0, 5.0, 5.0])]
    masks = [tensor([True, True, False]), tensor([True, False, False])]
    equal(methods.masked_mean(old, values, masks, tensor([0.25, 0.75])), [1 + (0.25 * 1 + 0.75 * 4), 1 + 1.0, 1.0])


def test_fedheal_two_rounds_by_hand():
    """Round 1 is FedAvg's: (1 + 3) / 2 and (1 - 3) / 2. Round 2: client 1 goes down in entry 0, against its past, and
    is left out there. Updates (1, 1) and (0, -2) after masking, squared lengths 2 and 4, beta = 0.4.
    """
    server = server_of("FedHEAL")
    server.aggregate({"0": sends(server, [1.0, 1.0]), "1": sends(server, [3.0, -3.0])})
    equal(head(server), [2.0, -1.0])
    server.aggregate({"0": sends(server, [3.0, 0.0]), "1": sends(server, [1.0, -3.0])})
    p = tensor([0.5 + 0.4 * 2 / 6, 0.5 + 0.4 * 4 / 6]) / 1.4
    equal(head(server), [2.0 + 1.0, -1.0 + (p[0] * 1 + p[1] * -2).item()])
    equal(running_mean(server), [(p[0] * 3 + p[1] * 1).item()])


# RUCR

def test_rucr_means_of_unit_prototypes_by_counts():
    protos = tensor([[[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]], [[0.0, 5.0], [9.0, 9.0], [0.0, 0.0]]])
    found = make("RUCR").merge(protos, tensor([[1, 2, 0], [3, 0, 0]]))
    equal(found, [[0.6 / 4, (0.8 + 3 * 1.0) / 4], [0.0, 1.0], [0.0, 0.0]])


def test_rucr_balanced_contrast_by_hand():
    """Cosines of z = (3, 4) with P = (1, 0), (0, 7): 0.6 and 0.8; tau = 1/2, q = (1/4, 3/4). Class 2: no prototype."""
    protos, held = tensor([[1.0, 0.0], [0.0, 7.0], [5.0, 5.0]]), tensor([1, 3, 0])
    z, y = tensor([[3.0, 4.0], [3.0, 4.0], [1.0, 0.0]]), tensor([0, 1, 2])
    first = math.log(0.25 * math.exp(1.2) + math.exp(1.6)) - math.log(0.25) - 1.2
    second = math.log(math.exp(1.2) + 0.75 * math.exp(1.6)) - math.log(0.75) - 1.6
    equal(methods.balanced_contrast(z, y, protos, held, 0.5), (first + second) / 3)
    z.requires_grad_()
    nobody = methods.balanced_contrast(z, y, torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64), 0.5)
    nobody.backward()
    assert nobody.item() == 0 and z.grad.abs().sum() == 0


def test_rucrs_loss_by_hand():
    net, x, y = Net(nn.Linear(3, 5), nn.Linear(5, 2)), by_hand.draw(8, 3), torch.arange(8) % 2
    protos, held = by_hand.draw(2, 5, seed=1), tensor([1, 3])
    found = make("RUCR", {"lam": 0.3, "tau": 0.5}).loss(
        net, x, y, by_hand.client_of(net, x, y, got={"protos": protos, "held": held}))
    contrast = methods.balanced_contrast(net.body(x), y, protos, held, 0.5)
    equal(found, F.cross_entropy(net(x), y) + 0.3 * contrast)


def test_rucr_mixtures_lie_between_a_prototype_and_a_unit_feature():
    protos, z = tensor([[2.0, 0.0], [7.0, 7.0], [0.0, 2.0]]), tensor([[3.0, 4.0]])
    gen = torch.Generator().manual_seed(0)
    split = methods.mixtures(z, protos, tensor([True, False, True]), 100, (0.25, 0.75), gen)
    assert split.y.tolist() == [0] * 100 + [2] * 100
    u = (split.x[:100, 0] - 0.6) / (2 - 0.6)        # x = u P + (1 - u) (0.6, 0.8)
    equal(split.x[:100, 1], (1 - u) * 0.8)
    assert 0.25 <= u.min() < 0.3 and 0.7 < u.max() <= 0.75
    u = (split.x[100:, 1] - 0.8) / (2 - 0.8)
    equal(split.x[100:, 0], (1 - u) * 0.6)


def rucr_worker(got_head, **values):
    """A client of RUCR whose net's head has the weights (1, -1), with a message whose rectified head is another one."""
    net = Net(nn.Flatten(), nn.Linear(1, 2, bias=False))
    worker = worker_of("RUCR", net, [[1.0], [2.0]], [0, 1], values, lr=0.0)
    return worker, {"params": {"head.weight": tensor([[1.0], [-1.0]])}, "head": {"weight": tensor(got_head)},
                    "protos": tensor([[1.0], [-1.0]]), "seen": tensor([True, True]), "held": tensor([1, 1])}


@pytest.mark.parametrize("rectified, trained, answer", [("test", 1.0, 1), ("start", -2.0, 0)])
def test_rucr_rectified_heads_predict_or_start_the_next_round(rectified, trained, answer):
    """For x > 0 FedAvg's head (1, -1) answers 0, the rectified one (-2, 5) answers 1. With lr = 0 a client sends the
    head that it started from.
    """
    worker, got = rucr_worker([[-2.0], [5.0]], rectified=rectified)
    upload, _ = worker.train(got, 0)
    equal(upload["params"]["head.weight"][0], [trained])
    worker.client.test = replace(worker.client.test, y=tensor([answer, answer]))
    assert worker.test(got, {})["test"]["acc"] == 100.0


def test_rucr_trains_a_copy_of_the_head_on_mixtures():
    """One epoch of one batch: the rectified head is one gradient step from the net's head, which keeps its value."""
    worker, got = rucr_worker([[0.0], [0.0]], rectified="test", retrain_epochs=1, mixtures=3)
    worker.method.protocol = replace(worker.method.protocol, lr=0.5, batch=100)
    client = worker.client
    client.got, client.scratch, client.round = got, {}, 4
    params.load_params(client.net, got["params"])
    client.scratch["z"] = tensor([[1.0], [2.0]])
    mixed = methods.mixtures(client.scratch["z"], got["protos"], got["seen"], 3, (0.2, 0.8),
                             methods.generator(0, "mixtures", 4, "0"))
    net = copy.deepcopy(client.net.head)
    F.cross_entropy(net(mixed.x), mixed.y).backward()
    found = worker.method.retrained(client)
    equal(found["weight"], net.weight.detach() - 0.5 * net.weight.grad)
    equal(client.net.head.weight.detach(), [[1.0], [-1.0]])
    assert "losses" not in client.scratch       # its losses are no training losses
    client.got = got | {"seen": torch.zeros(2, dtype=torch.bool)}
    equal(worker.method.retrained(client)["weight"], [[1.0], [-1.0]])       # nothing to mix yet


def test_rucr_counts_of_classes_that_stay_away_are_kept():
    server = make("RUCR")
    server.setup(Net(nn.Flatten(), nn.Linear(2, 3)))
    base = {"params": params.snapshot(Net(nn.Flatten(), nn.Linear(2, 3))), "n": tensor(1), "protos": torch.ones(3, 2)}
    heads = [{"weight": torch.full((3, 2), v), "bias": torch.zeros(3)} for v in (1.0, 5.0)]
    server.aggregate({"0": base | {"counts": tensor([1, 2, 0]), "head": heads[0]},
                      "1": base | {"counts": tensor([3, 0, 0]), "head": heads[1], "n": tensor(3)}})
    assert server.held_.tolist() == [4, 2, 0]
    equal(server.broadcast("0")["head"]["weight"], torch.full((3, 2), 4.0))
    server.aggregate({"1": base | {"counts": tensor([3, 0, 1]), "head": heads[1]}})
    assert server.held_.tolist() == [3, 2, 1] and server.seen_.all()


def test_rucrs_two_uses_of_the_heads_give_two_runs(tmp_path):
    """They part in round 3: round 1 has no prototypes to mix."""
    rows = {r: result(small_run("RUCR", {"rectified": r}, "cnn4", rounds=3), tmp_path) for r in ("test", "start")}
    losses = {r: [row["train_loss"] for row in rows[r]] for r in rows}
    assert [a == b for a, b in zip(losses["test"], losses["start"])] == [True, True, False]


# all

@pytest.mark.parametrize("name", [n for n in METHOD_NAMES if METHODS[n].__module__ == methods.__name__])
def test_two_of_five_clients_may_take_part(name, tmp_path):
    run = small_run(name, net="cnn4", rounds=4, participation=0.4)
    whole = result(run, tmp_path / "whole")
    assert all(0 <= v <= 100 for row in whole for v in row["acc"].values())
    interrupted(run, tmp_path / "cut", rounds=2)
    assert result(run, tmp_path / "cut") == whole


def test_nothing_but_the_net_travels_further_than_it_must():
    """Server steps cost no traffic: FedAvgM, FedAdam and FedHEAL send what FedAvg sends, FedGA one number more."""
    for name, more in (("FedAvgM", 0), ("FedAdam", 0), ("FedHEAL", 0), ("FedGA", 4)):
        sizes = []
        for method in ("FedAvg", name):
            simulation = Simulation(small_run(method, net="linear"))
            upload, _ = simulation.workers[0].train(simulation.message(0), 0)
            sizes.append((params.nbytes(simulation.message(0)), params.nbytes(upload)))
        assert sizes[1] == (sizes[0][0], sizes[0][1] + more)
