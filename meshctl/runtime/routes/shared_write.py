"""One frame that several producers of a node write together.

The leader of a part lays out the frame and sends it to the consumers. The other producers write their rows
into it, and then send the consumers a frame without rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.end import SHARED_WRITE, VALUES, RouteContext
from meshctl.runtime.routes.paths import Paths
from meshctl.runtime.routes.rows import RowRange, Schema, empty_like, fill, row_bytes
from meshctl.runtime.routes.step import StepHeader
from meshctl.runtime.transports.buffers.frames import Frame, unpack
from meshctl.runtime.transports.buffers.mapped_concat import fits_pages
from meshctl.runtime.transports.transport import Lease
from meshctl.topology.consumers import ConsumerParts

SHARED_PART_MIN_BYTES = 1 << 20
"""Minimum size of a part for its producers to write into one frame. For smaller parts the wait for the leader
takes longer than a copy by the consumer."""


class SharedWrite:
    """Writes those parts of one route that several producers hold. The producers and all consumers of such a
    part share memory, and the consumers cannot map the columns of the producers as they are."""

    def __init__(
        self, context: RouteContext, job_ranks: Sequence[int], consumers: ConsumerParts, paths: Paths
    ) -> None:
        """`job_ranks` are those of the producers, in their order."""
        self._transport, self._tag, self._consumer = context.transport, context.first_tag, context.consumer
        self._job_ranks, self._consumers, self._paths = job_ranks, consumers, paths

    def schema_of(self, header: StepHeader, part: int) -> Schema | None:
        """Returns the columns of a part that several producers write into one frame; None for other parts."""
        producers, leader = header.partition.producers[part], self._consumers.leaders[part]
        leading = header.headers[leader].schema
        if len(producers) < 2 or leading is None:
            return None
        if not self._paths.can_write_together(part, producers):
            return None
        schema = header.schema_of(part)
        return schema if schema and needs_copy(header, part, schema, SHARED_PART_MIN_BYTES) else None

    def send(
        self, header: StepHeader, content: list[Any], part: int, me: int, value: Batch, schema: Schema
    ) -> int:
        """Writes the rows of producer `me` into the frame of the leader, and returns their bytes. `content`
        is that of a frame without a batch."""
        ranges = header.partition.held(part, me)
        leader, readers = self._consumers.leaders[part], self._readers(part)
        if leader != me:
            written = _fill(self._invitation(leader), value, ranges)
            self._transport.send(readers, self._tag + VALUES, Frame(content))
            return written
        frame = Frame([*content[:3], _laid_out(header, part, schema)])
        lease = self._lease(header, part, me, frame.nbytes)
        frame.write(lease.frame)
        self._invite(lease, header, part, me)
        written = _fill(lease.frame, value, ranges)
        self._transport.deliver(lease)
        return written

    def _readers(self, part: int) -> list[int]:
        return [self._consumer.job_rank(rank) for rank in self._consumers.ranks[part]]

    def _writers(self, header: StepHeader, part: int, me: int) -> list[int]:
        return [self._job_ranks[other] for other in header.partition.producers[part] if other != me]

    def _lease(self, header: StepHeader, part: int, me: int, nbytes: int) -> Lease:
        """Returns memory for the frame of a part that this producer, `me`, leads."""
        readers, writers = self._readers(part), self._writers(header, part, me)
        tag = self._tag + SHARED_WRITE
        return self._transport.lease(readers, self._tag, nbytes, writers=writers, writer_tag=tag)

    def _invite(self, lease: Lease, header: StepHeader, part: int, me: int) -> None:
        """Lets the other producers of a part write to its frame."""
        for writer in self._writers(header, part, me):
            self._transport.invite(lease, writer, self._tag + SHARED_WRITE)

    def _invitation(self, leader: int) -> Tensor:
        """Returns the frame that the leader of a part has laid out."""
        return self._transport.receive(self._job_ranks[leader], self._tag + SHARED_WRITE).frame


def _laid_out(header: StepHeader, part: int, schema: Schema) -> Batch:
    """Returns the batch of a part, whose columns have no values yet."""
    lengths = {name: header.lengths_of(part, name) for name, (kind, *_) in schema.items() if kind == "ragged"}
    rows = header.partition.counts[part]
    return empty_like(schema, rows, lengths, header.ids_of(part), header.table.group_depth)


def _fill(frame: Tensor, value: Batch, ranges: Sequence[RowRange]) -> int:
    """Copies rows of a batch to their places in a frame, and returns their approximate bytes."""
    if not ranges:
        return 0
    whole: Batch = unpack(frame)[3]
    fill(whole, value, ranges)
    return sum(map(len, ranges)) * len(frame) // max(1, len(whole))


def needs_copy(header: StepHeader, part: int, schema: Schema, min_bytes: int) -> bool:
    """Returns whether at least `min_bytes` of a part must be copied because its consumers cannot map the
    columns as they are."""
    copied = 0
    for name, (kind, dtype, shape) in schema.items():
        row = row_bytes(dtype, shape)
        if kind == "ragged":
            copied += row * int(header.lengths_of(part, name).sum())
        elif not _can_be_mapped(header, part, name, row):
            copied += row * header.partition.counts[part]
        if copied >= min_bytes:
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
