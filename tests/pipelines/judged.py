"""The model of the decisions that depend on metrics: `run.stop`, `run.checkpoint.best` and `run.on_nan`, as in
docs/runs.md, "Metrics that end a run"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tests.pipelines.shares import Fault

Row = Mapping[str, float | None]
Rows = Mapping[int, Row]
"""Step -> the metrics of the step; None for one that is not finite, or over no samples."""
Best = tuple[int, float, int]
"""The step of a checkpoint, the value of the metric, and the step of the value."""


class WrongMetric(Fault):
    """A metric is not a number, and `run.on_nan` is `stop`."""

    def __init__(self, step: int, metrics: Iterable[str]) -> None:
        super().__init__(f"{' or '.join(sorted(metrics))} is NaN in step {step}")
        self.texts = [f"metric `{metric}` is NaN in step {step}" for metric in metrics]


def is_better(value: float, other: float, mode: str) -> bool:
    return value < other if mode == "min" else value > other


def values_of(metric: str, rows: Rows) -> list[tuple[int, float | None]]:
    return [(step, rows[step][metric]) for step in sorted(rows) if metric in rows[step]]


def stopped(stop: Mapping[str, Any], rows: Rows) -> str:
    """The reason of `run.stop`, without the best value; empty if the metric still improves."""
    best, waited, patience = None, 0, stop.get("patience", 3)
    for step, value in values_of(stop["on"], rows):
        if value is not None and (best is None or is_better(value, best, stop.get("mode", "min"))):
            best, waited = value, 0
            continue
        waited += 1
        if waited == patience:
            values = f"{patience} value{'s' * (patience > 1)}, up to step {step}"
            has_not = "had no finite value in" if best is None else "has not improved in"
            return f"`{stop['on']}` {has_not} {values}"
    return ""


def best_of(best: Mapping[str, Any], steps: Iterable[int], rows: Rows) -> list[Best]:
    """The best of the checkpoints of some steps, the best first."""
    found: list[Best] = []
    for step in steps:
        before = [(at, value) for at, value in values_of(best["on"], rows) if at <= step]
        if before and before[-1][1] is not None:
            found.append((step, before[-1][1], before[-1][0]))
    sign = 1 if best.get("mode", "min") == "min" else -1
    return sorted(found, key=lambda one: (sign * one[1], one[0]))[: best.get("keep", 1)]


def kept(checkpoint: Mapping[str, Any], steps: Sequence[int], rows: Rows) -> list[int]:
    """The checkpoints that are there after those of `steps` were written: the newest and the best."""
    left: list[int] = []
    for step in steps:
        left.append(step)
        best = best_of(checkpoint["best"], left, rows) if "best" in checkpoint else []
        exempt = {*left[-checkpoint["keep"] :], *(one for one, *_ in best)}
        left = [one for one in left if one in exempt]
    return left
