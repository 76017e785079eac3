"""Batches: Snakemake trains what a table lacks and nothing else; GPUs are leased; pages run under papermill."""
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import nbformat
import pytest
from conftest import ROOT, numbers, result
from small_batch import Small

from fedlib.core.errors import UserError
from fedlib.engine import loop, records
from fedlib.experiments import failures
from fedlib.probes import cost

snakemake = pytest.mark.skipif(importlib.util.find_spec("snakemake") is None, reason="needs the extra: batch")
LEASE = [sys.executable, str(ROOT / "workflow/lease.py")]


@pytest.fixture
def small(tmp_path, monkeypatch):
    return Small(tmp_path, monkeypatch)


def planned_jobs(said: str) -> set[str]:
    """The digests of the records that a dry run names."""
    return set(re.findall(r"rule record:.*?digest=([0-9a-f]{12})", said, re.DOTALL))


# the plan

def test_a_plan_names_each_run_its_files_and_what_is_missing(small, fedlib, tmp_path, monkeypatch):
    one, *others = small.runs()
    loop.train(one.run, tmp_path)
    code, out, err = fedlib("plan", "small/t", "--results", tmp_path, "--json")
    found = json.loads(out)
    assert (code, err, found["table"], found["profile"]) == (0, "", "small/t", "mini")
    assert [(r["digest"], r["files"], r["missing"]) for r in found["runs"]] == [
        (p.run.digest, [str(p.run.path(tmp_path))], [] if p is one else [str(p.run.path(tmp_path))])
        for p in (one, *others)]
    assert found["runs"][1]["failure"] == str(failures.path(others[0].run, tmp_path))
    assert fedlib("plan", "small/t", "--results", tmp_path, "--seeds", 0)[1].splitlines()[:3] == [
        f"done     {one.run.digest} FedAvg, b, seed 0", f"missing  {others[0].run.digest} FedProx, b, seed 0",
        f"missing  {others[-2].run.digest} constant answer, b, seed 0"]
    assert fedlib("plan", "small/t", "--profile", "ligth")[0] == 2
    needs = json.loads(fedlib("plan", "small/t", "--results", tmp_path, "--json", "--memory")[1])["memory"]
    assert [(m["row"], m["data"], m["peak"] >= 1, m["record"]) for m in needs] == [("FedAvg", 0, True, None),
                                                                                  ("FedProx", 0, True, None)]
    assert "all tensors at the peak" in fedlib("plan", "small/t", "--results", tmp_path, "--memory")[1].splitlines()[-1]

    def lacking(run):
        raise UserError("not prepared")
    monkeypatch.setattr(cost, "memory", lacking)
    assert all(line.startswith("     –     Fed") and "not prepared" in line for line in
               fedlib("plan", "small/t", "--results", tmp_path, "--memory")[1].splitlines()[-2:])


def test_a_measure_that_is_missing_beside_a_record_is_planned(small, fedlib, tmp_path):
    one, constant = small.runs("small/f")
    for p in (one, constant):
        loop.train(p.run, tmp_path)
    run, done = json.loads(fedlib("plan", "small/f", "--results", tmp_path, "--json")[1])["runs"]
    assert run["missing"] == [str(one.run.beside(tmp_path, "features"))] and not done["missing"]


# Snakemake

@snakemake
def test_a_dry_run_names_exactly_the_missing_records(small):
    _, two, three, *_ = planned = small.runs()
    for p in (two, three):
        loop.train(p.run, small.results)
    said = small.snakemake("-n")
    assert said.returncode == 0, said.stdout
    assert planned_jobs(said.stdout) == {p.run.digest for p in planned} - {two.run.digest, three.run.digest}


@snakemake
def test_a_table_is_trained_once_and_edits_of_the_code_train_nothing_again(small, tmp_path, monkeypatch):
    shutil.copytree(ROOT / "fedlib", tmp_path / "code/fedlib")
    shutil.copytree(ROOT / "data_scripts", tmp_path / "code/data_scripts")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "code"))
    (small.folder / "workflow").unlink()
    shutil.copytree(ROOT / "workflow", small.folder / "workflow")
    done = small.snakemake("--cores", 2, config=["table=small/t", "seeds=0"])
    assert done.returncode == 0, done.stdout
    for p in small.runs()[:2]:
        assert numbers(records.read_record(p.run.path(small.results))) == result(p.run, tmp_path / "alone")
    kept = {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in small.results.glob("*/*.json")}
    assert len(kept) == 3
    snakefile = small.folder / "workflow/Snakefile"
    snakefile.write_text(snakefile.read_text().replace("rm -f {params", "true; rm -f {params"))
    for path in (tmp_path / "code").rglob("*.py"):
        os.utime(path)
    again = small.snakemake("--cores", 2, config=["table=small/t", "seeds=0"])
    assert again.returncode == 0 and not planned_jobs(again.stdout)
    assert {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in small.results.glob("*/*.json")} == kept


@snakemake
def test_a_run_that_fails_stops_no_other_and_is_not_repeated(tmp_path, monkeypatch):
    small = Small(tmp_path, monkeypatch, lr=1e38)       # FedProx diverges
    done = small.snakemake("--cores", 2, "--retries", 3, config=["table=small/t", "seeds=0"])
    one, two, *_ = small.runs()
    assert done.returncode == 1 and one.done(small.results) and not two.done(small.results)
    assert "diverged" in failures.read(two, small.results)["why"]
    assert "diverged" in (small.results / ".logs/tiny_digits" / f"FedProx-{two.run.digest}.json.log").read_text()
    assert done.stdout.count("Trying to restart job") == 3      # which saw the failure and ended
    assert (small.papers / "calls").read_text().count(two.run.digest) == 1


FAILS_ONCE = """
import os, pathlib, sys
if "plan" in sys.argv:
    os.execv(sys.executable, [sys.executable, {program!r}, *sys.argv[1:]])
calls, failure, record = (pathlib.Path(p) for p in {paths!r})
calls.write_text(calls.read_text() + "." if calls.exists() else ".")
if len(calls.read_text()) == 1:
    failure.parent.mkdir(parents=True, exist_ok=True)
    failure.write_text('{{\\n "kind": "{kind}"\\n}}')
    sys.exit(1)
record.write_text("whole")
"""


@snakemake
@pytest.mark.parametrize("kind,calls", [("memory", 2), ("bug", 1)])
def test_too_little_memory_is_worth_a_retry(small, tmp_path, kind, calls):
    one, constant = small.runs("small/f")
    loop.train(constant.run, small.results)
    paths = [str(tmp_path / "called"), str(failures.path(one.run, small.results)), str(one.run.path(small.results))]
    (tmp_path / "once.py").write_text(FAILS_ONCE.format(program=str(tmp_path / "program.py"), paths=paths, kind=kind))
    small.fedlib = f"{sys.executable} {tmp_path / 'once.py'}"
    done = small.snakemake("--cores", 1, "--retries", 2, config=["table=small/f"])
    assert done.returncode == (0 if kind == "memory" else 1), done.stdout
    assert len((tmp_path / "called").read_text()) == calls


@snakemake
def test_a_run_that_time_stopped_is_continued_by_a_retry(small, tmp_path):
    """A clock that ticks: 9 s are two rounds of four."""
    done = small.snakemake("--cores", 1, "--retries", 2, config=["table=small/t", "seeds=0", "budget=9s"], TICKING="1")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("Trying to restart job") == 2      # each of the two runs once
    for p in small.runs()[:2]:
        assert numbers(records.read_record(p.run.path(small.results))) == result(p.run, tmp_path / "alone")


@snakemake
def test_a_measure_is_made_beside_a_record_that_stays(small, tmp_path):
    one, constant = small.runs("small/f")
    loop.train(constant.run, small.results)
    record = loop.train(one.run, small.results)
    before = record.stat().st_mtime_ns, record.read_bytes()
    done = small.snakemake("--cores", 1, config=["table=small/f"])
    assert done.returncode == 0 and one.done(small.results), done.stdout
    assert (record.stat().st_mtime_ns, record.read_bytes()) == before


@snakemake
def test_the_pages_of_a_table_are_executed_when_its_records_are_there(small):
    page = small.folder / "notebooks/small/t.ipynb"
    page.parent.mkdir(parents=True)
    cells = [nbformat.v4.new_code_cell("profile = 'x'\nmode = 'x'", metadata={"tags": ["parameters"]}),
             nbformat.v4.new_code_cell("import os\nprint(profile, mode, os.environ['FEDLIB_RESULTS'])\nt = 'small/t'"
                                       .replace("'small/t'", '"small/t"'))]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), page)
    done = small.snakemake("--cores", 2, config=["table=small/t", "seeds=0"])
    assert done.returncode == 0, done.stdout
    executed = nbformat.read(small.folder / "build/batch/mini/small/t.ipynb", 4)
    assert executed.cells[-1].outputs[0].text == f"mini read {small.results}\n"
    assert "rule page:" not in small.snakemake("-n", config=["table=small/t", "seeds=0"]).stdout
    path = small.runs()[0].run.path(small.results)
    record = records.read_record(path)
    records.write_record(path, record | {"made": record["made"] | {"seconds": 1.0}})
    assert "rule page:" in small.snakemake("-n", config=["table=small/t", "seeds=0"]).stdout


@snakemake
@pytest.mark.parametrize("where,words", [("gpu", "workflow/lease.py --per-gpu 2 --"), ("slurm", "--time-budget 2880s")])
def test_what_the_other_profiles_start(small, where, words):
    asked = ["-n", "-p", "--cores", "2"] if where == "gpu" else ["-n", "-p", "--executor", "dryrun"]
    said = small.snakemake(*asked, "records", config=["table=small/t", "per_gpu=2"], where=where)
    assert said.returncode == 0, said.stdout
    assert words in said.stdout and "--device cuda" in said.stdout and len(planned_jobs(said.stdout)) == 6


@snakemake
def test_a_mistake_in_the_tables_name_is_one_line(small):
    said = small.snakemake("-n", config=["table=small/u"])
    assert said.returncode == 2 and said.stdout.strip().splitlines()[-1].startswith("fedlib: unknown table 'small/u'")


@snakemake
@pytest.mark.parametrize("setting", ["table=small/t; touch stolen; true", "seeds=0; touch stolen; true"])
def test_a_setting_is_a_word_and_no_command(small, setting):
    said = small.snakemake("-n", config=["table=small/t", setting])
    assert said.returncode and "fedlib: " in said.stdout and not (small.folder / "stolen").exists()


# leases

WORK = "import os, sys, time; print(os.environ['CUDA_VISIBLE_DEVICES'], time.time(), flush=True); time.sleep(0.6); " \
       "print(time.time())"


def test_leases_give_each_gpu_its_number_of_commands(tmp_path):
    command = [*LEASE, "--gpus", "3,5", "--per-gpu", "2", "--locks", str(tmp_path), "--", sys.executable, "-c", WORK]
    together = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(7)]
    spans = [p.communicate(timeout=120)[0].split() for p in together]
    assert all(p.returncode == 0 for p in together) and {gpu for gpu, *_ in spans} == {"3", "5"}
    for gpu in ("3", "5"):
        own = [(float(start), float(end)) for g, start, end in spans if g == gpu]
        assert max(sum(a <= start < b for a, b in own) for start, _ in own) <= 2


def test_a_killed_command_gives_its_lease_back(tmp_path):
    command = [*LEASE, "--gpus", "0", "--locks", str(tmp_path), "--", sys.executable, "-c"]
    first = subprocess.Popen([*command, "import time; print('has it', flush=True); time.sleep(600)"],
                             stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "has it\n"
    second = subprocess.Popen([*command, "print('has it now')"], stdout=subprocess.PIPE, text=True)
    time.sleep(1.5)
    assert second.poll() is None        # it waits
    first.send_signal(signal.SIGKILL)
    assert second.communicate(timeout=60)[0] == "has it now\n"
    first.wait()


@pytest.mark.parametrize("arguments,words", [
    (["--gpus", "0", "--", "no-such-command"], "cannot run no-such-command"),
    (["--per-gpu", "0", "--", "true"], "at least"), (["--", "true"], "no GPU is known here")])
def test_a_lease_that_cannot_be_is_said_in_one_line(tmp_path, arguments, words):
    env = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"} | {"PATH": str(tmp_path)}
    ran = subprocess.run([*LEASE, "--locks", str(tmp_path / "l"), *arguments], capture_output=True, text=True, env=env)
    assert ran.returncode and words in ran.stderr.splitlines()[-1]


# papermill, as users know it

@pytest.mark.parametrize("folder,page", [(".", "notebooks/i2pfl/table2.ipynb"), ("notebooks", "i2pfl/table2.ipynb")])
def test_papermill_runs_a_page_from_the_root_and_from_its_folder(tmp_path, folder, page):
    command = [sys.executable, "-m", "papermill", page, str(tmp_path / "out.ipynb"), "-p", "profile", "lite", "-y",
               "seeds: [0, 1, 2]", "--no-progress-bar"]
    env = {k: v for k, v in os.environ.items() if k != "FEDLIB_RESULTS"} | {"JUPYTER_PREFER_ENV_PATH": "1"}
    ran = subprocess.run(command, cwd=ROOT / folder, capture_output=True, text=True, env=env, timeout=280)
    assert ran.returncode == 0, ran.stderr[-2000:]
    done = nbformat.read(tmp_path / "out.ipynb", 4)
    injected, = (c for c in done.cells if "injected-parameters" in c.metadata.get("tags", []))
    assert 'profile = "lite"' in injected.source and "seeds = [0, 1, 2]" in injected.source
    shown = [o.data.get("text/html", "") for c in done.cells if c.cell_type == "code" and c.id == "table"
             for o in c.outputs if "data" in o]
    assert any("72.84" in html for html in shown)       # the printed average of the paper's method, beside ours
