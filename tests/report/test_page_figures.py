"""Which rows a figure of a table has in colour, and what it shows where records lack."""
import pandas as pd
import pytest

from fedlib import Page
from fedlib.experiments import tables
from fedlib.report import fedpall, page


def made(ident: str, ours: dict) -> Page:
    """A page with these averages, {block: {row: %}}, instead of records."""
    it = object.__new__(Page)
    it.table = tables.load_table(ident)
    it.rows, it.ran = [row["name"] for row in it.table.rows], list(ours)
    it.titles = {block: content["title"] for block, content in it.table.blocks.items()}
    lines = [(b, s, r, v, 2.0, 3) for b, rows in ours.items() for r, v in rows.items()
             for s in ("avg", *it.table.blocks[b]["columns"])]
    it.cells = pd.DataFrame(lines, columns=["block", "setting", "row", "ours", "half", "n"])
    it.averages = it.cells[it.cells.setting == "avg"]
    return it


def test_few_are_the_papers_own_row_fedavg_and_the_best_other():
    office = {"FedAvg": 40, "FedProx": 50, "FedDyn": 45, "MOON": 41, "MOON, mu = 1": 90, "I2PFL": 30}
    pacs = {"FedAvg": 40, "FedProx": 30, "FedDyn": 60, "MOON": 41, "FPL": 99, "I2PFL": 30}
    assert made("i2pfl/table2", {"office": office}).few() == ["I2PFL", "FedAvg", "FedProx"]
    both = made("i2pfl/table2", {"office": office, "pacs": pacs})
    assert both.few() == ["I2PFL", "FedAvg", "FedDyn"], "FPL was not run on the other"
    assert both.few(block="pacs") == ["I2PFL", "FedAvg", "FPL"]
    assert both.few(["FedAvg", "MOON", "FedDyn", "FedProx"]) == ["FedAvg", "FedProx", "FedDyn", "MOON"], "four are few"


def test_a_variant_of_the_papers_row_is_no_other():
    office = {"FedPall": 70, "FedPall, as printed": 72, "FedAvg": 30, "FedBN": 40, "MOON": 35}
    assert made("fedpall/table1", {"office": office}).few() == ["FedPall", "FedAvg", "FedBN"]


def test_no_records_no_rows():
    empty = made("i2pfl/table2", {})
    assert empty.few() == []


def test_domains_are_a_figure_for_each_block_with_records(monkeypatch):
    shown = []
    monkeypatch.setattr(page, "display", shown.append)
    rows = {"FedAvg": 40, "FedProx": 50, "FedDyn": 45, "MOON": 41, "I2PFL": 30}
    made("i2pfl/table2", {"office": rows}).show_domains({"I2PFL": "ours"})
    figure, = shown
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["FedAvg", "FedProx", "ours", "the 2 others"]
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["caltech", "amazon", "webcam", "dslr"]
    made("i2pfl/table2", {}).show_domains()
    assert "No records" in shown[-1].data


@pytest.mark.parametrize("ran", [3, 8])
def test_a_heat_map_needs_half_of_its_cells_and_a_scale_of_twenty_points(ran):
    weights = (0.1, 0.2, 0.5, 1.0)
    cells = pd.DataFrame([(mu, delta) for mu in weights for delta in weights], columns=["mu", "delta"])
    cells["ours"] = [57.0 + i / 4 if i < ran else float("nan") for i in range(16)]
    cells["n"] = [3 if i < ran else 0 for i in range(16)]
    drawn = fedpall.heat_map(cells)
    if ran == 3:
        assert "57.0 % (μ = 0.1, δ = 0.1)" in drawn.data and drawn.data.count("%") == 3
    else:
        ax = drawn.axes[0]
        assert ax.collections[0].get_clim() == (50, 70)
        assert [t.get_text() for t in ax.texts].count("–") == 8
