"""A device mesh: named dims with sizes over the ranks of a group, and arithmetic by strides for the rest.

    DeviceMesh.from_sizes(world_size=8, fsdp_size="auto", tp_size=2)      sizes, in the standard order pp, dp,
                                                                          fsdp, cp, tp
    DeviceMesh.from_ranks([[0, 1, 2, 3], [4, 5, 6, 7]], ("dp", "fsdp"))   an explicit array of ranks

Ranks are row-major over the dims, outermost first, so that neighbours in `tp` are neighbours in hardware. A
dim that was not given has size 1 and index 0, and can still be asked for. Other layouts of the same ranks are
views, whose dims can be asked for in the mesh itself:

    data      pp, data, ulysses, cp, tp    `ulysses` neighbours of dp x fsdp share one data rank
    expert    pp, ep_fsdp, ep, etp         the ranks of a pipeline stage, factored again for the experts

Every question about one rank costs O(dims), whatever the size of the mesh. The world is listed only where the
answer is such a list, or where the ranks are not sums of strides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any, overload

from meshctl.topology.cluster import DEVICE_ALIASES, DEVICE_TYPES
from meshctl.topology.sizes import DIMS, EXPERT_DIMS, SIZES, settle, whole
from meshctl.topology.strides import Dim, Layout, join, offset, offsets, row_major, size_of, split

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

__all__ = ["DIMS", "SIZES", "DeviceMesh", "MeshError", "even_split", "shown", "split_index"]

SHOWN = 8
"""The number of ranks that messages name."""

VIEWS = {"data": ("data", "ulysses"), "expert": EXPERT_DIMS}
"""The views, and the dims that only they have."""
RESERVED = {
    **{dim: f"a dim of the view `{view}`" for view, dims in VIEWS.items() for dim in dims},
    "vpp": "stages per pp rank",
    "sp": "`ulysses` or `cp` here",
}
"""Names that no dim of a mesh may have, with the reason."""


class MeshError(ValueError):
    """Sizes that do not form a mesh, or a question about a rank or a dim that the mesh does not have."""


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
    """Activations between the parts of a layer are split along tp."""
    device_type: str = "cpu"
    layout: Layout = field(default=Layout(()), repr=False, metadata={"stored": False})
    """The ranks by coordinate; row-major where it is left out."""
    here: int | None = field(default=None, compare=False, repr=False, metadata={"stored": False})
    """The mesh's own rank: `mesh["tp"]` is the sub-mesh that holds it. None for a mesh without one, whose
    sub-meshes hold its first rank."""
    absent: tuple[str, ...] = field(default=DIMS, compare=False, repr=False, metadata={"stored": False})
    """Dims of size 1 that the mesh does not list and can be asked for."""
    has_views: bool = field(default=True, compare=False, repr=False, metadata={"stored": False})
    """False for a mesh made by flattening or unflattening dims of another, as views are."""
    whole: bool = field(default=True, compare=False, repr=False, metadata={"stored": False})
    """False for a sub-mesh."""

    def __post_init__(self) -> None:
        names = _names(self.mesh_dim_names)
        if not isinstance(self.shape, (tuple, list)):
            raise MeshError(f"a shape is a size for each dim, (2, 4), not {self.shape!r}")
        if len(self.shape) != len(names):
            raise MeshError(f"{len(self.shape)} sizes {self.shape} for {len(names)} dims {', '.join(names)}")
        written = self.device_type.lower() if isinstance(self.device_type, str) else ""
        if (device_type := DEVICE_ALIASES.get(written, written)) not in DEVICE_TYPES:
            raise MeshError(
                f"there is no device type {self.device_type!r}, there are {', '.join(DEVICE_TYPES)}"
            )
        sizes = {dim: _size(f"the size of {dim}", size) for dim, size in zip(names, self.shape, strict=True)}
        for key in ("ulysses_size", "ep_size", "etp_size", "vpp_size"):
            object.__setattr__(self, key, _size(key, getattr(self, key)))
        object.__setattr__(self, "device_type", device_type)
        object.__setattr__(self, "mesh_dim_names", names)
        object.__setattr__(self, "shape", tuple(sizes.values()))
        if self.shape and not self.layout.dims:
            object.__setattr__(self, "layout", Layout(row_major(self.shape)))
        if (data := sizes.get("dp", 1) * sizes.get("fsdp", 1)) % self.ulysses_size:
            raise MeshError(
                f"ulysses_size {self.ulysses_size} is carved out of dp x fsdp and does not divide {data}"
            )
        if self.world_size % (sizes.get("pp", 1) * self.ep_size * self.etp_size):
            raise MeshError(
                f"ep {self.ep_size} x etp {self.etp_size} does not divide the ranks of a pipeline stage"
            )
        if self.vpp_size > 1 and sizes.get("pp", 1) == 1:
            raise MeshError(f"vpp_size {self.vpp_size} is stages per pp rank, and there is no pp")

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
        """The mesh of these sizes, its dims in `order`, outermost first.

        Where `world_size` is known, one size "auto", or else a `dp_size` left out, is inferred;
        `ep_fsdp_size` always is. Raises `MeshError` with the rule that is broken and the nearest sizes that
        keep it.
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
        order = _order(order)
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
        """The mesh of an explicit array of ranks: nested lists, or an array with `tolist()`, one level for
        each dim.

        Raises `MeshError` where the array is ragged, empty or holds a rank twice, or the names do not fit it.
        """
        flat, shape = _unnested(ranks)
        names = _names(mesh_dim_names)
        for dim in names:
            if dim in RESERVED:
                raise MeshError(f"{dim!r} is {RESERVED[dim]} and no name for a dim")
        if twice := sorted(rank for rank, places in Counter(flat).items() if places > 1):
            raise MeshError(f"a rank has one place in a mesh, these have more: {shown(twice)}")
        return cls(names, shape, device_type=device_type, layout=Layout.of(flat, shape))

    # Sizes

    @cached_property
    def world_size(self) -> int:
        return prod(self.shape)

    def size(self, dim: str) -> int:
        return size_of(self._dims((dim,))[1][0])

    def stride(self, dim: str) -> int | None:
        """The distance of two neighbours in `dim`, in ranks. None where it differs, or where the ranks of the
        mesh are not sums of strides."""
        home, (digits,) = self._dims((dim,))
        joined = join((digits,)) or digits[:1]
        return None if len(joined) > 1 or home.layout.table else joined[0][1] if joined else 1

    @cached_property
    def data_size(self) -> int:
        """The number of data ranks, and so of different shares of a batch."""
        return self.size("dp") * self.size("fsdp") // self.ulysses_size

    @property
    def ep_fsdp_size(self) -> int:
        """The ranks of a pipeline stage divided by ep and etp."""
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
        """The rank at a coordinate; dims that it leaves out are 0. It may be of a view: {"ep": 1}."""
        if not isinstance(coordinate, Mapping):
            raise MeshError(f"a coordinate says an index for each dim, {{'tp': 1}}; it is {coordinate!r}")
        home, dims = self._dims(tuple(coordinate))
        at = {
            dim: _index(dim, coordinate[dim], size_of(digits))
            for dim, digits in zip(coordinate, dims, strict=True)
        }
        return home.layout.rank(at.get(dim, 0) for dim in home.mesh_dim_names)

    @overload
    def dim_rank(self, dim: str, /) -> int: ...
    @overload
    def dim_rank(self, rank: int, dim: str) -> int: ...
    def dim_rank(self, rank: int | str, dim: str | None = None) -> int:
        """The index of a rank in a dim: `mesh.dim_rank(5, "tp")`, or of the own rank:
        `mesh.dim_rank("tp")`."""
        return self._dim_rank(*_rank_and_dim(rank, dim))

    def _dim_rank(self, rank: int | None, dim: str) -> int:
        home, _ = self._dims((dim,))
        indices = home._indices(rank)
        return indices[home._number[dim]] if dim in home._number else 0

    def data_rank(self, rank: int | None = None) -> int:
        """The share of a batch that a rank works on. Its peers in tp, cp, ulysses and pp have the same."""
        at = self.coordinate(rank)
        return (at.get("dp", 0) * self.size("fsdp") + at.get("fsdp", 0)) // self.ulysses_size

    def get_slice(self, total: int, rank: int | None = None) -> slice:
        """The samples of `total` that are a rank's, as a slice of a list, a tensor or a batch:
        `rows[mesh.get_slice(len(rows))]`. The first `total mod data_size` data ranks have one sample more."""
        samples = self.sample_range(total, rank)
        return slice(samples.start, samples.stop)

    def sample_range(self, total: int, rank: int | None = None) -> range:
        """The numbers of the samples in `get_slice`."""
        samples = whole(total)
        if samples is None or samples < 0:
            raise MeshError(f"a number of samples is a whole number from 0, it is {total!r}")
        return even_split(samples, self.data_size, self.data_rank(rank))

    def ranks_along(self, dims: str | Iterable[str], rank: int | None = None) -> tuple[int, ...]:
        """The ranks that share all coordinates with `rank` but those of `dims`, in the order of `dims`."""
        names = _names(dims)
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
        """The rank `by` steps further in a dim: the next pp stage, or the previous one with -1. None beyond
        the ends, except in a `ring` (as of cp, or of pp with virtual stages)."""
        number, name = _rank_and_dim(rank, dim)
        home, (digits,) = self._dims((name,))
        size, at, steps = size_of(digits), home.coordinate(number), whole(by)
        if steps is None:
            raise MeshError(f"a neighbour is a whole number of steps away, not {by!r}")
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
        """The pipeline stages that a rank holds: with `vpp_size` above 1 every pp-th one, so that data cycles
        through the pp ranks."""
        first = self._dim_rank(rank, "pp")
        return tuple(range(first, self.pp_stages, self.size("pp")))

    # Many ranks

    def ranks(self) -> tuple[int, ...]:
        """All of them, row-major."""
        return self.layout.ranks(self.layout.dims, self.layout.start)

    def as_array(self) -> Any:
        """All ranks in nested lists, one level for each dim."""
        rows: list[Any] = list(self.ranks())
        for size in reversed(self.shape[1:]):
            rows = [rows[start : start + size] for start in range(0, len(rows), size)]
        return rows if self.shape else rows[0]

    def ranks_at(self, dim: str, index: int) -> tuple[int, ...]:
        """All ranks with this index in a dim, rising: `ranks_at("pp", 0)` are those of the first pp stage."""
        home, _ = self._dims((dim,))
        return tuple(
            sorted(
                home.ranks_along(
                    [name for name in home.mesh_dim_names if name != dim], home.rank({dim: index})
                )
            )
        )

    def process_groups(self, dims: str | Iterable[str]) -> Iterator[tuple[int, ...]]:
        """All groups along `dims`, in one order for every rank; together they hold each rank once."""
        names = _names(dims)
        home, digits = self._dims(names)
        layout = home.layout
        others = [layout.dims[number] for dim, number in home._number.items() if dim not in names]
        along = offsets(digits)
        return (
            tuple(layout.at(layout.start + corner + step) for step in along) for corner in offsets(others)
        )

    def representative(self, data_rank: int) -> int:
        """The rank that represents a data rank: the smallest of its peers in the last pp stage."""
        number = whole(data_rank)
        if number is None or not 0 <= number < self.data_size:
            raise MeshError(f"there are the data ranks 0 to {self.data_size - 1}, not {data_rank!r}")
        last, fsdp = self.size("pp") - 1, self.size("fsdp")
        shares = range(number * self.ulysses_size, (number + 1) * self.ulysses_size)
        # ranks rise along each dim: only the first of the next row of fsdp may be smaller than the first of
        # all
        if not self.layout.table:
            shares = range(shares.start, shares.stop, -shares.start % fsdp or self.ulysses_size)[:2]
        firsts = [self.rank({"pp": last, "dp": index // fsdp, "fsdp": index % fsdp}) for index in shares]
        return min(
            min(self.ranks_along(self._peer_dims, first)) if self._peer_dims else first for first in firsts
        )

    def collect_ranks(self) -> tuple[int, ...]:
        """One representative per data rank, by data rank."""
        ranks = self.ranks_along(("dp", "fsdp", *self._peer_dims), self.rank({"pp": self.size("pp") - 1}))
        each = len(ranks) // self.data_size
        return (
            tuple(min(ranks[start : start + each]) for start in range(0, len(ranks), each))
            if each > 1
            else ranks
        )

    # Meshes of the same ranks

    def at(self, rank: int) -> DeviceMesh:
        """The same mesh as a rank sees it: `mesh.at(5)["tp"]` is the sub-mesh that holds rank 5."""
        self._indices(rank)
        return replace(self, here=whole(rank))

    def __getitem__(self, dims: str | tuple[str, ...]) -> DeviceMesh:
        """The sub-mesh of these dims, in this order, that holds the rank `here`."""
        names = _names(dims)
        home, digits = self._dims(names)
        here = self._first if self.here is None else self.here
        start = home.layout.corner(
            home._indices(here), (home._number[dim] for dim in names if dim in home._number)
        )
        shape = tuple(map(size_of, digits))
        return replace(
            self,
            mesh_dim_names=names,
            shape=shape,
            ulysses_size=self.ulysses_size
            if all(dim in names or self.size(dim) == 1 for dim in self._data_dims)
            else 1,
            ep_size=1,
            etp_size=1,
            vpp_size=self.vpp_size if "pp" in names else 1,
            sequence_parallel=self.sequence_parallel and "tp" in names,
            layout=Layout(digits, start, home.layout.table),
            here=here,
            absent=tuple(dim for dim in home.absent if dim not in names),
            has_views=home.has_views,
            whole=self.whole and prod(shape) == self.world_size,
        )

    def flatten(self, *dims: str, name: str = "") -> DeviceMesh:
        """The mesh with some dims (all where none is named) joined into one, where the outermost of them was;
        the last one named is the fastest. It is called `name`, or as torch does, `dp_fsdp`."""
        names = _names(dims or self.mesh_dim_names)
        home, digits = self._dims(names)
        joined = name or "_".join(names)
        if joined in RESERVED:
            raise MeshError(f"{joined!r} is {RESERVED[joined]} and no name for a dim")
        if names == (joined,):
            return home
        first = min((home._number[dim] for dim in names if dim in home._number), default=0)
        kept = [dim for dim in home.mesh_dim_names if dim not in names]
        outer = [dim for dim in kept if home._number[dim] < first]
        order = (*outer, joined, *kept[len(outer) :])
        return home._regrouped(
            order,
            [join(digits) if dim == joined else home.layout.dims[home._number[dim]] for dim in order],
            names,
        )

    def unflatten(self, dim: str, sizes: Mapping[str, int]) -> DeviceMesh:
        """The inverse: a dim, or one of a view, parted into several, the last one the fastest. For attention
        that is split by heads and in a ring: `mesh.unflatten("ulysses", {"ring": ulysses // heads, "heads":
        heads})`."""
        home, (digits,) = self._dims((dim,))
        if not isinstance(sizes, Mapping):
            raise MeshError(
                f"the parts of {dim} are names with sizes, {{'ring': 2, 'heads': 4}}; they are {sizes!r}"
            )
        parts = {name: _size(f"the size of {name}", size) for name, size in sizes.items()}
        if not parts or prod(parts.values()) != size_of(digits):
            product = " x ".join(f"{name} {size}" for name, size in parts.items()) or "no part"
            raise MeshError(f"{product} is not the {size_of(digits)} of {dim}")
        if wrong := [
            name for name in sizes if name in RESERVED or (name != dim and name in home.mesh_dim_names)
        ]:
            raise MeshError(
                f"{wrong[0]!r} is {RESERVED.get(wrong[0], 'a dim of the mesh already')} and no name for "
                f"a part of {dim}"
            )
        order = [name for other in home.mesh_dim_names for name in (sizes if other == dim else (other,))]
        rest, *inner = parts
        return home._refactored(tuple(order), (dim,), {name: parts[name] for name in reversed(inner)}, rest)

    def view(self, name: str) -> DeviceMesh:
        """The same ranks by other dims: "data" (pp, data, ulysses, cp, tp) or "expert" (pp, ep_fsdp, ep,
        etp)."""
        if not isinstance(name, str) or name not in VIEWS:
            raise MeshError(f"there is no view {name!r}, there are {' and '.join(VIEWS)}")
        if not self.has_views:
            raise MeshError(
                f"a mesh of {', '.join(self.mesh_dim_names)} has no views: ask the mesh that it was made of"
            )
        return self._views[name]

    @cached_property
    def _views(self) -> dict[str, DeviceMesh]:
        return {"data": self._data_view(), "expert": self._expert_view()}

    def _data_view(self) -> DeviceMesh:
        kept = [dim for dim in self.mesh_dim_names if dim not in ("dp", "fsdp")]
        first = min((self._number[dim] for dim in ("dp", "fsdp") if dim in self._number), default=0)
        outer = [dim for dim in kept if self._number[dim] < first]
        order = (*outer, "data", "ulysses", *(dim for dim in kept if dim not in outer))
        return self._refactored(order, ("dp", "fsdp"), {"ulysses": self.ulysses_size}, "data")

    def _expert_view(self) -> DeviceMesh:
        stage = tuple(dim for dim in self.mesh_dim_names if dim != "pp")
        order = (*(dim for dim in self.mesh_dim_names if dim == "pp"), *EXPERT_DIMS)
        return self._refactored(order, stage, {"etp": self.etp_size, "ep": self.ep_size}, "ep_fsdp")

    def _refactored(
        self, order: tuple[str, ...], old: tuple[str, ...], inner: dict[str, int], rest: str
    ) -> DeviceMesh:
        """The dims `old` run through as one, and parted anew: the sizes of `inner`, innermost first, and what
        is left."""
        digits = {dim: self.layout.dims[number] for dim, number in self._number.items() if dim not in old}
        flat: Dim | None = join(self.layout.dims[self._number[dim]] for dim in old if dim in self._number)
        for dim, size in inner.items():
            parted = split(flat, size) if flat is not None else None
            flat = parted[0] if parted else None
            digits[dim] = parted[1] if parted else ()
        if flat is not None:
            return self._regrouped(order, [{**digits, rest: flat}[dim] for dim in order], old)
        return self._listed(order, old, inner, rest)

    def _listed(
        self, order: tuple[str, ...], old: tuple[str, ...], inner: dict[str, int], rest: str
    ) -> DeviceMesh:
        """As `_refactored`, for an order of dims in which no strides give the answer: by the ranks
        themselves."""
        kept = [dim for dim in self.mesh_dim_names if dim not in old]
        run = [dim for dim in old if dim in self._number]
        table = self.layout.ranks(
            (self.layout.dims[self._number[dim]] for dim in (*kept, *run)), self.layout.start
        )
        sizes = {dim: self.size(dim) for dim in kept} | {
            rest: prod(map(self.size, run)) // prod(inner.values())
        }
        sizes |= dict(reversed(inner.items()))
        digits = dict(zip(sizes, row_major(tuple(sizes.values())), strict=True))
        return self._regrouped(order, [digits[dim] for dim in order], old, table)

    def _regrouped(
        self, names: tuple[str, ...], digits: Sequence[Dim], old: tuple[str, ...], table: tuple[int, ...] = ()
    ) -> DeviceMesh:
        """The same ranks without the dims `old`, and without the facts about these."""
        return replace(
            self,
            mesh_dim_names=names,
            shape=tuple(map(size_of, digits)),
            ulysses_size=1 if any(dim in old for dim in self._data_dims) else self.ulysses_size,
            ep_size=1,
            etp_size=1,
            vpp_size=1 if "pp" in old else self.vpp_size,
            sequence_parallel=self.sequence_parallel and "tp" not in old,
            layout=Layout(tuple(digits), 0 if table else self.layout.start, table or self.layout.table),
            absent=tuple(dim for dim in self.absent if dim not in old),
            has_views=False,
        )

    # torch

    def to_torch(self, kind: type[TorchDeviceMesh] | None = None) -> TorchDeviceMesh:
        """Returns torch's mesh of the same dims and ranks. Every rank of the group's world calls it together.

        `kind` is a subclass of torch's `DeviceMesh`, or None for that class itself.

        Raises `MeshError` where there is no such world (a single process alone gets one), and where the ranks
        along a dim do not rise: torch numbers the ranks of a process group as they rise, so its shards would
        not be those of its own coordinates.
        """
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

        if not self.whole:
            names = ", ".join(map(repr, self.mesh_dim_names))
            raise MeshError(f"a sub-mesh is taken from torch's mesh of the whole: mesh.to_torch()[{names}]")
        if self.device_type == "mps":
            raise MeshError("torch has no mesh of mps devices")
        if not dist.is_initialized():
            if self.world_size > 1:
                raise MeshError(
                    f"the mesh has {self.world_size} ranks, and torch.distributed is not initialised"
                )
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        if self.world_size > dist.get_world_size():
            raise MeshError(
                f"the mesh has {self.world_size} ranks, and the world has {dist.get_world_size()}"
            )
        if self.world_size == dist.get_world_size() and self.layout == Layout(row_major(self.shape)):
            ranks = torch.arange(self.world_size).view(self.shape)
            return (kind or TorchDeviceMesh)(self.device_type, ranks, mesh_dim_names=self.mesh_dim_names)
        if (last := max(self.ranks())) >= dist.get_world_size():
            raise MeshError(
                f"the mesh has rank {last}, and the world has the ranks 0 to {dist.get_world_size() - 1}"
            )
        for dim in self.mesh_dim_names:
            if fallen := next(
                (group for group in self.process_groups(dim) if list(group) != sorted(group)), ()
            ):
                raise MeshError(
                    f"torch numbers the ranks of a process group as they rise, and along {dim} here they "
                    f"are {shown(fallen)}"
                )
        ranks = torch.tensor(self.as_array())
        return (kind or TorchDeviceMesh)(self.device_type, ranks, mesh_dim_names=self.mesh_dim_names)

    # Look-ups

    @cached_property
    def _number(self) -> dict[str, int]:
        return {dim: number for number, dim in enumerate(self.mesh_dim_names)}

    @property
    def _data_dims(self) -> tuple[str, ...]:
        """Of its own dims, those that ulysses is carved out of."""
        return tuple(dim for dim in ("dp", "fsdp") if dim in self._number)

    @cached_property
    def _peer_dims(self) -> tuple[str, ...]:
        """Along which a data rank's peers are looked at, for the smallest; where ranks rise along each dim,
        that is at index 0."""
        return (
            tuple(dim for dim in self.mesh_dim_names if dim not in ("pp", "dp", "fsdp"))
            if self.layout.table
            else ()
        )

    @property
    def _first(self) -> int:
        return self.layout.at(self.layout.start)

    @cached_property
    def _found(self) -> dict[tuple[str, ...], tuple[DeviceMesh, tuple[Dim, ...]]]:
        """What `_dims` has found: a run asks for the same few dims in every step."""
        return {}

    def _dims(self, names: tuple[str, ...]) -> tuple[DeviceMesh, tuple[Dim, ...]]:
        """The mesh that has all these dims, this one or a view, and their digits there."""
        try:
            return self._found[names]
        except (KeyError, TypeError):
            found = self._look_up(names)
        self._found[names] = found
        return found

    def _look_up(self, names: tuple[str, ...]) -> tuple[DeviceMesh, tuple[Dim, ...]]:
        _names(names)
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
        raise MeshError(self._unknown(names))

    def _unknown(self, names: tuple[str, ...]) -> str:
        views = VIEWS if self.has_views else {}
        askable = (*self.mesh_dim_names, *self.absent, *(dim for dims in views.values() for dim in dims))
        if strange := [dim for dim in names if dim not in askable]:
            also = (
                f"; its views have {', '.join(dim for dims in views.values() for dim in dims)}"
                if views
                else ""
            )
            return f"there is no dim {strange[0]!r}, there are {', '.join(self.mesh_dim_names)}{also}"
        return (
            f"{' and '.join(names)} are not dims of one view of the mesh, so they cannot be asked for "
            "together"
        )

    @property
    def own_rank(self) -> int | None:
        """The rank as which this mesh was asked for by `at`, and of a component's `self.mesh`; of a mesh of
        one rank this one. None where the mesh has no rank of its own."""
        return self._first if self.here is None and self.world_size == 1 else self.here

    def _indices(self, rank: int | None) -> list[int]:
        if rank is None and (rank := self.own_rank) is None:
            raise MeshError("this mesh has no rank of its own: name one, or ask mesh.at(rank)")
        number = whole(rank)
        found = None if number is None else self.layout.indices(number)
        if found is None:
            raise MeshError(f"rank {rank!r} is not in the mesh, it has {self._extent()}")
        return found

    def _extent(self) -> str:
        first, count = self._first, self.world_size
        if (flat := join(self.layout.dims)) in (((count, 1),), ()) and not self.layout.table:
            return f"the ranks {first} to {first + count - 1}"
        offsets = [offset(flat, index) for index in range(min(count, SHOWN + 1))]
        return f"the ranks {shown([self.layout.at(self.layout.start + each) for each in offsets])}"


def _rank_and_dim(rank: int | str, dim: str | None) -> tuple[int | None, str]:
    """The arguments of a question about a dim, which may leave the rank out."""
    return (None, rank) if dim is None and isinstance(rank, str) else (rank, dim)  # type: ignore[return-value]


def _names(dims: object) -> tuple[str, ...]:
    """One or several names of dims, each once."""
    names = tuple(dims) if isinstance(dims, Iterable) and not isinstance(dims, str) else (dims,)
    for name in names:
        if not isinstance(name, str) or not name:
            raise MeshError(f"the name of a dim is a text, not {name!r}")
        if names.count(name) > 1:
            raise MeshError(f"a dim is named once, {name} is named {names.count(name)} times")
    return names


def _order(dims: object) -> tuple[str, ...]:
    """All dims, outermost first."""
    order = tuple(dims) if isinstance(dims, Iterable) and not isinstance(dims, str) else (dims,)
    if len(order) != len(DIMS) or any(dim not in order for dim in DIMS):
        raise MeshError(
            f"the order of dims must name {', '.join(DIMS)}, each once; it says {', '.join(map(str, order))}"
        )
    return order


def _size(what: str, size: object) -> int:
    number = whole(size)
    if number is None or number < 1:
        raise MeshError(f"{what} must be a whole number from 1, it is {size!r}")
    return number


def _index(dim: str, index: object, size: int) -> int:
    number = whole(index)
    if number is None or not 0 <= number < size:
        raise MeshError(
            f"{dim} has the {'index 0' if size == 1 else f'indices 0 to {size - 1}'}, not {index!r}"
        )
    return number


def _unnested(ranks: Any) -> tuple[list[int], tuple[int, ...]]:
    """Nested lists as one, and how they were nested."""
    ranks = ranks.tolist() if hasattr(ranks, "tolist") else ranks
    if (rank := whole(ranks)) is not None:
        if rank < 0:
            raise MeshError(f"a rank is a whole number from 0, not {rank}")
        return [rank], ()
    if not isinstance(ranks, (list, tuple, range)):
        raise MeshError(f"a mesh is made of ranks, whole numbers in nested lists, not of {ranks!r}")
    parts = [_unnested(part) for part in ranks]
    if not parts:
        raise MeshError("a mesh has at least one rank, this array is empty")
    if len(shapes := sorted({shape for _, shape in parts})) > 1:
        lengths = " and ".join(str(shape[0]) if shape else "no row" for shape in shapes)
        raise MeshError(f"the rows of the array have different lengths: {lengths}")
    return [rank for flat, _ in parts for rank in flat], (len(parts), *parts[0][1])


def shown(ranks: Sequence[int]) -> str:
    """The first of them: `0, 1, 2, ...`."""
    return ", ".join(map(str, ranks[:SHOWN])) + ", ..." * (len(ranks) > SHOWN)


def even_split(total: int, parts: int, part: int) -> range:
    """One of `parts` contiguous, even parts of 0 .. total - 1. The first `total mod parts` of them have one
    element more."""
    each, more = divmod(total, parts)
    start = part * each + min(part, more)
    return range(start, start + each + (part < more))


def split_index(total: int, parts: int, index: int) -> int:
    """The part of an even split that holds `index`."""
    each, more = divmod(total, parts)
    if index < more * (each + 1):
        return index // (each + 1)
    return more + (index - more * (each + 1)) // each
