"""Finds the values of a state that differ between the ranks of a mesh, and the dims along which they differ.

Every rank computes the digests of its own values, all ranks exchange them, and each computes the same answer.
A value that only some ranks have does not differ if those that have it agree: the ranks of a pipeline stage
have weights that others do not have. Shards of a tensor are compared where they are the same part of it.

A digest of a tensor is that of its dtype, shape and bytes, in CPU memory. hashlib computes it in one call
without the interpreter's lock, for which a thread beside training may wait 5 ms after each call.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from hashlib import sha256
from itertools import combinations
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from meshctl.dataclass import dataclass
from meshctl.runtime.collectives.collective import Collective
from meshctl.runtime.state.tree import Document, StateTree, is_tensor, leaves_of
from meshctl.topology.mesh import DeviceMesh

Dims = tuple[str, ...]
Digests = dict[str, dict[str, str]]
"""Name -> part of the value -> digest. The part is the place of a shard in its tensor; else it is empty."""


@dataclass(frozen=True)
class Differences:
    """Along which dims the state differs, in the order of the mesh."""

    document: Dims = ()
    """The dims along which the documents differ. They also differ where a value is absent on some ranks."""
    values: Mapping[str, Dims] = field(default_factory=dict)
    """Name -> dims, for the values that differ."""


def differences(tree: StateTree, mesh: DeviceMesh, world: Collective | None = None) -> Differences:
    """Compares the state of this rank with those of the others. It is a collective call of all ranks.
    `world` is the collective of all ranks; None for that of torch's WORLD."""
    if mesh.world_size == 1:
        return Differences()
    digests = {name: _digests_of(part, tree) for name, part in leaves_of(tree.document).items()}
    document = text_digest(tree.text)
    whole = text_digest(json.dumps([document, digests]))
    world = world or world_of(mesh)
    wholes = world.all_gather(torch.tensor(int(whole, 16) - (1 << 63)))
    if all(bool(other == wholes[0]) for other in wholes):
        return Differences()
    rows = world.all_gather_object([document, digests])
    return compared(mesh, [row[0] for row in rows], [row[1] for row in rows])


def world_of(mesh: DeviceMesh) -> Collective:
    """Returns the collective of all ranks of a mesh. The mesh must have `own_rank`, the rank of this
    process."""
    rank = mesh.own_rank
    assert rank is not None, "the mesh has no rank of its own"
    return Collective.of([sorted(mesh.ranks())], rank)


def _digests_of(part: Document, tree: StateTree) -> dict[str, str]:
    text = json.dumps(part)
    if not is_tensor(part):
        return {"": text_digest(text)}
    if part[0] != "sharded":
        return {"": text_digest(text + tensor_digest(tree.tensors[part[1]]))}
    tensor = tree.sharded[part[1]]
    if not isinstance(tensor, DTensor) or tensor.device_mesh.get_coordinate() is None:
        return {}  # only torch knows its shards
    if any(placement.is_partial() for placement in tensor.placements):
        return {}
    shape, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return {f"{list(offset)}{list(shape)}": tensor_digest(tensor.to_local())}


def compared(mesh: DeviceMesh, documents: Sequence[str], digests: Sequence[Digests]) -> Differences:
    """Returns the differences. `documents` and `digests` are by rank."""
    dims = [dim for dim in mesh.mesh_dim_names if mesh.size(dim) > 1]
    coordinates = [mesh.coordinate(rank) for rank in sorted(mesh.ranks())]
    places = {
        chosen: [tuple(at[dim] for dim in chosen) for at in coordinates]
        for count in range(len(dims) + 1)
        for chosen in combinations(dims, count)
    }

    @cache
    def explaining(pattern: tuple[int, ...]) -> Dims:
        return next(dims for dims in places if _are_equal_at(places[dims], pattern))

    def dims_of(values: Sequence[str | None]) -> Dims:
        """Returns the smallest set of dims such that ranks with equal coordinates in these dims have equal
        values. None stands for a value that a rank does not have."""
        numbers: dict[str | None, int] = {None: -1}
        return explaining(tuple(numbers.setdefault(value, len(numbers)) for value in values))

    parts_of: dict[str, set[str]] = {}
    for own in digests:
        for name, parts in own.items():
            parts_of.setdefault(name, set()).update(parts)
    values: dict[str, Dims] = {}
    for name, all_parts in parts_of.items():
        found: set[str] = set()
        for part in all_parts:
            found.update(dims_of([own.get(name, {}).get(part) for own in digests]))
        if found:
            values[name] = tuple(dim for dim in mesh.mesh_dim_names if dim in found)
    return Differences(dims_of(documents), values)


def _are_equal_at(places: Sequence[tuple[int, ...]], values: Sequence[int]) -> bool:
    """Returns whether all values at the same place are equal; -1 is no value."""
    found: dict[tuple[int, ...], int] = {}
    return all(
        found.setdefault(place, value) == value
        for place, value in zip(places, values, strict=True)
        if value >= 0
    )


def text_digest(text: str) -> str:
    """Returns 16 hexadecimal digits."""
    return sha256(text.encode()).hexdigest()[:16]


def tensor_digest(tensor: Tensor) -> str:
    """Returns 16 hexadecimal digits, which are equal for tensors with equal dtype, shape and bytes."""
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    found = sha256(f"{plain.dtype} {list(plain.shape)}".encode())
    data: Any = plain.reshape(-1).view(torch.uint8).numpy()
    found.update(data)
    return found.hexdigest()[:16]
