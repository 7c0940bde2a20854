"""Which samples each rank receives, for the model: docs/recipes.md, "Stages", on lists.

A share is a list of samples in sample order. Shares are even in counts, or they go home to the data ranks that
made them. How `balance: tokens` divides samples is open; `check_balanced` states what every division has to
fulfil.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any, NamedTuple

from tests.pipelines.parts import ROW_LENGTHS

Id = tuple[int, ...]


class Fault(Exception):
    """The run has to fail here."""


class Open(Fault):
    """How `balance: tokens` divides samples is open, and the run failed before all ranks had theirs."""


class Sample(NamedTuple):
    id: Id
    version: int | None = None
    """The step of the weights with which it was made."""


@dataclass(frozen=True)
class Rows:
    """A batch, or a rank's part of it."""

    samples: tuple[Sample, ...]
    group_depth: int = 0
    """How many leading numbers of an id are its group; 0 without groups."""

    @property
    def ids(self) -> list[Id]:
        return [sample.id for sample in self.samples]

    def of(self, samples: Sequence[Sample]) -> Rows:
        return Rows(tuple(samples), self.group_depth)


class Mesh:
    """The ranks of a component, row-major over the dims in their order."""

    def __init__(self, workers: int, sizes: Mapping[str, Any]) -> None:
        size = {dim: sizes.get(f"{dim}_size", 1) for dim in ("pp", "dp", "fsdp", "cp", "tp")}
        size["dp"] = workers // (size["pp"] * size["fsdp"] * size["cp"] * size["tp"])
        order, ulysses = sizes.get("order", list(size)), sizes.get("ulysses_size", 1)
        places = [
            dict(zip(order, place, strict=True)) for place in product(*(range(size[dim]) for dim in order))
        ]
        self.ranks = range(workers)
        self.data_ranks = [(at["dp"] * size["fsdp"] + at["fsdp"]) // ulysses for at in places]
        """By rank."""
        self.last_stage = [rank for rank in self.ranks if places[rank]["pp"] == size["pp"] - 1]
        self.representatives = [
            next(rank for rank in self.last_stage if self.data_ranks[rank] == data_rank)
            for data_rank in range(size["dp"] * size["fsdp"] // ulysses)
        ]


def even(count: int, parts: int) -> list[range]:
    """Divides a range: the first parts are longer by one."""
    each, more = divmod(count, parts)
    starts = [part * each + min(part, more) for part in range(parts + 1)]
    return [range(starts[part], starts[part + 1]) for part in range(parts)]


def groups(rows: Rows, dispatch: Mapping[str, Any]) -> list[list[Sample]]:
    """The samples in order, in lists that no share may divide."""
    ordered = sorted(rows.samples)
    if not rows.group_depth or dispatch.get("split_groups"):
        return [[sample] for sample in ordered]
    return [list(group) for _, group in groupby(ordered, lambda sample: sample.id[: rows.group_depth])]


def shares(
    rows: Rows, parts: int, dispatch: Mapping[str, Any], homes: Mapping[Id, int], found: list[list[Id]] | None
) -> list[list[Sample]]:
    """Divides a batch. `homes` is id -> data rank; `found` are the ids of each share as they were in the run,
    where `balance` leaves that open."""
    units = groups(rows, dispatch)
    if dispatch["mode"] == "interleaved":
        units = [[sample] for sample in sorted(rows.samples)]
        divided = [[sample for (sample,) in units[part::parts]] for part in range(parts)]
    elif dispatch.get("home"):
        divided = [[s for s in sorted(rows.samples) if home(s.id, homes) == part] for part in range(parts)]
    elif dispatch.get("balance"):
        if found is None:
            raise Open(f"{len(units)} units, balanced")
        check_balanced(rows, units, found, dispatch)
        known = {sample.id: sample for sample in rows.samples}
        divided = [[known[id] for id in ids] for ids in found]
    else:
        divided = [[s for unit in some for s in units[unit]] for some in even(len(units), parts)]
    if not dispatch.get("allow_empty") and not all(divided):
        raise Fault(f"{len(units)} units for {parts} shares")
    return divided


def home(id: Id, homes: Mapping[Id, int]) -> int:
    """The data rank that made the sample, or the one that it descends from."""
    return next(homes[id[:depth]] for depth in range(len(id), 0, -1) if id[:depth] in homes)


def check_balanced(
    rows: Rows, units: list[list[Sample]], found: list[list[Id]], dispatch: Mapping[str, Any]
) -> None:
    """Every sample once, no group divided, every share in order, and loads as even as any greedy division."""
    flat = sorted(id for ids in found for id in ids)
    assert flat == sorted(rows.ids), f"balanced shares hold {flat}"
    assert all(ids == sorted(ids) for ids in found), f"a balanced share is not in order: {found}"
    share_of = {id: share for share, ids in enumerate(found) for id in ids}
    assert all(len({share_of[s.id] for s in unit}) == 1 for unit in units), f"a group is divided: {found}"
    if dispatch.get("equal_counts"):
        counts = [sum(share_of[unit[0].id] == share for unit in units) for share in range(len(found))]
        assert max(counts) - min(counts) <= 1, f"balanced shares have {counts} samples or groups"
    else:
        weights = [max(1, sum(sample.id[0] % ROW_LENGTHS for sample in unit)) for unit in units]
        loads = [0] * len(found)
        for unit, weight in zip(units, weights, strict=True):
            loads[share_of[unit[0].id]] += weight
        most = (sum(loads) / len(loads) + max(weights, default=0)) * 17 / 16
        assert max(loads) <= most, f"balanced shares have {loads} tokens"
