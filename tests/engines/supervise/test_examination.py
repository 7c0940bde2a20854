"""The head's side of the examination of nodes, with connections that keep what is sent."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from meshctl.engines.checks.requirements import Needs
from meshctl.engines.supervise.examination import (
    EXAMINE_S,
    Apart,
    Examination,
    Examined,
    Finding,
    Refused,
    peers_of,
)
from meshctl.network.connection import Connection
from meshctl.plan.model import Cluster, Group, Plan, Run
from meshctl.run.directory import RunDir

PLAN = Plan("test", 0, Cluster(3), (Group("train", "cpu", 3, 0),), (), (), (), Run())


@dataclass
class Sent:
    messages: list[dict[str, Any]] = field(default_factory=list)

    def send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)


class Nodes:
    """Three nodes, and the examination of them."""

    def __init__(self, folder: Path, can_lose: bool = False) -> None:
        self.run = RunDir(folder)
        self.examination = Examination(PLAN, self.run, Needs(), True, can_lose=can_lose)
        self.sent = {node: Sent() for node in range(3)}
        self.examination.begin(0, range(3))

    def poll(self, now: float = 0.0, idle: Collection[int] = ()) -> list[Finding]:
        connections = {node: cast(Connection, one) for node, one in self.sent.items()}
        apart = {node: connections.pop(node) for node in idle}
        return list(self.examination.poll(connections, now, apart))

    def examine_all(self, attempt: int = 0) -> list[Finding]:
        """Lets all nodes begin an attempt."""
        self.examination.begin(attempt, range(3))
        self.poll()
        for node in range(3):
            self.report_facts(node)
        found = [*self.poll(), *self.poll()]
        for node in range(3):
            self.called(node, attempt=attempt)
        return [*found, *self.poll()]

    def report(self, node: int, kind: str, attempt: int = 0, **words: Any) -> None:
        self.examination.on_message(node, {"type": kind, "attempt": attempt, **words})

    def called(self, node: int, *unreached: int, attempt: int = 0) -> None:
        """A node has called its peers, and has not reached some."""
        problems = [(peer, f"10.0.0.{peer}:7", "it does not answer") for peer in unreached]
        self.report(node, "called", attempt=attempt, problems=problems)

    def report_facts(self, node: int, **facts: Any) -> None:
        now = self.examination._asked.get(node, 0.0)
        self.report(
            node, "examined", facts={"host": f"h{node}", **facts}, address=f"10.0.0.{node}:7", now=now
        )

    def kinds(self, node: int) -> list[str]:
        return [message["type"] for message in self.sent[node].messages]


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    return Nodes(tmp_path)


def test_nodes_examine_themselves_call_their_peers_and_begin(nodes: Nodes) -> None:
    assert nodes.poll() == [] and nodes.kinds(1) == ["examine"]
    nonce = nodes.sent[1].messages[0]["nonce"]
    assert (nodes.run.path / nonce).read_text() == nonce
    for node in range(3):
        nodes.report_facts(node)
    [found] = nodes.poll()
    assert found == Examined(()) and not (nodes.run.path / nonce).exists()
    assert nodes.poll() == [] and nodes.kinds(1) == ["examine", "peers"]
    assert nodes.sent[1].messages[1]["peers"] == {"2": "10.0.0.2:7", "0": "10.0.0.0:7"}
    for node in range(3):
        assert not nodes.examination.is_over
        nodes.called(node)
        nodes.poll()
    assert nodes.examination.is_over


def test_a_wall_names_both_nodes_and_the_address_once_all_have_reported(nodes: Nodes) -> None:
    for node in range(3):
        nodes.report_facts(node)
    nodes.poll()
    nodes.poll()
    nodes.called(1, 2)
    assert nodes.poll() == []
    nodes.called(2, 1)
    nodes.called(0)
    [found] = nodes.poll()
    assert isinstance(found, Apart)
    assert "node 1 (h1) does not reach node 2 (h2) at 10.0.0.2:7: it does not answer" in found.reason
    assert "node 2 (h2) does not reach node 1 (h1) at 10.0.0.1:7" in found.reason
    assert nodes.poll() == []


def test_nothing_is_asked_while_a_node_is_missing_or_after_it_was_given_up(nodes: Nodes) -> None:
    missing = cast("dict[int, Connection | None]", {0: nodes.sent[0], 1: None, 2: nodes.sent[2]})
    given_up = {node: one for node, one in missing.items() if one}
    for connections in (missing, given_up, {}):
        assert list(nodes.examination.poll(connections, 0.0)) == []
    assert nodes.kinds(0) == []


def test_nodes_that_do_not_answer_are_named(nodes: Nodes) -> None:
    nodes.poll(0.0)
    nodes.report_facts(0)
    nodes.report_facts(2)
    assert nodes.poll(EXAMINE_S - 1) == []
    [found] = nodes.poll(EXAMINE_S + 1)
    assert isinstance(found, Apart) and found.reason.startswith("node 1 has not examined itself within 60 s")


def test_a_node_that_comes_again_is_examined_again_and_others_are_not(nodes: Nodes) -> None:
    nodes.poll()
    for node in range(3):
        nodes.report_facts(node)
    nodes.examination.forget(1)
    nodes.examination.begin(1, range(3))
    nodes.poll()
    assert [nodes.kinds(node).count("examine") for node in range(3)] == [1, 2, 1]


@pytest.fixture
def elastic(tmp_path: Path) -> Nodes:
    """Nodes that have begun an attempt, of a run that may lose one. Node 0 has left, and joins again."""
    found = Nodes(tmp_path, can_lose=True)
    assert found.examine_all() == [Examined(())] and found.examination.is_over
    found.examination.forget(0)
    return found


def test_a_newcomer_is_examined_while_an_attempt_runs_without_it(elastic: Nodes) -> None:
    elastic.examination.begin(1, [1, 2])
    elastic.examination.is_over = True
    elastic.sent[0].messages.clear()
    assert elastic.poll(idle=[0]) == [] and elastic.kinds(0) == ["examine"]
    nonce = elastic.sent[0].messages[0]["nonce"]
    assert (elastic.run.path / nonce).exists()
    elastic.report_facts(0)
    assert elastic.poll(idle=[0]) == [] and elastic.kinds(0) == ["examine", "peers"]
    assert not (elastic.run.path / nonce).exists() and {*elastic.sent[0].messages[1]["peers"]} == {"1", "2"}
    assert not elastic.examination.is_fit(0)
    elastic.called(0, attempt=1)
    assert elastic.poll(idle=[0]) == [] and elastic.examination.is_fit(0)


def test_a_newcomer_that_lacks_something_is_refused(elastic: Nodes) -> None:
    """It is compared with the others, also if it is the first node."""
    elastic.examination.begin(1, [1, 2])
    elastic.examination.is_over = True
    elastic.examination._facts[1] = replace(elastic.examination._facts[1], torch="2.9.0")
    elastic.examination._facts[2] = replace(elastic.examination._facts[2], torch="2.9.0")
    elastic.poll(idle=[0])
    elastic.report_facts(0, torch="2.8.0")
    [found] = elastic.poll(idle=[0])
    assert isinstance(found, Refused) and found.node == 0
    assert found.reason.startswith("node 0 (h0): torch: 2.8.0, and node 1 (h1) has 2.9.0")
    elastic.examination.forget(0)
    elastic.poll(idle=[0])
    elastic.report_facts(0, torch="2.9.0")
    elastic.poll(idle=[0])
    elastic.called(0, 2, attempt=1)
    [found] = elastic.poll(idle=[0])
    assert isinstance(found, Refused) and not elastic.examination.is_fit(0)
    assert found.reason == "node 0 (h0) does not reach node 2 (h2) at 10.0.0.2:7: it does not answer"


def test_a_newcomer_that_does_not_answer_is_refused(elastic: Nodes) -> None:
    elastic.examination.begin(1, [1, 2])
    elastic.examination.is_over = True
    assert elastic.poll(5.0, idle=[0]) == elastic.poll(4.0 + EXAMINE_S, idle=[0]) == []
    [found] = elastic.poll(6.0 + EXAMINE_S, idle=[0])
    assert isinstance(found, Refused) and found.reason == "node 0 has not examined itself within 60 s"


def test_a_newcomer_of_the_next_attempt_is_refused_for_what_it_lacks(elastic: Nodes) -> None:
    elastic.examination.begin(1, range(3))
    elastic.poll()
    elastic.report_facts(0, shares_files=False)
    refused, others = elastic.poll()
    assert isinstance(refused, Refused) and refused.node == 0 and "run directory" in refused.reason
    assert others == Examined(())


def test_a_wall_around_a_newcomer_refuses_it(elastic: Nodes) -> None:
    elastic.examination.begin(1, range(3))
    elastic.poll()
    elastic.report_facts(0)
    elastic.poll()
    elastic.poll()
    for node, unreached in ((0, []), (1, []), (2, [0])):
        elastic.called(node, *unreached, attempt=1)
    [found] = elastic.poll()
    assert isinstance(found, Refused) and found.node == 0
    elastic.poll()
    for node, unreached in ((0, []), (1, [2]), (2, [0])):
        elastic.called(node, *unreached, attempt=1)
    [found] = elastic.poll()
    assert isinstance(found, Apart), "both have begun an attempt before"


def test_where_all_nodes_are_new_or_needed_none_is_refused(nodes: Nodes, tmp_path: Path) -> None:
    for found in (Nodes(tmp_path, can_lose=True), nodes):
        found.poll()
        for node in range(3):
            found.report_facts(node, shares_files=node != 1)
        [problems] = found.poll()
        assert isinstance(problems, Examined) and problems.problems[0].is_failure
    nodes.examination._known.update(range(3))
    nodes.examination.forget(1)
    nodes.examination.begin(1, range(3))
    nodes.poll()
    nodes.report_facts(1, shares_files=False)
    [problems] = nodes.poll()
    assert isinstance(problems, Examined) and problems.problems[0].is_failure


def test_a_message_of_an_earlier_attempt_is_ignored(nodes: Nodes) -> None:
    nodes.examination.begin(1, range(3))
    nodes.called(0)
    assert not nodes.examination._problems


def test_the_peers_of_a_large_run_are_spread_over_it() -> None:
    nodes = list(range(1000))
    found = peers_of(10, nodes)
    assert len(set(found)) == 64 and 10 not in found
    assert {peer // 100 for peer in found} == set(range(10))
    assert sorted(peers_of(1, [0, 1, 2, 3])) == [0, 2, 3]
