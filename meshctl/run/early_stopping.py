"""Decides when a run ends because a metric no longer improves.

    stopping = EarlyStopping("eval.loss", "min", patience=3)
    for row in rows:
        stopping.add(row)
    stopping.reason       empty while the run goes on

The decision depends on the rows of `metrics.jsonl` alone, so a run that continues from a checkpoint decides
in the same step as one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshctl.run.checkpoints.best import Mode, is_better
from meshctl.text.english import counted


class EarlyStopping:
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
        if value is not None and (self._best is None or is_better(value, self._best, self._mode)):
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
