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

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.model import DispatchWords, Input, Sizes, Stage
from meshctl.recipe.rules.facts import Facts, KnownCall, input_path
from meshctl.recipe.rules.meshes import Placed
from meshctl.recipe.rules.rollouts import own_columns
from meshctl.text.english import counted, listed
from meshctl.topology.consumers import samples_by_rank
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import (
    DISPATCH,
    EXECUTE,
    Dispatch,
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
        mesh, source = facts.meshes.get(stage.component), facts.lead_stage(stage)
        split = _split_peers(facts, stage)
        if mesh is None or source is None or split is None:
            continue
        sizes = {dim: mesh.size(dim) for dim in ("pp", "cp", "tp")} | {"ulysses": mesh.ulysses_size}
        dims = ", ".join(f"{dim} {size}" for dim, size in sizes.items() if size > 1)
        layout = facts.key("components", stage.component, "parallel")
        seconds = (
            layout.with_word(f"`{stage.component}` has {dims}"),
            facts.key("pipeline", source.name).with_word(f"{facts.producers(source)} workers give its value"),
        )
        execute = facts.modes[stage.name].execute
        gives = f"`execute: {execute}` of stage `{stage.name}` gives ranks {split[0]} and {split[1]}"
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


def every_sample_comes_once(facts: Facts, stage: KnownCall) -> Iterator[Diagnostic]:
    """Each sample that the workers of a stage receive is collected exactly once."""
    mesh, modes = facts.meshes.get(stage.component), facts.modes[stage.name]
    collect, execute, gives = modes.collect_mode, modes.execute_mode, facts.endpoint(stage).signature.returns
    is_first = collect.is_first and gives is not None and "batch" in gives.kinds
    if mesh is None or not stage.inputs or stage.name not in facts.taken or execute.is_single:
        return
    if not (is_first or collect.is_batch) or _split_peers(facts, stage) is not None:
        return  # another rule reports split peers
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


def keys_have_effect(facts: Facts, stage: KnownCall) -> Iterator[Diagnostic]:
    """Every stated value of `dispatch` and `execute` has an effect."""
    idle = [*_unused_without_inputs(facts, stage)] if not stage.inputs else []
    idle += [one for given in stage.inputs for one in _unused_keys_of_input(facts, stage, given)]
    for what, why, *path in idle:
        message, span = f"`{what}` has no effect: {why}", facts.key("pipeline", stage.name, *path)
        yield Diagnostic("MC525", message, span, help="remove it", severity="warning")


def _partitioning(words: DispatchWords) -> list[str]:
    """Returns the stated keys of a dispatch that determine how a batch is partitioned."""
    return [key for key in ("balance", "home", "split_groups", "equal_counts") if getattr(words, key)]


def _unused_keys_of_input(facts: Facts, stage: Stage, given: Input) -> Iterator[tuple[str, ...]]:
    """Yields (key, why it has no effect, *its key path below the stage)."""
    path = ("in", given.parameter, "dispatch") if given.dispatch else ("dispatch",)
    words, mode = given.dispatch or stage.dispatch, facts.dispatch(stage, given).mode
    is_single = facts.modes[stage.name].execute_mode.is_single
    for key in _partitioning(words):
        why = ""
        if is_single:
            why = "`execute: first` calls one worker"
        elif not DISPATCH[mode].cuts_samples:
            why = f"`{mode}` does not partition the samples" if key != "home" else ""
        elif words.home:
            why = "`home` decides where each sample goes" if key in ("balance", "equal_counts") else ""
        elif key == "equal_counts" and not words.balance:
            why = "without `balance`, counts are always equal"
        if why:
            yield key, why, *path, key


def _unused_without_inputs(facts: Facts, stage: Stage) -> Iterator[tuple[str, ...]]:
    words, node = stage.dispatch, facts.node("pipeline", stage.name, "dispatch")
    why = f"stage `{stage.name}` has no input"
    if node is not None and not node.is_mapping:
        yield "dispatch", why, "dispatch"
    elif node is not None:
        for key in (*(["mode"] if words.mode else []), *_partitioning(words)):
            yield key, why, "dispatch", key
    if stage.is_without_data and stage.samples:
        yield "samples", why, "samples"
    if stage.execute and EXECUTE[stage.execute].is_per_producer:
        yield f"execute: {stage.execute}", why, "execute"


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


def home_made_samples(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """The samples of a stage with `home` come from the home stage, which has the same group and the same
    number of shares."""
    pipeline, components = facts.recipe.pipeline, facts.recipe.components
    for one in homes_of(stage):
        if one.home not in pipeline or stage.name in one.sources:
            continue
        span, name = facts.value("pipeline", stage.name, *one.path), stage.name
        own, maker = components.get(stage.component), components.get(pipeline[one.home].component)
        if own and maker and own.group != maker.group:
            if not {own.group, maker.group} <= {*facts.recipe.groups}:
                continue
            seconds = facts.key("pipeline", one.home).with_word(f"`{one.home}` runs on `{maker.group}`")
            message = f"`home` of stage `{name}` (on `{own.group}`) must be a stage of the same group"
            yield Diagnostic("MC535", message, span, (seconds,), "write a stage of the same group")
        elif strangers := [source for source in one.sources if not _passed(facts, source, one.home)]:
            why = f"do not come from `{one.home}`, so none has a rank there"
            message = f"the samples of `{strangers[0]}` {why}"
            help = "write a stage that it takes, directly or through others"
            yield Diagnostic("MC535", message, span, help=help)
        elif own and maker and facts.is_valid("pipeline", name):
            yield from _shares_match(facts, one, maker.name, span)


def _passed(facts: Facts, source: str, home: str) -> bool:
    """Returns whether a stage's samples come from the home stage, directly or through other stages. True for
    a stage that does not exist."""
    seen, pending = set[str](), [source] if source in facts.recipe.pipeline else [home]
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
    elif moved := [
        rank
        for rank in range(min(ranks, MAX_DATA_RANKS))
        if mode.share_of(mesh, home_mesh.representative(rank)) != rank
    ]:
        worker = home_mesh.representative(moved[0])
        where = f"data rank {moved[0]} is worker {worker} there, which has another share here"
        yield Diagnostic("MC535", f"{homes}, and {where}", span, (seconds,), same_layout)
    elif 0 < made.samples < ranks and not one.words.allow_empty:
        few = facts.value("pipeline", made.name, "samples").with_word(counted(made.samples, "sample"))
        help = "write `allow_empty: true` here too, or produce more samples"
        yield Diagnostic("MC535", f"{homes}, some of which produce none", span, (few,), help)


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
            proposals = Placed(facts, component).help
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


def pipelines_are_filled(facts: Facts, stage: KnownCall) -> Iterator[Diagnostic]:
    """Every data rank has at least as many samples as pipeline stages. Otherwise some pipeline stages are
    idle in every step."""
    mesh, source, name = facts.meshes.get(stage.component), facts.lead_stage(stage), stage.component
    if mesh is None or source is None or mesh.size("pp") == 1:
        return
    is_by_data_rank = DISPATCH[facts.lead_dispatch(stage).mode].is_by_data_rank
    if not is_by_data_rank or not facts.modes[stage.name].execute_mode.is_joint:
        return
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


def joined_stages_give_batches(facts: Facts, stage: KnownCall) -> Iterator[Diagnostic]:
    """A list of stages contains only stages that return batches, whose columns can be joined, and no two
    sources with a column of the same name."""
    for given in (one for one in stage.inputs if len(one.stages) > 1):
        first: dict[str, str] = {}
        for index, name in enumerate(given.stages):
            source = facts.recipe.pipeline.get(name)
            span = facts.value("pipeline", stage.name, *input_path(given, index))
            columns = own_columns(facts, source) if source is not None and not source.inputs else ()
            if twice := sorted(column for column in columns or () if first.setdefault(column, name) != name):
                message = f"the sources `{first[twice[0]]}` and `{name}` both have {listed(twice)}"
                help = "name the files of both in one `path`, such as `data/*.jsonl`, or use two stages"
                yield Diagnostic("MC537", message, span, help=help)
            if source is None or source.kind != "call" or not facts.is_valid("pipeline", name):
                continue
            modes = facts.modes[name]
            if modes.are_known and (modes.collect_mode.is_reduced or modes.collect_mode.is_list):
                gives = "numbers" if modes.collect_mode.is_reduced else "a list of its workers' values"
                seconds = (facts.key("pipeline", name).with_word(f"`collect` is {modes.collect}"),)
                message = f"a list of stages joins batches, but `{name}` produces {gives}"
                help = "use one parameter for each: in: {PARAMETER: STAGE, ...}"
                yield Diagnostic("MC537", message, span, seconds, help)


def inputs_have_same_samples(facts: Facts, stage: KnownCall) -> Iterator[Diagnostic]:
    """All inputs of a stage have the same sample ids, because they are aligned by id."""
    taken = [(given, name) for given in stage.inputs for name in given.stages]
    batches = [(given, name) for given, name in taken if _is_batch(facts, name)]
    for given, name in batches[1:]:
        first, lead = batches[0]
        # An input that is sent whole, while the lead input is divided, needs no common samples.
        cuts = [DISPATCH[facts.dispatch(stage, one).mode].cuts_samples for one in (first, given)]
        if name == lead or cuts == [True, False]:
            continue
        span = facts.value("pipeline", stage.name, *input_path(given, given.stages.index(name)))
        both = f"stage `{stage.name}` takes `{lead}` and `{name}` together"
        if difference := _difference(facts, lead, name):
            why, seconds = difference
            message = f"{both}, but their samples differ: {why}"
            help = "take stages that have the same samples of one source"
            yield Diagnostic("MC536", message, span, seconds, help)
        else:
            yield from _counts_are_unlikely(facts, both, span, lead, name)
            yield from _shares_may_differ(facts, stage, both, span, lead, name)


def _is_batch(facts: Facts, name: str) -> bool:
    stage = facts.recipe.pipeline.get(name)
    if stage is None or stage.kind != "call" or not facts.is_valid("pipeline", name):
        return False
    if not facts.modes[name].are_known:
        return False
    collect, returns = facts.modes[name].collect_mode, facts.endpoint(stage).signature.returns
    return collect.is_batch or (collect.is_first and returns is not None and returns.is_batch)


def _difference(facts: Facts, one: str, other: str) -> tuple[str, tuple[Span, ...]] | None:
    """Returns (reason, places) why the samples of two stages differ; None if they may be the same."""
    stages = [facts.recipe.pipeline[name] for name in (one, other)]
    first, second = (stage.samples for stage in stages)
    if first and second and first != second:
        return f"{first} and {second}", _counts(facts, stages, "samples")
    lasts = [[*facts.lead_line(stage)][-1] for stage in stages]
    origins = [stage for stage in lasts if not stage.inputs and stage.kind == "call"]
    if len(origins) < 2 or origins[0].name == origins[1].name:
        return None
    first, second = (source.samples for source in origins)
    both = f"their sources `{origins[0].name}` and `{origins[1].name}`"
    if first and second and first != second:
        return f"{both} produce different numbers of samples", _counts(facts, origins, "a step")
    times = [facts.times[source.name] for source in origins]
    if times[0] != times[1]:
        pairs = zip(origins, times, strict=True)
        spans = [facts.key("pipeline", source.name).with_word(f"runs {when}") for source, when in pairs]
        return f"{both} run at different times", tuple(spans)
    return None


def _counts_are_unlikely(facts: Facts, both: str, span: Span, lead: str, name: str) -> Iterator[Diagnostic]:
    """Warns if the numbers of samples of two inputs differ, where they are known only from earlier stages."""
    pipeline = facts.recipe.pipeline
    lines = {one: facts.lead_line(pipeline[one]) for one in (lead, name)}
    makers = {one: next((stage for stage in line if stage.samples), None) for one, line in lines.items()}
    counts = {one: maker.samples for one, maker in makers.items() if maker is not None}
    silent = [one for one in counts if not pipeline[one].samples]
    if len(set(counts.values())) < 2 or not silent:
        return
    seconds = tuple(
        facts.value("pipeline", maker.name, "samples").with_word(f"{maker.samples} samples reach `{one}`")
        for one, maker in makers.items()
        if maker is not None
    )
    message = f"{both}, of which {counts[lead]} and {counts[name]} samples are expected"
    help = f"write `samples` in {listed(silent)}, or take stages with the same samples"
    yield Diagnostic("MC536", message, span, seconds, help, "warning")


def _shares_may_differ(
    facts: Facts, stage: Stage, both: str, span: Span, lead: str, name: str
) -> Iterator[Diagnostic]:
    """Warns if two inputs with `execute: peer`, which moves no samples between workers, come to their
    producers by different ways."""
    sources = [facts.recipe.pipeline[one] for one in (lead, name)]
    is_per_producer = facts.modes[stage.name].execute_mode.is_per_producer
    if is_per_producer and _way(facts, sources[0]) != _way(facts, sources[1]):
        message = f"{both} with `execute: peer`, and workers may hold different samples of them"
        seconds = tuple(facts.key("pipeline", source.name) for source in sources)
        help = "write `execute: all`, which moves samples to the workers that need them"
        yield Diagnostic("MC536", message, span, seconds, help, "warning")


def _way(facts: Facts, stage: Stage) -> list[object]:
    """Returns what decides which producer of a stage holds which samples: the mesh and the modes of all
    stages from its source to it."""
    calls = [(one, facts.modes[one.name]) for one in facts.lead_line(stage) if one.kind == "call"]
    return [
        (facts.meshes.get(one.component), mode.execute, mode.collect, facts.lead_dispatch(one))
        for one, mode in calls
    ]


def _counts(facts: Facts, stages: list[Stage], unit: str) -> tuple[Span, ...]:
    spans = [(facts.value("pipeline", stage.name, "samples"), stage.samples) for stage in stages]
    return tuple(span.with_word(f"{samples} {unit}") for span, samples in spans)
