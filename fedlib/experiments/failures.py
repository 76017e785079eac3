"""A run that fails leaves a record of it: where, why, and the command that repeats it. The next success removes it."""
import contextlib
import shlex
import traceback
from pathlib import Path

import torch

from fedlib.core import machine, schema
from fedlib.core.errors import UserError
from fedlib.engine import records
from fedlib.engine.loop import Diverged
from fedlib.engine.run import Run

MEMORY, DIVERGED, MISTAKE, BUG, KILLED, UNKNOWN = "memory", "diverged", "mistake", "bug", "killed", "unknown"
FAILURE = {"row": str, "block": str, "seed": int, "kind": str, "why": str, "command": str}      # what readers use


def path(run: Run, results: Path) -> Path:
    """Where the failure of a run lies: beside its log."""
    return Path(results) / ".logs" / f"{run.method}-{run.digest}.failed"


def kind(error: BaseException) -> str:
    """"memory": too little of it; "diverged": a loss is no number; "mistake": of settings, data or disk, said in one
    line; "bug": anything else."""
    if lacked_memory(error):
        return MEMORY
    if isinstance(error, Diverged):
        return DIVERGED
    return MISTAKE if isinstance(error, UserError) else BUG


def lacked_memory(error: BaseException) -> bool:
    """Was there too little memory? On a CPU torch says so in words alone."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)


def command(planned, device: str = "cpu") -> str:
    """What repeats the run."""
    words = ["fedlib", "run", planned.table, "--profile", planned.profile, "--seeds", str(planned.seed), "--only",
             planned.run.digest, "--device", device]
    return shlex.join(words)


def write(planned, error: BaseException | str, results: Path, device: str = "cpu"):
    """Keep what happened; text instead of an exception: the process was killed. On a full disk nothing is kept."""
    text = isinstance(error, str)
    lines = (error if text else str(error) or type(error).__name__).splitlines()
    record = {"row": planned.row, "block": planned.block, "seed": planned.seed,
              "kind": KILLED if text else kind(error), "why": lines[0],
              "trace": [] if text else traceback.format_exception(error), "command": command(planned, device),
              "run": planned.run.spec, "made": machine.described(device)}
    with contextlib.suppress(UserError):        # the failure itself is what the user must see
        records.write_record(path(planned.run, results), record)


def read(planned, results: Path) -> dict | None:
    """The failure of a run; None where there is none. Of a damaged record is left what the plan knows."""
    here = path(planned.run, results)
    try:
        return schema.check(schema.parsed(here.read_text()), FAILURE)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return {"row": planned.row, "block": planned.block, "seed": planned.seed, "kind": UNKNOWN,
                "why": f"{here} is damaged ({error})", "command": command(planned)}


def clear(planned, results: Path):
    """The run succeeded."""
    path(planned.run, results).unlink(missing_ok=True)
