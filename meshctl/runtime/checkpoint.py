"""State on disk: one torch.distributed.checkpoint folder per component, by component name and never by rank.

    step-N/COMPONENT/        DCP: what `state_dict()` gave, re-sharded on loading to whatever mesh loads it
    step-N/GROUP.json        what the loop knows: how many samples each source of the group has given

torch pickles DCP's metadata; it is read here by an unpickler that knows DCP's own classes and nothing else,
and the other values through `torch.load(weights_only=True)`. So a checkpoint is data, too.
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
    """A checkpoint that cannot be read, or does not fit."""


def save(folder: Path, name: str, state: dict[str, Any]) -> None:
    """Writes a component's state; all ranks of its group's world call it together."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    dcp.save(
        state, storage_writer=dcp.FileSystemWriter(place, sync_files=True), no_dist=not dist.is_initialized()
    )


def load(folder: Path, name: str, state: dict[str, Any]) -> None:
    """Fills `state`, a component's own `state_dict()`, in place; all ranks of its group's world call it
    together."""
    place = folder / name
    if not place.is_dir():
        raise CheckpointError(f"{folder} holds no state of component `{name}`")
    try:
        dcp.load(state, storage_reader=_Reader(place), planner=_Planner(), no_dist=not dist.is_initialized())
    except dcp.CheckpointException as error:
        failures = [failed for failed, *_ in error.failures.values()]
        causes = "; ".join(
            dict.fromkeys((str(failed) or type(failed).__name__).splitlines()[0] for failed in failures)
        )
        raise CheckpointError(f"{place} cannot be loaded into component `{name}`: {causes}") from error


def save_position(folder: Path, group: str, given: dict[str, int]) -> None:
    """How many samples each source has given; one rank of the group writes it."""
    write_whole(folder / f"{group}.json", json.dumps({"given": given}) + "\n")


def load_positions(folder: Path) -> dict[str, int]:
    """The same of all groups."""
    given: dict[str, int] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            given |= {
                str(source): int(count) for source, count in json.loads(path.read_text())["given"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
    return given


_CLASSES = {
    *((kind.__module__, kind.__name__) for kind in (
        Metadata, MetadataIndex, TensorStorageMetadata, BytesStorageMetadata, ChunkStorageMetadata, TensorProperties, StorageMeta,
        _MEM_FORMAT_ENCODING,
    )),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
    ("torch.serialization", "_get_layout"),
    *(("torch", str(kind).removeprefix("torch.")) for kind in vars(torch).values() if isinstance(kind, torch.dtype)),
}  # fmt: skip
"""All that DCP's metadata is made of."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _CLASSES:
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
