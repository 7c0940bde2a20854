"""Checks that the files of a run can still be written. A run whose directory was deleted ends. On a disk that
is full or became read-only, the run continues after a warning."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from meshctl.engines.supervise.cause import Cause, Priority
from meshctl.engines.supervise.watches import Fault, Watch
from meshctl.network.connection import Message
from meshctl.run.directory import RunDir
from meshctl.text.english import listed

POLL_S = 1.0
"""Seconds between two checks of the run directory."""
PROBE, PROBE_BYTES = ".probe", 1 << 18
"""A file that is written to find out whether the disk is full. A full disk may have room for a few bytes."""


class RunFiles(Watch):
    """Finds out why the files of a run cannot be written."""

    def __init__(self, run: RunDir, warn: Callable[[str], None]) -> None:
        """`warn` shows a line to the user. An event would not do: a full disk does not take it."""
        self._run, self._warn = run, warn
        self._folder = _identity(run.path)
        """The device and inode of the run directory: a worker may make a folder of its name again."""
        self._next = 0.0
        self._disk_problem = ""
        """The warning that the disk takes no data; empty while it takes data."""

    def poll(self, now: float) -> Iterator[Fault]:
        """Returns the error of a run whose directory was deleted."""
        if now >= self._next:
            self._next = now + POLL_S
            self._examine_disk()
            if deleted := self._deleted():
                yield Fault(Cause(Priority.OWN, deleted))

    def lost(self) -> str:
        """Returns why the results of a run that has ended are gone; empty if they are there."""
        run = self._run
        missing = [file.name for file in (run.plan, run.start) if not file.exists()]
        emptied = f"the run directory {run.path} was emptied: it has no {listed(missing)}" if missing else ""
        is_saved = not (step := run.saved()) or run.checkpoint(step).is_dir()
        return self._deleted() or emptied or ("" if is_saved else f"{run.checkpoint(step)} was deleted")

    def _deleted(self) -> str:
        was_deleted = _identity(self._run.path) != self._folder
        return f"the run directory {self._run.path} was deleted" if was_deleted else ""

    def receive(self, message: Message, now: float) -> None:
        """Warns that the log of a worker cannot be written, unless the disk takes no data at all."""
        if message["type"] == "log_problem":
            self._examine_disk()
            if not self._disk_problem:
                path, reason = message["path"], message["reason"]
                self._warn(f"{path} cannot be written: {reason}; output is lost until it can")

    def _examine_disk(self) -> None:
        """Warns once each time that the disk becomes full or read-only."""
        found = self._problem_of_disk()
        if found and found != self._disk_problem:
            self._warn(f"the disk of {self._run.path} {found}, and output of workers is lost")
        self._disk_problem = found

    def _problem_of_disk(self) -> str:
        try:
            if os.statvfs(self._run.path).f_bavail == 0:
                return "is full: events wait until there is space"
            os.utime(self._run.path)  # a file system that became read-only after an error may not state it
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"cannot be written: {error.strerror}; events wait until it can"
        return ""

    def explain(self, cause: Cause | None) -> Cause | None:
        """Returns the cause of a failure. The run directory is the reason where it was deleted, or where it
        cannot be written and no worker has reported a fault of its own."""
        if cause is None:
            return None
        problem = self._deleted() or ("" if cause.priority is Priority.OWN else self.problem())
        return Cause(Priority.OWN, f"{problem}; then {cause.line}", log=cause.log) if problem else cause

    def problem(self) -> str:
        """Returns why a file of the run cannot be written now; empty if one can."""
        probe = self._run.path / PROBE
        try:
            probe.write_bytes(bytes(PROBE_BYTES))
        except OSError as error:
            return f"the run directory {self._run.path} cannot be written: {error.strerror}"
        finally:
            with suppress(OSError):
                os.unlink(probe)
        return ""


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
