"""The sockets between nodes: where one is connected, how it is set up, and when its peer is silent."""

from __future__ import annotations

import socket
import struct
import sys

SILENCE_S = 20.0
"""Seconds without an acknowledgement from a node's kernel, after which the node is lost."""
NEAR_US = 80
"""The longest round trip, in microseconds, of a peer so near that two connections with `NEAR_BYTES` each keep
a link of 100 Gbit/s busy."""
NEAR_BYTES = 1 << 18
"""Half of the memory that the kernel may use for what it sends to a near peer: it doubles the number."""
_MIN_RTT_AT = 148
"""The place of the shortest round trip, 32 bits of microseconds, in the kernel's `tcp_info`."""
_UNANSWERED = struct.Struct("=2xBB52xI")
"""Three fields of the kernel's `tcp_info`: retransmissions without an answer, probes without an answer, and
milliseconds since the last acknowledgement."""


def connected(host: str, port: int) -> socket.socket:
    """Returns a socket that is connected to a listener. Raises `OSError`."""
    sock = socket.create_connection((host, port), SILENCE_S)
    prepare(sock)
    return sock


def prepare(sock: socket.socket) -> None:
    """Makes a connected socket non-blocking, and lets the kernel probe an idle connection.

    The sizes of its buffers are left to the kernel, which grows them as the network needs it.
    """
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(1, int(SILENCE_S / 2)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, int(SILENCE_S / 4)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)


def keep_in_cache(sock: socket.socket) -> None:
    """Bounds what the kernel holds of large frames that are sent to a near peer, so that it uses memory again
    that is in the processor's cache."""
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT_AT + 4)
    if len(info) == _MIN_RTT_AT + 4 and int.from_bytes(info[_MIN_RTT_AT:], sys.byteorder) <= NEAR_US:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NEAR_BYTES)


def is_silent(sock: socket.socket) -> bool:
    """Returns whether the peer's kernel has not acknowledged something for `SILENCE_S`. A kernel also
    acknowledges for a program that does not read."""
    if sock.fileno() < 0:
        return False
    repetitions, probes, since_ms = _UNANSWERED.unpack(
        sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _UNANSWERED.size)
    )
    return bool(max(repetitions, probes) > 1 and since_ms > SILENCE_S * 1000)


def silence() -> str:
    """Returns what happened to a silent peer."""
    return f"has not answered for {SILENCE_S:.0f} s"
