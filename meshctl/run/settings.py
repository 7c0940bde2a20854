"""The settings under `run:` of a recipe, which the plan contains, and the sources that end a run.

`recipe/fields.py` declares their keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any, Literal

from meshctl.dataclass import SPARSE as SPARSE
from meshctl.dataclass import dataclass
from meshctl.run.best import Mode


@dataclass(frozen=True)
class Best:
    """The checkpoints that are kept for the value of a metric."""

    on: str
    """The metric by which the best checkpoints are chosen, as STAGE.NAME."""
    keep: int = 1
    mode: Mode = "min"


@dataclass(frozen=True)
class Stop:
    """The metric without whose improvement a run ends."""

    on: str
    """The metric that has to improve, as STAGE.NAME."""
    mode: Mode = "min"
    patience: int = 3
    """Values of the metric in a row without a new best one."""


@dataclass(frozen=True)
class Checkpoint:
    every: int = 0
    """Steps between two checkpoints; 0 for one checkpoint at the end of the run."""
    keep: int = 3
    """The number of newest checkpoints that stay on disk."""
    best: Best | None = field(default=None, metadata=SPARSE)
    """The checkpoints that stay on disk beside them; None for none."""
    seconds: float = field(default=0.0, metadata=SPARSE)
    """Seconds between two checkpoints, in place of `every`; 0 for no such time."""
    is_async: bool = field(default=False, metadata=SPARSE)
    """True if a checkpoint is written while the run goes on, from a copy of the state."""


@dataclass(frozen=True)
class Restarts:
    """The number of times that a run starts again after a failure."""

    times: int = 3
    """The number of restarts within `within`."""
    within: float = 3600.0
    """Seconds in which restarts count."""


@dataclass(frozen=True)
class Elastic:
    """A group with which the run goes on when workers of it are lost for good."""

    group: str
    min_ranks: int = 1
    """The least number of its devices, or on cpu of its processes."""


@dataclass(frozen=True)
class Trace:
    """The steps in which workers record what they do."""

    steps: tuple[int, int]
    """The first and the last one."""
    profiler: bool = False
    """True if torch's profiler runs in these steps as well."""


@dataclass(frozen=True)
class Track:
    """A tracker of the run."""

    name: str
    """Its name in `trackers/`, or `module:NAME` for a user's own."""
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    steps: int = 0
    """The number of steps; 0 if the data end the run."""
    epochs: int = 0
    """The number of passes through the data; 0 for one pass."""
    dir: str = "runs"
    checkpoint: Checkpoint | None = None
    """None for a run that saves nothing."""
    grace: float = 30.0
    """Seconds that a first interrupt gives the run to finish its step and save."""
    show: tuple[str, ...] = ()
    """The metrics (STAGE.NAME) that the display and the summary show; empty for all."""
    record: tuple[str, ...] = field(default=(), metadata=SPARSE)
    """The routes, by name, whose values are kept on disk."""
    patience: float = field(default=600.0, metadata=SPARSE)
    """Seconds after which the run ends if a worker that waits for no other one has not advanced; 0 for no
    limit."""
    log_level: str = field(default="warning", metadata=SPARSE)
    """The least level of the log records that workers of components write."""
    checks: str = field(default="basic", metadata=SPARSE)
    """The checks that workers make during the run. `basic` are those that cost next to nothing, and `all`
    adds those that cost time."""
    stop: Stop | None = field(default=None, metadata=SPARSE)
    """None for a run that no metric ends."""
    on_nan: Literal["stop", "ignore"] = field(default="stop", metadata=SPARSE)
    """The reaction to a metric that is NaN or infinite."""
    time_limit: float = field(default=0.0, metadata=SPARSE)
    """Seconds after the launch at which the run ends in order; 0 for no limit."""
    restarts: Restarts | None = field(default=None, metadata=SPARSE)
    """None for a run that ends with its first failure."""
    elastic: tuple[Elastic, ...] = field(default=(), metadata=SPARSE)
    """The groups that may lose workers for good; a run ends where another group does."""
    log_keep: int = field(default=0, metadata=SPARSE)
    """The maximum number of bytes of the log of each worker; 0 for no limit."""
    trace: Trace | None = field(default=None, metadata=SPARSE)
    """None for a run without a trace."""
    track: tuple[Track, ...] = field(default=(), metadata=SPARSE)
    """The trackers, each of which is a process beside the launcher."""
    accept: tuple[str, ...] = field(default=(), metadata=SPARSE)
    """The unsound differences from a checkpoint with which a resume goes on."""

    @property
    def has_all_checks(self) -> bool:
        """True if workers make the checks that take time."""
        return self.checks == "all"


def bounding_sources(stages: Iterable[Any]) -> tuple[str, ...]:
    """Returns the names of the sources that bound a run, in the order of `stages`, which are those of a plan
    or of a recipe. The run ends when these sources have no more data.

    A source that is called in every step bounds the run. One that is called less often, such as the data of
    an evaluation, does not: its sample numbers run on past its length. Where no source is called in every
    step, those that are called most often bound the run. `ends_run` of the stage overrides this. A source in
    a block bounds only the block.
    """
    sources = [stage for stage in stages if stage.is_source and not stage.block]
    least = min((source.every for source in sources if not source.when), default=0)
    return tuple(
        source.name
        for source in sources
        if (not source.when and source.every == least if source.ends_run is None else source.ends_run)
    )


def end_of_data(source: str) -> str:
    """Returns the reason that is reported where a run ends with the data of a source."""
    return f"the data of `{source}` ended"
