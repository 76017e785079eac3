"""What a round, a record and a table cost, in tables and in words: measurements of `fedlib.probes.bench`, and records.

A machine is what `bench.read` gives: {"made", "workloads", "growth"}; machines: {hardware: machine}.
"""
import json
from pathlib import Path
from statistics import mean, median

import pandas as pd
from IPython.display import Markdown, display

from fedlib.engine import stack
from fedlib.engine.loop import sample
from fedlib.experiments import status
from fedlib.experiments.results import results_folder
from fedlib.methods.base import Protocol
from fedlib.probes import bench, steps
from fedlib.report import plots, text

NOTHING = "No measurements yet. `make bench` makes them."
CPU, GPU = "CPU", "GPU"


def each(machines: dict, *contents):
    """What each content(machine) gives, below the machine's name; the sentence, where nothing was measured."""
    for hardware, machine in machines.items():
        text.titled(hardware, *(content(machine) for content in contents))
    if not machines:
        display(Markdown(NOTHING))


# on a GPU

def launches(microseconds: float) -> pd.DataFrame:
    """What a local step of each method asks of a GPU, counted on a pretended one (tests/gpu/test_launches.py).

    A line for each, the most first; "ms of a step": if a launch takes so long and nothing else counts.
    """
    kept = json.loads(Path(__file__).with_name("launches.json").read_text())["methods"]
    found = pd.DataFrame(kept).T.sort_values("launches of a step", ascending=False)
    found.insert(1, "ms of a step", found["launches of a step"] * microseconds / 1000)
    return found


def waiting(found: pd.DataFrame) -> str:
    """Which methods let the host wait in a step."""
    waits = ", ".join(found[found["waits of a step"] > 0].index)
    return f"In a step the host waits for the GPU with {waits} only." if waits else "In a step the host never waits."


def profiled(results: Path) -> dict[str, dict]:
    """{hardware: {"made", "methods"}}: the same counted by torch's profiler where there is a GPU (`make gpu`)."""
    found = (json.loads(path.read_text()) for path in sorted((Path(results) / "bench").glob("*.launches")))
    return {one["made"]["hardware"]: one for one in found}


def beside_profiler(asked: pd.DataFrame, one: dict) -> pd.DataFrame:
    """A line for each method that takes steps on both: launches pretended and counted, their ratio, waits, ms of a step
    and microseconds of a launch, by the clock."""
    real = pd.DataFrame({m: found for m, found in one["methods"].items() if isinstance(found, dict)}).T
    real = real[real["launches of a step"] > 0].reindex([m for m in asked.index if m in real.index]).dropna(how="all")
    pretended = asked["launches of a step"][real.index]
    return pd.DataFrame({"pretended": pretended, "counted": real["launches of a step"],
                         "ratio": real["launches of a step"] / pretended, "waits": real["waits of a step"],
                         "waits pretended": asked["waits of a step"][real.index], "ms of a step": real["ms of a step"],
                         "µs of a launch": 1000 * real["ms of a step"] / real["launches of a step"]})


def profiled_in_words(hardware: str, one: dict, both: pd.DataFrame) -> str:
    """Do the counts agree, and how long a launch takes."""
    other = both.index[both["waits"] != both["waits pretended"]]
    waits = f"not with {', '.join(other)}" if len(other) else "with every method"
    ratio, launch = both["ratio"], both["µs of a launch"].dropna()
    return (f"On {hardware} with torch {one['made']['torch']}, {len(both)} methods: the host waits as often as "
            f"pretended {waits}. There are {ratio.median():.2f} times as many launches as pretended ({ratio.min():.2f} "
            f"to {ratio.max():.2f}). A launch takes {launch.median():.0f} µs of the host's time ({launch.min():.0f} to "
            f"{launch.max():.0f}, {len(launch)} methods timed).")


def bounds(found: pd.DataFrame, arithmetic: float) -> pd.DataFrame:
    """Milliseconds of a step: its launches, and the arithmetic of its passes. arithmetic: of one forward and backward;
    backward takes twice as long as forward.
    """
    passes = (found["passes forward"] + 2 * found["passes backward"]) / 3
    return pd.DataFrame({"launches": found["ms of a step"], "arithmetic": arithmetic * passes})


def bounds_in_words(times: pd.DataFrame) -> str:
    """In how many methods launches take longer; the ratio of FedAvg, and the least."""
    ratio = times.arithmetic / times.launches
    return (f"Launches take longer than the arithmetic with {(ratio < 1).sum()} of {len(times)} methods. A step of "
            f"FedAvg has {ratio['FedAvg']:.1f} times as much arithmetic as launches, one of {ratio.idxmin()}, the "
            f"least of all, {ratio.min():.1f} times.")


# a round in three ways

def ratios(machine: dict) -> pd.DataFrame:
    """Seconds of a round as multiples of the floor's, medians over the turns: a line for each workload."""
    return pd.DataFrame({name: {label: median(p[way] / p["floor"] for p in found["pairs"]) for label, way in (
        ("ours", "ours"), ("plain loop", "plain"), ("floor", "floor"))}
        for name, found in machine["workloads"].items()}).T


def made(machine: dict) -> Markdown:
    """How a machine measured."""
    how = machine["made"]
    return Markdown(f"{how['threads']} thread(s), torch {how['torch']}, code {how['commit']}, {how['started'][:10]}")


def measured(machine: dict):
    """A line for each workload: seconds of a round, overhead, gain, clients at once, memory, a client's upload."""
    frame = pd.DataFrame([{
        "name": name, "workload": found["title"], **{f"{way}, s": found["seconds"][way] for way in bench.WAYS},
        "over the floor": f"{100 * found['overhead']:+.1f} %", "plain / ours": found["gain"],
        "clients at once": found["stack"], "memory, MB": f"{found['peak_mb'] * 2**20 / 1e6:,.0f}",
        "upload, MB": found["upload_bytes"] / 1e6} for name, found in machine["workloads"].items()])
    return text.table(frame, "{:.2f}", words=True, index=False)


def systems(one: dict) -> list[tuple]:
    """(name, what was measured, [median, least, most] of its seconds over the plain loop's), ours first."""
    return [("fedlib", one["ours"], one["ratio"]),
            *((f"{name} {other['version']}", other, other["ratio"]) for name, other in one.get("others", {}).items())]


def beside(machines: dict):
    """Seconds of whole runs over the plain loop's, a bar for each system, a panel for each machine that has others.

    The plain loop with fedlib's pool is no system: it stands in the tables alone.
    """
    ratios = {hardware: {one["title"].split(" (")[0]: {system: ratio[0] for system, _, ratio in systems(one)
                                                       if not system.startswith("plain_")}
                         for one in found["runs"].values()}
              for hardware, found in machines.items() if any(one.get("others") for one in found["runs"].values())}
    rows = list(dict.fromkeys(run for lines in ratios.values() for run in lines))       # a machine may lack some
    names = list(dict.fromkeys(name for lines in ratios.values() for one in lines.values() for name in one))
    panels = {hardware: pd.DataFrame(lines).T.reindex(index=rows, columns=names) for hardware, lines in ratios.items()}
    return text.or_empty(panels, lambda found: plots.lengths(
        found, "seconds of the run, of the plain loop's", stacked=False, reference=1, linear=1.5), NOTHING)


def whole(machines: dict):
    """Whole runs beside a plain loop: for each machine a line for each run and system, as `whole_runs.read` gives."""
    for hardware, found in machines.items():
        frame = pd.DataFrame([{
            "whole run": one["title"], "system": system,
            "seconds": f"{how['seconds']:.1f} ({one['plain']['seconds']:.1f})",
            "of the plain loop's": f"{ratio[0]:.2f}",
            "least to most": f"{ratio[1]:.2f} to {ratio[2]:.2f}", "turns": how.get("turns", one["turns"]),
            "memory, MB": f"{how['peak_mb']:,.0f} ({one['plain']['peak_mb']:,.0f})",
            "accuracy, %": f"{how['accuracy']:.1f} ({one['plain']['accuracy']:.1f})", "commit": one["commit"]}
            for one in found["runs"].values() for system, how, ratio in systems(one)])
        text.titled(f"On {hardware}", text.table(frame, words=True, index=False))
    return None if machines else Markdown(NOTHING)


def ahead(machines: dict) -> pd.DataFrame:
    """What other systems do better than fedlib, a line for each machine and shape where one does: machine, whole run,
    as fast or faster (the medians of the ratios to the plain loop, as shown, and fedlib's), less memory."""
    lines = []
    for hardware, found in machines.items():
        for one in found["runs"].values():
            others, ours, peak = one.get("others", {}), round(one["ratio"][0], 2), one["ours"]["peak_mb"]
            fast = [f"{name} ({how['ratio'][0]:.2f}, fedlib {ours:.2f})" for name, how in others.items()
                    if round(how["ratio"][0], 2) <= ours]
            small = [f"{name} ({how['peak_mb']:,.0f} MB, fedlib {peak:,.0f})" for name, how in others.items()
                     if how["peak_mb"] < peak]
            if fast or small:
                lines.append({"machine": hardware, "whole run": one["title"].split(" (")[0],
                              "as fast or faster": ", ".join(fast) or "–", "less memory": ", ".join(small) or "–"})
    return pd.DataFrame(lines)


def extremes(hardware: str, machine: dict) -> str:
    """Where the overhead is least and most, and where the plain loop is slowest beside ours."""
    found, most = machine["workloads"], []
    low, high = (f(found, key=lambda n: found[n]["overhead"]) for f in (min, max))
    for name in sorted(found, key=lambda n: -found[n]["gain"])[:2]:
        work = bench.WORKLOADS[name]
        count = -(-work.samples // work.batch)
        step = found[name]["seconds"]["floor"] / (work.clients * count)
        most.append(f"{name} ({found[name]['gain']:.2f} times; {count} steps of {1000 * step:.1f} ms for a client)")
    return (f"On {hardware}, overhead lies between {100 * found[low]['overhead']:.1f} % ({low}) and "
            f"{100 * found[high]['overhead']:.1f} % ({high}). The plain loop is slowest beside ours for "
            + " and ".join(most) + ".")


# targets

def kind(machine: dict) -> str:
    """CPU or GPU."""
    return CPU if machine["made"]["device"] == "cpu" else GPU


def overheads(machine: dict) -> tuple[bool, str]:
    """A target: is it met, and the evidence."""
    over = {n: found["overhead"] for n, found in machine["workloads"].items()}
    most = max(over, key=over.get)
    return over[most] <= 0.15, f"at most {100 * over[most]:.1f} % ({most}), {len(over)} workloads"


def never_slower(machine: dict) -> tuple[bool, str]:
    """A target: is it met, and the evidence."""
    gains = {n: found["gain"] for n, found in machine["workloads"].items()}
    below = [f"{n} {gain:.2f}" for n, gain in gains.items() if gain < 1]
    return not below, "; ".join([f"{len(gains) - len(below)} of {len(gains)} workloads", *below])


def times(name: str, least: float):
    """A target: a workload's gain over the plain loop."""
    def judge(machine: dict) -> tuple[bool, str]:
        gain = machine["workloads"][name]["gain"]
        return gain >= least, f"{gain:.2f} times"
    return judge


def linear(what: str):
    """A target: the slope of log seconds over the log of a number, between 0.8 and 1.1."""
    def judge(machine: dict) -> tuple[bool, str]:
        slope = bench.slope(machine["growth"][what])
        return 0.8 <= slope <= 1.1, f"slope {slope:.2f}"
    return judge


def flat(machine: dict) -> tuple[bool, str]:
    """A target: is it met, and the evidence."""
    memory = [mb for _, mb in machine["growth"]["rounds"]]
    return max(memory) <= 1.01 * memory[0], f"{memory[0]} MB after 10 rounds, {memory[-1]} MB after 40"


def hundred(machine: dict) -> tuple[bool, str]:
    """A target: is it met, and the evidence."""
    gigabytes = machine["workloads"]["cnn4_100"]["peak_mb"] * 2**20 / 1e9
    return gigabytes < 4, f"{gigabytes:.1f} GB"


TARGETS = {     # what is wanted -> on which machines, and what judges it
    "at most 15 % over the floor": ((CPU, GPU), overheads),
    "never slower than the plain loop": ((CPU, GPU), never_slower),
    "adapters: 5 times as fast as the plain loop": ((CPU,), times("adapters", 5)),
    "20 stacked CNNs: 8 times as fast as the plain loop": ((GPU,), times("cnn4_20", 8)),
    "ResNet-10: twice as fast as the plain loop": ((GPU,), times("resnet10", 2)),
    "linear in clients (slope from 0.8 to 1.1)": ((CPU, GPU), linear("clients")),
    "linear in samples (slope from 0.8 to 1.1)": ((CPU, GPU), linear("samples")),
    "memory flat in rounds (within 1 %)": ((CPU, GPU), flat),
    "100 clients with a CNN in less than 4 GB": ((CPU, GPU), hundred)}


def judged(machines: dict) -> pd.DataFrame:
    """Every target on every kind of machine that it is meant for: target, on, verdict, measured, machine."""
    lines = []
    for target, (kinds, judge) in TARGETS.items():
        for wanted in kinds:
            for hardware, machine in [(h, m) for h, m in machines.items() if kind(m) == wanted] or [("–", {})]:
                try:
                    good, evidence = judge(machine)
                    verdict = "met" if good else "not met"
                except (KeyError, ValueError):      # no such machine, no such workload
                    verdict, evidence = "not measured", "–"
                lines.append((target, wanted, verdict, evidence, hardware))
    return pd.DataFrame(lines, columns=["target", "on", "verdict", "measured", "machine"])


def slower(machines: dict) -> list[str]:
    """The workloads in which ours is slower than the plain loop, turn by turn."""
    said = []
    for hardware, machine in machines.items():
        for name, found in machine["workloads"].items():
            turns = [p["plain"] / p["ours"] for p in found["pairs"]]
            if found["gain"] < 1:
                said.append(f"{name}: plain / ours is {min(turns):.3f} to {max(turns):.3f} in {len(turns)} turns on "
                            f"{hardware}. Ours was the slower one in {sum(t < 1 for t in turns)} of them.")
    return said


# arithmetic

def counted() -> pd.DataFrame:
    """Steps, FLOP of a step and FLOP of a round, of every workload without a text tower."""
    found = {n: steps.arithmetic(w) for n, w in bench.WORKLOADS.items() if w.net.get("head") != "prompts"}
    return pd.DataFrame(found, index=["steps", "step", "round"]).T


def rates(count: pd.DataFrame, machines: dict) -> pd.DataFrame:
    """The same to read, and the FLOP a second at which each machine's floor runs."""
    frame = pd.DataFrame({"steps": count.steps, "MFLOP a step": count.step / 1e6,
                          "GFLOP a round": count["round"] / 1e9})
    for hardware, machine in machines.items():
        column = "floor, GFLOP/s" + (f", {hardware}" if len(machines) > 1 else "")
        seconds = pd.Series({n: found["seconds"]["floor"] for n, found in machine["workloads"].items()})
        frame[column] = frame["GFLOP a round"] / seconds.reindex(frame.index)
    return frame


def fifth(count: pd.DataFrame, machines: dict) -> list[str]:
    """On each CPU: the rate that the adapters would need in a fifth of the plain loop's time, and the floors' rates."""
    said, whole = [], count["round"]["adapters"] / 1e9
    for hardware, machine in machines.items():
        found = machine["workloads"]
        if kind(machine) == CPU and "adapters" in found:
            rate = rates(count, {hardware: machine})["floor, GFLOP/s"].dropna()
            wanted = found["adapters"]["seconds"]["plain"] / 5
            said.append(f"On {hardware}, a fifth of the plain loop's time is {wanted:.2f} s for the adapters. Their "
                        f"{whole:.1f} GFLOP would have to run at {whole / wanted:.0f} GFLOP/s, and the optimiser would "
                        f"have to cost nothing. Their floor runs at {rate['adapters']:.0f}; the highest rate of all "
                        f"floors there, with far larger products, is {rate.max():.0f} ({rate.idxmax()}).")
    return said


def of_a_step(bound: dict, flop: float, rate: float) -> str:
    """What a step of the floor is made of, and how fast it could be at best.

    bound: of `steps.bound`; flop: of a step; rate: FLOP a second of a large product.
    """
    (plain, plain_in), (ours, ours_in), (floor, inside) = (bound[way] for way in ("plain", "ours", "floor"))
    least = flop / rate + inside
    parts = {"arithmetic": flop / rate, "optimiser": inside, "rest": floor - least}
    best, won, fused = plain / least, plain - ours, plain_in - ours_in
    return (f"A large product runs at {rate / 1e9:.0f} GFLOP/s, the adapters' floor at {flop / floor / 1e9:.0f}. Of a "
            "step of the floor " + ", ".join(f"{100 * v / floor:.0f} % are {k}" for k, v in parts.items())
            + f". The floor itself is {plain / floor:.1f} times as fast as the plain loop. With arithmetic at the full "
            f"rate, the same optimiser and nothing else a step would take {1e6 * least:.0f} µs, {best:.1f} times as "
            "fast as the plain loop. "
            + ("So on one thread of this machine five times is out of reach, whatever the code around a step does."
               if best < 5 else "So five times would need a step that is nearly arithmetic and optimiser alone.")
            + (f" Of the {1e6 * won:.0f} µs between the plain loop and ours {1e6 * fused:.0f} are the fused optimiser."
               if won > fused > 0 else ""))


# growth, and several clients at once

def growth(machine: dict) -> pd.DataFrame:
    """Seconds of a round against clients, samples and classes, as multiples of the smallest; the slope in words."""
    lines = []
    for what, points in machine.get("growth", {}).items():
        if what in bench.GROWTH:
            name = f"{what} (slope {round(bench.slope(points), 2) + 0.0:.2f})"      # no -0.00
            lines += [(name, n / points[0][0], seconds / points[0][1]) for n, seconds in points]
    return pd.DataFrame(lines, columns=["kind", "times as many", "times the seconds"])


def memory(machines: dict) -> list[str]:
    """Memory over the rounds on each machine, and the smallest and largest upload."""
    said = ["Memory after " + ", ".join(f"{n} rounds {mb} MB" for n, mb in m["growth"]["rounds"])
            + f" ({hardware}). This is FedAvg, which keeps nothing from one round to the next but nets."
            for hardware, m in machines.items() if m.get("growth", {}).get("rounds")]
    up = {n: found["upload_bytes"] / 1e6 for m in machines.values() for n, found in m["workloads"].items()}
    if up:
        few, many = min(up, key=up.get), max(up, key=up.get)
        together = f" The clients of cnn4_100 send {100 * up['cnn4_100']:.0f} MB together." if "cnn4_100" in up else ""
        said.append(f"An upload is between {up[few]:.2f} MB ({few}) and {up[many]:.1f} MB ({many}) for a client and a "
                    f"round.{together}")
    return said


def gains(live: pd.DataFrame) -> str:
    """Which nets are faster stacked. live: lines of `steps.stacked` by net, the adapters' among them."""
    gain = live["apart / stacked"]
    groups = {"faster stacked": gain[gain > 1.1], "slower stacked": gain[gain < 0.9],
              "within 10 %": gain[gain.between(0.9, 1.1)]}
    said = [f"**{k}**: {', '.join(f'{net} ({g:.2f})' for net, g in part.items())}." for k, part in groups.items()
            if len(part)]
    last = live.loc["adapters"]
    return (" ".join(said) + f" `auto` stacks from a gain of {stack.GAIN} on. For the adapters, stacking multiplies "
            f"the passes' time by {last['passes, stacked'] / last['passes, apart']:.2f} and the optimiser's by "
            f"{last['optimiser, stacked'] / last['optimiser, apart']:.2f}.")


# records

def of_records(results: Path | None = None) -> pd.DataFrame:
    """A line for each record: what it is, when and on what it was made, what it has cost.

    seconds: the median of its rounds, with their tests; ms a sample: the same over the training samples that go through
    the net in a round: samples x local epochs x the share of clients that take part, a mean over the rounds. kind: of
    the device.
    """
    lines = []
    for path in sorted(results_folder(results).glob("*/*.json")):
        record = json.loads(path.read_text())
        run, how = record["run"], record["made"]
        clients, protocol = how["data"]["clients"], Protocol(**run["protocol"])
        seconds = [r["seconds"] for r in record["rounds"] if r["round"]]
        drawn = range(max(1, len(seconds)) if protocol.participation_low else 1)    # else as many in each round
        part = mean(len(sample(len(clients), protocol, run["seed"], k)) for k in drawn) / len(clients)
        samples = sum(c["train"] for c in clients) * part
        usual = median(seconds) if seconds else float("nan")
        lines.append({
            "set": path.parent.name, "method": run["method"],
            "data": run["data"]["name"] + (" (features)" if run["data"].get("encoder") else ""),
            "net": run["net"]["net"], "width": run["net"].get("width") or "published",
            "clients": len(clients), "rounds": len(seconds), "seconds": usual,
            "ms a sample": 1000 * usual / (samples * protocol.epochs), "hours": how["seconds"] / 3600,
            "kind": how["device"].split(":")[0], "day": how["started"][:10],
            **{k: how.get(k, "unknown") for k in ("device", "hardware", "torch", "python", "precision", "commit")}})
    return pd.DataFrame(lines)


def longest(found: list[dict], profile: str, count: int = 12) -> pd.DataFrame:
    """Hours of a profile by table, spent and estimated, of those that take most; the others together come last."""
    names = {"hours": "spent on records", "left": "estimate of the rest"}
    lines = pd.DataFrame([line for line in found if line["profile"] == profile], columns=["table", *names])
    hours = lines.set_index("table").rename(columns=names).astype(float).fillna(0.0)
    hours = hours.loc[hours.sum(axis=1).sort_values(ascending=False, kind="stable").index]
    others = hours[count:].sum().rename(f"the {len(hours) - count} others").to_frame().T
    return pd.concat([hours[:count], others]) if len(hours) > count else hours


def needs(found: list[dict]) -> pd.DataFrame:
    """What each table takes, in words. found: of `status.everything`."""
    lines = []
    for line in found:
        runs = sum(line[s] for s in status.STATES)
        left = [status.clock(line["left"])] if line["left"] else []
        left += [f"{line['guessed']} of {runs - line['done']}: no record"] if line["guessed"] else []
        lines.append({"table": line["table"], "profile": line["profile"], "records": f"{line['done']} of {runs}",
                      "measured": status.clock(line["hours"]) if line["done"] else "–",
                      "memory": f"{line['peak_mb'] / 1024:.1f} GB" if line["peak_mb"] else "–",
                      "left": "no record" if line["guessed"] == runs else ", ".join(left)})
    return pd.DataFrame(lines)
