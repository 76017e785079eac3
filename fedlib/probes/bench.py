"""Where the time of a round goes: ours, the floor below it, and a plain loop, on random data of a paper's shapes.

ours    one round of fedlib: messages, local training, aggregation; no test
floor   as many steps of one net (forward, backward, optimiser) and forward passes on tensors that lie ready
plain   what most code does: a DataLoader and a model for each client, state dicts that are averaged
"""
import copy
import dataclasses
import json
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

from fedlib.core import machine, schema
from fedlib.core.errors import UserError, pick
from fedlib.core.federation import as_input
from fedlib.core.files import write_bytes
from fedlib.engine.loop import Simulation
from fedlib.engine.run import plan
from fedlib.methods.base import optimiser
from fedlib.models.nets import build
from fedlib.probes.cost import floats, made_up, random

WAYS = ("ours", "floor", "plain")
PAIRS = 3           # measurements of each, one after the other; ratios are medians over them


@dataclass(frozen=True)
class Workload:
    """A federation of random data: `clients` with `samples` each, of one shape, `(3, H, W)` images or `(D,)` features.

    passes: how often a round sends each sample forward through the body; above 1, prototypes need another pass.
    """
    title: str
    net: dict
    shape: tuple
    classes: int
    clients: int
    samples: int
    batch: int
    method: str = "FedAvg"
    values: dict = field(default_factory=dict)
    protocol: dict = field(default_factory=dict)
    passes: int = 1


ADAM = {"optimiser": "adamw", "lr": 1e-3}
CNN = Workload("CNN4, 32 px, 20 clients", {"net": "cnn4"}, (3, 32, 32), 10, 20, 50, 10)
RESNET10 = Workload("ResNet-10, Office-10", {"net": "resnet10"}, (3, 32, 32), 10, 4, 64, 32)
PROMPTS = Workload("prompts, 7 classes, ViT-B/32's tower", {"net": "identity", "head": "prompts"}, (512,), 7, 4, 64,
                   32, "PromptFL")
WORKLOADS = {
    "cnn4_20": CNN,
    "cnn4_100": dataclasses.replace(CNN, title="CNN4, 32 px, 100 clients", clients=100, samples=20),
    "resnet10": RESNET10,
    "resnet18": Workload("ResNet-18, PACS, 64 px", {"net": "resnet18"}, (3, 64, 64), 7, 4, 64, 32),
    "adapters": Workload("adapters, DomainNet-50", {"net": "adapter", "head": "frozen"}, (512,), 50, 6, 7900, 32,
                         protocol=ADAM),
    "prompts_7": PROMPTS,
    "prompts_126": dataclasses.replace(PROMPTS, title="prompts, 126 classes, ViT-B/32's tower", classes=126, clients=1,
                                       samples=32),
    "fpl": dataclasses.replace(RESNET10, title="FPL, ResNet-10", method="FPL", passes=2),
    "fedplvm": dataclasses.replace(RESNET10, title="FedPLVM, ResNet-10", method="FedPLVM", passes=2),
}
SMALL = Workload("small CNN4", {"net": "cnn4", "width": 8}, (3, 28, 28), 10, 4, 100, 20)
GROWTH = {"clients": (2, 4, 8, 16), "samples": (50, 100, 200, 400), "classes": (5, 10, 20, 40)}


class Round:
    """A workload's federation, and one round of it in three ways."""

    def __init__(self, work: Workload, device: str = "cpu", together: str | int = "auto"):
        protocol = {"rounds": 1, "batch": work.batch, "lr": 0.01, **work.protocol}
        self.work, self.device = work, device
        self.run = plan(work.method, work.values, {"name": "random"}, work.net, protocol, 0)
        federation = made_up([work.samples] * work.clients, work.classes, work.shape,
                             head=self.run.net.head == "frozen")
        net = build(self.run.net, work.classes, work.shape, 0, head=federation.head,
                    prompts=tower(work.classes) if self.run.net.head == "prompts" else None)
        self.simulation = Simulation(self.run, federation, device, stack=together, net=net)
        self.workers, self.server = self.simulation.workers, self.simulation.server
        self.net = copy.deepcopy(self.workers[0].client.net)
        every = list(range(work.clients))
        self.together = self.workers.choose(together, self.run, every, map(self.simulation.message, every), 0, device)

    def ours(self):
        """One round."""
        uploads, _, _ = self.simulation.exchange(list(range(self.work.clients)))
        self.server.aggregate(uploads)
        self.simulation.rounds.append({"round": self.simulation.number + 1})
        return uploads

    def floor(self):
        """The same passes and steps of one net on tensors that lie ready."""
        work, opt = self.work, optimiser(self.run.protocol, self.net.train(), self.workers[0].client)
        x, y = (t.to(self.device) for t in self.ready(work.batch))
        for _ in range(work.clients * -(-work.samples // work.batch)):
            opt.zero_grad(set_to_none=True)
            F.cross_entropy(self.net(x), y).backward()
            opt.step()
        self.net.eval()
        with torch.no_grad():
            for _ in range((work.passes - 1) * work.clients):
                self.net.body(self.ready(work.samples)[0].to(self.device))

    def ready(self, count: int):
        split = random(count, self.work.classes, self.work.shape)
        return as_input(split.x), split.y

    def plain(self):
        """A DataLoader and a model for each client; state dicts are averaged."""
        work, states = self.work, []
        x, y = self.ready(work.samples)
        for _ in self.workers:
            net = copy.deepcopy(self.net).train()
            opt = PLAIN[self.run.protocol.optimiser](net.parameters(), self.run.protocol.lr)
            loader = DataLoader(Samples(x, y), work.batch, shuffle=True)
            for batch, labels in loader:
                opt.zero_grad()
                F.cross_entropy(net(batch.to(self.device)), labels.to(self.device)).backward()
                opt.step()
            if work.passes > 1:
                net.eval()
                with torch.no_grad():
                    torch.cat([net.body(batch.to(self.device)) for batch, _ in loader])
            states.append(copy.deepcopy(net.state_dict()))
        mean = {k: torch.stack([s[k].float() for s in states]).mean(0) for k in states[0]}
        for _ in self.workers:
            copy.deepcopy(self.net).load_state_dict(mean)


PLAIN = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


class Samples(Dataset):
    """A data set as most code has it: one sample at a time. Its images are normalised already."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def tower(classes: int):
    """ViT-B/32's text tower with random weights as a head of prompts."""
    from fedlib.models.encoders import clip_encoder
    from fedlib.models.prompt_head import PromptHead, Tower
    encoder = clip_encoder("ViT-B-32", None)
    return PromptHead(Tower(encoder.model, encoder.tokenizer), [f"class {k}" for k in range(classes)], encoder.dim)


def clocked(call, device: str) -> float:
    """Seconds of a call."""
    start = time.perf_counter()
    call()
    if device != "cpu":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def measure(name: str, device: str = "cpu", together: str | int = "auto", pairs: int = PAIRS) -> dict:
    """What one workload costs: seconds (medians), overhead of ours over the floor and gain over the plain loop (medians
    of ratios, each of one pair), megabytes at most, clients that train at once, bytes of a client's upload.
    """
    one = Round(WORKLOADS[pick("workload", name, WORKLOADS)], device, together)
    ways = {way: getattr(one, way) for way in WAYS}
    upload = next(iter(one.ours().values()))
    one.floor()
    before = machine.peak(device)       # of ours; the plain loop holds every client's state
    times = [{k: clocked(way, device) for k, way in ways.items()} for _ in range(pairs)]
    return {"title": one.work.title, "stack": one.together, "peak_mb": before, "upload_bytes": floats(upload),
            "overhead": round(statistics.median(t["ours"] / t["floor"] for t in times) - 1, 4),
            "gain": round(statistics.median(t["plain"] / t["ours"] for t in times), 3),
            "seconds": {k: round(statistics.median(t[k] for t in times), 5) for k in ways}, "pairs": times}


def growth(device: str = "cpu", pairs: int = PAIRS) -> dict:
    """How a round's seconds grow with clients, samples and classes, and memory with rounds: {what: [[n, seconds]]}."""
    found = {}
    for what, counts in GROWTH.items():
        rounds = {n: Round(dataclasses.replace(SMALL, **{what: n}), device, 1) for n in counts}
        times = [{n: clocked(r.ours, device) for n, r in rounds.items()} for _ in range(1 + pairs)][1:]
        found[what] = [[n, round(statistics.median(t[n] for t in times), 5)] for n in counts]
    one = Round(SMALL, device, 1)
    found["rounds"] = []
    for number in range(1, 41):
        one.ours()
        if number % 10 == 0:
            found["rounds"].append([number, machine.peak(device)])
    return found


def slope(points) -> float:
    """Of a line through log n, log seconds: 1 is linear growth."""
    (a, b) = ([torch.tensor(float(v)).log() for v in values] for values in zip(*points))
    x, y = torch.stack(a), torch.stack(b)
    return float(((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum())


def path(results: Path, made: dict) -> Path:
    """Where the measurement of this machine lies: a file for each kind of hardware."""
    name = "-".join("".join(c if c.isalnum() else " " for c in made["hardware"]).split()).lower()
    return Path(results) / "bench" / f"{name}.bench"


def everything(results: Path, device: str = "cpu", only: str = "", say=print) -> Path:
    """Measure the workloads, each in a process of its own so that memory is its own, and keep them; returns the path.

    A workload that fails (no open_clip, no memory) is left out and named.
    """
    made = machine.described(device)
    here = path(results, made)
    kept = opened(here) if here.exists() else {"workloads": {}}
    if made["commit"] != kept.get("made", {}).get("commit") and not only:
        kept = {"workloads": {}}        # measurements of one code only
    names = [only] if only else [*WORKLOADS, "growth"]
    for i, name in enumerate(names):
        say(f"» {i + 1}/{len(names)} {name}")
        command = [sys.executable, "-m", "fedlib.probes.bench", name, device]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            say(f"{name}: not measured ({lines[-1]})")
            continue
        found = json.loads(done.stdout.splitlines()[-1])
        kept |= {"growth": found} if name == "growth" else {"workloads": kept["workloads"] | {name: found}}
        write_bytes(here, (json.dumps(kept | {"made": made}, indent=1) + "\n").encode())
    return here


def lines(workloads: dict) -> list[str]:
    """The measurements as lines of text."""
    said = [f"{'workload':<38} {'ours':>8} {'floor':>8} {'plain':>8}  over the floor  plain / ours  at once"]
    for found in workloads.values():
        seconds = " ".join(f"{found['seconds'][k]:7.3f}s" for k in WAYS)
        said.append(f"{found['title']:<38} {seconds}  {found['overhead']:+14.0%}  {found['gain']:12.2f}  "
                    f"{found['stack']:7d}")
    return said


def read(results: Path) -> dict[str, dict]:
    """hardware -> what was measured there."""
    return {f["made"]["hardware"]: f for f in map(opened, sorted((Path(results) / "bench").glob("*.bench")))}


def opened(here: Path) -> dict:
    """One measurement. UserError: the file holds something else."""
    times = {"title": str, "seconds": {"ours": float, "floor": float, "plain": float}, "overhead": float, "gain": float,
             "stack": int}
    try:
        return schema.check(schema.parsed(here.read_text()), {"made": {"hardware": str}, "workloads": {str: times}})
    except (OSError, ValueError) as error:
        raise UserError(f"{here} is not a measurement ({error}); delete it and measure again") from error


if __name__ == "__main__":
    try:
        found = growth(sys.argv[2]) if sys.argv[1] == "growth" else measure(*sys.argv[1:3])
    except UserError as error:
        sys.exit(str(error))
    print(json.dumps(found))
