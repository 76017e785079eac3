"""The machine and the software that made a number."""
import datetime
import math
import os
import platform
import resource
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import torch

from fedlib import __version__
from fedlib.core.errors import UserError, first_line


def described(device) -> dict:
    """Code, software and hardware, and the time."""
    hardware = torch.cuda.get_device_name(device) if str(device).startswith("cuda") else cpu()
    return {"fedlib": __version__, "commit": commit(), "torch": torch.__version__,
            "python": platform.python_version(), "device": str(device), "hardware": hardware,
            "threads": torch.get_num_threads(), "deterministic": deterministic(device),
            **({"graphs": True} if graphs(device) else {}),
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")}


def settle(device, tf32: bool = False):
    """On a GPU: products in TF32 or not, and sums in one order, so that a run comes out the same again.

    Some kernels have no such order, and some are slower in it: FEDLIB_DETERMINISTIC=0 leaves the order free, and `made`
    says so. torch takes TF32 for convolutions unless it is told not to.
    """
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    if not str(device).startswith("cpu"):
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")     # read when the first product is computed
        torch.use_deterministic_algorithms(deterministic(device), warn_only=True)
        torch.backends.cudnn.benchmark = False
        torch.utils.deterministic.fill_uninitialized_memory = False     # a launch for each new tensor, and none is read


def deterministic(device) -> bool:
    """Are sums computed in one order? Always on a CPU with a fixed number of threads."""
    return str(device).startswith("cpu") or os.environ.get("FEDLIB_DETERMINISTIC", "1") != "0"


def graphs(device) -> bool:
    """On a GPU where FEDLIB_GRAPHS is 1: passes through a net's body are replayed (fedlib.engine.graphs)."""
    return str(device).startswith("cuda") and os.environ.get("FEDLIB_GRAPHS") == "1"


def channels_last(precision: str, device) -> bool:
    """Where channels beside each other make convolutions faster: in bfloat16, half the time on processors that have it,
    and in TF32 on a GPU, with graphs three quarters of the time.
    """
    return precision == "bf16" or precision == "tf32" and str(device).startswith("cuda")


def slow(precision: str, device) -> str:
    """A line where the precision costs time instead of saving it, else nothing.

    A processor without bfloat16 computes it in software: 98 s a round of ResNet-10 on AVX2, 9.5 s in float32.
    """
    if precision != "bf16" or not str(device).startswith("cpu") or torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return ""
    return "this processor has no instructions for bfloat16: runs in bf16 take several times as long as in float32 here"


def places(device: str) -> list[str]:
    """The devices that a name stands for: "cuda" means every GPU there is."""
    return [f"cuda:{i}" for i in range(torch.cuda.device_count())] if device == "cuda" else [device]


def room(device) -> float:
    """Bytes that data may take on a GPU: half of what is free, for nets and steps want theirs. A CPU is not asked."""
    return torch.cuda.mem_get_info(torch.device(device))[0] / 2 if str(device).startswith("cuda") else math.inf


def size(device) -> float:
    """Bytes of a GPU's memory, whoever uses it. A CPU is not asked."""
    return torch.cuda.mem_get_info(torch.device(device))[1] if str(device).startswith("cuda") else math.inf


def peak(device: str) -> int:
    """Most memory so far in megabytes: that of tensors on a GPU, that of the whole process on a CPU."""
    if str(device).startswith("cuda"):
        return round(torch.cuda.max_memory_allocated(device) / 2**20)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return round(most / (2**20 if sys.platform == "darwin" else 2**10))     # bytes there, kilobytes elsewhere


def commit() -> str:
    """FEDLIB_COMMIT where it is set, for copies that git knows nothing of, or something older; else the commit of this
    code, with "-dirty" when it was changed; "unknown" where git does not track it.
    """
    def git(*words):
        done = subprocess.run(["git", "-C", Path(__file__).parent, *words], capture_output=True, text=True, check=True)
        return done.stdout.strip()
    if named := os.environ.get("FEDLIB_COMMIT"):
        return named
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


def chosen(device: str) -> str:
    """The device that a word stands for: "auto" is "cuda" where there is one, else "cpu"; others stay."""
    return device if device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"


def check_device(device: str):
    """UserError unless torch can use the device."""
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"device '{device}' cannot be used here (try cpu): {first_line(error)}") from error


def end_with_parent(pipe: int):
    """SIGTERM to this process once its parent is gone: the kernel closes a pipe even of one that was killed.

    pipe: nobody writes to it, so it can be read only when its other end is closed.
    """
    def wait():
        select.select([pipe], [], [])
        os.kill(os.getpid(), signal.SIGTERM)
    threading.Thread(target=wait, daemon=True).start()
