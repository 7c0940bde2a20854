"""The texts of errors about the ranks and the dims of a mesh."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshctl.topology.dims import MAX_SHOWN, VIEWS, shown
from meshctl.topology.strides import join, offset

if TYPE_CHECKING:
    from meshctl.topology.mesh import DeviceMesh


def why_unknown(mesh: DeviceMesh, names: tuple[str, ...]) -> str:
    """Returns why a mesh does not have all of these dims."""
    views = VIEWS if mesh.has_views else {}
    of_views = [dim for dims in views.values() for dim in dims]
    known = (*mesh.mesh_dim_names, *mesh.absent, *of_views)
    if strange := [dim for dim in names if dim not in known]:
        also = f"; its views have {', '.join(of_views)}" if views else ""
        return f"dim {strange[0]!r} does not exist; available: {', '.join(mesh.mesh_dim_names)}{also}"
    return f"{' and '.join(names)} cannot be used together: they are not dims of one view of the mesh"


def extent(mesh: DeviceMesh) -> str:
    """Returns a text that names the ranks of a mesh: all of them if they are consecutive, otherwise the first
    ones."""
    layout, count = mesh.layout, mesh.world_size
    flat = join(layout.dims)
    if flat in (((count, 1),), ()) and not layout.table:
        first = layout.at(layout.start)
        return f"the ranks {first} to {first + count - 1}"
    offsets = [offset(flat, index) for index in range(min(count, MAX_SHOWN + 1))]
    return f"the ranks {shown([layout.at(layout.start + each) for each in offsets])}"
