"""Domains of a cluster: neighbouring nodes that a faster network connects, such as a rack.

A cluster whose nodes are put together by domain is a cluster again, whose "nodes" are the domains. So the
arithmetic of nodes also answers questions about domains: which workers are in which one, whether a process
group is inside one, and how many devices one has. No cost grows with the number of equal nodes or domains.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.topology.cluster import Cluster, DevicesPerNode, NodesPerDomain
from meshctl.topology.placement import NodeRun, joined

NODES = "nodes"


def domains_of(nodes: int, each: int) -> NodesPerDomain:
    """Returns the domains of `each` neighbouring nodes. The last one has fewer, if `each` does not divide the
    number of nodes."""
    whole, rest = divmod(nodes, each)
    return tuple((count, size) for count, size in ((whole, each), (1, rest)) if count and size)


def domain_of(cluster: Cluster, kind: str, node: int) -> int:
    """Returns the number of the domain of a kind that has a node."""
    return _table(cluster.domains[kind]).node_of(NODES, node)


def by_domain(cluster: Cluster, kind: str) -> Cluster:
    """Returns the cluster whose nodes are the domains of a kind. A node outside of the domains is one of its
    own."""
    domains = cluster.domains[kind]
    rest = cluster.nodes - sum(count * each for count, each in domains)
    domains = (*domains, (rest, 1)) if rest > 0 else domains
    table = _table(domains)
    devices = {
        device_type: tuple(_devices_per_domain(table, runs))
        for device_type, runs in cluster.devices_per_node.items()
    }
    return Cluster(sum(count for count, _ in domains), devices)


def domain_runs(runs: tuple[NodeRun, ...], cluster: Cluster, kind: str) -> tuple[NodeRun, ...]:
    """Returns the runs of ranks on the domains of a kind: `first_node` is the number of a domain, and `each`
    the ranks per domain. Devices have no numbers in a domain, so `first_device` is -1."""
    table = _table(cluster.domains[kind])
    return joined(
        NodeRun(
            run.first_rank + (piece.device - run.first_node) * run.each,
            piece.nodes * piece.each * run.each,
            piece.first_node,
            piece.each * run.each,
            -1,
        )
        for run in runs
        for piece in table.pieces(NODES, run.first_node, run.last_node + 1)
    )


def _table(domains: NodesPerDomain) -> Cluster:
    """Returns the cluster whose nodes are the domains, and whose devices are their nodes."""
    return Cluster(sum(count for count, _ in domains), {NODES: domains})


def _devices_per_domain(table: Cluster, runs: DevicesPerNode) -> Iterator[tuple[int, int]]:
    """Yields (number of domains, devices of each of them) for nodes with these devices."""
    node, last, count, devices = 0, -1, 0, 0
    # The `count` domains up to the domain `last` have `devices` devices each, by the nodes seen so far.
    for nodes, each in runs:
        for piece in table.pieces(NODES, node, node + nodes):
            here, size = piece.first_node, piece.each * each
            if here == last:
                if count > 1:
                    yield count - 1, devices
                count, devices = 1, devices + size
            elif size == devices and last >= 0:
                count += piece.nodes
            else:
                if last >= 0:
                    yield count, devices
                count, devices = piece.nodes, size
            last = here + piece.nodes - 1
        node += nodes
    if last >= 0:
        yield count, devices
