"""Formulas of the tables: arithmetic and comparisons over keys of a configuration.

    Formula("trainer.n_gpus * trainer.nnodes")({"trainer.nnodes": 2, "trainer.n_gpus": 8})        16

A name with dots is a key; `key("datasets.0.path")` is one that is no name. `this` is the value of the row. A
formula is parsed, and never executed as Python.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda a, b: a // b if isinstance(a, int) and isinstance(b, int) and b and a % b == 0 else a / b,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{"min": min, "max": max, "ceil": math.ceil, "int": int, "float": float, "len": len, "str": str},
    "stem": lambda path: str(path).rpartition("/")[2].partition(".")[0],
    "replace": lambda text, old, new: str(text).replace(old, new),
    "split": lambda text: str(text).split(),
}
OF_KEYS = ("key", "given")
PARTS = (
    *(ast.Constant, ast.Name, ast.Attribute, ast.Call, ast.List, ast.Tuple, ast.Dict, ast.IfExp, ast.UnaryOp),
    *(ast.BinOp, ast.BoolOp, ast.Compare, ast.And, ast.Or, ast.Load, *OPERATORS),
)


NULL = object()
"""The value of the name `none`: a null that is written to the recipe."""
UNKNOWN = object()
"""The value of a key that is given, and is not known."""


class Unknown(Exception):
    """A key of a formula has no value."""


class Formula:
    def __init__(self, text: str) -> None:
        """Raises `ValueError` for a text that is no formula."""
        self._tree = _parsed(str(text))

    def __call__(self, values: Mapping[str, Any]) -> Any:
        """Returns the value; None if a key has none, or its value is of a wrong type."""
        try:
            return _value(self._tree, values)
        except (Unknown, TypeError, ValueError, ZeroDivisionError, OverflowError):
            return None


@cache
def _parsed(text: str) -> ast.expr:
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{text!r} is no formula: {error.msg}") from None
    for node in ast.walk(tree):
        is_call = isinstance(node, ast.Call) and ast.unparse(node.func) not in (*FUNCTIONS, *OF_KEYS)
        if is_call or not isinstance(node, PARTS):
            raise ValueError(f"{text!r} is no formula: {ast.unparse(node)}")
    return tree


def _value(node: ast.expr, values: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value):
            return value
        case ast.Name() | ast.Attribute():
            return _of_key(ast.unparse(node), values)
        case ast.Call(ast.Name("key"), [ast.Constant(str(name))]):
            return _of_key(name, values)
        case ast.Call(ast.Name("given"), [ast.Constant(str(name))]):
            return values.get(name) is not None
        case ast.Call(ast.Name(name), arguments):
            return FUNCTIONS[name](*(_value(one, values) for one in arguments))
        case ast.List(items) | ast.Tuple(items):
            return [_value(one, values) for one in items]
        case ast.Dict(keys, items):
            pairs = zip(keys, items, strict=True)
            return {_value(key, values): _value(item, values) for key, item in pairs if key is not None}
        case ast.IfExp(test, yes, no):
            return _value(yes if _value(test, values) else no, values)
        case ast.UnaryOp(sign, operand):
            return OPERATORS[type(sign)](_value(operand, values))
        case ast.BinOp(left, sign, right):
            return OPERATORS[type(sign)](_value(left, values), _value(right, values))
        case ast.BoolOp(sign, items):
            is_and, found = isinstance(sign, ast.And), None
            for one in items:
                found = _value(one, values)
                if bool(found) != is_and:
                    return found
            return found
        case ast.Compare(left, [sign], [right]):
            return OPERATORS[type(sign)](_value(left, values), _value(right, values))
    raise TypeError(f"{ast.unparse(node)} has another form")


def _of_key(name: str, values: Mapping[str, Any]) -> Any:
    if name in ("true", "false", "null"):
        return {"true": True, "false": False}.get(name)
    if name == "none":
        return NULL
    if values.get(name) is None or values[name] is UNKNOWN:
        raise Unknown(name)
    return values[name]
