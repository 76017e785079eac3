"""Arithmetic on dicts of tensors: means, distances, norm layers, messages and their bytes."""

import pytest
import torch
from by_hand import equal, scalar_net
from torch import tensor

from fedlib.core import params
from fedlib.core.seeds import generator
from fedlib.methods import make
from fedlib.models.nets import Arch, build


def test_mean_is_weighted_by_samples():
    dicts = [{"a": tensor([1.0, 2.0]), "b": tensor(10.0)}, {"a": tensor([5.0, 0.0]), "b": tensor(-2.0)}]
    found = params.mean(dicts, [tensor(3), tensor(1)])
    equal(found["a"], [2.0, 1.5])
    equal(found["b"], 7.0)
    with pytest.raises(ValueError):
        params.mean(dicts, [1])     # a client without a weight


def test_entries_at_once_are_entries_one_by_one():
    a, b = ({k: torch.randn(3, generator=generator(0, name, k)) for k in "xy"} for name in "ab")
    found = params.each("lerp", a, dict(reversed(b.items())), 0.3)
    assert list(found) == ["x", "y"] and all(torch.equal(found[k], a[k].lerp(b[k], 0.3)) for k in a)
    assert params.each("sub", {}, a) == {}


@pytest.mark.parametrize("arch, layers, missed", [("resnet18", 20, 3), ("resnet50", 53, 4)])
@pytest.mark.parametrize("head", ["linear", "hidden"])
def test_norm_layers_are_found_by_type_and_by_name_some_are_missed(arch, layers, missed, head):
    net = build(Arch(arch, 4, head), 10, (3, 32, 32), 0)
    by_type = params.names(net, params.NORM)
    layers += 2 * (head == "hidden")
    assert len(by_type) == 5 * layers       # weight, bias, running mean and variance, step counter
    by_name = make("FedBN", {"norms": "name"}).private(net)
    assert make("FedBN").private(net) == by_type and by_name < by_type
    lost = {k.rsplit(".", 1)[0] for k in by_type - by_name}
    assert len(lost) == missed and all(k.endswith("downsample.1") for k in lost)


def test_buffers_are_what_is_not_trained():
    net = build(Arch("resnet10", 4), 10, (3, 28, 28), 0)
    found = params.buffers(net)
    assert {k.rsplit(".", 1)[1] for k in found} == {"running_mean", "running_var", "num_batches_tracked"}
    assert found == {k for k in params.names(net, params.NORM) if k not in dict(net.named_parameters())}
    assert params.buffers(scalar_net(1.0)) == set() and params.names(net.body.bn1, params.NORM) == {
        "weight", "bias", "running_mean", "running_var", "num_batches_tracked"}      # without a name before theirs


def test_read_copies_floats_only_and_load_keeps_the_rest():
    net = build(Arch("resnet10", 4), 10, (3, 28, 28), 0)
    sent = params.snapshot(net, without={"head.bias"})
    left_out = {k for k in net.state_dict() if k.endswith("num_batches_tracked")} | {"head.bias"}
    assert set(sent) == set(net.state_dict()) - left_out and len(left_out) == 13
    bias = net.head.bias.clone()
    sent["head.weight"].zero_()
    assert net.head.weight.abs().sum() > 0      # a copy, not a view
    params.load_params(net, sent)
    assert net.head.weight.abs().sum() == 0 and torch.equal(net.head.bias, bias)


def test_messages_flatten_and_their_bytes():
    message = {"params": {"a.w": torch.zeros(2, 3), "b": {"c": torch.zeros(4, dtype=torch.float64)}},
               "n": tensor(7), "seen": torch.zeros(5, dtype=torch.bool)}
    flat = params.flatten(message)
    assert list(flat) == ["params/a.w", "params/b/c", "n", "seen"]
    assert params.unflatten(flat) == message
    assert params.nbytes(message) == 6 * 4 + 4 * 8 + 8 + 5
