"""The logs of workers without the time of each line."""

from __future__ import annotations

from pathlib import Path

from meshctl.run.log_files import without_stamps


def output_of(log: Path) -> str:
    """Returns the text that a worker has written into its log."""
    return without_stamps(log.read_text())
