"""The levels of log records in a worker, each in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import logging, sys
from meshctl.runtime.worker import set_log_level
set_log_level(sys.argv[1])
logger = logging.getLogger("a.model")
logger.debug("one")
logger.info("two")
logger.warning("three")
logging.basicConfig(level=logging.INFO, format="mine %(message)s")
logger.info("four")
"""


@pytest.mark.parametrize(
    ("level", "lines"),
    [
        ("debug", ["DEBUG a.model: one", "INFO a.model: two", "WARNING a.model: three", "mine four"]),
        ("info", ["INFO a.model: two", "WARNING a.model: three", "mine four"]),
        ("warning", ["WARNING a.model: three", "mine four"]),
        ("error", ["mine four"]),
    ],
)
def test_records_of_a_level_and_above_until_the_user_adds_a_handler(level: str, lines: list[str]) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, level], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == lines
