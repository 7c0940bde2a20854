"""How long a search for a name takes at most."""

from __future__ import annotations

import ctypes

import pytest

from meshctl.network.addresses import with_short_lookups


def settings() -> tuple[int, int]:
    """Returns the seconds and the number of attempts of this thread, from glibc."""
    state = getattr(ctypes.CDLL(None), "__res_state", None)
    if state is None:
        pytest.skip("needs glibc")
    state.restype = ctypes.POINTER(ctypes.c_int)
    return state()[0], state()[1]


def test_only_the_call_has_short_lookups() -> None:
    before = settings()
    assert with_short_lookups(settings) == (1, 1)
    assert settings() == before


def test_errors_arrive() -> None:
    with pytest.raises(ZeroDivisionError):
        with_short_lookups(lambda: 1 // 0)
