"""Sample ids: int64 tensors `[n, depth]`. A grid describes evenly numbered ones without a list of them."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from meshctl.topology.samples import Grid

MAX_IDS_SHOWN = 5
"""The maximum number of sample ids in a message."""


def grid_of(ids: Tensor) -> Grid | None:
    """Returns the ids as a grid, or None if they are not evenly numbered or end with the last int64."""
    grid = _grid_of(ids) if ids.numel() else None
    return grid if grid and grid.start + grid.shape[0] < 1 << 63 else None


def _grid_of(ids: Tensor) -> Grid | None:
    if len(ids) == 1:
        first, *rest = ids[0].tolist()
        return None if any(rest) else Grid(first, (1, *(1 for _ in rest)))
    if ids.shape[1] == 1:
        even = bool((ids[1:] - ids[:-1] == 1).all())
        return Grid(int(ids[0]), (len(ids),)) if even else None
    first, last = ids[0].tolist(), ids[-1].tolist()
    shape = tuple(stop - start + 1 for start, stop in zip(first, last, strict=True))
    if any(first[1:]) or min(shape) < 1 or prod(shape) != len(ids):
        return None
    grid = Grid(first[0], shape)
    return grid if torch.equal(ids, ids_of(grid)) else None


def ids_of(grid: Grid) -> Tensor:
    """Returns the ids of a grid, int64 `[n, depth]`."""
    rest, digits = torch.arange(len(grid)), list[Tensor]()
    for size in reversed(grid.shape[1:]):
        digits.append(rest % size)
        rest = rest.div(size, rounding_mode="floor")
    return torch.stack([rest + grid.start, *reversed(digits)], 1)


def children(ids: Tensor, times: int) -> Tensor:
    """Returns ids `[n * times, depth + 1]`: for each id of `[n, depth]` its children 0 to `times` - 1."""
    numbers = torch.arange(times).repeat(len(ids))[:, None]
    return torch.cat([ids.repeat_interleave(times, 0), numbers], 1)


def shown_ids(ids: Sequence[Sequence[int]]) -> str:
    """Returns the first ids of samples, for a message."""
    named = [".".join(map(str, one)) for one in ids[:MAX_IDS_SHOWN]]
    return ", ".join(named) + (f" and {len(ids) - len(named)} more" if len(ids) > len(named) else "")
