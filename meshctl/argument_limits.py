"""Limits of arguments, as a component class declares them.

    RANGES = {"args.top_p": "> 0, <= 1", "args.stop": ">= 0, nonempty"}
    EXCLUDES = {"args.micro_batch": ("args.micro_batch_tokens",)}
    NEEDS = {"args.timeout_s": ("args.workers",)}
    RESERVED = {"args.engine": ("model", "dtype")}

`validate` reads the declarations as text. A constructor checks the values that it gets, which may come from
the environment, with `check_arguments`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

from meshctl.dataclass import dataclass

COMPARISONS: Mapping[str, tuple[Callable[[float, float], bool], str]] = {
    ">=": (operator.ge, "at least"),
    ">": (operator.gt, "above"),
    "<=": (operator.le, "at most"),
    "<": (operator.lt, "below"),
}
"""Sign -> its function, and its words in a message."""
NONEMPTY, WHOLE = "nonempty", "whole"
"""The words for texts that are not empty, and for whole numbers."""
ALL = "args"
"""In `NEEDS`: the arguments as a whole, which are always given."""
BOUND = re.compile(r"\s*(>=|>|<=|<)\s*(-?\d+(?:\.\d+)?(?:e-?\d+)?)\s*", re.ASCII)


@dataclass(frozen=True)
class Range:
    """The finite numbers within all bounds, and texts, which may be empty or not. Of a list, each item is
    judged. A value of another type is not judged."""

    bounds: tuple[tuple[str, str], ...] = ()
    """(sign, number) of each bound."""
    is_nonempty: bool = False
    """True if a text must not be empty."""
    is_whole: bool = False
    """True if a number must be whole."""

    @classmethod
    def of(cls, text: object) -> Range | None:
        """Returns the range of a text such as `> 0, <= 1` or `nonempty`; None if it is none."""
        parts = text.split(",") if isinstance(text, str) else [""]
        words = {part.strip() for part in parts} & {NONEMPTY, WHOLE}
        comparisons = [part for part in parts if part.strip() not in words]
        found = [(part[1], part[2]) for one in comparisons if (part := BOUND.fullmatch(one))]
        if len(found) < len(comparisons):
            return None
        return cls(tuple(found), NONEMPTY in words, WHOLE in words)

    def has(self, value: object) -> bool:
        """Returns whether a value is in the range."""
        if isinstance(value, (list, tuple)):
            return all(map(self.has, value))
        if isinstance(value, str):
            return bool(value) or not self.is_nonempty
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not self.bounds:
            return True
        return (
            isfinite(value)
            and not (self.is_whole and value % 1)
            and all(COMPARISONS[sign][0](value, float(bound)) for sign, bound in self.bounds)
        )

    @property
    def described(self) -> str:
        """The bounds in words, `above 0 and at most 1`."""
        whole = "a whole number of " if self.is_whole else ""
        return whole + " and ".join(f"{COMPARISONS[sign][1]} {bound}" for sign, bound in self.bounds)


def check_arguments(component: type, arguments: Mapping[str, Any], error: type[Exception]) -> None:
    """Raises `error` for the first argument that a declaration refuses. `component` is a class with the
    declarations, and `arguments` are those of its constructor."""
    for reason in _refused(component, arguments):
        raise error(reason)


def _refused(component: type, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yields why arguments are refused."""
    for path, text in getattr(component, "RANGES", {}).items():
        value, found = _value(arguments, path), Range.of(text)
        for one in value if isinstance(value, (list, tuple)) else (value,):
            if found is not None and not found.has(one):
                is_text = isinstance(one, str)
                yield f"{_named(path)} is {'an empty text' if is_text else f'{found.described}, not {one}'}"
    for path, others in getattr(component, "EXCLUDES", {}).items():
        for other in others:
            if _value(arguments, path) and _value(arguments, other):
                yield f"{_named(path)} and {_named(other)} exclude each other"
    for path, others in getattr(component, "NEEDS", {}).items():
        if _value(arguments, path) and not any(_value(arguments, other) for other in others):
            yield f"{_named(path)} needs {' or '.join(map(_named, others))}"
    for path, keys in getattr(component, "RESERVED", {}).items():
        given = _value(arguments, path)
        for key in given if isinstance(given, Mapping) else ():
            if key in keys:
                yield f"{_named(f'{path}.{key}')} follows from other arguments: leave it out"


def _named(path: str) -> str:
    name = path.removeprefix(ALL).removeprefix(".")
    return f"`{name}`" if name else "the constructor"


def _value(arguments: Mapping[str, Any], path: str) -> Any:
    """Returns the value of an argument such as `args.lora.r`; None if it is not given."""
    value: Any = arguments
    for key in path.split(".")[1:]:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
