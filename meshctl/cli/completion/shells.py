"""`meshctl completion SHELL`: prints the completion script of a shell. To support another shell, add a file
`meshctl.SHELL` to this folder."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from meshctl.cli.output import refuse, write
from meshctl.text.english import listed

FOLDER = Path(__file__).parent


def shells() -> tuple[str, ...]:
    """Returns the names of the supported shells."""
    return tuple(sorted(path.suffix[1:] for path in FOLDER.glob("meshctl.*")))


def script(shell: str) -> int:
    """Prints the script of a shell, or of `$SHELL` if `shell` is empty. Returns the exit code."""
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in shells():
        reason = f"shell `{name}` is not supported" if name else "the shell cannot be detected from SHELL"
        return refuse(f"{reason}; available: {listed(shells())}")
    write((FOLDER / f"meshctl.{name}").read_text(encoding="utf-8"), sys.stdout)
    return 0
