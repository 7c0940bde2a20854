"""A thread that acts on files as they become ready, beside the program."""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress


class ProgressThread:
    def __init__(
        self,
        name: str,
        events: int,
        on_error: Callable[[Exception], None],
        on_timer: Callable[[], None] | None = None,
        timer_s: float = 1.0,
    ) -> None:
        """`events` is the epoll mask for which files are ready. `on_timer` is called every `timer_s` seconds,
        `on_error` with an unexpected error, which ends the thread."""
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)
        self._events, self._on_error, self._on_timer, self._timer_s = events, on_error, on_timer, timer_s
        self._epoll = select.epoll()
        self._actions: dict[int, Callable[[], None]] = {}
        self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._stop, select.EPOLLIN)
        self._last_timer = time.monotonic()

    def add(self, file: int, act: Callable[[], None]) -> None:
        """Registers the file descriptor `file`: the thread calls `act` whenever it is ready. May be called on
        any thread."""
        self._actions[file] = act
        self._epoll.register(file, self._events)

    def remove(self, file: int) -> None:
        if self._actions.pop(file, None):
            with suppress(OSError):
                self._epoll.unregister(file)

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
        try:
            while self._turn():
                pass
        except Exception as error:  # the border of a thread: waits must fail with it
            self._on_error(error)

    def _turn(self) -> bool:
        ready = self._epoll.poll(None if self._on_timer is None else self._timer_s)
        for file, _ in ready:
            if file == self._stop:
                return False
            if act := self._actions.get(file):
                act()
        if self._on_timer and (now := time.monotonic()) >= self._last_timer + self._timer_s:
            self._last_timer = now
            self._on_timer()
        return True

    def close(self) -> None:
        """Ends the thread, if it was started."""
        os.eventfd_write(self._stop, 1)
        if self._thread.ident:
            self._thread.join()
        self._epoll.close()
        os.close(self._stop)
