"""Peers of TCP that die, are stopped, or are on another node."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count

import pytest
import torch
from torch.distributed import PrefixStore, TCPStore

from meshctl.runtime.transports.buffers.frames import Frame
from meshctl.runtime.transports.context import Context
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.tcp import sockets
from meshctl.runtime.transports.tcp.messages import Address
from meshctl.runtime.transports.tcp.transport import TcpTransport
from meshctl.runtime.world import connect_all
from meshctl.topology.cluster import Cluster
from tests.hang import HANG_S
from tests.runtime.plans import call, plan
from tests.runtime.transports.tcp.connected import LARGE, TOKEN, Listen, error_of, in_thread

CLONE_NEWNET = 0x40000000


# Deaths


@contextmanager
def producer(way: TcpTransport, size: int) -> Iterator[int]:
    """Starts a process that is job rank 1 and sends frames of `size` numbers to job rank 0 as fast as
    possible. Returns its pid."""
    pid = os.fork()
    if not pid:
        with suppress(BaseException):
            transport = DataPlane(Context(1))
            mine = TcpTransport(transport, TOKEN)
            mine.connect({0: way.address, 1: mine.address})
            for number in count():
                transport.send(0, 4, Frame([number, LARGE[:size]]))
        os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("is_connected", [True, False])
def test_a_peer_that_has_left_without_a_goodbye_is_not_lost(listen: Listen, is_connected: bool) -> None:
    """A rank that knows the end of a stream leaves while another one begins to tell it."""
    transport = DataPlane(Context(0, has_left=lambda job_rank: True))
    way = listen(transport)
    with socket.socket() as peer:  # it is bound until the end, so that nobody else takes the port
        peer.bind(("127.0.0.1", 0))
        way.connect({1: Address(*peer.getsockname())})
        if is_connected:
            peer.listen()
            transport.send(1, 4, Frame(1))
            accepted, _ = peer.accept()
            accepted.close()
        transport.send(1, 4, Frame(2))
        transport.close()


@pytest.mark.parametrize("size", [1, len(LARGE)], ids=["small", "large"])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_producer_that_is_killed_is_named(listen: Listen, size: int, after: int) -> None:
    transport = DataPlane(Context(0, name_of="producer:{}".format))
    way = listen(transport)
    with producer(way, size) as pid:
        way.connect({1: way.address})
        for number in range(after):
            assert transport.receive(1, 4).value()[0] == number
        if not after:
            transport.receive(1, 4)
        os.kill(pid, signal.SIGKILL)

        def receive() -> None:
            while True:
                transport.receive(1, 4)

        assert error_of(receive) == "producer:1 is gone"


def forked_peer(
    address: Address, work: Callable[[DataPlane, TcpTransport, socket.socket], None]
) -> tuple[int, socket.socket]:
    """Starts a process that is job rank 1 and lives until it is killed. Returns it with its connection to the
    test."""
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if not pid:
        with suppress(BaseException):
            ours.close()
            transport = DataPlane(Context(1))
            way = TcpTransport(transport, TOKEN)
            way.connect({0: address})
            work(transport, way, theirs)
            signal.pause()
        os._exit(0)
    theirs.close()
    return pid, ours


def test_a_worker_that_is_killed_is_named_though_its_data_loader_lives_on(listen: Listen) -> None:
    def work(other: DataPlane, _: TcpTransport, line: socket.socket) -> None:
        other.send(0, 4, Frame(0))
        if not os.fork():
            line.send(b"!")
            line.recv(1)  # until the test has ended
            os._exit(0)

    transport = DataPlane(Context(0, name_of="producer:{}".format))
    way = listen(transport)
    pid, line = forked_peer(way.address, work)
    try:
        way.connect({1: way.address})
        assert transport.receive(1, 4).value() == 0
        assert line.recv(1) == b"!"
        os.kill(pid, signal.SIGKILL)
        assert error_of(lambda: transport.receive(1, 4)) == "producer:1 is gone"
    finally:
        line.close()
        os.waitpid(pid, 0)


@pytest.mark.parametrize("stopped", [False, True], ids=["killed", "stopped, then killed"])
def test_a_consumer_that_is_killed_is_named(listen: Listen, stopped: bool) -> None:
    """Also in a producer that waits for a slot while most of a frame is in transit."""

    def work(other: DataPlane, mine: TcpTransport, line: socket.socket) -> None:
        line.send(str(mine.address).encode())
        other.receive(0, 4).value()
        line.send(b"taken")

    transport = DataPlane(Context(0, name_of="consumer:{}".format))
    way = listen(transport)
    pid, line = forked_peer(way.address, work)
    try:
        way.connect({1: Address.parse(line.recv(100).decode())})
        transport.send(1, 4, Frame(0))
        assert line.recv(100) == b"taken"
        if stopped:
            os.kill(pid, signal.SIGSTOP)
        transport.send(1, 4, Frame([1, LARGE]))
        transport.send(1, 4, Frame([2, LARGE]))
        threading.Timer(0.2, os.kill, (pid, signal.SIGKILL)).start()
        assert error_of(lambda: transport.send(1, 4, Frame(3))) == "consumer:1 is gone"
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        line.close()


def test_a_stopped_consumer_is_not_lost(listen: Listen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel still answers. The limit for a hang is decided elsewhere."""
    monkeypatch.setattr(sockets, "SILENCE_S", 1.0)
    transport = DataPlane(Context(0))
    way = listen(transport)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        way.connect({1: Address(*listener.getsockname())})
        transport.send(1, 4, Frame([1, LARGE]))
        peer, _ = listener.accept()
        waiting = in_thread(lambda: transport.wait_until(lambda: bool(transport.losses)))
        waiting.join(4)
        assert waiting.is_alive() and way.is_sending
        peer.close()


# Two nodes


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def nodes() -> Iterator[tuple[str, str]]:
    """Two network namespaces with a cable between them: 10.77.0.1 and 10.77.0.2."""
    names = (f"meshctl-{os.getpid()}-1", f"meshctl-{os.getpid()}-2")
    if os.getuid() or not shutil.which("ip"):
        pytest.skip("network namespaces need root and iproute2")
    try:
        try:
            ip("netns", "add", names[0])
            ip("netns", "add", names[1])
            ip(
                "-n",
                names[0],
                "link",
                "add",
                "cable",
                "type",
                "veth",
                "peer",
                "name",
                "cable",
                "netns",
                names[1],
            )
            for number, name in enumerate(names, 1):
                ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "cable")
                ip("-n", name, "link", "set", "cable", "up")
                ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def enter(node: str) -> None:
    """Moves this thread, and the sockets that it opens from now on, into a network namespace."""
    with open(f"/run/netns/{node}") as file:
        assert ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET) == 0


def forked(node: str, work: Callable[[], str]) -> tuple[int, socket.socket]:
    """Starts a process on a node, which reports the result of `work`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if not pid:
        try:
            enter(node)
            theirs.send(work().encode())
        except BaseException as error:
            theirs.send(repr(error).encode())
        os._exit(0)
    theirs.close()
    ours.settimeout(HANG_S)
    return pid, ours


JOB = plan(
    {"a": 1, "b": 1},
    {"source": ("a", {}), "echo": ("b", {})},
    [call("s", "source.next", samples=2), call("t", "echo.take", "s")],
)


TWO_NODES = replace(
    JOB,
    cluster=Cluster.of(2, npu=1),
    groups=tuple(
        replace(group, device_type="npu", devices=((node, node + 1),))
        for node, group in enumerate(JOB.groups)
    ),
)


KEPT: list[TCPStore] = []
"""Keeps stores alive, because a store without a reference is closed."""


def reached(job_rank: int) -> DataPlane:
    """Returns the transport of a worker that knows only the address of the head."""
    if job_rank == 0:
        listener = socket.create_server(("10.77.0.1", 29777))
        store = TCPStore(
            "10.77.0.1", 29777, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
    else:
        store = TCPStore("10.77.0.1", 29777, is_master=False, timeout=timedelta(seconds=HANG_S))
    KEPT.append(store)
    return connect_all(TWO_NODES, job_rank, PrefixStore("run/0", store))


def test_two_nodes_meet_on_the_network_of_the_head_and_notice_when_one_vanishes(
    nodes: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "SILENCE_S", 2.0)
    ready, wake = socket.socketpair()

    def gives() -> str:
        transport = reached(0)
        transport.send(1, 4, Frame(LARGE))
        way = transport.transport_to(1)
        assert isinstance(way, TcpTransport)
        transport.receive(1, 3).value()
        wake.send(b"!")
        wake.recv(1)
        transport.send(1, 4, Frame(LARGE))  # to a node that is not there any more
        return f"{way.address.host}: {error_of(lambda: transport.receive(1, 4))}"

    def takes() -> str:
        transport = reached(1)
        way = transport.transport_to(0)
        assert isinstance(way, TcpTransport)
        assert torch.equal(transport.receive(0, 4).value(), LARGE)
        transport.send(0, 3, Frame("thanks"))
        return f"{way.address.host}: {error_of(lambda: transport.receive(0, 4))}"

    pids, pipes = zip(
        *(forked(node, work) for node, work in zip(nodes, (gives, takes), strict=True)), strict=True
    )
    try:
        ready.settimeout(HANG_S)
        ready.recv(1)
        ip("-n", nodes[1], "link", "set", "cable", "down")
        ready.send(b"!")
        answers = [pipe.recv(1000).decode() for pipe in pipes]
        for pipe in (*pipes, ready, wake):
            pipe.close()
        for text, who in zip(answers, ("10.77.0.1: b:0", "10.77.0.2: a:0"), strict=True):
            assert text in (
                f"{who} has not answered for 2 s, and `s -> t` waits for it",
                f"{who} is gone, and `s -> t` waits for it",
            )
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
