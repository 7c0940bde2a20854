"""Limits of arguments, as a component class declares them.

    RANGES = {"args.top_p": "> 0, <= 1"}
    EXCLUDES = {"args.micro_batch": ("args.micro_batch_tokens",)}

`validate` reads the declarations as text. A constructor checks the values that it gets, which may come from
the environment, with `check_arguments`.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
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
BOUND = re.compile(r"\s*(>=|>|<=|<)\s*(-?\d+(?:\.\d+)?)\s*", re.ASCII)


@dataclass(frozen=True)
class Range:
    """The finite numbers within all bounds."""

    bounds: tuple[tuple[str, str], ...]
    """(sign, number) of each bound."""

    @classmethod
    def of(cls, text: object) -> Range | None:
        """Returns the range of a text such as `> 0, <= 1`; None if it is none."""
        parts = [BOUND.fullmatch(part) for part in text.split(",")] if isinstance(text, str) else [None]
        found = [(part[1], part[2]) for part in parts if part]
        return cls(tuple(found)) if len(found) == len(parts) else None

    def has(self, value: object) -> bool:
        """Whether a value is in the range. A value that is no number is not judged."""
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return True
        return isfinite(value) and all(
            COMPARISONS[sign][0](value, float(bound)) for sign, bound in self.bounds
        )

    @property
    def described(self) -> str:
        """The bounds in words, `above 0 and at most 1`."""
        return " and ".join(f"{COMPARISONS[sign][1]} {bound}" for sign, bound in self.bounds)


def check_arguments(component: type, arguments: Mapping[str, Any], error: type[Exception]) -> None:
    """Raises `error` for the first argument outside its range, and for arguments that exclude each other.
    `component` is a class with the declarations, and `arguments` are those of its constructor."""
    for path, text in getattr(component, "RANGES", {}).items():
        value, found = _value(arguments, path), Range.of(text)
        if found is not None and not found.has(value):
            raise error(f"`{path.removeprefix('args.')}` is {found.described}, not {value}")
    for path, others in getattr(component, "EXCLUDES", {}).items():
        for other in others:
            if _value(arguments, path) and _value(arguments, other):
                names = (f"`{one.removeprefix('args.')}`" for one in (path, other))
                raise error(f"{' and '.join(names)} exclude each other")


def _value(arguments: Mapping[str, Any], path: str) -> Any:
    """Returns the value of an argument such as `args.lora.r`; None if it is not given."""
    value: Any = arguments
    for key in path.split(".")[1:]:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value
