"""Whole runs beside a plain loop: with tests, messages, checkpoints and the record, each in a process of its own.

Three shapes that other systems are measured by, and ten thousand clients, on made-up images of classes that can be
learned.
"""
import json
import statistics
import subprocess
import sys
import tempfile
import time
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
from fedlib.models.nets import build
from fedlib.probes import bench

PAIRS = 3           # of the two ways, in turn
POINTS = 2.0        # that the accuracies of the two ways may differ by
LEARNED = 30.0      # percent, of ten classes
TESTED = 128        # images at once
CHUNK = 1000        # likewise, when they are made


class Whole(NamedTuple):
    """`clients` with `samples` images each of a side, tested together on `tests` images."""
    title: str
    clients: int
    samples: int
    side: int
    tests: int
    net: dict
    protocol: dict


WHOLE = {
    "users": Whole("200 users, 50 a round (pfl-research's CIFAR-10, arXiv:2404.06430)", 200, 50, 32, 2000,
                   {"net": "cnn4"}, {"rounds": 3, "cohort": 50, "batch": 10, "lr": 0.05}),
    "thousand": Whole("1,000 users, 10 a round, a linear net (FLUTE's MNIST, arXiv:2203.13789)", 1000, 60, 28, 10000,
                      {"net": "linear"}, {"rounds": 100, "cohort": 10, "batch": 10, "lr": 0.003, "test_every": 20}),
    "twenty": Whole("20 clients, all in each round (PFLlib's MNIST)", 20, 300, 28, 2000,
                    {"net": "cnn4"}, {"rounds": 3, "batch": 10, "lr": 0.05}),
    "ten_thousand": Whole("10,000 users, 10 a round, a linear net", 10000, 60, 28, 10000,
                          {"net": "linear"}, {"rounds": 100, "cohort": 10, "batch": 10, "lr": 0.003, "test_every": 20}),
}


def made_up(work: Whole) -> Federation:
    """Images of ten classes: a coarse pattern for each, and noise. All clients' samples are views of one tensor."""
    gen, shape = generator("whole runs", work.title), (3, work.side, work.side)
    patterns = F.interpolate(torch.rand((10, 3, 4, 4), generator=gen), shape[1:]).mul(100).to(torch.uint8)
    count = work.clients * work.samples + work.tests
    y = torch.randint(0, 10, (count,), generator=gen)
    x = torch.randint(0, 156, (count, *shape), generator=gen, dtype=torch.uint8)
    for some, labels in zip(x.split(CHUNK), y.split(CHUNK), strict=True):
        some += patterns[labels]

    def split(start, size):
        return Split(x[start:start + size], y[start:start + size])

    test, names = split(count - work.tests, work.tests), [str(k) for k in range(10)]
    clients = [Client(str(i), "all", split(i * work.samples, work.samples), test, classes=names, domains=["all"])
               for i in range(work.clients)]
    return Federation(clients, names, {}, {"digest": "made up", "clients": []})


def ours(run: Run, federation: Federation) -> float:
    """fedlib's: accuracy (%) in the record."""
    with tempfile.TemporaryDirectory() as folder:
        return records.read_record(train(run, Path(folder), federation=federation))["rounds"][-1]["acc"]["all"]


def plain(run: Run, federation: Federation) -> float:
    """One net that the clients of a round take in turns, and a mean of state dicts: accuracy (%) at the end."""
    p, clients = run.protocol, federation.clients
    net = build(run.net, 10, tuple(clients[0].train.x.shape[1:]), run.seed)
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


def once(name: str, way: str) -> dict:
    """{"seconds", "peak_mb", "accuracy"} of one way, in this process; one thread."""
    work = WHOLE[pick("workload", name, WHOLE)]
    run, federation = plan("FedAvg", {}, {"name": "random"}, work.net, work.protocol, 0), made_up(work)
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)]).step()    # imports what torch puts off, in either way
    start = time.perf_counter()
    accuracy = WAYS[way](run, federation)
    return {"seconds": time.perf_counter() - start, "peak_mb": machine.peak("cpu"), "accuracy": accuracy}


def measure(name: str, pairs: int = PAIRS) -> dict:
    """Both ways in turn: {"title", "ratio": [median, least, most] of ours over plain, and for each way the medians of
    seconds, megabytes and accuracy}. UserError: one of them learned more than the other, or next to nothing.
    """
    def apart(way):
        done = subprocess.run([sys.executable, "-m", "fedlib.probes.whole_runs", name, way], capture_output=True,
                              text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    found = [{way: apart(way) for way in WAYS} for _ in range(pairs)]
    ratios = sorted(f["ours"]["seconds"] / f["plain"]["seconds"] for f in found)
    medians = {way: {k: round(statistics.median(f[way][k] for f in found), 4) for k in found[0][way]} for way in WAYS}
    learned = [medians[way]["accuracy"] for way in WAYS]
    if abs(learned[0] - learned[1]) > POINTS or min(learned) < LEARNED:
        raise UserError(f"{name}: the two ways learn too little, or differ in it: {medians}")
    return {"title": WHOLE[name].title, "ratio": [round(statistics.median(ratios), 3), round(ratios[0], 3),
                                                  round(ratios[-1], 3)], **medians}


def everything(results: Path, only: str = "", say=print) -> Path:
    """Measure all, or one, on this machine's CPU and keep them with the records; returns the path."""
    if only:
        pick("whole run", only, WHOLE)
    made = machine.described("cpu")
    here = bench.path(results, made).with_suffix(".whole")
    old = opened(here) if here.exists() else {"made": {"commit": ""}}
    kept = old["runs"] if old["made"]["commit"] == made["commit"] else {}       # measurements of one code only
    for name in [only] if only else WHOLE:
        say(f"» {name}")
        kept = kept | {name: measure(name)}
        write_bytes(here, (json.dumps({"made": made, "runs": kept}, indent=1) + "\n").encode())
    return here


def read(results: Path) -> dict[str, dict]:
    """hardware -> what was measured there: {"made", "runs": {name: as `measure` gives it}}."""
    return {f["made"]["hardware"]: f for f in map(opened, sorted((Path(results) / "bench").glob("*.whole")))}


def opened(here: Path) -> dict:
    """One measurement. UserError: the file holds something else."""
    way = {"seconds": float, "peak_mb": float | int, "accuracy": float}
    try:
        return schema.check(schema.parsed(here.read_text()), {"made": {"hardware": str, "commit": str}, "runs": {str: {
            "title": str, "ratio": [float], "ours": way, "plain": way}}})
    except (OSError, ValueError) as error:
        raise UserError(f"{here} is not a measurement ({error}); delete it and measure again") from error


def lines(found: dict) -> list[str]:
    """The measurements as lines of text."""
    said = [f"{'whole run':<76} {'ours':>8} {'plain':>8}  ours / plain (least, most)  memory, MB"]
    for one in found.values():
        ratio, least, most = one["ratio"]
        said.append(f"{one['title']:<76} {one['ours']['seconds']:7.1f}s {one['plain']['seconds']:7.1f}s  "
                    f"{f'{ratio:.2f} ({least:.2f}, {most:.2f})':<26}  {one['ours']['peak_mb']:10,.0f}")
    return said


if __name__ == "__main__":
    print(json.dumps(once(*sys.argv[1:3])))
