"""MC474, MC544 to MC549, MC554 to MC557, MC564 to MC566 and MC581: the steps in which stages run, and the end
of the run.

A stage runs in steps n, 2n, ... (`every`) or at a time (`when`), and only if all of its inputs run. It may
therefore run less often than its `every`, or never. A run ends after its `steps`, or when a source that
bounds it has no more data (`run.settings`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import lcm

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.model import Component, Stage
from meshctl.recipe.rules.facts import Facts
from meshctl.recipe.stages import Times
from meshctl.run.settings import Run, bounding_sources
from meshctl.text.english import counted, listed


def stage_runs(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """Every stage runs in some step. If an input never runs, only the input is reported."""
    name = stage.name
    if not _is_known(facts, stage):
        return
    why = _why_never(facts, facts.times[name])
    if why and not any(_why_never(facts, facts.times[other]) for other in stage.takes):
        message, help = f"stage `{name}` never runs: {why}", "change `when` or `every`"
        inputs = tuple(_timing_of(facts, name) for name in stage.takes)
        yield Diagnostic("MC544", message, _timing_of(facts, name).with_word(""), inputs, help)
    if why or not facts.is_valid("run"):
        return
    run, steps = facts.recipe.run, counted(facts.recipe.run.steps, "step")
    why = _why_not_within(facts.times[name], run)
    if why and not any(_why_not_within(facts.times[other], run) for other in stage.takes):
        seconds = (facts.value("run", "steps").with_word(f"the run has {steps}"),)
        message = f"stage `{name}` does not run in {steps}: {why}"
        if stage.kind == "sync":
            message = f"`{name}` sends weights only at the start: {why}"
        span = _timing_of(facts, name).with_word("")
        yield Diagnostic("MC545", message, span, seconds, severity="warning")


def _why_never(facts: Facts, times: Times) -> str:
    """Returns the reason why no step matches these times, whatever the number of steps; empty if one may
    match."""
    run, period = facts.recipe.run, times.period
    if "checkpoint" in times.at and run.checkpoint is None and facts.is_valid("run"):
        return "`run.checkpoint` is not set"
    if "start" in times.at and period > 1:
        return f"the start is step 1, and this is not one of steps {period}, {2 * period}, ..."
    if run.steps == 1:
        return ""
    if {"start", "end"} <= times.at:
        return "the start and the end are different steps"
    if {"start", "checkpoint"} <= times.at and run.checkpoint and run.checkpoint.every != 1:
        return "the start is step 1, which has no checkpoint"
    return ""


def _why_not_within(times: Times, run: Run) -> str:
    """Returns the reason why no step of the run matches these times; empty if one does. The last step is
    always a checkpoint."""
    steps, period = run.steps, times.period
    saves_every = run.checkpoint.every if run.checkpoint else 0
    if not steps:
        return ""
    if period > steps:
        return f"its first step would be {period}"
    if steps % period == 0:
        return ""
    if "end" in times.at:
        return f"the end is step {steps}, and it runs every {period} steps"
    if run.checkpoint and run.checkpoint.seconds:
        return ""  # its steps are not known
    if "checkpoint" in times.at and not 0 < lcm(period, saves_every) <= steps:
        return f"it runs every {period} steps, and none of these is a checkpoint"
    return ""


def _is_known(facts: Facts, stage: Stage) -> bool:
    """Returns whether a stage is valid and all of its inputs exist."""
    is_valid = stage.kind != "" and facts.is_valid("pipeline", stage.name)
    return is_valid and all(other in facts.recipe.pipeline for other in stage.takes)


def _timing_of(facts: Facts, name: str) -> Span:
    """Returns the span of the key that determines a stage's times: `when` or `every`, otherwise its
    inputs."""
    keys = [key for key in ("when", "every", "in") if facts.is_named("pipeline", name, key)]
    span = facts.value("pipeline", name, keys[0]) if keys else facts.key("pipeline", name)
    return span.with_word(f"`{name}` runs {facts.times[name]}")


def every_is_kept(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """A stage with `every` runs that often: no input runs less often, and there is no `when`."""
    name = stage.name
    if not _is_known(facts, stage) or not facts.is_named("pipeline", name, "every"):
        return
    span = facts.value("pipeline", name, "every")
    if stage.when:
        if stage.every > 1:
            when = facts.value("pipeline", name, "when").with_word("`when` decides when it runs")
            message = "`every` has no effect beside `when`"
            yield Diagnostic("MC549", message, span, (when,), "keep one of them", "warning")
        return
    times = {other: facts.times[other] for other in stage.takes}
    slower = [other for other, one in times.items() if not one.at and stage.every % one.period]
    if slower and not facts.times[name].at:
        period, seconds = facts.times[name].period, tuple(_timing_of(facts, other) for other in slower)
        stated = f"stage `{name}` has `every: {stage.every}`"
        message = f"{stated} but runs every {period} steps, when {listed(slower)} runs"
        yield Diagnostic("MC548", message, span, seconds, f"write {period}, or remove it", "warning")


def inputs_meet(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """The inputs of a stage often run in the same steps. Inputs with `every: 2` and `every: 3` do so only
    every 6 steps."""
    name = stage.name
    if not _is_known(facts, stage) or facts.is_named("pipeline", name, "every") or stage.when:
        return
    periods = {other: facts.times[other].period for other in stage.takes if not facts.times[other].at}
    own = facts.times[name].period
    if periods and own > max(periods.values()):
        each = ", ".join(f"`{other}` every {period}" for other, period in periods.items() if period > 1)
        message = f"stage `{name}` runs every {own} steps, when all its inputs run ({each})"
        seconds = tuple(_timing_of(facts, other) for other, period in periods.items() if period > 1)
        help = f"give the inputs the same `every`, or write `every: {own}` here"
        yield Diagnostic("MC548", message, facts.value("pipeline", name, "in"), seconds, help, "warning")


def checkpoints_before_end(facts: Facts) -> Iterator[Diagnostic]:
    run = facts.recipe.run
    if run.checkpoint and facts.is_valid("run") and 0 < run.steps < run.checkpoint.every:
        seconds = (facts.value("run", "steps").with_word(f"the run has {counted(run.steps, 'step')}"),)
        message = f"with a checkpoint every {run.checkpoint.every} steps, this run saves only at its end"
        span = facts.value("run", "checkpoint", "every")
        yield Diagnostic("MC556", message, span, seconds, severity="note")


def run_keys_need_components(facts: Facts) -> Iterator[Diagnostic]:
    """A recipe without components does not use keys of `run` about steps, which would have no effect."""
    recipe = facts.recipe
    is_known = facts.is_valid("components") and facts.is_valid("pipeline")
    if recipe.components or recipe.pipeline or not recipe.groups or not is_known:
        return
    for key in ("steps", "epochs", "checkpoint", "patience", "show", "record"):
        node = facts.node("run", key)
        if node is not None and node.value not in (0, None, False) and facts.is_valid("run", key):
            message = f"`{key}` has no effect: all groups run programs, which end and save by themselves"
            help = "remove it; a setting of the program goes under its `args`"
            yield Diagnostic("MC557", message, facts.key("run", key), help=help, severity="warning")


def one_sync_per_target(facts: Facts) -> Iterator[Diagnostic]:
    """No two syncs have the same target. Both would run at the start, and the second would overwrite the
    first."""
    first: dict[tuple[str, str], Stage] = {}
    for name, stage in facts.recipe.pipeline.items():
        is_known = stage.kind == "sync" and stage.to and facts.is_valid("pipeline", name, "to")
        if is_known and (other := first.setdefault((stage.to, stage.to_method), stage)) is not stage:
            loads = f"`{other.name}` also loads them, from `{other.component}`"
            seconds = (facts.value("pipeline", other.name, "to").with_word(loads),)
            syncs = f"syncs `{other.name}` and `{name}`"
            message = f"{syncs} both load the weights of `{stage.to}`; the second overwrites the first"
            yield Diagnostic(
                "MC554", message, facts.value("pipeline", name, "to"), seconds, "keep one of them"
            )


def weights_arrive(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """Synced weights are loaded before the run ends: `lag` steps after they were sent, or at a checkpoint."""
    run, name = facts.recipe.run, stage.name
    is_valid = facts.is_valid("pipeline", name) and facts.is_valid("run")
    if stage.kind != "sync" or stage.when or not is_valid:
        return
    saves_every = run.checkpoint.every if run.checkpoint else 0
    next_checkpoint = saves_every * -(-stage.every // saves_every) if saves_every else run.steps
    is_in_time = stage.every + stage.lag <= run.steps or next_checkpoint < run.steps
    if stage.every <= run.steps and not is_in_time:
        seconds = (facts.value("run", "steps").with_word(f"the run has {counted(run.steps, 'step')}"),)
        late = f"what `{name}` sends arrives {counted(stage.lag, 'step')} later"
        message = f"`{stage.to}` never receives new weights: {late}"
        span = facts.value("pipeline", name, "max_staleness")
        yield Diagnostic("MC555", message, span, seconds, severity="warning")


def counted_calls_are_within_run(facts: Facts, component: Component) -> Iterator[Diagnostic]:
    """The run has as many calls of endpoints as an argument counts, such as the updates of a warm-up."""
    name, steps, shipped = component.name, facts.recipe.run.steps, facts.declares(component.name).shipped
    for argument, endpoints in shipped.calls.items() if steps and facts.is_valid("run") else ():
        node, calls = facts.argument(name, ("args", *argument.split("."))), _calls(facts, name, endpoints)
        if node is None or not isinstance(node.value, (int, float)) or not calls:
            continue
        covers = argument in shipped.covers
        if calls > node.value if covers else calls < node.value:
            seconds = (facts.value("run", "steps").with_word(counted(steps, "step")),)
            called = listed([f"{name}.{method}" for method in endpoints], "or")
            message = f"`{argument}` is {node.value}, but the run calls {called} {calls} times"
            yield Diagnostic("MC474" if covers else "MC581", message, node.span, seconds, severity="warning")


def _calls(facts: Facts, component: str, endpoints: Collection[str]) -> int:
    """Returns how many times a run with `steps` calls endpoints of a component; 0 if it is unknown."""
    stages = [
        stage
        for stage in facts.recipe.pipeline.values()
        if stage.component == component and (not _is_known(facts, stage) or stage.method in endpoints)
    ]
    if any(not _is_known(facts, stage) or stage.block or facts.times[stage.name].at for stage in stages):
        return 0
    return sum(facts.recipe.run.steps // facts.times[stage.name].period for stage in stages)


def run_ends(facts: Facts) -> Iterator[Diagnostic]:
    """Every run ends: `steps` is stated, or a source that bounds the run can end. If `epochs` is stated, such
    a source has a length."""
    if not _are_known(facts):
        return
    run, sources = facts.recipe.run, _bounding(facts)
    if run.epochs and all(_has_length(facts, stage) is False for stage in sources):
        who = "no source bounds the run"
        if sources:
            has = "has" if len(sources) == 1 else "have"
            who = f"{listed(stage.component for stage in sources)} {has} no `__len__`"
        seconds = tuple(facts.value("components", stage.component, "_target_") for stage in sources)
        message = f"`epochs` needs a source that knows its length, but {who}"
        help = "write `steps`, or define `__len__`, the number of samples of an epoch"
        yield Diagnostic("MC547", message, facts.value("run", "epochs"), seconds, help)
    elif _never_ends(facts):
        limit, span = "it has no `steps`", facts.key("run" if facts.is_named("run") else "pipeline")
        if _states_zero_steps(facts):
            limit, span = "`steps: 0` sets no limit", facts.value("run", "steps")
        why = "no source bounds it"
        if sources:
            returns, has = ("returns", "has") if len(sources) == 1 else ("return", "have")
            names = listed(stage.name for stage in sources)
            why = f"{names} always {returns} a Batch and {has} no `__len__`"
        message = f"nothing ends this run except Ctrl-C: {limit}, and {why}"
        help = "write `run: {steps: N}`"
        if not any(block.take for block in facts.recipe.blocks.values()):
            help += "; a source that returns None at its end, or has `__len__`, ends it too"
        yield Diagnostic("MC546", message, span, help=help, severity="warning")


def steps_are_counted(facts: Facts) -> Iterator[Diagnostic]:
    """`steps` is not 0, which would set no limit."""
    if _states_zero_steps(facts) and not (_are_known(facts) and _never_ends(facts)):
        message = "`steps: 0` sets no limit: the run ends with its data, or never"
        help = "remove it, or write the number of steps"
        yield Diagnostic("MC566", message, facts.value("run", "steps"), help=help, severity="warning")


def bounds_are_stated(facts: Facts) -> Iterator[Diagnostic]:
    """If the data of some sources end the run, every other source states `ends_run: false`."""
    if not _are_known(facts):
        return
    bounding, pipeline = _bounding(facts), facts.recipe.pipeline.values()
    sources = [stage for stage in pipeline if stage.is_source and not stage.when and not stage.block]
    others = [stage for stage in sources if stage not in bounding and stage.ends_run is None]
    if not bounding or not others:
        return
    ends = "ends the run with its" if len(bounding) == 1 else "end the run with their"
    does = "does" if len(others) == 1 else "do"
    names, rest = (listed(stage.name for stage in some) for some in (bounding, others))
    message = f"{names} {ends} data, but {rest} {does} not"
    span, *seconds = [facts.value("pipeline", stage.name, "every") for stage in others]
    help = "write `ends_run: true` or `ends_run: false` in a source to change this"
    yield Diagnostic("MC564", message, span, tuple(seconds), help, severity="note")


def ends_run_is_a_sources(facts: Facts, stage: Stage) -> Iterator[Diagnostic]:
    """Only sources state `ends_run`, and only sources that are called in steps state `ends_run: true`."""
    name = stage.name
    message, key, help = "", "when", "remove it"
    if not stage.is_source:
        message = f"stage `{name}` is not a source: only the data of a source can end the run"
        key, help = "in", "write it in the source"
    elif stage.when and stage.ends_run:
        message = f"source `{name}` is called at the {stage.when} only: its data cannot end the run"
    if message and stage.ends_run is not None and facts.is_valid("pipeline", name):
        span, seconds = facts.value("pipeline", name, "ends_run"), (facts.value("pipeline", name, key),)
        yield Diagnostic("MC565", message, span, seconds, help)


def _are_known(facts: Facts) -> bool:
    pipeline = facts.recipe.pipeline
    are_valid = all(stage.kind and facts.is_valid("pipeline", name) for name, stage in pipeline.items())
    are_taken = all(other in pipeline for stage in pipeline.values() for other in stage.takes)
    return bool(pipeline) and facts.is_valid("run") and are_valid and are_taken


def _states_zero_steps(facts: Facts) -> bool:
    node = facts.node("run", "steps")
    return node is not None and node.value == 0 and facts.is_valid("run", "steps")


def _never_ends(facts: Facts) -> bool:
    """Returns whether neither `steps` nor a source ends a run whose stages are known."""
    return not facts.recipe.run.steps and all(_is_endless(facts, stage) for stage in _bounding(facts))


def _bounding(facts: Facts) -> list[Stage]:
    pipeline = facts.recipe.pipeline
    return [pipeline[name] for name in bounding_sources(pipeline.values())]


def _has_length(facts: Facts, stage: Stage) -> bool | None:
    """Returns whether a source has `__len__`; None if its class cannot be read."""
    found = facts.class_of(stage.component)
    is_known = found and found.is_complete and found.is_component
    return "__len__" in found.methods if found and is_known else None


def _is_endless(facts: Facts, stage: Stage) -> bool:
    """Returns whether a source is known to be endless: it has no `__len__`, and its annotation excludes None
    as a returned value."""
    endpoint = facts.known_endpoint(stage)
    if endpoint is None or _has_length(facts, stage) is not False:
        return False
    returned, taken = endpoint.signature.returns, endpoint.signature.hints.get(endpoint.signature.first)
    takes_batch = taken is not None and taken.is_batch  # not a valid source, which another rule reports
    return returned is not None and returned.kinds == {"batch"} and not takes_batch
