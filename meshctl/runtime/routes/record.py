"""What a stage gave, kept on disk, and given again: `run.record` and `launch --replay`.

    recorded/STAGE/step-N/K-of-M.safetensors       the value of speaker K of M, before it is shared out

A value is kept as its speaker gave it, once for all routes of the stage, so any number of ranks may take it
again: each takes its part by the same arithmetic as from living speakers, and maps the files, so it reads
what it needs of them.

A file is in the format of safetensors, which needs no package to be written and opens with its tools:

    tensor:NAME                     a tensor column
    values:NAME, offsets:NAME       a ragged one
    ids                             int64 [n, depth]
    rest                            uint8: a frame of everything else (plain data, the order of columns, the
                                    weight); never pickle

Of the formats measured (64 KiB and 256 MiB, half of it ragged; milliseconds to write, then to open): this
0.14 and 68, 0.13 and 0.5; safetensors' own package 0.24 and 69, 0.18 and 0.6; Arrow 0.37 and 66, 0.21 and
0.8; frames written in place 0.26 and 136, 0.15 and 0.5. Arrow knows no bfloat16 and no rows of more than one
dim without an extension, and the packages know no ragged columns.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshctl.run.directory import Recorded
from meshctl.runtime.batch.batch import Batch, BatchError, Column, Ragged
from meshctl.runtime.routes.channel import END, Channel, Party, Taken, join
from meshctl.runtime.routes.header import Said
from meshctl.runtime.transports.buffers.frames import FrameError, bytes_of, pack, ragged, unpack
from meshctl.runtime.transports.data_plane import Transport
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Route
from meshctl.topology.samples import Id, RouteError

DTYPES = {
    "BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64,
}  # fmt: skip
"""As safetensors calls them; a column of another one is kept in `rest`."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGN = 64
_LENGTH = struct.Struct("<Q")


# Recording


class Recorder:
    """Keeps what this worker gives to some routes."""

    def __init__(self, routes: Collection[str], folder: Callable[[str], Recorded]) -> None:
        """`routes` are the names of those that are recorded; `folder` says where a stage's recording is."""
        self._routes, self._folder = frozenset(routes), folder
        self._mine: dict[Path, Recorded] = {}
        """By the name of its files, what this worker writes to."""

    def keep(
        self, routes: Iterable[Route], step: int, speaker: int, speakers: int, value: Any, weight: float
    ) -> None:
        """Writes a stage's value where one of the routes to which it goes is recorded. Raises `RouteError`
        where it cannot."""
        route = next((route for route in routes if route.name in self._routes), None)
        if route is None:
            return
        recorded = self._folder(route.source)
        path = recorded.file(step, speaker, speakers)
        self._mine[recorded.path / path.name] = recorded
        try:
            write(path, value, weight, {"stage": route.source, "step": str(step), "collect": route.collect})
        except OSError as error:
            raise RouteError(
                f"the value of `{route.source}` cannot be recorded: {error.strerror}: {path}"
            ) from error

    def forget(self, last: int) -> None:
        """Deletes what this worker wrote of steps after the last: they were dropped."""
        for path, recorded in self._mine.items():
            for folder in recorded.folders(last):
                (folder / path.name).unlink(missing_ok=True)


def write(path: Path, value: Any, weight: float, about: Mapping[str, str]) -> None:
    """A speaker's value, whole or not at all; `about` is for whoever looks into the file. Raises `FrameError`
    for what is no data."""
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
    part = path.with_name(f".{path.name}.{os.getpid()}")
    with part.open("wb") as file:
        file.write(_LENGTH.pack(len(text)) + text)
        for tensor in tensors.values():
            if tensor.nbytes:
                file.write((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr()))
    part.rename(path)


def _tensors(value: Any, weight: float) -> dict[str, Tensor]:
    """By name; the widest numbers first, so that each begins at a multiple of its own width and there are no
    gaps."""
    said: dict[str, Any] = {"weight": weight}
    found: dict[str, Tensor] = {}
    if value is END:
        said["end"] = True
    elif isinstance(value, Batch):
        said |= {
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
                said["others"][name] = column
    else:
        said["value"] = value
    found["rest"] = pack(said)
    flat = {name: tensor.detach().cpu().contiguous() for name, tensor in found.items()}
    return dict(sorted(flat.items(), key=lambda item: -item[1].itemsize))


# Reading


def read(path: Path) -> tuple[Any, float]:
    """A speaker's value and its weight; tensors are views of the file, and writing to them does not change
    it.

    Raises `FrameError`, with the path, for what is no recording.
    """
    try:
        tensors = _mapped(path)
        return _value(tensors)
    except (
        BatchError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RuntimeError,
        OverflowError,
    ) as error:
        raise FrameError(
            f"{path} is no recording: {str(error) if str(error) else type(error).__name__}"
        ) from error


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
    return {name: _view(whole[start:], name, **said) for name, said in head.items() if name != "__metadata__"}


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
    said = unpack(tensors["rest"].clone())  # frames are aligned to more than its place here
    if "end" in said:
        return END, float(said["weight"])
    if "batch" not in said:
        return said["value"], float(said["weight"])
    about, others = said["batch"], said["others"]
    columns = {name: others[name] if name in others else _column(tensors, name) for name in about["columns"]}
    if tensors["ids"].dtype is not torch.int64 or tensors["ids"].ndim != 2:
        raise FrameError("its ids are no ids")
    batch = Batch(columns, ids=tensors["ids"], group_depth=int(about["group_depth"]), most=int(about["most"]))
    return batch, float(said["weight"])


def _column(tensors: Mapping[str, Tensor], name: str) -> Column:
    if (plain := tensors.get(f"tensor:{name}")) is not None:
        return plain
    return ragged(tensors[f"values:{name}"], tensors[f"offsets:{name}"])


class Replayed(Channel):
    """A taker's end of a route whose givers are not there: it takes its part of what they gave when it was
    recorded.

    It speaks to nobody: every rank has the whole recording before it.
    """

    def __init__(
        self, route: Route, taker: Party, transport: Transport, recorded: Recorded, at: Callable[[], int]
    ) -> None:
        """`at` says which step is being run."""
        super().__init__(route, Party(DeviceMesh.from_sizes(world_size=1), 0), taker, transport, 0)
        self._recorded, self._at = recorded, at
        self._given: list[tuple[Any, float]] = []

    def has(self, step: int) -> bool:
        """Whether the route was given something in a step."""
        return bool(self._recorded.files(step))

    def take(self, rank: int) -> Taken:
        files = self._recorded.files(self._at())
        if not files:
            raise RouteError(f"`{self.route.name}` has nothing of this step in {self._recorded.path}")
        self._given = [read(path) for path in files]
        self._speakers = tuple(range(len(self._given)))
        self.__dict__.pop("_hearing", None)  # another attempt may have had other speakers
        said = self._said([self._row(value, weight) for value, weight in self._given], 0)
        part = self._hearing.part_of[rank]
        if said is None:
            heard = [self._given[speaker] for speaker in self._hearing.producers[part]]
            return Taken(END if heard[0][0] is END else join(self._join, heard, self.route))
        runs = [self._given[run.producer][0].take(range(run.start, run.stop)) for run in said.parts[part]]
        batch = Batch.concat(runs or [self._batches()[0].take([])])
        batch.most = said.cut.most
        return Taken(batch, said)

    def _batches(self) -> list[Batch]:
        return [value for value, _ in self._given if isinstance(value, Batch)]

    def _second_hop(
        self,
        batch: Batch,
        said: Said,
        held: Mapping[int, Sequence[Id]],
        wanted: Mapping[int, Sequence[Id]],
        rank: int,
    ) -> Batch:
        """What other ranks hold is in the recording, too."""
        whole = Batch.concat([batch for batch in self._batches() if len(batch)])
        where = {tuple(id): row for row, id in enumerate(whole.ids.tolist())}
        return whole.take([where[id] for id in wanted[rank]])
