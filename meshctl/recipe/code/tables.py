"""Reads as text the tables and functions that arguments name, and the extras of meshctl that they need.

A table at a dotted path is one of these:

    LOSSES = {"dpo": "losses.dpo"}                a mapping, whose keys are the names
    STYLES = ("colwise", "rowwise")               a list, a tuple or a set of names
    class Schedule(Enum): LINEAR = "linear"       a class, whose values are the names
    torch.optim                                   a module: the classes that it binds

    def grpo(logprobs, advantages, ref_logprobs=None, *, kl=0.0)
             required inputs       optional inputs       options

A function may also be a `functools.partial` of such a function. A class, or the module of a function, states
the extras with its libraries as `EXTRA = "rewards"`, or as a list.

A decorator names a user-defined mode as `dispatch="mymodes:INTERLEAVED"`, or as an imported object:

    INTERLEAVED = DispatchMode(partition=interleaved)        in mymodes.py, at module level
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from meshctl.argument_limits import value_of
from meshctl.recipe.code.declarations import Declarations, declarations_of, literal
from meshctl.recipe.code.modules import Module, Sources, dotted_name
from meshctl.recipe.code.signatures import Signature, hint_of, signature
from meshctl.recipe.compose.folders import files
from meshctl.text.english import abbreviated


def names_in(sources: Sources, table: str) -> tuple[str, ...]:
    """Returns the names in the table at a dotted path; none if they cannot be read."""
    module = sources.module(table)
    if isinstance(module, Module):
        return tuple(name for name in _names_of_module(module) if name[0].isupper())
    values = _values(sources.statement(table))
    names = [one.value for one in values if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    return tuple(names) if len(names) == len(values) else ()


def entries_in(sources: Sources, table: str) -> dict[str, str]:
    """Returns the entries of the mapping at a dotted path whose keys and values are texts; none if it cannot
    be read."""
    value = sources.assigned(table)
    pairs = zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ()
    return {
        str(key.value): text.value
        for key, text in pairs
        if isinstance(key, ast.Constant) and isinstance(text, ast.Constant) and isinstance(text.value, str)
    }


def literal_in(sources: Sources, table: str) -> Any:
    """Returns the value at a dotted path, if it is a literal; otherwise None."""
    return literal(sources.assigned(table))


def wrong_path(sources: Sources, dotted: str) -> tuple[str, str, tuple[str, ...]] | None:
    """Returns (what is wrong with a dotted path, its wrong word, words that can be in its place); None if
    something can, or may, be imported from it."""
    owner, _, name = dotted.rpartition(".")
    module = sources.module(owner)
    if module is None:
        # If the first part exists, the next one may be a class. A library may be installed elsewhere.
        first, is_path = owner.partition(".")[0], all(part.isidentifier() for part in owner.split("."))
        if not is_path or sources.is_library(owner) or sources.first_missing(owner) != first:
            return None
        own = tuple(file.stem for folder in sources.own for file in files(Path(folder), ".py"))
        return f"module `{first}` does not exist", first, own
    names = _names_of_module(module) if isinstance(module, Module) else ()
    if not isinstance(module, Module) or not names:
        return None
    words = ("id", "name", "asname")  # the name may be bound or used anywhere
    if any(getattr(node, word, None) == name for node in ast.walk(module.tree) for word in words):
        return None
    return f"module `{owner}` has no `{name}`", name, names


def _names_of_module(module: Module) -> tuple[str, ...]:
    """Returns the public names that a module binds; none if it may bind others."""
    if module.stars or "__getattr__" in module.names:
        return ()
    return tuple(name for name in module.names if not name.startswith("_"))


def _values(statement: ast.stmt | None) -> list[ast.expr | None]:
    if isinstance(statement, ast.ClassDef):
        return [one.value for one in statement.body if isinstance(one, (ast.Assign, ast.AnnAssign))]
    value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
    if isinstance(value, ast.Dict):
        return list(value.keys)
    return list(value.elts) if isinstance(value, (ast.List, ast.Tuple, ast.Set)) else []


def parameters_of(sources: Sources, function: str) -> Signature | None:
    """Returns the signature of the function at a dotted path; None if it cannot be read."""
    found = sources.follow(function)
    if not isinstance(found, str):
        return _parameters(sources, *found)
    module, statement = sources.module(found.rpartition(".")[0]), sources.statement(found)
    if not isinstance(module, Module) or not isinstance(statement, ast.Assign):
        return None
    return _of_partial(sources, module, statement.value)


def _parameters(sources: Sources, module: Module, definition: ast.stmt) -> Signature | None:
    if not isinstance(definition, ast.FunctionDef):
        return None
    # only the hints of options are read: those of the inputs are tensors
    meaning = partial(sources.meaning, module)
    found, options = signature(definition, lambda _: None, bound=0), definition.args.kwonlyargs
    spelled = {one.arg: hint_of(_spelled_out(sources, module, one.annotation), meaning) for one in options}
    return replace(found, hints={name: hint for name, hint in spelled.items() if hint})


def _spelled_out(sources: Sources, module: Module, annotation: ast.expr | None) -> ast.expr | None:
    """Returns an annotation; for a name of the module or of its package, such as `Mode = Literal["a", "b"]`,
    what the name is assigned."""
    if not isinstance(annotation, ast.Name):
        return annotation
    statement = module.names.get(annotation.id)
    if isinstance(statement, ast.ImportFrom):
        path = sources.meaning(module, annotation.id) or ""
        is_near = path.partition(".")[0] == module.name.partition(".")[0]
        statement = sources.statement(path) if is_near else None
    return statement.value if isinstance(statement, ast.Assign) else annotation


def _of_partial(sources: Sources, module: Module, value: ast.expr) -> Signature | None:
    """Returns the parameters that `partial(function, ...)` leaves, whose bound ones are options; None for
    other expressions."""
    if not isinstance(value, ast.Call) or not value.args:
        return None
    function, *bound = value.args
    maker, name = dotted_name(value.func), dotted_name(function)
    keywords = {one.arg: one.value for one in value.keywords}
    is_local = name is not None and isinstance(module.names.get(name), ast.FunctionDef)
    path = f"{module.name}.{name}" if is_local else sources.absolute(module, name) if name else None
    is_partial = maker is not None and sources.absolute(module, maker) == "functools.partial"
    if not is_partial or not path or None in keywords:
        return None
    found = sources.follow(path)
    whole = None if isinstance(found, str) else _parameters(sources, *found)
    if whole is None or any(isinstance(one, ast.Starred) for one in bound):
        return None
    literals = {str(name): one.value for name, one in keywords.items() if isinstance(one, ast.Constant)}
    defaults = {name: default for name, default in whole.defaults.items() if name not in keywords}
    return replace(
        whole,
        positional=tuple(name for name in whole.positional[len(bound) :] if name not in keywords),
        options=tuple(dict.fromkeys((*whole.options, *map(str, keywords)))),
        defaults={**defaults, **literals},
    )


def extras_of(sources: Sources, declared: Declarations, args: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the extras of the distribution that a component needs: those that its class declares, and those
    of the modules of the functions that its arguments name. An argument names one function by a text, or
    several by the keys of a mapping."""
    extras = [*declared.extra]
    for argument, table in declared.shipped.choices.items():
        value = value_of(args, argument)
        named = [value] if isinstance(value, str) else map(str, value if isinstance(value, Mapping) else ())
        for name in named:
            owner = (name if "." in name else entries_in(sources, table).get(name, "")).rpartition(".")[0]
            stated = sources.assigned(f"{owner}.EXTRA") if owner and "$" not in owner else None
            extras += declarations_of({"EXTRA": stated}).extra
    return tuple(dict.fromkeys(extras))


# User-defined modes

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
