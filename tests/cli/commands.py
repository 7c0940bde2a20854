"""Runs meshctl in a separate process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.command_server import call

MAIN = "from meshctl.cli.app import main; main()"
"""The source code of the command. A test can add code around it."""


def meshctl(folder: Path, *words: str, code: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder, which is also the folder for the user's state. With `code`, a new interpreter
    executes that instead."""
    state = {"XDG_STATE_HOME": str(folder / "state")}
    if not code:
        return call(folder, *words, env=state)
    command = [sys.executable, "-c", code, *words]
    environ = {**os.environ, **state}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
