"""FedPall (ICCV 2025): what its pages compute from the printed tables, from its counts and from records."""
import functools
import itertools
import math

import pandas as pd
import torch
from IPython.display import Markdown

from fedlib.datasets import splits
from fedlib.experiments import filled, named_partitions, statistics, tables
from fedlib.probes import leakage
from fedlib.report import plots, printed
from fedlib.report.page import Page

OURS, ONE_RATE = "FedPall", "FedPall, one rate"       # the server trains at the clients' rate, as in its code
SCALE = 20      # points that a heat map's colours span at least
# FedAvg, what it has with a part of a net of one's own, and rows that keep more at the client.
CONTROLS = ("FedAvg", "FedAvg, own statistics", "FedAvg, tested after training", "FedBN", "SingleSet")
RUNS = 3        # behind each printed mean and standard deviation
ONE_DIGIT = 0.0501      # how far a number may be from one that is printed with one digit
PUBLISHED = {"mnist": 70000, "svhn": 99289, "usps": 9298, "synth_digits": 479400 + 9553, "mnist_m": 70000}     # images


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
    return {row: (row, row.partition(", ")[0]) for row in page.rows
            if ", " in row and not tables.is_tuned(row)}


def own_net(page: Page) -> pd.DataFrame:
    """FedPall, with one rate where that was run, minus each of CONTROLS, where all have seeds to pair; as `Page.ahead`,
    and tuned: of rows that are."""
    gaps = pd.concat([page.ahead(row) for row in (OURS, ONE_RATE)]).query("n > 1").drop(columns="printed")
    gaps = gaps.assign(tuned=gaps.row.map(tables.is_tuned), row=gaps.row.map(tables.given_name))
    gaps = gaps[gaps.row.isin(CONTROLS)].sort_values("tuned", kind="stable")       # a tuned row last, of those one rate
    gaps = gaps.drop_duplicates(["dataset", "row"], keep="last")
    gaps = gaps.sort_values("block", key=lambda block: block.map(list(page.blocks).index), kind="stable")
    gaps = gaps.sort_values("row", key=lambda rows: rows.map(CONTROLS.index), kind="stable")
    return gaps.groupby("dataset", sort=False).filter(lambda part: len(part) == len(CONTROLS))


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


# what messages say about images

def information(page: Page) -> pd.DataFrame:
    """The bound (nats) on what messages say about images of each run that has it: block, dataset, row, seed, nats,
    ceiling (the highest value that the bound can take).
    """
    lines = [(p.block, page.titles[p.block], p.row, p.seed, told["nats"], math.log(told["pairs"]))
             for p, _ in page.found if p.done(page.results) for told in [leakage.read(p.run, page.results)]]
    return pd.DataFrame(lines, columns=["block", "dataset", "row", "seed", "nats", "ceiling"])


def noises(page: Page, told: pd.DataFrame) -> pd.DataFrame:
    """Each kind of noise by dataset: information and accuracy (printed | ours ± half of the interval), n, ceiling.

    told: lines of `information`.
    """
    theirs, lines = printed.of_paper("fedpall", "nats").avg.loc["privacy"], {}
    for cell in page.averages.to_dict("records"):
        part = told[(told.block == cell["block"]) & (told.row == cell["row"])]
        mean, half = statistics.interval(part.nats)
        known = theirs.get((page.table.printed_as(cell["block"]), cell["row"]), float("nan"))
        lines[page.titles[cell["block"]], cell["row"]] = {
            "information": filled.cell(pd.Series({"printed": known, "ours": mean, "half": half})),
            "accuracy": filled.cell(pd.Series(cell)), "n": f"{len(part)}, {cell['n']}",
            "at most": f"{part.ceiling.max():.2f}" if len(part) else "–"}
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis(["dataset", "row"])


# Figure 5: the weights of the two losses

def weights(page: Page) -> dict[str, tuple[float, float]]:
    """{row: (mu, delta)}."""
    return {row["name"]: (row["settings"]["mu"], row["settings"]["delta"]) for row in page.table.rows}


def heat(page: Page) -> pd.DataFrame:
    """Lines of `Page.averages` with mu, delta and a title; datasets with records of one cell alone are left out."""
    every = page.averages.assign(mu=[weights(page)[row][0] for row in page.averages.row],
                                 delta=[weights(page)[row][1] for row in page.averages.row], title="")
    for block, part in every.groupby("block"):
        seeds = " or ".join(map(str, sorted(set(part.n) - {0})))
        every.loc[part.index, "title"] = (f"{page.titles[block]}: {(part.n > 0).sum()} of {len(part)} cells, "
                                          f"n = {seeds} seeds each")
    return every[(every.n > 0).groupby(every.block).transform("sum") > 1]


def heat_map(cells: pd.DataFrame):
    """One dataset's lines of `heat` as a figure; cells that were not run are empty. A sentence, where most were not.

    The scale has `SCALE` points at least, so that small differences do not look large.
    """
    ran = cells[cells.n > 0]
    if 2 * len(ran) < len(cells):
        return Markdown("No map of so few cells. They have " + ", ".join(
            f"{c.ours:.1f} % (μ = {c.mu:g}, δ = {c.delta:g})" for c in ran.itertuples()) + ".")
    means = cells.pivot(index="mu", columns="delta", values="ours").rename_axis(index="mu (KL)",
                                                                              columns="delta (InfoNCE)")
    low = min(10 * (means.min().min() // 10), 100 - SCALE)
    return plots.matrix(means, low=low, high=max(low + SCALE, 10 * -(-means.max().max() // 10)), form=".1f")


def readings(page: Page) -> pd.DataFrame:
    """The printed cells beside ours, and beside ours with the two weights exchanged: printed, ours, ±, n."""
    of, lines = weights(page), {}
    ours = page.averages.set_index(["block", "row"])
    for (block, row), value in page.printed.avg.items():
        for reading, cell in (("as printed", of[row]), ("exchanged", of[row][::-1])):
            name = next(r for r, pair in of.items() if pair == cell)
            if (block, name) in ours.index and (reading == "as printed" or name != row):
                line = ours.loc[(block, name)]
                lines[row, reading] = {"our cell": name, "printed": value, **line[["ours", "half", "n"]]}
    frame = pd.DataFrame.from_dict(lines, orient="index").rename(columns={"half": "±"})
    return frame.rename_axis(["the paper's cell", "reading"]) if lines else frame


def ranges(page: Page, cells: pd.DataFrame) -> pd.DataFrame:
    """How far the weights move accuracy (points), by dataset, from lines of `heat`.

    best minus worst cell; the best cell; it minus the default 0.1, 0.1, paired by seed; the most that one weight moves
    with the other fixed.
    """
    lines = {}
    for block, part in cells[cells.n > 0].groupby("block", sort=False):
        best, means = part.loc[part.ours.idxmax()], part.pivot(index="mu", columns="delta", values="ours")
        gap = page.compared({"": (best.row, page.rows[0])}).set_index("block").loc[block]
        lines[page.titles[block]] = {
            "best minus worst": part.ours.max() - part.ours.min(), "best cell": best.row,
            "minus 0.1, 0.1": gap["mean"], "±": gap.half, "n": int(gap.n),
            **{f"by {k} alone": (means.max(axis=i) - means.min(axis=i)).max() for i, k in enumerate(("mu", "delta"))}}
    return pd.DataFrame.from_dict(lines, orient="index")


# the printed table by itself

def triples(mean: float, std: float, n: int, ddof: int = 1) -> list[tuple[int, int, int]]:
    """All sorted triples of right answers of n whose mean and standard deviation (%) print as given, with one digit.

    ddof: what the divisor of the deviation has less than the three runs, 1 (sample) or 0 (population).
    """
    total = round(mean * RUNS * n / 100)
    ways = [(a, b, total - a - b) for a, b in itertools.combinations_with_replacement(range(n + 1), 2)
            if b <= total - a - b <= n]
    return [way for way in ways if abs(pd.Series(way).std(ddof=ddof) * 100 / n - std) < ONE_DIGIT]


def domains(page: Page) -> dict[str, str]:
    """{domain: its name in the table}."""
    return {domain: name for block in page.table.blocks.values() for domain, name in block["columns"].items()}


def contradicted(page: Page) -> pd.DataFrame:
    """What the text says and the printed numbers contradict or make smaller: section, and what each of them says."""
    every = printed.of_paper("fedpall")
    table, std = every.loc["table1"], spreads()
    ranks = {s: int((v > v[OURS]).sum()) + 1 for b in table.index.unique("dataset")
             for s, v in table.loc[b].drop(columns="avg").dropna(axis=1).items()}
    low = [f"{domains(page)[s]} (number {rank})" for s, rank in ranks.items() if rank > 2]
    margins = table.avg.xs(OURS, level="method") - table.avg.xs("ADCOL", level="method")
    office, average = table.loc["office"], (table.avg["office", OURS], std.avg["office", OURS])
    caltech = office.caltech[OURS], std.caltech["office", OURS]
    without, with_ = (every.caltech.loc["figure6"]["office", row] for row in ("without", "with"))
    masked, plain = (every.avg.loc["privacy"]["office", row] for row in ("mixture and mask", "none"))
    best = every.avg.loc["figure5"].loc["office"]
    lines = [
        ("5.2", "It is the best or second best on every sub-dataset.",
         f"Not on {len(low)} of {len(ranks)}: {', '.join(low)}. It is the best on {list(ranks.values()).count(1)}."),
        ("5.2", "It is above ADCOL by about 1.1 to 2.9 points.",
         "By " + ", ".join(f"{v:.1f} ({page.titles[b]})" for b, v in margins.items()) + "."),
        ("5.3, Fig. 6", "The global classifier brings Caltech to 49.3, a gain of 15.6 points.",
         f"True of that figure. But without it FedPall has {without:.1f} there, "
         f"{office.caltech['SingleSet'] - without:.1f} points below training alone in Table 1 "
         f"({office.caltech['SingleSet']:.1f}), and with it Table 1 has {caltech[0]} ({caltech[1]}): "
         f"{with_ - caltech[0]:.1f} less than the figure, which the code makes with one seed."),
        ("5.3, privacy", "Mixing and masking improve accuracy.",
         f"By {masked - plain:.1f} points over sending plain features; the same method's deviation over seeds is "
         f"{average[1]} in Table 1."),
        ("5.1, Fig. 5", "mu = delta = 0.1 on Office-10; the best pair is 0.2, 0.2.",
         f"The figure's best is {best.max()} ({best.idxmax()}), {best.max() - average[0]:.1f} above Table 1's "
         f"{average[0]} ({average[1]}): the whole gap is less than one deviation.")]
    return pd.DataFrame(lines, columns=["section", "the text says", "the numbers say"])


def held() -> pd.DataFrame:
    """Training and test images of each client in the paper's protocol, by dataset and domain.

    Of the stored partitions; for Digits, whose complete data are not stored, the split is applied to the published
    sizes of the five sets.
    """
    stored = named_partitions.stored()
    sizes = {(b, c["domain"]): (c["train"], c["test"]) for b in ("office", "pacs")
             for c in stored[f"fedpall_{b}"]["clients"]}
    for domain, n in PUBLISHED.items():     # counts do not depend on the labels: they are made up
        parts = splits.split("fedpall_digits", splits.Domain("digits", domain, torch.arange(n) % 10, torch.zeros(n)))
        sizes["digits", domain] = len(parts.train), len(parts.test)
    index = pd.MultiIndex.from_tuples(sizes, names=["dataset", "domain"])
    return pd.DataFrame(list(sizes.values()), index, ["train", "test"])
