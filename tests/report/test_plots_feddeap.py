"""The figures that FedDEAP's pages brought show what they were given."""
import matplotlib
import pandas as pd

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
