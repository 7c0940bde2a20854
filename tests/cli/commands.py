"""Runs meshctl in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MAIN = "from meshctl.cli.app import main; main()"
"""The source of the command; a test can put code of its own around it."""


def meshctl(folder: Path, *words: str, code: str = MAIN) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder, which also gets the files of the user's state."""
    environ = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=180)
