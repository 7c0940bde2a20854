"""Meshes made from a mesh: sub-meshes, the views `data` and `expert`, and joined or divided dims.

Each function rearranges strides. Where strides cannot describe the result, which depends on the order of the
dims, it makes a table of the ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from meshctl.topology.dims import RESERVED, MeshError
from meshctl.topology.sizes import EXPERT_DIMS
from meshctl.topology.strides import Dim, Layout, join, row_major, size_of, split

if TYPE_CHECKING:
    from meshctl.topology.mesh import DeviceMesh

DATA_DIMS = ("dp", "fsdp")
"""The dims whose product ulysses divides."""


def data_view(mesh: DeviceMesh) -> DeviceMesh:
    """Returns the mesh with `data` and `ulysses` in place of dp and fsdp, at the position of the outer
    one."""
    names = mesh.mesh_dim_names
    first = min((names.index(dim) for dim in DATA_DIMS if dim in names), default=0)
    order = _replaced(names, DATA_DIMS, first, ("data", "ulysses"))
    return _refactored(mesh, order, DATA_DIMS, {"ulysses": mesh.ulysses_size}, "data")


def expert_view(mesh: DeviceMesh) -> DeviceMesh:
    """Returns the mesh with `ep_fsdp`, `ep` and `etp` in place of all dims but pp."""
    stage = tuple(dim for dim in mesh.mesh_dim_names if dim != "pp")
    order = (*(dim for dim in mesh.mesh_dim_names if dim == "pp"), *EXPERT_DIMS)
    return _refactored(mesh, order, stage, {"etp": mesh.etp_size, "ep": mesh.ep_size}, "ep_fsdp")


def sub_mesh(
    mesh: DeviceMesh, home: DeviceMesh, names: tuple[str, ...], digits: tuple[Dim, ...], start: int
) -> DeviceMesh:
    """Returns the sub-mesh of the dims `names`, which have these digits in `home`, the mesh or a view of it.
    `start` is its first position there."""
    shape = tuple(map(size_of, digits))
    keeps_data = all(
        dim in names or dim not in mesh.mesh_dim_names or mesh.size(dim) == 1 for dim in DATA_DIMS
    )
    return replace(
        mesh,
        mesh_dim_names=names,
        shape=shape,
        ulysses_size=mesh.ulysses_size if keeps_data else 1,
        ep_size=1,
        etp_size=1,
        vpp_size=mesh.vpp_size if "pp" in names else 1,
        sequence_parallel=mesh.sequence_parallel and "tp" in names,
        layout=Layout(digits, start, home.layout.table),
        absent=tuple(dim for dim in home.absent if dim not in names),
        has_views=home.has_views,
        whole=mesh.whole and prod(shape) == mesh.world_size,
    )


def joined(mesh: DeviceMesh, dims: tuple[str, ...], digits: Sequence[Dim], name: str) -> DeviceMesh:
    """Returns the mesh with `dims` joined into the dim `name`, at the position of the outermost of them. The
    last of `dims` is the fastest. `digits` has the digits of each of `dims`."""
    by_name = dict(zip(mesh.mesh_dim_names, mesh.layout.dims, strict=True))
    first = min((mesh.mesh_dim_names.index(dim) for dim in dims if dim in by_name), default=0)
    order = _replaced(mesh.mesh_dim_names, dims, first, (name,))
    by_name[name] = join(digits)
    return _regrouped(mesh, order, [by_name[dim] for dim in order], dims)


def divided(mesh: DeviceMesh, dim: str, parts: Mapping[str, int]) -> DeviceMesh:
    """Returns the mesh with `dim` divided into parts of these sizes, the last part the fastest.

    Raises `MeshError` for a part whose name is that of another dim, or reserved.
    """
    for name in parts:
        if name in RESERVED or (name != dim and name in mesh.mesh_dim_names):
            reason = RESERVED.get(name, "a dim of the mesh already")
            raise MeshError(f"{name!r} is {reason} and cannot be the name of a part of {dim}")
    order = [name for other in mesh.mesh_dim_names for name in (parts if other == dim else (other,))]
    outer, *inner = parts
    return _refactored(mesh, tuple(order), (dim,), {name: parts[name] for name in reversed(inner)}, outer)


def _replaced(
    names: tuple[str, ...], old: Sequence[str], first: int, new: tuple[str, ...]
) -> tuple[str, ...]:
    """Returns the names with `new` inserted before the position `first`, and without `old`."""
    before = (name for name in names[:first] if name not in old)
    after = (name for name in names[first:] if name not in old)
    return (*before, *new, *after)


def _refactored(
    mesh: DeviceMesh, order: tuple[str, ...], old: tuple[str, ...], inner: dict[str, int], outer: str
) -> DeviceMesh:
    """Returns the mesh with the dims `old` joined into one, which is divided into other dims: those of the
    sizes `inner`, the fastest first, and the dim `outer` of the remaining size. `order` has the names of all
    dims."""
    by_name = dict(zip(mesh.mesh_dim_names, mesh.layout.dims, strict=True))
    digits = {dim: found for dim, found in by_name.items() if dim not in old}
    left: Dim | None = join(by_name[dim] for dim in old if dim in by_name)
    for dim, size in inner.items():
        halves = split(left, size) if left is not None else None
        left, digits[dim] = halves or (None, ())
    if left is None:
        return _listed(mesh, order, old, inner, outer)
    digits[outer] = left
    return _regrouped(mesh, order, [digits[dim] for dim in order], old)


def _listed(
    mesh: DeviceMesh, order: tuple[str, ...], old: tuple[str, ...], inner: dict[str, int], outer: str
) -> DeviceMesh:
    """Returns the mesh of `_refactored` with a table of the ranks."""
    by_name = dict(zip(mesh.mesh_dim_names, mesh.layout.dims, strict=True))
    kept = [dim for dim in mesh.mesh_dim_names if dim not in old]
    replaced = [dim for dim in old if dim in by_name]
    table = mesh.layout.ranks((by_name[dim] for dim in (*kept, *replaced)), mesh.layout.start)
    sizes = {dim: mesh.size(dim) for dim in kept}
    sizes[outer] = prod(map(mesh.size, replaced)) // prod(inner.values())
    sizes |= dict(reversed(inner.items()))
    digits = dict(zip(sizes, row_major(tuple(sizes.values())), strict=True))
    return _regrouped(mesh, order, [digits[dim] for dim in order], old, table)


def _regrouped(
    mesh: DeviceMesh,
    names: tuple[str, ...],
    digits: Sequence[Dim],
    old: tuple[str, ...],
    table: tuple[int, ...] = (),
) -> DeviceMesh:
    """Returns a mesh of the same ranks with the dims `names`, which have these digits. Sizes and properties
    that belong to the replaced dims `old` are reset, such as `ulysses_size` to 1."""
    keeps_data = not any(dim in old and dim in mesh.mesh_dim_names for dim in DATA_DIMS)
    return replace(
        mesh,
        mesh_dim_names=names,
        shape=tuple(map(size_of, digits)),
        ulysses_size=mesh.ulysses_size if keeps_data else 1,
        ep_size=1,
        etp_size=1,
        vpp_size=1 if "pp" in old else mesh.vpp_size,
        sequence_parallel=mesh.sequence_parallel and "tp" not in old,
        layout=Layout(tuple(digits), 0 if table else mesh.layout.start, table or mesh.layout.table),
        absent=tuple(dim for dim in mesh.absent if dim not in old),
        has_views=False,
    )
