"""Whole runs beside a plain loop: with tests, messages, checkpoints and the record, each in a process of its own.

Three shapes that other systems are measured by, ten thousand clients, a larger net, and cached features, all made up
of classes that can be learned. Other systems are scripts that print what `once` gives and their version, see
workflow/others.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from fedlib.core import machine, schema
from fedlib.core.errors import UserError, pick
from fedlib.core.federation import Client, Federation, Split, as_input
from fedlib.core.files import write_bytes
from fedlib.core.seeds import generator
from fedlib.engine import records
from fedlib.engine.loop import sample, train
from fedlib.engine.run import Run, plan
from fedlib.models.nets import Halved, Net, build
from fedlib.probes import bench

PAIRS = 5           # of all ways, in turn, at least
LONG = 60.0         # seconds that each way is timed at least: a process may be half as fast as the one before it
WARM = 2            # rounds before those that count
POINTS = 2.0        # that the accuracies may differ by
LEARNED = 30.0      # percent, of ten classes
TESTED = 128        # images at once
CHUNK = 1000        # likewise, when they are made
INSTALLED = Path("build") / "others"        # what each of the other systems needs, in a folder of its name


class Whole(NamedTuple):
    """`clients` with `samples` images each of a side, tested together on `tests` images; side 0: cached features."""
    title: str
    clients: int
    samples: int
    side: int
    tests: int
    net: dict
    protocol: dict


WHOLE = {
    "users": Whole("200 users, 50 a round (pfl-research's CIFAR-10, arXiv:2404.06430)", 200, 50, 32, 2000,
                   {"net": "cnn4"}, {"rounds": 6, "cohort": 50, "batch": 10, "lr": 0.05}),
    "thousand": Whole("1,000 users, 10 a round, a linear net (FLUTE's MNIST, arXiv:2203.13789)", 1000, 60, 28, 10000,
                      {"net": "linear"}, {"rounds": 100, "cohort": 10, "batch": 10, "lr": 0.003, "test_every": 20}),
    "twenty": Whole("20 clients, all in each round (PFLlib's MNIST)", 20, 300, 28, 2000,
                    {"net": "cnn4"}, {"rounds": 3, "batch": 10, "lr": 0.05}),
    "ten_thousand": Whole("10,000 users, 10 a round, a linear net", 10000, 60, 28, 10000,
                          {"net": "linear"}, {"rounds": 100, "cohort": 10, "batch": 10, "lr": 0.003, "test_every": 20}),
    "pacs": Whole("4 clients, a ResNet-18 at 64 px (PACS in the tables)", 4, 96, 64, 400,
                  {"net": "resnet18"}, {"rounds": 4, "batch": 32, "lr": 0.05}),
    "features": Whole("20 clients with 512 cached features, an adapter (as in MPFT's tables)", 20, 300, 0, 2000,
                      {"net": "adapter"}, {"rounds": 20, "batch": 30, "lr": 0.03, "test_every": 5}),
}
FEATURES = 512


def made_up(work: Whole) -> Federation:
    """Images or features of ten classes: a pattern for each, and noise. All clients' samples are views of a tensor."""
    gen, shape = generator("whole runs", work.title), (3, work.side, work.side)
    count = work.clients * work.samples + work.tests
    if work.side:
        patterns = F.interpolate(torch.rand((10, 3, 4, 4), generator=gen), shape[1:]).mul(100).to(torch.uint8)
        y = torch.randint(0, 10, (count,), generator=gen)
        x = torch.randint(0, 156, (count, *shape), generator=gen, dtype=torch.uint8)
    else:
        patterns, y = torch.randn((10, FEATURES), generator=gen), torch.randint(0, 10, (count,), generator=gen)
        x = 4 * torch.randn((count, FEATURES), generator=gen)
    for some, labels in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
        some += patterns[labels]

    def split(start, size):
        return Split(x[start:start + size], y[start:start + size])

    test, names = split(count - work.tests, work.tests), [str(k) for k in range(10)]
    clients = [Client(str(i), "all", split(i * work.samples, work.samples), test, classes=names, domains=["all"])
               for i in range(work.clients)]
    return Federation(clients, names, {}, {"digest": "made up", "clients": []})


def own_net(run: Run, federation: Federation) -> Net:
    """The net that a run starts from, as our loop has it."""
    return build(run.net, 10, tuple(federation.clients[0].train.x.shape[1:]), run.seed)


def first_net(run: Run, federation: Federation) -> Net:
    """The net that a run starts from, written with torch's own layers: a faster pool of ours is for our loop only."""
    net = own_net(run, federation)
    for layers in list(net.modules()):
        for i in [i for i, layer in enumerate(layers.children()) if isinstance(layer, Halved)]:
            layers[i], layers[i + 1] = torch.nn.MaxPool2d(2), torch.nn.ReLU()
    return net


def ours(run: Run, federation: Federation) -> float:
    """fedlib's: accuracy (%) in the record."""
    with tempfile.TemporaryDirectory() as folder:
        return records.read_record(train(run, Path(folder), federation=federation))["rounds"][-1]["acc"]["all"]


def plain(run: Run, federation: Federation, net_of=first_net) -> float:
    """One net that the clients of a round take in turns, and a mean of state dicts: accuracy (%) at the end."""
    p, clients = run.protocol, federation.clients
    net = net_of(run, federation)
    shared, test = {k: v.clone() for k, v in net.state_dict().items()}, clients[0].test
    for number in range(p.rounds):
        states, chosen = [], sample(len(clients), p, run.seed, number)
        for i in chosen:
            net.load_state_dict(shared)
            opt, mine = torch.optim.SGD(net.train().parameters(), p.lr), clients[i].train
            for index in torch.randperm(len(mine)).split(p.batch):
                opt.zero_grad()
                F.cross_entropy(net(as_input(mine.x[index])), mine.y[index]).backward()
                opt.step()
            states.append({k: v.clone() for k, v in net.state_dict().items()})
        shared = {k: sum(s[k] for s in states) / len(states) for k in shared}
        if p.tests(number + 1):
            net.load_state_dict(shared)
            net.eval()
            with torch.inference_mode():
                right = [(net(as_input(x)).argmax(1) == y).sum()
                         for x, y in zip(test.x.split(TESTED), test.y.split(TESTED))]
    return 100 * float(sum(right)) / len(test)


WAYS = {"ours": ours, "plain": plain}
NUMBERS = ("seconds", "peak_mb", "accuracy")


def asked(name: str) -> tuple[Run, Federation]:
    """A workload's run and clients, in a process that is ready to compute them with one thread."""
    work = WHOLE[pick("workload", name, WHOLE)]
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)]).step()    # imports what torch puts off, in either way
    return plan("FedAvg", {}, {"name": "random"}, work.net, work.protocol, 0), made_up(work)


def once(name: str, way: str) -> dict:
    """{"seconds", "peak_mb", "accuracy"} of one way, in this process."""
    run, federation = asked(name)
    WAYS[way](replace(run, protocol=replace(run.protocol, rounds=WARM, test_every=WARM)), federation)
    start = time.perf_counter()
    accuracy = WAYS[way](run, federation)
    return {"seconds": time.perf_counter() - start, "peak_mb": machine.peak("cpu"), "accuracy": accuracy}


def measure(name: str, pairs: int = PAIRS, others: Path | None = None) -> dict:
    """All ways in turn, each beside the plain loop, and those not timed for LONG seconds by then in more turns:
    {"title", "turns", "ratio": [median, least, most] of ours over plain, "others": {name: likewise with its "version"},
    and for each way the medians of seconds, megabytes and accuracy}.

    others: a folder of scripts; one that prints null leaves this workload out. UserError: one learned more than the
    plain loop, or less, or next to nothing.
    """
    commands = {way: ["-m", "fedlib.probes.whole_runs", name, way] for way in WAYS}
    commands |= {path.stem: [str(path), name] for path in sorted(others.glob("*.py") if others else ())}
    turns, on = {way: [] for way in commands}, list(commands)
    while on:
        plain = apart("plain", commands["plain"])
        for way in on:
            one = plain if way == "plain" else apart(way, commands[way])
            turns[way].append(one and one | {"ratio": one["seconds"] / plain["seconds"]})
        on = [w for w in on if turns[w][0] and (len(turns[w]) < pairs or sum(t["seconds"] for t in turns[w]) < LONG)]
    turns = {way: each for way, each in turns.items() if each[0]}

    def median(way):
        return {k: round(statistics.median(t[k] for t in turns[way]), 4) for k in NUMBERS}

    def ratio(way):
        each = sorted(t["ratio"] for t in turns[way])
        return [round(v, 3) for v in (statistics.median(each), each[0], each[-1])]

    medians = {way: median(way) for way in turns}
    learned = [m["accuracy"] for m in medians.values()]
    if max(learned) - min(learned) > POINTS or min(learned) < LEARNED:
        raise UserError(f"{name}: the ways learn too little, or differ in it: {medians}")
    return {"title": WHOLE[name].title, "turns": len(turns["ours"]), "ratio": ratio("ours"),
            **{way: medians[way] for way in WAYS},
            "others": {way: m | {"ratio": ratio(way), "turns": len(turns[way]), "version": turns[way][0]["version"]}
                       for way, m in medians.items() if way not in WAYS}}


def apart(way: str, command: list[str]) -> dict:
    """What a way prints, in a process of its own; another system finds its packages. UserError: it fails."""
    there = {**os.environ, "PYTHONPATH": str((INSTALLED / way).resolve())} if way not in WAYS else None
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, env=there)
    if done.returncode:
        raise UserError(f"{way} failed: {['without a word', *done.stderr.splitlines()][-1]}")
    return json.loads(done.stdout.splitlines()[-1])


def everything(results: Path, only: str = "", say=print, others: Path | None = None) -> Path:
    """Measure all, or one, on this machine's CPU and keep them with the records, each with its commit. The path."""
    if only:
        pick("whole run", only, WHOLE)
    made = machine.described("cpu")
    here = bench.path(results, made).with_suffix(".whole")
    kept = opened(here)["runs"] if here.exists() else {}
    for name in [only] if only else WHOLE:
        say(f"» {name}")
        kept = kept | {name: measure(name, others=others) | {"commit": made["commit"]}}
        write_bytes(here, (json.dumps({"made": made, "runs": kept}, indent=1) + "\n").encode())
    return here


def read(results: Path) -> dict[str, dict]:
    """hardware -> what was measured there: {"made", "runs": {name: as `measure` gives it, with the "commit"}}."""
    return {f["made"]["hardware"]: f for f in map(opened, sorted((Path(results) / "bench").glob("*.whole")))}


def opened(here: Path) -> dict:
    """One measurement. UserError: the file holds something else."""
    way = dict.fromkeys(NUMBERS, float | int)
    run = {"title": str, "commit": str, "turns": int, "ratio": [float], "ours": way, "plain": way,
           "others?": {str: way | {"ratio": [float], "turns": int, "version": str}}}
    try:
        return schema.check(schema.parsed(here.read_text()), {"made": {"hardware": str}, "runs": {str: run}})
    except (OSError, ValueError) as error:
        raise UserError(f"{here} is not a measurement ({error}); delete it and measure again") from error


def lines(found: dict) -> list[str]:
    """The measurements as lines of text."""
    said = [f"{'whole run':<76} {'ours':>8} {'plain':>8}  ours / plain (least, most)  memory, MB"]
    for one in found.values():
        ratio, least, most = one["ratio"]
        said.append(f"{one['title']:<76} {one['ours']['seconds']:7.1f}s {one['plain']['seconds']:7.1f}s  "
                    f"{f'{ratio:.2f} ({least:.2f}, {most:.2f})':<26}  {one['ours']['peak_mb']:10,.0f}")
        for name, other in one.get("others", {}).items():
            ratio, least, most = other["ratio"]
            title = f"    the same with {name} {other['version']}"
            said.append(f"{title:<76} {other['seconds']:7.1f}s {'':8}  "
                        f"{f'{ratio:.2f} ({least:.2f}, {most:.2f})':<26}  {other['peak_mb']:10,.0f}")
    return said


if __name__ == "__main__":
    print(json.dumps(once(*sys.argv[1:3])))
