"""Runs meshctl in a separate process."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.command_server import call

MAIN = "from meshctl.cli.app import main; main()"
"""The source code of the command. A test can add code around it."""


def meshctl(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder, which is also the folder for the user's state."""
    return call(folder, *words, env={"XDG_STATE_HOME": str(folder / "state")})
