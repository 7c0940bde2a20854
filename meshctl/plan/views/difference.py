"""What changes from one plan to another, as data: what is added, what is gone, and what of the rest is
different.

    difference(before, after).changes
    Change("components", "actor", "changed", (Fact("layout", "fsdp 4", "fsdp 2 x tp 2"), Fact("size", 1, 2,
    dim="tp"), ...))

Things are the same where they have the same name. It compares what a picture shows: arguments, seed and
checkpoints are in the digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from meshctl.plan.views.topology import Flow, PlacedComponent, PlacedGroup, PlacedStage, Topology
from meshctl.topology.placement import NodeRun

FORMAT = 1
"""Of the JSON."""
PLACES = 3
"""Stretches of nodes that are named."""

Subject = Literal["job", "groups", "components", "stages", "routes", "weights", "warnings"]
Mark = Literal["added", "removed", "changed"]
Value = int | str | tuple[int, ...] | None
Facts = Mapping[tuple[str, str], Value]
"""(what, dim) -> value; dim is empty where it is about none."""
Thing = TypeVar("Thing")
Named = TypeVar("Named", PlacedGroup, PlacedComponent)

TOLD: Mapping[Subject, tuple[str, ...]] = {
    "groups": ("workers", "device type", "devices per worker", "place", "colocate", "program"),
    "components": ("group", "layout", "target"),
    "stages": ("call", "from", "to", "samples"),
    "routes": ("from", "to", "ranks", "collect", "dispatch", "bytes a step"),
    "weights": ("from", "to", "ranks", "layout of the producer", "layout of the consumer"),
    "warnings": ("message",),
}
"""What is told of a thing that is added or gone."""


@dataclass(frozen=True)
class Fact:
    """One thing that is different; of what is added or gone, one thing that it is."""

    what: str
    before: Value
    """None for what is added."""
    after: Value
    """None for what is gone."""
    dim: str = ""
    """Of the component's mesh, where it is about one."""


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
    """Of the two plans: equal where they are the same also in what no picture shows."""
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
    """In the order of what there is now; what is gone stands where it was."""
    for name in merged(list(before), list(after)):
        if name not in after:
            yield Change(
                subject,
                name,
                "removed",
                tuple(Fact(what, value, None) for what, value in _told(subject, facts(before[name]))),
            )
        elif name not in before:
            yield Change(
                subject,
                name,
                "added",
                tuple(Fact(what, None, value) for what, value in _told(subject, facts(after[name]))),
            )
        elif changed := tuple(_changed(facts(before[name]), facts(after[name]))):
            yield Change(subject, name, "changed", changed)


def merged(before: Sequence[str], after: Sequence[str]) -> list[str]:
    """All of `after`, and what is only in `before` behind the one that it stood behind."""
    now, behind, last = set(after), dict[str, list[str]](), ""
    for name in before:
        if name in now:
            last = name
        else:
            behind.setdefault(last, []).append(name)
    first = behind.pop("", [])
    return [*first, *(name for kept in after for name in (kept, *behind.get(kept, ())))]


def _told(subject: Subject, facts: Facts) -> Iterator[tuple[str, Value]]:
    for (what, _), value in facts.items():
        if what in TOLD[subject] and value and (what, value) != ("devices per worker", 1):
            yield what, value


def _changed(before: Facts, after: Facts) -> Iterator[Fact]:
    for what, dim in dict.fromkeys((*before, *after)):
        old, new = before.get((what, dim)), after.get((what, dim))
        if old != new and not (what == "reach" and new is None):
            yield Fact(what, old, new, dim)


# What there is to compare


def _named(things: Iterable[Named]) -> dict[str, Named]:
    return {thing.name: thing for thing in things}


def _of_job(topology: Topology) -> Facts:
    per_node: dict[tuple[str, str], Value] = {
        (f"{kind} per node", ""): runs[0][1]
        if len(runs) == 1
        else tuple(each for count, each in runs for _ in range(min(count, PLACES)))
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


def place(stretches: Sequence[NodeRun]) -> str:
    """node 0; nodes 1-3; node 4 from device 2"""
    words = []
    for run in stretches[:PLACES]:
        nodes = f"node {run.first_node}" if run.nodes == 1 else f"nodes {run.first_node}-{run.last_node}"
        words.append(nodes + (f" from device {run.first_device}" if run.first_device > 0 else ""))
    return ", ".join(words) + (f", {len(stretches) - PLACES} more" if len(stretches) > PLACES else "")


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
        ("sequence parallel", ""): _yes(mesh.sequence_parallel),
        ("frozen", ""): _yes(component.frozen),
        ("data ranks", ""): component.data_size,
        **{("reach", groups.dim): groups.reach for groups in component.process_groups},
    }


def _yes(said: bool) -> str:
    return "yes" if said else "no"


def _stages(topology: Topology, other: Topology) -> dict[str, tuple[PlacedStage, int]]:
    """With their place among the stages that both have, so that one more does not move the others."""
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
        ("checksum", ""): _yes(stage.checksum),
        ("order", ""): order,
    }


def _data(topology: Topology) -> dict[str, Flow]:
    return {route.name: route for route in topology.routes if route.kind == "data"}


def _of_route(route: Flow) -> Facts:
    """Collect and samples are said of the stage; bytes are what moves."""
    return {
        ("from", ""): route.producer,
        ("to", ""): route.consumer,
        ("ranks", ""): (route.producers, route.consumers),
        ("shares", ""): route.shares,
        ("collect", ""): route.collect,
        ("dispatch", ""): route.dispatch.mode,
        ("balance", ""): route.dispatch.balance,
        ("home", ""): route.dispatch.home,
        ("allow empty", ""): _yes(route.dispatch.allow_empty),
        ("split groups", ""): _yes(route.dispatch.split_groups),
        ("equal counts", ""): _yes(route.dispatch.equal_counts),
        ("bytes a step", ""): route.bytes,
        ("over", ""): route.over,
    }


def _weights(topology: Topology) -> dict[str, tuple[Flow, str, str]]:
    """With the layouts of both ends."""
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
    """Those that vanish, and those that appear: a warning is the same where it says the same."""
    olds, news = (
        [(warning.code, warning.message) for warning in topology.warnings] for topology in (before, after)
    )
    yield from (
        Change("warnings", code, "removed", (Fact("message", said, None),))
        for code, said in _without(olds, news)
    )
    yield from (
        Change("warnings", code, "added", (Fact("message", None, said),))
        for code, said in _without(news, olds)
    )


def _without(some: Iterable[tuple[str, str]], others: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    left = set(others)
    return [each for each in dict.fromkeys(some) if each not in left]
