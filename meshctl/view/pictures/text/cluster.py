"""The node pools and domains of a cluster, in a line each below the placement.

pools   gpu: nodes 0-3, cpu: node 4
nvlink  2 domains of 2 nodes, 1 of 1: 0-1, 2-3, 4
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.topology.cluster import Cluster, NodesPerDomain
from meshctl.view.formatting import count
from meshctl.view.pictures.text.placement import nodes_label
from meshctl.view.pictures.text.styled import ELLIPSIS, Line, styled

MAX_SHOWN = 3
"""Maximum number of domains whose nodes are listed, without the last one."""
MAX_SIZES = 3
"""Maximum number of sizes of domains that are listed."""


def cluster_lines(cluster: Cluster, width: int) -> list[Line]:
    """Returns a line for the pools and one for each kind of domain; none if there are none."""
    facts = {"pools": ", ".join(_pools(cluster))} if cluster.pools else {}
    facts |= {kind: _domains(runs) for kind, runs in cluster.domains.items()}
    wide = max((len(name) for name in facts), default=0)
    return [
        Line("  ", Line(styled(name, "faint")).padded(wide), "  ", text).clip(width)
        for name, text in facts.items()
    ]


def _pools(cluster: Cluster) -> Iterator[str]:
    start = 0
    for name, nodes in cluster.pools:
        yield f"{name}: {nodes_label([(start, start + nodes)])}"
        start += nodes


def _domains(runs: NodesPerDomain) -> str:
    """Returns the numbers and sizes of the domains of one kind, and the nodes of the first ones."""
    (domains, nodes), *others = runs
    sizes = [f"{count(domains, 'domain')} of {count(nodes, 'node')}"]
    sizes += [f"{some:,} of {each:,}" for some, each in others]
    if len(sizes) > MAX_SIZES:
        sizes = [*sizes[:MAX_SIZES], f"{len(sizes) - MAX_SIZES} more"]
    total = sum(some for some, _ in runs)
    shown = [_nodes(runs, domain) for domain in range(min(total, MAX_SHOWN))]
    if total > MAX_SHOWN:
        shown += [
            f"{ELLIPSIS} {_nodes(runs, total - 1)}" if total > MAX_SHOWN + 1 else _nodes(runs, total - 1)
        ]
    return f"{', '.join(sizes)}: {', '.join(shown)}"


def _nodes(runs: NodesPerDomain, domain: int) -> str:
    start = 0
    for domains, nodes in runs:
        if domain < domains:
            first = start + domain * nodes
            return str(first) if nodes == 1 else f"{first}-{first + nodes - 1}"
        domain, start = domain - domains, start + domains * nodes
    raise IndexError(domain)
