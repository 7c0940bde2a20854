"""For all tests.

Nothing is timed in a test, so hypothesis has no deadline, and no limit for how long it draws. The examples of a test
depend on its source alone, so a commit passes or fails on every machine; the profile `nightly` draws new examples in
every run.

Ctrl-C interrupts the tests: a shell that starts something in the background ignores it for all descendants.
The umask and the variables that change what commands print are the same for everybody.
A forked process does not collect what other tests left behind as garbage: the threads of their process groups do not
exist in it, and the collection would crash.
"""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", UNTIMED, derandomize=True, database=None, max_examples=40)
settings.register_profile("nightly", UNTIMED, max_examples=500)
settings.load_profile("repeatable")
PRINTING = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "LINES", "GITHUB_ACTIONS")
for name in (*PRINTING, "GITHUB_WORKSPACE", "PYTHONBREAKPOINT", "PYTHONWARNINGS", "MESHCTL_DEBUG"):
    os.environ.pop(name, None)
os.umask(0o022)
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.register_at_fork(after_in_child=gc.freeze)


LONG = ("test_contract.py", "test_pipelines.py", "test_mutations.py")
"""Files that take ten seconds or more, and have few tests that start processes or none."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves long files to the front, and those that start processes, those with most of such tests first. Of the
    files that two processes share, none is then so long that the other process waits for it at the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow") or item.path.name in LONG)
    items.sort(key=lambda item: -slow[item.path])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spares the collector the modules and thousands of test items, which live until the end: a full collection of
    torch, hypothesis and the items takes a second, and several tests ask for one."""
    gc.collect()
    gc.freeze()
