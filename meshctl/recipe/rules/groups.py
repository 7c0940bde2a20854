"""MC3xx: device groups and the devices they take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.compose.folders import files, is_dir, is_file
from meshctl.recipe.fixes import renamed
from meshctl.recipe.model import DeviceGroup
from meshctl.recipe.rules.facts import Facts, node_counts
from meshctl.text.english import counted, did_you_mean, listed, nearest
from meshctl.topology.allocation import (
    Allocation,
    DeviceRanges,
    first_common_device,
    first_split_worker,
    host_of,
    least_per_node,
    most_per_node,
)
from meshctl.topology.cluster import DEVICE_ALIASES

SHOWN = 8
"""So many numbers are listed."""
NAMES = {"cuda": r"\d+|(GPU|MIG)-[\w./-]+", "npu": r"\d+"}
"""What the hardware calls a device."""


def some_group(facts: Facts) -> Iterator[Diagnostic]:
    if not facts.recipe.groups and facts.right("groups"):
        help = "say where it runs: groups: {train: {ranks: 2, device_type: cpu}}"
        yield Diagnostic("MC300", "the recipe has no device group", facts.key("groups"), help=help)


def list_on_cpu(facts: Facts) -> Iterator[Diagnostic]:
    for name, group in facts.recipe.groups.items():
        if group.device_type == "cpu" and isinstance(group.ranks, tuple):
            says = facts.value("groups", name, "device_type").with_word("`device_type` is cpu")
            message = f"`ranks` of the cpu group `{name}` is a count of processes, not a list"
            yield Diagnostic(
                "MC302", message, facts.value("groups", name, "ranks"), (says,), f"write {len(group.ranks)}"
            )


def only_with_devices(facts: Facts) -> Iterator[Diagnostic]:
    """Keys that mean nothing on cpu."""
    for name, group in facts.recipe.groups.items():
        for key, given in (
            ("gpus_per_worker", group.gpus_per_worker > 1),
            ("visible_devices", group.visible_devices),
        ):
            if group.device_type == "cpu" and given:
                yield Diagnostic(
                    "MC308",
                    f"`{key}` is for devices, group `{name}` is on cpu",
                    facts.key("groups", name, key),
                )
        if group.device_type == "mps" and group.visible_devices:
            message = f"`visible_devices` is for cuda and npu, group `{name}` is on mps"
            yield Diagnostic(
                "MC308",
                message,
                facts.key("groups", name, "visible_devices"),
                help="remove it: a machine has one mps device",
            )
        if group.device_type == "cpu" and group.colocate:
            message = f"`colocate` shares devices, group `{name}` is on cpu"
            yield Diagnostic(
                "MC308",
                message,
                facts.key("groups", name, "colocate"),
                help="remove it: cpu groups share the machine anyway",
            )


def divides(facts: Facts) -> Iterator[Diagnostic]:
    for name, group in facts.recipe.groups.items():
        each = group.gpus_per_worker
        if group.device_type == "cpu" or not group.devices or group.devices % each == 0:
            continue
        ranks = facts.value("groups", name, "ranks").with_word(
            f"`{name}` has {counted(group.devices, 'device')}"
        )
        fits = [str(size) for size in range(1, group.devices + 1) if group.devices % size == 0]
        message = f"`gpus_per_worker` {each} does not divide the {group.devices} devices of group `{name}`"
        yield Diagnostic(
            "MC303",
            message,
            facts.value("groups", name, "gpus_per_worker"),
            (ranks,),
            f"these do: {', '.join(fits[:8])}",
        )


def counts_of_nodes(facts: Facts) -> Iterator[Diagnostic]:
    """A list of devices by node has a number for each node."""
    (said, count), *others = [*node_counts(facts.recipe.cluster).items()] or [((), 0)]
    for key, nodes in others:
        if nodes != count and facts.right("cluster"):
            says = cluster_value(facts, *said).with_word(
                f"`{'.'.join(said)}` {'is' if said == ('nodes',) else 'lists'} {count}"
            )
            message = f"`{'.'.join(key)}` lists {counted(nodes, 'node')}, the cluster has {count}"
            help = (
                "give a number for each node, or leave `nodes` out"
                if said == ("nodes",)
                else "give a number for each node"
            )
            yield Diagnostic("MC315", message, cluster_value(facts, *key), (says,), help)


def cluster_value(facts: Facts, *path: str) -> Span:
    """A value of `cluster`, where the recipe may say `gpu` for cuda."""
    node = facts.written.node("cluster", *path[:-1])
    also = (
        [key for key, _ in node.items() if DEVICE_ALIASES.get(key.lower(), key.lower()) == path[-1]]
        if node
        else []
    )
    return facts.value("cluster", *path[:-1], *(also[:1] or path[-1:]))


def one_node_each(facts: Facts) -> Iterator[Diagnostic]:
    """A worker's devices are neighbours on one node."""
    if facts.allocation is None:
        return
    for name, group in facts.recipe.groups.items():
        each, runs = group.gpus_per_worker, facts.allocation.devices[name]
        if group.device_type == "cpu" or each == 1 or group.devices % each or name in facts.allocation.beyond:
            continue
        worker = first_split_worker(runs, each, facts.allocation.cluster, group.device_type)
        if worker is not None:
            says = facts.value("groups", name, "ranks").with_word(
                f"worker {worker} would have the devices {_devices(runs, worker, each)}"
            )
            sizes = sorted(
                {size for _, size in facts.allocation.cluster.devices_per_node[group.device_type] if size},
                reverse=True,
            )
            message = f"`gpus_per_worker` {each}: a worker's devices must be neighbours on one node of {' or '.join(map(str, sizes[:8]))}"
            yield Diagnostic("MC304", message, facts.value("groups", name, "gpus_per_worker"), (says,))


def _devices(runs: DeviceRanges, worker: int, each: int) -> str:
    """The numbers of a worker's devices, the first eight."""
    skip, found = worker * each, list[int]()
    for start, stop in runs:
        first = min(start + skip, stop)
        found += range(first, min(first + min(each, SHOWN + 1) - len(found), stop))
        skip -= first - start
    return ", ".join([*map(str, found[:SHOWN]), *(["..."] if each > SHOWN else [])])


def known_host(facts: Facts) -> Iterator[Diagnostic]:
    """`colocate` names another group, of the same kind, without a circle."""
    groups = facts.recipe.groups
    for name, group in groups.items():
        span = facts.value("groups", name, "colocate")
        if not group.colocate or group.device_type == "cpu":
            continue
        host = groups.get(group.colocate)
        if host is None and not facts.names("groups", group.colocate):
            help = did_you_mean(group.colocate, [other for other in groups if other != name])
            message, fixes = (
                f"there is no group `{group.colocate}` to share devices with",
                renamed(span, group.colocate, [*groups]),
            )
            yield Diagnostic("MC305", message, span, help=help, fixes=fixes)
        elif host is None:
            continue
        elif _circle(name, groups):
            yield Diagnostic("MC305", f"group `{name}` shares devices with itself", span)
        elif host.device_type and group.device_type and host.device_type != group.device_type:
            says = facts.value("groups", host.name, "device_type").with_word(
                f"`{host.name}` is on {host.device_type}"
            )
            yield Diagnostic(
                "MC305",
                f"group `{name}` is on {group.device_type}, it cannot share the devices of `{host.name}`",
                span,
                (says,),
            )
        elif isinstance(group.ranks, int) and group.devices > host.devices > 0:
            says = facts.value("groups", host.name, "ranks").with_word(
                f"`{host.name}` has {counted(host.devices, 'device')}"
            )
            message = f"group `{name}` shares {counted(group.devices, 'device')} with `{host.name}`, which has {host.devices}"
            yield Diagnostic(
                "MC306",
                message,
                facts.value("groups", name, "ranks"),
                (says,),
                f"write {host.devices} or less",
            )


def _circle(name: str, groups: object) -> bool:
    seen: list[str] = []
    here = name
    while isinstance(groups, dict) and here in groups and here not in seen:
        seen.append(here)
        here = groups[here].colocate
    return here == name


def disjoint(facts: Facts) -> Iterator[Diagnostic]:
    """Two groups on one device say so; cuda 0 and npu 0 are two."""
    if facts.allocation is None:
        return
    placed = [group for group in facts.recipe.groups.values() if group.device_type != "cpu"]
    own = [group for group in placed if not (group.colocate and isinstance(group.ranks, int))]
    for one, other in combinations(own, 2):
        if one.device_type != other.device_type or host_of(facts.recipe.groups, one.name) == host_of(
            facts.recipe.groups, other.name
        ):
            continue
        device = first_common_device(facts.allocation.devices[one.name], facts.allocation.devices[other.name])
        if device is not None:
            says = facts.value("groups", one.name, "ranks").with_word(f"`{one.name}` has it too")
            message = f"device {device} is in both `{one.name}` and `{other.name}`"
            help = f"give them different devices, or say `colocate: {one.name}` in `{other.name}`"
            yield Diagnostic("MC307", message, facts.value("groups", other.name, "ranks"), (says,), help)


def enough_devices(facts: Facts) -> Iterator[Diagnostic]:
    """What the cluster says is enough for all groups."""
    if facts.allocation is None:
        return
    for name, device in facts.allocation.beyond.items():
        group = facts.recipe.groups[name]
        total = facts.allocation.cluster.total(group.device_type)
        wants = f"device {device}" if isinstance(group.ranks, tuple) else counted(group.ranks, "device")
        has = f"{total} of {group.device_type}" if _several_types(facts) else str(total)
        where, help = _hardware(facts, group.device_type)
        message = f"group `{name}` wants {wants}, the cluster has {has}"
        yield Diagnostic("MC309", message, facts.value("groups", name, "ranks"), (where,), help)


def one_mps_each(facts: Facts) -> Iterator[Diagnostic]:
    """No machine has a second mps device, whatever the cluster is said to have."""
    if facts.allocation is None:
        return
    for name, group in facts.recipe.groups.items():
        if group.device_type != "mps" or name in facts.allocation.beyond:
            continue
        pieces = (
            piece
            for run in facts.allocation.devices[name]
            for piece in facts.allocation.cluster.pieces("mps", *run)
        )
        if any(piece.number + piece.each > 1 for piece in pieces):
            message = f"group `{name}` wants a second mps device of a machine, and a machine has one"
            help = "say `cluster: {nodes: N, devices_per_node: {mps: 1}}`, or `device_type: cpu`"
            yield Diagnostic("MC309", message, facts.value("groups", name, "ranks"), help=help)


def _several_types(facts: Facts) -> bool:
    return len({group.device_type for group in facts.recipe.groups.values()} - {"cpu"}) > 1


def _hardware(facts: Facts, kind: str) -> tuple[Span, str]:
    """Where the cluster says its devices of a type, with the sum of them; and what would be enough."""
    assert facts.allocation is not None
    cluster, each = facts.allocation.cluster, facts.recipe.cluster.devices_of(kind)
    total = counted(cluster.total(kind), "device")
    says = (
        f"{counted(cluster.nodes, 'node')} x {each} = {total}"
        if isinstance(each, int)
        else f"{counted(len(each), 'node')}: {total}"
    )
    key = ("devices_per_node", kind) if kind in facts.recipe.cluster.named else ("devices_per_node",)
    needed = max(
        stop
        for name, runs in facts.allocation.devices.items()
        for _, stop in runs
        if facts.recipe.groups[name].device_type == kind
    )
    enough = f"`cluster.{'.'.join(key)}: {least_per_node(facts.recipe.groups, kind, cluster.nodes)}`"
    who = f"all groups on {kind}" if _several_types(facts) else "all groups"
    left = "it" if len(key) > 1 else "`cluster`"
    return cluster_value(facts, *key).with_word(
        says
    ), f"{who} together need {needed}: say {enough}, or leave {left} out"


def enough_visible(facts: Facts) -> Iterator[Diagnostic]:
    """`visible_devices` names as many as the group takes on a node."""
    if facts.allocation is None:
        return
    for name, group in facts.recipe.groups.items():
        if (
            not group.visible_devices
            or group.device_type == "cpu"
            or name in facts.allocation.beyond
            or _misnamed(group)
        ):
            continue
        if most := too_few_visible(facts.allocation, group):
            says = facts.value("groups", name, "ranks").with_word(
                f"`{name}` takes {counted(most, 'device')} of a node"
            )
            message = f"`visible_devices` names {counted(len(group.visible_devices), 'device')}, group `{name}` takes {most} of a node"
            yield Diagnostic("MC310", message, facts.value("groups", name, "visible_devices"), (says,))


def too_few_visible(placed: Allocation, group: DeviceGroup) -> int:
    """How many devices it takes on some node, where its `visible_devices` are fewer; else 0."""
    most = most_per_node(placed.devices[group.name], placed.cluster, group.device_type)
    return most if group.visible_devices and len(group.visible_devices) < most else 0


def _misnamed(group: DeviceGroup) -> bool:
    """Whether some of its `visible_devices` are no names; who knows how many they are then."""
    return not all(re.fullmatch(NAMES.get(group.device_type, ".*"), name) for name in group.visible_devices)


def names_of_devices(facts: Facts) -> Iterator[Diagnostic]:
    """`visible_devices` are names that the driver knows, each once; at others it sees nothing, and says
    nothing."""
    for name, group in facts.recipe.groups.items():
        names, kind = group.visible_devices, group.device_type
        if kind not in NAMES or not facts.right("groups", name, "visible_devices"):
            continue
        for index, given in enumerate(names):
            path = ("groups", name, "visible_devices", str(index))
            span = facts.value(*(path if facts.names(*path) else path[:-1]))
            if not re.fullmatch(NAMES[kind], given):
                help = 'write indices, "0,1"' + (", or UUIDs: GPU-..., MIG-..." if kind == "cuda" else "")
                yield Diagnostic("MC316", f"`{given}` names no {kind} device", span, help=help)
            elif given in names[:index]:
                yield Diagnostic(
                    "MC316", f"`visible_devices` of group `{name}` names device {given} twice", span
                )


def program_or_components(facts: Facts) -> Iterator[Diagnostic]:
    for name, group in facts.recipe.groups.items():
        components = facts.recipe.components_of(name)
        if group.program and components:
            says = facts.value("components", components[0].name, "group").with_word(
                f"`{components[0].name}` runs on `{name}`"
            )
            message = f"group `{name}` runs a program, it cannot host components too"
            yield Diagnostic(
                "MC312", message, facts.key("groups", name, "program"), (says,), "use two groups"
            )
        elif not group.program and not components and facts.right("groups", name) and _all_homes_known(facts):
            help = f"say `group: {name}` in a component, or `program: SCRIPT` in the group"
            yield Diagnostic("MC311", f"group `{name}` runs nothing", facts.key("groups", name), help=help)


def known_script(facts: Facts) -> Iterator[Diagnostic]:
    """A program is looked for where it runs, beside the recipe and in the working directory."""
    for name, group in facts.recipe.groups.items():
        program = group.program
        own = [Path(folder) for folder in facts.code.own]
        if (
            program
            and program.module
            and not program.python
            and not program.cwd
            and facts.code.module(program.module) is None
        ):
            span = facts.value("groups", name, "program", "module")
            yield Diagnostic(
                "MC313",
                f"there is no module `{program.module}`",
                span,
                help=f"looked in {_looked(own)}, and among what is installed",
            )
        if program and program.cwd and "{" not in program.cwd and own and not is_dir(own[0] / program.cwd):
            span = facts.value("groups", name, "cwd")
            yield Diagnostic(
                "MC313", f"there is no folder `{program.cwd}`", span, help=f"it is relative to `{own[0]}`"
            )
            continue
        if program is None or not program.script or "{" in program.script or program.script.startswith("-"):
            continue
        folders = [own[0] / program.cwd, *own] if program.cwd and own else own
        if any(is_file(folder / program.script) for folder in folders):
            continue
        near = nearest(program.script, [path.name for folder in folders for path in files(folder, ".py")])
        help = f"did you mean `{near}`?" if near else f"looked in {_looked(folders)}"
        script, *arguments = program.script.split() or [""]
        if arguments and any(is_file(folder / script) for folder in folders):
            help = f"its arguments are said apart: program: {script}, args: [{', '.join(arguments)}]"
        yield Diagnostic(
            "MC313",
            f"there is no program `{program.script}`",
            facts.value("groups", name, "program"),
            help=help,
        )


def _looked(folders: Iterable[Path]) -> str:
    return listed(dict.fromkeys(map(str, folders)))


def _all_homes_known(facts: Facts) -> bool:
    """A component with a wrong group may be the one that is missing."""
    return all(component.group in facts.recipe.groups for component in facts.recipe.components.values())


RULES = (
    some_group,
    list_on_cpu,
    only_with_devices,
    divides,
    counts_of_nodes,
    one_node_each,
    known_host,
    disjoint,
    enough_devices,
    one_mps_each,
    enough_visible,
    names_of_devices,
    program_or_components,
    known_script,
)
