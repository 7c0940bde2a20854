"""Values of a stage that are sent later: the last ones, for stages that run only once the last step is known,
and those of the passes of a block, as one value for the stages outside.

Where a stream may end unannounced, nobody knows in a step whether it is the last one. A stage with
`when: end` receives the values of the last step after it is known. Until then, the producers of these values
keep copies of them.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import Tensor

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.errors import StageError
from meshctl.runtime.routes.end import END
from meshctl.runtime.routes.joins import JOINS
from meshctl.topology.modes import CollectMode, Join, Route


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
