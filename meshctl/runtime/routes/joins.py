"""Joins the values of a stage's producers into one value, with one function for each `join` of a collect
mode. `PassValues` joins those of the passes of a block, as one value for the stages outside.

Where a stream may end unannounced, nobody knows in a step whether it is the last one. A stage with
`when: end` receives the values of the last step after it is known. Until then, the producers of these values
keep copies of them in `KeptValues`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.errors import StageError
from meshctl.runtime.routes.end import END
from meshctl.topology.modes import CollectMode, Join, Route
from meshctl.topology.samples import RouteError

Parts = Sequence[tuple[Any, float]]
"""The (value, weight) of each producer, in their order."""


def check_joinable(collect: CollectMode, value: Any, route: Route) -> None:
    """Raises `RouteError` if the collect mode cannot join `value`, which one producer returned."""
    gave = f"`{route.source}` returned "
    if collect.is_batch and not isinstance(value, list):
        if value is None:
            raise RouteError(f"{gave}None; is its `return` missing?")
        if not isinstance(value, Tensor) or not value.ndim:
            hint = "flatten joins batches, lists and tensors: use mean, sum or first"
            raise RouteError(f"{gave}a {type(value).__name__}; {hint}")
    if collect.is_reduced and isinstance(value, Batch):
        raise RouteError(f"{gave}a Batch, but collect: {route.collect} is for numbers and tensors")


def join(collect: CollectMode, parts: Parts, route: Route) -> Any:
    """Returns the value of a stage from those of its producers. Raises `RouteError` if they do not fit."""
    return collect.join(parts) if callable(collect.join) else JOINS[collect.join](parts, route)


def _concatenated(parts: Parts, route: Route) -> Any:
    values = [value for value, _ in parts]
    if all(isinstance(value, list) for value in values):
        return [item for value in values for item in value]
    if all(isinstance(value, Tensor) for value in values):
        return torch.cat(values)
    kinds = ", ".join(sorted({type(value).__name__ for value in values}))
    raise RouteError(f"`{route.source}` returned different types on its ranks: {kinds}")


def _reduced(parts: Parts, route: Route, reduce: Callable[[Parts], Any]) -> Any:
    """Applies a reduction to numbers and tensors, and to mappings of them key by key."""
    first = parts[0][0]
    if isinstance(first, Mapping):
        keys = dict.fromkeys(key for value, _ in parts for key in value)
        return {
            key: _reduced([(value[key], weight) for value, weight in parts if key in value], route, reduce)
            for key in keys
        }
    if not all(isinstance(value, (bool, int, float, Tensor)) for value, _ in parts):
        raise RouteError(
            f"`{route.source}` returned a {type(first).__name__}, but collect: {route.collect} is for "
            "numbers, tensors and mappings of them"
        )
    shapes = dict.fromkeys(tuple(value.shape) if isinstance(value, Tensor) else () for value, _ in parts)
    if len(shapes) > 1:
        listed = " and ".join(str(list(shape)) for shape in shapes)
        raise RouteError(
            f"`{route.source}` returned tensors of the shapes {listed} on its ranks, but collect: "
            f"{route.collect} is for those of one shape"
        )
    return reduce(parts)


def _mean(parts: Parts) -> Any:
    weight = sum(weight for _, weight in parts)
    if not weight:
        return parts[0][0]
    return sum(value * weight for value, weight in parts if weight) / weight  # an empty part may be NaN


JOINS: Mapping[Join, Callable[[Parts, Route], Any]] = {
    "samples": _concatenated,
    "mean": lambda parts, route: _reduced(parts, route, _mean),
    "sum": lambda parts, route: _reduced(parts, route, lambda some: sum(value for value, _ in some)),
    "first": lambda parts, route: parts[0][0],
    "list": lambda parts, route: [value for value, _ in parts],
}


# Values that are sent later


class KeptValues:
    """The last values of a stage, for stages that run only once the last step is known."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, Any, float]] = deque(maxlen=2)
        """The step, the value and the weight of the last two. A stream may be called once after the last
        step."""

    def add(self, step: int, value: Any, weight: float) -> None:
        self._kept.append((step, copied(value), weight))

    def at(self, step: int) -> tuple[Any, float]:
        """Returns the value and the weight of the run's last step."""
        return next((value, weight) for kept, value, weight in self._kept if kept == step)


def copied(value: Any) -> Any:
    """Returns a copy of a value, so that it stays valid if it contains borrowed memory."""
    if isinstance(value, (Batch, Tensor)):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value


class PassValues:
    """Keeps copies of what one rank gave in the passes of a round."""

    def __init__(self, route: Route, collect: CollectMode) -> None:
        """`route` is one of those on which the joined value is sent. Raises `StageError` for a collect mode
        of the user's, since only its author knows how it joins passes."""
        if callable(collect.join):
            raise StageError(
                f"`{route.source}` produces a value in each pass, and `{route.collect}` cannot join values "
                "of several passes: choose a built-in `collect`, or take the value inside the block"
            )
        self._route, self._collect = route, collect
        self._parts: list[tuple[Any, float]] = []

    def clear(self) -> None:
        self._parts.clear()

    def add(self, value: Any, weight: float) -> None:
        """Adds the value of a pass; `weight` is its number of samples."""
        if value is not END:
            self._parts.append((copied(value), weight))

    def joined(self) -> tuple[Any, float]:
        """Returns the value of all passes and its weight: the samples of all batches in the order of their
        ids, lists and tensors one after another under `flatten`, the sum of numbers under `sum`, and
        otherwise their mean, weighted by samples. Without any pass the value is END."""
        if not self._parts:
            return END, 0.0
        weight = sum(weight for _, weight in self._parts)
        batches = [value for value, _ in self._parts if isinstance(value, Batch)]
        if batches:
            whole = Batch.concat([batch for batch in batches if len(batch)] or batches[:1])
            ids = whole.ids.tolist()
            order = sorted(range(len(ids)), key=ids.__getitem__)
            return whole if order == list(range(len(ids))) else whole.take(order), weight
        if all(value is None for value, _ in self._parts):
            return None, weight
        join: Join = "mean"
        if self._collect.is_batch:
            join = "samples"
        elif self._collect.join == "sum":
            join = "sum"
        return JOINS[join](self._parts, self._route), weight
