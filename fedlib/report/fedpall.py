"""FedPall (ICCV 2025): what its pages compute from the printed tables, from its counts and from records."""
import functools

import pandas as pd

from fedlib.experiments import statistics
from fedlib.report import printed
from fedlib.report.page import Page

OURS = "FedPall"
RUNS = 3        # behind each printed mean and standard deviation


# Table 1: printed means and deviations, records

@functools.cache
def spreads() -> pd.DataFrame:
    """Printed standard deviations (points) of Table 1, over three runs: by dataset and method, a column by domain."""
    return printed.of_paper("fedpall", "std").loc["table1"]


def with_spreads(page: Page) -> Page:
    """The page, whose cells have the printed deviations as the column `spread`."""
    known = spreads().stack().to_dict()
    keys = zip(page.cells.block, page.cells.row, page.cells.setting, strict=True)
    page.cells = page.cells.assign(spread=[known.get(key, float("nan")) for key in keys])
    return page


def welch(block: str, row: str, other: str = OURS) -> float:
    """Half of the 95 % interval of other minus row, printed averages of three runs each; nan where none is printed."""
    found = [spreads().avg.get((block, name), float("nan")) for name in (other, row)]
    return statistics.welch(*found, RUNS)


def variants(page: Page) -> dict[str, tuple[str, str]]:
    """{row of ours: (it, the row of the paper that it changes)}, as `Page.compared` takes them."""
    return {row: (row, row.partition(", ")[0]) for row in page.rows if ", " in row}


def places(page: Page) -> pd.DataFrame:
    """FedPall's place among the paper's rows, printed and ours, in each column; nan where not all have a number."""
    part = page.cells[page.cells.row.isin(page.printed_rows)]
    part = part.assign(dataset=part.block.map(page.titles)).rename(columns={"setting": "domain"})
    numbers = part.groupby(["dataset", "domain"], sort=False)[["printed", "ours"]]
    ranks = numbers.rank(ascending=False, method="min").where(numbers.transform("count") == len(page.printed_rows))
    return part[["dataset", "domain"]].join(ranks)[part.row == OURS].set_index(["dataset", "domain"]).dropna(how="all")


def protocols(page: Page) -> pd.DataFrame:
    """What the paper says of its protocol beside the runs of our profiles: a line for each dataset and part of it."""
    parts = ["rounds", "local epochs", "net", "pixels", "share of the training images", "batch", "learning rate"]
    paper = {b: [100, 5 if b == "digits" else 10, "ResNet-50", f"not stated; code: {28 if b == 'digits' else 64}",
                 "10 %" if b == "digits" else "all", f"not stated; code: {64 if b == 'digits' else 32}", "0.01"]
             for b in ("office", "digits", "pacs")}

    def ours(block, profile):
        if (run := page.run(OURS, block, profile)) is None:
            return ["–"] * len(parts)
        net = run.net.net.replace("resnet", "ResNet-") + (f", width {run.net.width}" if run.net.width else "")
        share = run.data.fraction * (0.1 if block == "digits" else 1)       # a tenth in the split itself
        return [run.protocol.rounds, run.protocol.epochs, net, run.data.size, "all" if share == 1 else f"{share:.0%}",
                run.protocol.batch, f"{run.protocol.lr:g}"]

    return pd.concat({page.titles[b]: pd.DataFrame({"the paper": said, "ours, paper profile": ours(b, "paper"),
                                                    "ours, lite profile": ours(b, "lite")}, parts)
                      for b, said in paper.items()})
