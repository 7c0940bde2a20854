"""The head's side of the examination of nodes, with connections that keep what is sent."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from meshctl.engines.checks.requirements import Needs
from meshctl.engines.supervise.examination import (
    EXAMINE_S,
    Examination,
    Examined,
    Finding,
    NodeLost,
    Refused,
)
from meshctl.plan.model import Cluster, Group, Plan, Run
from meshctl.run.directory import RunDir

PLAN = Plan("test", 0, Cluster(3), (Group("train", "cpu", 3, 0),), (), (), (), Run())


class Sent:
    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)


class Nodes:
    """Three nodes, and the examination of them."""

    def __init__(self, folder: Path, can_lose: bool = False) -> None:
        self.run = RunDir(folder)
        self.examination = Examination(PLAN, self.run, Needs(), True, can_lose=can_lose)
        self.sent: Any = {node: Sent() for node in range(3)}
        self.examination.begin(range(3))
        for node in range(3):
            self.listens(node)

    def listens(self, node: int) -> None:
        self.examination.on_message(node, {"type": "listens", "address": f"h{node}:1"})

    def poll(self, now: float = 0.0, idle: Collection[int] = ()) -> list[Finding]:
        connections = dict(self.sent)
        apart = {node: connections.pop(node) for node in idle}
        return list(self.examination.poll(connections, now, apart))

    def examine(self) -> list[Finding]:
        """Lets all nodes begin an attempt."""
        self.poll()
        for node in range(3):
            self.report(node)
        return self.poll()

    def report(self, node: int, **facts: Any) -> None:
        facts = {"host": f"h{node}", "torch": "2.9.0", **facts}
        self.examination.on_message(node, {"type": "examined", "facts": facts})

    def kinds(self, node: int) -> list[str]:
        return [message["type"] for message in self.sent[node].messages]


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


@pytest.fixture
def elastic(tmp_path: Path) -> Nodes:
    """Nodes that have begun an attempt, of a run that may lose one. Node 0 has left, and joins again."""
    found = Nodes(tmp_path, can_lose=True)
    assert found.examine() == [Examined(())] and found.examination.is_over
    found.examination.forget(0)
    found.listens(0)
    found.sent[0].messages.clear()
    return found


def test_nodes_examine_themselves_and_begin(nodes: Nodes) -> None:
    nodes.examination.forget(2)
    assert nodes.poll() == [] and nodes.kinds(1) == [], "the others are to connect to it"
    nodes.listens(2)
    assert nodes.poll() == [] and nodes.kinds(1) == ["examine"]
    [asked] = nodes.sent[1].messages
    assert asked["peers"] == {"2": "h2:1", "0": "h0:1"}
    nonce = asked["nonce"]
    assert (nodes.run.path / nonce).read_text() == nonce
    for node in range(3):
        assert nodes.poll() == [] and not nodes.examination.is_over
        nodes.report(node)
    assert nodes.poll() == [Examined(())] and not (nodes.run.path / nonce).exists()
    assert nodes.examination.is_over
    nodes.examination.forget(1)
    nodes.listens(1)
    nodes.examination.begin(range(3))
    nodes.poll()
    assert [len(nodes.kinds(node)) for node in range(3)] == [1, 2, 1], "only the one that left"


def test_nothing_is_asked_while_a_node_is_missing_or_after_it_was_given_up(nodes: Nodes) -> None:
    missing = {**nodes.sent, 1: None}
    given_up = {0: nodes.sent[0], 2: nodes.sent[2]}
    for connections in (missing, given_up, {}):
        assert list(nodes.examination.poll(connections, 0.0)) == []
    assert nodes.kinds(0) == []


@pytest.mark.parametrize("is_asked", [True, False])
def test_nodes_that_do_not_answer_are_named(nodes: Nodes, is_asked: bool) -> None:
    """Either it does not report, or it has not said where it listens, so that no node can be asked."""
    if not is_asked:
        nodes.examination.forget(1)
    nodes.poll(1.0)
    for node in (0, 2) if is_asked else ():
        nodes.report(node)
    assert nodes.poll(EXAMINE_S) == [] and nodes.kinds(0) == ["examine"] * is_asked
    [found] = nodes.poll(EXAMINE_S + 2)
    assert isinstance(found, NodeLost) and found.reason.startswith(
        "node 1 has not examined itself within 60 s"
    )


def test_a_newcomer_is_examined_while_an_attempt_runs_without_it(elastic: Nodes) -> None:
    elastic.examination.begin([1, 2])
    elastic.examination.is_over = True
    assert elastic.poll(5.0, idle=[0]) == [] and elastic.kinds(0) == ["examine"]
    nonce = elastic.sent[0].messages[0]["nonce"]
    assert (elastic.run.path / nonce).exists() and not elastic.examination.is_fit(0)
    elastic.report(0)
    assert elastic.poll(5.0, idle=[0]) == [] and elastic.examination.is_fit(0)
    assert not (elastic.run.path / nonce).exists()


@pytest.mark.parametrize("is_idle", [True, False], ids=["beside an attempt", "in the next attempt"])
@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"torch": "2.8.0"}, "node 0 (h0): torch: 2.8.0, and node 1 (h1) has 2.9.0"),
        ({"shares_files": False}, "node 0 (h0): run directory: "),
        (
            {"unreached": [(2, "h2:1", "why")]},
            "node 0 (h0): network: it does not reach node 2 (h2) at h2:1: why",
        ),
        (None, "node 0 has not examined itself within 60 s"),
    ],
    ids=["version", "files", "wall", "silence"],
)
def test_a_newcomer_that_lacks_something_is_refused(
    elastic: Nodes, facts: dict[str, Any] | None, reason: str, is_idle: bool
) -> None:
    """It is compared with the others, also if it is the first node."""
    elastic.examination.begin([1, 2] if is_idle else range(3))
    elastic.examination.is_over = is_idle
    idle = [0] if is_idle else []
    found = elastic.poll(5.0, idle)
    if facts is None:
        found += [*elastic.poll(4.0 + EXAMINE_S, idle), *elastic.poll(6.0 + EXAMINE_S, idle)]
    else:
        elastic.report(0, **facts)
        found += elastic.poll(5.0, idle)
    refused = next(one for one in found if not isinstance(one, Examined))
    assert isinstance(refused, Refused) and refused.node == 0 and refused.reason.startswith(reason)
    assert not elastic.examination.is_fit(0) and elastic.examination.is_over == is_idle


@pytest.mark.parametrize(("can_lose", "begun"), [(True, False), (False, False), (False, True)])
def test_where_all_nodes_are_new_or_needed_none_is_refused(
    tmp_path: Path, can_lose: bool, begun: bool
) -> None:
    found = Nodes(tmp_path, can_lose)
    if begun:
        found.examine()
        found.examination.forget(1)
        found.listens(1)
        found.examination.begin(range(3))
    found.poll()
    for node in [1] if begun else range(3):
        found.report(node, shares_files=node != 1)
    [problems] = found.poll()
    assert isinstance(problems, Examined) and problems.problems[0].is_failure
    assert not found.examination.is_over
