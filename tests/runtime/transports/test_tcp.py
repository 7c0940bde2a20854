"""Frames over TCP: the guarantees of all transports, unauthenticated and hostile peers, dead peers, and a
node that disappears."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count, permutations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed import PrefixStore, TCPStore

from meshctl.runtime.transports.buffers.caching_allocator import UNCACHED_MAX, CachingAllocator
from meshctl.runtime.transports.buffers.frames import Frame
from meshctl.runtime.transports.data_plane import Context, DataPlane
from meshctl.runtime.transports.errors import PeerLost
from meshctl.runtime.transports.tcp import transport as tcp
from meshctl.runtime.transports.tcp.connection import HEAD
from meshctl.runtime.transports.tcp.transport import Address, TcpTransport, address_towards
from meshctl.runtime.world import connect_all
from meshctl.topology.cluster import Cluster
from tests.runtime.plans import call, plan

HELLO, FRAME, CREDIT, GOODBYE = range(4)
CLONE_NEWNET = 0x40000000
TOKEN = "0123456789abcdef"
LARGE = torch.arange(1 << 20)
"""8 MiB, which is more than the socket of a stopped receiver buffers."""


Listen = Callable[[DataPlane], TcpTransport]
Worlds = Callable[[int], list[tuple[DataPlane, TcpTransport]]]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """`listen(transport)`. The transport is closed at the end of the test."""
    made: list[TcpTransport] = []

    def make(transport: DataPlane) -> TcpTransport:
        made.append(TcpTransport(transport, TOKEN))
        return made[-1]

    yield make
    for way in made:
        way.release()


@pytest.fixture
def worlds(listen: Listen) -> Worlds:
    """`worlds(n)` returns the transports of job ranks 0 to n - 1 in this process."""

    def make(job_size: int) -> list[tuple[DataPlane, TcpTransport]]:
        transports = [DataPlane(Context(job_rank)) for job_rank in range(job_size)]
        ways = [listen(transport) for transport in transports]
        for way in ways:
            way.connect({job_rank: other.address for job_rank, other in enumerate(ways)})
        return list(zip(transports, ways, strict=True))

    return make


def close_all(transports: Sequence[DataPlane]) -> None:
    closing = [threading.Thread(target=transport.close, daemon=True) for transport in transports]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join(20)
        assert not thread.is_alive()


def in_thread(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def error_of(waits: Callable[[], object], seconds: float = 20) -> str:
    """Returns the error message of a waiting call."""
    answers: list[str] = []

    def work() -> None:
        try:
            waits()
        except PeerLost as error:
            answers.append(str(error))

    in_thread(work).join(seconds)
    assert answers, "nobody told it anything"
    return answers[0]


# Frames


def test_frames_of_every_size_come_in_order_and_whole(worlds: Worlds) -> None:
    transports = [transport for transport, _ in worlds(3)]
    tensors = [
        torch.arange(size, dtype=torch.int32)
        for size in (0, 1, 100, 1 << 14, (1 << 14) + 1, 3 << 20, 5, 1 << 18)
    ]

    def send() -> None:
        for number, tensor in enumerate(tensors):
            transports[0].send([1, 2], 4, Frame([number, tensor]))
            transports[0].send(1, 5, Frame(number))

    sender = in_thread(send)
    for number, tensor in enumerate(tensors):
        for transport in transports[1:]:
            got, value = transport.receive(0, 4).value()
            assert got == number and torch.equal(value, tensor)
        assert transports[1].receive(0, 5).value() == number
    sender.join(20)
    close_all(transports)


def test_frames_come_while_the_program_does_something_else(worlds: Worlds) -> None:
    (one, _), (two, _) = worlds(2)
    for number in range(2):
        one.send(1, 4, Frame([number, LARGE]))
    end = time.monotonic() + 20
    while len(two.queued(0, 4)) < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    for number in range(2):
        got, value = two.receive(0, 4).value()
        assert got == number and torch.equal(value, LARGE)
    close_all([one, two])


def test_a_frame_stays_what_it_is_while_somebody_looks_at_it(worlds: Worlds) -> None:
    (one, _), (two, _) = worlds(2)
    kept: list[Tensor] = []
    for number in range(6):
        one.send(1, 4, Frame(torch.full((1 << 16,), number)))
        value = two.receive(0, 4).value()
        if number % 2:
            kept.append(value[3:5])
    assert [tensor.tolist() for tensor in kept] == [[1, 1], [3, 3], [5, 5]]
    close_all([one, two])


def test_memory_is_used_again_when_its_last_view_has_died() -> None:
    warm = CachingAllocator()
    one, other = warm.take("a", UNCACHED_MAX + 1), warm.take("a", UNCACHED_MAX + 1)
    address, part = one.data_ptr(), one[4:8].view(torch.int32)
    del one
    assert warm.take("a", UNCACHED_MAX + 1).data_ptr() not in (address, other.data_ptr())
    del part
    taken = [warm.take("a", UNCACHED_MAX + 1) for _ in range(2)]
    assert address in [tensor.data_ptr() for tensor in taken]
    assert warm.take("b", UNCACHED_MAX + 1).data_ptr() != address
    assert len(warm.take("a", 5 * UNCACHED_MAX)) == 5 * UNCACHED_MAX


def test_a_job_rank_may_send_its_first_message_while_the_other_leaves(worlds: Worlds) -> None:
    """The message belongs to a step that was cancelled at the end of the run."""
    (one, _), (two, _) = worlds(2)
    one.send(1, 4, Frame("heard"))
    assert two.receive(0, 4).value() == "heard"
    leaving = in_thread(one.close)
    leaving.join(0.2)
    two.send(0, 4, Frame("dropped"))
    two.close()
    leaving.join(20)
    assert not leaving.is_alive()


def test_nothing_is_left_of_what_was_closed(worlds: Worlds) -> None:
    def left() -> tuple[int, list[str]]:
        names = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("tcp-"))
        return len(os.listdir("/proc/self/fd")), names

    before = left()
    transports = [transport for transport, _ in worlds(3)]
    for one, other in permutations(transports, 2):
        one.send(other.job_rank, 4, Frame(one.job_rank))
        assert other.receive(one.job_rank, 4).value() == one.job_rank
    assert left()[0] > before[0]
    close_all(transports)
    assert left() == before


def test_only_one_address_is_listened_on(worlds: Worlds) -> None:
    [(_, way)] = worlds(1)
    assert way.address.host == "127.0.0.1" and way.address.is_loopback
    assert Address.parse(str(way.address)) == way.address
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.2", way.address.port), 1)


def test_the_own_address_is_that_of_the_way_to_the_head() -> None:
    assert address_towards("127.0.0.1", 1) == "127.0.0.1"
    assert Address(address_towards("localhost", 1), 1).is_loopback
    with suppress(OSError):  # a machine may have no IPv6 at all
        assert address_towards("[::1]", 1) == "::1"


def test_who_cannot_be_reached_is_named(listen: Listen) -> None:
    transport = DataPlane(Context(0, name_of="group:{}".format))
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = Address(*closed.getsockname())
    listen(transport).connect({1: address})
    with pytest.raises(PeerLost, match=f"group:1 cannot be reached at 127.0.0.1:{address.port}: .*refused"):
        transport.send(1, 4, Frame(0))


# Strangers and hostile peers


def connected(way: TcpTransport, message: bytes = b"") -> socket.socket:
    sock = socket.create_connection((way.address.host, way.address.port), 20)
    sock.sendall(message)
    return sock


def hello(job_rank: int, token: str = TOKEN, generation: int = 0, wanted: int = 0) -> bytes:
    return HEAD.pack(HELLO, generation, job_rank, 4 + len(token)) + struct.pack("<I", wanted) + token.encode()


def is_closed(sock: socket.socket) -> bool:
    with suppress(ConnectionResetError):
        return sock.recv(1) == b""
    return True


STRANGE = {
    "another token": hello(1, TOKEN[::-1]),
    "a longer token": hello(1, TOKEN * 2),
    "no job rank of the run": hello(7),
    "the job rank itself": hello(0),
    "a job rank below 0": hello(-1),
    "a frame first": HEAD.pack(FRAME, 0, 4, 100),
    "endless": HEAD.pack(HELLO, 0, 1, 1 << 62),
    "another protocol": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
}


@pytest.mark.parametrize("message", STRANGE.values(), ids=STRANGE)
def test_a_stranger_is_closed_and_disturbs_nobody(worlds: Worlds, message: bytes) -> None:
    (one, way), (two, _) = worlds(2)
    with connected(way, message) as sock:
        assert is_closed(sock)
    two.send(0, 4, Frame("still here"))
    assert one.receive(1, 4).value() == "still here"
    with connected(way, hello(1)) as sock:  # who is there already is not there twice
        assert is_closed(sock)
    two.send(0, 4, Frame("and now"))
    assert one.receive(1, 4).value() == "and now"
    close_all([one, two])


def test_connections_that_never_send_hello_do_not_pile_up(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "MAX_STRANGERS", 3)
    (one, way), (two, _) = worlds(2)
    silent = [connected(way, hello(1)[:5]) for _ in range(6)]
    assert [is_closed(sock) for sock in silent[:3]] == [True] * 3
    two.send(0, 4, Frame("still here"))
    assert one.receive(1, 4).value() == "still here"
    close_all([one, two])
    for sock in silent:
        sock.close()


def test_a_peer_in_small_pieces_is_a_peer(worlds: Worlds) -> None:
    (one, way), _ = worlds(2)
    frame = Frame(["slowly", torch.arange(3)])
    body = bytes(frame.write(torch.zeros(frame.nbytes, dtype=torch.uint8)).tolist())
    with connected(way) as sock:
        for byte in hello(1) + HEAD.pack(FRAME, 0, 4, len(body)) + body:
            sock.sendall(bytes([byte]))
        assert one.receive(1, 4).value()[0] == "slowly"


HOSTILE = {
    "kind 9 with 0 bytes": HEAD.pack(9, 0, 0, 0),
    "kind 2 with 0 bytes": HEAD.pack(CREDIT, 0, 4, 0),
    "kind 3 with 5 bytes": HEAD.pack(GOODBYE, 0, 0, 5),
    "kind 0 with 20 bytes": hello(1),
    "a frame of -1 bytes in tag 4": HEAD.pack(FRAME, 0, 4, -1),
    f"a frame of {1 << 60} bytes in tag 4": HEAD.pack(FRAME, 0, 4, 1 << 60),
    "a frame for which there is no slot in tag -4": HEAD.pack(FRAME, 0, -4, 8),
}


def test_one_who_sends_more_than_it_has_slots_for_is_named(worlds: Worlds) -> None:
    (one, way), _ = worlds(2)
    with connected(way, hello(1) + 3 * (HEAD.pack(FRAME, 0, 4, 1) + b"x")):
        assert (
            error_of(lambda: one.receive(1, 5))
            == "job rank 1 sent what is no message: a frame for which there is no slot in tag 4"
        )


@pytest.mark.parametrize("answers", HOSTILE)
def test_a_malformed_message_names_the_peer(worlds: Worlds, answers: str) -> None:
    (one, way), _ = worlds(2)
    with connected(way, hello(1) + HOSTILE[answers]):
        assert error_of(lambda: one.receive(1, 4)) == f"job rank 1 sent what is no message: {answers}"


def test_frames_come_the_other_way_only(listen: Listen) -> None:
    """On a connection that this end has opened, a frame is an invalid answer."""
    one = DataPlane(Context(0))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listen(one).connect({1: Address(*listener.getsockname())})
        one.send(1, 4, Frame(0))
        peer, _ = listener.accept()
    with peer:
        peer.sendall(HEAD.pack(FRAME, 0, 4, 3) + b"abc")
        assert (
            error_of(lambda: one.receive(1, 4)) == "job rank 1 sent what is no message: kind 1 with 3 bytes"
        )


HEADS = st.builds(
    HEAD.pack,
    st.integers(0, 7),
    st.integers(0, 1),
    st.integers(-1, 6),
    st.sampled_from([-1, 0, 1, 7, 16, 1 << 17, 1 << 62]),
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.binary(max_size=40) | HEADS, max_size=8), st.booleans())
def test_no_bytes_break_more_than_their_peer(pieces: list[bytes], known: bool) -> None:
    one = DataPlane(Context(0))
    way = TcpTransport(one, TOKEN)
    way.connect({0: way.address, 1: way.address, 2: way.address})
    with connected(way, hello(1) * known + b"".join(pieces)):
        pass
    with connected(way, hello(2) + HEAD.pack(FRAME, 0, 4, 2) + b"ok"), suppress(PeerLost):
        assert bytes(one.receive(2, 4).frame.tolist()) == b"ok"
    assert way.receiver.is_alive()
    way.release()


# Deaths


@contextmanager
def producer(way: TcpTransport, size: int) -> Iterator[int]:
    """Starts a process that is job rank 1 and sends frames of `size` numbers to job rank 0 as fast as
    possible. Returns its pid."""
    port = socket.create_server(("127.0.0.1", 0))
    address = Address(*port.getsockname())
    port.close()
    pid = os.fork()
    if not pid:
        with suppress(BaseException):
            transport = DataPlane(Context(1))
            mine = TcpTransport(transport, TOKEN)
            mine.connect({0: way.address, 1: address})
            for number in count():
                transport.send(0, 4, Frame([number, LARGE[:size]]))
        os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


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
            time.sleep(60)
        os._exit(0)
    theirs.close()
    return pid, ours


def test_a_worker_that_is_killed_is_named_though_its_data_loader_lives_on(listen: Listen) -> None:
    def work(other: DataPlane, _: TcpTransport, line: socket.socket) -> None:
        other.send(0, 4, Frame(0))
        if not os.fork():
            line.recv(1)  # until the test has ended
            os._exit(0)

    transport = DataPlane(Context(0, name_of="producer:{}".format))
    way = listen(transport)
    pid, line = forked_peer(way.address, work)
    try:
        way.connect({1: way.address})
        assert transport.receive(1, 4).value() == 0
        time.sleep(0.2)
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
    monkeypatch.setattr(tcp, "SILENCE_S", 1.0)
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
        ip("netns", "add", names[0])
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces cannot be made here: {error.stderr.decode().strip()}")
    try:
        ip("netns", "add", names[1])
        ip("-n", names[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.77.0.{number}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")
            ip("-n", name, "link", "set", "lo", "up")
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
    ours.settimeout(30)
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
        store = TCPStore("10.77.0.1", 29777, is_master=False, timeout=timedelta(seconds=20))
    KEPT.append(store)
    return connect_all(TWO_NODES, job_rank, PrefixStore("run/0", store))


def test_two_nodes_meet_on_the_network_of_the_head_and_notice_when_one_vanishes(
    nodes: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "SILENCE_S", 2.0)
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
        ready.settimeout(30)
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
