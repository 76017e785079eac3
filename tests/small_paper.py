"""A paper with one table on tiny_digits, for tests of tables, commands and batches."""
from pathlib import Path

from fedlib.engine import records
from fedlib.experiments import tables

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

CLAIM = """
[[claims]]
id = "over"
source = "Table 1"
says = "FedProx is above FedAvg."
table = "t"
block = "b"
setting = "avg"
better = "FedProx"
than = ["FedAvg"]
"""


def content(rows: str, seeds=(0,), protocol="rounds = 4, lr = 0.05", more="", title="Small") -> str:
    """The paper's TOML. rows: of the table; more: further tables and claims."""
    return CONTENT.format(rows=rows, seeds=list(seeds), protocol=protocol, more=more, title=title)


def place(folder: Path, text: str, printed: str = "", name: str = "small") -> Path:
    """The folder of papers, made, with this one in it. printed: lines of its CSV."""
    folder.mkdir()
    (folder / f"{name}.toml").write_text(text)
    (folder / f"{name}.csv").write_text("table,dataset,setting,method,metric,value\n" + printed)
    return folder


def use(tmp_path: Path, monkeypatch, text: str, printed: str = "", name: str = "small") -> Path:
    """The same, and no other papers are known in this process."""
    papers = place(tmp_path / "papers", text, printed, name)
    monkeypatch.setattr(tables, "PAPERS", papers)
    return papers


def a_record(planned, accuracy, loss: float = 1.0) -> dict:
    """A record of this planned run: in every domain the accuracy, or one for each round; loss: of training."""
    curve = accuracy if isinstance(accuracy, list) else [accuracy] * planned.run.protocol.rounds
    domains = [d for d in planned.run.data.domains if d not in planned.run.data.unseen]
    every = [{"round": r + 1, "acc": dict.fromkeys(domains, v), "loss": 1.0, "train_loss": loss}
             for r, v in enumerate(curve)]
    return {"run": planned.run.spec, "made": {"seconds": 1.0}, "rounds": every}


def fill(results: Path, planned: list, accuracy, loss: float = 1.0):
    """Records of those planned runs that accuracy(planned) has a number for, or a list of numbers by round."""
    for p in planned:
        if (value := accuracy(p)) is not None:
            records.write_record(p.run.path(results), a_record(p, value, loss=loss))
