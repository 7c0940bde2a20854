"""MC534 and MC535: `home`, which sends each sample back to the data rank that produced it in an earlier
stage."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.dataclass import dataclass
from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.model import DispatchWords, Stage
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import counted
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import DISPATCH, EXECUTE, DispatchMode

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


RULES = (home_made_samples,)
