"""The end of a run in a pod, which nobody can read any more once the pod has ended."""

from __future__ import annotations

import time

from meshctl.run.directory import RunDir

RECENT_S = 15.0
"""A copy that was made within this time will be made again."""
WAIT_S = 8.0
"""Time that the head waits for the last copy."""
POLL_S = 0.1


def wait_for_copy(run: RunDir) -> None:
    """Waits until a machine that copies the run directory has the files that are in it now. Returns at once
    if no machine copies it."""
    ended = time.time()
    if _copied(run) < ended - RECENT_S:
        return
    while time.time() < ended + WAIT_S and _copied(run) <= ended:
        time.sleep(POLL_S)


def _copied(run: RunDir) -> float:
    """Returns when the last copy began, in seconds since the epoch; 0 if there was none."""
    try:
        return run.copied.stat().st_mtime
    except OSError:
        return 0.0
