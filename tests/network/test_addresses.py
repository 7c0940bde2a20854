"""HOST:PORT as text, and the addresses of interfaces."""

from __future__ import annotations

import ctypes

import pytest

from meshctl.network import addresses
from meshctl.network.addresses import with_short_lookups


@pytest.mark.parametrize(
    ("host", "text"),
    [("127.0.0.1", "127.0.0.1:80"), ("fd88::254", "[fd88::254]:80"), ("node-1", "node-1:80")],
)
def test_an_address_is_split_as_it_was_joined(host: str, text: str) -> None:
    assert addresses.joined(host, 80) == text and addresses.split(text) == (host, 80)


@pytest.mark.parametrize(
    "text", ["", "host", "host:", ":80", "host:x", "host:0", "host:65536", "[]:80", "fd88::254"]
)
def test_other_texts_are_no_addresses(text: str) -> None:
    with pytest.raises(ValueError, match="not HOST:PORT"):
        addresses.split(text)


def test_the_interface_of_an_address() -> None:
    assert addresses.interface_of("127.0.0.1") == "lo"
    assert addresses.address_of("lo") == addresses.address_of("127.0.0.1") == "127.0.0.1"
    assert addresses.interface_of("192.0.2.77") == ""
    with pytest.raises(OSError, match=r"."):
        addresses.address_of("no-such-interface.invalid")


def test_a_socket_listens_on_its_address_only() -> None:
    with addresses.listen("127.0.0.1") as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
    assert addresses.address_towards("127.0.0.1", 1) == "127.0.0.1"


# How long a search for a name takes at most


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
