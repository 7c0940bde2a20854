"""The metrics of one stage on one worker: the numbers that its endpoint returns, and those that it logs.
Images, histograms and tables are logged in the same way (`media.py`).

One rank of each data rank is counted: its numbers enter the metrics. The other ranks report only the names of
the metrics that they log, each name once. From these the supervisor can warn of a metric that no counted rank
has logged.
"""

from __future__ import annotations

import logging
import math
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from meshctl.plan.model import Component, Stage
from meshctl.run.events import Journal, StepReport
from meshctl.runtime.errors import StageError
from meshctl.runtime.loop_context import StepState
from meshctl.runtime.metrics.media import Histogram, Image, MediaWriter, Table
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import COLLECT, EXECUTE, CollectMode, ExecuteMode


class StageMetrics:
    def __init__(
        self,
        stage: Stage,
        mesh: DeviceMesh,
        rank: int,
        state: StepState,
        events: Journal,
        run: Path,
        collect: CollectMode = COLLECT["mean"],
        execute: ExecuteMode = EXECUTE["all"],
    ) -> None:
        """`run` is the run directory, to which images, histograms and tables are written."""
        self._stage, self._state, self._events = stage, state, events
        counted = mesh.representative(mesh.data_rank(rank))
        self._counted = counted if execute.is_called(mesh, counted) else rank
        """The rank whose logged numbers are those of this data rank."""
        self._is_counted = self._counted == rank
        representatives = map(mesh.representative, range(mesh.data_size))
        first = next((one for one in representatives if execute.is_called(mesh, one)), 0)
        self._media = MediaWriter(run, stage.name, events, writes=rank == first)
        self._uncounted: set[str] = set()
        """The names that this rank has logged without being counted."""
        self._before = 0
        """The number of metrics in the step's report before the running call."""
        self.logged: dict[str, list[float]] = {}
        """The numbers that the running call has logged on this rank, counted or not."""
        self._is_reduced = collect.is_reduced
        self._has_warned = False
        self._reduction: str = "mean"
        """The reduction of the returned numbers to one metric: `mean`, `sum` or `first`."""
        if collect.join == "sum" or (collect.join == "first" and not stage.block):
            self._reduction = collect.join

    def begin_call(self) -> None:
        self._before = len(self._state.report.metrics)
        self.logged.clear()

    def drop_call(self) -> None:
        """Drops what the running call has logged, because it has failed and is repeated."""
        del self._state.report.metrics[self._before :]
        self.logged.clear()
        self._media.again()

    def log(self, values: Mapping[str, float], weight: float) -> None:
        """Implements `Component.log`. Raises `TypeError` for what is neither a number nor an image,
        histogram or table, and `ValueError` for a wrong one of these and for a weight that is negative or
        not finite."""
        (logged, media), weight = logged_values(values), float(weight)
        if not 0 <= weight < math.inf:
            raise ValueError(f"the weight of self.log must be a finite number from 0, not {weight:g}")
        for name, one in media:
            self._media.write(name, one, self._state.report.step)
        numbers = {name: float(value) for name, value in logged.items()}
        for name, number in numbers.items():
            self.logged.setdefault(name, []).append(number)
        if self._is_counted:
            self._state.report.add_metric(self._stage.name, numbers, weight, "mean")
        elif new := sorted(logged.keys() - self._uncounted):
            self._uncounted.update(new)
            self._events.write(
                "uncounted",
                step=self._state.report.step,
                stage=self._stage.name,
                names=new,
                counted=self._counted,
            )

    def add_returned(self, value: Any, weight: float) -> None:
        """Adds the numbers that the endpoint has returned. Those that it has also logged in this call are
        counted once. Raises `StageError` if the two differ."""
        returned = scalars(value)
        for metric in self._state.report.metrics[self._before :]:
            if metric["stage"] == self._stage.name:
                for name in (logged := metric["values"]).keys() & returned.keys():
                    one, other = logged[name], returned[name]
                    if one != other and not (math.isnan(one) and math.isnan(other)):
                        called = f"`{self._stage.component}.{self._stage.method}`"
                        raise StageError(
                            f"{called} returns {other:g} for metric `{self._stage.name}.{name}` and logs "
                            f"{one:g} for it; one of them needs another name"
                        )
                metric["values"] = {name: one for name, one in logged.items() if name not in returned}
        self._state.report.add_metric(self._stage.name, returned, weight, self._reduction)

    def warn_of_others(self, value: Any) -> None:
        """Warns once of parts of a value that no stage takes and that are not metrics, because they are not
        numbers."""
        if not self._is_reduced or self._has_warned or value is None:
            return
        for name, part in named_parts(value):
            if number_of(part) is None:
                self._has_warned = True
                kind = "None" if part is None else f"a {type(part).__name__}"
                if isinstance(part, Tensor):
                    kind = f"a tensor of shape {list(part.shape)}"
                kind += f" as `{name}`" if name else ""
                called = f"`{self._stage.component}.{self._stage.method}`"
                text = f"{called} returned {kind}, which is not a metric: a metric is a single number"
                logging.getLogger("meshctl").warning(text)
                return


def named_parts(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the parts of a value that are not mappings. The keys that lead to one are joined by a slash."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from named_parts(item, f"{name}/{key}" if name else str(key))
    else:
        yield name, value


def number_of(value: Any) -> float | None:
    """Returns a number as a float; None for what is none, or an integer beyond the range of floats."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    with suppress(OverflowError):
        return float(value) if isinstance(value, (bool, Real)) else None
    return None


def scalars(value: Any) -> dict[str, float]:
    """Returns the numbers in a value by name; a bare number is called `value`. Raises `ValueError` if two
    numbers have one name."""
    found: dict[str, float] = {}
    for name, part in named_parts(value):
        if (number := number_of(part)) is not None:
            add_once(found, name or "value", number)
    return found


def add_once(numbers: dict[str, Any], name: str, number: Any) -> None:
    """Adds a number. Raises `ValueError` if there is one of this name."""
    if name in numbers:
        raise ValueError(f"two metrics have the name {name!r}")
    numbers[name] = number


def logged_values(
    values: Mapping[str, Any],
) -> tuple[dict[str, Any], list[tuple[str, Image | Histogram | Table]]]:
    """Returns the numbers that a component logs, and the media, by name. Several media may be in a list.
    Tensors are not converted, because that waits for their device. Raises `TypeError` if a value is
    neither."""
    numbers, media = dict[str, Any](), list[tuple[str, Image | Histogram | Table]]()
    for name, part in named_parts(values):
        items = part if isinstance(part, (list, tuple)) and part else [part]
        if all(isinstance(item, (Image, Histogram, Table)) for item in items):
            media += [(name, item) for item in items]
            continue
        is_tensor = isinstance(part, Tensor)
        if not isinstance(part, (bool, Real)) and not (
            is_tensor and part.numel() == 1 and not part.is_complex()
        ):
            shape = f" of shape {list(part.shape)}" if is_tensor else ""
            takes = "self.log takes numbers, and meshctl.Image, Histogram and Table"
            raise TypeError(f"{takes}: {name!r} is a {type(part).__name__}{shape}")
        add_once(numbers, name, part)
    return numbers, media


def phase_log(
    component: Component, phase: str, rank: int, step: int, events: Journal, run: Path
) -> Callable[[Mapping[str, float], float], None]:
    """Returns the `Component.log` of one rank outside of stages, which appends numbers to its events.

        in `setup`, before the first step      COMPONENT.setup.NAME, in the row of step 0
        in `close`, after the last step        COMPONENT.close.NAME, in the row of the last step

    A run that continues from a checkpoint calls `setup` again; the row of its step exists and does not
    change.
    """
    state = StepState(report=StepReport(step))
    stage = Stage(f"{component.name}.{phase}", "call", component.name, phase)
    metrics = StageMetrics(stage, component.mesh, rank, state, events, run)

    def log(values: Mapping[str, float], weight: float) -> None:
        metrics.begin_call()
        metrics.log(values, weight)
        events.write_metrics(state.report)
        state.report.metrics.clear()

    return log


# Memory

MEMORY_S = 5.0
"""The least time between two events."""
PAGE_BYTES = resource.getpagesize()
PEAK_UNIT = 1 if sys.platform == "darwin" else 1024


class MemoryUse:
    """Reports the memory of a worker as `memory` events at ends of steps, every few seconds."""

    def __init__(self, events: Journal) -> None:
        self._events, self._next = events, 0.0

    def report(self, step: int, now: float) -> None:
        """Writes an event if it is time for one. `now` are seconds of `perf_counter`."""
        if now >= self._next:
            self._next = now + MEMORY_S
            self._events.write("memory", step=step, **memory())


def memory() -> dict[str, Any]:
    """Returns the bytes of this process in main memory, now and at most, and with CUDA those that torch has
    reserved on its devices."""
    found: dict[str, Any] = {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * PEAK_UNIT}
    with suppress(OSError):  # no Linux
        found["resident"] = int(Path("/proc/self/statm").read_bytes().split()[1]) * PAGE_BYTES
        found["peak"] = max(found.values())  # the kernel's counters are not of the same moment
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        devices = range(torch.cuda.device_count())
        found["device"] = sum(map(torch.cuda.memory_reserved, devices))
        found["device_peak"] = sum(map(torch.cuda.max_memory_reserved, devices))
    return found
