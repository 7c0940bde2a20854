"""The observers of a run, isolated so that an error in one of them does not affect the run."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from meshctl.run.events import Event, Observer

CLOSED = (errno.EPIPE, errno.EIO, errno.EBADF)
"""Errors of a closed terminal or pipe. They cause no warning."""


class Observers:
    """Calls several observers. An observer that raises an exception is not called again."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = list(observers)

    def on_attempt(self, number: int, step: int | None) -> None:
        self._call(lambda observer: observer.on_attempt(number, step))

    def on_event(self, event: Event) -> None:
        self._call(lambda observer: observer.on_event(event))

    def on_row(self, row: Mapping[str, Any]) -> None:
        self._call(lambda observer: observer.on_row(row))

    def on_end(self, code: int, reason: str) -> None:
        self._call(lambda observer: observer.on_end(code, reason))

    def _call(self, method: Callable[[Observer], None]) -> None:
        for observer in list(self._observers):
            try:
                method(observer)
            except Exception as error:  # no error of an observer may end the run
                self._observers.remove(observer)
                if not (isinstance(error, OSError) and error.errno in CLOSED):
                    _warn(observer, error)


def _warn(observer: Observer, error: Exception) -> None:
    text = f"{error.strerror}: {error.filename}" if isinstance(error, OSError) and error.filename else error
    line = f"warning: {type(observer).__name__} is stopped: {type(error).__name__}: {text}"
    with suppress(OSError):  # stderr is closed
        print(line, file=sys.stderr, flush=True)
