"""Files that a thread reads while it waits: it does all the work itself, so nothing else takes its time."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable


class Watch:
    """The files, and what each of them has done when there is something to read."""

    def __init__(self) -> None:
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._acts: dict[int, Callable[[], None]] = {}
        self._thread = threading.get_ident()
        self.add(self._bell, self._heard)

    def add(self, file: int, act: Callable[[], None]) -> None:
        self._acts[file] = act
        self._poll.register(file, select.POLLIN)

    def remove(self, file: int) -> None:
        if self._acts.pop(file, None):
            self._poll.unregister(file)

    def look(self, seconds: float | None = None) -> None:
        """Waits for one of the files, and reads those that have something."""
        for file, _ in self._poll.poll(None if seconds is None else seconds * 1000):
            if act := self._acts.get(file):
                act()

    def wake(self) -> None:
        """From another thread."""
        if threading.get_ident() != self._thread:
            os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        os.close(self._bell)

    def _heard(self) -> None:
        os.eventfd_read(self._bell)
