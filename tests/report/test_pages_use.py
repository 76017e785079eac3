"""What the pages of use tell a reader to write works as it stands there."""
import json
import re

import pytest
from conftest import ROOT

from fedlib import METHODS, Page
from fedlib.experiments import tables


def sources(page: str) -> list[str]:
    return ["".join(c["source"]) for c in json.loads((ROOT / f"notebooks/{page}.ipynb").read_text())["cells"]]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The method of the page, and its table in a folder of papers."""
    cells = sources("use/add_method")
    monkeypatch.setitem(METHODS, "LossWeighted", None)      # taken away after the test
    exec(next(c for c in cells if "class LossWeighted" in c), {"__name__": "mine"})
    text = re.search(r":name: own-table\n(.*?)```", "\n".join(cells), re.S)[1]
    (tmp_path / "mine.toml").write_text(text)
    monkeypatch.setattr(tables, "PAPERS", tmp_path)
    monkeypatch.setenv("FEDLIB_RESULTS", str(tmp_path))


def test_a_table_of_ones_own_plans_what_the_page_says(mine):
    runs = tables.load_table("mine/weights").runs("mini")
    assert len(runs) == 9 and [p.run.settings.get("q") for p in runs[:3]] == [None, 1.0, 0.5]


def test_a_table_of_ones_own_has_a_page_without_printed_numbers(mine):
    page = Page("mine/weights", "mini")
    assert page.rows == ["FedAvg", "LossWeighted", "LossWeighted, q = 0.5"] and page.ran == []
    assert page.cells.printed.isna().all() and page.show() is None
