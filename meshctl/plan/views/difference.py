"""The difference of two plans, as data: additions, removals and changes.

    difference(before, after).changes
    Change("components", "actor", "changed", (Fact("layout", "fsdp 4", "fsdp 2 x tp 2"), ...))

Groups, components, stages and routes with the same name are compared by the facts that a picture shows of
them, and so are the bytes of components on a rank, and of all components on a device. No picture shows
arguments, the seed or checkpoints, so plans that differ only in these have different digests and no changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from meshctl.dataclass import dataclass
from meshctl.plan.views.topology import Flow, PlacedComponent, PlacedStage, Topology
from meshctl.text.english import size
from meshctl.topology.memory import ComponentMemory
from meshctl.topology.placement import NodeRun

FORMAT = 1
"""Version of the JSON."""
MAX_NODE_RUNS = 3
"""The largest number of runs of nodes that are listed."""

Subject = Literal[
    "job", "groups", "components", "stages", "routes", "weights", "memory", "device memory", "warnings"
]
Mark = Literal["added", "removed", "changed"]
Value = int | str | tuple[int, ...] | None
Facts = Mapping[tuple[str, str], Value]
"""(what, dim) -> value; dim is empty for facts that are not about a dim."""

SUMMARY: Mapping[Subject, tuple[str, ...]] = {
    "groups": ("workers", "device type", "place", "colocate", "program", "python"),
    "components": ("group", "layout", "target"),
    "stages": ("call", "from", "to", "samples"),
    "routes": ("from", "to", "ranks", "collect", "dispatch", "bytes a step"),
    "weights": ("from", "to", "ranks", "layout of the producer", "layout of the consumer"),
    "memory": ("bytes", "unknown"),
    "device memory": ("bytes",),
}
"""Subject -> the facts that describe an added or removed item."""
GROUP = "workers device_type devices gpus_per_worker nodes visible_devices colocate program python"
BYTES = ("bytes", "weights", "gradients", "optimizer", "sync", "device memory")
"""Facts about memory. A value of 0 is no memory."""


@dataclass(frozen=True)
class Fact:
    """One property that differs, or a property of something added or removed."""

    what: str
    before: Value
    """None for something added."""
    after: Value
    """None for something removed."""
    dim: str = ""
    """The dim of the component's mesh that the fact is about; empty for other facts."""


@dataclass(frozen=True)
class Change:
    subject: Subject
    name: str
    mark: Mark
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True)
class Difference:
    before: str
    """The name of the first plan's job."""
    after: str
    """The name of the second plan's job."""
    digests: tuple[str, str]
    """The digests of the two plans, which depend also on facts that no picture shows."""
    changes: tuple[Change, ...]
    format: int = FORMAT

    def of(self, subject: Subject) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.subject == subject)


def difference(before: Topology, after: Topology) -> Difference:
    old, new = _items(before, after), _items(after, before)
    changes = [
        change
        for subject in get_args(Subject)[:-1]
        for change in _compared(subject, old[subject], new[subject])
    ]
    # Warnings with the same message are the same.
    was, now = ({(one.code, one.message): None for one in each.warnings} for each in (before, after))
    for code, text in (one for one in was if one not in now):
        changes.append(Change("warnings", code, "removed", (Fact("message", text, None),)))
    for code, text in (one for one in now if one not in was):
        changes.append(Change("warnings", code, "added", (Fact("message", None, text),)))
    return Difference(before.name, after.name, (before.digest, after.digest), tuple(changes))


def _compared(subject: Subject, before: Mapping[str, Facts], after: Mapping[str, Facts]) -> Iterator[Change]:
    """Yields the changes in the order of `after`, then what is removed."""
    for name, facts in after.items():
        if name not in before:
            added = (Fact(what, None, value) for what, value in _summary(subject, facts))
            yield Change(subject, name, "added", tuple(added))
        elif changed := tuple(_changed(before[name], facts)):
            yield Change(subject, name, "changed", changed)
    for name, facts in before.items():
        if name not in after:
            removed = (Fact(what, value, None) for what, value in _summary(subject, facts))
            yield Change(subject, name, "removed", tuple(removed))


def _summary(subject: Subject, facts: Facts) -> Iterator[tuple[str, Value]]:
    """Yields the facts that describe something added or removed, without empty values."""
    return ((what, value) for (what, _), value in facts.items() if what in SUMMARY[subject] and value)


def _changed(before: Facts, after: Facts) -> Iterator[Fact]:
    """Yields the facts that differ, but not the `reach` of a dim that has no process groups any more, which
    the layout shows, and no bytes that are equal in the digits of a picture."""
    for what, dim in dict.fromkeys((*before, *after)):
        old, new = before.get((what, dim)), after.get((what, dim))
        is_equal = old == new or (what == "reach" and new is None)
        if what in BYTES and isinstance(old, int) and isinstance(new, int):
            is_equal = size(old) == size(new)
        if not is_equal:
            yield Fact(what, old, new, dim)


# Facts


def _items(topology: Topology, other: Topology) -> dict[Subject, dict[str, Facts]]:
    """Returns the facts of each item of a topology by name. The positions of stages are counted among those
    that both topologies have, so that a new stage does not change the positions of the others."""
    common = {stage.name for stage in other.stages}
    order = [stage.name for stage in topology.stages if stage.name in common]
    layouts = {component.name: component.layout for component in topology.components}
    cluster = topology.cluster
    per_node = {
        f"{kind} per node": runs[0][1] if len(runs) == 1 else " + ".join(f"{n} x {each}" for n, each in runs)
        for kind, runs in cluster.devices_per_node.items()
        if runs
    }
    pools = ", ".join(f"{name} {count}" for name, count in cluster.pools)
    sizes = {"workers": topology.workers, "nodes": cluster.nodes, "pools": pools, **per_node}
    return {
        "job": {"": _facts(sizes, idle_devices=topology.idle)},
        "groups": {one.name: _facts({}, one, GROUP, place=place(one.node_runs)) for one in topology.groups},
        "components": {one.name: _of_component(one) for one in topology.components},
        "stages": {one.name: _of_stage(topology, one, order) for one in topology.stages},
        "routes": {one.name: _of_route(one) for one in topology.routes if one.kind == "data"},
        "weights": {one.name: _of_weights(one, layouts) for one in topology.routes if one.kind == "weights"},
        "memory": {one.component: _of_bytes(one) for one in topology.memory.components},
        "device memory": {
            " + ".join(one.groups): _facts({"bytes": one.total}, one, "device_memory")
            for one in topology.memory.devices
            if len(one.components) > 1 or one.device_memory
        },
    }


def _facts(first: Mapping[str, Any], thing: object = None, names: str = "", **more: Any) -> Facts:
    """Returns facts: `first`, the attributes of a thing whose names are separated by spaces, and `more`."""
    values = {**first, **{name: getattr(thing, name) for name in names.split()}, **more}
    return {(name.replace("_", " "), ""): _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Value:
    if isinstance(value, bool):
        return "yes" if value else "no"
    is_of_texts = isinstance(value, tuple) and not all(isinstance(each, int) for each in value)
    return ",".join(value) if is_of_texts or value == () else value


def place(node_runs: Sequence[NodeRun]) -> str:
    """Returns the nodes of a group in words: `node 0, nodes 1-3, node 4 from device 2`."""
    words = []
    for run in node_runs[:MAX_NODE_RUNS]:
        nodes = f"node {run.first_node}" if run.nodes == 1 else f"nodes {run.first_node}-{run.last_node}"
        words.append(nodes + (f" from device {run.first_device}" if run.first_device > 0 else ""))
    more = len(node_runs) - MAX_NODE_RUNS
    return ", ".join(words + [f"{more} more"] * (more > 0))


def _of_component(component: PlacedComponent) -> Facts:
    mesh = component.mesh
    views = {"ulysses": mesh.ulysses_size, "ep": mesh.ep_size, "etp": mesh.etp_size, "vpp": mesh.vpp_size}
    return {
        **_facts({}, component, "group target layout frozen", data_ranks=component.data_size),
        **_facts({}, mesh, "sequence_parallel"),
        **{("size", dim): size for dim, size in views.items()},
        **{("reach", groups.dim): groups.reach for groups in component.process_groups},
    }


def _of_stage(topology: Topology, stage: PlacedStage, order: Sequence[str]) -> Facts:
    called, to = f"{stage.component}.{stage.method}", f"{stage.to}.{stage.to_method}"
    ends = {"call": called} if stage.kind == "call" else {"from": called, "to": to}
    names = "execute collect samples every when lag checksum is_without_data ends_run"
    return _facts(
        ends,
        stage,
        names,
        bytes_of_a_sample=stage.sample_bytes,
        order=order.index(stage.name) + 1 if stage.name in order else 0,
        repeated=topology.repeat_of(stage),
    )


def _of_route(route: Flow) -> Facts:
    ranks = route.producers, route.consumers
    return {
        **_facts({"from": route.producer, "to": route.consumer, "ranks": ranks}, route, "shares collect"),
        **_facts({"dispatch": route.dispatch.mode}, route.dispatch, "balance home allow_empty"),
        **_facts({}, route.dispatch, "split_groups equal_counts"),
        **_facts({"bytes a step": route.bytes, "over": " ".join(route.distances)}),
    }


def _of_weights(route: Flow, layouts: Mapping[str, str]) -> Facts:
    ends = {"from": route.producer, "to": route.consumer, "ranks": (route.producers, route.consumers)}
    ends |= {"layout of the producer": layouts[route.producer]}
    ends |= {"layout of the consumer": layouts[route.consumer]}
    return _facts(ends, route, "slots", bytes_a_step=route.bytes, over=" ".join(route.distances))


def _of_bytes(one: ComponentMemory) -> Facts:
    if one.unknown:
        return _facts({}, one, "unknown")
    optimizer = "unknown" if one.optimizer is None else one.optimizer
    return _facts({"bytes": one.total}, one, "weights gradients", optimizer=optimizer, sync=one.sync)
