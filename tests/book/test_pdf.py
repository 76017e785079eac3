"""The book on paper: pages joined in the order of the contents, nothing of this machine in them."""
import os
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT

sys.path.insert(0, str(ROOT / "book"))
import pdf  # noqa: E402


@pytest.fixture
def stage(tmp_path):
    """Two pages as a build leaves them, the second with a folded solution and a link to the first."""
    site = tmp_path / "_build/html"
    for name, body in (("book/index", "<p>Federation begins.</p>"), ("notebooks/one", """<p>Second page.</p>
            <a href='../book/index.html'>back</a> <a href='https://example.org/'>a source</a>
            <div class='admonition toggle-hidden'><p class='admonition-title' onclick="this.nextSibling.hidden = false">
            Solution</p><p hidden>The answer.</p></div>""")):
        page = site / f"{name}.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"<html><body><article><h1>{name.split('/')[1]}</h1>{body}</article></body></html>")
    (site / "index.html").write_text("")
    (tmp_path / "book").mkdir()
    (tmp_path / "book/_toc.yml").write_text(yaml.safe_dump({
        "root": "book/index", "parts": [{"caption": "Part", "chapters": [{"file": "notebooks/one"}]}]}))
    return tmp_path


def test_two_pages_become_one_file(stage, tmp_path):
    reader = pytest.importorskip("pypdf", reason="needs the package pypdf").PdfReader
    pytest.importorskip("playwright", reason="needs the package playwright")
    try:
        pdf.browser_path()
    except pdf.UserError as error:
        pytest.skip(str(error))
    assert pdf.main(["--stage", str(stage)]) == 0
    book = reader(stage / "book.pdf")
    assert [o.title for o in book.outline] == ["index", "one"]
    first, second = (p.extract_text() for p in book.pages)
    assert "Federation begins." in first and "Second page." in second and "The answer." in second
    links = [a.get_object()["/A"].get("/URI") for p in book.pages for a in p.get("/Annots", [])]
    assert links == ["https://example.org/"]


@pytest.mark.parametrize(("arguments", "says"), [
    (["--only", "notebooks/on"], "did you mean 'notebooks/one'?"), (["--stage", "absent"], "make book")])
def test_a_mistake_gets_one_line(stage, arguments, says):
    given = arguments if "--stage" in arguments else ["--stage", str(stage), *arguments]
    ran = subprocess.run([sys.executable, str(ROOT / "book/pdf.py"), *given], capture_output=True, text=True,
                         timeout=60, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert ran.returncode == 1 and len(ran.stderr.splitlines()) == 1 and says in ran.stderr


def test_without_a_browser_it_says_which_would_do(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(pdf.UserError, match="chromium"):
        pdf.browser_path()
