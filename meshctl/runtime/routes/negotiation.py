"""Negotiates the `SyncPlan` between the two sides of a sync: each side gathers the layouts of its ranks, and
every rank of the other side receives them from one of its leaders.

    a layout    {parameter: [shape, dtype]} and, where this rank holds or wants a part of it, + [start, size]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from meshctl.runtime.routes.end import REALIGN, TABLES, RouteContext
from meshctl.runtime.routes.sync_plan import Layout, Parameter, Shard, SyncPlan, layout_of
from meshctl.runtime.transports.allgather import allgather
from meshctl.runtime.transports.buffers.frames import Frame, FrameError, bytes_of, pack, unpack
from meshctl.topology.samples import RouteError

Weights = Mapping[str, Tensor]
ProtocolError = Callable[[int, str], RouteError]
"""(job rank, what is wrong) -> the error that names the sender."""


def negotiate(
    context: RouteContext, produced: Weights | None, wanted: Weights | None, malformed: ProtocolError
) -> SyncPlan:
    """Returns the plan of a sync. All ranks of both sides call it together.

    `produced` are the weights of a producer, `wanted` those of a consumer; empty if it wants
    every parameter in full. Raises `RouteError` if ranks disagree on a parameter.
    """
    producers, consumers = context.producer.job_ranks, context.consumer.job_ranks
    held = None if produced is None else _gather(context, producers, row_of(produced), malformed)
    requested = None if wanted is None else _gather(context, consumers, row_of(wanted), malformed)
    if requested is None:
        assert held is not None
        _send(context, producers, consumers, held)
        requested = _receive(context, producers, consumers, malformed)
    elif held is None:
        _send(context, consumers, producers, requested)
        held = _receive(context, consumers, producers, malformed)
    return _plan_of(context, held, requested, malformed)


def plan_again(context: RouteContext, held: list[Any], wanted: Weights, malformed: ProtocolError) -> SyncPlan:
    """Returns the plan of a sync whose consumers have restarted, and call it together. `held` are the layouts
    of the producers, as they were negotiated (`row_of`)."""
    requested = _gather(context, context.consumer.job_ranks, row_of(wanted), malformed)
    return _plan_of(context, held, requested, malformed)


def _plan_of(
    context: RouteContext, held: list[Any], requested: list[Any], malformed: ProtocolError
) -> SyncPlan:
    producers, consumers = context.producer.job_ranks, context.consumer.job_ranks
    held_layouts = [_layout_in(row, other, malformed) for other, row in zip(producers, held, strict=True)]
    requested_layouts: list[Layout | None] = []
    for other, row in zip(consumers, requested, strict=True):
        layout = _layout_in(row, other, malformed)
        requested_layouts.append(layout if row else None)  # without a request, every parameter in full
    return SyncPlan(_parameters(held, requested), held_layouts, requested_layouts)


def _gather(context: RouteContext, job_ranks: range, row: Any, malformed: ProtocolError) -> list[Any]:
    me = job_ranks.index(context.transport.job_rank)
    rows = allgather(context.transport, job_ranks, me, context.first_tag + TABLES, bytes_of(pack(row)))
    return [_unpacked(row, other, malformed) for other, row in zip(job_ranks, rows, strict=True)]


def _unpacked(row: bytes, job_rank: int, malformed: ProtocolError) -> Any:
    try:
        return unpack(row)
    except FrameError:
        raise malformed(job_rank, "no layout") from None


def _send(context: RouteContext, ours: range, theirs: range, rows: list[Any]) -> None:
    """Sends the layouts of this side to those ranks of the other whose leader this rank is."""
    me = ours.index(context.transport.job_rank)
    for other in theirs[me :: len(ours)]:
        context.transport.send(other, context.first_tag + REALIGN, Frame(rows))


def _receive(context: RouteContext, ours: range, theirs: range, malformed: ProtocolError) -> list[Any]:
    leader = theirs[ours.index(context.transport.job_rank) % len(theirs)]
    rows = context.transport.receive_value(leader, context.first_tag + REALIGN)
    if not isinstance(rows, list) or len(rows) != len(theirs):
        raise malformed(leader, f"no {len(theirs)} layouts")
    return rows


def row_of(weights: Weights) -> dict[str, Any]:
    """Returns a layout as plain data."""
    held = layout_of(weights)
    rows: dict[str, Any] = {}
    for name, tensor in weights.items():
        rows[name] = [list(tensor.shape), str(tensor.dtype)]
        if name in held:
            rows[name] += [list(held[name].start), list(held[name].size)]
    return rows


def _layout_in(row: Any, job_rank: int, malformed: ProtocolError) -> Layout:
    if not isinstance(row, dict):
        raise malformed(job_rank, "no layout")
    if not all(isinstance(name, str) and _is_layout(entry) for name, entry in row.items()):
        raise malformed(job_rank, "no layout")
    return {name: Shard(tuple(shard[0]), tuple(shard[1])) for name, (_, _, *shard) in row.items() if shard}


def _is_layout(entry: Any) -> bool:
    if not isinstance(entry, list) or len(entry) not in (2, 4) or not isinstance(entry[1], str):
        return False
    shape, dtype, *shard = entry
    for sizes in (shape, *shard):
        if not isinstance(sizes, list) or len(sizes) != len(shape):
            return False
        if not all(type(size) is int and size >= 0 for size in sizes):
            return False
    return isinstance(_dtype_of(dtype), torch.dtype)


def _dtype_of(name: str) -> Any:
    return getattr(torch, name.removeprefix("torch."), None)


def _parameters(
    held: Sequence[Mapping[str, Any]], requested: Sequence[Mapping[str, Any]]
) -> dict[str, Parameter]:
    """Returns the parameters that producers hold, in their order. Raises `RouteError` if ranks disagree on
    a shape or dtype."""
    found: dict[str, Parameter] = {}
    for row in held:
        for name, (shape, dtype, *_) in row.items():
            parameter = Parameter(tuple(shape), _dtype_of(dtype))
            first = found.setdefault(name, parameter)
            if first != parameter:
                raise RouteError(
                    f"`{name}` is {list(first.shape)} of {first.dtype} on one producer, {shape} of "
                    f"{parameter.dtype} on another"
                )
    for row in requested:
        for name, (shape, *_) in row.items():
            if name in found and list(found[name].shape) != shape:
                raise RouteError(
                    f"`{name}` has the shape {shape} where it is loaded and {list(found[name].shape)} "
                    "where it comes from"
                )
    return found
