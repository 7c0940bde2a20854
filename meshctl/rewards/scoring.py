"""Calls the reward functions for one sample. It does not load torch."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from math import isfinite
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.rewards.functions import Choice, RewardFunction, find, labels_of

REWARD = "reward"
"""The key of the reward in a mapping that a function returns."""


@dataclass(frozen=True)
class Score:
    """The reward of a sample, or the reason why it has none."""

    reward: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Further numbers of the sample."""
    failure: str = ""
    """The reason why a sample has no reward; empty if it has one."""


class Unsuitable(ValueError):
    """A function returned something other than numbers."""


class Scorer:
    """Several functions, whose weighted sum is the reward."""

    def __init__(self, choices: Sequence[Choice]) -> None:
        """Imports the functions. Raises `FunctionError`, and what the import of a user's module raises."""
        self._functions = [find(choice) for choice in choices]
        self._labels = labels_of(choices)
        self.required = _names(self._functions, lambda one: one.required)
        """The columns that the functions need."""
        self.optional = tuple(
            name for name in _names(self._functions, lambda one: one.optional) if name not in self.required
        )

    def score(self, row: Mapping[str, Any]) -> Score:
        """Returns the score of a sample. An exception of a function is the score's `failure`."""
        reward, metrics = 0.0, dict[str, float]()
        for function, label in zip(self._functions, self._labels, strict=True):
            try:
                own, further = _numbers(function(row))
            except Unsuitable as error:
                return Score(failure=f"`{function.choice.name}` {error}")
            except (Exception, SystemExit) as error:  # a failure concerns one sample only
                return Score(failure=f"`{function.choice.name}` raised {_described(error, function)}")
            reward += function.choice.weight * own
            if len(self._functions) == 1:
                metrics |= further
            else:
                metrics |= {label: own, **{f"{label}/{name}": number for name, number in further.items()}}
        return Score(reward, metrics)


def _names(
    functions: Sequence[RewardFunction], columns: Callable[[RewardFunction], Sequence[str]]
) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for one in functions for name in columns(one)))


def _numbers(value: Any) -> tuple[float, dict[str, float]]:
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


def _described(error: BaseException, function: RewardFunction) -> str:
    """Returns the type and text of an exception, and the last line of the function's own file."""
    text = str(error).strip().splitlines()[:1]
    described = ": ".join([type(error).__name__, *text])
    frames = traceback.extract_tb(error.__traceback__)
    module = sys.modules.get(getattr(function.function, "__module__", ""))
    file = getattr(module, "__file__", None)
    own = [frame for frame in frames if frame.filename == file] or frames[-1:]
    return f"{described} ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else described
