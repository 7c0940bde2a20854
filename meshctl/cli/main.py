"""The way in. A shell asks for completions at every Tab, and is answered without the command line's own
machinery being loaded."""

from __future__ import annotations

import os
import sys

UNREADABLE, REFUSED, INTERRUPTED = 3, 4, 130
ANYWHERE = ("explain", "schema", "doctor", "completion", "--help", "--version")
"""Commands and options that need no working directory."""


def main() -> None:
    """An interrupt ends whatever is not better prepared for it, also while this is still being loaded."""
    try:
        _called()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def _called() -> None:
    if sys.argv[1:2] == ["complete"] and len(sys.argv) > 2:
        from meshctl.cli.completion.line import complete

        sys.exit(complete(sys.argv[2:]))
    if not set(sys.argv[1:]) & set(ANYWHERE) and not _has_folder():
        print("error: the working directory has been deleted: change to one that exists", file=sys.stderr)
        sys.exit(REFUSED if "launch" in sys.argv[1:] else UNREADABLE)
    from meshctl.cli.app import main

    main()


def _has_folder() -> bool:
    try:
        return bool(os.getcwd())
    except OSError:
        return False
