"""What the concept pages share, by hand."""
import copy

import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from conftest import small_run
from torch import nn

from fedlib import Simulation, plan
from fedlib.core.federation import Client, Federation, Split
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


def test_a_simulation_plays_all_of_its_rounds():
    done = Simulation(small_run()).play()
    assert [row["round"] for row in done.rounds] == [1, 2] and done.over


def test_a_contest_shows_both_sites_and_where_they_go():
    places = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])[:, None] + torch.zeros(2, 4, 2)
    figure = plots.contest({"one": (nn.Linear(2, 2), places, -places[:, 0])}, torch.arange(2).repeat(2, 2))
    (ax,) = figure.axes
    assert ax.get_title() == "one" and [list(map(float, arrow.xy)) for arrow in ax.texts] == [[0, 0], [0, 0]]
    assert [len(dots.get_offsets()) for dots in ax.collections[-4:]] == [2, 2, 2, 2]


def test_a_simulation_plays_so_many_rounds_or_all_that_are_left():
    simulation = Simulation(small_run(rounds=3))
    assert simulation.play(2) is simulation and simulation.number == 2
    assert [row["round"] for row in simulation.play().rounds] == [1, 2, 3]
    assert simulation.play().number == 3 and simulation.play(1).number == 4


def test_samples_are_pooled_counted_and_picked_by_class():
    split = Split(torch.arange(5.0)[:, None], torch.tensor([1, 0, 1, 1, 0]))
    pool = lessons.pooled([split[:2], split[2:]])
    assert pool.x.equal(split.x) and pool.y.equal(split.y)
    assert lessons.one_of_each(split).flatten().tolist() == [1, 0]
    assert lessons.one_of_each(split, 1).flatten().tolist() == [4, 2]
    counts = lessons.class_counts({"all": split, "two": split[:2]}, ["a", "b", "c"])
    assert counts.loc["all"].tolist() == [2, 3, 0] and counts.loc["two"].tolist() == [1, 1, 0]
    assert list(counts.columns) == ["a", "b", "c"] and counts.columns.name == "digit"


def test_the_net_with_batch_norm_depends_on_its_seed_alone():
    state = torch.get_rng_state()
    one, two, other = lessons.with_norms(0, 4), lessons.with_norms(0, 4), lessons.with_norms(1, 4)
    assert torch.get_rng_state().equal(state)
    assert one.dim == 32 and one.head.weight.equal(two.head.weight) and not one.head.weight.equal(other.head.weight)
    images = Split(torch.randint(256, (3, 3, 28, 28), dtype=torch.uint8), torch.tensor([0, 1, 2]))
    z = lessons.features(one.train(), images)
    assert z.shape == (3, 32) and not one.body.training     # by kept statistics: a picture alone has the same features
    assert torch.allclose(z[1:2], lessons.features(one, images[1:2]), atol=1e-6)


def test_accuracies_by_round_become_lines_of_a_table():
    rounds = [{"round": 1, "acc": {"a": 10.0, "b": 20.0}}, {"round": 2, "acc": {"a": 30.0, "b": 40.0}}]
    frame = lessons.curve(rounds, method="X")
    assert frame["mean"].tolist() == [10, 20, 30, 40] and frame["round"].tolist() == [1, 1, 2, 2]
    assert frame["domain"].tolist() == ["a", "b", "a", "b"] and set(frame["method"]) == {"X"}


def two_sites():
    """Three points and one; steps on all of them, without anything random."""
    one, two = POINTS[:3], POINTS[3:]
    return Federation([Client("A", "A", one, one), Client("B", "B", two, two)], ["no", "yes"], {}, {})


def test_a_round_is_followed_step_by_step():
    net = nn.Linear(2, 2)
    run = plan("FedAvg", {}, {}, {}, dict(rounds=2, epochs=3, batch=4, lr=0.5), 0)
    simulation, plain = (Simulation(run, two_sites(), net=copy.deepcopy(net)) for _ in range(2))
    before, ways, after = lessons.followed(simulation)
    assert before.equal(torch.cat([net.weight.detach().flatten(), net.bias.detach()]))
    assert {name: way.shape for name, way in ways.items()} == {"A": (3, 6), "B": (3, 6)}
    assert torch.allclose(after, (3 * ways["A"][-1] + ways["B"][-1]) / 4, atol=1e-6)
    F.cross_entropy(net(POINTS.x[:3]), POINTS.y[:3]).backward()
    first = before - 0.5 * torch.cat([net.weight.grad.flatten(), net.bias.grad])
    assert torch.allclose(ways["A"][0], first, atol=1e-6) and not ways["A"][1].equal(ways["A"][0])
    assert lessons.flat(plain.play(1).server).equal(after)      # to follow changes nothing
    simulation.round()
    assert len(ways["A"]) == 3 and simulation.number == 2       # and ends with the round


# figures

def test_ways_are_drawn_from_their_start_over_the_heights_of_the_loss():
    best = {"A": torch.tensor([1.0, 0.0]), "B": torch.tensor([-1.0, 0.0])}
    way = torch.tensor([[0.5, 0.0], [0.9, 0.1]])
    rounds = [(torch.zeros(2), {"A": way, "B": -way}, torch.tensor([0.0, 0.5]))]
    figure = plots.ways({"one": rounds, "none": []}, lambda w: w.square().sum(-1), best, torch.zeros(2),
                        points={"a chain": torch.tensor([[0.0, 0.0], [0.0, 1.0]])})
    one, none = figure.axes
    lines = [list(zip(*line.get_data())) for line in one.lines]
    assert [(0, 0), (0.5, 0), (0.9, 0.1)] in [[(round(float(x), 4), round(float(y), 4)) for x, y in line]
                                              for line in lines]
    assert len(one.lines) == len(none.lines) + 6 and one.get_title() == "one"
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["best for A", "best for B", "best for both", "w before", "average", "a chain"]


def test_prototypes_carry_their_class_and_the_marker_of_their_domain():
    z, y = torch.tensor([[0.0, 0.0], [2.0, 0.0], [5.0, 5.0]]), torch.tensor([0, 0, 1])
    means = torch.tensor([[1.0, 0.0], [5.0, 5.0]])
    figure = plots.prototypes({"one": [(z, y, means, "scans"), (z[:0], y[:0], means + 1, "street")]}, classes=2)
    texts = {tuple(map(float, text.get_position())): text.get_text() for text in figure.axes[0].texts}
    assert texts == {(1, 0): "0", (5, 5): "1", (2, 1): "0", (6, 6): "1"}
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["scans", "street"]


def test_maps_draw_a_loss_at_every_place():
    asked = []
    def loss(z):
        asked.append(z)
        return z.square().sum()
    figure = plots.maps({"here": loss, "there": loss}, torch.tensor([[1.0, 0.0], [0.0, 2.0]]), own=1)
    assert len(asked) == 2 * 90 * 90 and asked[0].shape == (1, 2)
    assert float(torch.cat(asked).max()) == float(-torch.cat(asked).min()) == pytest.approx(2.6)
    rims = {text.get_text(): text.get_bbox_patch().get_edgecolor() for text in figure.axes[0].texts}
    assert max(rims["1"][:3]) < 0.2 and rims["0"] != rims["1"]


def test_words_fill_boxes_of_their_colours():
    frame = pd.DataFrame([["stays", "travels"], ["both", "stays"]], ["Local", "Ditto"], ["body", "head"])
    axes = plots.words(frame, {"stays": "#ff0000", "travels": "#00ff00", "both": "#0000ff"}).axes[0]
    assert [text.get_text() for text in axes.texts] == ["stays", "travels", "both", "stays"]
    assert [patch.get_facecolor()[:3] for patch in axes.patches] == [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 0)]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["Local", "Ditto"]


def test_clients_are_delivered_what_the_server_sends_now():
    simulation = Simulation(small_run()).play()
    sent = simulation.server.global_["head.weight"]
    assert not all(torch.equal(w.client.net.head.weight, sent) for w in simulation.workers)
    assert all(torch.equal(w.client.net.head.weight, sent) for w in lessons.delivered(simulation).workers)


def test_what_vectors_say_of_labels_is_read_off_and_of_noise_nothing_is():
    gen, y = torch.Generator().manual_seed(0), torch.arange(4).repeat(50)
    noise = torch.randn(200, 6, generator=gen)
    assert lessons.read_off(noise, y) < 45
    assert lessons.read_off(torch.cat([noise, 9.0 * torch.eye(4)[y]], 1), y) == 100
