"""`run.trace`: what it may be, and what is said about other values."""

from __future__ import annotations

import pytest

from meshctl.diagnostics import Span
from meshctl.recipe.compose.yaml_tree import of_plain
from meshctl.recipe.reader import read
from meshctl.run.settings import Trace

HERE = Span("recipe.yaml", 1, 1)


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([100, 110], Trace((100, 110))),
        ([7, 7], Trace((7, 7))),
        (7, Trace((7, 7))),
        ({"steps": [3, 5], "profiler": True}, Trace((3, 5), True)),
        ({"steps": 3}, Trace((3, 3))),
        (False, None),
        (None, None),
    ],
)
def test_a_trace_is_steps_or_a_mapping(written: object, expected: Trace | None) -> None:
    found = read(of_plain({"run": {"trace": written}}, HERE), "x")
    assert found.recipe.run.trace == expected
    assert not [one for one in found.found if "trace" in one.message]


@pytest.mark.parametrize(
    ("written", "message", "help"),
    [
        ([9, 3], "`trace` ends with step 3, before its first step 9", "write [3, 9]"),
        ([1, 2, 3], "`trace` has 3 numbers in place of two", "write [FIRST, LAST]"),
        ({"steps": []}, "`steps` has 0 numbers in place of two", "write [FIRST, LAST]"),
        ("some", "`trace` must be [FIRST, LAST], or one step, not the text `some`", ""),
        (0, "`trace` must be [FIRST, LAST], or one step, not 0", ""),
        ([1.5, 2], "`trace` must be a positive integer, not 1.5", ""),
        (True, "`trace` must be a mapping, not True", "write {steps: [FIRST, LAST]}"),
        ({"profiler": True}, "`run.trace` needs `steps`", "the first and the last step, as [FIRST, LAST]"),
    ],
)
def test_another_value_is_reported_once(written: object, message: str, help: str) -> None:
    found = read(of_plain({"run": {"trace": written}}, HERE), "x")
    [one] = [one for one in found.found if "trace" in one.message or "steps`" in one.message]
    assert (one.message, one.help) == (message, help)
    assert found.recipe.run.trace is None
