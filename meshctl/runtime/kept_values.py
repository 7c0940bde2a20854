"""The last values of a stage, for stages that run only once the last step is known.

Where a stream may end unannounced, nobody knows in a step whether it is the last one. A stage with
`when: end` receives the values of the last step after it is known. Until then, the producers of these values
keep copies of them.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import Tensor

from meshctl.runtime.batch.batch import Batch


class KeptValues:
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
