"""MC541 to MC543: the numbers of samples and of the shares into which they are divided.

The number of samples is known if a stage states `samples`. Samples that a stage produces from the same sample
form a group, which is not divided.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import ceil

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.model import Sizes, Stage
from meshctl.recipe.rules.facts import Facts, input_path
from meshctl.recipe.rules.layouts import LayoutNeeds
from meshctl.text.english import counted, listed
from meshctl.topology.modes import DISPATCH, part_count


def _consumers(facts: Facts) -> dict[str, list[Stage]]:
    """Returns stage -> the stages whose lead input it is. The lead input determines the order and shares of
    all inputs."""
    consumers: dict[str, list[Stage]] = {}
    for stage in facts.known_calls:
        lead = facts.lead_input(stage)
        for name in lead.stages[:1] if lead else ():
            consumers.setdefault(name, []).append(stage)
    return consumers


def every_share_has_samples(facts: Facts) -> Iterator[Diagnostic]:
    """Every share has at least one sample, unless the dispatch allows empty shares. Stages with an unknown
    number of samples are skipped."""
    consumers = _consumers(facts)
    too_few = set[str]()
    for source in facts.known_calls:
        shares = _shares(facts, source, consumers.get(source.name, ()))
        too_many = {component: count for component, count in shares if 0 < source.samples < count}
        if too_many:
            too_few.add(source.name)
            yield _too_few(facts, source, too_many)
    yield from _groups_stay_whole(facts, consumers, too_few)


def _shares(facts: Facts, source: Stage, consumers: Sequence[Stage]) -> Iterator[tuple[str, int]]:
    """Yields (component, number of shares) for each component that must receive samples of `source`. The
    component of a source is included, because its ranks divide the sample numbers."""
    producers = facts.producers(source)
    if source.is_source and producers and not source.dispatch.allow_empty:
        yield source.component, producers
    collect = facts.modes[source.name].collect_mode
    if not (collect.is_batch or collect.is_first):
        return
    for stage in consumers:
        mesh, dispatch = facts.meshes.get(stage.component), facts.lead_dispatch(stage)
        execute = facts.modes[stage.name].execute_mode
        if mesh is None or dispatch.allow_empty or dispatch.home:
            continue
        if producers or not execute.is_per_producer:
            yield stage.component, part_count(mesh, execute, DISPATCH[dispatch.mode], producers)


def _too_few(facts: Facts, source: Stage, shares: dict[str, int]) -> Diagnostic:
    gives = f"stage `{source.name}` produces {counted(source.samples, 'sample')}"
    message = f"{gives}, too few for the shares of {listed(shares)}"
    help = f"produce at least {max(shares.values())}, or write `dispatch: {{allow_empty: true}}`"
    if len(shares) == 1:
        ((name, count),) = shares.items()
        component = facts.recipe.components[name]
        message = f"{gives}, too few for the {count} shares of `{name}`"
        if isinstance(component.parallel, Sizes) and component.parallel.given:
            proposals = LayoutNeeds(facts, component, component.parallel).help
            help = f"{help}; {proposals}" if proposals else help
    seconds = tuple(
        facts.key("components", name).with_word(f"`{name}` has {counted(count, 'share')}")
        for name, count in shares.items()
    )
    return Diagnostic("MC541", message, facts.value("pipeline", source.name, "samples"), seconds, help)


def _groups_stay_whole(
    facts: Facts, consumers: Mapping[str, list[Stage]], too_few: Collection[str]
) -> Iterator[Diagnostic]:
    """There are at least as many groups of samples as shares, because a group is not divided. Groups of the
    samples of a stage in `too_few` are not counted, because their number was reported there."""
    known = dict[str, int]()
    for source in facts.known_calls:
        groups = _group_count(facts, source, known, too_few) if source.name in consumers else 0
        for stage in consumers[source.name] if groups else ():
            mesh, given = facts.meshes.get(stage.component), facts.lead_input(stage)
            if mesh is None or given is None or not facts.modes[stage.name].execute_mode.is_joint:
                continue
            dispatch = facts.dispatch(stage, given)
            shares = DISPATCH[dispatch.mode].share_count(mesh)
            is_free = dispatch.allow_empty or dispatch.split_groups or dispatch.home
            if is_free or not groups < shares <= source.samples:
                continue
            each = f"{source.samples // groups} samples from each of {groups}"
            seconds = (facts.value("pipeline", source.name, "samples").with_word(each),)
            are = f"the {source.samples} samples of `{source.name}` form {counted(groups, 'group')}"
            span = facts.value("pipeline", stage.name, *input_path(given, 0))
            help = "write `dispatch: {split_groups: true}`, or `allow_empty: true`, or use more samples"
            yield Diagnostic(
                "MC542", f"{are}, but `{stage.component}` has {shares} shares", span, seconds, help
            )


def _group_count(facts: Facts, stage: Stage, known: dict[str, int], too_few: Collection[str]) -> int:
    """Returns the number of groups of a stage's samples; 0 if there are none or it is unknown. Stores the
    results of all visited stages in `known`."""
    groups, passed = 0, dict[str, None]()
    while stage.name not in passed:
        if stage.name in known:
            groups = known[stage.name]
            break
        passed[stage.name] = None
        before = facts.lead_stage(stage)
        if before is None or not stage.samples or not before.samples:
            break
        if stage.samples != before.samples:
            is_known = stage.samples % before.samples == 0 and before.name not in too_few
            groups = before.samples if is_known else 0
            break
        stage = before
    known |= dict.fromkeys(passed, groups)
    return groups


def pipelines_are_filled(facts: Facts) -> Iterator[Diagnostic]:
    """Every data rank has at least as many samples as pipeline stages. Otherwise some pipeline stages are
    idle in every step."""
    for stage in facts.known_calls:
        mesh, source, name = facts.meshes.get(stage.component), facts.lead_stage(stage), stage.component
        if mesh is None or source is None or mesh.size("pp") == 1:
            continue
        is_by_data_rank = DISPATCH[facts.lead_dispatch(stage).mode].is_by_data_rank
        if not is_by_data_rank or not facts.modes[stage.name].execute_mode.is_joint:
            continue
        stages, samples = mesh.size("pp"), source.samples
        each = ceil(samples / mesh.data_size)
        if mesh.data_size <= samples and each < stages:
            span = facts.value("pipeline", source.name, "samples")
            pp_size = facts.value("components", name, "parallel", "pp_size")
            gets = f"each data rank of `{name}` receives {counted(each, 'sample')}"
            message = f"{gets}, fewer than it has pipeline stages"
            help = f"produce at least {stages * mesh.data_size} samples, or choose a smaller `pp_size`"
            seconds = (pp_size.with_word(f"{stages} stages"),)
            yield Diagnostic("MC543", message, span, seconds, help, "warning")


RULES = (every_share_has_samples, pipelines_are_filled)
