"""Short searches for the names of addresses.

torch's TCPStore asks for the name of the address of each connection, for its log. Where no name server
answers, that takes 10 s at each of the three stages of a start: the launcher, the agents and the workers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

LOOKUP_S, LOOKUPS = 1, 1
"""Seconds until a name server must have answered, and how often it is asked."""


def with_short_lookups(call: Callable[[], Result]) -> Result:
    """Calls a function in a thread of its own, in which a name server must answer at once. glibc keeps these
    settings for each thread; with another C library, the function is only called."""
    with ThreadPoolExecutor(1, initializer=_shorten_lookups) as thread:
        return thread.submit(call).result()


def _shorten_lookups() -> None:
    libc = ctypes.CDLL(None)
    state_of_thread = getattr(libc, "__res_state", None)
    initialize = getattr(libc, "__res_init", None)
    if state_of_thread is None or initialize is None:
        return
    initialize()
    state_of_thread.restype = ctypes.POINTER(ctypes.c_int)
    state = state_of_thread()  # resolv.h: struct __res_state begins with `int retrans` and `int retry`
    state[0], state[1] = LOOKUP_S, LOOKUPS
