"""Which tests `make test` runs: those that are quick, and of the slow ones a representative of each family.

    pytest --quick                      leave the slow ones out (`make test`; `make test-all` runs everything)
    pytest --within 30                  the quick ones first, then the slow, other files first each day; of these none
                                        begins later than after so many minutes: it is skipped, and says so (CI)
    pytest --measure tests/durations.json     write down how long each test took, where it was more than LIMIT

A test is slow by what was measured, never by where it stands. Of slow tests that run for every method those of one
method of each kind stay, and those of the records: who commits records runs `make test` alone.
"""
import functools
import json
import os
import random
import time
from pathlib import Path

import pytest

LIMIT = 0.7         # seconds on a quiet core
FILE = Path(__file__).with_name("durations.json")
ONE_OF_EACH = {"FedAvg", "MOON", "FedRep", "Ditto", "FedAdam", "I2PFL", "FedPall", "MPFT", "FedDTR", "FedDEAP"}


@functools.cache
def measured() -> dict[str, float]:
    return json.loads(FILE.read_text()) if FILE.exists() else {}


def stays(item, seconds: dict[str, float]) -> bool:
    """Is the test quick, a representative, or of the committed records?"""
    if item.get_closest_marker("committed"):
        return True
    if seconds.get(item.nodeid, 0) <= LIMIT:
        return item.get_closest_marker("slow") is None
    given = getattr(item, "callspec", None)
    return bool(given and ONE_OF_EACH & {v for v in given.params.values() if isinstance(v, str)}
                and {"name", "method_name", "method"} & set(given.params))


class Measured:
    """Collects durations where the session is led (with xdist: not in the workers)."""

    def __init__(self, file: Path):
        self.file, self.seconds = file, {}

    def pytest_runtest_logreport(self, report):
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0) + report.duration

    def pytest_sessionfinish(self, session):
        slow = {k: round(v, 1) for k, v in sorted(self.seconds.items()) if v > LIMIT}
        self.file.write_text(json.dumps(slow, indent=0) + "\n")


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="only quick tests, and one slow one of each family")
    parser.addoption("--within", type=float, help="minutes after which no slow test begins")
    parser.addoption("--measure", type=Path, help="write the durations of slow tests to this file")


def pytest_configure(config):
    if config.getoption("--nbval-lax", False):      # its kernels are forks, as in the book's build
        import forks
        forks.ready(1, 1200)
    if config.getoption("--within") is not None:
        os.environ.setdefault("FEDLIB_TESTS_BEGAN", str(time.time()))
    if config.getoption("--measure") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Measured(config.getoption("--measure")))


def pytest_collection_modifyitems(config, items):
    seconds = measured()
    if config.getoption("--quick"):
        kept = [i for i in items if stays(i, seconds)]
        config.hook.pytest_deselected(items=[i for i in items if i not in set(kept)])
        items[:] = kept
    if config.getoption("--within") is not None:
        files = sorted({i.path for i in items})
        random.Random(int(began() // 86400)).shuffle(files)
        items.sort(key=lambda i: (0, 0) if stays(i, seconds) else (1, files.index(i.path)))


def began() -> float:
    """When the session that is led began: its workers inherit it."""
    return float(os.environ["FEDLIB_TESTS_BEGAN"])


def pytest_runtest_setup(item):
    minutes = item.config.getoption("--within")
    if minutes is not None and time.time() > began() + 60 * minutes and not stays(item, measured()):
        pytest.skip("slow, and the time for slow tests was over")
