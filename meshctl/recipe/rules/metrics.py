"""MC560 and MC562: the metrics that `run.show` names."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.fixes import renamed
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import did_you_mean, nearest


def known_metrics(facts: Facts) -> Iterator[Diagnostic]:
    """They are STAGE.NAME, of a stage that there is."""
    pipeline = facts.recipe.pipeline
    for index, metric in enumerate(facts.recipe.run.show):
        stage, dot, name = metric.partition(".")
        if not pipeline or not facts.right("run", "show"):
            return
        span = _span(facts, index)
        if not facts.names("pipeline", stage):
            fixes = renamed(span, stage, pipeline, metric[len(stage) :])
            message = f"`{metric}` is no metric, there is no stage `{stage}`"
            yield Diagnostic("MC560", message, span, help=did_you_mean(stage, pipeline), fixes=fixes)
        elif not name:
            options = _given(facts, stage)
            help = did_you_mean("", [f"{stage}.{option}" for option in options]) or f"write {stage}.NAME"
            yield Diagnostic(
                "MC560",
                f"`{metric}` is {'no metric' if dot else 'a stage'}, metrics are STAGE.NAME",
                span,
                help=help,
            )
        elif stage in pipeline and pipeline[stage].kind == "sync":
            says = facts.key("pipeline", stage).with_word("a sync gives no numbers")
            yield Diagnostic("MC560", f"`{metric}` is no metric, `{stage}` is a sync", span, (says,))


def given_metrics(facts: Facts) -> Iterator[Diagnostic]:
    """A name that is nearly one that the stage's source gives or logs is a misspelling; what it gives besides
    is not known."""
    for index, metric in enumerate(facts.recipe.run.show):
        stage, _, name = metric.partition(".")
        options = _given(facts, stage)
        if name and name not in options and facts.right("run", "show") and (near := nearest(name, options)):
            span = _span(facts, index)
            message = f"stage `{stage}` gives no metric `{name}`, as far as its source says"
            fixes = renamed(span, name, options, before=f"{stage}.")
            yield Diagnostic(
                "MC562",
                message,
                span,
                help=f"did you mean `{stage}.{near}`?",
                severity="warning",
                fixes=fixes,
            )


def _given(facts: Facts, name: str) -> tuple[str, ...]:
    stage = facts.recipe.pipeline.get(name)
    found = facts.class_of(stage.component) if stage is not None and stage.kind == "call" else None
    endpoint = found.endpoints.get(stage.method) if found and stage else None
    return endpoint.metrics if endpoint else ()


def _span(facts: Facts, index: int) -> Span:
    node = facts.written.node("run", "show")
    return (
        facts.value("run", "show", str(index))
        if node is not None and node.is_list
        else facts.value("run", "show")
    )


RULES = (known_metrics, given_metrics)
