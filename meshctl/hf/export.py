"""Writes a sharded model as safetensors files that plain transformers loads.

The weights are divided into files of a limited size before any tensor is gathered. Then one tensor at a time
is gathered. The rank that writes its file keeps the tensor, and all other ranks drop it. The ranks write
different files at the same time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.hf.options import ModelError
from meshctl.hf.sharding import whole_of
from meshctl.hf.transformers_api import DiskFormat
from meshctl.runtime.collectives.collective import Collective

FILE_BYTES = 5 * 10**9
"""The default maximum size of a file."""
INDEX = "model.safetensors.index.json"
OF_SEVERAL = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")


@dataclass(frozen=True)
class File:
    """A file of an export."""

    name: str
    sizes: Mapping[str, int]
    """Name of a tensor in the file -> its size in bytes."""
    sources: frozenset[str]
    """The names in memory of the tensors whose values are stored in the file."""


def export(
    disk: DiskFormat,
    shapes: Mapping[str, Tensor],
    tensors: Iterable[tuple[str, Tensor]],
    folder: Path,
    world: Collective,
    file_bytes: int = FILE_BYTES,
) -> None:
    """Writes the config and the weights of a model to `folder`.

    `shapes` are tensors of torch's `meta` device with the names and whole shapes of `tensors`. Each file has
    at most `file_bytes`, or one tensor. No rank holds more than one file and the buffers in which a tensor is
    gathered. All ranks of `world` call this function together, and have a common file system. Raises
    `ModelError` if a file cannot be written.
    """
    units = disk.units(shapes)
    files = _files(disk, units, shapes, file_bytes)
    unit_of = {name: unit for unit in units for name in unit}
    if world.rank == 0:
        _prepare(disk, folder)
    world.barrier()
    numbers = {name: number for number, file in enumerate(files) for name in file.sources}
    kept: dict[str, Tensor] = {}
    written = 0
    for unit, parts in _collected(tensors, unit_of):
        number = numbers[unit[0]]
        if number >= written + world.size:  # this rank's file of the last round is complete
            _write(folder, files, written + world.rank, kept)
            written += world.size
        whole = {name: whole_of(part) for name, part in parts.items()}
        if number == written + world.rank:
            kept |= {name: _own(tensor) for name, tensor in disk.convert(whole).items()}
    _write(folder, files, written + world.rank, kept)
    world.barrier()
    if world.rank == 0:
        _finish(folder, files)
    world.barrier()


def _files(
    disk: DiskFormat, units: Sequence[tuple[str, ...]], shapes: Mapping[str, Tensor], limit: int
) -> list[File]:
    """Divides the units of `DiskFormat.units`, in order, into files of at most `limit` bytes or one unit."""
    found: list[tuple[dict[str, int], list[str]]] = []
    for unit in units:
        converted = disk.convert({name: shapes[name] for name in unit})
        sizes = {name: tensor.nbytes for name, tensor in converted.items()}
        if not found or sum(found[-1][0].values()) + sum(sizes.values()) > limit:
            found.append(({}, []))
        found[-1][0].update(sizes)
        found[-1][1].extend(unit)
    names = ["model.safetensors"]
    if len(found) > 1:
        names = [f"model-{number:05}-of-{len(found):05}.safetensors" for number in range(1, len(found) + 1)]
    return [
        File(name, sizes, frozenset(sources)) for name, (sizes, sources) in zip(names, found, strict=True)
    ]


def _collected(
    tensors: Iterable[tuple[str, Tensor]], unit_of: Mapping[str, tuple[str, ...]]
) -> Iterator[tuple[tuple[str, ...], dict[str, Tensor]]]:
    """Yields (unit, its tensors) as soon as all tensors of a unit have arrived."""
    waiting: dict[tuple[str, ...], dict[str, Tensor]] = {}
    for name, tensor in tensors:
        if unit := unit_of.get(name):
            parts = waiting.setdefault(unit, {})
            parts[name] = tensor
            if len(parts) == len(unit):
                yield unit, waiting.pop(unit)


def _own(tensor: Tensor) -> Tensor:
    """Returns a contiguous tensor in CPU memory that shares no storage with others of the same file."""
    found = tensor.cpu().contiguous()
    return found if found.untyped_storage().nbytes() == found.nbytes else found.clone()


def _prepare(disk: DiskFormat, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.glob("model*.safetensors*"):
            if path.name == INDEX or OF_SEVERAL.fullmatch(path.name):
                path.unlink()
        disk.save_config(folder)
    except OSError as error:
        raise ModelError(f"the export to `{folder}` failed: {error}") from error


def _write(folder: Path, files: Sequence[File], number: int, kept: dict[str, Tensor]) -> None:
    """Writes the file with the index `number`, if there is one, and clears `kept`."""
    if number >= len(files):
        return
    path = folder / files[number].name
    part = path.with_name(f"{path.name}.part")
    try:
        save_file(kept, part, metadata={"format": "pt"})
        part.replace(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"the export to `{path}` failed: {error}") from error
    kept.clear()


def _finish(folder: Path, files: Sequence[File]) -> None:
    if len(files) == 1:
        return
    size = sum(sum(file.sizes.values()) for file in files)
    index = {
        "metadata": {"total_size": size},
        "weight_map": {name: file.name for file in files for name in file.sizes},
    }
    (folder / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")
