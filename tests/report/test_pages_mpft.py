"""What MPFT's pages say, once more from the plans and the committed records."""
import pytest

from fedlib import Data, Page
from fedlib.datasets import prepare
from fedlib.datasets.partition import partition
from fedlib.engine import evaluate, records
from fedlib.experiments import tables
from fedlib.experiments.claims import judge_all
from fedlib.report import mpft, text
from fedlib.report import page as pages_

SEEDS = [1, 2, 3]
SHARED = ("FedAvg", "FedProx", "MOON", "MPFT")      # rows of one net for all clients


@pytest.fixture(scope="module", params=["table1", "table2", "table6"])
def page(request):
    return Page(f"mpft/{request.param}", "lite", SEEDS)


@pytest.fixture(scope="module")
def pages():
    return {name: Page(f"mpft/{name}", "lite", SEEDS) for name in ("table3", "table4", "table7", "figure4", "figure6")}


def test_measures_of_transfer_follow_from_the_accuracies(page):
    """In Table 1 each domain is a client. By Equation 3 ood is ind, where all clients share a net."""
    for planned, record in page.found:
        best = min(record["rounds"], key=lambda r: r["val_loss"])
        if planned.row.split(" (")[0].split(",")[0] in SHARED:
            assert all(abs(r["transfer"]["ood"] - r["transfer"]["ind"]) < 1e-3 for r in record["rounds"])
        if page.table.id == "mpft/table1":
            n = {c["domain"]: c["test"] for c in record["made"]["data"]["clients"]}
            again = evaluate.transfer_scores({d: best["cross"].get("all") or best["cross"][d] for d in n}, n)
            assert again == pytest.approx(best["transfer"], abs=0.02), (planned.row, planned.block)


def test_a_number_of_the_table_is_the_mean_of_its_files(page):
    cells = page.cells.set_index(["block", "row", "setting"])
    for block in page.ran:
        files = [q.run.path(page.results) for q, _ in page.found if (q.block, q.row) == (block, "MPFT (Average)")]
        mine = [records.read_record(f)["rounds"][-1]["transfer"]["ood"] for f in files]
        cell = cells.loc[(block, "MPFT (Average)", "ood")]
        assert cell.n == len(mine) > 0 and cell.ours == pytest.approx(sum(mine) / len(mine))


def test_numbers_are_percent_and_clients_as_planned(page):
    assert set(page.cells.block) == set(page.blocks)
    assert page.cells[page.cells.setting != "rounds"].ours.dropna().between(0, 100).all()
    for planned, record in page.found:
        clients = record["made"]["data"]["clients"]
        assert len(clients) == (sum(planned.run.data.clients) or len({c["domain"] for c in clients}))


def test_a_mixed_client_has_half_of_the_next_domain():
    """`clients`: the first half of the samples of each class, rounded down."""
    prepared = prepare.load_set("mini_digits")
    plain, mixed = (partition(Data(mixed=ratio), prepared, 1)[0] for ratio in (0.0, 0.5))
    y = prepared.tensors["blended/y"][plain[1].train["blended"]]
    assert len(mixed[0].train["blended"]) == sum(int(n) // 2 for n in y.bincount())
    assert list(mixed[0].train) == ["scans", "blended"]


def test_records_hold_the_bytes_that_the_formulas_say(pages):
    for planned, record in pages["table3"].found:
        clients, last = len(record["made"]["data"]["clients"]), record["rounds"][-1]
        if planned.row in ("FedAvg", "FedProx", "MOON", "Ditto"):
            assert last["bytes_down"] <= last["bytes_up"] <= last["bytes_down"] + 16 * clients
        if planned.row.startswith("MPFT"):
            assert len(record["rounds"]) == 1 and last["server"]["seconds"] <= last["seconds"]


def test_rows_of_the_figures_change_what_they_name(pages):
    few, stop = pages["figure4"], pages["figure6"]
    for block in few.blocks:
        runs = [q.run for q in few.table.runs(few.blocks[block], [1]) if q.block == block]
        assert len({str(run.settings) for run in runs}) == len(runs) == 29
        grid = {(run.settings["shots"], run.settings["beta"]) for run in runs}
        assert grid == {(f, float(b)) for f in (1, 2, 4, 8, 16, 32, 64) for b in (0, 10, 100, 1000)} | {(0, 0.0)}
    for row in filter(lambda row: not tables.is_tuned(row), stop.rows):
        kind, threshold = row.split(", ")
        settings = stop.settings(row)[""]
        assert settings["threshold"] == float(threshold) and ("rate" in settings) == (kind == "Random 0.1")


def test_noise_is_named_by_its_row(pages):
    noise = pages["table4"]
    for row in [r for r in noise.printed_rows if r != "no noise"]:
        q, s = (float(part.split("=")[1]) for part in row.split(", "))
        assert {"q": q, "s": s}.items() <= noise.settings(row)[""].items()
    assert not {"q", "s"} & set(noise.settings("no noise")[""])


def test_budgets_fall_with_the_noise_and_rise_with_what_is_known(pages):
    found = mpft.budgets(pages["table7"], [0.05, 0.1]).set_index(["block", "seed", "over", "kind", "sigma"]).epsilon
    wide = found.unstack("sigma")
    assert len(wide) and (wide[0.05] >= wide[0.1]).all()
    printed = wide.xs("printed formula", level="kind").drop("share above 1", level="over")
    assert (printed[0.05] / printed[0.1]).between(2 - 1e-9, 2 + 1e-9).all()
    kinds = found.unstack("kind")
    assert (kinds["exact, any sample"] >= kinds["exact"] - 1e-9).all()


def test_claims_of_one_paper(pages):
    found = judge_all(pages["table3"].results, "mpft")
    assert set(found.paper) == {"mpft"} and len(found) == len(tables.papers()["mpft"]["claims"])


def test_a_page_knows_the_print_and_its_clients():
    six = Page("mpft/table6", "lite", SEEDS)
    assert six.printed.loc[("domainnet_50", "FedAvg"), "ind"] == 73.45
    assert six.clients("pacs").set_index("domain").train.to_dict() == {
        "photo": 916, "sketch": 2182, "art_painting": 1128, "cartoon": 1292}


def test_each_block_with_records_has_its_content(monkeypatch):
    shown, six = [], Page("mpft/table6", "lite", SEEDS)
    for place in (text, pages_):
        monkeypatch.setattr(place, "display", lambda *what: shown.extend(what))
    six.show_each(lambda block: block if block != "pacs" else None)
    wanted = [b for b in six.ran if b != "pacs"]
    assert [getattr(s, "data", s) for s in shown] == [x for b in wanted for x in (f"**{six.titles[b]}**", b)]
    assert {"mini", "mini_12"} <= set(wanted)
    shown.clear()
    six.show_each(lambda block: None, "Nothing.")
    assert [s.data for s in shown] == ["Nothing."]


@pytest.mark.parametrize("name", ["zoo/low_rank", "zoo/own_heads", "zoo/private", "zoo/label_skew"])
def test_one_block_stands_alone_with_its_tuned_rows(name):
    wide = Page(name, "mini").show_averages().data
    assert len(wide) and not any(map(tables.is_tuned, wide.index))


def test_any_setting_stands_side_by_side(pages):
    six = Page("mpft/table6", "lite", SEEDS)
    wide = six.show_averages("ood").data        # nothing is printed by Equation 3
    assert list(wide.columns) == [six.titles[b] for b in six.ran] and wide.loc["FedAvg", "PACS"] == "83.1 ± 0.3"
    assert "<br>tuned 8" in wide.loc["FedAvg", "PACS, 20 clients"] and not any(map(tables.is_tuned, wide.index))
