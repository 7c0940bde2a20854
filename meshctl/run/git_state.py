"""The state of the recipe's git repository at the launch: `git.txt` in the run directory.

    record_git_state(run, folder)        starts git, and does not wait for it
    git_state(run)                       {"commit": "7bdc96b...", "branch": "main", "dirty": False}

Its lines are the commit, the branch, and the first change that is not committed.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import suppress
from typing import Any

from meshctl.run.directory import RunDir
from meshctl.run.reading import bytes_of

COMMANDS = "rev-parse HEAD && {git} rev-parse --abbrev-ref HEAD && {git} status --porcelain -uno"


def record_git_state(run: RunDir, folder: str) -> None:
    """Starts a process that writes the file; an empty one outside of a repository. The status of a large
    repository takes seconds."""
    git, part = f"git -C {shlex.quote(folder)}", shlex.quote(str(run.git.with_suffix(".part")))
    commands = (
        f"({git} {COMMANDS.format(git=git)}) | head -n 3 >{part}; mv {part} {shlex.quote(str(run.git))}"
    )
    with suppress(OSError):  # there is no shell
        subprocess.Popen(
            ["sh", "-c", commands],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
            start_new_session=True,
        )


def git_state(run: RunDir) -> dict[str, Any]:
    """Returns `commit`, `branch` and `dirty`; nothing outside of a repository, and where git has not
    answered."""
    try:
        lines = bytes_of(run.git).decode(errors="replace").splitlines()
    except OSError:
        return {}
    return {"commit": lines[0], "branch": lines[1], "dirty": len(lines) > 2} if len(lines) > 1 else {}
