"""The weights of all pipeline stages, for an export by all ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from meshctl.hf.sharding import whole_of
from meshctl.runtime.collectives.collective import Collective

Outlines = Mapping[str, Tensor]
"""Name -> tensor of torch's `meta` device with the whole shape."""


def outlines_of_all(own: Outlines, names: Sequence[str], pp: Collective) -> tuple[Outlines, dict[str, int]]:
    """Returns the outlines of the weights of all stages, and name -> the pp rank that has the weight.

    `own` are those of this rank, and `names` are the names of the whole model, in order. All ranks of `pp`
    call this together.
    """
    rows = {name: [list(one.shape), str(one.dtype).removeprefix("torch.")] for name, one in own.items()}
    every = pp.all_gather_object(rows)
    owners = {name: next(rank for rank, row in enumerate(every) if name in row) for name in names}
    found = {}
    for name, owner in owners.items():
        shape, dtype = every[owner][name]
        found[name] = torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
    return found, owners


def tensors_of_all(
    own: Iterable[tuple[str, Tensor]], shapes: Outlines, owners: Mapping[str, int], pp: Collective
) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, whole tensor) for the weights of all stages, in the order of `shapes`.

    `own` are the pairs (name, shard) of this rank, in the same order. All ranks of `pp` iterate together, and
    hold one tensor at a time.
    """
    remaining = iter(own)
    for name, shape in shapes.items():
        if owners[name] == pp.rank:
            tensor = whole_of(next(one for key, one in remaining if key == name)).contiguous()
        else:
            tensor = torch.empty(shape.shape, dtype=shape.dtype, device=pp.device)
        yield name, pp.broadcast(tensor, owners[name])
