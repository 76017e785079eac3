"""The page of the API: every package and module, signatures and docstrings from the source."""
import ast
import re

from conftest import ROOT

import fedlib
from fedlib.report import api

SOURCE = '''"""What it is."""
SIZE = 3

@decorated
def half(x: int, *, by: float = 2) -> float:
    """Half of it."""
    def inner(): ...

def _private(): ...

class Thing(Base):
    """A thing."""
    size: int = 1
    def told(self):
        """Said."""
    def silent(self): ...
'''


def test_a_module(tmp_path, monkeypatch):
    (tmp_path / "fedlib/one").mkdir(parents=True)
    (tmp_path / "fedlib/one/part.py").write_text(SOURCE)
    (tmp_path / "fedlib/one/empty.py").write_text("")
    monkeypatch.setattr(api, "ROOT", tmp_path / "fedlib")
    assert api.module(tmp_path / "fedlib/one/empty.py") == []
    said = api.package("one").data
    assert said.startswith("**`fedlib.one.part`**\n\n````text\nWhat it is.\n````")
    assert re.findall(r"````python\n(.*?)\n````", said, re.S) == [
        "def half(x: int, *, by: float=2) -> float", "class Thing(Base):\n    size: int = 1", "def told(self)"]
    assert "Half of it." in said and "Said." in said and "_private" not in said and "silent" not in said


def test_a_package_has_all_of_its_modules():
    paths = api.modules("report")
    assert {"text.py", "looks.py"} <= {p.name for p in paths} and paths == sorted(paths)
    assert {"__init__.py", "tables.py"} <= {p.name for p in api.modules("cli")}


def test_the_pages_show_every_module():
    pages = {p.stem: p.read_text() for p in (ROOT / "book").glob("api_*.md")}
    assert set(pages) == {f"api_{name}" for name in api.PACKAGES}
    assert all(f"<!-- {page} -->\n<!-- /{page} -->" in text for page, text in pages.items())
    shown = {path for name in api.PACKAGES for path in api.modules(name)}
    assert {p for p in api.ROOT.rglob("*.py")} - shown == {api.ROOT / "__init__.py", api.ROOT / "__main__.py"}


def test_public_names_lead_to_definitions():
    assert list(api.names().data["name"]) == [f"fedlib.{name}" for name in fedlib.__all__]
    places = {place.partition(":")[0] for place in fedlib.PUBLIC.values()}
    files = [api.ROOT / f"{p.replace('.', '/')}.py" for p in places]
    assert all(f.is_file() or (f.with_suffix("") / "__init__.py").is_file() for f in files)
    assert all(ast.parse(f.read_text()) for f in files if f.is_file())
