"""MC303 to MC326 and MC42x: the devices of groups, their hardware names, the devices of the cluster, the
nodes and node pools on which groups are placed, and layouts that are correct but waste resources.

`visible_devices` lists hardware names. Without it, the hardware name of a device is its number on the node,
unless the launcher's environment selects and renumbers devices. A conflict with a group without
`visible_devices` is therefore a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from math import gcd

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.allocation import Allocation, allocate, host_of, least_per_node
from meshctl.recipe.model import DeviceGroup
from meshctl.recipe.rules.facts import Facts, node_counts
from meshctl.recipe.rules.meshes import Placed
from meshctl.text.english import counted, did_you_mean, in_words, listed
from meshctl.topology.cluster import Cluster as PlacedCluster
from meshctl.topology.device_ranges import (
    DeviceRanges,
    clipped,
    common,
    device_count,
    devices_on,
    first_common_device,
    first_split_worker,
    gaps_between,
)
from meshctl.topology.mesh import DIMS
from meshctl.topology.placement import NodeRun, node_runs, span_nodes
from meshctl.topology.sizes import divisors

MAX_LISTED = 8
"""Maximum number of devices that a message lists."""
MAX_NAMED = 4096
"""Maximum number of a group's devices whose hardware names are compared."""
NAME_PATTERNS = {"cuda": r"\d+|(GPU|MIG)-[\w./-]+", "npu": r"\d+"}
"""Device type -> pattern of its hardware names."""
SET_BY_TORCHRUN = {
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
}
"""Variables that torchrun sets for each worker, overriding the group's `env`."""
SET_BY_MESHCTL = {
    "cuda": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "npu": ("ASCEND_RT_VISIBLE_DEVICES",),
}
"""Device type -> variables with which meshctl assigns devices to workers. The group's `env` would override
them."""


# Counts


def workers_divide_devices(facts: Facts, group: DeviceGroup) -> Iterator[Diagnostic]:
    name = group.name
    each, devices = group.gpus_per_worker, group.devices
    if group.device_type == "cpu" or not devices or devices % each == 0:
        return
    has = f"`{name}` has {counted(devices, 'device')}"
    seconds = (facts.value("groups", name, "ranks").with_word(has),)
    message = f"`gpus_per_worker` {each} does not divide the {devices} devices of group `{name}`"
    help = f"use {listed(map(str, divisors(devices)[:MAX_LISTED]), 'or')}"
    yield Diagnostic("MC303", message, facts.value("groups", name, "gpus_per_worker"), seconds, help)


def node_counts_agree(facts: Facts) -> Iterator[Diagnostic]:
    """A list in `devices_per_node` has one number per node of the cluster."""
    counts = node_counts(facts.recipe.cluster)
    if not counts or not facts.is_valid("cluster"):
        return
    (first, count), *others = counts.items()
    is_number = first == ("nodes",) and not facts.recipe.cluster.pools
    for key, nodes in others:
        if nodes != count:
            stated = f"`{'.'.join(first)}` {'is' if is_number else 'has'} {count}"
            seconds = (facts.cluster_value(*first).with_word(stated),)
            message = f"`{'.'.join(key)}` lists {counted(nodes, 'node')}, but the cluster has {count}"
            help = "write one number for each node" + (", or remove `nodes`" if is_number else "")
            yield Diagnostic("MC315", message, facts.cluster_value(*key), seconds, help)


def workers_stay_on_node(facts: Facts) -> Iterator[Diagnostic]:
    """The devices of a worker are consecutive and on one node."""
    for group, devices, allocation in _allocated(facts):
        each = group.gpus_per_worker
        if each == 1 or group.devices % each:
            continue
        worker = first_split_worker(devices, each, allocation.cluster, group.device_type)
        if worker is None:
            continue
        seconds = (facts.value("groups", group.name, "ranks").with_word(f"{each} devices each"),)
        sizes = {size for _, size in allocation.cluster.devices_per_node[group.device_type] if size}
        nodes = f"from {min(sizes)} to {max(sizes)}" if len(sizes) > 1 else f"{min(sizes)}"
        message = f"worker {worker} of group `{group.name}` has devices that are not adjacent on one node"
        span = facts.value("groups", group.name, "gpus_per_worker")
        help = f"a node has {nodes} devices: use another `gpus_per_worker`, or a count as `ranks`"
        yield Diagnostic("MC304", message, span, seconds, help)


def _allocated(facts: Facts) -> Iterator[tuple[DeviceGroup, DeviceRanges, Allocation]]:
    """Yields (group, devices, allocation) for each group whose devices exist in the cluster."""
    allocation = facts.allocation
    for name, group in facts.recipe.groups.items() if allocation else ():
        if allocation and group.device_type != "cpu" and name not in allocation.beyond:
            yield group, allocation.devices[name], allocation


def devices_are_disjoint(facts: Facts) -> Iterator[Diagnostic]:
    """Groups share devices only with `colocate`. Devices of different types are different devices."""
    groups, allocation = facts.recipe.groups, facts.allocation
    if allocation is None:
        return
    on_devices = [group for group in groups.values() if group.device_type != "cpu"]
    own = [group for group in on_devices if not (group.colocate and isinstance(group.ranks, int))]
    for one, other in combinations(own, 2):
        if one.device_type != other.device_type or host_of(groups, one.name) == host_of(groups, other.name):
            continue
        device = first_common_device(allocation.devices[one.name], allocation.devices[other.name])
        if device is not None:
            seconds = (facts.value("groups", one.name, "ranks").with_word(f"`{one.name}` also has it"),)
            message = f"device {device} is in both `{one.name}` and `{other.name}`"
            help = f"give them different devices, or write `colocate: {one.name}` in `{other.name}`"
            span = facts.value("groups", other.name, "ranks")
            yield Diagnostic("MC307", message, span, seconds, help)


def cluster_has_devices(facts: Facts) -> Iterator[Diagnostic]:
    """The cluster has the devices of all groups. Groups without enough devices are reported together, per
    device type."""
    allocation, groups = facts.allocation, facts.recipe.groups
    by_type: dict[str, list[str]] = {}
    if allocation is None:
        return
    beyond = allocation.beyond
    for name in beyond:
        group = groups[name]
        is_hosted = bool(group.colocate) and host_of(groups, name) in beyond
        if isinstance(group.ranks, tuple) or not is_hosted:
            by_type.setdefault(group.device_type, []).append(name)
    for kind, names in by_type.items():
        lists = [name for name in names if isinstance(groups[name].ranks, tuple)]
        counts = [name for name in names if name not in lists]
        if lists:
            yield _beyond(facts, allocation, kind, lists, counts)
        else:
            yield _too_small(facts, allocation, kind, counts)


def _beyond(
    facts: Facts, allocation: Allocation, kind: str, lists: list[str], counts: list[str]
) -> Diagnostic:
    """Returns the diagnostic for groups with a device that the cluster does not have. `counts` are further
    groups for which it has too few devices."""
    groups, total, spans = facts.recipe.groups, allocation.cluster.total(kind), dict[str, Span]()
    for name in lists:
        ranks, device = groups[name].ranks, allocation.beyond[name]
        index = ranks.index(device) if isinstance(ranks, tuple) and device in ranks else 0
        spans[name] = facts.item("groups", name, "ranks", index=index)
    first, *more = lists
    numbered = f"the cluster has {total}" + (f", numbered from 0 to {total - 1}" if total else "")
    message = f"group `{first}` needs device {allocation.beyond[first]}, but {numbered}"
    others = [spans[name].with_word(f"`{name}` needs it") for name in more]
    others += [_needs_span(facts, name) for name in counts]
    second, help = _hardware(facts, allocation, kind)
    ranks = groups[first].ranks
    if isinstance(ranks, tuple) and max(ranks) == total:
        help = f"devices count from 0: list {total - 1} as the last one"
    return Diagnostic("MC309", message, spans[first], (second, *others[:MAX_LISTED]), help)


def _too_small(facts: Facts, allocation: Allocation, kind: str, names: list[str]) -> Diagnostic:
    groups, total = facts.recipe.groups, allocation.cluster.total(kind)
    others = {
        name: group.devices
        for name, group in groups.items()
        if group.device_type == kind and name not in allocation.beyond and not group.colocate
    }
    free = max(0, total - sum(others.values()))
    of = f"the cluster's {total}" + (f" {kind} devices" if _has_several_types(facts) else "")
    taken = ", ".join(f"`{name}` has {devices}" for name, devices in others.items())
    needs = f"group `{names[0]}` needs {counted(groups[names[0]].devices, 'device')}"
    message = f"{needs}, but {free} of {of} {'is' if free == 1 else 'are'} free" + f" ({taken})" * bool(taken)
    seconds, help = _hardware(facts, allocation, kind)
    beyond = tuple(_needs_span(facts, name) for name in names[1 : MAX_LISTED + 1])
    return Diagnostic("MC309", message, facts.value("groups", names[0], "ranks"), (seconds, *beyond), help)


def _needs_span(facts: Facts, group: str) -> Span:
    needs = f"`{group}` needs {counted(facts.recipe.groups[group].devices, 'device')}"
    return facts.value("groups", group, "ranks").with_word(needs)


def _has_several_types(facts: Facts) -> bool:
    return len({group.device_type for group in facts.recipe.groups.values()} - {"cpu"}) > 1


def _hardware(facts: Facts, allocation: Allocation, kind: str) -> tuple[Span, str]:
    """Returns (span of the number of devices in `cluster`, labelled with their sum; help with a number that
    is enough)."""
    recipe, cluster = facts.recipe, allocation.cluster
    each = recipe.cluster.devices_of(kind)
    total, nodes = counted(cluster.total(kind), "device"), counted(cluster.nodes, "node")
    word = f"{nodes} x {each} = {total}" if isinstance(each, int) else f"{nodes}: {total}"
    of_type = [
        ranges for name, ranges in allocation.devices.items() if recipe.groups[name].device_type == kind
    ]
    needed = max(stop for ranges in of_type for _, stop in ranges)
    who = f"all groups on {kind}" if _has_several_types(facts) else "all groups"
    together = f"{who} together need {needed}"
    if recipe.cluster.pools:
        help = f"{together}: write more nodes, or more `devices`, in a node pool"
        return facts.cluster_value("nodes").with_word(word), help
    key = ("devices_per_node", kind) if kind in recipe.cluster.named else ("devices_per_node",)
    on = {name: recipe.cluster.ranges_of(group.nodes) for name, group in recipe.groups.items() if group.nodes}
    enough = f"`cluster.{'.'.join(key)}: {least_per_node(recipe.groups, kind, cluster.nodes, on)}`"
    more = replace(recipe.cluster, nodes=-(-needed // each)) if isinstance(each, int) and each else None
    if len(key) == 1 and more and not allocate(recipe.groups, more).beyond:
        enough = f"`cluster.nodes: {more.nodes}` or {enough}"
    left_out = "it" if len(key) > 1 else "`cluster`"
    return facts.cluster_value(*key).with_word(word), f"{together}: write {enough}, or remove {left_out}"


def one_mps_device_per_node(facts: Facts) -> Iterator[Diagnostic]:
    """A node has at most one mps device, whatever `cluster` states."""
    for group, devices, allocation in _allocated(facts):
        if group.device_type != "mps":
            continue
        pieces = (piece for run in devices for piece in allocation.cluster.pieces("mps", *run))
        if any(piece.number + piece.each > 1 for piece in pieces):
            message = f"group `{group.name}` needs a second mps device of a machine, which has only one"
            help = "write `cluster: {nodes: N, devices_per_node: {mps: 1}}`, or `device_type: cpu`"
            yield Diagnostic("MC309", message, facts.value("groups", group.name, "ranks"), help=help)


# Names


def enough_devices_are_visible(facts: Facts) -> Iterator[Diagnostic]:
    """`visible_devices` names as many devices as the group uses on a node."""
    for group, _, _ in _allocated(facts):
        visible, name = group.visible_devices, group.name
        pattern = NAME_PATTERNS.get(group.device_type, ".*")
        are_names = all(re.fullmatch(pattern, device) for device in visible)
        if not are_names or not (needed := facts.devices_beyond_visible(group)):
            continue
        takes = f"`{name}` uses {counted(needed, 'device')} of a node"
        seconds = (facts.value("groups", name, "ranks").with_word(takes),)
        named = f"`visible_devices` lists {counted(len(visible), 'device')}"
        message = f"{named}, but group `{name}` uses {needed} of a node"
        yield Diagnostic("MC310", message, facts.value("groups", name, "visible_devices"), seconds)


def device_names_are_known(facts: Facts, group: DeviceGroup) -> Iterator[Diagnostic]:
    """`visible_devices` contains only names that the driver knows, each once. A driver ignores other names
    silently."""
    visible, kind = group.visible_devices, group.device_type
    if kind not in NAME_PATTERNS or not facts.is_valid("groups", group.name, "visible_devices"):
        return
    for index, device in enumerate(visible):
        path = ("groups", group.name, "visible_devices", str(index))
        span = facts.value(*(path if facts.is_named(*path) else path[:-1]))
        if not re.fullmatch(NAME_PATTERNS[kind], device):
            help = 'write indices, "0,1"' + (", or UUIDs: GPU-..., MIG-..." if kind == "cuda" else "")
            yield Diagnostic("MC316", f"`{device}` is not a valid {kind} device", span, help=help)
            break
        elif device in visible[:index]:
            message = f"`visible_devices` of group `{group.name}` lists device {device} twice"
            yield Diagnostic("MC316", message, span)


def hardware_is_disjoint(facts: Facts) -> Iterator[Diagnostic]:
    """Groups that are not colocated do not use the same hardware. Groups with more than `MAX_NAMED` devices
    are not checked."""
    groups = facts.recipe.groups
    if not any(group.visible_devices for group in groups.values()):
        return
    known = [
        (group, devices, _names(group, devices, allocation.cluster))
        for group, devices, allocation in _allocated(facts)
        if group.device_type in SET_BY_MESHCTL
        and group.devices <= MAX_NAMED
        and not facts.devices_beyond_visible(group)
        and facts.is_valid("groups", group.name, "visible_devices")
    ]
    for (one, devices, names), (other, others, their_names) in combinations(known, 2):
        are_apart = one.device_type == other.device_type and first_common_device(devices, others) is None
        if not are_apart or host_of(groups, one.name) == host_of(groups, other.name):
            continue
        common = names & their_names
        if common and (one.visible_devices or other.visible_devices):
            yield _seen_twice(facts, one, other, *min(common))


def _names(group: DeviceGroup, devices: DeviceRanges, cluster: PlacedCluster) -> set[tuple[int, str]]:
    """Returns (node, hardware name) of a group's devices. Their names are the first of `visible_devices`,
    otherwise their numbers."""
    numbers: dict[int, list[str]] = {}
    for piece in (piece for run in devices for piece in cluster.pieces(group.device_type, *run)):
        for node in range(piece.first_node, piece.first_node + piece.nodes):
            numbers.setdefault(node, []).extend(map(str, range(piece.number, piece.number + piece.each)))
    visible = group.visible_devices
    return {
        (node, name) for node, own in numbers.items() for name in (visible[: len(own)] if visible else own)
    }


def _seen_twice(facts: Facts, one: DeviceGroup, other: DeviceGroup, node: int, device: str) -> Diagnostic:
    kind = one.device_type
    if one.visible_devices and other.visible_devices:
        seconds = facts.value("groups", one.name, "visible_devices").with_word(f"`{one.name}` also sees it")
        message = f"`{one.name}` and `{other.name}` both see the {kind} device {device} of node {node}"
        span = facts.value("groups", other.name, "visible_devices")
        help = f"list other devices, or write `colocate: {one.name}` in `{other.name}`"
        return Diagnostic("MC317", message, span, (seconds,), help)
    named, numbered = (one, other) if one.visible_devices else (other, one)
    has = f"`{numbered.name}` has number {device} of node {node}"
    seconds = facts.value("groups", numbered.name, "ranks").with_word(has)
    sees = f"`{named.name}` sees the {kind} device {device} of node {node}"
    message = f"{sees}, which `{numbered.name}` also uses unless the devices are renumbered"
    span = facts.value("groups", named.name, "visible_devices")
    help = "write `visible_devices` in both groups, or in none"
    return Diagnostic("MC318", message, span, (seconds,), help, "warning")


def environment_keeps_devices(facts: Facts, group: DeviceGroup) -> Iterator[Diagnostic]:
    """`env` does not set variables that torchrun or meshctl sets for each worker."""
    name = group.name
    for variable, value in group.env:
        if value is None:
            continue
        span = facts.key("groups", name, "env", variable)
        if variable in SET_BY_TORCHRUN:
            message = f"`{variable}` is set by torchrun for each worker; the value in `env` is ignored"
            yield Diagnostic("MC321", message, span, help="remove it", severity="warning")
        elif variable in SET_BY_MESHCTL.get(group.device_type, ()):
            has = f"`{name}` has {counted(group.devices, f'{group.device_type} device')}"
            seconds = (facts.value("groups", name, "ranks").with_word(has),)
            takes_place = f"`{variable}` in `env` replaces the devices"
            message = f"{takes_place} that meshctl assigns to each worker of `{name}`"
            help = "remove it, or write it as `visible_devices`"
            yield Diagnostic("MC321", message, span, seconds, help, "warning")


def pools_state_their_devices(facts: Facts) -> Iterator[Diagnostic]:
    """`devices_per_node` is not written beside node pools, which state their own devices."""
    cluster = facts.recipe.cluster
    if cluster.pools and cluster.devices_per_node:
        pools = facts.key("cluster", "nodes").with_word(counted(len(cluster.pools), "node pool"))
        message = "`devices_per_node` is not used, because each node pool states its own devices"
        help = "remove it, and write `devices` in the node pools"
        yield Diagnostic("MC323", message, facts.key("cluster", "devices_per_node"), (pools,), help)


def named_nodes_exist(facts: Facts, group: DeviceGroup) -> Iterator[Diagnostic]:
    """`nodes` of a group names node pools and nodes of the cluster."""
    is_valid = facts.is_valid("cluster") and facts.is_valid("groups", group.name, "nodes")
    pools, allocation = [pool for pool, _ in facts.recipe.cluster.pools], facts.allocation
    for index, node in enumerate(group.nodes if is_valid else ()):
        help, second = "", tuple[Span, ...]()
        if isinstance(node, str) and node not in pools:
            message = f"group `{group.name}` is placed on `{node}`, which is not a node pool"
            help = (
                f"write `cluster: {{nodes: {{{node}: {{count: N, devices: M}}}}}}`, or the number of a node"
            )
            if pools:
                help = did_you_mean(node, pools)
                second = (facts.value("cluster", "nodes").with_word("the node pools"),)
        elif isinstance(node, int) and allocation and node >= (nodes := allocation.cluster.nodes):
            has = f"the nodes are 0 to {nodes - 1}" if nodes > 1 else "the only node is 0"
            message = f"group `{group.name}` is placed on node {node}, but {has}"
            if facts.node("cluster"):
                second = (facts.value("cluster").with_word(counted(nodes, "node")),)
        else:
            continue
        span = facts.item("groups", group.name, "nodes", index=index)
        yield Diagnostic("MC324", message, span, second, help)


def nodes_are_for_counts(facts: Facts, group: DeviceGroup) -> Iterator[Diagnostic]:
    """A group whose devices are decided otherwise does not name nodes."""
    name = group.name
    if not group.nodes or not facts.is_valid("groups", name, "nodes"):
        return
    if isinstance(group.ranks, tuple):
        key, word = "ranks", "`ranks` lists devices"
        help = f"write `ranks: {len(group.ranks)}`, or remove `nodes`"
    elif group.colocate and group.device_type != "cpu":
        key, word, help = "colocate", "these are its devices", "remove `nodes`"
    else:
        return
    message = f"`nodes` of group `{name}` contradicts `{key}`, which already determines its devices"
    second = facts.value("groups", name, key).with_word(word)
    yield Diagnostic("MC325", message, facts.key("groups", name, "nodes"), (second,), help)


def named_nodes_have_devices(facts: Facts, group: DeviceGroup) -> Iterator[Diagnostic]:
    """The nodes that a group names have enough free devices for it."""
    allocation, on = facts.allocation, facts.recipe.cluster.ranges_of(group.nodes)
    is_counted = isinstance(group.ranks, int) and not group.colocate and group.device_type != "cpu"
    if allocation is None or not on or not is_counted or on[-1][1] > allocation.cluster.nodes:
        return
    found = device_count(allocation.devices[group.name])
    if found < group.devices and group.devices % group.gpus_per_worker == 0:
        yield _too_few(facts, group, allocation, found)


def _too_few(facts: Facts, group: DeviceGroup, allocation: Allocation, found: int) -> Diagnostic:
    kind, cluster = group.device_type, allocation.cluster
    own = devices_on(cluster, kind, facts.recipe.cluster.ranges_of(group.nodes))
    total = device_count(own)
    taken = {
        other: count
        for other, ranges in allocation.devices.items()
        if other != group.name
        and facts.recipe.groups[other].device_type == kind
        and (count := device_count(common(own, ranges)))
    }
    where = in_words([f"`{node}`" if isinstance(node, str) else f"node {node}" for node in group.nodes])
    are = "is" if found == 1 else "are"
    has = f"{found} of {total} {kind} devices {are} free" if total else f"there are no {kind} devices"
    others = ", ".join(f"`{other}` has {count}" for other, count in taken.items())
    message = f"group `{group.name}` needs {counted(group.devices, 'device')} on {where}, where {has}"
    nodes = facts.value("groups", group.name, "nodes").with_word("its nodes")
    span = facts.value("groups", group.name, "ranks")
    help = "name other nodes, or remove `nodes`"
    return Diagnostic("MC326", message + (f" ({others})" if others else ""), span, (nodes,), help)


# Layouts that waste resources

MAX_TAKING = 3
"""Maximum number of groups whose devices a report about idle ones shows."""
SPANNING = {"tp": "MC420", "ep": "MC421", "etp": "MC422"}
"""Dims whose process groups communicate within every layer and therefore should not span nodes -> code of
the warning."""


# Idle devices


def devices_are_used(facts: Facts) -> Iterator[Diagnostic]:
    """Every device in `cluster` belongs to a group. Another rule reports a group that lacks devices."""
    allocation, recipe, groups = facts.allocation, facts.recipe, [*facts.recipe.groups.values()]
    if allocation is None or allocation.beyond:
        return
    if any(
        one.device_type != "cpu" and one.devices != device_count(allocation.devices[one.name])
        for one in groups
    ):
        return
    for kind, per_node in allocation.cluster.devices_per_node.items():
        own = [one.name for one in groups if one.device_type == kind]
        taken = sorted(some for name in own for some in allocation.devices[name])
        total = allocation.cluster.total(kind)
        idle = tuple(clipped(gaps_between(taken), 0, total))
        # A machine has at most one mps device, so a larger number is unreliable.
        is_counted = kind != "mps" or all(each <= 1 for _, each in per_node)
        if not idle or not is_counted or not recipe.cluster.devices_of(kind):
            continue
        takes = {one.name: counted(one.devices, "device") for one in groups if one.device_type == kind}
        seconds = tuple(
            facts.value("groups", name, "ranks").with_word(f"`{name}` takes {devices}")
            for name, devices in [*takes.items()][:MAX_TAKING]
        )
        are = "is" if device_count(idle) == 1 else "are"
        cluster, first = allocation.cluster, idle[0][0]
        message = f"{device_count(idle)} of {total} {kind} devices {are} not used by any group"
        span, node = _stated(facts, kind, first, cluster), cluster.node_of(kind, first)
        help = "give them to a group, or remove them from `cluster`"
        yield Diagnostic("MC320", f"{message}, the first on node {node}", span, seconds, help, "warning")


def _stated(facts: Facts, kind: str, device: int, cluster: PlacedCluster) -> Span:
    """Returns the span of the value to which a device belongs: in its node pool, or in `devices_per_node`."""
    node = cluster.node_of(kind, device)
    for pool in cluster.pools_on(((node, node + 1),)):
        return facts.value("cluster", "nodes", pool, "devices")
    return facts.cluster_value("devices_per_node", *([kind] if kind in facts.recipe.cluster.named else []))


# Process groups that span nodes


def process_groups_stay_on_node(facts: Facts, one: Placed) -> Iterator[Diagnostic]:
    """Process groups that communicate within every layer do not span nodes."""
    mesh, group = one.mesh, facts.recipe.groups[one.component.group]
    dims = [dim for dim in SPANNING if mesh.size(dim) > 1 and one.owner == one.name]
    runs = _node_runs(facts.allocation, group) if dims else ()
    if not runs or (len(runs) == 1 and runs[0].nodes == 1):
        return
    counts = sorted({run.each for run in runs})
    ranks = counted(counts[0], "rank") if len(counts) == 1 else f"{counts[0]} to {counts[-1]} ranks"
    second = facts.value("groups", group.name, "ranks").with_word(f"`{group.name}` has {ranks} on a node")
    for dim in dims:
        reach, size, count = span_nodes(runs, mesh, dim), mesh.size(dim), mesh.world_size // mesh.size(dim)
        if reach == "inside":
            continue
        message = f"the only {dim} group of `{one.name}` crosses nodes"
        if count > 1:
            which = "all" if reach == "all" else "some of the"
            message = f"{which} {count} {dim} groups of `{one.name}` cross nodes"
        # The groups of tp and of the expert dims are consecutive ranks, unless `order` changes that; etp is
        # inside ep.
        inner = mesh.etp_size if dim == "ep" else 1
        sizes = [part for part in divisors(size) if gcd(*counts) % (part * inner) == 0]
        usual = " without `order`" if mesh.mesh_dim_names != DIMS else ""
        help = f"`{dim}_size: {sizes[-1]}`{usual} stays inside a node" if sizes else ""
        span = one.span(f"{dim}_size").with_word(f"groups of {size} ranks")
        yield Diagnostic(SPANNING[dim], message, span, (second,), help, "warning")


def _node_runs(allocation: Allocation | None, group: DeviceGroup) -> tuple[NodeRun, ...]:
    """Returns the placement of a group's workers on nodes; empty if it is wrong or unknown."""
    if allocation is None or group.name in allocation.beyond:
        return ()
    devices, each = allocation.devices[group.name], group.gpus_per_worker
    if group.device_type != "cpu" and device_count(devices) != group.devices:
        return ()
    nodes = allocation.nodes.get(group.name, ())
    own = group.workers, devices, each, nodes
    try:
        return node_runs(allocation.cluster, group.device_type, *own)
    except ValueError:
        return ()
