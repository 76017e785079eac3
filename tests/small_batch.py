"""A small table of short runs for what starts processes of its own, and the command that knows it."""
import os
import subprocess
import sys
from pathlib import Path

import small_paper
from conftest import ROOT

from fedlib.experiments import tables

WITH_FEATURES = """
[tables.f]
title = "With features"
blocks = ["b"]
seeds = [0]
select = "last"
shows = { b = ["scans"] }
rows = [{ name = "FedAvg" }]
"""
# fedlib with this paper; `calls` lists the commands. A file named `slow` says how long each round lasts at least, in
# seconds; with TICKING set a clock ticks at every look: a round takes 5 s and measures 2, one for its checkpoint.
COMMAND = """
import itertools, os, pathlib, sys, time, types
sys.path.insert(0, {tests!r})
import conftest
from fedlib import cli
from fedlib.engine import loop
from fedlib.experiments import batch, tables
tables.PAPERS = pathlib.Path({papers!r})
if os.environ.get("TICKING"):
    loop.time = batch.time = types.SimpleNamespace(monotonic=itertools.count(1).__next__)
with open(pathlib.Path({papers!r}, "calls"), "a") as calls:
    print(*sys.argv[1:], file=calls)
slow, checkpoint = pathlib.Path({papers!r}, "slow"), loop.checkpoint
def slowly(*args):
    checkpoint(*args)
    time.sleep(float(slow.read_text()) if slow.exists() else 0)
loop.checkpoint = slowly
sys.exit(cli.call(sys.argv[1:]))
"""


class Small:
    """The folder to work in, the command, the runs of the table."""

    def __init__(self, tmp_path: Path, monkeypatch, rounds: int = 4, lr: float = 0.1):
        self.papers, self.folder, self.results = tmp_path / "papers", tmp_path / "repository", tmp_path / "r"
        self.folder.mkdir()
        rows = f'{{ name = "FedAvg" }}, {{ name = "FedProx", protocol = {{ lr = {lr} }} }}'
        text = small_paper.content(rows, (0, 1), f"rounds = {rounds}, lr = 0.05", WITH_FEATURES)
        small_paper.use(tmp_path, monkeypatch, text)
        program = tmp_path / "program.py"
        program.write_text(COMMAND.format(tests=str(ROOT / "tests"), papers=str(self.papers)))
        self.fedlib = f"{sys.executable} {program}"
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        for name in ("workflow", "book", "results"):
            (self.folder / name).symlink_to(ROOT / name)

    def runs(self, table="small/t"):
        """Those of the rows, then those of the constant answer: one for each seed."""
        found = tables.load_table(table)
        return found.runs("mini") + found.references("mini")

    def command(self, *options, config=(), where="laptop") -> list[str]:
        """Snakemake, told of the table by --config."""
        return [sys.executable, "-m", "snakemake", "-s", "workflow/Snakefile", "--profile",
                f"workflow/profiles/{where}", *map(str, options), "--config", f"fedlib={self.fedlib}",
                f"results={self.results}", *(config or ["table=small/t"]), "profile=mini", f"where={where}"]

    def snakemake(self, *options, config=(), where="laptop", **env) -> subprocess.CompletedProcess:
        """Its output is in stdout, all of it."""
        return subprocess.run(self.command(*options, config=config, where=where), cwd=self.folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=os.environ | env, timeout=280)
