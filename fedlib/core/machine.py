"""The machine and the software that made a number."""
import datetime
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import torch

from fedlib import __version__
from fedlib.core.errors import UserError


def described(device) -> dict:
    """Code, software and hardware, and the time."""
    hardware = torch.cuda.get_device_name(device) if str(device).startswith("cuda") else cpu()
    return {"fedlib": __version__, "commit": commit(), "torch": torch.__version__,
            "python": platform.python_version(), "device": str(device), "hardware": hardware,
            "threads": torch.get_num_threads(),
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}


def peak(device: str) -> int:
    """Most memory so far in megabytes: that of tensors on a GPU, that of the whole process on a CPU."""
    if str(device).startswith("cuda"):
        return round(torch.cuda.max_memory_allocated(device) / 2**20)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(most / (2**20 if sys.platform == "darwin" else 2**10))     # bytes there, kilobytes elsewhere


def commit() -> str:
    """The commit of this code, with "-dirty" when it was changed; "unknown" where git does not track it."""
    def git(*words):
        done = subprocess.run(["git", "-C", Path(__file__).parent, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()
    try:
        git("ls-files", "--error-unmatch", Path(__file__).name)     # an environment may lie inside another repository
        return git("describe", "--always", "--dirty")
    except (OSError, subprocess.CalledProcessError):                # no git, or not in a repository
        return "unknown"


def cpu() -> str:
    """The processor: its name, family and model, the instructions torch uses, the number of cores."""
    try:
        lines = (x.split(":", 1) for x in open("/proc/cpuinfo") if ":" in x)
        said = {k.strip(): v.strip() for k, v in lines}
        kind = f"{said['model name']} (family {said['cpu family']}, model {said['model']})"
        return f"{kind}, {torch.backends.cpu.get_cpu_capability()}, {os.cpu_count()} cores"
    except (OSError, KeyError):
        return f"{platform.machine()}, {os.cpu_count()} cores"


def check_device(device: str):
    """UserError unless torch can use the device."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{device}' cannot be used here (try cpu): {str(error).splitlines()[0]}") from error
