"""A device mesh: named dims with sizes over the ranks of a group, and arithmetic by strides for the rest.

    DeviceMesh.from_sizes(world_size=8, fsdp_size="auto", tp_size=2)      sizes, in the standard order pp, dp,
                                                                          fsdp, cp, tp
    DeviceMesh.from_ranks([[0, 1, 2, 3], [4, 5, 6, 7]], ("dp", "fsdp"))   an explicit array of ranks

Ranks are row-major over the dims, outermost first, so that neighbours in `tp` are neighbours in hardware. A
dim that was not given has size 1 and index 0, and every method accepts it. Views arrange the same ranks by
other dims, and the methods of the mesh accept these dims as well:

    data      pp, data, ulysses, cp, tp    `ulysses` neighbours of dp x fsdp share one data rank
    expert    pp, ep_fsdp, ep, etp         the ranks of a pipeline stage, factored again for the experts

A method about one rank costs O(dims), whatever the size of the mesh. All ranks are listed only where the
result is such a list, or where strides cannot describe the mesh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, overload

from meshctl.dataclass import dataclass
from meshctl.topology.cluster import DEVICE_ALIASES, DEVICE_TYPES
from meshctl.topology.dims import (
    VIEWS,
    MeshError,
    dim_index,
    dim_names,
    dim_order,
    dim_size,
    flat_ranks,
    part_sizes,
    refuse_reserved,
    shown,
)
from meshctl.topology.even_split import even_split, split_index
from meshctl.topology.mesh_errors import extent, why_unknown
from meshctl.topology.representatives import collect_ranks, representative
from meshctl.topology.sizes import DIMS, SIZES, settle, whole
from meshctl.topology.strides import Dim, Layout, join, offsets, row_major, size_of
from meshctl.topology.to_torch import to_torch
from meshctl.topology.views import data_view, divided, expert_view, joined, sub_mesh

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

__all__ = ["DIMS", "SIZES", "VIEWS", "DeviceMesh", "MeshError", "even_split", "shown", "split_index"]


@dataclass(frozen=True)
class DeviceMesh:
    """Named dims over the ranks of one group, usually 0 .. world_size - 1."""

    mesh_dim_names: tuple[str, ...]
    """Outermost first."""
    shape: tuple[int, ...]
    ulysses_size: int = 1
    ep_size: int = 1
    etp_size: int = 1
    vpp_size: int = 1
    """Pipeline stages per pp rank."""
    sequence_parallel: bool = False
    """True if activations between the parts of a layer are sharded over tp along the sequence."""
    device_type: str = "cpu"
    layout: Layout = field(default=Layout(()), repr=False, metadata={"stored": False})
    """The map from coordinates to ranks. By default, ranks are row-major from 0."""
    here: int | None = field(default=None, compare=False, repr=False, metadata={"stored": False})
    """The mesh's own rank, which `at` sets: `mesh["tp"]` is the sub-mesh that contains it. Where it is None,
    sub-meshes contain the first rank of the mesh."""
    absent: tuple[str, ...] = field(default=DIMS, compare=False, repr=False, metadata={"stored": False})
    """Dims that `mesh_dim_names` does not list and that methods accept as dims of size 1."""
    has_views: bool = field(default=True, compare=False, repr=False, metadata={"stored": False})
    """False for a view, and for a mesh that `flatten` or `unflatten` returned."""
    whole: bool = field(default=True, compare=False, repr=False, metadata={"stored": False})
    """False for a sub-mesh."""

    def __post_init__(self) -> None:
        names = dim_names(self.mesh_dim_names)
        if not isinstance(self.shape, (tuple, list)):
            raise MeshError(f"a shape must have a size for each dim, such as (2, 4), not {self.shape!r}")
        if len(self.shape) != len(names):
            raise MeshError(f"{len(self.shape)} sizes {self.shape} for {len(names)} dims {', '.join(names)}")
        written = self.device_type.lower() if isinstance(self.device_type, str) else ""
        if (device_type := DEVICE_ALIASES.get(written, written)) not in DEVICE_TYPES:
            raise MeshError(
                f"device type {self.device_type!r} does not exist; available: {', '.join(DEVICE_TYPES)}"
            )
        sizes = {
            dim: dim_size(f"the size of {dim}", size) for dim, size in zip(names, self.shape, strict=True)
        }
        for key in ("ulysses_size", "ep_size", "etp_size", "vpp_size"):
            object.__setattr__(self, key, dim_size(key, getattr(self, key)))
        object.__setattr__(self, "device_type", device_type)
        object.__setattr__(self, "mesh_dim_names", names)
        object.__setattr__(self, "shape", tuple(sizes.values()))
        if self.shape and not self.layout.dims:
            object.__setattr__(self, "layout", Layout(row_major(self.shape)))
        if (data := sizes.get("dp", 1) * sizes.get("fsdp", 1)) % self.ulysses_size:
            raise MeshError(f"ulysses_size {self.ulysses_size} does not divide dp x fsdp, which is {data}")
        if self.world_size % (sizes.get("pp", 1) * self.ep_size * self.etp_size):
            raise MeshError(
                f"ep {self.ep_size} x etp {self.etp_size} does not divide the ranks of a pipeline stage"
            )
        if self.vpp_size > 1 and sizes.get("pp", 1) == 1:
            raise MeshError(f"vpp_size {self.vpp_size} needs a pipeline, but pp is 1")

    @classmethod
    def from_sizes(
        cls,
        *,
        world_size: int | None = None,
        dp_size: int | str | None = None,
        fsdp_size: int | str | None = None,
        tp_size: int | str | None = None,
        pp_size: int | str | None = None,
        ulysses_size: int | None = None,
        cp_size: int | str | None = None,
        ep_size: int | str | None = None,
        etp_size: int | str | None = None,
        ep_fsdp_size: int | str | None = None,
        vpp_size: int | None = None,
        device_type: str = "cpu",
        sequence_parallel: bool = False,
        order: Sequence[str] = DIMS,
    ) -> DeviceMesh:
        """Returns the mesh of these sizes with its dims in `order`, outermost first.

        Where `world_size` is given, one of the dims in `DIMS` may have the size "auto", which is inferred.
        Where none has, `dp_size` is inferred if it is left out. Of the expert dims, the one with the size
        "auto" is inferred, or else `ep_fsdp_size` if it is left out. Sizes that are left out otherwise are 1.

        Raises `MeshError` with the broken rule and the nearest sizes that satisfy it.
        """
        stated = {
            "pp_size": pp_size,
            "dp_size": dp_size,
            "fsdp_size": fsdp_size,
            "cp_size": cp_size,
            "tp_size": tp_size,
            "ulysses_size": ulysses_size,
            "ep_size": ep_size,
            "etp_size": etp_size,
            "ep_fsdp_size": ep_fsdp_size,
            "vpp_size": vpp_size,
        }
        order = dim_order(order)
        settled = settle(stated, world_size, sequence_parallel)
        if settled.misfits:
            raise MeshError(settled.misfits[0].text)
        held = settled.sizes
        return cls(
            order,
            tuple(held[dim] for dim in order),
            held["ulysses"],
            held["ep"],
            held["etp"],
            held["vpp"],
            sequence_parallel,
            device_type,
        )

    @classmethod
    def from_ranks(cls, ranks: Any, mesh_dim_names: Sequence[str], *, device_type: str = "cpu") -> DeviceMesh:
        """Returns the mesh of an explicit array of ranks: nested lists, or an array with `tolist()`, one
        level for each dim.

        Raises `MeshError` if the array is ragged, empty or holds a rank twice, or the names do not fit it.
        """
        flat, shape = flat_ranks(ranks)
        names = dim_names(mesh_dim_names)
        for dim in names:
            refuse_reserved(dim)
        if twice := sorted(rank for rank, places in Counter(flat).items() if places > 1):
            raise MeshError(f"a rank must have one place in a mesh; these have more: {shown(twice)}")
        return cls(names, shape, device_type=device_type, layout=Layout.of(flat, shape))

    # Sizes

    @cached_property
    def world_size(self) -> int:
        return prod(self.shape)

    def size(self, dim: str) -> int:
        return size_of(self._dims((dim,))[1][0])

    def stride(self, dim: str) -> int | None:
        """Returns the difference of the ranks of two neighbours in `dim`. None if it is not the same for
        all neighbours, or where strides cannot describe the mesh."""
        home, (digits,) = self._dims((dim,))
        joined = join((digits,)) or digits[:1]
        if len(joined) > 1 or home.layout.table:
            return None
        return joined[0][1] if joined else 1

    @cached_property
    def data_size(self) -> int:
        """The number of data ranks. Each of them works on a different share of a batch."""
        return self.size("dp") * self.size("fsdp") // self.ulysses_size

    @property
    def ep_fsdp_size(self) -> int:
        """The number of ranks of a pipeline stage, divided by ep x etp."""
        return self.world_size // (self.size("pp") * self.ep_size * self.etp_size)

    @property
    def pp_stages(self) -> int:
        """The number of pipeline stages, including virtual ones."""
        return self.size("pp") * self.vpp_size

    # One rank

    def __contains__(self, rank: object) -> bool:
        number = whole(rank)
        return number is not None and self.layout.indices(number) is not None

    def coordinate(self, rank: int | None = None) -> dict[str, int]:
        return dict(zip(self.mesh_dim_names, self._indices(rank), strict=True))

    def rank(self, coordinate: Mapping[str, int]) -> int:
        """Returns the rank at a coordinate, which may be one of a view: {"ep": 1}. Dims that the coordinate
        leaves out have the index 0."""
        if not isinstance(coordinate, Mapping):
            raise MeshError(
                f"a coordinate must have an index for each dim, such as {{'tp': 1}}, not {coordinate!r}"
            )
        home, dims = self._dims(tuple(coordinate))
        at = {
            dim: dim_index(dim, coordinate[dim], size_of(digits))
            for dim, digits in zip(coordinate, dims, strict=True)
        }
        return home.layout.rank(at.get(dim, 0) for dim in home.mesh_dim_names)

    @overload
    def dim_rank(self, dim: str, /) -> int: ...
    @overload
    def dim_rank(self, rank: int, dim: str) -> int: ...
    def dim_rank(self, rank: int | str, dim: str | None = None) -> int:
        """Returns the index of a rank in a dim: `mesh.dim_rank(5, "tp")`. Without a rank,
        `mesh.dim_rank("tp")`, it is the index of the mesh's own rank."""
        return self._dim_rank(*_rank_and_dim(rank, dim))

    def _dim_rank(self, rank: int | None, dim: str) -> int:
        home, _ = self._dims((dim,))
        indices = home._indices(rank)
        return indices[home._number[dim]] if dim in home._number else 0

    def data_rank(self, rank: int | None = None) -> int:
        """Returns the data rank: the number of the share of a batch that a rank works on. Ranks that differ
        only in tp, cp, ulysses or pp have the same data rank."""
        at = self.coordinate(rank)
        return (at.get("dp", 0) * self.size("fsdp") + at.get("fsdp", 0)) // self.ulysses_size

    def get_slice(self, total: int, rank: int | None = None) -> slice:
        """Returns the samples of a rank out of `total`, as a slice of a list, a tensor or a batch:
        `rows[mesh.get_slice(len(rows))]`. The first `total mod data_size` data ranks have one sample more."""
        samples = self.sample_range(total, rank)
        return slice(samples.start, samples.stop)

    def sample_range(self, total: int, rank: int | None = None) -> range:
        """Returns the samples of a rank out of `total` as a range, like `get_slice`."""
        samples = whole(total)
        if samples is None or samples < 0:
            raise MeshError(f"the number of samples must be an integer of at least 0, not {total!r}")
        return even_split(samples, self.data_size, self.data_rank(rank))

    def ranks_along(self, dims: str | Iterable[str], rank: int | None = None) -> tuple[int, ...]:
        """Returns the ranks whose coordinate differs from that of `rank` only in `dims`, row-major in
        `dims`."""
        names = dim_names(dims)
        home, digits = self._dims(names)
        corner = home.layout.corner(
            home._indices(rank), (home._number[dim] for dim in names if dim in home._number)
        )
        return home.layout.ranks(digits, corner)

    @overload
    def neighbour(self, dim: str, /, *, by: int = 1, ring: bool = False) -> int | None: ...
    @overload
    def neighbour(self, rank: int, dim: str, by: int = 1, ring: bool = False) -> int | None: ...
    def neighbour(
        self, rank: int | str, dim: str | None = None, by: int = 1, ring: bool = False
    ) -> int | None:
        """Returns the rank that is `by` steps further along a dim: along pp, 1 is the next stage and -1 the
        previous one. Beyond the ends of the dim the result is None. With `ring` the dim wraps around, as cp
        does, or pp with virtual stages."""
        number, name = _rank_and_dim(rank, dim)
        home, (digits,) = self._dims((name,))
        size, at, steps = size_of(digits), home.coordinate(number), whole(by)
        if steps is None:
            raise MeshError(f"the distance of a neighbour must be an integer, not {by!r}")
        index = at.get(name, 0) + steps
        if not ring and not 0 <= index < size:
            return None
        return home.rank({**at, name: index % size} if name in at else at)

    @overload
    def is_first(self, dim: str, /) -> bool: ...
    @overload
    def is_first(self, rank: int, dim: str) -> bool: ...
    def is_first(self, rank: int | str, dim: str | None = None) -> bool:
        number, name = _rank_and_dim(rank, dim)
        return self._dim_rank(number, name) == 0

    @overload
    def is_last(self, dim: str, /) -> bool: ...
    @overload
    def is_last(self, rank: int, dim: str) -> bool: ...
    def is_last(self, rank: int | str, dim: str | None = None) -> bool:
        number, name = _rank_and_dim(rank, dim)
        return self._dim_rank(number, name) == self.size(name) - 1

    def pp_stages_of(self, rank: int | None = None) -> tuple[int, ...]:
        """Returns the pipeline stages of a rank. With `vpp_size` above 1 these are every pp-th stage, so that
        data cycles through the pp ranks."""
        first = self._dim_rank(rank, "pp")
        return tuple(range(first, self.pp_stages, self.size("pp")))

    # Many ranks

    def ranks(self) -> tuple[int, ...]:
        """Returns all ranks, row-major."""
        return self.layout.ranks(self.layout.dims, self.layout.start)

    def as_array(self) -> Any:
        """Returns all ranks in nested lists, one level for each dim."""
        rows: list[Any] = list(self.ranks())
        for size in reversed(self.shape[1:]):
            rows = [rows[start : start + size] for start in range(0, len(rows), size)]
        return rows if self.shape else rows[0]

    def ranks_at(self, dim: str, index: int) -> tuple[int, ...]:
        """Returns all ranks with this index in a dim, in rising order. `ranks_at("pp", 0)` are the ranks of
        the first pp stage."""
        home, _ = self._dims((dim,))
        return tuple(
            sorted(
                home.ranks_along(
                    [name for name in home.mesh_dim_names if name != dim], home.rank({dim: index})
                )
            )
        )

    def process_groups(self, dims: str | Iterable[str]) -> Iterator[tuple[int, ...]]:
        """Returns the groups of ranks along `dims`, in the same order on every rank. Each rank is in one of
        them."""
        names = dim_names(dims)
        home, digits = self._dims(names)
        layout = home.layout
        others = [layout.dims[number] for dim, number in home._number.items() if dim not in names]
        along = offsets(digits)
        return (
            tuple(layout.at(layout.start + corner + step) for step in along) for corner in offsets(others)
        )

    def representative(self, data_rank: int) -> int:
        """Returns the rank that represents a data rank: the smallest of its ranks in the last pp stage."""
        return representative(self, data_rank)

    def collect_ranks(self) -> tuple[int, ...]:
        """Returns the representatives of all data ranks, by data rank."""
        return collect_ranks(self)

    # Meshes of the same ranks

    def at(self, rank: int) -> DeviceMesh:
        """Returns the same mesh with `rank` as its own rank. `mesh.at(5)["tp"]` is the sub-mesh with rank
        5."""
        self._indices(rank)
        return replace(self, here=whole(rank))

    def __getitem__(self, dims: str | tuple[str, ...]) -> DeviceMesh:
        """Returns the sub-mesh of these dims, in this order, that contains the mesh's own rank."""
        names = dim_names(dims)
        home, digits = self._dims(names)
        here = self._first if self.here is None else self.here
        indices = home._indices(here)
        start = home.layout.corner(indices, [home._number[dim] for dim in names if dim in home._number])
        return sub_mesh(replace(self, here=here), home, names, digits, start)

    def flatten(self, *dims: str, name: str = "") -> DeviceMesh:
        """Returns the mesh with `dims`, by default all, joined into one dim.

        The joined dim takes the position of the outermost of `dims`. Its index counts through `dims` with the
        last one the fastest. Its name is `name`, or by default the names of `dims` as in torch: `dp_fsdp`.
        """
        names = dim_names(dims or self.mesh_dim_names)
        home, digits = self._dims(names)
        name = name or "_".join(names)
        refuse_reserved(name)
        return home if names == (name,) else joined(home, names, digits, name)

    def unflatten(self, dim: str, sizes: Mapping[str, int]) -> DeviceMesh:
        """Returns the mesh with `dim`, which may be a dim of a view, divided into the dims of `sizes`. The
        last of these is the fastest.

        For attention that is split by heads and in a ring:
        `mesh.unflatten("ulysses", {"ring": ulysses // heads, "heads": heads})`.
        """
        home, (digits,) = self._dims((dim,))
        return divided(home, dim, part_sizes(dim, size_of(digits), sizes))

    def view(self, name: str) -> DeviceMesh:
        """Returns the same ranks by other dims: "data" (pp, data, ulysses, cp, tp) or "expert" (pp, ep_fsdp,
        ep, etp)."""
        if not isinstance(name, str) or name not in VIEWS:
            raise MeshError(f"view {name!r} does not exist; available: {' and '.join(VIEWS)}")
        if not self.has_views:
            raise MeshError(
                f"a mesh of {', '.join(self.mesh_dim_names)} has no views: use the mesh that it was made from"
            )
        return self._views[name]

    @cached_property
    def _views(self) -> dict[str, DeviceMesh]:
        return {"data": data_view(self), "expert": expert_view(self)}

    # torch

    def to_torch(self, kind: type[TorchDeviceMesh] | None = None) -> TorchDeviceMesh:
        """Returns torch's mesh of the same dims and ranks. All ranks of the group must call this method
        together, because torch makes process groups.

        `kind` is a subclass of torch's `DeviceMesh`, or None for that class itself. On mps, torch's mesh has
        process groups of gloo, which carry CPU tensors, and `kind` is not used.

        Raises `MeshError` if torch.distributed is not initialised; for a mesh of one rank, this method
        initialises it. Raises it too if the ranks along a dim are not in rising order: torch sorts the ranks
        of a process group, so the shard of a rank would not be the one of its coordinate.
        """
        return to_torch(self, kind)

    # Look-ups

    @cached_property
    def _number(self) -> dict[str, int]:
        """Dim -> its position in `mesh_dim_names`."""
        return {dim: number for number, dim in enumerate(self.mesh_dim_names)}

    @property
    def _first(self) -> int:
        return self.layout.at(self.layout.start)

    @cached_property
    def _found(self) -> dict[tuple[str, ...], tuple[DeviceMesh, tuple[Dim, ...]]]:
        """The results of `_dims`, kept because a run queries the same few dims in every step."""
        return {}

    def _dims(self, names: tuple[str, ...]) -> tuple[DeviceMesh, tuple[Dim, ...]]:
        """Returns (the mesh or the view of it that has all these dims, the digits of each of them there)."""
        try:
            return self._found[names]
        except (KeyError, TypeError):
            found = self._look_up(names)
        self._found[names] = found
        return found

    def _look_up(self, names: tuple[str, ...]) -> tuple[DeviceMesh, tuple[Dim, ...]]:
        dim_names(names)
        for home in (
            self,
            *(
                self._views[view]
                for view, dims in VIEWS.items()
                if any(dim in dims for dim in names) and self.has_views
            ),
        ):
            if all(dim in home._number or dim in home.absent for dim in names):
                return home, tuple(
                    home.layout.dims[home._number[dim]] if dim in home._number else () for dim in names
                )
        raise MeshError(why_unknown(self, names))

    @property
    def own_rank(self) -> int | None:
        """The rank that `at` was called with; in a component, the rank of its worker. Without such a call, it
        is the only rank of a mesh of one rank, and None for a larger mesh."""
        return self._first if self.here is None and self.world_size == 1 else self.here

    def _indices(self, rank: int | None) -> list[int]:
        if rank is None and (rank := self.own_rank) is None:
            raise MeshError("this mesh has no rank of its own: pass a rank, or use mesh.at(rank)")
        number = whole(rank)
        found = None if number is None else self.layout.indices(number)
        if found is None:
            raise MeshError(f"rank {rank!r} is not in the mesh, which has {extent(self)}")
        return found


def _rank_and_dim(rank: int | str, dim: str | None) -> tuple[int | None, str]:
    """Returns (rank, dim) for a method that is called as `(rank, dim)` or as `(dim)`. In the second form the
    rank is None, and `dim` the first argument."""
    return (None, rank) if dim is None and isinstance(rank, str) else (rank, dim)  # type: ignore[return-value]
