"""The network of one machine: loopback, the loopback interface, and free ports."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.engines.checks.probe import in_one_line
from meshctl.engines.checks.requirements import Bounds, Finding, Requirements, failure, ok
from meshctl.engines.node.worker_env import LOOPBACK

SECONDS = 15.0
CONNECT_S = 5.0
PORTS = Bounds(2000)
NO_PORT = (errno.EADDRINUSE, errno.EADDRNOTAVAIL)


@dataclass(frozen=True)
class Facts:
    loopback_error: str = ""
    """The reason why a connection to 127.0.0.1 failed."""
    port_error: str = ""
    """The reason why the kernel assigned no port."""
    interfaces: Sequence[str] = (LOOPBACK,)
    ports: Sequence[int] = (32768, 60999)
    """The first and the last port of the range from which the kernel assigns free ports."""
    ports_used: int = 0


def measure(requirements: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    try:
        found["loopback_error"] = loopback_error()
    except OSError as error:
        found["port_error"] = os.strerror(error.errno or 0)
    with suppress(OSError, ValueError):
        found["ports"] = list(map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()))
        found["ports_used"] = used_ports()
        found["interfaces"] = [name for _, name in socket.if_nameindex()]
    return found


def loopback_error() -> str:
    """Sends a message to this process over 127.0.0.1. Returns the reason of a failure, or an empty string.
    Raises `OSError` if no port is free."""
    try:
        with closing(socket.create_server(("127.0.0.1", 0))) as server:
            server.settimeout(CONNECT_S)
            with socket.create_connection(server.getsockname(), CONNECT_S) as client:
                accepted, _ = server.accept()
                with accepted:
                    accepted.settimeout(CONNECT_S)
                    client.sendall(b"ping")
                    received = accepted.recv(16)
        return "" if received == b"ping" else f"`ping` arrived as {received!r}"
    except OSError as error:
        if error.errno in NO_PORT:
            raise
        return in_one_line(error)


def used_ports() -> int:
    """Returns the number of TCP sockets, including those in TIME_WAIT."""
    lines = [line.split() for line in Path("/proc/net/sockstat").read_text().splitlines()]
    tcp = next((words for words in lines if words[:1] == ["TCP:"]), [])
    counts = dict(zip(tcp[1::2], map(int, tcp[2::2]), strict=False))
    return counts.get("inuse", 0) + counts.get("tw", 0)


def judge(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    yield _loopback(facts)
    yield _ports(facts)


def _loopback(facts: Facts) -> Finding:
    if facts.loopback_error:
        remedy = (
            f"bring it up (ip link set {LOOPBACK} up), and allow 127.0.0.1 in the firewall or sandbox: "
            "all processes of a run use it"
        )
        return failure("loopback", f"127.0.0.1 does not answer: {facts.loopback_error}", remedy)
    if LOOPBACK not in facts.interfaces:
        others = ", ".join(facts.interfaces) or "none"
        found = f"127.0.0.1 answers, but there is no interface `{LOOPBACK}`, only {others}"
        return failure("loopback", found, f"gloo and NCCL are set to use `{LOOPBACK}`: bring it up")
    return ok("loopback", f"127.0.0.1 answers, on `{LOOPBACK}`")


def _ports(facts: Facts) -> Finding:
    first, last = facts.ports
    count = max(0, last - first + 1)
    free = max(0, count - facts.ports_used)
    found = f"about {free:,} of {count:,} are free"
    end = "end the processes that hold so many connections (ss -s)"
    remedy = f"sysctl -w net.ipv4.ip_local_port_range='15000 64000', or {end}"
    if facts.port_error:
        return failure("ports", f"none of {count:,} is free ({first}-{last}): {facts.port_error}", remedy)
    return PORTS.judge("ports", free, found, remedy, f" ({first}-{last})")
