"""Calls in a fork: their values, their errors, and those that do not return."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from meshctl.engines.checks import runner
from meshctl.engines.checks.fork import in_fork
from meshctl.engines.checks.requirements import Requirements
from tests.hang import HANG_S


def test_the_value_comes_from_another_process() -> None:
    pid, text = in_fork(lambda: [os.getpid(), "x" * 300_000], HANG_S)
    assert pid != os.getpid() and len(text) == 300_000


def test_an_error_is_that_of_the_function() -> None:
    def fail() -> NoReturn:
        raise LookupError("odd")

    with pytest.raises(LookupError, match="odd"):
        in_fork(fail, HANG_S)


def test_a_busy_machine_is_no_disk_that_does_not_answer() -> None:
    def compute() -> float:
        while (used := time.process_time()) < 0.3:
            pass
        return used

    assert in_fork(compute, 0.05) >= 0.3


def test_a_disk_that_does_not_answer_is_a_failure_of_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(_: Requirements) -> dict[str, Any]:
        time.sleep(1000)
        return {}

    monkeypatch.setattr(runner, "BLOCKED_S", 0.1)
    stuck = {name: replace(topic, quickly=hang) for name, topic in runner.TOPICS.items() if topic.may_block}
    monkeypatch.setattr(runner, "TOPICS", stuck)
    found = runner.preflight(Requirements("/a", workers=1))
    assert [(one.name, one.state, one.found) for one in found] == [
        ("run directory", "failure", "the test of /a failed: no answer within 0 s"),
    ]
