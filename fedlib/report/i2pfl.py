"""I2PFL (arXiv:2501.08521): what its pages compute from the printed tables and from records."""
import pandas as pd

from fedlib.experiments import tables
from fedlib.experiments.statistics import interval
from fedlib.report import plots, printed, text
from fedlib.report.page import Page

DATASETS = {"digits": "Digits", "office": "Office-10", "pacs": "PACS"}
NAMES = DATASETS | {f"table{k}": f"Table {k}" for k in range(1, 8)}
OURS = "I2PFL"
FORMS = {"share, 2": "{:.0%}", "share, 7": "{:.0%}", "accuracy, 2": "{:.1f}", "accuracy, 7": "{:.1f}",
         "change": "{:+.1f}"}       # of what `shares` and `changes` give
TWO_VALUES = "No records of two values in this profile yet."


# Tables 2 and 7: as many clients for each domain

def shares() -> pd.DataFrame:
    """Clients of each domain in Tables 2 and 7, and the share of its training images that they draw together.

    A client draws a fixed share of its domain in the paper's protocol; a domain cannot give more than all it has.
    """
    two, seven = (tables.load_table(f"i2pfl/table{k}") for k in (2, 7))
    lines = {}
    for block, title in DATASETS.items():
        data = two.blocks[block]["paper"]["data"]
        for domain, *clients in zip(data["domains"], data["clients"], seven.data[block]["clients"], strict=True):
            lines[title, domain] = [*clients, *(min(1, n * data["fraction"]) for n in clients)]
    return _by_domain(lines, ["clients, 2", "clients, 7", "share, 2", "share, 7"])


def changes() -> pd.DataFrame:
    """Printed accuracy (%) in Tables 2 and 7, means over the methods, by dataset and domain or average.

    change: in points; methods that rise: how many of the nine have a higher accuracy in Table 7.
    """
    every, lines = printed.of_paper("i2pfl"), {}
    for block, title in DATASETS.items():
        two, seven = (every.loc[f"table{k}"].loc[block].dropna(axis=1) for k in (2, 7))
        for domain in [*two.columns.drop("avg"), "avg"]:
            change = seven[domain] - two[domain]
            lines[title, domain] = [two[domain].mean(), seven[domain].mean(), change.mean(), (change > 0).sum()]
    return _by_domain(lines, ["accuracy, 2", "accuracy, 7", "change", "methods that rise"])


def leads(table: str) -> pd.DataFrame:
    """Printed averages of a table: by how many points I2PFL is ahead of the second best, and of FedAvg."""
    averages = printed.of_paper("i2pfl").avg.loc[table].unstack("method")
    others = averages.drop(columns=OURS)
    frame = pd.DataFrame({"second best": others.idxmax(axis=1), "ahead of it": averages[OURS] - others.max(axis=1),
                          "ahead of FedAvg": averages[OURS] - averages.FedAvg})
    return frame.rename(index=DATASETS).rename_axis(None)


def _by_domain(lines: dict, columns: list[str]) -> pd.DataFrame:
    index = pd.MultiIndex.from_tuples(lines, names=["dataset", "domain"])
    return pd.DataFrame(list(lines.values()), index, columns)


# words and tables

def contradicted() -> pd.DataFrame:
    """What the text says of its tables and they contradict or make smaller: where, the text says, the table says."""
    every = printed.of_paper("i2pfl")
    digits, pacs = (every.loc["table2"].loc[block].dropna(axis=1) for block in ("digits", "pacs"))
    five, dslr = every.avg.loc["table5"].unstack("method"), every.dslr.loc["table4"].loc["office"]
    place, ahead = int((digits.syn > digits.syn[OURS]).sum()) + 1, leads("table2").loc[DATASETS["pacs"]]
    first = pacs.drop(columns="avg").idxmax() == OURS
    best = pd.concat([every.loc["table7"].loc[b].dropna(axis=1).drop(columns="avg").idxmax() == OURS for b in DATASETS])
    references = [f"{DATASETS[block]} {v.reweighting - v.averaging:.2f} over averaging, "
                  f"{v.reweighting - v.clustering:.2f} over clustering" for block, v in five.iterrows()]
    lines = [
        ("Table 2", "I2PFL has superior performance across all domains of Digits.",
         f"On SYN it is number {place} of {len(digits)}, {digits.syn.max() - digits.syn[OURS]:.2f} points below "
         f"{digits.syn.idxmax()}."),
        ("Table 2", "On PACS it outperforms the others in most domains.",
         f"It is the best in {first.sum()} of {len(first)}."),
        ("Table 2", "On PACS it is 1.15 points above MOON.",
         f"True, but the second best is {ahead['second best']}, {ahead['ahead of it']:.2f} points below."),
        ("Table 5", "Reweighting brings 0.81, 2.86 and 2.35 points on Digits, Office-10 and PACS.",
         f"Three numbers with two references: {'; '.join(references)}."),
        ("Table 4", "EMA improves performance across all datasets.",
         f"On average, yes. On DSLR the row without EMA is higher, {dslr['w/o EMA']:.2f} against {dslr['full']:.2f}."),
        ("Table 7", "It consistently outperforms the others across multiple domains.",
         f"It is the best in {best.sum()} of {len(best)} domains.")]
    return pd.DataFrame(lines, columns=["where", "the text says", "the table says"])


# Figures 6 to 8: each row has another value of one setting

def varied(page: Page) -> str:
    """The name of the setting that the rows change."""
    return next(iter(page.table.rows[0]["settings"]))


def grid(page: Page) -> dict[str, float]:
    """{row: its value of the setting}."""
    return {row["name"]: row["settings"][varied(page)] for row in page.table.rows}


def best(page: Page) -> dict[str, float]:
    """{title: the value that the paper takes for the dataset, or for the one whose features these are}; not mini."""
    own, blocks = page.table.methods[OURS], page.table.blocks
    return {page.titles[b]: (own["settings"] | own["at"].get(b, {}))[varied(page)] for b in page.titles
            if blocks[b].get("claims_of", b) in DATASETS}


def curve(page: Page, setting: str, even: bool = False):
    """Average accuracy against the setting, in words; datasets with records of one value alone are left out.

    even: the values stand at even distances.
    """
    part = page.averages[page.averages.n > 0]
    part = part[part.groupby("block").row.transform("size") > 1]
    part = part.assign(dataset=part.block.map(page.titles), mean=part.ours, **{setting: part.row.map(grid(page))})
    return text.or_empty(part, lambda frame: plots.sensitivity(frame, setting=setting, even=even, best=best(page)),
                         TWO_VALUES)


def agreement(page: Page):
    """Our best value beside the paper's, by dataset; gain: how much it is above (points), paired by seed.

    run: the values of the grid that have records. Ours is the best of several, so a gain whose 95 % interval leaves out
    zero may still be luck.
    """
    lines, wide = {}, page.by()
    for block in page.ran:
        runs = wide.loc[block].dropna(axis=1, how="all").rename(columns=grid(page))
        if runs.shape[1] > 1:
            theirs, ours = best(page).get(page.titles[block]), runs.mean().idxmax()
            gap = (runs[ours] - runs[theirs]).dropna() if theirs in runs else []
            mean, half = interval(gap)
            word = ("not in the paper" if theirs is None else "not run" if not len(gap)
                    else "the same value" if ours == theirs
                    else "another, its interval leaves out zero" if mean > half else "another, not settled")
            lines[page.titles[block]] = {"run": f"{runs.shape[1]} of {len(page.rows)}", "paper": theirs, "ours": ours,
                                         "gain": mean, "±": half, "n": len(gap), "our best is": word}
    frame = pd.DataFrame.from_dict(lines, orient="index").rename_axis("dataset")
    return text.or_empty(frame, lambda frame: text.table(frame, {"paper": "{:g}", "ours": "{:g}", "gain": "{:+.1f}",
                                                                 "±": "{:.1f}"}), TWO_VALUES)
