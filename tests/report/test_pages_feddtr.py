"""FedDTR's pages: what they compute, by hand; what they say of the committed records, once more from the files."""
import json
from pathlib import Path

import pandas as pd
import pytest
import torch

from fedlib import Page, Simulation, plan, table
from fedlib.engine import records
from fedlib.experiments import tables
from fedlib.experiments.results import results_folder
from fedlib.models.nets import Arch
from fedlib.models.text_encoders import ClipText, class_prompts
from fedlib.probes.cost import cost
from fedlib.report import feddtr

SEEDS = [0, 1, 2]
PAGES = Path(__file__).resolve().parents[2] / "notebooks" / "feddtr"
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
OWN = ("Ditto", "pFedMe", "FedAMP", "FedFomo")      # tested with the net that a client trained last


@pytest.fixture(scope="module")
def timed():
    return feddtr.times(Page("feddtr/table1", "lite", SEEDS))


@pytest.fixture(scope="module")
def costs():
    return feddtr.costs(Page("feddtr/figure3", "lite", SEEDS), Page("feddtr/table5", "lite", SEEDS))


def printed(name: str, dataset: str, metric: str = "accuracy") -> pd.Series:
    every = pd.read_csv(tables.PAPERS / "feddtr.csv")
    part = every[(every.table == name) & (every.dataset == dataset) & (every.metric == metric)]
    return part.set_index("method").value


def lost(name: str, first: str, last: str) -> pd.Series:
    return (printed(name, first) - printed(name, last)).round(2)


def says(page: str, *sentences: str):
    """The page's text has these sentences, wherever its lines end."""
    cells = json.loads((PAGES / f"{page}.ipynb").read_text())["cells"]
    text = " ".join(" ".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown").split())
    for sentence in sentences:
        assert sentence in text, sentence


# by hand

def test_a_place_among_methods():
    values = pd.Series({"FedAvg": 50.0, "FedALA": 81.5, "FedDTR": 80.0, "FedPer": 70.0, "Ditto": None})
    assert str(feddtr.place(values)) == "2 of 4 (-1.5, FedALA)"
    assert str(feddtr.place(values, "FedALA")) == "1 of 4 (+1.5, FedDTR)"
    assert feddtr.place(values[["FedDTR", "Ditto"]]) is None and feddtr.place(values[["FedAvg", "FedPer"]]) is None


def test_the_round_that_comes_near_the_best():
    record = {"rounds": [{"acc": {"a": a, "b": a + 2}} for a in (10, 60, 58, 61, 59)]}
    assert [feddtr.reached(record, within) for within in (0, 0.5, 1, 60)] == [4, 4, 2, 1]


def test_pairs_of_vectors():
    found = feddtr.pairwise(torch.tensor([[1.0, 0], [0, 3], [1, 1]]))
    assert found.tolist() == pytest.approx([0, 0.5 ** 0.5, 0, 0.5 ** 0.5, 0.5 ** 0.5, 0.5 ** 0.5])


@pytest.mark.parametrize("values", [{}, {"text": "mlp", "layers": 2, "labels": "digits"}])
def test_anchors_are_those_with_which_a_run_starts(values):
    made = table("feddtr/table1").blocks["mini"]["mini"]
    start = Simulation(plan("FedDTR", values, made["data"], made["net"], made["protocol"], 1))
    for worker in start.workers:
        held = worker.client.net
        found = feddtr.anchors(start.federation.classes, held.dim, 1, **values)
        assert torch.equal(found, held.text()) and not found.requires_grad


def test_what_is_lost_between_blocks_is_paired_by_seed():
    page, steps = Page("feddtr/table3", "mini", SEEDS), {"tenth": ("mini", "mini_tenth"), "no": ("cifar100_50", "mini")}
    found = feddtr.lost(page, steps)
    wide = page.by("block", "avg", ("row", "seed"))
    gap = (wide.mini - wide.mini_tenth)["FedDTR"]
    assert list(found) == [("tenth", "ours")] and found.loc["FedDTR"].item().startswith(f"{gap.mean():+.1f} ± ")
    assert feddtr.lost(page, {"no": ("cifar100_50", "cifar100_50_half")}).empty


# two times

def test_as_printed_is_one_of_the_two_readings(timed):
    page = timed["as printed"]
    assert {tables.given_name(row) for row, when in page.times.items() if when == "after"} == {"FedDTR", "FedPHP"}
    assert page.table.select == "best-test"
    values = {name: p.values.set_index(["block", "setting", "row", "seed"]).value for name, p in timed.items()}
    assert len(values["as printed"]) and set(page.values.row) == set(page.rows)
    for key, value in values["as printed"].items():
        assert value == values[f"all {page.times[key[2]]}"][key], key
    matched = feddtr.by_time(timed)
    still = matched[matched.index.isin(OWN, level="method")]
    assert (still["all before"] == still["all after"]).all() and len(still)
    for planned, record in page.found:
        assert planned.row not in OWN or all(r["acc"] == r["after"] for r in record["rounds"]), planned


def test_where_all_clients_train_fedamp_is_not_moved_by_the_time():
    for name in ("table2", "table3"):
        for planned, record in Page(f"feddtr/{name}", "lite", SEEDS).at("before").found:
            if planned.row == "FedAMP" and not planned.run.protocol.participation_low:
                assert all(r["acc"] == r["after"] for r in record["rounds"]), planned


def test_a_number_of_table_1_once_more_from_the_files(timed):
    page, seen = timed["as printed"], feddtr.by_time(timed)
    for block in page.ran:
        files = [q.run.path(page.results) for q, _ in page.found if (q.block, q.row) == (block, "FedDTR")]
        if not files:
            continue
        best = [max(sum(r["after"].values()) / len(r["after"]) for r in records.read_record(f)["rounds"])
                for f in files]
        line = seen.loc[block, "FedDTR"]
        assert line.n == len(best) and line["as printed"] == pytest.approx(sum(best) / len(best))


def test_what_an_epoch_is_worth(timed):
    page = timed["as printed"]
    found, gaps = feddtr.gains(page), feddtr.by_time(timed)
    assert list(found) == ["tested", *[page.titles[b] for b in page.ran]] and list(found.index) == page.rows
    for (block, row), line in gaps.iterrows():
        said = found[page.titles[block]][row]
        assert float(said.split(" ")[0]) == pytest.approx(line["all after"] - line["all before"], abs=0.0501)


def test_places_printed_and_ours(timed):
    page, found = timed["as printed"], feddtr.places(timed)
    printed_ = found.printed.dropna()
    assert len(printed_) == 9 and all(p.place == 1 and p.of == 14 for p in printed_), "FedDTR is the first everywhere"
    margins = {c["block"]: c["margin"] for c in page.table.claims if c["id"].endswith("best") and "margin" in c}
    assert set(margins) == set(printed_.index)
    assert all(printed_[b].ahead == pytest.approx(m, abs=0.005) for b, m in margins.items())
    assert [p.other for p in printed_].count("FedALA") == 6
    says("findings", "In six of the nine columns of Table 1 the second best method is FedALA")
    for block in page.ran:
        for name, each in timed.items():
            part = each.averages[each.averages.block == block].set_index("row")
            part = part[[not tables.is_tuned(row) for row in part.index]]       # those have no places
            means = part.ours
            there = means.count() > 1 and means["FedDTR"] == means["FedDTR"]
            if there and part.n[part.n > 0].nunique() == 1:     # others, over the same seeds
                assert found[name][block].place == 1 + (means > means["FedDTR"]).sum(), (block, name)


def test_the_text_has_one_margin_that_the_table_has_not(timed):
    claims = feddtr.claims_by_time(timed)
    asked = claims.says.str.contains("Asked of:")
    assert list(claims) == ["says", "printed", *timed, "reason", "note"] and asked.sum() == 10 and len(claims) == 28
    stated = claims.says[~asked].str.extract(r"(\d+\.\d+) points above")[0].dropna().astype(float)
    apart = (stated - claims.printed[stated.index].astype(float)).abs() > 0.005
    assert len(stated) == 9 and list(stated[apart]) == [3.75] and "prototypes" in claims.says[apart[apart].index[0]]
    for name, page in timed.items():
        verdicts = claims[name].str.split("<br>").str[0]
        assert list(verdicts) == list(page.judged.verdict)


def test_every_claim_is_there():
    claims = feddtr.every_claim("lite", results_folder())
    assert len(claims) == 44 == len(tables.papers()["feddtr"]["claims"]) and (claims.note != "").sum() == 13
    says("findings", "A note stands beside 13 of the 44 claims", "the printed numbers, 390 in nine tables")


def test_tiny_imagenet_has_no_lite_profile(timed):
    found = feddtr.protocols(timed["as printed"])
    assert {b for b, p in found.index} - {b for b, p in found.index if p == "lite"} == {
        "Tiny-ImageNet, CNN", "Tiny-ImageNet, ResNet-18"}
    assert set(found["learning rate"]) == {"0.005", "0.01", "0.02", "0.1"}


# costs

def test_costs_once_more_from_a_record(costs):
    page = Page("feddtr/figure3", "lite", [0])
    planned, record = next(f for f in page.found if (f[0].block, f[0].row) == ("fashion_mnist", "FedDTR"))
    one = feddtr.costs(page).loc["Fashion-MNIST", "FedDTR"]
    assert one["MB up"] == pytest.approx(record["rounds"][0]["bytes_up"] / 20 / 1e6) and one.n == 1
    assert one.rounds == planned.run.protocol.rounds and one["peak MB"] == record["made"]["peak_mb"]
    assert costs.loc["Fashion-MNIST", "FedDTR"].n == 3 and costs.index.is_unique
    assert (costs.xs("FedAvg", level="method")[["seconds ÷ FedAvg", "bytes ÷ FedAvg"]] == 1).all(axis=None)


def test_what_costs_must_be(costs):
    assert (costs["within 2 points"] <= costs["within 0.5 points"]).all()
    assert (costs["within 0.5 points"] <= costs.rounds).all()
    assert (costs.seconds > 0).all() and costs["peak MB"].dropna().gt(0).all()
    up = costs["MB up"].unstack()
    assert ((up.FedPer < up.FedAvg) & (up.FedAvg < up.FedDTR)).all(), "a head less, a text encoder more"


def test_what_a_round_costs_by_count():
    counted = {m: cost(m, Arch("cnn4"), 10, (3, 32, 32), 6) for m in ("FedAvg", "FedDTR", "Ditto")}
    assert [counted["FedDTR"][k] for k in ("forward", "backward")] == [1, 1] and counted["Ditto"]["forward"] == 2
    assert counted["FedDTR"]["bytes_down"] - counted["FedAvg"]["bytes_down"] == 4 * 10 * 512
    assert counted["FedAvg"]["floats_up"] == 4 * 878_538
    says("costs", "262 656 parameters instead of 5 120", "with 878 538 parameters")


def test_what_the_page_of_costs_says_of_tables_4_and_5():
    four, five = feddtr.printed("table4"), feddtr.printed("table5")

    def before(column, form, name="FedDTR"):
        some = column[column < column[name]].sort_values()
        some = [f"{m} ({v:{form}})" for m, v in some.items()]
        return f"number {len(some) + 1}", ", ".join(some[:-1]) + f" and {some[-1]}" if some[1:] else some[0]

    seconds, memory = before(four.seconds, ".2f"), before(four.MB.sort_index(), ".2f")
    assert (seconds, memory[0], len(four)) == (("number 2", "FedPer (13.63)"), "number 5", 8)
    says("costs", "of 8 methods it is number 2 in seconds, after FedPer (13.63), and number 5 in memory, after "
         "FedProto (221.99), FedRep (221.99), FedPer (221.99) and FedRoD (222.00)")
    assert {f"{m} ({v:.2f})" for m, v in four.MB.items() if v < four.MB["FedDTR"]} == {
        "FedProto (221.99)", "FedRep (221.99)", "FedPer (221.99)", "FedRoD (222.00)"}
    rounds, minutes = before(five.rounds, ".0f"), before(five.minutes, ".0f")
    says("costs", f"FedDTR is {rounds[0]} of {len(five)}, after {rounds[1]}.",
         f"it is {minutes[0]} of {len(five)}, after {minutes[1]}.", f"FedDTR needs {five.rounds['FedDTR']:.0f} rounds")
    ratio = (five.minutes_per_round / five.minutes_per_round["FedAvg"]).drop("FedAvg")
    assert (ratio.idxmax(), ratio.idxmin()) == ("Ditto", "FedAMP")
    assert [m for m in ("pFedMe", "FedRep", "Ditto") if five.rounds[m] < five.rounds["FedDTR"]] == ["Ditto"]
    says("costs", f"a round of Ditto takes {ratio.max():.1f} times as long as one of FedAvg, that of FedAMP "
         f"{ratio.min():.2f} times, FedDTR's {ratio['FedDTR']:.2f} times")


# text encoders

def test_how_far_anchors_are_apart_at_the_start():
    def found(layers):
        settings = {"text": "mlp", "layers": layers}
        return torch.stack([feddtr.pairwise(feddtr.anchors(CLASSES, 512, s, **settings)) for s in SEEDS]).double()
    one, five, ten = map(found, (1, 5, 10))
    assert abs(one.mean()) < 0.1 < 0.8 < five.mean() < ten.min() < 1
    assert 100 * (2 - 2 * ten.min()).sqrt() < 1, "no two logits differ by as much as 1"


def test_the_embedding_reads_no_label_and_the_mlp_does():
    def made(kind, labels):
        return feddtr.anchors(CLASSES, 512, 0, text=kind, labels=labels)
    for labels in ("digits", "alphanumeric"):
        assert torch.equal(made("embedding", "names"), made("embedding", labels))
        assert not torch.equal(made("mlp", "names"), made("mlp", labels))
    runs = feddtr.label_runs(Page("feddtr/table6", "lite", SEEDS))
    assert runs.equal[runs.encoder == "embedding"].all() and not runs.equal[runs.encoder == "mlp"].any()
    assert len(runs) and set(runs.runs) == {3}


def test_parameters_are_those_that_the_paper_prints():
    page, paper = Page("feddtr/table9", "mini", SEEDS), feddtr.printed("table9").parameters
    counted = feddtr.parameters(page)
    for layers in (1, 5, 10):
        assert counted[f"{layers}-layer MLP"] == layers * (512 * 512 + 512)
        assert counted[f"{layers}-layer MLP"] / paper[f"{layers}-layer MLP"] == pytest.approx(1, abs=0.02)
    assert counted["embedding (released)"] == 10 * 512 and list(counted.index) == page.rows
    assert feddtr.parameters(page, ["1-layer MLP"]).to_dict() == {"1-layer MLP": 262_656}
    assert f"{paper.max() / paper.min():.0f}" == "342"
    says("ablations", "The largest has 342 times the parameters of the smallest.")


def test_clips_text_tower():
    pytest.importorskip("open_clip")
    words, width = 49_408, 512          # a block: 12 width^2 weights, 13 width biases and norms
    tower = (words + 77) * width + 12 * (12 * width**2 + 13 * width) + 2 * width + width**2
    assert sum(p.numel() for p in ClipText(class_prompts(CLASSES), 512, None).parameters()) == tower
    says("findings", f"The text tower of CLIP's ViT-B has {tower / 1e6:.1f} M: {words:,} tokens, 77 places, 12 blocks "
         f"of width {width}.")


# draws

def test_draws_of_the_partition(timed):
    drawn = Page("feddtr/partitions", "mini")
    found, runs = feddtr.spread(drawn, timed["as printed"]), drawn.by().loc["mini"]
    line, ahead = found.loc["mini", "FedPer"], runs.FedDTR - runs.FedPer
    assert line.draws == len(runs) == 5 and line["range"] == pytest.approx(runs.FedPer.max() - runs.FedPer.min())
    assert line["FedDTR's lead"] == pytest.approx(ahead.mean()) and line["sd of lead"] == pytest.approx(ahead.std())
    fixed = timed["as printed"].by().loc["mini"].FedPer
    assert line["sd, one partition"] == pytest.approx(fixed.std()) and pd.isna(line.printed)
    dots = feddtr.deviations(drawn)
    assert len(dots) == 20 and dots.groupby("row").value.sum().abs().max() < 1e-9


# words and tables

def test_what_the_page_of_clients_says_of_tables_2_and_3():
    rise, wide = lost("table2", "tiny", "tiny_b05"), lost("table2", "tiny_b001", "tiny_b05")
    ten, twenty = lost("table2", "cifar100_10", "cifar100_100"), lost("table2", "cifar100", "cifar100_100")
    more, less = (rise > rise["FedDTR"]).sum(), (rise < rise["FedDTR"]).sum()
    order = ten.sort_values()
    few = [f"{m} ({v:.2f})" for m, v in order.items() if 0 < v < ten["FedDTR"]]
    gain = [m for m, v in order.items() if v <= 0]
    drop = lost("table3", "cifar100_50", "cifar100_50_tenth")
    assert drop.drop("FedDTR").idxmin() == "FedPer" and (twenty["FedPer"], twenty["FedAMP"]) == (9.26, 7.26)
    says("clients", f"It loses {rise['FedAMP']:.2f}; from beta = 0.01 it is {wide['FedAMP']:.2f}.",
         f"From 0.1 to 0.5 FedDTR loses {rise['FedDTR']:.2f} points; {more} of the others lose more, {less} less.",
         f"From 10, where FedDTR's is counted, they are {ten['FedPer']:.2f} and {ten['FedAMP']:.2f}.",
         f"It loses {ten['FedDTR']:.2f} and is number {order.index.get_loc('FedDTR') + 1} of {len(ten)}. Less is lost "
         f"by {', '.join(few[:-1])} and {few[-1]}; {', '.join(gain[:-1])} and {gain[-1]} gain.",
         f"It loses {drop['FedDTR']:.2f}, and FedPer {drop['FedPer']:.2f}. {(drop < 2).sum()} of the {len(drop)} "
         "methods lose less than 2 points.")
    for name, columns in (("table2", ["tiny_b001", "tiny", "tiny_b05"]), ("table3", ["cifar100_50"])):
        assert all(printed(name, c).idxmax() == "FedDTR" for c in columns)


def test_what_the_page_of_ablations_says_of_tables_7_and_9():
    c, pacs, bare, nine = printed("table7", "cifar10"), printed("table7", "pacs"), "w.o. Text & Freeze", printed(
        "table9", "cifar10")
    local, shared = c["baseline (text)"] - c["baseline"], c["w.o. Freeze & IP"] - c[bare]
    says("ablations", f"the five encoders lie within {nine.max() - nine.min():.2f} points; the 0.04 of the text is",
         f"w.o. Freeze & IP loses {c['Ours'] - c['w.o. Freeze & IP']:.2f} (0.65 in the bracket), {bare} "
         f"{c['Ours'] - c[bare]:.2f} (1.85). The text has both right",
         f"{pacs['Ours']:.2f} − {pacs['w.o. Text']:.2f} = {pacs['Ours'] - pacs['w.o. Text']:.2f}.",
         f"{c['baseline (text)']:.2f} − {c['baseline']:.2f} = {local:.2f}.",
         f"{shared:.2f} is {shared / local:.1f} times {local:.2f}. The reference is {bare}, which is "
         f"{c['baseline'] - c[bare]:.2f} points below the baseline that shares nothing.")
    assert round((nine - nine["1-layer MLP"]).abs().max(), 2) == 0.04


def test_what_the_page_of_findings_says_of_the_tables():
    one, seven, pacs = printed("table1", "cifar100"), printed("table7", "cifar10"), printed("table7", "pacs")
    ten, twenty = lost("table2", "cifar100_10", "cifar100_100"), lost("table2", "cifar100", "cifar100_100")
    rise, wide = lost("table2", "tiny", "tiny_b05"), lost("table2", "tiny_b001", "tiny_b05")
    drop, nine = lost("table3", "cifar100_50", "cifar100_50_tenth"), printed("table9", "cifar10")
    rounds, minutes = (printed("table5", "tiny_resnet", k) for k in ("rounds", "minutes_per_round"))
    four = feddtr.printed("table4")
    text, alone = seven["w.o. Freeze & IP"] - seven["w.o. Text & Freeze"], seven["baseline (text)"] - seven["baseline"]
    six = [printed("table6", d) for d in ("mnist", "cifar100", "ag_news")]
    moved = max((line - line["origin"]).abs().max() for line in six)

    def smaller(values, form=".2f"):
        some = values[values < values["FedDTR"]].sort_values(kind="stable")
        return ", ".join(f"{m} {v:{form}}" for m, v in some.items())
    says("findings",
         f"{one['FedDTR'] - one['FedProto']:+.2f}. {one['FedDTR'] - one['FedALA']:.2f} is the lead over FedALA.",
         f"By {rise['FedAMP']:.2f}; from β = 0.01 to 0.5 by {wide['FedAMP']:.2f}.",
         f"It loses {ten['FedDTR']:.2f}. {(ten < ten['FedDTR']).sum()} of 13 others lose less or gain: {smaller(ten)}.",
         f"From 10, where FedDTR is counted from: -{ten['FedPer']:.2f} and -{ten['FedAMP']:.2f}. FedDTR from 20: "
         f"-{twenty['FedDTR']:.2f}.",
         f"FedDTR {drop['FedDTR']:.2f}, FedPer {drop['FedPer']:.2f}. The median of the others is "
         f"{drop.drop('FedDTR').median():.2f}.",
         f"{(rounds < rounds['FedDTR']).sum()} of 13 others need fewer: {smaller(rounds, '.0f')}. A round of FedDTR "
         f"takes {minutes['FedDTR']} minutes; {(minutes < minutes['FedDTR']).sum()} others take less.",
         f"Less time: {smaller(four.seconds)} s (FedDTR {four.seconds['FedDTR']}). Less memory: {smaller(four.MB)} MB "
         f"(FedDTR {four.MB['FedDTR']}).", f"True, up to {moved:.2f}.", f"By {nine.max() - nine.min():.2f}.",
         f"To the full method, as in the other columns, {seven['w.o. Freeze & IP'] - seven['Ours']:+.2f} and "
         f"{seven['w.o. Text & Freeze'] - seven['Ours']:+.2f}.", f"| {pacs['w.o. Text'] - pacs['Ours']:+.2f}. |",
         f"{alone:.2f} and {text:.2f}: {text / alone:.1f} times as much; 0.24 would give {text / 0.24:.1f}.",
         f"{seven['w.o. Text & Freeze']}, the number of FedPer in Table 1 ({printed('table1', 'cifar10')['FedPer']}). "
         f"Training alone has {seven['baseline']}: the federated baseline is "
         f"{seven['baseline'] - seven['w.o. Text & Freeze']:.2f} points below it.")


def test_what_the_page_of_findings_says_of_leads_and_of_other_papers():
    paper = tables.papers()["feddtr"]
    blocks = [b for b in paper["tables"]["table1"]["blocks"] if "paper" in paper["blocks"][b]]
    columns = {paper["blocks"][b]["title"]: printed("table1", b) for b in blocks}
    steps = pd.concat([c.sort_values().diff().dropna() for c in columns.values()])
    ahead = {title: c["FedDTR"] - c.drop("FedDTR").max() for title, c in columns.items()}
    low, high = min(ahead, key=ahead.get), max(ahead, key=ahead.get)
    says("findings", f"it is {steps.median():.2f} points in the median. In print FedDTR leads the second best by "
         f"{ahead[low]:.2f} ({low}) to {ahead[high]:.2f} points ({high}); the smallest lead is "
         f"{round(ahead[low], 2) / 100 * 17500:.2f} of 17,500 test images.")
    theirs = columns["CIFAR-10"]["FedALA"]
    says("findings", f"The printed number is {theirs:.2f}: {theirs - 73.33:.1f} and {theirs - 79.79:.1f} points more.")
    fedala = {title: c["FedALA"] - c.drop(["FedDTR", "FedALA"]).max() for title, c in columns.items()}
    top, pat = max(fedala, key=fedala.get), columns["CIFAR-10, pathological"]
    says("findings", f"{fedala[top]:.2f} ({top}, over {columns[top].drop(['FedDTR', 'FedALA']).idxmax()})",
         f"{pat['FedRep']:.2f} and {pat['FedALA']:.2f}: {pat['FedRep'] - 91.14:.2f} and {pat['FedALA'] - 91.75:.2f} "
         "higher", f"| 59.16 | {columns['CIFAR-10']['FedAvg']:.2f} |",
         f"| 31.95 | {printed('table2', 'cifar100_100')['FedAvg']:.2f} (100 clients) |")


def test_what_the_page_of_costs_says_of_the_whole_table():
    pooled = {"mnist": 70_000, "cifar10": 60_000, "cifar100": 60_000, "tiny_imagenet": 100_000, "ag_news": 127_600}
    runs = [p.run for p in tables.load_table("feddtr/table1").runs("paper") if p.run.method != "Constant"]
    steps = sum(r.protocol.rounds * 0.75 * pooled[r.data.name] / r.protocol.batch for r in runs)
    assert len(runs) == 14 * 9 * 3 and steps == pytest.approx(4.46e9, rel=0.02)
    says("costs", "is 4.5 billion steps of ten samples: 14 rows, nine columns, 2,000 rounds each",
         f"that is {round(1.3e-3 * steps / 3600, -2):,.0f} hours, so no record of FedDTR is of the paper profile")
    assert not any(r.path(results_folder(None)).exists() for r in runs)


def test_the_rates_that_pages_state(timed):
    blocks = tables.papers()["feddtr"]["blocks"]
    assert blocks["mini"]["mini"]["protocol"]["lr"] == 0.01 and blocks["cifar10"]["paper"]["protocol"]["lr"] == 0.005
    says("method", "The mini tables have the rate 0.01, the paper's CNN 0.005.")
    assert not timed["as printed"].evidence.query("row == 'FedDTR'").diverged.any()
    says("findings", "one at which FedDTR's loss does not overflow")
    assert {b for b in blocks if b.startswith("tiny") and "lite" in blocks[b]} == set()
