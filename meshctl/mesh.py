"""Which rank does what: a mesh is named dims with sizes, and everything else is arithmetic by strides.

Ranks are row-major over the dims, outermost first. The standard order is pp, dp, fsdp, cp, tp, so that neighbours in `tp`
are neighbours in hardware. A dim that was not given has size 1 and index 0; it can still be asked for. `ulysses` is no dim:
it is carved out of dp x fsdp, so `ulysses_size` neighbouring data-parallel ranks share one data rank.

Every question about one rank costs O(dims), whatever the size of the mesh: nothing here lists the world unless its
answer is such a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

DIMS = ("pp", "dp", "fsdp", "cp", "tp")
"""Every dim there is, in the standard order."""
SIZES = (*(f"{dim}_size" for dim in DIMS), "ulysses_size")
"""The sizes that a recipe may give."""


class MeshError(ValueError):
    """Sizes that make no mesh, or a question about a rank or a dim that the mesh does not have."""


@dataclass(frozen=True)
class DeviceMesh:
    """Named dims over the ranks 0 .. world_size - 1 of one group."""

    mesh_dim_names: tuple[str, ...]
    """Outermost first; every dim of `DIMS` once."""
    shape: tuple[int, ...]
    ulysses_size: int = 1
    device_type: str = "cpu"

    def __post_init__(self) -> None:
        if sorted(self.mesh_dim_names) != sorted(DIMS):
            raise MeshError(f"the order of dims must name {', '.join(DIMS)}, each once; it says {', '.join(self.mesh_dim_names)}")
        if len(self.shape) != len(self.mesh_dim_names):
            raise MeshError(f"{len(self.shape)} sizes for {len(self.mesh_dim_names)} dims")
        for name, size in (*zip(self.mesh_dim_names, self.shape, strict=True), ("ulysses", self.ulysses_size)):
            if type(size) is not int or size < 1:
                raise MeshError(f"{name}_size must be a whole number from 1, it is {size!r}")
        data = self.size("dp") * self.size("fsdp")
        if data % self.ulysses_size:
            raise MeshError(f"ulysses_size {self.ulysses_size} is carved out of dp x fsdp and does not divide {data}")

    @classmethod
    def from_sizes(
        cls,
        *,
        world_size: int | None = None,
        dp_size: int | str | None = None,
        fsdp_size: int | str | None = None,
        tp_size: int | str | None = None,
        pp_size: int | str | None = None,
        cp_size: int | str | None = None,
        ulysses_size: int | None = None,
        device_type: str = "cpu",
        order: Sequence[str] = DIMS,
    ) -> DeviceMesh:
        """The mesh of these sizes. Where `world_size` is known, one size said "auto", or else a `dp_size` left out, is inferred.

        Raises `MeshError` where a size is no whole number from 1, two sizes are "auto", or the product is not the world.
        """
        given = {"pp": pp_size, "dp": dp_size, "fsdp": fsdp_size, "cp": cp_size, "tp": tp_size}
        unknown = [dim for dim, size in given.items() if size == "auto"]
        if len(unknown) > 1:
            raise MeshError(f"only one size can be auto, here are {', '.join(f'{dim}_size' for dim in unknown)}")
        for name, size in (*given.items(), ("world", world_size), ("ulysses", ulysses_size)):
            if size is not None and size != "auto" and (type(size) is not int or size < 1):
                raise MeshError(f"{name}_size must be a whole number from 1{' or auto' if name in given else ''}, it is {size!r}")
        known = {dim: size for dim, size in given.items() if isinstance(size, int)}
        rest = prod(known.values())
        said = " x ".join(f"{dim} {size}" for dim, size in known.items()) or "1"
        infer = unknown[0] if unknown else "dp" if dp_size is None else None
        if world_size is not None and infer:
            if world_size % rest:
                raise MeshError(f"{said} = {rest} does not divide the {world_size} ranks")
            known[infer] = world_size // rest
        elif unknown:
            raise MeshError(f"{unknown[0]}_size is auto, and the number of ranks is not known")
        elif world_size is not None and rest != world_size:
            raise MeshError(f"{said} = {rest}, and there are {world_size} ranks")
        return cls(tuple(order), tuple(known.get(dim, 1) for dim in order), ulysses_size or 1, device_type)

    # Sizes

    @property
    def world_size(self) -> int:
        return prod(self.shape)

    def size(self, dim: str) -> int:
        return self.shape[self._index(dim)]

    def stride(self, dim: str) -> int:
        """How far apart two neighbours in `dim` are, in ranks."""
        return prod(self.shape[self._index(dim) + 1 :])

    @property
    def data_size(self) -> int:
        """How many different shares of a batch there are."""
        return self.size("dp") * self.size("fsdp") // self.ulysses_size

    # One rank

    def coordinate(self, rank: int) -> dict[str, int]:
        return {dim: self.dim_rank(rank, dim) for dim in self.mesh_dim_names}

    def rank(self, coordinate: Mapping[str, int]) -> int:
        """The rank at a coordinate; dims that it leaves out are 0."""
        for dim, index in coordinate.items():
            if not 0 <= index < self.size(dim):
                raise MeshError(f"{dim} has the indices 0 to {self.size(dim) - 1}, not {index}")
        return sum(index * self.stride(dim) for dim, index in coordinate.items())

    def dim_rank(self, rank: int, dim: str) -> int:
        self._check(rank)
        return rank // self.stride(dim) % self.size(dim)

    def data_rank(self, rank: int) -> int:
        """Which share of a batch this rank works on: its peers in tp, cp, ulysses and pp have the same."""
        flat = self.dim_rank(rank, "dp") * self.size("fsdp") + self.dim_rank(rank, "fsdp")
        return flat // self.ulysses_size

    def ranks_along(self, dims: str | Iterable[str], rank: int) -> tuple[int, ...]:
        """The ranks that share all coordinates with `rank` but those of `dims`, in the order of `dims`."""
        dims = (dims,) if isinstance(dims, str) else tuple(dims)
        corner = rank - sum(self.dim_rank(rank, dim) * self.stride(dim) for dim in dims)
        steps = [range(0, self.size(dim) * self.stride(dim), self.stride(dim)) for dim in dims]
        return tuple(corner + sum(offsets) for offsets in product(*steps))

    # The whole mesh

    def process_groups(self, dims: str | Iterable[str]) -> Iterator[tuple[int, ...]]:
        """All groups along `dims`, in one order for every rank; together they hold each rank once."""
        dims = (dims,) if isinstance(dims, str) else tuple(dims)
        others = [dim for dim in self.mesh_dim_names if dim not in dims]
        for corner in self.ranks_along(others, 0):
            yield self.ranks_along(dims, corner)

    def representative(self, data_rank: int) -> int:
        """Who speaks for a data rank: the first of its peers in the last pp stage."""
        if not 0 <= data_rank < self.data_size:
            raise MeshError(f"there are the data ranks 0 to {self.data_size - 1}, not {data_rank}")
        dp, fsdp = divmod(data_rank * self.ulysses_size, self.size("fsdp"))
        return self.rank({"pp": self.size("pp") - 1, "dp": dp, "fsdp": fsdp})

    def collect_ranks(self) -> tuple[int, ...]:
        """One representative per data rank, by data rank."""
        return tuple(self.representative(data_rank) for data_rank in range(self.data_size))

    def get_slice(self, total: int, rank: int) -> range:
        """The samples of `total` that are this rank's; the first `total mod data_size` data ranks have one more."""
        return share(total, self.data_size, self.data_rank(rank))

    # torch

    def to_torch(self) -> TorchDeviceMesh:
        """torch's mesh of the same dims and ranks; every rank of the group's world calls it together."""
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(self.device_type, self.shape, mesh_dim_names=self.mesh_dim_names)

    def _index(self, dim: str) -> int:
        if dim not in self.mesh_dim_names:
            raise MeshError(f"there is no dim {dim!r}, there are {', '.join(self.mesh_dim_names)}")
        return self.mesh_dim_names.index(dim)

    def _check(self, rank: int) -> None:
        if not 0 <= rank < self.world_size:
            raise MeshError(f"rank {rank} is not in the mesh, it has the ranks 0 to {self.world_size - 1}")


def share(total: int, parts: int, part: int) -> range:
    """The `part`-th of `parts` even, contiguous shares of 0 .. total - 1; the first `total mod parts` have one more."""
    each, more = divmod(total, parts)
    start = part * each + min(part, more)
    return range(start, start + each + (part < more))


def share_of(total: int, parts: int, index: int) -> int:
    """The part whose share holds `index`."""
    each, more = divmod(total, parts)
    if index < more * (each + 1):
        return index // (each + 1)
    return more + (index - more * (each + 1)) // each
