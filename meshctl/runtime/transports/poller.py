"""Lets the waiting thread react to files that become readable, so that no second thread competes with the
program."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable

MAX_EVENTS = 32
"""The most files of one poll. The standard library's default allocates memory for a thousand in each one."""


class Poller:
    """Calls an action for each file that is readable. The thread that makes a poller polls it; other threads
    only call `wake`."""

    def __init__(self) -> None:
        self.bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        """Ends a `poll` when it is written to, from any process."""
        self._epoll = select.epoll()
        self._actions: dict[int, Callable[[], object]] = {}
        self.thread = threading.get_ident()
        """The thread that polls."""
        self.add(self.bell, self._on_bell)

    def add(self, file: int, act: Callable[[], object]) -> None:
        """Has `poll` call `act` when the file is readable."""
        self._actions[file] = act
        self._epoll.register(file, select.EPOLLIN)

    def remove(self, file: int) -> None:
        if self._actions.pop(file, None):
            self._epoll.unregister(file)

    def poll(self, seconds: float | None = None) -> bool:
        """Waits until a file is readable, and acts on all that are. Returns whether there was one."""
        ready = self._epoll.poll(seconds, MAX_EVENTS)
        for file, _ in ready:
            if act := self._actions.get(file):
                act()
        return bool(ready)

    def wait(self) -> None:
        """Waits until a file is readable, and does not act on it."""
        self._epoll.poll(None, 1)

    def wake(self) -> None:
        """Ends a `poll` of the polling thread."""
        os.eventfd_write(self.bell, 1)

    def close(self) -> None:
        self._epoll.close()
        os.close(self.bell)

    def _on_bell(self) -> None:
        os.eventfd_read(self.bell)
