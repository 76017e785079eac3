"""Processes of one run that are killed, or race: a program of its own, because it forks.

    python killed_runs.py random FOLDER KILLS       kill at random moments, then let it end
    python killed_runs.py each FOLDER KIND          kill at the first, second, ... operation on a file
    python killed_runs.py race FOLDER TIMES         four processes begin at once

It prints what it saw as JSON.
"""
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

import conftest
from safetensors import safe_open

from fedlib.core import schema
from fedlib.core.files import Busy
from fedlib.engine import loop
from fedlib.probes import privacy


def short(method="FedDyn", rounds=2):
    """A run whose rounds take milliseconds; its server and clients keep a state."""
    return conftest.small_run(method, net="linear", data={"name": "tiny_features", "clients": ()}, rounds=rounds)


def forked(call) -> int:
    """A process that calls; it ends with 0, 3 (another one has the run) or 1."""
    pid = os.fork()
    if pid:
        return pid
    try:
        call()
        os._exit(0)
    except Busy:
        os._exit(3)
    except BaseException:
        traceback.print_exc()
    os._exit(1)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def at_random(folder: Path, kills: int) -> dict:
    """Some rounds, then a part of one, then SIGKILL; where the checkpoint is after each.

    A process gets leave for each round, so that it is not far ahead where this one is late on a busy machine.
    """
    run, draws, seen, last = short(rounds=kills + 10), random.Random(0), [], 0.02
    path = run.path(folder)
    while len(seen) < kills:
        (done, tell), (leave, give), wait = os.pipe(), os.pipe(), draws.choice([0, 0, 1])
        pid = forked(lambda tell=tell, leave=leave: loop.train(
            run, folder, say=lambda e: (os.write(tell, b"."), os.read(leave, 1))))
        if wait:
            os.read(done, 1)
            os.write(give, b".")
        time.sleep(draws.uniform(0, last))
        os.kill(pid, signal.SIGKILL)
        for end in (done, tell, leave, give):
            os.close(end)
        if ended(pid) != -signal.SIGKILL:
            break
        seen.append(progress(path.with_suffix(".partial")))
        last = 0.02 + 0.001 * len(seen)
        assert not path.exists(), "a record of a run that is not done"
    loop.train(run, folder)
    return {"kills": len(seen), "progress": seen}


def progress(partial: Path) -> int:
    """The last round that a checkpoint holds; it can always be read."""
    if not partial.exists():
        return 0
    with safe_open(partial, "pt") as file:
        return schema.parsed(file.metadata()["about"])["rounds"][-1]["round"]


def at_each(folder: Path, kind: str) -> dict:
    """Kill before each operation on a file below the folder, and in the middle of each write; then run it again."""
    run, left = short(), []
    for number in range(1, 1000):
        place = folder / str(number)
        pid = forked(lambda n=number, p=place: (killed_at(n, p), collect(run, p, kind)))
        if (code := ended(pid)) == 0:
            return {"killed": number - 1, "left": left}
        assert code == -signal.SIGKILL, code
        collect(run, place, kind)
        left.append(sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file()))


def collect(run, place: Path, kind: str):
    privacy.collect(run, place) if kind == "budget" else loop.train(run, place)


def killed_at(number: int, place: Path):
    """From now on this process kills itself at its so-manieth operation below a folder."""
    count, sync = [0], os.fsync

    def one_more(file=None):
        count[0] += 1
        if count[0] == number:
            if file is not None:
                os.ftruncate(file, os.fstat(file).st_size // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event, args):
        if event in ("open", "os.rename", "os.remove", "os.mkdir") and str(args[0]).startswith(str(place)):
            one_more()

    def fsync(file):
        one_more(file)
        sync(file)
    os.fsync = fsync
    sys.addaudithook(hook)


def race(folder: Path, times: int) -> dict:
    """Four processes for the same run, begun at once; how they ended, and what is left."""
    run, codes, left = short(), [], []
    for number in range(times):
        place = folder / str(number)
        begin = time.monotonic() + 0.05
        pids = [forked(lambda: (time.sleep(max(0, begin - time.monotonic())), loop.train(run, place)))  # noqa: B023
                for _ in range(4)]
        codes.append(sorted(map(ended, pids)))
        left.append(sorted(p.relative_to(place).as_posix() for p in place.rglob("*") if p.is_file()))
    return {"codes": codes, "left": left}


if __name__ == "__main__":
    loop.federate(short().data, 0)        # what is prepared here need not be in every process
    what, where, how = sys.argv[1:]
    found = {"random": lambda: at_random(Path(where), int(how)), "each": lambda: at_each(Path(where), how),
             "race": lambda: race(Path(where), int(how))}[what]()
    print(json.dumps(found))
