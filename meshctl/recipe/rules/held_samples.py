"""The samples that each worker receives, as far as they follow from the recipe: from the even shares of the
source, through the dispatch of every stage on the way.

They are computed with the functions that workers use (`topology.consumers`), for few samples and ranks only.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from itertools import pairwise

from meshctl.dataclass import dataclass
from meshctl.recipe.model import Input, Stage
from meshctl.recipe.rules.facts import Facts
from meshctl.topology.consumers import consumer_parts, parts_for, samples_by_rank
from meshctl.topology.mesh import even_split
from meshctl.topology.modes import DISPATCH, Dispatch, part_count
from meshctl.topology.samples import Grid, Id, RouteError, SampleTable

MAX_RANKS = 64
MAX_SAMPLES = 4096
MAX_SHORT_SAMPLES = 16
"""Maximum number of samples of the short batches that are compared."""


@dataclass(frozen=True)
class Pair:
    """Two inputs of a stage, and one of the stages that each of them names."""

    stage: Stage
    inputs: tuple[Input, Input]
    sources: tuple[Stage, Stage]


def balanced_by(facts: Facts, stage: Stage | None) -> Stage | None:
    """Returns the stage whose `balance` decides which producer holds which of the samples of `stage`, so that
    token lengths decide it; None if there is none."""
    seen: set[str] = set()
    while stage is not None and stage.name not in seen and stage.kind == "call" and stage.inputs:
        seen.add(stage.name)
        modes, dispatch = facts.modes[stage.name], facts.lead_dispatch(stage)
        if not modes.are_known or modes.execute_mode.is_single:
            return None
        is_joint, before = modes.execute_mode.is_joint, facts.lead_stage(stage)
        if dispatch.home and is_joint:
            stage = facts.recipe.pipeline.get(dispatch.home)
        elif dispatch.balance and _is_divided(facts, stage, dispatch, before):
            return stage
        else:
            stage = None if is_joint else before
    return None


def _is_divided(facts: Facts, stage: Stage, dispatch: Dispatch, before: Stage | None) -> bool:
    """Returns whether the samples of a producer, or of all producers together, are divided into several
    parts."""
    mesh, execute = facts.meshes.get(stage.component), facts.modes[stage.name].execute_mode
    producers = facts.producers(before) if before else 0
    if mesh is None or not producers:
        return False
    whole = 1 if execute.is_joint else producers
    return part_count(mesh, execute, DISPATCH[dispatch.mode], producers) > whole


def missing_samples(facts: Facts, pair: Pair, total: int = 0) -> dict[int, Id] | None:
    """Returns rank -> the first sample that it receives with the first input and not with the second, for the
    ranks that have such samples. The source produces `total` samples, or as many as the recipe states if that
    is 0. None if the samples of an input are unknown."""
    wanted, held = (
        _received(facts, pair.stage, given, source, total)
        for given, source in zip(pair.inputs, pair.sources, strict=True)
    )
    if wanted is None or held is None:
        return None
    missing = {rank: wanted[rank] - held[rank] for rank in sorted(wanted)}
    return {rank: min(ids) for rank, ids in missing.items() if ids}


def are_always_alike(facts: Facts, pair: Pair) -> bool:
    """Returns whether it is known that every rank has the samples of the first input in the second, too, in a
    full batch and in the short ones with which data may end."""
    return all(missing_samples(facts, pair, total) == {} for total in range(MAX_SHORT_SAMPLES + 1))


def _received(
    facts: Facts, stage: Stage, given: Input, source: Stage, total: int
) -> Mapping[int, Set[Id]] | None:
    """Returns rank -> the ids of the samples of `source` that it receives as an input of `stage`."""
    mesh, dispatch = facts.meshes.get(stage.component), facts.dispatch(stage, given)
    table = _held(facts, source, total)
    if mesh is None or table is None or mesh.world_size > MAX_RANKS or stage.block:
        return None
    execute, even = facts.modes[stage.name].execute_mode, _even(replace(dispatch, home=""))
    try:
        received = samples_by_rank(execute, DISPATCH[dispatch.mode], even, mesh, table)
    except RouteError:
        return None
    return {
        rank: {table.ids[producer][index] for producer, index in samples}
        for rank, samples in received.items()
    }


def _even(dispatch: Dispatch) -> Dispatch:
    return replace(dispatch, balance="", allow_empty=True)


def _held(facts: Facts, stage: Stage, total: int) -> SampleTable | None:
    """Returns the ids of the samples of each producer of a stage's value if its source produces `total`
    samples, or as many as the recipe states if that is 0. `balance` is passed over. None if the samples are
    unknown."""
    path = path_of(facts, stage)
    if not path or any(not _is_small(facts, one) for one in path):
        return None
    source, count = path[0], path[0].samples
    held = {source.name: _of_source(facts, source, min(total, count) or count)}
    for before, after in pairwise(path):
        times, rest = divmod(after.samples or count, count)
        count = after.samples or count
        table = None if rest or not times else _after(facts, after, held, before.name)
        if table is None:
            return None
        held[after.name] = table if times == 1 else _children(table, times)
    return held[stage.name]


def _of_source(facts: Facts, source: Stage, total: int) -> SampleTable:
    producers = facts.producers(source)
    shares = [even_split(total, producers, producer) for producer in range(producers)]
    return SampleTable(tuple(Grid(share.start, (len(share),)) if share else () for share in shares))


def _is_small(facts: Facts, stage: Stage) -> bool:
    mesh = facts.meshes.get(stage.component)
    if mesh is None or stage.block:
        return False
    return mesh.world_size <= MAX_RANKS and stage.samples <= MAX_SAMPLES


def path_of(facts: Facts, stage: Stage) -> list[Stage]:
    """Returns the stages through which the samples of a stage come, from their source to the stage itself;
    nothing if one of them is unknown."""
    known = {one.name for one in facts.known_calls}
    path: list[Stage] = []
    here: Stage | None = stage
    while here is not None and here.name in known and here not in path:
        path.append(here)
        if here.is_source:
            return path[::-1] if here.samples else []
        here = facts.lead_stage(here)
    return []


def _after(facts: Facts, stage: Stage, held: Mapping[str, SampleTable], before: str) -> SampleTable | None:
    """Returns the samples of a stage's input on each producer of its value."""
    mesh, modes = facts.meshes[stage.component], facts.modes[stage.name]
    table, dispatch = held[before], _even(facts.lead_dispatch(stage))
    if dispatch.home:
        if dispatch.home not in held:
            return None
        table = _with_homes(table, held[dispatch.home])
    mode = DISPATCH[dispatch.mode]
    part_of = consumer_parts(mesh, modes.execute_mode, mode, len(table.ids)).part_of
    try:
        parts = parts_for(modes.execute_mode, mode, dispatch, mesh, table)
    except RouteError:
        return None
    producers = modes.producers.ranks(mesh)
    ids = tuple(table.ids_of(parts[part_of[rank]]) for rank in producers)
    return SampleTable(ids, group_depth=table.group_depth)


def _with_homes(table: SampleTable, home: SampleTable) -> SampleTable:
    """Returns a table with the home of each sample: the producer that holds it, or the sample from which it
    was made, in `home`."""
    producer_by_id = {id: producer for producer, ids in enumerate(home.ids) for id in ids}
    depth = max((len(id) for id in producer_by_id), default=0)
    return replace(
        table, homes=tuple([producer_by_id.get(id[:depth], -1) for id in ids] for ids in table.ids)
    )


def _children(table: SampleTable, times: int) -> SampleTable:
    """Returns a table in which each sample is a group of `times` samples that were made from it."""
    depth = max((len(id) for ids in table.ids for id in ids), default=0)
    ids = tuple([(*id, number) for id in ids for number in range(times)] for ids in table.ids)
    return SampleTable(ids, group_depth=depth)
