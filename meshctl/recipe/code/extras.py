"""The extras of meshctl whose libraries a component needs: those of its class, and those of the functions
that its arguments name.

    EXTRA = "rewards"            in a class, or in the module of a function
    EXTRA = ("rewards", "hf")
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from meshctl.argument_limits import value_of
from meshctl.recipe.code.declarations import Declarations, declarations_of
from meshctl.recipe.code.modules import Module, Sources
from meshctl.recipe.code.names import entries_in


def extras_of(sources: Sources, declared: Declarations, args: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the extras that a component with these declarations and arguments needs."""
    paths = [
        name if "." in name else entries_in(sources, table).get(name, "")
        for argument, table in declared.shipped.choices.items()
        for name in _names(args, argument)
    ]
    named = [extra for path in paths for extra in _of_module(sources, path)]
    return tuple(dict.fromkeys((*declared.extra, *named)))


def _names(args: Mapping[str, Any], argument: str) -> Iterator[str]:
    """Yields the names in an argument: a text, or the keys of a mapping."""
    value = value_of(args, argument)
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from map(str, value)


def _of_module(sources: Sources, path: str) -> tuple[str, ...]:
    """Returns the extras that the module of a function declares."""
    owner = path.rpartition(".")[0]
    module = sources.module(owner) if owner and "$" not in owner else None
    statement = module.names.get("EXTRA") if isinstance(module, Module) else None
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    return declarations_of({"EXTRA": value}).extra
