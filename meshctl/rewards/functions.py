"""The table of reward functions, their lookup by name, and their calls for one sample. It does not load
torch.

A new function is a file with a function, as described in `meshctl.rewards`, and one line in `FUNCTIONS`.
"""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from math import isfinite
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgpack

from meshctl.dataclass import dataclass
from meshctl.named_function import import_function

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
REWARD = "reward"
"""The key of the reward in a mapping that a function returns."""
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
        short = [choice.name.rpartition(".")[2] for choice in choices]
        self._labels = [
            name if short.count(name) == 1 else choice.name
            for name, choice in zip(short, choices, strict=True)
        ]
        """The name of each function in metrics."""
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


TUPLE, LONG = 1, 2
"""msgpack's extension types."""


class MessageError(ValueError):
    """Raised for a value that is not plain data."""


def send(connection: Connection, value: Any) -> None:
    """Sends a value. Raises `MessageError` for a value that is not plain data, and OSError."""
    try:
        data = _packed(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise MessageError(f"a value cannot be sent to a worker process: {error}") from None
    connection.send_bytes(data)


def receive(connection: Connection) -> Any:
    """Returns the next value. Raises `EOFError` if the other side has closed the connection."""
    try:
        return _unpacked(connection.recv_bytes())
    except ConnectionResetError:
        raise EOFError("the connection is closed") from None


def _packed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, default=_extension, strict_types=True)
    return packed


def _extension(value: Any) -> Any:
    """Returns the form in which msgpack encodes a value that it does not know. Raises `MessageError`."""
    if isinstance(value, tuple):
        return msgpack.ExtType(TUPLE, _packed(list(value)))
    if isinstance(value, int):
        return msgpack.ExtType(LONG, int(value).to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
    plain: tuple[Any, ...] = (str, float, list, dict)
    for kind in plain:  # a class that is derived from plain data
        if isinstance(value, kind):
            return kind(value)
    raise MessageError(f"a {type(value).__name__} is not plain data")


def _unpacked(data: bytes) -> Any:
    return msgpack.unpackb(data, ext_hook=_value, strict_map_key=False)


def _value(code: int, data: bytes) -> Any:
    return int.from_bytes(data, "big", signed=True) if code == LONG else tuple(_unpacked(data))
