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
from meshctl.topology.sizes import DIMS as DIMS
from meshctl.topology.sizes import EXPERT_DIMS, SIZES, settle, whole
from meshctl.topology.strides import Dim, Layout, join, offset, offsets, row_major, size_of, split

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh


MAX_SHOWN = 8
"""The largest number of ranks that a message lists."""
VIEWS = {"data": ("data", "ulysses"), "expert": EXPERT_DIMS}
"""Name of a view -> its dims that the mesh itself does not have."""
RESERVED = {
    **{dim: f"a dim of the view `{view}`" for view, dims in VIEWS.items() for dim in dims},
    "vpp": "stages per pp rank",
    "sp": "`ulysses` or `cp` here",
}
"""Names that no dim of a mesh may have, with the reason."""


DATA_DIMS = ("dp", "fsdp")
"""The dims whose product ulysses divides."""


class MeshError(ValueError):
    """Sizes that do not form a mesh, or a question about a rank or a dim that the mesh does not have."""


def even_split(total: int, parts: int, part: int) -> range:
    """Returns the elements of one part. The first `total mod parts` parts have one element more."""
    each, more = divmod(total, parts)
    start = part * each + min(part, more)
    return range(start, start + each + (part < more))


def split_index(total: int, parts: int, index: int) -> int:
    """Returns the part that holds the element `index`."""
    each, more = divmod(total, parts)
    if index < more * (each + 1):
        return index // (each + 1)
    return more + (index - more * (each + 1)) // each


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
        names = _dim_names(self.mesh_dim_names)
        if len(self.shape) != len(names):
            raise MeshError(f"{len(self.shape)} sizes {self.shape} for {len(names)} dims {', '.join(names)}")
        written = str(self.device_type).lower()
        if (device_type := DEVICE_ALIASES.get(written, written)) not in DEVICE_TYPES:
            raise MeshError(
                f"device type {self.device_type!r} does not exist; available: {', '.join(DEVICE_TYPES)}"
            )
        sizes = {
            dim: _dim_size(f"the size of {dim}", size) for dim, size in zip(names, self.shape, strict=True)
        }
        for key in ("ulysses_size", "ep_size", "etp_size", "vpp_size"):
            object.__setattr__(self, key, _dim_size(key, getattr(self, key)))
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
        given = locals()
        stated = {size: given[size] for size in SIZES}
        order = _as_tuple(order)
        if len(order) != len(DIMS) or any(dim not in order for dim in DIMS):
            raise MeshError(
                f"the order of dims must name {', '.join(DIMS)}, each once, not {', '.join(map(str, order))}"
            )
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
        flat, shape = _flat_ranks(ranks)
        names = _dim_names(mesh_dim_names)
        for dim in names:
            _refuse_reserved(dim)
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
        home, dims = self._dims(tuple(coordinate))
        at = {
            dim: _dim_index(dim, coordinate[dim], size_of(digits))
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
        return home.coordinate(rank).get(dim, 0)

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
        names = _dim_names(dims)
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
        size, at = size_of(digits), home.coordinate(number)
        index = at.get(name, 0) + int(by)
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
        others = [name for name in home.mesh_dim_names if name != dim]
        return tuple(sorted(home.ranks_along(others, home.rank({dim: index}))))

    def process_groups(self, dims: str | Iterable[str]) -> Iterator[tuple[int, ...]]:
        """Returns the groups of ranks along `dims`, in the same order on every rank. Each rank is in one of
        them."""
        names = _dim_names(dims)
        home, digits = self._dims(names)
        layout = home.layout
        others = [layout.dims[number] for dim, number in home._number.items() if dim not in names]
        along = offsets(digits)
        return (
            tuple(layout.at(layout.start + corner + step) for step in along) for corner in offsets(others)
        )

    def representative(self, data_rank: int) -> int:
        """Returns the rank that represents a data rank: the smallest of its ranks in the last pp stage."""
        number = whole(data_rank)
        if number is None or not 0 <= number < self.data_size:
            raise MeshError(
                f"data rank {data_rank!r} does not exist; the data ranks are 0 to {self.data_size - 1}"
            )
        last, fsdp = self.size("pp") - 1, self.size("fsdp")
        # The indices of the data rank in dp x fsdp.
        indices = range(number * self.ulysses_size, (number + 1) * self.ulysses_size)
        # Without a table, ranks rise along dp and along fsdp: the smallest rank has the first of these
        # indices, or the first one in the next row of fsdp.
        if not self.layout.table:
            indices = range(indices.start, indices.stop, -indices.start % fsdp or self.ulysses_size)[:2]
        firsts = [self.rank({"pp": last, "dp": index // fsdp, "fsdp": index % fsdp}) for index in indices]
        dims = self._peer_dims
        return min(min(self.ranks_along(dims, first)) if dims else first for first in firsts)

    def collect_ranks(self) -> tuple[int, ...]:
        """Returns the representatives of all data ranks, by data rank."""
        ranks = self.ranks_along(("dp", "fsdp", *self._peer_dims), self.rank({"pp": self.size("pp") - 1}))
        each = len(ranks) // self.data_size
        return tuple(min(ranks[start : start + each]) for start in range(0, len(ranks), each))

    @property
    def _peer_dims(self) -> tuple[str, ...]:
        """The dims in which all ranks of a data rank are compared to find the smallest. Empty if the ranks
        rise along each dim: then the smallest one has the index 0."""
        if not self.layout.table:
            return ()
        return tuple(dim for dim in self.mesh_dim_names if dim not in ("pp", *DATA_DIMS))

    # Meshes of the same ranks

    def at(self, rank: int) -> DeviceMesh:
        """Returns the same mesh with `rank` as its own rank. `mesh.at(5)["tp"]` is the sub-mesh with rank
        5."""
        self._indices(rank)
        return replace(self, here=whole(rank))

    def __getitem__(self, dims: str | tuple[str, ...]) -> DeviceMesh:
        """Returns the sub-mesh of these dims, in this order, that contains the mesh's own rank."""
        names = _dim_names(dims)
        home, digits = self._dims(names)
        here = self._first if self.here is None else self.here
        indices = home._indices(here)
        start = home.layout.corner(indices, [home._number[dim] for dim in names if dim in home._number])
        shape = tuple(map(size_of, digits))
        keeps_data = all(
            dim in names or dim not in self.mesh_dim_names or self.size(dim) == 1 for dim in DATA_DIMS
        )
        return replace(
            self,
            mesh_dim_names=names,
            shape=shape,
            ulysses_size=self.ulysses_size if keeps_data else 1,
            ep_size=1,
            etp_size=1,
            vpp_size=self.vpp_size if "pp" in names else 1,
            sequence_parallel=self.sequence_parallel and "tp" in names,
            layout=Layout(digits, start, home.layout.table),
            absent=tuple(dim for dim in home.absent if dim not in names),
            has_views=home.has_views,
            whole=self.whole and prod(shape) == self.world_size,
            here=here,
        )

    def flatten(self, *dims: str, name: str = "") -> DeviceMesh:
        """Returns the mesh with `dims`, by default all, joined into one dim.

        The joined dim takes the position of the outermost of `dims`. Its index counts through `dims` with the
        last one the fastest. Its name is `name`, or by default the names of `dims` as in torch: `dp_fsdp`.
        """
        names = _dim_names(dims or self.mesh_dim_names)
        home, _ = self._dims(names)
        name = name or "_".join(names)
        _refuse_reserved(name)
        if names == (name,):
            return home
        return _refactored(home, _replaced(home.mesh_dim_names, names, (name,)), names, {}, name)

    def unflatten(self, dim: str, sizes: Mapping[str, int]) -> DeviceMesh:
        """Returns the mesh with `dim`, which may be a dim of a view, divided into the dims of `sizes`. The
        last of these is the fastest.

        For attention that is split by heads and in a ring:
        `mesh.unflatten("ulysses", {"ring": ulysses // heads, "heads": heads})`.
        """
        home, (digits,) = self._dims((dim,))
        size = size_of(digits)
        parts = {name: _dim_size(f"the size of {name}", part) for name, part in sizes.items()}
        if not parts or prod(parts.values()) != size:
            product = " x ".join(f"{name} {part}" for name, part in parts.items()) or "no part"
            raise MeshError(f"{product} is not the {size} of {dim}")
        for name in parts:
            if name in RESERVED or (name != dim and name in home.mesh_dim_names):
                reason = RESERVED.get(name, "a dim of the mesh already")
                raise MeshError(f"{name!r} is {reason} and cannot be the name of a part of {dim}")
        order = [name for other in home.mesh_dim_names for name in (parts if other == dim else (other,))]
        outer, *inner = parts
        return _refactored(home, tuple(order), (dim,), {name: parts[name] for name in reversed(inner)}, outer)

    def view(self, name: str) -> DeviceMesh:
        """Returns the same ranks by other dims: "data" (pp, data, ulysses, cp, tp) or "expert" (pp, ep_fsdp,
        ep, etp)."""
        if name not in VIEWS:
            raise MeshError(f"view {name!r} does not exist; available: {' and '.join(VIEWS)}")
        if not self.has_views:
            raise MeshError(
                f"a mesh of {', '.join(self.mesh_dim_names)} has no views: use the mesh that it was made from"
            )
        return self._views[name]

    @cached_property
    def _views(self) -> dict[str, DeviceMesh]:
        names = self.mesh_dim_names
        order = _replaced(names, DATA_DIMS, ("data", "ulysses"))
        stage = tuple(dim for dim in names if dim != "pp")
        experts = (*(dim for dim in names if dim == "pp"), *EXPERT_DIMS)
        sizes = {"etp": self.etp_size, "ep": self.ep_size}
        return {
            "data": _refactored(self, order, DATA_DIMS, {"ulysses": self.ulysses_size}, "data"),
            "expert": _refactored(self, experts, stage, sizes, "ep_fsdp"),
        }

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
        import torch
        import torch.distributed as dist
        from torch.distributed.device_mesh import DeviceMesh as TorchDeviceMesh

        if not self.whole:
            names = ", ".join(map(repr, self.mesh_dim_names))
            raise MeshError(
                f"a sub-mesh must be taken from torch's mesh of all ranks: mesh.to_torch()[{names}]"
            )
        if not dist.is_initialized():
            if self.world_size > 1:
                raise MeshError(
                    f"the mesh has {self.world_size} ranks, but torch.distributed is not initialised"
                )
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        _refuse_misfit(self, dist.get_world_size())
        ranks = torch.tensor(self.as_array())
        if self.device_type == "mps":
            # torch cannot make process groups for mps itself; those of gloo carry CPU tensors.
            make: Any = dist.new_subgroups_by_enumeration
            groups = [make(_lists(self, dim))[0] for dim in self.mesh_dim_names]
            return TorchDeviceMesh.from_group(groups, "mps", mesh=ranks, mesh_dim_names=self.mesh_dim_names)
        return (kind or TorchDeviceMesh)(self.device_type, ranks, mesh_dim_names=self.mesh_dim_names)

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
        _dim_names(names)
        views = VIEWS if self.has_views else {}
        named = [self._views[view] for view, dims in views.items() if any(dim in dims for dim in names)]
        for home in (self, *named):
            if all(dim in home._number or dim in home.absent for dim in names):
                number = home._number
                return home, tuple(home.layout.dims[number[dim]] if dim in number else () for dim in names)
        of_views = [dim for dims in views.values() for dim in dims]
        known = (*self.mesh_dim_names, *self.absent, *of_views)
        if strange := [dim for dim in names if dim not in known]:
            also = f"; its views have {', '.join(of_views)}" if views else ""
            available = ", ".join(self.mesh_dim_names)
            raise MeshError(f"dim {strange[0]!r} does not exist; available: {available}{also}")
        raise MeshError(
            f"{' and '.join(names)} cannot be used together: they are not dims of one view of the mesh"
        )

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
            raise MeshError(f"rank {rank!r} is not in the mesh, which has {_extent(self)}")
        return found


def _rank_and_dim(rank: int | str, dim: str | None) -> tuple[int | None, str]:
    """Returns (rank, dim) for a method that is called as `(rank, dim)` or as `(dim)`. In the second form the
    rank is None, and `dim` the first argument."""
    return (None, rank) if dim is None and isinstance(rank, str) else (rank, dim)  # type: ignore[return-value]


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


# Checks of arguments: each raises `MeshError` for a value that no mesh can have


def _dim_names(dims: object) -> tuple[str, ...]:
    """Returns the name of one dim, or the different names of several dims, as a tuple."""
    names = _as_tuple(dims)
    for name in names:
        if not isinstance(name, str) or not name:
            raise MeshError(f"the name of a dim must be a string, not {name!r}")
        if names.count(name) > 1:
            raise MeshError(f"a dim must be named once, but {name} is named {names.count(name)} times")
    return names


def _refuse_reserved(name: str) -> None:
    if name in RESERVED:
        raise MeshError(f"{name!r} is {RESERVED[name]} and cannot be the name of a dim")


def _dim_size(what: str, size: object) -> int:
    """Returns a size, which must be an integer from 1. `what` is the name of the size in error messages."""
    number = whole(size)
    if number is None or number < 1:
        raise MeshError(f"{what} must be a positive integer, not {size!r}")
    return number


def _dim_index(dim: str, index: object, size: int) -> int:
    number = whole(index)
    if number is None or not 0 <= number < size:
        indices = "index 0" if size == 1 else f"indices 0 to {size - 1}"
        raise MeshError(f"{dim} has the {indices}, not {index!r}")
    return number


def _flat_ranks(ranks: Any) -> tuple[list[int], tuple[int, ...]]:
    """Returns (ranks, shape) of an array of ranks: the ranks as a flat list, row-major. The array is nested
    lists, or an object with `tolist()`."""
    ranks = ranks.tolist() if hasattr(ranks, "tolist") else ranks
    if (rank := whole(ranks)) is not None:
        if rank < 0:
            raise MeshError(f"a rank must be an integer of at least 0, not {rank}")
        return [rank], ()
    if not isinstance(ranks, (list, tuple, range)):
        raise MeshError(f"a mesh must be an array of ranks, such as nested lists of integers, not {ranks!r}")
    rows = [_flat_ranks(row) for row in ranks]
    if not rows:
        raise MeshError("a mesh must have at least one rank, but this array is empty")
    shapes = sorted({shape for _, shape in rows})
    if len(shapes) > 1:
        lengths = " and ".join(str(shape[0]) if shape else "no row" for shape in shapes)
        raise MeshError(f"the rows of the array have different lengths: {lengths}")
    return [rank for flat, _ in rows for rank in flat], (len(rows), *shapes[0])


def shown(ranks: Sequence[int]) -> str:
    """Returns the first ranks for a message: `0, 1, 2, ...`."""
    return ", ".join(map(str, ranks[:MAX_SHOWN])) + ", ..." * (len(ranks) > MAX_SHOWN)


def _as_tuple(dims: object) -> tuple[Any, ...]:
    return tuple(dims) if isinstance(dims, Iterable) and not isinstance(dims, str) else (dims,)


def _extent(mesh: DeviceMesh) -> str:
    """Returns a text that names the ranks of a mesh: all of them if they are consecutive, otherwise the first
    ones."""
    layout, count = mesh.layout, mesh.world_size
    flat = join(layout.dims)
    if flat in (((count, 1),), ()) and not layout.table:
        first = layout.at(layout.start)
        return f"the ranks {first} to {first + count - 1}"
    offsets = [offset(flat, index) for index in range(min(count, MAX_SHOWN + 1))]
    return f"the ranks {shown([layout.at(layout.start + each) for each in offsets])}"


# Meshes made from a mesh: by other strides, or by a table of the ranks where strides cannot describe them


def _replaced(names: tuple[str, ...], old: Sequence[str], new: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the names with `new` at the position of the outermost of `old`, and without `old`."""
    first = min((names.index(name) for name in old if name in names), default=0)
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
    if left is None:  # strides cannot describe it: a table of the ranks
        kept = [dim for dim in mesh.mesh_dim_names if dim not in old]
        replaced = [dim for dim in old if dim in by_name]
        table = mesh.layout.ranks((by_name[dim] for dim in (*kept, *replaced)), mesh.layout.start)
        sizes = {dim: mesh.size(dim) for dim in kept}
        sizes[outer] = prod(map(mesh.size, replaced)) // prod(inner.values())
        sizes |= dict(reversed(inner.items()))
        digits = dict(zip(sizes, row_major(tuple(sizes.values())), strict=True))
        return _regrouped(mesh, order, [digits[dim] for dim in order], old, table)
    digits[outer] = left
    return _regrouped(mesh, order, [digits[dim] for dim in order], old)


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
