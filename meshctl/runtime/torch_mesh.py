"""torch's meshes of a component: its own dims with those of the views, and the nodes of its group. The
collectives of their process groups, as FSDP and DTensor call them, are counted by `TorchCalls`."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

from meshctl.topology.mesh import VIEWS, DeviceMesh, MeshError


class MeshWithViews(TorchDeviceMesh):
    """torch's mesh, in which the dims of the views (`ulysses`, `ep`, ...) can be looked up, too.

    A view is made at the first look-up of its dims, which all ranks of the mesh reach together. Slices are
    plain meshes of torch.
    """

    _source: DeviceMesh
    _torch_views: dict[str, TorchDeviceMesh]

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> TorchDeviceMesh:
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        for view, dims in VIEWS.items():
            if not set(names) <= set(self._source.mesh_dim_names) and set(names) & set(dims):
                if view not in self._torch_views:
                    self._torch_views[view] = self._source.view(view).to_torch()
                return self._torch_views[view][mesh_dim_names]
        return super().__getitem__(mesh_dim_names)

    def get_group(self, mesh_dim: int | str | None = None) -> dist.ProcessGroup:
        if isinstance(mesh_dim, str) and mesh_dim not in self._source.mesh_dim_names:
            return self[mesh_dim].get_group()
        return super().get_group(mesh_dim)

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        if isinstance(mesh_dim, str) and mesh_dim not in self._source.mesh_dim_names:
            return self[mesh_dim].get_local_rank()
        return super().get_local_rank(mesh_dim)


def mesh_with_views(mesh: DeviceMesh) -> TorchDeviceMesh:
    """Returns torch's mesh with its views, on mps without. All ranks of the mesh call this together."""
    if not mesh.has_views or mesh.device_type == "mps":
        return mesh.to_torch()
    made = mesh.to_torch(MeshWithViews)
    assert isinstance(made, MeshWithViews)
    made._source, made._torch_views = mesh, {}
    return made


def node_mesh(nodes: Sequence[Sequence[int]], device_type: str) -> TorchDeviceMesh:
    """Returns torch's mesh of nodes and the ranks on each: dims `node` and `local`.

    All ranks of the group call it together. Raises `MeshError` if the nodes have different numbers of
    ranks.
    """
    counts = {len(ranks) for ranks in nodes}
    if len(counts) > 1:
        shown = ", ".join(map(str, (len(ranks) for ranks in nodes)))
        raise MeshError(f"the nodes have {shown} ranks, a mesh of node x local needs equal numbers")
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return TorchDeviceMesh(device_type, torch.tensor(nodes), mesh_dim_names=("node", "local"))


def local_mesh(nodes: Sequence[Sequence[int]], rank: int, device_type: str) -> TorchDeviceMesh:
    """Returns torch's mesh of the ranks on the node of `rank`: one dim, `local`.

    The nodes may have different numbers of ranks. All ranks of the group call it together.
    """
    if len({len(ranks) for ranks in nodes}) == 1:
        return node_mesh(nodes, device_type)["local"]
    groups = [dist.new_group(list(ranks)) for ranks in nodes]
    [group] = [group for group, ranks in zip(groups, nodes, strict=True) if rank in ranks]
    return TorchDeviceMesh.from_group(group, device_type, mesh_dim_names=("local",))


# Collectives

SAMPLE_S = 1.0
"""Seconds between two samples."""
Row = tuple[memoryview, int, int]
"""A row of a progress record: the words of the record, the index of the row's first word, its number."""


class TorchCalls:
    """Counts the collectives in the process groups of a worker's torch meshes, from `step` event to `step`
    event, by the numbers that torch gives to them.

    The counts are in the `step` event and in the progress record. They are written into the record at the
    beginning of each activity, and once a second by a thread, because a rank that hangs in such an operation
    runs no Python code. No thread runs before a component uses its `torch_mesh`, or where no process reads
    the record.
    """

    def __init__(self, new_row: Callable[[str], Row], *, is_read: bool) -> None:
        """`new_row` is that of the progress record, and `is_read` whether a process reads the record."""
        self._new_row, self._is_read = new_row, is_read
        self._meshes: dict[str, TorchDeviceMesh] = {}
        """Component -> its mesh."""
        self._sizes: dict[str, int] = {}
        """Component -> the number of views and flattened dims whose groups are known."""
        self._groups: dict[str, _GroupCalls] = {}
        self._lock = threading.Lock()

    def add(self, component: str, mesh: TorchDeviceMesh) -> None:
        """Counts the collectives of a component's mesh from now on."""
        if not dist.is_initialized():
            return
        if not self._meshes and self._is_read:
            threading.Thread(target=self._sample_forever, daemon=True, name="progress").start()
        self._meshes[component] = mesh
        self._find_groups()

    def sample(self) -> tuple[int, ...]:
        """Writes the counts into the progress record and returns them."""
        if not self._groups:
            return ()
        with self._lock:
            return tuple(group.sample() for group in self._groups.values())

    def end_step(self) -> dict[str, Any]:
        """Returns what the `step` event contains of these process groups, and begins the next counts."""
        if not self._meshes:
            return {}
        with self._lock:
            counts = {key: group.end_step() for key, group in self._groups.items()}
        self._find_groups()
        return {key: {"count": count, "digest": 0} for key, count in counts.items() if count}

    def _find_groups(self) -> None:
        for component, mesh in self._meshes.items():
            size = len(getattr(mesh, "_torch_views", ())) + len(getattr(mesh, "_flatten_mapping", ()))
            if self._sizes.get(component) == size:
                continue
            self._sizes[component] = size
            for dims, group in _groups_of(mesh):
                key = f"{component}:{dims}:torch"
                backend = _numbering_backend(group, mesh.device_type)
                if key not in self._groups and backend is not None:
                    row = self._new_row(key)
                    with self._lock:
                        self._groups[key] = _GroupCalls(group.group_name, backend, row)

    def _sample_forever(self) -> None:
        while True:
            time.sleep(SAMPLE_S)
            self.sample()


class _GroupCalls:
    def __init__(self, name: str, backend: Any, row: Row) -> None:
        self._name, self._backend = name, backend
        self._words, self._first, _ = row
        self._operations = self._number
        self._collectives = self._collectives_by_now
        """The operations, and the collectives among them, until the last `step` event."""
        self._known: dict[int, int] = {}
        """Number of operations in a step -> number of collectives. gloo also numbers sends and receives,
        which need not be equal on all ranks."""

    @property
    def _number(self) -> int:
        number: int = self._backend._get_sequence_number_for_group()
        return number

    @property
    def _collectives_by_now(self) -> int:
        """The number of collectives of the group, from torch's record of the last operations of a process."""
        dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
        if self._backend.name() == "gloo" and dump is not None:
            for entry in reversed(json.loads(dump(True, False)).get("entries", [])):
                if entry["process_group"][0] == self._name:
                    return int(entry["collective_seq_id"])
        return self._number

    def sample(self) -> int:
        """Writes the count into the progress record and returns it."""
        operations = self._number - self._operations
        if operations not in self._known:
            self._known[operations] = self._collectives_by_now - self._collectives
        self._words[self._first] = self._known[operations]
        return self._known[operations]

    def end_step(self) -> int:
        """Returns the count, and begins the next one."""
        count = self.sample()
        self._operations, self._collectives = self._number, self._collectives + count
        self._words[self._first] = 0
        return count


def _groups_of(mesh: TorchDeviceMesh) -> Iterator[tuple[str, dist.ProcessGroup]]:
    """Yields the process groups of more than one rank with their dims: of the dims, of flattened dims, and of
    the views that have been made."""
    for one in (mesh, *getattr(mesh, "_torch_views", {}).values()):
        for dim in one.mesh_dim_names or ():
            if one[dim].size() > 1:
                yield dim, one[dim].get_group()
    for name, flat in getattr(mesh, "_flatten_mapping", {}).items():
        dims = name.split("_")
        if set(dims) <= set(mesh.mesh_dim_names or ()) and flat.size() > 1:
            yield ",".join(dims), flat.get_group()


def _numbering_backend(group: dist.ProcessGroup, device_type: str) -> Any:
    """Returns the backend of a process group that carries tensors of a device type; None for a backend that
    does not number its operations. On mps it is gloo, for tensors in CPU memory."""
    try:
        backend: Any = group._get_backend(torch.device("cpu" if device_type == "mps" else device_type))
        backend._get_sequence_number_for_group()
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    return backend
