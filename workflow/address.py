"""Write the repository's address wherever a file must carry it: `make address REPO=owner/name`, or `REPO=none`.

It stands in pyproject.toml ([project.urls]); _config.yml, the notebooks' first cells and CITATION.cff repeat it. While
there is none, pages have no Colab buttons, and a first cell says what is missing and fetches nothing. A test compares.
"""
import json
import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = "fed-across-domains"     # of the distribution, and of the clone that a first cell makes
HOST = "https://github.com/"
CHECK = "import importlib.util\n\nif importlib.util.find_spec(\"fedlib\") is None:"
NONE = CHECK + """
    raise ImportError("fedlib is not installed here: clone its repository and run `pip install .` in it")"""
CLONE = CHECK + """  # in Colab: the code, and the records beside it
    !git clone -q --depth 1 {address} {name}
    %pip install -q {place}"""
URLS = """[project.urls]
Repository = "{address}"

"""
CONFIG = """repository:
  url: {address}
  branch: main
  path_to_book: ""

launch_buttons:
  colab_url: https://colab.research.google.com
  thebe: false

"""


def address() -> str:
    """The repository's address; "" while there is none."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {}).get("Repository", "")


def first_cell(where: str, tags: list[str]) -> str:
    """The source of a notebook's first cell; tags other than install and hide-input are extras that the page needs."""
    extras = ",".join(t for t in tags if t not in ("install", "hide-input"))
    return CLONE.format(address=where, name=NAME, place=f'"./{NAME}[{extras}]"' if extras else f"./{NAME}") \
        if where else NONE


def renewed(path: Path, where: str) -> str:
    """The text of a file with this address, or without one."""
    text = path.read_text()
    if path.suffix == ".ipynb":
        notebook = json.loads(text)
        for cell in notebook["cells"]:
            if "install" in (tags := cell["metadata"].get("tags", [])):
                cell["source"] = first_cell(where, tags).splitlines(keepends=True)
        return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    if path.name == "pyproject.toml":
        text = re.sub(r"\[project\.urls\]\n.*?\n\n", "", text, flags=re.S)
        return text.replace("[project.scripts]", URLS.format(address=where) * bool(where) + "[project.scripts]")
    if path.name == "_config.yml":
        text = re.sub(r"repository:\n.*?(?=execute:)", "", text, flags=re.S)
        text = re.sub(r"(use_(?:repository|issues)_button:) \w+", rf"\1 {str(bool(where)).lower()}", text)
        return text.replace("execute:\n", CONFIG.format(address=where) * bool(where) + "execute:\n", 1)
    text = re.sub(r"repository-code: .*\n", "", text)
    return text + f"repository-code: {where}\n" * bool(where)


def files() -> list[Path]:
    """The files that carry the address, the one that decides last."""
    return [*sorted((ROOT / "notebooks").glob("*/*.ipynb")), ROOT / "_config.yml", ROOT / "CITATION.cff",
            ROOT / "pyproject.toml"]


def main(repository: str) -> int:
    if repository != "none" and not re.fullmatch(r"[\w.-]+/[\w.-]+", repository, re.ASCII):
        print(f"'{repository}' is no owner/name (or none)", file=sys.stderr)
        return 2
    where = "" if repository == "none" else HOST + repository
    for path in files():
        text = renewed(path, where)
        if text != path.read_text():
            path.write_text(text)
            print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if sys.argv[1:] else address().removeprefix(HOST) or "none"))
