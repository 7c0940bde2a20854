"""Converts a `DeviceMesh` to torch's mesh with the same dims and ranks, and with process groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meshctl.topology.dims import MeshError, shown
from meshctl.topology.strides import Layout, row_major

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

    from meshctl.topology.mesh import DeviceMesh


def to_torch(mesh: DeviceMesh, kind: type[TorchDeviceMesh] | None) -> TorchDeviceMesh:
    """Implements `DeviceMesh.to_torch`."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

    if not mesh.whole:
        names = ", ".join(map(repr, mesh.mesh_dim_names))
        raise MeshError(f"a sub-mesh must be taken from torch's mesh of all ranks: mesh.to_torch()[{names}]")
    if not dist.is_initialized():
        if mesh.world_size > 1:
            raise MeshError(f"the mesh has {mesh.world_size} ranks, but torch.distributed is not initialised")
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    _refuse_misfit(mesh, dist.get_world_size())
    ranks = torch.tensor(mesh.as_array())
    if mesh.device_type == "mps":
        # torch cannot make process groups for mps itself; those of gloo carry CPU tensors.
        make: Any = dist.new_subgroups_by_enumeration
        groups = [make(_lists(mesh, dim))[0] for dim in mesh.mesh_dim_names]
        return TorchDeviceMesh.from_group(groups, "mps", mesh=ranks, mesh_dim_names=mesh.mesh_dim_names)
    return (kind or TorchDeviceMesh)(mesh.device_type, ranks, mesh_dim_names=mesh.mesh_dim_names)


def _lists(mesh: DeviceMesh, dim: str) -> list[list[int]]:
    return [list(group) for group in mesh.process_groups(dim)]


def _refuse_misfit(mesh: DeviceMesh, world_size: int) -> None:
    """Raises `MeshError` if the mesh does not fit a world of this size, or where ranks do not ascend along
    a dim, because torch sorts the ranks of a process group."""
    if mesh.world_size > world_size:
        raise MeshError(f"the mesh has {mesh.world_size} ranks, but the world has {world_size}")
    if mesh.world_size == world_size and mesh.layout == Layout(row_major(mesh.shape)):
        return
    if (last := max(mesh.ranks())) >= world_size:
        raise MeshError(f"the mesh has rank {last}, but the world has the ranks 0 to {world_size - 1}")
    for dim in mesh.mesh_dim_names:
        for group in _lists(mesh, dim):
            if group != sorted(group):
                raise MeshError(
                    f"torch requires ascending ranks in a process group, but along {dim} here they "
                    f"are {shown(group)}"
                )
