"""The table of reward functions, their lookup by name, and their calls for one sample. It does not load
torch.

A new function is a file with a function, as described in `meshctl.rewards`, and one line in `FUNCTIONS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.named_function import Unsuitable, described, import_function, numbers_of, parameters_of

FUNCTIONS = {
    "exact_match": "meshctl.rewards.texts.exact_match",
    "format": "meshctl.rewards.texts.format",
    "length": "meshctl.rewards.texts.length",
    "math": "meshctl.rewards.math.math",
    "reasoning_gym": "meshctl.rewards.reasoning_gym.reasoning_gym",
}
"""Name of a reward function -> its dotted path."""
EXTRA = "rewards"
"""The extra that installs the libraries of the functions in the table."""


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
class Score:
    """The reward of a sample, or the reason why it has none."""

    reward: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of the sample."""
    failure: str = ""
    """The reason why a sample has no reward; empty if it has one."""


class Scorer:
    """Several functions, whose weighted sum is the reward."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        """Imports the functions. Raises `FunctionError`, and what the import of a user's module raises."""
        self._choices = choices
        self._functions = [
            import_function("function", FUNCTIONS, one.name, FunctionError, EXTRA) for one in choices
        ]
        self._columns = [
            parameters_of(f"function `{one.name}`", function, one.options, FunctionError)
            for one, function in zip(choices, self._functions, strict=True)
        ]
        short = [one.name.rpartition(".")[2] for one in choices]
        self._labels = [
            name if short.count(name) == 1 else one.name for name, one in zip(short, choices, strict=True)
        ]
        """The name of each function in metrics."""
        self.required = tuple(dict.fromkeys(name for one in self._columns for name in one.required))
        """The columns that the functions need."""
        optional = dict.fromkeys(name for one in self._columns for name in one.optional)
        self.optional = tuple(name for name in optional if name not in self.required)

    def score(self, row: Mapping[str, Any]) -> Score:
        """Returns the score of a sample. `row` contains the required columns. An exception of a function is
        the score's `failure`."""
        reward, metrics = 0.0, dict[str, float]()
        functions = zip(self._choices, self._functions, self._columns, self._labels, strict=True)
        for choice, function, columns, label in functions:
            given = [row[name] for name in columns.required]
            named = {name: row[name] for name in columns.optional if name in row}
            try:
                own, further = numbers_of(function(*given, **named, **choice.options))
            except Unsuitable as error:
                return Score(failure=f"`{choice.name}` {error}")
            except (Exception, SystemExit) as error:  # a failure concerns one sample only
                return Score(failure=f"`{choice.name}` raised {described(error, function)}")
            reward += choice.weight * own
            if len(self._functions) == 1:
                metrics |= further
            else:
                metrics |= {label: own, **{f"{label}/{name}": number for name, number in further.items()}}
        return Score(reward, metrics)
