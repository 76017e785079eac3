"""The nets for token ids and for features: sizes, what they compute, and what they refuse."""
import pytest
import torch

from fedlib.core.errors import UserError
from fedlib.methods import make
from fedlib.models.nets import BUILDERS, Arch, build


def parameters(net) -> int:
    return sum(p.numel() for p in net.parameters())


def test_published_sizes():
    fasttext, mlp3 = build(Arch("fasttext"), 4, (200,), 0, words=98_635), build(Arch("mlp3"), 2, (5000,), 0)
    assert (parameters(fasttext), fasttext.dim) == (3_157_508, 32)
    assert (parameters(mlp3), mlp3.dim) == (5_551_802, 100)


def test_fasttext_is_the_mean_over_all_positions():
    net = build(Arch("fasttext", 8), 4, (6,), 0, words=50)
    x = torch.tensor([[1, 7, 9, 0, 0, 0], [1, 2, 3, 4, 5, 49]], dtype=torch.int32)
    table, hidden = net.body[0].weight, net.body[2]
    assert not table[0].any() and torch.allclose(net.body(x)[0], hidden(table[[1, 7, 9]].sum(0) / 6), atol=1e-6)
    net(x).sum().backward()
    assert net(x).shape == (2, 4) and not table.grad[0].any() and table.grad[7].any() and not table.grad[8].any()


def test_mlp3_widths_keep_their_proportions():
    net = build(Arch("mlp3", 40), 2, (30,), 0)
    assert [p.shape[0] for p in net.parameters() if p.dim() == 2] == [40, 20, 4, 2] and net.dim == 4
    assert net(torch.rand(3, 30)).shape == (3, 2) and (net.body(torch.randn(9, 30)) >= 0).all()
    assert build(Arch("mlp3", 4), 2, (30,), 0).dim == 1


def test_mlp_bn_has_a_norm_that_stays_by_its_name():
    net = build(Arch("mlp_bn", 16, "hidden"), 3, (30,), 0)
    assert net(torch.rand(4, 30)).shape == (4, 3) and net.dim == 16
    kept = make("FedBN", {"norms": "name"}).private(net)
    assert {k for k in kept if k.startswith("body.")} == {f"body.bn1.{k}" for k in (
        "weight", "bias", "running_mean", "running_var", "num_batches_tracked")}


@pytest.mark.parametrize("net, shape, words", [("fasttext", (20,), 90), ("mlp3", (20,), 0)])
def test_weights_come_from_the_seed_alone(net, shape, words):
    before = torch.get_rng_state()
    first, again, other = (build(Arch(net, 8), 4, shape, s, words).body.state_dict() for s in (3, 3, 4))
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not any(torch.equal(first[k], other[k]) for k in first)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("net", BUILDERS)
@pytest.mark.parametrize("data, shape, words", [("images", (3, 28, 28), 0), ("features", (50,), 0),
                                                ("token ids", (20,), 90)])
def test_a_net_takes_its_kind_of_data_only(net, data, shape, words):
    behind = dict.fromkeys(("mlp3", "mlp_bn", "adapter", "clip_adapter", "attention", "attention_bn", "square",
                            "identity"), ["features"])
    takes = {"fasttext": ["token ids"], "linear": ["images", "features"], **behind}.get(net, ["images"])
    if data in takes:
        x = torch.ones(2, *shape, dtype=torch.int32 if words else torch.float32)
        assert build(Arch(net, 4), 5, shape, 0, words).eval()(x).shape == (2, 5)
        return
    with pytest.raises(UserError) as caught:
        build(Arch(net, 4), 5, shape, 0, words)
    assert str(caught.value).startswith(f"the net {net} needs {' or '.join(takes)}; these data are {data} of shape "
                                        f"{shape}: choose ")
