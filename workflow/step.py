"""Run one command as a named step: the person sees its name, progress and time; its output goes to a log file.

    python workflow/step.py "Install" --progress '^Collecting (\\S+)' -- pip install ...

On a terminal one line is kept up to date in place; elsewhere a line is printed at the start, one every half minute, and
one at the end. A line of the command's output that matches --progress (by default: starts with "» ") is its progress.
Lines that match --show are printed when the command has ended. When it fails, the last lines of its output are printed,
the log file is named, and its exit code is returned. Standard library only: this runs before anything is installed.
"""
import argparse
import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path

LOGS = Path("build/logs")
EVERY = 30.0  # seconds between two lines where there is no terminal
TAIL = 25


def clock(seconds: float) -> str:
    minutes, s = divmod(int(seconds), 60)
    return f"{minutes}:{s:02d}"


def bar(text: str) -> str:
    """A small bar in front of a progress text that counts ('3/10') or names a share ('30%'); else the text alone."""
    if m := re.search(r"\b(\d+)/(\d+)\b", text):
        share = int(m[1]) / max(int(m[2]), 1)
    elif m := re.search(r"\b(\d+)%", text):
        share = int(m[1]) / 100
    else:
        return text
    full = round(10 * min(share, 1.0))
    return "█" * full + "░" * (10 - full) + " " + text


class Output(threading.Thread):
    """Reads the command's output: all of it to the log, the latest progress, the lines to show, the last lines."""

    def __init__(self, stream, log, progress: str, show: str | None):
        super().__init__(daemon=True)
        self.stream, self.log = stream, log
        self.pattern, self.to_show = re.compile(progress), re.compile(show) if show else None
        self.progress, self.shown, self.tail, self.error = "", [], deque(maxlen=TAIL), None

    def run(self):
        for line in self.stream:
            line = line.rstrip("\n")
            self.tail.append(line)
            if m := self.pattern.search(line):
                self.progress = (m[1] if m.re.groups else m[0]).strip()
            if self.to_show and self.to_show.search(line):
                self.shown.append(line)
            try:
                self.log.write(line + "\n")
            except OSError as error:  # keep reading: a full pipe would stop the command
                self.error = error


class Display:
    """What the person sees while the command runs."""

    def __init__(self, name: str):
        self.name, self.live = name, sys.stdout.isatty()
        self.start = self.last = time.monotonic()

    def say(self, text: str):
        print(f"{self.name}: {text}", flush=True)

    def begin(self, log: Path):
        if not self.live:
            self.say(f"started (output in {log})")

    def tick(self, progress: str):
        now = time.monotonic()
        if self.live:
            line = f"{self.name} {clock(now - self.start)} {bar(progress)}"
            sys.stdout.write("\r\x1b[K" + line[: shutil.get_terminal_size().columns - 1])
            sys.stdout.flush()
        elif now - self.last >= EVERY:
            self.last = now
            self.say(f"{clock(now - self.start)} {bar(progress)}".rstrip())

    def end(self, how: str):
        if self.live:
            sys.stdout.write("\r\x1b[K")
        self.say(f"{how} {clock(time.monotonic() - self.start)}")


def stop(process):
    """Ask the command to end; insist after ten seconds."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def interrupt(*_):
    raise KeyboardInterrupt


def end_with_parent():
    """In the command's process, before it starts: Linux ends it when this one was killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def run(name: str, command: list[str], progress: str, show: str | None) -> int:
    parent = os.getppid()
    path = LOGS / (re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") + ".log")
    try:
        LOGS.mkdir(parents=True, exist_ok=True)
        log = path.open("w", encoding="utf-8", buffering=1)
    except OSError as error:
        print(f"{name}: cannot write {path}: {error.strerror}", file=sys.stderr)
        return 1
    display = Display(name)
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            encoding="utf-8", errors="replace", env=os.environ | {"PYTHONUNBUFFERED": "1"}, preexec_fn=end_with_parent)
    except OSError as error:
        print(f"{name}: cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    output = Output(process.stdout, log, progress, show)
    output.start()
    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:  # nohup ignores it
        signal.signal(signal.SIGHUP, interrupt)
    try:
        display.begin(path)
        while process.poll() is None:
            if os.getppid() != parent:  # make was killed
                raise KeyboardInterrupt
            display.tick(output.progress)
            time.sleep(0.2)
    except KeyboardInterrupt:
        stop(process)
        display.end("stopped after")
        return 130
    output.join(5)  # not longer: a process that the command left behind may hold the pipe open
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    display.end("done in" if code == 0 else f"FAILED (exit code {code}) after")
    if code:
        print("\n".join(output.tail), file=sys.stderr)
        print(f"{name} failed; its whole output is in {path}", file=sys.stderr, flush=True)
    for line in output.shown:
        print(line, flush=True)
    if output.error:
        print(f"{name}: the log {path} is not complete: {output.error.strerror}", file=sys.stderr)
    return code


def main(arguments: list[str]) -> int:
    if "--" not in arguments or arguments.index("--") == len(arguments) - 1:
        print('usage: step.py "Step name" [--progress REGEX] [--show REGEX] -- command ...', file=sys.stderr)
        return 2
    cut = arguments.index("--")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--progress", default="^» (.*)", metavar="REGEX", help="lines that tell how far it is")
    parser.add_argument("--show", metavar="REGEX", help="lines to print when it has ended")
    options = parser.parse_args(arguments[:cut])
    sys.stdout.reconfigure(errors="replace")
    return run(options.name, arguments[cut + 1:], options.progress, options.show)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
