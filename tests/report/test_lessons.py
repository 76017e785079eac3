"""What the concept pages share, by hand."""
import torch
from conftest import small_run
from torch import nn

from fedlib import Simulation
from fedlib.core.federation import Split
from fedlib.core.seeds import generator
from fedlib.report import lessons, plots

POINTS = Split(torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.5], [0.5, 3.0]]), torch.tensor([0, 1, 0, 1]))


def test_a_net_is_trained_in_one_place_and_then_tested():
    net = nn.Linear(2, 2)
    with torch.no_grad():
        net.weight.copy_(torch.eye(2).flip(0))
        net.bias.zero_()
    assert lessons.accuracy(net, POINTS) == 0
    net = lessons.fit(net, POINTS, 100, generator(0, "order"), batch=2)
    assert not net.training and lessons.accuracy(net, POINTS) == 100


def test_accuracy_counts_images_and_uses_the_batch_only_where_the_net_does():
    identity = nn.Identity()
    three = Split(torch.cat([POINTS.x, torch.tensor([[0.0, 1.0]])]), torch.tensor([0, 1, 0, 1, 0]))
    assert abs(lessons.accuracy(identity, three, batch=2) - 80) < 1e-4
    norm = nn.BatchNorm1d(2)
    norm.train()
    whole, pairs = lessons.accuracy(norm, POINTS), lessons.accuracy(norm, POINTS[torch.tensor([0, 2, 1, 3])], batch=2)
    assert whole == 100 and pairs == 50     # two of one class have no common mean to be above


def test_a_simulation_is_finished_after_its_rounds():
    done = lessons.finished(Simulation(small_run()))
    assert [row["round"] for row in done.rounds] == [1, 2] and done.over


def test_a_contest_shows_both_sites_and_where_they_go():
    places = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])[:, None] + torch.zeros(2, 4, 2)
    figure = plots.contest({"one": (nn.Linear(2, 2), places, -places[:, 0])}, torch.arange(2).repeat(2, 2))
    (ax,) = figure.axes
    assert ax.get_title() == "one" and [list(map(float, arrow.xy)) for arrow in ax.texts] == [[0, 0], [0, 0]]
    assert [len(dots.get_offsets()) for dots in ax.collections[-4:]] == [2, 2, 2, 2]
