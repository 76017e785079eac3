"""What FedDEAP's pages say of the committed records, once more from the files."""
import pytest

from fedlib import Page
from fedlib.experiments import tables
from fedlib.report import feddeap

SEEDS = [0, 1, 2]


@pytest.fixture(scope="module")
def page():
    return Page("feddeap/table1", "mini", SEEDS)


def test_minis_table_2_is_table_1_without_clip_zs(page):
    eyes = tables.load_table("feddeap/table2")
    one, two = ({(q.row, q.seed): q.run.digest for q in t.runs("mini", SEEDS)} for t in (page.table, eyes))
    assert two.items() <= one.items() and {r for r, _ in one.keys() - two.keys()} == {"CLIP-zs"}


def test_a_mean_of_table_1_is_that_of_the_records_last_rounds(page):
    last = [r["rounds"][-1]["acc"] for q, r in page.found if q.row == "PromptFL"]
    cell = page.averages.set_index("row").loc["PromptFL"]
    assert cell.n == len(last) == len(SEEDS)
    assert cell.ours == pytest.approx(sum(sum(acc.values()) / len(acc) for acc in last) / len(last))


def test_the_controls_are_the_rows_that_the_paper_does_not_have(page):
    printed = set(page.table.printed.method)
    assert [r for r in page.rows if r not in printed] == ["PromptFL, 32 tokens", "PromptFL, tuned",
                                                          "FedDEAP, as released"]


def test_sketch_in_whole_images():
    """Exercise 1: 779 and 726 of 788 images, 53 of all 2007; a quarter of 6.73 points in the mean."""
    sizes = feddeap.TEST_IMAGES["pacs"]
    assert (round(7.88 * 98.86), round(7.88 * 92.13), sum(sizes.values())) == (779, 726, 2007)
    assert round(100 * 53 / 2007, 1) == 2.6 and round((98.86 - 92.13) / 4, 1) == 1.7
