"""Computes how far the data of a route moves, from the links between its ranks.

A link leads from a producer rank to a consumer rank that receives a part of the batch, or a value, from it. A
route has links over several distances where, for example, the first rank of a data rank keeps its samples and
its tp peers on the same node receive them too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Literal

from meshctl.plan.model import Component, Plan
from meshctl.topology.cluster import DIRECT
from meshctl.topology.flows import EvenFlow
from meshctl.topology.modes import COLLECT, DISPATCH, EXECUTE, Route, is_user_mode, producers_of

Distance = Literal["process", "node", "nodes", "device", "devices", "devices_or_nodes"]
"""The distance between producers and consumers: the same process, one node, several nodes, and `device` and
`devices` for tensors that move between devices without passing CPU memory. It is `devices_or_nodes` between
groups that name different interpreters: if these have different versions of NCCL, which is known at launch,
tensors pass CPU memory."""
NEAREST_FIRST: tuple[Distance, ...] = ("process", "device", "node", "devices", "devices_or_nodes", "nodes")
MAX_RANKS = 512
"""The largest number of ranks that are examined one by one. Of more ranks, about as many are examined: some
at both ends, the others evenly spaced between them."""


def ends_of(plan: Plan, route: Route) -> tuple[Component, Component]:
    """Returns the producing and the consuming component of a route."""
    source, target = plan.stage(route.source), plan.stage(route.target)
    consumer = source.to if route.kind == "weights" else target.component
    return plan.component(source.component), plan.component(consumer)


def carries_samples(plan: Plan, route: Route) -> bool:
    """Returns whether a route moves samples: `flatten` joins batches, and a `first` value is a batch if the
    recipe states its number of samples."""
    collect = COLLECT.get(route.collect)
    if collect is None or route.kind != "data":
        return False
    return collect.is_batch or (collect.is_first and plan.stage(route.source).samples > 0)


def user_mode(plan: Plan, route: Route) -> str:
    """Returns the first mode of a route that a user supplies, `module:NAME`; empty if all modes are built
    in."""
    source, target = plan.stage(route.source), plan.stage(route.target)
    names = (route.collect, source.execute, route.dispatch.mode, target.execute)
    return next(filter(is_user_mode, names), "")


def even_flow(plan: Plan, route: Route, total: int) -> EvenFlow:
    """Returns the flow of an even batch of `total` samples on a route."""
    source, target = plan.stage(route.source), plan.stage(route.target)
    producer, consumer = ends_of(plan, route)
    return EvenFlow(
        producer.mesh,
        consumer.mesh,
        total,
        COLLECT[route.collect],
        EXECUTE[source.execute],
        DISPATCH[route.dispatch.mode],
        EXECUTE[target.execute],
    )


def distance(plan: Plan, producer: str, consumer: str, *, near: bool) -> Distance:
    """Returns the distance between different workers of two groups: on one node if `near`, otherwise on
    several nodes."""
    if not is_direct(plan, producer, consumer):
        return "node" if near else "nodes"
    if near:
        return "device"
    is_same = plan.group(producer).python == plan.group(consumer).python
    return "devices" if is_same else "devices_or_nodes"


def is_direct(plan: Plan, group: str, other: str) -> bool:
    """Returns whether tensors move between the devices of workers of two groups without passing CPU memory.

    Between a restartable group and other groups they pass CPU memory, which survives the end of one side. An
    NCCL communicator does not, nor does device memory that a process has opened.
    """
    one, two = plan.group(group), plan.group(other)
    is_kept = group == other or not (one.restartable or two.restartable)
    return is_kept and one.device_type == two.device_type and one.device_type in DIRECT


def distances(plan: Plan, route: Route) -> tuple[Distance, ...]:
    """Returns the distances of all links of a route, the nearest first.

    The links are those of an even batch with the number of samples that the recipe gives. With `balance` or
    `home`, all producers have a link to all consumers. If the links are unknown before the run (weights, a
    user's mode), the result is the longest possible distance alone.
    """
    producer, consumer = ends_of(plan, route)
    if route.kind == "weights" and producer.group == consumer.group and producer.mesh == consumer.mesh:
        return ("process",)
    ones, others = plan.node_runs_of(producer.group), plan.node_runs_of(consumer.group)
    runs = [*ones, *others]
    is_one_node = max(stop for _, stop in runs) - min(start for start, _ in runs) == 1
    have_common = any(one[0] < other[1] and other[0] < one[1] for one in ones for other in others)
    has_one_worker = producer.group == consumer.group and plan.group(producer.group).workers == 1
    nearest: list[Distance] = ["process"] if producer.group == consumer.group else []
    if have_common and not has_one_worker:
        nearest.append(distance(plan, producer.group, consumer.group, near=True))
    if not is_one_node:
        nearest.append(distance(plan, producer.group, consumer.group, near=False))
    possible = tuple(nearest)
    if route.kind == "weights" or user_mode(plan, route):
        return possible[-1:]
    found: set[Distance] = set()
    for each in _of_links(plan, route, producer, consumer):
        found |= each
        if len(found) == len(possible):
            break
    return tuple(each for each in NEAREST_FIRST if each in found) or possible[-1:]


def _of_links(plan: Plan, route: Route, producer: Component, consumer: Component) -> Iterable[set[Distance]]:
    """Yields the distances of the links to one consumer rank after the other."""
    source = plan.stage(route.source)
    flow = even_flow(plan, route, 0)
    flow = even_flow(plan, route, source.samples or flow.producers * flow.shares)
    is_even = carries_samples(plan, route) and not (route.dispatch.balance or route.dispatch.home)
    near, far = (distance(plan, producer.group, consumer.group, near=near) for near in (True, False))

    @cache
    def nodes_of(indices: Sequence[int]) -> Mapping[int, int]:
        """Returns the number of producer ranks on each node."""
        return Counter(plan.node_of(producer.group, flow.producer_rank(index)) for index in indices)

    for rank in _some(range(consumer.mesh.world_size)):
        indices = _producers(flow, rank, carries_samples(plan, route), is_even)
        if not indices:
            continue
        node, nodes = plan.node_of(consumer.group, rank), nodes_of(indices)
        own = flow.producer_set.index_of(producer.mesh, rank) if producer.group == consumer.group else None
        is_own = own is not None and own in indices
        found: set[Distance] = {"process"} if is_own else set()
        if nodes.get(node, 0) > is_own:
            found.add(near)
        if any(other != node for other in nodes):
            found.add(far)
        yield found


def _producers(flow: EvenFlow, rank: int, carries: bool, is_even: bool) -> Sequence[int]:
    """Returns the indices of producers that have a part for a consumer rank: of many, only some."""
    if is_even and flow.execute.is_per_producer:
        producers = _some(flow.producers_of(rank))
        return tuple(each for each in producers if flow.samples(each, flow.share_of(rank)))
    if is_even:
        return _some(flow.producers_of(rank))
    producers = _some(producers_of(flow.target, flow.execute, flow.producers, rank))
    return tuple(each for each in producers if each < flow.total) if carries else producers


def _some(numbers: range) -> Sequence[int]:
    if len(numbers) <= MAX_RANKS:
        return numbers
    quarter = MAX_RANKS // 4
    between = numbers[quarter : -quarter : len(numbers) // (2 * quarter)]
    return (*numbers[:quarter], *between, *numbers[-quarter:])
