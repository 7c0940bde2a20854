"""Reads as text the names in a table, and checks dotted paths of functions and classes.

The table at a dotted path is one of these:

    LOSSES = {"dpo": dpo}                         a mapping, whose keys are the names
    STYLES = ("colwise", "rowwise")               a list, a tuple or a set of names
    class Schedule(Enum): LINEAR = "linear"       a class, whose values are the names
    torch.optim                                   a module: the classes that it binds
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, NamedTuple

from meshctl.recipe.code.declarations import literal
from meshctl.recipe.code.modules import Module, Sources
from meshctl.recipe.compose.folders import files


def names_in(sources: Sources, table: str) -> tuple[str, ...]:
    """Returns the names in the table at a dotted path; none if they cannot be read."""
    module = sources.module(table)
    if isinstance(module, Module):
        return tuple(name for name in _names_of_module(module) if name[0].isupper())
    owner, _, name = table.rpartition(".")
    module = sources.module(owner)
    statement = module.names.get(name) if isinstance(module, Module) else None
    values = _values(statement)
    names = [one.value for one in values if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return tuple(names) if len(names) == len(values) else ()


def entries_in(sources: Sources, table: str) -> dict[str, str]:
    """Returns the entries of the mapping at a dotted path whose keys and values are texts; none if it cannot
    be read."""
    owner, _, name = table.rpartition(".")
    module = None if isinstance(sources.module(table), Module) else sources.module(owner)
    statement = module.names.get(name) if isinstance(module, Module) else None
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    pairs = zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ()
    return {
        str(key.value): text.value
        for key, text in pairs
        if isinstance(key, ast.Constant) and isinstance(text, ast.Constant) and isinstance(text.value, str)
    }


def literal_in(sources: Sources, table: str) -> Any:
    """Returns the value at a dotted path, if it is a literal; otherwise None."""
    owner, _, name = table.rpartition(".")
    module = sources.module(owner)
    statement = module.names.get(name) if isinstance(module, Module) else None
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    return literal(value)


class WrongPath(NamedTuple):
    """The reason why nothing can be imported from a dotted path."""

    reason: str
    word: str
    """The wrong word of the path."""
    options: tuple[str, ...]
    """Words that can be in its place."""


def wrong_path(sources: Sources, dotted: str) -> WrongPath | None:
    """Returns what is wrong with a dotted path; None if something can, or may, be imported from it."""
    owner, _, name = dotted.rpartition(".")
    module = sources.module(owner)
    if module is None:
        return _missing_module(sources, owner)
    names = _names_of_module(module) if isinstance(module, Module) else ()
    if not isinstance(module, Module) or not names or _has_name(module, name):
        return None
    return WrongPath(f"module `{owner}` has no `{name}`", name, names)


def _missing_module(sources: Sources, owner: str) -> WrongPath | None:
    """Returns None if the first part of a path exists, because the next one may be a class, and for a library
    that may be installed elsewhere."""
    first = owner.partition(".")[0]
    is_path = all(part.isidentifier() for part in owner.split("."))
    if not is_path or sources.is_library(owner) or sources.first_missing(owner) != first:
        return None
    own = tuple(file.stem for folder in sources.own for file in files(Path(folder), ".py"))
    return WrongPath(f"module `{first}` does not exist", first, own)


def _names_of_module(module: Module) -> tuple[str, ...]:
    """Returns the public names that a module binds; none if it may bind others."""
    if module.stars or "__getattr__" in module.names:
        return ()
    return tuple(name for name in module.names if not name.startswith("_"))


def _has_name(module: Module, name: str) -> bool:
    """Returns whether a name is bound or used anywhere in a module."""
    attributes = ("id", "name", "asname")
    return any(
        getattr(node, attribute, None) == name for node in ast.walk(module.tree) for attribute in attributes
    )


def _values(statement: ast.stmt | None) -> list[ast.expr | None]:
    """Returns the expressions of the names in a table."""
    if isinstance(statement, ast.ClassDef):
        return [one.value for one in statement.body if isinstance(one, (ast.Assign, ast.AnnAssign))]
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    if isinstance(value, ast.Dict):
        return list(value.keys)
    return list(value.elts) if isinstance(value, (ast.List, ast.Tuple, ast.Set)) else []
