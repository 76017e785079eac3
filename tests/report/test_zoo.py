"""The zoo's pages in words: differences paired by seed, and who is above whom."""
import inspect
import json

import pytest
from conftest import METHOD_NAMES
from small_paper import fill

from fedlib.experiments import tables
from fedlib.methods import METHODS
from fedlib.report import zoo


@pytest.fixture
def planned():
    """The runs of the zoo's table."""
    return tables.load_table("zoo/methods").runs("mini")


def test_differences_are_paired_by_seed(tmp_path, planned):
    given = {"FedAvg": (50, 60, 70), "Local": (40, 41, 42), "Ditto": (52, 61, 73), "FedAMP": (45, 45, 45)}
    fill(tmp_path, planned, lambda p: given[p.row][p.seed] if p.row in given and p.block == "labels" else None)
    gaps = zoo.against(zoo.of_kind("personal"), tmp_path)
    assert list(gaps.method[:4]) == ["FedAvg", "Local", "Ditto", "pFedMe"] and len(gaps) == 2 * 8
    ditto = gaps.iloc[2]
    assert (ditto.accuracy, ditto.FedAvg, ditto.seeds) == (62, 2, 3) and ditto["FedAvg half"] == pytest.approx(2.484138)
    assert gaps.iloc[3].seeds == 0 and gaps.accuracy[8:].isna().all()
    text = zoo.written(gaps)
    assert text.iloc[2]["minus FedAvg"] == "+2.0 ± 2.5" and text.iloc[3]["accuracy"] == "not run"
    assert text.iloc[0]["minus FedAvg"] == "–" and text.iloc[0]["minus Local"] == "+19.0 ± 22.4"
    said = zoo.standing(gaps).splitlines()
    assert said[-2:] == ["- *label skew*: above both: Ditto; above Local only: FedAMP.", "- *domain shift*: not run."]


def test_bold_is_outside_of_both_intervals(tmp_path, planned):
    given = {"FedAvg": (50, 60, 70), "Local": (40, 51, 60), "Ditto": (55, 65, 75.1), "FedAMP": (30, 41, 50)}
    fill(tmp_path, planned, lambda p: given[p.row][p.seed] if p.row in given else None)
    said = zoo.standing(zoo.against(["Ditto", "FedAMP"], tmp_path))
    assert said.count("above both: **Ditto**; above neither: **FedAMP**.") == 2


def test_a_row_that_diverged_on_the_way_has_no_number(tmp_path, planned):
    given = {"FedAvg": (50, 60, 70), "Local": (40, 51, 60), "Ditto": (55, 65, 75.1)}
    fill(tmp_path, planned, lambda p: given[p.row][p.seed] if p.row in given and p.block == "labels" else None)
    path = next(p for p in planned if (p.row, p.block, p.seed) == ("Ditto", "labels", 1)).run.path(tmp_path)
    record = json.loads(path.read_text())
    record["rounds"][0]["train_loss"] = 1e14        # it ends as the others do
    path.write_text(json.dumps(record))
    gaps = zoo.against(["Ditto"], tmp_path)
    assert zoo.written(gaps).iloc[2].tolist() == ["label skew", "Ditto", "diverged", "diverged", "diverged", 3]
    assert "Ditto" not in zoo.standing(gaps) and "diverged on the way" in zoo.doubts(["Ditto"], tmp_path)


def test_what_speaks_against_the_rows_as_evidence(tmp_path, planned):
    assert zoo.doubts(["Ditto"], tmp_path) == ""
    given = {"FedAvg": 50, "Local": 40, "Ditto": 55}
    fill(tmp_path, planned, lambda p: given[p.row] + p.seed if p.row in given and p.block == "labels" else None)
    said = zoo.doubts(["Ditto"], tmp_path).splitlines()
    assert "compared as given, not tuned" in said[-1] and said[-1].startswith("- *label skew*: ")
    assert "domain shift" not in said[-2]


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_every_method_has_an_entry_with_its_equation_settings_limit_and_source(name):
    text = zoo.entry(name)
    assert text.startswith(f"### {name}\n\n```text\n") and f"class {name}" in text and "Limit: " in text
    assert inspect.getdoc(METHODS[name]).splitlines()[0] not in text.split("```python")[1]
