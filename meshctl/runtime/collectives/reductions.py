"""The reductions of collectives: which dtypes they accept, and which operation of torch performs them.

gloo and NCCL reduce different dtypes. A dtype that one of them lacks is reduced as a wider one everywhere, so
that a component gives the same result on both. A new reduction is one line in `REDUCTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from meshctl.dataclass import dataclass

Op = Literal["sum", "mean", "product", "max", "min", "bitwise_and", "bitwise_or", "bitwise_xor"]
WIDER = {
    torch.bool: torch.uint8,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
}
"""Dtype -> the dtype that it is reduced as."""


@dataclass(frozen=True)
class Reduction:
    """A reduction. `bools`, `integers`, `floats` and `complexes` are whether it accepts tensors of these
    kinds."""

    of_rows: Callable[[Tensor], Tensor]
    """Reduces dim 0 of a tensor: the definition of the operation."""
    torch_op: dist.ReduceOp.RedOpType | None
    """torch's operation. None if NCCL has none: the rows are gathered and reduced locally."""
    bools: bool = False
    integers: bool = True
    floats: bool = True
    complexes: bool = True
    advice: str = ""
    """The advice in the error for a refused dtype; empty if there is none."""


def _folded(combine: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def reduce(rows: Tensor) -> Tensor:
        result = rows[0].clone()
        for row in rows[1:]:
            result = combine(result, row)
        return result

    return reduce


_BOOLS = "count them as numbers, or reduce with max (any) or min (all)"
_SUM = dist.ReduceOp.SUM
REDUCTIONS: dict[str, Reduction] = {
    "sum": Reduction(lambda rows: rows.sum(0, dtype=rows.dtype), _SUM, advice=_BOOLS),
    "mean": Reduction(
        lambda rows: rows.mean(0), _SUM, integers=False, advice="reduce it as a float, or by sum"
    ),
    "product": Reduction(
        lambda rows: rows.prod(0, dtype=rows.dtype), dist.ReduceOp.PRODUCT, complexes=False, advice=_BOOLS
    ),
    "max": Reduction(lambda rows: rows.amax(0), dist.ReduceOp.MAX, bools=True, complexes=False),
    "min": Reduction(lambda rows: rows.amin(0), dist.ReduceOp.MIN, bools=True, complexes=False),
    "bitwise_and": Reduction(_folded(torch.bitwise_and), None, True, floats=False, complexes=False),
    "bitwise_or": Reduction(_folded(torch.bitwise_or), None, True, floats=False, complexes=False),
    "bitwise_xor": Reduction(_folded(torch.bitwise_xor), None, True, floats=False, complexes=False),
}


def refusal(dtype: torch.dtype, op: str) -> str:
    """Returns the reason why tensors of a dtype cannot be reduced by `op`, or an empty text."""
    if op not in REDUCTIONS:
        return f"{op!r} is not a reduction; the reductions are {', '.join(REDUCTIONS)}"
    if dtype == torch.uint64:
        return "a tensor of uint64 cannot be reduced"
    reduction, kind = REDUCTIONS[op], str(dtype).removeprefix("torch.")
    if dtype == torch.bool:
        kind, is_accepted = "bools", reduction.bools
    elif dtype.is_complex:
        kind, is_accepted = "complex numbers", reduction.complexes
    elif dtype.is_floating_point:
        is_accepted = reduction.floats
    else:
        is_accepted = reduction.integers
    if is_accepted:
        return ""
    advice = _BOOLS if dtype == torch.bool else reduction.advice
    return f"{kind} have no {op}" + (f": {advice}" if advice else "")
