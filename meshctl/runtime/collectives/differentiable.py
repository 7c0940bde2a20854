"""Collective operations with a gradient: `self.collective("tp").differentiable`.

The gradient of an operation is another collective operation, so all ranks run the backward pass together and
in the same order, as they ran the forward pass.

| forward | backward |
| --- | --- |
| all_gather | reduce_scatter by sum: every rank's loss uses every rank's tensor |
| reduce_scatter | all_gather, divided by the number of ranks for a mean |
| all_to_all | all_to_all |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

from meshctl.runtime.errors import CollectiveError

if TYPE_CHECKING:
    from meshctl.runtime.collectives.collective import Collective


class DifferentiableCollective:
    """The operations of a collective that have a gradient. Tensors are floats or complex numbers."""

    def __init__(self, collective: Collective) -> None:
        self._collective = collective

    def all_gather(self, tensor: Tensor, *, uneven: bool = False) -> Tensor:
        """Returns the tensors of all ranks, concatenated along dim 0, as `Collective.all_gather_joined`
        does."""
        gathered: Tensor = _AllGather.apply(tensor, self._collective, uneven)  # type: ignore[no-untyped-call]
        return gathered

    def reduce_scatter(self, tensor: Tensor, op: Literal["sum", "mean"] = "sum") -> Tensor:
        """Returns this rank's share of dim 0 of the sum or mean, as `Collective.reduce_scatter` does."""
        if op not in ("sum", "mean"):
            raise CollectiveError(f"a differentiable reduce_scatter is by sum or mean, not {op!r}")
        share: Tensor = _ReduceScatter.apply(tensor, self._collective, op)  # type: ignore[no-untyped-call]
        return share

    def all_to_all(self, tensors: Sequence[Tensor], *, uneven: bool = False) -> list[Tensor]:
        """Sends the i-th tensor to the i-th rank and returns those received, as `Collective.all_to_all`
        does."""
        return list(_AllToAll.apply(self._collective, uneven, *tensors))  # type: ignore[no-untyped-call]


class _AllGather(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, collective: Collective, uneven: bool) -> Tensor:
        ctx.collective, ctx.uneven, ctx.has_dims = collective, uneven, bool(tensor.ndim)
        if not uneven:
            return collective.all_gather_joined(tensor)
        parts = collective.all_gather(tensor, uneven=True)
        ctx.lengths = [len(part) for part in parts]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        [grad] = grads
        if ctx.uneven:
            received = ctx.collective.all_to_all(list(grad.split(ctx.lengths)), uneven=True)
            return torch.stack(received).sum(0), None, None
        share = ctx.collective.reduce_scatter(grad)
        return share if ctx.has_dims else share[0], None, None


class _ReduceScatter(Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, collective: Collective, op: Literal["sum", "mean"]) -> Tensor:
        ctx.collective, ctx.op = collective, op
        return collective.reduce_scatter(tensor, op)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        whole = ctx.collective.all_gather_joined(grads[0], uneven=True)
        return whole / ctx.collective.size if ctx.op == "mean" else whole, None, None


class _AllToAll(Function):
    @staticmethod
    def forward(ctx: Any, collective: Collective, uneven: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.collective, ctx.uneven = collective, uneven
        return tuple(collective.all_to_all(tensors, uneven=uneven))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return None, None, *ctx.collective.all_to_all(list(grads), uneven=ctx.uneven)
