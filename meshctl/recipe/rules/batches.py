"""MC525, MC536 to MC538 and MC541 to MC543: how many samples there are, into how many shares they go, and
whether joined ones are the same.

Counts are known where a stage says `samples`. Samples made from others, k for each, belong to a group, and a
group stays together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.model import DispatchWords, Input, Sizes, Stage
from meshctl.recipe.rules.facts import LISTS, REDUCED, Facts, input_path
from meshctl.recipe.rules.layouts import LayoutNeeds
from meshctl.recipe.stages import Times
from meshctl.text.english import counted, listed
from meshctl.topology.consumers import samples_by_rank
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import (
    COLLECT,
    DISPATCH,
    EXECUTE,
    Dispatch,
    RankSet,
    part_count,
    producer_set,
    producers_of,
    workers_of,
)
from meshctl.topology.samples import SampleTable

FEW = 64
"""So many workers are looked at one by one."""


def collect_of(facts: Facts, stage: Stage) -> str:
    """What the plan will take for it."""
    return stage.collect or facts.endpoint(stage).collect


def execute_of(facts: Facts, stage: Stage) -> str:
    return stage.execute or facts.endpoint(stage).execute


def _producers(facts: Facts, stage: Stage) -> RankSet:
    """The ranks that produce a stage's value."""
    return producer_set(COLLECT[collect_of(facts, stage)], EXECUTE[execute_of(facts, stage)])


def dispatch_of(facts: Facts, stage: Stage, given: Input) -> Dispatch:
    return (given.dispatch or stage.dispatch).with_default(facts.endpoint(stage).dispatch)


def _calls(facts: Facts) -> Iterator[Stage]:
    """The stages that call, as far as nothing is wrong with how they take and give."""
    for name, stage in facts.recipe.pipeline.items():
        right = all(
            facts.is_valid("pipeline", name, key)
            for key in ("in", "samples", "dispatch", "execute", "collect")
        )
        modes = collect_of(facts, stage) in COLLECT and facts.endpoint(stage).dispatch in DISPATCH
        modes = modes and execute_of(facts, stage) in EXECUTE
        if stage.kind == "call" and right and modes:
            yield stage


def _takers(facts: Facts) -> dict[str, list[Stage]]:
    """Stage -> those that call and get their order and shares from it: found once, since recipes have many
    stages."""
    takers: dict[str, list[Stage]] = {}
    for stage in _calls(facts):
        lead = facts.lead_input(stage)
        for name in lead.stages[:1] if lead else ():
            takers.setdefault(name, []).append(stage)
    return takers


def _before(facts: Facts, stage: Stage) -> Stage | None:
    """The stage whose samples another one hands on."""
    lead = facts.lead_input(stage)
    return facts.recipe.pipeline.get(lead.stages[0]) if lead and lead.stages else None


def _lead_of(facts: Facts, stage: Stage) -> Dispatch:
    """How the input that gives order and shares reaches a stage that has one."""
    lead = facts.lead_input(stage)
    return dispatch_of(facts, stage, lead) if lead else Dispatch()


# Shares


@dataclass(frozen=True)
class Shares:
    """Into how many shares a component cuts what a stage gives."""

    stage: Stage
    """The one that takes them; a source takes its own numbers."""
    count: int


def _shares_of(facts: Facts, source: Stage, takers: Sequence[Stage]) -> Iterator[Shares]:
    """Of everybody who must get a sample."""
    mesh = facts.meshes.get(source.component)
    if source.is_source and mesh is not None and not source.dispatch.allow_empty:
        yield Shares(source, _producers(facts, source).count(mesh))
    if COLLECT[collect_of(facts, source)].join not in ("samples", "first"):
        return
    for stage in takers:
        theirs, dispatch = facts.meshes.get(stage.component), _lead_of(facts, stage)
        if theirs is not None and not dispatch.allow_empty and not dispatch.home:
            speakers = _producers(facts, source).count(mesh) if mesh is not None else 0
            execute = execute_of(facts, stage)
            if execute != "peer" or speakers:
                yield Shares(stage, part_count(theirs, EXECUTE[execute], DISPATCH[dispatch.mode], speakers))


def enough_samples(facts: Facts) -> Iterator[Diagnostic]:
    """Where the count is known, every share gets one, or the dispatch says `allow_empty`."""
    takers = _takers(facts)
    for source in _calls(facts):
        few = [
            taken
            for taken in _shares_of(facts, source, takers.get(source.name, ()))
            if 0 < source.samples < taken.count
        ]
        if few:
            yield _too_few(facts, source, few)


def _too_few(facts: Facts, source: Stage, few: list[Shares]) -> Diagnostic:
    """One for the count, with a place for everybody who shares it out."""
    components = {taken.stage.component: taken.count for taken in few}
    gives = f"stage `{source.name}` gives {counted(source.samples, 'sample')}"
    message = f"{gives}, too few for the shares of {listed(components)}"
    if len(components) == 1:
        (component, count), *_ = components.items()
        message = f"{gives}, `{component}` shares them among {count}"
    says = tuple(
        facts.key("components", name).with_word(f"`{name}` has {counted(count, 'share')}")
        for name, count in components.items()
    )
    help = f"give at least {max(components.values())}, or say `dispatch: {{allow_empty: true}}`"
    named = [facts.recipe.components[name] for name in components]
    if len(named) == 1 and isinstance(named[0].parallel, Sizes) and named[0].parallel.given:
        options = LayoutNeeds(facts, named[0], named[0].parallel).help
        help = f"{help}; {options}" if options else help
    return Diagnostic("MC541", message, facts.value("pipeline", source.name, "samples"), says, help)


def together(facts: Facts) -> Iterator[Diagnostic]:
    """Samples made from one stay together: there are as many groups as shares."""
    takers, known = _takers(facts), dict[str, int]()
    for source in _calls(facts):
        groups = _groups(facts, source, known) if source.name in takers else 0
        for stage in takers[source.name] if groups else ():
            mesh, given = facts.meshes.get(stage.component), facts.lead_input(stage)
            if mesh is None or given is None or execute_of(facts, stage) != "all":
                continue
            dispatch = dispatch_of(facts, stage, given)
            count = DISPATCH[dispatch.mode].share_count(mesh)
            if groups < count <= source.samples and not (
                dispatch.allow_empty or dispatch.split_groups or dispatch.home
            ):
                are = f"the {source.samples} samples of `{source.name}` are {counted(groups, 'group')}"
                span = facts.value("pipeline", stage.name, *input_path(given, 0))
                says = facts.value("pipeline", source.name, "samples").with_word(
                    f"{source.samples // groups} samples from each of {groups}"
                )
                help = "say `dispatch: {split_groups: true}`, or `allow_empty: true`, or begin with more"
                yield Diagnostic(
                    "MC542", f"{are}, `{stage.component}` has {count} shares", span, (says,), help
                )


def _groups(facts: Facts, stage: Stage, known: dict[str, int]) -> int:
    """How many groups a stage's samples belong to; 0 where there are none, or it is not known. What is found
    is put into `known`."""
    groups, passed = 0, dict[str, None]()
    while stage.name not in passed:
        if stage.name in known:
            groups = known[stage.name]
            break
        passed[stage.name] = None
        before = _before(facts, stage)
        if before is None or not stage.samples or not before.samples:
            break
        if stage.samples != before.samples:
            groups = before.samples if stage.samples % before.samples == 0 else 0
            break
        stage = before
    known |= dict.fromkeys(passed, groups)
    return groups


def filled_pipelines(facts: Facts) -> Iterator[Diagnostic]:
    """A data rank has at least one sample for each stage of its pipeline parallelism: else some wait in every
    step."""
    for stage in _calls(facts):
        mesh = facts.meshes.get(stage.component)
        source = _before(facts, stage)
        if (
            mesh is None
            or source is None
            or mesh.size("pp") == 1
            or execute_of(facts, stage) != "all"
            or not source.samples
        ):
            continue
        if not DISPATCH[_lead_of(facts, stage).mode].is_by_data_rank:
            continue
        each = -(-source.samples // mesh.data_size)
        if mesh.data_size <= source.samples and each < mesh.size("pp"):
            message = f"`{stage.component}` gets {counted(each, 'sample')} a data rank, fewer micro-batches than its pipeline has stages"
            says = _pp(facts, stage.component).with_word(f"{mesh.size('pp')} stages")
            help = f"give at least {mesh.size('pp') * mesh.data_size} samples, or choose a smaller `pp_size`"
            yield Diagnostic(
                "MC543", message, facts.value("pipeline", source.name, "samples"), (says,), help, "warning"
            )


def _pp(facts: Facts, component: str) -> Span:
    return facts.value("components", component, "parallel", "pp_size")


# Joins


@dataclass(frozen=True)
class Origin:
    """Where a stage's samples begin."""

    source: Stage
    times: Times


def same_samples(facts: Facts) -> Iterator[Diagnostic]:
    """What a stage takes together is aligned by sample id: all of it has the same ids."""
    for stage in _calls(facts):
        taken = [(given, name) for given in stage.inputs for name in given.stages]
        batches = [(given, name) for given, name in taken if _is_batch(facts, name)]
        for given in stage.inputs:
            for index, name in enumerate(given.stages if len(given.stages) > 1 else ()):
                yield from _joined(facts, stage, given, index, name)
        if not batches:
            continue
        (first, lead), *others = batches
        for given, name in others:
            apart = dispatch_of(facts, stage, given).mode == "all" != dispatch_of(facts, stage, first).mode
            if (
                not apart
                and name != lead
                and (why := _differ(facts, lead, name) or _unlike(facts, stage, lead, name))
            ):
                span = facts.value("pipeline", stage.name, *input_path(given, given.stages.index(name)))
                message = f"stage `{stage.name}` takes `{lead}` and `{name}` together, which are not the same samples: {why[0]}"
                yield Diagnostic(
                    "MC536",
                    message,
                    span,
                    why[1],
                    "take stages whose samples come from one source, one for one",
                )


def _joined(facts: Facts, stage: Stage, given: Input, index: int, name: str) -> Iterator[Diagnostic]:
    """A list joins batches."""
    other = facts.recipe.pipeline.get(name)
    collect = collect_of(facts, other) if other and other.kind == "call" else ""
    if other is None or collect not in (*REDUCED, *LISTS) or not facts.is_valid("pipeline", name):
        return
    gives = "numbers" if collect in REDUCED else "a list of its workers' values"
    span = facts.value("pipeline", stage.name, *input_path(given, index))
    says = facts.key("pipeline", name).with_word(f"`collect` is {collect}")
    help = "give each its own parameter: in: {PARAMETER: STAGE, ...}"
    yield Diagnostic("MC537", f"a list of stages joins batches, `{name}` gives {gives}", span, (says,), help)


def _is_batch(facts: Facts, name: str) -> bool:
    stage = facts.recipe.pipeline.get(name)
    return (
        stage is not None
        and stage.kind == "call"
        and facts.is_valid("pipeline", name)
        and collect_of(facts, stage) == "flatten"
    )


def _differ(facts: Facts, one: str, other: str) -> tuple[str, tuple[Span, ...]] | None:
    """Why two stages cannot have the same samples, and where that is said; none where they may."""
    stages = [facts.recipe.pipeline[name] for name in (one, other)]
    counts = [stage.samples for stage in stages]
    if all(counts) and counts[0] != counts[1]:
        spans = [
            facts.value("pipeline", stage.name, "samples").with_word(f"{stage.samples} samples")
            for stage in stages
        ]
        return f"{counts[0]} and {counts[1]}", tuple(spans)
    origins = [_origin(facts, stage) for stage in stages]
    if origins[0] is None or origins[1] is None or origins[0].source.name == origins[1].source.name:
        return None
    sources = [origin.source for origin in origins if origin]
    if sources[0].samples != sources[1].samples and all(source.samples for source in sources):
        spans = [
            facts.value("pipeline", source.name, "samples").with_word(f"{source.samples} a step")
            for source in sources
        ]
        return (
            f"their sources `{sources[0].name}` and `{sources[1].name}` give different numbers of them",
            tuple(spans),
        )
    if origins[0].times != origins[1].times:
        spans = [
            facts.key("pipeline", source.name).with_word(f"runs {origin.times}")
            for source, origin in zip(sources, origins, strict=True)
            if origin
        ]
        return f"their sources `{sources[0].name}` and `{sources[1].name}` run at different times", tuple(
            spans
        )
    return None


def _unlike(facts: Facts, stage: Stage, one: str, other: str) -> tuple[str, tuple[Span, ...]] | None:
    """Why a worker that hears only its own producers does not hear the same samples from both; none where it
    may."""
    if execute_of(facts, stage) != "peer":
        return None
    stages = [facts.recipe.pipeline[name] for name in (one, other)]
    meshes = [facts.meshes.get(stage.component) for stage in stages]
    counts = [facts.producers(stage) for stage, mesh in zip(stages, meshes, strict=True) if mesh]
    if len(counts) == 2 and all(counts) and counts[0] != counts[1]:
        spans = [
            facts.key("pipeline", stage.name).with_word(counted(count, "producer"))
            for stage, count in zip(stages, counts, strict=True)
        ]
        return f"`execute: peer`, and {counts[0]} workers give the one, {counts[1]} the other", tuple(spans)
    moved = [other for other in stages if _moved(facts, other)]
    if len(moved) == 1:
        says = facts.value("pipeline", moved[0].name, "dispatch").with_word(
            "here samples go to other workers"
        )
        return f"`execute: peer`, and those of `{moved[0].name}` are on other workers", (says,)
    return None


def _moved(facts: Facts, stage: Stage) -> bool:
    """Whether its samples are not spread evenly in sample order."""
    words = _lead_of(facts, stage)
    return execute_of(facts, stage) == "all" and words.mode != "all" and bool(words.balance or words.home)


def _origin(facts: Facts, stage: Stage) -> Origin | None:
    """The source that a stage's samples come from, over the first stage that each takes."""
    seen: set[str] = set()
    while stage.inputs:
        before = _before(facts, stage)
        if before is None or before.kind != "call" or before.name in seen:
            return None
        seen.add(before.name)
        stage = before
    return Origin(stage, facts.times[stage.name])


def somebody_takes(facts: Facts) -> Iterator[Diagnostic]:
    """A batch that a source gives is taken, where stages take from one another; a number that no stage takes
    is a metric."""
    pipeline = facts.recipe.pipeline
    taken = {name for stage in pipeline.values() for name in stage.takes}
    if not taken or not facts.is_valid("pipeline") or not all(name in pipeline for name in taken):
        return
    for name, stage in pipeline.items():
        if stage.is_source and name not in taken:
            yield Diagnostic(
                "MC539",
                f"no stage takes the batches of `{name}`",
                facts.key("pipeline", name),
                severity="note",
            )


# Modes that go together


def every_sample_once(facts: Facts) -> Iterator[Diagnostic]:
    """What the workers of a stage get and what is collected from them are the same samples, each once."""
    taken = {name for stage in facts.recipe.pipeline.values() for name in stage.takes}
    for stage in _calls(facts):
        mesh, execute = facts.meshes.get(stage.component), execute_of(facts, stage)
        if mesh is None or not stage.inputs or stage.name not in taken:
            continue
        mode, source = _lead_of(facts, stage).mode, _before(facts, stage)
        givers = facts.meshes.get(source.component) if source else None
        producers = facts.producers(source) if source and givers else 0
        if (
            facts.join(stage) == "first"
            and _gives_batch(facts, stage)
            and (who := _alone(facts, stage, mesh, mode, producers))
        ):
            message = f"stage `{stage.name}` hands on the samples of {who} of `{stage.component}`: those of the others are lost"
            span = facts.value(
                "pipeline",
                stage.name,
                "collect" if facts.is_named("pipeline", stage.name, "collect") else "call",
            )
            yield Diagnostic("MC538", message, span, help="say `collect: flatten`", severity="warning")
        if facts.join(stage) != "samples":
            continue
        why = _lost(mesh, mode, stage.component) if execute == "all" else ""
        if execute == "peer" and producers:
            why = _lost_by_peers(mesh, mode, producers, stage.component)
        if why:
            spans = [("pipeline", stage.name, key) for key in ("dispatch", "execute", "call")]
            span = facts.value(*next(path for path in spans if facts.is_named(*path)))
            how = f"`dispatch: {mode}`{' under `execute: peer`' if execute == 'peer' else ''}"
            message = f"{how} and `collect: {collect_of(facts, stage)}` of stage `{stage.name}`: {why}"
            help = "say `dispatch: slice_dp`" if execute == "all" else "say `execute: all`"
            yield Diagnostic("MC538", message, span, help=help, severity="warning")


def _alone(facts: Facts, stage: Stage, mesh: DeviceMesh, mode: str, producers: int) -> str:
    """Whose samples a stage hands on that collects one worker's, where others get samples, too; empty where
    that worker gets them all."""
    execute = execute_of(facts, stage)
    if execute == "all" and DISPATCH[mode].share_count(mesh) > 1:
        return "data rank 0" if mode == "slice_dp" else "one worker"
    if execute == "peer" and producers:
        one = _producers(facts, stage).rank_at(mesh, 0)
        heard = producers_of(mesh, EXECUTE[execute], producers, one)
        span = workers_of(mesh, EXECUTE[execute], heard[0], producers) if heard else range(0)
        several = sum(map(len, DISPATCH[mode].shares_of(mesh, span))) > 1 if span else False
        return "one worker" if len(heard) < producers or several else ""
    return ""


def _gives_batch(facts: Facts, stage: Stage) -> bool:
    gives = facts.endpoint(stage).signature.gives
    return gives is not None and "batch" in gives.kinds


def _lost(mesh: DeviceMesh, mode: str, component: str) -> str:
    if mode == "all" and mesh.data_size > 1:
        return f"each of the {mesh.data_size} data ranks of `{component}` gives all samples, so each comes {mesh.data_size} times"
    if mode == "slice" and mesh.world_size > mesh.data_size:
        others = f"and {mesh.data_size} of them are heard: the samples of the others are lost"
        return f"{mesh.world_size} workers of `{component}` get different samples, {others}"
    return ""


def _lost_by_peers(mesh: DeviceMesh, mode: str, producers: int, component: str) -> str:
    """The same where each producer speaks to its own workers: looked at by sharing samples out, where there
    are few."""
    if mesh.world_size > FEW or producers > FEW:
        return ""
    each = range(mesh.world_size)
    table = SampleTable(tuple(tuple((producer, number) for number in each) for producer in range(producers)))
    heard = samples_by_rank(EXECUTE["peer"], DISPATCH[mode], Dispatch(mode, allow_empty=True), mesh, table)
    times = Counter(
        sample
        for data_rank in range(mesh.data_size)
        for sample in heard.get(mesh.representative(data_rank), ())
    )
    if any(count > 1 for count in times.values()):
        return f"several data ranks of `{component}` give the same samples"
    lost = producers * len(each) - len(times)
    return f"not all workers of `{component}` that get samples are heard: some are lost" if lost else ""


def words_with_effect(facts: Facts) -> Iterator[Diagnostic]:
    """A word of `dispatch` and `execute` that changes nothing was meant otherwise."""
    for stage in _calls(facts):
        if stage.is_source:
            yield from _of_a_source(facts, stage)
            continue
        execute = execute_of(facts, stage)
        for given in stage.inputs:
            path = (
                ("pipeline", stage.name, "in", given.parameter, "dispatch")
                if given.dispatch
                else ("pipeline", stage.name, "dispatch")
            )
            words, mode = given.dispatch or stage.dispatch, dispatch_of(facts, stage, given).mode
            one_share = (
                "`execute: first` calls one worker"
                if execute == "first"
                else "`all` cuts no shares"
                if mode == "all"
                else ""
            )
            for key, said in _shaping(words):
                if said and one_share and (key != "home" or execute == "first"):
                    yield _idle(facts, f"`{key}` changes nothing: {one_share}", *path, key)
            if words.home and not one_share:
                for key in (
                    key for key, said in _shaping(words) if said and key in ("balance", "equal_counts")
                ):
                    yield _idle(
                        facts, f"`{key}` changes nothing: `home` says where each sample goes", *path, key
                    )
            elif words.equal_counts and not words.balance and not one_share:
                yield _idle(
                    facts,
                    "`equal_counts` changes nothing: without `balance` counts are equal already",
                    *path,
                    "equal_counts",
                )


def _shaping(words: DispatchWords) -> Iterator[tuple[str, object]]:
    """The words of a dispatch that say how shares are cut, with what is said."""
    return ((key, getattr(words, key)) for key in ("balance", "home", "split_groups", "equal_counts"))


def _of_a_source(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    words, path = stage.dispatch, ("pipeline", stage.name, "dispatch")
    node = facts.written.node(*path)
    if node is not None and not node.is_mapping:
        yield _idle(facts, f"`dispatch` changes nothing: stage `{stage.name}` takes nothing", *path)
    for key, said in (("mode", words.mode), *_shaping(words)):
        if node is not None and node.is_mapping and said:
            yield _idle(facts, f"`{key}` changes nothing: stage `{stage.name}` takes nothing", *path, key)
    if stage.execute == "peer":
        yield _idle(
            facts,
            f"`execute: peer` changes nothing: stage `{stage.name}` takes nothing",
            "pipeline",
            stage.name,
            "execute",
        )


def _idle(facts: Facts, message: str, *path: str) -> Diagnostic:
    return Diagnostic("MC525", message, facts.key(*path), help="remove it", severity="warning")


RULES = (
    enough_samples,
    together,
    filled_pipelines,
    same_samples,
    somebody_takes,
    every_sample_once,
    words_with_effect,
)
