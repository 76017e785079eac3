"""What every concept page has: a picture and aims first, questions that are truly checked, levels, further reading."""
import ast
import json
import re

import pytest
import torch
from conftest import ROOT, small_run

from fedlib import Simulation
from fedlib.report import lessons

PAGES = {p.stem: json.loads(p.read_text())["cells"] for p in sorted((ROOT / "notebooks/concepts").glob("*.ipynb"))}
LEVEL = re.compile(r"^\*\*(\d+)\.\*\* \*(Easy|Medium|Hard)\.\* ", re.M)
ANSWER = re.compile(r":class: dropdown\n+`([^`]+)`")
DOTS = re.compile(r"(?<!\.)\.\.\.(?!\.)")


def source(cell: dict) -> str:
    return "".join(cell["source"])


def tags(cell: dict) -> list[str]:
    return cell["metadata"].get("tags", [])


QUESTIONS = [pytest.param(cells, i, id=f"{page}/{cells[i]['id']}")
             for page, cells in PAGES.items() for i, cell in enumerate(cells) if "self-check" in tags(cell)]


def asked(cells: list[dict], i: int, answer: str | None = None):
    """Run a question's cell, with an answer instead of its dots, and the check below it."""
    names = {}
    for cell in cells[:i]:
        if cell["id"] == "imports":
            nodes = [n for n in ast.parse(source(cell)).body if isinstance(n, ast.Import | ast.ImportFrom)]
            exec(compile(ast.Module(nodes, []), "imports", "exec"), names)
    question = source(cells[i - 1])
    assert len(DOTS.findall(question)) == 1
    exec(question if answer is None else DOTS.sub(lambda _: f"({answer})", question), names)
    exec(source(cells[i]), names)


@pytest.mark.parametrize(("cells", "i"), QUESTIONS)
def test_a_question_is_checked(cells, i, capsys):
    """As it stands, with the answer that the page gives, and with a wrong one."""
    asked(cells, i)
    assert "Not answered yet" in capsys.readouterr().out
    asked(cells, i, ANSWER.search(source(cells[i + 1]))[1])
    assert capsys.readouterr().out == "Right.\n"
    with pytest.raises(AssertionError, match=r"\w"):      # with a hint
        asked(cells, i, cells[i]["metadata"]["wrong"])


def test_answers_are_numbers_tensors_or_words():
    assert lessons.answered(2.0, 2) and lessons.answered(torch.ones(2), torch.ones(2))
    assert lessons.answered({"a"}, {"a"}) and lessons.answered([1.0, 2.0], torch.tensor([1.0, 2.0]))
    assert not lessons.answered(2.1, 2) and not lessons.answered(torch.ones(1), torch.ones(2))
    assert not lessons.answered("a", "b")


def test_a_result_says_from_how_many_seeds_it_is():
    one = Simulation(small_run())
    assert f"<b>One seed</b> ({one.run.seed})" in lessons.seeds(one, one).data
    assert lessons.seeds(0, 1, 2).data == '<p class="seeds">Mean of 3 seeds.</p>'


@pytest.mark.parametrize("page", PAGES)
def test_a_page_begins_with_a_picture_and_its_aims(page):
    cells = PAGES[page]
    assert [c["metadata"]["mystnb"]["image"]["alt"] != "" for c in cells if "opening" in tags(c)] == [True]
    aims = source(cells[1])
    assert aims.startswith("```{admonition} After this page you can") and aims.count("\n- ") >= 3
    assert re.search(r"^\*\*Time:\*\* .+ \*\*Before:\*\* ", aims, re.M)


@pytest.mark.parametrize("page", PAGES)
def test_a_page_ends_with_what_to_remember_questions_exercises_and_reading(page):
    text = "\n\n".join(source(c) for c in PAGES[page])
    order = [text.index(part) for part in ("```{admonition} Remember", "\n## Check yourself", "\n## Exercises",
                                           "\n## Further reading")]
    assert order == sorted(order)
    assert sum("self-check" in tags(c) for c in PAGES[page]) == 3
    exercises, reading = text[order[2]:order[3]], text[order[3]:]
    levels = LEVEL.findall(exercises)
    assert [int(n) for n, _ in levels] == list(range(1, exercises.count("{admonition} Solution") + 1))
    assert len({level for _, level in levels}) >= 2
    works = re.findall(r"^- \{cite\}`\w+`: .+", reading, re.M)
    assert len(works) >= 3 and reading.count("\n- ") == len(works)


def test_files_are_numbered_in_the_order_of_the_contents():
    toc = (ROOT / "book/_toc.yml").read_text()
    files = re.findall(r"notebooks/concepts/((\d\d)_\w+)", toc)
    assert [int(number) for _, number in files] == list(range(1, len(PAGES) + 1))
