"""A paper with one table on tiny_digits, for tests of tables, commands and batches."""
from pathlib import Path

CONTENT = """
[paper]
name = "{title}"
title = "{title}"
[blocks.b]
title = "B"
columns = {{ scans = "S", street = "T" }}
[blocks.b.mini]
data = {{ name = "tiny_digits", domains = ["scans", "street"], fraction = 0.5 }}
net = {{ net = "linear" }}
protocol = {{ {protocol} }}
[tables.t]
title = "A small table"
blocks = ["b"]
seeds = {seeds}
select = "last"
rows = [{rows}]
{more}"""


def content(rows: str, seeds=(0,), protocol="rounds = 4, lr = 0.05", more="", title="Small") -> str:
    """The paper's TOML. rows: of the table; more: further tables and claims."""
    return CONTENT.format(rows=rows, seeds=list(seeds), protocol=protocol, more=more, title=title)


def place(folder: Path, text: str, printed: str = "", name: str = "small") -> Path:
    """The folder of papers, made, with this one in it. printed: lines of its CSV."""
    folder.mkdir()
    (folder / f"{name}.toml").write_text(text)
    (folder / f"{name}.csv").write_text("table,dataset,setting,method,metric,value\n" + printed)
    return folder
