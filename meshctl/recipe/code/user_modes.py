"""Reads as text the user-defined modes that a decorator names: `dispatch="mymodes:INTERLEAVED"`, or an
imported object, `dispatch=INTERLEAVED`.

    INTERLEAVED = DispatchMode(partition=interleaved)        in mymodes.py, at module level
"""

from __future__ import annotations

import ast

from meshctl.recipe.code.modules import Module, Sources, dotted_name
from meshctl.text.english import abbreviated

EXAMPLES = {
    "dispatch": "NAME = DispatchMode(partition=cut), where def cut(table, parts, options) returns parts of "
    "table",
    "collect": "NAME = CollectMode(join=merge), where def merge(parts) gets [(value, weight), ...]",
    "execute": "NAME = ExecuteMode(only=RankSet.only(pick)), where def pick(mesh) returns a rank",
}
"""Parameter -> an example of a definition in the user's module."""
NEVER_MODES = (ast.Lambda, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.JoinedStr)


def mode_text(sources: Sources, module: Module, value: ast.expr) -> str | None:
    """Returns `module:NAME` for an expression that names an object at module level, and the source text for
    another expression, e.g. a call. None if the expression cannot be read or names a string."""
    if isinstance(value, (ast.Lambda, ast.Call)):
        return ast.unparse(value)
    written = dotted_name(value)
    if written is None:
        return None
    dotted = sources.absolute(module, written)
    if dotted is None and written in module.names:
        dotted = f"{module.name}.{written}"
    if dotted is None:
        return None
    found = sources.follow(dotted)
    if not isinstance(found, str):
        return f"{found[0].name}:{found[1].name}"
    if isinstance(sources.assigned(found), ast.Constant):
        return None
    owner, _, name = found.rpartition(".")
    return f"{owner}:{name}" if owner else None


def mode_problem(sources: Sources, name: str) -> str:
    """Returns the reason why `module:NAME` is not a mode; empty if it is one or may be one."""
    owner, _, attribute = name.partition(":")
    module = sources.module(owner)
    if module is None:
        return f"module `{sources.first_missing(owner)}` does not exist"
    if not isinstance(module, Module):
        return module.why if module.broken else ""
    if attribute not in module.names:
        may_have = module.stars or "__getattr__" in module.names
        return "" if may_have else f"module `{owner}` has no `{attribute}`"
    found = sources.follow(f"{owner}.{attribute}")
    if not isinstance(found, str):
        return "it is a class" if isinstance(found[1], ast.ClassDef) else "it is a function"
    value = sources.assigned(found)
    if isinstance(value, ast.Name) and isinstance(
        module.names.get(value.id), (ast.FunctionDef, ast.ClassDef)
    ):
        return f"it is `{value.id}`, a function or a class"
    if isinstance(value, NEVER_MODES):
        return f"it is `{abbreviated(ast.unparse(value), 40)}`"
    return ""
