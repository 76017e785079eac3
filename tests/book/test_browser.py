"""The built book as a reader sees it: each page in headless Chromium, without a network. `make check-book` runs this.

Each page is opened once, all tests look at it, then the next. The book has to be built before (`make book`).
"""
import os
import re
import shutil
from pathlib import Path
from urllib.parse import unquote, urlparse

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
    """One tab of a computer's width; what it complains of, loads, and asks other hosts for is noted: `said`, `loaded`,
    `asked`."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900}, color_scheme="light")
    tab.said, tab.loaded, tab.asked = [], set(), []
    tab.on("console", lambda m: tab.said.append(m.text) if m.type == "error" else None)
    tab.on("pageerror", lambda error: tab.said.append(str(error)))
    tab.on("request", lambda r: tab.asked.append(r.url) if not r.url.startswith(("file:", "data:", "blob:")) else None)
    tab.on("request", lambda r: tab.loaded.add(unquote(urlparse(r.url).path)) if r.url.startswith("file:") else None)
    return tab


@pytest.fixture(scope="module", params=GROUPED)
def page(tab, request):
    """The tab with the page open, its mathematics set, light, wide."""
    tab.said.clear(), tab.asked.clear(), tab.loaded.clear()
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
    for (const text of document.querySelectorAll('article svg:not(.plot) text')) {
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


def contrast(one, other) -> float:
    """Of two colours in 0..255, as WCAG has it: 1 to 21."""
    def luminance(colour):
        parts = (c / 255 for c in colour)
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_words_of_figures_take_their_colour_from_the_theme(page, theme):
    """But for those on a piece of colour, which is the same on both grounds."""
    page.emulate_media(color_scheme=theme)
    page.wait_for_function("theme => document.documentElement.dataset.theme === theme", arg=theme)
    page.wait_for_timeout(300)
    assert page.query_selector_all("article .cell_output img") == [], "a figure that is no drawing"
    inks = page.eval_on_selector_all("article svg.plot text:not([style*='fill: #'])", """all => [...new Set(
        all.map(t => getComputedStyle(t).fill))].map(c => c.match(/[\\d.]+/g).slice(0, 3).map(Number))""")
    ground = {"light": (255, 255, 255), "dark": (18, 18, 18)}[theme]
    assert [ink for ink in inks if contrast(ink, ground) < 4.5] == []       # WCAG 2.2, level AA


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
    """With all that it loads, as if nothing were kept from the page before."""
    size = sum(Path(path).stat().st_size for path in page.loaded)
    assert len(page.loaded) > 5 and size <= 1.5 * MEGABYTE, f"{size / MEGABYTE:.2f} MB"


PLAYGROUND = "book/playground.html"
ROUND = "() => +document.querySelector('.playground .round').textContent.split(' ')[1]"
COLOURS = """canvas => { const {width, height} = canvas, seen = new Set();
    const {data} = canvas.getContext('2d').getImageData(0, 0, width, height);
    for (let i = 0; i < data.length; i += 4) seen.add(data.slice(i, i + 4).join());
    return seen.size }"""


@pytest.fixture
def playground(tab):
    """The playground as it opens; what is told of it must hold in silence."""
    tab.said.clear(), tab.asked.clear()
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.emulate_media(color_scheme="light")
    tab.goto((SITE / PLAYGROUND).as_uri())
    yield tab
    assert tab.said == [] and tab.asked == []
    assert not re.search(r"NaN|undefined|Infinity", tab.inner_html("#playground"))


def test_the_playground_draws_and_is_played_by_keyboard(playground):
    tab = playground
    assert min(tab.eval_on_selector_all(".map:not([data-map=average]) canvas", f"all => all.map({COLOURS})")) > 10
    tab.focus("[data-do=step]")
    for key in ("Enter", "Space"):
        tab.keyboard.press(key)
    assert tab.evaluate(ROUND) == 2 and tab.inner_text(".said").startswith("Round 2:")
    assert tab.eval_on_selector("[data-map=average] canvas", COLOURS) > 3
    tab.focus("[data-handle='2']")
    tab.keyboard.press("Shift+ArrowDown")
    tab.keyboard.press("ArrowRight")
    assert tab.get_attribute("[data-handle='2']", "aria-valuetext") == "0.3 to the right, -2.3 up"
    assert tab.inner_text(".said").startswith("C moved.") and tab.evaluate(ROUND) == 2
    tab.focus("[value=FedAvg]")
    tab.keyboard.press("ArrowRight")
    assert tab.is_checked("[value=FedProx]") and tab.evaluate(ROUND) == 0 and tab.is_visible("[name=mu]")
    tab.focus("[name=mu]")
    tab.keyboard.press("End")
    assert tab.get_attribute("[name=mu]", "aria-valuetext") == "10"


def test_the_playground_is_dragged_and_plays_until_told_otherwise(playground):
    tab = playground
    box = tab.locator("[data-handle='0']").bounding_box()
    tab.mouse.move(box["x"] + 10, box["y"] + 10)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 110, box["y"] + 10)
    tab.mouse.up()
    assert float(tab.get_attribute("[data-handle='0']", "aria-valuenow")) > 0
    tab.click("[data-do=play]")
    tab.wait_for_function(f"({ROUND})() >= 2")
    tab.click("[data-do=play]")
    stopped = tab.evaluate(ROUND)
    tab.wait_for_timeout(600)
    assert tab.evaluate(ROUND) == stopped and tab.inner_text("[data-do=play]") == "Play"
    tab.click("[data-do=reset]")
    assert tab.evaluate(ROUND) == 0


def test_the_playgrounds_lessons_play(playground):
    """The last button of each; one of them ends in a divergence, which is said, and there is nothing left to play."""
    tab, said = playground, []
    lessons = tab.locator(".playground-lessons li")
    for i in range(lessons.count()):
        assert [lesson.is_visible() for lesson in lessons.all()] == [k == i for k in range(lessons.count())]
        button = lessons.nth(i).locator("button").last
        button.click()
        tab.wait_for_function("document.querySelector('[data-do=play]').textContent === 'Play'")
        said.append(tab.inner_text(".said"))
        fallen = said[-1].startswith("Diverged in round 1")
        assert tab.is_disabled("[data-do=step]") == fallen
        assert fallen or said[-1].startswith(f"Round {button.get_attribute('data-rounds')}:")
        tab.click(".lesson-bar [aria-label=Next]")
    assert sum(text.startswith("Diverged") for text in said) == 1


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_serious_bars_the_playground(playground, theme, width):
    """All rules of axe, on the page with a round played."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the package axe-playwright-python")
    playground.set_viewport_size({"width": width, "height": 844})
    playground.emulate_media(color_scheme=theme)
    playground.click("[data-do=step]")
    playground.click("article summary")
    playground.wait_for_timeout(300)
    ran = axe.Axe().run(playground, context={"include": [["article"]]}, options={"preload": False}).response
    grave = [v for v in ran["violations"] if v["impact"] in ("serious", "critical")]
    assert [(v["id"], n["html"][:120]) for v in grave for n in v["nodes"]] == [] and len(ran["passes"]) > 15


@pytest.mark.parametrize("name", ["book/index", "book/bibliography", "book/api_core", "notebooks/mpft/table1",
                                  "notebooks/concepts/09_closed_form", "notebooks/across/claims"])
def test_nothing_serious_bars_a_page_of_each_kind(tab, name):
    """All rules of axe, on the whole page with its navigation; colours are looked at above."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs the package axe-playwright-python")
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.goto((SITE / f"{name}.html").as_uri())
    tab.evaluate("() => Promise.resolve(window.mathematics)")
    options = {"preload": False, "resultTypes": ["violations"], "rules": {"color-contrast": {"enabled": False}}}
    found = axe.Axe().run(tab, options=options).response["violations"]
    assert [(v["id"], v["nodes"][0]["html"][:120]) for v in found if v["impact"] in ("serious", "critical")] == []


def test_the_site_is_small():
    size = sum(p.stat().st_size for p in SITE.rglob("*") if p.is_file())
    assert size <= 40 * MEGABYTE, f"{size / MEGABYTE:.1f} MB"


def test_search_finds_what_is_there(tab):
    tab.set_viewport_size({"width": 1280, "height": 900})
    tab.goto((SITE / "search.html").as_uri() + "?q=prototype")
    tab.wait_for_selector("#search-results li a[href*='i2pfl/method']")     # they come one by one
    found = tab.eval_on_selector_all("#search-results li a", "all => all.map(a => a.getAttribute('href'))")
    assert len(found) > 5 and found[0].startswith("notebooks/concepts/06_prototypes")
    tab.goto((SITE / "search.html").as_uri() + "?q=zyzzyva")
    tab.wait_for_function("document.querySelector('#search-results').innerText.includes('did not match')")
    assert not tab.query_selector("#search-results li a")


# A reader's questions, in the order of the first page, and what the page behind each must say.
ANSWERS = (
    r"Office-10.*I2PFL .*of 9 with .*lite profile, \d+ rounds.*, \d seeds",
    r"supported.*contradicted.*Of these \d+ are supported, \d+ contradicted",
    r"After Holm.s correction over \d+ comparisons .*differ",
    r"fedlib (data|train) ",
    r"class \w+\(FedAvg\)",
    r"(minutes|hours|days)",
    r"launches",
    r"mu.*FedProx",
    r"gradient",
    r"not evidence.*fewer than three seeds",
)


def test_ten_questions_are_answered_one_click_from_the_first_page(tab):
    tab.set_viewport_size({"width": 1280, "height": 900})
    first = (SITE / "book/index.html").as_uri()
    tab.goto(first)
    asked = tab.eval_on_selector_all("#ten-questions li a:first-of-type", "all => all.map(a => [a.innerText, a.href])")
    for (question, place), answer in zip(asked, ANSWERS, strict=True):
        tab.goto(first)
        tab.click(f"#ten-questions li a:has-text({question!r})")
        tab.wait_for_url(place)     # until it is loaded
        assert question.endswith("?")
        assert re.search(answer, tab.inner_text("article"), re.S), question


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
