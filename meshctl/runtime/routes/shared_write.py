"""One frame that several producers of a node write together.

The leader of a part lays out the frame and sends it to the consumers. The other producers write their rows
into it, and then send the consumers a frame without rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

from torch import Tensor

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.end import SHARED_WRITE, VALUES, RouteContext
from meshctl.runtime.routes.rows import RowRange, Schema, dtype_of, empty_like, fill
from meshctl.runtime.routes.step import StepHeader
from meshctl.runtime.transports.buffers.frames import Frame, tensor_of, unpack
from meshctl.runtime.transports.buffers.mapped_concat import fits_pages
from meshctl.topology.consumers import ConsumerParts

SHARED_PART_MIN_BYTES = 1 << 20
"""Minimum size of a part for its producers to write into one frame. For smaller parts the wait for the leader
takes longer than a copy by the consumer."""


class SharedWrite:
    """Writes those parts of one route that several producers hold. The producers and all consumers of such a
    part share memory, and the consumers cannot map the columns of the producers as they are."""

    def __init__(self, context: RouteContext, producers: Sequence[int], consumers: ConsumerParts) -> None:
        """`producers` are the ranks that send, in their order."""
        self._context, self._transport, self._tag = context, context.transport, context.first_tag
        self._producers, self._consumers = producers, consumers
        self._can_write = cache(self._can_write_together)

    def schema_of(self, header: StepHeader, part: int) -> Schema | None:
        """Returns the columns of a part that several producers write into one frame; None for other parts."""
        producers, leader = header.partition.producers[part], self._consumers.leaders[part]
        if len(producers) < 2 or header.headers[leader].schema is None:
            return None
        if not self._can_write(part, producers):
            return None
        schema = header.schema_of(part)
        return schema if schema and _needs_copy(header, part, schema) else None

    def _can_write_together(self, part: int, producers: tuple[int, ...]) -> bool:
        """Returns whether some producers, the leader of a part and all of its consumers are on one node and
        can use the same frame. Where a group may restart, each producer sends alone, also once more."""
        context, writers = self._context, {self._consumers.leaders[part], *producers}
        if context.is_resumable:
            return False
        ranks = [self._producers[writer] for writer in writers]
        nodes = {context.producer.node_of(rank) for rank in ranks}
        nodes |= {context.consumer.node_of(rank) for rank in self._consumers.ranks[part]}
        job_ranks = [*map(context.producer.job_rank, ranks), *self._readers(part)]
        return len(nodes) == 1 and self._transport.shares_memory(job_ranks)

    def send(
        self, header: StepHeader, content: list[Any], part: int, me: int, value: Batch, schema: Schema
    ) -> int:
        """Writes the rows of producer `me` into the frame of the leader, and returns their bytes. `content`
        is that of a frame without a batch."""
        ranges, readers = header.partition.held(part, me), self._readers(part)
        leader, tag = self._consumers.leaders[part], self._tag + SHARED_WRITE
        job_rank = self._context.producer.job_rank
        if leader != me:
            laid_out = self._transport.receive(job_rank(self._producers[leader]), tag).frame
            written = _fill(tensor_of(laid_out), value, ranges)
            self._transport.send(readers, self._tag + VALUES, Frame(content))
            return written
        ragged = [name for name, (kind, *_) in schema.items() if kind == "ragged"]
        lengths, rows = (
            {name: header.lengths_of(part, name) for name in ragged},
            header.partition.counts[part],
        )
        batch = empty_like(schema, rows, lengths, header.ids_of(part), header.table.group_depth)
        frame = Frame([*content[:3], batch])
        others = [other for other in header.partition.producers[part] if other != me]
        writers = [job_rank(self._producers[other]) for other in others]
        lease = self._transport.lay_out(readers, self._tag, frame, writers, tag)
        written = _fill(lease.frame, value, ranges)
        self._transport.deliver(lease)
        return written

    def _readers(self, part: int) -> list[int]:
        return [*map(self._context.consumer.job_rank, self._consumers.ranks[part])]


def _fill(frame: Tensor, value: Batch, ranges: Sequence[RowRange]) -> int:
    """Copies rows of a batch to their places in a frame, and returns their approximate bytes."""
    if not ranges:
        return 0
    whole: Batch = unpack(frame)[3]
    fill(whole, value, ranges)
    return sum(map(len, ranges)) * len(frame) // max(1, len(whole))


def _needs_copy(header: StepHeader, part: int, schema: Schema) -> bool:
    """Returns whether many bytes of a part must be copied because its consumers cannot map the columns as
    they are."""
    copied = 0
    for name, (kind, dtype, shape) in schema.items():
        row = prod(shape) * dtype_of(dtype).itemsize
        if kind == "ragged":
            copied += row * int(header.lengths_of(part, name).sum())
        elif not _can_be_mapped(header, part, name, row):
            copied += row * header.partition.counts[part]
        if copied >= SHARED_PART_MIN_BYTES:
            return True
    return False


def _can_be_mapped(header: StepHeader, part: int, name: str, row: int) -> bool:
    """Returns whether consumers can map the producers' memory of a column, with rows of `row` bytes, one
    after another."""
    end, partition = 0, header.partition
    for producer in partition.producers[part]:
        schema, ranges = header.headers[producer].schema, partition.held(part, producer)
        if schema is None or name not in schema.mappable or len(ranges) > 1 or ranges[0].at != end:
            return False
        [rows] = ranges
        end += len(rows)
        is_last = end == partition.counts[part]
        if not fits_pages(rows.start * row, len(rows) * row, is_last):
            return False
    return True
