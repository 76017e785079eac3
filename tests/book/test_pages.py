"""Pages that read records, executed cell by cell in a fork of this process: seconds each, where a kernel takes ten.

`make test` executes each as it stands, which nbval does in `make test-all`; there the pages of tables are executed with
the profiles that they do not open with: mini has other columns, paper may have no records at all.
"""
import json
import multiprocessing
import os
import re
import sys

import pytest
from conftest import ROOT

from fedlib.experiments import tables

LOADED = ["IPython", "scipy.stats", "seaborn", "sklearn.manifold", "torch._dynamo", "fedlib.experiments.batch",
          "fedlib.report.page", "fedlib.report.plots", "fedlib.report.zoo"]
TRAINING = {"concepts", "method", "add_method", "own_data", "own_folder", "hospitals", "machines",
            "api", "datasets", "cost", "crosschecks"}
PAGES = [p for p in sorted((ROOT / "notebooks").glob("*/*.ipynb")) if not {p.parent.name, p.stem} & TRAINING]
OPENS_WITH = {p: re.search(r'"profile = \\"(\w+)', p.read_text()) for p in PAGES}
OTHERS = [(p, profile) for p in PAGES for profile in ("mini", "paper")
          if p.parent.name in tables.papers() and OPENS_WITH[p] and OPENS_WITH[p][1] != profile]


def execute(path, given, end):
    """In a fork: run all cells, `given` after the parameters; send what went wrong, or nothing."""
    os.environ["MPLBACKEND"] = "agg"
    from IPython.core.interactiveshell import InteractiveShell
    os.chdir(path.parent)
    sys.stdout, shell, wrong = open(os.devnull, "w"), InteractiveShell.instance(), []
    shell.showtraceback = lambda *args, **more: wrong.append(sys.exc_info()[1])     # of a cell, or of what it shows
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            after = given if "parameters" in cell["metadata"].get("tags", []) else ""
            done = shell.run_cell("".join(cell["source"]) + after, store_history=False)
            if wrong or not done.success:
                return end.send(f"{cell['id']}: {wrong or done.error_before_exec!r}")
    end.send("")


def executed(path, given=""):
    for name in LOADED:         # once, before the forks
        pytest.importorskip(name)
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=execute, args=(path, given, there))
    process.start()
    said = here.recv() if here.poll(120) else "it does not end"
    process.kill()
    process.join()
    assert not said, said


@pytest.mark.parametrize("path", PAGES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_page_executes(path, request):
    if not request.config.getoption("--quick"):
        pytest.skip("nbval executes it")
    executed(path)


@pytest.mark.parametrize("path, profile", OTHERS, ids=[f"{p.parent.name}/{p.stem}-{profile}" for p, profile in OTHERS])
def test_a_page_reads_every_profile(path, profile):
    executed(path, f'\nprofile = "{profile}"')
