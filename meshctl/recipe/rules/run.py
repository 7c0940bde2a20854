"""MC560, MC562 and MC563: the metrics that `run.show` names and the routes that `run.record` names."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.fixes import renamed
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import did_you_mean, nearest


def metric_exists(facts: Facts) -> Iterator[Diagnostic]:
    """A metric is STAGE.NAME, where the stage exists and returns numbers."""
    pipeline = facts.recipe.pipeline
    if not pipeline or not facts.is_valid("run", "show"):
        return
    for index, metric in enumerate(facts.recipe.run.show):
        (stage, name), dot = facts.recipe.metric(metric), "." in metric
        span = facts.item("run", "show", index=index)
        if stage in facts.recipe.blocks:
            help = did_you_mean("", facts.recipe.blocks[stage].stages)
            message = f"`{metric}` is a block; its metrics are named {stage}.STAGE.NAME"
            yield Diagnostic("MC560", message, span, help=help, missing=True)
        if stage not in pipeline:
            continue
        if not name:
            message = f"`{metric}` is {'not a metric' if dot else 'a stage'}; metrics are named STAGE.NAME"
            options = [f"{stage}.{option}" for option in _metrics_of(facts, stage)]
            help = did_you_mean("", options) or f"write {stage}.NAME"
            yield Diagnostic("MC560", message, span, help=help, missing=True)
        elif stage in pipeline and pipeline[stage].kind == "sync":
            message = f"`{metric}` is not a metric: `{stage}` is a sync"
            seconds = (facts.key("pipeline", stage).with_word("a sync has no metrics"),)
            yield Diagnostic("MC560", message, span, seconds, missing=True)


def metric_is_given(facts: Facts) -> Iterator[Diagnostic]:
    """The name of a metric is not a misspelling of one in the stage's source. Other unknown names may
    exist."""
    for index, metric in enumerate(facts.recipe.run.show):
        stage, name = facts.recipe.metric(metric)
        options = _metrics_of(facts, stage)
        if not name or name in options or not facts.is_valid("run", "show"):
            continue
        if near := nearest(name, options):
            span = facts.item("run", "show", index=index)
            message = f"metric `{name}` was not found in the source of stage `{stage}`"
            fixes = renamed(span, name, options, before=f"{stage}.")
            help = f"did you mean `{stage}.{near}`?"
            yield Diagnostic("MC562", message, span, help=help, severity="warning", fixes=fixes)


def _metrics_of(facts: Facts, name: str) -> tuple[str, ...]:
    """Returns the names of the metrics that are literals in the source of a stage's endpoint."""
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
            help, fixes = did_you_mean(word, [*routes, *sources]), renamed(span, word, sources)
            yield Diagnostic("MC563", f"route `{word}` does not exist", span, help=help, fixes=fixes)
            continue
        is_sync = pipeline[word].kind == "sync"
        why = "a sync moves weights, which are not recorded" if is_sync else "no stage takes it"
        seconds = (facts.key("pipeline", word).with_word(why),)
        yield Diagnostic("MC563", f"`{word}` has no route to record", span, seconds, did_you_mean("", routes))


RULES = (metric_exists, metric_is_given, route_exists)
