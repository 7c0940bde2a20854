"""Judges what the nodes of a run have reported about themselves: each by itself, and compared with each other
and with the head. One finding of several nodes is one problem.

    for problem in judge(facts, clocks, plan): problem.text, problem.is_failure, problem.remedy
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence

from meshctl.dataclass import dataclass
from meshctl.diagnostics.health import Check, State
from meshctl.engines.checks.on_node import NodeFacts
from meshctl.plan.model import Group, Plan
from meshctl.text.english import in_words

MAX_CLOCK_SKEW_S = 2.0
NODES_MAX = 4
"""The number of nodes that a problem names."""
SHARE = "put run.dir, and the recipe, on a file system that all nodes mount at the same path"
SAME_TORCH = "install the same version on all nodes (engine.NAME.setup can activate an environment)"
SAME_DEVICES = "start on nodes of one kind, or give the groups nodes of their own"


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


def judge(
    facts: Mapping[int, NodeFacts], clocks: Mapping[int, float], plan: Plan, is_shared: bool = True
) -> list[Problem]:
    """Returns the problems of all nodes, failures first. Those of a group are compared with the first one in
    `facts`. `clocks` maps each node to the seconds by which its clock is ahead of the head's. `is_shared` is
    whether the nodes must see the head's run directory."""
    found: defaultdict[Check, list[int]] = defaultdict(list)
    for node, one in facts.items():
        own = (Check(**problem) for problem in one.problems)
        for check in (*own, *_of_node(one, clocks.get(node, 0.0), is_shared)):
            found[check].append(node)
    for group in plan.groups:
        for check, nodes in _of_group(group, plan, facts):
            found[check] += nodes
    problems = [Problem(tuple(nodes), names_of(nodes, facts), check) for check, nodes in found.items()]
    return sorted(problems, key=lambda one: (not one.is_failure, one.nodes))


def names_of(nodes: Sequence[int], facts: Mapping[int, NodeFacts]) -> str:
    """Returns `node 1 (gpu-b)`, or `node 1 (gpu-b), node 2 (gpu-c) and 7 more`."""
    words = [name_of(node, facts) for node in nodes]
    more = len(words) - NODES_MAX
    return in_words([*words[:NODES_MAX], *([f"{more} more"] if more > 0 else [])])


def name_of(node: int, facts: Mapping[int, NodeFacts]) -> str:
    host = facts[node].host if node in facts else ""
    return f"node {node} ({host})" if host else f"node {node}"


def _of_node(facts: NodeFacts, clock_s: float, is_shared: bool) -> Iterator[Check]:
    if is_shared and not facts.shares_files and facts.is_examined:
        found = "a file that the head has just written there is missing: it is another file system"
        yield Check("files", "run directory", "failure", found, SHARE)
    if abs(clock_s) > MAX_CLOCK_SKEW_S:
        direction = "ahead of" if clock_s > 0 else "behind"
        found = f"{abs(clock_s):.0f} s {direction} that of the head: times in events and metrics are wrong"
        yield Check("clock", "clock", "warning", found, "set both clocks (timedatectl set-ntp true)")


def _of_group(group: Group, plan: Plan, facts: Mapping[int, NodeFacts]) -> Iterator[tuple[Check, list[int]]]:
    """Yields the differences between the nodes of a group, each with the nodes that differ from the first
    one."""
    own = {*plan.nodes_of(group.name)}
    nodes = [node for node in facts if node in own and facts[node].is_examined]
    if not (group.program.python if group.program else group.python):
        yield from _differing(group, nodes, facts, "torch", _release, "failure", SAME_TORCH)
        yield from _differing(group, nodes, facts, "python", _minor, "warning", SAME_TORCH)
    if group.device_type == "cuda":

        def models(one: NodeFacts) -> str:
            return one.devices.get(group.name, "")

        yield from _differing(group, nodes, facts, "devices", models, "warning", SAME_DEVICES)
        yield from _differing(group, nodes, facts, "driver", lambda one: one.driver, "warning", SAME_DEVICES)


def _differing(
    group: Group,
    nodes: Sequence[int],
    facts: Mapping[int, NodeFacts],
    what: str,
    read: Callable[[NodeFacts], str],
    state: State,
    remedy: str,
) -> Iterator[tuple[Check, list[int]]]:
    values = {node: value for node in nodes if (value := read(facts[node]))}
    if not values:
        return
    first = next(iter(values))
    for other in sorted(set(values.values()) - {values[first]}):
        found = f"{other}, and {name_of(first, facts)} has {values[first]}: both run group {group.name}"
        check = Check("differences", what, state, found, remedy)
        yield check, [node for node, value in values.items() if value == other]


def _release(facts: NodeFacts) -> str:
    """Returns the version of torch without its build: a group on cpu may mix builds."""
    return facts.torch.partition("+")[0]


def _minor(facts: NodeFacts) -> str:
    return ".".join(facts.python.split(".")[:2])
