"""The rules about relations between values of a recipe. A rule is a function from facts to diagnostics; all
run in one pass.

A rule is named after the correct state (`group_exists`). A rule skips values that have been reported as
wrong, so that one cause leads to one diagnostic. A new rule is a public function in the file of its subject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.rules import (
    architectures,
    arguments,
    calls,
    components,
    costs,
    data,
    devices,
    engines,
    flow,
    groups,
    memory,
    meshes,
    models,
    pipeline,
    rollouts,
    run,
    schedule,
)
from meshctl.recipe.rules.facts import Facts

Rule = Callable[[Facts], Iterator[Diagnostic]]
SUBJECTS = (
    *(pipeline, groups, devices, meshes, models, architectures, memory, components, arguments, data),
    *(calls, flow, schedule, run, costs, rollouts, engines),
)


def rules_of(subject: ModuleType) -> tuple[Rule, ...]:
    """Returns the rules of a module: its public functions from facts to diagnostics."""
    is_rule = {"facts": "Facts", "return": "Iterator[Diagnostic]"}
    return tuple(
        found
        for name, found in vars(subject).items()
        if not name.startswith("_") and getattr(found, "__annotations__", {}) == is_rule
    )


RULES = tuple(dict.fromkeys(rule for subject in SUBJECTS for rule in rules_of(subject)))


def check(facts: Facts) -> Iterator[Diagnostic]:
    """Yields the diagnostics of all rules."""
    for rule in RULES:
        yield from rule(facts)


__all__ = ["Facts", "check"]
