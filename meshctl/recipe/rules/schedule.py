"""MC544 to MC549 and MC554 to MC557: in which steps a stage runs, and what ends the run.

A stage runs in steps n, 2n, ... (`every`) or at some time (`when`), and only where everything that it takes
runs too. So it may run less often than it says, or never.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.code.classes import Class
from meshctl.recipe.model import Run, Stage
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import counted, listed


@dataclass(frozen=True)
class Times:
    """The steps in which a stage runs, with everything that it takes."""

    period: int = 1
    """Only in multiples of this step."""
    at: frozenset[str] = frozenset()
    """And only at these times."""

    def with_stage(self, stage: Stage) -> Times:
        return (
            Times(self.period, self.at | {stage.when})
            if stage.when
            else Times(lcm(self.period, stage.every), self.at)
        )

    def __and__(self, other: Times) -> Times:
        return Times(lcm(self.period, other.period), self.at | other.at)

    def __str__(self) -> str:
        steps = "in every step" if self.period == 1 else f"every {self.period} steps"
        return f"at the {' and the '.join(sorted(self.at))}" if self.at else steps


def times_of(facts: Facts, name: str) -> Times:
    """A stage's, with everything that it takes; a circle is somebody else's to say."""
    known = facts.noted.setdefault("times", {})
    found, open, seen = Times(), [name], set[str]()
    while open:
        here = facts.recipe.pipeline.get(open.pop())
        if here is not None and here.name in known:
            found = found & known[here.name]
        elif here is not None and here.name not in seen:
            seen.add(here.name)
            found = found.with_stage(here)
            open += here.takes
    known[name] = found
    return found


def _never(facts: Facts, times: Times) -> str:
    """Why there is no step of these times, whatever the number of steps; empty where there may be."""
    run = facts.recipe.run
    if "checkpoint" in times.at and run.checkpoint is None and facts.right("run"):
        return "the run has no `checkpoint`"
    if "start" in times.at and times.period > 1:
        return f"the start is step 1, and that is none of steps {times.period}, {2 * times.period}, ..."
    if {"start", "end"} <= times.at and run.steps != 1:
        return "the start and the end are two steps"
    if (
        {"start", "checkpoint"} <= times.at
        and run.steps != 1
        and run.checkpoint
        and run.checkpoint.every != 1
    ):
        return "the start is step 1, and that is no checkpoint"
    return ""


def _not_within(times: Times, run: Run) -> str:
    """Why there is none in so many steps; a checkpoint is at the end too."""
    steps, saves = run.steps, run.checkpoint.every if run.checkpoint else 0
    if not steps:
        return ""
    if times.period > steps:
        return f"its first step would be {times.period}"
    if "end" in times.at and steps % times.period:
        return f"the end is step {steps}, and it runs every {times.period} steps"
    if "checkpoint" in times.at and steps % times.period and not 0 < lcm(times.period, saves) <= steps:
        return f"it runs every {times.period} steps, and none of these is a checkpoint"
    return ""


def some_step(facts: Facts) -> Iterator[Diagnostic]:
    """Every stage has a step in which it runs."""
    for name, stage in facts.recipe.pipeline.items():
        if not _is_right(facts, stage):
            continue
        times = times_of(facts, name)
        before = [times_of(facts, other) for other in stage.takes]
        if (why := _never(facts, times)) and not any(_never(facts, other) for other in before):
            message = f"stage `{name}` never runs: {why}"
            yield Diagnostic(
                "MC544", message, _own(facts, stage), _others(facts, stage), "change `when` or `every`"
            )
        elif not why and facts.right("run"):
            yield from _within(facts, stage, before)


def _within(facts: Facts, stage: Stage, before: list[Times]) -> Iterator[Diagnostic]:
    run, steps = facts.recipe.run, facts.recipe.run.steps
    why = _not_within(times_of(facts, stage.name), run)
    if why and not any(_not_within(other, run) for other in before):
        says = (facts.value("run", "steps").with_word(f"the run has {counted(steps, 'step')}"),)
        message = f"stage `{stage.name}` does not run in {counted(steps, 'step')}: {why}"
        if stage.kind == "sync":
            message = f"`{stage.name}` sends weights at the start only: {why}"
        yield Diagnostic("MC545", message, _own(facts, stage), says, severity="warning")


def _is_right(facts: Facts, stage: Stage) -> bool:
    return (
        stage.kind != ""
        and facts.right("pipeline", stage.name)
        and all(other in facts.recipe.pipeline for other in stage.takes)
    )


def _own(facts: Facts, stage: Stage) -> Span:
    """What a stage says of its times, or else what it takes."""
    key = next((key for key in ("when", "every", "in") if facts.names("pipeline", stage.name, key)), "")
    return facts.value("pipeline", stage.name, key) if key else facts.key("pipeline", stage.name)


def _others(facts: Facts, stage: Stage) -> tuple[Span, ...]:
    """What the nearest stages that it takes say of theirs."""
    taken = [facts.recipe.pipeline[name] for name in stage.takes]
    return tuple(
        _own(facts, other).with_word(f"`{other.name}` runs {times_of(facts, other.name)}") for other in taken
    )


def as_often_as_said(facts: Facts) -> Iterator[Diagnostic]:
    """A stage that says `every` runs so often: its inputs do."""
    for name, stage in facts.recipe.pipeline.items():
        if not _is_right(facts, stage) or not facts.names("pipeline", name, "every"):
            continue
        span = facts.value("pipeline", name, "every")
        if stage.when and stage.every > 1:
            alone = facts.value("pipeline", name, "when").with_word("this alone says when it runs")
            yield Diagnostic(
                "MC549",
                "`every` counts for nothing beside `when`",
                span,
                (alone,),
                "keep one of them",
                "warning",
            )
            continue
        slow = [
            other
            for other in stage.takes
            if not (times := times_of(facts, other)).at and stage.every % times.period
        ]
        if slow and not stage.when and not times_of(facts, name).at:
            really = times_of(facts, name).period
            says = tuple(
                _own(facts, facts.recipe.pipeline[other]).with_word(
                    f"`{other}` runs {times_of(facts, other)}"
                )
                for other in slow
            )
            message = f"stage `{name}` says every {counted(stage.every, 'step')}, and runs every {really}: only where {listed(slow)} runs"
            yield Diagnostic("MC548", message, span, says, f"write {really}, or leave it out", "warning")


# The end of the run


def some_end(facts: Facts) -> Iterator[Diagnostic]:
    """Steps or data end the run, and what counts epochs knows how long one is."""
    pipeline, run = facts.recipe.pipeline, facts.recipe.run
    if (
        not pipeline
        or not facts.right("run")
        or not all(_is_right(facts, stage) for stage in pipeline.values())
    ):
        return
    limits = [stage for stage in pipeline.values() if stage.is_source and not stage.when]
    lengths = [_has_length(facts, stage) for stage in limits]
    if run.epochs and not any(length is not False for length in lengths):
        who = f"{listed(stage.component for stage in limits)} {'has' if len(limits) == 1 else 'have'} no `__len__`"
        message = f"`epochs` needs a source that knows its length, and {who if limits else 'no source runs in every step'}"
        says = tuple(facts.value("components", stage.component, "_target_") for stage in limits)
        yield Diagnostic(
            "MC547",
            message,
            facts.value("run", "epochs"),
            says,
            "say `steps`, or write `__len__`: the samples of one epoch",
        )
    elif not limits and not run.steps:
        help = "say `run: {steps: N}`; a source without `when` ends it with its data"
        message = "nothing ends this run but a stop: it has no `steps`, and no source runs in every step"
        yield Diagnostic(
            "MC546",
            message,
            facts.key("run") if facts.names("run") else facts.key("pipeline"),
            help=help,
            severity="warning",
        )


def _has_length(facts: Facts, stage: Stage) -> bool | None:
    found = facts.classes.get(stage.component)
    if not isinstance(found, Class) or not found.whole or found.is_component is not True:
        return None
    return "__len__" in found.methods


def last_only(facts: Facts) -> Iterator[Diagnostic]:
    """Checkpoints are written before the end."""
    run = facts.recipe.run
    if run.checkpoint and facts.right("run") and 0 < run.steps < run.checkpoint.every:
        says = facts.value("run", "steps").with_word(f"the run has {counted(run.steps, 'step')}")
        message = f"a checkpoint every {run.checkpoint.every} steps: this run saves at its end only"
        yield Diagnostic(
            "MC556", message, facts.value("run", "checkpoint", "every"), (says,), severity="note"
        )


def of_components(facts: Facts) -> Iterator[Diagnostic]:
    """Programs count no steps: what `run` says of them has no effect without components."""
    recipe = facts.recipe
    if (
        recipe.components
        or recipe.pipeline
        or not recipe.groups
        or not facts.right("components")
        or not facts.right("pipeline")
    ):
        return
    for key in ("steps", "epochs", "checkpoint", "patience", "show", "record"):
        node = facts.written.node("run", key)
        if node is not None and node.value not in (0, None, False) and facts.right("run", key):
            message = f"`{key}` changes nothing: every group runs a program, which ends and saves by itself"
            yield Diagnostic(
                "MC557",
                message,
                facts.key("run", key),
                help="tell the program, in its `args`",
                severity="warning",
            )


# Syncs


def one_sync_each(facts: Facts) -> Iterator[Diagnostic]:
    """Two syncs do not load the same weights: they meet at the start at the latest, and the later one would
    win."""
    first: dict[tuple[str, str], Stage] = {}
    for name, stage in facts.recipe.pipeline.items():
        if stage.kind != "sync" or not stage.to or not facts.right("pipeline", name, "to"):
            continue
        loads = (stage.to, stage.to_method)
        if loads not in first:
            first[loads] = stage
            continue
        other = first[loads]
        says = facts.value("pipeline", other.name, "to").with_word(
            f"`{other.name}` loads them too, from `{other.component}`"
        )
        message = (
            f"syncs `{other.name}` and `{name}` both load the weights of `{stage.to}`, and the later one wins"
        )
        yield Diagnostic("MC554", message, facts.value("pipeline", name, "to"), (says,), "keep one of them")


def fresh_enough(facts: Facts) -> Iterator[Diagnostic]:
    """Weights arrive before the run is over: so many steps later, or at a checkpoint, where all that were
    sent are loaded."""
    run = facts.recipe.run
    for name, stage in facts.recipe.pipeline.items():
        if stage.kind != "sync" or stage.when or not facts.right("pipeline", name) or not facts.right("run"):
            continue
        saves = run.checkpoint.every if run.checkpoint else 0
        cut = saves * -(-stage.every // saves) if saves else run.steps
        if stage.every <= run.steps < stage.every + stage.lag and cut >= run.steps:
            says = facts.value("run", "steps").with_word(f"the run has {counted(run.steps, 'step')}")
            message = f"`{stage.to}` never gets new weights: what `{name}` sends arrives {counted(stage.lag, 'step')} later"
            yield Diagnostic(
                "MC555", message, facts.value("pipeline", name, "max_staleness"), (says,), severity="warning"
            )


RULES = (some_step, as_often_as_said, some_end, last_only, of_components, one_sync_each, fresh_enough)
