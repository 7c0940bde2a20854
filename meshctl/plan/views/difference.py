"""The difference of two plans, as data: additions, removals and changes.

    difference(before, after).changes
    Change("components", "actor", "changed", (Fact("layout", "fsdp 4", "fsdp 2 x tp 2"), Fact("size", 1, 2,
    dim="tp"), ...))

Groups, components, stages and routes with the same name are compared by the facts that a picture shows of
them, and so are the bytes of components on a rank, and of all components on a device. No picture shows
arguments, the seed or checkpoints, so plans that differ only in these have different digests and no changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from meshctl.dataclass import dataclass
from meshctl.plan.views.topology import Flow, PlacedComponent, PlacedGroup, PlacedStage, Topology
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
    "groups": ("workers", "device type", "devices per worker", "place", "colocate", "program", "python"),
    "components": ("group", "layout", "target"),
    "stages": ("call", "from", "to", "samples"),
    "routes": ("from", "to", "ranks", "collect", "dispatch", "bytes a step"),
    "weights": ("from", "to", "ranks", "layout of the producer", "layout of the consumer"),
    "memory": ("bytes", "unknown"),
    "device memory": ("bytes",),
    "warnings": ("message",),
}
"""Subject -> the facts that describe an added or removed item."""
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
    both = before, after
    changes = [
        *_compared("job", {"": _of_job(before)}, {"": _of_job(after)}),
        *_compared("groups", *({one.name: _of_group(one) for one in each.groups} for each in both)),
        *_compared(
            "components", *({one.name: _of_component(one) for one in each.components} for each in both)
        ),
        *_compared("stages", _of_stages(before, after), _of_stages(after, before)),
        *_compared("routes", *(_of_routes(each, "data") for each in both)),
        *_compared("weights", *(_of_routes(each, "weights") for each in both)),
        *_compared(
            "memory", *({one.component: _of_bytes(one) for one in each.memory.components} for each in both)
        ),
        *_compared("device memory", *map(_of_devices, both)),
        *_warnings(before, after),
    ]
    return Difference(before.name, after.name, (before.digest, after.digest), tuple(changes))


# Comparing


def _compared(subject: Subject, before: Mapping[str, Facts], after: Mapping[str, Facts]) -> Iterator[Change]:
    """Yields the changes in the order of `after`. Something removed comes after the same name as before."""
    for name in merged(list(before), list(after)):
        if name not in after:
            removed = (Fact(what, value, None) for what, value in _summary(subject, before[name]))
            yield Change(subject, name, "removed", tuple(removed))
        elif name not in before:
            added = (Fact(what, None, value) for what, value in _summary(subject, after[name]))
            yield Change(subject, name, "added", tuple(added))
        elif changed := tuple(_changed(before[name], after[name])):
            yield Change(subject, name, "changed", changed)


def merged(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Returns the names of both in one order: that of `after`, where a name that is only in `before` follows
    the name that it followed there."""
    now, behind, last = set(after), dict[str, list[str]](), ""  # "" stands before the first name
    for name in before:
        if name in now:
            last = name
        else:
            behind.setdefault(last, []).append(name)
    first = behind.pop("", [])
    return [*first, *(name for kept in after for name in (kept, *behind.get(kept, ())))]


def _summary(subject: Subject, facts: Facts) -> Iterator[tuple[str, Value]]:
    """Yields the facts that describe something added or removed, without defaults and empty values."""
    for (what, _), value in facts.items():
        if what in SUMMARY[subject] and value and (what, value) != ("devices per worker", 1):
            yield what, value


def _changed(before: Facts, after: Facts) -> Iterator[Fact]:
    """Yields the facts that differ. The `reach` of a dim that has no process groups any more is left out,
    because the size of the dim shows that. So are bytes that are equal in the digits of a picture."""
    for what, dim in dict.fromkeys((*before, *after)):
        old, new = before.get((what, dim)), after.get((what, dim))
        is_gone = what == "reach" and new is None
        if what in BYTES and isinstance(old, int) and isinstance(new, int):
            is_equal = size(old) == size(new)
        else:
            is_equal = old == new
        if not (is_equal or is_gone):
            yield Fact(what, old, new, dim)


# Facts


def _facts(thing: object, names: str, **more: Value) -> Facts:
    """Returns the attributes of a thing as facts, and further facts by keyword.

    `names` are the names of the attributes, separated by spaces. The underscores of all names become spaces.
    """
    values = {name: getattr(thing, name) for name in names.split()} | more
    texts = {True: "yes", False: "no"}
    return {
        (name.replace("_", " "), ""): texts[value] if isinstance(value, bool) else value
        for name, value in values.items()
    }


def _of_job(topology: Topology) -> Facts:
    per_node: dict[str, Value] = {}
    for kind, runs in topology.cluster.devices_per_node.items():
        sizes = [each for count, each in runs for _ in range(min(count, MAX_NODE_RUNS))]
        if runs:
            per_node[f"{kind}_per_node"] = tuple(sizes) if len(runs) > 1 else sizes[0]
    cluster = topology.cluster
    pools = {"pools": ", ".join(f"{name} {count}" for name, count in cluster.pools)} if cluster.pools else {}
    idle = topology.idle
    return _facts(topology, "workers", nodes=cluster.nodes, **pools, **per_node, idle_devices=idle)


def _of_group(group: PlacedGroup) -> Facts:
    return _facts(
        group,
        "workers device_type devices",
        devices_per_worker=group.gpus_per_worker,
        nodes=group.nodes,
        place=place(group.node_runs),
        visible_devices=",".join(group.visible_devices),
        colocate=group.colocate,
        program=group.program,
        python=group.python,
    )


def place(node_runs: Sequence[NodeRun]) -> str:
    """Returns the nodes of a group in words: `node 0, nodes 1-3, node 4 from device 2`."""
    words = []
    for run in node_runs[:MAX_NODE_RUNS]:
        nodes = f"node {run.first_node}" if run.nodes == 1 else f"nodes {run.first_node}-{run.last_node}"
        words.append(nodes + (f" from device {run.first_device}" if run.first_device > 0 else ""))
    if len(node_runs) > MAX_NODE_RUNS:
        words.append(f"{len(node_runs) - MAX_NODE_RUNS} more")
    return ", ".join(words)


def _of_component(component: PlacedComponent) -> Facts:
    mesh = component.mesh
    sizes = {dim: mesh.size(dim) for dim in mesh.mesh_dim_names}
    sizes |= {"ulysses": mesh.ulysses_size, "ep": mesh.ep_size, "etp": mesh.etp_size, "vpp": mesh.vpp_size}
    return {
        **_facts(component, "group target layout"),
        **{("size", dim): size for dim, size in sizes.items()},
        **_facts(
            component,
            "",
            order_of_dims=" ".join(mesh.mesh_dim_names),
            sequence_parallel=mesh.sequence_parallel,
            frozen=component.frozen,
            data_ranks=component.data_size,
        ),
        **{("reach", groups.dim): groups.reach for groups in component.process_groups},
    }


def _of_stages(topology: Topology, other: Topology) -> dict[str, Facts]:
    """Returns the facts of the stages. The position of a stage is counted among the stages that both plans
    have, so that a new stage does not change the positions of the others."""
    names = {stage.name for stage in other.stages}
    common = [stage.name for stage in topology.stages if stage.name in names]
    order = {name: number for number, name in enumerate(common, 1)}
    return {
        stage.name: _of_stage(stage, order.get(stage.name, 0), topology.repeat_of(stage))
        for stage in topology.stages
    }


def _of_stage(stage: PlacedStage, order: int, repeated: str) -> Facts:
    called, to = f"{stage.component}.{stage.method}", f"{stage.to}.{stage.to_method}"
    ends = {"call": called} if stage.kind == "call" else {"from": called, "to": to}
    return {
        **_facts(stage, "", **ends),
        **_facts(stage, "execute collect samples", bytes_of_a_sample=stage.sample_bytes),
        **_facts(stage, "every when lag checksum is_without_data ends_run", order=order, repeated=repeated),
    }


def _of_routes(topology: Topology, kind: str) -> dict[str, Facts]:
    """Returns the facts of the routes of a kind. The number of samples is a fact of the stage."""
    layouts = {component.name: component.layout for component in topology.components}
    return {route.name: _of_route(route, layouts) for route in topology.routes if route.kind == kind}


def _of_route(route: Flow, layouts: Mapping[str, str]) -> Facts:
    ranks = route.producers, route.consumers
    ends: dict[str, Value] = {"from": route.producer, "to": route.consumer, "ranks": ranks}
    moved: dict[str, Value] = {"bytes_a_step": route.bytes, "over": " ".join(route.distances)}
    if route.kind == "weights":
        for end, name in (("producer", route.producer), ("consumer", route.consumer)):
            ends[f"layout_of_the_{end}"] = layouts[name]
        return {**_facts(route, "", **ends), **_facts(route, "slots", **moved)}
    return {
        **_facts(route, "", **ends),
        **_facts(route, "shares collect", dispatch=route.dispatch.mode),
        **_facts(route.dispatch, "balance home allow_empty split_groups equal_counts"),
        **_facts(route, "", **moved),
    }


def _of_bytes(one: ComponentMemory) -> Facts:
    if one.unknown:
        return _facts(one, "unknown")
    optimizer = "unknown" if one.optimizer is None else one.optimizer
    parts: dict[str, Value] = {"weights": one.weights, "gradients": one.gradients, "optimizer": optimizer}
    return _facts(one, "", bytes=one.total, **parts, sync=one.sync)


def _of_devices(topology: Topology) -> dict[str, Facts]:
    """Returns the facts of the devices that several components share, and of those whose memory is stated."""
    return {
        " + ".join(one.groups): _facts(one, "", bytes=one.total, device_memory=one.device_memory)
        for one in topology.memory.devices
        if len(one.components) > 1 or one.device_memory
    }


def _warnings(before: Topology, after: Topology) -> Iterator[Change]:
    """Yields the warnings that only one of the two plans has. Warnings with the same message are the same."""
    olds, news = (
        dict.fromkeys((warning.code, warning.message) for warning in topology.warnings)
        for topology in (before, after)
    )
    for code, text in olds:
        if (code, text) not in news:
            yield Change("warnings", code, "removed", (Fact("message", text, None),))
    for code, text in news:
        if (code, text) not in olds:
            yield Change("warnings", code, "added", (Fact("message", None, text),))
