"""Checkpoints: one torch.distributed.checkpoint (DCP) folder per component, named after it and not after
ranks.

    step-N/COMPONENT/                   DCP: the tensors of the state by their names, and its document
    step-N/COMPONENT/by_rank.json       the values that differ between ranks
    step-N/GROUP.json                   the number of samples that each source of the group has produced, and
                                        the open passes of its take blocks
    step-N/BLOCK.passes/RANK.safetensors    the samples of the passes of a rank that are ready and not taken
    step-N/checkpoint.manifest.json     sizes and digests of all these files, written last

The document (`state.tree`) has the structure of the state and all values that are not tensors. What is equal
on all ranks is stored once. A value that differs is stored once for each coordinate of the dims along which
it differs, under a name such as `noise@dp=1of2,tp=0of2`; the documents are stored in the same way. A sharded
tensor is DCP's and is resharded when another mesh loads it.

torch pickles DCP's metadata. It is read here by an unpickler that accepts only DCP's own classes, and other
values are read with `torch.load(weights_only=True)`. So loading a checkpoint never runs code from it.
"""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import product
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

from meshctl.dataclass import dataclass
from meshctl.run.checkpoints import BY_RANK, PASSES, VaryingState
from meshctl.run.checkpoints import FILE as MANIFEST
from meshctl.run.directory import write_whole
from meshctl.run.reading import DAMAGED, decoded, text_of
from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.collectives.collective import Collective
from meshctl.runtime.errors import CheckpointError as CheckpointError
from meshctl.runtime.loop_context import TakePosition
from meshctl.runtime.routes import record
from meshctl.runtime.state.differences import differences, world_of
from meshctl.runtime.state.tree import (
    Document,
    StateTree,
    decode,
    tensors_of,
    values_of,
    with_values,
)
from meshctl.runtime.transports.buffers.frames import FrameError
from meshctl.topology.mesh import DeviceMesh

DOCUMENT = "@document"
"""The name of the document. In the names of tensors, `@` is written twice."""
DOCUMENT_ERRORS = (LookupError, ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""The exceptions that reading a damaged document raises."""


POSITION_FORMAT = 3
"""The format of a position file. A checkpoint whose position files have one is complete only with a
manifest. Those of format 2 have no `takes`."""


def save(
    folder: Path, name: str, state: object, mesh: DeviceMesh, world: Collective | None = None
) -> list[Path]:
    """Writes the state of a component, or a state that was taken apart, to `folder/name`, and returns the
    files that this rank has written. It is a collective call of all ranks of the group; `mesh` is the
    component's and knows this rank. All communication is over `world`, the collective of all ranks of the
    group; None for that of torch's WORLD.

    Raises `CheckpointError` with the path and the type of a value that cannot be stored; `OSError`, or
    `CheckpointException` of torch on all ranks, if a file cannot be written.
    """
    path, tree = folder / name, state if isinstance(state, StateTree) else StateTree.of(name, state)
    found = differences(tree, mesh, world)
    varying = VaryingState.of(mesh, found.document, found.values)
    stored = _StoredNames(varying, mesh)
    entries = {stored.tensor(key): tensor for key, tensor in (tree.tensors | tree.sharded).items()}
    failure: OSError | None = None  # raised after the collective calls of all ranks
    if mesh.own_rank == min(mesh.ranks()):
        try:
            varying.write(path)
        except OSError as error:
            failure = error
    written = write_dcp(path, {**entries, stored.document(): tree.text}, world.group if world else None)
    if failure:
        raise failure
    if mesh.own_rank == min(mesh.ranks()) and (path / BY_RANK).exists():
        written.append(path / BY_RANK)
    return written


def load(folder: Path, name: str, own: dict[str, Any], mesh: DeviceMesh) -> dict[str, Any]:
    """Returns the state of a component as this rank saved it. It is a collective call of all ranks of the
    group.

    `own` is the component's `state_dict()`. Tensors of the same name, dtype and shape are loaded into its
    tensors, and its sharded tensors define how the saved ones are resharded.

    Raises `CheckpointError` if the folder has no such state or it does not fit.
    """
    path = folder / name
    if not path.is_dir():
        raise CheckpointError(f"{folder} contains no state of component `{name}`")
    metadata = read_metadata(path)
    try:
        varying = VaryingState.read(path)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    if reason := varying.refusal(name, mesh):
        raise CheckpointError(f"{path}: {reason}")
    try:
        return _Load(path, name, StateTree.of(name, own), mesh, varying, metadata).state()
    except CheckpointError:
        raise
    except DOCUMENT_ERRORS as error:
        reason = f"{type(error).__name__}: {error}"
        raise CheckpointError(f"the document of {path} is damaged: {reason}") from error


class _StoredNames:
    def __init__(self, varying: VaryingState, mesh: DeviceMesh) -> None:
        self._varying, self._coordinate = varying, mesh.coordinate()

    def document(self) -> str:
        return self._at(DOCUMENT, self._varying.document)

    def tensor(self, key: str) -> str:
        return self._at(key.replace("@", "@@"), self._varying.values.get(key, ()))

    def _at(self, name: str, dims: Sequence[str]) -> str:
        return _at(name, {dim: self._coordinate.get(dim, 0) for dim in dims})


def _at(name: str, coordinate: Mapping[str, int]) -> str:
    place = ",".join(f"{dim}={index}" for dim, index in coordinate.items())
    return f"{name}@{place}" if place else name


@dataclass(frozen=True)
class _Load:
    path: Path
    name: str
    own: StateTree
    mesh: DeviceMesh
    varying: VaryingState
    metadata: Metadata

    def state(self) -> dict[str, Any]:
        stored = _StoredNames(self.varying, self.mesh)
        is_changed = bool(self.varying.changed(self.varying.document, self.mesh))
        if not is_changed:
            [document] = self._documents([stored.document()])
        if is_changed or self._has_other_stages(document):
            dims = self.varying.document
            places = product(*(range(self.varying.mesh[dim]) for dim in dims))
            names = [_at(DOCUMENT, dict(zip(dims, place, strict=True))) for place in places]
            document = self._merged(self._documents(names))
        targets = self._targets(document, stored)
        read_dcp(self.path, self.name, {stored.tensor(key): target for key, target in targets.items()})
        state = decode(document, targets)
        if not isinstance(state, dict):
            raise TypeError(f"it is a {type(state).__name__}")
        return state

    def _documents(self, names: list[str]) -> list[Document]:
        texts: dict[str, Any] = dict.fromkeys(names, "")
        read_dcp(self.path, self.name, texts)
        return [json.loads(texts[name]) for name in names]

    def _has_other_stages(self, document: Document) -> bool:
        """Returns whether the pipeline stages of this mesh divide the state in another way than those that
        saved it. `document` is the one that this rank has saved."""
        if self.mesh.size("pp") == 1:
            return False
        own, saved = (sorted(values_of(one)) for one in (self.own.document, document))
        rows = world_of(self.mesh).all_gather_object([own, saved])
        every_own, every_saved = ({key for row in rows for key in row[side]} for side in (0, 1))
        return every_own == every_saved and any(row[0] != row[1] for row in rows)

    def _merged(self, documents: list[Document]) -> Document:
        """Returns the document of a rank of another mesh. No value differs between the saved documents, and
        each has only a part of them, as those of pipeline stages. A rank loads the values that its own
        `state_dict()` has. Raises `CheckpointError` for a value that was not saved, or that no rank loads."""
        values: dict[str, Document] = {}
        for document in documents:
            values |= values_of(document)
        wanted = [*values_of(self.own.document)]
        taken = {key for keys in world_of(self.mesh).all_gather_object(wanted) for key in keys}
        absent = [key for key in wanted if key not in values]
        unused = sorted(set(values) - taken)
        if absent or unused:
            was = " x ".join(f"{dim} {self.varying.mesh[dim]}" for dim in self.varying.document)
            reason = f"`{absent[0]}` was not saved" if absent else f"no rank loads `{unused[0]}`"
            raise CheckpointError(
                f"{self.path}: the state of `{self.name}` was saved with {was}, where ranks have different "
                f"keys: {reason}"
            )
        return with_values(self.own.document, values)

    def _targets(self, document: Document, stored: _StoredNames) -> dict[str, Tensor]:
        """Returns the tensors into which the state is loaded: the component's own where they fit, else new
        ones."""
        targets: dict[str, Tensor] = {}
        used: set[int] = set()
        for part in tensors_of(document):
            kind, key, *_ = part
            entry = stored.tensor(key)
            saved = self.metadata.state_dict_metadata.get(entry)
            if not isinstance(saved, TensorStorageMetadata):
                raise CheckpointError(f"{self.path} is damaged: it has no tensor `{entry}`")
            own = self.own.sharded.get(key)
            if own is None and kind == "sharded" and self.mesh.world_size > 1 and key not in self.own.tensors:
                raise CheckpointError(
                    f"`{key}` of component `{self.name}` is sharded, and `state_dict()` has no such tensor "
                    "before the first step, so that its placement is unknown; create it in `setup()`"
                )
            targets[key] = own if own is not None else self._plain_target(part, saved, used)
        return targets

    def _plain_target(self, part: Document, saved: TensorStorageMetadata, used: set[int]) -> Tensor:
        """Returns the component's own tensor if it has the saved dtype and shape, and shares no memory with
        the tensors before it; else a new one on a device of the saved type, or in CPU memory. `used` has the
        storages that are taken."""
        kind, key, *rest = part
        own = self.own.tensors.get(key)
        if own is not None and own.shape == saved.size and own.dtype == saved.properties.dtype:
            storage = own.untyped_storage().data_ptr()
            has_own_elements = all(
                stride for size, stride in zip(own.shape, own.stride(), strict=True) if size > 1
            )
            if storage not in used and has_own_elements:
                used.add(storage)
                return own
        is_on_device = kind == "tensor" and rest == [self.mesh.device_type]
        device = self.mesh.device_type if is_on_device else "cpu"
        return torch.empty(saved.size, dtype=saved.properties.dtype, device=device)


def save_position(
    folder: Path, group: str, samples: Mapping[str, int], takes: Mapping[str, TakePosition]
) -> list[Path]:
    """Writes source -> the number of samples that it has produced, and the open passes of the take blocks.
    Returns the file. One rank of the group calls it."""
    blocks = {name: {"next": one.next, "open": [*one.open.items()]} for name, one in takes.items()}
    data = {"format": POSITION_FORMAT, "given": dict(samples), "takes": blocks}
    write_whole(folder / f"{group}.json", json.dumps(data) + "\n")
    return [folder / f"{group}.json"]


def save_ready(folder: Path, rank: int, takes: Mapping[str, TakePosition]) -> list[Path]:
    """Writes the samples of the ready passes of this rank, and returns the files. Raises `OSError`."""
    written = []
    for block, one in takes.items():
        if one.ready:
            path = folder / f"{block}{PASSES}" / f"{rank}.safetensors"
            record.write(path, Batch.concat([*one.ready.values()]), 1.0, {"block": block})
            written.append(path)
    return written


def load_positions(folder: Path) -> tuple[dict[str, int], dict[str, TakePosition]]:
    """Returns source -> the number of samples that it had produced, for the sources of all groups, and take
    block -> its passes, with the samples of those that were ready on any rank.

    Raises `CheckpointError` if a file is damaged.
    """
    samples: dict[str, int] = {}
    takes: dict[str, TakePosition] = {}
    for path in sorted(folder.glob("*.json")):
        if path.name == MANIFEST:
            continue
        try:
            data = decoded(text_of(path))
            samples |= {str(source): int(count) for source, count in data["given"].items()}
            for block, found in data.get("takes", {}).items():
                open = {int(number): int(step) for number, step in found["open"]}
                takes[block] = TakePosition(int(found["next"]), open, _ready(folder / f"{block}{PASSES}"))
        except (OSError, FrameError, *DAMAGED) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error
    return samples, takes


def _ready(folder: Path) -> dict[int, Batch]:
    """Returns number -> samples of the passes in a folder."""
    found: dict[int, Batch] = {}
    for path in sorted(folder.glob("*.safetensors")):
        batch, _ = record.read(path)
        rows: dict[int, list[int]] = {}
        for row, (number, *_) in enumerate(batch.ids.tolist()):
            rows.setdefault(number, []).append(row)
        found |= {number: batch.take(some).clone() for number, some in rows.items()}
    return found


# torch.distributed.checkpoint


def write_dcp(path: Path, state: dict[str, Any], group: dist.ProcessGroup | None = None) -> list[Path]:
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


def read_dcp(path: Path, component: str, state: dict[str, Any]) -> None:
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
