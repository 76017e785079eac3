"""What we found of each paper, in sentences that are computed from printed numbers, stored partitions and records.

The pages "what we found" have the whole of it, with their tables and figures.
"""
import pandas as pd

from fedlib.experiments import named_partitions
from fedlib.experiments.claims import DECIDED
from fedlib.report import feddtr, fedpall, i2pfl, mpft, overview, printed, verdicts
from fedlib.report.page import Page


def first(paper: str, judged: pd.DataFrame, results=None) -> list[str]:
    """How the claims about the paper's data stand, and the lead over FedAvg where it was run."""
    real, again = (judged[judged.data == kind] for kind in verdicts.KINDS[:2])
    said = [f"**Of {len(real)} claims about the paper's own data, {standing(real)}.**"]
    if len(again):
        said[0] += f" Of {len(again)} asked of the same data as features of a frozen encoder, {standing(again)}."
    ran = [f"{lead['title'].partition(', ')[2]} {overview.gap(one)} (printed {lead['printed']:+.1f}, {kind}"
           f"{one['verdict']})" for lead in overview.leads(paper, results)
           for one, kind in ((lead, ""), (lead["again"], "on frozen features, ")) if one and one["n"]]
    if ran:
        said.append(f"**The lead over FedAvg in our runs**, in points: {'; '.join(ran)}.")
    return said


def standing(judged: pd.DataFrame) -> str:
    """'7 have runs that are evidence: 0 supported, 2 contradicted, 5 undecided'."""
    stands = judged.verdict.value_counts().reindex(list(DECIDED), fill_value=0)
    return f"{stands.sum()} have runs that are evidence: {', '.join(f'{n} {verdict}' for verdict, n in stands.items())}"


def of_i2pfl(profile: str = "lite") -> list[str]:
    """Single runs, words against tables, and what the open decisions change."""
    every, images = printed.of_paper("i2pfl"), {"caltech": 224, "amazon": 190, "webcam": 58, "dslr": 30}
    office = every.loc["table2"].loc["office"]
    fit = pd.DataFrame({s: office[s].map(lambda v, n=n: printed.fits(v, 5 * n)) for s, n in images.items()})
    chance = [5 * n / 100 / 100 for n in images.values()]       # that a hundredth of a point is k of 5 n images
    page = Page("i2pfl/decisions", profile)
    worth = page.against("default").query("n > 1")
    found = [f"**The printed numbers look like single runs.** The text speaks of three repeats. Of the {fit.size} "
             f"entries of Table 2 on Office-10, {fit.to_numpy().sum()} can be the mean of five tests of one net; by "
             f"chance {min(chance):.0%} to {max(chance):.0%} would.",
             f"**The text and its tables disagree in {len(i2pfl.contradicted())} places**, or the tables make a "
             "sentence smaller."]
    if len(worth):
        real = worth[worth.block.map(page.blocks) != "mini"]
        most = (real if len(real) else worth).pipe(lambda w: w.loc[w["mean"].abs().idxmax()])
        found.append("**What the paper leaves open can move the result.** The largest change of one open decision: "
                     f"{most.row}, {most['mean']:+.1f} ± {most.half:.1f} points on {most.dataset}."
                     + " On the paper's data none has several seeds." * (not len(real)))
    return found


def of_fedpall(profile: str = "lite") -> list[str]:
    """The runs behind a mean, words against tables, what is sent, and the round that is read."""
    page, std = Page("fedpall/table1", profile), fedpall.spreads()
    accuracy = printed.of_paper("fedpall").loc["table1"]
    dslr = {c["domain"]: c["test"] for c in named_partitions.stored()["fedpall_office"]["clients"]}["dslr"]
    runs = {row: fedpall.triples(accuracy.loc["office"].dslr[row], std.loc["office"].dslr[row], dslr)[0]
            for row in ("FedPall", "ADCOL")}
    sizes = fedpall.held().train
    gain = page.compared({row: (row, row) for row in page.rows}, beside=page.chosen("last"))
    gain = gain[(gain.n > 0) & (gain.block.map(page.blocks) != "mini")]
    more = sum(runs["FedPall"]) - sum(runs["ADCOL"])
    found = [f"**On DSLR FedPall's printed lead over ADCOL is {more} right answer{'s' * (more != 1)} in three "
             f"runs.** Mean and deviation give the runs away: of {dslr} pictures FedPall has "
             f"{', '.join(map(str, runs['FedPall']))} right, ADCOL {', '.join(map(str, runs['ADCOL']))}.",
             f"**The text and its tables disagree in {len(fedpall.contradicted(page))} places**, or the tables make a "
             "sentence smaller.",
             "**What a client sends depends on how many pictures it has.** The clients of Digits send "
             f"{sizes['digits'].min():,} to {sizes['digits'].max():,} features in a round; at 12,122 the upload weighs "
             "what FedAvg's would."]
    rules = [fedpall.own_net(other).query("tuned").set_index(["dataset", "row"])
             for other in (page, page.chosen("last5"))]

    def over(dataset, row):
        return " and ".join(f"{part['mean'][dataset, row]:+.1f} ± {part.half[dataset, row]:.1f}" for part in rules)

    if len(rules[0]):
        found.append("**How much of the lead over FedAvg is a net of one's own?** In points, in the best round and in "
                     "the last five, tuned alike: "
                     + "; ".join(f"{dataset} {over(dataset, 'FedAvg')}, over FedAvg tested after its local training "
                                 f"{over(dataset, 'FedAvg, tested after training')}"
                                 for dataset in rules[0].index.unique("dataset")) + ".")
    if len(gain):
        found.append("**The round is chosen on the test images.** Over the last round that brings "
                     + "; ".join(f"{part['mean'].mean():+.1f} points on {dataset} on average, most to "
                                 f"{part.row[part['mean'].idxmax()]} ({part['mean'].max():+.1f})"
                                 for dataset, part in gain.groupby("dataset", sort=False)) + ".")
    return found


def of_feddtr(profile: str = "lite") -> list[str]:
    """Labels that do not enter, the time of the test, the draw of the partition, and the constant answer."""
    table, labels = (Page(f"feddtr/table{n}", profile) for n in (1, 6))
    drawn = Page("feddtr/partitions", profile)
    same = feddtr.label_runs(labels).query("encoder == 'embedding'").equal
    real = [block for block, shown in table.blocks.items() if shown != "mini"]
    pages = table, table.at("before"), table.at("after")

    def lead(page, rows):
        every = page.compared({"lead": rows})
        return every[every.block.isin(real) & (every.n > 1)].set_index("dataset")

    timed = [lead(page, ("FedDTR", "FedALA")) for page in pages]
    spread = feddtr.spread(drawn, table).rename(index=drawn.titles)
    rows = table.evidence[table.evidence.setting == "avg"]
    rows = rows[rows.block.isin(real)].assign(data=lambda t: t.block.map(table.titles))
    low = rows[rows.learned.eq(False)].groupby("data").size()
    found = ["**The text encoder of the released code reads no text.** It has a free vector for each class. "
             f"{same.sum()} of {len(same)} groups of runs that differ in the class names alone are equal in every "
             "round."]
    if len(timed[0]):
        found.append("**FedDTR is tested after local training, most others before.** Its lead over FedALA in points, "
                     "as printed, both before, and both after: "
                     + "; ".join(f"{dataset} " + ", ".join(f"{part['mean'][dataset]:+.1f}" for part in timed)
                                 for dataset in timed[0].index) + ".")
    kept = {form: [lead(page, rows) for page in (table, table.at("after"))]
            for form, rows in (("tuned alike", ("FedDTR, tuned", "FedAvg, tuned")),
                               ("not tuned", ("FedDTR", "FedAvg")))}
    kept["not tuned"] = [part.drop(kept["tuned alike"][0].index, errors="ignore") for part in kept["not tuned"]]
    if len(kept["tuned alike"][0]):
        found.append("**How much of the lead over FedAvg is a last epoch at the client?** In points, tested as printed "
                     "and both after their local training. " + ". ".join(
                         f"{form.capitalize()}: " + "; ".join(
                             f"{dataset} " + " and ".join(overview.gap(part.loc[dataset]) for part in parts)
                             for dataset in parts[0].index) for form, parts in kept.items() if len(parts[0])) + ".")
    if spread["range"].notna().any():
        sets = spread.dropna(subset="range").index.unique(0)
        sd, still = (spread[k].groupby(level=0).mean().mean() for k in ("sd", "sd, one partition"))
        adds = "adds the rest" if sd > 1.2 * still else "adds nothing that could be seen"
        found.append(f"**Another seed moves a number by points.** On {' and '.join(sets)}, draws of partition, net and "
                     f"order together have a deviation of {sd:.1f} points, net and order alone of {still:.1f}: the "
                     f"partition {adds}.")
    if len(low):
        found.append("**Many rows are not above the constant answer**, a client's most frequent class: "
                     + ", ".join(f"{n} of {(rows.data == data).sum()} on {data}" for data, n in low.items()) + ".")
    return found


def of_mpft(profile: str = "lite") -> list[str]:
    """The average that is none, the weights of ood, the test on training images, and the printed megabytes."""
    page, costs = Page("mpft/table1", profile), mpft.megabytes(mpft.printed_costs())
    best = "MPFT (Random, rate=0.3)"
    leads = page.compared({"released": (best, "FedAvg, as released"), "correct": (best, "FedAvg")}, "ood")
    leads = leads[(leads.n > 1) & (leads.block == "pacs")].set_index("row")
    ind = page.by("block", "ind", ("row", "seed")).reindex(columns=["pacs", "pacs_released"])
    leak = (ind.pacs_released - ind.pacs).dropna().groupby("row").mean()
    leak = leak[~leak.index.str.endswith(("as released", "tuned"))]
    found = ["**The released FedAvg does not average.** It multiplies layers, not clients, with the clients' weights."]
    if len(leads) == 2:
        found[0] += (f" On PACS MPFT is {overview.gap(leads.loc['released'])} points above it in ood by Equation 3, "
                     f"and {overview.gap(leads.loc['correct'])} points from a FedAvg that averages, both before "
                     "tuning.")
    found.append("**The printed ood is not Equation 3.** It weighs by the test size of the client whose model it is, "
                 "and with one net for all the gap between ood and ind comes from that alone.")
    if len(leak):
        found.append("**PACS is tested on its training images.** Where we do the same, the accuracy in domain is "
                     f"{leak.mean():+.1f} points higher on average; clients weigh otherwise there, as sketch has fewer "
                     "images, and all but FedProx train for fewer rounds.")
    once = Page("mpft/one_round", profile)
    beside = once.compared({row: ("AFL", row) for row in (best, "FedAvg", "FedProx")}, "ood")
    beside = beside[(beside.n > 1) & (beside.block == "pacs")]
    if len(beside):
        gaps = "; ".join(f"{g.row} {overview.gap(g)}" for _, g in beside.iterrows())
        found.append("**One round in closed form, which the paper leaves out, stands beside training.** AFL minus "
                     f"others in ood, on the same features of PACS: {gaps}. These intervals know what training draws, "
                     "not the draw of the test images.")
    return [*found, f"**The printed megabytes are right**: {costs.equal.sum()} of {len(costs)} follow from the "
            "messages, to the last digit."]


def of_feddeap(profile: str = "mini") -> list[str]:
    """The alignment without gradient, the order of the files, sums, and where our records come from."""
    pages = {k: Page(f"feddeap/{k}", profile) for k in ("table3", "modulation")}
    every = printed.of_paper("feddeap")
    wrong, sums = printed.wrong_means(every), printed.means(every)
    three = every.loc["table3"].avg.unstack("method")
    flat = three[["w/o Semantic Align.", "w/o Domain Align."]].sub(three["FedDEAP"], axis=0).stack()
    order = pages["modulation"].compared({"order": ("batch sorted, as released", "batch shuffled, as released")})
    order = order[order.n > 1]
    found = ["**In the released code the alignment has no gradient**, so two of the parts that Table 3 leaves out do "
             f"nothing. The printed differences, {flat.min():.2f} to {flat.max():.2f} points, cannot come from it; by "
             "chance alone FedDEAP would be ahead of both on all four sets once in 81."]
    if len(order):
        one = order.iloc[0]
        found.append("**The order of the files tells the label.** Training and test batches come class by class, and "
                     f"the mean of a test batch is part of the prompt. In our records, on {one.dataset}, a sorted test "
                     f"reads {overview.gap(one)} points more than a shuffled one.")
    return [*found, f"**The printed sums are sound**: {len(sums) - len(wrong)} of {len(sums)} means follow from their "
            "entries.",
            "**No record of ours has the paper's model.** CLIP's weights were not at hand; what we trained is a small "
            "image-text model on digits, which can say what a change of the code does, and no more."]
