"""The built book as a reader sees it: each page in headless Chromium, without a network. `make check-book` runs this.

Each page is opened once, all tests look at it, then the next. The book has to be built before (`make book`).
"""
import os
import re
import shutil
from pathlib import Path

import nbformat
import pytest
import yaml
from conftest import ROOT

SITE = Path(os.environ.get("FEDLIB_BOOK") or ROOT / "build/book/_build/html")
ENTRIES = ("book/**/*.html", "notebooks/**/*.html")
PAGES = sorted(p.relative_to(SITE).as_posix() for kind in ENTRIES for p in SITE.glob(kind))
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
OFFLINE = ["--host-resolver-rules=MAP * ~NOTFOUND", "--disable-background-networking", "--force-color-profile=srgb"]
MEGABYTE = 10**6

BROWSER = next(filter(None, map(shutil.which, BROWSERS)), None)
if not PAGES or not BROWSER:        # one line for them all
    lacks = f"a browser ({', '.join(BROWSERS)})" if PAGES else "a built book: make book"
    pytest.skip(f"no page is looked at: there is not {lacks}", allow_module_level=True)
sync = pytest.importorskip("playwright.sync_api", reason="no page is looked at: needs the package playwright")

pytestmark = pytest.mark.timeout(300)
GROUPED = [pytest.param(p, marks=pytest.mark.xdist_group(f"pages {i % 4}")) for i, p in enumerate(PAGES)]


@pytest.fixture(scope="module")
def browser():
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=OFFLINE)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def tab(browser):
    """One tab of a computer's width; what it complains of and asks other hosts for is noted in `said` and `asked`."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    tab.said, tab.asked = [], []
    tab.on("console", lambda m: tab.said.append(m.text) if m.type == "error" else None)
    tab.on("pageerror", lambda error: tab.said.append(str(error)))
    tab.on("request", lambda r: tab.asked.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None)
    return tab


@pytest.fixture(scope="module", params=GROUPED)
def page(tab, request):
    """The tab with the page open, its mathematics set, light, wide."""
    tab.said.clear(), tab.asked.clear()
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.emulate_media(color_scheme="light")
    tab.goto((SITE / request.param).as_uri())
    tab.evaluate("() => Promise.resolve(window.mathematics)")
    tab.evaluate("() => document.fonts.ready.then(() => true)")
    return tab


def test_a_page_loads_in_silence_and_from_its_own_files(page):
    assert page.asked == [] and page.said == []
    assert page.evaluate("() => [...document.images].filter(i => !i.naturalWidth).map(i => i.src)") == []
    assert page.inner_text("article h1").strip()


def test_mathematics_is_set(page):
    raw = page.evaluate("""() => [...document.querySelectorAll('.math')]
        .filter(m => !m.querySelector('.katex') || m.querySelector('.katex-error'))
        .map(m => m.textContent.slice(0, 80))""")
    assert raw == []


def test_every_figure_has_a_text(page):
    silent = page.evaluate("""() => [
        ...[...document.querySelectorAll('article img')].filter(i => !(i.alt || '').trim()).map(i => i.src),
        ...[...document.querySelectorAll('article svg')].filter(s => !s.closest('summary, button')
            && !s.closest('[aria-hidden=true]') && !s.querySelector('title') && !s.ariaLabel).map(s => s.outerHTML)]""")
    assert silent == []


def test_solutions_and_hidden_cells_open_when_asked(page):
    """Closed at first; then all are opened, as the tests below look at what is in them."""
    seen = """boxes => boxes.map(b => [...b.children].slice(1).some(c => c.checkVisibility() && c.offsetHeight))"""
    solutions = "article .admonition.dropdown"
    assert not any(page.eval_on_selector_all(solutions, seen)), "a solution shows before it is asked for"
    page.eval_on_selector_all(f"{solutions} .admonition-title", "titles => titles.forEach(t => t.click())")
    page.wait_for_timeout(50)
    assert all(page.eval_on_selector_all(solutions, seen)), "a solution stays hidden"
    cells = "article .cell.tag_hide-input details.hide, article .cell.tag_hide-cell details.hide"
    assert not any(page.eval_on_selector_all(cells, "all => all.map(d => d.open)"))
    page.eval_on_selector_all(cells, "all => all.forEach(d => d.open = true)")


def test_a_notebook_can_be_opened_in_colab_and_kept(page):
    place = Path(page.evaluate("() => location.pathname")).relative_to(SITE)
    if place.parts[0] != "notebooks":
        assert not page.query_selector("a[href*='colab.']")
        return
    settings = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    notebook, wanted = place.with_suffix(".ipynb").as_posix(), []
    if "repository" in settings:        # without an address there is no button
        repository = settings["repository"]["url"].removeprefix("https://")
        wanted = [f"{settings['launch_buttons']['colab_url']}/{repository.replace('github.com', 'github')}/blob/"
                  f"{settings['repository']['branch']}/{notebook}"]
    links = page.eval_on_selector_all("a[href]", "all => all.map(a => a.getAttribute('href'))")
    assert [link for link in links if "colab." in link] == wanted
    kept = [link for link in links if link.endswith(f"_sources/{notebook}")]
    assert kept and nbformat.read(SITE / "_sources" / notebook, 4).cells


RULES = {"runOnly": {"type": "rule", "values": ["color-contrast", "image-alt", "svg-img-alt", "link-name",
                                                "button-name"]},
         "resultTypes": ["violations"]}
VISIBLE = """() => {     // text in drawings, which axe does not look at
    const rgb = c => (c.match(/[\\d.]+/g) || []).map(Number);
    const light = c => [.2126, .7152, .0722].reduce((sum, f, i) => {
        const v = c[i] / 255; return sum + f * (v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4) }, 0);
    const ratio = (a, b) => { const [d, l] = [light(a), light(b)].sort((x, y) => x - y); return (l + .05) / (d + .05) };
    const ground = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
        if (c.length === 3 || c[3] > 0) return c } return [255, 255, 255] };
    const found = [];
    for (const text of document.querySelectorAll('article svg text')) {
        text.scrollIntoView({block: 'center'});
        const box = text.getBoundingClientRect();
        const below = document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2)
            .find(e => e.closest('svg') && e.matches('rect, circle, path, polygon, ellipse')
                  && getComputedStyle(e).fill !== 'none');
        const under = below ? rgb(getComputedStyle(below).fill) : ground(text.closest('svg'));
        if (ratio(rgb(getComputedStyle(text).fill), under) < 4.5) found.push(text.textContent);
    }
    return found }"""


def unreadable(page) -> list[str]:
    """What axe-core finds wrong on the page as it is shown; of a table it looks at eight rows, of code at four."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the package axe-playwright-python")
    page.evaluate("""() => document.querySelectorAll('article .highlight').forEach(
        (block, i) => i > 3 && block.setAttribute('data-alike', ''))""")
    places = {"include": [["article"], [".bd-sidebar-secondary"]],
              "exclude": [["tbody tr:nth-child(n+9)"], ["[data-alike]"], [".katex"]]}
    found = axe.Axe().run(page, context=places, options=RULES).response["violations"]
    return [f"{v['id']}: {n['html'][:160]} {n['any'][0]['message'][:120] if n['any'] else ''}"
            for v in found for n in v["nodes"]]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_it_can_be_read(page, theme):
    page.emulate_media(color_scheme=theme)
    page.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=theme)
    page.wait_for_timeout(300)      # the theme's colours change over a moment
    assert unreadable(page) == [] and page.evaluate(VISIBLE) == []


def test_figures_keep_a_light_ground_in_the_dark(page):
    """They are drawn in dark ink; one that is transparent would vanish."""
    page.emulate_media(color_scheme="dark")
    page.wait_for_function("document.documentElement.dataset.theme === 'dark'")
    grounds = page.eval_on_selector_all("article .cell_output img, article figure img", """all => all.map(i =>
        (getComputedStyle(i).backgroundColor.match(/[\\d.]+/g)).map(Number))""")
    assert [g for g in grounds if not (len(g) == 3 and min(g) > 230)] == []


def test_a_phone_shows_it_without_sideways_scroll(page):
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(100)
    wide = page.evaluate("""() => {
        const width = document.documentElement.clientWidth;
        if (document.documentElement.scrollWidth <= width) return [];
        const beyond = e => e.getBoundingClientRect().right > width + 1;
        const boxed = e => { for (let p = e.parentElement; p && p !== document.body; p = p.parentElement)
            if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(p).overflowX)
                && !beyond(p)) return true; return false };
        const out = [...document.querySelectorAll('article *')].filter(e => beyond(e) && !boxed(e))
            .map(e => e.outerHTML.slice(0, 100));
        return out.length ? out.slice(0, 5) : ['something outside of the article'] }""")
    assert wide == []


def test_no_page_is_large(page):
    """With its pictures, which a reader waits for as well."""
    path = Path(page.evaluate("() => location.pathname"))
    pictures = page.eval_on_selector_all("article img", "all => [...new Set(all.map(i => new URL(i.src).pathname))]")
    size = path.stat().st_size + sum(Path(p).stat().st_size for p in pictures if p.startswith("/"))
    assert size <= 2 * MEGABYTE, f"{size / MEGABYTE:.1f} MB"


def test_the_site_is_small():
    size = sum(p.stat().st_size for p in SITE.rglob("*") if p.is_file())
    assert size <= 40 * MEGABYTE, f"{size / MEGABYTE:.1f} MB"


def test_search_finds_what_is_there(tab):
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.goto((SITE / "search.html").as_uri() + "?q=prototype")
    tab.wait_for_selector("#search-results li a")
    found = tab.eval_on_selector_all("#search-results li a", "all => all.map(a => a.getAttribute('href'))")
    assert len(found) > 5 and any(re.search(r"i2pfl/method", href) for href in found)
    tab.goto((SITE / "search.html").as_uri() + "?q=zyzzyva")
    tab.wait_for_function("document.querySelector('#search-results').innerText.includes('did not match')")
    assert not tab.query_selector("#search-results li a")


def test_the_checks_see_faults(browser, tmp_path):
    """Each look at a page, on one that has what it looks for."""
    (tmp_path / "bad.html").write_text(
        "<html data-theme=light><body><article><h1>x</h1><p style='color:#ddd'>pale words</p><img src=data:,x>"
        "<svg width=90 height=30><text y=20 fill=#eee>pale</text></svg><div style='width:700px'>wide</div></article>"
        "<script>console.error('loud'); fetch('https://example.org/x').catch(() => 0)</script></body></html>")
    page = browser.new_page(viewport={"width": 390, "height": 844})
    said, asked = [], []
    page.on("console", lambda m: said.append(m.text))
    page.on("request", lambda r: asked.append(r.url))
    page.goto((tmp_path / "bad.html").as_uri())
    page.said, page.asked = said, asked
    assert "loud" in said and "https://example.org/x" in asked
    assert page.evaluate(VISIBLE) == ["pale"]
    assert any("pale words" in line for line in unreadable(page))
    for check in (test_every_figure_has_a_text, test_a_phone_shows_it_without_sideways_scroll):
        with pytest.raises(AssertionError):
            check(page)
    page.close()
