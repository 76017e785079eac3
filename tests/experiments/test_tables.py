"""Tables as data: digests, selection, intervals, comparison, verdicts; every table and claim names what exists."""
import copy
import dataclasses
import importlib.util
import json
import math

import pandas as pd
import pytest
import small_paper
from conftest import ROOT
from scipy import stats
from small_paper import a_record, fill

from fedlib.core.errors import UserError
from fedlib.datasets.registry import reader_of
from fedlib.engine import records
from fedlib.engine.run import plan
from fedlib.experiments import distance, filled, power, rules, tables
from fedlib.experiments.statistics import interval
from fedlib.methods import METHODS

TABLE2 = "i2pfl/table2"


# runs and digests

PLAIN = {"method": "FedProx", "values": {"mu": 0.1}, "data": {"name": "mini_digits", "clients": [3, 2, 1, 4]},
         "net": {"net": "cnn4"}, "protocol": {"rounds": 3, "lr": 0.1}, "seed": 0}


def test_a_pinned_digest():
    """If this fails, every committed record has lost its name."""
    assert plan(**PLAIN).digest == "ad7afc594e51"
    assert plan("FedAvg", {}, {}, {}, {}, 0).digest == "400843c622d1"       # every field at its default


CHANGES = [("method", None, "FedAvg"), ("seed", None, 1), ("values", "mu", 0.2)]
CHANGES += [("net", "width", 8), ("net", "net", "linear"), ("net", "head", "hidden"), ("net", "start", "imagenet")]
CHANGES += [("net", "normalisation", "group"), ("net", "tower", "open_clip:a/b")]
CHANGES += [("protocol", k, v) for k, v in dict(
    rounds=4, epochs=2, batch=8, lr=0.2, momentum=0.9, weight_decay=1e-5, optimiser="adam", clip=1.0, augment="crop",
    participation=0.5, participation_low=0.1, buffers="keep", precision="bf16", evaluate="both", patience=3,
    stop="loss", keep_optimiser=True, warmup=2, initial=True, cross=True, order="classes", least_batch=4,
    cohort=2, test_every=2, test_clients=3).items()]
CHANGES += [("data", k, v) for k, v in dict(
    name="pacs", size=28, domains=["scans"], clients=[1], fraction=0.5, repair=False, test="all",
    unseen=["scans"], normalise="half", split="feddeap", mixed=0.3, chunks="disjoint", dirichlet=0.1, minimum=5,
    pathological=2, spread=0.5, natural=True, balanced=False, partition_seed=1, pool=0.5, tuning=0.2,
    encoder="squeezenet1_1", head="public").items()]


def test_the_digest_covers_every_field():
    digests = {plan(**PLAIN).digest}
    for part, field, value in CHANGES:
        changed = copy.deepcopy(PLAIN)
        if field:
            changed[part][field] = value
        else:
            changed[part] = value
        digests.add(plan(**{**changed, "values": {} if value == "FedAvg" else changed["values"]}).digest)
    assert len(digests) == len(CHANGES) + 1
    covered = {(part, field) for part, field, _ in CHANGES if field}
    run = plan(**PLAIN)
    assert covered == {("values", "mu")} | {
        (part, f.name) for part in ("data", "net", "protocol") for f in dataclasses.fields(getattr(run, part))}


def test_the_digest_covers_the_version(monkeypatch):
    before = plan(**PLAIN).digest
    monkeypatch.setattr(METHODS["FedProx"], "version", 2)
    assert plan(**PLAIN).digest != before


def test_the_digest_ignores_order_spelling_and_defaults():
    other = {"seed": "0", "protocol": {"lr": "0.1", "rounds": "3", "momentum": 0}, "net": {"net": "cnn4", "width": 0},
             "data": {"clients": "3,2,1,4", "name": "mini_digits"}, "values": {"mu": "0.1"}, "method": "FedProx"}
    assert plan(**other) == plan(**PLAIN)
    assert plan(**other).digest == plan(**PLAIN).digest


def test_a_record_survives_the_file(tmp_path):
    run = plan(**PLAIN)
    rounds = [{"round": r, "acc": {"scans": 1.5}, "train_loss": 2.0} for r in range(1, run.protocol.rounds + 1)]
    record = {"run": run.spec, "rounds": rounds, "made": {"seconds": 1.0}}
    records.write_record(run.path(tmp_path), record)
    assert run.path(tmp_path).name == f"FedProx-{run.digest}.json"
    assert records.read_record(run.path(tmp_path)) == json.loads(json.dumps(record))


def test_a_setting_at_one_block_of_one_profile_is_nowhere_else():
    table = tables.load_table("i2pfl/table2")
    lam = {(p.block, profile): p.run.settings["lam"] for profile in tables.PROFILES for p in table.runs(profile, [0])
           if p.row == "FedPLVM"}
    assert {at for at, value in lam.items() if value == 1} == {("mini", "mini"), ("pacs", "lite"), ("pacs_all", "lite")}
    assert set(lam.values()) == {1, 100}


# what the files say

@pytest.mark.parametrize("ident", tables.idents())
def test_every_table_can_be_planned(ident):
    table = tables.load_table(ident)
    rows = {r["name"]: r.get("method", r["name"]) for r in table.rows}
    assert len(rows) == len(table.rows) and table.blocks and len(table.seeds) >= 2
    assert set(rows.values()) <= set(METHODS)
    profiles = {p for block in table.blocks.values() for p in block} & set(tables.PROFILES)
    assert "mini" in profiles
    for profile in profiles:
        runs = table.runs(profile)
        given = [p.run.digest for p in runs if not tables.is_tuned(p.row)]  # what is chosen may be what was given
        assert given and len(set(given)) == len(given)      # no two cells share a run
        for p in runs:
            domains = list(p.run.data.domains or reader_of(p.run.data.name).DOMAINS)
            columns = list(table.blocks[p.block]["columns"])
            assert table.transfer or columns == domains or table.leave_one_out and set(columns) < set(domains)
            assert p.run.data.unseen == ((p.unseen,) if table.leave_one_out else ())
            assert p.run.method == rows[p.row] and p.seed == p.run.seed
    both = {f"{table.printed_as(b)}.{p}" for b, how in table.blocks.items() for p in how if p in tables.PROFILES}
    for row in table.rows:
        assert set(row.get("at", {})) <= {*table.blocks, *tables.PROFILES} | both
    printed = table.printed
    if printed.empty:
        return      # of our own making, or a figure that names no numbers
    without = tables.papers()[ident.split("/")[0]]["paper"].get("without", {})     # a profile: why there is none
    assert profiles | set(without) == set(tables.PROFILES) and not profiles & set(without)
    assert {name for name, method in rows.items() if name == method} <= set(printed.method) <= set(rows)
    assert set(printed.dataset) <= set(table.blocks)
    for block, part in printed.groupby("dataset"):
        whole = set(table.settings(block))      # of a figure only what the text names is printed
        some = table.transfer or "/table" not in ident
        assert set(part.setting) in (whole, {"avg"}) or set(part.setting) < whole and some


def claims():
    """Every claim, with the printed numbers of its column by row."""
    for paper, content in tables.papers().items():
        printed = pd.read_csv(tables.PAPERS / f"{paper}.csv").query("metric == 'accuracy'")
        printed = printed.set_index(["table", "dataset", "setting"])
        for c in content.get("claims", []):
            column = printed[printed.index == (c["table"], c["block"], c["setting"])]
            yield f"{paper}/{c['table']}", c, dict(zip(column.method, column.value, strict=True))


def test_claims_name_rows_blocks_and_settings_that_exist():
    ids = [c["id"] for _, c, _ in claims()]
    assert len(ids) == len(set(ids)) > 0
    fields = {"id", "source", "says", "table", "block", "setting", "better", "than"}
    for ident, c, _ in claims():
        table = tables.load_table(ident)
        assert c["setting"] in {*table.blocks[c["block"]]["columns"], "avg"}, c["id"]
        assert {c["better"], *c["than"]} <= {r["name"] for r in table.rows}, c["id"]
        assert c["better"] not in c["than"] and c["than"], c["id"]
        assert fields <= set(c) <= fields | {"margin", "note", "rank", "beyond"}, c["id"]
        assert c.get("rank", 1) == 1 + ("best or second best" in c["says"]), c["id"]


def test_printed_margins_are_the_printed_numbers():
    for _, c, printed in claims():
        if "margin" in c:
            assert printed[c["better"]] - max(printed[r] for r in c["than"]) == pytest.approx(c["margin"]), c["id"]


def test_mini_stands_beside_nothing_printed():
    table = tables.load_table(TABLE2)
    assert not {b for b, content in table.blocks.items() if "mini" in content} & set(table.printed.dataset)
    assert filled.shown_blocks(table, "mini") == ["mini"]
    features = ["office_features", "pacs_features"]
    assert filled.shown_blocks(table, "lite") == ["digits", "office", "office_16", "pacs", "pacs_all", *features]
    assert not set(features) & set(table.printed.dataset)


def test_claims_are_asked_of_other_blocks_of_their_data():
    there = {c["id"]: c for c in tables.load_table(TABLE2).claims}
    first, again = there["table2-office-best"], there["table2-office_features-best"]
    assert first["margin"] == 4.99 and "margin" not in again and again["than"] == first["than"]
    assert again["block"] == "office_features" and again["says"].startswith(f"{first['says']} Asked of: Office-10,")
    assert {c["block"] for c in there.values()} == {"digits", "office", "pacs", "office_features", "pacs_features"}
    assert len({c["says"] for c in there.values()}) == len(there)


def test_a_claim_has_an_id_of_its_own():
    every = {paper: [c["id"] for i in tables.idents() if i.startswith(paper) for c in tables.load_table(i).claims]
             for paper in tables.papers()}
    assert all(len(set(ids)) == len(ids) for ids in every.values())
    assert "table1-cifar100_pat_features-best" in every["feddtr"]


@pytest.mark.parametrize("ident", ["i2pfl/table2", "i2pfl/table4", "i2pfl/table5", "i2pfl/table6", "fedpall/table1",
                                   "fedpall/figure3", "fedpall/figure6", "feddtr/table1"])
def test_where_claims_are_asked_again_methods_have_the_settings_of_the_set(ident):
    """But for what follows the local epochs, and PerFedAvg's steps, whose rates are the protocol's."""
    table = tables.load_table(ident)
    again = {b: content["claims_of"] for b, content in table.blocks.items() if "claims_of" in content}
    assert sorted(again.values()) == (["cifar100", "cifar100_pat"] if "feddtr" in ident else ["office", "pacs"])
    shorter = {"head_epochs", "retrain_epochs", "alpha", "beta"}
    for row in (r for r in table.rows if not r.get("tuned")):
        for block, of in again.items():
            here, there = table.plan(row, block, "lite", 0).settings, table.plan(row, of, "paper", 0).settings
            assert {k for k in here if here[k] != there[k]} <= shorter, (row["name"], block)


def test_unknown_names():
    with pytest.raises(UserError, match="did you mean 'i2pfl/table2'"):
        tables.load_table("i2pfl/tabel2")
    with pytest.raises(UserError, match="did you mean 'lite'"):
        tables.load_table(TABLE2).runs("light")


# reading

ROUNDS = [{"acc": {"a": a, "b": b}, "val": {"a": v, "b": v}} for a, b, v in
          [(10, 20, 1), (90, 10, 2), (30, 40, 9), (40, 50, 3), (50, 60, 4), (60, 30, 9), (20, 10, 5)]]


@pytest.mark.parametrize("rule, a, b", [
    ("last", 20, 10), ("last5", 40, 38), ("best-val", 30, 40), ("best-test", 50, 60)])
def test_selection_by_hand(rule, a, b):
    assert rules.select({"rounds": ROUNDS}, rule) == {"a": a, "b": b}


def test_selection_of_few_rounds_and_without_validation():
    assert rules.select({"rounds": ROUNDS[:2]}, "last5") == {"a": 50, "b": 15}
    with pytest.raises(UserError, match="no validation split"):
        rules.select({"rounds": [{"acc": {"a": 1}}]}, "best-val")
    with pytest.raises(UserError, match="did you mean 'best-val'"):
        rules.select({"rounds": ROUNDS}, "best_val")


def test_an_unknown_selection_is_named_before_there_are_records(tmp_path):
    with pytest.raises(UserError, match="unknown selection"):
        filled.values(tables.load_table(TABLE2), "mini", tmp_path, "median")


def test_interval_is_students():
    sample = [57.1, 58.4, 56.9]
    mean, half = interval(sample)
    assert mean == pytest.approx(57.46666667)
    low, high = stats.t.interval(0.95, 2, sum(sample) / 3, stats.sem(sample))
    assert (mean - half, mean + half) == pytest.approx((low, high))
    assert half == pytest.approx(4.302652730 * 0.8144527 / 3 ** 0.5, rel=1e-6)      # t and s worked out by hand
    assert math.isnan(interval([1.0])[1]) and math.isnan(interval([])[0])


def test_comparison_cell_by_cell(tmp_path):
    table = tables.load_table(TABLE2)
    fill(tmp_path, table.runs("lite"), lambda p: {"FedAvg": 50.0 + p.seed, "MOON": 60.0}.get(p.row))
    cells = filled.compare(table, "lite", tmp_path).set_index(["block", "setting", "row"])
    avg = cells.loc["office", "caltech", "FedAvg"]
    assert (avg.printed, avg.ours, avg.n) == (64.91, 51.0, 3)
    assert avg.difference == pytest.approx(51 - 64.91) and avg.half == pytest.approx(4.302652730 / 3 ** 0.5)
    dslr = cells.loc["office", "dslr", "FedProx"]
    assert math.isnan(dslr.ours) and dslr.n == 0 and dslr.printed == dslr.printed
    assert len(cells) == len(table.blocks) * 5 * len(table.rows) >= 7 * 5 * 12
    one = filled.compare(table, "lite", tmp_path, seeds=[1]).set_index(["block", "setting", "row"])
    assert one.loc["office", "avg", "FedAvg"].ours == 51 and one.loc["office", "avg", "FedAvg"].n == 1

    wide = filled.wide(table, cells.reset_index(), "office")
    assert list(wide.columns) == ["Avg", "Caltech", "Amazon", "Webcam", "DSLR", "n"]
    assert list(wide.index) == [r["name"] for r in table.rows if not tables.is_tuned(r["name"])]
    assert wide.loc["FedAvg", "Caltech"] == "64.91 | 51.0 ± 2.5" and wide.loc["FedDyn", "Caltech"].endswith(" | –")


def test_a_record_of_another_profile_fills_no_cell(tmp_path):
    table = tables.load_table(TABLE2)
    fill(tmp_path, table.runs("paper"), lambda p: 99.0)
    fill(tmp_path, table.runs("mini"), lambda p: 99.0)
    assert filled.values(table, "lite", tmp_path).empty
    cells = filled.compare(table, "mini", tmp_path)
    assert set(cells[cells.n > 0].block) == {"mini"} and cells[cells.block == "mini"].printed.isna().all()


def test_a_leave_one_out_table_reads_the_unseen_domain_and_averages_only_whole_rows(tmp_path):
    table = tables.load_table("i2pfl/table3")
    for i, p in enumerate(x for x in table.runs("mini", [0, 1]) if x.row == "FedAvg"):
        if (p.seed, p.unseen) != (1, "street"):
            record = a_record(p, 99.0)
            for r in record["rounds"]:
                r["unseen"] = {p.unseen: 10.0 * (i + 1)}
            records.write_record(p.run.path(tmp_path), record)
    found = filled.values(table, "mini", tmp_path).set_index(["setting", "seed"]).value
    assert found.to_dict() == {("scans", 0): 10, ("blended", 0): 20, ("printed", 0): 30, ("street", 0): 40,
                               ("scans", 1): 50, ("blended", 1): 60, ("printed", 1): 70, ("avg", 0): 25}
    cells = filled.compare(table, "mini", tmp_path).set_index(["block", "setting", "row"])
    assert cells.loc["mini", "avg", "FedAvg"].n == 1 and cells.loc["mini", "scans", "FedAvg"].ours == 30


def test_a_row_is_read_at_the_time_it_says(tmp_path):
    rows = [{"name": "FedAvg"}, {"name": "FedPer", "when": "after"}, {"name": "Local", "when": "after"}]
    table = dataclasses.replace(tables.load_table(TABLE2), rows=rows)
    for p in table.runs("mini"):
        record = a_record(p, 10.0)
        for r in record["rounds"] if p.row != "Local" else ():        # a record of one time
            r["after"] = dict.fromkeys(p.run.data.domains, 50.0 if r["round"] == 1 else 30.0)
        records.write_record(p.run.path(tmp_path), record)

    def ours(**how):
        cells = filled.compare(table, "mini", tmp_path, **how)
        return cells[(cells.block == "mini") & (cells.setting == "avg")].set_index("row").ours.to_dict()
    assert ours(rule="last") == {"FedAvg": 10, "FedPer": 30, "Local": 10}
    assert ours(rule="best-test") == {"FedAvg": 10, "FedPer": 50, "Local": 10}     # the round is chosen at that time
    assert ours(rule="last", when="after") == {"FedAvg": 30, "FedPer": 30, "Local": 10}
    assert ours(rule="last", when="before") == {"FedAvg": 10, "FedPer": 10, "Local": 10}


def test_blocks_side_by_side(tmp_path):
    table = tables.load_table(TABLE2)
    fill(tmp_path, table.runs("mini"), lambda p: 50.0 if p.row == "FedAvg" else None)
    shown = filled.side_by_side(table, filled.compare(table, "mini", tmp_path))
    assert list(shown.index) == [r["name"] for r in table.rows]
    mini = table.blocks["mini"]["title"]
    assert shown.loc["FedAvg", mini] == "– | 50.0 ± 0.0" and shown.loc["FedProx", mini] == "– | –"
    assert list(shown.columns) == [b["title"] for name, b in table.blocks.items() if not name.endswith("_features")]
    bare = dataclasses.replace(table, printed=table.printed[:0])
    assert list(filled.side_by_side(bare, filled.compare(bare, "mini", tmp_path)).columns) == [mini]


def test_a_tuned_row_is_empty_where_nothing_was_chosen(tmp_path):
    """Elsewhere a dash: a run is planned and has no record."""
    table = tables.load_table("feddtr/table1")
    shown = filled.side_by_side(table, filled.compare(table, "lite", tmp_path))
    assert [shown.loc[row, "CIFAR-100"] for row in ("FedAvg", "FedAvg, tuned")] == ["31.89 | –"] * 2
    assert [shown.loc[row, "MNIST"] for row in ("FedAvg", "FedAvg, tuned")] == ["98.81 | –", ""]


def test_a_variant_of_a_block_stands_beside_the_papers_numbers(tmp_path):
    cells = filled.compare(tables.load_table(TABLE2), "lite", tmp_path).set_index(["block", "setting", "row"])
    assert cells.loc["pacs_all", "avg", "FedAvg"].printed == cells.loc["pacs", "avg", "FedAvg"].printed == 77.43


def test_a_row_overrides_its_methods_settings_and_those_of_the_block():
    settings = {(p.row, p.block): p.run.settings for p in tables.load_table("i2pfl/table4").runs("paper", [0])}
    assert [settings["full", b]["lam_intra"] for b in ("digits", "office", "pacs")] == [10, 10, 2]
    assert [settings["full", b]["tau"] for b in ("digits", "office", "pacs")] == [0.07, 0.02, 0.04]
    assert {settings["w/o APA", b]["lam_intra"] for b in ("digits", "office", "pacs")} == {0}
    equal = tables.load_table("i2pfl/table7").runs("paper", [0])
    assert {p.block: p.run.data.clients for p in equal} == {"digits": (5,) * 4, "office": (3,) * 4, "pacs": (3,) * 4}


@pytest.mark.committed
def test_the_readme_shows_what_the_records_give():
    """`python book/readme.py` writes its table, and the checksums of the records: none is changed unseen."""
    spec = importlib.util.spec_from_file_location("readme", ROOT / "book" / "readme.py")
    readme = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(readme)
    text = (ROOT / "README.md").read_text()
    assert "<!-- results -->" in text and readme.renewed(text) == text
    lists = readme.sums()
    assert set(lists) == set(readme.RESULTS.rglob(readme.SUMS))
    assert {path: path.read_text() for path in lists} == lists
    records = set(readme.RESULTS.glob("[!.]*/*.json"))
    assert records == {path.parent / line.split("  ")[1] for path, text in lists.items() for line in text.splitlines()
                       if path.parent != readme.RESULTS and line.endswith(".json")}


def test_a_table_may_change_how_its_blocks_are_run(tmp_path, monkeypatch):
    """Others of the paper keep theirs: their records stay."""
    other = ('[tables.u]\ntitle = "Another"\nblocks = ["b"]\nseeds = [0]\nselect = "last"\n'
             'rows = [{ name = "FedAvg" }]\n')
    changes = 'changes = { "b.mini" = { data = { fraction = 0.25 }, protocol = { rounds = 9 } } }\n'
    small_paper.use(tmp_path, monkeypatch, small_paper.content('{ name = "FedAvg" }', more=changes + other))
    (one,), (two,) = (tables.load_table(f"small/{t}").runs("mini") for t in "tu")
    assert (one.run.protocol.rounds, one.run.data.fraction, one.run.protocol.lr) == (9, 0.25, 0.05)
    assert (two.run.protocol.rounds, two.run.data.fraction) == (4, 0.5)
    wrong = changes.replace("b.mini", "b.lite")
    (tmp_path / "papers/small.toml").write_text(small_paper.content('{ name = "FedAvg" }', more=wrong))
    with pytest.raises(UserError, match="t changes 'b.lite', which it does not have"):
        tables.load_table("small/t")


def test_a_table_may_have_the_rows_of_another(tmp_path, monkeypatch):
    """Then a block that both have is one set of runs, whatever is changed in a row."""
    row, shared = '{ name = "FedAvg", protocol_at = { "b.mini" = { rounds = 7 } } }', 'rows_of = "t"\n'
    other = '[tables.u]\ntitle = "Another"\nblocks = ["b"]\nseeds = [0]\nselect = "last"\n'
    small_paper.use(tmp_path, monkeypatch, small_paper.content(row, more=other + shared))
    (one,), (two,) = (tables.load_table(f"small/{t}").runs("mini") for t in "tu")
    assert one.run == two.run and two.run.protocol.rounds == 7
    for wrong, says in {"": "u needs rows or rows_of", shared + 'rows = [{ name = "FedProx" }]\n': "only one of them",
                        'rows_of = "u"\n': "u has no rows", 'rows_of = "v"\n': "u has no rows"}.items():
        (tmp_path / "papers/small.toml").write_text(small_paper.content(row, more=other + wrong))
        with pytest.raises(UserError, match=says):
            tables.load_table("small/u")


def test_a_block_may_have_more_seeds_than_its_table(tmp_path, monkeypatch):
    """Where a run takes seconds; what is asked for comes first, and the table says what so many find."""
    text = small_paper.content('{ name = "FedAvg" }').replace("[blocks.b.mini]", "[blocks.b.mini]\nseeds = [0, 1, 2]")
    small_paper.use(tmp_path, monkeypatch, text)
    table = tables.load_table("small/t")
    planned = table.runs("mini"), table.references("mini"), table.runs("mini", [7])
    assert table.seeds == [0] and [[p.seed for p in some] for some in planned] == [[0, 1, 2], [0, 1, 2], [7]]
    assert power.of_blocks(table, "mini", tmp_path).seeds.tolist() == [3]
    (tmp_path / "papers/small.toml").write_text(text + 'changes = { "b.mini" = { seeds = [5, 6] } }\n')
    assert [p.seed for p in tables.load_table("small/t").runs("mini")] == [5, 6]


def test_a_row_of_which_a_seed_diverged_has_no_number(tmp_path, monkeypatch):
    """The seeds that held would flatter it."""
    small_paper.use(tmp_path, monkeypatch, small_paper.content('{ name = "FedAvg" }, { name = "Local" }', range(3)))
    table, results = tables.load_table("small/t"), tmp_path / "results"
    for p in table.runs("mini"):
        wild = p.row == "Local" and p.seed == 1
        records.write_record(p.run.path(results), small_paper.a_record(p, 60 + p.seed, loss=1e6 if wild else 1.0))
    cells = filled.compare(table, "mini", results).set_index(["row", "setting"])
    assert cells.ours["FedAvg", "avg"] == 61 and cells.n["FedAvg", "avg"] == 3
    assert cells.ours.isna()["Local", "avg"] and cells.n["Local", "avg"] == 3
    assert filled.cell(cells.loc["Local", "avg"]) == "– | diverged"
    assert filled.cell(cells.loc["FedAvg", "avg"]).startswith("– | 61.0 ± ")


def test_provenance_names_every_code_that_a_run_went_on_with(tmp_path, monkeypatch):
    small_paper.use(tmp_path, monkeypatch, small_paper.content('{ name = "FedAvg" }', seeds=(0, 1)))
    table = tables.load_table("small/t")
    went_on = {"earlier": [{"rounds": 1, "commit": "1a2b", "torch": "2.0"}]}
    for planned, earlier in zip(table.runs("mini"), ({}, went_on), strict=True):
        record = small_paper.a_record(planned, 50.0)
        record["made"] |= {"commit": "3c4d", "torch": "2.1", "hardware": "a", "seconds": 3600.0} | earlier
        records.write_record(planned.run.path(tmp_path), record)
    line = filled.provenance(table, "mini", tmp_path).loc["b"]
    assert (line.runs, line.hours, line.commit, line.torch, line.hardware) == (2, 2.0, "1a2b, 3c4d", "2.0, 2.1", "a")


@pytest.mark.parametrize(("was", "now", "said"), [
    ('{ name = "FedAvg"', '{ methd = "FedPer", name = "FedAvg"',
     "has 'methd', which nothing reads; did you mean 'method'"),
    ("protocol = {", "protocl = { }\nprotocol = {", "has 'protocl', which nothing reads; did you mean 'protocol'"),
    ("[tables.t]", "[tables.t]\nselekt = 1", "did you mean 'select'")])
def test_a_misspelt_word_of_a_table_is_said(was, now, said):
    """A row with `setting = { mu = 5 }` trained with the default, under the name of another."""
    text = small_paper.content('{ name = "FedAvg" }', (0,))
    assert was in text and tables.checked(text)
    with pytest.raises(ValueError, match=said):
        tables.checked(text.replace(was, now, 1))


# how far a profile is from the paper's experiment

def test_what_rows_have_alike_is_one_line():
    table = tables.load_table("fedpall/table1")
    line = distance.of_block(table, "pacs", "lite").set_index("what").astype(str)
    assert line.loc["image size"].tolist() == ["64", "32"]
    assert line.loc["rounds: the other rows"].tolist() == ["100", "120"]
    shorter = next(what for what in line.index if what.startswith("rounds: FedAvg"))
    assert "FedProto" in shorter and "FedProx" not in shorter and line.loc[shorter, "lite"] == "60"
    # a rate that some rows share with the paper is said of the others by name
    assert not [what for what in line.index if what == "learning rate: the other rows"]
    assert all(": " not in what for what in line.index[:4]) and line.index.is_unique and len(line) < 25
    for block in ("digits", "mini"):
        assert distance.of_block(table, block, "lite" if block == "digits" else "mini").empty
