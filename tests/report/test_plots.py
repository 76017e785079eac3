"""Figures show what they were given, in colours that belong to names."""
import io
import itertools

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
import torch

from fedlib.experiments import tables
from fedlib.report import plots
from fedlib.report.plots import looks

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
                                   ["alone", "FedAvg", "pooled"], ["SingleSet", "FedAvg", "FedBN", "ADCOL", "FedPall"],
                                   ["CE", "CE + InfoNCE", "CE + KL", "CE + InfoNCE + KL"],
                                   ["FedAvg", "Ditto", "FedPer", "FedAMP", "FedALA", "FedDTR"],
                                   ["Digits", "Office-10", "PACS", "mini_digits"],
                                   ["CLIP-zs", "CLIP-FC", "FedCLIP", "FACMIC", "PromptFL", "FedAPT", "FedDEAP"],
                                   ["PACS", "DomainNet-126", "Office-Caltech10", "DDR", "mini_digits with mini_clip"]])
def test_names_that_share_a_figure_have_looks_of_their_own(names):
    assert len({plots.colour(n) for n in names}) == len(names)
    assert len({plots.look(n)["marker"] for n in names}) == len(names)
    assert all(1.05 / (luminance(plots.colour(n)) + 0.05) > 1.9 for n in names), "too pale for white"


def test_a_look_belongs_to_the_name_alone():
    assert plots.look("FedAvg") == {"color": "#0072B2", "marker": "o", "linestyle": "-"}
    assert plots.look("a method of tomorrow") == plots.look("a method of tomorrow")
    assert plots.look("a method of tomorrow")["linestyle"] != "-"
    sites = [plots.look(f"hospital_{c}") for c in "abcdefgh"]        # no two of a user's sites share a colour
    assert len({look["color"] for look in sites}) == len({look["marker"] for look in sites}) == 8
    for frame in (VALUES, VALUES.iloc[::-1]):
        axes = plots.bars(frame.T).axes[0]
        drawn = {bars.get_label(): rgb(bars.patches[0].get_facecolor()) for bars in axes.containers}
        assert drawn == {name: rgb(plots.colour(name)) for name in NAMES}


@pytest.mark.parametrize("ident", ["i2pfl/table2", "i2pfl/table3", "i2pfl/table7", "fedpall/table1", "fedpall/figure3",
                                   "fedpall/figure6", "feddtr/table1"])
def test_methods_of_a_table_that_share_a_colour_differ_in_dash(ident):
    rows = [row["name"] for row in tables.load_table(ident).rows if not row.get("tuned")]     # those have markers
    for a, b in itertools.combinations(rows, 2):
        one, two = plots.look(a), plots.look(b)
        assert one["color"] != two["color"] or one["linestyle"] != two["linestyle"], (a, b)


def test_a_remark_in_brackets_changes_no_look():
    assert plots.look("mini_digits (not in the paper)") == plots.look("mini_digits")


def test_variants_of_a_method_have_its_colour_broken_lines_and_markers_of_their_own():
    base, *variants = [plots.look(f"PromptFL{rest}") for rest in ("", ", 32 tokens", ", tuned")]
    assert {ink["color"] for ink in variants} == {base["color"]} and {ink["linestyle"] for ink in variants} == {"--"}
    assert len({ink["marker"] for ink in variants}) == 2


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


@pytest.mark.parametrize(("label", "inside"), [("accuracy (%)", True), ("loss", False)])
def test_percentages_stay_between_0_and_100(label, inside):
    low, high = plots.curves(history(half=14.0 if inside else 200.0), label=label).axes[0].get_ylim()
    assert (low == 0 and high <= 100) if inside else low < -100


def test_a_line_that_only_a_later_panel_has_is_in_the_legend():
    frame = history().query("domain != 'scans' or method != 'FedBN'")
    assert frame.domain.iloc[0] == "scans" and legend(plots.curves(frame, panel="domain")) == NAMES


def test_the_lowest_curves_of_each_column_name_the_rounds_and_each_has_its_own():
    frame = history().query("domain != 'street' and (domain != 'scans' or round < 3)")
    axes = plots.curves(frame, panel="domain").axes
    assert [ax.get_xlabel() for ax in axes] == ["", "round", "round", ""]
    assert [ax.xaxis.get_major_ticks()[0].label1.get_visible() for ax in axes[:3]] == [True] * 3
    assert axes[0].get_xlim()[1] < axes[1].get_xlim()[1]


def test_curves_beside_a_few_are_grey_and_have_one_name():
    ax = plots.curves(history(half=2.0), few=["FedAvg"]).axes[0]
    grey = rgb(looks.PALE)
    assert [rgb(line.get_color()) for line in ax.lines] == [rgb(plots.colour("FedAvg")), grey, grey]
    assert len(ax.collections) == 1, "bands of the grey lines"
    assert legend(ax.figure) == ["FedAvg", "the 2 others"]


def test_a_band_ends_where_it_would_fill_the_plot_and_this_is_said():
    frame = history(half=2.0).query("method == 'FedAvg' or method == 'Local'")
    frame.loc[(frame.method == "FedAvg") & (frame["round"] == 3), "half"] = 60.0
    figure = plots.curves(frame)
    ends = [band.get_paths()[0].vertices[:, 0].max() for band in figure.axes[0].collections]
    assert ends == [3, 2] and "± 15 points" in figure.legends[0].get_title().get_text()
    assert plots.curves(history(half=2.0)).legends[0].get_title().get_text() == ""


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


def test_long_names_beside_each_other_do_not_touch():
    long = [f"{name}, pathological, frozen features (not in the paper)" for name in ("CIFAR-10", "CIFAR-100")]
    bars = plots.bars(pd.DataFrame({"FedAvg": [50.0] * 2}, index=long)).axes[0].get_xticklabels()
    frame = pd.DataFrame([("FedAvg", name, 1, 2) for name in long], columns=["row", "dataset", "before", "after"])
    titles = [ax.title for ax in plots.pairs(frame).axes]
    for one, other in (bars, titles):
        assert one.get_window_extent().x1 < other.get_window_extent().x0


def test_bars_end_at_what_is_possible():
    frame = pd.DataFrame({"FedAvg": [95.0, 3.0]}, index=["scans", "street"])
    bars = plots.bars(frame, half=frame * 0 + 30).axes[0].containers[0]
    assert [s[:, 1].tolist() for s in bars.lines[2][0].get_segments()] == [[65, 100], [0, 33]]


def test_what_was_not_run_has_no_bar_and_no_name():
    frame = VALUES.T.astype(float)
    frame["Local"] = np.nan
    frame.loc["scans", "FedBN"] = np.nan
    frame.loc["street"] = np.nan
    figure = plots.bars(frame, half=frame * 0 + 1)
    ax = figure.axes[0]
    assert legend(figure) == ["FedAvg", "FedBN"] and [t.get_text() for t in ax.get_xticklabels()] == DOMAINS[:3]
    said, = ax.texts
    assert said.get_text() == "not run" and 0 < said.xy[0] < 0.5, "beside the first group's bar"


def test_domains_have_a_dot_for_a_few_and_ticks_for_the_others():
    figure = plots.domains(VALUES.astype(float), half=VALUES * 0 + 30.0, few=["FedAvg"])
    ax = figure.axes[0]
    assert legend(figure) == ["FedAvg", "the 2 others"] and [t.get_text() for t in ax.get_yticklabels()] == DOMAINS
    dots = [line for line in ax.lines if line.get_marker() == plots.look("FedAvg")["marker"]]
    assert [line.get_xdata().tolist() for line in dots] == [[v] for v in VALUES.loc["FedAvg"]]
    ticks = [sorted(line.get_xdata().tolist()) for line in ax.lines if line.get_marker() == "|"]
    assert [t for t in ticks if len(t) == 2] == VALUES.loc[["Local", "FedBN"]].T.to_numpy().tolist()
    ends = [c.lines[2][0].get_segments()[0][:, 0].tolist() for c in ax.containers]
    assert ends == [[max(v - 30, 0), min(v + 30, 100)] for v in VALUES.loc["FedAvg"]]
    assert legend(plots.domains(VALUES)) == NAMES


def test_runs_show_each_run_and_the_mean():
    frame = pd.DataFrame([("a", "PACS", 0.0), ("a", "PACS", 3.0), ("b", "Digits", 1.0)],
                         columns=["row", "dataset", "value"])
    figure = plots.runs(frame)
    marks = [sorted(line.get_xdata().tolist()) for line in figure.axes[0].lines]
    assert marks == [[0, 3], [1.5], [1], [1]] and legend(figure) == ["PACS", "Digits"]


def test_one_interval_alone_does_not_set_the_axis():
    frame = pd.DataFrame([(name, "PACS", 1.0, half) for name, half in zip("abcd", (1.0, 1.5, 2.0, 73.0))],
                         columns=["row", "dataset", "mean", "half"])
    ax = plots.differences(frame).axes[0]
    assert ax.get_xlim()[1] < 5 and [t.get_text() for t in ax.texts] == ["± 73"]
    ax = plots.differences(frame[:3]).axes[0]
    assert not ax.texts and ax.get_xlim()[1] > 3


def test_a_scale_with_zero_inside_has_two_colours():
    square = VALUES.iloc[:2] / 100
    maps = [plots.matrix(square, low=low, high=1).axes[0].collections[0].get_cmap().name for low in (-1, 0)]
    assert maps == ["RdBu", "YlGnBu"]
    assert [t.get_text() for t in plots.matrix(square.mask(square > 0.5)).axes[0].texts].count("–") == 1


def test_ticks_of_a_logarithmic_axis_do_not_stand_on_each_other():
    for values, named in (([1, 10, 100], True), ([966, 1484, 1500, 9000], False)):
        ax = plots.lines(pd.DataFrame({"x": values, "y": 1.0, "kind": "k"}), "x", "y", log="x").axes[0]
        assert (("1484" in [t.get_text() for t in ax.get_xticklabels()]) or named)  == named
        assert ax.lines[0].get_linestyle() == "-", "one line needs no dash"


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


def test_several_tsne_have_the_class_as_colour_and_the_domain_as_marker():
    gen = torch.Generator().manual_seed(0)
    labels, domains = torch.arange(60) % 3, np.repeat(["scans", "street"], 30)
    features = torch.randn(60, 8, generator=gen) + 20 * labels[:, None]
    figure = plots.tsnes(dict.fromkeys(("one", "two", "three"), (features, labels, domains)), ["a", "b", "c"])
    ax, inks = figure.axes[0], plots.class_colours(3)
    assert [ax.get_title() for ax in figure.axes] == ["one", "two", "three", ""] and not figure.axes[3].axison
    assert legend(figure) == ["scans", "street", "a", "b", "c"] and not ax.texts
    assert [[rgb(c) for c in part.get_facecolor()] for part in ax.collections] == [inks * 10, inks * 10]
    scans, street = (part.get_paths()[0].vertices for part in ax.collections)
    assert scans.shape != street.shape or not np.allclose(scans, street)


def test_tsne_lays_marks_out_with_the_features():
    gen = np.random.default_rng(0)
    z, y = gen.normal(size=(40, 5)), np.arange(40) % 4
    figure = plots.tsne(z, y, ["scans"] * 20 + ["street"] * 20, marks={"prototype": z[:4] + 1e-6, "mean": z[:1]})
    for ax in figure.axes:
        dots, stars = (np.concatenate([c.get_offsets() for c in part]) for part in (ax.collections[:-2],
                                                                                    ax.collections[-2:]))
        assert len(dots) == 40 and len(stars) == 5
    assert [t.get_text().strip() for t in figure.legends[0].get_texts()] == ["prototype", "mean"]


def test_holdings_stack_to_what_each_client_holds():
    counts = pd.DataFrame([[3, 0, 2], [1, 4, 0]], ["0 scans", "1 street"], pd.Index(["a", "b", "c"], name="class"))
    figure = plots.holdings(counts)
    ax = figure.axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["0 scans", "1 street"]
    assert [[p.get_width() for p in c.patches] for c in ax.containers] == counts.T.to_numpy().tolist()
    assert [p.get_x() + p.get_width() for p in ax.containers[-1].patches] == [5, 5]
    assert legend(figure) == ["a", "b", "c"] and figure.legends[0].get_title().get_text() == "class"


def test_exchange_says_the_bytes_of_each_node_both_ways():
    ax, = plots.exchange({"scans": (1400, 2600), "street": (999, 143400)}, "server: FedAvg").axes
    said = [t.get_text() for t in ax.texts]
    assert [t for t in said if "kB" in t] == ["1.4 kB down", "2.6 kB up", "1.0 kB down", "143.4 kB up"]
    assert said[0] == "server: FedAvg" and sum("samples" in t for t in said) == 2


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


def test_shadows_share_axes_and_keep_what_they_were_given():
    groups = {"images of 7": torch.tensor([[0.5, 0.1], [-0.4, 0.2]]), "others": torch.zeros(0, 2)}
    arrows = {"$T^7$": torch.tensor([1.0, 0.0])}
    figure = plots.shadows({"s = 1": (groups, arrows), "s = 100": (groups, arrows), "more": (groups, {})}, ("x", "y"))
    drawn = figure.axes[:3]
    assert [ax.get_title() for ax in drawn] == ["s = 1", "s = 100", "more"]
    for ax in drawn:
        spots = np.asarray(ax.collections[0].get_offsets())
        assert spots == pytest.approx(groups["images of 7"].numpy()) and not len(ax.collections[1].get_offsets())
        assert ax.get_xlim() == ax.get_ylim() == drawn[0].get_xlim() and ax.get_xlim()[0] < -0.4
        assert np.hypot(*ax.lines[0].get_xydata().T) == pytest.approx(np.ones(200)), "the circle"
    assert [t.get_text() for t in drawn[0].texts if t.get_text()] == ["$T^7$"]
    assert not figure.axes[3].axison and legend(figure) == ["images of 7", "others"]
    assert drawn[0].get_ylabel() == "y" and drawn[2].get_xlabel() == "x" and not any(ax.child_axes for ax in drawn)


def test_shadows_near_the_origin_are_shown_larger_too():
    groups = {"near": torch.tensor([[0.05, 0.02], [-0.04, 0.01]])}
    figure = plots.shadows({"a": (groups, {"$T$": torch.tensor([0.0, 1.0])}), "b": ({"far": torch.eye(2)}, {})})
    inset, = figure.axes[0].child_axes
    assert np.asarray(inset.collections[0].get_offsets()) == pytest.approx(groups["near"].numpy())
    assert inset.get_xlim()[1] < 0.1 and not figure.axes[1].child_axes


def grown():
    return pd.DataFrame([(d, x, 50 + 10 * i + k, 2.0) for i, d in enumerate(("Digits", "PACS"))
                         for k, x in enumerate((0.02, 0.5, 0.07))], columns=["dataset", "tau", "mean", "half"])


@pytest.mark.parametrize(("even", "places"), [(False, [0.02, 0.07, 0.5]), (True, [0, 1, 2])])
def test_sensitivity_has_a_line_for_each_dataset_and_rings_the_papers_choice(even, places):
    figure = plots.sensitivity(grown(), setting="tau", even=even, best={"PACS": 0.07, "Digits": 0.3})
    ax = figure.axes[0]
    lines = {line.get_label(): line for line in ax.lines}
    assert legend(figure) == ["Digits", "PACS", "best in the paper"]
    assert lines["PACS"].get_ydata().tolist() == [60, 62, 61]
    assert lines["PACS"].get_xdata() == pytest.approx(places, rel=0.03, abs=0.02)
    assert rgb(lines["PACS"].get_color()) == rgb(plots.colour("PACS"))
    assert ax.containers[1].lines[2][0].get_segments()[0][:, 1].tolist() == [58, 62]
    rings = [line.get_xydata().tolist() for line in ax.lines if line.get_markersize() == 13]
    assert rings[0] == [] and rings[1] == [lines["PACS"].get_xydata()[1].tolist()]   # Digits was not run at 0.3
    assert [t.get_text() for t in ax.get_xticklabels()] == ["0.02", "0.07", "0.5"]
    assert (ax.get_xscale(), ax.get_xlabel()) == ("linear" if even else "log", "tau")


def test_bars_of_one_colour_are_told_apart():
    frame = pd.DataFrame({"FedPer": [1.0], "FedBN": [2.0], "FedAvg": [3.0], "FedPer, 2": [4.0]}, index=["scans"])
    drawn = {c.get_label(): (c.patches[0].get_facecolor(), c.patches[0].get_hatch()) for c in plots.bars(frame).axes[0]
             .containers if hasattr(c, "patches")}
    assert drawn["FedPer"][0] == drawn["FedBN"][0] and len(set(drawn.values())) == len(drawn) == 4


def test_sensitivity_of_one_seed_has_no_bars():
    ax = plots.sensitivity(grown().assign(half=np.nan), setting="tau").axes[0]
    assert not any(np.isfinite(bar).all() for bar in ax.containers[0].lines[2][0].get_segments() if len(bar))
    assert ax.get_legend_handles_labels()[1] == ["Digits", "PACS"] and not ax.get_title()


def test_one_dataset_alone_is_named_in_the_title():
    only = grown().query("dataset == 'PACS'")
    assert plots.sensitivity(only, setting="tau").axes[0].get_title() == "PACS"
    assert plots.differences(only.assign(row="a")).axes[0].get_title() == "PACS"


def test_lines_join_sorted_points_and_draw_levels():
    frame = pd.DataFrame([(s, k, p, s * f) for p in ("a", "b") for k, f in (("exact", 2.0), ("ood", 3.0))
                          for s in (10.0, 0.1, 1.0)], columns=["sigma", "kind", "panel", "epsilon"])
    figure = plots.lines(frame, "sigma", "epsilon", panel="panel", log="xy", levels={"one": 1.0})
    assert [ax.get_title() for ax in figure.axes] == ["a", "b"] and legend(figure) == ["exact", "ood", "one"]
    for ax in figure.axes:
        assert ax.lines[0].get_xydata().tolist() == [[0.1, 0.2], [1, 2], [10, 20]]
        assert (ax.get_xscale(), ax.get_yscale(), ax.get_xlabel()) == ("log", "log", "sigma")
        assert [t.get_text() for t in ax.get_xticklabels()] == ["0.1", "1", "10"]
        assert list(ax.lines[2].get_ydata()) == [1, 1]
    assert plots.lines(frame[frame.panel == "a"], "sigma", "epsilon").axes[0].get_xscale() == "linear"


def test_differences_fill_the_dots_whose_interval_does_not_reach_zero():
    frame = pd.DataFrame([("a", "Digits", 3.0, 1.0), ("a", "PACS", -3.0, 4.0), ("b", "Digits", -2.0, 1.0),
                          ("b", "PACS", 1.0, np.nan)], columns=["row", "dataset", "mean", "half"])
    figure = plots.differences(frame)
    ax = figure.axes[0]
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "b"] and ax.get_ylim() == (1.5, -0.5)
    assert legend(figure) == ["Digits", "PACS"] and ax.lines[0].get_xdata() == [0, 0]
    dots = [line for line in ax.lines if line.get_marker() in "o^" and len(line.get_xdata())]
    filled = {(x, y): rgb(line.get_markerfacecolor()) != (1, 1, 1)
              for line in dots for x, y in line.get_xydata().round(3).tolist()}
    assert filled == {(3, -0.175): True, (-2, 0.825): True, (-3, 0.175): False, (1, 1.175): False}
    assert ax.containers[0].lines[2][0].get_segments()[0][:, 0].tolist() == [2, 4]


def test_draws_have_a_dot_for_each_draw_and_row_and_no_line():
    frame = pd.DataFrame([("a", 0, "PACS", 50.0), ("b", 0, "PACS", 60.0), ("a", 1, "PACS", 40.0),
                          ("b", 1, "PACS", 52.0), ("b", 0, "Digits", 90.0)],
                         columns=["row", "draw", "dataset", "value"])
    figure = plots.draws(frame)
    pacs, digits = figure.axes
    assert [ax.get_title() for ax in figure.axes] == ["PACS", "Digits"] and legend(figure) == ["0", "1"]
    assert [t.get_text() for t in digits.get_yticklabels()] == ["a", "b"] and pacs.get_ylim() == (1.5, -0.5)
    assert [line.get_xydata().tolist() for line in pacs.lines] == [[[50, 0], [60, 1]], [[40, 0], [52, 1]]]
    assert [line.get_xydata().tolist() for line in digits.lines] == [[[90, 1]], []]
    assert len({(line.get_color(), line.get_marker()) for line in pacs.lines}) == 2
    assert {line.get_linestyle() for line in pacs.lines} == {"None"}, "rows have no order"
    assert not pacs.patches
    pacs, digits = plots.draws(frame, bar={"gap": {"PACS": 3.5}}).axes
    assert [patch.get_width() for patch in pacs.patches] == [3.5] and not digits.patches
    assert [t.get_text() for t in pacs.get_yticklabels()] == ["a", "b", "gap"] and pacs.get_ylim() == (2.5, -0.5)


def test_pairs_join_a_hollow_and_a_full_dot_and_ring_the_one_that_is_named():
    frame = pd.DataFrame([("FedAvg", "Digits", 30.0, 50.0, "before"), ("FedDTR", "Digits", 40.0, 60.0, "after"),
                          ("FedAvg", "PACS", 20.0, 25.0, "before")],
                         columns=["row", "dataset", "before", "after", "ring"])
    figure = plots.pairs(frame, rings="printed")
    assert [ax.get_title() for ax in figure.axes] == ["Digits", "PACS"]
    assert legend(figure) == ["before", "after", "printed"]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["FedAvg", "FedDTR"]
    digits = figure.axes[0]
    assert [path.vertices.tolist() for path in digits.collections[0].get_paths()] == [
        [[30, 0], [50, 0]], [[40, 1], [60, 1]]]
    drawn = [line for line in digits.lines if len(line.get_xdata())]
    filled = {tuple(line.get_xydata()[0]): rgb(line.get_markerfacecolor()) != (1, 1, 1)
              for line in drawn if line.get_markersize() < 10}
    assert filled == {(30, 0): False, (40, 1): False, (50, 0): True, (60, 1): True}
    rings = [line.get_xydata().tolist() for line in drawn if line.get_markersize() == 10]
    assert rings == [[[30, 0]], [[60, 1]]]


def test_pairs_without_rings():
    frame = pd.DataFrame([("a", "Digits", 1.0, 2.0)], columns=["row", "dataset", "before", "after"])
    assert legend(plots.pairs(frame)) == ["before", "after"]


def test_effects_sort_by_mean_and_fill_the_dots_whose_interval_leaves_out_zero():
    found = pd.DataFrame({"mean": [-1.0, 3.0, 0.5], "half": [0.5, 4.0, 0.2]}, index=["b", "a", "c"])
    gaps = pd.DataFrame({"a": [1.0, 5.0], "b": [-2.0, 0.0], "c": [0.4, 0.6]}, index=["PACS", "Digits"])
    figure = plots.effects(found, gaps)
    (ax,) = figure.axes
    assert [t.get_text() for t in ax.get_yticklabels()] == ["a", "c", "b"]
    assert legend(figure) == ["PACS", "Digits", "mean of 2 sets"]
    bars = ax.containers[0].lines[2][0].get_segments()
    assert np.allclose([(one[0][0], one[1][0]) for one in bars], [(-1, 7), (0.3, 0.7), (-1.5, -0.5)])
    pacs = next(line for line in ax.lines if line.get_label() == "PACS")
    assert list(pacs.get_xdata()) == [1.0, 0.4, -2.0] and [round(y) for y in pacs.get_ydata()] == [0, 1, 2]
    dots = [line for line in ax.lines if line.get_markersize() == 6 and len(line.get_xdata())]
    full, hollow = (sorted(zip(d.get_xdata(), map(round, d.get_ydata()))) for d in dots)
    assert full == [(-1.0, 2), (0.5, 1)] and hollow == [(3.0, 0)]
    assert [rgb(d.get_markerfacecolor()) for d in dots] == [(0, 0, 0), (1, 1, 1)]


def test_tally_stacks_and_writes_the_numbers_that_are_not_zero():
    counts = pd.DataFrame({"yes": [3, 0], "no": [1, 4]}, index=["one", "two"])
    figure = plots.tally(counts, inks={"yes": ("#009E73", "white"), "no": ("#D55E00", "white")})
    (ax,) = figure.axes
    assert sorted(t.get_text() for t in ax.texts) == ["1", "3", "4"]
    assert [p.get_x() for p in ax.patches] == [0, 0, 3, 0] and [p.get_width() for p in ax.patches] == [3, 0, 1, 4]
    assert legend(figure) == ["yes", "no"]


def test_lengths_stack_or_stand_below_each_other():
    hours = pd.DataFrame({"cpu": [1.0, 2.0], "cuda": [3.0, 0.5]}, index=["a", "b"])
    ax, = plots.lengths({"": hours}, "hours").axes
    ends = [(p.get_y() + p.get_height() / 2, p.get_x(), p.get_width()) for p in ax.patches]
    assert np.allclose(ends, [(0, 0, 1), (1, 0, 2), (0, 1, 3), (1, 2, 0.5)])
    left, right = plots.lengths({"one": hours, "two": hours}, "hours", stacked=False, reference=1).axes
    places = [p.get_y() + p.get_height() / 2 for p in right.patches]
    assert np.allclose(places, [-0.2, 0.8, 0.2, 1.2]) and all(p.get_x() == 0 for p in right.patches)
    assert left.get_title() == "one" and left.lines[0].get_xdata()[0] == 1


def test_a_logarithmic_axis_below_a_decade_has_ticks_of_powers_of_two():
    for high, known in ((8.0, True), (100.0, False)):
        frame = pd.DataFrame({"x": [1, 2], "y": [1.0, high], "kind": "k"})
        ax, = plots.lines(frame, "x", "y", log="y").axes
        assert ("4" in [t.get_text() for t in ax.get_yticklabels()]) == known


def test_no_bar_is_left_out_in_silence():
    with pytest.raises(ValueError, match="6 columns: there are five looks"):
        plots.lengths({"": pd.DataFrame([range(6)])}, "s")
