"""Differences between a recipe and a checkpoint that `tests/cli/test_resume_differences.py` has no example of."""

from __future__ import annotations

from typing import Any

from meshctl.plan.resume_differences import differences

STAGE = {"name": "batch", "kind": "call", "component": "source", "method": "next", "inputs": []}
FACTS: dict[str, Any] = {
    "components": [{"name": "source", "target": "parts.Source"}],
    "stages": [STAGE],
    "blocks": [{"name": "rounds", "over": "batch", "times": 1, "seed": 0}],
}


def messages(now: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one.code, one.message) for one in differences(FACTS, now, (), ())]


def test_a_changed_block_is_listed() -> None:
    [block] = FACTS["blocks"]
    assert messages(FACTS) == []
    assert messages({**FACTS, "blocks": [{**block, "times": 3}]}) == [
        ("", "`times` of the block `rounds` changed: 1 -> 3")
    ]
    assert messages({**FACTS, "blocks": [{**block, "name": "passes"}]}) == [
        ("", "the block `passes` is new"),
        ("", "the block `rounds` is gone"),
    ]


def test_a_source_that_moved_into_a_block_has_lost_its_position() -> None:
    [found] = messages({**FACTS, "stages": [{**STAGE, "block": "rounds"}]})
    assert found[0] == "MC723"
