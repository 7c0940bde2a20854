"""Output of all commands.

A closed pipe or terminal and characters that the stream's encoding lacks are not errors. A full disk is:
`main` reports it for all commands, with exit code 4.
"""

from __future__ import annotations

import errno
import os
import platform
import stat
import sys
import time
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from meshctl.run.directory import write_whole
from meshctl.run.finding import NoRun
from meshctl.text.english import listed
from meshctl.text.redaction import redact
from meshctl.view.reports.text import shown

USAGE = 2
REFUSED = 4
WHEN = ("auto", "always", "never")
DATA_FORMATS = ("text", "json")
NO_RUN = 3
"""The exit code where no run is named that can be read."""


class Refusal(Exception):
    """A command cannot do what it is asked to. The message is one line."""

    def __init__(self, message: object, code: int = USAGE) -> None:
        super().__init__(str(message))
        self.code = code


def write(text: str, out: TextIO) -> None:
    """Writes a text and flushes the stream. Raises `OSError` if the disk is full."""
    try:
        out.write(text)
        out.flush()
    except OSError as error:
        if not is_closed(error, out):
            raise
        silence(out)


def is_closed(error: OSError, out: TextIO) -> bool:
    """Returns whether a stream has no reader any more: the reader of a pipe has ended, or the terminal was
    closed."""
    is_device = stat.S_ISCHR(os.fstat(out.fileno()).st_mode)
    return isinstance(error, BrokenPipeError) or (error.errno == errno.EIO and is_device)


def silence(out: TextIO) -> None:
    """Discards the buffered output of a stream, which Python would otherwise try to flush at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())


def why(error: Exception) -> str:
    """Returns the system's message about a file."""
    return ((error.strerror if isinstance(error, OSError) else "") or str(error)).lower()


def open_all() -> None:
    """Opens closed standard streams as /dev/null, so that files opened later do not get their descriptors.
    Characters that the encoding of the others lacks become `?`."""
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def refuse(message: object, code: int = USAGE) -> int:
    """Prints one error line to stderr and returns the exit code."""
    print(f"error: {shown(redact(str(message)))}", file=sys.stderr)
    return code


def failed(error: Exception) -> int:
    """Reports an error that no command handles, and returns the exit code. The command refuses, the output
    could not be written, or it is a bug in meshctl."""
    if isinstance(error, Refusal | NoRun):
        return refuse(error, error.code if isinstance(error, Refusal) else NO_RUN)
    if getattr(error, "errno", None) not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        return bug(error)
    silence(sys.stdout)
    with suppress(OSError):
        refuse(f"the output was not written completely: {why(error)}")
    return REFUSED


def check_format(format: str, known: Collection[str] = DATA_FORMATS) -> None:
    """Raises `Refusal` for a format that a command does not have."""
    if format not in known:
        raise Refusal(f"format `{format}` does not exist; available: {listed(known)}")


def write_file(text: str, path: Path, follows: bool = True, unwritable: int = USAGE) -> int:
    """Replaces a file at once, or writes to a pipe or device. Returns the exit code, `unwritable` for an
    error of the system. `follows` is whether a link may be followed, and a device be written to: not where
    the user has not chosen the path."""
    try:
        if path.is_dir():
            return refuse(f"`{path}` cannot be written: it is a folder")
        if follows and path.exists() and not path.is_file():  # e.g. /dev/stdout, which cannot be replaced
            path.write_text(text, encoding="utf-8")
        else:
            write_whole(path.resolve() if follows else path, text)
    except FileExistsError:
        return refuse(f"`{path}` cannot be written: its folder is a file")
    except (OSError, ValueError) as error:
        return refuse(f"`{path}` cannot be written: {why(error)}", unwritable)
    return 0


def has_color(out: TextIO, when: str = "auto", environ: Mapping[str, str] = os.environ) -> bool:
    """Returns whether output to a stream has colors. The first of these decides: `when` if it is not "auto",
    NO_COLOR, FORCE_COLOR or CLICOLOR_FORCE, and whether the stream is a terminal that can show colors."""
    if when != "auto":
        return when == "always"
    if environ.get("NO_COLOR"):
        return False
    if any(
        environ.get(name, "").lower() not in ("", "0", "false") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")
    ):
        return True
    return out.isatty() and environ.get("TERM") != "dumb" and environ.get("CLICOLOR") != "0"


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
