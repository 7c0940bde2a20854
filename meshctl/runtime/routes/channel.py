"""One end of a route: what a worker gives to it, and what it takes from it.

    giver:  the speakers tell each other what they hold (ids, lengths), and each writes its samples once for
            all who get them
    taker:  reads that table from one speaker, and computes with it alone which others it hears

Both ends derive the same parts from the same table (`shares.py`), so nobody coordinates. A part goes once to
each node, where those that get it read the same memory; what several speakers have of it they write into one
frame, laid out by the one that tells the table, unless each made its own where the others can map it. Plain
values (losses, statistics) travel with their weights in the table itself, and every taker joins them alone.

    a frame    {"layout": digest, "table": rows, by the one that tells it, "part": rows of a batch, by who has
               some}

The digest is of all that the parts follow from, so who reckons with other parts is named before anything of
its is taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from meshctl.runtime.batch.batch import MARK, Batch
from meshctl.runtime.routes.header import (
    Cut,
    Form,
    Row,
    Said,
    batch_row,
    layout_of,
    outline_of,
    row_in,
    rows_in,
    table_of,
    told,
)
from meshctl.runtime.routes.rows import Piece, fill, picked, room
from meshctl.runtime.transports.allgather import exchange
from meshctl.runtime.transports.buffers.frames import Frame, unpack
from meshctl.runtime.transports.data_plane import Held, PeerLost, Transport, flat, tensor_of
from meshctl.runtime.user_modes import collect_mode, dispatch_mode, execute_mode
from meshctl.topology.consumers import ConsumerParts, consumer_parts, parts_for
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Route, producer_set
from meshctl.topology.samples import Id, RouteError, Run, align, sample_name

VALUES, TABLES, HOPS, WRITTEN, PASSED = range(5)
"""The lanes of a route: values; tables within a side; a hop beside the values (an alignment's second, layouts
of weights); frames that several write; what is passed on within a node."""
LANES = 5
TOGETHER = 1 << 16
"""Bytes of a part that would be copied from which on several speakers write all of it into one frame; what is
less is joined by those who get it."""


@dataclass(frozen=True)
class Party:
    """One side of a route: a component's workers."""

    mesh: DeviceMesh
    first_place: int
    """The place of its rank 0 in the job."""
    execute: str = "all"
    node_of: Callable[[int], int] = lambda rank: 0
    device_type: str = "cpu"


class Ended:
    """Stands for the value of a step in which a stream had nothing more."""


END = Ended()


@dataclass(frozen=True)
class Taken:
    """What a taker got for one step."""

    value: Any
    """A `Batch` in sample order, a joined plain value, or `END`."""
    said: Said | None = None
    """Of a batch: what all speakers held."""


class Channel:
    """A worker's end of one route; the same object gives and takes where a component feeds itself."""

    def __init__(self, route: Route, giver: Party, taker: Party, transport: Transport, lane: int) -> None:
        self.route = route
        self.sent = 0
        """Bytes, in the step that is being run; what several read in the same memory counts once."""
        self._giver, self._taker = giver, taker
        self._transport = transport
        self._lane = lane
        collect = collect_mode(route.collect)
        self._dispatch, self._execute = dispatch_mode(route.dispatch.mode), execute_mode(taker.execute)
        self._speakers = producer_set(collect, execute_mode(giver.execute)).ranks(giver.mesh)
        self._join = collect.join
        self._places = tuple(giver.first_place + speaker for speaker in self._speakers)
        """Of the speakers."""
        self._number = {rank: number for number, rank in enumerate(self._speakers)}
        self._seed = crc32(
            repr(
                (route, *((party.mesh, party.first_place, party.execute) for party in (giver, taker)))
            ).encode()
        )
        self._sent_to: dict[tuple[int, int], list[list[int]]] = {}
        self._heard_from: dict[tuple[int, int, int], list[int]] = {}
        self._near: dict[tuple[int, tuple[int, ...]], bool] = {}
        self._last: tuple[tuple[Form | None, ...], Cut] | None = None
        """The outline of the last table, and its parts: those of the next one are mostly the same."""

    @property
    def cuts_samples(self) -> bool:
        """Whether different ranks may receive different samples."""
        return self._dispatch.cuts_samples

    @cached_property
    def _hearing(self) -> ConsumerParts:
        return consumer_parts(self._taker.mesh, self._execute, self._dispatch, len(self._speakers))

    def _speaking(self, speaker: int) -> int:
        """The place of a speaker."""
        return self._places[speaker]

    def _hearers(self, part: int, speaker: int) -> list[list[int]]:
        """The places that a speaker sends a part to, those that share memory together: all of its own node,
        and one of each other."""
        found = self._sent_to.get((part, speaker))
        if found is None:
            found = self._sent_to[part, speaker] = self._together_by_node(part, speaker)
        return found

    def _together_by_node(self, part: int, speaker: int) -> list[list[int]]:
        here = self._giver.node_of(self._speakers[speaker])
        near, far = list[int](), dict[int, int]()
        for rank in self._hearing.ranks[part]:
            node = self._taker.node_of(rank)
            if node == here:
                near.append(self._taker.first_place + rank)
            else:
                far.setdefault(node, self._taker.first_place + rank)
        if not all(
            self._transport.way(place).shares_memory for place in near if place != self._transport.place
        ):
            return [[place] for place in (*near, *far.values())]
        return [*([near] if near else []), *([place] for place in far.values())]

    # Giving

    def give(self, value: Any, weight: float, rank: int) -> bool:
        """Sends this rank's part of the stage's value; every rank of the giving component calls it, only
        speakers speak.

        Returns whether the stream has ended: on all speakers, not only on this one.
        """
        me = self._number.get(rank)
        if me is None:
            return value is END
        own = self._row(value, weight)
        table = exchange(self._transport, self._places, me, self._lane + TABLES, told(own))
        rows = [own if speaker == me else self._row_of(speaker, row) for speaker, row in enumerate(table)]
        layout = layout_of(self._seed, table)
        said = self._said(rows, layout)
        try:
            for part, teller in enumerate(self._hearing.leaders):
                head = {"layout": layout, "table": table} if teller == me else {"layout": layout}
                if said is not None:
                    self._give_part(said, head, part, value, me)
                elif teller == me:
                    self._send_part(head, part, me)
        except Held as held:
            raise self._overheld(held) from None
        return own.ended and all(row.ended for row in rows)

    def _row_of(self, speaker: int, said: Any) -> Row:
        row = row_in(said)
        if row is None:
            raise self._strange(speaker, "no row of a table")
        return row

    def _row(self, value: Any, weight: float) -> Row:
        """What the other speakers and the hearers must know of this part."""
        if value is END:
            return Row()
        if self._join == "samples" and not (
            isinstance(value, (Batch, list)) or (isinstance(value, Tensor) and value.ndim)
        ):
            how = (
                "does it return what it made?"
                if value is None
                else "flatten joins batches, lists and tensors: say mean, sum or first"
            )
            raise RouteError(
                f"`{self.route.source}` gave {'None' if value is None else f'a {type(value).__name__}'}; {how}"
            )
        if not isinstance(value, Batch) or self._join == "list" or callable(self._join):
            return Row(value=value, weight=weight)
        if self._join in ("mean", "sum"):
            raise RouteError(
                f"`{self.route.source}` gave a Batch, and collect: {self.route.collect} is for numbers and tensors"
            )
        if (home := self.route.dispatch.home) and MARK + "home." + home not in value:
            raise RouteError(
                f"the samples of `{self.route.source}` did not pass stage `{home}`, they have no home there"
            )
        return batch_row(
            value,
            self.route.dispatch,
            alone=len(self._speakers) == 1,
            lies_mappable=self._transport.lies_mappable,
        )

    def _send(self, places: Sequence[int], lane: int, value: Mapping[str, Any]) -> None:
        frame = self._transport.frame(places, value, lent=True)
        self.sent += frame.moved
        self._transport.send(places, self._lane + lane, frame)

    def _send_part(self, value: Mapping[str, Any], part: int, me: int) -> None:
        for places in self._hearers(part, me):
            self._send(places, VALUES, value)

    def _give_part(
        self, said: Said, head: Mapping[str, Any], part: int, value: Batch | Ended, me: int
    ) -> None:
        """What this speaker has of a part, and the table where it is the one that tells it."""
        if me not in said.cut.speakers[part] and "table" not in head:
            return
        if not isinstance(value, Batch):
            self._send_part(head, part, me)
            return
        if schema := self._together(said, part):
            self._give_together(said, head, part, value, me, schema)
            return
        pieces = said.cut.share(part, me).packed
        whole = {**head, "part": picked(value, pieces)}
        if len(pieces) < 2:
            self._send_part(whole, part, me)
            return
        for places in self._hearers(part, me):
            frame = self._transport.frame(places, whole, lent=True)
            loan = self._transport.lend(places, self._lane, frame.nbytes, frame.beside)
            frame.write(loan.frame)
            fill(unpack(loan.frame, [*map(flat, loan.beside)])["part"], value, pieces)
            self.sent += frame.moved
            self._transport.deliver(loan)

    def _together(self, said: Said, part: int) -> Mapping[str, Sequence[Any]] | None:
        """The columns of a part that several speakers write into one frame: where all, and all who get it,
        share memory, and these could not map them as they lie."""
        teller, has = self._hearing.leaders[part], said.cut.speakers[part]
        if len(has) < 2 or said.rows[teller].form is None or not self._share_memory(part, has):
            return None
        schema = said.schema_of(part)
        return schema if schema and said.must_copy(part, schema, TOGETHER) else None

    def _share_memory(self, part: int, has: tuple[int, ...]) -> bool:
        """Whether some speakers, the teller of a part, and all who get it are on one node, and can write to
        the same frame."""
        found = self._near.get((part, has))
        if found is None:
            speakers, hearers = (self._hearing.leaders[part], *has), self._hearing.ranks[part]
            nodes = {self._giver.node_of(self._speakers[speaker]) for speaker in speakers} | set(
                map(self._taker.node_of, hearers)
            )
            places = {
                *map(self._speaking, speakers),
                *(self._taker.first_place + rank for rank in hearers),
            } - {self._transport.place}
            found = len(nodes) < 2 and all(self._transport.way(place).shares_memory for place in places)
            self._near[part, has] = found
        return found

    def _give_together(
        self,
        said: Said,
        head: Mapping[str, Any],
        part: int,
        value: Batch,
        me: int,
        schema: Mapping[str, Sequence[Any]],
    ) -> None:
        teller, has = self._hearing.leaders[part], said.cut.speakers[part]
        hearers = [self._taker.first_place + rank for rank in self._hearing.ranks[part]]
        pieces = said.cut.share(part, me).pieces
        if me == teller:
            lengths = {
                name: said.lengths_of(part, name) for name, (kind, *_) in schema.items() if kind == "ragged"
            }
            whole = room(schema, said.cut.counts[part], lengths, said.ids_of(part), said.table.group_depth)
            frame = Frame({**head, "part": whole})
            writers = [self._speaking(other) for other in has if other != me]
            loan = self._transport.lend(
                hearers, self._lane, frame.nbytes, writers=writers, writing=self._lane + WRITTEN
            )
            frame.write(loan.frame)
            for writer in writers:
                self._transport.invite(loan, writer, self._lane + WRITTEN)
            self._fill(loan.frame, value, pieces)
            self._transport.deliver(loan)
        elif pieces:
            frame_of_teller = tensor_of(
                self._transport.receive(self._speaking(teller), self._lane + WRITTEN).frame
            )
            self._fill(frame_of_teller, value, pieces)
            self._transport.send(hearers, self._lane, Frame(head))

    def _fill(self, frame: Tensor, value: Batch, pieces: Sequence[Piece]) -> None:
        if pieces:
            whole: Batch = unpack(frame)["part"]
            fill(whole, value, pieces)
            self.sent += sum(piece.stop - piece.start for piece in pieces) * len(frame) // max(1, len(whole))

    # Taking

    def take(self, rank: int) -> Taken:
        """This rank's share of the next value; for a batch, in sample order."""
        part = self._hearing.part_of[rank]
        teller = self._hearing.leaders[part]
        heard = self._receive(rank, part, teller)
        table: Any = heard.get("table") if isinstance(heard, dict) else None
        rows = rows_in(table, len(self._speakers))
        if rows is None:
            raise self._strange(teller, "no table")
        layout = layout_of(self._seed, table)
        self._check(heard, layout, teller)
        said = self._said(rows, layout)
        if said is None:
            kept = [rows[speaker] for speaker in self._hearing.producers[part]]
            return Taken(
                END
                if kept[0].ended
                else join(self._join, [(row.value, row.weight or 0.0) for row in kept], self.route)
            )
        has = said.cut.speakers[part]
        others = [speaker for speaker in has if speaker != teller]
        if self._together(said, part):
            for speaker in others:
                self._check(self._receive(rank, part, speaker), layout, speaker)
            batch = self._part_of(heard, said.cut.counts[part], teller)
        else:
            told_here = teller in has or (not has and heard.get("part") is not None)
            parts = (
                {teller: self._part_of(heard, said.cut.share(part, teller).count, teller)}
                if told_here
                else {}
            )
            for speaker in others:
                got = self._receive(rank, part, speaker)
                self._check(got, layout, speaker)
                parts[speaker] = self._part_of(got, said.cut.share(part, speaker).count, speaker)
            batch = _assembled(said.parts[part], parts, self._transport.cat)
        batch.most = said.cut.most
        return Taken(batch, said)

    def _check(self, heard: Any, layout: int, speaker: int) -> None:
        """Whoever sends a frame must reckon with the same parts."""
        if not _says(heard, layout):
            raise self._strange(speaker, "another layout of the samples")

    def _part_of(self, heard: dict[str, Any], count: int, speaker: int) -> Batch:
        """The batch that came for a part; it has the rows that the table says."""
        batch = heard.get("part")
        if not isinstance(batch, Batch) or len(batch) != count:
            raise self._strange(speaker, f"no batch of {count} samples")
        return batch

    def _overheld(self, held: Held) -> RouteError:
        return RouteError(
            f"`{self.route.name}`: {held}; a received batch is lent until the call ends: clone() what is kept"
        )

    def _strange(self, speaker: int, what: str) -> PeerLost:
        return self._transport.lost(self._speaking(speaker), f"sent {what} on `{self.route.name}`")

    def _receive(self, rank: int, part: int, speaker: int) -> Any:
        """What a speaker sent for a part: from it, or from the one on this node that it was sent to."""
        peers = self._heard_from.get((rank, part, speaker))
        if peers is None:
            near = self._giver.node_of(self._speakers[speaker]) == self._taker.node_of(rank)
            peers = self._heard_from[rank, part, speaker] = [] if near else self._peers(rank, part)
        if len(peers) < 2:
            return self._transport.hear(self._speaking(speaker), self._lane)
        if peers[0] != self._transport.place:
            return self._transport.hear(peers[0], self._lane + PASSED)
        came = self._transport.receive(self._speaking(speaker), self._lane)
        value = self._transport.read(came, self._speaking(speaker))
        try:
            self._transport.pass_on(came, peers[1:], self._lane + PASSED)
        except Held as held:
            raise self._overheld(held) from None
        return value

    def _peers(self, rank: int, part: int) -> list[int]:
        """The places of this node that get a part; the first of them hears those of other nodes, for all."""
        here = self._taker.node_of(rank)
        return [
            self._taker.first_place + other
            for other in self._hearing.ranks[part]
            if self._taker.node_of(other) == here
        ]

    def _said(self, rows: Sequence[Row], layout: int) -> Said | None:
        """Of a batch; none where the rows are plain values or an end."""
        if all(row.form is None for row in rows):
            return None
        outline = outline_of(rows)
        if outline is not None and self._last and self._last[0] == outline:
            return Said(rows, self._last[1], layout)
        try:
            cut = Cut(
                parts_for(
                    self._execute, self._dispatch, self.route.dispatch, self._taker.mesh, table_of(rows)
                )
            )
        except RouteError as error:
            raise RouteError(f"`{self.route.source}` gives stage `{self.route.target}` {error}") from None
        if outline is not None:
            self._last = outline, cut
        return Said(rows, cut, layout)

    # Aligning

    def aligned(self, taken: Taken, wanted: Wanted, rank: int) -> Batch:
        """The batch of this input in the order and the shares of the first one: `wanted` is what every rank
        got of that.

        Usually they lie there already. Where the first input was balanced or sent home and this one was not,
        its samples make a second hop between the ranks of the called component.
        """
        assert taken.said is not None
        held = self.wanted(taken)
        batch: Batch = taken.value
        if held.hearing.ranks == wanted.hearing.ranks and held.keys == wanted.keys:
            return batch
        return self._realigned(batch, taken.said, held.ids, wanted.ids, rank)

    def _realigned(
        self,
        batch: Batch,
        said: Said,
        held: Mapping[int, list[Id]],
        wanted: Mapping[int, list[Id]],
        rank: int,
    ) -> Batch:
        everybody = {id for ids in wanted.values() for id in ids}
        align(sorted(everybody), said.table)  # says which one is missing
        if extra := {id for ids in held.values() for id in ids} - everybody:
            raise RouteError(f"sample {sample_name(min(extra))} is missing in the first input")
        if all(set(held[r]) == set(wanted[r]) for r in wanted):
            return _ordered(batch, held[rank], wanted[rank])
        if self._execute.is_per_producer:
            raise RouteError("inputs of a stage with `execute: peer` must come from the same ranks")
        return self._second_hop(batch, said, held, wanted, rank)

    def _second_hop(
        self,
        batch: Batch,
        said: Said,
        held: Mapping[int, Sequence[Id]],
        wanted: Mapping[int, Sequence[Id]],
        rank: int,
    ) -> Batch:
        mode, mesh = self._dispatch, self._taker.mesh
        peers = [mode.counterpart(mesh, rank, share) for share in range(mode.share_count(mesh))]
        for peer in peers:
            asked = set(wanted[peer])
            if peer != rank and (rows := [index for index, id in enumerate(held[rank]) if id in asked]):
                self._send(
                    [self._taker.first_place + peer], HOPS, {"layout": said.layout, "part": batch.take(rows)}
                )
        asked = set(wanted[rank])
        parts = [batch.take([index for index, id in enumerate(held[rank]) if id in asked])]
        for peer in peers:
            if peer != rank and not asked.isdisjoint(held[peer]):
                parts.append(self._hopped(said, self._taker.first_place + peer))
        whole = Batch.concat(parts)
        return _ordered(whole, [tuple(id) for id in whole.ids.tolist()], wanted[rank])

    def _hopped(self, said: Said, place: int) -> Batch:
        heard = self._transport.hear(place, self._lane + HOPS)
        batch = heard.get("part") if _says(heard, said.layout) else None
        if not isinstance(batch, Batch):
            raise PeerLost(
                f"{self._transport.who(place)} sent another layout of the samples on `{self.route.name}`"
            )
        return batch

    def wanted(self, taken: Taken) -> Wanted:
        """What every rank of the called component got of this input."""
        assert taken.said is not None
        return Wanted(self._hearing, taken.said)


@dataclass(frozen=True)
class Wanted:
    """Which samples every rank of a component has of one input."""

    hearing: ConsumerParts
    said: Said

    @cached_property
    def keys(self) -> list[tuple[object, ...]]:
        """Per part; equal ones mean equal samples in the same order."""
        return [self.said.table.key_of(part) for part in self.said.parts]

    @cached_property
    def ids(self) -> dict[int, list[Id]]:
        """Per rank, in order."""
        ids = [self.said.table.ids_of(part) for part in self.said.parts]
        return {rank: ids[part] for rank, part in self.hearing.part_of.items()}


def _says(heard: Any, layout: int) -> bool:
    """Whether what came is a frame of this layout."""
    return isinstance(heard, dict) and type(heard.get("layout")) is int and heard["layout"] == layout


def _assembled(
    samples: Sequence[Run], parts: Mapping[int, Batch], cat: Callable[[list[Tensor]], Tensor]
) -> Batch:
    """The speakers' parts in sample order."""
    if len(parts) == 1 and len(samples) < 2:
        [only] = parts.values()
        return only
    filled = [speaker for speaker in sorted(parts) if len(parts[speaker])]
    whole = Batch.concat([parts[speaker] for speaker in filled or sorted(parts)[:1]] or [Batch({})], cat)
    starts, at = {}, 0
    for speaker in filled:
        starts[speaker], at = at, at + len(parts[speaker])
    rows = list[int]()
    for run in samples:
        rows += range(starts[run.producer], starts[run.producer] + len(run))
        starts[run.producer] += len(run)
    return whole if rows == list(range(len(rows))) else whole.take(rows)


def _ordered(batch: Batch, held: Sequence[Id], wanted: Sequence[Id]) -> Batch:
    if list(held) == list(wanted):
        return batch
    where = {id: row for row, id in enumerate(held)}
    return batch.take([where[id] for id in wanted])


def join(
    how: str | Callable[[Sequence[tuple[Any, float]]], Any], parts: Sequence[tuple[Any, float]], route: Route
) -> Any:
    """The value of a stage from its speakers' (value, weight), in their order."""
    values = [value for value, _ in parts]
    if callable(how):
        return how(parts)
    if how == "first":
        return values[0]
    if how == "list":
        return values
    if how == "samples":
        if all(isinstance(value, list) for value in values):
            return [item for value in values for item in value]
        if all(isinstance(value, Tensor) for value in values):
            return torch.cat(values)
        kinds = ", ".join(sorted({type(value).__name__ for value in values}))
        raise RouteError(f"`{route.source}` gave different kinds on its ranks: {kinds}")
    return _reduced(how, parts, route)


def _reduced(how: str, parts: Sequence[tuple[Any, float]], route: Route) -> Any:
    first = parts[0][0]
    if isinstance(first, Mapping):
        keys = dict.fromkeys(key for value, _ in parts for key in value)
        return {
            key: _reduced(how, [(value[key], weight) for value, weight in parts if key in value], route)
            for key in keys
        }
    if not all(isinstance(value, (bool, int, float, Tensor)) for value, _ in parts):
        raise RouteError(
            f"`{route.source}` gave a {type(first).__name__}, and collect: {how} is for numbers, tensors and mappings of them"
        )
    shapes = dict.fromkeys(tuple(value.shape) if isinstance(value, Tensor) else () for value, _ in parts)
    if len(shapes) > 1:
        said = " and ".join(str(list(shape)) for shape in shapes)
        raise RouteError(
            f"`{route.source}` gave tensors of the shapes {said} on its ranks, and collect: {how} is for those of one shape"
        )
    if how == "sum":
        return sum(value for value, _ in parts)
    weight = sum(weight for _, weight in parts)
    return sum(value * weight for value, weight in parts) / weight if weight else first
