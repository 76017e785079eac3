"""The tests of tests/gpu, in a process that has a pretended GPU from its start."""
import os
import subprocess
import sys

import pytest
from conftest import ROOT


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("file", sorted(p.name for p in (ROOT / "tests/gpu").glob("test_*.py")))
def test_on_a_pretended_gpu(file):
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"tests/gpu/{file}"]
    env = os.environ | {"FEDLIB_PRETENDED_GPU": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-4000:] + done.stderr[-1000:]
