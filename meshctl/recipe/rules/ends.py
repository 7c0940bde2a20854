"""MC546, MC547 and MC564 to MC566: the end of the run.

A run ends after its `steps`, or when a source that bounds it has no more data (`run.bounds`).
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.code.classes import Class
from meshctl.recipe.model import Stage
from meshctl.recipe.rules.facts import Facts
from meshctl.run.bounds import bounding_sources
from meshctl.text.english import listed


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
        help = "write `run: {steps: N}`; a source that returns None at its end, or has `__len__`, ends it too"
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


def ends_run_is_a_sources(facts: Facts) -> Iterator[Diagnostic]:
    """Only sources state `ends_run`, and only sources that are called in steps state `ends_run: true`."""
    for name, stage in facts.recipe.pipeline.items():
        if stage.ends_run is None or not facts.is_valid("pipeline", name):
            continue
        span = facts.value("pipeline", name, "ends_run")
        if not stage.is_source:
            message = f"stage `{name}` is not a source: only the data of a source can end the run"
            seconds = (facts.value("pipeline", name, "in"),)
            yield Diagnostic("MC565", message, span, seconds, "write it in the source")
        elif stage.when and stage.ends_run:
            message = f"source `{name}` is called at the {stage.when} only: its data cannot end the run"
            seconds = (facts.value("pipeline", name, "when"),)
            yield Diagnostic("MC565", message, span, seconds, "remove it")


def _are_known(facts: Facts) -> bool:
    """Returns whether the stages and `run` have no errors."""
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
    found = facts.classes.get(stage.component)
    if not isinstance(found, Class) or not found.is_complete or found.is_component is not True:
        return None
    return "__len__" in found.methods


def _is_endless(facts: Facts, stage: Stage) -> bool:
    """Returns whether a source is known to be endless: it has no `__len__`, and its annotation excludes None
    as a returned value."""
    endpoint = facts.known_endpoint(stage)
    if endpoint is None or _has_length(facts, stage) is not False:
        return False
    returned, taken = endpoint.signature.returns, endpoint.signature.hints.get(endpoint.signature.first)
    if taken is not None and taken.is_batch:
        return False  # not a valid source, which another rule reports
    return returned is not None and returned.kinds == {"batch"}


RULES = (run_ends, steps_are_counted, bounds_are_stated, ends_run_is_a_sources)
