"""How values go from stage to stage, for the model: who produces a value, what it is for the stages that take
it, and what each rank of a called component receives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tests.pipelines.behaviours import DEFAULT_DISPATCH
from tests.pipelines.shares import Fault, Id, Mesh, Rows, even, shares

Dispatch = Mapping[str, Any]


@dataclass(frozen=True)
class Part:
    """What one producer of a stage's value gives."""

    value: Any
    weight: float


@dataclass(frozen=True)
class Input:
    """A parameter of a stage."""

    stages: tuple[str, ...]
    dispatch: Dispatch


def inputs_of(stage: Mapping[str, Any]) -> list[Input]:
    """The parameters of a stage, in written order. In a block, shares may be empty."""
    mode = DEFAULT_DISPATCH.get(stage.get("call", "").partition(".")[2], "slice_dp")
    given, own = stage.get("in"), dispatch_of(stage.get("dispatch"), mode)
    if "block" in stage:
        own = {**own, "allow_empty": True}
    if not isinstance(given, dict):
        return [Input(names_of(given), own)] if given else []
    found = []
    for item in given.values():
        stated = item if isinstance(item, dict) else {"from": item}
        dispatch = dispatch_of(stated["dispatch"], mode) if "dispatch" in stated else own
        found.append(Input(names_of(stated["from"]), dispatch))
    return found


def names_of(given: Any) -> tuple[str, ...]:
    return tuple(given) if isinstance(given, list) else (given,)


def dispatch_of(stated: Any, default: str) -> Dispatch:
    words = stated if isinstance(stated, dict) else {"mode": stated}
    return {**words, "mode": words.get("mode") or default}


def producers(mesh: Mesh, collect: str, execute: str) -> list[int]:
    """The ranks whose results are the stage's value, in order."""
    if execute == "first":
        return [0]
    by_mode = {
        "first": mesh.representatives[:1],
        "last_pp_first": mesh.last_stage[:1],
        "none": list(mesh.ranks),
        "last_pp": mesh.last_stage,
    }
    return by_mode.get(collect, mesh.representatives)


def is_batch(collect: str, parts: Sequence[Part]) -> bool:
    """Whether the value of a stage is one batch."""
    return collect not in ("none", "last_pp") and isinstance(parts[0].value, Rows)


def joined(collect: str, parts: Sequence[Part]) -> Any:
    """The value of a stage for those that take it."""
    if collect == "flatten":
        return flattened([part.value for part in parts])
    if collect in ("mean", "sum"):
        return reduced(collect, parts)
    if collect == "largest":
        return {name: max(part.value[name] for part in parts) for name in parts[0].value}
    return parts[0].value if collect in ("first", "last_pp_first") else [part.value for part in parts]


def flattened(parts: Sequence[Rows]) -> Rows:
    ordered = sorted(sample for part in parts for sample in part.samples)
    if any(one.id == other.id for one, other in pairwise(ordered)):
        raise Fault("a sample is there twice")
    return Rows(tuple(ordered), max(part.group_depth for part in parts))


def reduced(collect: str, parts: Sequence[Part]) -> dict[str, float]:
    """The numbers of all parts. A part without samples has no say in a mean, unless there is no other."""
    if collect == "sum":
        return {name: sum(part.value[name] for part in parts) for name in parts[0].value}
    filled = [part for part in parts if part.weight] or [Part(parts[0].value, 1.0)]
    weight = sum(part.weight for part in filled)
    return {name: sum(part.value[name] * part.weight for part in filled) / weight for name in parts[0].value}


@dataclass(frozen=True)
class Consumer:
    """The called side of a stage."""

    mesh: Mesh
    execute: str
    found: Callable[[int, int], list[Id] | None]
    """(rank, number of the parameter) -> the ids that it received in the run."""

    @property
    def ranks(self) -> list[int]:
        return [0] if self.execute == "first" else list(self.mesh.ranks)

    def share_of(self, rank: int, mode: str) -> int:
        return {"slice": rank, "all": 0}.get(mode, self.mesh.data_ranks[rank])

    def senders(self, rank: int, producers: int) -> list[int]:
        """The producers of a value from which a rank receives."""
        workers = len(self.mesh.ranks)
        if self.execute != "peer":
            return list(range(producers))
        if workers < producers:
            return [producer for producer in range(producers) if producer % workers == rank]
        return [producer for producer, ranks in enumerate(even(workers, producers)) if rank in ranks]

    def check_peers(self, producers: int, dispatch: Dispatch) -> None:
        """The ranks of a data rank have the same producers, unless samples are divided among all workers."""
        found = {(self.mesh.data_ranks[rank], *self.senders(rank, producers)) for rank in self.ranks}
        if (
            self.execute == "peer"
            and dispatch["mode"] != "slice"
            and len(found) > len(self.mesh.representatives)
        ):
            raise Fault("ranks of one data rank receive different samples")

    def receive(
        self, number: int, parts: Sequence[Rows], dispatch: Dispatch, homes: Mapping[Id, int]
    ) -> dict[int, Rows]:
        """Rank -> its samples of a batch that these producers hold together. `number` is the parameter's."""
        if self.execute == "peer":
            return self._receive_from_peers(number, parts, dispatch)
        whole = flattened(parts)
        if self.execute == "first":
            return {0: whole}
        return self._divided(number, whole, self.ranks, dispatch, homes)

    def _divided(
        self, number: int, rows: Rows, ranks: Sequence[int], dispatch: Dispatch, homes: Mapping[Id, int]
    ) -> dict[int, Rows]:
        share_of = {rank: self.share_of(rank, dispatch["mode"]) for rank in ranks}
        present = sorted(set(share_of.values()))
        first = {share: next(rank for rank in ranks if share_of[rank] == share) for share in present}
        seen = [self.found(first[share], number) for share in present]
        found = [ids for ids in seen if ids is not None]
        is_known = len(found) == len(present)
        divided = shares(rows, len(present), dispatch, homes, found if is_known else None)
        return {rank: rows.of(divided[present.index(share_of[rank])]) for rank in ranks}

    def _receive_from_peers(self, number: int, parts: Sequence[Rows], dispatch: Dispatch) -> dict[int, Rows]:
        """Each producer sends to its even share of the workers, or to one where there are fewer workers."""
        received: dict[int, list[Rows]] = {}
        for producer, part in enumerate(parts):
            ranks = [rank for rank in self.ranks if producer in self.senders(rank, len(parts))]
            for rank, rows in self._divided(number, part, ranks, dispatch, {}).items():
                received.setdefault(rank, []).append(rows)
        return {rank: flattened(received[rank]) for rank in self.ranks}


def aligned(rows: Rows, lead: Mapping[int, Rows]) -> dict[int, Rows]:
    """Rank -> the samples of another input, in the order and the shares of the first."""
    wanted = {id for part in lead.values() for id in part.ids}
    if wanted != set(rows.ids):
        raise Fault("the inputs do not have the same samples")
    known = {sample.id: sample for sample in rows.samples}
    return {rank: rows.of([known[id] for id in part.ids]) for rank, part in lead.items()}
