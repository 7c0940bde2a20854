"""The entry point. Shell completion, which runs at every Tab, is answered without importing the commands."""

from __future__ import annotations

import os
import signal
import sys

import meshctl
from meshctl.cli import without_collection

UNREADABLE, REFUSED, INTERRUPTED = 3, 4, 130
ANYWHERE = ("explain", "schema", "doctor", "completion", "--help", "--version")
"""Commands and options that need no working directory."""


def main() -> None:
    """Runs a command. An interrupt that no command handles ends the process with 130, also during imports."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, as a parent may pass it on, it hides ends
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
    if not hasattr(meshctl, "_HOMES"):
        from meshctl.package import namesake, reinstall_command

        found = f"{namesake() or 'another distribution'} has overwritten files of meshctl"
        print(f"error: {found}: {reinstall_command()}", file=sys.stderr)
        sys.exit(REFUSED)
    with without_collection():
        from meshctl.cli.app import main
    main()


def _has_folder() -> bool:
    try:
        return bool(os.getcwd())
    except OSError:
        return False
