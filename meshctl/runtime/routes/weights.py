"""A worker's end of a sync: weights from one component's mesh to another's, each shard from a rank that holds
it to those that need it.

    producer    weights() -> (name, tensor or DTensor): what this rank holds, as shards of whole parameters
    consumer    load_weights(stream of (name, tensor)): the shards that its own weights() holds, or whole
                parameters where it has none

At the first sync all ranks gather the layouts of both sides, from which each makes the same plan
(`sync_plan`). Weights are sent in buckets. Within a node a bucket is written once for all of its consumers,
by all of its producers together, and read where it is; to another node it is sent once, and its first
consumer there forwards it. No rank gathers more than it asked for.

A sync is exact: in step k the consumer loads what was sent in step k - lag, never "the newest there is". A
cut (a checkpoint, the first step) lets it catch up, so that nothing crosses it.

    lag 0       producers and consumers run the sync together. One bucket waits between a producer and its
                consumers while another one is read (and the one before it, until the reader drops its last
                tensor). A rank that does both sends, while it receives, what comes before in the order of all
                buckets.
    lag n       producers go on at once, and n + 1 times what the consumers want is in shared memory or on its
                way.

There is no circular wait: whoever waits in a sync waits for a rank in an earlier stage, or in the same sync
at an earlier bucket.

    a layout   {parameter: [shape, dtype]} and, where this rank holds or wants a part of it, + [start, size]
    a frame    [generation, step, checksums, tensors]    the producer's part of each item; without tensors
               where it wrote them into the frame of the leader
"""

from __future__ import annotations

import time
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate, product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from meshctl.runtime.devices.backend import DEVICES
from meshctl.runtime.routes import sync_plan
from meshctl.runtime.routes.end import (
    SHARED_WRITE,
    SHARED_WRITE_MIN_BYTES,
    TABLES,
    VALUES,
    Received,
    RouteContext,
)
from meshctl.runtime.routes.rows import dtype_of
from meshctl.runtime.routes.sync_plan import (
    Bucket,
    DTensorLike,
    Layout,
    Parameter,
    Shard,
    SyncPlan,
    layout_of,
)
from meshctl.runtime.transports.buffers.caching_allocator import CachingAllocator
from meshctl.runtime.transports.buffers.frames import Frame, on_device, pack, unpack
from meshctl.runtime.transports.buffers.memcpy import copy
from meshctl.runtime.transports.context import UNBOUNDED
from meshctl.runtime.transports.errors import BuffersHeld
from meshctl.runtime.transports.transport import Lease, flat
from meshctl.topology.memory import MAX_BUCKET_BYTES
from meshctl.topology.samples import RouteError

Weights = Mapping[str, Tensor]
Arrived = list[tuple[Shard, Tensor]]
"""The received tensors of one item, each with its shard: one for each part, or a single one for the whole."""
WeightsOf = Callable[[], Weights]
"""Returns the weights of a component on this rank."""


CHECKED_SYNCS = 2
"""The number of syncs with checksums at the beginning of a run whose recipe does not state `checksum`: the
initial weights, and the first trained ones."""


class _Message(NamedTuple):
    generation: int
    step: int
    checksums: Sequence[int]
    """The checksum of its part of each item; empty if this sync has no checksums."""
    tensors: Sequence[Tensor]


class WeightChannel:
    """A worker's end, or both ends, of one sync.

    Every rank of both sides calls `send` in each step in which the sync stage runs; consumers then receive,
    as long as something is due, and read each stream to its end.
    """

    def __init__(
        self,
        context: RouteContext,
        produced: WeightsOf | None,
        wanted: WeightsOf | None,
        *,
        lag: int = 0,
        checksum: bool | None = None,
    ) -> None:
        """`produced` returns the weights of this rank where it produces; `wanted` those whose layout it wants
        where it consumes (empty for every parameter in full). With `checksum`, producers send a checksum of
        each part, and a part with another one raises `RouteError`; None does so in the first
        `CHECKED_SYNCS`."""
        self.route = context.route
        self.bytes_sent = 0
        self.seconds_waited = 0.0
        """Seconds in which this rank had nothing to load; the loop sets it to 0."""
        self.last_sent = -1
        """The last step whose weights were sent."""
        self._context, self._transport, self._tag = context, context.transport, context.first_tag
        self._produced, self._wanted_of = produced, wanted
        self._lag, self._checksum = lag, checksum
        self._syncs = 0
        """The number of syncs that were sent, including the current one."""
        self._generation = 0
        self._last: int | None = None
        """The run's last step, where it ended unannounced: what was sent later is dropped."""
        self._pending: deque[int] = deque()
        """The steps whose weights are still to be received."""
        self.row: Any = None
        """The layout of the weights of this rank, as plain data, on a producer."""
        self._memory = CachingAllocator()
        self._transport.reserve(self._tag, UNBOUNDED)  # until the plan says how many slots it needs

    # Opening

    def open(self) -> None:
        """Agrees with all other ranks of both sides on what travels; all of them call it together."""
        self.row = None if self._produced is None else row_of(self._produced())
        wanted = None if self._wanted_of is None else row_of(self._wanted_of())
        producers, consumers = self._context.producer.job_ranks, self._context.consumer.job_ranks
        rows = gathered(self._context, {*producers, *consumers}, [self.row, wanted])
        self._begin([rows[producer][0] for producer in producers], [rows[each][1] for each in consumers])

    def _begin(self, held: Sequence[Any], requested: Sequence[Any]) -> None:
        """Makes the plan from the layouts of all ranks. An empty layout requests every parameter in full.
        Raises `RouteError` if ranks disagree on a parameter."""
        sizes = MAX_BUCKET_BYTES, sync_plan.MAX_JOINED_BYTES
        wanted = [_layout_in(row) if row else None for row in requested]
        plan = self._plan = SyncPlan(_parameters(held, requested), [*map(_layout_in, held)], wanted)
        self._buckets = plan.buckets(self._context.consumer.node_of, self._distance, *sizes)
        self._local: dict[str, Tensor] = {}
        self._unsent: deque[int] = deque()
        """The buckets of the current step that this rank has not sent yet, by number."""
        self._index()
        self._transport.reserve(self._tag, self._slots())

    def _index(self) -> None:
        """Finds the numbers of the buckets that this rank sends, and of those that it receives."""
        produces, consumes = self.row is not None, self._wanted_of is not None
        buckets, producer, consumer = self._buckets, self._context.rank, self._context.consumer_rank
        self._sends = [
            number for number, bucket in enumerate(buckets) if produces and producer in bucket.producers
        ]
        self._wanted: Layout = self._plan.wanted(consumer) if consumes else {}
        self._items: dict[str, list[tuple[int, int]]] = {}
        """Parameter -> (bucket, index in it) of each of its items that this rank receives."""
        for number, bucket in enumerate(buckets):
            if consumes and consumer in bucket.consumers:
                for at, item in enumerate(bucket.items):
                    self._items.setdefault(item.name, []).append((number, at))
        begins = Counter(bucket.items[0].name for bucket in buckets)
        ends = accumulate(begins[name] for name in self._plan.parameters)
        self._last_bucket = {name: count - 1 for name, count in zip(self._plan.parameters, ends, strict=True)}
        """Parameter -> the last bucket that begins with it or with one before it."""

    def _distance(self, producer: int, consumers: tuple[int, ...]) -> int:
        ours, theirs, first = self._context.producer, self._context.consumer, consumers[0]
        if len(consumers) == 1 and ours.job_rank(producer) == theirs.job_rank(first):
            return 0
        return 1 if ours.node_of(producer) == theirs.node_of(first) else 2

    def _slots(self) -> int:
        """Returns how many frames of one producer may wait for one consumer; the same on every rank."""
        if not self._lag:
            return 1
        frames = Counter[tuple[int, int]]()
        kinds = Counter((bucket.producers, bucket.consumers) for bucket in self._buckets)
        for (producers, consumers), count in kinds.items():
            frames.update(dict.fromkeys(product(producers, consumers), count))
        return (self._lag + 1) * max(frames.values(), default=1)

    def _readers(self, bucket: Bucket) -> list[int]:
        return [self._context.consumer.job_rank(consumer) for consumer in bucket.consumers]

    def _is_shared(self, bucket: Bucket) -> bool:
        """Returns whether the producers of a bucket write one frame: where they and its consumers share
        memory, and tensors do not go from device to device without it."""
        context, device_type = self._context, self._context.producer.device_type
        if len(bucket.producers) < 2 or bucket.nbytes < SHARED_WRITE_MIN_BYTES or context.is_resumable:
            return False
        if device_type == context.consumer.device_type and device_type in DEVICES:
            return False
        node = context.consumer.node_of(bucket.consumers[0])
        if any(context.producer.node_of(producer) != node for producer in bucket.producers):
            return False
        writers = map(context.producer.job_rank, bucket.producers)
        return self._transport.shares_memory([*self._readers(bucket), *writers])

    def close(self, last: int) -> None:
        """Forgets what was sent after the step `last`, the last one that all ranks began. All of them send
        again at the next cut."""
        self._pending = deque(step for step in self._pending if step <= last)
        self._last, self.last_sent = last, -1
        self._unsent.clear()

    # Sending

    def send(self, value: Weights | None, step: int) -> None:
        """Sends this rank's parts of the weights of `step`. `value` is None on a rank that only consumes.

        A rank that also consumes these weights in the same step sends nothing here. It sends its parts while
        it receives, so its weights must not change before it has received all.
        """
        self.last_sent = step
        self._syncs += 1
        if self._wanted_of is not None:
            self._pending.append(step)
        if value is None:
            return
        if row_of(value) != self.row:
            raise RouteError(f"`{self.route.source}` returns other weights or shards than in the first sync")
        self._local = {name: local_of(tensor) for name, tensor in value.items()}
        self._unsent = deque(self._sends)
        if self._lag or self._wanted_of is None:
            self._send_until(len(self._buckets))

    def _send_until(self, number: int) -> None:
        """Sends this rank's unsent buckets up to the bucket `number`, which is included."""
        try:
            while self._unsent and self._unsent[0] <= number:
                self._send_bucket(self._buckets[self._unsent.popleft()])
        except BuffersHeld as held:
            raise self._buffers_held(held) from None
        if not self._unsent:
            self._local = {}

    def _send_bucket(self, bucket: Bucket) -> None:
        me = self._context.rank
        parts = self._plan.parts(bucket, me)
        own = [
            part.view_of(self._local[item.name], self._plan.held[me][item.name])
            for item, part in zip(bucket.items, parts, strict=True)
        ]
        has_checksums = self._syncs <= CHECKED_SYNCS if self._checksum is None else self._checksum
        sums = [checksum(tensor) for tensor in own] if has_checksums else []
        self.bytes_sent += sum(tensor.nbytes for tensor in own)
        head = [self._generation, self.last_sent, sums]
        if not self._is_shared(bucket):
            for job_ranks in self._context.destinations(me, bucket.consumers):
                frame = self._transport.frame(job_ranks, [*head, own])
                self._transport.send(job_ranks, self._tag + VALUES, frame)
        elif bucket.leader == me:
            lease = self._lay_out(bucket, head)
            _fill(unpack(lease.frame)[3], bucket, parts, own)
            self._transport.deliver(lease)
        else:
            leader = self._context.producer.job_rank(bucket.leader)
            receive = partial(self._transport.receive_value, leader, self._tag + SHARED_WRITE)
            laid_out = self._next(leader, receive, self.last_sent).tensors
            _fill(laid_out, bucket, parts, own)
            self._transport.send(self._readers(bucket), self._tag + VALUES, Frame([*head, []]))

    def _lay_out(self, bucket: Bucket, head: list[Any]) -> Lease:
        empty = [
            torch.empty(item.shard.size, dtype=self._plan.parameters[item.name].dtype, device="meta")
            for item in bucket.items
        ]
        frame = Frame([*head, empty])
        others = [self._context.producer.job_rank(each) for each in bucket.producers if each != bucket.leader]
        readers, tag = self._readers(bucket), self._tag + SHARED_WRITE
        return self._transport.lay_out(readers, self._tag, frame, others, tag)

    # Receiving

    def due(self, step: int) -> bool:
        """Returns whether weights that were sent in `step` - lag or before are still to be received."""
        return bool(self._pending) and self._pending[0] <= step - self._lag

    def receive(self, step: int) -> Received:
        """Returns the next weights as a stream of (name, tensor), in the producers' order: to be read, not
        written, and valid as long as they are referenced.

        Memory is used again as tensors die. A consumer that keeps none holds no more than the buckets on
        their way, and in full the parameters that are larger than a bucket.
        """
        return Received(self._stream(self._pending[0]), sent_step=self._pending[0])

    def _stream(self, version: int) -> Iterator[tuple[str, Tensor]]:
        opened: dict[int, list[Arrived]] = {}
        for name, shard in self._wanted.items():
            tensors = [self._tensor(name, shard, version, opened)]
            self._send_until(self._last_bucket[name])  # loading it may wait for the other consumers' copies
            yield name, tensors.pop()
        self._send_until(len(self._buckets))
        self._pending.popleft()

    def _tensor(self, name: str, shard: Shard, version: int, opened: dict[int, list[Arrived]]) -> Tensor:
        """Returns a parameter, as a view where it arrived in one piece. `opened` has the received buckets
        from which items are still to be taken, by number."""
        whole: Tensor | None = None
        for number, at in self._items.get(name, ()):
            if number not in opened:
                self._send_until(number)
                opened[number] = self._open_bucket(self._buckets[number], version)
            arrived, opened[number][at] = opened[number][at], []
            if at == len(opened[number]) - 1:
                del opened[number]
            if len(arrived) == 1 and arrived[0][0] == shard:
                return arrived[0][1]
            for part, tensor in arrived:
                whole = self._allocated(name, shard, tensor) if whole is None else whole
                copy(part.view_of(whole, shard), tensor)
        return self._allocated(name, shard) if whole is None else whole

    def _allocated(self, name: str, shard: Shard, like: Tensor | None = None) -> Tensor:
        """Returns memory for a whole parameter, on the device of its parts."""
        dtype = self._plan.parameters[name].dtype
        if like is not None and on_device(like):
            return torch.empty(shard.size, dtype=dtype, device=like.device)
        return self._memory.take("weights", shard.count * dtype.itemsize).view(dtype).view(shard.size)

    def _open_bucket(self, bucket: Bucket, version: int) -> list[Arrived]:
        """Receives a bucket. Returns the tensors of each of its items."""
        is_shared = self._is_shared(bucket)
        producers = list(bucket.producers)
        if is_shared:
            producers.sort(key=lambda producer: producer != bucket.leader)
        found: list[Arrived] = [[] for _ in bucket.items]
        for producer in producers:
            sender = self._context.producer.job_rank(producer)
            peers = self._context.forwarding(producer, bucket.consumers)
            message = self._next(sender, partial(self._context.receive, producer, peers), version)
            parts = self._plan.parts(bucket, producer)
            if not is_shared:
                for arrived, part, tensor in zip(found, parts, message.tensors, strict=True):
                    arrived.append((part, tensor))
            elif producer == bucket.leader:
                whole = [item.shard for item in bucket.items]
                found = [[(shard, tensor)] for shard, tensor in zip(whole, message.tensors, strict=True)]
            if self._checksum or message.checksums:
                self._verify(message, sender, bucket, parts, found)
        return found

    # Checking

    def _next(self, job_rank: int, receive: Callable[[], Any], step: int) -> _Message:
        """Returns the next message of a producer, which must be of `step`. Messages of older generations and
        of dropped steps are skipped. Raises `RouteError`."""
        while True:
            begin = time.perf_counter()
            try:
                message = _Message(*receive())
            except BuffersHeld as held:
                raise self._buffers_held(held) from None
            self.seconds_waited += time.perf_counter() - begin
            is_dropped = self._last is not None and message.step > self._last
            if message.generation < self._generation or is_dropped:
                continue
            if message.step != step:
                who = self._transport.name_of(job_rank)
                raise RouteError(
                    f"`{self.route.name}`: weights of step {message.step} came from {who} where those of "
                    f"step {step} were due"
                )
            return message

    def _verify(
        self,
        message: _Message,
        job_rank: int,
        bucket: Bucket,
        parts: Sequence[Shard],
        found: Sequence[Arrived],
    ) -> None:
        for item, part, arrived, expected in zip(bucket.items, parts, found, message.checksums, strict=True):
            shard, tensor = arrived[-1]
            if checksum(part.view_of(tensor, shard)) != expected:
                who = self._transport.name_of(job_rank)
                raise RouteError(
                    f"`{self.route.name}`: `{item.name}` from {who} is not what was sent: its checksum is "
                    "another one"
                )

    def _buffers_held(self, held: BuffersHeld) -> RouteError:
        return RouteError(
            f"`{self.route.name}`: {held}; weights are borrowed while they are loaded: clone() those that "
            "you keep"
        )


def gathered(context: RouteContext, job_ranks: Iterable[int], row: Any) -> dict[int, Any]:
    """Returns the rows of some job ranks, which call it together."""
    ranks = sorted(job_ranks)
    me, tag = ranks.index(context.transport.job_rank), context.first_tag + TABLES
    rows = context.transport.allgather(ranks, me, tag, pack(row))
    return dict(zip(ranks, map(unpack, rows), strict=True))


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
            parameter = Parameter(tuple(shape), dtype_of(dtype))
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


def local_of(tensor: Tensor) -> Tensor:
    """Returns this rank's shard of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensorLike) else tensor


def checksum(tensor: Tensor) -> int:
    """Returns the CRC-32 of a tensor's elements in their order."""
    return zlib.crc32(flat(tensor.cpu()).numpy().data) if tensor.numel() else 0


def _fill(whole: Sequence[Tensor], bucket: Bucket, parts: Sequence[Shard], own: Sequence[Tensor]) -> None:
    for target, item, part, tensor in zip(whole, bucket.items, parts, own, strict=True):
        copy(part.view_of(target, item.shard), tensor.detach())


def weights_of(component: object, method: str) -> Mapping[str, Tensor]:
    """Returns the weights that a component's `weights()`, or another stream of that form, has on this rank;
    empty if it has no such method."""
    offered = getattr(component, method, None)
    return dict(offered()) if offered else {}
