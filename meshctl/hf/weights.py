"""The weights of a sharded model: under the names of the Hugging Face model, as shards of this rank, and
under the names and in the shapes that its files have.

    in memory    model.layers.0.mlp.experts.gate_up_proj           [experts, 2 x width, hidden]
    in files     model.layers.0.mlp.experts.3.gate_proj.weight     [width, hidden]
                 model.layers.0.mlp.experts.3.up_proj.weight       [width, hidden]

An engine or another model expects the names in files. A fused weight is first sharded over its last dim and
then divided into rows, so that each stored weight is a shard as well.

An export divides the weights into files of a limited size before any tensor is gathered. Then one tensor at a
time is gathered. The rank that writes its file keeps the tensor, and all other ranks drop it. The ranks write
different files at the same time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from meshctl.dataclass import dataclass
from meshctl.hf import peft_api
from meshctl.hf.options import ModelError
from meshctl.hf.sharding import (
    in_blocks,
    local_of,
    number_of_shards,
    part_of,
    sharded_by_last_dim,
    whole_of,
)
from meshctl.hf.stages import listed_names
from meshctl.hf.transformers_api import DiskFormat
from meshctl.runtime.collectives.collective import Collective


def held(model: Any) -> dict[str, Tensor]:
    """Returns the parameters and saved buffers of the model: name -> tensor. A tied parameter is listed under
    its first name only."""
    state = model.state_dict(keep_vars=True)
    return {listed: state[name] for name, listed in listed_names(model, state).items()}


def parameters(model: Any) -> list[tuple[str, nn.Parameter]]:
    """Returns the pairs (name, parameter) of the model. A tied parameter is listed under its first name
    only."""
    named = dict(model.named_parameters())
    return [(listed, named[name]) for name, listed in listed_names(model, named).items()]


def adapter_of(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields the pairs (name, tensor) of the adapter's parameters. The names are those in the files of
    peft."""
    for name, tensor in held(model).items():
        if peft_api.is_adapter(name):
            yield f"base_model.model.{name.replace(f'.{peft_api.ADAPTER}.', '.')}", tensor.detach()


def merged_weights(model: Any) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, tensor) for the weights of the base model, with the adapter added to them.

    All ranks iterate together, because the two small matrices of each adapted layer are gathered.
    """
    layers = peft_api.layers(model)
    for name, tensor in held(model).items():
        if peft_api.is_adapter(name):
            continue
        detached = tensor.detach()
        yield peft_api.plain_name(name), _merged(detached, layers[name]) if name in layers else detached


def outlines(model: Any) -> Mapping[str, Tensor]:
    """Returns the base model's weights without their values: name in `merged_weights` -> tensor of torch's
    `meta` device with the whole shape."""
    return {
        peft_api.plain_name(name): torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        for name, tensor in held(model).items()
        if not peft_api.is_adapter(name)
    }


def _merged(weight: Tensor, layer: Any) -> Tensor:
    inner = whole_of(layer.lora_A[peft_api.ADAPTER].weight)
    outer = whole_of(layer.lora_B[peft_api.ADAPTER].weight)
    change = part_of(peft_api.change_of(layer, inner, outer).to(weight.dtype), weight)
    result = weight.clone()
    local_of(result).add_(change)
    return result


@torch.no_grad()
def copy_named(own: Mapping[str, Tensor], stream: Iterable[tuple[str, Tensor]]) -> None:
    """Copies the tensors of `stream` in place into the tensors of `own` with the same names.

    Each tensor of `stream` is whole, a DTensor, or the shard of this rank. Raises `ModelError` for an unknown
    name or a wrong shape.
    """
    for name, tensor in stream:
        if name not in own:
            raise ModelError(f"`{name}` is sent to the model, which has no such parameter")
        target = local_of(own[name])
        part = _part(tensor, own[name], target)
        if part.shape != target.shape:
            raise ModelError(
                f"`{name}` has the shape {list(own[name].shape)}, and {list(tensor.shape)} is sent"
            )
        target.copy_(part)


def _part(tensor: Tensor, own: Tensor, target: Tensor) -> Tensor:
    """Returns the shard of `tensor` that this rank stores. `tensor` is whole, a DTensor, or already this
    shard. `own` is the model's parameter, and `target` is the memory of its local shard."""
    if isinstance(tensor, DTensor):
        is_alike = isinstance(own, DTensor) and own.placements == tensor.placements
        if is_alike and own.device_mesh == tensor.device_mesh:  # type: ignore[attr-defined]
            return local_of(tensor)
        tensor = whole_of(tensor)
    return tensor if tensor.shape == target.shape else part_of(tensor.to(target), own)


def stored_weights(disk: DiskFormat, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yields the pairs (name in files, shard) of `weights`, which are pairs (name in memory, shard).

    A weight is whole on every rank if it does not consist of rows of one weight in memory. All ranks iterate
    together.
    """
    joined: dict[str, dict[str, Tensor]] = {}
    for name, tensor in weights:
        if not disk.is_stored(name):
            continue
        if not disk.is_converted(name):
            yield disk.renamed(name), in_blocks(tensor)
        elif rows := disk.rows_of(name, tuple(tensor.shape)):
            yield from _parts(_over_last_dim(tensor), rows)
        else:
            joined.setdefault(disk.unit_of(name), {})[name] = whole_of(tensor)
    for unit in joined.values():
        yield from disk.convert(unit).items()


@torch.no_grad()
def load_stored(disk: DiskFormat, own: Mapping[str, Tensor], stream: Iterable[tuple[str, Tensor]]) -> None:
    """Copies the tensors of `stream` in place into `own`, the model's tensors under their names in memory.

    `stream` has names in files. Each of its tensors is whole, a DTensor, or the shard of this rank that
    `stored_weights` yields. All ranks iterate together. Raises `ModelError` for an unknown name, a wrong
    shape, and a fused weight of which only a part arrives.
    """
    plain, fused = _targets(disk, own)
    arriving: dict[str, _Arriving] = {}
    for name, tensor in stream:
        if name not in fused:
            copy_named(plain, [(name, tensor)])
            continue
        target = fused[name]
        arriving.setdefault(target, _Arriving(disk, target, own[target])).add(name, tensor)
        if not arriving[target].missing:
            arriving.pop(target).finish()
    for target, one in arriving.items():
        raise ModelError(f"`{target}` is fused of several weights, and `{min(one.missing)}` is not sent")


def _targets(disk: DiskFormat, own: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns name in files -> tensor, and for fused weights name in files -> name in memory."""
    plain: dict[str, Tensor] = {}
    fused: dict[str, str] = {}
    for name, tensor in own.items():
        if not disk.is_converted(name):
            plain[disk.renamed(name)] = tensor
            continue
        for stored in disk.rows_of(name, tuple(tensor.shape)) or {}:
            fused[stored] = name
    return plain, fused


class _Arriving:
    def __init__(self, disk: DiskFormat, name: str, own: Tensor) -> None:
        self._own, self._buffer = own, torch.empty_like(_over_last_dim(own))
        self._rows = disk.rows_of(name, tuple(own.shape)) or {}
        self.missing = set(self._rows)

    def add(self, name: str, tensor: Tensor) -> None:
        rows = self._rows[name]
        [(_, part)] = _parts(self._buffer, {name: rows})
        copy_named({name: part}, [(name, tensor)])
        _flat(local_of(self._buffer))[rows.flatten()] = _flat(local_of(part))
        self.missing.discard(name)

    def finish(self) -> None:
        local_of(self._own).copy_(part_of(whole_of(self._buffer), self._own))


def _over_last_dim(tensor: Tensor) -> Tensor:
    """Returns the tensor, sharded over its last dim if it is sharded at all. A last dim with fewer elements
    than there are shards is not sharded."""
    if not isinstance(tensor, DTensor):
        return tensor
    return sharded_by_last_dim(tensor) if tensor.shape[-1] >= number_of_shards(tensor) else whole_of(tensor)


def _parts(fused: Tensor, rows: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    local = _flat(local_of(fused))
    for name, own in rows.items():
        part = local[own.flatten().to(local.device)].view(*own.shape, local.shape[-1])
        if isinstance(fused, DTensor):
            shape = torch.Size((*part.shape[:-1], fused.shape[-1]))
            strides = tuple(prod(shape[dim + 1 :]) for dim in range(len(shape)))
            last = Shard(part.ndim - 1)
            placements = [each if each.is_replicate() else last for each in fused.placements]
            part = DTensor.from_local(
                part, fused.device_mesh, placements, run_check=False, shape=shape, stride=strides
            )
        yield name, part


def _flat(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, tensor.shape[-1])


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


def export_adapter(
    config: Any, base: str, tensors: Iterable[tuple[str, Tensor]], folder: Path, world: Collective
) -> None:
    """Writes an adapter to `folder`, in the format of peft. `config` is that of peft, and `base` the name of
    the base model. All ranks of `world` call this function together. Raises `ModelError` if a file cannot be
    written."""
    kept = {name: _own(whole_of(part)) for name, part in tensors}
    if world.rank == 0:
        config.base_model_name_or_path, config.inference_mode = base or None, True
        config.task_type = "CAUSAL_LM"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            config.save_pretrained(folder)
            save_file(kept, folder / peft_api.WEIGHTS, metadata={"format": "pt"})
        except (OSError, SafetensorError) as error:
            raise ModelError(f"the export to `{folder}` failed: {error}") from error
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
