"""When an attempt ends because the scheduler ends some of its nodes. No process is started."""

from __future__ import annotations

import pytest

from meshctl.engines.supervise.departure import TOGETHER_S, Departure


def departure(is_allowed: bool = True, has_checkpoints: bool = True) -> Departure:
    return Departure(is_allowed, {0, 1, 2}, has_checkpoints)


def test_a_run_saves_and_ends_the_attempt_at_the_checkpoint() -> None:
    found = departure()
    assert found.poll(10, True, 0.0) == "" and found.add(1, 0.0) and found.leaving == {1}
    assert [found.poll(newest, True, 0.1) for newest in (10, 10, 13)] == ["save", "", "end"]


@pytest.mark.parametrize(("has_checkpoints", "can_save"), [(False, True), (True, False)])
def test_without_anything_to_save_the_attempt_ends_soon(has_checkpoints: bool, can_save: bool) -> None:
    found = departure(has_checkpoints=has_checkpoints)
    assert found.add(2, 5.0) and found.add(1, 6.0)
    assert found.poll(None, can_save, 5.0 + TOGETHER_S) == ""
    assert found.poll(None, can_save, 5.1 + TOGETHER_S) == "end"


def test_a_run_ends_if_all_nodes_are_asked_to_or_if_it_may_lose_none() -> None:
    found = departure()
    assert [found.add(node, 0.0) for node in (1, 0, 2)] == [True, True, False]
    assert not departure(is_allowed=False).add(1, 0.0)


def test_a_node_without_a_part_in_the_attempt_changes_nothing() -> None:
    found = departure()
    assert found.add(7, 0.0) and found.poll(10, True, 9.0) == ""
