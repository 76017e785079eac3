"""MPFT (arXiv:2410.07738): what its pages compute from printed numbers and from records."""
import functools

import pandas as pd

from fedlib.core.errors import UserError
from fedlib.datasets import feature_cache
from fedlib.experiments import rules, tables
from fedlib.models.nets import Arch
from fedlib.probes import inversion, privacy
from fedlib.probes.cost import cost
from fedlib.report import text
from fedlib.report.page import Page

# Test images of each domain of DomainNet with 50 classes, by its published lists, in the order of the clients.
TEST_IMAGES = {"clipart": 1811, "painting": 3530, "real": 7370, "sketch": 3122, "quickdraw": 7500, "infograph": 2096}
DIM = 512           # numbers of a feature behind CLIP
MIB = 2 ** 20       # bytes of a printed MB


# what rounds measured

def rounds(page: Page) -> pd.DataFrame:
    """Each round of the records of a table of transfer, domain by domain.

    accuracy (%): of the shared net there, else of each client's own net on its own domain; loss: of validation;
    chosen: is it the round that counts? of: the rounds that the protocol allows. Besides profile, block, dataset, row,
    seed, round, domain.
    """
    lines = []
    for planned, record in page.found:
        about = (page.blocks[planned.block], planned.block, page.titles[planned.block], planned.row, planned.seed,
                 planned.run.protocol.rounds)
        best = rules.SELECT[page.table.select](record["rounds"])[0]["round"]
        for r in record["rounds"]:
            acc = r["cross"].get("all") or {d: there[d] for d, there in r["cross"].items()}
            lines += [(*about, r["round"], r["round"] == best, r["val_loss"], *cell) for cell in acc.items()]
    return pd.DataFrame(lines, columns=["profile", "block", "dataset", "row", "seed", "of", "round", "chosen", "loss",
                                        "domain", "accuracy"])


def by_round(every: pd.DataFrame, rows: list[str]) -> pd.DataFrame:
    """Means over domains and seeds of `rounds`: dataset, method, round, loss, accuracy; rounds that all seeds reach."""
    part = every[every.row.isin(rows)].sort_values("row", key=lambda names: names.map(rows.index), kind="stable")
    groups = part.assign(method=part.row.replace("local", "Local")).groupby(["dataset", "method", "round"], sort=False)
    means = groups[["loss", "accuracy"]].mean().assign(n=groups.seed.nunique()).reset_index()
    return means[means.n == means.groupby(["dataset", "method"]).n.transform("max")]


def readings(page: Page, every: pd.DataFrame, block: str, rows: list[str]) -> pd.DataFrame:
    """The first seed's runs by row: accuracy in each domain (with the number of its test images), and four means.

    "Eq. 3" and "as printed" are the two readings of ood; "plain" weighs all pairs of client and domain alike.
    """
    seed = page.values.seed.min()
    part = every[every.chosen & (every.block == block) & (every.seed == seed) & every.row.isin(rows)]
    held = page.clients(block).groupby("domain", sort=False).test.sum()
    domains = part.pivot(index="domain", columns="row", values="accuracy").reindex(index=held.index, columns=rows)
    means = page.by("row", None, ("block", "seed", "setting")).loc[block, seed].reindex(columns=rows)
    names = {"ood": "ood, Eq. 3", "ood_printed": "as printed", "ood_plain": "plain", "ind": "ind"}
    return pd.concat([domains.rename(index={d: f"{d} ({n})" for d, n in held.items()}),
                      means.loc[list(names)].rename(index=names)]).rename_axis(index=None, columns=None)


# as released, and corrected

def released(page: Page) -> dict[str, str]:
    """{row as the code was released: the row as the text says}."""
    return {row["name"]: row["printed"] for row in page.table.rows if row["name"].endswith(", as released")}


def factors(sizes) -> list[float]:
    """What the released average multiplies the plain means of W1 and W2 by: N s_1 and N s_2, s the clients' shares."""
    return [len(sizes) * n / sum(sizes) for n in list(sizes)[:2]]


def corrected(page: Page, *measures: str) -> pd.DataFrame:
    """Rows as the text says minus as released, in points: lines of `Page.compared` with measure and `text`."""
    pairs = {row: (row, old) for old, row in released(page).items()}
    every = text.joined(page.compared(pairs, measure).assign(measure=measure) for measure in measures)
    return with_text(every[every.n > 0], "+.1f")


def with_text(frame: pd.DataFrame, form: str) -> pd.DataFrame:
    """The frame with its columns mean and half as text: '+3.1 ± 0.8'."""
    both = zip(frame["mean"], frame.half, strict=True)
    return frame.assign(text=[f"{m:{form}}" + ("" if h != h else f" ± {h:{form.lstrip('+')}}") for m, h in both])


def corrections(page: Page, block: str) -> pd.DataFrame:
    """Both versions of each row in a block: ood as printed and ind, in the paper and ours, and the differences."""
    wide = page.by("setting", None, ("block", "row", "seed")).loc[block]
    lines = {}
    for old, row in released(page).items():
        if {old, row} <= set(wide.index.unique("row")):
            both = wide.loc[row].index.intersection(wide.loc[old].index)
            new, before = wide.loc[row].loc[both], wide.loc[old].loc[both]
            paper = page.printed.reindex([(page.table.printed_as(block), row)]).iloc[0]
            lines[row] = {(name, said): f"{value:.1f}" if value == value else "–"
                          for name, k in (("ood, as printed", "ood_printed"), ("ind", "ind"))
                          for said, value in (("printed", paper[k]), ("released", before[k].mean()),
                                              ("corrected", new[k].mean()))}
            lines[row] |= {("corrected − released", name): text.points(new[k] - before[k])
                           for name, k in (("ood, Eq. 3", "ood"), ("ind", "ind"))}
            lines[row]["corrected − released", "n"] = len(both)
    return pd.DataFrame(lines).T


# who holds what

def by_setting(page: Page, name: str, measure: str, rows: list[str], source: str = "ours") -> pd.DataFrame:
    """A measure over the "mixed ratio" or the number of "clients": data, method, name, mean, half of the interval.

    source: "ours", or "printed", which has no interval. data: the title of the first block with these data. Data with
    a single value have no lines.
    """
    domains = {b: len(content["columns"]) for b, content in tables.papers()["mpft"]["blocks"].items()}
    place, group = {}, {}
    for block, content in page.table.blocks.items():
        data = next(content[p]["data"] for p in tables.PROFILES if p in content)
        place[block] = float(data.get("mixed", 0)) if name == "mixed ratio" else sum(
            data.get("clients", ())) or domains[block]
        group[block] = next((group[b] for b in group if block.startswith(b)), page.titles[block])
    part = page.cells[(page.cells.setting == measure) & page.cells.row.isin(rows)].dropna(subset=source)
    part = part.assign(data=part.block.map(group), mean=part[source],
                       half=part.half if source == "ours" else float("nan"),
                       method=part.row.replace("MPFT (Random, rate=0.3)", "MPFT, random 0.3"),
                       **{name: part.block.map(place)})
    part = part[part.groupby("data")[name].transform("nunique") > 1]
    part = part.sort_values("row", key=lambda names: names.map(list(rows).index), kind="stable")
    return part[["data", "method", name, "mean", "half"]]


# what travels, and for how long

@functools.cache
def message(method: str, classes: int) -> tuple[int, int]:
    """Bytes of floating-point numbers that one client of the paper's adapter gets and sends in a round.

    They are counted in real messages of a tiny federation, but for MPFT's means of classes: its client has 20 images.
    """
    settings = tables.papers()["mpft"]["methods"].get(method, {}).get("settings")
    sent = cost(method, Arch(net="adapter", head="frozen"), classes, (DIM,), 2, settings)
    return sent["floats_down"], classes * DIM * 4 if method == "MPFT" else sent["floats_up"]


def printed_costs() -> pd.DataFrame:
    """Table 3 by data and row: MB, seconds; with the rounds of Table 1, classes and clients."""
    every = pd.read_csv(tables.PAPERS / "mpft.csv")
    every = every[(every.table == "table3") | (every.table == "table1") & (every.metric == "rounds")]
    made = every.pivot(index=["dataset", "method"], columns="metric", values="value").rename_axis(columns=None)
    held = {"domainnet_50": (50, 6), "domainnet_100": (100, 6), "domainnet_150": (150, 6), "pacs": (7, 4)}
    blocks = pd.Series(made.index.get_level_values("dataset"), made.index)
    made = made.assign(classes=blocks.map(lambda b: held[b][0]), clients=blocks.map(lambda b: held[b][1]))
    titles = {b: tables.papers()["mpft"]["blocks"][b]["title"] for b in held}
    rows = [row["name"] for row in tables.papers()["mpft"]["tables"]["table3"]["rows"]]
    return made.reindex([(b, r) for b in held for r in rows]).rename(index=titles, level="dataset")


def megabytes(printed: pd.DataFrame) -> pd.DataFrame:
    """The rows of `printed_costs` that do not depend on the number of images: the MB of their messages, and printed.

    data, row, rounds, KB down and up of one client in a round, counted, printed, equal (as far as it is printed).
    """
    lines = []
    for (data, row), p in printed.iterrows():
        if row != "local" and "rate" not in row:
            down, up = message(row.removesuffix(" (Average)"), int(p.classes))
            total = p.rounds * p.clients * (down + up) / MIB
            lines.append((data, row, p.rounds, down / 1024, up / 1024, total, p.MB,
                          round(total, 0 if p.MB == int(p.MB) else 1) == p.MB))
    return pd.DataFrame(lines, columns=["data", "row", "rounds", "KB down", "KB up", "counted", "printed", "equal"])


def pools(printed: pd.DataFrame) -> pd.DataFrame:
    """Of MPFT's rows in `printed_costs`: MB, prototypes = (MB 2^20 - N Sigma) / 2048, Sigma the adapter's; seconds."""
    part = printed[printed.index.get_level_values("method").str.startswith("MPFT")]
    count = (part.MB * MIB - part.clients * message("MPFT", 50)[0]) / (4 * DIM)
    return pd.DataFrame({"MB": part.MB, "prototypes": count, "seconds": part.seconds})


def costs(page: Page) -> pd.DataFrame:
    """A line for each record, up to the round that counts: block, row, seed, rounds, MB (all clients, both ways),
    accuracy (%, mean over domains), seconds, training images; of the server seconds, epochs, steps, prototypes, the
    last loss, and capped: how often its training ended at the last epoch.
    """
    lines = []
    for planned, record in page.found:
        best = rules.SELECT[page.table.select](record["rounds"])[0]
        until = [r for r in record["rounds"] if r["round"] <= best["round"]]
        server = [r["server"] for r in until if "server" in r]
        last = planned.run.settings.get("server_epochs")
        lines.append({"block": planned.block, "row": planned.row, "seed": planned.seed, "rounds": best["round"],
                      "MB": sum(r["bytes_up"] + r["bytes_down"] for r in until) / MIB,
                      "accuracy": mean(best["acc"]),
                      "seconds": sum(r["seconds"] for r in until),
                      "images": sum(c["train"] for c in record["made"]["data"]["clients"]),
                      "server": sum(s["seconds"] for s in server),
                      **{k: sum(s[k] for s in server) for k in ("epochs", "steps", "prototypes")},
                      "loss": server[-1]["loss"] if server else float("nan"),
                      "capped": sum(s["epochs"] == last for s in server)})
    return pd.DataFrame(lines, columns=["block", "row", "seed", "rounds", "MB", "accuracy", "seconds", "images",
                                        "server", "epochs", "steps", "prototypes", "loss", "capped"])


def mean(measured: dict) -> float:
    """Of domains or measures of transfer; the number of the round is none of them."""
    values = [v for k, v in measured.items() if k != "rounds"]
    return sum(values) / len(values)


def trails(page: Page) -> pd.DataFrame:
    """Accuracy over what has travelled, round by round, of the first seed: dataset, row, MB (all clients), accuracy."""
    lines, seed = [], min((planned.seed for planned, _ in page.found), default=0)
    for planned, record in page.found:
        sent = pd.Series([(r["bytes_up"] + r["bytes_down"]) / MIB for r in record["rounds"]]).cumsum()
        if planned.seed == seed:
            lines += [(page.titles[planned.block], planned.row, mb, mean(r["acc"]))
                      for mb, r in zip(sent, record["rounds"], strict=True) if mb]
    return pd.DataFrame(lines, columns=["dataset", "row", "MB", "accuracy"])


def reached(trail: pd.DataFrame, rows: list[str], others: list[str]) -> pd.DataFrame:
    """Where each of `rows` ends, and the MB after which the others first have its accuracy; nan: never."""
    lines = {}
    for (dataset, row), end in trail[trail.row.isin(rows)].groupby(["dataset", "row"], sort=False).last().iterrows():
        there = trail[(trail.dataset == dataset) & trail.row.isin(others) & (trail.accuracy >= end.accuracy)]
        lines[dataset, row] = end.to_dict() | there.groupby("row").MB.min().reindex(others).to_dict()
    return pd.DataFrame(lines).T


def extraction(page: Page, block: str) -> float:
    """Images a second of the pass that made the features here; nan where they are not here."""
    data = page.table.blocks[block][page.blocks[block]]["data"]
    try:
        made = feature_cache.load_features(data["name"], data.get("size"), data["encoder"]).about.get("made") or {}
    except UserError:
        made = {}
    return made["images"] / made["seconds"] if made.get("seconds") else float("nan")


# local adaptation

def adaptation(page: Page, *measures: str) -> pd.DataFrame:
    """Figure 4: measures with each client's own adapter minus those with the server's, in points, paired by seed.

    block, dataset, measure, F (samples of each class), β in words, mean, half of the 95 % interval, n; text: the two.
    """
    server, *own = page.table.rows
    pairs = {row["name"]: (row["name"], server["name"]) for row in own}
    frame = text.joined(page.compared(pairs, measure).assign(measure=measure) for measure in measures)
    given = {row["name"]: row["settings"] for row in own}
    return with_text(frame.assign(F=frame.row.map(lambda row: given[row]["shots"]),
                                  β=frame.row.map(lambda row: f"β = {given[row]['beta']:g}")), "+.2f")


# an image from its prototype

def attacks(page: Page) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What `fedlib.probes.inversion` kept beside the records: the attacks step by step, and guesses beside them.

    Both have dataset, seed, domain, client, PSNR (dB) and SSIM; the attacks kind, step and feature error (mean squared,
    of the prototype's mean square); the guesses image: what was guessed.
    """
    place, quality = ["dataset", "seed", "domain", "client"], ["PSNR (dB)", "SSIM"]
    paths, guesses = [], {}
    for planned in [p for p, _ in page.found if p.run.beside(page.results, "attack").exists()]:
        for made in inversion.read(planned.run, page.results)["attacks"]:
            key = page.titles[planned.block], planned.seed, made["domain"], made["client"]
            paths += [(*key, made["kind"], row["step"], row["mse"] / made["power"], row.get("psnr"), row.get("ssim"))
                      for row in made["rows"]]
            guesses |= {(*key, name): (q["psnr"], q["ssim"]) for name, q in made["guesses"].items()}
    return (pd.DataFrame(paths, columns=[*place, "kind", "step", "feature error", *quality]),
            pd.DataFrame([(*key, *values) for key, values in guesses.items()], columns=[*place, "image", *quality]))


# privacy budgets

KINDS = {"printed": "printed formula", "exact": "exact", "bound": "exact, any sample"}


def budgets(page: Page, sigmas) -> pd.DataFrame:
    """Budgets of class means with noise N(0, sigma^2), from what `fedlib.probes.privacy` kept beside the records.

    A line for each record, sigma, kind and fold: block, dataset, seed, sigma, kind (see KINDS), over, epsilon. over:
    the "mean" or "maximum" over classes and clients, or the "share above 1".
    """
    folds = {"mean": pd.Series.mean, "maximum": pd.Series.max, "share above 1": lambda v: (v > 1).mean()}
    lines = []
    for planned in [p for p, _ in page.found if p.run.beside(page.results, "budget").exists()]:
        held = privacy.read(planned.run, page.results)
        for sigma in sigmas:
            every = privacy.epsilons(held, sigma)
            lines += [(planned.block, page.titles[planned.block], planned.seed, sigma, name, over, fold(every[kind]))
                      for kind, name in KINDS.items() for over, fold in folds.items()]
    return pd.DataFrame(lines, columns=["block", "dataset", "seed", "sigma", "kind", "over", "epsilon"])


def printed_budgets() -> pd.Series:
    """Table 7: epsilon by data and sigma."""
    every = pd.read_csv(tables.PAPERS / "mpft.csv")
    every = every[every.table == "table7"].assign(sigma=lambda t: t.method.str.removeprefix("sigma=").astype(float))
    titles = {b: content["title"] for b, content in tables.papers()["mpft"]["blocks"].items()}
    return every.assign(dataset=every.dataset.map(titles)).set_index(["dataset", "sigma"]).value
