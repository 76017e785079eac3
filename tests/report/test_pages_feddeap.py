"""What FedDEAP's pages say of the committed records, once more from the files."""
import pandas as pd
import pytest
import torch

from fedlib import Page
from fedlib.experiments import tables
from fedlib.methods.prompts import Turn
from fedlib.report import feddeap

SEEDS = [0, 1, 2]


@pytest.fixture(scope="module")
def page():
    return Page("feddeap/table1", "mini", SEEDS)


def test_minis_table_2_is_table_1_without_clip_zs(page):
    eyes = tables.load_table("feddeap/table2")
    one, two = ({(q.row, q.seed): q.run.digest for q in t.runs("mini", SEEDS)} for t in (page.table, eyes))
    rest = {r for r, _ in one.keys() - two.keys() if not tables.is_tuned(r)}
    assert two.items() <= one.items() and rest == {"CLIP-zs"}


def test_a_mean_of_table_1_is_that_of_the_records_last_rounds(page):
    last = [r["rounds"][-1]["acc"] for q, r in page.found if q.row == "PromptFL"]
    cell = page.averages.set_index("row").loc["PromptFL"]
    assert cell.n == len(last) == len(SEEDS)
    assert cell.ours == pytest.approx(sum(sum(acc.values()) / len(acc) for acc in last) / len(last))


def test_the_controls_are_the_rows_that_the_paper_does_not_have(page):
    printed = set(page.table.printed.method)
    assert [r for r in page.rows if r not in printed and not tables.is_tuned(r)] == [
        "PromptFL, 32 tokens", "PromptFL, personal", "FedDEAP, as released"]


def test_sketch_in_whole_images():
    """Exercise 1: 779 and 726 of 788 images, 53 of all 2007; a quarter of 6.73 points in the mean."""
    sizes = feddeap.TEST_IMAGES["pacs"]
    assert (round(7.88 * 98.86), round(7.88 * 92.13), sum(sizes.values())) == (779, 726, 2007)
    assert round(100 * 53 / 2007, 1) == 2.6 and round((98.86 - 92.13) / 4, 1) == 1.7


# Tables 3 and 5, Figure 6

def test_tables_and_figure_share_the_runs_that_are_the_same():
    loaded = [tables.load_table(f"feddeap/{name}") for name in ("table3", "table5", "figure6")]
    one, two, three = ({q.row: q.run.digest for q in t.runs("mini", [0])} for t in loaded)
    assert three["lam1=0, lam2=1"] == one["w/o Semantic Align."]
    assert three["lam1=1, lam2=0"] == one["w/o Domain Align."]
    assert three["lam1=1, lam2=1"] == one["FedDEAP"] == two["local 16, global 16"]


def test_as_released_alignments_send_nothing_and_the_own_prompt_gets_its_gradient_twice():
    pytest.importorskip("open_clip")
    paper, released, none = (feddeap.gradient(feddeap.begun(**how).workers[0], 8) for how in (
        {}, {"mode": "as_released"}, {"mode": "as_released", "lam1": 0.0, "lam2": 0.0}))
    assert all(torch.equal(released[k], none[k]) for k in released) and not torch.equal(paper["P_G"], none["P_G"])
    plain = feddeap.gradient(feddeap.begun(lam1=0.0, lam2=0.0).workers[0], 8)
    torch.testing.assert_close(released["P_D"], 2 * plain["P_D"])
    torch.testing.assert_close(released["P_G"], plain["P_G"])


def test_lengths_of_gradients_by_client_part_mode_and_loss():
    pytest.importorskip("open_clip")
    found = feddeap.lengths()
    assert found.shape == (16, 6) and list(found.index.unique("client")) == ["scans", "blended", "printed", "street"]
    assert found["as_released"][["L_sem", "L_dom"]].eq(0).all().all()
    paper = found["paper"].swaplevel().sort_index()
    assert (paper.L_sem["P_G"] > 0).all() and (paper.L_dom["P_D"] > 0).all()
    assert paper.L_sem.drop("P_G").eq(0).all() and paper.L_dom.drop("P_D").eq(0).all()


# Figure 3

def test_the_lead_of_the_diagonal_by_hand():
    a = pd.DataFrame([[90.0, 20.0, 30.0], [60.0, 80.0, 40.0], [50.0, 30.0, 70.0]], list("xyz"), list("xyz"))
    assert feddeap.lead(a).to_dict() == {"x": 35, "y": 55, "z": 35}
    assert feddeap.elsewhere(a) == pytest.approx(230 / 6)
    assert feddeap.lead(a).mean() == pytest.approx(80 - 230 / 6)    # by columns or over all cells: the same number
    frame = feddeap.leads({("b", "FedDEAP"): {0: a, 1: a + 1}})
    assert frame.loc[("b", "FedDEAP", "all"), 1] == pytest.approx(feddeap.lead(a).mean()) and frame.shape == (4, 2)
    assert feddeap.leads({}).empty and feddeap.heat({}, "b", "FedDEAP") is None


def test_the_diagonal_of_a_map_is_the_records_accuracy():
    figure = Page("feddeap/figure3", "mini", SEEDS)
    maps = feddeap.maps(figure)
    assert set(maps) == {("mini", row) for row in figure.rows} and not len(figure.table.printed)
    for planned, record in figure.found:
        frame = maps[planned.block, planned.row][planned.seed]
        assert frame.notna().all().all() and frame.stack().between(0, 100).all()
        assert all(abs(frame.loc[d, d] - acc) < 1e-3 for d, acc in record["rounds"][-1]["acc"].items())


# the mean feature at a test

def test_the_number_of_a_sorted_batch_tells_the_class():
    """64 of one class a batch: all of it; shuffled about a third of three classes, little more by chance."""
    found = feddeap.guess([64, 64, 64])
    assert (found["images"], found["batches"], found["sorted"]) == (192, 3, 100)
    assert 100 / 3 <= found["shuffled"] < 50 and found["largest class"] == pytest.approx(100 / 3)
    assert feddeap.guess([20, 40])["sorted"] == feddeap.guess([20, 40])["shuffled"] == pytest.approx(200 / 3)


def test_batches_of_a_test_by_hand():
    y = torch.tensor([0] * 60 + [1] * 10)
    assert feddeap.batch_classes(y, ["a", "b"]).values.tolist() == [[60, 4], [0, 6]]
    z = torch.zeros(70, 2)
    z[range(70), y] = 1
    assert feddeap.batch_means(z).tolist() == [[0.9375, 0.0625], [0, 1]]
    assert feddeap.mean_cosine(torch.eye(3)) == 0 and feddeap.mean_cosine(torch.ones(2, 3)) == pytest.approx(1)


def test_what_the_rows_of_the_page_train():
    plans = {p.row: p.run for p in tables.load_table("feddeap/modulation").runs("mini", [0])}
    for row, run in plans.items():
        released = "as released" in row
        assert run.protocol.order == ("classes" if row.endswith("as released") else "random")
        assert run.settings.get("mode", "paper") == ("as_released" if released else "paper"), row


def test_guesses_of_the_stored_partitions():
    pytest.importorskip("open_clip")
    clients = feddeap.begun().federation.clients
    found = feddeap.guesses(clients)
    assert len(found) == 12 and (found["sorted"] >= found[["largest class", "shuffled"]].max(axis=1) - 1e-9).all()
    order, again = (feddeap.shuffle(clients[0]) for _ in range(2))
    assert sorted(order.tolist()) == list(range(len(clients[0].test))) and torch.equal(order, again)


# Figure 2

def test_three_clients_share_the_test_of_a_domain():
    figure = Page("feddeap/figure2", "mini", SEEDS)
    assert not len(figure.table.printed) and len(figure.found) == 60       # as given, and tuned
    for planned, record in figure.found:
        clients = pd.DataFrame(record["made"]["data"]["clients"])
        by = clients.groupby("domain")
        assert by.size().tolist() == [3] * 4 and (by.test.nunique() == 1).all()
        assert planned.run.data.dirichlet == figure.table.blocks[planned.block]["mini"]["data"]["dirichlet"]
        assert clients.train.sum() == 5000 and clients.train.min() >= 5, "no image is lost or doubled"


# Table 4

def test_sizes_of_messages():
    assert feddeap.numbers("PromptFL") == feddeap.context(16) == 126 * 16 * 512
    assert feddeap.numbers("FedDEAP") == feddeap.context(16) + 2 * feddeap.network(256) == 126 * 16 * 512 + 2 * 262_912
    assert feddeap.numbers("FedAPT", {"tokens": 24}) == 126 * 24 * 512 + 4 * 512


def test_the_records_messages_have_the_size_that_the_shapes_say():
    """With mini_clip, 10 classes and widths of 128: four bytes a number, and eight for how many images there are."""
    page = Page("feddeap/table4", "mini", SEEDS)
    for planned, record in page.found:
        if planned.row != "FACMIC":
            count = feddeap.numbers(planned.row, record["run"]["settings"], classes=10, width=128)
            assert record["rounds"][-1]["bytes_up"] == 4 * (4 * count + 8), planned.row


def test_two_readings_have_the_printed_megabytes():
    found = feddeap.readings().set_index("what is sent")
    assert found.equal[found.equal == "yes"].index.tolist() == ["24 tokens", "16 tokens, two networks of 512, 384, 512"]
    assert found["2 bytes"]["24 tokens"] == pytest.approx(126 * 24 * 512 * 2 / 2**20)
    assert feddeap.costs().loc["FedDEAP"].to_dict() == {"MB": 3.47, "seconds": 2.54, "mean": 89.67}


def test_cutting_the_text_tower_is_exact():
    pytest.importorskip("open_clip")
    found = feddeap.tower_times(tokens=4)
    assert found.loc["cut", ["features", "gradient"]].max() < 1e-4 and (found.ms > 0).all()


def test_times_of_a_test_behind_the_image_tower():
    pytest.importorskip("open_clip")
    found = feddeap.batch_times(images=8)
    assert found["text passes"].tolist() == [0, 0, 1, 1, 4, 8] and (found.ms > 0).all()


def test_the_shapes_of_the_mini_model():
    """A text tower of 24 places; contexts of 4 tokens instead of 16."""
    pytest.importorskip("open_clip")
    simulation = feddeap.begun()
    assert simulation.workers[0].client.net.head.tower.places == 24
    assert simulation.run.settings["tokens"] == simulation.run.settings["local_tokens"] == 4


# findings

def test_one_image_more_on_cartoon_gives_facmics_printed_mean():
    """Exercise 1: of the four numbers only cartoon's can be the misprint."""
    sizes, values = list(feddeap.TEST_IMAGES["pacs"].values()), [98.05, 97.45, 99.41, 91.24]
    changed = [(n, round(100 * (round(v * n / 100) + more) / n, 2) - v) for v, n in zip(values, sizes, strict=True)
               for more in (1, 2)]
    assert [n for n, step in changed if abs((sum(values) + step) / 4 - 96.59) <= 0.005] == [471]


def test_several_shapes_give_3_47():
    """Exercise 2: 16 tokens and a width of 384, 20 and 258; 256 gives 3.46."""
    sizes = {(m, h): 2 * (feddeap.context(m) + 2 * feddeap.network(h)) / feddeap.MIB
             for m, h in ((16, 384), (20, 258), (20, 256))}
    assert [round(v, 2) for v in sizes.values()] == [3.47, 3.47, 3.46]


def test_a_difference_that_two_tables_have_is_the_same():
    one, three = (Page(f"feddeap/{name}", "mini", SEEDS) for name in ("table1", "table3"))
    pairs = {"rival": ("FedDEAP", "PromptFL")}, {"rival": ("FedDEAP", "Baseline")}
    first, second = (page.compared(pair).query("block == 'mini'")["mean"].iloc[0]
                     for page, pair in zip((one, three), pairs, strict=True))
    assert first == pytest.approx(second)


# the method, step by step

def test_the_networks_learn_to_turn_features_to_their_frames():
    z, target = 4 * torch.eye(32), torch.arange(32) % 3
    turn, draws = Turn(32, 3, 0, "semantic"), torch.Generator().manual_seed(0)
    before = feddeap.angles(turn, z, target)
    feddeap.fit(turn, z, target, draws, steps=200, batch=32)
    after = feddeap.angles(turn, z, target)
    assert after["nearest E is own (%)"] == 100 > before["nearest E is own (%)"]
    assert after["cos with own E"] > 0.9 and after["with the others"] < -0.3 and after["loss"] < before["loss"]


def test_features_of_all_clients_with_digits_and_domains():
    pytest.importorskip("open_clip")
    simulation = feddeap.begun()
    z, y, k = feddeap.pooled(simulation, "test")
    sizes = [len(w.client.test) for w in simulation.workers]
    assert len(z) == len(y) == sum(sizes) and k.bincount().tolist() == sizes and y.max() == 9


def test_as_released_the_weights_of_the_alignments_change_nothing():
    """Exercise 3: one round with lam1 = 0 and with 2."""
    pytest.importorskip("open_clip")
    one, two = (feddeap.begun(mode="as_released", lam1=v).workers[0] for v in (0.0, 2.0))
    for w in (one, two):
        w.train(w.client.got, 0)
    assert torch.equal(one.client.net.head.context, two.client.net.head.context)


def test_a_text_is_start_shared_own_times_mean_name_and_end():
    pytest.importorskip("open_clip")
    w = feddeap.begun().workers[0]
    head, mean = w.client.net.head, w.client.train.x.float().mean(0)
    rows = torch.cat([head.words[:, :1], head.context, head.local * mean, head.words[:, 1:]], 1)
    with torch.no_grad():
        by_hand = head.tower(rows, head.lengths + head.context.shape[1] + head.local.shape[1])
        torch.testing.assert_close(w.method.texts(w.client.net, mean), by_hand, atol=1e-4, rtol=1e-4)
