"""Settings of a worker's process: `breakpoint()` with and without a terminal, and the level of log records."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from meshctl.runtime.worker import skip_without_terminal
from tests import command_server


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def hook(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)


def test_without_a_terminal_it_is_a_warning_at_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    skip_without_terminal("train:1")
    with pytest.warns(UserWarning, match="needs launch --debug train:1") as found:
        breakpoint()
    assert found[0].filename == __file__


@pytest.mark.parametrize("chosen", ["terminal", "variable", "hook"])
def test_on_a_terminal_or_with_a_hook_of_the_user_it_stays(
    chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal() if chosen == "terminal" else io.StringIO())
    if chosen == "variable":
        monkeypatch.setenv("PYTHONBREAKPOINT", "debugpy.breakpoint")
    monkeypatch.setattr(sys, "breakpointhook", before := print if chosen == "hook" else sys.breakpointhook)
    skip_without_terminal("train:1")
    assert sys.breakpointhook is before


CODE = """
import logging
from meshctl.runtime.worker import set_log_level
set_log_level({!r})
logger = logging.getLogger("a.model")
logger.debug("one")
logger.info("two")
logger.warning("three")
logging.basicConfig(level=logging.INFO, format="mine %(message)s")
logger.info("four")
raise SystemExit
"""


@pytest.mark.parametrize(
    ("level", "lines"),
    [
        ("debug", ["DEBUG a.model: one", "INFO a.model: two", "WARNING a.model: three", "mine four"]),
        ("error", ["mine four"]),
    ],
)
def test_records_of_a_level_and_above_until_the_user_adds_a_handler(
    level: str, lines: list[str], tmp_path: Path
) -> None:
    assert command_server.call(tmp_path, program=CODE.format(level)).stderr.splitlines() == lines
