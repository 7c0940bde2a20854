"""The head's side of the examination of nodes, with connections that keep what is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from meshctl.engines.checks.requirements import Needs
from meshctl.engines.supervise.examination import (
    EXAMINE_S,
    TOGETHER_S,
    Apart,
    Examination,
    Examined,
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

    def __init__(self, folder: Path) -> None:
        self.run = RunDir(folder)
        self.examination = Examination(PLAN, self.run, Needs(), True)
        self.sent = {node: Sent() for node in range(3)}
        self.examination.begin(0, range(3))

    def poll(self, now: float = 0.0) -> list[Examined | Apart]:
        connections = {node: cast(Connection, one) for node, one in self.sent.items()}
        return list(self.examination.poll(connections, now))

    def report(self, node: int, kind: str, at: float = 0.0, **words: Any) -> None:
        self.examination.on_message(node, {"type": kind, "attempt": 0, **words}, at)

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
        nodes.report(node, "reached")
        nodes.poll()
    assert nodes.examination.is_over


def test_a_wall_names_both_nodes_and_the_address_once_all_have_reported(nodes: Nodes) -> None:
    for node in range(3):
        nodes.report_facts(node)
    nodes.poll()
    nodes.poll()
    wall = {"seconds": 10.0, "problem": "it does not answer"}
    nodes.report(1, "unreachable", peer=2, address="10.0.0.2:7", **wall)
    assert nodes.poll() == []
    nodes.report(2, "unreachable", peer=1, address="10.0.0.1:7", **wall)
    nodes.report(0, "reached")
    [found] = nodes.poll()
    assert isinstance(found, Apart)
    assert "node 1 (h1) does not reach node 2 (h2) at 10.0.0.2:7: it does not answer" in found.reason
    assert "node 2 (h2) does not reach node 1 (h1) at 10.0.0.1:7" in found.reason
    assert nodes.poll() == []


def test_a_wall_in_a_run_is_reported_soon(nodes: Nodes) -> None:
    nodes.examination.is_over = True
    nodes.report(1, "unreachable", at=5.0, peer=2, address="h:7", seconds=15.2, problem="it does not answer")
    assert nodes.poll(5.0) == []
    [found] = nodes.poll(5.1 + TOGETHER_S)
    assert isinstance(found, Apart)
    assert "node 1 has not heard node 2 at h:7 for 15 s" in found.reason


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


def test_a_message_of_an_earlier_attempt_is_ignored(nodes: Nodes) -> None:
    nodes.examination.begin(1, range(3))
    nodes.report(0, "reached")
    assert not nodes.examination._reached


def test_the_peers_of_a_large_run_are_spread_over_it() -> None:
    nodes = list(range(1000))
    found = peers_of(10, nodes)
    assert len(set(found)) == 64 and 10 not in found
    assert {peer // 100 for peer in found} == set(range(10))
    assert sorted(peers_of(1, [0, 1, 2, 3])) == [0, 2, 3]
