"""Negotiates the `SyncPlan` between the two sides of a sync: each side gathers the layouts of its ranks, and
every rank of the other side receives them from one of its leaders.

    a layout    {parameter: [shape, dtype]} and, where this rank holds or wants a part of it, + [start, size]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from meshctl.runtime.routes.end import REALIGN, TABLES, RouteContext
from meshctl.runtime.routes.sync_plan import Layout, Parameter, Shard, SyncPlan, layout_of
from meshctl.runtime.transports.allgather import allgather
from meshctl.runtime.transports.buffers.frames import Frame, bytes_of, pack, unpack
from meshctl.topology.samples import RouteError

Weights = Mapping[str, Tensor]


def negotiate(context: RouteContext, produced: Any, wanted: Any) -> SyncPlan:
    """Returns the plan of a sync. All ranks of both sides call it together.

    `produced` is the layout (`row_of`) of a producer's weights, `wanted` that of a consumer's; empty if it
    wants every parameter in full. Raises `RouteError` if ranks disagree on a parameter.
    """
    producers, consumers = context.producer.job_ranks, context.consumer.job_ranks
    held = None if produced is None else _gather(context, producers, produced)
    requested = None if wanted is None else _gather(context, consumers, wanted)
    if requested is None:
        assert held is not None
        _send(context, producers, consumers, held)
        requested = _receive(context, producers, consumers)
    elif held is None:
        _send(context, consumers, producers, requested)
        held = _receive(context, consumers, producers)
    return _plan_of(held, requested)


def plan_again(context: RouteContext, held: list[Any], wanted: Any) -> SyncPlan:
    """Returns the plan of a sync whose consumers have restarted, and call it together. `held` are the layouts
    of the producers, as they were negotiated."""
    return _plan_of(held, _gather(context, context.consumer.job_ranks, wanted))


def _plan_of(held: list[Any], requested: list[Any]) -> SyncPlan:
    wanted = [_layout_in(row) if row else None for row in requested]  # without a request, everything in full
    return SyncPlan(_parameters(held, requested), [*map(_layout_in, held)], wanted)


def _gather(context: RouteContext, job_ranks: range, row: Any) -> list[Any]:
    me = job_ranks.index(context.transport.job_rank)
    rows = allgather(context.transport, job_ranks, me, context.first_tag + TABLES, bytes_of(pack(row)))
    return [*map(unpack, rows)]


def _send(context: RouteContext, ours: range, theirs: range, rows: list[Any]) -> None:
    """Sends the layouts of this side to those ranks of the other whose leader this rank is."""
    me = ours.index(context.transport.job_rank)
    for other in theirs[me :: len(ours)]:
        context.transport.send(other, context.first_tag + REALIGN, Frame(rows))


def _receive(context: RouteContext, ours: range, theirs: range) -> list[Any]:
    leader = theirs[ours.index(context.transport.job_rank) % len(theirs)]
    rows: list[Any] = context.transport.receive_value(leader, context.first_tag + REALIGN)
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


def _layout_in(row: Mapping[str, Any]) -> Layout:
    return {name: Shard(tuple(shard[0]), tuple(shard[1])) for name, (_, _, *shard) in row.items() if shard}


def _parameters(
    held: Sequence[Mapping[str, Any]], requested: Sequence[Mapping[str, Any]]
) -> dict[str, Parameter]:
    """Returns the parameters that producers hold, in their order. Raises `RouteError` if ranks disagree on
    a shape or dtype."""
    found: dict[str, Parameter] = {}
    for row in held:
        for name, (shape, dtype, *_) in row.items():
            parameter = Parameter(tuple(shape), getattr(torch, dtype.removeprefix("torch.")))
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
