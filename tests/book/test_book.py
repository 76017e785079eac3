"""The book: every page is reached, every picture can be read aloud, and nothing broken passes as built."""
import ast
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from html import unescape
from pathlib import Path

import nbformat
import pytest
import yaml
from conftest import ROOT
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

NOTEBOOKS = sorted((ROOT / "notebooks").rglob("*.ipynb"))
PAPERS = ("i2pfl", "fedpall", "feddtr", "mpft", "feddeap")     # folders of pages with the parameter `profile`
PAGES = sorted((ROOT / "book").glob("*.md"))
DRAWS = re.compile(r"\b(?:plt|sns|plots|ax|axes|fig)\.\w+\(|\.plot\(|\bImage\(|\.show_(?:domains|holdings|tuning)\(")


def entries(root: Path) -> list[str]:
    toc = yaml.safe_load((root / "book/_toc.yml").read_text(encoding="utf-8"))
    chapters = [chapter for part in toc["parts"] for chapter in part["chapters"]]
    return [toc["root"]] + [e["file"] for chapter in chapters for e in (chapter, *chapter.get("sections", []))]


def test_every_entry_of_the_contents_is_a_page():
    missing = [e for e in entries(ROOT) if not any((ROOT / f"{e}{end}").is_file() for end in (".md", ".ipynb"))]
    assert missing == []


def test_every_notebook_and_page_is_in_the_contents():
    there = {p.relative_to(ROOT).with_suffix("").as_posix() for p in NOTEBOOKS + PAGES}
    assert there == set(entries(ROOT))


def without_alt(text: str) -> list[str]:
    """The images of a markdown text that have no alternative text."""
    found = re.findall(r"!\[\s*\]\([^)]*\)", text)
    found += [tag for tag in re.findall(r"<img\b[^>]*>", text) if not re.search(r'\balt="[^"]+"', tag)]
    drawings = re.findall(r"<svg\b.*?</svg>", text, re.S)
    found += [svg[:60] for svg in drawings if not re.search(r"<title\b[^>]*>[^<]+", svg)]
    blocks = re.findall(r"^(`{3,}|:{3,})\{(?:figure|image)\}(.*?)^\1\s*$", text, re.S | re.M)
    return found + [body.strip() for _, body in blocks if not re.search(r"^:alt:\s*\S", body, re.M)]


def test_the_check_for_alt_text_sees_each_form():
    good = ('![a](x.png) <img src="x" alt="a"> <svg><title>a</title></svg>\n'
            "```{figure} x.png\n:alt: a\n\nA caption.\n```\n")
    assert without_alt(good) == []
    bad = "![](x.png) <img src='x'> <svg><path/></svg>\n```{figure} x.png\n\nA caption.\n```\n:::{image} x.png\n:::\n"
    assert len(without_alt(bad)) == 5


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.stem)
def test_pictures_on_pages_have_alt_text(page):
    assert without_alt(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_pictures_in_notebooks_have_alt_text(path):
    for cell in nbformat.read(path, 4).cells:
        if cell.cell_type == "markdown":
            assert without_alt(cell.source) == []
        elif DRAWS.search(cell.source) and not cell.source.lstrip().startswith(("def ", "import ")):
            assert cell.metadata.get("mystnb", {}).get("image", {}).get("alt"), cell.source


def misread(text: str) -> list[str]:
    """What Markdown takes for something else: a line that begins with % (a comment, which is not shown), and a formula
    that ends with its paragraph, as one does whose next line begins like an item of a list."""
    prose = re.sub(r"(`{3,})(?!\{admonition).*?\1|`[^`\n]*`|\$\$.*?\$\$", "", text, flags=re.DOTALL)
    parts = re.split(r"\n\s*\n|\n(?=[-*+] |\d+\. )", prose)
    return re.findall(r"^\s*%.*", prose, flags=re.MULTILINE) + [p for p in parts if p.replace(r"\$", "").count("$") % 2]


def test_what_markdown_would_take_for_something_else_is_seen():
    assert misread("in 40\n% of them") and misread("$a\n- b$ is less") and misread("**one**\n\n$a")
    assert not misread("$a - b$ of `$HOME` and\n```\n$ fedlib\n```\n$$\n- c\n$$\n- $d$")


@pytest.mark.parametrize("path", NOTEBOOKS + PAGES, ids=lambda p: p.stem)
def test_markdown_takes_nothing_for_something_else(path):
    text = path.read_text(encoding="utf-8")
    cells = nbformat.reads(text, 4).cells if path.suffix == ".ipynb" else [{"cell_type": "markdown", "source": text}]
    assert [m for cell in cells if cell["cell_type"] == "markdown" for m in misread(cell["source"])] == []


def test_no_formula_lost_its_backslash():
    """A \\b that was read as an escape leaves a character that nobody sees, and breaks the formula."""
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, 4).cells:
            assert not re.search(r"[\x00-\x08\x0b-\x1f]", cell.source), (path.name, cell.id)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_parameters_are_plain_values(path):
    """papermill replaces them by name, and build.py reads the names from the cell."""
    cells = [c for c in nbformat.read(path, 4).cells if "parameters" in c.metadata.get("tags", [])]
    assert len(cells) <= 1
    for cell in cells:
        for node in ast.parse(cell.source).body:
            assert isinstance(node, ast.Assign | ast.AnnAssign), cell.source
            ast.literal_eval(node.value)


def test_the_notation_names_settings_as_they_are():
    """Every setting in the notation is one of its method, with this default; a zoo page is that of its kind."""
    from fedlib.methods import METHODS
    text, seen = (ROOT / "book/notation.md").read_text(encoding="utf-8"), set()
    for line in re.findall(r"^\| \w+ \|.*= .*$", text, re.M):
        _, method, _, settings, _, page, _ = (part.strip() for part in line.split("|"))
        for name, value in re.findall(r"`(\w+)` = ([\d.]+)", settings):
            assert getattr(METHODS[method], name) == float(value), line
            seen.add((method, name))
        if "zoo/" in page:
            assert page.endswith(f"zoo/{METHODS[method].__module__.split('.')[-1]}>`"), line
    assert len(seen) > 35


def test_every_complaint_has_its_thread_and_what_keeps_our_answer():
    """Ten sections; each names a thread by title, address, repository and number, and files of ours that are there."""
    text = (ROOT / "book/complaints.md").read_text(encoding="utf-8")
    sections = re.split(r"^## \d+\. ", " ".join(text.split("\n")).replace(" ## ", "\n## "), flags=re.M)[1:]
    assert len(sections) == 10
    for section in sections:
        plain = section.replace(" > ", " ")
        link, name = r"\[[^\[\]]+\]\(https://github\.com/([\w-]+/[\w-]+)/issues/(\d+)\)", r"\((\S+),\s+(\d+)\)"
        threads = re.findall(f"{link} {name}", plain)
        assert threads and all((where, number) == (said, count) for where, number, said, count in threads), plain[:80]
        assert len(threads) == plain.count("https://github.com/")
        kept = re.findall(r"`((?:tests|fedlib)/[\w/.]+)`", plain.partition("Checked by")[2])
        assert kept and all((ROOT / name).is_file() for name in kept), plain[:80]


def test_every_work_has_a_label_of_its_own(monkeypatch):
    """Also in the order in which the bibliography has them; a letter stands only where it has to."""
    monkeypatch.syspath_prepend(ROOT / "book")
    import citations
    from pybtex.database import parse_file
    entries = list(parse_file(ROOT / "book/references.bib").entries.values())
    labels = list(citations.AuthorYear().format_labels(entries))
    assert len(set(labels)) == len(labels) == len(entries)
    assert not [label for label in labels if "\\" in label or "{" in label]
    plain = [citations.plain_label(entry) for entry in entries]
    assert {p for p in plain if plain.count(p) > 1} >= {"Zhang et al., 2025", "Zhang et al., 2023"}
    assert all((label == p) == (plain.count(p) == 1) for label, p in zip(labels, plain, strict=True))


def test_mathematics_is_read_from_the_book_itself():
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))["sphinx"]["config"]
    assert (ROOT / config["html_static_path"][0] / config["mathjax_path"]).is_file()
    assert list((ROOT / "book/_static/katex/fonts").glob("KaTeX_*.woff2"))


# --- a small book of its own: one page, one notebook ---

PARAMETERS = new_code_cell('profile = "mini"\nmode = "run"', metadata={"tags": ["parameters"]})


@pytest.fixture
def book(tmp_path):
    """A copy of the machinery with a page, a notebook with parameters, and no other content."""
    (tmp_path / "book").mkdir()
    for name in ("build.py", "citations.py", "figures.py", "finish.py", "forks.py", "readme.py"):
        shutil.copy(ROOT / "book" / name, tmp_path / "book" / name)
    shutil.copytree(ROOT / "book/_static", tmp_path / "book/_static")
    shutil.copy(ROOT / "_config.yml", tmp_path / "_config.yml")
    (tmp_path / "book/references.bib").write_text("")
    (tmp_path / "book/index.md").write_text("# A small book\n\nOf $a^2$ and a [notebook](../notebooks/one.ipynb).\n")
    (tmp_path / "book/_toc.yml").write_text(yaml.safe_dump({
        "format": "jb-book", "root": "book/index",
        "parts": [{"caption": "Part", "chapters": [{"file": "notebooks/one"}]}]}))
    write(tmp_path, PARAMETERS, new_code_cell("print(mode, profile)"))
    return tmp_path


def write(book: Path, *cells):
    (book / "notebooks").mkdir(exist_ok=True)
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    notebook = new_notebook(cells=[new_markdown_cell("# One"), *cells], metadata=kernel)
    nbformat.write(notebook, book / "notebooks/one.ipynb")


def build(book: Path, *arguments):
    path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    return subprocess.run([sys.executable, "book/build.py", *arguments], cwd=book, capture_output=True, text=True,
                          timeout=240, env=os.environ | {"PYTHONPATH": path})


def test_a_small_book_is_built_once_and_offline(book):
    ran = build(book)
    assert ran.returncode == 0, ran.stderr[-2000:]
    html = book / "build/book/_build/html"
    assert (html / "index.html").is_file()
    page = unescape(re.sub(r"<[^>]*>", "", (html / "notebooks/one.html").read_text(encoding="utf-8")))
    assert "read mini" in page, "the default mode=read was not passed"
    assert 'mode = "run"' in page, "the parameters cell is hidden"
    assert 'mode = "read"' not in page, "the injected cell shows"
    for text in (path.read_text(encoding="utf-8") for path in html.rglob("*.html")):
        assert not re.search(r'<(?:script|link|img|iframe)\b[^>]*(?:src|href)="(?:https?:)?//', text)
    assert "_static/katex/on_page.js" in (html / "book/index.html").read_text(encoding="utf-8")
    assert str(book) not in (book / "build/book/notebooks/one.ipynb").read_text(encoding="utf-8")
    assert (html / "_sources/notebooks/one.ipynb").read_bytes() == (book / "notebooks/one.ipynb").read_bytes()

    before = (html / "index.html").stat().st_mtime_ns
    again = build(book)
    assert again.returncode == 0 and again.stdout.count("up to date") == 2
    assert (html / "index.html").stat().st_mtime_ns == before

    (book / "book/index.md").write_text("# A small book\n\n[nowhere](absent.md)\n")
    for _ in range(2):  # a broken page must not pass because it is not read again
        broken = build(book)
        assert broken.returncode == 1 and "absent.md" in broken.stderr
        assert "notebook 1/1 one is up to date" in broken.stdout


def test_other_parameters_run_one_notebook(book):
    ran = build(book, "--only", "one", "-p", "profile", "lite")
    assert ran.returncode == 0, ran.stderr[-2000:]
    cells = nbformat.read(book / "build/book/notebooks/one.ipynb", 4).cells
    assert cells[-1].outputs[0].text == "read lite\n"
    assert not (book / "build/book/_build").exists()


def test_a_page_may_tell_how_long_the_others_took(book):
    toc = yaml.safe_load((book / "book/_toc.yml").read_text())
    toc["parts"][0]["chapters"].append({"file": "notebooks/two"})
    (book / "book/_toc.yml").write_text(yaml.safe_dump(toc))
    write(book, new_code_cell("seconds = {}", metadata={"tags": ["parameters"]}), new_code_cell("print(*seconds)"))
    (book / "notebooks/one.ipynb").rename(book / "notebooks/two.ipynb")
    write(book, new_code_cell("1"))
    for only, told in (("two", "\n"), ("one", ""), ("two", "one\n")):
        assert build(book, "--only", only).returncode == 0
        cells = nbformat.read(book / f"build/book/notebooks/{only}.ipynb", 4).cells
        assert only == "one" or cells[-1].outputs[0].text == told


@pytest.mark.parametrize(("arguments", "says"), [
    (["-p", "profil", "lite"], "did you mean 'profile'?"),
    (["--only", "on"], "did you mean 'one'?"),
    (["-p", "profile", "[1"], "profile"),
])
def test_a_wrong_argument_gets_one_line(book, arguments, says):
    ran = build(book, *arguments)
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1 and says in ran.stderr
    assert not list((book / "build").rglob("*.ipynb"))


def test_a_broken_notebook_fails_and_is_not_taken_for_done(book):
    write(book, new_code_cell("1 / 0"))
    for _ in range(2):
        ran = build(book)
        assert ran.returncode == 1
        assert "ZeroDivisionError" in ran.stderr and "notebook one failed" in ran.stderr.splitlines()[-1]
        assert not list((book / "build/book/notebooks").rglob("*.ipynb"))
        assert not (book / "build/book/_build").exists()
    write(book, new_code_cell("print(1)"))
    assert build(book, "--only", "one").returncode == 0


def three(book, *cells):
    """Notebooks one, two and three; the second has these cells."""
    chapters = [{"file": f"notebooks/{name}"} for name in ("one", "two", "three")]
    toc = {"format": "jb-book", "root": "book/index", "parts": [{"caption": "Part", "chapters": chapters}]}
    (book / "book/_toc.yml").write_text(yaml.safe_dump(toc))
    for name in ("two", "three", "one"):
        write(book, *(cells if name == "two" else [new_code_cell("print(1)")]))
        if name != "one":
            shutil.copy(book / "notebooks/one.ipynb", book / f"notebooks/{name}.ipynb")


@pytest.mark.parametrize("cell,arguments,says", [
    ("import os\nos.kill(os.getpid(), 9)", [], "notebook two failed; its error is in the lines above"),
    ("import time\nopen('kernel', 'w').write(str(__import__('os').getpid()))\ntime.sleep(3600)",
     ["--limit", "0.5"], "notebook two took longer than 0.5 minutes and was stopped"),
])
def test_a_notebook_that_dies_or_hangs_is_named_and_stops_no_other(cell, arguments, says, book):
    three(book, new_code_cell(cell))
    ran = build(book, *arguments)
    assert ran.returncode == 1 and says in ran.stderr.splitlines()[-1]
    assert arguments or "died" in ran.stderr.lower()
    done = {p.name for p in (book / "build/book/notebooks").iterdir()}
    assert done == {"one.ipynb", "three.ipynb"} and not (book / "build/book/_build").exists()
    if arguments:       # its kernel is gone too
        kernel = Path("/proc", (book / "notebooks/kernel").read_text())
        for _ in range(100):
            if not kernel.exists() or "\nState:\tZ" in (kernel / "status").read_text():
                break
            time.sleep(0.2)
        else:
            pytest.fail("its kernel still runs")
    shutil.copy(book / "notebooks/one.ipynb", book / "notebooks/two.ipynb")
    again = build(book, "--only", "one", "--only", "two", "--only", "three")
    assert again.returncode == 0 and again.stdout.count("up to date") == 2


def test_a_file_that_is_no_notebook_gets_one_line(book):
    (book / "notebooks/one.ipynb").write_text('{"cells": [')
    ran = build(book)
    assert ran.returncode == 1 and len(ran.stderr.splitlines()) == 1 and "one.ipynb is not a notebook" in ran.stderr


def test_a_figure_without_alt_text_is_refused(book):
    write(book, new_code_cell("import matplotlib.pyplot as plt\nplt.plot([1, 2]);"))
    ran = build(book)
    assert ran.returncode == 1 and "has no alt text" in ran.stderr.splitlines()[-1]


def test_a_cell_of_checks_says_nothing(book):
    write(book, new_code_cell("1 + 1", metadata={"tags": ["nbval-check-output"]}))
    ran = build(book)
    assert ran.returncode == 1 and "'1 + 1' checks, and says something" in ran.stderr.splitlines()[-1]
    write(book, new_code_cell("assert 1 + 1 == 2", metadata={"tags": ["nbval-check-output"]}))
    assert build(book, "--only", "one").returncode == 0


def test_a_figure_that_is_not_drawn_is_missed(book):
    how = {"mystnb": {"image": {"alt": "a line"}}}
    draw = "import matplotlib\nmatplotlib.use('agg')\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    write(book, new_code_cell(draw, metadata=how))
    ran = build(book, "--only", "one")
    assert ran.returncode == 1 and "'import matplotlib' shows no figure, nor why" in ran.stderr.splitlines()[-1]
    write(book, new_code_cell("print('No records yet.')", metadata=how))
    assert build(book, "--only", "one").returncode == 0


def test_a_cell_of_several_figures_gives_its_name_to_none(book):
    draw = "import matplotlib.pyplot as plt\nfor i in range({}):\n    plt.plot([1, 2])\n    plt.show()"
    how = {"mystnb": {"image": {"alt": "a line"}, "figure": {"caption": "A line.", "name": "fig-line"}}}
    for count, kept in ((1, {"fig-line"}), (2, set())):
        write(book, new_code_cell(draw.format(count), metadata=how))
        assert build(book, "--only", "one").returncode == 0
        cells = nbformat.read(book / "build/book/notebooks/one.ipynb", 4).cells
        figures = [c.metadata["mystnb"]["figure"] for c in cells if "mystnb" in c.metadata]
        assert {f["name"] for f in figures if "name" in f} == kept and figures[0]["caption"] == "A line."


def test_a_caption_stands_below_figures_alone(book):
    show = ("import matplotlib.pyplot as plt\nfrom IPython.display import Markdown, display\nfor i in range(2):\n"
            "    display(Markdown('text'))\n    plt.plot([1, 2])\n    plt.show()")
    how = {"tags": ["hide-input"], "mystnb": {"image": {"alt": "a line"}, "figure": {"caption": "A line."}}}
    write(book, new_code_cell(show, metadata=how))
    assert build(book, "--only", "one").returncode == 0
    parts = [c for c in nbformat.read(book / "build/book/notebooks/one.ipynb", 4).cells if c.get("outputs")]
    drawing = '<svg class="plot" role="img" aria-label="a line"'
    kinds = [(drawing in c.outputs[0].data.get("text/html", ""), "figure" in c.metadata.mystnb) for c in parts]
    assert kinds == 2 * [(False, False), (True, True)]
    assert [c.metadata.tags for c in parts] == [["hide-input"]] + 3 * [["remove-input"]]


def test_a_page_begins_with_its_answer(book):
    """Wherever the notebook asks for it, the box stands below the title, and once."""
    ask = "from IPython.display import HTML, display\ndisplay(HTML('<div class=\"answer\"><p>Yes.</p></div>'))\n'more'"
    write(book, new_code_cell(ask))
    assert build(book, "--only", "one").returncode == 0
    made = nbformat.read(book / "build/book/notebooks/one.ipynb", 4).cells
    assert made[0].source.split("\n") == ["# One", "", '<div class="answer"><p>Yes.</p></div>', ""]
    assert [o.data["text/plain"] for c in made if c.cell_type == "code" for o in c.outputs] == ["'more'"]


def test_a_page_opens_with_the_figure_of_a_later_cell(book):
    """It stands below the title and where it is drawn; its name, which links use, is of the second."""
    draw = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
    how = {"tags": ["opening"], "mystnb": {"image": {"alt": "a line"}, "figure": {"caption": "A.", "name": "fig-line"}}}
    write(book, new_code_cell("print(1)"), new_code_cell(draw, metadata=how))
    assert build(book, "--only", "one").returncode == 0
    title, first, _, last = nbformat.read(book / "build/book/notebooks/one.ipynb", 4).cells
    assert title.source == "# One" and first.outputs == last.outputs and first.metadata.tags == ["remove-input"]
    assert (first.metadata.mystnb.figure, last.metadata.mystnb.figure.name) == ({"caption": "A."}, "fig-line")


def test_an_empty_text_shows_nothing(book):
    write(book, new_code_cell("from IPython.display import Markdown\nMarkdown('')"))
    assert build(book, "--only", "one").returncode == 0
    executed = nbformat.read(book / "build/book/notebooks/one.ipynb", 4)
    assert [c.outputs for c in executed.cells if "Markdown" in c.source] == [[]]


LOADS_CLIP = re.compile(r"feature_cache\.ensure\(|encoders\.load\(|cams\.heat\(")
PROVIDED = {"PIL": "pillow", "sklearn": "scikit-learn", "mpl_toolkits": "matplotlib"}     # module: its package


def notebook_code(path: Path) -> list[str]:
    return [c.source for c in nbformat.read(path, 4).cells if c.cell_type == "code"]


def names_imported(code: str) -> set[str]:
    """Top-level modules that a cell imports; lines for IPython are no Python."""
    plain = "\n".join(re.sub(r"^(\s*)[%!].*", r"\1pass", line) for line in code.splitlines())
    nodes = list(ast.walk(ast.parse(plain)))
    direct = {a.name for n in nodes if isinstance(n, ast.Import) for a in n.names}
    return {name.split(".")[0] for name in direct | {n.module for n in nodes if isinstance(n, ast.ImportFrom)}}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_colab_needs_no_more_than_the_setup_cell_installs(path):
    """fedlib's own dependencies, what runs a notebook anyway, and the extra for encoders where it is asked for."""
    setup, *rest = notebook_code(path)
    assert 'if importlib.util.find_spec("fedlib") is None:' in setup       # only what is missing
    extras = set(nbformat.read(path, 4).cells[1].metadata.get("tags", []))      # tests/workflow/test_address.py
    requirements = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    installed = requirements["dependencies"] + requirements["optional-dependencies"]["clip"] * ("clip" in extras)
    there = {re.match(r"[\w.-]+", r)[0] for r in installed} | {"fedlib", "data_scripts", "IPython"}
    wanted = set().union(*map(names_imported, rest)) - sys.stdlib_module_names
    assert {PROVIDED.get(name, name) for name in wanted} <= there
    code = "\n".join(rest)
    if LOADS_CLIP.search(code) or "mini_clip" in code and "mode" in parameters_of(path):
        assert "clip" in extras, "it loads mini_clip, which needs open_clip"


def parameters_of(path: Path) -> set[str]:
    cells = [c.source for c in nbformat.read(path, 4).cells if "parameters" in c.metadata.get("tags", [])]
    return {t.id for cell in cells for n in ast.parse(cell).body for t in getattr(n, "targets", ())}


def test_the_workflow_runs_the_targets_that_are_there():
    """And builds from no address of its own."""
    text = (ROOT / ".github/workflows/book.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    lines = [step.get("run", "") for job in jobs.values() for step in job["steps"]]
    targets = re.findall(r"^make ([\w-]+)", "\n".join(lines), re.M)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"test-all", "book", "check-book"} <= set(targets)
    assert all(re.search(rf"^{target}:", makefile, re.M) for target in targets)
    assert set(jobs["publish"]["needs"]) == {"test", "build"} and "fedlib/fedlib" not in text


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").iterdir()), ids=lambda p: p.stem)
def test_what_others_wrote_is_used_by_its_commit(path):
    """A tag can be moved to other code, a commit cannot."""
    used = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
    assert used and all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", name) for name in used), used


def test_a_release_is_made_by_files_whose_hashes_are_known():
    made = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    tools = (ROOT / ".github/release.txt").read_text(encoding="utf-8")
    assert "uv pip install --require-hashes -r .github/release.txt" in made
    assert not re.search(r"uvx|pipx|pip install (?!--req)", made)
    wanted = re.split(r"\n(?=[a-z])", tools.split("cyclonedx-bom\n", 1)[1])
    pinned = re.compile(r"[a-z0-9.-]+(\[\w+\])?==\S+ .*--hash=sha256:[0-9a-f]{64}", re.S)
    assert len(wanted) > 20 and [w for w in wanted if not pinned.match(w)] == []



@pytest.mark.parametrize("path", [*PAGES, *NOTEBOOKS, ROOT / "README.md"], ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_nothing_is_promised_for_later(path):
    assert not re.search(r"coming soon|under construction|\bTODO\b|\bTBD\b", path.read_text(encoding="utf-8"), re.I)
