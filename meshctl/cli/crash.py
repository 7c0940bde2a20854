"""The report of an unexpected exception: one line for the user, and a file for the authors of meshctl.

Neither contains the messages of exceptions, which may quote values of the recipe. The file lists the types of
the exceptions and the lines of code.
"""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path


def bug(error: BaseException) -> int:
    """Reports a bug and returns the exit code. With MESHCTL_DEBUG=1, also prints the traceback."""
    text = "".join(_traceback(error))
    if os.environ.get("MESHCTL_DEBUG") == "1":
        sys.stderr.write(text)
    print(f"error[MC900]: a bug in meshctl: {type(error).__name__} ({_saved(text)})", file=sys.stderr)
    return 70


def _traceback(error: BaseException, seen: tuple[BaseException, ...] = ()) -> Iterator[str]:
    """Yields the lines of an exception's traceback, after those of its causes, without messages."""
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    seen = (*seen, error)
    if before is not None and not any(before is one for one in seen):
        yield from _traceback(before, seen)
        yield "\n"
    yield "Traceback (most recent call last):\n"
    yield from traceback.format_tb(error.__traceback__)
    yield f"{type(error).__module__}.{type(error).__qualname__}\n"


def _saved(text: str) -> str:
    """Writes a traceback to a file. Returns the file's path, or a hint if no file can be written."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "meshctl"
    path = folder / f"bug-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"python {platform.python_version()}, {platform.platform()}\n\n{text}", encoding="utf-8"
        )
    except OSError:
        return "set MESHCTL_DEBUG=1 to see the traceback"
    return str(path)
