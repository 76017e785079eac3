"""The nets for images: published numbers of parameters, torchvision's own, seeds."""

import pytest
import torch

from fedlib.core import seeds
from fedlib.core.errors import UserError
from fedlib.models.nets import Arch, Halved, build


@pytest.mark.parametrize("net, classes, shape, count", [
    ("resnet10", 10, (3, 32, 32), 4_903_242), ("resnet18", 7, (3, 64, 64), 11_180_103),
    ("cnn4", 10, (1, 28, 28), 582_026), ("cnn4", 10, (3, 32, 32), 878_538)])
def test_parameter_counts(net, classes, shape, count):
    net = build(Arch(net), classes, shape, 0)
    assert sum(p.numel() for p in net.parameters()) == count
    assert net.eval()(torch.zeros(2, *shape)).shape == (2, classes)


def test_resnet50_features():
    with torch.device("meta"):
        assert sum(p.numel() for p in build(Arch("resnet50"), 7, (3, 64, 64), 0).body.parameters()) == 23_508_032


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_resnets_are_torchvisions_but_for_the_heads_name(name):
    models = pytest.importorskip("torchvision").models
    published = models.get_model(name, weights=None, num_classes=7)
    state = {"head." + k[3:] if k.startswith("fc.") else "body." + k: v for k, v in published.state_dict().items()}
    ours = build(Arch(name), 7, (3, 64, 64), 0)
    assert {k: v.shape for k, v in ours.state_dict().items()} == {k: v.shape for k, v in state.items()}
    ours.load_state_dict(state)
    x = torch.randn(2, 3, 64, 64, generator=seeds.generator("images"))
    for train_mode in (True, False):        # the first pass moves the running statistics that the second one uses
        torch.testing.assert_close(ours.train(train_mode)(x), published.train(train_mode)(x))


def test_a_net_depends_on_its_seed_only():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (build(Arch("cnn4", 4), 10, (3, 28, 28), s).head.weight for s in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_group_norm_has_batch_norms_parameters_and_no_batch():
    batch, group = (build(Arch("resnet10", 16, normalisation=n), 10, (3, 32, 32), 0) for n in ("batch", "group"))
    assert {k: v.shape for k, v in batch.named_parameters()} == {k: v.shape for k, v in group.named_parameters()}
    assert all(torch.equal(a, b) for a, b in zip(batch.parameters(), group.parameters(), strict=True))
    assert list(batch.buffers()) and not list(group.buffers())
    x = torch.randn(4, 3, 32, 32, generator=seeds.generator("images"))
    torch.testing.assert_close(group.train()(x)[:1], group(x[:1]))      # a sample does not depend on the others
    assert not torch.allclose(batch.train()(x)[:2], batch(x[:2]))
    with pytest.raises(UserError, match="cnn4 has none"):
        build(Arch("cnn4", normalisation="group"), 10, (3, 32, 32), 0)


@pytest.mark.parametrize("shape", [(5, 3, 8, 8), (2, 4, 7, 9)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_pool_is_torchs_to_the_last_bit_with_its_slopes(shape, layout):
    """Of the ReLU in torch's order; where two of a window are equal, too, and in windows below 0."""
    x = torch.randint(-3, 4, shape, generator=seeds.generator("pool")).float().contiguous(memory_format=layout)
    slopes, found = [], []
    for pool in (Halved(2), torch.nn.Sequential(torch.nn.ReLU(), torch.nn.MaxPool2d(2))):
        found.append(pool(leaf := x.clone().requires_grad_()))
        weights = torch.arange(found[-1].numel()).view_as(found[-1]).float()
        slopes.append(torch.autograd.grad((found[-1] * weights).sum(), leaf)[0])
    assert torch.equal(*found) and torch.equal(*slopes) and slopes[0].abs().sum() > 0
