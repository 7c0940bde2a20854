"""MC56x, MC442 and MC580: the metrics that `run.show`, `run.stop` and `run.checkpoint.best` name, the routes
that `run.record` names, the steps of `run.trace`, and the trackers of `run.track`."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic, Span
from meshctl.package import install_command, installed_version
from meshctl.recipe.code.classes import NoClass, NotFound
from meshctl.recipe.fixes import renamed
from meshctl.recipe.model import Stage, stage_path
from meshctl.recipe.rules.facts import Facts, Metric
from meshctl.recipe.tracker_fields import EXTRA, LIBRARIES
from meshctl.run.settings import Track
from meshctl.text.english import counted, did_you_mean, listed, nearest


def metric_exists(facts: Facts, metric: Metric) -> Iterator[Diagnostic]:
    """A metric is STAGE.NAME, where the stage exists and returns numbers."""
    name, text, span = metric.stage, metric.text, metric.span
    if name in facts.recipe.blocks:
        help = did_you_mean("", facts.recipe.blocks[name].stages)
        message = f"`{text}` is a block; its metrics are named {name}.STAGE.NAME"
        yield Diagnostic("MC560", message, span, help=help, missing=True)
    stage = facts.recipe.pipeline.get(name)
    if stage is not None and not metric.name:
        message = f"`{text}` is {'not a metric' if '.' in text else 'a stage'}; metrics are named STAGE.NAME"
        options = [f"{name}.{option}" for option in _metrics_of(facts, name)]
        help = did_you_mean("", options) or f"write {name}.NAME"
        yield Diagnostic("MC560", message, span, help=help, missing=True)
    elif stage is not None and stage.kind == "sync":
        found = [facts.class_of(one) for one in (stage.component, stage.to)]
        if all(one is not None and one.is_complete and not one.logs for one in found):
            message = f"`{text}` is not a metric: `{name}` is a sync"
            seconds = (facts.key("pipeline", name).with_word("a sync has no metrics"),)
            yield Diagnostic("MC560", message, span, seconds, missing=True)


def metric_is_known(facts: Facts, metric: Metric) -> Iterator[Diagnostic]:
    """The name of a metric is not a misspelling of one in the stage's source. Other unknown names may
    exist."""
    stage, name, options = metric.stage, metric.name, _metrics_of(facts, metric.stage)
    if name and name not in options and (near := nearest(name, options)):
        message = f"metric `{name}` was not found in the code of stage `{stage}`"
        fixes = renamed(metric.span, name, options, before=f"{stage}.")
        help = f"did you mean `{stage}.{near}`?"
        yield Diagnostic("MC562", message, metric.span, help=help, severity="warning", fixes=fixes)


def metric_can_have_values(facts: Facts, metric: Metric) -> Iterator[Diagnostic]:
    """A metric that ends the run or ranks checkpoints belongs to a stage that has metrics. A stage that
    returns a batch has only those that its class logs."""
    stage = facts.recipe.pipeline.get(metric.stage)
    found, endpoint = (
        (facts.class_of(stage.component), facts.known_endpoint(stage)) if stage else (None, None)
    )
    returned = endpoint.signature.returns if endpoint else None
    if metric.key == "run.show" or not metric.name or found is None or not found.is_complete or found.logs:
        return
    if returned and returned.kinds and returned.kinds <= {"batch", "nothing"} and not returned.words:
        call = facts.value(*stage_path(metric.stage), "call")
        seconds = (call.with_word(f"it returns {returned.described} and logs nothing"),)
        message = f"stage `{metric.stage}` has no metrics, so `{metric.text}` never has a value"
        help = "name a metric of another stage, or report it with `self.log`"
        yield Diagnostic("MC567", message, metric.span, seconds, help)


def metric_is_often_enough(facts: Facts, metric: Metric) -> Iterator[Diagnostic]:
    """A metric that ends the run has more values in the run than `patience`."""
    run, stage = facts.recipe.run, facts.recipe.pipeline.get(metric.stage)
    is_valid = facts.is_valid("run", "stop", "patience") and facts.is_valid("run", "steps")
    if metric.key != "run.stop.on" or run.stop is None or stage is None or not is_valid:
        return
    values = _values_in_run(facts, stage)
    if values is None or values > run.stop.patience:
        return
    count, needed = counted(values, "value"), run.stop.patience + 1
    message = f"`{metric.text}` has {count} in the run, and `run.stop` needs {needed} to end it"
    word = "when" if stage.when else "every"
    times = f"once, at the {stage.when}" if stage.when else f"every {stage.every} steps"
    where = facts.value(*stage_path(stage.block or stage.name), word)
    seconds = (where.with_word(f"`{stage.name}` runs {times}"),)
    help = "name a metric of a stage that runs more often, or leave out `run.stop`"
    yield Diagnostic("MC568", message, metric.span, seconds, help, severity="warning")


def _values_in_run(facts: Facts, stage: Stage) -> int | None:
    """Returns how many values a metric of a stage has in a run; None if this is unknown."""
    path = stage_path(stage.block or stage.name)
    if not facts.is_valid(*path, "when") or not facts.is_valid(*path, "every"):
        return None
    if stage.when:
        return 1 if stage.when in ("start", "end") else None
    steps = facts.recipe.run.steps
    return steps // stage.every if steps and stage.every > 1 else None


def _metrics_of(facts: Facts, name: str) -> tuple[str, ...]:
    stage = facts.recipe.pipeline.get(name)
    endpoint = facts.known_endpoint(stage) if stage else None
    return endpoint.metrics if endpoint else ()


def route_exists(facts: Facts) -> Iterator[Diagnostic]:
    """A recorded route is `SOURCE -> TARGET`, or SOURCE for all routes from a stage."""
    pipeline = facts.recipe.pipeline
    is_readable = facts.is_valid("run", "record") and all(
        facts.is_valid("pipeline", name)
        and name not in stage.takes
        and all(facts.is_named("pipeline", one) for one in stage.takes)
        for name, stage in pipeline.items()
    )
    if not pipeline or not facts.is_valid("run", "record"):
        return
    routes = [route for stage in pipeline.values() for route in stage.routes]
    sources = list(dict.fromkeys(source for stage in pipeline.values() for source in stage.takes))
    for index, word in enumerate(facts.recipe.run.record):
        stages = [part.strip() for part in word.split("->")]
        is_known = is_readable or not all(facts.is_named("pipeline", stage) for stage in stages)
        if word in routes or word in sources or not is_known:
            continue
        span = facts.item("run", "record", index=index)
        if word not in pipeline:
            existing = [source for source in sources if source in pipeline]
            suggested = [route for route in routes if route.partition(" -> ")[0] in pipeline]
            help, fixes = did_you_mean(word, [*suggested, *existing]), renamed(span, word, existing)
            yield Diagnostic("MC563", f"route `{word}` does not exist", span, help=help, fixes=fixes)
            continue
        is_sync = pipeline[word].kind == "sync"
        why = "a sync moves weights, which are not recorded" if is_sync else "no stage takes it"
        seconds = (facts.key("pipeline", word).with_word(why),)
        yield Diagnostic("MC563", f"`{word}` has no route to record", span, seconds, did_you_mean("", routes))


def trace_is_in_the_run(facts: Facts) -> Iterator[Diagnostic]:
    """The steps that are traced are steps of the run, which has components."""
    run = facts.recipe.run
    if run.trace is None or not facts.is_valid("run", "steps") or not facts.is_valid("run", "trace"):
        return
    (first, last), steps = run.trace.steps, run.steps
    node = facts.node("run", "trace")
    span = facts.value("run", "trace", *(["steps"] if node is not None and node.is_mapping else []))
    if not facts.recipe.components:
        message = "nothing is traced: the run has programs only, and `run.trace` records components"
        yield Diagnostic("MC569", message, span, severity="warning")
    elif steps and last > steps:
        what = "is never written" if first > steps else "lacks some of its steps"
        message = f"the trace {what}: the run ends with step {steps}, before step {last}"
        seconds = (facts.value("run", "steps").with_word("the last step"),)
        help = f"trace steps up to {steps}" if first <= steps else f"trace steps from 1 to {steps}"
        yield Diagnostic("MC569", message, span, seconds, help, severity="warning")


def trackers_are_installed(facts: Facts, track: Track) -> Iterator[Diagnostic]:
    """The library of each tracker is installed. Another machine may launch the recipe."""
    if (library := LIBRARIES.get(track.name)) and not installed_version(library):
        message = f"`{track.name}` needs `{library}`, which is not installed here"
        help = install_command(EXTRA)
        yield Diagnostic("MC442", message, _span(facts, track), help=help, severity="note")


def tracker_exists(facts: Facts, track: Track) -> Iterator[Diagnostic]:
    """A tracker of the user is a class that can be imported."""
    module, colon, name = track.name.partition(":")
    found, help = facts.code.find(f"{module}.{name}") if colon else None, ""
    if isinstance(found, NotFound):
        message = f"module `{found.module}` was not found"
        if found.has_module:
            message = f"module `{module}` has no `{name}`"
        help = did_you_mean(name, found.names) if found.names else f"searched in {listed(facts.code.own)}"
    elif isinstance(found, NoClass):
        message = f"`{track.name}` is {found.what}, not a class"
    else:
        return
    yield Diagnostic("MC580", message, _span(facts, track), help=help)


def _span(facts: Facts, track: Track) -> Span:
    return facts.item("run", "track", index=facts.recipe.run.track.index(track))
