"""MC323 to MC326: node pools, and the nodes on which groups are placed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.model import Cluster, DeviceGroup
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import counted, did_you_mean, in_words, listed
from meshctl.topology.allocation import Allocation, allocate
from meshctl.topology.device_ranges import common, device_count, devices_on


def pools_state_their_devices(facts: Facts) -> Iterator[Diagnostic]:
    """`devices_per_node` is not written beside node pools, which state their own devices."""
    cluster = facts.recipe.cluster
    if cluster.pools and cluster.devices_per_node:
        pools = facts.key("cluster", "nodes").with_word(counted(len(cluster.pools), "node pool"))
        message = "`devices_per_node` is not used, because each node pool states its own devices"
        help = "remove it, and write `devices` in the node pools"
        yield Diagnostic("MC323", message, facts.key("cluster", "devices_per_node"), (pools,), help)


def named_nodes_exist(facts: Facts) -> Iterator[Diagnostic]:
    """`nodes` of a group names node pools and nodes of the cluster."""
    if not facts.is_valid("cluster"):
        return
    for name, group in facts.recipe.groups.items():
        for index, node in enumerate(group.nodes if facts.is_valid("groups", name, "nodes") else ()):
            span = facts.item("groups", name, "nodes", index=index)
            if isinstance(node, str):
                yield from _pool_exists(facts, name, node, span)
            elif facts.allocation and node >= (nodes := facts.allocation.cluster.nodes):
                has = f"the nodes are 0 to {nodes - 1}" if nodes > 1 else "the only node is 0"
                message = f"group `{name}` is placed on node {node}, but {has}"
                second = (facts.value("cluster").with_word(counted(nodes, "node")),)
                yield Diagnostic("MC324", message, span, second if facts.node("cluster") else ())


def _pool_exists(facts: Facts, group: str, node: str, span: Span) -> Iterator[Diagnostic]:
    pools = [pool for pool, _ in facts.recipe.cluster.pools]
    if node in pools:
        return
    help = f"write `cluster: {{nodes: {{{node}: {{count: N, devices: M}}}}}}`, or the number of a node"
    second: tuple[Span, ...] = ()
    if pools:
        help = did_you_mean(node, pools)
        second = (facts.value("cluster", "nodes").with_word("the node pools"),)
    message = f"group `{group}` is placed on `{node}`, which is not a node pool"
    yield Diagnostic("MC324", message, span, second, help)


def nodes_are_for_counts(facts: Facts) -> Iterator[Diagnostic]:
    """A group whose devices are decided otherwise does not name nodes."""
    for name, group in facts.recipe.groups.items():
        if not group.nodes or not facts.is_valid("groups", name, "nodes"):
            continue
        if isinstance(group.ranks, tuple):
            key, word = "ranks", "`ranks` lists devices"
            help = f"write `ranks: {len(group.ranks)}`, or remove `nodes`"
        elif group.colocate and group.device_type != "cpu":
            key, word, help = "colocate", "these are its devices", "remove `nodes`"
        else:
            continue
        message = f"`nodes` of group `{name}` contradicts `{key}`, which already determines its devices"
        second = facts.value("groups", name, key).with_word(word)
        yield Diagnostic("MC325", message, facts.key("groups", name, "nodes"), (second,), help)


def named_nodes_have_devices(facts: Facts) -> Iterator[Diagnostic]:
    """The nodes that a group names have enough free devices for it."""
    allocation = facts.allocation
    for name, group in facts.recipe.groups.items() if allocation else ():
        assert allocation
        on = facts.recipe.cluster.ranges_of(group.nodes)
        is_counted = isinstance(group.ranks, int) and not group.colocate and group.device_type != "cpu"
        if not on or not is_counted or on[-1][1] > allocation.cluster.nodes:
            continue
        found = device_count(allocation.devices[name])
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
    help = _where_it_fits(facts, group, allocation)
    return Diagnostic("MC326", message + (f" ({others})" if others else ""), span, (nodes,), help)


def _where_it_fits(facts: Facts, group: DeviceGroup, allocation: Allocation) -> str:
    """Returns help that names other nodes, or as many nodes as are enough."""
    recipe = facts.recipe

    def fits(cluster: Cluster, nodes: tuple[int | str, ...]) -> bool:
        there = allocate({**recipe.groups, group.name: replace(group, nodes=nodes)}, cluster)
        return not there.beyond and device_count(there.devices[group.name]) == group.devices

    pools = recipe.cluster.nodes_by_pool
    if others := [pool.name for pool in pools if fits(recipe.cluster, (pool.name,))]:
        return f"it fits on {listed(others, 'or')}"
    if fits(recipe.cluster, ()):
        return "remove `nodes`: with the devices of other nodes it fits"
    for named in (pool for pool in pools if group.nodes == (pool.name,)):
        each = named.devices_of(group.device_type)
        lacking = group.devices - device_count(allocation.devices[group.name])
        count = named.count + -(-lacking // each) if each else 0
        larger = tuple(replace(pool, count=count) if pool is named else pool for pool in pools)
        nodes = sum(pool.count for pool in larger)
        if count and fits(replace(recipe.cluster, nodes=nodes, nodes_by_pool=larger), group.nodes):
            return f"write `cluster.nodes.{named.name}.count: {count}`"
    return ""
