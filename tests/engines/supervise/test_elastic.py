"""Which workers a run has lost for good, and when it grows back. No process is started."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from processes import plan_of

from meshctl.engines.supervise.cause import Cause, Priority
from meshctl.engines.supervise.elastic import (
    RETRY_S,
    TOGETHER_S,
    Elastic,
    NodeChanges,
    Present,
    sizes_event,
)
from meshctl.engines.supervise.restarts import Restarts
from meshctl.plan.model import Cluster, Plan
from meshctl.plan.model import Restarts as Allowed
from meshctl.plan.resizing import CannotResize, Lost
from meshctl.run.settings import Checkpoint
from meshctl.run.settings import Elastic as Setting

LEAST = 2


def whole(folder: Path) -> Plan:
    plan = replace(plan_of(folder, ("one", 4), ("two", 1)), cluster=Cluster(nodes=3))
    return replace(plan, run=replace(plan.run, elastic=(Setting("one", LEAST),)))


def resize(plan: Plan, lost: Lost) -> Plan:
    """A layer above that takes one worker of the group for each node, device and process."""
    left = 4 - len(lost.nodes) - len(lost.devices) - lost.processes.get("one", 0)
    if left < LEAST:
        raise CannotResize(f"`one` has {left} ranks left")
    return replace(plan, groups=(replace(plan.groups[0], workers=left), *plan.groups[1:]))


def elastic_of(folder: Path) -> Elastic:
    plan = whole(folder)
    return Elastic(plan, lambda lost: resize(plan, lost))


def died(rank: int, group: str = "one") -> Cause:
    return Cause(Priority.OWN, "killed by SIGKILL", group, rank, code=-9)


def suspecting(folder: Path) -> Elastic:
    """A run without a worker that has failed twice."""
    elastic = elastic_of(folder)
    for _ in range(2):
        elastic.note(died(1), [])
    elastic.plan_without_lost()
    return elastic


def size(elastic: Elastic) -> int:
    elastic.plan_without_lost()
    return elastic.plan.group("one").workers


@pytest.mark.parametrize(
    ("causes", "sizes"),
    [
        ([died(1), died(2), died(2)], [4, 4, 3]),
        ([died(0, "two")] * 3, [4, 4, 4]),
        ([Cause(Priority.LOST, "a peer was lost", "one", 1)] * 3, [4, 4, 4]),
        ([Cause(Priority.ECHO, "the agent of one: exit code 1")] * 3, [4, 4, 4]),
        ([None] * 3, [4, 4, 4]),
    ],
)
def test_the_first_cause_of_two_attempts_in_a_row_is_lost(
    causes: list[Cause | None], sizes: list[int], tmp_path: Path
) -> None:
    elastic, found = elastic_of(tmp_path), []
    for cause in causes:
        elastic.note(cause, [])
        found.append(size(elastic))
    assert found == sizes and elastic.is_smaller == (sizes[-1] < 4)


def test_a_suspect_is_used_again_once(tmp_path: Path) -> None:
    elastic = suspecting(tmp_path)
    assert size(elastic) == 3 and elastic.can_grow(Present())
    assert elastic.grow(Present()) == "" and elastic.plan.group("one").workers == 4
    for _ in range(2):
        elastic.note(died(1), [])
    assert size(elastic) == 3 and not elastic.can_grow(Present())


def test_a_suspect_ends_no_run_that_cannot_be_smaller(tmp_path: Path) -> None:
    elastic = elastic_of(tmp_path)
    elastic.note(None, [0, 1])
    for _ in range(2):
        elastic.note(died(1), [])
        assert size(elastic) == LEAST
    elastic.note(None, [2])
    with pytest.raises(CannotResize, match="1 ranks left"):
        elastic.plan_without_lost()


def test_nodes_and_devices_are_used_again_when_they_are_back(tmp_path: Path) -> None:
    elastic = elastic_of(tmp_path)
    elastic.note(None, [3], [("cuda", 1)])
    assert size(elastic) == 2 and not elastic.can_grow(Present())
    one = Present(nodes=frozenset({3}))
    assert elastic.can_grow(one) and elastic.grow(one) == "" and elastic.plan.group("one").workers == 3
    assert elastic.can_grow(Present(devices=frozenset({("cuda", 1)})))
    plan = whole(tmp_path)
    smaller = resize(plan, Lost(nodes=frozenset({1})))
    assert sizes_event(plan, smaller) == {"sizes": {"one": [4, 3]}} and sizes_event(plan, plan) == {}


def raised(rank: int, step: int = 7) -> Cause:
    return Cause(Priority.OWN, "RuntimeError: boom", "one", rank, "update", step)


@pytest.mark.parametrize(
    ("causes", "ends_after"),
    [
        ([raised(1), raised(1), raised(2), raised(2)], 3),
        ([raised(1), raised(2)], 2),
        ([raised(1), raised(1, 8), raised(1, 9)], 0),
        ([raised(1), raised(1), raised(2, 8), raised(2, 8)], 0),
    ],
    ids=["another worker, too", "two workers", "another step", "two workers, each its own step"],
)
def test_the_same_exception_of_one_worker_costs_this_worker_only(
    causes: list[Cause], ends_after: int, tmp_path: Path
) -> None:
    """Attempts that end with these causes: the run ends after one of them, or goes on (0)."""
    elastic, restarts, refused = elastic_of(tmp_path), Restarts(Allowed(10)), []
    for cause in causes:
        was = elastic.plan.job_size
        elastic.note(cause, [])
        elastic.plan_without_lost()
        refused.append(restarts.refusal(cause, True, 0.0, elastic.plan.job_size < was))
    assert next((number for number, reason in enumerate(refused, 1) if reason), 0) == ends_after, refused


class Changes:
    """The changes of nodes of an attempt, and the nodes, the engine and the end of the attempt that they use."""

    replaces_nodes = True
    has_begun = is_asked = False

    def __init__(
        self,
        elastic: Elastic,
        connected: set[int],
        step: int,
        has_checkpoints: bool = True,
        has_ended_step: bool = True,
        can_lose: bool = True,
    ) -> None:
        self.connected, this = connected, cast(Any, self)
        self.action, self.started, self.asked = "", list[list[int]](), 0
        checkpoint = Checkpoint() if has_checkpoints else None
        restarts = Allowed(5) if can_lose else None
        keys: dict[str, Any] = {"checkpoint": checkpoint, "restarts": restarts}
        plan = replace(elastic.plan, run=replace(elastic.plan.run, **keys))
        attempt: Any = SimpleNamespace(plan=plan, step=step, has_ended_step=has_ended_step)
        self.changes = NodeChanges(elastic, this, this, attempt, this, this)

    def is_connected(self, node: int) -> bool:
        return node in self.connected

    is_fit = is_connected

    def ask_devices(self) -> None:
        self.asked += 1

    def restart(self, nodes: list[int]) -> None:
        self.started.append(nodes)

    def is_last(self, step: int | None) -> bool:
        return False

    def save(self) -> None:
        self.action = "save"

    def begin_at(self, moment: float) -> None:
        self.action = "end"

    def poll(self, newest: int | None, now: float) -> str:
        self.action = ""
        self.changes.poll(newest, now)
        return self.action


def test_a_suspect_is_back_at_the_next_checkpoint(tmp_path: Path) -> None:
    growth = Changes(suspecting(tmp_path), {0}, 5)
    assert [growth.poll(step, 0.0) for step in (5, 5, 10)] == ["", "", "end"]


def test_a_lost_node_is_started_again_at_checkpoints(tmp_path: Path) -> None:
    """Once it is back, the workers save, and the attempt ends with this checkpoint."""
    elastic = elastic_of(tmp_path)
    elastic.note(None, [1])
    elastic.plan_without_lost()
    growth = Changes(elastic, {0}, 5)
    assert [growth.poll(step, 0.0) for step in (5, 10, 10, 15)] == ["", "", "", ""]
    assert growth.started == [[1]] and growth.asked == 2
    assert growth.poll(20, RETRY_S) == "" and len(growth.started) == 2
    growth.connected.add(1)
    assert [growth.poll(step, RETRY_S) for step in (20, 20, 23)] == ["save", "", "end"]


def test_a_device_is_back_when_its_node_reports_it(tmp_path: Path) -> None:
    elastic, own = elastic_of(tmp_path), [("cuda", 0), ("cuda", 1)]
    elastic.note(None, [], [("cuda", 1)])
    elastic.plan_without_lost()
    growth = Changes(elastic, {0}, 0)
    assert growth.poll(5, 0.0) == ""
    growth.changes.on_devices(own, [("cuda", 1)])
    assert growth.poll(5, 0.0) == ""
    growth.changes.on_devices(own, [])
    assert growth.poll(5, 0.0) == "save"
    growth.changes.on_devices(own, [("cuda", 1)])
    assert growth.poll(10, 0.0) == ""


def test_a_whole_run_does_not_grow_and_a_node_without_a_part_in_it_changes_nothing(tmp_path: Path) -> None:
    growth = Changes(elastic_of(tmp_path), {0}, 0)
    assert growth.poll(5, 0.0) == "" and not growth.asked
    assert growth.changes.on_stop(7, 0.0) and growth.poll(10, 9.0) == ""


# Nodes that their scheduler ends


def leaving(tmp_path: Path, **facts: bool) -> Changes:
    return Changes(elastic_of(tmp_path), {0, 1, 2}, 10, **facts)


def test_a_run_saves_and_ends_the_attempt_at_the_checkpoint(tmp_path: Path) -> None:
    found = leaving(tmp_path)
    assert found.poll(10, 0.0) == "" and found.changes.on_stop(1, 0.0) and found.changes.leaving == {1}
    assert [found.poll(newest, 0.1) for newest in (10, 10, 13)] == ["save", "", "end"]
    assert found.changes.reason == "the scheduler ends node 1" and found.changes.back is None


@pytest.mark.parametrize(("has_checkpoints", "can_save"), [(False, True), (True, False)])
def test_without_anything_to_save_the_attempt_ends_soon(
    has_checkpoints: bool, can_save: bool, tmp_path: Path
) -> None:
    found = leaving(tmp_path, has_checkpoints=has_checkpoints, has_ended_step=can_save)
    assert found.changes.on_stop(2, 5.0) and found.changes.on_stop(1, 6.0)
    assert found.poll(None, 5.0 + TOGETHER_S) == ""
    assert found.poll(None, 5.1 + TOGETHER_S) == "end"


def test_a_run_ends_if_all_nodes_are_asked_to_or_if_it_may_lose_none(tmp_path: Path) -> None:
    found = leaving(tmp_path)
    assert [found.changes.on_stop(node, 0.0) for node in (1, 0, 2)] == [True, True, False]
    assert not leaving(tmp_path, can_lose=False).changes.on_stop(1, 0.0)
