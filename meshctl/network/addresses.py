"""Addresses of sockets as text, HOST:PORT, with brackets around an IPv6 address: `[fd88::254]:PORT`."""

from __future__ import annotations

import ctypes
import os
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

NOWHERE = (("192.0.2.1", socket.AF_INET), ("2001:db8::1", socket.AF_INET6))
"""Addresses that only documentation uses. The interface towards them is that of the default route."""
LOCALHOST = "127.0.0.1"
LOOKUP_S, LOOKUPS = 1, 1
"""Seconds until a name server must have answered, and how often it is asked."""


def joined(host: str, port: int | str) -> str:
    """Returns HOST:PORT."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split(address: str) -> tuple[str, int]:
    """Returns the host, without brackets, and the port of HOST:PORT. Raises `ValueError`, also for an IPv6
    address without brackets, whose port is not certain."""
    host, _, port = address.rpartition(":")
    has_brackets = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if has_brackets else host
    if not bare or (":" in bare and not has_brackets) or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ValueError(f"{address!r} is not HOST:PORT")
    return bare, int(port)


def listen(host: str, port: int = 0, backlog: int = 1024) -> socket.socket:
    """Opens a socket at one IP address; port 0 lets the system choose. Raises `OSError`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=backlog)


def address_towards(host: str, port: int) -> str:
    """Returns the IP address from which this host reaches `host`. It is a loopback address where `host`
    resolves to one. Raises `OSError`."""
    family, kind, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)
        own: str = probe.getsockname()[0]
    return own


def default_address() -> str:
    """Returns the IP address of the interface of the default route; loopback where there is none."""
    for host, _ in NOWHERE:
        try:
            return address_towards(host, 9)
        except OSError:
            continue
    return LOCALHOST


def address_of(name: str) -> str:
    """Returns the IP address that an interface, a host name or an address stands for. Raises `OSError`."""
    of_interface = [address for interface, address in interface_addresses() if interface == name]
    if of_interface:
        return of_interface[0]
    found = socket.getaddrinfo(name.strip("[]"), None, type=socket.SOCK_STREAM)
    return str(found[0][4][0])


def interface_of(address: str) -> str:
    """Returns the name of the interface that has an IP address; empty if none has."""
    return next((name for name, one in interface_addresses() if one == address), "")


class _Address(ctypes.Structure):
    """`struct ifaddrs` of ifaddrs.h."""


_Address._fields_ = [
    ("next", ctypes.POINTER(_Address)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def interface_addresses() -> Iterator[tuple[str, str]]:
    """Yields the name and an IP address of each interface; IPv4 addresses first. Link-local IPv6 addresses,
    which need a scope, are left out."""
    libc, first = ctypes.CDLL(None, use_errno=True), ctypes.POINTER(_Address)()
    if libc.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    found = list[tuple[str, str]]()
    try:
        item = first
        while item:
            if text := _text_of(item.contents.address):
                found.append((item.contents.name.decode().partition(":")[0], text))
            item = item.contents.next
    finally:
        libc.freeifaddrs(first)
    yield from sorted(found, key=lambda one: ":" in one[1])


def _text_of(pointer: int | None) -> str:
    """Returns the text of a `struct sockaddr`; empty for one that is no IP address."""
    if not pointer:
        return ""
    (family,) = struct.unpack("H", ctypes.string_at(pointer, 2))
    if family == socket.AF_INET:
        return socket.inet_ntop(family, ctypes.string_at(pointer + 4, 4))
    if family != socket.AF_INET6:
        return ""
    text = socket.inet_ntop(family, ctypes.string_at(pointer + 8, 16))
    return "" if text.startswith("fe80:") else text


def with_short_lookups(call: Callable[[], Result]) -> Result:
    """Calls a function in a thread of its own, in which a name server must answer at once. glibc keeps these
    settings for each thread; with another C library, the function is only called.

    torch's TCPStore asks for the name of the address of each connection, for its log. Where no name server
    answers, that takes 10 s at each of the three stages of a start: the launcher, the agents and the workers.
    """
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
