"""A function that runs beside training, in a thread: at most one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def run(self, function: Callable[[], None], name: str) -> None:
        """Runs a function in a thread with this name, after the one before has returned. The process may end
        before it returns. Raises the error of the one before."""
        self.wait()
        self._thread = threading.Thread(target=self._run, args=(function,), name=name, daemon=True)
        self._thread.start()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for the running function, at most this long, and returns whether none runs. Raises its
        error."""
        if self._thread:
            self._thread.join(seconds)
            if self._thread.is_alive():
                return False
            self._thread = None
        error, self._error = self._error, None
        if error:
            raise error
        return True

    def _run(self, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:
            self._error = error
