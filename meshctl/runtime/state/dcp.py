"""torch.distributed.checkpoint (DCP) without pickles that run code.

torch pickles DCP's metadata. It is read here by an unpickler that accepts only DCP's own classes, and other
values are read with `torch.load(weights_only=True)`. So loading a checkpoint never runs code from it.
"""

from __future__ import annotations

import io
import os
import pickle
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem

from meshctl.runtime.errors import CheckpointError


def write(path: Path, state: dict[str, Any], group: dist.ProcessGroup | None = None) -> list[Path]:
    """Writes tensors and texts to a folder, and returns the files that this rank has written. It is a
    collective call of all ranks of `group`, by default torch's WORLD."""
    with suppress(OSError):  # torch meets the same error, and raises it on all ranks
        path.mkdir(parents=True, exist_ok=True)
    has_device = any(value.device.type != "cpu" for value in state.values() if isinstance(value, Tensor))
    writer = dcp.FileSystemWriter(path, sync_files=True)
    if not has_device:  # else torch waits for the device's stream, which may be that of training
        writer.per_thread_copy_ahead = 0
    dcp.save(state, storage_writer=writer, process_group=group, no_dist=not dist.is_initialized())
    rank = dist.get_rank() if dist.is_initialized() else 0
    metadata = [] if rank else [path / ".metadata"]
    return [*sorted(path.glob(f"__{rank}_*.distcp")), *metadata]


def read_metadata(path: Path) -> Metadata:
    """Returns what a folder contains. Raises `CheckpointError` if it cannot be read."""
    return _Reader(path).read_metadata()


def read(path: Path, component: str, state: dict[str, Any]) -> None:
    """Reads the values of `state` from a folder, in place. It is a collective call of all ranks of the group.

    Raises `CheckpointError` if a value is missing, damaged or of another shape.
    """
    try:
        dcp.load(state, storage_reader=_Reader(path), planner=_Planner(), no_dist=not dist.is_initialized())
    except dcp.CheckpointException as error:
        failures = [failure for failure, *_ in error.failures.values()]
        lines = [(str(failure) or type(failure).__name__).splitlines()[0] for failure in failures]
        causes = "; ".join(dict.fromkeys(lines))
        raise CheckpointError(f"{path} cannot be loaded into component `{component}`: {causes}") from error


_METADATA_CLASSES = (
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    TensorProperties,
    StorageMeta,
    _MEM_FORMAT_ENCODING,
)
_DTYPES = [str(value) for value in vars(torch).values() if isinstance(value, torch.dtype)]
_ALLOWED_NAMES = {
    *((cls.__module__, cls.__name__) for cls in _METADATA_CLASSES),
    *(("torch", dtype.removeprefix("torch.")) for dtype in _DTYPES),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    ("torch.serialization", "_get_layout"),
}
"""Module and name of every object that DCP's metadata may refer to."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == "pathlib._local":  # where the paths of Python 3.13 are defined
            module = "pathlib"
        if (module, name) not in _ALLOWED_NAMES:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is none of DCP's classes")
        return super().find_class(module, name)


class _Reader(dcp.FileSystemReader):
    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        path = Path(os.fspath(self.path)) / ".metadata"
        try:
            metadata = _Unpickler(io.BytesIO(path.read_bytes())).load()
        except (OSError, pickle.UnpicklingError, EOFError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from error
        if not isinstance(metadata, Metadata):
            raise CheckpointError(f"{path} is not the metadata of a checkpoint")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Planner(dcp.DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        path = self.mappings[read_item.dest_index.fqn]
        set_element(self.original_state_dict, path, torch.load(value, weights_only=True))
