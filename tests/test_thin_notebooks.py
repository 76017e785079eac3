"""A notebook tells the story, fedlib computes: little hidden code, short set-up cells, no helper in two notebooks."""
import ast
import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*/*.ipynb"))
HIDING = {"hide-input", "remove-input", "hide-cell", "remove-cell"}
SHARED = 6      # lines that two notebooks may not have in common


def cells(path: Path) -> list[tuple[list[str], list[str]]]:
    """(tags, lines of code without blank ones, comments and IPython's commands) of each code cell."""
    found = []
    for cell in json.loads(path.read_text())["cells"]:
        if cell["cell_type"] == "code":
            lines = [re.sub(r"^(\s*)[!%].*", r"\1pass", x) for x in "".join(cell["source"]).split("\n")]
            lines = [x.rstrip() for x in lines if x.strip() and not x.strip().startswith("#")]
            found.append((cell["metadata"].get("tags", []), lines))
    return found


def counted(path: Path) -> tuple[int, int]:
    """Lines of code, and how many of them the page hides."""
    every = cells(path)
    return sum(len(lines) for _, lines in every), sum(len(lines) for tags, lines in every if HIDING & set(tags))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_at_most_a_quarter_of_a_notebooks_code_is_hidden(path):
    code, hidden = counted(path)
    assert hidden <= code / 4, f"{hidden} of {code} lines are hidden"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_set_up_cell_has_at_most_8_lines(path):
    """The cell after the parameters, where there are any, and every cell that makes a page."""
    every, last = cells(path), []
    for tags, lines in every:
        if "parameters" in last or any(re.search(r"\bPage\(", line) for line in lines):
            assert len(lines) <= 8, "\n".join(lines)
        last = tags


def unseen_outputs(body: list, inside: bool = False):
    """Calls that make something to look at and stand where IPython does not show it: in a branch or a loop."""
    for line in body:
        for part in (getattr(line, "body", []), getattr(line, "orelse", [])):
            yield from unseen_outputs(part, True) if isinstance(line, ast.If | ast.For) else ()
        if inside and isinstance(line, ast.Expr) and isinstance(line.value, ast.Call):
            called = ast.unparse(line.value.func)
            if called.startswith(("text.", "plots.")) and called not in ("text.titled", "text.show_each"):
                yield ast.unparse(line)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_what_a_cell_makes_is_shown(path):
    """Two pages made a table below an `if`, and showed none."""
    assert [lost for _, lines in cells(path) for lost in unseen_outputs(ast.parse("\n".join(lines)).body)] == []


def test_no_function_stands_in_two_notebooks():
    """Hooks of a method's class have the library's names."""
    places = defaultdict(set)
    for path in NOTEBOOKS:
        for _, lines in cells(path):
            tree = ast.parse("\n".join(lines))
            hooks = {id(node) for cls in ast.walk(tree) if isinstance(cls, ast.ClassDef) for node in cls.body}
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef) and id(node) not in hooks:
                    places[node.name].add(f"{path.parent.name}/{path.stem}")
    assert not {name: some for name, some in places.items() if len(some) > 1}


def test_no_six_lines_stand_in_two_notebooks():
    """But for the cells that install fedlib and name the parameters."""
    places = defaultdict(set)
    for path in NOTEBOOKS:
        for tags, lines in cells(path):
            if not {"install", "parameters"} & set(tags):
                code = [line.strip() for line in lines]
                for i in range(len(code) - SHARED + 1):
                    places["\n".join(code[i:i + SHARED])].add(f"{path.parent.name}/{path.stem}")
    assert not {run: some for run, some in places.items() if len(some) > 1}


def test_all_together(capsys):
    """The count is printed; the notebooks had 10,534 lines, of which 71 % were hidden."""
    code, hidden = (sum(n) for n in zip(*map(counted, NOTEBOOKS), strict=True))
    with capsys.disabled():
        print(f"\nnotebooks: {code} lines of code, {hidden / code:.0%} hidden")
    assert hidden <= code / 4
