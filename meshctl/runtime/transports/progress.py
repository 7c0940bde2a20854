"""Actions on files that become ready: in the thread that polls, or in a thread beside the program."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

MAX_EVENTS = 32
"""The most files of one poll. The standard library's default allocates memory for a thousand in each one."""


class Poller:
    """Calls an action for each file that is ready, in the thread that polls."""

    def __init__(self, events: int = select.EPOLLIN) -> None:
        """`events` is the epoll mask for which files are ready."""
        self._epoll, self._events = select.epoll(), events
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._actions: dict[int, Callable[[], object]] = {self._bell: partial(os.eventfd_read, self._bell)}
        self._epoll.register(self._bell, select.EPOLLIN)

    def add(self, file: int, act: Callable[[], object]) -> None:
        """Has `poll` call `act` whenever the file is ready."""
        self._actions[file] = act
        self._epoll.register(file, self._events)

    def remove(self, file: int) -> None:
        if self._actions.pop(file, None):
            with suppress(OSError):
                self._epoll.unregister(file)

    def poll(self, seconds: float | None = None) -> bool:
        """Waits until a file is ready, and acts on all that are. Returns whether there was one."""
        ready = self._epoll.poll(seconds, MAX_EVENTS)
        for file, _ in ready:
            if act := self._actions.get(file):
                act()
        return bool(ready)

    def wait(self) -> None:
        """Waits until a file is ready, and does not act on it."""
        self._epoll.poll(None, 1)

    def wake(self) -> None:
        """Ends a `poll` or a `wait` of another thread."""
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        self._epoll.close()
        os.close(self._bell)


class ProgressThread(Poller):
    """A thread that polls."""

    def __init__(
        self,
        name: str,
        events: int,
        on_error: Callable[[Exception], None],
        on_timer: Callable[[], None] | None = None,
        timer_s: float = 1.0,
    ) -> None:
        """`on_timer` is called every `timer_s` seconds, `on_error` with an unexpected error, which ends the
        thread."""
        super().__init__(events)
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)
        self._on_error, self._on_timer, self._timer_s = on_error, on_timer, timer_s
        self._is_ending = False

    def end(self, sock: socket.socket) -> None:
        """Ends a socket whose file stays open, because a thread may be about to use it."""
        self.remove(sock.fileno())
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        last = time.monotonic()
        try:
            while not self._is_ending:
                self.poll(self._timer_s if self._on_timer else None)
                if self._on_timer and (now := time.monotonic()) >= last + self._timer_s:
                    last = now
                    self._on_timer()
        except Exception as error:  # the border of a thread: waits must fail with it
            self._on_error(error)

    def close(self) -> None:
        """Ends the thread, if it was started."""
        self._is_ending = True
        self.wake()
        if self._thread.ident:
            self._thread.join()
        super().close()
