"""Print the built book to one PDF, as a browser prints it: `python book/pdf.py` after `make book`; `make pdf` is both.

    python book/pdf.py --only book/index --only notebooks/i2pfl/table2 --out two_pages.pdf

Pages come in the order of the contents, each on paper of its own, with one bookmark. Solutions are printed, code that
is folded on the page stays folded. Links between pages are dropped: they would name a file of the machine that printed.
Exit code 1: no built book, no browser, an unknown page.
"""
import argparse
import io
import shutil
import sys
from pathlib import Path

import finish
import yaml

from fedlib.core.errors import UserError, pick

ROOT = Path(__file__).resolve().parent.parent
STAGE = ROOT / "build/book"
NAME = "federated_learning_across_domains.pdf"       # in the site
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OFFLINE = ["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking"]
PAPER = {"format": "A4", "print_background": True, "scale": 0.8,     # wide tables fit
         "margin": {"top": "18mm", "bottom": "18mm", "left": "16mm", "right": "16mm"}}
FOR_PAPER = """() => {
    document.documentElement.dataset.theme = 'light';
    document.querySelectorAll('a[href]').forEach(a => { if (a.protocol === 'file:') a.removeAttribute('href') });
    document.querySelectorAll('.admonition.toggle-hidden').forEach(a => a.querySelector('.admonition-title').click());
    return Promise.resolve(window.mathematics).then(() => true) }"""


def browser_path() -> str:
    """The first browser of the family of Chromium on the path. UserError: there is none."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        raise UserError(f"no browser here: install Chromium (one of {', '.join(BROWSERS)})")
    return found


def entries(stage: Path) -> list[str]:
    """The pages in the order of the contents."""
    toc = yaml.safe_load((stage / "book/_toc.yml").read_text(encoding="utf-8"))
    chapters = [chapter for part in toc["parts"] for chapter in part["chapters"]]
    return [toc["root"]] + [e["file"] for chapter in chapters for e in (chapter, *chapter.get("sections", []))]


def printed(site: Path, names: list[str]):
    """(title, the page as PDF) of each page."""
    from playwright.sync_api import sync_playwright
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path(), args=OFFLINE)
        page = browser.new_page()
        for name in names:
            page.goto((site / f"{name}.html").as_uri())
            page.evaluate(FOR_PAPER)
            yield page.inner_text("article h1").rstrip("#").strip(), page.pdf(**PAPER)
        browser.close()


def join(stage: Path, names: list[str], out: Path):
    """Print the pages and write them as one file, whole or not at all."""
    from pypdf import PdfReader, PdfWriter
    site = stage / "_build/html"
    if not (site / "index.html").is_file():
        raise UserError("the book is not built: run make book first")
    whole = PdfWriter()
    for i, (title, content) in enumerate(printed(site, names), 1):
        print(f"» page {i}/{len(names)} {title}", flush=True)
        whole.append(PdfReader(io.BytesIO(content)), outline_item=title, import_outline=False)
    whole.compress_identical_objects()
    part = out.with_suffix(".part")
    whole.write(part)
    part.replace(out)
    if names == entries(stage):     # the whole book: the site's pages link it
        shutil.copy2(out, site / NAME)
        finish.link_pdf(site, NAME)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="PAGE", help="only print this page")
    parser.add_argument("--stage", type=Path, default=STAGE, help="the staging tree (build/book)")
    parser.add_argument("--out", type=Path, help="the file (book.pdf in the staging tree)")
    given = parser.parse_args(arguments)
    try:
        if not (given.stage / "book/_toc.yml").is_file():
            raise UserError("the book is not built: run make book first")
        known = entries(given.stage)
        names = [pick("page", name, known) for name in given.only] or known
        join(given.stage, names, (given.out or given.stage / "book.pdf").resolve())
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
