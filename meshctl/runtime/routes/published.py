"""A data route between groups of one node whose producers do not wait for one another.

Each producer publishes its header where all producers and consumers read it (`transports.local.publication`).
If it has the same columns and as many samples as in the step before, and few bytes, it publishes its rows,
too: all of them, so that it need not know which consumer gets which. Consumers compute the parts from the
headers, and copy their rows.

Any other producer waits for the headers of all, and sends its rows to those that need them, as every producer
does on other routes. So a step may have producers of both kinds. Errors in the numbers or kinds of samples
are found by the producers that have changed, and by the consumers.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import memmove
from functools import cached_property
from typing import Any, NamedTuple

import torch

from meshctl.runtime.batch.batch import Batch, unchecked
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import END, TABLES, VALUES, Received, RouteContext
from meshctl.runtime.routes.flat_frame import PACKED, FlatPart, FlatRows, Message, whole_batch
from meshctl.runtime.routes.header import BatchSchema, ProducerHeader, describe, digest_of, encode
from meshctl.runtime.routes.rows import Schema
from meshctl.runtime.routes.shared_write import SharedWrite
from meshctl.runtime.routes.step import StepHeader
from meshctl.runtime.transports.allgather import MAX_EXCHANGE, only_transport
from meshctl.runtime.transports.buffers.frames import is_host_tensor
from meshctl.runtime.transports.buffers.memcpy import as_plain
from meshctl.runtime.transports.transport import NO_ROWS, Publication
from meshctl.runtime.user_modes import dispatch_mode
from meshctl.topology.samples import Grid

PUBLISHED_MAX_BYTES = 1 << 19
"""The most bytes of rows that a producer publishes."""


def channel_for(context: RouteContext) -> Channel:
    """Returns a worker's end of a data route neither of whose groups restarts alone."""
    found = Channel(context)
    producers, consumers = found.job_ranks, found.consumer_job_ranks
    route, sides = context.route, (context.producer, context.consumer)
    is_even = dispatch_mode(route.dispatch.mode).is_even and not (
        route.dispatch.balance or route.dispatch.home
    )
    if not is_even or context.is_resumable or sides[0].group == sides[1].group:
        return found
    if {side.device_type for side in sides} != {"cpu"} or max(len(producers), len(consumers)) > MAX_EXCHANGE:
        return found
    if context.transport.job_rank not in {*producers, *consumers}:
        return found
    transport = only_transport(context.transport, (*producers, *consumers))
    publication = transport and transport.publication(
        producers, consumers, context.first_tag + VALUES, context.first_tag + TABLES
    )
    return PublishedChannel(context, publication) if publication else found


class _Place(NamedTuple):
    """A column of the batches of a producer, and its place in the rows that are published."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    at: int
    nbytes: int


class _Steady(NamedTuple):
    """The rows that a producer publishes as long as its batches have one schema."""

    schema: BatchSchema | None
    """None for plain values, which travel in the headers."""
    nbytes: int = 0
    places: Sequence[_Place] = ()

    def header_of(self, value: Any) -> ProducerHeader | None:
        """Returns the header of a batch that has the schema; None for any other value."""
        schema = self.schema
        if schema is None or type(value) is not Batch or value.group_depth != schema.group_depth:
            return None
        grid, columns = value.grid, value.columns
        if grid is None or grid.shape != schema.grid or len(columns) != len(self.places):
            return None
        for (name, column), place in zip(columns.items(), self.places, strict=True):
            if name != place.name or not is_host_tensor(column):
                return None
            if column.dtype is not place.dtype or column.shape != place.shape:
                return None
        return ProducerHeader(schema, grid.start)

    def fill(self, into: int, batch: Batch) -> None:
        """Copies the columns of such a batch to their places behind an address."""
        columns: Any = batch.columns  # only tensors
        for name, _, _, at, nbytes in self.places:
            column = columns[name]
            address = column.data_ptr()
            if not address or not column.is_contiguous() or column.is_neg() or column.is_conj():
                column = as_plain(column)
                address = column.data_ptr()
            memmove(into + at, address, nbytes)


class PublishedChannel(Channel):
    _led = ()  # consumers read the headers themselves

    def __init__(self, context: RouteContext, publication: Publication) -> None:
        super().__init__(context)
        self._publication = publication
        self._partitions.sends_parts = False
        self._steady: _Steady | None = None
        """None before the first value, and after one that cannot be published."""

    @cached_property
    def _shared_write(self) -> SharedWrite:
        return _UnpublishedParts(self, self._publication)

    # Sending

    def send(self, value: Any, step: int, weight: float = 1.0) -> bool:
        if self._me is None:
            return value is END
        steady, publication = self._steady, self._publication
        own = steady.header_of(value) if steady else None
        if steady and own:
            address = publication.write(encode(own), steady.nbytes)
            steady.fill(address, value)
            publication.publish()
            self.bytes_sent += steady.nbytes
            return False
        own = self._describe(value, weight)
        if steady and own.schema is None and steady.schema is None and not own.is_end:
            publication.write(encode(own), 0)
            publication.publish()
            return False
        publication.write(encode(own), NO_ROWS)
        publication.publish()
        table = publication.gather()
        if table is None:  # the others have gone on, and nothing of this value was needed
            return False
        has_ended = self._send_with(table, own, value)
        self._steady = self._steady_after(own, table)
        return has_ended

    def _describe(self, value: Any, weight: float) -> ProducerHeader:
        found = super()._describe(value, weight)
        if found.schema and found.schema.mappable and _published_bytes(found.schema) is not None:
            return describe(value, self.route.dispatch, alone=True)  # small columns are not mapped
        return found

    def _steady_after(self, own: ProducerHeader, table: list[bytes]) -> _Steady | None:
        """Returns what this producer publishes after a step with the headers `table`, of which `own` is its
        header; None if it cannot."""
        schema = own.schema
        if schema is None:
            return None if own.is_end else _Steady(None)
        if _published_bytes(schema) is None:
            return None
        headers, partition = self._partitions.known(table) or self._partitioned(table, own)
        assert partition is not None and schema.plain_columns is not None
        header = StepHeader(headers, partition, 0)
        held = [part for part, producers in enumerate(partition.producers) if self._me in producers]
        if not all(map(header.flat_part, held)):
            return None
        layout = whole_batch(schema.plain_columns, schema.count)
        places = [
            _Place(column.name, column.dtype, torch.Size((schema.count, *column.shape)), at, nbytes)
            for column, (_, at, nbytes) in zip(schema.plain_columns, layout.places, strict=True)
        ]
        return _Steady(schema, layout.nbytes, places)

    # Receiving

    def receive(self, step: int) -> Received:
        part, publication = self.consumers.part_of[self._consumer_rank], self._publication
        table = publication.receive()
        leader = self.consumers.leaders[part]
        headers, partition = self._partitions.known(table) or self._read_table(table, leader)
        if partition is None:
            found = Received(self._joined([headers[number] for number in self.consumers.producers[part]]))
        else:
            found = self._received(StepHeader(headers, partition, digest_of(self._seed, table)), part)
            found.value.most = partition.largest
        publication.release()
        return found

    def _received(self, header: StepHeader, part: int) -> Received:
        """Returns the samples of a part."""
        producers, leader = header.partition.producers[part], self.consumers.leaders[part]
        if not producers:
            return Received(header.empty_batch(), header)
        sent: dict[int, Message] = {}
        for producer in producers:
            rows = self._publication.rows_of(self.job_ranks[producer])
            if rows is not None:
                schema = header.headers[producer].schema
                if schema is None or not schema.is_even:
                    raise self._unexpected(producer, "rows of no batch")
                sent[producer] = Message(0, 0, None, FlatRows(rows, PACKED, schema.count))
            else:
                sent[producer] = self._next(part, producer)
                self._check(sent[producer], header.digest, producer)
        if not header.flat_part(part):
            for producer, message in sent.items():
                if type(message.batch) is FlatRows and message.batch.whole is not None:
                    batch = self._published_batch(header, part, producer, message.batch)
                    sent[producer] = message._replace(batch=batch)
        return self._assembled(header, part, sent, sent.get(leader) or sent[producers[0]])

    def _published_batch(self, header: StepHeader, part: int, producer: int, sent: FlatRows) -> Batch:
        """Returns the samples of a part that a producer has published, as a batch of their own."""
        schema = header.headers[producer].schema
        layout = whole_batch(schema.plain_columns, schema.count) if schema and schema.plain_columns else None
        if schema is None or layout is None or layout.nbytes != len(sent.rows):
            raise self._unexpected(producer, f"{len(sent.rows)} bytes for other rows")
        ids = Grid(header.headers[producer].ids, schema.grid)
        whole = unchecked(layout.columns_in(bytearray(sent.rows)), schema.count, ids, schema.group_depth)
        ranges = header.partition.held(part, producer).packed
        return whole.take([row for each in ranges for row in range(each.start, each.stop)])


class _UnpublishedParts(SharedWrite):
    """The parts that several producers write into one frame: only those none of whose rows is published, and
    whose leader, which lays out the frame, has some."""

    def __init__(self, channel: PublishedChannel, publication: Publication) -> None:
        super().__init__(channel.context, channel.job_ranks, channel.consumers, channel.paths)
        self._publication = publication

    def schema_of(self, header: StepHeader, part: int) -> Schema | None:
        return super().schema_of(header, part) if self._is_possible(header, part) else None

    def layout_of(self, header: StepHeader, part: int) -> FlatPart | None:
        return super().layout_of(header, part) if self._is_possible(header, part) else None

    def _is_possible(self, header: StepHeader, part: int) -> bool:
        producers = header.partition.producers[part]
        if self._consumers.leaders[part] not in producers:
            return False
        me = self._transport.job_rank
        others = [job_rank for job_rank in map(self._job_ranks.__getitem__, producers) if job_rank != me]
        return all(self._publication.rows_of(other) is None for other in others)


def _published_bytes(schema: BatchSchema) -> int | None:
    """Returns the bytes of a batch that can be published; None for another one."""
    if not schema.is_even or not schema.plain_columns:
        return None
    nbytes = whole_batch(schema.plain_columns, schema.count).nbytes
    return nbytes if nbytes <= PUBLISHED_MAX_BYTES else None
