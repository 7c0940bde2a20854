"""MC525, MC528 and MC534 to MC543: the samples that stages exchange: which ranks receive them, how many there
are for how many shares, and whether inputs that are joined by id have the same ones.

The number of samples is known if a stage states `samples`. Samples that a stage produces from the same sample
form a group, which is not divided.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from math import ceil
from typing import NamedTuple

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.model import DispatchWords, Input, Sizes, Stage
from meshctl.recipe.rules.facts import Facts, input_path
from meshctl.recipe.rules.meshes import LayoutNeeds
from meshctl.recipe.rules.rollouts import own_columns
from meshctl.text.english import counted, listed
from meshctl.topology.consumers import samples_by_rank
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import (
    DISPATCH,
    EXECUTE,
    Dispatch,
    DispatchMode,
    part_count,
    producers_of,
    workers_of,
)
from meshctl.topology.samples import SampleTable

MAX_SIMULATED = 64
"""Maximum number of workers and producers for which the samples of each worker are computed."""
MAX_CHECKED = 1024
"""Maximum number of producers and peers that are compared."""


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
    # If workers of different producers belong to one data rank, a first or last worker of a producer does.
    for producer in range(min(producers, MAX_CHECKED)):
        workers = workers_of(mesh, execute, producer, producers)
        for rank in {workers[0], workers[-1]}:
            own = producers_of(mesh, execute, producers, rank)
            peers = mesh.view("data").ranks_along(("pp", "ulysses", "cp", "tp"), rank)
            for peer in islice(peers, MAX_CHECKED):
                if producers_of(mesh, execute, producers, peer) != own:
                    return min(rank, peer), max(rank, peer)
    return None


# Repeated and lost samples


def every_sample_comes_once(facts: Facts) -> Iterator[Diagnostic]:
    """Each sample that the workers of a stage receive is collected exactly once."""
    for stage in facts.known_calls:
        mesh, modes = facts.meshes.get(stage.component), facts.modes[stage.name]
        collect, execute = modes.collect_mode, modes.execute_mode
        is_first = collect.is_first and _gives_batch(facts, stage)
        if mesh is None or not stage.inputs or stage.name not in facts.taken or execute.is_single:
            continue
        if not (is_first or collect.is_batch) or _split_peers(facts, stage) is not None:
            continue  # another rule reports split peers
        why = _why_wrong(facts, stage, mesh)
        keys, help = ["dispatch", "execute"], "write `dispatch: slice_dp`"
        how = f"`dispatch: {facts.lead_dispatch(stage).mode}`"
        if execute.is_per_producer:
            how, help = f"{how} under `execute: {modes.execute}`", "write `execute: all`"
        if is_first:
            keys, help = ["collect"], "write `collect: flatten`"
        if why:
            message = f"{how} and `collect: {modes.collect}` of stage `{stage.name}`: {why}"
            span = _key_of(facts, stage, *keys)
            yield Diagnostic("MC538", message, span, help=help, severity="warning")


def _gives_batch(facts: Facts, stage: Stage) -> bool:
    gives = facts.endpoint(stage).signature.returns
    return gives is not None and "batch" in gives.kinds


def _why_wrong(facts: Facts, stage: Stage, mesh: DeviceMesh) -> str:
    """Returns why a sample is not collected exactly once; empty if it is, or if this is unknown. With
    `execute: peer`, computes the samples of each worker if there are at most `MAX_SIMULATED`."""
    modes, options, source = facts.modes[stage.name], facts.lead_dispatch(stage), facts.lead_stage(stage)
    execute, mode, collected = modes.execute_mode, DISPATCH[options.mode], modes.producer_count(mesh)
    producers = facts.producers(source) if source else 0
    is_repeated = is_lost = False
    if execute.is_joint:
        shares = mode.share_count(mesh)
        is_repeated, is_lost = collected > shares, collected < shares
    elif 0 < producers <= MAX_SIMULATED >= mesh.world_size:
        numbers = range(mesh.world_size)
        table = SampleTable(tuple(tuple((one, number) for number in numbers) for one in range(producers)))
        received = samples_by_rank(execute, mode, Dispatch(options.mode, allow_empty=True), mesh, table)
        ranks = modes.producers.ranks(mesh)
        times = Counter(sample for rank in ranks for sample in received.get(rank, ()))
        is_repeated, is_lost = max(times.values(), default=0) > 1, len(times) < producers * len(numbers)
    if is_repeated:
        return f"several workers of `{stage.component}` return the same samples, which are all collected"
    who = f"{counted(collected, 'worker')} of `{stage.component}`"
    return f"the value has the samples of {who} only; those of the others are lost" if is_lost else ""


# Keys without effect


def keys_have_effect(facts: Facts) -> Iterator[Diagnostic]:
    """Every stated value of `dispatch` and `execute` has an effect."""
    for stage in facts.known_calls:
        if not stage.inputs:
            yield from _idle_words_without_inputs(facts, stage)
        for given in stage.inputs:
            yield from _unused_keys_of_input(facts, stage, given)


def _partitioning(words: DispatchWords) -> list[str]:
    """Returns the stated keys of a dispatch that determine how a batch is partitioned."""
    return [key for key in ("balance", "home", "split_groups", "equal_counts") if getattr(words, key)]


def _unused_keys_of_input(facts: Facts, stage: Stage, given: Input) -> Iterator[Diagnostic]:
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


MAX_DATA_RANKS = 64
"""Maximum number of data ranks that are checked one by one."""


@dataclass(frozen=True)
class Home:
    """One `home` key of a recipe."""

    stage: Stage
    """The stage whose samples are sent home."""
    home: str
    """The stage that produced them."""
    words: DispatchWords
    path: tuple[str, ...]
    """The key path of `home` below the stage."""
    sources: tuple[str, ...]
    """The stages from which these samples come."""


def homes_of(stage: Stage) -> Iterator[Home]:
    """Yields the `home` keys of a stage: that of its `dispatch`, and those of its inputs."""
    if stage.dispatch.home:
        plain = [given for given in stage.inputs if given.dispatch is None]
        sources = tuple(name for given in plain for name in given.stages)
        yield Home(stage, stage.dispatch.home, stage.dispatch, ("dispatch", "home"), sources)
    for given in stage.inputs:
        if given.dispatch and given.dispatch.home:
            path = ("in", given.parameter, "dispatch", "home")
            yield Home(stage, given.dispatch.home, given.dispatch, path, given.stages)


def home_made_samples(facts: Facts) -> Iterator[Diagnostic]:
    """The samples of a stage with `home` come from the home stage, which has the same group and the same
    number of shares."""
    pipeline, components = facts.recipe.pipeline, facts.recipe.components
    for one in (one for stage in pipeline.values() for one in homes_of(stage)):
        if one.home not in pipeline or one.stage.name in one.sources:
            continue
        span, name = facts.value("pipeline", one.stage.name, *one.path), one.stage.name
        own, maker = components.get(one.stage.component), components.get(pipeline[one.home].component)
        strangers = [
            source for source in one.sources if source in pipeline and not _passed(facts, source, one.home)
        ]
        if own and maker and own.group != maker.group:
            if not {own.group, maker.group} <= {*facts.recipe.groups}:
                continue
            seconds = facts.key("pipeline", one.home).with_word(f"`{one.home}` runs on `{maker.group}`")
            message = f"`home` of stage `{name}` (on `{own.group}`) must be a stage of the same group"
            yield Diagnostic("MC535", message, span, (seconds,), "write a stage of the same group")
        elif strangers:
            message = (
                f"the samples of `{strangers[0]}` do not come from `{one.home}`, so none has a rank there"
            )
            help = "write a stage that it takes, directly or through others"
            yield Diagnostic("MC535", message, span, help=help)
        elif own and maker and facts.is_valid("pipeline", name):
            yield from _shares_match(facts, one, maker.name, span)


def _passed(facts: Facts, source: str, home: str) -> bool:
    """Returns whether a stage's samples come from the home stage, directly or through other stages."""
    seen: set[str] = set()
    pending = [source]
    while pending:
        here = pending.pop()
        if here == home:
            return True
        stage = facts.recipe.pipeline.get(here)
        if stage is not None and here not in seen:
            seen.add(here)
            lead = facts.lead_input(stage)
            pending += lead.stages if lead else ()
    return False


def _shares_match(facts: Facts, one: Home, maker: str, span: Span) -> Iterator[Diagnostic]:
    """The stage has one share per data rank of the home stage, on the same workers, and no share is empty."""
    name, component, made = one.stage.name, one.stage.component, facts.recipe.pipeline[one.home]
    mesh, home_mesh = facts.meshes.get(component), facts.meshes.get(maker)
    mode = DISPATCH.get(one.words.with_default(facts.endpoint(one.stage).dispatch).mode)
    execute = EXECUTE.get(facts.modes[name].execute)
    if mesh is None or home_mesh is None or mode is None or execute is None or execute.is_single:
        return
    made_by = EXECUTE.get(facts.modes[made.name].execute)
    is_spread = facts.join(made) == "samples" and made_by is not None and not made_by.is_single
    ranks, shares = home_mesh.data_size if is_spread else 1, mode.share_count(mesh)
    seconds = facts.key("components", maker).with_word(f"`{maker}` has {counted(ranks, 'data rank')}")
    if ranks < home_mesh.data_size:
        seconds = facts.key("pipeline", made.name).with_word("one worker produces its samples")
    homes = f"the samples of stage `{name}` come from {counted(ranks, 'data rank')} of `{maker}`"
    same_layout = "give both the same layout: `parallel: COMPONENT`"
    if execute.is_per_producer:
        if ranks > 1:
            sends = f"`execute: peer` sends the samples of stage `{name}` to their producer's workers"
            yield Diagnostic(
                "MC535", f"{sends}, not to the rank of `home`", span, (seconds,), "write `execute: all`"
            )
    elif ranks > shares or (ranks < shares and not one.words.allow_empty):
        message = f"{homes}, but `{component}` has {counted(shares, 'share')}"
        yield Diagnostic("MC535", message, span, (seconds,), same_layout)
    elif (moved := _first_moved(mode, mesh, home_mesh, ranks)) is not None:
        worker = home_mesh.representative(moved)
        where = f"data rank {moved} is worker {worker} there, which has another share here"
        yield Diagnostic("MC535", f"{homes}, and {where}", span, (seconds,), same_layout)
    elif 0 < made.samples < ranks and not one.words.allow_empty:
        few = facts.value("pipeline", made.name, "samples").with_word(counted(made.samples, "sample"))
        help = "write `allow_empty: true` here too, or produce more samples"
        yield Diagnostic("MC535", f"{homes}, some of which produce none", span, (few,), help)


def _first_moved(mode: DispatchMode, mesh: DeviceMesh, home: DeviceMesh, ranks: int) -> int | None:
    """Returns the first data rank whose samples would reach other workers than those that produced them; None
    if there is none. Only the first data ranks are checked, because different meshes differ there."""
    for data_rank in range(min(ranks, MAX_DATA_RANKS)):
        if mode.share_of(mesh, home.representative(data_rank)) != data_rank:
            return data_rank
    return None


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
    groups, passed = 0, list[str]()
    for here, before in pairwise(facts.lead_line(stage)):
        if here.name in known:
            groups = known[here.name]
            break
        passed.append(here.name)
        if here.samples != before.samples or not here.samples:
            is_known = before.samples and here.samples % before.samples == 0 and before.name not in too_few
            groups = before.samples if here.samples and is_known else 0
            break
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
                    yield from _joins_batch(facts, stage, given, index, name)


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


def _joins_batch(facts: Facts, stage: Stage, given: Input, index: int, name: str) -> Iterator[Diagnostic]:
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
    calls = [one for one in facts.lead_line(stage) if one.kind == "call"]
    modes = [facts.modes[one.name] for one in calls]
    return [
        (facts.meshes.get(one.component), mode.execute, mode.collect, facts.lead_dispatch(one))
        for one, mode in zip(calls, modes, strict=True)
    ]


def _maker(facts: Facts, stage: Stage) -> Stage | None:
    """Returns the nearest stage, on the path from `stage` to its source, that states `samples`."""
    return next((one for one in facts.lead_line(stage) if one.samples), None)


def _counts(facts: Facts, stages: list[Stage], unit: str) -> tuple[Span, ...]:
    spans = (facts.value("pipeline", stage.name, "samples") for stage in stages)
    return tuple(span.with_word(f"{stage.samples} {unit}") for span, stage in zip(spans, stages, strict=True))


def _origin(facts: Facts, stage: Stage) -> Stage | None:
    """Returns the source of a stage's samples, found through the lead inputs."""
    *_, last = facts.lead_line(stage)
    return None if last.inputs or last.kind != "call" else last
