"""Runs from a file, one after the other in each of some processes: needs torch, numpy and safetensors, no more.

    fedlib campaign workflow/gpu.toml --write queue.json        where the tables are: every run of them, in order
    python -m fedlib.engine.queue queue.json --device cuda --jobs 6 --minutes 8

Stopped by its time or killed, the same command goes on where it was: each run has a lock and a checkpoint.
"""
import argparse
import json
import multiprocessing
import time
from pathlib import Path

import torch

from fedlib.core import machine, schema
from fedlib.core.errors import UserError
from fedlib.core.files import Busy, write_bytes
from fedlib.engine import loop, stack
from fedlib.engine.run import Run, planned


def write(runs: list[Run], path: Path):
    """Keep the runs, each once, in their order."""
    write_bytes(path, json.dumps({"runs": list({r.digest: r.spec for r in runs}.values())}, indent=1).encode())


def read(path: Path) -> list[Run]:
    """The runs of a file. UserError: it is none, or another version of fedlib wrote it."""
    try:
        return [planned(spec) for spec in schema.check(schema.parsed(Path(path).read_text()), {"runs": [dict]})["runs"]]
    except (OSError, ValueError) as error:
        raise UserError(f"{path} holds no runs ({error})") from error


def work(path: Path, results: Path, device: str, deadline: float | None, together: str | int = 1,
         number: int = 0, finish: bool = False, failed=None):
    """Train what nobody has trained or trains, in the file's order, until all is done or the time is over.

    finish: begin nothing that would not end in time if it took as long as the longest so far. failed: a flag for each
    run that all workers share: what failed for one of them would fail for the next.
    """
    torch.set_num_threads(1)
    longest = 0.0
    if parent := multiprocessing.parent_process():
        machine.end_with_parent(parent.sentinel)
    runs = read(path)
    failed = [False] * len(runs) if failed is None else failed
    for i, run in enumerate(runs):
        said = f"{run.method} {run.data.name} seed {run.seed} {run.digest}"
        if failed[i] or run.path(results).exists():
            continue
        start = time.monotonic()
        if finish and deadline and start + longest > deadline:
            return print(f"[{number}] no time for another", flush=True)
        try:
            loop.train(run, results, device, deadline=deadline, stack=together)
            longest = max(longest, time.monotonic() - start)
            print(f"[{number}] done: {said}", flush=True)
        except Busy:
            continue
        except loop.OutOfTime as stop:
            return print(f"[{number}] {said}: {stop}", flush=True)
        except Exception as error:      # one run that fails must not end the others
            failed[i] = True
            print(f"[{number}] failed: {said}: {error}", flush=True)


def main(words: list[str] | None = None) -> int:
    """0: every run has a record; 3: some are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="what `fedlib campaign --write` wrote")
    parser.add_argument("--results", type=Path, default=Path("results"), help="where records go [results]")
    parser.add_argument("--device", default="cpu", help="cpu, or cuda: jobs share all of them [cpu]")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once [1]")
    parser.add_argument("--minutes", type=float, help="stop cleanly after so many; what is left goes on another time")
    parser.add_argument("--stack", type=stack.asked, help="clients that train at once: auto, 1, 20 [1; auto on a GPU]")
    parser.add_argument("--finish", action="store_true", help="begin nothing that would not end in time: for machines "
                        "whose checkpoints do not stay")
    asked = parser.parse_args(words)
    together = asked.stack or stack.usual(asked.device)
    runs, places = read(asked.file), machine.places(asked.device)
    machine.check_device(asked.device)
    deadline = time.monotonic() + 60 * asked.minutes if asked.minutes else None
    context = multiprocessing.get_context("spawn")
    failed = context.RawArray("b", len(runs))
    every = [context.Process(target=work, args=(asked.file, asked.results, places[i % len(places)], deadline, together,
                                               i, asked.finish, failed))
             for i in range(asked.jobs)]
    for process in every:
        process.start()
    for process in every:
        process.join()
    left = [r for r in runs if not r.path(asked.results).exists()]
    print(f"{len(runs) - len(left)} of {len(runs)} runs have records in {asked.results}", flush=True)
    return 3 if left else 0


if __name__ == "__main__":
    raise SystemExit(main())
