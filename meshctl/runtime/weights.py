"""A sync: weights from one component's mesh to another's, each shard from a rank that holds it to those that need it.

    giver    weights() -> (name, tensor or DTensor): what this rank holds, as boxes of the whole parameter
    taker    load_weights(stream of (name, tensor)): what its own weights() holds, or whole parameters where it has none

At the first sync both sides tell each other their boxes; from then on every rank computes the same links alone. A replica is
read from the holders in turn, pieces travel in buckets, and no rank gathers more than what it asked for.

A sync is exact: in step k the taker loads what was given in step k - lag, never "the newest there is". A cut (a checkpoint, the
first step) lets it catch up, so that nothing crosses it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from meshctl.routes import Route, RouteError
from meshctl.runtime.channel import Party
from meshctl.runtime.frames import pack, unpack
from meshctl.runtime.transports import Transport
from meshctl.runtime.transports.exchange import exchange

BUCKET = 32 << 20
"""Bytes that travel in one frame, at least one piece."""


@runtime_checkable
class Sharded(Protocol):
    """torch's DTensor by what is used of it: importing the class costs half a second that most workers need not spend."""

    def __create_chunk_list__(self) -> Sequence[Any]: ...
    def to_local(self) -> Tensor: ...


@dataclass(frozen=True)
class Box:
    """A part of a parameter: where it begins and how large it is, per dim."""

    start: tuple[int, ...]
    size: tuple[int, ...]

    def meet(self, other: Box) -> Box | None:
        """What two boxes share, or none."""
        start = tuple(map(max, self.start, other.start))
        stop = [min(a + n, b + m) for a, n, b, m in zip(self.start, self.size, other.start, other.size, strict=True)]
        size = tuple(end - begin for begin, end in zip(start, stop, strict=True))
        return None if any(extent <= 0 for extent in size) else Box(start, size)

    def of(self, tensor: Tensor, outer: Box) -> Tensor:
        """The view of this box in a tensor that holds `outer`."""
        slices = [slice(at - begin, at - begin + extent) for at, begin, extent in zip(self.start, outer.start, self.size, strict=True)]
        return tensor[tuple(slices)] if slices else tensor


Layout = Mapping[str, Box]
"""What one rank holds of each parameter."""


@dataclass(frozen=True)
class Piece:
    """What one giver sends to one taker of one parameter."""

    giver: int
    name: str
    box: Box


def boxes(weights: Mapping[str, Tensor]) -> dict[str, Box]:
    """What this rank holds: the shard of a DTensor, or the whole of a plain tensor; an empty shard is left out."""
    held = {}
    for name, tensor in weights.items():
        if isinstance(tensor, Sharded):
            for chunk in tensor.__create_chunk_list__():
                if prod(chunk.sizes):
                    held[name] = Box(tuple(chunk.offsets), tuple(chunk.sizes))
        else:
            held[name] = Box((0,) * tensor.ndim, tuple(tensor.shape))
    return held


def pieces(name: str, wanted: Box, givers: Sequence[Layout], taker: int) -> list[Piece]:
    """From whom a taker gets its box of a parameter. Of several givers that hold the same box, each serves some of the takers."""
    holders: dict[Box, list[int]] = {}
    for giver, layout in enumerate(givers):
        if name in layout:
            holders.setdefault(layout[name], []).append(giver)
    found = [Piece(ranks[taker % len(ranks)], name, part) for box, ranks in holders.items() if (part := box.meet(wanted))]
    if sum(prod(piece.box.size) for piece in found) != prod(wanted.size):
        raise RouteError(f"the givers hold only a part of `{name}`" if found else f"the givers hold no weights called `{name}`")
    return found


def buckets(sent: Sequence[Piece], sizes: Mapping[str, int]) -> list[list[Piece]]:
    """Pieces in order, cut into frames; `sizes` are bytes per element."""
    cut: list[list[Piece]] = []
    room = 0
    for piece in sent:
        nbytes = prod(piece.box.size) * sizes[piece.name]
        if not cut or nbytes > room:
            cut.append([])
            room = BUCKET
        cut[-1].append(piece)
        room -= nbytes
    return cut


@dataclass(frozen=True)
class Layouts:
    """What all givers hold and all takers want; the same on every rank of both sides."""

    whole: Mapping[str, Box]
    """Every parameter in full."""
    sizes: Mapping[str, int]
    """Bytes per element."""
    givers: Sequence[Layout]
    takers: Sequence[Layout]

    def wanted(self, taker: int) -> Layout:
        return self.takers[taker] or self.whole

    def sent(self, giver: int, taker: int) -> list[Piece]:
        """What a giver sends to a taker, in order."""
        wanted = self.wanted(taker).items()
        return [piece for name, box in wanted for piece in pieces(name, box, self.givers, taker) if piece.giver == giver]


class WeightChannel:
    """A worker's end, or both ends, of one sync."""

    def __init__(self, route: Route, giver: Party, taker: Party, transport: Transport, lane: int, lag: int) -> None:
        self.route = route
        self.sent = 0
        """Bytes, in the step that is being run."""
        self.given = -1
        """The last step whose weights were given."""
        self.waited = 0.0
        """Seconds in which a taker had nothing to load."""
        self.version = 0
        """The step whose weights the taker holds; 0 for the first ones."""
        self._givers = [giver.first_place + rank for rank in range(giver.mesh.world_size)]
        self._takers = [taker.first_place + rank for rank in range(taker.mesh.world_size)]
        self._transport, self._lane, self._lag = transport, lane, lag
        self._wanted: Layout = {}
        self._gives: list[list[list[Piece]]] = []
        """Per taker, in frames, what this rank sends in every sync."""
        self._takes: list[list[list[Piece]]] = []
        """Per giver, in frames, what it gets."""
        self._pending: deque[int] = deque()

    def meet(self, gives: Mapping[str, Tensor] | None, takes: Mapping[str, Tensor] | None) -> None:
        """Exchanges layouts, once: all ranks of both components call it together.

        `gives` are this rank's weights where it gives, `takes` where it takes: empty where it wants every parameter in full.
        """
        gave = None if gives is None else self._gather(self._givers, pack(_said(gives)))
        took = None if takes is None else self._gather(self._takers, pack(_said(takes)))
        if took is None and gave is not None:
            self._tell(self._takers, self._givers, gave)
            took = self._hear(self._takers, self._givers)
        elif gave is None and took is not None:
            self._tell(self._givers, self._takers, took)
            gave = self._hear(self._givers, self._takers)
        assert gave is not None and took is not None
        self._link([unpack(row) for row in gave], [unpack(row) for row in took])

    def _gather(self, places: list[int], row: Tensor) -> list[Tensor]:
        return exchange(self._transport, places, places.index(self._transport.place), self._lane + 1, row)

    def _tell(self, theirs: list[int], ours: list[int], rows: list[Tensor]) -> None:
        me = ours.index(self._transport.place)
        for index, place in enumerate(theirs):
            if index % len(ours) == me:
                self._transport.send(place, self._lane + 2, pack(rows))

    def _hear(self, theirs: list[int], ours: list[int]) -> list[Tensor]:
        teller = theirs[ours.index(self._transport.place) % len(theirs)]
        rows: list[Tensor] = unpack(self._transport.receive(teller, self._lane + 2))
        return rows

    def _link(self, gave: list[Any], took: list[Any]) -> None:
        """Who sends what to whom in every sync from now on."""
        facts = {name: (shape, size) for row in gave for name, (shape, size, *_) in row.items()}
        for name, (shape, *_) in (item for row in took for item in row.items()):
            if name in facts and facts[name][0] != shape:
                raise RouteError(f"`{name}` has the shape {shape} where it is loaded and {facts[name][0]} where it comes from")
        layouts = Layouts(
            {name: Box((0,) * len(shape), tuple(shape)) for name, (shape, _) in facts.items()},
            {name: size for name, (_, size) in facts.items()},
            [_heard(row) for row in gave],
            [_heard(row) for row in took],
        )
        me = self._transport.place
        if me in self._givers:
            giver = self._givers.index(me)
            self._gives = [buckets(layouts.sent(giver, taker), layouts.sizes) for taker in range(len(self._takers))]
        if me in self._takers:
            taker = self._takers.index(me)
            self._wanted = layouts.wanted(taker)
            self._takes = [buckets(layouts.sent(giver, taker), layouts.sizes) for giver in range(len(self._givers))]
        most = max(map(len, [*self._gives, *self._takes]), default=1)
        self._transport.reserve(self._lane, (self._lag + 2) * max(most, 1))

    # Giving

    def give(self, weights: Mapping[str, Tensor], step: int) -> None:
        """Sends this rank's pieces of the weights of `step`; returns as soon as they lie in slots."""
        local = {name: tensor.to_local() if isinstance(tensor, Sharded) else tensor for name, tensor in weights.items()}
        held = boxes(weights)
        for taker, frames in zip(self._takers, self._gives, strict=True):
            for bucket in frames:
                frame = pack([step, [piece.box.of(local[piece.name], held[piece.name]) for piece in bucket]])
                self.sent += len(frame)
                self._transport.send(taker, self._lane, frame)

    # Taking

    def due(self, step: int) -> None:
        """The givers give in this step; what they give is taken `lag` steps later, or at the next cut."""
        self._pending.append(step)

    def ready(self, step: int, *, cut: bool = False) -> bool:
        """Whether there is something to take in this step: what was given in step - lag, or all of it at a cut."""
        return bool(self._pending) and (cut or self._pending[0] <= step - self._lag)

    @property
    def next(self) -> int:
        """The step whose weights are taken next."""
        return self._pending[0]

    def forget(self, last: int) -> None:
        """Drops what steps after the last were to give."""
        self._pending = deque(step for step in self._pending if step <= last)

    def take(self) -> Iterator[tuple[str, Tensor]]:
        """The next weights as (name, tensor): views where one giver held the whole piece, of memory that lives until the next name."""
        self.version = self.next
        inflow = [self._pieces_from(giver, frames) for giver, frames in zip(self._givers, self._takes, strict=True)]
        parts: dict[str, list[tuple[int, Piece]]] = {}
        for giver, frames in enumerate(self._takes):
            for piece in (piece for bucket in frames for piece in bucket):
                parts.setdefault(piece.name, []).append((giver, piece))
        for name, box in self._wanted.items():
            arrived = [(piece.box, next(inflow[giver])) for giver, piece in parts.get(name, [])]
            yield name, _assembled(box, arrived)
        self._pending.popleft()

    def _pieces_from(self, giver: int, frames: list[list[Piece]]) -> Iterator[Tensor]:
        for _ in frames:
            begin = time.perf_counter()
            frame = self._transport.receive(giver, self._lane)
            self.waited += time.perf_counter() - begin
            step, tensors = unpack(frame)
            if step != self.version:
                raise RouteError(f"weights of step {step} came where those of step {self.version} were due")
            yield from tensors


def _said(weights: Mapping[str, Tensor]) -> dict[str, Any]:
    held = boxes(weights)
    return {
        name: [list(tensor.shape), tensor.dtype.itemsize, *([list(held[name].start), list(held[name].size)] if name in held else [])]
        for name, tensor in weights.items()
    }


def _heard(row: Mapping[str, Any]) -> Layout:
    return {name: Box(tuple(box[0]), tuple(box[1])) for name, (_, _, *box) in row.items() if box}


def _assembled(wanted: Box, arrived: Sequence[tuple[Box, Tensor]]) -> Tensor:
    if len(arrived) == 1:
        return arrived[0][1]
    whole = torch.empty(wanted.size, dtype=arrived[0][1].dtype if arrived else torch.float32)
    for box, part in arrived:
        box.of(whole, wanted).copy_(part)
    return whole


def weights_of(component: object, method: str) -> dict[str, Tensor]:
    """What a component's `weights()` (or another stream of that shape) gives on this rank; empty where it has none."""
    offered = getattr(component, method, None)
    stream: Iterable[tuple[str, Tensor]] = offered() if offered else ()
    return dict(stream)
