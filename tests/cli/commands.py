"""Runs meshctl in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MAIN = "from meshctl.cli.app import main; main()"
"""The source code of the command. A test can add code around it."""


def meshctl(folder: Path, *words: str, code: str = MAIN) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder, which is also the folder for the user's state."""
    environ = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=180)
