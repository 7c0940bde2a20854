"""The node pools of a cluster, in a line below the placement: `pools   gpu: nodes 0-3, cpu: node 4`."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.topology.cluster import Cluster
from meshctl.view.pictures.text.placement import nodes_label
from meshctl.view.pictures.text.styled import Line, styled


def cluster_lines(cluster: Cluster, width: int) -> list[Line]:
    """Returns the line for the pools; none if there are none."""
    if not cluster.pools:
        return []
    return [Line("  ", styled("pools", "faint"), "  ", ", ".join(_pools(cluster))).clip(width)]


def _pools(cluster: Cluster) -> Iterator[str]:
    start = 0
    for name, nodes in cluster.pools:
        yield f"{name}: {nodes_label([(start, start + nodes)])}"
        start += nodes
