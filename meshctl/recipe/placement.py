"""Which devices a group gets, and which mesh a component: arithmetic that the rules check and the plan
stores.

devices      numbered over the cluster, each type for itself; a list takes exactly those, a count the next
free ones, `colocate`
             another group's
cluster      what the recipe leaves out of it is the least that holds the groups

Devices are runs of numbers and nodes are runs of equal ones: nothing here grows with either, but for the
workers that leave a rest on every node.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from meshctl.recipe import model
from meshctl.recipe.model import ACCELERATORS, Component, DeviceGroup, Recipe, Sizes
from meshctl.topology.cluster import Cluster, DevicesPerNode, Piece, devices_by_node
from meshctl.topology.mesh import DIMS, DeviceMesh, MeshError

Runs = tuple[tuple[int, int], ...]
"""Runs [start, stop) of device numbers, in the order of the workers."""
ENDLESS = 1 << 40
"""More nodes, and more devices on one, than there are."""
ONE_BY_ONE = 64
"""So many sizes of a node are tried for the least; beyond, the search goes in larger steps."""


class NoMesh(Exception):
    """A component has no mesh: something that it needs is wrong, and a rule says so."""


@dataclass(frozen=True)
class Placed:
    cluster: Cluster
    devices: Mapping[str, Runs]
    """By group; empty on cpu."""
    beyond: Mapping[str, int] = field(default_factory=dict)
    """Groups that need devices which the cluster does not have -> the first such device."""


def place(recipe: Recipe) -> Placed:
    """Every group on its devices."""
    used = {group.device_type for group in recipe.groups.values()}
    said = {
        kind: recipe.cluster.devices_of(kind)
        for kind in ACCELERATORS
        if kind in used or kind in recipe.cluster.named
    }
    nodes = recipe.cluster.nodes or _nodes(recipe, said)
    runs: dict[str, Runs] = dict.fromkeys(recipe.groups, ())
    held: dict[str, DevicesPerNode] = {}
    for kind, each in said.items():
        held[kind] = devices_by_node(nodes, each or least(recipe, kind, nodes))
        runs |= _devices(recipe, kind, held[kind])
    cluster = Cluster(nodes, held)
    return Placed(cluster, runs, dict(_beyond(recipe, cluster, runs)))


def _nodes(recipe: Recipe, said: Mapping[str, int | tuple[int, ...]]) -> int:
    """As many as are listed, or the least that hold the groups."""
    if listed := node_counts(recipe.cluster):
        return max(listed.values())
    counts = {kind: each for kind, each in said.items() if isinstance(each, int) and each}
    return max(
        [
            1,
            *(
                -(-_needed(_devices(recipe, kind, ((ENDLESS, each),))) // each)
                for kind, each in counts.items()
            ),
        ]
    )


def least(recipe: Recipe, kind: str, nodes: int) -> int:
    """The fewest devices of a type that each node must have."""

    def holds(each: int) -> bool:
        return _needed(_devices(recipe, kind, ((nodes, each), (ENDLESS, each)))) <= nodes * each

    together = _needed(_devices(recipe, kind, ((1, ENDLESS),)))
    each = max(
        [
            -(-together // nodes),
            *(group.gpus_per_worker for group in recipe.groups.values() if group.device_type == kind),
        ]
    )
    for _ in range(ONE_BY_ONE):
        if holds(each):
            return each
        each += 1
    short, step = each - 1, 1
    while not holds(each):
        short, each, step = each, each + step, 2 * step
    while each - short > 1:
        middle = (each + short) // 2
        short, each = (short, middle) if holds(middle) else (middle, each)
    return each


def _needed(runs: Mapping[str, Runs]) -> int:
    return max((stop for mine in runs.values() for _, stop in mine), default=0)


def _beyond(recipe: Recipe, cluster: Cluster, runs: Mapping[str, Runs]) -> Iterator[tuple[str, int]]:
    for name, mine in runs.items():
        total = cluster.total(recipe.groups[name].device_type)
        if outside := [max(start, total) for start, stop in mine if stop > total]:
            yield name, min(outside)


def _devices(recipe: Recipe, kind: str, nodes: DevicesPerNode) -> dict[str, Runs]:
    """The devices of each group of a type: lists first, then counts in written order, then those that share
    another group's.

    What the nodes do not hold goes on to more nodes like the largest of them.
    """
    runs: dict[str, Runs] = {}
    more = Cluster(0, {"": (*nodes, (ENDLESS, max([1, *(each for _, each in nodes)])))})
    own = [group for group in recipe.groups.values() if group.device_type == kind]
    for group in own:
        if isinstance(group.ranks, tuple):
            runs[group.name] = _runs(group.ranks)
    for group in own:
        if (
            isinstance(group.ranks, int) and not group.colocate
        ):  # a list of one that shares with it is no obstacle
            taken = [
                run
                for name, mine in runs.items()
                if _host(recipe, recipe.groups[name]) != group.name
                for run in mine
            ]
            runs[group.name] = _free(group, sorted(taken), more)
    for group in own:
        if isinstance(group.ranks, int) and group.colocate:
            runs[group.name] = _first(runs.get(_host(recipe, group), ()), group.ranks)
    return runs


def _host(recipe: Recipe, group: DeviceGroup) -> str:
    """Whose devices a colocated group shares, over several steps."""
    seen = {group.name}
    name = group.colocate
    while name in recipe.groups and recipe.groups[name].colocate and name not in seen:
        seen.add(name)
        name = recipe.groups[name].colocate
    return name


def _runs(numbers: tuple[int, ...]) -> Runs:
    return _joined((number, number + 1) for number in numbers)


def _joined(runs: Iterable[tuple[int, int]]) -> Runs:
    joined: list[tuple[int, int]] = []
    for start, stop in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


def _free(group: DeviceGroup, taken: list[tuple[int, int]], cluster: Cluster) -> Runs:
    """The lowest free devices; where a worker has several, those of one node, and what is left of a node is
    passed over."""
    each = group.gpus_per_worker
    largest = max(devices for _, devices in cluster.devices_per_node[""])
    if each == 1 or group.devices % each or each > largest:
        return _first(_gaps(taken), group.devices)
    blocks = (
        block
        for start, stop in _gaps(taken)
        for piece in cluster.pieces("", start, stop)
        for block in _blocks(piece, each)
    )
    return _joined(_first(blocks, group.devices))


def _gaps(taken: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Free devices, lowest first, without end."""
    start = 0
    for begin, end in taken:
        if start < begin:
            yield start, begin
        start = max(start, end)
    yield start, ENDLESS


def _blocks(piece: Piece, each: int) -> Iterator[tuple[int, int]]:
    """The devices of a piece in which workers of so many devices stay on their nodes."""
    whole = piece.each // each * each
    if whole == piece.each:
        yield piece.device, piece.device + piece.nodes * piece.each
    elif whole:
        for start in range(piece.device, piece.device + piece.nodes * piece.each, piece.each):
            yield start, start + whole


def _first(runs: Iterable[tuple[int, int]], count: int) -> Runs:
    """So many devices of these runs, or all; that there are fewer is a rule's business."""
    taken: list[tuple[int, int]] = []
    for start, stop in runs:
        if count <= 0:
            break
        taken.append((start, min(stop, start + count)))
        count -= stop - start
    return tuple(taken)


# What rules ask


def node_counts(cluster: model.Cluster) -> dict[tuple[str, ...], int]:
    """How many nodes a recipe's cluster has, by each key that says it."""
    given = cluster.devices_per_node
    parts = {(kind,): each for kind, each in given.items()} if isinstance(given, Mapping) else {(): given}
    lists = {("devices_per_node", *key): len(each) for key, each in parts.items() if isinstance(each, tuple)}
    return {("nodes",): cluster.nodes, **lists} if cluster.nodes else lists


def torn(runs: Runs, each: int, cluster: Cluster, kind: str) -> int | None:
    """The first worker whose devices are no neighbours on one node."""
    worker = 0
    for start, stop in runs:
        for piece in cluster.pieces(kind, start, stop):
            whole, rest = divmod(piece.each, each)
            if rest:
                return worker + whole
            worker += piece.nodes * whole
    return None


def most_on_a_node(runs: Runs, cluster: Cluster, kind: str) -> int:
    """The most of these devices that one node has."""
    steps: dict[int, int] = {}
    for piece in (piece for start, stop in runs for piece in cluster.pieces(kind, start, stop)):
        for node, more in ((piece.first_node, piece.each), (piece.first_node + piece.nodes, -piece.each)):
            steps[node] = steps.get(node, 0) + more
    return max(accumulate(steps[node] for node in sorted(steps)), default=0)


def shared(one: Runs, other: Runs) -> int | None:
    """The lowest device that is in both."""
    end, owner = 0, -1
    for start, stop, group in sorted([(*run, 0) for run in one] + [(*run, 1) for run in other]):
        if start < end and group != owner:
            return start
        if stop > end:
            end, owner = stop, group
    return None


def sizes_of(recipe: Recipe, component: Component) -> tuple[Component, Sizes]:
    """Whose sizes a component has, over the components that it names."""
    seen = {component.name}
    while isinstance(component.parallel, str):
        other = recipe.components.get(component.parallel)
        if other is None or other.name in seen:
            raise NoMesh(component.name)
        seen.add(other.name)
        component = other
    return component, component.parallel


def mesh_of(recipe: Recipe, component: Component) -> DeviceMesh:
    """Raises `NoMesh` where the recipe says none that fits."""
    group = recipe.groups.get(component.group)
    if group is None or not group.workers:
        raise NoMesh(component.name)
    _, sizes = sizes_of(recipe, component)
    try:
        return mesh(sizes, group.workers, group.device_type)
    except MeshError as error:
        raise NoMesh(component.name) from error


def mesh(sizes: Sizes, workers: int, device_type: str) -> DeviceMesh:
    """Raises `MeshError` where the sizes do not make up the workers."""
    given: dict[str, Any] = dict(sizes.given)
    order, along_tp = sizes.order or DIMS, sizes.sequence_parallel
    return DeviceMesh.from_sizes(
        world_size=workers, device_type=device_type, sequence_parallel=along_tp, order=order, **given
    )
