"""torch's profiler in the steps of `run.trace`, on one worker. Calls of stages are ranges with names."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from time import perf_counter

import torch
from torch.profiler import ProfilerActivity, profile, record_function

MARKS = 8
"""Number of ranges by which this clock and the profiler's clock are compared. The shortest one counts."""


class Profiler:
    def __init__(self, path: Path) -> None:
        """`path` is the file that torch's profiler writes."""
        self._path = path
        self._profile: profile | None = None
        self._range: record_function | None = None

    def begin(self) -> tuple[str, float] | None:
        """Returns the name of a range, and when it began in seconds of `perf_counter`; None if another
        profiler runs."""
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        try:
            self._profile.start()
        except RuntimeError as error:
            self._fail(error)
            return None
        marks = []
        for number in range(MARKS):
            name, before = f"meshctl mark {number}", perf_counter()
            self.enter(name)
            after = perf_counter()
            self.leave()
            marks.append((after - before, name, (before + after) / 2))
        return min(marks)[1:]

    def enter(self, name: str) -> None:
        if self._profile:
            self._range = record_function(name)
            self._range.__enter__()  # type: ignore[no-untyped-call]

    def leave(self) -> None:
        if self._range:
            self._range.__exit__(None, None, None)
            self._range = None

    def end(self) -> None:
        """Writes the file, which takes about as long as the steps."""
        self.leave()
        found, self._profile = self._profile, None
        if found is None:
            return
        part = self._path.with_name(f".{self._path.name}")
        try:
            found.stop()
            found.export_chrome_trace(str(part))
            part.chmod(0o600)
            part.rename(self._path)
        except (RuntimeError, OSError) as error:
            self._fail(error)
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def _fail(self, error: Exception) -> None:
        self._profile = None
        print(f"meshctl: torch's profiler does not record: {error}", file=sys.stderr)
