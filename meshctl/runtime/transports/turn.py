"""The right to use a data plane, which one thread has at a time.

    program         held()          from the first step to the last
                    during(call)    gives it up while a component runs
                    give(), take()  gives it up while it waits
    other thread    wanted()        gets it the next time, before the program has it again

So another thread can use the data plane at any moment at which the program may depend on other processes.
What a component has queued on a device may wait for them, too, so it is done before the program has its turn
again.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class DataPlaneLock:
    def __init__(self, finish: Callable[[], None] = lambda: None) -> None:
        """`finish` waits until the worker's device has done what this thread has queued."""
        self.finish = finish
        self.lock = threading.RLock()
        """Held by the thread whose turn it is, and by one that keeps the others from the data plane."""
        self.is_wanted = False
        """True if another thread waits for its turn."""
        self._was_taken = threading.Event()
        self._holder = 0
        """The thread whose turn it is."""

    def take(self) -> None:
        """Begins a turn, after that of a thread that wants one. The caller has none."""
        if self.is_wanted:  # the lock alone may come back to the thread that has just released it
            self._was_taken.wait()
        self.lock.acquire()
        self._holder = threading.get_ident()

    def give(self) -> bool:
        """Lets other threads use the data plane, until `take`. Returns False if this thread has no turn."""
        if self._holder != threading.get_ident():
            return False
        self._holder = 0
        self.lock.release()
        return True

    @contextmanager
    def held(self) -> Iterator[None]:
        """Uses the data plane, with the exceptions above."""
        self.take()
        try:
            yield
        finally:
            self.give()

    @contextmanager
    def wanted(self) -> Iterator[None]:
        """Takes the turn of another thread when that one gives it up. Only one thread calls it."""
        self._was_taken.clear()
        self.is_wanted = True
        with self.lock:
            self.is_wanted = False
            self._was_taken.set()
            yield

    def during(self, call: Callable[P, T]) -> Callable[P, T]:
        """Returns a function of a component that lets other threads use the data plane while it runs."""

        @functools.wraps(call)
        def called(*arguments: P.args, **named: P.kwargs) -> T:
            has_turn = self.give()
            try:
                result = call(*arguments, **named)
                self.finish()
                return result
            finally:
                if has_turn:
                    self.take()

        return called

    def read(self, stream: Iterable[T]) -> Iterator[T]:
        """Returns a stream that such a function reads, and that itself uses the data plane."""
        items, found = iter(stream), list[T]()
        while True:
            self.finish()
            with self.held():
                found += islice(items, 1)
            if not found:
                return
            yield found.pop()  # nothing here refers to what the reader drops
