"""What a package defines, as its source says it: signatures, fields and docstrings, for the page of the API."""
import ast
from pathlib import Path

import pandas as pd
from IPython.display import Markdown

import fedlib
from fedlib.report.text import table

ROOT = Path(fedlib.__file__).parent
PACKAGES = ("core", "models", "datasets", "methods", "engine", "probes", "experiments", "report", "remote", "cli")


def names():
    """The names that `fedlib` itself has, and where each is defined."""
    lines = [(f"fedlib.{name}", f"fedlib.{place.partition(':')[0]}") for name, place in fedlib.PUBLIC.items()]
    return table(pd.DataFrame(lines, columns=["name", "from"]), words=True, index=False)


def package(name: str) -> Markdown:
    """Every module of a package, with its public classes and functions."""
    return Markdown("\n\n".join(part for path in modules(name) for part in module(path)))


def modules(name: str) -> list[Path]:
    """The files of a package, those of packages in it too."""
    return sorted((ROOT / name).rglob("*.py"))


def module(path: Path) -> list[str]:
    """A module's name, what it says of itself, and its definitions in the order of the source; [] of an empty file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    dotted = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    found = [part for node in public(tree.body) for part in entry(node)]
    return [f"**`{dotted}`**", fenced(ast.get_docstring(tree)), *found] if tree.body else []


def public(nodes: list) -> list:
    """Classes and functions whose names do not begin with an underscore."""
    return [n for n in nodes if isinstance(n, ast.ClassDef | ast.FunctionDef) and not n.name.startswith("_")]


def entry(node) -> list[str]:
    """A definition and its docstring; of a class also the functions that have one."""
    inner = [n for n in public(node.body) if ast.get_docstring(n)] if isinstance(node, ast.ClassDef) else []
    every = [part for n in (node, *inner) for part in (fenced(header(n), "python"), fenced(ast.get_docstring(n)))]
    return [part for part in every if part]


def header(node) -> str:
    """The first lines of a definition: what a function takes and gives, what fields a class has."""
    if isinstance(node, ast.ClassDef):
        fields = [ast.unparse(n) for n in node.body if isinstance(n, ast.Assign | ast.AnnAssign)]
        bases = ", ".join(map(ast.unparse, node.bases))
        return "\n    ".join([f"class {node.name}" + f"({bases})" * bool(bases) + ":", *fields])
    short = ast.FunctionDef(node.name, node.args, [ast.Expr(ast.Constant(...))], [], node.returns, lineno=0)
    return ast.unparse(short).removesuffix(":\n    ...")


def fenced(text: str | None, language: str = "text") -> str:
    """Text that is shown as it is."""
    return f"````{language}\n{text}\n````" if text else ""
