"""Reads as text the parameters of a function that an argument names, such as a loss.

    def grpo(logprobs, advantages, ref_logprobs=None, *, kl=0.0)
             required inputs       optional inputs       options

A function may also be a `functools.partial` of such a function.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import field, replace
from functools import partial
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.recipe.code.modules import Module, Sources, dotted_name
from meshctl.recipe.code.signatures import Hint, hint_of


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function."""

    required: tuple[str, ...] = ()
    """The positional parameters without a default."""
    optional: tuple[str, ...] = ()
    """The positional parameters with a default."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword-only parameter -> its default, for those whose default is a literal."""
    keywords: tuple[str, ...] = ()
    """The names of all keyword-only parameters."""
    hints: Mapping[str, Hint] = field(default_factory=dict)
    """Keyword-only parameter -> the values that its annotation allows, if it is simple."""


def parameters_of(sources: Sources, function: str) -> Parameters | None:
    """Returns the parameters of the function at a dotted path; None if it cannot be read."""
    found = sources.follow(function)
    if not isinstance(found, str):
        return _parameters(sources, *found)
    owner, _, name = found.rpartition(".")
    module = sources.module(owner)
    statement = module.names.get(name) if isinstance(module, Module) else None
    if not isinstance(module, Module) or not isinstance(statement, ast.Assign):
        return None
    return _of_partial(sources, module, statement.value)


def _parameters(sources: Sources, module: Module, definition: ast.stmt) -> Parameters | None:
    if not isinstance(definition, ast.FunctionDef):
        return None
    arguments = definition.args
    positional = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    required = len(positional) - len(arguments.defaults)
    options = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    annotations = {one.arg: _spelled_out(sources, module, one.annotation) for one in arguments.kwonlyargs}
    meaning = partial(sources.meaning, module)
    hints = {name: hint for name, one in annotations.items() if (hint := hint_of(one, meaning))}
    return Parameters(
        tuple(positional[:required]),
        tuple(positional[required:]),
        {one.arg: default.value for one, default in options if isinstance(default, ast.Constant)},
        tuple(one.arg for one in arguments.kwonlyargs),
        hints,
    )


def _spelled_out(sources: Sources, module: Module, annotation: ast.expr | None) -> ast.expr | None:
    """Returns an annotation; for a name of the module or of its package, such as `Mode = Literal["a", "b"]`,
    what the name is assigned."""
    if not isinstance(annotation, ast.Name):
        return annotation
    statement = module.names.get(annotation.id)
    if isinstance(statement, ast.ImportFrom):
        path = sources.meaning(module, annotation.id) or ""
        is_near = path.partition(".")[0] == module.name.partition(".")[0]
        owner = sources.module(path.rpartition(".")[0]) if is_near else None
        statement = owner.names.get(path.rpartition(".")[2]) if isinstance(owner, Module) else None
    return statement.value if isinstance(statement, ast.Assign) else annotation


def _path(sources: Sources, module: Module, name: str) -> str | None:
    if isinstance(module.names.get(name), ast.FunctionDef):
        return f"{module.name}.{name}"
    return sources.absolute(module, name)


def _of_partial(sources: Sources, module: Module, value: ast.expr) -> Parameters | None:
    """Returns the parameters that `partial(function, ...)` leaves; None for other expressions."""
    if not isinstance(value, ast.Call) or not value.args:
        return None
    function, *bound = value.args
    names = [dotted_name(one) for one in (value.func, function)]
    paths = [_path(sources, module, name) if name else None for name in names]
    keywords = {one.arg: one.value for one in value.keywords}
    if paths[0] != "functools.partial" or not paths[1] or None in keywords:
        return None
    found = sources.follow(paths[1])
    whole = None if isinstance(found, str) else _parameters(sources, *found)
    if whole is None or any(isinstance(one, ast.Starred) for one in bound):
        return None
    literals = {name: one.value for name, one in keywords.items() if isinstance(one, ast.Constant)}
    options = {name: default for name, default in whole.options.items() if name not in keywords}
    return replace(
        whole,
        required=tuple(name for name in whole.required[len(bound) :] if name not in keywords),
        options={**options, **{str(name): one for name, one in literals.items()}},
        keywords=tuple(dict.fromkeys((*whole.keywords, *map(str, keywords)))),
    )
