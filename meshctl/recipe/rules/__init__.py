"""The rules that hold between values of a recipe: each a function from the facts to diagnostics, all of them
run in one pass.

A rule that needs a value about which something was said already stays silent: one root cause gives one
diagnostic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.rules import (
    arguments,
    batches,
    calls,
    components,
    costs,
    groups,
    hardware,
    home,
    meshes,
    metrics,
    models,
    pipeline,
    record,
    schedule,
)
from meshctl.recipe.rules.facts import Facts

Rule = Callable[[Facts], Iterator[Diagnostic]]
SUBJECTS = (
    *(groups, hardware, meshes, models, components, arguments),
    *(pipeline, calls, home, batches, schedule, metrics, record, costs),
)
RULES: tuple[Rule, ...] = tuple(rule for subject in SUBJECTS for rule in subject.RULES)


def check(facts: Facts) -> Iterator[Diagnostic]:
    """All that is wrong."""
    for rule in RULES:
        yield from rule(facts)


__all__ = ["Facts", "check"]
