"""Tuning: the same tries for every row, on samples that no test uses; the best wins; tables and claims follow."""
import json

import pandas as pd
import pytest
import small_paper

from fedlib.core.errors import UserError
from fedlib.engine import loop, records
from fedlib.experiments import batch, evidence, failures, tables, tune
from fedlib.experiments.claims import judge_claims
from fedlib.experiments.results import results_folder
from fedlib.report import shown

ROWS = '{ name = "FedAvg" }, { name = "FedProx" }, { name = "off", method = "FedProx", settings = { mu = 0.0 } }'


@pytest.fixture
def small(tmp_path, monkeypatch):
    text = small_paper.content(ROWS, range(3), "rounds = 2, lr = 0.05", small_paper.CLAIM)
    small_paper.use(tmp_path, monkeypatch, text)
    return tmp_path / "results"


def load():
    return tables.load_table("small/t")


def test_every_row_has_as_many_tries_and_the_first_changes_nothing(small):
    table, found = load(), {}
    for p in tune.tries(table, "mini"):
        found.setdefault(p.row, []).append(p)
    assert {len(v) for v in found.values()} == {tune.TRIES * len(tune.SEEDS)}
    for row, planned in found.items():
        own = next(p.run for p in table.runs("mini", [100]) if p.row == row)
        assert planned[0].run.settings == own.settings and planned[0].run.protocol == own.protocol
        assert all(p.run.data.tuning == tune.SHARE and p.seed in tune.SEEDS for p in planned)
        tried = {(p.run.protocol.lr, p.run.settings.get("mu")) for p in planned}
        assert len(tried) == tune.TRIES, row
    assert {p.run.settings["mu"] for p in found["off"]} == {0}      # an ablation stays one: it tries rates only
    assert {p.run.settings["mu"] for p in found["FedProx"]} == {0.01, 0.001, 0.1}
    assert not {p.seed for p in table.runs("mini")} & set(tune.SEEDS)
    with pytest.raises(UserError, match="there cannot be 9"):
        tune.tries(table, "mini", count=9)
    with pytest.raises(UserError, match="unknown block of small/t in mini 'c'"):
        tune.tries(table, "mini", ["c"])


@pytest.mark.parametrize("beta", [0.01, 0.0])
def test_a_try_changes_the_rate_that_the_method_steps_at(beta, tmp_path, monkeypatch):
    """FedPall's PerFedAvg has an outer rate of its own; with beta = 0 it is the protocol's."""
    row = f'{{ name = "PerFedAvg", settings = {{ beta = {beta} }} }}'
    small_paper.use(tmp_path, monkeypatch, small_paper.content(row, protocol="rounds = 2, lr = 0.05"))
    found = [(p.run.settings["beta"], p.run.protocol.lr) for p in tune.tries(load(), "mini", count=3, seeds=[100])]
    assert found == ([(0.01, 0.05), (0.003, 0.05), (0.03, 0.05)] if beta else [(0, 0.05), (0, 0.015), (0, 0.15)])
    rates = tune.scores(load(), "mini", tmp_path, count=3).lr
    assert list(rates) == ([0.01, 0.003, 0.03] if beta else [0.05, 0.015, 0.15])


def test_the_best_try_is_chosen_and_ties_go_to_the_earlier_one(small):
    table, best = load(), {"FedAvg": 0.15, "FedProx": 0.015}
    small_paper.fill(small, tune.tries(table, "mini"), lambda p: 70.0 if p.run.protocol.lr == best.get(p.row) and
                     p.run.settings.get("mu", 0.1) == 0.1 else 60.0)
    chosen = tune.choose(table, "mini", small)["b.mini"]
    assert chosen["FedAvg"]["protocol"] == {"lr": 0.15} and chosen["FedAvg"]["settings"] == {}
    assert chosen["FedProx"]["protocol"] == {"lr": 0.015} and chosen["FedProx"]["settings"] == {"mu": 0.1}
    assert chosen["off"] == {"settings": {}, "protocol": {}, "tries": 8, "seeds": [100, 101], "accuracy": 60.0,
                             "given": 60.0}
    assert chosen["FedAvg"]["given"] == 60 and chosen["FedAvg"]["accuracy"] == 70


def test_a_try_that_diverged_on_the_way_is_not_chosen(small):
    """Its row would have no number."""
    table = load()
    tries = tune.tries(table, "mini", rows=["FedAvg"], count=3)
    small_paper.fill(small, tries, lambda p: {0.05: 60.0, 0.015: 70.0}.get(p.run.protocol.lr))
    small_paper.fill(small, tries, lambda p: 90.0 if p.run.protocol.lr == 0.15 else None, loss=1e4)
    assert tune.choose(table, "mini", small, rows=["FedAvg"], count=3)["b.mini"]["FedAvg"]["protocol"] == {"lr": 0.015}


def test_a_weight_at_its_most_is_tried_once_and_what_wins_is_what_was_tried(tmp_path, monkeypatch):
    """FedALA's eta is at most 1, so ten times its 1 is no other try; the numbers behind it moved by one."""
    text = small_paper.content('{ name = "FedALA" }', protocol="rounds = 2, lr = 0.05")
    small_paper.use(tmp_path, monkeypatch, text)
    table = load()
    tried = tune.grid(table, table.rows[0], "b", "mini")
    assert len(tried) == 6 and all(tried.count(t) == 1 for t in tried)
    small_paper.fill(tmp_path, tune.tries(table, "mini"),
                     lambda p: 70.0 if (p.run.protocol.lr, p.run.settings["eta"]) == (0.015, 0.1) else 60.0)
    chosen = tune.choose(table, "mini", tmp_path)["b.mini"]["FedALA"]
    assert (chosen["protocol"], chosen["settings"], chosen["accuracy"]) == ({"lr": 0.015}, {"eta": 0.1}, 70.0)


def test_where_the_best_rate_is_the_last_one_the_next_is_tried(small):
    """Three, ten and thirty times the rate, until one is worse; each choice is one of `tries`, and stays what it is."""
    def best_at(top):
        return lambda p: 90.0 - 50 * abs(p.run.protocol.lr - top)

    def tried(table):
        return sorted({p.run.protocol.lr for p in tune.tries(table, "mini", rows=["FedAvg"], count=3)})
    small_paper.fill(small, tune.tries(load(), "mini", rows=["FedAvg"], count=3), best_at(0.7))
    for most in (0.15, 0.5, 0.5):
        table = tune.reaching(load())
        small_paper.fill(small, tune.tries(table, "mini", rows=["FedAvg"], count=3), best_at(0.7))
        tune.keep(table, tune.choose(table, "mini", small, rows=["FedAvg"], count=3))
        assert load().choice("FedAvg", "mini", "b")["protocol"] == {"lr": most}
    assert tried(load()) == tried(tune.reaching(load())) == [0.015, 0.05, 0.15, 0.5, 1.5]
    assert load().choice("FedAvg", "mini", "b")["further"] == [10, 30]
    again = tune.choose(load(), "mini", small, rows=["FedAvg"], count=3)
    assert again["b.mini"]["FedAvg"] == load().choice("FedAvg", "mini", "b")


@pytest.mark.parametrize("lr, at_end", [(0.05, False), (0.015, True), (0.15, True)])
def test_a_choice_at_the_end_of_the_rates_is_no_evidence(small, lr, at_end):
    table = load()
    small_paper.fill(small, tune.tries(table, "mini", count=3), lambda p: 70.0 if p.run.protocol.lr == lr else 60.0)
    tune.keep(table, tune.choose(table, "mini", small, count=3))
    table = load()
    small_paper.fill(small, table.runs("mini"), lambda p: 60.0 + p.seed)
    rows = evidence.of_rows(table, "mini", small)
    assert dict(zip(rows.row, rows.end, strict=True)) == {
        r["name"]: at_end and tables.is_tuned(r["name"]) for r in table.rows}
    named = "a rate at the end of those that were tried: FedAvg, FedProx, off (tuned)"
    assert (named in evidence.faults(rows[rows.tuned & (rows.setting == "avg")].to_dict("records"))) == at_end


def test_rates_beyond_the_end_are_tried_until_there_are_five(small, monkeypatch):
    """The command goes on by itself; at the fifth it stops, and the choice stays at the end."""
    small_paper.fill(small, tune.tries(load(), "mini", rows=["FedAvg"], count=3), lambda p: 100 * p.run.protocol.lr)
    asked = []

    def run_table(ident, profile, planned, results, **how):
        todo = [p for p in planned if not p.done(results)]
        asked.append(sorted({p.run.protocol.lr for p in todo}))
        small_paper.fill(results, todo, lambda p: 50 + p.run.protocol.lr)
        return 0
    monkeypatch.setattr(batch, "run_table", run_table)
    assert batch.tune_table("small/t", "mini", small, rows=["FedAvg"], count=3) == 0
    assert asked == [[], [0.5], [1.5], [5.0], [15.0], [50.0]]
    assert load().choice("FedAvg", "mini", "b")["protocol"] == {"lr": 50.0}
    assert tune.reaching(load()).rows == load().rows


def test_two_rows_of_one_digest_are_one_run(small, monkeypatch):
    """A tuned row that is as given: the process that trains it alone must not start others, which would do the same."""
    table = load()
    tune.keep(table, {"b.mini": {"FedAvg": {"settings": {}, "protocol": {}, "tries": 8, "seeds": [100], "accuracy": 1,
                                            "given": 1}}}, tables.PAPERS / tables.TUNED)
    table = load()
    one = next(p for p in table.runs("mini") if p.row == "FedAvg, tuned")
    assert one.run.digest == next(p.run.digest for p in table.runs("mini") if (p.row, p.seed) == ("FedAvg", one.seed))
    monkeypatch.setattr(batch, "execute", None)
    planned = batch.chosen("small/t", "mini", None, one.run.digest)
    assert len(planned) == 2 and batch.run_table("small/t", "mini", planned, small) == 0
    assert one.done(small)


def test_a_table_about_a_weight_tries_rates_alone(tmp_path, monkeypatch):
    text = small_paper.content(ROWS, range(3)).replace('select = "last"', 'select = "last"\nrates_only = true')
    small_paper.use(tmp_path, monkeypatch, text)
    planned = [p for p in tune.tries(load(), "mini") if p.row == "FedProx"]
    assert {p.run.settings["mu"] for p in planned} == {0.01}
    assert len({p.run.protocol.lr for p in planned}) == tune.TRIES


def test_a_closed_form_tries_penalties_and_no_rates():
    table = tables.load_table("mpft/one_round")
    for row, given in (("Fed3R", 0.01), ("AFL", 0.0), ("FedCGS", 0.0)):
        planned = tune.tries(table, "lite", ["pacs"], [row], 6, seeds=[100])
        own = next(p.run for p in table.runs("lite", [100]) if p.row == row)
        assert planned[0].run.settings == own.settings and {p.run.protocol.lr for p in planned} == {own.protocol.lr}
        assert len({p.run.digest for p in planned}) == 6 and planned[0].run.settings["lam"] == given
    rates = [p.run.settings["server_lr"] for p in tune.tries(table, "lite", ["pacs"], ["FedPFT"], 4, seeds=[100])]
    assert rates == [0.01, 0.003, 0.03, 0.001]


@pytest.mark.parametrize("gains, chosen", [
    ((0.6, 0.6), True), ((0.4, 0.4), False), ((3.0, -0.1), False), ((1.2, 0.1), True)])
def test_a_try_must_be_better_with_every_seed_and_by_half_a_point(small, gains, chosen):
    def accuracy(p):
        return 60.0 + gains[p.seed - 100] if p.run.protocol.lr == 0.15 else 60.0 if p.run.protocol.lr == 0.05 else 50.0
    small_paper.fill(small, tune.tries(load(), "mini", rows=["FedAvg"]), accuracy)
    assert tune.choose(load(), "mini", small)["b.mini"]["FedAvg"]["protocol"] == ({"lr": 0.15} if chosen else {})


def test_a_try_that_diverged_is_not_chosen(small):
    table = load()
    small_paper.fill(small, tune.tries(table, "mini", rows=["FedAvg"]), lambda p: None if p.run.protocol.lr == 0.5 else
                     100 * p.run.protocol.lr)
    chosen = tune.choose(table, "mini", small)["b.mini"]
    assert (chosen["FedAvg"]["protocol"], chosen["FedAvg"]["lost"]) == ({"lr": 0.15}, 2) and "FedProx" not in chosen
    next(p for p in tune.tries(table, "mini", rows=["FedAvg"]) if p.run.protocol.lr == 0.15).run.path(small).unlink()
    assert tune.choose(table, "mini", small)["b.mini"]["FedAvg"]["lost"] == 3      # one that is gone is told from none


def test_a_try_that_diverges_with_one_seed_is_not_judged_by_the_other(small):
    """FedSR as given survived one fold of eight on Office-10, the easiest, and stayed for it."""
    planned = tune.tries(load(), "mini", rows=["FedAvg"])
    small_paper.fill(small, planned, lambda p: None if p.run.protocol.lr == 0.5 or p.run.protocol.lr == 0.05 and
                     p.seed == tune.SEEDS[0] else 95.0 if p.run.protocol.lr == 0.05 else 100 * p.run.protocol.lr)
    chosen = tune.choose(load(), "mini", small)["b.mini"]["FedAvg"]
    assert (chosen["protocol"], chosen["given"]) == ({"lr": 0.15}, 0.0)


def test_a_tuned_table_has_the_rows_and_its_claims_are_about_them(small):
    table = load()
    small_paper.fill(small, tune.tries(table, "mini"), lambda p: 70.0 if p.run.protocol.lr == 0.015 else 60.0)
    before = [(p.row, p.run.digest) for p in table.runs("mini")]
    tune.keep(table, tune.choose(table, "mini", small))
    table = load()
    assert [r["name"] for r in table.rows[3:]] == ["FedAvg, tuned", "FedProx, tuned", "off, tuned"]
    planned = [(p.row, p.run.digest) for p in table.runs("mini")]
    assert [line for line in planned if not tables.is_tuned(line[0])] == before
    run = next(p.run for p in table.runs("mini") if p.row == "FedAvg, tuned")
    assert run.protocol.lr == 0.015 and not run.data.tuning
    assert table.tuned("FedAvg, tuned", "mini", "b", "avg") and not table.tuned("FedAvg", "mini", "b", "avg")
    given = {"FedAvg": 50.0, "FedProx": 60.0, "FedAvg, tuned": 70.0, "FedProx, tuned": 65.0}

    def made(p):
        return given.get(p.row, 0) + p.seed * (1.5 if p.row.startswith("FedAvg") else 1)
    small_paper.fill(small, [p for p in table.runs("mini") if not tables.is_tuned(p.row)], made)
    small_paper.fill(small, table.references("mini"), lambda p: 10.0)
    line = judge_claims(table, "mini", small).iloc[0]
    assert (line.verdict, line.direction, line["rows"]) == ("not evidence", "supported", "as given")
    small_paper.fill(small, table.runs("mini"), made)
    line = judge_claims(table, "mini", small).iloc[0]
    assert (line.verdict, line["rows"], line["mean"]) == ("contradicted", "tuned", -5.5)
    behind = {r["row"] for r in shown.why(line.id, small)["records"]}
    assert behind == {"FedAvg, tuned", "FedProx, tuned", "constant answer"}


def test_a_table_of_transfer_chooses_by_both_columns():
    """On PACS Ditto, FedProto and local, each with a net of its own, are best at home at other rates than abroad."""
    chosen = tables.tuned_settings()["mpft/table1"]["pacs.lite"]
    apart = {row for row, won in chosen.items() if won["ind"]["protocol"] != won["protocol"]
             or won["ind"]["settings"] != won["settings"]}
    assert apart == {"Ditto", "FedProto", "local"}
    table, again = tables.load_table("mpft/table1"), {}
    assert {r["name"] for r in table.rows if r["name"].endswith("for ind") and "pacs.lite" in r["chosen"]} == {
        f"{row}, tuned for ind" for row in apart}
    for row in ("Ditto", "FedAvg"):
        how = ["pacs"], [row], chosen[row]["tries"]
        again |= tune.choose(table, "lite", results_folder(), *how)["pacs.lite"]
    assert again == {row: chosen[row] for row in again}


def test_tries_that_are_there_are_not_trained_again_and_the_choice_is_kept(small):
    """Two tries of one row, trained for real."""
    planned, said = tune.tries(load(), "mini", rows=["FedAvg"], count=2, seeds=(100,)), []
    made = [batch.one(p, small, say=said.append) for p in planned]
    assert batch.tune_table("small/t", "mini", small, rows=["FedAvg"], count=2, seeds=(100,), say=said.append) == 0
    assert any(line.endswith("0 to train") for line in said) and "on validation samples" in said[-2]
    kept = json.loads((tables.PAPERS / tables.TUNED).read_text())["small/t"]["b.mini"]["FedAvg"]
    last = [records.read_record(path)["rounds"][-1]["acc"].values() for path in made]
    given, other = (sum(v) / len(v) for v in last)
    assert kept["accuracy"] == pytest.approx(max(given, other), abs=1e-3) and kept["tries"] == 2
    assert kept["given"] == pytest.approx(given, abs=1e-3)


def test_one_try_that_is_left_and_diverges_does_not_keep_the_choice_back(small, monkeypatch):
    table = load()
    *done, last = tune.tries(table, "mini", rows=["FedAvg"], count=3, seeds=(100,))
    small_paper.fill(small, done, lambda p: 70.0 if p.run.protocol.lr == 0.05 else 60.0)

    def diverge(run, *args, **how):
        raise loop.Diverged("the loss is not finite")
    monkeypatch.setattr(loop, "train", diverge)
    said = []
    assert batch.tune_table("small/t", "mini", small, rows=["FedAvg"], count=3, seeds=(100,), say=said.append) == 0
    assert said[-3:] == ["failed: the loss is not finite",
                         "b.mini: FedAvg: as it is given; 70.00 % on validation samples, 70.00 as given",
                         f"kept in {tables.tuned_file('small/t')}"]


@pytest.mark.parametrize("error, code", [(loop.Diverged("the loss is not finite"), 1), (MemoryError(), None)])
def test_a_try_that_failed_otherwise_has_not_been_tried(small, error, code):
    """What diverged says something of its rate; what lacked memory, or was killed, does not, and is tried again."""
    table = load()
    *done, last = tune.tries(table, "mini", rows=["FedAvg"], count=3, seeds=(100,))
    small_paper.fill(small, done, lambda p: 70.0 if p.run.protocol.lr == 0.05 else 60.0)
    failures.write(last, error, small)
    assert batch.ended(last, small) == bool(code)
    kept = batch.keep_choices(table, "mini", [*done, last], small, None, ["FedAvg"], 3, (100,))
    assert set(kept.get("b.mini", {})) == ({"FedAvg"} if code else set())


def test_one_try_alone_lies_at_the_end(small):
    row = next(r for r in load().rows if r["name"] == "FedAvg")
    won = {"settings": {}, "protocol": {}, "tries": 1}
    assert tune.beyond(load(), row, "b", "mini", won) and not tune.beyond(load(), row, "b", "mini", won | {"tries": 3})


def test_no_row_may_have_the_name_of_a_tuned_form(tmp_path, monkeypatch):
    """A control of FedDEAP's was called so, and stood in PromptFL's place."""
    rows = '{ name = "FedAvg" }, { name = "FedAvg, tuned", method = "FedProx" }'
    small_paper.use(tmp_path, monkeypatch, small_paper.content(rows))
    with pytest.raises(UserError, match="the row 'FedAvg, tuned' of t has the name of a tuned form"):
        load()


def test_a_damaged_file_of_choices_is_named(small):
    (tables.PAPERS / tables.TUNED).write_text('{"small/t": {"b.mini": {"FedAvg": {"settings": 3}}}}')
    with pytest.raises(UserError, match="tuned.json does not say what was chosen"):
        load()


def test_folds_of_one_choice_are_judged_together():
    """FedAvg's rate was 4.2 points better on the digits, and refused for 0.7 lost with one seed in one fold of four."""
    gains = pd.Series({(100, "scans"): 9.0, (100, "street"): -0.7, (101, "scans"): 1.0, (101, "street"): 2.0})
    assert tune.least(gains) == 1.5
    assert tune.least(pd.Series({(100, ""): 3.0, (101, ""): -0.1})) == -0.1
