"""Lets the waiting thread react to files that become readable, so that no second thread competes with the
program."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable


class Poller:
    """Calls an action for each file that is readable. The thread that makes a poller polls it; other threads
    only call `wake`."""

    def __init__(self) -> None:
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll = select.epoll()
        self._actions: dict[int, Callable[[], object]] = {}
        self.thread = threading.get_ident()
        """The thread that polls."""
        self.add(self._bell, self._on_bell)

    def add(self, file: int, act: Callable[[], object]) -> None:
        """Has `poll` call `act` when the file is readable."""
        self._actions[file] = act
        self._epoll.register(file, select.EPOLLIN)

    def remove(self, file: int) -> None:
        if self._actions.pop(file, None):
            self._epoll.unregister(file)

    def poll(self, seconds: float | None = None) -> None:
        """Waits until a file is readable, and acts on all that are."""
        for file, _ in self._epoll.poll(seconds):
            if act := self._actions.get(file):
                act()

    def wake(self) -> None:
        """Ends a `poll` of the polling thread."""
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        self._epoll.close()
        os.close(self._bell)

    def _on_bell(self) -> None:
        os.eventfd_read(self._bell)
