"""A run as a read-only object, for notebooks and scripts.

    run = meshctl.open_run("runs/grpo/20260102-030405")
    run.state, run.step, run.reason              # "failed", 57, "train:1 failed in stage metrics, step 58"
    run.metrics["metrics.loss"]                  # a list with one number for each step
    run.metrics.to_pandas()
    for event in run.events(): ...
    for line in run.logs("train", 1): ...
    run.media("rollouts.samples")[-1].read()     # the last table, histogram or image of that name

It reads the files of the run directory, while the run goes on or afterwards, and imports neither torch nor
numpy. `refresh` reads again what has changed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.plan.model import Plan
from meshctl.run.events import Event, Follower
from meshctl.run.finding import NoRun, run_at
from meshctl.run.logs import LogLine, lines_of_workers, workers_named
from meshctl.run.media import Media, media_of
from meshctl.run.metrics import rows_of
from meshctl.run.reading import text_of
from meshctl.view.live.run_state import Condition
from meshctl.view.live.seen_run import SeenRun, plan_of_run
from meshctl.view.times import TimeUse


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that the run has published."""

    step: int
    path: Path


class Metrics(Mapping[str, list[float | None]]):
    """The rows of `metrics.jsonl` as columns of equal length: `step`, `time` (seconds of the run) and each
    metric as STAGE.NAME. A step without a metric has None, and a number that was not finite is NaN."""

    def __init__(self, columns: dict[str, list[float | None]]) -> None:
        self._columns = columns

    def __getitem__(self, name: str) -> list[float | None]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)

    def __repr__(self) -> str:
        return f"Metrics({len(self._columns.get('step', ()))} rows of {', '.join(self._columns)})"

    def to_pandas(self) -> Any:
        """Returns a `pandas.DataFrame` with the steps as its index. Raises `ImportError` with one sentence if
        pandas is not installed."""
        try:
            from pandas import DataFrame
        except ModuleNotFoundError as error:
            if error.name != "pandas":
                raise
            raise ImportError("to_pandas needs pandas: pip install pandas", name="pandas") from None
        return DataFrame(self._columns).set_index("step")


class OpenedRun:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Raises `ValueError` if the folder has no run that can be read."""
        try:
            run = run_at(Path(path))
            self._seen = SeenRun.of(run, plan_of_run(run))
        except NoRun as error:
            raise ValueError(str(error)) from None

    def __repr__(self) -> str:
        return f"<run {self.name}: {self.state}, step {self.step}>"

    def refresh(self) -> None:
        """Reads the state again, and the other files at their next use. Raises `ValueError` if the run
        directory was deleted."""
        self._seen = OpenedRun(self.path)._seen
        self.__dict__.pop("metrics", None)

    @property
    def plan(self) -> Plan:
        return self._seen.plan

    @property
    def path(self) -> Path:
        """The run directory."""
        return self._seen.run.path

    @property
    def name(self) -> str:
        """NAME/TIME"""
        return self._seen.name

    @property
    def state(self) -> Condition:
        """One of running, stalled, stopping, done, failed, interrupted and lost."""
        return self._seen.condition

    @property
    def code(self) -> int | None:
        """The exit code; None without an end."""
        return self._seen.state.code

    @property
    def reason(self) -> str:
        """The reason that the run has ended: the cause of a failure, the signal, or the end of the data."""
        return self._seen.state.reason

    @property
    def step(self) -> int:
        """The last complete step."""
        return self._seen.state.step

    @property
    def steps(self) -> int:
        """The planned number of steps; 0 if only a stop ends the run."""
        return self._seen.state.steps

    @property
    def seconds(self) -> float:
        """The duration of the run, up to its newest event."""
        return self._seen.state.seconds()

    @cached_property
    def recipe(self) -> str:
        """The text of the composed recipe."""
        return text_of(self._seen.run.recipe)

    @cached_property
    def metrics(self) -> Metrics:
        columns: dict[str, list[float | None]] = {"step": [], "time": []}
        for count, row in enumerate(rows_of(self._seen.run.metrics)):
            for name, value in row.items():
                if name not in columns:
                    columns[name] = [None] * count
                columns[name].append(math.nan if value is None else value)
            for column in columns.values():
                if len(column) == count:
                    column.append(None)
        return Metrics(columns)

    @property
    def time_use(self) -> TimeUse | None:
        """The use of time in the last attempt: what each group does in a step, for whom it waits, and
        what bounds the run. None before the second step, and for programs."""
        return self._seen.state.time_use

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """The published checkpoints that exist, by step."""
        return [Checkpoint(step, self._seen.run.checkpoint(step)) for step in self._seen.checkpoints]

    def events(self) -> Iterator[Event]:
        """Yields the events of all processes in the order of their times. Those of old steps are folded into
        sums (`steps`)."""
        return Follower(self._seen.run.events).in_order()

    def media(self, name: str | None = None) -> list[Media]:
        """Returns the images, histograms and tables that components have logged, or those of one name,
        STAGE.NAME, by step. `read` of each gives what it contains."""
        return media_of(self._seen.run, name)

    def logs(self, group: str = "", rank: int | None = None) -> Iterator[LogLine]:
        """Yields the lines that the workers have written, in the order of their times: of all workers, of a
        group, or of one rank. Raises `ValueError` for a group or rank that does not exist."""
        known = {each.name: each.workers for each in self.plan.groups}
        names = [group] if group else [*known]
        workers = workers_named(known, names if rank is None else [f"{name}:{rank}" for name in names])
        return lines_of_workers(self._seen.run, workers)


def open_run(path: str | os.PathLike[str]) -> OpenedRun:
    """Opens the run in a folder, while it goes on or afterwards. Raises `ValueError` if there is none that
    can be read."""
    return OpenedRun(path)
