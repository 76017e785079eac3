"""matplotlib's figures in the pages: SVG that stands in the HTML, in the colours and the type of the page.

A kernel of the book draws with `SETTINGS` and `RC`. `in_page` then names the colours that follow light and dark (the
table is `fedlib.report.plots.THEMED`, their values are in _static/fedlib.css), leaves the font to the page, drops what
only matplotlib needs, and gives the figure its text. The same figure gives the same characters.
"""
import hashlib
import html
import re
from collections import Counter

from traitlets.config import Config

from fedlib.report.plots import THEMED

SETTINGS = Config(InlineBackend={
    "figure_formats": {"svg"},
    "print_figure_kwargs": {"bbox_inches": "tight", "facecolor": "none",
                            "metadata": dict.fromkeys(("Date", "Creator", "Format", "Type"))}})
RC = {"svg.fonttype": "none", "svg.hashsalt": "fedlib"}         # text as text; names made of the content alone
NUMBER = r"-?[\d.]+"
LINE = rf"([ML] {NUMBER} {NUMBER})(?: L {NUMBER} {NUMBER}){{2,}}"
LONG = 600          # characters of a path from which a tenth of a point is enough: contours, bands, curves
OFTEN = 3           # times that a style comes before it is a class
SCALE = 1.6         # pixels of the page for a point of the figure, where there is room: type as large as the page's


def in_page(svg: str, text: str, place: str = "") -> str:
    """An SVG of matplotlib's as an element at a place of a page; text: what it shows, for who cannot see it."""
    name = "f" + hashlib.sha256((place + svg).encode()).hexdigest()[:6]
    width, height = map(float, re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg).groups())
    body = svg[svg.index(">", svg.index("<svg")) + 1:svg.rindex("</svg>")]
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.S)
    body = re.sub(r"<[^>]+>", lambda tag: plain(tag[0]), body)
    used = dict.fromkeys(re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', body))
    places = {a or b: f"{name}-{i}" for i, (a, b) in enumerate(used)}       # a page has several figures
    body = re.sub(r' id="([^"]+)"', lambda m: f' id="{places[m[1]]}"' if m[1] in places else "", body)
    body = re.sub(r'(href="#|url\(#)([^")]+)', lambda m: m[1] + places[m[2]], body)
    body = re.sub(r">\s+<", "><", body).strip()
    body = re.sub(r'(<g clip-path="[^"]+">)<use[^>]*/></g>(?:\1<use[^>]*/></g>)+', together, body)
    body = styled_once(unwrapped(body), name)
    return (f'<svg class="plot" role="img" aria-label="{html.escape(text)}" '
            f'viewBox="0 0 {width:.2f} {height:.2f}" width="{SCALE * width:.0f}">{body}</svg>')


def unwrapped(body: str) -> str:
    """Without the groups that say nothing: matplotlib has one around each thing that it draws."""
    kept, ends = [], []
    for part in re.split(r"(<g>|<g [^>]*>|</g>)", body):
        if part.startswith("<g"):
            ends.append("" if part == "<g>" else "</g>")
            kept.append(part if ends[-1] else "")
        else:
            kept.append(ends.pop() if part == "</g>" else part)
    return "".join(kept)


def styled_once(body: str, name: str) -> str:
    """Styles of lines and marks that come back often, said once for the figure: a third of many a figure is styles."""
    seen = Counter(re.findall(r'<(?:path|use) [^>]*style="([^"]+)"', body))
    known = {style: f"{name}-{i}" for i, style in enumerate(s for s, times in seen.items() if times >= OFTEN)}
    body = re.sub(r'(<(?:path|use) [^>]*)style="([^"]+)"',
                  lambda m: f'{m[1]}class="{known[m[2]]}"' if m[2] in known else m[0], body)
    rules = "".join(f".{given}{{{style}}}" for style, given in known.items())
    return body + (f"<style>{rules}</style>" if rules else "")


def together(points: re.Match) -> str:
    """Points behind the same frame in one group, not each in its own."""
    return points[1] + points[0].replace(points[1], "").replace("</g>", "") + "</g>"


def plain(tag: str) -> str:
    """A tag with the theme's colours, without a font's name, with numbers to a hundredth of a point, or to a tenth."""
    tag = re.sub(r"\s+", " ", tag).replace("xlink:href", "href")
    if tag.startswith("<image"):
        return tag
    tag = re.sub(r"font-family: [^;\"]+;? ?", "", tag)
    tag = re.sub(r"#[0-9a-f]{6}\b", lambda m: f"var(--plot-{THEMED[m[0]]})" if m[0] in THEMED else m[0], tag)
    digits = 1 if tag.startswith("<path") and len(tag) > LONG else 2
    tag = re.sub(r"scale\([^)]*\)|-?\b\d+\.\d{3,}",
                 lambda m: m[0] if m[0][0] == "s" else f"{float(m[0]):.{digits}f}", tag)
    return re.sub(LINE, steps, tag)


def steps(line: re.Match) -> str:
    """A line of a path, its points as steps from the one before, which are shorter to write."""
    points = [tuple(map(float, pair)) for pair in re.findall(f"({NUMBER}) ({NUMBER})", line[0])]
    return f"{line[1]} l " + " ".join(short(b - a) for one, other in zip(points, points[1:])
                                      for a, b in zip(one, other, strict=True))


def short(number: float) -> str:
    """To a hundredth, without what a number can do without: .5 for 0.50, 0 for -0.00."""
    said = f"{number:.2f}".rstrip("0").rstrip(".")
    return "0" if said == "-0" else re.sub(r"^(-?)0\.", r"\1.", said)
