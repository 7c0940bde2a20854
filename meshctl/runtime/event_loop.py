"""The event loop of a process, on a thread of its own, on which `async def` endpoints run."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, NamedTuple

import torch


def device_setter() -> Callable[[], None]:
    """Returns a function that gives another thread the current CUDA device of this one, if it has one."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return lambda: None
    return partial(torch.cuda.set_device, torch.cuda.current_device())


def start_thread(run: Callable[[], None], name: str) -> threading.Thread:
    """Starts a thread that ends with the process, and whose current device is that of the caller."""
    set_device = device_setter()

    def begin() -> None:
        set_device()
        run()

    thread = threading.Thread(target=begin, name=name, daemon=True)
    thread.start()
    return thread


@cache
def event_loop() -> asyncio.AbstractEventLoop:
    """The running loop. The first call starts it."""
    loop = asyncio.new_event_loop()
    start_thread(loop.run_forever, "event loop")
    return loop


def result_of(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine on the event loop, and waits for its result. On the loop itself, which may not wait,
    the coroutine is returned."""
    with suppress(RuntimeError):  # no loop runs in this thread
        if asyncio.get_running_loop() is event_loop():
            return coroutine
    return asyncio.run_coroutine_threadsafe(coroutine, event_loop()).result()


class PassCall(NamedTuple):
    """A call of an endpoint in a pass of a take block, which belongs to no step."""

    endpoint: str
    """COMPONENT.METHOD"""
    log: Callable[[Mapping[str, float], float], None]
    """Adds metrics, by name, with a weight."""
    has_old_weights: bool = False
    """True if the weights may have changed before its samples are trained."""


PASS_CALL: ContextVar[PassCall | None] = ContextVar("PASS_CALL", default=None)
"""The call that runs in this thread or task; None for a call in a step."""


class Advances:
    """Counts what advances beside the program: decoding steps, and calls in passes."""

    count = 0

    @classmethod
    def add(cls) -> None:
        cls.count += 1
