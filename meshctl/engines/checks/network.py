"""The network of one machine: loopback, ports, and whether names are found, and found quickly."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from meshctl.diagnostics.health import Check
from meshctl.engines.checks.probe import Answer, Probe, in_a_line
from meshctl.engines.node.worker_env import LOOPBACK

SUBJECT = "network"
RESOLVE_SECONDS = 15.0
SLOW = 1.0
"""Seconds for a name."""
SECONDS = 5.0
FEW = 2000
"""Ports."""


@dataclass(frozen=True)
class Name:
    """What a name is found to be."""

    name: str
    addresses: tuple[str, ...] = ()
    seconds: float = 0.0
    wrong: str = ""


@dataclass(frozen=True)
class Facts:
    loopback: str = ""
    """Why a connection to 127.0.0.1 failed."""
    interfaces: tuple[str, ...] = (LOOPBACK,)
    ports: tuple[int, int] = (32768, 60999)
    """Those that the kernel gives to whoever asks for any."""
    used: int = 0
    """TCP sockets that have one."""
    localhost: Name = Name("localhost", ("127.0.0.1",))
    host: Name = Name("host", ("127.0.1.1",))
    ipv6: bool = True
    """Somebody can listen on ::1."""


def begin() -> tuple[Probe, Probe]:
    """A resolver may wait for servers that do not answer."""
    names = ("localhost", socket.gethostname())
    one, other = (Probe("meshctl.engines.checks.network:resolve", [name], RESOLVE_SECONDS) for name in names)
    return one, other


def resolve(name: str) -> tuple[list[str], float, str]:
    """In a child: the addresses of a name, the seconds that it took, and why there are none."""
    start, found, wrong = time.monotonic(), list[str](), ""
    try:
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)]
    except OSError as error:
        wrong = str(error.strerror)
    return list(dict.fromkeys(found)), time.monotonic() - start, wrong


def named(name: str, answer: Answer) -> Name:
    if answer.said is None:
        return Name(name, wrong=answer.wrong, seconds=RESOLVE_SECONDS)
    addresses, seconds, wrong = answer.said
    return Name(name, tuple(addresses), seconds, wrong)


def measure(answers: tuple[Answer, Answer]) -> Facts:
    first, last, used = 32768, 60999, 0
    interfaces: tuple[str, ...] = (LOOPBACK,)
    with suppress(OSError, ValueError):
        first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
        used = sockets()
        interfaces = tuple(name for _, name in socket.if_nameindex())
    localhost, host = named("localhost", answers[0]), named(socket.gethostname(), answers[1])
    return Facts(talk(), interfaces, (first, last), used, localhost, host, has_ipv6())


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


def talk() -> str:
    """Says a word to itself over 127.0.0.1; why that failed, or nothing."""
    try:
        with closing(socket.create_server(("127.0.0.1", 0))) as server:
            server.settimeout(SECONDS)
            with socket.create_connection(server.getsockname(), SECONDS) as here:
                there, _ = server.accept()
                with there:
                    there.settimeout(SECONDS)
                    here.sendall(b"word")
                    heard = there.recv(16)
        return "" if heard == b"word" else f"`word` came as {heard!r}"
    except OSError as error:
        return in_a_line(error)


def sockets() -> int:
    """TCP sockets in use, and those that the kernel keeps for a while after their end."""
    lines = [line.split() for line in Path("/proc/net/sockstat").read_text().splitlines()]
    tcp = next((words for words in lines if words[:1] == ["TCP:"]), [])
    counts = dict(zip(tcp[1::2], map(int, tcp[2::2]), strict=False))
    return counts.get("inuse", 0) + counts.get("tw", 0)


def judge(facts: Facts) -> Iterator[Check]:
    yield _loopback(facts)
    yield _ports(facts)
    yield _localhost(facts.localhost, facts.ipv6)
    yield _host(facts.host)


def _loopback(facts: Facts) -> Check:
    if facts.loopback:
        remedy = f"bring it up (ip link set {LOOPBACK} up), and allow 127.0.0.1 in the firewall or sandbox: all processes of a run use it"
        return Check(SUBJECT, "loopback", "failure", f"127.0.0.1 does not answer: {facts.loopback}", remedy)
    if LOOPBACK not in facts.interfaces:
        found = f"127.0.0.1 answers, and there is no interface `{LOOPBACK}`, only {', '.join(facts.interfaces) or 'none'}"
        return Check(
            SUBJECT, "loopback", "failure", found, f"gloo and NCCL are told to use `{LOOPBACK}`: bring it up"
        )
    return Check(SUBJECT, "loopback", "ok", f"127.0.0.1 answers, on `{LOOPBACK}`")


def _ports(facts: Facts) -> Check:
    first, last = facts.ports
    count = max(0, last - first + 1)
    free = max(0, count - facts.used)
    if free < FEW:
        found = f"about {free:,} of {count:,} are free ({first}-{last})"
        remedy = "sysctl -w net.ipv4.ip_local_port_range='15000 64000', or end what holds so many connections (ss -s)"
        return Check(SUBJECT, "ports", "failure" if free < 50 else "warning", found, remedy)
    return Check(SUBJECT, "ports", "ok", f"about {free:,} of {count:,} are free")


def _localhost(name: Name, ipv6: bool) -> Check:
    remedy = "add to /etc/hosts: 127.0.0.1 localhost"
    if name.wrong:
        return Check(SUBJECT, "localhost", "failure", f"`localhost` is not found: {name.wrong}", remedy)
    if "127.0.0.1" not in name.addresses:
        loops = all(address == "::1" for address in name.addresses)
        found = f"`localhost` is {', '.join(name.addresses)}, and not 127.0.0.1"
        return Check(SUBJECT, "localhost", "warning" if loops else "failure", found, remedy)
    if name.addresses[0] == "::1" and not ipv6:
        found = "`localhost` is ::1 first, where nobody can listen: programs that use it fail, or wait before they try 127.0.0.1"
        return Check(
            SUBJECT, "localhost", "warning", found, "take ::1 localhost out of /etc/hosts, or switch IPv6 on"
        )
    if name.seconds > SLOW:
        return Check(
            SUBJECT, "localhost", "warning", f"`localhost` was found after {name.seconds:.0f} s", remedy
        )
    return Check(SUBJECT, "localhost", "ok", ", ".join(name.addresses))


def _host(name: Name) -> Check:
    remedy = f"add to /etc/hosts: 127.0.1.1 {name.name}"
    if name.wrong:
        found = f"`{name.name}`, this machine's own name, is not found: {name.wrong}; programs that look it up fail, or hang"
        return Check(SUBJECT, "host name", "warning", found, remedy)
    if name.seconds > SLOW:
        found = f"`{name.name}` was found after {name.seconds:.0f} s; every process that looks it up waits as long"
        return Check(SUBJECT, "host name", "warning", found, remedy)
    return Check(SUBJECT, "host name", "ok", f"{name.name} is {', '.join(name.addresses[:3])}")
