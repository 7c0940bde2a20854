"""MC3xx: device groups and the devices they take."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.folders import files, is_file
from meshctl.recipe.model import DeviceGroup
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.words import counted, did_you_mean, listed, nearest


def some_group(facts: Facts) -> Iterator[Diagnostic]:
    if not facts.recipe.groups and facts.right("groups"):
        help = "say where it runs: groups: {train: {ranks: 2, device_type: cpu}}"
        yield Diagnostic("MC300", "the recipe has no device group", facts.key("groups"), help=help)


def list_on_cpu(facts: Facts) -> Iterator[Diagnostic]:
    for name, group in facts.recipe.groups.items():
        if group.device_type == "cpu" and isinstance(group.ranks, tuple):
            says = facts.value("groups", name, "device_type").with_word("`device_type` is cpu")
            message = f"`ranks` of the cpu group `{name}` is a count of processes, not a list"
            yield Diagnostic("MC302", message, facts.value("groups", name, "ranks"), (says,), f"write {len(group.ranks)}")


def only_with_devices(facts: Facts) -> Iterator[Diagnostic]:
    """Keys that mean nothing on cpu."""
    for name, group in facts.recipe.groups.items():
        for key, given in (("gpus_per_worker", group.gpus_per_worker > 1), ("visible_devices", group.visible_devices)):
            if group.device_type == "cpu" and given:
                yield Diagnostic("MC308", f"`{key}` is for devices, group `{name}` is on cpu", facts.key("groups", name, key))
        if group.device_type == "cpu" and group.colocate:
            message = f"`colocate` shares devices, group `{name}` is on cpu"
            yield Diagnostic("MC308", message, facts.key("groups", name, "colocate"), help="remove it: cpu groups share the machine anyway")


def divides(facts: Facts) -> Iterator[Diagnostic]:
    for name, group in facts.recipe.groups.items():
        each = group.gpus_per_worker
        if group.device_type == "cpu" or not group.devices or group.devices % each == 0:
            continue
        ranks = facts.value("groups", name, "ranks").with_word(f"`{name}` has {counted(group.devices, 'device')}")
        fits = [str(size) for size in range(1, group.devices + 1) if group.devices % size == 0]
        message = f"`gpus_per_worker` {each} does not divide the {group.devices} devices of group `{name}`"
        yield Diagnostic("MC303", message, facts.value("groups", name, "gpus_per_worker"), (ranks,), f"these do: {', '.join(fits[:8])}")


def one_node_each(facts: Facts) -> Iterator[Diagnostic]:
    """A worker's devices are neighbours on one node."""
    if facts.placed is None:
        return
    per_node = facts.placed.cluster.devices_per_node
    for name, group in facts.recipe.groups.items():
        each = group.gpus_per_worker
        if group.device_type == "cpu" or each == 1 or group.devices % each or name in facts.placed.beyond:
            continue
        numbers = [number for start, stop in facts.placed.devices[name] for number in range(start, stop)]
        for worker in range(len(numbers) // each):
            mine = numbers[worker * each : (worker + 1) * each]
            if mine[-1] - mine[0] != each - 1 or mine[0] // per_node != mine[-1] // per_node:
                says = facts.value("groups", name, "ranks").with_word(f"worker {worker} would have the devices {', '.join(map(str, mine))}")
                message = f"`gpus_per_worker` {each}: a worker's devices must be neighbours on one node of {per_node}"
                yield Diagnostic("MC304", message, facts.value("groups", name, "gpus_per_worker"), (says,))
                break


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
            yield Diagnostic("MC305", f"there is no group `{group.colocate}` to share devices with", span, help=help)
        elif host is None:
            continue
        elif _circle(name, groups):
            yield Diagnostic("MC305", f"group `{name}` shares devices with itself", span)
        elif host.device_type and group.device_type and host.device_type != group.device_type:
            says = facts.value("groups", host.name, "device_type").with_word(f"`{host.name}` is on {host.device_type}")
            yield Diagnostic(
                "MC305", f"group `{name}` is on {group.device_type}, it cannot share the devices of `{host.name}`", span, (says,)
            )
        elif isinstance(group.ranks, int) and group.devices > host.devices > 0:
            says = facts.value("groups", host.name, "ranks").with_word(f"`{host.name}` has {counted(host.devices, 'device')}")
            message = f"group `{name}` shares {counted(group.devices, 'device')} with `{host.name}`, which has {host.devices}"
            yield Diagnostic("MC306", message, facts.value("groups", name, "ranks"), (says,), f"write {host.devices} or less")


def _circle(name: str, groups: object) -> bool:
    seen: list[str] = []
    here = name
    while isinstance(groups, dict) and here in groups and here not in seen:
        seen.append(here)
        here = groups[here].colocate
    return here == name


def disjoint(facts: Facts) -> Iterator[Diagnostic]:
    """Two groups on one device say so."""
    if facts.placed is None:
        return
    placed = [group for group in facts.recipe.groups.values() if group.device_type != "cpu"]
    own = [group for group in placed if not (group.colocate and isinstance(group.ranks, int))]
    for one, other in combinations(own, 2):
        if _host(facts, one) == _host(facts, other):
            continue
        shared = _shared(facts, one.name, other.name)
        if shared is not None:
            says = facts.value("groups", one.name, "ranks").with_word(f"`{one.name}` has it too")
            message = f"device {shared} is in both `{one.name}` and `{other.name}`"
            help = f"give them different devices, or say `colocate: {one.name}` in `{other.name}`"
            yield Diagnostic("MC307", message, facts.value("groups", other.name, "ranks"), (says,), help)


def _host(facts: Facts, group: DeviceGroup) -> str:
    """The group at the end of a chain of `colocate`."""
    seen = [group.name]
    while group.colocate in facts.recipe.groups and group.colocate not in seen:
        group = facts.recipe.groups[group.colocate]
        seen.append(group.name)
    return group.name


def _shared(facts: Facts, one: str, other: str) -> int | None:
    """The first device that two groups have."""
    devices = facts.placed.devices if facts.placed else {}
    both = [max(a[0], b[0]) for a in devices.get(one, ()) for b in devices.get(other, ()) if max(a[0], b[0]) < min(a[1], b[1])]
    return min(both, default=None)


def enough_devices(facts: Facts) -> Iterator[Diagnostic]:
    """What the cluster says is enough for all groups."""
    if facts.placed is None or not facts.placed.beyond:
        return
    cluster = facts.placed.cluster
    said = "devices_per_node" if facts.recipe.cluster.devices_per_node else "nodes"
    total = cluster.nodes * cluster.devices_per_node
    where = facts.value("cluster", said).with_word(
        f"{counted(cluster.nodes, 'node')} x {cluster.devices_per_node} = {counted(total, 'device')}"
    )
    for name, device in facts.placed.beyond.items():
        ranks = facts.recipe.groups[name].ranks
        wants = f"device {device}" if isinstance(ranks, tuple) else counted(ranks, "device")
        needed = max(stop for runs in facts.placed.devices.values() for _, stop in runs)
        message = f"group `{name}` wants {wants}, the cluster has {total}"
        help = f"all groups together need {needed}: say `cluster.devices_per_node: {-(-needed // cluster.nodes)}`, or leave `cluster` out"
        yield Diagnostic("MC309", message, facts.value("groups", name, "ranks"), (where,), help)


def enough_visible(facts: Facts) -> Iterator[Diagnostic]:
    """`visible_devices` names as many as the group takes on a node."""
    if facts.placed is None:
        return
    per_node = facts.placed.cluster.devices_per_node
    for name, group in facts.recipe.groups.items():
        if not group.visible_devices or group.device_type == "cpu" or name in facts.placed.beyond:
            continue
        on_node: dict[int, int] = {}
        for start, stop in facts.placed.devices[name]:
            for node in range(start // per_node, (stop - 1) // per_node + 1):
                on_node[node] = on_node.get(node, 0) + min(stop, (node + 1) * per_node) - max(start, node * per_node)
        most = max(on_node.values(), default=0)
        if len(group.visible_devices) < most:
            says = facts.value("groups", name, "ranks").with_word(f"`{name}` takes {counted(most, 'device')} of a node")
            message = f"`visible_devices` names {counted(len(group.visible_devices), 'device')}, group `{name}` takes {most} of a node"
            yield Diagnostic("MC310", message, facts.value("groups", name, "visible_devices"), (says,))


def program_or_components(facts: Facts) -> Iterator[Diagnostic]:
    for name, group in facts.recipe.groups.items():
        components = facts.recipe.components_of(name)
        if group.program and components:
            says = facts.value("components", components[0].name, "group").with_word(f"`{components[0].name}` runs on `{name}`")
            message = f"group `{name}` runs a program, it cannot host components too"
            yield Diagnostic("MC312", message, facts.key("groups", name, "program"), (says,), "use two groups")
        elif not group.program and not components and facts.right("groups", name) and _all_homes_known(facts):
            help = f"say `group: {name}` in a component, or `program: SCRIPT` in the group"
            yield Diagnostic("MC311", f"group `{name}` runs nothing", facts.key("groups", name), help=help)


def known_script(facts: Facts) -> Iterator[Diagnostic]:
    """A program is looked for where it runs, beside the recipe and in the working directory."""
    for name, group in facts.recipe.groups.items():
        program = group.program
        if program is None or not program.script or "{" in program.script or program.script.startswith("-"):
            continue
        own = [Path(folder) for folder in facts.code.own]
        folders = [own[0] / program.cwd, *own] if program.cwd and own else own
        if any(is_file(folder / program.script) for folder in folders):
            continue
        near = nearest(program.script, [path.name for folder in folders for path in files(folder, ".py")])
        help = f"did you mean `{near}`?" if near else f"looked in {listed(dict.fromkeys(map(str, folders)))}"
        yield Diagnostic("MC313", f"there is no program `{program.script}`", facts.value("groups", name, "program"), help=help)


def _all_homes_known(facts: Facts) -> bool:
    """A component with a wrong group may be the one that is missing."""
    return all(component.group in facts.recipe.groups for component in facts.recipe.components.values())


RULES = (
    some_group,
    list_on_cpu,
    only_with_devices,
    divides,
    one_node_each,
    known_host,
    disjoint,
    enough_devices,
    enough_visible,
    program_or_components,
    known_script,
)
