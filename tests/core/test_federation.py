"""Random numbers and batches: keys, augmentation by hand, every sample once, how images are normalised."""

import pytest
import torch
from by_hand import equal
from conftest import small_run
from torch import tensor

from fedlib.core import federation, seeds
from fedlib.core.errors import UserError
from fedlib.core.federation import Split, as_input, augment, batches, rotate
from fedlib.datasets.partition import Data, federate
from fedlib.engine.loop import Simulation
from fedlib.engine.run import plan
from fedlib.probes.kept_models import predicted


def test_keyed_generators():
    def draw(*parts):
        return torch.rand(4, generator=seeds.generator(*parts)).tolist()
    assert draw(0, "order", 3, "1") == draw(0, "order", 3, "1")
    keys = [(0, "order", 3, "1"), (1, "order", 3, "1"), (0, "draw", 3, "1"), (0, "order", 31), (0, "order", 3, 1)]
    assert len({tuple(draw(*k)) for k in keys}) == len(keys)
    assert 0 <= seeds.key("x") < 2 ** 63


def test_augment_by_hand():
    x = torch.arange(1, 17, dtype=torch.uint8).view(1, 1, 4, 4).repeat(3, 3, 1, 1)
    x[2] += 100
    # offset = pad is the identity; [5, 2] moves one row up and two columns right; the mirror turns each row around
    found = augment(x, tensor([[4, 4, 0], [4, 4, 1], [5, 2, 1]]), flip=True)
    assert torch.equal(found[0], x[0]) and torch.equal(found[1], x[1].flip(-1))
    assert found[2, 1].tolist() == [[106, 105, 0, 0], [110, 109, 0, 0], [114, 113, 0, 0], [0, 0, 0, 0]]
    assert torch.equal(augment(x, tensor([[4, 4, 1]] * 3), flip=False), x)


def test_rotation_by_hand():
    x = torch.arange(1, 10, dtype=torch.uint8).view(1, 1, 3, 3).repeat(4, 3, 1, 1)
    found = rotate(x, tensor([0, 90, -90, 180]))
    assert torch.equal(found[0], x[0]) and torch.equal(found[3], x[3].flip(1, 2))
    assert {tuple(found[i, 0].flatten().tolist()) for i in (1, 2)} == {
        (3, 6, 9, 2, 5, 8, 1, 4, 7), (7, 4, 1, 8, 5, 2, 9, 6, 3)}
    corner = rotate(torch.full((1, 3, 9, 9), 255, dtype=torch.uint8), tensor([30]))[0, 0]
    assert corner[0, 0] == 0 and corner[4, 4] == 255 and set(corner.unique().tolist()) == {0, 255}


def test_flip_and_rotate_turns_by_at_most_30_degrees():
    """A bright bar through the centre: its angle is read from its pixels."""
    x = torch.zeros(400, 3, 33, 33, dtype=torch.uint8)
    x[:, :, 16, 16:] = 255
    split = Split(x, torch.zeros(400, dtype=torch.int64), "none")
    (seen, _), = batches(split, 400, "flip_rotate", seeds.generator(0, "turn"))
    rows, columns = ((seen[:, 0] > 0.5).float().sum(d) for d in (2, 1))
    middle = torch.arange(33) - 16.0
    up, right = ((mass * middle).sum(1) / mass.sum(1) for mass in (rows, columns))
    degrees = (up / right.abs()).atan() * 180 / torch.pi
    assert degrees.abs().max() < 33 and degrees.min() < -25 and degrees.max() > 25
    assert 150 < (right < 0).sum() < 250


@pytest.mark.parametrize("size, batch, left_out", [(10, 4, 0), (9, 4, 1), (1, 4, 0), (5, 1, 0), (3, 8, 0)])
def test_an_epoch_holds_every_sample_once(size, batch, left_out):
    """But for a last batch of one, which batch-norm cannot take."""
    split = Split(torch.arange(size, dtype=torch.float32)[:, None], torch.arange(size))
    gen = seeds.generator(0, "order", 0, "0")
    epochs = [list(batches(split, batch, "crop_flip", gen)) for _ in range(2)]
    for epoch in epochs:
        seen = torch.cat([y for _, y in epoch]).tolist()
        assert len(seen) == len(set(seen)) == size - left_out
        assert all(len(y) <= batch and torch.equal(x[:, 0], y.float()) for x, y in epoch)
    if size > 4:
        assert [y.tolist() for _, y in epochs[0]] != [y.tolist() for _, y in epochs[1]]


@pytest.mark.parametrize("augmentation", ["none", "crop", "crop_flip", "flip_rotate"])
def test_batches_prepared_at_once_are_those_prepared_alone(augmentation, monkeypatch):
    pixels = torch.randint(256, (21, 3, 9, 7), dtype=torch.uint8, generator=seeds.generator(0, "pixels"))
    split, found = Split(pixels, torch.arange(21)), []
    for piece in (1, 2 ** 20):
        monkeypatch.setattr(federation, "PIECE", {"cpu": piece})
        found.append(list(batches(split, 4, augmentation, seeds.generator(0))))
    assert [len(y) for _, y in found[0]] == [4] * 5     # the last sample is left out
    assert all(torch.equal(a, b) for one, other in zip(*found, strict=True) for a, b in zip(one, other, strict=True))


def test_images_are_normalised_with_imagenets_statistics():
    x = tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1)
    equal(as_input(x).flatten(), [-0.485 / 0.229, (1 - 0.456) / 0.224, (0.2 - 0.406) / 0.225])
    assert as_input(tensor([[300.0]])).item() == 300
    equal(as_input(x, "half").flatten(), [-1, 1, -0.6])
    equal(as_input(x, "none").flatten(), [0, 1, 0.2])
    equal(as_input(x, "grey").flatten(), [-1])


def test_how_images_are_normalised_belongs_to_the_data():
    federation = federate(Data("tiny_digits", clients=(2, 1, 1, 1), normalise="half"), 0)
    splits = [s for c in federation.clients for s in (c.train, c.test, c.val, c.train[:3], c.train.to("cpu"))]
    assert {s.normal for s in splits} == {"half"}
    (x, _), = batches(splits[3], 3, "none", seeds.generator(0))
    assert x.min() == -1 and x.max() <= 1


def test_grey_images_have_one_channel_from_the_federation_to_a_prediction():
    run = small_run("FedAvg", net="cnn4", data={"domains": ("scans",), "clients": (2,), "normalise": "grey"})
    worker = Simulation(run).play().workers[0]
    x, net = worker.client.test.x, worker.client.net
    assert x.shape[1] == 1 == net.body[0].weight.shape[1] and worker.client.test.input().shape == x.shape
    equal(worker.client.test.input(), as_input(x.expand(-1, 3, -1, -1), "half")[:, :1])
    coloured = x.expand(-1, 3, -1, -1)      # as files are read: what a prediction gets
    assert torch.equal(predicted(worker, coloured, "grey"), predicted(worker, x, "grey"))


@pytest.mark.parametrize("data, net, said", [
    ({"domains": ("street",)}, {}, "images without colours; those of street have some"),
    ({"name": "tiny_features", "domains": ("scans",)}, {"net": "adapter"}, "those of scans are numbers or words"),
    ({"domains": ("scans",)}, {"net": "vit", "width": 64}, "vit takes three channels"),
    ({"domains": ("scans",)}, {"net": "resnet18", "start": "imagenet"}, "resnet18 from ImageNet takes three")])
def test_what_takes_no_grey_images(data, net, said):
    with pytest.raises(UserError, match=said):
        Simulation(plan("FedAvg", {}, {"name": "tiny_digits", "normalise": "grey"} | data, net, {"rounds": 1}, 0))


@pytest.mark.parametrize("samples, batch, least, sizes", [
    (10, 4, 2, [4, 4, 2]), (9, 4, 2, [4, 4]), (10, 4, 3, [4, 4]), (11, 4, 3, [4, 4, 3]), (3, 4, 4, [3]),
    (8, 4, 4, [4, 4]), (5, 1, 2, [1] * 5), (10, 4, 4, [4, 4])])
def test_a_smaller_last_batch_is_left_out_but_never_all(samples, batch, least, sizes):
    split = Split(torch.zeros(samples, 2), torch.arange(samples))
    found = [len(y) for _, y in batches(split, batch, "none", seeds.generator(0), least=least)]
    assert found == sizes
