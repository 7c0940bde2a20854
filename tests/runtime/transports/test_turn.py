from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from meshctl.runtime.transports.turn import DataPlaneLock
from tests.hang import HANG_S


@contextmanager
def other(act: Callable[[], object]) -> Iterator[threading.Thread]:
    """Runs a function in another thread, which must have ended at the end."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    yield thread
    thread.join(HANG_S)
    assert not thread.is_alive()


def wanting(turn: DataPlaneLock, act: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        with turn.wanted():
            act()

    return run


def until_wanted(turn: DataPlaneLock) -> None:
    while not turn.is_wanted:
        pass


def test_another_thread_has_its_turn_while_a_component_runs() -> None:
    """The component waits for what the other thread does."""
    turn, done = DataPlaneLock(), threading.Event()
    with other(wanting(turn, done.set)), turn.held():
        assert turn.during(done.wait)(HANG_S)


def test_another_thread_comes_before_the_program_has_its_turn_again() -> None:
    """The program gives its turn for a moment only, and would mostly be the first one to have it again."""
    for _ in range(200):
        turn, order = DataPlaneLock(), list[str]()
        with turn.held(), other(wanting(turn, partial(order.append, "other"))):
            until_wanted(turn)
            turn.during(int)()
            order.append("program")
        assert order == ["other", "program"]


def test_the_program_has_its_turn_again_after_an_exception() -> None:
    turn, done = DataPlaneLock(), threading.Event()

    def fail() -> None:
        raise ValueError

    with turn.held():
        with pytest.raises(ValueError):
            turn.during(fail)()
        with other(wanting(turn, done.set)):
            until_wanted(turn)
            assert not done.wait(0.05)
            turn.give()
            assert done.wait(HANG_S)
            turn.take()


def test_a_stream_is_read_within_the_turn_of_the_program() -> None:
    """Its reader gives the turn, and the stream has it. Nothing else refers to an item that was read."""
    turn, free = DataPlaneLock(), list[bool]()

    class Item:
        pass

    def is_free() -> None:
        free.append(turn.lock.acquire(blocking=False))
        if free[-1]:
            turn.lock.release()

    def stream() -> Iterator[Item]:
        for _ in range(3):
            with other(is_free):
                pass
            yield Item()

    def read() -> None:
        for item in turn.read(stream()):
            read_one = weakref.ref(item)
            with other(is_free):
                pass
            del item
            assert read_one() is None

    with turn.held():
        turn.during(read)()
    assert free == [False, True] * 3
