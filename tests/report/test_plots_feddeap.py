"""The figures that FedDEAP's pages brought show what they were given."""
import matplotlib
import pandas as pd
import torch

from fedlib.report import plots

matplotlib.use("agg")


def test_a_dots_area_is_a_share_of_the_clients_samples():
    frame = pd.DataFrame([[30, 10], [0, 5]], ["0 scans", "1 street"], ["a", "b"])
    figure = plots.shares({"one": frame, "two": frame * 2}, label="digit")
    for ax in figure.axes:
        assert [dots.get_sizes().tolist() for dots in ax.collections] == [[187.5, 62.5], [0, 250]]
        assert [matplotlib.colors.to_hex(dots.get_facecolor()[0]).upper() for dots in ax.collections] == [
            plots.colour("scans"), plots.colour("street")]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["0 scans", "1 street"]
    assert figure.axes[0].get_ylim()[0] > figure.axes[0].get_ylim()[1]      # from top to bottom


def test_a_sequence_has_a_box_for_each_vector():
    figure = plots.boxes([("SOS", 1, "", "white", ""), ("P", 3, "learned", "#0072B2", "//")])
    ax, = figure.axes
    assert [patch.get_hatch() for patch in ax.patches] == ["", "//", "//", "//"] and ax.get_xlim() == (0, 4)
    assert [t.get_text() for t in ax.texts] == ["SOS", "", "P", "P", "P", "learned"]


def test_rays_end_where_the_vectors_do():
    flat, solid = torch.eye(2), torch.eye(3)
    figure = plots.rays({"flat": flat, "solid": solid}, name="e")
    assert [ax.get_title() for ax in figure.axes] == ["flat", "solid"]
    assert [line.get_xydata()[1].tolist() for line in figure.axes[0].lines] == flat.tolist()
    assert [t.get_text() for t in figure.axes[1].texts] == ["$e_1$", "$e_2$", "$e_3$"]


def test_each_panel_has_a_plane_of_its_own():
    points = torch.cat([torch.eye(4), 2 * torch.eye(4)])
    names = ["scans"] * 4 + ["street"] * 4
    figure = plots.planes({"one": points, "two": points * 3}, names, list("abcd") * 2, unnamed=["two"])
    one, two = figure.axes
    assert [len(dots.get_offsets()) for dots in one.collections] == [4, 4] and len(one.texts) == 4 and not two.texts
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["scans", "street"]


def test_lengths_may_have_a_logarithmic_scale_above_a_length():
    frame = pd.DataFrame({"a": [1.0, 0.0], "b": [100.0, 10.0]}, ["x", "y"])
    plain, scaled = (plots.lengths({"": frame}, "length", stacked=False, linear=v).axes[0] for v in (None, 0.01))
    assert plain.get_xscale() == "linear" and scaled.get_xscale() == "symlog"
    assert [bar.get_width() for bar in scaled.patches] == [1, 0, 100, 10]
