"""Write the results table of README.md from the records: `python book/readme.py`. A test keeps it current."""
import re
from pathlib import Path

from fedlib import records, tables

ROOT = Path(__file__).parent.parent
MARKS = re.compile(r"(<!-- results -->\n).*?(<!-- /results -->)", re.S)


def results_table() -> str:
    """Markdown: paper and table, dataset, method, printed average, our mean ± half interval (n), profile.

    Of each paper its first table.
    """
    lines = ["| paper | table, dataset | method | printed | ours (95 % interval, n seeds) | profile |",
             "|---|---|---|---|---|---|"]
    papers = tables.papers()
    for ident in sorted({i.split("/")[0]: i for i in reversed(tables.idents())}.values()):
        table = tables.load(ident)
        for profile in ("paper", "lite"):           # mini is not the paper's experiment
            cells = tables.compare(table, profile, records.folder(ROOT / "results"))
            for line in cells[(cells.setting == "avg") & (cells.n > 0)].itertuples():
                paper, number = ident.split("/")
                name, title = papers[paper]["paper"].get("name", paper), table.blocks[line.block]["title"]
                lines.append(f"| {name} | {number}, {title} | {line.row} "
                             f"| {tables.cell(line)} ({line.n}) | {profile} |")
    return "\n".join(lines) + "\n"


def renewed(text: str) -> str:
    """The README with its table made anew."""
    return MARKS.sub(lambda m: m[1] + results_table() + m[2], text)


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(renewed(readme.read_text()))
