"""matplotlib's SVG as it stands in a page: the theme's colours, the page's type, its text, and always the same."""
import io
import re

import figures
import matplotlib
import numpy as np
import pandas as pd
import pytest
from conftest import ROOT

from fedlib.report import plots

FRAME = pd.DataFrame({"FedAvg": [20.0, 30.0], "FedBN": [40.0, 50.0]}, index=["scans", "a & b"])
IMAGE = np.zeros((1, 3, 8, 8), dtype=np.uint8)
NUMBERS = pd.DataFrame([(r, m, 10.0 * r) for m in ("FedAvg", "FedBN") for r in (1, 2)],
                       columns=["round", "method", "mean"])
DRAWN = {"bars": lambda: plots.bars(FRAME, half=FRAME / 10), "matrix": lambda: plots.matrix(FRAME),
         "curves": lambda: plots.curves(NUMBERS, few=["FedAvg"]), "domains": lambda: plots.domains(FRAME),
         "drift": lambda: plots.drift(*moved())}


def moved():
    import torch
    moves = {"scans": torch.tensor([3.0, 0, 4]), "street": torch.tensor([0.0, 2, 0])}
    return moves, (moves["scans"] + moves["street"]) / 2


def drawn(figure) -> str:
    """The figure as a kernel of the book gives it."""
    file = io.StringIO()
    with matplotlib.rc_context(figures.RC):
        figure.savefig(file, format="svg", **figures.SETTINGS.InlineBackend.print_figure_kwargs)
    return file.getvalue()


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_has_a_text_and_is_drawn_in_the_themes_colours(name):
    svg = figures.in_page(drawn(DRAWN[name]()), 'two "bars" & more')
    assert svg.startswith('<svg class="plot" role="img" aria-label="two &quot;bars&quot; &amp; more" viewBox="')
    assert "<text" in svg and "font-family" not in svg and "<!--" not in svg
    assert re.search(r"(fill|stroke): var\(--plot-", svg)
    left = set(re.findall(r"#[0-9a-f]{6}\b", svg))
    assert not left & set(plots.THEMED) and not re.search(r"\d\.\d{3}", re.sub(r"scale\([^)]*\)", "", svg))


def test_a_line_is_written_in_steps_and_ends_where_it_did():
    """Of what lies on it: the steps are differences of rounded places, so that nothing adds up."""
    assert figures.plain('<path d="M 1.5 2.5 L 2.3 2.5 L 2 12.5 L -3 0.123456 z" clip="x"/>') == \
        '<path d="M 1.5 2.5 l .8 0 -.3 10 -5 -12.38 z" clip="x"/>'
    assert figures.plain('<path d="M 1 2 C 1 2 3 4 5 6 L 5 7 L 6 7 L 6 8"/>') == \
        '<path d="M 1 2 C 1 2 3 4 5 6 L 5 7 l 1 0 0 1"/>'
    assert figures.plain('<path d="M 1 2 L 3 4"/>') == '<path d="M 1 2 L 3 4"/>'
    assert list(map(figures.short, (0.5, -0.5, 0, -0.001, 10, 100, -20.1))) == \
        [".5", "-.5", "0", "0", "10", "100", "-20.1"]
    walk = np.cumsum(np.sin(np.arange(400)))
    path = "M 0 0 " + " ".join(f"L {x:.6f} {y:.6f}" for x, y in enumerate(walk))
    said = re.search('l ([^"]+)"', figures.plain(f'<path d="{path}"/>'))[1].split()
    ends = sum(map(float, said[::2])), sum(map(float, said[1::2]))
    assert ends == pytest.approx((399, walk[-1]), abs=0.051)


def test_a_style_that_comes_back_is_said_once_and_for_this_figure_alone():
    svgs = [figures.in_page(drawn(plots.curves(NUMBERS * times)), "lines") for times in (1, 2)]
    for svg in svgs:
        body, _, rules = svg.partition("<style>")
        known = dict(re.findall(r"\.([\w-]+)\{([^}]+)\}", rules))
        assert rules.endswith("</style></svg>") and set(re.findall(r'class="(f[\w-]+)"', body)) == set(known)
        assert all(body.count(f'class="{name}"') >= figures.OFTEN for name in known)
        assert not any(style in body for style in known.values())
        assert any("var(--plot-grid)" in style for style in known.values())
    assert not set(re.findall(r"\.(f[\w-]+)\{", svgs[0])) & set(re.findall(r"\.(f[\w-]+)\{", svgs[1]))


def test_a_figure_is_the_same_each_time_and_shares_no_name_with_another():
    one, two = (figures.in_page(drawn(plots.bars(FRAME)), "bars") for _ in range(2))
    assert one == two
    other = figures.in_page(drawn(plots.bars(2 * FRAME)), "bars")
    names = [re.findall(r' id="([^"]+)"', svg) for svg in (one, other)]
    assert names[0] and not set(names[0]) & set(names[1]) and all(len(n) == len(set(n)) for n in names)
    for svg, known in zip((one, other), names, strict=True):
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) == set(known)


def test_numbers_on_a_cell_keep_their_colour_and_words_beside_it_do_not():
    svg = figures.in_page(drawn(plots.matrix(FRAME + 30)), "a map")
    texts = [(word, re.findall("fill: ([^;]+)", style)) for style, word in
             re.findall(r'<text style="([^"]*)"[^>]*>([^<]+)', svg)]
    assert {word: ink[0] for word, ink in texts if ink} == dict.fromkeys(("50", "60", "70", "80"), plots.looks.LIGHT)
    assert ("scans", []) in texts and ("accuracy (%)", []) in texts


def test_pictures_stay_pictures():
    import torch
    svg = figures.in_page(drawn(plots.grid({"scans": torch.from_numpy(IMAGE)})), "a digit")
    assert re.findall(r'href="data:image/(\w+);base64', svg) == ["png"] and ">scans</text>" in svg


def test_the_style_sheet_knows_each_colour_in_light_and_dark():
    sheet = (ROOT / "book/_static/fedlib.css").read_text(encoding="utf-8")
    light, dark = (re.search(rf"^{re.escape(place)} {{([^}}]*--plot[^}}]*)}}", sheet, re.M)[1]
                   for place in ("html", 'html[data-theme="dark"]'))
    values = dict(re.findall(r"--plot-(\w+): ([^;]+);", light))
    assert set(values) == set(plots.THEMED.values())
    own = {name for name, value in values.items() if not value.startswith("var(--pst")}       # the theme has the others
    assert set(re.findall(r"--plot-(\w+):", dark)) == own
    assert {plots.THEMED[value] for value in values.values() if value in plots.THEMED} == own
    for name, value in re.findall(r"--plot-(\w+): ([^;]+);", dark):
        assert name in ("grid", "pale") or contrast(value, "#14181e") > 3, f"{name} is hard to see in the dark"


def contrast(ink: str, ground: str) -> float:
    """The ratio of two colours' luminances (WCAG 2)."""
    linear = [np.array([c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in
                        matplotlib.colors.to_rgb(colour)]) @ [0.2126, 0.7152, 0.0722] for colour in (ink, ground)]
    return (max(linear) + 0.05) / (min(linear) + 0.05)


def test_groups_that_say_nothing_are_gone_and_what_they_hold_stays():
    given = '<g><g clip-path="url(#a)"><g><path d="M 0 0"/></g></g><g><text>x</text></g></g><g transform="t"></g>'
    assert figures.unwrapped(given) == '<g clip-path="url(#a)"><path d="M 0 0"/></g><text>x</text><g transform="t"></g>'
    svg = figures.in_page(drawn(plots.bars(FRAME)), "bars")
    assert "<g>" not in svg and svg.count("<g ") == svg.count("</g>")
