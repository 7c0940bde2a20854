"""The rules that hold between values of a recipe: each a function from the facts to diagnostics, all of them run in one pass.

A rule that needs a value about which something was said already stays silent: one root cause gives one diagnostic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from meshctl.diagnostics import Diagnostic
from meshctl.recipe.rules import components, costs, groups, meshes, moves, pipeline
from meshctl.recipe.rules.facts import Facts

Rule = Callable[[Facts], Iterator[Diagnostic]]
RULES: tuple[Rule, ...] = (*groups.RULES, *meshes.RULES, *components.RULES, *pipeline.RULES, *costs.RULES, *moves.RULES)


def check(facts: Facts) -> Iterator[Diagnostic]:
    """All that is wrong."""
    for rule in RULES:
        yield from rule(facts)


__all__ = ["Facts", "check"]
