"""The rules about relations between values of a recipe. A rule is a function from facts, or from facts and an
item such as one group, to diagnostics; all run in one pass.

A rule is named after the correct state (`group_exists`). A rule skips values that have been reported as
wrong, so that one cause leads to one diagnostic. A new rule is a public function in the file of its subject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import Any

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.rules import (
    architectures,
    arguments,
    calls,
    components,
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
    *(calls, flow, schedule, run, rollouts, engines),
)
WALKS: Mapping[str, Callable[[Facts], Iterable[Any]]] = {
    "DeviceGroup": lambda facts: facts.recipe.groups.values(),
    "Restartable": groups.restartable,
    "Elastic": lambda facts: facts.recipe.run.elastic,
    "Component": lambda facts: facts.recipe.components.values(),
    "Placed": meshes.placed,
    "Fitted": models.fitted_models,
    "Stage": lambda facts: facts.recipe.pipeline.values(),
    "KnownCall": lambda facts: facts.known_calls,
    "Call": calls.calls_of,
    "Block": lambda facts: facts.recipe.blocks.values(),
    "KnownBlock": pipeline.known_blocks,
    "Metric": lambda facts: facts.metrics,
    "Track": lambda facts: facts.recipe.run.track,
    "JobSet": engines.job_set,
}
"""The type of the second parameter of a rule -> the items with which it is called, one after another."""
ONCE = {"MC438", "MC526", "MC578", *(f"MC44{digit}" for digit in (3, 4, 5, 6, 7, 8, 9)), "MC460"}
"""Codes about what several components may name. Equal messages are reported once."""


def rules_of(subject: ModuleType) -> tuple[Rule, ...]:
    """Returns the rules of a module as functions of the facts: its public functions from facts, or from facts
    and one item, to diagnostics."""
    found = list[Rule]()
    for name, one in vars(subject).items():
        hints = getattr(one, "__annotations__", {})
        *kinds, returned = hints.values() or ("",)
        is_own = not name.startswith("_") and getattr(one, "__module__", "") == subject.__name__
        if is_own and returned == "Iterator[Diagnostic]" and kinds[:1] == ["Facts"]:
            found.append(partial(_of_each, one, kinds[1]) if len(kinds) > 1 else one)
    return tuple(found)


def _of_each(
    rule: Callable[[Facts, Any], Iterator[Diagnostic]], kind: str, facts: Facts
) -> Iterator[Diagnostic]:
    if kind not in facts.items:
        facts.items[kind] = tuple(WALKS[kind](facts))
    for item in facts.items[kind]:
        yield from rule(facts, item)


RULES = tuple(rule for subject in SUBJECTS for rule in rules_of(subject))


def check(facts: Facts) -> Iterator[Diagnostic]:
    """Yields the diagnostics of all rules."""
    reported: set[tuple[str, str]] = set()
    for found in (found for rule in RULES for found in rule(facts)):
        if found.code not in ONCE or (found.code, found.message) not in reported:
            reported.add((found.code, found.message))
            yield found


__all__ = ["Facts", "check"]
