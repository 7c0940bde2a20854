"""Runs meshctl in a separate process."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from meshctl.cli.output import Refusal, failed
from meshctl.run.finding import NoRun
from tests.command_server import call

MAIN = "from meshctl.cli.app import main; main()"
"""The source code of the command. A test can add code around it."""


def meshctl(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs a command in a folder, which is also the folder for the user's state."""
    return call(folder, *words, env={"XDG_STATE_HOME": str(folder / "state")})


def code_of(command: Callable[..., int], *arguments: Any) -> int:
    """Returns the exit code of a command in this process."""
    try:
        return command(*arguments)
    except (Refusal, NoRun) as error:
        return failed(error)
