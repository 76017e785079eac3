"""A table on a Slurm cluster: a job is killed, one is preempted, the controller stops, and every record is right.

Runs where Debian's slurm-wlm and munge are installed, and Snakemake with its plugin; FEDLIB_SLURM=0 leaves it out.
"""
import importlib.util
import os
import signal
import subprocess
from pathlib import Path

import pytest
import slurm_host
from conftest import numbers
from slurm_host import wait_for
from small_batch import Small

from fedlib.engine import loop, records
from fedlib.experiments import status

needed = ("snakemake", "snakemake_executor_plugin_slurm")
REASON = slurm_host.missing() or ("" if all(map(importlib.util.find_spec, needed)) else "needs the extra: batch")
REASON = "FEDLIB_SLURM=0" if os.environ.get("FEDLIB_SLURM") == "0" else REASON
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON or "-")

# sacct knows nothing without accounting: squeue does. And all is quick here.
HERE = ["--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "3", "--latency-wait", "5",
        "--default-resources", "runtime=10", "mem_mb=500", "--retries", "3"]


@pytest.fixture
def cluster(tmp_path):
    with slurm_host.Cluster(tmp_path / "slurm") as cluster:
        yield cluster


def process_of(planned) -> int | None:
    """The process that trains the run."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if planned.run.digest in words and "run" in words and "python" in words[0]:
            return int(entry.parent.name)
    return None


def released(cluster) -> None:
    """Jobs that were put back start now; the controller would let them wait for two minutes."""
    for line in cluster.call("squeue", "-h", "-o", "%i|%T|%r", check=False).splitlines():
        if line.endswith("|PENDING|BeginTime"):
            cluster.call("scontrol", "update", f"JobId={line.split('|')[0]}", "StartTime=now", check=False)


@pytest.mark.timeout(900)       # three and a half minutes on two cores with 16 others at work
def test_a_table_on_a_cluster_where_much_goes_wrong(cluster, tmp_path, monkeypatch):
    small = Small(tmp_path, monkeypatch, rounds=6)
    slow, results, planned = small.papers / "slow", small.results, small.runs()
    slow.write_text("4")

    def under_way():
        assert batch.poll() is None, (tmp_path / "said").read_text()
        return [p for p in planned if status.begun(p, results) and process_of(p)]
    command = small.command(*HERE, "records", where="slurm", config=["table=small/t", "device=cpu"])
    with open(tmp_path / "said", "w") as out, subprocess.Popen(
            command, cwd=small.folder, stdout=out, stderr=subprocess.STDOUT, env=os.environ | cluster.env) as batch:
        try:
            killed, *_ = wait_for(under_way, 240, "a run's first round")
            os.kill(process_of(killed), signal.SIGKILL)
            wait_for(lambda: cluster.call("squeue", "-h", "--states=FAILED", check=False), 90, "its failed job")
            wait_for(under_way, 240, "another run's first round")
            cluster.call("sbatch", "-p", "urgent", "--gres=gpu:2", "-o", "/dev/null", "--wrap", "true")
            wait_for(lambda: "Restarts=1" in cluster.call("scontrol", "show", "job"), 90, "a job put back")
            cluster.stop("slurmctld")
            slow.write_text("0")
            cluster.start("slurmctld")
            wait_for(lambda: released(cluster) or batch.poll() is not None, 300, "the end")
            assert batch.returncode == 0, (tmp_path / "said").read_text()
        finally:
            batch.kill()
    said = (tmp_path / "said").read_text()
    assert "Trying to restart job" in said
    for p in planned:
        alone = records.read_record(loop.train(p.run, tmp_path / "alone"))
        assert numbers(records.read_record(p.run.path(results))) == numbers(alone)
    assert not list(results.rglob("*.partial")) and not list(results.rglob("*.failed"))
