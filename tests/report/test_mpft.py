"""What MPFT's pages compute, by hand."""
import json
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from IPython.display import Markdown

from fedlib import Page
from fedlib.report import mpft, plots, text

ROW = {"round": 1, "val_loss": 0.5, "cross": {"all": {"x": 50.0, "y": 70.0}}, "acc": {"x": 50.0, "y": 70.0},
       "bytes_up": 3 * 2 ** 20, "bytes_down": 2 ** 20, "seconds": 2.0}


def page(*records, rows=(), select="best-val-loss", results=None):
    """As much of a page as the functions ask for: one block, and records (row, seed, rounds)."""
    def planned(row, seed):
        run = SimpleNamespace(protocol=SimpleNamespace(rounds=9), settings={"server_epochs": 200},
                              beside=lambda folder, kind: folder / f"{row}-{seed}.{kind}", digest="d")
        return SimpleNamespace(block="b", row=row, seed=seed, run=run)

    made = {"data": {"clients": [{"id": "0", "domain": "x", "train": 10}, {"id": "1", "domain": "y", "train": 30}]}}
    found = [(planned(row, seed), {"rounds": rounds, "made": made}) for row, seed, rounds in records]
    return SimpleNamespace(found=found, blocks={"b": "lite"}, titles={"b": "B"}, results=results, ran=["b"],
                           table=SimpleNamespace(select=select, rows=[{"name": r} | more for r, more in rows]))


def test_rounds_are_of_the_shared_net_or_of_each_net_at_home():
    own = ROW | {"round": 2, "val_loss": 0.4, "cross": {"x": {"x": 90.0, "y": 10.0}, "y": {"x": 20.0, "y": 80.0}}}
    every = mpft.rounds(page(("A", 1, [ROW, own])))
    assert every.set_index(["round", "domain"]).accuracy.to_dict() == {
        (1, "x"): 50.0, (1, "y"): 70.0, (2, "x"): 90.0, (2, "y"): 80.0}
    assert every[every.chosen]["round"].unique().tolist() == [2] and set(every.of) == {9}
    assert mpft.rounds(page()).empty


def test_means_by_round_end_where_the_first_seed_stops():
    later = [ROW, ROW | {"round": 2, "val_loss": 0.3}]
    every = mpft.rounds(page(("FedAvg", 1, later), ("FedAvg", 2, [ROW | {"val_loss": 0.7}]), ("local", 1, [ROW])))
    means = mpft.by_round(every, ["local", "FedAvg"])
    assert list(zip(means.method, means["round"], means.loss)) == [("Local", 1, 0.5), ("FedAvg", 1, 0.6)]
    assert means.accuracy.eq(60).all()


def test_the_released_average_multiplies_by_the_first_two_shares():
    assert mpft.factors([10, 30, 20]) == [0.5, 1.5]
    assert [round(f, 3) for f in mpft.factors(mpft.TEST_IMAGES.values())] == [0.427, 0.833]
    rows = [("A", {}), ("A, as released", {"printed": "A"}), ("variant", {"printed": "A"})]
    assert mpft.released(page(rows=rows)) == {"A, as released": "A"}


def test_a_mean_and_its_interval_as_text():
    frame = pd.DataFrame({"mean": [1.26, -2.0], "half": [0.31, float("nan")]})
    assert mpft.with_text(frame, "+.1f").text.tolist() == ["+1.3 ± 0.3", "-2.0"]


def test_what_a_message_weighs():
    assert mpft.message("FedAvg", 7) == (524_288, 524_288)          # 2 x 512 x 128 numbers
    assert mpft.message("MPFT", 50) == (524_288, 50 * 2048) and mpft.message("FedProto", 7)[0] == 7 * 2048


def test_pools_are_the_printed_megabytes_turned_round():
    printed = pd.DataFrame({"MB": [(2 * 524_288 + 300 * 2048) / 2 ** 20], "seconds": [1.5], "clients": [2]},
                           pd.MultiIndex.from_tuples([("D", "MPFT (Average)")], names=["dataset", "method"]))
    assert mpft.pools(printed).iloc[0].to_dict() == {"MB": printed.MB.iloc[0], "prototypes": 300, "seconds": 1.5}


def test_costs_are_counted_up_to_the_round_that_counts():
    server = {"seconds": 1.0, "epochs": 200, "steps": 800, "prototypes": 40, "loss": 0.1}
    worse, better = (ROW | {"round": 2, "val_loss": loss} for loss in (0.9, 0.1))
    found = mpft.costs(page(("MPFT (Average)", 1, [ROW | {"server": server}, worse]), ("FedAvg", 1, [ROW, better])))
    found = found.set_index("row")
    assert found.MB.to_dict() == {"MPFT (Average)": 4.0, "FedAvg": 8.0} and found.seconds["FedAvg"] == 4.0
    assert found.loc["MPFT (Average)", ["capped", "steps", "server", "rounds", "images", "accuracy"]].tolist() == [
        1, 800, 1.0, 1, 40, 60.0]
    assert found.capped["FedAvg"] == 0 and pd.isna(found.loss["FedAvg"]) and mpft.costs(page()).empty


def test_a_trail_and_where_others_reach_its_end():
    better = ROW | {"round": 2, "acc": {"x": 80.0, "y": 90.0}}
    trail = mpft.trails(page(("A", 1, [ROW | {"bytes_up": 0, "bytes_down": 0}, ROW, better]), ("B", 1, [ROW]),
                             ("A", 2, [better])))
    assert trail[trail.row == "A"].MB.tolist() == [4.0, 8.0]        # of the first seed, round 0 has sent nothing
    found = mpft.reached(trail, ["B", "A"], ["A", "B"])
    assert found.loc[("B", "B"), "A"] == 4.0
    assert found.loc[("B", "A"), "accuracy"] == 85 and pd.isna(found.loc[("B", "A"), "B"])


def test_a_setting_is_read_from_the_blocks_data():
    two = Page("mpft/table2", "lite")
    frame = mpft.by_setting(two, "mixed ratio", "ind", ["FedAvg", "MPFT (Random, rate=0.3)"], "printed")
    assert frame.method.unique().tolist() == ["FedAvg", "MPFT, random 0.3"] and frame.half.isna().all()
    fed = frame[frame.method == "FedAvg"].set_index("mixed ratio")["mean"]
    assert fed.index.tolist() == [0.0, 0.3, 0.4, 0.5] and fed[0.0] == 73.45
    six = mpft.by_setting(Page("mpft/table6", "lite"), "clients", "ind", ["FedAvg"], "printed")
    assert six.clients.tolist() == [6, 18, 24, 30] and set(six.data) == {"DomainNet, 50 classes"}


def test_attacks_and_guesses_that_were_kept(tmp_path):
    rows = [{"step": s, "mse": 4.0 / (s + 1), "tv": 0.1, "psnr": 9.0, "ssim": 0.1} for s in (0, 1)]
    guess = {"other": {"mse": 0.1, "psnr": 10.0, "ssim": 0.2}, "grey": {"mse": 0.2, "psnr": 8.0, "ssim": 0.0}}
    made = [{"client": "0", "domain": "x", "kind": kind, "power": 2.0, "rows": rows, "guesses": guess}
            for kind in ("one image", "class mean")]
    (tmp_path / "A-1.attack").write_text(json.dumps({"digest": "d", "attacks": made}))
    paths, guesses = mpft.attacks(page(("A", 1, [ROW]), ("A", 2, [ROW]), results=tmp_path))
    assert paths["feature error"].tolist() == [2.0, 1.0] * 2 and set(paths.kind) == {"one image", "class mean"}
    assert guesses[["image", "PSNR (dB)", "SSIM"]].to_numpy().tolist() == [["other", 10.0, 0.2], ["grey", 8.0, 0.0]]
    assert all(frame.empty for frame in mpft.attacks(page(results=tmp_path)))


def test_budgets_over_classes(tmp_path):
    classes = [{"class": 0, "n": 10, "diameter": 1.0, "radius": 1.0},
               {"class": 1, "n": 10, "diameter": 3.0, "radius": 2.0}]
    (tmp_path / "A-1.budget").write_text(json.dumps(
        {"digest": "d", "clients": [{"id": "0", "domain": "x", "classes": classes}]}))
    found = mpft.budgets(page(("A", 1, [ROW]), results=tmp_path), [0.1, 0.2])
    found = found.set_index(["sigma", "kind", "over"]).epsilon
    assert found[0.1]["printed formula"]["mean"] == pytest.approx(2 * found[0.2]["printed formula"]["mean"])
    assert found[0.1]["printed formula"]["maximum"] == pytest.approx(1.5 * found[0.1]["printed formula"]["mean"])
    assert (found.xs("exact, any sample", level="kind") >= found.xs("exact", level="kind")).all()
    assert found.xs("share above 1", level="over").between(0, 1).all()


def test_budgets_as_printed():
    assert mpft.printed_budgets()["DomainNet, 50 classes"].to_dict() == {0.01: 54.76, 0.05: 10.95, 0.1: 5.48, 0.5: 1.1}


# general means that these pages use

def test_each_value_has_its_part_or_the_sentence_is_shown(monkeypatch):
    shown = []
    monkeypatch.setattr(text, "display", lambda *what: shown.extend(what))
    text.show_each(pd.DataFrame({"k": ["b", "a", "b"], "v": [1, 2, 3]}), "k", lambda part: part.v.sum())
    assert [s.data if isinstance(s, Markdown) else s for s in shown] == ["**b**", 4, "**a**", 2]
    shown.clear()
    text.show_each(pd.DataFrame({"k": []}), "k", None, "Nothing.")
    assert [s.data for s in shown] == ["Nothing."]


def test_a_path_keeps_its_order_and_a_level_its_panel():
    frame = pd.DataFrame({"x": [2, 1, 3], "y": [1.0, 2.0, 3.0], "kind": "k", "panel": ["one", "one", "two"]})
    ax = plots.lines(frame, "x", "y", path=True).axes[0]
    assert ax.lines[0].get_xdata().tolist() == [2, 1, 3]
    assert plots.lines(frame, "x", "y").axes[0].lines[0].get_xdata().tolist() == [1, 2, 3]
    one, two = plots.lines(frame, "x", "y", panel="panel", levels={"here": {"two": 0.5}}).axes
    assert [len(ax.lines) for ax in (one, two)] == [1, 2]


def test_chosen_points_stand_amid_their_cloud():
    cloud = torch.tensor([[0.0, 0, 0], [4, 0, 0], [0, 2, 0], [4, 2, 0]])
    one, two = plots.chosen(cloud, {"mean": cloud.mean(0, keepdim=True), "all": cloud}).axes
    assert (one.get_title(), two.get_title()) == ("mean: 1", "all: 4")
    assert abs(one.collections[1].get_offsets()).max() < 1e-6       # the mean is the middle of the plane
