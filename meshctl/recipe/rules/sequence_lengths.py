"""MC441: compares the length of sequences with the positions of the model that computes on them.

The length is `sequence_length` of the component's `model`, or the argument that `SEQUENCE_LENGTH` of a class
names: the component's own, or that of a component whose batches it takes.
"""

from __future__ import annotations

from collections.abc import Iterator

from meshctl.diagnostics import Diagnostic, Span
from meshctl.recipe.code.model_config import POSITIONS
from meshctl.recipe.rules.facts import Facts


def sequences_fit_positions(facts: Facts) -> Iterator[Diagnostic]:
    """A model has a position for each token of the longest sequence."""
    for name, model in facts.models.items():
        positions = model.get(POSITIONS)
        lengths = dict.fromkeys(_lengths(facts, name)) if positions else {}
        for length, span in lengths:
            if length > positions:
                fitting = f"the {positions} positions of the model of `{name}`"
                message = f"sequences of up to {length} tokens exceed {fitting}"
                help = f"at most {positions} tokens fit"
                yield Diagnostic("MC441", message, span, model.stated(POSITIONS), help, "warning")


def _lengths(facts: Facts, component: str) -> Iterator[tuple[int, Span]]:
    """Yields (number, span) of the lengths of the sequences on which a component computes."""
    model, pipeline = facts.models[component], facts.recipe.pipeline
    if length := model.get("sequence_length"):
        yield length, model.spans["sequence_length"]
    calls = [stage for stage in pipeline.values() if stage.component == component and stage.kind == "call"]
    sources = [pipeline[taken].component for stage in calls for taken in stage.takes if taken in pipeline]
    for source in (component, *sources):
        stated = facts.sequence_length(source) if source in facts.recipe.components else None
        if stated is not None:
            yield stated


RULES = (sequences_fit_positions,)
