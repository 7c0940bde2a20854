"""MC536 and MC537: the batches that are inputs of one stage have the same samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.model import Input, Stage
from meshctl.recipe.rules.facts import Facts, input_path
from meshctl.recipe.rules.loss_inputs import own_columns
from meshctl.text.english import listed
from meshctl.topology.modes import DISPATCH

SOURCE_HELP = "name the files of both in one `path`, such as `data/*.jsonl`, or give each one its own stage"
SAME_HELP = "take stages that have the same samples of one source"


class Difference(NamedTuple):
    """The reason why two stages cannot have the same samples."""

    why: str
    spans: tuple[Span, ...]


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
            difference = _difference(facts, lead, name)
            if difference is None:
                yield from _counts_are_unlikely(facts, stage, given, lead, name)
                yield from _shares_may_differ(facts, stage, given, lead, name)
                continue
            span = facts.value("pipeline", stage.name, *input_path(given, given.stages.index(name)))
            both = f"stage `{stage.name}` takes `{lead}` and `{name}` together"
            message = f"{both}, but their samples differ: {difference.why}"
            yield Diagnostic("MC536", message, span, difference.spans, SAME_HELP)


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


def _shares_may_differ(
    facts: Facts, stage: Stage, given: Input, lead: str, name: str
) -> Iterator[Diagnostic]:
    """Warns if two inputs with `execute: peer`, which moves no samples between workers, come to their
    producers by different ways."""
    sources = [facts.recipe.pipeline[one] for one in (lead, name)]
    is_per_producer = facts.modes[stage.name].execute_mode.is_per_producer
    if not is_per_producer or _way(facts, sources[0]) == _way(facts, sources[1]):
        return
    both = f"stage `{stage.name}` takes `{lead}` and `{name}` together with `execute: peer`"
    message = f"{both}, and workers may hold different samples of them"
    seconds = tuple(facts.key("pipeline", source.name) for source in sources)
    span = facts.value("pipeline", stage.name, *input_path(given, given.stages.index(name)))
    help = "write `execute: all`, which moves samples to the workers that need them"
    yield Diagnostic("MC536", message, span, seconds, help, "warning")


def _way(facts: Facts, stage: Stage) -> list[object]:
    """Returns what decides which producer of a stage holds which samples: the mesh and the modes of all
    stages from its source to it."""
    way: list[object] = []
    seen: set[str] = set()
    here: Stage | None = stage
    while here is not None and here.kind == "call" and here.name not in seen:
        seen.add(here.name)
        modes = facts.modes[here.name]
        way.append(
            (facts.meshes.get(here.component), modes.execute, modes.collect, facts.lead_dispatch(here))
        )
        here = facts.lead_stage(here) if here.inputs else None
    return way


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


RULES = (joined_stages_give_batches, inputs_have_same_samples)
