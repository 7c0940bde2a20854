"""Reads the files of run directories and checkpoints, which may have come from anywhere.

    with opened(path) as file: ...
    text_of(path), decoded(text), lines_of(path)

Nothing in such a folder makes a reader follow a link out of it, wait for a pipe or a device, need more than
bounded memory, or recurse without end: that is an `OSError` or a `ValueError`.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from sys import float_info
from typing import Any, BinaryIO, TypeGuard

MAX_BYTES = 256 << 20
"""Maximum size of a file that is read as a whole."""
MAX_LINE_BYTES = 4 << 20
MAX_LINES_BYTES = 4 << 30
"""Maximum size of a file of lines."""
MAX_LOG_BYTES = 1 << 37
MAX_DEPTH = 200
"""Maximum depth of lists and objects in JSON."""
MAX_FOLDERS = 6
"""Number of folders between a file and its run directory, at most."""
BLOCK_BYTES = 1 << 18
"""Bytes that are read at a time."""
DAMAGED = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError)
"""The errors of data whose values have other types than meshctl writes."""
_SAFE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_decode = json.JSONDecoder().raw_decode
"""Half the cost of `json.loads` of bytes, which detects their encoding first."""


def descriptor(path: Path | str, limit: int = MAX_LINES_BYTES) -> int:
    """Opens a regular file of at most `limit` bytes. Raises `OSError` with the path."""
    try:
        file = os.open(path, os.O_RDONLY | _SAFE)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENXIO):
            raise
        raise OSError(errno.EINVAL, "it is a link or no regular file", str(path)) from None
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode) or found.st_size > limit or _is_below_link(str(path)):
        os.close(file)
        what = f"has more than {limit} bytes" if found.st_size > limit else "is a link or no regular file"
        raise OSError(errno.EINVAL, f"it {what}", str(path))
    return file


def _is_below_link(path: str) -> bool:
    """Returns whether a folder between a file and its run directory is a link."""
    is_linked = False
    for _ in range(MAX_FOLDERS):
        path = os.path.dirname(path)
        if not os.path.islink(path) and os.path.exists(f"{path}/start.json"):
            return is_linked
        is_linked = is_linked or os.path.islink(path)
    return False


def appended(path: Path) -> int:
    """Opens a file for appending, which is made if it is missing. Raises `OSError`."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _SAFE, 0o644)


def stat_of(path: Path | str) -> os.stat_result | None:
    """Returns the status of a file, without following a link; None if there is none."""
    with suppress(OSError):
        return os.lstat(path)
    return None


def size_of(path: Path | str) -> int:
    """Returns the size of a file; 0 if there is none."""
    found = stat_of(path)
    return found.st_size if found else 0


def opened(path: Path | str, limit: int = MAX_BYTES) -> BinaryIO:
    return os.fdopen(descriptor(path, limit), "rb")


def bytes_of(path: Path) -> bytes:
    """Returns a whole file. Raises `OSError` with the path."""
    with opened(path) as file:
        return file.read(MAX_BYTES)


def text_of(path: Path) -> str:
    """Returns a whole file of UTF-8. Raises `OSError` with the path, and `ValueError`."""
    return bytes_of(path).decode()


def decoded(text: str) -> Any:
    """Returns JSON as plain data. Raises `ValueError`, also for data that are too deep."""
    try:
        data, end = _decode(text.lstrip())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if text.lstrip()[end:].strip():
        raise ValueError("it goes on behind its end")
    level = [data] if text.count("[") + text.count("{") > MAX_DEPTH else []
    for _ in range(MAX_DEPTH if level else 0):
        inner = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for items in inner for one in items if isinstance(one, dict | list)]
    if level:
        raise ValueError("it is nested too deeply")
    return data


def is_number(value: object) -> TypeGuard[float]:
    """Returns whether a value of JSON is a finite number."""
    return isinstance(value, int | float) and -float_info.max <= value <= float_info.max


def lines_of(path: Path | str, position: int = 0) -> Iterator[bytes]:
    """Yields the whole lines of a file from a position to its present end; none if the file was deleted. A
    line that is too long arrives in parts without an end. Raises `OSError`."""
    if position >= (end := size_of(path)):
        return
    with suppress(FileNotFoundError):
        file = descriptor(path)
        try:
            yield from lines_in(_blocks(file, position, end), MAX_LINE_BYTES)
        finally:
            os.close(file)


def lines_in(blocks: Iterable[bytes], longest: int, with_rest: bool = False) -> Iterator[bytes]:
    """Yields the lines of a file that is read in blocks. A line of more than `longest` bytes arrives in parts
    without an end, and one that is not complete yet only `with_rest`."""
    rest = b""
    for block in blocks:
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield line + b"\n"
        if len(rest) > longest:
            yield rest
            rest = b""
    if rest and with_rest:
        yield rest


def _blocks(file: int, position: int, end: int) -> Iterator[bytes]:
    while position < end and (block := os.pread(file, min(BLOCK_BYTES, end - position), position)):
        position += len(block)
        yield block


def tail_of(path: Path, count: int) -> bytes:
    """Returns the last bytes of a file; none if it cannot be read."""
    with suppress(OSError), opened(path, MAX_LOG_BYTES) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - count))
        return file.read(count)
    return b""
