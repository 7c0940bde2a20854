"""Finds the overrides with which a run goes on without what it has lost. The recipe is then resolved again.

    lost = Lost(nodes={1}, devices={("cuda", 3)}, processes={"judge": 1})
    for overrides in resizings(recipe, plan, lost): ...        the largest groups first

`plan` is the plan of the whole recipe. Nodes and devices keep their numbers, and what is lost is not used:
a smaller group lists its devices, or on cpu its nodes, and so does every other group. A node of a plan is
therefore the same machine in all plans of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from itertools import islice, product

from meshctl.dataclass import dataclass
from meshctl.plan.model import Group, Plan
from meshctl.recipe.meshes import Layouts, layouts_of, replica_ranks
from meshctl.recipe.model import Recipe
from meshctl.topology.cluster import ACCELERATORS

COMBINATIONS_MAX = 64
"""The number of combinations of counts that are tried, where several groups lose workers."""
Device = tuple[str, int]
"""A device type, and a number among the cluster's devices of this type."""


@dataclass(frozen=True)
class Lost:
    """The nodes, devices and processes that a run cannot use any more."""

    nodes: frozenset[int] = frozenset()
    devices: frozenset[Device] = frozenset()
    processes: Mapping[str, int] = field(default_factory=dict)
    """Group on cpu -> the number of its processes, beside those of lost nodes."""

    def __bool__(self) -> bool:
        return bool(self.nodes or self.devices or any(self.processes.values()))

    def has_worker(self, plan: Plan, group: str, rank: int) -> bool:
        """Returns whether the node or a device of a worker is lost."""
        worker, kind = plan.worker(group, rank), plan.group(group).device_type
        return worker.node in self.nodes or any((kind, device) in self.devices for device in worker.devices)


class CannotResize(Exception):
    """The run cannot go on without what is lost. The message says why, as a clause."""


def resizings(recipe: Recipe, plan: Plan, lost: Lost) -> Iterator[list[str]]:
    """Yields the overrides with which the recipe does not use what is lost, those of the largest groups
    first; nothing if all groups are whole. Raises `CannotResize` if a group is touched that cannot be
    smaller."""
    left = {group.name: available(plan, group, lost) for group in plan.groups}
    touched = [group for group in plan.groups if left[group.name].count < _ranks(group)]
    if not touched:
        return
    choices = [_choices(recipe, plan, group, left[group.name].count) for group in touched]
    ranked = sorted(product(*choices), key=lambda chosen: -sum(one.ranks for one in chosen))
    for chosen in islice(ranked, COMBINATIONS_MAX):
        layouts = {group.name: one for group, one in zip(touched, chosen, strict=True)}
        # A group with its least count could lose no further rank, which is an error in a whole recipe.
        yield [*_cluster(recipe, plan), *_overrides(recipe, plan, left, layouts), "~run.elastic"]


@dataclass(frozen=True)
class Available:
    """The part of a group that is left."""

    count: int
    """Number of devices, or on cpu of processes."""
    devices: tuple[int, ...] = ()
    """By number; empty on cpu."""
    nodes: tuple[int, ...] = ()
    """On cpu: the nodes that are left."""
    visible: tuple[str, ...] = ()
    """The hardware names that are left of `visible_devices`."""


def available(plan: Plan, group: Group, lost: Lost) -> Available:
    """Returns the part of a group that is left. Of a worker with several devices all are lost with one, and
    where a group names the devices of its nodes, those with the same name on all nodes."""
    workers = [one for one in plan.workers(group.name) if not lost.has_worker(plan, group.name, one.rank)]
    if group.device_type != "cpu":
        names, width = group.visible_devices, group.gpus_per_worker
        if names:
            gone = {
                one.local_rank * width + place
                for one in plan.workers(group.name)
                for place, device in enumerate(one.devices)
                if (group.device_type, device) in lost.devices
            }
            names = tuple(name for place, name in enumerate(names) if place not in gone)
            named = [group.visible_devices[one.local_rank * width :][:width] for one in workers]
            workers = [one for one, own in zip(workers, named, strict=True) if {*own} <= {*names}]
        devices = tuple(device for worker in workers for device in worker.devices)
        return Available(len(devices), devices, visible=names)
    nodes = tuple(dict.fromkeys(node for node in _nodes(plan, group) if node not in lost.nodes))
    return Available(max(0, len(workers) - lost.processes.get(group.name, 0)), nodes=nodes)


def _nodes(plan: Plan, group: Group) -> Iterator[int]:
    for start, stop in group.nodes or ((0, plan.cluster.nodes),):
        yield from range(start, stop)


def _ranks(group: Group) -> int:
    return group.workers * (1 if group.device_type == "cpu" else group.gpus_per_worker)


def _choices(recipe: Recipe, plan: Plan, group: Group, most: int) -> list[Layouts]:
    """Returns the layouts with which a group can go on, the largest first. Raises `CannotResize`."""
    least = next((one.min_ranks for one in plan.run.elastic if one.group == group.name), None)
    if least is None:
        raise CannotResize(f"`{group.name}` is not in `run.elastic`")
    if found := list(islice(layouts_of(recipe, group.name, most, least), COMBINATIONS_MAX)):
        return found
    raise CannotResize(f"`{group.name}` has {most} ranks left, and no layout for {least} to {most} of them")


def _cluster(recipe: Recipe, plan: Plan) -> Iterator[str]:
    """Yields the size of the cluster if the recipe leaves it out: it would follow from the smaller groups."""
    if not recipe.cluster.nodes:
        yield f"cluster.nodes={plan.cluster.nodes}"
    kinds = [kind for kind in ACCELERATORS if kind in plan.cluster.devices_per_node]
    if kinds and not any(recipe.cluster.devices_of(kind) for kind in kinds):
        stated = []
        for kind in kinds:
            counts = [plan.cluster.devices_on(kind, node) for node in range(plan.cluster.nodes)]
            stated.append(f"{kind}:{counts[0] if len(set(counts)) == 1 else _listed(counts)}")
        yield f"cluster.devices_per_node={{{','.join(stated)}}}"


def _overrides(
    recipe: Recipe, plan: Plan, left: Mapping[str, Available], layouts: Mapping[str, Layouts]
) -> Iterator[str]:
    for group in plan.groups:
        key, own, layout = f"groups.{group.name}", left[group.name], layouts.get(group.name)
        if group.device_type != "cpu":
            count = layout.ranks if layout else own.count
            size = replica_ranks(recipe, group.name)
            by_node: dict[int, list[int]] = {}
            for device in own.devices:
                by_node.setdefault(plan.cluster.node_of(group.device_type, device), []).append(device)
            whole = [one for held in by_node.values() for one in held[: len(held) // size * size]]
            yield f"{key}.ranks={_listed((whole if len(whole) >= count else list(own.devices))[:count])}"
            if own.visible != group.visible_devices:
                yield f"{key}.visible_devices={_listed([repr(name) for name in own.visible])}"
        elif layout:
            yield f"{key}.ranks={layout.ranks}"
            if list(own.nodes) != list(_nodes(plan, group)):
                yield f"{key}.nodes={_listed(own.nodes)}"
        for name, sizes in (layout.sizes if layout else {}).items():
            for size_key, size in sizes.items():
                yield f"components.{name}.parallel.{size_key}={size}"


def _listed(items: Sequence[object]) -> str:
    return f"[{','.join(map(str, items))}]"
