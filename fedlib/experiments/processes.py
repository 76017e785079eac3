"""A process ends what it started, however it is told to end."""
import os
import signal
import threading
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def through_finally():
    """SIGTERM and SIGHUP leave the block as Ctrl+C does, so that what it started is ended; exit code 128 + number.

    What someone else handles or ignores (nohup) stays as it is; so do threads, which get no signals.
    """
    def end(number, frame):
        raise SystemExit(128 + number)
    mine = [s for s in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(s) == signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        mine = []
    for number in mine:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def processor_seconds(pid: int) -> float | None:
    """What a process has used of the processors; None where the kernel does not tell."""
    try:
        numbers = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return (int(numbers[11]) + int(numbers[12])) / os.sysconf("SC_CLK_TCK")
