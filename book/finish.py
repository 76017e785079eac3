"""What is done to the rendered site: a page loads what it uses, all that is pressed has a name, the PDF button leads to
the PDF.

The theme loads all icons of Font Awesome as a script of 1.5 MB, and on every page the search's index. The pages use
some twenty icons, which are cut out of that script into the styles, and only the search page needs the index.
"""
import html
import re
import textwrap
import urllib.parse
from pathlib import Path

SEARCH = re.compile(r'\s*<script src="[^"]*(?:searchtools|language_data|searchindex)\.js[^"]*"></script>')
ICONS = re.compile(r'\s*<script [^>]*fontawesome\.js[^>]*></script>')
NAMES = re.compile(r"\bfa-[a-z][a-z-]*")
DRAWN_BY_SCRIPT = {"fa-xmark"}      # that pages show later
PRINTS = re.compile(r'<button onclick="window\.print\(\)"(\s[^>]*?)title="Print[^"]*"(.*?)</button>', re.S)
FOLDS = re.compile(r'">([^<]+)</a>(<details[^>]*>)<summary>(?=<span class="toctree-toggle")')
CELLS = re.compile(r' id="(T_\w+?_(?:row\d+_col|level\d+_(?:row|col))\d+)"')
# What no style asks for: the places of a table's cells in their classes, and the blanks between its tags.
PLACES = re.compile(r' class="(?:data|blank|col_heading|row_heading|index_name)\b[^"]*"')
OF_TABLES = r"</?(?:table|thead|tbody|tr|th|td)\b"
BLANKS = re.compile(rf"(?<=<t[dh]) (?=>)|({OF_TABLES}[^>]*>)\s+(?={OF_TABLES})")
FIRST = re.compile(r"</h1>.*?<p>(.*?)</p>", re.S)
LISTS = ' role="list" class="citation-list"'       # of entries that a screen reader does not take for a list's
STYLES = "_static/styles/pydata-sphinx-theme.css"


def finish(site: Path):
    """Make the rendered site light, and name what folds."""
    script, used = (site / "_static/scripts/fontawesome.js").read_text(encoding="utf-8"), set(DRAWN_BY_SCRIPT)
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        used |= set(NAMES.findall(text))
        text = FOLDS.sub(r'">\1</a>\2<summary aria-label="Pages of: \1">', ICONS.sub("", text))
        styled = set(re.findall(r"#(T_\w+)", text))
        text = CELLS.sub(lambda cell, styled=styled: cell[0] if cell[1] in styled else "", text)
        text = BLANKS.sub(r"\1", PLACES.sub("", text))
        text = described(text.replace(LISTS, ' class="citation-list"'))
        path.write_text(text if path.name == "search.html" else SEARCH.sub("", text), encoding="utf-8")
    styles = site / STYLES
    plain = without_fonts(styles.read_text(encoding="utf-8"))
    styles.write_text(plain + icons(script, sorted(used)), encoding="utf-8")
    unused = ("_static/scripts/fontawesome.js*", "_static/**/*.map", "_static/vendor/fontawesome/webfonts/*")
    for path in {path for pattern in unused for path in site.glob(pattern)}:
        path.unlink()


def described(page: str) -> str:
    """The page with the beginning of its first paragraph as its description, which search engines and previews show."""
    if not (first := FIRST.search(page)):
        return page
    words = textwrap.shorten(html.unescape(re.sub(r"<[^>]+>", "", first[1])), 200, placeholder=" …")
    return page.replace("</head>", f'<meta name="description" content="{html.escape(words)}">\n</head>', 1)


def link_pdf(site: Path, name: str):
    """Each page's button that prints becomes a link to the book's PDF, `name` in the site."""
    for path in site.rglob("*.html"):
        text, up = path.read_text(encoding="utf-8"), "../" * (len(path.relative_to(site).parts) - 1)
        path.write_text(PRINTS.sub(rf'<a href="{up}{name}"\1title="The book as a PDF"\2</a>', text), encoding="utf-8")


def without_fonts(styles: str) -> str:
    """The styles without Font Awesome's fonts and the places of its icons in them."""
    styles = re.sub(r"@font-face\{[^}]*Font Awesome[^}]*\}", "", styles)
    return re.sub(r'(?:\.fa-[\w-]+:+before,?)+\{content:"[^"]*"\}', "", styles)


def icons(script: str, names: list[str]) -> str:
    """Styles that draw the icons of these names, "fa-bars", as masks in the colour of the text."""
    rules = []
    for name in names:
        found = re.search(rf'[,{{]"?{name[3:]}"?:\[(\d+),(\d+),\[[^\]]*\],"[0-9a-f]+","([^"]+)"', script)
        if found:       # others, like fa-solid or fa-lg, name no picture
            width, height, path = found.groups()
            drawing = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"><path d="{path}"/></svg>'
            rules.append(f'.{name}{{--icon:url("data:image/svg+xml,{urllib.parse.quote(drawing)}")}}')
    shape = ("[class*=fa-]:before{content:'';display:inline-block;width:1em;height:1em;vertical-align:-.125em;"
             "background:currentcolor;mask:var(--icon) center/contain no-repeat}")
    return "\n" + shape + "".join(rules)
