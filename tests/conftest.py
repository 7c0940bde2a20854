"""For all tests.

Nothing is timed in a test, so hypothesis gives no example a deadline. And Ctrl-C is heard: a shell that
starts something in the background has it ignored, by all that descends from it. A forked process leaves alone
what other tests left behind: threads of a process group are not there in it, and to collect that as garbage
would crash.
"""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None)
settings.register_profile("nightly", settings.get_profile("untimed"), max_examples=500)
settings.load_profile("untimed")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
os.register_at_fork(after_in_child=gc.freeze)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves files that start processes to the front, those with most of such tests first. Of the files that two
    processes share, none is then so long that the other process waits for it at the end."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spares the collector the modules and thousands of test items, which live until the end: a full collection of
    torch, hypothesis and the items takes a second, and several tests ask for one."""
    gc.collect()
    gc.freeze()
