"""What the endpoints of `parts.py` do, for the model: on lists of samples in place of batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.pipelines.shares import Rows, Sample, even

MINIBATCH = 2
COPIES = {"thrice": 3, "twins": 2}
DEFAULT_COLLECT = {"loss": "mean", "total": "sum", "tick": "sum", "peak": "largest"}
MAY_BE_NAN = ("logged", "loss", "total")
DEFAULT_DISPATCH = {"spread": "interleaved"}


@dataclass(frozen=True)
class Result:
    """What a call returns, logs and records."""

    value: Any
    recorded: list[Any]
    logged: Mapping[str, float] = field(default_factory=dict)


def call(method: str, arguments: list[Any], most: int, keep: int, is_nan: bool) -> Result:
    """Calls an endpoint. `most` is the number of samples of the largest share, `keep` an argument of the
    component. `is_nan` is whether its numbers are NaN in this step."""
    value = METHODS[method](arguments[0] if arguments else None, keep)
    if method == "parts":
        return Result(value, [recorded(value), recorded(minibatches(value, most))])
    logged = {"number": mean(arguments[0])} if method == "logged" else {}
    if is_nan and method in MAY_BE_NAN:
        logged = dict.fromkeys(logged, float("nan"))
        value = value | {"number": float("nan")} if isinstance(value, dict) else value
    return Result(value, [recorded(argument) for argument in arguments], logged)


def recorded(value: Any) -> Any:
    """The value as a record states it."""
    if isinstance(value, Rows):
        return {"ids": [list(s.id) for s in value.samples], "versions": [s.version for s in value.samples]}
    return [recorded(item) for item in value] if isinstance(value, list) else value


def minibatches(rows: Rows, most: int) -> list[Rows]:
    """As many on each rank as the largest share has, empty ones where necessary."""
    spans = even(len(rows.samples), -(-most // MINIBATCH)) if most else []
    return [rows.of(rows.samples[span.start : span.stop]) for span in spans]


def mean(rows: Rows) -> float:
    numbers = [id[0] for id in rows.ids]
    return sum(numbers) / len(numbers) if numbers else float("nan")


def _copied(rows: Rows, times: int) -> Rows:
    """Each sample becomes a group of its children."""
    depth = len(rows.samples[0].id) if rows.samples else 0
    children = [Sample((*s.id, child), s.version) for s in rows.samples for child in range(times)]
    return replace(rows.of(children), group_depth=depth)


METHODS: Mapping[str, Callable[[Any, int], Any]] = {
    "take": lambda rows, keep: rows,
    "same": lambda rows, keep: rows,
    "parts": lambda rows, keep: rows,
    "pair": lambda rows, keep: rows,
    "logged": lambda rows, keep: rows,
    "reverse": lambda rows, keep: rows.of(rows.samples[::-1]),
    "thrice": lambda rows, keep: _copied(rows, COPIES["thrice"]),
    "twins": lambda rows, keep: _copied(rows, COPIES["twins"]),
    "drop": lambda rows, keep: rows.of([s for s in rows.samples if s.id[0] % keep == 0]),
    "loss": lambda rows, keep: {"number": mean(rows), "samples": len(rows.samples)},
    "total": lambda rows, keep: {"number": sum(id[0] for id in rows.ids), "samples": len(rows.samples)},
    "peak": lambda rows, keep: {"number": sum(id[0] for id in rows.ids), "samples": len(rows.samples)},
    "spread": lambda rows, keep: rows,
    "tick": lambda rows, keep: {"ticks": 1},
}
