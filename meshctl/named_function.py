"""The lookup of a function that a recipe names: by a key of a table, or by the dotted path of a user's
function; its parameters, and the numbers that it returns. It does not load torch."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

from meshctl.package import install_command

REWARD = "reward"
"""The key of the reward in a mapping that a function returns."""
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class Unsuitable(ValueError):
    """A function returned something other than numbers."""


class ColumnParameters(NamedTuple):
    """The positional parameters of a function, which name columns."""

    required: tuple[str, ...]
    """The parameters without a default."""
    optional: tuple[str, ...]


def import_function(
    kind: str, table: Mapping[str, str], name: str, error: type[Exception], extra: str = ""
) -> Callable[..., Any]:
    """Returns the function `name`. `name` is a key of `table`, which has dotted paths as its values, or a
    dotted path. `kind` names the kind of the function in messages, and `extra` the extra that installs what
    the functions of the table import. Raises `error` if the function does not exist. An import that fails
    inside the function's module raises its own error."""
    module, _, attribute = table.get(name, name).rpartition(".")
    if not module:
        near = get_close_matches(name, table, n=1)
        suggestion = f", did you mean `{near[0]}`" if near else ""
        names = f"the names are {', '.join(table)}, and a function of your own is a dotted path"
        raise error(f"{kind} `{name}` does not exist{suggestion}; {names}")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as missing:
        if extra and name in table:
            command = install_command(extra)
            raise error(f"{kind} `{name}`: {missing.name} is not installed: {command}") from None
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise
        raise error(f"{kind} `{name}`: module {missing.name!r} does not exist") from None
    if not callable(found):
        raise error(f"{kind} `{name}`: module {module} has no function {attribute!r}")
    return found  # type: ignore[no-any-return]


def parameters_of(
    what: str, function: Callable[..., Any], options: Collection[str], error: type[Exception]
) -> ColumnParameters:
    """Returns the columns that a function takes. `what` names it in messages. Raises `error` unless its
    keyword-only parameters have the names of the options."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise error(f"{what} does not state its parameters") from None
    known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    if unknown := [option for option in options if option not in known]:
        raise error(
            f"{what} has no option `{unknown[0]}`; its options, which are its keyword-only parameters, are "
            f"{', '.join(known) or 'none'}"
        )
    unset = [
        one.name
        for one in parameters
        if one.kind is one.KEYWORD_ONLY and one.default is one.empty and one.name not in options
    ]
    if unset:
        raise error(f"{what} needs the option `{unset[0]}`")
    columns = [one for one in parameters if one.kind in POSITIONAL]
    required = tuple(one.name for one in columns if one.default is one.empty)
    return ColumnParameters(required, tuple(one.name for one in columns if one.default is not one.empty))


def numbers_of(value: Any) -> tuple[float, dict[str, float]]:
    """Returns the reward and the further numbers that a function returned. Raises `Unsuitable`."""
    if not isinstance(value, Mapping):
        return _number(value, "returned"), {}
    if REWARD not in value:
        raise Unsuitable(f"returned a mapping without `{REWARD}`: {value!r:.60}")
    numbers = {str(name): _number(number, f"returned as `{name}`") for name, number in value.items()}
    return numbers.pop(REWARD), numbers


def _number(value: Any, what: str) -> float:
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise Unsuitable(f"{what} {value!r:.60}, not a number")
    number = float(value)
    if not isfinite(number):
        raise Unsuitable(f"{what} {number}, not a finite number")
    return number


def described(error: BaseException, function: Callable[..., Any]) -> str:
    """Returns the type and text of an exception, and the last line of the function's own file."""
    text = str(error).strip().splitlines()[:1]
    shown = ": ".join([type(error).__name__, *text])
    frames = traceback.extract_tb(error.__traceback__)
    file = getattr(sys.modules.get(getattr(function, "__module__", "")), "__file__", None)
    own = [frame for frame in frames if frame.filename == file] or frames[-1:]
    return f"{shown} ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else shown
