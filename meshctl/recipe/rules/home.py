"""MC534 and MC535: `home`, which sends each sample back to the data rank that made it in an earlier stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.fixes import renamed
from meshctl.recipe.model import DispatchWords, Stage
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import counted, did_you_mean
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import DISPATCH, DispatchMode

FEW = 64
"""So many data ranks are looked at one by one."""


@dataclass(frozen=True)
class Home:
    """One `home:` of a recipe."""

    stage: Stage
    """Whose samples go home."""
    home: str
    """Where to."""
    words: DispatchWords
    path: tuple[str, ...]
    """Below the stage."""
    taken: tuple[str, ...]
    """The stages that these samples come from."""


def _homes(facts: Facts) -> Iterator[Home]:
    for stage in facts.recipe.pipeline.values():
        own = tuple(name for given in stage.inputs if given.dispatch is None for name in given.stages)
        if stage.dispatch.home:
            yield Home(stage, stage.dispatch.home, stage.dispatch, ("dispatch", "home"), own)
        for given in stage.inputs:
            if given.dispatch and given.dispatch.home:
                path = ("in", given.parameter, "dispatch", "home")
                yield Home(stage, given.dispatch.home, given.dispatch, path, given.stages)


def known_home(facts: Facts) -> Iterator[Diagnostic]:
    """It names a stage."""
    for one in _homes(facts):
        if not facts.names("pipeline", one.home):
            span = facts.value("pipeline", one.stage.name, *one.path)
            others = [other for other in facts.recipe.pipeline if other != one.stage.name]
            help, fixes = did_you_mean(one.home, others), renamed(span, one.home, others)
            yield Diagnostic(
                "MC534", f"there is no stage `{one.home}` to be home", span, help=help, fixes=fixes
            )


def right_home(facts: Facts) -> Iterator[Diagnostic]:
    """The samples passed that stage, on workers of the same group, cut into as many shares."""
    pipeline, components = facts.recipe.pipeline, facts.recipe.components
    for one in _homes(facts):
        if one.home not in pipeline:
            continue
        span, name = facts.value("pipeline", one.stage.name, *one.path), one.stage.name
        mine, maker = components.get(one.stage.component), components.get(pipeline[one.home].component)
        strangers = [
            source for source in one.taken if source in pipeline and not _passed(facts, source, one.home)
        ]
        if mine and maker and mine.group != maker.group:
            says = facts.key("pipeline", one.home).with_word(f"`{one.home}` runs on `{maker.group}`")
            message = f"stage `{name}` runs on `{mine.group}`, its samples have no home in `{one.home}`"
            yield Diagnostic("MC535", message, span, (says,), "name a stage of the same group")
        elif strangers:
            help = "name a stage that it takes, or that those take"
            yield Diagnostic(
                "MC535",
                f"the samples of `{strangers[0]}` did not pass `{one.home}`, they have no home there",
                span,
                help=help,
            )
        elif mine and maker and facts.right("pipeline", name):
            yield from _shares(facts, one, maker.name)


def _shares(facts: Facts, one: Home, maker: str) -> Iterator[Diagnostic]:
    """As many as there are data ranks where the samples are at home, on the same workers, and none without a
    sample."""
    mesh, home, made = (
        facts.meshes.get(one.stage.component),
        facts.meshes.get(maker),
        facts.recipe.pipeline[one.home],
    )
    mode = DISPATCH.get(one.words.with_default(facts.endpoint(one.stage).dispatch).mode)
    execute = _execute(facts, one.stage)
    if mesh is None or home is None or mode is None or execute == "first":
        return
    span = facts.value("pipeline", one.stage.name, *one.path)
    ranks, shares = (
        home.data_size if facts.join(made) == "samples" and _execute(facts, made) != "first" else 1,
        mode.shares(mesh),
    )
    says = facts.key("components", maker).with_word(f"`{maker}` has {counted(ranks, 'data rank')}")
    if ranks < home.data_size:
        says = facts.key("pipeline", made.name).with_word("one worker gives its samples")
    homes = (
        f"the samples of stage `{one.stage.name}` have homes on {counted(ranks, 'data rank')} of `{maker}`"
    )
    alike = "give both the same layout: `parallel: COMPONENT`"
    if execute == "peer" and ranks > 1:
        message = f"`execute: peer` sends the samples of stage `{one.stage.name}` to their producer's workers, and not home"
        yield Diagnostic("MC535", message, span, (says,), "say `execute: all`")
    elif execute == "all" and (ranks > shares or (ranks < shares and not one.words.allow_empty)):
        yield Diagnostic(
            "MC535", f"{homes}, `{one.stage.component}` has {counted(shares, 'share')}", span, (says,), alike
        )
    elif execute == "all" and (moved := _moved(mode, mesh, home, ranks)) is not None:
        message = f"{homes}, and the home of data rank {moved} is worker {home.representative(moved)}, not one of share {moved}"
        yield Diagnostic("MC535", message, span, (says,), alike)
    elif execute == "all" and 0 < made.samples < ranks and not one.words.allow_empty:
        few = facts.value("pipeline", made.name, "samples").with_word(counted(made.samples, "sample"))
        help = "say `allow_empty: true` here too, or give more"
        yield Diagnostic("MC535", f"{homes}, some of which make none", span, (few,), help)


def _moved(mode: DispatchMode, mesh: DeviceMesh, home: DeviceMesh, ranks: int) -> int | None:
    """The first data rank whose samples would go to workers that did not make them. Where meshes differ, they
    soon do."""
    each = range(min(ranks, FEW))
    return next(
        (number for number in each if mode.share_of(mesh, home.representative(number)) != number), None
    )


def _execute(facts: Facts, stage: Stage) -> str:
    return stage.execute or facts.endpoint(stage).execute


def _passed(facts: Facts, source: str, home: str) -> bool:
    """Whether the samples of a stage come from that one: it is the stage, or one whose samples it hands on."""
    seen: set[str] = set()
    open = [source]
    while open:
        here = open.pop()
        if here == home:
            return True
        stage = facts.recipe.pipeline.get(here)
        if stage is not None and here not in seen:
            seen.add(here)
            lead = facts.leading(stage)
            open += lead.stages if lead else ()
    return False


RULES = (known_home, right_home)
