"""What the pages of use tell a reader to write works as it stands there."""
import json
import re
import sys

import pytest
from conftest import ROOT

from fedlib import METHODS, Page
from fedlib.core.errors import UserError
from fedlib.experiments import tables, tune


def sources(page: str) -> list[str]:
    return ["".join(c["source"]) for c in json.loads((ROOT / f"notebooks/{page}.ipynb").read_text())["cells"]]


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The page's table in a file of one's own, with the method's file beside it."""
    cells = sources("use/add_method")
    (tmp_path / "mine.py").write_text(next(c for c in cells if "class LossWeighted" in c))
    (tmp_path / "mine.toml").write_text(re.search(r":name: own-table\n(.*?)```", "\n".join(cells), re.S)[1])
    monkeypatch.setenv("FEDLIB_RESULTS", str(tmp_path))
    yield f"{tmp_path}/mine.toml/weights"
    METHODS.pop("LossWeighted", None)
    sys.modules.pop("own_mine", None)


def test_a_table_of_ones_own_plans_what_the_page_says(mine):
    runs = tables.load_table(mine).runs("mini")
    assert len(runs) == 9 and [p.run.settings.get("q") for p in runs[:3]] == [None, 1.0, 0.5]


def test_a_table_of_ones_own_has_a_page_without_printed_numbers(mine):
    page = Page(mine, "mini")
    assert page.rows == ["FedAvg", "LossWeighted", "LossWeighted, q = 0.5"] and page.ran == []
    assert page.cells.printed.isna().all() and page.show() is None


def test_what_is_tuned_in_a_table_of_ones_own_stays_beside_it(mine, tmp_path):
    table = tables.load_table(mine)
    choice = {"settings": {}, "protocol": {"lr": 0.1}, "tries": 2, "seeds": [100], "accuracy": 60.0, "given": 50.0}
    tune.keep(table, {"digits.mini": {"FedAvg": choice}})
    assert (tmp_path / "mine.tuned.json").is_file() and mine not in tables.tuned_settings()
    tuned = [p.run for p in tables.load_table(mine).runs("mini") if p.row == "FedAvg, tuned"]
    assert [run.protocol.lr for run in tuned] == [0.1] * 3


def test_a_table_of_ones_own_that_is_not_there_says_so(mine, tmp_path):
    for ident, words in ((f"{tmp_path}/other.toml/weights", "other.toml"), (mine[:-1], "did you mean 'weights'?")):
        with pytest.raises(UserError, match=re.escape(words)):
            tables.load_table(ident)
    (tmp_path / "mine.py").unlink()
    with pytest.raises(UserError, match="mine.py is not there"):
        tables.load_table(mine)
