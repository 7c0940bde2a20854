"""Values of stages on disk, and routes that replay them: `run.record` and `launch --replay`.

    recorded/STAGE/step-N/K-of-M.safetensors       the value of producer K of M, before it is partitioned

A value is written as its producer sent it, once for all routes of the stage, so any number of ranks can
consume it again: each takes its part by the same arithmetic as from living producers, and maps the files, so
it reads only what it needs.

A file has the format of safetensors, which is written without its package and read by its tools:

    tensor:NAME                     a tensor column
    values:NAME, offsets:NAME       a ragged column
    ids                             int64 [n, depth]
    rest                            uint8: a frame of everything else (plain data, the order of columns, the
                                    weight); never pickle
"""

from __future__ import annotations

import ctypes
import json
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshctl.run.directory import Recorded, replaced
from meshctl.runtime.batch.batch import Batch, Column, Ragged
from meshctl.runtime.routes.alignment import IdsByRank, ids_in, ordered
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import END, Received, RouteContext, RouteSide
from meshctl.runtime.routes.joins import join
from meshctl.runtime.routes.step import StepHeader
from meshctl.runtime.transports.buffers.frames import FrameError, bytes_of, pack, ragged, tensor_of, unpack
from meshctl.runtime.transports.buffers.memcpy import is_plain
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Route
from meshctl.topology.samples import RouteError

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32,
    "I64": torch.int64, "F16": torch.float16, "BF16": torch.bfloat16,
    "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip
"""Name of a dtype in the safetensors format -> the dtype of torch. A column of any other dtype is stored in
`rest`."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGN = 64
DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError)
"""The exceptions that reading a damaged file raises."""
_LENGTH = struct.Struct("<Q")


# Recording


class Recorder:
    """Writes what this worker sends on some routes."""

    def __init__(self, routes: Collection[str], folder: Callable[[str], Recorded]) -> None:
        """`routes` are the names of the recorded routes; `folder` returns the recording of a stage."""
        self._routes, self._folder = frozenset(routes), folder
        self._written: dict[Path, Recorded] = {}
        """The recordings that this worker writes to, by the name of its files."""

    def write(
        self, routes: Iterable[Route], step: int, producer: int, producers: int, value: Any, weight: float
    ) -> None:
        """Writes a stage's value where one of the routes on which it is sent is recorded. Raises `RouteError`
        if the disk refuses it."""
        route = next((route for route in routes if route.name in self._routes), None)
        if route is None:
            return
        recorded = self._folder(route.source)
        path = recorded.file(step, producer, producers)
        self._written[recorded.path / path.name] = recorded
        try:
            write(path, value, weight, {"stage": route.source, "step": str(step), "collect": route.collect})
        except OSError as error:
            raise RouteError(
                f"the value of `{route.source}` cannot be recorded: {error.strerror}: {path}"
            ) from error

    def forget(self, last: int) -> None:
        """Deletes what this worker wrote of the dropped steps, those after the last."""
        for path, recorded in self._written.items():
            for folder in recorded.folders(last):
                (folder / path.name).unlink(missing_ok=True)


def write(path: Path, value: Any, weight: float, about: Mapping[str, str]) -> None:
    """Writes a producer's value with the metadata `about`, completely or not at all. Raises `FrameError` for
    a value that is not plain data."""
    tensors = _tensors(value, weight)
    head: dict[str, Any] = {"__metadata__": dict(about)}
    at = 0
    for name, tensor in tensors.items():
        head[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-(_LENGTH.size + len(text)) % _ALIGN)
    path.parent.mkdir(parents=True, exist_ok=True)
    with replaced(path) as part, part.open("wb") as file:
        file.write(_LENGTH.pack(len(text)) + text)
        for tensor in tensors.values():
            if tensor.nbytes:
                file.write((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))


def _tensors(value: Any, weight: float) -> dict[str, Tensor]:
    """Returns the tensors of a file by name, the widest dtype first, so that each begins at a multiple of its
    own width and there are no gaps."""
    rest: dict[str, Any] = {"weight": weight}
    found: dict[str, Tensor] = {}
    if value is END:
        rest["end"] = True
    elif isinstance(value, Batch):
        rest |= {
            "batch": {"columns": list(value.columns), "group_depth": value.group_depth, "most": value.most},
            "others": {},
        }
        found["ids"] = value.ids
        for name, column in value.columns.items():
            if isinstance(column, Ragged) and column.values.dtype in _NAMES:
                found |= {f"values:{name}": column.values, f"offsets:{name}": column.offsets}
            elif isinstance(column, Tensor) and column.dtype in _NAMES:
                found[f"tensor:{name}"] = column
            else:
                rest["others"][name] = column
    else:
        rest["value"] = value
    found["rest"] = tensor_of(pack(rest))
    for name, tensor in found.items():
        if not is_plain(tensor):
            found[name] = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return dict(sorted(found.items(), key=lambda item: -item[1].itemsize))


# Reading


def read(path: Path) -> tuple[Any, float]:
    """Returns a producer's value and its weight. Tensors are views of the file; writing to them does not
    change it. Raises `FrameError`, with the path, for what is no recording."""
    try:
        return _value(_mapped(path))
    except DAMAGE as error:
        raise FrameError(f"{path} is not a recording: {str(error) or type(error).__name__}") from error


def _mapped(path: Path) -> dict[str, Tensor]:
    size = path.stat().st_size
    if size < _LENGTH.size:
        raise FrameError(f"it has {size} bytes")
    whole = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8)
    (length,) = _LENGTH.unpack(bytes_of(whole[: _LENGTH.size]))
    start = _LENGTH.size + length
    if start > size:
        raise FrameError("it ends within its header")
    head = json.loads(bytes_of(whole[_LENGTH.size : start]))
    return {
        name: _view(whole[start:], name, **entry) for name, entry in head.items() if name != "__metadata__"
    }


def _view(data: Tensor, name: str, dtype: str, shape: Sequence[int], data_offsets: Sequence[int]) -> Tensor:
    kind, (begin, end) = DTYPES[dtype], data_offsets
    if any(type(number) is not int or number < 0 for number in (begin, end, *shape)):
        raise FrameError(f"`{name}` has the shape {shape} at {data_offsets}")
    if (
        prod(shape) * kind.itemsize != end - begin
        or end > len(data)
        or (data.storage_offset() + begin) % kind.itemsize
    ):
        raise FrameError(
            f"`{name}` is not where its header says: {end - begin} bytes at {begin} of {len(data)}"
        )
    return data[begin:end].view(kind).view(*shape) if end > begin else torch.empty(shape, dtype=kind)


def _value(tensors: Mapping[str, Tensor]) -> tuple[Any, float]:
    rest = unpack(tensors["rest"].clone())  # a frame needs a larger alignment than it has in the file
    if "end" in rest:
        return END, float(rest["weight"])
    if "batch" not in rest:
        return rest["value"], float(rest["weight"])
    about, others = rest["batch"], rest["others"]
    columns: dict[str, Column] = {}
    for name in about["columns"]:
        plain = others[name] if name in others else tensors.get(f"tensor:{name}")
        if plain is None:
            plain = ragged(tensors[f"values:{name}"], tensors[f"offsets:{name}"])
        columns[name] = plain
    if tensors["ids"].dtype is not torch.int64 or tensors["ids"].ndim != 2:
        raise FrameError("its ids are malformed")
    batch = Batch(columns, ids=tensors["ids"], group_depth=int(about["group_depth"]), most=int(about["most"]))
    return batch, float(rest["weight"])


class ReplayedChannel(Channel):
    """A consumer's end of a route without producers: it receives its part of what they sent when the route
    was recorded. Every rank has the whole recording before it, so ranks exchange nothing."""

    def __init__(self, context: RouteContext, recorded: Recorded) -> None:
        super().__init__(context)
        self._recorded = recorded
        self._values: list[tuple[Any, float]] = []
        """The (value, weight) of each producer in this step."""

    @classmethod
    def of(
        cls, route: Route, consumer: RouteSide, transport: DataPlane, recorded: Recorded
    ) -> ReplayedChannel:
        nobody = RouteSide(DeviceMesh.from_sizes(world_size=1), 0)
        return cls(RouteContext(route, nobody, consumer, transport), recorded)

    def due(self, step: int) -> bool:
        """Returns whether the recording has a value of a step."""
        return bool(self._recorded.files(step))

    def receive(self, step: int) -> Received:
        files = self._recorded.files(step)
        if not files:
            raise RouteError(f"`{self.route.name}` has no value of this step in {self._recorded.path}")
        self._values = [read(path) for path in files]
        self._set_producers(tuple(range(len(files))))  # another attempt may have had others
        headers = [self._describe(value, weight) for value, weight in self._values]
        partition = self._partition(headers)
        part = self.consumers.part_of[self.context.consumer_rank]
        if partition is None:
            parts = [self._values[number] for number in self.consumers.producers[part]]
            return Received(END if parts[0][0] is END else join(self._collect, parts, self.route))
        runs = partition.parts[part]
        rows = [self._values[run.producer][0].take(range(run.start, run.stop)) for run in runs]
        batch = Batch.concat(rows or [self._batches()[0].take([])])
        batch.most = partition.largest
        return Received(batch, StepHeader(headers, partition, 0))

    def _batches(self) -> list[Batch]:
        return [value for value, _ in self._values if isinstance(value, Batch)]

    def _realign(self, batch: Batch, digest: int, held: IdsByRank, wanted: IdsByRank) -> Batch:
        """Returns the samples `wanted` by this rank. They are taken from the recording, which has those of
        all ranks, so none are exchanged."""
        whole = Batch.concat([batch for batch in self._batches() if len(batch)])
        return ordered(whole, ids_in(whole), wanted[self.context.consumer_rank])
