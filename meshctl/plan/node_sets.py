"""The nodes of a plan as ranges of equal ones: what an engine allocates, and what a picture shows.

No cost grows with the number of nodes that host the same groups on the same devices.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice, pairwise

from meshctl.dataclass import dataclass
from meshctl.plan.model import Group, Plan
from meshctl.text.english import counted
from meshctl.topology.cluster import NodeRanges
from meshctl.topology.device_ranges import merged
from meshctl.topology.placement import NodeRun


@dataclass(frozen=True)
class NodeSet:
    """The nodes that host the same groups and need the same devices: one component of a Slurm job, or one
    replicated job of a JobSet."""

    nodes: NodeRanges
    groups: tuple[str, ...]
    """The groups with workers on each of the nodes, in the order of the plan."""
    devices: Mapping[str, int]
    """Device type -> the number of devices that each node needs. Groups use devices by their numbers on the
    node, so this is the highest number in use plus one. Types that the nodes do not need are absent."""

    @property
    def count(self) -> int:
        """The number of nodes."""
        return sum(stop - start for start, stop in self.nodes)

    def numbers(self) -> Iterator[int]:
        """Yields the numbers of the nodes in ascending order."""
        return (node for start, stop in self.nodes for node in range(start, stop))


def node_sets(plan: Plan) -> tuple[NodeSet, ...]:
    """Returns the sets of equal nodes, in the order of their first nodes. Each node with a worker is in one
    set; nodes without workers are in none."""
    found: dict[tuple[tuple[str, ...], tuple[tuple[str, int], ...]], list[tuple[int, int]]] = {}
    for start, stop, held in segments(plan):
        if held:
            hosted = {group.name for group, _ in held}
            groups = tuple(group.name for group in plan.groups if group.name in hosted)
            needed: dict[str, int] = {}
            for group, run in held:
                if group.device_type != "cpu":
                    end = run.first_device + run.each * group.gpus_per_worker
                    needed[group.device_type] = max(end, needed.get(group.device_type, 0))
            found.setdefault((groups, tuple(sorted(needed.items()))), []).append((start, stop))
    return tuple(
        NodeSet(tuple(merged(nodes)), groups, dict(devices)) for (groups, devices), nodes in found.items()
    )


def segments(plan: Plan) -> Iterator[tuple[int, int, list[tuple[Group, NodeRun]]]]:
    """Yields (start, stop, held): ranges [start, stop) of neighbouring nodes that have the same devices and
    host the same runs of groups, and these runs. Together they are all nodes of the cluster."""
    begins: dict[int, list[tuple[Group, NodeRun]]] = {0: [], plan.cluster.nodes: []}
    ends: dict[int, list[tuple[Group, NodeRun]]] = {}
    for group in plan.groups:
        for run in plan.node_runs(group.name):
            begins.setdefault(run.first_node, []).append((group, run))
            ends.setdefault(run.last_node + 1, []).append((group, run))
    for runs in plan.cluster.devices_per_node.values():
        node = 0
        for nodes, _ in runs:
            node += nodes
            begins.setdefault(node, [])
    here: list[tuple[Group, NodeRun]] = []
    for start, stop in pairwise(sorted({node for node in (*begins, *ends) if node <= plan.cluster.nodes})):
        for held in ends.get(start, ()):
            here.remove(held)
        here += begins.get(start, ())
        yield start, stop, here


def number_of(text: str, plan: Plan) -> int:
    """Returns the node that a text names: its number, or SET.INDEX, its place among the nodes of a set. A
    scheduler numbers the nodes of each set from 0. Raises `ValueError` with a sentence."""
    found = re.fullmatch(r"([0-9]{1,9})(?:\.([0-9]{1,9}))?", text)
    if not found:
        raise ValueError(f"--node must be the number of a node, or SET.INDEX, not {text!r}")
    if found[2] is None:
        return int(found[1])
    sets, chosen, index = node_sets(plan), int(found[1]), int(found[2])
    if chosen >= len(sets) or index >= sets[chosen].count:
        sizes = ", ".join(counted(one.count, "node") for one in sets)
        raise ValueError(f"--node {text} does not exist: the plan has sets of {sizes}")
    return next(islice(sets[chosen].numbers(), index, None))
