"""Reads signatures of functions from source text, with their simple annotations.

    def __init__(self, path: str, n: int = 3, *, kind: Literal["a", "b"] | None = None) -> None

A simple annotation allows a set of kinds of values ("int", "text", "batch", ...). Others are ignored.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import reduce
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.recipe.code.modules import BATCHES

Function = ast.FunctionDef | ast.AsyncFunctionDef
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Meaning = Callable[[str], str | None]
"""Function that returns the absolute path of a dotted name in a module."""
GENERIC = {
    **dict.fromkeys(("List", "Tuple", "Sequence", "Iterable", "list", "tuple", "set"), "list"),
    **dict.fromkeys(("Dict", "Mapping", "dict"), "mapping"),
}
"""Name of a type with parameters -> the kind of its values."""
SIMPLE = {
    **{name: kind for name, kind in GENERIC.items() if name.islower()},
    **{"int": "int", "float": "float", "str": "text", "bool": "bool", "range": "range", "None": "nothing"},
}
"""Name of a type without parameters -> the kind of its values."""
NAMES = {
    **{"text": "text", "bool": "true or false", "nothing": "null", "int": "an integer"},
    **{"float": "a number", "batch": "a Batch"},
}
SCALARS = {"int", "float", "text", "bool"}


@dataclass(frozen=True)
class Hint:
    """The values that an annotation allows."""

    kinds: frozenset[str] = frozenset()
    words: tuple[Any, ...] = ()
    """The values of a `Literal`, which are allowed in addition to the kinds."""

    def takes(self, value: Any) -> bool:
        """Returns whether a value of a recipe is allowed. An unresolved interpolation is always allowed."""
        if value in self.words and type(value) in map(type, self.words):
            return True
        if isinstance(value, str) and "${" in value:
            return True
        return bool(self.kinds & _kinds_of(value))

    @property
    def is_batch(self) -> bool:
        """True if only a `Batch` or None is allowed."""
        return "batch" in self.kinds and self.kinds <= {"batch", "nothing"}

    @property
    def is_scalar(self) -> bool:
        """True if only numbers, text and booleans are allowed."""
        return bool(self.kinds) and self.kinds <= SCALARS and not self.words

    @property
    def described(self) -> str:
        named = [
            NAMES.get(kind, f"a {kind}")
            for kind in sorted(self.kinds - {"int"} if "float" in self.kinds else self.kinds)
        ]
        return " or ".join([*named, *(f"`{word}`" for word in self.words)])


def _kinds_of(value: Any) -> set[str]:
    if value is None or isinstance(value, bool):
        return {"nothing" if value is None else "bool"}
    kinds = {int: {"int", "float"}, float: {"float"}, str: {"text"}, list: {"list"}, dict: {"mapping"}}
    return next((found for kind, found in kinds.items() if isinstance(value, kind)), set())


@dataclass(frozen=True)
class Signature:
    """The signature of a function, or of a method without `self`."""

    positional: tuple[str, ...] = ()
    """The parameters that can be passed by position."""
    keywords: tuple[str, ...] = ()
    """The parameters that can be passed by name."""
    required: tuple[str, ...] = ()
    """The parameters without a default."""
    options: tuple[str, ...] = ()
    """The keyword-only parameters."""
    has_varargs: bool = False
    """True if it has `*args`."""
    has_kwargs: bool = False
    """True if it has `**kwargs`."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Parameter -> its default, for those whose default is a literal."""
    hints: Mapping[str, Hint] = field(default_factory=dict)
    returns: Hint | None = None
    """The annotation of the returned value; None if it is unknown."""

    @property
    def first(self) -> str:
        """The parameter that receives a single positional argument."""
        return self.positional[0] if self.positional else ""

    @property
    def inputs(self) -> tuple[str, ...]:
        """The positional parameters without a default."""
        return tuple(name for name in self.positional if name in self.required)

    @property
    def optional(self) -> tuple[str, ...]:
        """The positional parameters with a default."""
        return tuple(name for name in self.positional if name not in self.required)


def signature(function: Function, meaning: Meaning, bound: int = 1) -> Signature:
    """Reads the signature of a function without its first `bound` parameters: of a method, `self`. A default
    of None also allows null."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    without: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
    given = zip(positional, [*without, *arguments.defaults], strict=True)
    named = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    defaults = {one.arg: default for one, default in (*given, *named)}
    every = [*positional[bound:], *arguments.kwonlyargs]
    literals = {name: one.value for name, one in defaults.items() if isinstance(one, ast.Constant)}
    hints: dict[str, Hint] = {}
    for one in every:
        if hint := hint_of(one.annotation, meaning):
            null = {"nothing"} if one.arg in literals and literals[one.arg] is None else set()
            hints[one.arg] = Hint(hint.kinds | null, hint.words)
    return Signature(
        positional=tuple(argument.arg for argument in positional[bound:]),
        keywords=tuple(argument.arg for argument in every if argument not in arguments.posonlyargs),
        required=tuple(argument.arg for argument in every if defaults[argument.arg] is None),
        options=tuple(argument.arg for argument in arguments.kwonlyargs),
        has_varargs=arguments.vararg is not None,
        has_kwargs=arguments.kwarg is not None,
        defaults=literals,
        hints=hints,
        returns=hint_of(function.returns, meaning),
    )


def hint_of(annotation: ast.expr | None, meaning: Meaning) -> Hint | None:
    """Returns the hint of an annotation; None if it is not simple."""
    match annotation:
        case ast.Constant(value=None):
            return Hint(frozenset({"nothing"}))
        case ast.Constant(value=str(text)):
            try:
                return hint_of(ast.parse(text, mode="eval").body, meaning)
            except (SyntaxError, ValueError, RecursionError):
                return None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _either(hint_of(left, meaning), hint_of(right, meaning))
        case ast.Name(id=name) | ast.Attribute(attr=name):
            if meaning(ast.unparse(annotation)) in BATCHES:
                return Hint(frozenset({"batch"}))
            kind = SIMPLE.get(name) if isinstance(annotation, ast.Name) else None
            return Hint(frozenset({kind})) if kind else None
        case ast.Subscript(value=ast.Name(id=name) | ast.Attribute(attr=name), slice=inner):
            return _subscripted(name, inner, meaning)
    return None


def _subscripted(name: str, inner: ast.expr, meaning: Meaning) -> Hint | None:
    parts = inner.elts if isinstance(inner, ast.Tuple) else [inner]
    if name == "Literal":
        words = [part.value for part in parts if isinstance(part, ast.Constant)]
        return Hint(words=tuple(words)) if len(words) == len(parts) else None
    if name in ("Optional", "Union"):
        whole: Hint | None = Hint(frozenset({"nothing"})) if name == "Optional" else Hint()
        return reduce(_either, (hint_of(part, meaning) for part in parts), whole)
    kind = GENERIC.get(name)
    return Hint(frozenset({kind})) if kind else None


def _either(one: Hint | None, other: Hint | None) -> Hint | None:
    return None if one is None or other is None else Hint(one.kinds | other.kinds, (*one.words, *other.words))
