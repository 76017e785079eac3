"""A paper's proposal in one picture: what a client does, what travels, what the server does, and what is added."""
import html
import textwrap
import tomllib
from pathlib import Path

from IPython.display import HTML

SCHEMES = tomllib.loads((Path(__file__).parent / "schemes.toml").read_text())
WIDTH, LINE, EDGE = 480, 19, 16     # units of the drawing: its width, a line of text, the air inside of a box
WIDE, NARROW = 48, 20               # letters in a line across a box, and beside an arrow, in a wide bold face


def picture(paper: str, title: str) -> HTML:
    """A round of the paper's method as a drawing in the page's colours. title: a screen reader says it."""
    scheme = SCHEMES[paper]
    server = {"name": "the server", "steps": scheme["server"], "css": "server"}
    client = {"name": scheme["clients"], "steps": scheme["client"], "css": "client", "stays": scheme["stays"]}
    top, bottom = (client, server) if scheme.get("begins") == "client" else (server, client)
    falls, rises = ("up", "down") if top is client else ("down", "up")      # which message goes down the page
    y, first = _box(top, 8)
    after, arrows = _arrows(scheme, falls, rises, y)
    end, second = _box(bottom, after)
    ids, size = (f"{paper}-scheme", f"{paper}-scheme-text"), f"0 0 {WIDTH} {end + 32}"
    return HTML(f'<svg class="scheme" viewBox="{size}" role="img" aria-labelledby="{" ".join(ids)}" '
                f'xmlns="http://www.w3.org/2000/svg"><title id="{ids[0]}">{html.escape(title)}</title>'
                f'<desc id="{ids[1]}">{html.escape(in_words(paper))}</desc>'
                f"{first}{arrows}{second}{_legend(scheme['base'], end + 20)}</svg>")


def in_words(paper: str) -> str:
    """The same for who does not see it."""
    scheme = SCHEMES[paper]
    parts = {"The server sends": scheme["down"].values(), f"A client ({scheme['clients']})": scheme["client"],
             "A client sends": scheme["up"].values(), "The server": scheme["server"]}
    order = sorted(parts, key=list(parts).index) if scheme.get("begins") != "client" else [
        list(parts)[i] for i in (1, 2, 3, 0)]
    said = [f"{who}: {'; '.join(_plain(line) for line in parts[who])}." for who in order]
    return " ".join([*said, f"Never leaves a client: {scheme['stays']}.", f"Added means: to {scheme['base']}.",
                     "All this happens once." if scheme.get("once") else "This is one round of many."])


def _plain(line: str) -> str:
    """The line without its signs; what is added is said to be."""
    parts = [part.strip() for part in line.split(";")]
    return "; ".join(part[2:] + " (added)" * part.startswith("+") for part in parts)


def _lines(line: str, width: int) -> list[tuple[bool, bool, str]]:
    """(is it new, is it the first of its part, text) of each line of text; a part begins with its sign."""
    found = []
    for part in line.split(";"):
        new, words = part.strip().startswith("+"), part.strip()[2:]
        found += [(new, i == 0, words) for i, words in enumerate(textwrap.wrap(words, width))]
    return found


def _texts(lines: list[str], x: int, y: int, width: int) -> tuple[int, str]:
    """(y below them, SVG) of lines of text, each part with a full mark where it is new, else with an empty one."""
    parts = []
    for new, begins, words in [found for line in lines for found in _lines(line, width)]:
        if begins:
            parts.append(f'<circle class="{"new" if new else "old"}" cx="{x + 4}" cy="{y - 5}" r="4"/>')
        parts.append(f'<text class="{"new" if new else "old"}" x="{x + 15}" y="{y}">{html.escape(words)}</text>')
        y += LINE
    return y, "".join(parts)


def _box(what: dict, y: int) -> tuple[int, str]:
    """(y below it, SVG) of one side; behind a client stand others."""
    heads = textwrap.wrap(what["name"], WIDE)
    head = "".join(f'<text class="name" x="{2 * EDGE}" y="{y + 24 + i * LINE}">{html.escape(line)}</text>'
                   for i, line in enumerate(heads))
    below, steps = _texts(what["steps"], 2 * EDGE, y + 26 + len(heads) * LINE, WIDE)
    if "stays" in what:
        head += f'<path class="rule" d="M{2 * EDGE} {below - 6}H{WIDTH - 2 * EDGE}"/>'
        stays = textwrap.wrap(f"never leaves: {what['stays']}", WIDE)
        steps += "".join(f'<text class="stays" x="{2 * EDGE}" y="{below + 12 + i * LINE}">{html.escape(line)}</text>'
                         for i, line in enumerate(stays))
        below += 6 + len(stays) * LINE
    height = below - y - 4
    box = f'<rect class="{what["css"]}" x="{EDGE}" y="{y}" width="{WIDTH - 2 * EDGE}" height="{height}" rx="8"/>'
    if what["css"] == "client":
        left, right = EDGE, WIDTH - EDGE - 8
        behind = "".join(f'<path class="others" d="M{left + d} {y + height + d}H{right + d}q8 0 8 -8V{y + 8 + d}"/>'
                         for d in (5, 10))
        return y + height + 10, f"{behind}{box}{head}{steps}"
    return y + height, f"{box}{head}{steps}"


def _arrows(scheme: dict, falls: str, rises: str, y: int) -> tuple[int, str]:
    """(y of the next box, SVG) of the two messages: left the one that goes down the page, right the other."""
    parts, ends, sides = [], [], {falls: EDGE + 8, rises: WIDTH // 2 + 8}
    for which, x in sides.items():
        said = ("once" if scheme.get("once") else "sent") + (" to the server" if which == "up" else " to each client")
        parts.append(f'<text class="name" x="{x + 20}" y="{y + 28}">{said}</text>')
        below, words = _texts(list(scheme[which].values()), x + 20, y + 28 + LINE, NARROW)
        parts.append(words)
        ends.append(below)
    high, low = y + 6, max(ends) - 2
    for which, x in sides.items():
        tip, back = (low, -8) if which == falls else (high, 8)
        head = f"M{x - 6} {tip + back}L{x} {tip}L{x + 6} {tip + back}"
        parts.append(f'<path class="arrow" d="M{x} {high}V{low}{head}"/>')
    return low + 6, "".join(parts)


def _legend(base: str, y: int) -> str:
    """What the two marks mean."""
    parts = []
    for css, x, said in (("new", EDGE, f"added to {base}"), ("old", WIDTH // 2, f"as in {base}")):
        parts.append(f'<circle class="{css}" cx="{x + 4}" cy="{y - 5}" r="4"/>'
                     f'<text class="{css}" x="{x + 15}" y="{y}">{html.escape(said)}</text>')
    return "".join(parts)
