"""Blocks of a recipe, for the model: docs/recipes.md, "Blocks". The permutation of minibatches is open; `taken_from`
states what every division has to fulfil."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.pipelines.flow import Part, reduced
from tests.pipelines.shares import Id, Rows, Sample, groups


def with_full_names(pipeline: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The pipeline, in which the stages of a block have their full names, BLOCK.STAGE."""
    return {name: renamed(name, item) if "repeat" in item else item for name, item in pipeline.items()}


def renamed(block: str, item: Mapping[str, Any]) -> dict[str, Any]:
    full = {name: f"{block}.{name}" for name in item["stages"]}

    def with_names(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: with_names(one) for key, one in value.items()}
        if isinstance(value, list):
            return [with_names(one) for one in value]
        return full.get(value, value) if isinstance(value, str) else value

    inner = {full[name]: with_names(stage) | {"block": block} for name, stage in item["stages"].items()}
    repeat = dict(item["repeat"])
    if "until" in repeat:
        repeat["until"] = full[repeat["until"]]
    return {**item, "repeat": repeat, "stages": inner}


def unit_of(stage: str) -> str:
    """The block that a stage belongs to, or the stage itself."""
    return stage.partition(".")[0]


def flat(units: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """All stages, also those of blocks, by their full names."""
    for name, unit in units.items():
        if "repeat" in unit:
            yield from unit["stages"].items()
        else:
            yield name, unit


def taken_from(left: list[list[Sample]], size: int, found: set[Id] | None) -> set[Id]:
    """Removes the next minibatch from the groups that are left in a round, and returns its ids. `found` are the
    ids of the minibatch in the run; without them, the groups are taken in their order."""
    if found is None:
        taken: list[list[Sample]] = []
        while left and (not taken or count(taken) + len(left[0]) <= size):
            taken.append(left.pop(0))
        return ids_of(taken)
    taken = [group for group in left if found & ids_of([group])]
    assert found == ids_of(taken), f"a minibatch has {sorted(found)}, and left are {left}"
    assert len(taken) <= 1 or count(taken) <= size, f"a minibatch of more than {size}: {sorted(found)}"
    left[:] = [group for group in left if group not in taken]
    next_group = max(map(len, left), default=size + 1)
    assert count(taken) + next_group > size, f"there is room in the minibatch {sorted(found)}"
    return found


def count(some: Sequence[Sequence[Sample]]) -> int:
    return sum(map(len, some))


def ids_of(some: Sequence[Sequence[Sample]]) -> set[Id]:
    return {sample.id for group in some for sample in group}


def minibatch(parts: Sequence[Part], ids: set[Id]) -> list[Part]:
    """The samples of a minibatch in a value that is a batch."""
    chosen = [part.value.of([s for s in part.value.samples if s.id in ids]) for part in parts]
    return [Part(rows, len(rows.samples)) for rows in chosen]


def groups_of(parts: Sequence[Part]) -> list[list[Sample]]:
    """The samples of a batch, in lists that no minibatch may divide."""
    samples = [sample for part in parts for sample in part.value.samples]
    return groups(Rows(tuple(samples), max(part.value.group_depth for part in parts)), {})


def of_all_passes(collect: str, passes: Sequence[Part]) -> Part:
    """What one rank gave in the passes of a round, for stages outside of the block."""
    weight = sum(part.weight for part in passes)
    if isinstance(passes[0].value, Rows):
        samples = sorted(sample for part in passes for sample in part.value.samples)
        depth = max(part.value.group_depth for part in passes)
        return Part(Rows(tuple(samples), depth), weight)
    return Part(reduced("sum" if collect == "sum" else "mean", passes), weight)
