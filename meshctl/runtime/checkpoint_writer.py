"""Writes this rank's part of each checkpoint, and reports it to the supervisor.

A checkpoint that cannot be written, for example on a full disk, does not end the run: the rank reports
`unsaved` with the path and the reason in place of `saved`, and goes on.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp

from meshctl.run.directory import RunDir
from meshctl.run.events import EventLog
from meshctl.run.manifest import describe
from meshctl.runtime import checkpoint
from meshctl.topology.mesh import DeviceMesh

StateOf = Callable[[], object]
"""Returns the state of a component."""


class CheckpointWriter:
    def __init__(
        self,
        run: RunDir,
        group: str,
        rank: int,
        states: Mapping[str, tuple[StateOf, DeviceMesh]],
        events: EventLog,
    ) -> None:
        """`states` maps each component with state to its state and its mesh, which knows this rank."""
        self._run, self._group, self._rank, self._states, self._events = run, group, rank, states, events

    def save(self, step: int, given: Mapping[str, int]) -> None:
        """Writes this rank's part of the checkpoint of a step. `given` is source -> the number of samples
        that it has produced, for the sources of this group. It is a collective call of all ranks of the
        group."""
        begin, folder = time.perf_counter(), self._run.checkpoint(step)
        written: list[Path] = []
        failure = ""
        for name, (state_of, mesh) in self._states.items():
            state = state_of()
            try:  # after a failure the rank still takes part in the collectives of the other components
                written += checkpoint.save(folder, name, state, mesh)
            except (OSError, dcp.CheckpointException) as error:
                failure = failure or reason_of(error, folder / name)
        files: dict[str, Any] = {}
        try:
            if not self._rank:
                written += checkpoint.save_position(folder, self._group, dict(given))
            files = describe(folder, written)
        except OSError as error:
            failure = failure or reason_of(error, folder)
        if failure:
            self._events.write("unsaved", step=step, error=failure)
        else:
            self._events.write("saved", step=step, seconds=time.perf_counter() - begin, files=files)


def reason_of(error: BaseException, path: Path) -> str:
    """Returns the path that could not be written, and why, in one line."""
    if isinstance(error, dcp.CheckpointException):
        failures = [failure for failure, *_ in error.failures.values()]
        return reason_of(next((one for one in failures if isinstance(one, OSError)), failures[0]), path)
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or path}: {error.strerror}"
    line = (str(error) or type(error).__name__).splitlines()[0]
    if "inline_container" in line:  # what torch's writer raises in place of the error of the disk
        free = shutil.disk_usage(path).free
        line = f"a file could not be written to its end ({free:,} bytes are free on its disk)"
    return f"{path}: {line}"
