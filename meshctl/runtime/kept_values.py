"""The last values of a stage, for stages that run only once the last step is known.

Where a stream may end unannounced, nobody knows in a step whether it is the last one. A stage with
`when: end` then receives the values of the last step after all workers have agreed on it. Until then, the
producers of these values keep copies of the newest ones, since a producer may be some steps ahead.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from torch import Tensor

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.errors import StageError


class KeptValues:
    def __init__(self, stage: str, count: int) -> None:
        """Keeps the values of the last `count` steps of a stage."""
        self._stage = stage
        self._kept: deque[tuple[int, Any, float]] = deque(maxlen=count)

    def add(self, step: int, value: Any, weight: float) -> None:
        self._kept.append((step, copied(value), weight))

    def at(self, step: int) -> tuple[Any, float]:
        """Returns the value and the weight of a step. Raises `StageError` if they are no longer kept."""
        for kept, value, weight in self._kept:
            if kept == step:
                return value, weight
        raise StageError(
            f"the data ended after step {step}, and `{self._stage}` is more than {self._kept.maxlen} steps "
            "ahead, so its value for the end is gone: give it an input that depends on the data"
        )


def copied(value: Any) -> Any:
    """Returns a copy of a value, so that it stays valid if it contains borrowed memory."""
    if isinstance(value, (Batch, Tensor)):
        return value.clone()
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return [copied(item) for item in value] if isinstance(value, list) else value
