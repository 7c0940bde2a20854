"""The ranks that represent the data ranks of a mesh: of each data rank the smallest of its ranks in the last
pp stage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshctl.topology.dims import MeshError
from meshctl.topology.sizes import whole

if TYPE_CHECKING:
    from meshctl.topology.mesh import DeviceMesh


def representative(mesh: DeviceMesh, data_rank: int) -> int:
    """Implements `DeviceMesh.representative`."""
    number = whole(data_rank)
    if number is None or not 0 <= number < mesh.data_size:
        raise MeshError(
            f"data rank {data_rank!r} does not exist; the data ranks are 0 to {mesh.data_size - 1}"
        )
    last, fsdp = mesh.size("pp") - 1, mesh.size("fsdp")
    # The indices of the data rank in dp x fsdp.
    indices = range(number * mesh.ulysses_size, (number + 1) * mesh.ulysses_size)
    # Without a table, ranks rise along dp and along fsdp: the smallest rank has the first of these
    # indices, or the first one in the next row of fsdp.
    if not mesh.layout.table:
        indices = range(indices.start, indices.stop, -indices.start % fsdp or mesh.ulysses_size)[:2]
    firsts = [mesh.rank({"pp": last, "dp": index // fsdp, "fsdp": index % fsdp}) for index in indices]
    dims = _peer_dims(mesh)
    return min(min(mesh.ranks_along(dims, first)) if dims else first for first in firsts)


def collect_ranks(mesh: DeviceMesh) -> tuple[int, ...]:
    """Implements `DeviceMesh.collect_ranks`."""
    ranks = mesh.ranks_along(("dp", "fsdp", *_peer_dims(mesh)), mesh.rank({"pp": mesh.size("pp") - 1}))
    each = len(ranks) // mesh.data_size
    if each == 1:
        return ranks
    return tuple(min(ranks[start : start + each]) for start in range(0, len(ranks), each))


def _peer_dims(mesh: DeviceMesh) -> tuple[str, ...]:
    """Returns the dims in which all ranks of a data rank are compared to find the smallest. Empty if the
    ranks rise along each dim: then the smallest one has the index 0."""
    if not mesh.layout.table:
        return ()
    return tuple(dim for dim in mesh.mesh_dim_names if dim not in ("pp", "dp", "fsdp"))
