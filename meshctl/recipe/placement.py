"""Which devices a group gets, and which mesh a component: arithmetic that the rules check and the plan stores.

devices      numbered over the cluster; a list takes exactly those, a count the next free ones, `colocate` another group's
cluster      what the recipe leaves out of it is the least that holds the groups
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from meshctl.mesh import DIMS, DeviceMesh, MeshError
from meshctl.recipe.model import Cluster, Component, DeviceGroup, Recipe, Sizes

Runs = tuple[tuple[int, int], ...]
"""Runs [start, stop) of device numbers, in the order of the workers."""
ENDLESS = 1 << 40
"""More devices than there are."""


class NoMesh(Exception):
    """A component has no mesh: something that it needs is wrong, and a rule says so."""


@dataclass(frozen=True)
class Placed:
    cluster: Cluster
    """With numbers."""
    devices: Mapping[str, Runs]
    """By group; empty on cpu."""
    beyond: Mapping[str, int] = field(default_factory=dict)
    """Groups that need devices which the cluster does not have -> the first such device."""


def place(recipe: Recipe) -> Placed:
    """Every group on its devices."""
    said = recipe.cluster
    if said.devices_per_node:
        runs = _devices(recipe, said.devices_per_node)
        nodes = said.nodes or max(1, -(-_needed(runs) // said.devices_per_node))
        return _within(Cluster(nodes, said.devices_per_node), runs)
    nodes = said.nodes or 1
    least = -(-max((_needed(_devices(recipe, 1 << 40)), 0)) // nodes)
    each = max([least, *(group.gpus_per_worker for group in recipe.groups.values() if _on_devices(group))], default=0)
    if not any(map(_on_devices, recipe.groups.values())):
        return Placed(Cluster(nodes, 0), dict.fromkeys(recipe.groups, ()))
    while _needed(runs := _devices(recipe, each)) > nodes * each:
        each += 1
    return _within(Cluster(nodes, each), runs)


def _on_devices(group: DeviceGroup) -> bool:
    return group.device_type != "cpu"


def _needed(runs: Mapping[str, Runs]) -> int:
    return max((stop for mine in runs.values() for _, stop in mine), default=0)


def _within(cluster: Cluster, runs: Mapping[str, Runs]) -> Placed:
    total = cluster.nodes * cluster.devices_per_node
    beyond = {name: max(total, mine[-1][0]) for name, mine in runs.items() if mine and max(stop for _, stop in mine) > total}
    return Placed(cluster, runs, beyond)


def _devices(recipe: Recipe, per_node: int) -> dict[str, Runs]:
    """The devices of each group: lists first, then counts in written order, then those that share another group's."""
    runs: dict[str, Runs] = dict.fromkeys(recipe.groups, ())
    taken: list[tuple[int, int]] = []
    own = [group for group in recipe.groups.values() if _on_devices(group)]
    for group in own:
        if isinstance(group.ranks, tuple):
            runs[group.name] = _runs(group.ranks)
            taken += runs[group.name]
    for group in own:
        if isinstance(group.ranks, int) and not group.colocate:
            runs[group.name] = _free(group, sorted(taken), per_node)
            taken += runs[group.name]
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
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    return tuple(runs)


def _free(group: DeviceGroup, taken: list[tuple[int, int]], per_node: int) -> Runs:
    """The lowest free devices; blocks of one node where a worker has several."""
    left, each = group.devices, group.gpus_per_worker
    if each == 1 or left % each or each > per_node:
        each, per_node = 1, ENDLESS
    runs: list[tuple[int, int]] = []
    for start, stop in _gaps(taken, per_node):
        if not left:
            break
        if count := min(left, (stop - start) // each * each):
            runs.append((start, start + count))
            left -= count
    return _joined(runs)


def _gaps(taken: list[tuple[int, int]], per_node: int) -> Iterator[tuple[int, int]]:
    """Free devices as runs within one node, lowest first, without end."""
    start = 0
    for begin, end in (*taken, (ENDLESS, ENDLESS)):
        while start < begin:
            stop = min(begin, (start // per_node + 1) * per_node)
            yield start, stop
            start = stop
        start = max(start, end)


def _joined(runs: list[tuple[int, int]]) -> Runs:
    joined: list[tuple[int, int]] = []
    for start, stop in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


def _first(runs: Runs, count: int) -> Runs:
    """The first devices of another group; what it lacks is a rule's business."""
    taken: list[tuple[int, int]] = []
    for start, stop in runs:
        if count > 0:
            taken.append((start, min(stop, start + count)))
            count -= stop - start
    return tuple(taken)


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
    given = dict(sizes.given)
    ulysses = given.pop("ulysses_size", None)
    return DeviceMesh.from_sizes(
        world_size=workers,
        ulysses_size=ulysses if isinstance(ulysses, int) else None,
        device_type=device_type,
        order=sizes.order or DIMS,
        **given,
    )
