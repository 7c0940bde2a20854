"""What the speakers of a route tell one another, and those who hear them, in every step: a row each.

    a batch        its ids, the kinds of its columns, and the lengths of what is ragged: all that the others need to lay it out
    a plain value  the value, and its weight
    an end         nothing

A row is input: it is checked before anything is computed from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Any

import torch
from torch import Tensor

from meshctl.routes import Dispatch, Id
from meshctl.runtime.batch import MARK, Batch
from meshctl.runtime.frames import FrameError, unpack
from meshctl.runtime.parts import dtype_of, grid_of, ids_of, lengths_of, schema_of
from meshctl.shares import Grid, Run, Table

Row = Mapping[str, Any]
FEW = 4
"""Runs that are joined one by one; of more, rows are picked by an index."""


def batch_row(batch: Batch, dispatch: Dispatch, *, alone: bool) -> dict[str, Any]:
    """Of a batch; lengths of ragged columns only where several speakers may write one frame, tokens and homes where they decide."""
    grid = grid_of(batch.ids)
    ids: Any = [grid.start, *grid.shape] if grid else batch.ids
    row: dict[str, Any] = {"kind": "batch", "ids": ids, "groups": batch.group_depth, "columns": schema_of(batch)}
    if not alone and (ragged := lengths_of(batch)):
        row["ragged"] = ragged
    if dispatch.balance:
        row["lengths"] = batch.lengths
    if dispatch.home:
        row["homes"] = batch[MARK + "home." + dispatch.home]
    return row


def rows_in(told: Any, speakers: int) -> list[Row] | None:
    """The rows of all speakers, out of what a teller sends: `{"table": their frame, ...}`. None where it is anything else."""
    table = told.get("table") if isinstance(told, dict) else None
    if not isinstance(table, Tensor) or table.dtype != torch.uint8 or table.ndim != 1:
        return None
    try:
        rows = unpack(table)
    except FrameError:
        return None
    return rows if isinstance(rows, list) and len(rows) == speakers and all(map(is_row, rows)) else None


def is_row(row: Any) -> bool:
    if not isinstance(row, dict):
        return False
    match row.get("kind"):
        case "end":
            return True
        case "value":
            return "value" in row and type(row.get("weight")) in (int, float)
        case "batch":
            count = _count(row.get("ids"))
            columns, ragged = row.get("columns"), row.get("ragged", {})
            known = [row[name] for name in ("lengths", "homes") if name in row]
            return (
                count is not None
                and type(row.get("groups")) is int
                and isinstance(columns, dict)
                and all(map(_is_schema, columns.values()))
                and isinstance(ragged, dict)
                and all(_is_numbers(numbers, count) for numbers in (*known, *ragged.values()))
            )
    return False


def _count(ids: Any) -> int | None:
    """How many ids there are; none where these are no ids."""
    if isinstance(ids, Tensor):
        return len(ids) if ids.dtype == torch.int64 and ids.ndim == 2 and ids.shape[1] else None
    if isinstance(ids, list) and len(ids) > 1 and all(type(number) is int for number in ids) and min(ids[1:]) > 0:
        return prod(ids[1:])
    return None


def _is_schema(said: Any) -> bool:
    match said:
        case ["list"]:
            return True
        case ["tensor" | "ragged", str(), list(shape)]:
            return all(type(size) is int and size >= 0 for size in shape)
    return False


def _is_numbers(numbers: Any, count: int) -> bool:
    return isinstance(numbers, Tensor) and numbers.dtype == torch.int64 and numbers.shape == (count,) and not bool((numbers < 0).any())


def table_of(rows: Sequence[Mapping[str, Any]]) -> Table | None:
    """The table of a batch, or none where the rows are plain values or an end. A speaker whose stream ended has no samples."""
    batches = [row for row in rows if row["kind"] == "batch"]
    if not batches:
        return None

    def column(name: str) -> tuple[Sequence[int], ...] | None:
        return tuple(row[name].tolist() if name in row else () for row in rows) if name in batches[0] else None

    return Table(tuple(_ids(row.get("ids")) for row in rows), column("lengths"), column("homes"), max(row["groups"] for row in batches))


def _ids(said: Any) -> Sequence[Id]:
    if said is None:
        return ()
    return Grid(said[0], tuple(said[1:])) if isinstance(said, list) else tuple(map(tuple, said.tolist()))


@dataclass(frozen=True)
class Said:
    """What the speakers told of one step's batch, and what follows from it."""

    rows: Sequence[Mapping[str, Any]]
    table: Table
    parts: Sequence[Sequence[Run]]

    def speakers_of(self, part: int) -> tuple[int, ...]:
        """Who has some of a part."""
        return self._speakers[part]

    @cached_property
    def _speakers(self) -> list[tuple[int, ...]]:
        return [tuple(sorted({run.speaker for run in part})) for part in self.parts]

    @property
    def most(self) -> int:
        """The samples of the largest part."""
        return max((sum(map(len, part)) for part in self.parts), default=0)

    def lengths_of(self, part: int, name: str) -> Tensor:
        """Of a ragged column, in the order of a part."""
        nothing = torch.empty(0, dtype=torch.int64)
        return self._rows_of(part, [row["ragged"][name] if "ragged" in row else nothing for row in self.rows])

    def ids_of(self, part: int) -> Tensor:
        """int64 `[n, depth]`, in the order of a part."""
        return self._rows_of(part, self._ids)

    @cached_property
    def _ids(self) -> list[Tensor]:
        """Per speaker; `[0]` where it has no samples."""
        found = []
        for ids, row in zip(self.table.ids, self.rows, strict=True):
            found.append(ids_of(ids, 0, len(ids)) if isinstance(ids, Grid) else row["ids"] if len(ids) else torch.empty(0))
        return found

    def _rows_of(self, part: int, tensors: Sequence[Tensor]) -> Tensor:
        """The rows of a part, in its order, of a tensor that each speaker has."""
        if len(self.parts[part]) <= FEW:
            return torch.cat([tensors[run.speaker][run.start : run.stop] for run in self.parts[part]])
        has = self.speakers_of(part)
        starts = dict(zip(has, accumulate((len(self.table.ids[speaker]) for speaker in has), initial=0), strict=False))
        rows = [starts[run.speaker] + index for run in self.parts[part] for index in range(run.start, run.stop)]
        return torch.cat([tensors[speaker] for speaker in has])[torch.tensor(rows)]

    def schema_of(self, part: int) -> Mapping[str, Sequence[Any]] | None:
        """The columns that all speakers of a part have, if these are the same, and tensors only."""
        schemas = [self.rows[speaker]["columns"] for speaker in self.speakers_of(part)]
        alike = all(schema == schemas[0] for schema in schemas) and all(said[0] != "list" for said in schemas[0].values())
        return schemas[0] if alike else None

    def nbytes_of(self, part: int, schema: Mapping[str, Sequence[Any]]) -> int:
        """Of the columns of a part."""
        rows, total = sum(map(len, self.parts[part])), 0
        for name, (kind, dtype, shape) in schema.items():
            count = int(self.lengths_of(part, name).sum()) if kind == "ragged" else rows
            total += count * prod(shape) * dtype_of(dtype).itemsize
        return total
