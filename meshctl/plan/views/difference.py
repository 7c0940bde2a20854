"""The difference of two plans, as data: what is added, removed, and changed.

    difference(before, after).changes
    Change("components", "actor", "changed", (Fact("layout", "fsdp 4", "fsdp 2 x tp 2"), Fact("size", 1, 2,
    dim="tp"), ...))

Things with the same name are compared, in the facts that a picture shows. Arguments, seed and checkpoints
differ in the digests only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from meshctl.plan.views.topology import Flow, PlacedComponent, PlacedGroup, PlacedStage, Topology
from meshctl.topology.placement import NodeRun

FORMAT = 1
"""Version of the JSON."""
MAX_NODE_RUNS = 3
"""Runs of nodes that are named."""

Subject = Literal["job", "groups", "components", "stages", "routes", "weights", "warnings"]
Mark = Literal["added", "removed", "changed"]
Value = int | str | tuple[int, ...] | None
Facts = Mapping[tuple[str, str], Value]
"""(what, dim) -> value; dim is empty for facts that are not about a dim."""
Thing = TypeVar("Thing")
Named = TypeVar("Named", PlacedGroup, PlacedComponent)

SUMMARY: Mapping[Subject, tuple[str, ...]] = {
    "groups": ("workers", "device type", "devices per worker", "place", "colocate", "program"),
    "components": ("group", "layout", "target"),
    "stages": ("call", "from", "to", "samples"),
    "routes": ("from", "to", "ranks", "collect", "dispatch", "bytes a step"),
    "weights": ("from", "to", "ranks", "layout of the producer", "layout of the consumer"),
    "warnings": ("message",),
}
"""The facts of something added or removed."""


@dataclass(frozen=True)
class Fact:
    """One property that differs, or a property of something added or removed."""

    what: str
    before: Value
    """None for something added."""
    after: Value
    """None for something removed."""
    dim: str = ""
    """Of the component's mesh, for facts about a dim."""


@dataclass(frozen=True)
class Change:
    subject: Subject
    name: str
    mark: Mark
    facts: tuple[Fact, ...] = ()


@dataclass(frozen=True)
class Difference:
    before: str
    """The name of the job."""
    after: str
    digests: tuple[str, str]
    """Of the two plans, which also cover what no picture shows."""
    changes: tuple[Change, ...]
    format: int = FORMAT

    def of(self, subject: Subject) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.subject == subject)


def difference(before: Topology, after: Topology) -> Difference:
    changes = [
        *_compared("job", {"": before}, {"": after}, _of_job),
        *_compared("groups", _named(before.groups), _named(after.groups), _of_group),
        *_compared("components", _named(before.components), _named(after.components), _of_component),
        *_compared("stages", _stages(before, after), _stages(after, before), lambda each: _of_stage(*each)),
        *_compared("routes", _data(before), _data(after), _of_route),
        *_compared("weights", _weights(before), _weights(after), lambda each: _of_weights(*each)),
        *_warnings(before, after),
    ]
    return Difference(before.name, after.name, (before.digest, after.digest), tuple(changes))


# Comparing


def _compared(
    subject: Subject, before: Mapping[str, Thing], after: Mapping[str, Thing], facts: Callable[[Thing], Facts]
) -> Iterator[Change]:
    """Yields the changes in the order of `after`; something removed stands at its former position."""
    for name in merged(list(before), list(after)):
        if name not in after:
            yield Change(
                subject,
                name,
                "removed",
                tuple(Fact(what, value, None) for what, value in _summary(subject, facts(before[name]))),
            )
        elif name not in before:
            yield Change(
                subject,
                name,
                "added",
                tuple(Fact(what, None, value) for what, value in _summary(subject, facts(after[name]))),
            )
        elif changed := tuple(_changed(facts(before[name]), facts(after[name]))):
            yield Change(subject, name, "changed", changed)


def merged(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """Returns all of `after`, and what is only in `before` behind its former predecessor."""
    now, behind, last = set(after), dict[str, list[str]](), ""
    for name in before:
        if name in now:
            last = name
        else:
            behind.setdefault(last, []).append(name)
    first = behind.pop("", [])
    return [*first, *(name for kept in after for name in (kept, *behind.get(kept, ())))]


def _summary(subject: Subject, facts: Facts) -> Iterator[tuple[str, Value]]:
    for (what, _), value in facts.items():
        if what in SUMMARY[subject] and value and (what, value) != ("devices per worker", 1):
            yield what, value


def _changed(before: Facts, after: Facts) -> Iterator[Fact]:
    for what, dim in dict.fromkeys((*before, *after)):
        old, new = before.get((what, dim)), after.get((what, dim))
        if old != new and not (what == "reach" and new is None):
            yield Fact(what, old, new, dim)


# Facts


def _named(things: Iterable[Named]) -> dict[str, Named]:
    return {thing.name: thing for thing in things}


def _of_job(topology: Topology) -> Facts:
    per_node: dict[tuple[str, str], Value] = {
        (f"{kind} per node", ""): runs[0][1]
        if len(runs) == 1
        else tuple(each for count, each in runs for _ in range(min(count, MAX_NODE_RUNS)))
        for kind, runs in topology.cluster.devices_per_node.items()
        if runs
    }
    return {
        ("workers", ""): topology.workers,
        ("nodes", ""): topology.cluster.nodes,
        **per_node,
        ("idle devices", ""): topology.idle,
    }


def _of_group(group: PlacedGroup) -> Facts:
    return {
        ("workers", ""): group.workers,
        ("device type", ""): group.device_type,
        ("devices", ""): group.devices,
        ("devices per worker", ""): group.gpus_per_worker,
        ("nodes", ""): group.nodes,
        ("place", ""): place(group.node_runs),
        ("visible devices", ""): ",".join(group.visible_devices),
        ("colocate", ""): group.colocate,
        ("program", ""): group.program,
    }


def place(node_runs: Sequence[NodeRun]) -> str:
    """node 0; nodes 1-3; node 4 from device 2"""
    words = []
    for run in node_runs[:MAX_NODE_RUNS]:
        nodes = f"node {run.first_node}" if run.nodes == 1 else f"nodes {run.first_node}-{run.last_node}"
        words.append(nodes + (f" from device {run.first_device}" if run.first_device > 0 else ""))
    return ", ".join(words) + (
        f", {len(node_runs) - MAX_NODE_RUNS} more" if len(node_runs) > MAX_NODE_RUNS else ""
    )


def _of_component(component: PlacedComponent) -> Facts:
    mesh = component.mesh
    sizes = {dim: mesh.size(dim) for dim in mesh.mesh_dim_names}
    views = {"ulysses": mesh.ulysses_size, "ep": mesh.ep_size, "etp": mesh.etp_size, "vpp": mesh.vpp_size}
    return {
        ("group", ""): component.group,
        ("target", ""): component.target,
        ("layout", ""): component.layout,
        **{("size", dim): size for dim, size in {**sizes, **views}.items()},
        ("order of dims", ""): " ".join(mesh.mesh_dim_names),
        ("sequence parallel", ""): _yes_or_no(mesh.sequence_parallel),
        ("frozen", ""): _yes_or_no(component.frozen),
        ("data ranks", ""): component.data_size,
        **{("reach", groups.dim): groups.reach for groups in component.process_groups},
    }


def _yes_or_no(text: bool) -> str:
    return "yes" if text else "no"


def _stages(topology: Topology, other: Topology) -> dict[str, tuple[PlacedStage, int]]:
    """Returns the stages with their positions among the common ones, so that a new stage does not move the
    others."""
    both = {stage.name for stage in topology.stages} & {stage.name for stage in other.stages}
    order = {
        name: number
        for number, name in enumerate((stage.name for stage in topology.stages if stage.name in both), 1)
    }
    return {stage.name: (stage, order.get(stage.name, 0)) for stage in topology.stages}


def _of_stage(stage: PlacedStage, order: int) -> Facts:
    called, to = f"{stage.component}.{stage.method}", f"{stage.to}.{stage.to_method}"
    ends: Facts = {("call", ""): called} if stage.kind == "call" else {("from", ""): called, ("to", ""): to}
    return {
        **ends,
        ("execute", ""): stage.execute,
        ("collect", ""): stage.collect,
        ("samples", ""): stage.samples,
        ("bytes of a sample", ""): stage.sample_bytes,
        ("every", ""): stage.every,
        ("when", ""): stage.when,
        ("lag", ""): stage.lag,
        ("checksum", ""): _yes_or_no(stage.checksum),
        ("order", ""): order,
    }


def _data(topology: Topology) -> dict[str, Flow]:
    return {route.name: route for route in topology.routes if route.kind == "data"}


def _of_route(route: Flow) -> Facts:
    """Samples are a fact of the stage; bytes are a fact of the route."""
    return {
        ("from", ""): route.producer,
        ("to", ""): route.consumer,
        ("ranks", ""): (route.producers, route.consumers),
        ("shares", ""): route.shares,
        ("collect", ""): route.collect,
        ("dispatch", ""): route.dispatch.mode,
        ("balance", ""): route.dispatch.balance,
        ("home", ""): route.dispatch.home,
        ("allow empty", ""): _yes_or_no(route.dispatch.allow_empty),
        ("split groups", ""): _yes_or_no(route.dispatch.split_groups),
        ("equal counts", ""): _yes_or_no(route.dispatch.equal_counts),
        ("bytes a step", ""): route.bytes,
        ("over", ""): route.over,
    }


def _weights(topology: Topology) -> dict[str, tuple[Flow, str, str]]:
    """Returns the routes with the layouts of both ends."""
    layouts = {component.name: component.layout for component in topology.components}
    return {
        each.name: (each, layouts[each.producer], layouts[each.consumer])
        for each in topology.routes
        if each.kind == "weights"
    }


def _of_weights(route: Flow, producer: str, consumer: str) -> Facts:
    return {
        ("from", ""): route.producer,
        ("to", ""): route.consumer,
        ("ranks", ""): (route.producers, route.consumers),
        ("layout of the producer", ""): producer,
        ("layout of the consumer", ""): consumer,
        ("slots", ""): route.slots,
        ("bytes a step", ""): route.bytes,
        ("over", ""): route.over,
    }


def _warnings(before: Topology, after: Topology) -> Iterator[Change]:
    """Warnings with equal messages are the same."""
    olds, news = (
        [(warning.code, warning.message) for warning in topology.warnings] for topology in (before, after)
    )
    yield from (
        Change("warnings", code, "removed", (Fact("message", text, None),))
        for code, text in _without(olds, news)
    )
    yield from (
        Change("warnings", code, "added", (Fact("message", None, text),))
        for code, text in _without(news, olds)
    )


def _without(some: Iterable[tuple[str, str]], others: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    left = set(others)
    return [each for each in dict.fromkeys(some) if each not in left]
