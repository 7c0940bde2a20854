"""The report of a node about itself, before it receives the first attempt, as plain data. The head judges
each node by itself, and compares the torch of the nodes of a group. One finding of several nodes is one
problem.

facts = examine(plan, run, start, node, needs, nonce, {1: "HOST:PORT"})      on the node
problems = judge({0: NodeFacts(**facts), ...}, plan)               at the head
"""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Check
from meshctl.engines.checks.device_files import check_devices, requirements_on
from meshctl.engines.checks.fork import in_one_line
from meshctl.engines.checks.interpreters import check_interpreters
from meshctl.engines.checks.machine import problems
from meshctl.engines.checks.models import check_libraries, downloads
from meshctl.engines.checks.requirements import Needs
from meshctl.engines.engine import CannotStart, groups_on
from meshctl.engines.node.worker_env import missing, resolve, unset_in_args
from meshctl.network.addresses import split
from meshctl.package import installed_version
from meshctl.plan.model import Group, Plan
from meshctl.run.directory import RunDir, Start
from meshctl.text.english import in_words

CHANGE = "change this on the node, or choose another one"
OTHER_FILES = Check(
    "files",
    "run directory",
    "failure",
    "a file that the head has just written there is missing: it is another file system",
    "put run.dir, and the recipe, on a file system that all nodes mount at the same path",
)
REACH_S = 10.0
"""Seconds within which another node must answer."""
FIREWALL = "look for a firewall or a wrong route between the two"
SAME_TORCH = "install the same version on all nodes (engine.NAME.setup can activate an environment)"


@dataclass(frozen=True)
class NodeFacts:
    host: str = ""
    """The name of the host."""
    torch: str = ""
    """The version that is installed for the interpreter of the node process."""
    shares_files: bool = True
    """True if the node sees a file that the head has written to the run directory."""
    problems: Sequence[Mapping[str, Any]] = ()
    """The failures and warnings of this node alone, as fields of `Check`."""
    unreached: Sequence[tuple[int, str, str]] = ()
    """The nodes that this one does not reach, each with its address and why."""
    is_examined: bool = True
    """False if the examination has failed, which is then the only problem."""


UNKNOWN = NodeFacts()
"""The facts of a node that has not reported any."""


def check_start(plan: Plan, start: Start, node: int = 0) -> None:
    """Checks that a machine can start the workers of a plan: their devices, interpreters, libraries, models,
    programs and environment. Raises `CannotStart` for the first requirement that is not met. `plan` has the
    groups of one node, with the number `node`."""
    check_devices(plan, node)
    check_interpreters(plan, start.path)
    check_libraries(plan, start.path)
    downloads(plan, start.path, os.environ)
    for group in plan.groups:
        if lacking := missing(start, group):
            raise CannotStart(lacking)
        own = {name: resolve(value, os.environ) for name, value in group.env if value is not None}
        if unset := unset_in_args(plan, group, {**os.environ, **own}):
            raise CannotStart(unset)


def on_node(plan: Plan, node: int) -> Plan:
    """Returns the part of a plan that a node runs: its groups and their components."""
    names = groups_on(plan, node)
    return replace(
        plan,
        groups=tuple(group for group in plan.groups if group.name in names),
        components=tuple(component for component in plan.components if component.group in names),
    )


def examine(
    plan: Plan, run: RunDir, start: Start, node: int, needs: Needs, nonce: str, peers: Mapping[int, str]
) -> dict[str, Any]:
    """Returns the fields of `NodeFacts`. `nonce` is the name of the file that the head has written, and
    `peers` are the addresses at which other nodes listen."""
    here, found = on_node(plan, node), list[Check]()
    try:
        check_start(here, start, node)
    except CannotStart as error:
        found.append(Check("node", "start", "failure", str(error), CHANGE))
    found += problems(requirements_on(here, str(run.path), needs, node))
    try:
        sees = (run.path / nonce).read_text() == nonce
    except OSError:
        sees = False
    return {
        "host": socket.gethostname(),
        "torch": installed_version("torch"),
        "shares_files": sees,
        "unreached": unreached(peers),
        "problems": [asdict(check) for check in found],
    }


def failed(error: BaseException) -> dict[str, Any]:
    """Returns the facts of a node whose examination has failed."""
    found = f"it has failed: {in_one_line(error)}"
    check = Check("node", "examination", "warning", found, "look at the node's log")
    return {"host": socket.gethostname(), "problems": [asdict(check)], "is_examined": False}


def unreached(peers: Mapping[int, str]) -> list[tuple[int, str, str]]:
    """Connects to all peers at the same time. Returns those that do not answer within `REACH_S`, each with
    its address and why."""

    def problem_of(address: str) -> str:
        try:
            socket.create_connection(split(address), REACH_S).close()
        except TimeoutError:
            return "it does not answer"
        except OSError as error:
            return (error.strerror or str(error)).lower()
        return ""

    with ThreadPoolExecutor(len(peers) or 1) as threads:
        problems = threads.map(problem_of, peers.values())
        found = zip(peers.items(), problems, strict=True)
        return [(peer, address, why) for (peer, address), why in found if why]


def write_nonce(run: RunDir, nonce: str) -> None:
    """Writes the file by which nodes find out whether they share the run directory with the head. Raises
    `OSError`."""
    file = os.open(run.path / nonce, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(file, "w") as opened:
        opened.write(nonce)


@dataclass(frozen=True)
class Problem:
    """A failure or a warning of some nodes."""

    nodes: tuple[int, ...]
    names: str
    """The nodes in words: `node 1 (gpu-b)`."""
    check: Check

    @property
    def is_failure(self) -> bool:
        return self.check.state == "failure"

    @property
    def text(self) -> str:
        return f"{self.names}: {self.check.name}: {self.check.found}"

    @property
    def remedy(self) -> str:
        return self.check.remedy


def judge(facts: Mapping[int, NodeFacts], plan: Plan, is_shared: bool = True) -> list[Problem]:
    """Returns the problems of all nodes, failures first. Those of a group are compared with the first one in
    `facts`. `is_shared` is whether the nodes must see the head's run directory."""
    found: defaultdict[Check, list[int]] = defaultdict(list)
    for node, one in facts.items():
        for problem in one.problems:
            found[Check(**problem)].append(node)
        if is_shared and not one.shares_files and one.is_examined:
            found[OTHER_FILES].append(node)
        for peer, address, why in one.unreached:
            if peer < node and any(node == other for other, *_ in facts.get(peer, UNKNOWN).unreached):
                continue  # this is the other direction of the same wall
            text = f"it does not reach {name_of(peer, facts)} at {address}: {why}"
            found[Check("network", "network", "failure", text, FIREWALL)].append(node)
    for group in plan.groups:
        for check, nodes in _of_group(group, plan, facts):
            found[check] += nodes
    problems = [Problem(tuple(nodes), names_of(nodes, facts), check) for check, nodes in found.items()]
    return sorted(problems, key=lambda one: (not one.is_failure, one.nodes))


def names_of(nodes: Sequence[int], facts: Mapping[int, NodeFacts]) -> str:
    """Returns `node 1 (gpu-b)`, or `node 1 (gpu-b), node 2 (gpu-c) and 7 more`."""
    return in_words([name_of(node, facts) for node in nodes])


def name_of(node: int, facts: Mapping[int, NodeFacts]) -> str:
    host = facts[node].host if node in facts else ""
    return f"node {node} ({host})" if host else f"node {node}"


def _of_group(group: Group, plan: Plan, facts: Mapping[int, NodeFacts]) -> Iterator[tuple[Check, list[int]]]:
    """Yields the versions of torch that differ from that of the group's first node, each with its nodes. A
    group on cpu may mix builds of torch, and one with another interpreter has a torch of its own."""
    own = {*plan.nodes_of(group.name)}
    if group.program.python if group.program else group.python:
        return
    found = {node: one.torch.partition("+")[0] for node, one in facts.items() if node in own and one.torch}
    for other in sorted({*found.values()}):
        first = next(iter(found))
        if other != found[first]:
            text = f"{other}, and {name_of(first, facts)} has {found[first]}: both run group {group.name}"
            check = Check("differences", "torch", "failure", text, SAME_TORCH)
            yield check, [node for node, version in found.items() if version == other]
