"""The collectives that torch itself counts: those of the process groups of a component's `torch_mesh`, as
FSDP and DTensor call them.

torch numbers the operations of each process group. gloo also numbers sends and receives, which need not be
equal on all ranks, so they are counted here and subtracted. The number since the last `step` event is in the
`step` event and in the progress record. It is written into the record at the end of each activity, and once a
second by a thread, because a rank that hangs in such an operation runs no Python code. No thread runs before
a component uses its `torch_mesh`, or where no process reads the record.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from meshctl.runtime.call_site import call_site
from meshctl.runtime.collectives.torch_waits import count_waits

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

    from meshctl.runtime.progress import Progress

SAMPLE_S = 1.0
"""Seconds between two samples."""
SUFFIX = ":torch"
"""The end of the keys of these process groups."""

_point_to_point: Counter[str] = Counter()
"""Name of a process group -> number of sends and receives that this process has begun in it."""


def _count_point_to_point() -> None:
    """Has torch's process groups count their sends and receives from now on."""
    if hasattr(dist.ProcessGroup.send, "__wrapped__"):
        return
    for name in ("send", "recv", "recv_anysource"):
        setattr(dist.ProcessGroup, name, _counted(getattr(dist.ProcessGroup, name)))


def _counted(method: Any) -> Any:
    def counted(group: dist.ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        _point_to_point[group.group_name] += 1
        return method(group, *args, **kwargs)

    counted.__wrapped__ = method  # type: ignore[attr-defined]
    return counted


class TorchCalls:
    """The collectives of one process group since the last `step` event."""

    def __init__(self, key: str, name: str, backend: Any, row: tuple[memoryview, int]) -> None:
        """`name` is that of the process group, `row` that of the progress record."""
        self.key, self.name, self._backend = key, name, backend
        self._is_gloo = backend.name() == "gloo"
        self._words, self._first = row
        self._before = self._total

    @property
    def _total(self) -> int:
        number: int = self._backend._get_sequence_number_for_group()
        return number - _point_to_point[self.name] if self._is_gloo else number

    def sample(self) -> int:
        """Writes the count into the progress record and returns it."""
        count = max(0, self._total - self._before)
        self._words[self._first] = count
        return count

    def end_step(self) -> int:
        """Returns the count, and begins the next one."""
        count = self.sample()
        self._before += count
        self._words[self._first] = 0
        return count


class MeshGroup(NamedTuple):
    """A process group of a torch mesh."""

    dims: str
    group: dist.ProcessGroup


def groups_of(mesh: TorchDeviceMesh) -> Iterator[MeshGroup]:
    """Yields the process groups of more than one rank: of the dims, of flattened dims, and of the views that
    have been made."""
    meshes = [mesh, *getattr(mesh, "_torch_views", {}).values()]
    for one in meshes:
        for dim in one.mesh_dim_names or ():
            if one[dim].size() > 1:
                yield MeshGroup(dim, one[dim].get_group())
    for name, flat in getattr(mesh, "_flatten_mapping", {}).items():
        dims = name.split("_")
        if set(dims) <= set(mesh.mesh_dim_names or ()) and flat.size() > 1:
            yield MeshGroup(",".join(dims), flat.get_group())


def _backend(group: dist.ProcessGroup, device_type: str) -> Any:
    """Returns the backend of a process group that carries tensors of a device type; None for a backend that
    does not number its operations. On mps it is gloo, for tensors in CPU memory."""
    try:
        backend: Any = group._get_backend(torch.device("cpu" if device_type == "mps" else device_type))
        backend._get_sequence_number_for_group()
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    return backend


class TorchMeshes:
    """The torch meshes of a worker's components."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._meshes: dict[str, TorchDeviceMesh] = {}
        """Component -> its mesh."""
        self._sizes: dict[str, int] = {}
        """Component -> the number of views and flattened dims whose groups are known."""
        self._calls: dict[str, TorchCalls] = {}
        self._lock = threading.Lock()
        self._described: tuple[object, ...] = ()

    def add(self, component: str, mesh: TorchDeviceMesh) -> None:
        if not dist.is_initialized():
            return
        if not self._progress.has_torch_meshes:
            self._progress.has_torch_meshes = True
            _count_point_to_point()
            count_waits(self._progress)
            if self._progress.is_read:
                threading.Thread(target=self._sample_forever, daemon=True, name="progress").start()
        self._meshes[component] = mesh
        self._find_groups()

    def end_step(self) -> dict[str, Any]:
        """Returns what the `step` event contains of these process groups."""
        with self._lock:
            counts = {calls.key: calls.end_step() for calls in self._calls.values()}
        self._find_groups()
        return {key: {"count": count, "digest": 0} for key, count in counts.items() if count}

    def sample(self) -> tuple[int, ...]:
        """Writes the counts into the progress record and returns them."""
        with self._lock:
            return tuple(calls.sample() for calls in self._calls.values())

    def _find_groups(self) -> None:
        for component, mesh in self._meshes.items():
            size = len(getattr(mesh, "_torch_views", ())) + len(getattr(mesh, "_flatten_mapping", ()))
            if self._sizes.get(component) == size:
                continue
            self._sizes[component] = size
            for dims, group in groups_of(mesh):
                key = f"{component}:{dims}{SUFFIX}"
                backend = _backend(group, mesh.device_type)
                if key not in self._calls and backend is not None:
                    row = self._progress.new_row(key)
                    with self._lock:
                        self._calls[key] = TorchCalls(key, group.group_name, backend, row)

    # The thread

    def _sample_forever(self) -> None:
        seen: tuple[object, ...] = ()
        while True:
            time.sleep(SAMPLE_S)
            counts = self.sample()
            now = (self._progress.position, counts)
            if now == seen and now != self._described and any(counts):
                self._described = now
                self._describe()
            seen = now

    def _describe(self) -> None:
        """Writes the operation that runs, if it is one of these, into the progress record."""
        by_name = {calls.name: calls.key for calls in self._calls.values()}
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        for entry in reversed(_running()):
            key = by_name.get(entry["process_group"][0])
            if key is not None and frame is not None:
                operation = str(entry["profiling_name"]).rpartition(":")[2]
                self._progress.describe(key, f"{operation} {entry['input_sizes']}", call_site(frame)[1])
                return


def _running() -> list[Mapping[str, Any]]:
    """Returns the operations that torch's flight recorder has as running; none where it is off."""
    dump = getattr(torch._C._distributed_c10d, "_dump_fr_trace_json", None)
    if dump is None:
        return []
    entries: list[Mapping[str, Any]] = json.loads(dump(True, True)).get("entries", [])
    return entries
