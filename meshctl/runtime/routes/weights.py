"""A sync: weights from one component's mesh to another's, each shard from a rank that holds it to those that
need it.

    giver    weights() -> (name, tensor or DTensor): what this rank holds, as boxes of the whole parameter
    taker    load_weights(stream of (name, tensor)): what its own weights() holds, or whole parameters where
             it has none

At the first sync both sides tell each other their boxes; from then on every rank computes the same links
alone (`weight_links.py`). Weights travel in buckets. Within a node a bucket is written once for all who take
it, by all its givers together, and is read where it lies; to another node it goes once, and the first who
takes it there passes it on. No rank gathers more than what it asked for.

A sync is exact: in step k the taker loads what was given in step k - lag, never "the newest there is". A cut
(a checkpoint, the first step) lets it catch up, so that nothing crosses it.

    lag 0       givers and takers meet in the sync. One bucket lies between a giver and those who take from
                it, and another one is
                being read (and the one before it, until the reader drops its last tensor). Who does both
                gives, while it takes, what
                comes before in the order of all buckets.
    lag n       givers go on at once, and n + 1 times what the takers want lies in memory that they share, or
                on the way to them.

Nothing waits in a circle: who waits in a sync waits for somebody who is in an earlier stage, or in the same
sync at an earlier bucket.
"""

from __future__ import annotations

import time
import zlib
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Any

import torch
from torch import Tensor

from meshctl.runtime.devices.backend import DEVICES
from meshctl.runtime.routes import sync_plan
from meshctl.runtime.routes.channel import HOPS, PASSED, TABLES, TOGETHER, WRITTEN, Party
from meshctl.runtime.routes.sync_plan import Box, Bucket, Item, Layout, Layouts, Parameter, Sharded, boxes
from meshctl.runtime.transports.allgather import exchange
from meshctl.runtime.transports.buffers.caching_allocator import Warm
from meshctl.runtime.transports.buffers.frames import Frame, FrameError, on_device, unpack
from meshctl.runtime.transports.buffers.memcpy import copy
from meshctl.runtime.transports.data_plane import UNBOUND, Delivery, Held, Loan, Transport
from meshctl.topology.modes import Route
from meshctl.topology.samples import RouteError

Arrived = list[tuple[Box, Tensor]]
"""What came of one item: parts, or the whole."""


@dataclass(frozen=True)
class Message:
    """What one giver says of one bucket."""

    step: int
    sums: Sequence[int]
    """The checksum of its part of each item; empty where nobody asked for them."""
    tensors: Sequence[Tensor]
    """Its parts, or the whole items where several write them together and it lays them out; none where it
    wrote to another's."""


class WeightChannel:
    """A worker's end, or both ends, of one sync. In its step all givers call `give`, and all takers read
    `take()` to its end."""

    def __init__(
        self,
        route: Route,
        giver: Party,
        taker: Party,
        transport: Transport,
        lane: int,
        lag: int,
        *,
        checksum: bool = False,
    ) -> None:
        """`checksum`: givers tell a checksum of every part, and a taker whose part has another one raises
        `RouteError`."""
        self.route = route
        self.sent = 0
        """Bytes, in the step that is being run; what several read in the same memory counts once."""
        self.given = -1
        """The last step whose weights were given."""
        self.waited = 0.0
        """Seconds in which a taker had nothing to load."""
        self.version = 0
        """The step whose weights the taker holds; 0 for the first ones."""
        self._giver, self._taker = giver, taker
        self._givers = [giver.first_place + rank for rank in range(giver.mesh.world_size)]
        self._takers = [taker.first_place + rank for rank in range(taker.mesh.world_size)]
        self._transport, self._lane, self._lag, self._checksum = transport, lane, lag, checksum
        transport.reserve(lane, UNBOUND)  # until it is known how many it needs
        self._warm = Warm()
        self._last: int | None = None
        """Of the run, where it ended unannounced: what was given later is dropped."""
        self._pending: deque[int] = deque()
        self._layouts = Layouts({}, (), ())
        self._buckets: list[Bucket] = []
        self._gives: list[int] = []
        """The buckets of which this rank gives a part, by number."""
        self._takes: dict[str, list[tuple[int, int]]] = {}
        """Parameter -> (bucket, place in it) of each of its items that this rank takes."""
        self._begun_by: dict[str, int] = {}
        """Parameter -> the last bucket that begins with it or one before it."""
        self._wanted: Layout = {}
        self._held: Layout = {}
        self._local: dict[str, Tensor] = {}
        """What is being given."""
        self._unsent: deque[int] = deque()

    # Meeting

    def meet(self, gives: Mapping[str, Tensor] | None, takes: Mapping[str, Tensor] | None) -> None:
        """Exchanges layouts, once: all ranks of both components call it together.

        `gives` are this rank's weights where it gives, `takes` where it takes: empty where it wants every
        parameter in full.
        """
        gave = None if gives is None else self._gather(self._givers, _said(gives))
        took = None if takes is None else self._gather(self._takers, _said(takes))
        if took is None and gave is not None:
            self._tell(self._takers, self._givers, gave)
            took = self._hear(self._takers, self._givers)
        elif gave is None and took is not None:
            self._tell(self._givers, self._takers, took)
            gave = self._hear(self._givers, self._takers)
        assert gave is not None and took is not None
        self._held = {} if gives is None else boxes(gives)
        self._link(gave, took)

    def _gather(self, places: list[int], row: Any) -> list[Any]:
        return exchange(
            self._transport, places, places.index(self._transport.place), self._lane + TABLES, row
        )

    def _tell(self, theirs: list[int], ours: list[int], rows: list[Any]) -> None:
        me = ours.index(self._transport.place)
        for index, place in enumerate(theirs):
            if index % len(ours) == me:
                self._transport.send(place, self._lane + HOPS, Frame(rows))

    def _hear(self, theirs: list[int], ours: list[int]) -> list[Any]:
        teller = theirs[ours.index(self._transport.place) % len(theirs)]
        rows = self._unpacked(teller, self._lane + HOPS)
        if not isinstance(rows, list) or len(rows) != len(theirs):
            raise self._malformed(teller, f"no {len(theirs)} layouts")
        return rows

    def _link(self, gave: list[Any], took: list[Any]) -> None:
        """Who sends what to whom in every sync from now on."""
        held = self._heard(self._givers, gave)
        wanted = [
            layout if row else None for row, layout in zip(took, self._heard(self._takers, took), strict=True)
        ]
        self._layouts = layouts = Layouts(_parameters(gave, took), held, wanted)
        self._buckets = layouts.buckets(self._taker.node_of, self._far, sync_plan.BUCKET, sync_plan.FULL)
        me = self._transport.place
        if me in self._givers:
            giver = self._givers.index(me)
            self._gives = [number for number, bucket in enumerate(self._buckets) if giver in bucket.givers]
        if me in self._takers:
            taker = self._takers.index(me)
            self._wanted = layouts.wanted(taker)
            for number, bucket in enumerate(self._buckets):
                for at, item in enumerate(bucket.items if taker in bucket.takers else ()):
                    self._takes.setdefault(item.name, []).append((number, at))
            begins = Counter(bucket.items[0].name for bucket in self._buckets)
            begun = accumulate(begins[name] for name in layouts.parameters)
            self._begun_by = {name: count - 1 for name, count in zip(layouts.parameters, begun, strict=True)}
        self._transport.reserve(self._lane, self._slots)

    def _heard(self, places: Sequence[int], rows: Sequence[Any]) -> list[Layout]:
        """What each place holds or wants."""
        for place, row in zip(places, rows, strict=True):
            if not isinstance(row, dict) or not all(
                isinstance(name, str) and _is_layout(said) for name, said in row.items()
            ):
                raise self._malformed(place, "no layout")
        return [
            {name: Box(tuple(box[0]), tuple(box[1])) for name, (_, _, *box) in row.items() if box}
            for row in rows
        ]

    @property
    def _slots(self) -> int:
        """How many frames of one giver may wait for one taker to come for them; the same on every rank of
        both sides."""
        if not self._lag:
            return 1
        frames = Counter[tuple[int, int]]()
        for (givers, takers), count in Counter(
            (bucket.givers, bucket.takers) for bucket in self._buckets
        ).items():
            frames.update(dict.fromkeys(product(givers, takers), count))
        return (self._lag + 1) * max(frames.values(), default=1)

    def _far(self, giver: int, takers: tuple[int, ...]) -> int:
        if len(takers) == 1 and self._givers[giver] == self._takers[takers[0]]:
            return 0
        return 1 if self._giver.node_of(giver) == self._taker.node_of(takers[0]) else 2

    # Giving

    def give(self, weights: Mapping[str, Tensor], step: int) -> None:
        """Sends this rank's parts of the weights of `step`; where it takes them in the same step, `take` does
        it.

        The weights must stay as they are until then. Raises `RouteError` where they are not laid out as in
        the first sync.
        """
        if boxes(weights) != self._held:
            raise RouteError(
                f"`{self.route.source}` gives other weights, or in other shards, than in the first sync"
            )
        self._local = {
            name: tensor.to_local() if isinstance(tensor, Sharded) else tensor
            for name, tensor in weights.items()
        }
        self.given = step
        self._unsent = deque(self._gives)
        if self._lag or self._transport.place not in self._takers:
            self._send_until(len(self._buckets))

    def _send_until(self, number: int) -> None:
        """Sends what is left up to a bucket."""
        try:
            while self._unsent and self._unsent[0] <= number:
                self._send(self._buckets[self._unsent.popleft()])
        except Held as held:
            raise self._overheld(held) from None
        if not self._unsent:
            self._local = {}

    def _send(self, bucket: Bucket) -> None:
        giver = self._givers.index(self._transport.place)
        parts = self._parts(bucket, giver)
        own = [
            box.of(self._local[item.name], self._held[item.name])
            for item, box in zip(bucket.items, parts, strict=True)
        ]
        sums = [checksum(tensor) for tensor in own] if self._checksum else []
        self.sent += sum(tensor.nbytes for tensor in own)
        if not self._is_shared(bucket):
            for places in self._hearers(bucket, giver):
                self._transport.send(
                    places, self._lane, self._transport.frame(places, [self.given, sums, own])
                )
        elif bucket.teller == giver:
            loan = self._begun(bucket, sums)
            _fill(unpack(loan.frame)[2], bucket.items, parts, own)
            self._transport.deliver(loan)
        else:
            _fill(self._invited(bucket), bucket.items, parts, own)
            self._transport.send(self._places(bucket), self._lane, Frame([self.given, sums, []]))

    def _begun(self, bucket: Bucket, sums: Sequence[int]) -> Loan:
        """A bucket laid out, to which the others who give it are invited."""
        room = [
            torch.empty(item.box.size, dtype=self._layouts.parameters[item.name].dtype, device="meta")
            for item in bucket.items
        ]
        frame = Frame([self.given, sums, room])
        writers = [self._givers[other] for other in bucket.givers if other != bucket.teller]
        loan = self._transport.lend(
            self._places(bucket), self._lane, frame.nbytes, writers=writers, writing=self._lane + WRITTEN
        )
        frame.write(loan.frame)
        for writer in writers:
            self._transport.invite(loan, writer, self._lane + WRITTEN)
        return loan

    def _invited(self, bucket: Bucket) -> Sequence[Tensor]:
        """Room for the items of a bucket, in the frame of the one who lays it out."""
        teller = self._givers[bucket.teller]
        message = self._message(teller, self._lane + WRITTEN, self.given)
        self._check(message, teller, bucket, [item.box for item in bucket.items])
        return message.tensors

    def _places(self, bucket: Bucket) -> list[int]:
        return [self._takers[taker] for taker in bucket.takers]

    def _hearers(self, bucket: Bucket, giver: int) -> list[list[int]]:
        """The takers of a bucket that a giver sends it to, those that read the same memory together."""
        places = self._places(bucket)
        if self._passed_on(bucket, giver):
            return [places[:1]]
        return (
            [places]
            if self._is_near(bucket, giver) and self._share_memory(places)
            else [[place] for place in places]
        )

    def _is_near(self, bucket: Bucket, giver: int) -> bool:
        """Whether a giver is on the node of a bucket's takers."""
        return self._giver.node_of(giver) == self._taker.node_of(bucket.takers[0])

    def _passed_on(self, bucket: Bucket, giver: int) -> bool:
        """Whether the first taker of a bucket passes on what a giver sends: all takers of a bucket are on one
        node."""
        return len(bucket.takers) > 1 and not self._is_near(bucket, giver)

    def _share_memory(self, places: Iterable[int]) -> bool:
        return all(
            self._transport.way(place).shares_memory for place in places if place != self._transport.place
        )

    def _is_shared(self, bucket: Bucket) -> bool:
        """Whether its givers write a bucket together: where all of them, and its takers, share memory, and
        nothing gets from device to device without it."""
        if len(bucket.givers) < 2 or bucket.nbytes < TOGETHER:
            return False
        if self._giver.device_type == self._taker.device_type and self._giver.device_type in DEVICES:
            return False
        node = self._taker.node_of(bucket.takers[0])
        near = all(self._giver.node_of(giver) == node for giver in bucket.givers)
        return near and self._share_memory(
            [*self._places(bucket), *(self._givers[giver] for giver in bucket.givers)]
        )

    def _parts(self, bucket: Bucket, giver: int) -> list[Box]:
        """What a giver gives of each item."""
        held = self._layouts.givers[giver]
        parts = [item.box.meet(held[item.name]) for item in bucket.items]
        return [part for part in parts if part is not None]

    # Taking

    def due(self, step: int) -> None:
        """The givers give in this step; what they give is taken `lag` steps later, or at the next cut."""
        self._pending.append(step)

    def ready(self, step: int, *, cut: bool = False) -> bool:
        """Whether there is something to take in this step: what was given in step - lag, or all of it at a
        cut."""
        return bool(self._pending) and (cut or self._pending[0] <= step - self._lag)

    @property
    def next(self) -> int:
        """The step whose weights are taken next."""
        return self._pending[0]

    def forget(self, last: int) -> None:
        """Drops what steps after the last were to give. Not all ranks had begun them, so all give once more
        at the next cut."""
        self._pending = deque(step for step in self._pending if step <= last)
        self._last, self.given = last, -1
        self._unsent.clear()

    def take(self) -> Iterator[tuple[str, Tensor]]:
        """The next weights as (name, tensor), in the givers' order: to be read, not written, and alive as
        long as somebody has them.

        Memory is used again as tensors die, so who keeps none holds no more than the buckets that are under
        way, and whole the parameters that are larger than one.
        """
        self.version = self.next
        opened: dict[int, list[Arrived]] = {}
        for name, box in self._wanted.items():
            tensors = [self._tensor(name, box, opened)]
            self._send_until(
                self._begun_by[name]
            )  # who loads it may wait for the other takers to have it, too
            yield name, tensors.pop()
        self._send_until(len(self._buckets))
        self._pending.popleft()

    def _tensor(self, name: str, box: Box, opened: dict[int, list[Arrived]]) -> Tensor:
        """A parameter: a view where it came in one piece. `opened` are the buckets of which something is
        left."""
        whole: Tensor | None = None
        for number, at in self._takes.get(name, ()):
            if number not in opened:
                self._send_until(number)
                opened[number] = self._open(self._buckets[number])
            arrived, opened[number][at] = opened[number][at], []
            if at == len(opened[number]) - 1:
                del opened[number]
            if len(arrived) == 1 and arrived[0][0] == box:
                return arrived[0][1]
            for part, tensor in arrived:
                whole = self._room(name, box, tensor) if whole is None else whole
                copy(part.of(whole, box), tensor)
        return self._room(name, box) if whole is None else whole

    def _room(self, name: str, box: Box, like: Tensor | None = None) -> Tensor:
        """Memory for a whole parameter, where some of it is."""
        dtype = self._layouts.parameters[name].dtype
        if like is not None and on_device(like):
            return torch.empty(box.size, dtype=dtype, device=like.device)
        return self._warm.take("weights", box.count * dtype.itemsize).view(dtype).view(box.size)

    def _open(self, bucket: Bucket) -> list[Arrived]:
        """What came of each item of the next bucket."""
        shared = self._is_shared(bucket)
        order = sorted(bucket.givers, key=lambda giver: giver != bucket.teller) if shared else bucket.givers
        found: list[Arrived] = [[] for _ in bucket.items]
        for giver in order:
            place = self._givers[giver]
            message = self._message(
                place,
                self._lane,
                self.version,
                self._places(bucket) if self._passed_on(bucket, giver) else (),
            )
            parts = self._parts(bucket, giver)
            if not shared:
                self._check(message, place, bucket, parts)
                for arrived, part, tensor in zip(found, parts, message.tensors, strict=True):
                    arrived.append((part, tensor))
            elif giver == bucket.teller:
                whole = [item.box for item in bucket.items]
                self._check(message, place, bucket, whole)
                found = [[(box, tensor)] for box, tensor in zip(whole, message.tensors, strict=True)]
            if self._checksum:
                self._prove(message, place, bucket, parts, found)
        return found

    # What came

    def _message(self, place: int, lane: int, step: int, passed_on: Sequence[int] = ()) -> Message:
        """The next message of a giver, which must be of `step`; the first of `passed_on` gets it for all of
        them. Raises `RouteError`."""
        while True:
            begin = time.perf_counter()
            said = self._passed(place, passed_on) if passed_on else self._unpacked(place, lane)
            self.waited += time.perf_counter() - begin
            if not isinstance(said, list) or [type(part) for part in said] != [int, list, list]:
                raise self._malformed(place, "no step, sums and tensors")
            message = Message(*said)
            if self._last is not None and message.step > self._last:
                continue  # given in a step that is dropped
            if message.step != step:
                who = self._transport.who(place)
                raise RouteError(
                    f"`{self.route.name}`: weights of step {message.step} came from {who} where those of step {step} were due"
                )
            return message

    def _passed(self, place: int, takers: Sequence[int]) -> Any:
        """What comes from another node for several takers of this one."""
        first, *others = takers
        if self._transport.place != first:
            return self._unpacked(first, self._lane + PASSED)
        came = self._transport.receive(place, self._lane)
        value = self._value(came, place)
        try:
            self._transport.pass_on(came, others, self._lane + PASSED)
        except Held as held:
            raise self._overheld(held) from None
        return value

    def _unpacked(self, place: int, lane: int) -> Any:
        return self._value(self._transport.receive(place, lane), place)

    def _value(self, came: Delivery, place: int) -> Any:
        try:
            return came.value(self._transport.device)
        except FrameError as error:
            raise self._malformed(place, str(error)) from None

    def _check(self, message: Message, place: int, bucket: Bucket, parts: Sequence[Box]) -> None:
        if len(message.tensors) != len(parts):
            raise self._malformed(place, f"{len(message.tensors)} tensors where {len(parts)} were due")
        for item, part, tensor in zip(bucket.items, parts, message.tensors, strict=True):
            dtype = self._layouts.parameters[item.name].dtype
            if not isinstance(tensor, Tensor) or tensor.dtype != dtype or tuple(tensor.shape) != part.size:
                raise self._malformed(
                    place, f"`{item.name}` is not the {dtype} of shape {list(part.size)} that was due"
                )

    def _prove(
        self, message: Message, place: int, bucket: Bucket, parts: Sequence[Box], found: Sequence[Arrived]
    ) -> None:
        """Compares the checksums of a giver's parts. Raises `RouteError`."""
        if len(message.sums) != len(parts):
            raise self._malformed(place, f"{len(message.sums)} checksums where {len(parts)} were due")
        for item, part, arrived, said in zip(bucket.items, parts, found, message.sums, strict=True):
            box, tensor = arrived[-1]
            if checksum(part.of(tensor, box)) != said:
                who = self._transport.who(place)
                raise RouteError(
                    f"`{self.route.name}`: `{item.name}` from {who} is not what it gave: its checksum is another one"
                )

    def _overheld(self, held: Held) -> RouteError:
        return RouteError(
            f"`{self.route.name}`: {held}; weights are lent while they are loaded: clone() what is kept"
        )

    def _malformed(self, place: int, why: str) -> RouteError:
        return RouteError(
            f"`{self.route.name}`: {self._transport.who(place)} gave what are no weights: {why}"
        )


def checksum(tensor: Tensor) -> int:
    """CRC-32 of a tensor's elements in their order."""
    flat = tensor.detach().contiguous().cpu().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data) if flat.nbytes else 0


def _fill(room: Sequence[Tensor], items: Sequence[Item], parts: Sequence[Box], own: Sequence[Tensor]) -> None:
    """Copies a giver's parts to their places in the items."""
    for target, item, part, tensor in zip(room, items, parts, own, strict=True):
        copy(part.of(target, item.box), tensor.detach())


def _said(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """Parameter -> [shape, dtype, and where this rank holds some of it: start, size]."""
    held = boxes(weights)
    return {
        name: [
            list(tensor.shape),
            str(tensor.dtype),
            *([list(held[name].start), list(held[name].size)] if name in held else []),
        ]
        for name, tensor in weights.items()
    }


def _is_layout(said: Any) -> bool:
    """Whether it is what `_said` says of one parameter."""
    if not isinstance(said, list) or len(said) not in (2, 4) or not isinstance(said[1], str):
        return False
    shape, _, *box = said
    sizes = all(
        isinstance(part, list) and all(type(size) is int and size >= 0 for size in part)
        for part in (shape, *box)
    )
    return (
        sizes
        and all(len(part) == len(shape) for part in box)
        and isinstance(getattr(torch, said[1].removeprefix("torch."), 0), torch.dtype)
    )


def _parameters(gave: Sequence[Mapping[str, Any]], took: Sequence[Mapping[str, Any]]) -> dict[str, Parameter]:
    """What the givers hold of, in their order. Raises `RouteError` where ranks do not agree on a shape or
    dtype."""
    found: dict[str, Parameter] = {}
    for row in gave:
        for name, (shape, said, *_) in row.items():
            dtype = getattr(torch, said.removeprefix("torch."))
            parameter = found.setdefault(name, Parameter(tuple(shape), dtype))
            if parameter != Parameter(tuple(shape), dtype):
                raise RouteError(
                    f"`{name}` is {list(parameter.shape)} of {parameter.dtype} on one giver, {shape} of {dtype} on another"
                )
    for row in took:
        for name, (shape, *_) in row.items():
            if name in found and list(found[name].shape) != shape:
                raise RouteError(
                    f"`{name}` has the shape {shape} where it is loaded and {list(found[name].shape)} where it comes from"
                )
    return found


def weights_of(component: object, method: str) -> dict[str, Tensor]:
    """What a component's `weights()` (or another stream of that shape) gives on this rank; empty where it has
    none."""
    offered = getattr(component, method, None)
    stream: Iterable[tuple[str, Tensor]] = offered() if offered else ()
    return dict(stream)
