"""torch's meshes of a component: its own dims with those of the views, and the nodes of its group."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

from meshctl.topology.mesh import VIEWS, DeviceMesh, MeshError


class MeshWithViews(TorchDeviceMesh):
    """torch's mesh, in which the dims of the views (`ulysses`, `ep`, ...) can be looked up, too.

    A view is made at the first look-up of its dims, which all ranks of the mesh reach together. Slices are
    plain meshes of torch.
    """

    _source: DeviceMesh
    _torch_views: dict[str, TorchDeviceMesh]

    def __getitem__(self, mesh_dim_names: str | tuple[str, ...]) -> TorchDeviceMesh:
        names = (mesh_dim_names,) if isinstance(mesh_dim_names, str) else tuple(mesh_dim_names)
        for view, dims in VIEWS.items():
            if not set(names) <= set(self._source.mesh_dim_names) and set(names) & set(dims):
                if view not in self._torch_views:
                    self._torch_views[view] = self._source.view(view).to_torch()
                return self._torch_views[view][mesh_dim_names]
        return super().__getitem__(mesh_dim_names)

    def get_group(self, mesh_dim: int | str | None = None) -> dist.ProcessGroup:
        if isinstance(mesh_dim, str) and mesh_dim not in self._source.mesh_dim_names:
            return self[mesh_dim].get_group()
        return super().get_group(mesh_dim)

    def get_local_rank(self, mesh_dim: int | str | None = None) -> int:
        if isinstance(mesh_dim, str) and mesh_dim not in self._source.mesh_dim_names:
            return self[mesh_dim].get_local_rank()
        return super().get_local_rank(mesh_dim)


def mesh_with_views(mesh: DeviceMesh) -> TorchDeviceMesh:
    """Returns torch's mesh with its views, on mps without. All ranks of the mesh call this together."""
    if not mesh.has_views or mesh.device_type == "mps":
        return mesh.to_torch()
    made = mesh.to_torch(MeshWithViews)
    assert isinstance(made, MeshWithViews)
    made._source, made._torch_views = mesh, {}
    return made


def node_mesh(nodes: Sequence[Sequence[int]], device_type: str) -> TorchDeviceMesh:
    """Returns torch's mesh of nodes and the ranks on each: dims `node` and `local`.

    All ranks of the group call it together. Raises `MeshError` if the nodes have different numbers of
    ranks.
    """
    counts = {len(ranks) for ranks in nodes}
    if len(counts) > 1:
        shown = ", ".join(map(str, (len(ranks) for ranks in nodes)))
        raise MeshError(f"the nodes have {shown} ranks, a mesh of node x local needs equal numbers")
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return TorchDeviceMesh(device_type, torch.tensor(nodes), mesh_dim_names=("node", "local"))


def local_mesh(nodes: Sequence[Sequence[int]], rank: int, device_type: str) -> TorchDeviceMesh:
    """Returns torch's mesh of the ranks on the node of `rank`: one dim, `local`.

    The nodes may have different numbers of ranks. All ranks of the group call it together.
    """
    if len({len(ranks) for ranks in nodes}) == 1:
        return node_mesh(nodes, device_type)["local"]
    groups = [dist.new_group(list(ranks)) for ranks in nodes]
    [group] = [group for group, ranks in zip(groups, nodes, strict=True) if rank in ranks]
    return TorchDeviceMesh.from_group(group, device_type, mesh_dim_names=("local",))
