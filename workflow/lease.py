"""Run a command on a GPU of this machine that has room: python workflow/lease.py --per-gpu 2 -- COMMAND ...

A lease is a lock on a file for each place on each GPU, held by the process that the command becomes. The kernel gives
it back when that process ends, however it ends. CUDA_VISIBLE_DEVICES tells the command its GPU. All who use the same
folder of locks share the GPUs; --gpus, else CUDA_VISIBLE_DEVICES, else nvidia-smi says which there are.
"""
import argparse
import fcntl
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LOCKS = Path(tempfile.gettempdir()) / f"gpu-leases-{os.getuid()}"


def gpus(given: str | None) -> list[str]:
    """The ids of the GPUs."""
    named = given or os.environ.get("CUDA_VISIBLE_DEVICES")
    if named:
        return [name.strip() for name in named.split(",") if name.strip()]
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True,
                                text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        sys.exit("lease: no GPU is known here (nvidia-smi finds none): name them with --gpus 0,1")
    return listed.stdout.split()


def take(ids: list[str], places: int, locks: Path) -> tuple[str, int]:
    """(GPU, open file that holds the lease), the emptier GPUs first; waits until there is one."""
    locks.mkdir(parents=True, exist_ok=True)
    while True:
        for place in range(places):
            for gpu in ids:
                file = os.open(locks / f"gpu-{gpu}.{place}.lock", os.O_RDWR | os.O_CREAT)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return gpu, file
                except BlockingIOError:
                    os.close(file)
        time.sleep(0.2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", help="like 0,1")
    parser.add_argument("--per-gpu", type=int, default=1, help="commands on one GPU at the same time")
    parser.add_argument("--locks", type=Path, default=LOCKS)
    parser.add_argument("command", nargs="+")
    asked = parser.parse_args()
    if asked.per_gpu < 1:
        parser.error("--per-gpu is at least 1")
    gpu, file = take(gpus(asked.gpus), asked.per_gpu, asked.locks)
    os.set_inheritable(file, True)
    os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    try:
        os.execvp(asked.command[0], asked.command)
    except OSError as error:
        sys.exit(f"lease: cannot run {asked.command[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
