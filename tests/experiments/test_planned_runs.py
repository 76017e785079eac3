"""What every table plans is what it planned when its records were made: no digest changes unnoticed.

`python tests/experiments/test_planned_runs.py` writes planned_runs.json anew. Look at its difference: where a digest
changed that should not have, records are lost.
"""
import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from fedlib.experiments import tables, tune

KEPT = Path(__file__).with_name("planned_runs.json")
ROOT = Path(__file__).resolve().parents[2]      # conftest has it too, but this is a program as well
# What lies below results/ and belongs to no planned run, and why.
NAMED = {"SHA256SUMS": "of `python book/readme.py`: what all of them hold",
         "crosschecks.json": "what other implementations gave: fedlib.report.crosschecks reads it",
         "bench/amd-epyc-family-25-model-17-avx512-2-cores.bench": "of `fedlib bench`, one file for each machine",
         "bench/amd-epyc-family-25-model-1-avx2-2-cores.whole": "of `fedlib bench --whole`, likewise",
         "bench/amd-epyc-family-25-model-17-avx512-2-cores.whole": "of `make compare-speed`, likewise",
         "bench/amd-epyc-family-26-model-2-avx512-2-cores.whole": "the same of another machine",
         "bench/nvidia-h200.bench": "of `make gpu`, likewise",
         "bench/nvidia-h200.launches": "of `make gpu`, too: tests/gpu/test_launches.py counted it"}


def planned(ident: str) -> dict[str, list]:
    """{profile: [how many runs, 12 digits over them in their order]} of a table, where there are any."""
    found = {}
    for profile in tables.PROFILES:
        runs = [(p.row, p.block, p.seed, p.unseen, p.run.digest) for p in tables.load_table(ident).runs(profile)]
        if runs:
            found[profile] = [len(runs), hashlib.sha256(json.dumps(runs).encode()).hexdigest()[:12]]
    return found


@pytest.fixture(scope="module")
def kept():
    return json.loads(KEPT.read_text(encoding="utf-8"))


def test_every_table_is_listed(kept):
    assert list(kept) == tables.idents()


@pytest.mark.parametrize("ident", tables.idents())
def test_a_table_plans_what_it_planned(ident, kept):
    assert planned(ident) == kept[ident]


def test_every_committed_record_belongs_to_a_planned_run():
    listed = subprocess.run(["git", "ls-files", "results"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip("needs the git repository to know what is committed")
    wanted = {file.as_posix() for table in map(tables.load_table, tables.idents()) for profile in tables.PROFILES
              for p in [*table.runs(profile), *table.halves(profile), *table.references(profile),
                        *tune.tries(table, profile)]
              for file in p.files(Path("results"))}
    left = {name.removeprefix("results/") for name in listed.stdout.splitlines() if name not in wanted}
    assert left == set(NAMED)


def write():
    lines = [f' "{ident}": {json.dumps(planned(ident))}' for ident in tables.idents()]
    KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
