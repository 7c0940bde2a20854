"""One end of a route: what a worker gives to it, and what it takes from it.

    giver:  the speakers tell each other what they hold (ids, lengths), and each writes its samples once for all who get them
    taker:  reads that table from one speaker, and computes with it alone which others it hears

Both ends derive the same parts from the same table (`shares.py`), so nobody coordinates. A part goes once to each node, where those that
get it read the same memory; what several speakers have of it they write into one frame, laid out by the one that tells the table.
Plain values (losses, statistics) travel with their weights in the table itself, and every taker joins them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from meshctl.mesh import DeviceMesh
from meshctl.routes import COLLECT, DISPATCH, Id, Route, RouteError, speakers
from meshctl.runtime.batch import MARK, Batch
from meshctl.runtime.frames import Frame, pack, unpack
from meshctl.runtime.parts import fill, packed, picked, pieces_of, room
from meshctl.runtime.said import Said, batch_row, is_row, rows_in, table_of
from meshctl.runtime.transports import Held, PeerLost, Transport, flat
from meshctl.runtime.transports.exchange import exchange
from meshctl.shares import Hearing, Run, Table, align, hearing, name_of, parts_for

VALUES, TABLES, HOPS, WRITTEN, PASSED = range(5)
"""The lanes of a route: values; tables within a side; a hop beside the values (an alignment's second, layouts of weights); frames that
several write; what is passed on within a node."""
LANES = 5
TOGETHER = 1 << 16
"""Bytes of a part from which on several speakers write one frame; what is smaller is joined by those who get it."""


@dataclass(frozen=True)
class Party:
    """One side of a route: a component's workers."""

    mesh: DeviceMesh
    first_place: int
    """The place of its rank 0 in the job."""
    execute: str = "all"
    node_of: Callable[[int], int] = lambda rank: 0


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
        self._speakers = speakers(giver.mesh, route.collect, giver.execute)
        self._join = COLLECT[route.collect].join
        self._sent_to: dict[tuple[int, int], list[list[int]]] = {}
        self._last: tuple[object, Sequence[Sequence[Run]]] | None = None
        """The outline of the last table, and its parts: those of the next one are mostly the same."""

    @cached_property
    def _hearing(self) -> Hearing:
        return hearing(self._taker.mesh, self._taker.execute, self.route.dispatch.mode, len(self._speakers))

    def _speaking(self, speaker: int) -> int:
        """The place of a speaker."""
        return self._giver.first_place + self._speakers[speaker]

    def _hearers(self, part: int, speaker: int) -> list[list[int]]:
        """The places that a speaker sends a part to, those that share memory together: all of its own node, and one of each other."""
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
        if not all(self._transport.way(place).shares_memory for place in near if place != self._transport.place):
            return [[place] for place in (*near, *far.values())]
        return [*([near] if near else []), *([place] for place in far.values())]

    # Giving

    def give(self, value: Any, weight: float, rank: int) -> bool:
        """Sends this rank's part of the stage's value; every rank of the giving component calls it, only speakers speak.

        Returns whether the stream has ended: on all speakers, not only on this one.
        """
        if rank not in self._speakers:
            return value is END
        me = self._speakers.index(rank)
        places = [self._giver.first_place + speaker for speaker in self._speakers]
        rows = exchange(self._transport, places, me, self._lane + TABLES, self._row(value, weight))
        for speaker, row in enumerate(rows):
            if speaker != me and not is_row(row):
                raise self._strange(speaker, "no row of a table")
        said, table = self._said(rows), pack(rows) if me in self._hearing.tellers else None
        try:
            for part in range(len(self._hearing.ranks)):
                if said is not None:
                    self._give_part(said, table, part, value, me)
                elif self._hearing.tellers[part] == me:
                    for places in self._hearers(part, me):
                        self._send(places, VALUES, {"table": table})
        except Held as held:
            raise self._kept(held) from None
        return all(row["kind"] == "end" for row in rows)

    def _row(self, value: Any, weight: float) -> dict[str, Any]:
        """What the other speakers and the hearers must know of this part."""
        if value is END:
            return {"kind": "end"}
        if self._join == "samples" and not (isinstance(value, (Batch, list)) or (isinstance(value, Tensor) and value.ndim)):
            how = "does it return what it made?" if value is None else "flatten joins batches, lists and tensors: say mean, sum or first"
            raise RouteError(f"`{self.route.source}` gave {'None' if value is None else f'a {type(value).__name__}'}; {how}")
        if not isinstance(value, Batch) or self._join == "list":
            return {"kind": "value", "value": value, "weight": weight}
        if self._join in ("mean", "sum"):
            raise RouteError(f"`{self.route.source}` gave a Batch, and collect: {self.route.collect} is for numbers and tensors")
        if (home := self.route.dispatch.home) and MARK + "home." + home not in value:
            raise RouteError(f"the samples of `{self.route.source}` did not pass stage `{home}`, they have no home there")
        return batch_row(value, self.route.dispatch, alone=len(self._speakers) == 1)

    def _send(self, places: Sequence[int], lane: int, value: Any) -> None:
        frame = Frame(value)
        self.sent += frame.nbytes
        self._transport.send(places, self._lane + lane, frame)

    def _give_part(self, said: Said, table: Tensor | None, part: int, value: Batch | Ended, me: int) -> None:
        """What this speaker has of a part, and the table where it is the one that tells it."""
        tells, has = self._hearing.tellers[part] == me, said.speakers_of(part)
        if not tells and me not in has:
            return
        if (schema := self._together(said, part)) and isinstance(value, Batch):
            self._give_together(said, table, part, value, me, schema)
            return
        pieces = pieces_of(said.parts[part], me)
        own = picked(value, packed(pieces)) if isinstance(value, Batch) else None
        for places in self._hearers(part, me):
            frame = self._transport.frame(places, {"table": table if tells else None, "part": own}, lent=True)
            loan = self._transport.lend(places, self._lane, frame.nbytes, frame.beside)
            frame.write(loan.frame)
            if own is not None and len(pieces) > 1 and isinstance(value, Batch):
                fill(unpack(loan.frame, [*map(flat, loan.beside)])["part"], value, packed(pieces))
            self.sent += frame.moved
            self._transport.deliver(loan)

    def _together(self, said: Said, part: int) -> Mapping[str, Sequence[Any]] | None:
        """The columns of a part that several speakers write into one frame: where all, and all who get it, share memory."""
        teller, has = self._hearing.tellers[part], said.speakers_of(part)
        if len(has) < 2 or said.rows[teller]["kind"] != "batch":
            return None
        nodes = {self._giver.node_of(self._speakers[speaker]) for speaker in (teller, *has)}
        nodes |= {self._taker.node_of(rank) for rank in self._hearing.ranks[part]}
        places = [*map(self._speaking, (teller, *has)), *(self._taker.first_place + rank for rank in self._hearing.ranks[part])]
        own = self._transport.place
        if len(nodes) > 1 or not all(self._transport.way(place).shares_memory for place in places if place != own):
            return None
        schema = said.schema_of(part)
        return schema if schema and said.nbytes_of(part, schema) >= TOGETHER else None

    def _give_together(
        self, said: Said, table: Tensor | None, part: int, value: Batch, me: int, schema: Mapping[str, Sequence[Any]]
    ) -> None:
        teller, has = self._hearing.tellers[part], said.speakers_of(part)
        hearers = [self._taker.first_place + rank for rank in self._hearing.ranks[part]]
        pieces = pieces_of(said.parts[part], me)
        if me == teller:
            lengths = {name: said.lengths_of(part, name) for name, (kind, *_) in schema.items() if kind == "ragged"}
            whole = room(schema, sum(map(len, said.parts[part])), lengths, said.ids_of(part), said.table.group_depth)
            frame = Frame({"table": table, "part": whole})
            writers = [self._speaking(other) for other in has if other != me]
            loan = self._transport.lend(hearers, self._lane, frame.nbytes, writers=writers, writing=self._lane + WRITTEN)
            frame.write(loan.frame)
            for writer in writers:
                self._transport.invite(loan, writer, self._lane + WRITTEN)
            self._fill(loan.frame, value, pieces)
            self._transport.deliver(loan)
        elif pieces:
            frame_of_teller = self._transport.receive(self._speaking(teller), self._lane + WRITTEN).frame
            self._fill(frame_of_teller, value, pieces)
            self._transport.send(hearers, self._lane, Frame(None))

    def _fill(self, frame: Tensor, value: Batch, pieces: Sequence[Any]) -> None:
        if pieces:
            whole: Batch = unpack(frame)["part"]
            fill(whole, value, pieces)
            self.sent += sum(piece.stop - piece.start for piece in pieces) * len(frame) // max(1, len(whole))

    # Taking

    def take(self, rank: int) -> Taken:
        """This rank's share of the next value; for a batch, in sample order."""
        part = self._hearing.part_of[rank]
        teller = self._hearing.tellers[part]
        told = self._receive(rank, part, teller)
        rows = rows_in(told, len(self._speakers))
        if rows is None:
            raise self._strange(teller, "no table")
        said = self._said(rows)
        if said is None:
            kept = [rows[speaker] for speaker in self._hearing.speakers[part]]
            return Taken(END if kept[0]["kind"] == "end" else join(self._join, [(row["value"], row["weight"]) for row in kept], self.route))
        others = [speaker for speaker in said.speakers_of(part) if speaker != teller]
        if self._together(said, part):
            for speaker in others:
                self._receive(rank, part, speaker)
            batch = self._checked(told, said, part, None, teller)
        else:
            parts = {teller: self._checked(told, said, part, teller, teller)} if teller in said.speakers_of(part) else {}
            for speaker in others:
                parts[speaker] = self._checked(self._receive(rank, part, speaker), said, part, speaker, speaker)
            batch = _assembled(said.parts[part], parts or {teller: told["part"]})
        batch.most = said.most
        return Taken(batch, said)

    def _checked(self, told: Any, said: Said, part: int, speaker: int | None, sender: int) -> Batch:
        """The batch that came for a part: of one speaker, or of all together. It has the rows that the table says."""
        batch = told.get("part") if isinstance(told, dict) else None
        count = sum(len(run) for run in said.parts[part] if speaker in (None, run.speaker))
        if not isinstance(batch, Batch) or len(batch) != count:
            raise self._strange(sender, f"no batch of {count} samples")
        return batch

    def _kept(self, held: Held) -> RouteError:
        return RouteError(f"`{self.route.name}`: {held}; a received batch is lent until the call ends: clone() what is kept")

    def _strange(self, speaker: int, what: str) -> PeerLost:
        return self._transport.lost(self._speaking(speaker), f"sent {what} on `{self.route.name}`")

    def _receive(self, rank: int, part: int, speaker: int) -> Any:
        """What a speaker sent for a part: from it, or from the one on this node that it was sent to."""
        near = self._giver.node_of(self._speakers[speaker]) == self._taker.node_of(rank)
        peers = [] if near else self._peers(rank, part)
        if len(peers) < 2:
            return self._transport.hear(self._speaking(speaker), self._lane)
        if peers[0] != self._transport.place:
            return self._transport.hear(peers[0], self._lane + PASSED)
        came = self._transport.receive(self._speaking(speaker), self._lane)
        value = self._transport.read(came, self._speaking(speaker))
        try:
            self._transport.pass_on(came, peers[1:], self._lane + PASSED)
        except Held as held:
            raise self._kept(held) from None
        return value

    def _peers(self, rank: int, part: int) -> list[int]:
        """The places of this node that get a part; the first of them hears those of other nodes, for all."""
        here = self._taker.node_of(rank)
        return [self._taker.first_place + other for other in self._hearing.ranks[part] if self._taker.node_of(other) == here]

    def _said(self, rows: Sequence[Mapping[str, Any]]) -> Said | None:
        """Of a batch; none where the rows are plain values or an end."""
        table = table_of(rows)
        if table is None:
            return None
        outline = table.outline
        if outline is not None and self._last and self._last[0] == outline:
            return Said(rows, table, self._last[1])
        try:
            parts = parts_for(self._taker.execute, self.route.dispatch, self._taker.mesh, table)
        except RouteError as error:
            raise RouteError(f"`{self.route.source}` gives stage `{self.route.target}` {error}") from None
        self._last = (outline, parts)
        return Said(rows, table, parts)

    # Aligning

    def aligned(self, taken: Taken, wanted: Wanted, rank: int) -> Batch:
        """The batch of this input in the order and the shares of the first one: `wanted` is what every rank got of that.

        Usually they lie there already. Where the first input was balanced or sent home and this one was not, its samples make
        a second hop between the ranks of the called component.
        """
        assert taken.said is not None
        held = self.wanted(taken)
        batch: Batch = taken.value
        if held.hearing.ranks == wanted.hearing.ranks and held.keys == wanted.keys:
            return batch
        return self._realigned(batch, taken.said.table, held.ids, wanted.ids, rank)

    def _realigned(self, batch: Batch, table: Table, held: Mapping[int, list[Id]], wanted: Mapping[int, list[Id]], rank: int) -> Batch:
        everybody = {id for ids in wanted.values() for id in ids}
        align(sorted(everybody), table)  # says which one is missing
        if extra := {id for ids in held.values() for id in ids} - everybody:
            raise RouteError(f"sample {name_of(min(extra))} is missing in the first input")
        if all(set(held[r]) == set(wanted[r]) for r in wanted):
            return _ordered(batch, held[rank], wanted[rank])
        if self._taker.execute == "peer":
            raise RouteError("inputs of a stage with `execute: peer` must come from the same ranks")
        return self._second_hop(batch, held, wanted, rank)

    def _second_hop(self, batch: Batch, held: Mapping[int, Sequence[Id]], wanted: Mapping[int, Sequence[Id]], rank: int) -> Batch:
        mode, mesh = DISPATCH[self.route.dispatch.mode], self._taker.mesh
        peers = [mode.holder(mesh, rank, share) for share in range(mode.shares(mesh))]
        for peer in peers:
            asked = set(wanted[peer])
            if peer != rank and (rows := [index for index, id in enumerate(held[rank]) if id in asked]):
                self._send([self._taker.first_place + peer], HOPS, batch.take(rows))
        asked = set(wanted[rank])
        parts = [batch.take([index for index, id in enumerate(held[rank]) if id in asked])]
        for peer in peers:
            if peer != rank and not asked.isdisjoint(held[peer]):
                parts.append(self._transport.hear(self._taker.first_place + peer, self._lane + HOPS))
        whole = Batch.concat(parts)
        return _ordered(whole, [tuple(id) for id in whole.ids.tolist()], wanted[rank])

    def wanted(self, taken: Taken) -> Wanted:
        """What every rank of the called component got of this input."""
        assert taken.said is not None
        return Wanted(self._hearing, taken.said)


@dataclass(frozen=True)
class Wanted:
    """Which samples every rank of a component has of one input."""

    hearing: Hearing
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


def _assembled(samples: Sequence[Run], parts: Mapping[int, Batch | None]) -> Batch:
    """The speakers' parts in sample order."""
    if len(parts) == 1 and len(samples) < 2:
        [only] = parts.values()
        return only if only is not None else Batch({})
    there = [speaker for speaker in sorted(parts) if parts[speaker] is not None]
    filled = [speaker for speaker in there if len(parts[speaker] or ())]
    whole = Batch.concat([batch for speaker in (filled or there[:1]) if (batch := parts[speaker]) is not None] or [Batch({})])
    starts, at = {}, 0
    for speaker in filled:
        starts[speaker], at = at, at + len(parts[speaker] or ())
    rows = list[int]()
    for run in samples:
        rows += range(starts[run.speaker], starts[run.speaker] + len(run))
        starts[run.speaker] += len(run)
    return whole if rows == list(range(len(rows))) else whole.take(rows)


def _ordered(batch: Batch, held: Sequence[Id], wanted: Sequence[Id]) -> Batch:
    if list(held) == list(wanted):
        return batch
    where = {id: row for row, id in enumerate(held)}
    return batch.take([where[id] for id in wanted])


def join(how: str, parts: Sequence[tuple[Any, float]], route: Route) -> Any:
    """The value of a stage from its speakers' (value, weight), in their order."""
    values = [value for value, _ in parts]
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
        return {key: _reduced(how, [(value[key], weight) for value, weight in parts if key in value], route) for key in keys}
    if not all(isinstance(value, (bool, int, float, Tensor)) for value, _ in parts):
        raise RouteError(f"`{route.source}` gave a {type(first).__name__}, and collect: {how} is for numbers, tensors and mappings of them")
    if how == "sum":
        return sum(value for value, _ in parts)
    weight = sum(weight for _, weight in parts)
    return sum(value * weight for value, weight in parts) / weight if weight else first
