"""Checkpoints: one torch.distributed.checkpoint (DCP) folder per component, named after it and not after
ranks.

    step-N/COMPONENT/        DCP: the `state_dict()`, which is resharded when another mesh loads it
    step-N/GROUP.json        the number of samples that each source of the group has produced

torch pickles DCP's metadata. It is read here by an unpickler that accepts only DCP's own classes, and other
values are read with `torch.load(weights_only=True)`. So loading a checkpoint never runs code from it.
"""

from __future__ import annotations

import io
import json
import os
import pickle
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
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

from meshctl.run.directory import write_whole
from meshctl.runtime.errors import StageError


class CheckpointError(StageError):
    """A checkpoint cannot be read, or does not fit the component."""


def save(folder: Path, name: str, state: dict[str, Any]) -> None:
    """Writes the state of a component to `folder/name`. It is a collective call of all ranks of the group."""
    path = folder / name
    path.mkdir(parents=True, exist_ok=True)
    dcp.save(
        state, storage_writer=dcp.FileSystemWriter(path, sync_files=True), no_dist=not dist.is_initialized()
    )


def load(folder: Path, name: str, state: dict[str, Any]) -> None:
    """Loads the state of a component into `state`, its own `state_dict()`, in place. It is a collective call
    of all ranks of the group.

    Raises `CheckpointError` where the folder has no such state or it does not fit.
    """
    path = folder / name
    if not path.is_dir():
        raise CheckpointError(f"{folder} holds no state of component `{name}`")
    try:
        dcp.load(state, storage_reader=_Reader(path), planner=_Planner(), no_dist=not dist.is_initialized())
    except dcp.CheckpointException as error:
        failures = [failure for failure, *_ in error.failures.values()]
        lines = [(str(failure) or type(failure).__name__).splitlines()[0] for failure in failures]
        causes = "; ".join(dict.fromkeys(lines))
        raise CheckpointError(f"{path} cannot be loaded into component `{name}`: {causes}") from error


def save_position(folder: Path, group: str, samples: dict[str, int]) -> None:
    """Writes source -> the number of samples that it has produced. One rank of the group calls it."""
    write_whole(folder / f"{group}.json", json.dumps({"given": samples}) + "\n")


def load_positions(folder: Path) -> dict[str, int]:
    """Returns source -> the number of samples that it had produced, for the sources of all groups.

    Raises `CheckpointError` where a file is damaged.
    """
    samples: dict[str, int] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            counts = json.loads(path.read_text())["given"]
            samples |= {str(source): int(count) for source, count in counts.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
    return samples


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
            raise CheckpointError(f"{path} is no metadata of a checkpoint")
        metadata.storage_meta = metadata.storage_meta or StorageMeta()
        metadata.storage_meta.load_id = self.load_id
        return metadata


class _Planner(dcp.DefaultLoadPlanner):
    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        path = self.mappings[read_item.dest_index.fqn]
        set_element(self.original_state_dict, path, torch.load(value, weights_only=True))
