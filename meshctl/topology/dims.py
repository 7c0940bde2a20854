"""Checks of the arguments of `DeviceMesh`: names, sizes and indices of dims, and arrays of ranks.

Each function checks one value, and raises `MeshError` for a value that no mesh can have.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

from meshctl.topology.sizes import DIMS, EXPERT_DIMS, whole

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


class MeshError(ValueError):
    """Sizes that do not form a mesh, or a question about a rank or a dim that the mesh does not have."""


def dim_names(dims: object) -> tuple[str, ...]:
    """Returns the name of one dim, or the different names of several dims, as a tuple."""
    names = _as_tuple(dims)
    for name in names:
        if not isinstance(name, str) or not name:
            raise MeshError(f"the name of a dim must be a string, not {name!r}")
        if names.count(name) > 1:
            raise MeshError(f"a dim must be named once, but {name} is named {names.count(name)} times")
    return names


def dim_order(dims: object) -> tuple[str, ...]:
    """Returns `dims`, an order of the dims, as a tuple with the outermost first. Raises `MeshError` if it
    does not contain each of `DIMS` once."""
    order = _as_tuple(dims)
    if len(order) != len(DIMS) or any(dim not in order for dim in DIMS):
        raise MeshError(
            f"the order of dims must name {', '.join(DIMS)}, each once, not {', '.join(map(str, order))}"
        )
    return order


def refuse_reserved(name: str) -> None:
    if name in RESERVED:
        raise MeshError(f"{name!r} is {RESERVED[name]} and cannot be the name of a dim")


def dim_size(what: str, size: object) -> int:
    """Returns a size, which must be an integer from 1. `what` is the name of the size in error messages."""
    number = whole(size)
    if number is None or number < 1:
        raise MeshError(f"{what} must be a positive integer, not {size!r}")
    return number


def part_sizes(dim: str, size: int, parts: object) -> dict[str, int]:
    """Returns name -> size of the parts that a dim is divided into. `size`, the size of the dim, must be the
    product of the sizes of its parts."""
    if not isinstance(parts, Mapping):
        raise MeshError(
            f"the parts of {dim} must be names with sizes, {{'ring': 2, 'heads': 4}}, not {parts!r}"
        )
    sizes = {name: dim_size(f"the size of {name}", part) for name, part in parts.items()}
    if not sizes or prod(sizes.values()) != size:
        product = " x ".join(f"{name} {part}" for name, part in sizes.items()) or "no part"
        raise MeshError(f"{product} is not the {size} of {dim}")
    return sizes


def dim_index(dim: str, index: object, size: int) -> int:
    """Returns an index in a dim, which must be an integer in 0 .. size - 1."""
    number = whole(index)
    if number is None or not 0 <= number < size:
        indices = "index 0" if size == 1 else f"indices 0 to {size - 1}"
        raise MeshError(f"{dim} has the {indices}, not {index!r}")
    return number


def flat_ranks(ranks: Any) -> tuple[list[int], tuple[int, ...]]:
    """Returns (ranks, shape) of an array of ranks: the ranks as a flat list, row-major. The array is nested
    lists, or an object with `tolist()`."""
    ranks = ranks.tolist() if hasattr(ranks, "tolist") else ranks
    if (rank := whole(ranks)) is not None:
        if rank < 0:
            raise MeshError(f"a rank must be an integer of at least 0, not {rank}")
        return [rank], ()
    if not isinstance(ranks, (list, tuple, range)):
        raise MeshError(f"a mesh must be an array of ranks, such as nested lists of integers, not {ranks!r}")
    rows = [flat_ranks(row) for row in ranks]
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
