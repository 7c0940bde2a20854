"""The end of a run in a pod, which nobody can read any more once the pod has ended."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from meshctl.run.directory import RunDir
from meshctl.run.events import Event

RECENT_S = 15.0
"""A copy that was made within this time will be made again."""
WAIT_S = 8.0
"""How long the head waits for the last copy."""
POLL_S = 0.1


class LastCopy:
    """An observer that keeps the head alive until a machine that copies the run directory has its end."""

    def __init__(self, run: RunDir) -> None:
        self._run = run

    def on_attempt(self, number: int, step: int | None) -> None:
        pass

    def on_event(self, event: Event) -> None:
        pass

    def on_row(self, row: Mapping[str, Any]) -> None:
        pass

    def on_end(self, code: int, reason: str) -> None:
        ended = time.time()
        if self._copied() < ended - RECENT_S:
            return
        while time.time() < ended + WAIT_S and self._copied() <= ended:
            time.sleep(POLL_S)

    def _copied(self) -> float:
        """Returns when the last copy began, in seconds since the epoch; 0 if there was none."""
        try:
            return self._run.copied.stat().st_mtime
        except OSError:
            return 0.0
