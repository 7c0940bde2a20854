"""A worker's end of a data route.

    producers    exchange their headers (ids, lengths, schemas), and each sends its samples once to all
                 consumers that get them
    consumers    receive all headers from the leader of their part, and compute from them which other
                 producers send samples for it

All ranks compute the same parts from the same headers (`topology.partition`), so nobody coordinates. What
several producers of one node hold of a part they write into one frame, which the leader lays out, unless the
consumer can map their memory. Plain values (losses, statistics) travel with their weights in the headers, and
every consumer joins them alone.

    a frame    [generation, digest, headers, batch]    the headers from the leader, else None; a batch or None

The digest is of everything from which the parts follow, so a rank that computes other parts is named before
any of its samples are used.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any, NamedTuple, cast
from zlib import crc32

from meshctl.runtime.batch.batch import MARK, Batch
from meshctl.runtime.routes.alignment import Assignment, IdsByRank, assembled, ids_in, ordered, rows_of
from meshctl.runtime.routes.end import (
    END,
    REALIGN,
    TABLES,
    VALUES,
    Received,
    RouteContext,
)
from meshctl.runtime.routes.header import (
    ProducerHeader,
    decode,
    describe,
    digest_of,
    encode,
    is_cut_by_counts,
)
from meshctl.runtime.routes.joins import check_joinable, join
from meshctl.runtime.routes.rows import RowRange, fill, gather, packed
from meshctl.runtime.routes.shared_write import SharedWrite
from meshctl.runtime.routes.step import Partition, StepHeader, partition_of
from meshctl.runtime.transports.buffers.frames import unpack
from meshctl.runtime.transports.errors import BuffersHeld, PeerLost
from meshctl.runtime.transports.transport import flat
from meshctl.runtime.user_modes import collect_mode, dispatch_mode, execute_mode
from meshctl.topology.consumers import ConsumerParts, consumer_parts, parts_of_some, parts_within
from meshctl.topology.modes import producer_set
from meshctl.topology.samples import RouteError, Run, align, sample_name


class Message(NamedTuple):
    """A decoded frame of a route."""

    generation: int
    digest: int
    table: Any
    """The headers of all producers; None if the frame has none."""
    batch: Any


class Channel:
    """A worker's end of one data route; the same object sends and receives where a component feeds itself."""

    may_have_more = False
    """True if a batch may have samples that the leading input of the call does not have."""

    def __init__(self, context: RouteContext) -> None:
        self.route = context.route
        self.bytes_sent = 0
        """Bytes sent since the loop last set it to 0; bytes that several ranks read from the same memory
        count once."""
        self.context, self._transport, self._tag = context, context.transport, context.first_tag
        self._producer, self._consumer = context.producer, context.consumer
        self._generation = 0
        self._consumer_rank = context.consumer_rank
        self._collect, self._dispatch = (
            collect_mode(self.route.collect),
            dispatch_mode(self.route.dispatch.mode),
        )
        self._takes_batches = self._collect.is_batch or self._collect.is_first
        self._execute = execute_mode(self._consumer.execute)
        producers = producer_set(self._collect, execute_mode(self._producer.execute))
        self._set_producers(producers.ranks(self._producer.mesh))
        self._me = self._producers.index(context.rank) if context.rank in self._producers else None
        sides = [(side.mesh, side.first_job_rank, side.execute) for side in (self._producer, self._consumer)]
        self._last: tuple[Any, Partition | None] = None, None
        """The last partition that follows from numbers of samples alone, behind these numbers."""
        self._readers_of = cache(context.destinations)
        self._forwarding = cache(context.forwarding)
        self._seed = crc32(repr((self.route, *sides)).encode())

    def _set_producers(self, ranks: tuple[int, ...]) -> None:
        """Sets the ranks that send. Everywhere else, the number of a producer is its index in `ranks`."""
        self._producers = ranks
        self.job_ranks = tuple(map(self._producer.job_rank, ranks))
        """The job ranks of the producers."""
        self.consumers: ConsumerParts = consumer_parts(
            self._consumer.mesh, self._execute, self._dispatch, len(ranks)
        )
        """The ranks of the called component that receive each part."""

    @cached_property
    def _shared_write(self) -> SharedWrite:
        return SharedWrite(self.context, self._producers, self.consumers)

    @cached_property
    def _led(self) -> tuple[int, ...]:
        """The parts whose consumers receive the headers from this rank."""
        return tuple(part for part, leader in enumerate(self.consumers.leaders) if leader == self._me)

    @property
    def cuts_samples(self) -> bool:
        """True if different ranks may receive different samples."""
        return self._dispatch.cuts_samples

    # Sending

    def send(self, value: Any, step: int, weight: float = 1.0) -> bool:
        """Sends this rank's part of the value of `step`, and returns whether the stream has ended.

        Every rank of the producing component calls it. Raises `RouteError` for a value that the route cannot
        carry, and `PeerLost`.
        """
        if self._me is None:
            return value is END
        own = self._describe(value, weight)
        return self._send_with(self._gathered(own), own, value)

    def _gathered(self, own: ProducerHeader) -> list[bytes]:
        """Returns the headers of all producers, of which this rank's is `own`."""
        assert self._me is not None
        return self._transport.allgather(self.job_ranks, self._me, self._tag + TABLES, encode(own))

    def _send_with(self, table: list[bytes], own: ProducerHeader, value: Any) -> bool:
        """Sends a value with the headers of all producers. Returns whether the stream has ended."""
        headers, partition = self._partitioned(table, own)
        digest = digest_of(self._seed, table)
        try:
            if partition is None:
                for part in self._led:
                    self._send_frame(part, [self._generation, digest, table, None])
            else:
                self._send_parts(StepHeader(headers, partition, digest), table, value)
        except BuffersHeld as held:
            raise self._buffers_held(held) from None
        return value is END and all(each.is_end for each in headers)

    def _partitioned(
        self, table: Sequence[bytes], own: ProducerHeader
    ) -> tuple[Sequence[ProducerHeader], Partition | None]:
        """Returns the decoded headers of a table, of which this rank's is `own`, and the partition."""
        headers = [own if number == self._me else decode(row) for number, row in enumerate(table)]
        return headers, self._partition(headers)

    def _partition(self, headers: Sequence[ProducerHeader]) -> Partition | None:
        """Returns the parts of a step, which are those of the last step where only the ids differ."""
        key = [header.schema and (header.schema.grid, header.schema.group_depth) for header in headers]
        if not self._dispatch.is_even or not is_cut_by_counts(headers):
            return partition_of(self.route, self._consumer.mesh, self._consumer.execute, headers)
        if key != self._last[0]:
            found = partition_of(self.route, self._consumer.mesh, self._consumer.execute, headers)
            self._last = key, found
        return self._last[1]

    def _describe(self, value: Any, weight: float) -> ProducerHeader:
        """Returns what the other producers and the consumers must know of this rank's value. Raises
        `RouteError` where the route cannot carry it."""
        if value is END:
            return ProducerHeader()
        if isinstance(value, Batch) and self._takes_batches:
            if (home := self.route.dispatch.home) and MARK + "home." + home not in value:
                raise RouteError(
                    f"the samples of `{self.route.source}` did not pass stage `{home}`, they have no "
                    "home there"
                )
            if len(self._producers) == 1:
                return describe(value, self.route.dispatch)
            return describe(value, self.route.dispatch, self._transport.near.is_mappable)
        check_joinable(self._collect, value, self.route)
        return ProducerHeader(value=value, weight=weight)

    def _send_parts(self, header: StepHeader, table: Sequence[bytes], value: Any) -> None:
        """Sends the headers for the parts that this rank leads, with the samples that it holds of them, and
        then those of other parts, whose frames other producers may lay out."""
        assert self._me is not None
        producers = header.partition.producers
        others = [part for part, some in enumerate(producers) if self._me in some and part not in self._led]
        for part in (*self._led, *others):
            leading = table if part in self._led else None
            frame: list[Any] = [self._generation, header.digest, leading, None]
            if not isinstance(value, Batch):
                self._send_frame(part, frame)
            elif schema := self._shared_write.schema_of(header, part):
                self.bytes_sent += self._shared_write.send(header, frame, part, self._me, value, schema)
            else:
                rows = packed(header.partition.held(part, self._me))
                own = header.headers[self._me].schema
                frame[3] = gather(value, own.columns if own else {}, rows)
                self._send_rows(part, frame, value, rows)

    def _send_rows(self, part: int, content: list[Any], value: Batch, ranges: Sequence[RowRange]) -> None:
        """Sends the rows `ranges` of a batch. Several ranges are copied into the memory of the frame one by
        one, so that no batch is made of them before."""
        if len(ranges) < 2:
            self._send_frame(part, content)
            return
        for job_ranks in self._destinations(part):
            frame = self._transport.frame(job_ranks, content, is_final=True)
            lease = self._transport.lease(job_ranks, self._tag + VALUES, frame.nbytes, frame.out_of_band)
            frame.write(lease.frame)
            fill(unpack(lease.frame, [*map(flat, lease.out_of_band)])[3], value, ranges)
            self.bytes_sent += frame.moved
            self._transport.deliver(lease)

    def _send_frame(self, part: int, content: list[Any]) -> None:
        for job_ranks in self._destinations(part):
            self._send_to(job_ranks, VALUES, content)

    def _destinations(self, part: int) -> list[list[int]]:
        """Returns the job ranks to which this rank sends a part; those of one list read the same memory."""
        return self._readers_of(self.context.rank, self.consumers.ranks[part])

    def _send_to(self, job_ranks: Sequence[int], tag: int, content: list[Any]) -> None:
        frame = self._transport.frame(job_ranks, content, is_final=True)
        self.bytes_sent += frame.moved
        self._transport.send(job_ranks, self._tag + tag, frame)

    # Receiving

    def receive(self, step: int) -> Received:
        """Returns the next value for this rank. Raises `RouteError` and `PeerLost`."""
        part = self.consumers.part_of[self._consumer_rank]
        leader = self.consumers.leaders[part]
        message = self._next(part, leader)
        digest = digest_of(self._seed, message.table or ())
        self._check(message, digest, leader)
        headers = [*map(decode, message.table)]
        partition = self._partition(headers)
        if partition is None:
            return Received(self._joined([headers[number] for number in self.consumers.producers[part]]))
        header = StepHeader(headers, partition, digest)
        batch = self._received_batch(header, part, message)
        batch.most = partition.largest
        return Received(batch, header)

    def _joined(self, headers: Sequence[ProducerHeader]) -> Any:
        if headers[0].is_end:
            return END
        return join(self._collect, [(header.value, header.weight or 0.0) for header in headers], self.route)

    def _received_batch(self, header: StepHeader, part: int, message: Message) -> Batch:
        """Returns the samples of a part. `message` is the frame of the leader. This function receives the
        frames of the other producers."""
        partition, leader = header.partition, self.consumers.leaders[part]
        producers = partition.producers[part]
        sent: dict[int, Message] = {}
        if leader in producers or (not producers and message.batch is not None):
            sent[leader] = message
        for producer in producers:
            if producer != leader:
                sent[producer] = self._next(part, producer)
                self._check(sent[producer], header.digest, producer)
        if not sent:  # the leader itself has no samples any more
            return header.empty_batch()
        if self._shared_write.schema_of(header, part):
            whole: Batch = message.batch
            return whole
        batches = {producer: each.batch for producer, each in sent.items()}
        return assembled(partition.parts[part], batches, self._transport.near.concat)

    def _next(self, part: int, producer: int) -> Message:
        """Returns the next frame of a producer, without those of older generations."""
        rank = self._producers[producer]
        while True:
            try:
                peers = self._forwarding(rank, self.consumers.ranks[part])
                message = Message(*self.context.receive(rank, peers))
            except BuffersHeld as held:
                raise self._buffers_held(held) from None
            if message.generation >= self._generation:
                return message

    def _check(self, message: Message, digest: int, producer: int) -> None:
        if message.digest != digest or message.generation != self._generation:
            raise self._transport.peer_lost(
                self.job_ranks[producer], f"sent another layout of the samples on `{self.route.name}`"
            )

    def _buffers_held(self, held: BuffersHeld) -> RouteError:
        return RouteError(
            f"`{self.route.name}`: {held}; a received batch is borrowed until the call ends: clone() a "
            "batch that you keep"
        )

    # Aligning inputs

    def assignment(self, received: Received) -> Assignment:
        """Returns which samples each rank of the called component has of a received batch."""
        return Assignment(self.consumers, received.header)

    def aligned(self, received: Received, wanted: Assignment, *, may_have_more: bool = False) -> Batch:
        """Returns a received batch with the samples and the order of another input.

        Most often each rank already has its samples. Where the two inputs were dispatched differently, such
        as with `balance` or `home`, samples move between the ranks. Raises `RouteError` for a sample that
        only one of the inputs has. With `may_have_more`, this input may have further samples, which are left
        out.
        """
        held, batch = self.assignment(received), received.value
        if held.consumers.ranks == wanted.consumers.ranks and held.keys == wanted.keys:
            return cast(Batch, batch)
        everybody = {id for ids in wanted.ids.values() for id in ids}
        align(sorted(everybody), held.step.table)  # names a sample that is missing
        extra = {id for ids in held.ids.values() for id in ids} - everybody
        if extra and not may_have_more:
            raise RouteError(f"sample {sample_name(min(extra))} is missing in the first input")
        return self._moved(batch, held, wanted)

    def selected(self, received: Received, positions: Sequence[int]) -> Received:
        """Returns the samples of a received batch that are at some positions of its sample order, partitioned
        anew over the ranks of the called component; with `execute: peer` each sample stays on its ranks. All
        of these ranks call it together."""
        header = received.header
        runs = header.table.select(positions)
        parts: Sequence[Sequence[Run]]
        if self._execute.is_per_producer:
            parts = parts_within(header.partition.parts, runs)
        else:
            modes = self._execute, self._dispatch, self.route.dispatch
            parts = parts_of_some(*modes, self._consumer.mesh, header.table, runs)
        some = StepHeader(header.headers, Partition(parts), header.digest)
        batch = self._moved(received.value, self.assignment(received), Assignment(self.consumers, some))
        batch.most = some.partition.largest
        return Received(batch, some)

    def _moved(self, batch: Batch, held: Assignment, wanted: Assignment) -> Batch:
        """Returns the samples that this rank has in `wanted`; it and its peers have those of `held`."""
        if all(set(wanted.ids[each]) <= set(held.ids[each]) for each in wanted.ids):
            return ordered(batch, held.ids[self._consumer_rank], wanted.ids[self._consumer_rank])
        if self._execute.is_per_producer:
            raise RouteError("inputs of a stage with `execute: peer` must come from the same ranks")
        return self._realign(batch, held.step.digest, held.ids, wanted.ids)

    def _realign(self, batch: Batch, digest: int, held: IdsByRank, wanted: IdsByRank) -> Batch:
        """Moves samples between the ranks of the called component, each to the rank that needs it."""
        mode, mesh, rank = self._dispatch, self._consumer.mesh, self._consumer_rank
        peers = {mode.counterpart(mesh, rank, share) for share in range(mode.share_count(mesh))} - {rank}
        for peer in sorted(peers):
            if rows := rows_of(held[rank], wanted[peer]):
                job_ranks = [self._consumer.job_rank(peer)]
                self._send_to(job_ranks, REALIGN, [0, digest, None, batch.take(rows)])
        parts = [batch.take(rows_of(held[rank], wanted[rank]))]
        for peer in sorted(peers):
            if not set(wanted[rank]).isdisjoint(held[peer]):
                job_rank = self._consumer.job_rank(peer)
                message = Message(*self._transport.receive_value(job_rank, self._tag + REALIGN))
                if message.digest != digest:
                    who = self._transport.name_of(job_rank)
                    raise PeerLost(f"{who} sent another layout of the samples on `{self.route.name}`")
                parts.append(message.batch)
        return ordered(whole := Batch.concat(parts), ids_in(whole), wanted[rank])
