"""MC525, MC528, MC538 and MC539: modes that contradict each other, and values that no stage uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.model import DispatchWords, Input, Stage
from meshctl.recipe.rules.facts import Facts
from meshctl.topology.consumers import samples_by_rank
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import (
    DISPATCH,
    EXECUTE,
    Dispatch,
    DispatchMode,
    ExecuteMode,
    producers_of,
    workers_of,
)
from meshctl.topology.samples import SampleTable

MAX_SIMULATED = 64
"""Maximum number of workers and producers for which the samples of each worker are computed."""
MAX_CHECKED = 1024
"""Maximum number of data ranks, producers and peers that are compared."""


def batches_are_taken(facts: Facts) -> Iterator[Diagnostic]:
    """The batches of a source are the input of a stage, if any stage has inputs. Numbers that no stage uses
    are metrics."""
    pipeline = facts.recipe.pipeline
    if not facts.taken or not facts.is_valid("pipeline") or not all(name in pipeline for name in facts.taken):
        return
    for name, stage in pipeline.items():
        if stage.is_source and name not in facts.taken:
            message = f"the batches of `{name}` are not used by any stage"
            yield Diagnostic("MC539", message, facts.key("pipeline", name), severity="note")


# Peers with different samples


def peers_have_same_samples(facts: Facts) -> Iterator[Diagnostic]:
    """All ranks of a data rank receive the same samples in mode `execute: peer`, which assigns each worker to
    one producer."""
    for stage in facts.known_receivers:
        mesh = facts.meshes.get(stage.component)
        source = facts.lead_stage(stage)
        split = _split_peers(facts, stage)
        if mesh is None or source is None or split is None:
            continue
        execute = facts.modes[stage.name].execute
        dims = [f"{dim} {mesh.size(dim)}" for dim in ("pp", "cp", "tp") if mesh.size(dim) > 1]
        if mesh.ulysses_size > 1:
            dims.append(f"ulysses {mesh.ulysses_size}")
        layout = facts.key("components", stage.component, "parallel")
        seconds = (
            layout.with_word(f"`{stage.component}` has {', '.join(dims)}"),
            facts.key("pipeline", source.name).with_word(f"{facts.producers(source)} workers give its value"),
        )
        one, other = split
        gives = f"`execute: {execute}` of stage `{stage.name}` gives ranks {one} and {other}"
        message = f"{gives} of `{stage.component}` different samples, although they belong to one data rank"
        help = "write `execute: all`, or choose layouts in which each producer has whole data ranks"
        yield Diagnostic("MC528", message, _key_of(facts, stage, "execute"), seconds, help)


def _key_of(facts: Facts, stage: Stage, *keys: str) -> Span:
    """Returns the span of the first of these keys that a stage states, otherwise that of `call`."""
    stated = [key for key in keys if facts.is_named("pipeline", stage.name, key)]
    return facts.value("pipeline", stage.name, *(stated[:1] or ["call"]))


def _split_peers(facts: Facts, stage: Stage) -> tuple[int, int] | None:
    """Returns two ranks of the same data rank that receive from different producers; None if there are
    none."""
    mesh = facts.meshes.get(stage.component)
    source = facts.lead_stage(stage)
    execute = facts.modes[stage.name].execute_mode
    mode, producers = DISPATCH[facts.lead_dispatch(stage).mode], facts.producers(source) if source else 0
    is_for_peers = mode.is_by_data_rank or not mode.cuts_samples
    if mesh is None or not is_for_peers or not execute.is_per_producer or mesh.world_size == mesh.data_size:
        return None
    for rank in _ranks_to_check(mesh, execute, producers):
        own = producers_of(mesh, execute, producers, rank)
        peers = mesh.view("data").ranks_along(("pp", "ulysses", "cp", "tp"), rank)
        for peer in islice(peers, MAX_CHECKED):
            if producers_of(mesh, execute, producers, peer) != own:
                return min(rank, peer), max(rank, peer)
    return None


def _ranks_to_check(mesh: DeviceMesh, execute: ExecuteMode, producers: int) -> Iterator[int]:
    """Yields the ranks that `_split_peers` compares with their peers. These are one rank of each of the first
    `MAX_CHECKED` data ranks, and the first and the last worker of each of the first `MAX_CHECKED` producers.
    If workers of different producers belong to one data rank, a first or last worker of a producer is among
    them."""
    for data_rank in range(min(mesh.data_size if producers else 0, MAX_CHECKED)):
        yield mesh.representative(data_rank)
    for producer in range(min(producers, MAX_CHECKED)):
        workers = workers_of(mesh, execute, producer, producers)
        if workers:
            yield workers[0]
            yield workers[-1]


# Repeated and lost samples


def every_sample_comes_once(facts: Facts) -> Iterator[Diagnostic]:
    """Each sample that the workers of a stage receive is collected exactly once."""
    for stage in facts.known_calls:
        mesh = facts.meshes.get(stage.component)
        if mesh is None or not stage.inputs or stage.name not in facts.taken:
            continue
        if _split_peers(facts, stage) is not None:
            continue  # another rule reports it
        source, collect = facts.lead_stage(stage), facts.modes[stage.name].collect_mode
        producers = facts.producers(source) if source else 0
        if collect.is_first and _gives_batch(facts, stage):
            yield from _one_part_is_all(facts, stage, mesh, producers)
        elif collect.is_batch:
            yield from _parts_are_all(facts, stage, mesh, producers)


def _gives_batch(facts: Facts, stage: Stage) -> bool:
    gives = facts.endpoint(stage).signature.returns
    return gives is not None and "batch" in gives.kinds


def _one_part_is_all(facts: Facts, stage: Stage, mesh: DeviceMesh, producers: int) -> Iterator[Diagnostic]:
    """If only one worker's value is collected, this worker has all samples."""
    modes, mode = facts.modes[stage.name], DISPATCH[facts.lead_dispatch(stage).mode]
    execute, who = modes.execute_mode, ""
    if execute.is_joint and mode.share_count(mesh) > 1:
        who = "data rank 0" if mode.is_by_data_rank else "one worker"
    elif execute.is_per_producer and producers:
        who = (
            "" if _has_all(mesh, execute, mode, producers, modes.producers.rank_at(mesh, 0)) else "one worker"
        )
    if who:
        passes_on = f"stage `{stage.name}` passes on only the samples of {who} of `{stage.component}`"
        message = f"{passes_on}; those of the others are lost"
        span, help = _key_of(facts, stage, "collect"), "write `collect: flatten`"
        yield Diagnostic("MC538", message, span, help=help, severity="warning")


def _has_all(mesh: DeviceMesh, execute: ExecuteMode, mode: DispatchMode, producers: int, rank: int) -> bool:
    """Returns whether a worker receives all samples of all producers."""
    own = producers_of(mesh, execute, producers, rank)
    if len(own) < producers:
        return False
    workers = workers_of(mesh, execute, own[0], producers)
    return sum(len(run) for run in mode.shares_of(mesh, workers)) <= 1


def _parts_are_all(facts: Facts, stage: Stage, mesh: DeviceMesh, producers: int) -> Iterator[Diagnostic]:
    """If one worker's part is collected per data rank, the parts contain each sample exactly once."""
    modes, mode = facts.modes[stage.name], facts.lead_dispatch(stage).mode
    why, how, help = "", f"`dispatch: {mode}`", "write `dispatch: slice_dp`"
    if modes.execute_mode.is_joint:
        why = _why_lost(mesh, DISPATCH[mode], stage.component)
    elif modes.execute_mode.is_per_producer and producers:
        why = _why_lost_by_peers(mesh, mode, producers, stage.component)
        how, help = f"{how} under `execute: {modes.execute}`", "write `execute: all`"
    if why:
        span = _key_of(facts, stage, "dispatch", "execute")
        message = f"{how} and `collect: {modes.collect}` of stage `{stage.name}`: {why}"
        yield Diagnostic("MC538", message, span, help=help, severity="warning")


def _why_lost(mesh: DeviceMesh, mode: DispatchMode, component: str) -> str:
    data_size, workers = mesh.data_size, mesh.world_size
    if not mode.cuts_samples and data_size > 1:
        each = f"each of the {data_size} data ranks of `{component}` returns all samples"
        return f"{each}, so each sample is collected {data_size} times"
    if mode.cuts_samples and not mode.is_by_data_rank and workers > data_size:
        different = f"{workers} workers of `{component}` receive different samples"
        return f"{different}, but only {data_size} of them are collected; the samples of the others are lost"
    return ""


def _why_lost_by_peers(mesh: DeviceMesh, mode: str, producers: int, component: str) -> str:
    """Like `_why_lost`, for `execute: peer`. Computes the samples of each worker if there are at most
    `MAX_SIMULATED`."""
    if mesh.world_size > MAX_SIMULATED or producers > MAX_SIMULATED:
        return ""
    numbers = range(mesh.world_size)
    table = SampleTable(tuple(tuple((one, number) for number in numbers) for one in range(producers)))
    options = Dispatch(mode, allow_empty=True)
    received = samples_by_rank(EXECUTE["peer"], DISPATCH[mode], options, mesh, table)
    representatives = (mesh.representative(data_rank) for data_rank in range(mesh.data_size))
    times = Counter(sample for rank in representatives for sample in received.get(rank, ()))
    if any(count > 1 for count in times.values()):
        return f"several data ranks of `{component}` return the same samples"
    if len(times) < producers * len(numbers):
        return f"not all workers of `{component}` that receive samples are collected: some samples are lost"
    return ""


# Keys without effect


def words_have_effect(facts: Facts) -> Iterator[Diagnostic]:
    """Every stated value of `dispatch` and `execute` has an effect."""
    for stage in facts.known_calls:
        if not stage.inputs:
            yield from _idle_words_without_inputs(facts, stage)
        for given in stage.inputs:
            yield from _idle_words_of_input(facts, stage, given)


def _partitioning(words: DispatchWords) -> list[str]:
    """Returns the stated keys of a dispatch that determine how a batch is partitioned."""
    return [key for key in ("balance", "home", "split_groups", "equal_counts") if getattr(words, key)]


def _idle_words_of_input(facts: Facts, stage: Stage, given: Input) -> Iterator[Diagnostic]:
    path: tuple[str, ...] = ("pipeline", stage.name, "dispatch")
    if given.dispatch:
        path = ("pipeline", stage.name, "in", given.parameter, "dispatch")
    words, mode = given.dispatch or stage.dispatch, facts.dispatch(stage, given).mode
    keys, is_single = _partitioning(words), facts.modes[stage.name].execute_mode.is_single
    if is_single or not DISPATCH[mode].cuts_samples:
        why = "`execute: first` calls one worker" if is_single else f"`{mode}` does not partition the samples"
        for key in keys:
            if key != "home" or is_single:
                yield _idle(facts, f"`{key}` has no effect: {why}", *path, key)
    elif words.home:
        for key in keys:
            if key in ("balance", "equal_counts"):
                yield _idle(
                    facts, f"`{key}` has no effect: `home` decides where each sample goes", *path, key
                )
    elif words.equal_counts and not words.balance:
        why = "without `balance`, counts are always equal"
        yield _idle(facts, f"`equal_counts` has no effect: {why}", *path, "equal_counts")


def _idle_words_without_inputs(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    words, path = stage.dispatch, ("pipeline", stage.name, "dispatch")
    takes_nothing = f"stage `{stage.name}` has no input"
    node = facts.node(*path)
    if node is not None and not node.is_mapping:
        yield _idle(facts, f"`dispatch` has no effect: {takes_nothing}", *path)
    elif node is not None:
        for key in (*(["mode"] if words.mode else []), *_partitioning(words)):
            yield _idle(facts, f"`{key}` has no effect: {takes_nothing}", *path, key)
    if stage.is_without_data and stage.samples:
        yield _idle(facts, f"`samples` has no effect: {takes_nothing}", "pipeline", stage.name, "samples")
    if stage.execute and EXECUTE[stage.execute].is_per_producer:
        message = f"`execute: {stage.execute}` has no effect: {takes_nothing}"
        yield _idle(facts, message, "pipeline", stage.name, "execute")


def _idle(facts: Facts, message: str, *path: str) -> Diagnostic:
    return Diagnostic("MC525", message, facts.key(*path), help="remove it", severity="warning")


RULES = (batches_are_taken, peers_have_same_samples, every_sample_comes_once, words_have_effect)
