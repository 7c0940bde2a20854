"""`meshctl completion SHELL`: the script that teaches a shell; a further shell is a file `meshctl.SHELL`
here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from meshctl.cli.output import write
from meshctl.text.english import listed

FOLDER = Path(__file__).parent
USAGE = 2


def shells() -> tuple[str, ...]:
    """Those that have a script here."""
    return tuple(sorted(path.suffix[1:] for path in FOLDER.glob("meshctl.*")))


def script(shell: str) -> int:
    """Prints the script that teaches a shell; the exit code."""
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in shells():
        asked = f"there is no script for `{name}`" if name else "SHELL does not say which shell this is"
        print(f"error: {asked}; there are {listed(shells())}", file=sys.stderr)
        return USAGE
    write((FOLDER / f"meshctl.{name}").read_text(encoding="utf-8"), sys.stdout)
    return 0
