"""The log file of a node process. An engine that only names it imports no torch."""

from __future__ import annotations

from pathlib import Path

from meshctl.run.directory import RunDir


def fork_log(run: RunDir, node: int) -> Path:
    """Returns the log file of a node process itself, which is usually empty."""
    return run.path / "logs" / ("fork-server.log" if node == 0 else f"fork-server-{node}.log")
