"""What is said of an exception that nobody expected: one line for the user, a file for whoever looks into it.

Its message may quote what the user wrote, so secrets are taken out of it: those of the recipe and the
overrides that were called for, and those of the environment. Nothing is kept of them for that; they are
looked for once there is a bug.
"""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from meshctl.text.redaction import hidden, is_secret, is_telling, secrets_in, traced

MOST = 1 << 20
"""Bytes of a file in which secrets are looked for."""


def bug(error: Exception) -> int:
    """Says it; the exit code. The traceback itself is shown only where MESHCTL_DEBUG=1 asks for it."""
    known = tuple(sorted(set(_known(error)), key=len, reverse=True))
    text = traced("".join(traceback.format_exception(error)), known)
    if os.environ.get("MESHCTL_DEBUG") == "1":
        sys.stderr.write(text)
    said = hidden(" ".join(str(error).split()), known)
    print(f"error[MC900]: a bug in meshctl: {type(error).__name__}: {said}{_kept(text)}", file=sys.stderr)
    return 70


def _known(error: BaseException) -> Iterator[str]:
    """What must not be shown, as far as it can be found: this must never be a bug of its own."""
    with suppress(Exception):
        yield from (text for name, text in os.environ.items() if is_secret(name) and is_telling(text))
        for word in sys.argv[1:]:
            yield from filter(is_telling, secrets_in((word,)))
            if os.path.isfile(word) and os.path.getsize(word) <= MOST:
                yield from filter(
                    is_telling,
                    secrets_in(Path(word).read_text(encoding="utf-8", errors="replace").splitlines()),
                )
    with suppress(Exception):
        yield from filter(is_telling, _of_frames(error.__traceback__))


def _of_frames(trace: TracebackType | None) -> Iterator[str]:
    """What had been read when it happened: the text of all files, and what they asked of the environment."""
    for frame, _ in traceback.walk_tb(trace):
        for value in list(frame.f_locals.values()):
            yield from getattr(getattr(value, "secrets", None), "known", ())
            yield from getattr(value, "texts", None) or () if type(value).__name__ == "Heard" else ()
            sources = getattr(value, "sources", None)
            for _, lines in sources if isinstance(sources, tuple) else ():
                yield from secrets_in(lines)


def _kept(text: str) -> str:
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "meshctl"
    path = folder / f"bug-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"python {platform.python_version()}, {platform.platform()}\n\n{text}", encoding="utf-8"
        )
    except OSError:
        return " (MESHCTL_DEBUG=1 shows where)"
    return f" ({path})"
