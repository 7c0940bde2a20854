"""The nodes of a job and their devices: arithmetic on runs of equal nodes.

Devices are numbered from 0 over the cluster, node after node, and each type for itself: where two nodes have
8 and 4 cuda devices, cuda 9 is number 1 of node 1, and a machine with cuda and npu has a cuda 0 and an npu 0.

Every look-up costs O(log n) for n runs of equal nodes, however many devices there are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import accumulate, groupby

from meshctl.dataclass import SPARSE, dataclass

ACCELERATORS = ("cuda", "npu", "mps")
DEVICE_TYPES = (*ACCELERATORS, "cpu")
DEVICE_ALIASES = {"gpu": "cuda"}
"""Other names of device types, compared in lower case."""
DIRECT = ("cuda",)
"""Device types whose tensors move to other devices of the type without passing through CPU memory."""
DevicesPerNode = tuple[tuple[int, int], ...]
"""(number of nodes, devices on each of them), from node 0 on."""
NodeRanges = tuple[tuple[int, int], ...]
"""Numbers of nodes, as ranges [start, stop) in ascending order."""


@dataclass(frozen=True)
class Piece:
    """Consecutive devices on consecutive nodes, with the same device numbers on each of these nodes."""

    first_node: int
    nodes: int
    """The number of nodes."""
    number: int
    """The first device on each of the nodes, numbered on the node."""
    each: int
    """Devices per node."""
    device: int
    """The first device of the piece, numbered over the cluster."""


@dataclass(frozen=True)
class Cluster:
    nodes: int = 1
    devices_per_node: Mapping[str, DevicesPerNode] = field(default_factory=dict)
    """By device type: ((7, 8), (1, 4)) are seven nodes of eight devices and one of four. The cluster has no
    devices of other types."""
    pools: tuple[tuple[str, int], ...] = field(default=(), metadata=SPARSE)
    """(name, number of nodes) of each node pool, from node 0 on; empty if the nodes have no names."""

    @classmethod
    def of(cls, nodes: int, **devices_per_node: int | Sequence[int]) -> Cluster:
        """Returns a cluster of nodes with these devices: `Cluster.of(2, cuda=8)`, or with a count for each
        node: `Cluster.of(2, cuda=[8, 4])`."""
        return cls(nodes, {kind: devices_by_node(nodes, given) for kind, given in devices_per_node.items()})

    def total(self, device_type: str) -> int:
        """Returns the number of devices of a type."""
        return self._table(device_type).total

    def node_of(self, device_type: str, device: int) -> int:
        table = self._table(device_type)
        run = table.of_device(device)
        return table.nodes[run] + (device - table.devices[run]) // table.each[run]

    def number_on_node(self, device_type: str, device: int) -> int:
        """Returns the number of a device on its own node, from 0."""
        table = self._table(device_type)
        run = table.of_device(device)
        return (device - table.devices[run]) % table.each[run]

    def devices_on(self, device_type: str, node: int) -> int:
        """Returns the number of devices of a type on a node."""
        table = self._table(device_type)
        return table.each[table.of_node(node)] if table.each else 0

    def first_on(self, device_type: str, node: int) -> int:
        """Returns the number over the cluster of a node's first device. For a node without devices, it is the
        number of the next device of the cluster."""
        table = self._table(device_type)
        run = table.of_node(node)
        return table.devices[run] + (node - table.nodes[run]) * table.each[run]

    def pools_on(self, nodes: NodeRanges) -> Iterator[str]:
        """Yields the names of the node pools that have some of these nodes."""
        first = 0
        for name, count in self.pools:
            if any(start < first + count and first < stop for start, stop in nodes):
                yield name
            first += count

    def pieces(self, device_type: str, start: int, stop: int) -> Iterator[Piece]:
        """Yields the devices [start, stop) as pieces: a part of the first node, then whole nodes, then a part
        of the last node. Whole neighbouring nodes of the same size are one piece."""
        table = self._table(device_type)
        while start < stop:
            run = table.of_device(start)
            each = table.each[run]
            along, number = divmod(start - table.devices[run], each)
            if number or stop - start < each:
                piece = Piece(table.nodes[run] + along, 1, number, min(each - number, stop - start), start)
            else:
                whole = min((stop - start) // each, table.count[run] - along)
                piece = Piece(table.nodes[run] + along, whole, 0, each, start)
            yield piece
            start += piece.nodes * piece.each

    @cached_property
    def _tables(self) -> dict[str, _Table]:
        return {}

    def _table(self, device_type: str) -> _Table:
        if device_type not in self._tables:
            self._tables[device_type] = _Table.of(self.devices_per_node.get(device_type, ()))
        return self._tables[device_type]


@dataclass(frozen=True)
class _Table:
    """The runs of neighbouring nodes with the same number of devices of one type."""

    count: tuple[int, ...]
    """The number of nodes of each run."""
    each: tuple[int, ...]
    """The devices per node of each run."""
    nodes: tuple[int, ...]
    """The first node of each run."""
    devices: tuple[int, ...]
    """The first device of each run."""
    total: int
    """The number of devices."""

    @classmethod
    def of(cls, runs: DevicesPerNode) -> _Table:
        count, each = tuple(nodes for nodes, _ in runs), tuple(devices for _, devices in runs)
        *nodes, _ = accumulate(count, initial=0)
        *devices, total = accumulate((some * every for some, every in runs), initial=0)
        return cls(count, each, tuple(nodes), tuple(devices), total)

    def of_device(self, device: int) -> int:
        """Returns the index of the run that has a device. A run of nodes without devices begins with the same
        device as the next run, so the last run that begins with it is the right one."""
        if not 0 <= device < self.total:
            raise ValueError(
                f"device {device} does not exist; the devices are 0 to {self.total - 1}"
                if self.total
                else "the cluster has no devices"
            )
        return bisect_right(self.devices, device) - 1

    def of_node(self, node: int) -> int:
        return bisect_right(self.nodes, node) - 1


def devices_by_node(nodes: int, devices: int | Sequence[int]) -> DevicesPerNode:
    """Returns the runs of equal nodes. `devices` is one count for all nodes, or a count for each node."""
    if isinstance(devices, int):
        return ((nodes, devices),)
    return tuple((len(list(same)), each) for each, same in groupby(devices))
