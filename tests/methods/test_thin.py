"""Methods stay small: few lines each, none of them twice, and not far below FedAvg."""
import ast
import inspect
import statistics
import textwrap
from itertools import combinations
from pathlib import Path

import pytest
from code_lines import code_lines

from fedlib import methods
from fedlib.methods import METHODS, FedAvg

FILES = sorted(Path(methods.__file__).parent.glob("*.py"))


def normalised(node) -> list[str]:
    """The code of a class or function line by line, without docstrings, comments and layout."""
    for part in ast.walk(node):
        if isinstance(part, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(part) is not None:
            part.body = part.body[1:] or [ast.Pass()]
    return [line.strip() for line in ast.unparse(node).splitlines() if line.strip()]


def shared(one: list[str], other: list[str], length: int = 6) -> list[str]:
    """Runs of `length` lines that both have."""
    runs = [{"\n".join(lines[i:i + length]) for i in range(len(lines) - length + 1)} for lines in (one, other)]
    return sorted(runs[0] & runs[1])


def hook_lines(source: str) -> int:
    """Lines of code of a class's functions with their signatures; not its fields, which are read as a table."""
    functions = [f for f in ast.parse(source).body[0].body if isinstance(f, ast.FunctionDef)]
    lines = source.splitlines()
    return sum(code_lines(textwrap.dedent("\n".join(lines[f.lineno - 1:f.end_lineno]))) for f in functions)


def test_lines_are_counted_as_a_reader_would():
    source = 'class A:\n    """One.\n\n    Two.\n    """\n    a: int = 1    # said\n\n    # alone\n' \
             '    def f(self):\n        """Three."""\n        return (1,\n                2)\n'
    assert code_lines(source) == 5      # class, a, def, and the return of two lines
    assert hook_lines(source) == 3


def test_shared_lines_are_found():
    one, other = (normalised(ast.parse(f'class {name}:\n    """{name}."""\n' + "".join(
        f"    {c} = {i}  # {name}\n" for i, c in enumerate(letters))).body[0])
        for name, letters in (("A", "abcdefg"), ("B", "abcdefx")))
    assert len(shared(one, other)) == 1 and not shared(one, other, 7) and one[0] == "class A:"


def test_the_hooks_of_the_median_method_have_at_most_15_lines():
    found = {name: hook_lines(inspect.getsource(cls)) for name, cls in METHODS.items()}
    assert statistics.median(found.values()) <= 15, sorted(found.items(), key=lambda item: item[1])


@pytest.mark.parametrize("name", METHODS)
def test_no_method_has_more_than_60_lines_with_its_fields(name):
    assert code_lines(inspect.getsource(METHODS[name])) <= 60


def test_no_two_methods_share_six_lines():
    """Classes, the unregistered bases among them, and the free functions of all files."""
    nodes = [(f"{file.name}: {node.name}", normalised(node)) for file in FILES
             for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    assert len(nodes) > len(METHODS)
    twice = {(a, b): runs for (a, one), (b, other) in combinations(nodes, 2) if (runs := shared(one, other))}
    assert not twice


@pytest.mark.parametrize("name", METHODS)
def test_inheritance_is_at_most_three_deep(name):
    """FedAvg, one class that several methods share, the method."""
    line = [cls for cls in METHODS[name].__mro__ if issubclass(cls, FedAvg)]
    assert len(line) <= 3, " < ".join(cls.__name__ for cls in line)
