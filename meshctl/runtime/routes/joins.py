"""Joins the values of a stage's producers into one value, with one function for each `join` of a collect
mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch
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
