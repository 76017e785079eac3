"""What a step of training is made of: arithmetic, the optimiser, all else; and what stacking clients changes in it."""
import dataclasses
import time

import torch
import torch.nn.functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.flop_counter import FlopCounterMode

from fedlib.probes import bench


def arithmetic(work: bench.Workload) -> tuple[int, int, int]:
    """(steps of a round, FLOP of a step, FLOP of a round): matrix products and convolutions; a product and a sum are 2.

    Counted on two samples; a batch of more has more in proportion.
    """
    few = dataclasses.replace(work, clients=1, samples=2, batch=2, method="FedAvg", passes=1)
    one = bench.Round(few, "cpu", 1)
    x, y = one.ready(2)
    with FlopCounterMode(display=False) as training:
        F.cross_entropy(one.net.train()(x), y).backward()
    with FlopCounterMode(display=False) as body, torch.no_grad():
        one.net.body(x)
    steps, sample = work.clients * -(-work.samples // work.batch), training.get_total_flops() // 2
    again = (work.passes - 1) * work.clients * work.samples * (body.get_total_flops() // 2)
    return steps, work.batch * sample, steps * work.batch * sample + again


def product(n: int = 1024) -> float:
    """FLOP a second of a product of two matrices of n x n: about the best that a processor does."""
    a, b = torch.randn(n, n), torch.randn(n, n)
    return 2 * n**3 / min(bench.clocked(lambda: a @ b, "cpu") for _ in range(10))


class InOptimisers:
    """Seconds inside the steps of all optimisers, while it is open."""

    def __enter__(self):
        self.seconds = 0.0
        self.hooks = [register_optimizer_step_pre_hook(lambda *_: self.add(-1)),
                      register_optimizer_step_post_hook(lambda *_: self.add(1))]
        return self

    def add(self, sign: int):
        self.seconds += sign * time.perf_counter()

    def __exit__(self, *_):
        for hook in self.hooks:
            hook.remove()


def fastest(*calls, device: str = "cpu", turns: int = bench.PAIRS) -> list[tuple[float, float]]:
    """For each call (seconds, those in optimisers): the shortest of some turns after the first, taken in turn."""
    took = [[] for _ in calls]
    for _ in range(1 + turns):
        for call, times in zip(calls, took, strict=True):
            with InOptimisers() as inside:
                whole = bench.clocked(call, device)
            times.append((whole, inside.seconds))
    return [min(times[1:]) for times in took]


def bound(work: bench.Workload, turns: int = bench.PAIRS) -> dict[str, tuple[float, float]]:
    """{way: (seconds of a step, those in the optimiser)} on a CPU, one client after the other."""
    torch.manual_seed(0)
    one, steps = bench.Round(work, "cpu", 1), work.clients * -(-work.samples // work.batch)
    times = fastest(*(getattr(one, way) for way in bench.WAYS), turns=turns)
    return {way: (whole / steps, inside / steps) for way, (whole, inside) in zip(bench.WAYS, times, strict=True)}


def stacked(work: bench.Workload, device: str = "cpu", turns: int = bench.PAIRS) -> dict:
    """A round one after the other and one with all clients at once: microseconds for each step of each client, apart
    for the optimiser and for all else; their ratio; the largest difference of the nets relative to the largest weight.
    """
    rounds, steps = [], work.clients * -(-work.samples // work.batch)
    for together in (1, work.clients):
        torch.manual_seed(0)            # the random head of a workload
        rounds.append(bench.Round(work, device, together))
        for _ in range(2):
            rounds[-1].ours()
    nets = [r.server.global_ for r in rounds]
    far = max(float((v - nets[1][k]).abs().max() / v.abs().max()) for k, v in nets[0].items())
    (a, a_in), (b, b_in) = fastest(*(r.ours for r in rounds), device=device, turns=turns)
    times = {"passes, apart": a - a_in, "passes, stacked": b - b_in, "optimiser, apart": a_in,
             "optimiser, stacked": b_in}
    return {"clients": work.clients, **{k: 1e6 * t / steps for k, t in times.items()}, "apart / stacked": a / b,
            "difference": far}


def megabytes(work: bench.Workload) -> float:
    """Parameters and gradients of a client, and the moments of its optimiser where it has some, in MB."""
    net = bench.Round(dataclasses.replace(work, clients=1, samples=work.batch), "cpu", 1).net
    learned = 4 * sum(p.numel() for p in net.parameters() if p.requires_grad) / 1e6
    return learned * (4 if work.protocol.get("optimiser") == "adamw" else 2)
