"""I2PFL (arXiv:2501.08521): what its pages compute from the printed tables and from records."""
import pandas as pd

from fedlib.experiments import tables
from fedlib.report import printed

DATASETS = {"digits": "Digits", "office": "Office-10", "pacs": "PACS"}
NAMES = DATASETS | {f"table{k}": f"Table {k}" for k in range(1, 8)}
OURS = "I2PFL"
FORMS = {"share, 2": "{:.0%}", "share, 7": "{:.0%}", "accuracy, 2": "{:.1f}", "accuracy, 7": "{:.1f}",
         "change": "{:+.1f}"}       # of what `shares` and `changes` give


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
         f"On average, yes. On DSLR the row without EMA is higher, {dslr['w/o EMA']:.2f} against {dslr['full']:.2f}.")]
    return pd.DataFrame(lines, columns=["where", "the text says", "the table says"])
