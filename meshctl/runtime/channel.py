"""One end of a route: what a worker gives to it, and what it takes from it.

    giver:  the speakers tell each other what they hold (ids, lengths), and each sends every hearer its samples
    taker:  reads that table from one speaker, and computes with it alone which others it hears

Both ends derive the same links from the same table (`routes.py`), so nobody coordinates and each sample moves once per hearer.
Plain values (losses, statistics) travel as parts with their weights in the same table, and every taker joins them alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshctl.mesh import DeviceMesh
from meshctl.routes import COLLECT, DISPATCH, Id, Route, RouteError, heard_by, speakers
from meshctl.runtime.batch import MARK, Batch
from meshctl.runtime.frames import pack, unpack
from meshctl.runtime.transports import Transport
from meshctl.runtime.transports.exchange import exchange
from meshctl.shares import Table, align, name_of, shares_for

LANES = 3
"""Per route: values, tables, and the second hop of an alignment."""


@dataclass(frozen=True)
class Party:
    """One side of a route: a component's workers."""

    mesh: DeviceMesh
    first_place: int
    """The place of its rank 0 in the job."""
    execute: str = "all"


class Ended:
    """Stands for the value of a step in which a stream had nothing more."""


END = Ended()


@dataclass(frozen=True)
class Taken:
    """What a taker got for one step."""

    value: Any
    """A `Batch` in sample order, a joined plain value, or `END`."""
    table: Table | None = None
    """Of a batch: what all speakers held."""


class Channel:
    """A worker's end of one route; the same object gives and takes where a component feeds itself."""

    def __init__(self, route: Route, giver: Party, taker: Party, transport: Transport, lane: int) -> None:
        self.route = route
        self.sent = 0
        """Bytes, in the step that is being run."""
        self._giver, self._taker = giver, taker
        self._transport = transport
        self._lane = lane
        self._speakers = speakers(giver.mesh, route.collect, giver.execute)
        self._join = COLLECT[route.collect].join

    # Giving

    def give(self, value: Any, weight: float, rank: int) -> bool:
        """Sends this rank's part of the stage's value; every rank of the giving component calls it, only speakers speak.

        Returns whether the stream has ended: on all speakers, not only on this one.
        """
        if rank not in self._speakers:
            return value is END
        me = self._speakers.index(rank)
        places = [self._giver.first_place + speaker for speaker in self._speakers]
        rows = exchange(self._transport, places, me, self._lane + 1, pack(self._row(value, weight)))
        said = [unpack(row) for row in rows]
        table = _table(said)
        shares = self._shares(table) if table else {}
        for hearer in range(self._taker.mesh.world_size):
            heard = heard_by(self._taker.mesh, self._taker.execute, len(self._speakers), hearer)
            if not heard:
                continue
            tells = heard[hearer % len(heard)] == me
            mine = [index for speaker, index in shares.get(hearer, ()) if speaker == me]
            if tells or mine:
                part = value.take(mine) if table and isinstance(value, Batch) else None
                self._send(self._taker.first_place + hearer, 0, {"rows": rows if tells else None, "part": part})
        return all(row["kind"] == "end" for row in said)

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
        row: dict[str, Any] = {"kind": "batch", "ids": value.ids, "groups": value.group_depth}
        if self.route.dispatch.balance:
            row["lengths"] = value.lengths
        if home := self.route.dispatch.home:
            if MARK + "home." + home not in value:
                raise RouteError(f"the samples of `{self.route.source}` did not pass stage `{home}`, they have no home there")
            row["homes"] = value[MARK + "home." + home]
        return row

    def _send(self, place: int, lane: int, value: Any) -> None:
        frame = pack(value)
        self.sent += len(frame)
        self._transport.send(place, self._lane + lane, frame)

    # Taking

    def take(self, rank: int) -> Taken:
        """This rank's share of the next value; for a batch, in sample order."""
        heard = heard_by(self._taker.mesh, self._taker.execute, len(self._speakers), rank)
        teller = heard[rank % len(heard)]
        told = self._receive(teller)
        rows = [unpack(row) for row in told["rows"]]
        table = _table(rows)
        if table is None:
            kept = [rows[speaker] for speaker in heard]
            return Taken(END if kept[0]["kind"] == "end" else join(self._join, [(row["value"], row["weight"]) for row in kept], self.route))
        shares = self._shares(table)
        mine = shares.get(rank, [])
        parts = {teller: told["part"]}
        for speaker in sorted({speaker for speaker, _ in mine} - {teller}):
            parts[speaker] = self._receive(speaker)["part"]
        batch = _assembled(mine, parts)
        batch.most = max(map(len, shares.values()))
        return Taken(batch, table)

    def _receive(self, speaker: int) -> Any:
        return unpack(self._transport.receive(self._giver.first_place + self._speakers[speaker], self._lane))

    def _shares(self, table: Table) -> dict[int, list[tuple[int, int]]]:
        try:
            return shares_for(self._taker.execute, self.route.dispatch, self._taker.mesh, table)
        except RouteError as error:
            raise RouteError(f"`{self.route.source}` gives stage `{self.route.target}` {error}") from None

    # Aligning

    def aligned(self, taken: Taken, wanted: Mapping[int, Sequence[Id]], rank: int) -> Batch:
        """The batch of this input in the order and the shares of the first one: `wanted` are its ids on every rank.

        Usually they lie there already. Where the first input was balanced or sent home and this one was not, its samples make
        a second hop between the ranks of the called component.
        """
        assert taken.table is not None
        held = {r: [taken.table.ids[s][i] for s, i in samples] for r, samples in self._shares(taken.table).items()}
        everybody = {id for ids in wanted.values() for id in ids}
        align(sorted(everybody), taken.table)  # says which one is missing
        if extra := {id for ids in held.values() for id in ids} - everybody:
            raise RouteError(f"sample {name_of(min(extra))} is missing in the first input")
        batch: Batch = taken.value
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
                self._send(self._taker.first_place + peer, 2, batch.take(rows))
        asked = set(wanted[rank])
        parts = [batch.take([index for index, id in enumerate(held[rank]) if id in asked])]
        for peer in peers:
            if peer != rank and not asked.isdisjoint(held[peer]):
                parts.append(unpack(self._transport.receive(self._taker.first_place + peer, self._lane + 2)))
        whole = Batch.concat(parts)
        return _ordered(whole, [tuple(id) for id in whole.ids.tolist()], wanted[rank])

    def wanted(self, taken: Taken) -> dict[int, list[Id]]:
        """The ids that every rank of the called component got of this input."""
        assert taken.table is not None
        return {rank: [taken.table.ids[s][i] for s, i in samples] for rank, samples in self._shares(taken.table).items()}


def _table(rows: Sequence[Mapping[str, Any]]) -> Table | None:
    """The table of a batch, or none where the rows are plain values or an end. A speaker whose stream ended has no samples."""
    batches = [row for row in rows if row["kind"] == "batch"]
    if not batches:
        return None

    def column(name: str) -> tuple[tuple[int, ...], ...] | None:
        return tuple(tuple(row[name].tolist()) if name in row else () for row in rows) if name in batches[0] else None

    ids = tuple(tuple(map(tuple, row["ids"].tolist())) if "ids" in row else () for row in rows)
    return Table(ids, column("lengths"), column("homes"), max(row["groups"] for row in batches))


def _assembled(samples: Sequence[tuple[int, int]], parts: Mapping[int, Batch | None]) -> Batch:
    """The speakers' parts in sample order."""
    there = [speaker for speaker in sorted(parts) if parts[speaker] is not None]
    filled = [speaker for speaker in there if len(parts[speaker] or ())]
    whole = Batch.concat([batch for speaker in (filled or there[:1]) if (batch := parts[speaker]) is not None] or [Batch({})])
    starts, at = {}, 0
    for speaker in filled:
        starts[speaker], at = at, at + len(parts[speaker] or ())
    rows = []
    for speaker, _ in samples:
        rows.append(starts[speaker])
        starts[speaker] += 1
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
