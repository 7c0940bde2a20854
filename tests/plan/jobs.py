"""Random jobs on random clusters: several device types, uneven nodes, lists, counts, workers of several
devices, colocated groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hypothesis import assume
from hypothesis import strategies as st

from meshctl.plan.model import Group, Plan, Run
from meshctl.recipe import model as recipe_model
from meshctl.recipe.allocation import allocate
from meshctl.topology.cluster import Cluster
from meshctl.topology.device_ranges import DeviceRanges

DeviceType = Literal["cuda", "npu", "mps", "cpu"]
TYPES = ("cuda", "npu")
Sizes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Listed:
    """A worker, found by visiting all devices one by one."""

    node: int
    local_rank: int
    devices: tuple[int, ...]
    numbers: tuple[int, ...]


def naive(group: Group, sizes: Sizes, nodes: int) -> list[Listed]:
    """Returns the locations of all workers of a group."""
    if group.device_type == "cpu":
        each, more = divmod(group.workers, nodes)
        homes = [node for node in range(nodes) for _ in range(each + (node < more))]
        return [Listed(node, homes[:rank].count(node), (), ()) for rank, node in enumerate(homes)]
    per_node = enumerate(sizes[group.device_type])
    hardware = [(node, number) for node, size in per_node for number in range(size)]
    devices = [device for start, stop in group.devices for device in range(start, stop)]
    found: list[Listed] = []
    for first in range(0, len(devices), group.gpus_per_worker):
        mine = tuple(devices[first : first + group.gpus_per_worker])
        ((node, *others)) = {hardware[device][0] for device in mine}
        assert not others and list(mine) == list(range(mine[0], mine[-1] + 1))
        local_rank = sum(one.node == node for one in found)
        found.append(Listed(node, local_rank, mine, tuple(hardware[device][1] for device in mine)))
    return found


@st.composite
def jobs(draw: st.DrawFn) -> tuple[Plan, Sizes]:
    """Draws a plan that the rules accept, and the devices of each of its nodes."""
    nodes = draw(st.integers(1, 5))
    even = st.integers(1, 5).map(lambda each: (each,) * nodes)
    uneven = st.lists(st.integers(0, 5), min_size=nodes, max_size=nodes).filter(any).map(tuple)
    sizes: Sizes = {kind: draw(st.one_of(even, uneven)) for kind in TYPES}
    groups: dict[str, recipe_model.DeviceGroup] = {}
    free = {kind: set(range(sum(sizes[kind]))) for kind in TYPES}
    for index in range(draw(st.integers(1, 4))):
        name, kind = f"g{index}", draw(st.sampled_from(TYPES))
        each = draw(st.sampled_from([1, 1, 2, 3]))
        if draw(st.booleans()):
            ranks = draw(lists(sizes[kind], free[kind], each))
            assume(ranks)
            groups[name] = recipe_model.DeviceGroup(name, ranks, kind, each)
        else:
            groups[name] = recipe_model.DeviceGroup(name, each * draw(st.integers(1, 6)), kind, each)
    hosts = [group for group in groups.values() if group.devices > 1]
    if hosts and draw(st.booleans()):
        host = draw(st.sampled_from(hosts))
        share = host.gpus_per_worker * draw(st.integers(1, host.devices // host.gpus_per_worker))
        each = draw(st.sampled_from([1, host.gpus_per_worker]))
        groups["guest"] = recipe_model.DeviceGroup("guest", share, host.device_type, each, colocate=host.name)
    groups["judge"] = recipe_model.DeviceGroup("judge", draw(st.integers(1, 7)), "cpu")
    placed = allocate(groups, recipe_model.Cluster(nodes, sizes))
    assume(not placed.beyond)
    on_devices = [group for group in groups.values() if group.device_type != "cpu"]
    assume(all(group.gpus_per_worker <= max(sizes[group.device_type]) for group in on_devices))
    assert placed.cluster == Cluster.of(nodes, **sizes)
    return Plan("p", 0, placed.cluster, tuple(_placed(groups, placed.devices)), (), (), (), Run()), sizes


@st.composite
def lists(draw: st.DrawFn, sizes: Sequence[int], free: set[int], each: int) -> tuple[int, ...]:
    """Draws a list of free devices in any order, with consecutive devices of one node for each worker, and
    marks them as used."""
    starts = [
        sum(sizes[:node]) + number for node, size in enumerate(sizes) for number in range(size - each + 1)
    ]
    found: list[int] = []
    for start in draw(st.permutations(starts))[: draw(st.integers(1, 6))]:
        if free.issuperset(block := range(start, start + each)):
            found += block
            free.difference_update(block)
    return tuple(found)


def _placed(groups: dict[str, recipe_model.DeviceGroup], devices: Mapping[str, DeviceRanges]) -> list[Group]:
    found, place = list[Group](), 0
    for name, group in groups.items():
        where = (devices[name], group.gpus_per_worker)
        found.append(Group(name, group.device_type, group.workers, place, *where, colocate=group.colocate))
        place += group.workers
    return found


def of_types(plan: Plan, types: Sequence[DeviceType]) -> Plan:
    """Returns the same plan with its groups on these device types, in turn."""
    first, groups = dict.fromkeys(types, 0), list[Group]()
    for group, kind in zip(plan.groups, types, strict=True):
        start, first[kind] = first[kind], first[kind] + group.workers
        groups.append(
            replace(group, device_type=kind, devices=() if kind == "cpu" else ((start, first[kind]),))
        )
    sizes = {kind: -(-count // plan.cluster.nodes) for kind, count in first.items() if kind != "cpu"}
    return replace(plan, groups=tuple(groups), cluster=Cluster.of(plan.cluster.nodes, **sizes))
