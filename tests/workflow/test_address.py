"""The repository's address: one place decides, the others repeat it, and without one nothing is fetched."""
import importlib.util
import json
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("address", ROOT / "workflow" / "address.py")
address = importlib.util.module_from_spec(spec)
spec.loader.exec_module(address)


@pytest.mark.parametrize("path", address.files(), ids=lambda p: p.stem)
def test_every_file_repeats_the_address(path):
    assert path.read_text() == address.renewed(path, address.address())


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A small repository that has no address: three kinds of files and two notebooks, one of which needs open_clip."""
    for name in ("pyproject.toml", "_config.yml", "CITATION.cff"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "notebooks" / "a").mkdir(parents=True)
    for name, extras in (("plain", []), ("clip", ["clip"])):
        tags = ["install", "hide-input", *extras]
        cells = [{"cell_type": "code", "id": "x", "metadata": {"tags": tags}, "source": []},
                 {"cell_type": "markdown", "id": "y", "metadata": {}, "source": ["github.com stays"]}]
        text = json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"
        (tmp_path / "notebooks" / "a" / f"{name}.ipynb").write_text(text)
    monkeypatch.setattr(address, "ROOT", tmp_path)
    assert address.main("none") == 0 and address.address() == ""
    return tmp_path


def texts(folder):
    return {p.relative_to(folder): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_without_an_address_nothing_is_fetched(clone):
    every = texts(clone)
    assert not any(word in t for t in every.values() for word in ("git clone", "pip install -q", "https://github.com/o"))
    assert "colab" not in every[Path("_config.yml")] and "raise ImportError" in every[Path("notebooks/a/plain.ipynb")]


def test_an_address_is_written_everywhere_and_taken_back(clone, capsys):
    before = texts(clone)
    assert address.main("owner/name") == 0
    assert len(capsys.readouterr().out.split()) == 5 and address.address() == "https://github.com/owner/name"
    after = texts(clone)
    assert all("https://github.com/owner/name" in t for t in after.values())
    assert "colab_url" in after[Path("_config.yml")]
    assert '"./fed-across-domains[clip]"' in json.loads(after[Path("notebooks/a/clip.ipynb")])["cells"][0]["source"][-1]
    assert after[Path("notebooks/a/plain.ipynb")].count("github.com stays") == 1
    assert address.main("none") == 0 and texts(clone) == before


def test_what_is_no_repository_is_refused(clone, capsys):
    before = texts(clone)
    assert address.main("https://example.org/x") == 2 and texts(clone) == before
    assert "no owner/name" in capsys.readouterr().err
