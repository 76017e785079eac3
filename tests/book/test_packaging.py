"""What stands around the library: dependencies agree, the repository is clean, a step tells what happens."""
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

STEP = [sys.executable, str(ROOT / "workflow/step.py")]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WANTED = [Requirement(r) for r in PROJECT["dependencies"] + sum(PROJECT["optional-dependencies"].values(), [])]
CONDA = {"torch": "pytorch"}  # the names that differ


def tracked() -> list[Path]:
    """The repository's text files: what git tracks, or would."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs the git repository to know which files belong to it")
    paths = [ROOT / line for line in listed.stdout.splitlines() if (ROOT / line).is_file()]
    binary = {".woff", ".woff2", ".ttf", ".png", ".jpg", ".ico", ".safetensors", ".features", ".cams"}
    return [p for p in paths if p.suffix not in binary]


def constraints() -> list[str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def test_every_package_is_installed():
    """`pip install .` left out fedlib.cli, so that the command could not start; an editable install hides it."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]["packages"]
    there = {".".join(p.parent.relative_to(ROOT).parts) for p in (ROOT / "fedlib").rglob("*.py")}
    assert there | {"fedlib.readers"} == set(listed)


def test_conda_users_get_the_same_dependencies():
    listed = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))["dependencies"]
    pip = next(entry["pip"] for entry in listed if isinstance(entry, dict))
    conda = {r.name: r.specifier for r in map(Requirement, [e for e in listed if isinstance(e, str)] + pip)}
    assert conda.pop("python") == Requirement(f"python{PROJECT['requires-python']}").specifier
    conda.pop("pip")
    assert conda == {CONDA.get(r.name, r.name): r.specifier for r in WANTED}


def test_constraints_pin_every_dependency_exactly():
    assert [line for line in constraints() if not re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.]+", line)] == []
    pinned = {canonicalize_name(r.name): r for r in map(Requirement, constraints())}
    assert len(pinned) == len(constraints()), "a package is pinned twice"
    for wanted in WANTED:
        version = next(iter(pinned[canonicalize_name(wanted.name)].specifier)).version
        assert version in wanted.specifier, f"{wanted} does not allow the tested {version}"


def test_ci_runs_every_test_and_what_a_visitor_runs():
    script = ROOT / ".ci/run"
    assert script.stat().st_mode & 0o111, ".ci/run is not executable"
    lines = script.read_text(encoding="utf-8").splitlines()
    made = ['make test-all PART="tests notebooks/data" WITHIN=12', "make reproduce DRAW=1", "make check-book"]
    assert [line for line in lines if line.startswith("make ")] == lines[-3:] == made and "set -euo pipefail" in lines


def test_no_machine_is_named():
    machine = re.compile(r"(?<![\w.~-])/(?:work|farm|home|root|Users|opt|tmp/w)/\w|--(?:extra-)?index-url=?\s*file:|file:///\w")
    named = {}
    for path in tracked():
        if "katex" not in path.parts and (hit := machine.search(path.read_text(encoding="utf-8"))):
            named[path.relative_to(ROOT).as_posix()] = hit[0]
    named.pop("tests/book/test_packaging.py", None)  # holds the pattern itself
    assert named == {}


def test_no_registry_but_the_public_one():
    for name in ("constraints.txt", "environment.yml", "pyproject.toml", "Makefile", ".ci/run"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"index-url|find-links|trusted-host|@\s*(?:file|https?):", text), name


def test_no_tracked_file_is_large():
    sizes = {p.relative_to(ROOT).as_posix(): p.stat().st_size for p in tracked()}
    assert {name: size for name, size in sizes.items() if size > 1_500_000} == {}


def test_notebooks_are_committed_without_outputs():
    notebooks = [p for p in tracked() if p.suffix == ".ipynb"]
    assert notebooks
    for path in notebooks:
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                assert cell["outputs"] == [] and cell["execution_count"] is None, path.relative_to(ROOT)


def step(tmp_path, *arguments):
    return subprocess.run(STEP + list(arguments), cwd=tmp_path, capture_output=True, text=True, timeout=60)


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


def test_a_step_names_itself_and_keeps_the_noise_in_its_log(tmp_path):
    ran = step(tmp_path, "Count to two", *python("print('noise'); print('» 2/2 two')"))
    assert ran.returncode == 0
    assert [line.split(":")[0] for line in ran.stdout.splitlines()] == ["Count to two"] * 2
    assert re.fullmatch(r"Count to two: done in \d+:\d\d", ran.stdout.splitlines()[-1])
    assert (tmp_path / "build/logs/count-to-two.log").read_text(encoding="utf-8") == "noise\n» 2/2 two\n"


def test_a_failed_step_shows_the_end_names_the_log_and_returns_the_code(tmp_path):
    ran = step(tmp_path, "Break", *python("print(*range(100), sep='\\n'); raise SystemExit(7)"))
    assert ran.returncode == 7
    assert "99" in ran.stderr.splitlines() and "50" not in ran.stderr.splitlines()
    assert "build/logs/break.log" in ran.stderr.splitlines()[-1]
    assert "FAILED" in ran.stdout


def test_a_killed_command_fails_its_step(tmp_path):
    ran = step(tmp_path, "Kill", *python("import os; os.kill(os.getpid(), 9)"))
    assert ran.returncode == 137


def test_a_step_shows_the_lines_asked_for(tmp_path):
    ran = step(tmp_path, "Tests", "--show", "passed in", *python("print('....'); print('12 passed in 3.2s')"))
    assert ran.stdout.splitlines()[-1] == "12 passed in 3.2s"
    assert "...." not in ran.stdout.splitlines()


def test_a_step_that_cannot_start_says_so_in_one_line(tmp_path):
    ran = step(tmp_path, "Start", "--", str(tmp_path / "absent"))
    assert ran.returncode == 127 and len(ran.stderr.splitlines()) == 1 and "cannot run" in ran.stderr
    assert step(tmp_path, "Start").returncode == 2


def test_a_step_that_cannot_write_its_log_says_so_in_one_line(tmp_path):
    (tmp_path / "build").write_text("a file where the folder should be")
    ran = step(tmp_path, "Start", *python("print(1)"))
    assert ran.returncode == 1 and len(ran.stderr.splitlines()) == 1 and "cannot write" in ran.stderr


def test_a_terminal_gets_one_line_in_place(tmp_path):
    pty = pytest.importorskip("pty", reason="needs a pseudo-terminal")
    main, end = pty.openpty()
    code = "import time; print('» 3/10 runs', flush=True); time.sleep(1)"
    ran = subprocess.run(STEP + ["Train", *python(code)], cwd=tmp_path, stdout=end, timeout=60)
    shown = os.read(main, 65536).decode()
    os.close(main), os.close(end)
    assert ran.returncode == 0
    assert "███░░░░░░░ 3/10 runs" in shown and shown.count("\n") == 1 and "\r" in shown


def test_a_page_is_described_by_its_first_paragraph(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "book"))
    from finish import described
    page = f"<head></head><h1>T</h1><div><p>One <em>net</em> for\nA &amp; \"B\" {'and more ' * 40}</p><p>Two</p></div>"
    found = re.search(r'<meta name="description" content="([^"]*)">\n</head>', described(page))[1]
    assert found.startswith("One net for A &amp; &quot;B&quot; and more") and found.endswith(" …") and len(found) < 220
    assert described("<head></head><h1>T</h1>") == "<head></head><h1>T</h1>"
