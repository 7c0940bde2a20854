"""What is said of an exception that nobody expected: one line for the user, a file for whoever looks into it."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from pathlib import Path


def bug(error: Exception) -> int:
    """Says it; the exit code. The traceback itself is shown only where MESHCTL_DEBUG=1 asks for it."""
    text = "".join(traceback.format_exception(error))
    if os.environ.get("MESHCTL_DEBUG") == "1":
        sys.stderr.write(text)
    print(f"error[MC900]: a bug in meshctl: {type(error).__name__}: {' '.join(str(error).split())}{_kept(text)}", file=sys.stderr)
    return 70


def _kept(text: str) -> str:
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "meshctl"
    path = folder / f"bug-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(f"python {platform.python_version()}, {platform.platform()}\n\n{text}", encoding="utf-8")
    except OSError:
        return " (MESHCTL_DEBUG=1 shows where)"
    return f" ({path})"
