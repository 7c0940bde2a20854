"""MC536 and MC537: the batches that are inputs of one stage have the same samples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.model import Input, Stage
from meshctl.recipe.rules.facts import Facts, input_path
from meshctl.recipe.rules.held_samples import (
    MAX_SHORT_SAMPLES,
    Pair,
    are_always_alike,
    balanced_by,
    missing_samples,
    path_of,
)
from meshctl.recipe.rules.loss_inputs import own_columns
from meshctl.run.bounds import bounding_sources
from meshctl.text.english import counted, listed
from meshctl.topology.modes import DISPATCH
from meshctl.topology.samples import Id, sample_name

SOURCE_HELP = "name the files of both in one `path`, such as `data/*.jsonl`, or give each one its own stage"
PEER_HELP = "write `execute: all`, which moves samples to the workers that need them"


@dataclass(frozen=True)
class Difference:
    """The reason why two stages cannot have the same samples."""

    why: str
    spans: tuple[Span, ...] = ()
    help: str = "take stages that have the same samples of one source"
    severity: Literal["error", "warning"] = "error"
    """A warning if it follows from numbers of samples that only earlier stages state."""


def joined_stages_give_batches(facts: Facts) -> Iterator[Diagnostic]:
    """A list of stages contains only stages that return batches, whose columns can be joined."""
    for stage in facts.known_calls:
        for given in stage.inputs:
            if len(given.stages) > 1:
                yield from _of_several_sources(facts, stage, given)
                for index, name in enumerate(given.stages):
                    yield from _gives_batch(facts, stage, given, index, name)


def _of_several_sources(facts: Facts, stage: Stage, given: Input) -> Iterator[Diagnostic]:
    """Yields a diagnostic if two sources in a list have a column of the same name."""
    first: dict[str, str] = {}
    for index, name in enumerate(given.stages):
        source = facts.recipe.pipeline.get(name)
        columns = own_columns(facts, source) if source is not None and not source.inputs else ()
        if twice := sorted(column for column in columns or () if first.setdefault(column, name) != name):
            message = f"the sources `{first[twice[0]]}` and `{name}` both have {listed(twice)}"
            span = facts.value("pipeline", stage.name, *input_path(given, index))
            yield Diagnostic("MC537", message, span, help=SOURCE_HELP)


def _gives_batch(facts: Facts, stage: Stage, given: Input, index: int, name: str) -> Iterator[Diagnostic]:
    source = facts.recipe.pipeline.get(name)
    if source is None or source.kind != "call" or not facts.is_valid("pipeline", name):
        return
    modes = facts.modes[name]
    if not modes.are_known or not (modes.collect_mode.is_reduced or modes.collect_mode.is_list):
        return
    gives = "numbers" if modes.collect_mode.is_reduced else "a list of its workers' values"
    span = facts.value("pipeline", stage.name, *input_path(given, index))
    seconds = (facts.key("pipeline", name).with_word(f"`collect` is {modes.collect}"),)
    message = f"a list of stages joins batches, but `{name}` produces {gives}"
    yield Diagnostic(
        "MC537", message, span, seconds, "use one parameter for each: in: {PARAMETER: STAGE, ...}"
    )


def inputs_have_same_samples(facts: Facts) -> Iterator[Diagnostic]:
    """All inputs of a stage have the same sample ids, because they are aligned by id."""
    for stage in facts.known_calls:
        taken = [(given, name) for given in stage.inputs for name in given.stages]
        batches = [(given, name) for given, name in taken if _is_batch(facts, name)]
        for given, name in batches[1:]:
            first, lead = batches[0]
            if name == lead or _is_whole_of_cut(facts, stage, first, given):
                continue
            pipeline = facts.recipe.pipeline
            pair = Pair(stage, (first, given), (pipeline[lead], pipeline[name]))
            difference = _difference(facts, lead, name) or _difference_between_peers(facts, pair)
            if difference is None:
                yield from _counts_are_unlikely(facts, stage, given, lead, name)
                continue
            span = facts.value("pipeline", stage.name, *input_path(given, given.stages.index(name)))
            both = f"stage `{stage.name}` takes `{lead}` and `{name}` together"
            message = f"{both}, but their samples differ: {difference.why}"
            yield Diagnostic("MC536", message, span, difference.spans, difference.help, difference.severity)


def _is_batch(facts: Facts, name: str) -> bool:
    stage = facts.recipe.pipeline.get(name)
    if stage is None or stage.kind != "call" or not facts.is_valid("pipeline", name):
        return False
    if not facts.modes[name].are_known:
        return False
    collect, returns = facts.modes[name].collect_mode, facts.endpoint(stage).signature.returns
    return collect.is_batch or (collect.is_first and returns is not None and returns.is_batch)


def _is_whole_of_cut(facts: Facts, stage: Stage, lead: Input, given: Input) -> bool:
    """Returns whether an input is sent whole to all ranks while the lead input is divided. Such inputs need
    no common samples."""
    modes = [DISPATCH[facts.dispatch(stage, one).mode] for one in (lead, given)]
    return modes[0].cuts_samples and not modes[1].cuts_samples


def _difference(facts: Facts, one: str, other: str) -> Difference | None:
    """Returns the reason why the samples of two stages differ; None if they may be the same."""
    stages = [facts.recipe.pipeline[name] for name in (one, other)]
    first, second = (stage.samples for stage in stages)
    if first and second and first != second:
        return Difference(f"{first} and {second}", _counts(facts, stages, "samples"))
    sources = [_origin(facts, stage) for stage in stages]
    if sources[0] is None or sources[1] is None or sources[0].name == sources[1].name:
        return None
    origins = [source for source in sources if source]
    first, second = (source.samples for source in origins)
    both = f"their sources `{origins[0].name}` and `{origins[1].name}`"
    if first and second and first != second:
        return Difference(f"{both} produce different numbers of samples", _counts(facts, origins, "a step"))
    times = [facts.times[source.name] for source in origins]
    if times[0] != times[1]:
        pairs = zip(origins, times, strict=True)
        spans = [facts.key("pipeline", source.name).with_word(f"runs {when}") for source, when in pairs]
        return Difference(f"{both} run at different times", tuple(spans))
    return None


def _counts_are_unlikely(
    facts: Facts, stage: Stage, given: Input, lead: str, name: str
) -> Iterator[Diagnostic]:
    """Warns if the numbers of samples of two inputs differ, where they are known only from earlier stages."""
    makers = {one: _maker(facts, facts.recipe.pipeline[one]) for one in (lead, name)}
    counts = {one: maker.samples for one, maker in makers.items() if maker is not None}
    silent = [one for one in counts if not facts.recipe.pipeline[one].samples]
    if len(set(counts.values())) < 2 or not silent:
        return
    seconds = tuple(
        facts.value("pipeline", maker.name, "samples").with_word(f"{maker.samples} samples reach `{one}`")
        for one, maker in makers.items()
        if maker is not None
    )
    both = f"stage `{stage.name}` takes `{lead}` and `{name}` together"
    message = f"{both}, of which {counts[lead]} and {counts[name]} samples are expected"
    span = facts.value("pipeline", stage.name, *input_path(given, given.stages.index(name)))
    help = f"write `samples` in {listed(silent)}, or take stages with the same samples"
    yield Diagnostic("MC536", message, span, seconds, help, "warning")


def _maker(facts: Facts, stage: Stage) -> Stage | None:
    """Returns the nearest stage, on the path from `stage` to its source, that states `samples`."""
    seen: set[str] = set()
    here: Stage | None = stage
    while here is not None and not here.samples and here.name not in seen and here.kind == "call":
        seen.add(here.name)
        here = facts.lead_stage(here) if here.inputs else None
    return here if here is not None and here.samples else None


def _counts(facts: Facts, stages: list[Stage], unit: str) -> tuple[Span, ...]:
    spans = (facts.value("pipeline", stage.name, "samples") for stage in stages)
    return tuple(span.with_word(f"{stage.samples} {unit}") for span, stage in zip(spans, stages, strict=True))


def _origin(facts: Facts, stage: Stage) -> Stage | None:
    """Returns the source of a stage's samples, found through the lead inputs."""
    seen: set[str] = set()
    while stage.inputs:
        before = facts.lead_stage(stage)
        if before is None or before.kind != "call" or before.name in seen:
            return None
        seen.add(before.name)
        stage = before
    return stage


def _difference_between_peers(facts: Facts, pair: Pair) -> Difference | None:
    """Returns the reason why a worker receives different samples from two stages in mode `execute: peer`,
    which does not move samples between workers to align inputs."""
    if not facts.modes[pair.stage.name].execute_mode.is_per_producer:
        return None
    balanced = [balanced_by(facts, source) for source in pair.sources]
    is_even = not any(balanced)
    first, second = (facts.producers(source) for source in pair.sources)
    if first and second and first != second:
        is_divided_evenly = not any(facts.dispatch(pair.stage, given).balance for given in pair.inputs)
        if is_even and is_divided_evenly and are_always_alike(facts, pair):
            return None
        spans = [
            facts.key("pipeline", source.name).with_word(counted(count, "producer"))
            for source, count in zip(pair.sources, (first, second), strict=True)
        ]
        why = f"`execute: peer`, and {first} workers produce one, {second} the other"
        return Difference(why, tuple(spans), PEER_HELP)
    if not is_even:
        return _difference_by_balance(facts, pair, balanced)
    missing = missing_samples(facts, pair)
    if missing is None:
        return None
    return _difference_by_shares(facts, pair, missing) if missing else _difference_at_the_end(facts, pair)


def _difference_by_balance(facts: Facts, pair: Pair, balanced: list[Stage | None]) -> Difference | None:
    """Returns the difference if `balance` moves the samples of one of two stages only. If it moves both,
    token lengths decide."""
    moved = [(source, stage) for source, stage in zip(pair.sources, balanced, strict=True) if stage]
    if len(moved) != 1:
        return None
    [(source, stage)] = moved
    span = facts.value("pipeline", stage.name, "dispatch").with_word("here samples go to other workers")
    why = f"`execute: peer`, and those of `{source.name}` are on other workers"
    return Difference(why, (span,), PEER_HELP)


def _difference_by_shares(facts: Facts, pair: Pair, missing: Mapping[int, Id]) -> Difference:
    """Returns the difference of two stages whose producers have different shares of the samples. `missing` is
    rank -> a sample of the first stage that it does not receive from the second."""
    one, other = (source.name for source in pair.sources)
    rank, id = next(iter(missing.items()))
    which = f"sample {sample_name(id)} of `{one}`, but not that of `{other}`"
    why = f"`execute: peer`, and rank {rank} of `{pair.stage.component}` receives {which}"
    paths = [path_of(facts, source) for source in pair.sources]
    is_certain = all(stage.samples for path in paths for stage in path)
    return Difference(why, _peers_on(facts, paths), PEER_HELP, "error" if is_certain else "warning")


def _difference_at_the_end(facts: Facts, pair: Pair) -> Difference | None:
    """Returns the difference that two stages have only in a short batch, with which the data of their source
    may end."""
    source, *_ = path_of(facts, pair.sources[0])
    if source.name not in bounding_sources(facts.recipe.pipeline.values()):
        return None
    for total in range(1, min(MAX_SHORT_SAMPLES + 1, source.samples)):
        if missing := missing_samples(facts, pair, total):
            found = _difference_by_shares(facts, pair, missing)
            why = f"{found.why}, if the data of `{source.name}` end with a batch of {total}"
            return replace(found, why=why, severity="warning")
    return None


def _peers_on(facts: Facts, paths: Sequence[Sequence[Stage]]) -> tuple[Span, ...]:
    """Returns the spans of the stages with `execute: peer` on only one of two paths, which keep the shares of
    their input."""
    passed = [{stage.name for stage in path} for path in paths]
    stages = [stage for path in paths for stage in path if stage.name in passed[0] ^ passed[1]]
    return tuple(
        facts.key("pipeline", stage.name).with_word("`execute: peer` keeps the shares of its input")
        for stage in stages
        if facts.modes[stage.name].execute_mode.is_per_producer
    )


RULES = (joined_stages_give_batches, inputs_have_same_samples)
