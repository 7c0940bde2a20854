"""MC563: the routes that `run.record` names."""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.fixes import renamed
from meshctl.recipe.rules.facts import Facts
from meshctl.text.english import did_you_mean


def known_routes(facts: Facts) -> Iterator[Diagnostic]:
    """They are SOURCE -> TARGET of a stage and one that takes it, or SOURCE of a stage that some stage takes."""
    pipeline = facts.recipe.pipeline
    if (
        not pipeline
        or not facts.right("run", "record")
        or not all(facts.right("pipeline", name) for name in pipeline)
    ):
        return
    routes = [route for stage in pipeline.values() for route in stage.routes]
    sources = list(dict.fromkeys(source for stage in pipeline.values() for source in stage.takes))
    for index, word in enumerate(facts.recipe.run.record):
        if word in routes or word in sources:
            continue
        span = _span(facts, index)
        if word not in pipeline:
            message = f"there is no route `{word}`"
            yield Diagnostic(
                "MC563",
                message,
                span,
                help=did_you_mean(word, [*routes, *sources]),
                fixes=renamed(span, word, sources),
            )
        else:
            sync = pipeline[word].kind == "sync"
            says = facts.key("pipeline", word).with_word(
                "a sync moves weights, which are not recorded" if sync else "no stage takes it"
            )
            yield Diagnostic(
                "MC563", f"`{word}` has no route to record", span, (says,), did_you_mean("", routes)
            )


def _span(facts: Facts, index: int) -> Span:
    node = facts.written.node("run", "record")
    return (
        facts.value("run", "record", str(index))
        if node is not None and node.is_list
        else facts.value("run", "record")
    )


RULES = (known_routes,)
