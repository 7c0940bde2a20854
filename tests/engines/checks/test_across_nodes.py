"""What nodes report about themselves, judged together."""

from __future__ import annotations

import json
import socket
from dataclasses import asdict
from pathlib import Path

import pytest

from meshctl.diagnostics import Check
from meshctl.engines.checks import on_node
from meshctl.engines.checks.device_files import requirements_on
from meshctl.engines.checks.on_node import NodeFacts, judge
from meshctl.engines.checks.requirements import Needs, Requirements
from meshctl.plan.model import Cluster, Group, Plan, Program, Run
from meshctl.run.directory import RunDir, Start

GROUP = Group("train", "cpu", 2, 0)


REFUSAL = asdict(Check("node", "start", "failure", "group train needs 2 devices", "use another node"))


def plan_of(group: Group = GROUP) -> Plan:
    return Plan("test", 0, Cluster(2), (group,), (), (), (), Run())


def facts(**changes: object) -> NodeFacts:
    values = {"host": "a", "torch": "2.13.0+cpu", **changes}
    return NodeFacts(**values)  # type: ignore[arg-type]


def texts(one: NodeFacts, two: NodeFacts, group: Group = GROUP) -> list[str]:
    found = judge({0: one, 1: two}, plan_of(group))
    assert all(problem.remedy for problem in found)
    return [problem.check.state + " " + problem.text for problem in found]


def test_versions_of_a_group_differ() -> None:
    other = facts(host="b", torch="2.12.1")
    differs = "failure node 1 (b): torch: 2.12.1, and node 0 (a) has 2.13.0: both run group train"
    assert texts(facts(), other) == [differs]
    own = Group("train", "cpu", 2, 0, program=Program(("train.py",), python="/opt/bin/python"))
    assert texts(facts(), other, own) == []


def test_each_node_needs_what_its_own_groups_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two colocated groups have the first node, and a third one has two devices of the second node."""
    groups = (
        Group("train", "cuda", 1, 0, devices=((0, 1),)),
        Group("same", "cuda", 1, 1, devices=((0, 1),), colocate="train"),
        Group("judge", "cuda", 1, 2, devices=((1, 3),), gpus_per_worker=2),
    )
    plan = Plan("test", 0, Cluster.of(2, cuda=[1, 2]), groups, (), (), (), Run())
    monkeypatch.setattr("meshctl.engines.checks.device_files.count_devices", lambda kind, rocm: 2)
    needs = Needs({"train": 5, "same": 7, "judge": 11})

    def needed(node: int) -> Requirements:
        return requirements_on(on_node.on_node(plan, node), "/r", needs, node)

    assert needed(0).device_bytes == {"0": 12} and needed(0).shared_devices == ["0"]
    assert needed(1).device_bytes == {"0,1": 11} and needed(1).shared_devices == []


def test_files_and_refusals_name_the_node() -> None:
    one, two = facts(), facts(host="b", shares_files=False, problems=[REFUSAL])
    assert texts(one, two) == [
        "failure node 1 (b): start: group train needs 2 devices",
        "failure node 1 (b): run directory: a file that the head has just written there is missing: it is "
        "another file system",
    ]
    assert judge({1: facts(shares_files=False)}, plan_of(), is_shared=False) == []


def test_nodes_with_the_same_problem_share_it() -> None:
    one = facts(problems=[REFUSAL])
    [problem] = judge({0: one, 3: one}, plan_of())
    assert problem.nodes == (0, 3) and problem.text.startswith("node 0 (a) and node 3 (a): start: group")


def test_nodes_that_are_not_reached_are_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as here, socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # nobody else takes the port, and nobody listens
        addresses = {peer: f"127.0.0.1:{one.getsockname()[1]}" for peer, one in ((1, here), (2, deaf))}
        assert on_node.unreached(addresses) == [(2, addresses[2], "connection refused")]
    assert on_node.unreached({}) == []
    apart = {node: facts(host="ab"[node], unreached=[(1 - node, "h:1", "why")]) for node in range(2)}
    [problem] = judge(apart, plan_of())
    assert problem.text == "node 0 (a): network: it does not reach node 1 (b) at h:1: why"


def test_an_examination_that_failed_is_a_warning() -> None:
    [problem] = judge({0: NodeFacts(**on_node.failed(ValueError("odd")))}, plan_of())
    assert not problem.is_failure and "ValueError: odd" in problem.text


@pytest.mark.parametrize("is_written", [True, False])
def test_a_node_sees_the_file_of_the_head(tmp_path: Path, is_written: bool) -> None:
    run = RunDir(tmp_path)
    if is_written:
        on_node.write_nonce(run, ".seen-1")
    start, needs = Start((str(tmp_path),)), Needs({"train": 1 << 60})
    found = NodeFacts(
        **json.loads(json.dumps(on_node.examine(plan_of(), run, start, 1, needs, ".seen-1", {})))
    )
    assert found.shares_files == is_written and found.host and found.torch
    assert [(one["name"], one["state"]) for one in found.problems] == [("memory", "warning")]
