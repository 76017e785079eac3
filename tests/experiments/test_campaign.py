"""A campaign trains tables in order, and the rows that their tries choose, without a pause; a file says which."""
import json
import subprocess
import sys
from pathlib import Path

import pytest
import small_paper
from conftest import quiet

from fedlib.core.errors import UserError
from fedlib.engine import queue, records
from fedlib.experiments import batch, campaign, failures, tables

ROWS = '{ name = "FedAvg" }, { name = "FedProx" }'
PART = 'table = "small/t"\nprofile = "mini"\ntries = 2\nseeds = [100]\n'


@pytest.fixture
def small(tmp_path, monkeypatch):
    small_paper.use(tmp_path, monkeypatch, small_paper.content(ROWS, range(2), "rounds = 2, lr = 0.05"))
    monkeypatch.setattr(campaign.os, "nice", quiet)
    return tmp_path / "results"


def plan(tmp_path, *words):
    file = tmp_path / "campaign.toml"
    file.write_text("\n".join(f"[[parts]]\n{PART}{more}" for more in words))
    return file


class Trained:
    """In the place of a process: the record is there at once; a rate of 0.015 gives the best one."""
    started = []

    def __init__(self, planned, command, log, left=None):
        self.planned, self.log, self.last = planned, log, ""
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        self.started.append(planned)
        results = log.parents[1]
        record = small_paper.a_record(planned, 70.0 if planned.run.protocol.lr == 0.015 else 60.0,
                                      planned.run.protocol.rounds)
        records.write_record(planned.run.path(results), record)

    def poll(self):
        return 0


def test_rows_as_given_come_first_then_tries_then_what_they_choose(small, tmp_path, monkeypatch, fedlib):
    monkeypatch.setattr(batch, "Child", Trained)
    Trained.started = []
    file, said = plan(tmp_path, 'rows = ["FedAvg"]'), []
    parts = campaign.parts(file)
    assert campaign.standing(parts, small)[0]["to_choose"] == 1
    assert campaign.run(parts, small, jobs=2, say=said.append, progress=quiet) == 0
    order = [(p.row, p.seed) for p in Trained.started]
    assert order == [(tables.CONSTANT, 0), (tables.CONSTANT, 1), ("FedAvg", 0), ("FedProx", 0), ("FedAvg", 1),
                     ("FedProx", 1), *[("FedAvg", 100)] * 3, ("FedAvg, tuned", 0), ("FedAvg, tuned", 1)]
    assert [p.run.protocol.lr for p in Trained.started[-5:]] == [0.05, 0.015, 0.005, 0.015, 0.015]   # beyond the end
    assert said[0].startswith("\n11 trained") and "11 done" in said[1] and "█" * campaign.BAR in said[1]
    assert campaign.run(parts, small, jobs=2, say=quiet, progress=quiet) == 0 and len(Trained.started) == 11
    found = json.loads(fedlib("status", file, "--json", "--results", small)[1])
    assert (found[0]["done"], found[0]["to_choose"], found[0]["left"]) == (11, 0, 0)
    assert "11 done" in fedlib("status", file, "--results", small)[1]


def test_half_the_rounds_come_after_the_choice(tmp_path, monkeypatch):
    small_paper.use(tmp_path, monkeypatch, small_paper.content(ROWS, [0], "rounds = 2, lr = 0.05, warmup = 1"))
    monkeypatch.setattr(campaign.os, "nice", quiet)
    monkeypatch.setattr(batch, "Child", Trained)
    Trained.started = []
    parts = campaign.parts(plan(tmp_path, 'rows = ["FedAvg"]\nhalves = true'))
    assert campaign.run(parts, tmp_path / "results", jobs=1, say=quiet, progress=quiet) == 0
    assert [(p.row, p.run.protocol.rounds) for p in Trained.started] == [
        (tables.CONSTANT, 1), ("FedAvg", 2), ("FedProx", 2), *[("FedAvg", 2)] * 3, ("FedAvg, tuned", 2),
        ("FedProx", 1), ("FedAvg, tuned", 1)]
    asked = batch.chosen("small/t", "mini", halves_of=tmp_path / "results")
    assert [(p.row, p.run.protocol.rounds) for p in asked] == [("FedAvg", 1), ("FedProx", 1), ("FedAvg, tuned", 1)]
    assert batch.chosen("small/t", "mini", only=asked[0].run.digest) == [asked[0]]      # as a campaign starts it
    with pytest.raises(UserError, match="that have ended at a rate of nothing"):
        batch.chosen("small/t", "mini", halves_of=tmp_path)


def test_rows_without_tries_and_runs_that_failed(small, tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "Child", Trained)
    parts = campaign.parts(plan(tmp_path, "rows = []", 'rows = ["FedProx"]'))
    bad = next(p for p in tables.load_table("small/t").runs("mini") if p.row == "FedProx")
    failures.write(bad, UserError("diverged"), small)
    Trained.started = []
    campaign.run(parts, small, jobs=1, say=quiet, progress=quiet)
    assert [p.row for p in Trained.started].count("FedProx") == 3       # one as given, two tries; none twice
    assert bad.run.digest not in {p.run.digest for p in Trained.started}
    assert not any(p.row == "FedAvg, tuned" for p in Trained.started)


def test_a_budget_ends_it_and_the_next_call_goes_on(small, tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "Child", Trained)
    parts = campaign.parts(plan(tmp_path, "rows = []"))
    Trained.started = []
    campaign.run(parts, small, jobs=1, budget="0.5s", say=quiet, progress=quiet)
    some = len(Trained.started)
    assert 0 < some < 6
    campaign.run(parts, small, jobs=1, say=quiet, progress=quiet)
    assert len(Trained.started) == 6


class Slow(Trained):
    """The record is there, and the process ended, when it is asked for the second time."""

    def __init__(self, planned, command, log, left=None):
        self.planned, self.log, self.last, self.asked = planned, log, "", 0
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
        self.started.append(planned)

    def poll(self):
        self.asked += 1
        if self.asked == 1 + self.started.index(self.planned) % 2:      # one of two ends first
            records.write_record(self.planned.run.path(self.log.parents[1]), small_paper.a_record(self.planned, 60.0))
            return 0
        return None


def test_what_trains_is_not_started_twice(small, tmp_path, monkeypatch):
    monkeypatch.setattr(batch, "Child", Slow)
    Slow.started = []
    campaign.run(campaign.parts(plan(tmp_path, 'rows = ["FedAvg"]')), small, jobs=2, say=quiet, progress=quiet)
    digests = [p.run.digest for p in Slow.started]
    assert len(digests) == len(set(digests)) == 6 + 2       # nothing was better, so the tuned rows are those given


GROUP = Path("/proc/self/autogroup")


@pytest.mark.skipif(not GROUP.exists(), reason="this kernel has no groups of processes that share cores")
@pytest.mark.parametrize("alone", [True, False])
def test_a_campaign_in_a_session_of_its_own_steps_back_behind_other_sessions(alone):
    """In a terminal's session it would slow down whatever else runs there."""
    code = (f"from pathlib import Path\nfrom fedlib.experiments import campaign\ngroup = Path('{GROUP}')\n"
            "before = group.read_text()\ncampaign.lowest_priority()\n"
            "print(before == group.read_text(), group.read_text(), sep='|')")
    done = subprocess.run([sys.executable, "-c", code], start_new_session=alone, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    same, group = done.stdout.strip().split("|")        # of the first session of all there is no group: an empty file
    assert (same == "False" and group.endswith("nice 19")) if alone else same == "True"


@pytest.mark.parametrize("line, said", [
    ('rows = ["FedAgv"]', "unknown row of small/t 'FedAgv'; did you mean 'FedAvg'"),
    ('blocks = ["c"]', "unknown block of small/t 'c'"),
    ("row = 3", "is no campaign")])
def test_what_a_file_gets_wrong_is_said(small, tmp_path, line, said):
    with pytest.raises(UserError, match=said):
        campaign.parts(plan(tmp_path, line))


def test_the_committed_campaign_names_what_is_there():
    assert campaign.parts(Path(__file__).parents[2] / "workflow" / "campaign.toml")


def test_its_runs_are_written_for_a_machine_without_tables(small, tmp_path, fedlib):
    file, out = plan(tmp_path, 'rows = ["FedAvg"]'), tmp_path / "queue.json"
    code, said, _ = fedlib("campaign", file, "--results", small, "--write", out)
    runs = queue.read(out)
    assert code == 0 and f"{len(runs)} runs without a record" in said
    wanted = {p.run.digest for part in campaign.parts(file) for p in campaign.planned(part, tmp_path)}
    assert {r.digest for r in runs} == wanted and len(runs) == len(wanted)
    first = next(r for r in runs if r.method == "FedAvg")
    every = campaign.planned(campaign.parts(file)[0], small)
    small_paper.fill(small, [p for p in every if p.run.digest == first.digest], lambda p: 50.0)
    assert first.digest not in {r.digest for r in campaign.left(campaign.parts(file), small)}
