"""Pages that read records, executed cell by cell in a fork of this process: seconds each, where a kernel takes ten.

`make test` runs these in the place of nbval, which `make test-all` and the workflow use.
"""
import json
import multiprocessing
import os
import sys

import pytest
from conftest import ROOT

TRAINING = {"concepts", "method", "add_method", "own_data", "machines", "api", "datasets", "cost", "crosschecks"}
PAGES = [p for p in sorted((ROOT / "notebooks").glob("*/*.ipynb")) if not {p.parent.name, p.stem} & TRAINING]


def execute(path, end):
    """In a fork: run all cells; send what went wrong, or nothing."""
    os.environ["MPLBACKEND"] = "agg"
    from IPython.core.interactiveshell import InteractiveShell
    os.chdir(path.parent)
    sys.stdout, shell = open(os.devnull, "w"), InteractiveShell.instance()
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            done = shell.run_cell("".join(cell["source"]), store_history=False, silent=True)
            if not done.success:
                return end.send(f"{cell['id']}: {done.error_in_exec or done.error_before_exec!r}")
    end.send("")


@pytest.mark.parametrize("path", PAGES, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_page_executes(path, request):
    if not request.config.getoption("--quick"):
        pytest.skip("nbval executes it")
    pytest.importorskip("IPython")
    import fedlib.report.page  # noqa: F401  loaded once, before the forks
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=execute, args=(path, there))
    process.start()
    said = here.recv() if here.poll(60) else "it does not end"
    process.kill()
    process.join()
    assert not said, said
