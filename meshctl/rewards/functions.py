"""The table of reward functions, and the lookup of a function by its name. It does not load torch.

A new function is a file with a function, as described in `meshctl.rewards`, and one line in `FUNCTIONS`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.named_function import import_function

FUNCTIONS = {
    "exact_match": "meshctl.rewards.exact_match.exact_match",
    "format": "meshctl.rewards.format.format",
    "length": "meshctl.rewards.length.length",
    "math": "meshctl.rewards.math.math",
    "reasoning_gym": "meshctl.rewards.reasoning_gym.reasoning_gym",
}
"""Name of a reward function -> its dotted path."""
EXTRA = "rewards"
"""The extra that installs the libraries of the functions in the table."""
POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class FunctionError(ValueError):
    """Raised if a function does not exist, does not have a given option, or cannot be imported."""


@dataclass(frozen=True)
class Choice:
    """A reward function that a recipe names."""

    name: str
    """A key of `FUNCTIONS`, or a dotted path."""
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, given: Any) -> Choice:
        """Returns the choice for a value of `functions`: a weight, or a mapping of `weight` and options.
        Raises `FunctionError` for other values."""
        options = dict(given) if isinstance(given, Mapping) else {"weight": given}
        weight = options.pop("weight", 1.0)
        if isinstance(weight, bool) or not isinstance(weight, (int, float)):
            raise FunctionError(f"the weight of function `{name}` is {weight!r:.40}, not a number")
        return cls(name, float(weight), options)


@dataclass(frozen=True)
class RewardFunction:
    """A function with its options."""

    choice: Choice
    function: Callable[..., Any]
    required: tuple[str, ...]
    """The columns without a default, in the order of the parameters."""
    optional: tuple[str, ...]

    def __call__(self, row: Mapping[str, Any]) -> Any:
        """Calls the function with the values of one sample. `row` contains the required columns."""
        given = [row[name] for name in self.required]
        named = {name: row[name] for name in self.optional if name in row}
        return self.function(*given, **named, **self.choice.options)


def labels_of(choices: Sequence[Choice]) -> list[str]:
    """Returns a short name for the metrics of each function: the last part of its dotted path, or the whole
    path where two functions have the same last part."""
    short = [choice.name.rpartition(".")[2] for choice in choices]
    return [
        name if short.count(name) == 1 else choice.name for name, choice in zip(short, choices, strict=True)
    ]


def find(choice: Choice) -> RewardFunction:
    """Imports a function. Raises `FunctionError` if it does not exist, or does not have one of the
    options."""
    function = import_function("function", FUNCTIONS, choice.name, FunctionError, EXTRA)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        raise FunctionError(f"function `{choice.name}` does not state its parameters") from None
    known = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY]
    if unknown := [option for option in choice.options if option not in known]:
        raise FunctionError(
            f"function `{choice.name}` has no option `{unknown[0]}`; its options, which are its keyword-only "
            f"parameters, are {', '.join(known) or 'none'}"
        )
    unset = [
        one.name
        for one in parameters
        if one.kind is one.KEYWORD_ONLY and one.default is one.empty and one.name not in choice.options
    ]
    if unset:
        raise FunctionError(f"function `{choice.name}` needs the option `{unset[0]}`")
    columns = [one for one in parameters if one.kind in POSITIONAL]
    required = tuple(one.name for one in columns if one.default is one.empty)
    optional = tuple(one.name for one in columns if one.default is not one.empty)
    return RewardFunction(choice, function, required, optional)
