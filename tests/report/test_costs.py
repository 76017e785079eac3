"""Costs in tables and in words: measurements of machines, records, and what tables take."""
import json
from statistics import median

import pandas as pd
import pytest
from conftest import small_run

from fedlib.engine import records
from fedlib.engine.loop import sample
from fedlib.experiments import status, tables
from fedlib.experiments.results import results_folder
from fedlib.methods import METHODS
from fedlib.probes import bench
from fedlib.report import costs

FINE = {"title": "x", "overhead": 0.1, "gain": 9.0, "peak_mb": 900, "upload_bytes": 4e6, "stack": 1,
        "seconds": {"ours": 1.1, "floor": 1.0, "plain": 9.9}, "pairs": [{"ours": 1.1, "floor": 1.0, "plain": 9.9}]}
POINTS = [[1, 1.0], [2, 2.0]]


def machine(device="cuda", growth=None, **changed) -> dict:
    names = ("adapters", "cnn4_20", "resnet10", "cnn4_100")
    return {"made": {"device": device}, "workloads": {n: FINE | changed for n in names},
            "growth": growth or {"clients": POINTS, "samples": POINTS, "rounds": [[10, 100], [40, 100]]}}


def test_the_judge_can_say_each_of_its_words():
    fine = costs.judged({"g": machine()})
    assert set(fine[fine.on == costs.GPU].verdict) == {"met"} and set(fine[fine.on == costs.GPU].machine) == {"g"}
    assert set(fine[fine.on == costs.CPU].verdict) == {"not measured"}
    steep = [[1, 1.0], [2, 4.0]]
    slow = machine(growth={"clients": steep, "samples": steep, "rounds": [[10, 100], [40, 120]]}, overhead=0.2,
                   gain=0.9, peak_mb=5000)
    slow = costs.judged({"g": slow})
    assert set(slow[slow.on == costs.GPU].verdict) == {"not met"}
    less = machine()
    del less["workloads"]["cnn4_20"], less["growth"]
    assert (costs.judged({"g": less}).verdict == "not measured").sum() > (fine.verdict == "not measured").sum()


def test_slower_workloads_are_named():
    assert costs.slower({"g": machine()}) == []
    pairs = [{"ours": 2.0, "floor": 1, "plain": 1.0}, {"ours": 1.0, "floor": 1, "plain": 2.0}]
    said = costs.slower({"g": machine(gain=0.9, pairs=pairs)})
    assert len(said) == 4 and "0.500 to 2.000 in 2 turns on g. Ours was the slower one in 1" in said[0]


def test_ratios_are_medians_of_turns():
    found = costs.ratios(machine()).loc["adapters"].to_dict()
    assert found == pytest.approx({"ours": 1.1, "plain loop": 9.9, "floor": 1})
    for kept in bench.read(results_folder()).values():
        for name, line in costs.ratios(kept).iterrows():
            found = kept["workloads"][name]
            assert abs(line["ours"] - 1 - found["overhead"]) < 1e-3
            assert abs(median(p["plain"] / p["ours"] for p in found["pairs"]) - found["gain"]) < 1e-2
        assert all(name in costs.measured(kept).data.name.values for name in kept["workloads"])
        assert costs.extremes("here", kept).startswith("On here, overhead lies between")


def test_arithmetic_against_the_floor():
    count = pd.DataFrame({"steps": [2], "step": [3e9], "round": [6e9]}, index=["adapters"])
    rates = costs.rates(count, {"c": machine("cpu")})
    assert rates.loc["adapters"].tolist() == [2, 3000, 6, 6]
    said, = costs.fifth(count, {"c": machine("cpu"), "g": machine()})
    assert "1.98 s" in said and "at 3 GFLOP/s" in said and "floor runs at 6" in said


def test_a_step_in_words():
    bound = {"ours": (1.5, 0.2), "floor": (1.0, 0.2), "plain": (3.0, 1.0)}
    said = costs.of_a_step(bound, 3e9, 10e9)
    assert "floor at 3." in said and "30 % are arithmetic, 20 % are optimiser, 50 % are rest" in said
    assert "6.0 times as fast" in said and "1500000 µs between the plain loop and ours 800000" in said
    assert "out of reach" in costs.of_a_step(bound, 9e9, 10e9)


def test_growth_and_memory():
    frame = costs.growth(machine())
    assert frame.kind.unique().tolist() == ["clients (slope 1.00)", "samples (slope 1.00)"]
    assert frame["times the seconds"].tolist() == [1, 2, 1, 2]
    first, second = costs.memory({"g": machine()})
    assert "10 rounds 100 MB, 40 rounds 100 MB (g)" in first and "cnn4_100 send 400 MB" in second
    assert costs.memory({}) == []


def test_gains_in_words():
    live = pd.DataFrame({"apart / stacked": [2.0, 0.5, 1.0], "passes, apart": 2.0, "passes, stacked": 3.0,
                         "optimiser, apart": 1.0, "optimiser, stacked": 0.5}, index=["a", "b", "adapters"])
    said = costs.gains(live)
    assert "**faster stacked**: a (2.00)." in said and "**slower stacked**: b (0.50)." in said
    assert "passes' time by 1.50 and the optimiser's by 0.50" in said


@pytest.fixture(scope="module")
def every():
    return costs.of_records()


def test_every_record_has_a_line(every):
    paths = list(results_folder().glob("*/*.json"))
    assert len(every) == len(paths) > 100 and (every.hours > 0).all() and (every.day.str.len() == 10).all()
    path = paths[0]
    record = records.read_record(path)
    line = every[(every.set == path.parent.name) & (every.hours == record["made"]["seconds"] / 3600)].iloc[0]
    assert line.method == record["run"]["method"] and line.clients == len(record["made"]["data"]["clients"])
    assert line.seconds == median(r["seconds"] for r in record["rounds"] if r["round"])


@pytest.mark.parametrize("protocol, part", [({}, 5), ({"participation": 0.4}, 2), ({"cohort": 3}, 3),
                                            ({"participation": 0.8, "participation_low": 0.2}, None)])
def test_samples_count_of_the_clients_that_take_part(protocol, part, tmp_path):
    run = small_run(rounds=9, epochs=2, **protocol)
    if not part:        # drawn anew in each round
        part = sum(len(sample(5, run.protocol, run.seed, k)) for k in range(9)) / 9
        assert 1 < part < 4
    record = {"run": run.spec, "rounds": [{"round": k + 1, "seconds": 3.0} for k in range(9)],
              "made": {"data": {"clients": [{"train": 40}] * 5}, "seconds": 27.0, "device": "cpu", "started": "-"}}
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "one.json").write_text(json.dumps(record))
    assert costs.of_records(tmp_path)["ms a sample"].tolist() == pytest.approx([3000 / (40 * part * 2)])


def test_what_a_table_needs():
    states = dict.fromkeys(status.STATES, 0)
    lines = [{"done": 3, "missing": 1, "hours": 2.0, "left": 0.5, "guessed": 0, "peak_mb": 2048},
             {"done": 0, "missing": 4, "hours": 0, "left": 0, "guessed": 4, "peak_mb": 0},
             {"done": 1, "missing": 3, "hours": 1.0, "left": 1.6, "guessed": 2, "peak_mb": 0}]
    found = costs.needs([states | line | {"table": "t", "profile": "mini"} for line in lines])
    assert found.records.tolist() == ["3 of 4", "0 of 4", "1 of 4"] and found.memory.tolist() == ["2.0 GB", "–", "–"]
    assert found.left.tolist() == ["30 min", "no record", "1.6 h, 2 of 3: no record"]
    assert found.measured.tolist() == ["2.0 h", "–", "60 min"]


def test_hours_of_a_table_once_more_from_the_files():
    results, every = results_folder(), tables.load_table("i2pfl/table2").runs("lite")
    planned = list({p.run.digest: p for p in every}.values())       # a tuned row as given has no runs of its own
    found = status.summary(every, results)
    assert len(planned) < len(every)
    made = [records.read_record(p.run.path(results))["made"]["seconds"] for p in planned if p.done(results)]
    assert sum(found[s] for s in status.STATES) == len(planned) and found["done"] == len(made)
    assert abs(sum(made) / 3600 - found["hours"]) < 1e-9


def test_the_longest_tables_come_first_and_the_others_together():
    found = [{"table": f"t{i}", "profile": "lite", "hours": float(i), "left": None if i else 9.5} for i in range(6)]
    found.append({"table": "t9", "profile": "mini", "hours": 100.0, "left": 0.0})
    frame = costs.longest(found, "lite", 3)
    assert list(frame.index) == ["t0", "t5", "t4", "the 3 others"]
    assert frame["spent on records"].tolist() == [0, 5, 4, 6]
    assert frame["estimate of the rest"].tolist() == [9.5, 0, 0, 0]
    assert list(costs.longest(found, "lite").index) == ["t0", "t5", "t4", "t3", "t2", "t1"]
    assert costs.longest(found, "paper").empty


def test_what_a_step_asks_of_a_gpu_is_as_counted():
    found = costs.launches(microseconds=5)
    assert (found["ms of a step"] == found["launches of a step"] / 200).all()
    assert found["launches of a step"].is_monotonic_decreasing and set(found.index) == set(METHODS)
    assert costs.waiting(found) == "In a step the host waits for the GPU with FACMIC only."
    assert "never waits" in costs.waiting(found.drop("FACMIC"))


def test_launches_beside_the_profiler(tmp_path):
    asked = pd.DataFrame({"launches of a step": [100.0, 50.0, 9.0], "waits of a step": [0.0, 2.0, 0.0]},
                         index=["FedProx", "FedAvg", "MOON"])
    methods = {"FedAvg": {"launches of a step": 75.0, "waits of a step": 1.0, "ms of a step": 0.75},
               "FedProx": {"launches of a step": 110.0, "waits of a step": 0.0},
               "AFL": {"launches of a step": 0.0, "waits of a step": 0.0},
               "MOON": "UserError: what it lacks there"}
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "g.launches").write_text(json.dumps(
        {"made": {"hardware": "G", "torch": "2"}, "methods": methods}))
    (hardware, one), = costs.profiled(tmp_path).items()
    both = costs.beside_profiler(asked, one)
    assert both.index.tolist() == ["FedProx", "FedAvg"] and both["ratio"].tolist() == [1.1, 1.5]
    said = costs.profiled_in_words(hardware, one, both)
    assert "On G with torch 2, 2 methods: the host waits as often as pretended not with FedAvg." in said
    assert "1.30 times" in said and "takes 10 µs" in said and "1 methods timed" in said


def test_systems_of_machines_that_measured_different_runs():
    ran = {"title": "a (where)", "ours": {}, "ratio": [1.1, 1, 1.2],
           "others": {name: {"version": "1", "ratio": [k, k, k]} for name, k in (("pfl", 2), ("plain_with_x", 3))}}
    axes = costs.beside({"A": {"runs": {"a": ran}}, "B": {"runs": {"b": ran | {"title": "b"}, "a": ran}},
                         "C": {"runs": {"a": ran | {"others": {}}}}}).axes
    assert [ax.get_title() for ax in axes] == ["A", "B"]
    assert [t.get_text() for t in axes[0].get_yticklabels()] == ["a", "b"]
    assert [[bar.get_width() for bar in bars][0] for bars in axes[1].containers] == [1.1, 2]


def test_what_others_do_better():
    def one(**others):
        there = {name: {"ratio": [ratio, 1.0, 2.0], "peak_mb": memory} for name, (ratio, memory) in others.items()}
        return {"title": "users (of a paper)", "ratio": [2.004, 0.9, 3.1], "ours": {"peak_mb": 1000}, "others": there}
    runs = {"a": one(fast=(0.98, 1200.0), same=(2.0, 900.0), slow=(16.0, 2000.0)), "b": one(slow=(2.3, 1500.0))}
    found = costs.ahead({"A": {"runs": runs}, "B": {"runs": {"a": one(light=(2.3, 1.0)), "b": one()}}})
    assert found.to_dict("records") == [
        {"machine": "A", "whole run": "users",
         "as fast or faster": "fast (0.98, fedlib 2.00), same (2.00, fedlib 2.00)",
         "less memory": "same (900 MB, fedlib 1,000)"},
        {"machine": "B", "whole run": "users", "as fast or faster": "–", "less memory": "light (1 MB, fedlib 1,000)"}]


def test_launches_beside_arithmetic():
    found = pd.DataFrame({"ms of a step": [6.0, 1.0, 2.5], "passes forward": [5, 1, 3], "passes backward": [5, 1, 1]},
                         index=["pFedMe", "FedAvg", "MOON"])
    times = costs.bounds(found, 1.5)
    assert times.arithmetic.tolist() == [7.5, 1.5, 2.5]
    said = costs.bounds_in_words(costs.bounds(found, 1.2))      # MOON: 2.5 and 2.0
    assert "with 1 of 3 methods" in said and "1.2 times as much" in said and "MOON, the least of all, 0.8" in said
