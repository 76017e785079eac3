"""Execute the notebooks and build the book in a staging tree; what has not changed since the last time is kept.

    python book/build.py                                               all notebooks, then the book
    python book/build.py --only i2pfl/table2 -p profile lite -p seeds "[0, 1]"      one notebook, other parameters

The staging tree (build/book) holds _config.yml, book/ and the executed notebooks at the same relative paths as the
repository, so links between pages and to Colab stay right. Each notebook runs in its own process, as many at once as
there are cores. It is executed again when its source, its parameters, fedlib, the data scripts, the records or the
pinned versions have changed. Warnings of the book's build are errors. Exit code 1: a notebook or a page is broken;
2: a wrong argument.
"""
import argparse
import ast
import copy
import hashlib
import itertools
import json
import logging
import os
import re
import shutil
import subprocess
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

import figures
import finish
import forks
import nbformat
import papermill
import readme
import yaml

from fedlib.core import schema
from fedlib.core.errors import UserError, first_line, nearest

ROOT = Path(__file__).resolve().parent.parent
DEFAULTS = {"mode": "read", "seconds": {}}  # given to every notebook that has such a parameter
SHARED = ("fedlib", "data_scripts", "results", "constraints.txt", "book/build.py", "book/forks.py",
          "book/figures.py")  # of every notebook
PAGES = ("_config.yml", "book")
LIMIT = 20.0        # minutes for one notebook; a page takes less than one


class Broken(Exception):
    """A notebook or a page does not build."""


def say(text: str):
    print(f"» {text}", flush=True)


def digest(names, *more) -> str:
    """SHA-256 over the files below these names (relative path and content) and further values."""
    sha = hashlib.sha256(json.dumps(more, sort_keys=True, default=str).encode())
    for path in files(names):
        sha.update(f"\0{path.relative_to(ROOT).as_posix()}\0".encode())
        sha.update(hashlib.sha256(path.read_bytes()).digest())
    return sha.hexdigest()


def files(names) -> list[Path]:
    """The files below these names, sorted, without what Python and Jupyter leave behind."""
    left_behind = {"__pycache__", ".ipynb_checkpoints"}
    tops = [ROOT / name for name in names]
    found = {p for top in tops for p in ([top] if top.is_file() else top.rglob("*")) if p.is_file()}
    return sorted(p for p in found if not left_behind & set(p.parts))


def parameters(notebook: Path) -> list[str]:
    """The names that the notebook's parameters cell assigns."""
    for cell in opened(notebook).cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", []):
            try:
                lines = ast.parse(cell.source).body
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                raise Broken(f"{notebook}: its parameters cell is no Python ({error})") from None
            assigned = [n for n in lines if isinstance(n, ast.Assign | ast.AnnAssign)]
            targets = [t for n in assigned for t in (n.targets if isinstance(n, ast.Assign) else [n.target])]
            return [t.id for t in targets if isinstance(t, ast.Name)]
    return []


def opened(notebook: Path):
    """The notebook. Broken: the file is none."""
    logging.disable(logging.CRITICAL)       # nbformat says what it mends
    try:
        with warnings.catch_warnings(action="ignore"):
            content = nbformat.read(notebook, 4)
            nbformat.validate(content)
        return content
    except Exception as error:      # nbformat and the schema have errors of their own
        raise Broken(f"{notebook} is not a notebook ({first_line(error)})") from None
    finally:
        logging.disable(logging.NOTSET)


def remembered(stamps: Path) -> dict:
    """What was done before: digests by name, and "seconds" by notebook; {} where that is not known."""
    try:
        found = schema.check(schema.parsed(stamps.read_text()), {"seconds?": {str: float}})
        schema.check({k: v for k, v in found.items() if k != "seconds"}, {str: str})
        return found
    except (OSError, ValueError):
        return {}


def chosen(only: list[str]) -> dict[str, Path]:
    """Notebooks by name ('i2pfl/table2'), in the order of the table of contents."""
    toc = yaml.safe_load((ROOT / "book/_toc.yml").read_text(encoding="utf-8"))
    chapters = [chapter for part in toc["parts"] for chapter in part["chapters"]]
    entries = [e["file"] for chapter in chapters for e in (chapter, *chapter.get("sections", []))]
    known = {e.removeprefix("notebooks/"): ROOT / f"{e}.ipynb" for e in entries if e.startswith("notebooks/")}
    for name, path in known.items():
        if not path.is_file():
            raise Broken(f"book/_toc.yml names notebooks/{name}, but there is no such notebook")
    wanted = [name.removeprefix("notebooks/").removesuffix(".ipynb") for name in only]
    for name in wanted:
        if name not in known:
            raise UserError(f"unknown notebook '{name}'{nearest(name, known)} (known: {', '.join(known)})")
    return {name: path for name, path in known.items() if name in wanted or not wanted}


def given_values(pairs: list[list[str]]) -> dict:
    """The parameters of the command line, their values read as YAML."""
    values = {}
    for name, text in pairs:
        try:
            values[name] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise UserError(f"the value '{text}' of parameter '{name}' is not YAML; a list is [0, 1]") from None
    return values


def settings(notebooks: dict[str, Path], given: dict) -> dict[str, dict]:
    """Per notebook the parameters to pass. papermill only logs an unknown name, so names are checked here."""
    names = {name: parameters(path) for name, path in notebooks.items()}
    known = sorted({p for own in names.values() for p in own})
    for word in given:
        if word not in known:
            where = f"notebook {next(iter(names))} has" if len(names) == 1 else "the notebooks have"
            there = ", ".join(known) or "none"
            raise UserError(f"{where} no parameter '{word}'{nearest(word, known)} (known: {there})")
    return {name: {k: v for k, v in (DEFAULTS | given).items() if k in own} for name, own in names.items()}


def tidy(path: Path, name: str):
    """Hide the cell that papermill injected, drop what names this machine and empty texts, put figures into the page.

    Broken: a figure has no alt text, a cell that describes a figure shows nothing, or one of checks says something.
    """
    notebook = nbformat.read(path, 4)
    notebook.metadata.pop("papermill", None)
    for cell in notebook.cells:
        cell.metadata.pop("papermill", None)
        cell.metadata.pop("execution", None)
        if "injected-parameters" in cell.metadata.get("tags", []):
            cell.metadata["tags"].append("remove-cell")
        if cell.cell_type == "code":        # of an empty text the page would show the name of its class
            cell.outputs = [o for o in cell.outputs if o.get("data", {}).get("text/markdown", "-").strip()]
        if "nbval-check-output" in cell.metadata.get("tags", []) and cell.get("outputs"):       # none is stored
            raise Broken(f"notebook {name}: the cell '{cell.source.splitlines()[0]}' checks, and says something")
        pictures = [o for o in cell.get("outputs", []) if is_picture(o)]
        how = cell.metadata.get("mystnb", {})
        if len(pictures) > 1:               # how many depends on the records; a name is of one figure
            how.get("figure", {}).pop("name", None)
        if pictures and not how.get("image", {}).get("alt"):
            raise Broken(f"notebook {name}: the figure of the cell '{cell.source.splitlines()[0]}' has no alt "
                         'text; its metadata needs {"mystnb": {"image": {"alt": "..."}}}')
        if "image" in how and not cell.outputs:     # where records lack, it says so
            raise Broken(f"notebook {name}: the cell '{cell.source.splitlines()[0]}' shows no figure, nor why")
    for cell in notebook.cells:
        if {"hide-input", "hide-cell"} & set(cell.metadata.get("tags", [])):
            what = held(cell)
            prompts = {"code_prompt_show": f"Show {what}", "code_prompt_hide": f"Hide {what}"}
            cell.metadata.setdefault("mystnb", {}).update(prompts)
    notebook.cells = [part for cell in opening(answered(notebook.cells)) for part in apart(cell)]
    for cell in notebook.cells:
        for output in filter(is_picture, cell.get("outputs", [])):
            if drawing := output.data.pop("image/svg+xml", None):
                output.data["text/html"] = figures.in_page(drawing, cell.metadata["mystnb"]["image"]["alt"], cell.id)
    nbformat.write(notebook, path)


def held(cell) -> str:
    """What a folded cell holds: the fold is named so."""
    tags = cell.metadata["tags"]
    for tag, what in {"install": "code that looks for fedlib", "self-check": "code that checks the answer",
                      "nbval-check-output": "check of what the text says"}.items():
        if tag in tags:
            return f"the {what}"
    if names := re.findall(r"^(?:def|class) (\w+)", cell.source, re.M):
        return f"the code of {', '.join(names)}"
    shown = "figure" if any(map(is_picture, cell.outputs)) else "table"
    return f"the {shown} and its code" if "hide-cell" in tags else f"the code of the {shown}"


def answered(cells: list) -> list:
    """The cells, with the answer that one of them shows moved below the title: a page begins with it."""
    for cell in cells[1:]:
        for output in list(cell.get("outputs", [])):
            if output.get("data", {}).get("text/html", "").startswith('<div class="answer">'):
                cell.outputs.remove(output)
                title, line, rest = cells[0].source.partition("\n")
                cells[0].source = f"{title}\n\n{output['data']['text/html']}\n{line}{rest}"
    return cells


def opening(cells: list) -> list:
    """The cells, with the figure of the one tagged `opening` below the title as well: a page begins with a picture."""
    for cell in cells:
        if "opening" in cell.metadata.get("tags", []):
            first = copy.deepcopy(cell)
            first.id, first.metadata["tags"] = f"{cell.id}-opening", ["remove-input"]
            first.metadata.get("mystnb", {}).get("figure", {}).pop("name", None)
            first.outputs = [o for o in cell.outputs if is_picture(o)]
            return [cells[0], first, *cells[1:]]
    return cells


def apart(cell) -> list:
    """The cell, cut where texts and figures meet: the book puts a cell's caption below each of its outputs."""
    if "figure" not in cell.metadata.get("mystnb", {}):
        return [cell]
    parts = []
    for drawn, outputs in itertools.groupby(cell.outputs, is_picture):
        part = copy.deepcopy(cell)
        part.outputs = list(outputs)
        if not drawn:
            part.metadata["mystnb"].pop("figure")
        if parts:
            part.id, part.metadata["tags"] = f"{cell.id}-{len(parts)}", ["remove-input"]
        parts.append(part)
    return parts or [cell]


def is_picture(output) -> bool:
    return any(kind.startswith("image/") for kind in output.get("data", {}))


def execute(name: str, source: Path, target: Path, values: dict, limit: float = LIMIT) -> float:
    """Run one notebook in a kernel of its own, in its folder; the target is there only after success. Returns seconds.

    Broken: a cell failed, the kernel died, or was ended after `limit` minutes.
    """
    start = time.monotonic()
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    part = target.with_name(f"{target.stem}.part.ipynb")
    try:
        papermill.execute_notebook(source, part, values, kernel_name="python3", language="python", progress_bar=False,
                                   resources={"metadata": {"path": str(source.parent)}})
        tidy(part, name)
        os.replace(part, target)
    except Broken:
        raise
    except Exception as error:      # papermill's, nbclient's, the kernel's
        if time.monotonic() - start >= 60 * limit:
            raise Broken(f"notebook {name} took longer than {limit:g} minutes and was stopped (--limit gives it more)"
                         ) from None
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        raise Broken(f"notebook {name} failed; its error is in the lines above") from None
    finally:
        part.unlink(missing_ok=True)
    return time.monotonic() - start


def mirror(out: Path, notebooks: dict[str, Path]):
    """Bring the pages to the staging tree; what the repository no longer has goes there too."""
    shutil.copy2(ROOT / "_config.yml", out / "_config.yml")
    shutil.rmtree(out / "book", ignore_errors=True)
    shutil.copytree(ROOT / "book", out / "book", ignore=shutil.ignore_patterns("__pycache__", "*.py"))
    for page in (out / "book").glob("*.md"):
        page.write_text(readme.renewed(page.read_text(encoding="utf-8")), encoding="utf-8")
    current = {out / path.relative_to(ROOT) for path in notebooks.values()}
    for path in (out / "notebooks").rglob("*.ipynb"):
        if path not in current:
            path.unlink()


def render(out: Path, notebooks: dict[str, Path]):
    """jupyter-book from an empty _build: a page that is not read again would not repeat its warnings.

    A page's download is the committed notebook: what it shows stands on the page, and twice would be half of the site.
    """
    shutil.rmtree(out / "_build", ignore_errors=True)
    command = [str(Path(sys.executable).parent / "jupyter-book"), "build", ".", "--toc", "book/_toc.yml",
               "-W", "-n", "--keep-going"]
    ran = subprocess.run(command, cwd=out, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         env=os.environ | {"NO_COLOR": "1", "PYTHONPATH": os.pathsep.join(
                             [str(ROOT / "book"), *filter(None, [os.environ.get("PYTHONPATH")])])})
    plain = re.sub(r"\x1b\[[0-9;]*m", "", ran.stdout)
    print(plain)
    if ran.returncode or not (out / "_build/html/index.html").is_file():
        warnings = [line.replace(f"{out}/", "") for line in plain.splitlines() if "WARNING" in line or "ERROR" in line]
        raise Broken("the book has errors:\n" + "\n".join(warnings or plain.splitlines()[-15:]))
    finish.finish(out / "_build/html")
    for path in notebooks.values():
        shutil.copy2(path, out / "_build/html/_sources" / path.relative_to(ROOT))


def build(out: Path, only: list[str], given: dict, limit: float = LIMIT, jobs: int = 1):
    """Execute what has changed, `jobs` notebooks at once; then, when all notebooks were asked for, build the book.

    A broken notebook stops no other; Broken names them all at the end, and the book is not built.
    """
    out.mkdir(parents=True, exist_ok=True)
    stamps = out / "digests.json"
    done = remembered(stamps)

    def finished(what: str, is_now: str | None):
        done.pop(what, None) if is_now is None else done.update({what: is_now})
        stamps.with_suffix(".part").write_text(json.dumps(done, indent=1))
        os.replace(stamps.with_suffix(".part"), stamps)

    notebooks = chosen(only)
    values = settings(notebooks, given)
    forks.ready(max(1, (os.cpu_count() or 1) // jobs), 60 * limit)     # all cores for each of two: four times as slow
    shared, broken, spent = digest(SHARED, sys.version), [], done.setdefault("seconds", {})
    tells = [name for name in notebooks if "seconds" in values[name] and "seconds" not in given]
    count = itertools.count(1)
    for some in ([name for name in notebooks if name not in tells], tells):
        todo = {}
        for name in some:
            if name in tells:       # a page may tell how long the others took, so it comes last
                values[name]["seconds"] = {o: spent[o] for o in chosen([]) if o in spent and o != name}
            now = digest([notebooks[name].relative_to(ROOT)], shared, values[name])
            if done.get(name) == now and (out / notebooks[name].relative_to(ROOT)).is_file():
                say(f"notebook {next(count)}/{len(notebooks)} {name} is up to date")
            else:
                finished(name, None)
                todo[name] = now
        with ThreadPoolExecutor(jobs) as pool:
            running = {pool.submit(execute, name, notebooks[name], out / notebooks[name].relative_to(ROOT),
                                   values[name], limit): name for name in todo}
            for ended in as_completed(running):
                name = running[ended]
                try:
                    spent[name] = round(ended.result())
                    finished(name, todo[name])
                    say(f"notebook {next(count)}/{len(notebooks)} {name} {spent[name]} s")
                except Broken as error:
                    say(f"notebook {next(count)}/{len(notebooks)} {name} is broken")
                    broken.append(str(error))
    if broken:
        raise Broken("\n".join(broken))
    if only:
        for path in notebooks.values():
            say(f"executed: {out / path.relative_to(ROOT)}")
        return
    now = digest(PAGES, [done[name] for name in notebooks])
    if done.get("book") == now and (out / "_build/html/index.html").is_file():
        say("the book is up to date")
        return
    say("the book's pages")
    finished("book", None)
    mirror(out, notebooks)
    render(out, notebooks)
    finished("book", now)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NOTEBOOK", help="only execute this notebook")
    parser.add_argument("-p", dest="given", action="append", nargs=2, default=[], metavar=("NAME", "VALUE"),
                        help="a notebook parameter; the value is read as YAML")
    parser.add_argument("--limit", type=float, default=LIMIT, metavar="MINUTES",
                        help=f"stop a notebook that takes longer ({LIMIT:g})")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N",
                        help="notebooks at once (one for each core)")
    parser.add_argument("--out", type=Path, default=ROOT / "build/book", help="the staging tree (build/book)")
    options = parser.parse_args(arguments)
    try:
        build(options.out.resolve(), options.only, given_values(options.given), options.limit,
              max(1, options.jobs))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (Broken, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
