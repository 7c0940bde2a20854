"""Finds the best values of a metric, and the checkpoints to which they belong, and ends a run whose metric no
longer improves.

The value of a checkpoint is the last one that the metric had at or before its step. A checkpoint whose last
value is not finite, or that has none, is never among the best.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from meshctl.dataclass import dataclass
from meshctl.text.english import counted

Mode = Literal["min", "max"]
"""The best value of a metric: the smallest one or the largest one."""


@dataclass(frozen=True)
class ScoredCheckpoint:
    """A checkpoint with the value of a metric."""

    step: int
    value: float
    value_step: int
    """The step in which the metric had the value: that of the checkpoint, or an earlier one."""


class BestCheckpoints:
    """Ranks checkpoints by a metric, from the rows of `metrics.jsonl`."""

    def __init__(self, metric: str, keep: int, mode: Mode) -> None:
        """`metric` is STAGE.NAME, `keep` the number of checkpoints that count as the best."""
        self.metric, self.mode = metric, mode
        self._keep = keep
        self._steps, self._values = array("q"), array("d")
        """The steps in which the metric had a value, and its values; NaN for one that was not finite."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a row. Rows arrive in the order of their steps. The row of the last step may arrive again."""
        if self.metric not in row:
            return
        value = row[self.metric]
        if self._steps and self._steps[-1] == row["step"]:
            self._steps.pop()
            self._values.pop()
        self._steps.append(row["step"])
        self._values.append(math.nan if value is None else value)

    def among(self, steps: Iterable[int]) -> list[ScoredCheckpoint]:
        """Returns the best of the checkpoints at `steps`, the best first. Of checkpoints with the same value,
        the earliest is preferred, which is nearest to the step in which the value was measured."""
        scored = [found for step in steps if (found := self._scored(step)) is not None]
        sign = 1 if self.mode == "min" else -1
        return sorted(scored, key=lambda one: (sign * one.value, one.step))[: self._keep]

    def _scored(self, step: int) -> ScoredCheckpoint | None:
        index = bisect_right(self._steps, step) - 1
        if index < 0 or math.isnan(self._values[index]):
            return None
        return ScoredCheckpoint(step, self._values[index], self._steps[index])


class EarlyStopping:
    """Decides when a run ends because a metric no longer improves, from the rows of `metrics.jsonl` alone: a
    run that continues from a checkpoint decides in the same step as one that was never interrupted."""

    def __init__(self, metric: str, mode: Mode, patience: int) -> None:
        """`metric` is STAGE.NAME. `patience` is the number of consecutive values that are not better than all
        earlier ones. A value that is not finite is never better."""
        self._metric, self._mode, self._patience = metric, mode, patience
        self._best: float | None = None
        self._best_step = self._last_step = -1
        self._waited = 0
        self.reason = ""
        """The reason why the run ends, in one line; empty if it goes on."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Adds a row. Rows arrive in the order of their steps. A row that arrives again is ignored."""
        if self._metric not in row or row["step"] <= self._last_step or self.reason:
            return
        self._last_step, value = row["step"], row[self._metric]
        sign = 1 if self._mode == "min" else -1
        if value is not None and (self._best is None or sign * value < sign * self._best):
            self._best, self._best_step, self._waited = value, self._last_step, 0
            return
        self._waited += 1
        if self._waited >= self._patience:
            self.reason = self._described()

    def _described(self) -> str:
        values, metric = counted(self._waited, "value"), f"`{self._metric}`"
        if self._best is None:
            return f"{metric} had no finite value in {values}, up to step {self._last_step}"
        best = f"its best value is {self._best:.4g}, in step {self._best_step}"
        return f"{metric} has not improved in {values}, up to step {self._last_step}: {best}"
