"""Figures show what they were given, in colours that belong to names."""
import io

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from fedlib import plots

matplotlib.use("agg")
DOMAINS = ["scans", "blended", "printed", "street"]
NAMES = ["Local", "FedAvg", "FedBN"]
VALUES = pd.DataFrame(np.arange(12).reshape(3, 4) * 5.0 + 20, NAMES, DOMAINS)


def legend(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def rgb(colour):
    return matplotlib.colors.to_rgb(colour)


@pytest.fixture(autouse=True)
def nothing_left_open():
    """A figure that stays open is shown twice in a notebook, and its memory is kept."""
    before = dict(plt.rcParams)
    yield
    assert plt.get_fignums() == []
    assert dict(plt.rcParams) == before, "a figure changed the look of what is drawn after it"


def luminance(colour) -> float:
    """Relative luminance (WCAG 2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb(colour)]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("names", [plots.METHOD_LOOKS, DOMAINS, ["caltech", "amazon", "webcam", "dslr"],
                                   ["photo", "art_painting", "cartoon", "sketch"], ["mnist", "usps", "mnist_m"],
                                   ["alone", "FedAvg", "pooled"]])
def test_names_that_share_a_figure_have_looks_of_their_own(names):
    assert len({plots.colour(n) for n in names}) == len(names)
    assert len({plots.look(n)["marker"] for n in names}) == len(names)
    assert all(1.05 / (luminance(plots.colour(n)) + 0.05) > 1.9 for n in names), "too pale for white"


def test_a_look_belongs_to_the_name_alone():
    assert plots.look("FedAvg") == {"color": "#0072B2", "marker": "o", "linestyle": "-"}
    assert plots.look("a method of tomorrow") == plots.look("a method of tomorrow")
    assert plots.look("a method of tomorrow")["linestyle"] != "-"
    for frame in (VALUES, VALUES.iloc[::-1]):
        axes = plots.bars(frame.T).axes[0]
        drawn = {bars.get_label(): rgb(bars.patches[0].get_facecolor()) for bars in axes.containers}
        assert drawn == {name: rgb(plots.colour(name)) for name in NAMES}


def test_figures_are_solid_white_and_narrow():
    figure = plots.bars(VALUES.T)
    file = io.BytesIO()
    figure.savefig(file)
    file.seek(0)
    corner = plt.imread(file)[0, 0]
    assert corner.tolist() == [1, 1, 1, 1]
    assert figure.get_figwidth() <= 6 and figure.axes[0].yaxis.label.get_size() >= 11


def test_grid_shows_each_image_beside_its_name():
    images = {"scans": torch.zeros(3, 3, 28, 28, dtype=torch.uint8), "street": torch.full((2, 3, 28, 28), 200).byte()}
    figure = plots.grid(images, columns=["0", "1", "2"])
    axes = np.array(figure.axes).reshape(2, 3)
    assert [axes[i, 0].texts[0].get_text() for i in range(2)] == ["scans", "street"]
    assert [ax.get_title() for ax in axes[0]] == ["0", "1", "2"]
    assert [[len(ax.images) for ax in row] for row in axes] == [[1, 1, 1], [1, 1, 0]]
    shown = axes[1, 1].images[0].get_array()
    assert shown.shape == (28, 28, 3) and (shown == 200).all()


def test_matrix_prints_its_values():
    square = VALUES.iloc[:2].rename_axis("trained on").rename_axis("tested on", axis=1)
    ax = plots.matrix(square).axes[0]
    assert [t.get_text() for t in ax.texts] == ["20", "25", "30", "35", "40", "45", "50", "55"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("tested on", "trained on")
    assert [t.get_text() for t in ax.get_yticklabels()] == NAMES[:2]
    assert ax.collections[0].get_clim() == (0, 100)


def history(**more):
    return pd.DataFrame([{"round": r, "method": m, "domain": d, "mean": 10.0 * r + i, **more}
                         for i, m in enumerate(NAMES) for d in DOMAINS for r in (2, 1, 3)])


def test_curves_have_a_line_for_each_method_and_a_band_where_there_is_an_interval():
    frame = history(half=2.0)
    frame.loc[frame.method == "Local", "half"] = np.nan
    figure = plots.curves(frame, panel="domain")
    assert [ax.get_title() for ax in figure.axes] == DOMAINS
    assert legend(figure) == NAMES
    for ax in figure.axes:
        assert [line.get_xydata().tolist() for line in ax.lines][1] == [[1, 11], [2, 21], [3, 31]]
        assert [rgb(band.get_facecolor()[0]) for band in ax.collections] == [rgb(plots.colour(n)) for n in NAMES[1:]]
    assert [ax.get_ylabel() for ax in figure.axes] == ["accuracy (%)", "", "accuracy (%)", ""]
    low, high = figure.axes[0].collections[0].get_paths()[0].get_extents().get_points()[:, 1]
    assert (low, high) == (9, 33)


def test_curves_without_intervals_have_no_band():
    ax = plots.curves(history()[lambda f: f.method == "FedAvg"], by="domain").axes[0]
    assert [line.get_label() for line in ax.lines] == DOMAINS and not ax.collections


def test_bars_show_values_and_intervals():
    ax = plots.bars(VALUES.T, half=VALUES.T * 0 + 3).axes[0]
    bars = [c for c in ax.containers if hasattr(c, "patches")]
    assert [[p.get_height() for p in c.patches] for c in bars] == VALUES.to_numpy().tolist()
    ends = bars[0].errorbar.lines[2][0].get_segments()[0][:, 1]
    assert ends.tolist() == [17, 23]
    assert [t.get_text() for t in ax.get_xticklabels()] == DOMAINS and ax.get_ylim() == (0, 100)


@pytest.mark.parametrize("low", [0, 20])
def test_radar_says_where_its_axes_start(low):
    figure = plots.radar(VALUES, low=low)
    ax = figure.axes[0]
    assert f"from {low} (centre) to 100 (rim)" in ax.get_title()
    assert ax.get_ylim() == (low, 100) and ax.get_rorigin() == low
    assert [t.get_text() for t in ax.get_xticklabels()] == DOMAINS
    assert ax.get_yticklabels()[-1].get_text() == "100"
    assert [line.get_ydata().tolist() for line in ax.lines] == [[*row, row[0]] for row in VALUES.to_numpy().tolist()]
    assert legend(figure) == NAMES


def test_tsne_is_the_same_each_time_and_colours_by_domain_and_by_class():
    gen = torch.Generator().manual_seed(0)
    labels, domains = torch.arange(60) % 3, np.repeat(["scans", "street"], 30)
    features = torch.randn(60, 8, generator=gen) + 20 * labels[:, None]
    one, two = (plots.tsne(features, labels, domains, ["a", "b", "c"], seed=1) for _ in range(2))
    by_domain, by_class = one.axes
    assert by_domain.get_legend_handles_labels()[1] == ["scans", "street"]
    assert by_class.get_legend_handles_labels()[1] == ["a", "b", "c"]
    assert [len(c.get_offsets()) for c in by_domain.collections + by_class.collections] == [30, 30, 20, 20, 20]
    for a, b in zip(by_class.collections, two.axes[1].collections, strict=True):
        assert np.array_equal(a.get_offsets(), b.get_offsets())
    middles = [c.get_offsets().mean(0) for c in by_class.collections]
    spread = max(np.asarray(c.get_offsets()).std() for c in by_class.collections)
    assert min(np.linalg.norm(middles[i] - middles[j]) for i, j in ((0, 1), (0, 2), (1, 2))) > spread


def test_holdings_stack_to_what_each_client_holds():
    counts = pd.DataFrame([[3, 0, 2], [1, 4, 0]], ["0 scans", "1 street"], pd.Index(["a", "b", "c"], name="class"))
    figure = plots.holdings(counts)
    ax = figure.axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["0 scans", "1 street"]
    assert [[p.get_width() for p in c.patches] for c in ax.containers] == counts.T.to_numpy().tolist()
    assert [p.get_x() + p.get_width() for p in ax.containers[-1].patches] == [5, 5]
    assert legend(figure) == ["a", "b", "c"] and figure.legends[0].get_title().get_text() == "class"


def test_drift_keeps_distances_that_lie_in_its_plane():
    moves = {"scans": torch.tensor([3.0, 0, 0, 4]), "street": torch.tensor([0.0, 2, 0, 0])}
    figure = plots.drift(moves, moves["scans"] / 2 + moves["street"] / 2)
    ends = {line.get_label(): np.array([line.get_xdata()[0], line.get_ydata()[0]]) for line in figure.axes[0].lines}
    assert np.linalg.norm(ends["scans"]) == pytest.approx(5) and np.linalg.norm(ends["street"]) == pytest.approx(2)
    assert ends["$w$ after"] == pytest.approx((ends["scans"] + ends["street"]) / 2)
    assert legend(figure) == ["scans", "street", "$w$ before", "$w$ after"]


def test_plane_keeps_distances_that_lie_in_it_and_draws_what_lies_between():
    points = torch.zeros(4, 5)
    points[:, 1], points[:, 3] = torch.tensor([6.0, -6, 0, 0]), torch.tensor([0.0, 0, 2, -2])
    domains = ["scans", "scans", "street", "street"]
    figure = plots.plane(points, domains, marks={"mean": points.mean(0), "moved": torch.tensor([0.0, 3, 0, 0, 0])})
    ax = figure.axes[0]
    assert [len(c.get_offsets()) for c in ax.collections] == [2, 2]
    scans, street = (np.asarray(c.get_offsets()) for c in ax.collections)
    assert np.linalg.norm(scans[0] - scans[1]) == pytest.approx(12)
    assert np.linalg.norm(street[0] - street[1]) == pytest.approx(4)
    assert [rgb(c.get_facecolor()[0]) for c in ax.collections] == [rgb(plots.colour(d)) for d in ("scans", "street")]
    marks = {line.get_label(): np.ravel(line.get_xydata()) for line in ax.lines if len(line.get_xdata())}
    assert np.linalg.norm(marks["mean"]) == pytest.approx(0, abs=1e-6)
    assert marks["moved"] == pytest.approx(scans[0] / 2, abs=1e-6)
    assert legend(figure) == ["scans", "street", "mean", "moved"]
    assert ax.get_xlabel() == "first main direction (90% of the variance)"


def test_plane_colours_by_class_and_joins_what_was_mixed():
    points, labels, inks = torch.eye(4)[:, :3] * 3, torch.tensor([0, 2, 2, 0]), plots.class_colours(3)
    two = plots.plane(points, ["scans", "street"] * 2, labels, ["a", "b", "c"])
    drawn = two.axes[0].collections
    assert [[rgb(c) for c in part.get_facecolor()] for part in drawn] == [[inks[0], inks[2]], [inks[2], inks[0]]]
    assert legend(two) == ["scans", "street"]
    spots = np.concatenate([np.asarray(part.get_offsets()) for part in drawn])[[0, 2, 1, 3]]
    said = {text.get_text(): text.get_position() for text in two.axes[0].texts}
    assert list(said) == ["a", "c"] and said["a"] == pytest.approx((spots[0] + spots[3]) / 2)

    between = (points[0] + points[1]) / 2
    ax = plots.plane(points, ["street"] * 4, labels, ["a", "b", "c"], mixed=[(0, 1, between)]).axes[0]
    assert not ax.collections and [text.get_text() for text in ax.texts] == ["a", "a", "c", "c"]
    assert [rgb(text.get_color()) for text in ax.texts] == [inks[0]] * 2 + [inks[2]] * 2
    line, star = ax.lines
    assert line.get_xydata() == pytest.approx(spots[:2]) and star.get_xydata()[0] == pytest.approx(spots[:2].mean(0))
    assert rgb(star.get_color()) == inks[0] and star.get_marker() == "*"
    low, high = np.array([ax.get_xlim(), ax.get_ylim()]).T
    assert (low < spots).all() and (spots < high).all(), "a point lies outside"
