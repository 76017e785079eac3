"""Packages in one direction: who imports whom, how long the core is, and how soon the command answers."""
import ast
import graphlib
import re
import resource
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from code_lines import code_lines
from conftest import ROOT

ORDER = ("core", "models", "datasets", "methods", "engine", "probes", "experiments", "report", "remote", "cli")
CORE = ("core", "models", "datasets", "engine")
FILES = sorted((ROOT / "fedlib").rglob("*.py"))
READERS = sorted((ROOT / "data_scripts").glob("*.py"))
PURE = {"torch", "numpy", "safetensors"}        # what a machine needs on which something trains
FETCHING, MADE = ("fedlib.datasets.download", "fedlib.datasets.unpack"), "fedlib.datasets.mini_clip_training"
CALLED = {"pillow": "PIL", "scikit-learn": "sklearn", "scikit-image": "skimage", "finch-clust": "finch",
          "open_clip_torch": "open_clip", "grad-cam": "pytorch_grad_cam", "pyyaml": "yaml"}     # in an import


def name_of(path: Path) -> str:
    """fedlib/core/files.py -> fedlib.core.files; a package's name for its __init__.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


def imported(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, module) of every import, those inside of functions too, and of modules imported by name."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            inside = [f"{base}.{alias.name}" for alias in node.names if f"{base}.{alias.name}" in MODULES]
            found += [(node.lineno, name) for name in inside]
            if len(inside) < len(node.names):       # some are not modules of their own
                found.append((node.lineno, base))
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            found += [(node.lineno, first_text(arg)) for arg in node.args[:1]]
    return found


def first_text(node: ast.AST) -> str:
    """What a text, or one with values in it, begins with; "" of anything else."""
    node = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    return node.value.rstrip(".") if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


IMPORTS = {name: imported(ast.parse(path.read_text(encoding="utf-8"))) for name, path in MODULES.items()}


def package(name: str) -> str:
    """fedlib.core.files -> core; "" of fedlib itself, which names the packages and imports none."""
    return (name.split(".") + [""])[1]


def test_every_package_has_its_place():
    found = {package(name) for name in MODULES} - {"", "__main__"}
    assert found == set(ORDER)


@pytest.mark.parametrize("name", MODULES)
def test_imports_go_down(name):
    """From a package to those before it in ORDER, or within it; `fedlib` itself knows them by their names only."""
    own = package(name)
    place = {"": -1, "__main__": len(ORDER)}.get(own, ORDER.index(own) if own in ORDER else None)
    upward = [f"line {line}: {other}" for line, other in IMPORTS[name]
              if other.split(".")[0] == "fedlib" and package(other) in ORDER and ORDER.index(package(other)) > place]
    assert not upward


def test_no_two_files_import_each_other():
    """Not over others either, inside of functions or at the top."""
    graph = {name: {other for _, other in found if other in MODULES and other != "fedlib"}
             for name, found in IMPORTS.items()}
    graphlib.TopologicalSorter(graph).prepare()     # CycleError: the files that do


def test_the_readers_are_known_by_name_in_one_place():
    """fedlib never says data_scripts in an import; what it calls fedlib.readers only the registry knows, as a text."""
    spoken = {name for name, found in IMPORTS.items() for _, other in found if other.split(".")[0] == "data_scripts"}
    known = {name for name, path in MODULES.items() for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
             if isinstance(node, ast.Constant) and isinstance(node.value, str) and "fedlib.readers" in node.value
             and "\n" not in node.value}
    plain = {name for name in MODULES for _, other in IMPORTS[name] if other.startswith("fedlib.readers")}
    assert not spoken and known == {"fedlib.datasets.registry"} and plain <= known


@pytest.mark.parametrize("path", READERS, ids=lambda p: p.stem)
def test_a_reader_imports_fedlib_by_its_own_name(path):
    names = [other for _, other in imported(ast.parse(path.read_text(encoding="utf-8")))]
    own = {p.stem for p in READERS}
    assert not [n for n in names if n.startswith(".") or n.split(".")[0] in own | {"data_scripts"}]
    assert not [n for n in names if n.startswith("fedlib") and package(n) not in (*ORDER[:3], "readers", "cli")]


def test_the_core_has_less_than_3150_lines(capsys):
    """Without what gets and unpacks published files and what made mini_clip's, which training does not need."""
    lines = {part: sum(code_lines(path.read_text(encoding="utf-8")) for name, path in MODULES.items()
                       if package(name) == part and name not in (*FETCHING, MADE)) for part in CORE}
    with capsys.disabled():
        print(f"\nlines of code: {sum(lines.values())} of 3150 ({', '.join(f'{k} {n}' for k, n in lines.items())})")
    assert sum(lines.values()) < 3150


# how soon

def best_of_three(*command) -> tuple[float, str]:
    """(processor seconds of the quickest, what it printed): a busy machine says nothing about the command."""
    def used():
        spent = resource.getrusage(resource.RUSAGE_CHILDREN)
        return spent.ru_utime + spent.ru_stime
    best, out = float("inf"), ""
    for _ in range(3):
        before = used()
        out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
        best = min(best, used() - before)
    return best, out


def test_fedlib_is_imported_in_a_moment_and_loads_no_torch():
    seconds, out = best_of_three(sys.executable, "-c", "import fedlib, sys; print('torch' in sys.modules)")
    assert out == "False\n" and seconds < 0.3


def test_the_command_answers_in_a_moment():
    seconds, out = best_of_three(sys.executable, "-m", "fedlib", "--help")
    assert "Usage" in out and seconds < 0.5


def test_what_trains_needs_torch_numpy_and_safetensors_only():
    """So it runs as it is on a machine that has these three and nothing else of ours."""
    names = [n for n in MODULES if package(n) in (*CORE, "methods") and n not in FETCHING]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = project["dependencies"] + sum(project["optional-dependencies"].values(), [])
    others = {CALLED.get(name, name) for name in (re.match(r"[\w-]+", line)[0] for line in wanted)} - PURE
    program = ("import sys, importlib; importlib.import_module('torch'); "
               f"sys.modules.update(dict.fromkeys({sorted(others)!r})); "       # None: importing it fails
               f"[importlib.import_module(m) for m in {names!r}]")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
