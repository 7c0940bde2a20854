"""The head's side of the connections to the node processes, with real sockets and no process."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress

import pytest
from processes import wait

from meshctl import __version__
from meshctl.engines.connection import join
from meshctl.engines.engine import CannotStart
from meshctl.engines.supervise.examination import NodeLost
from meshctl.engines.supervise.nodes import Nodes
from meshctl.engines.supervise.store_server import StoreServer
from meshctl.engines.supervise.supervisor import listen
from meshctl.network.connection import Connection, Message, encoded
from meshctl.package import our_digest


@pytest.fixture
def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


@contextmanager
def head(listener: socket.socket, count: int = 1, lease_s: float = 0.0, **more: float) -> Iterator[Nodes]:
    """The head's side of an attempt of some nodes."""
    made = Nodes(listener, "token", lease_s, **more)  # type: ignore[arg-type]
    made.begin({"type": "attempt", "number": 0}, {number: ["one"] for number in range(count)})
    yield made
    made.close()


@pytest.fixture
def nodes(listener: socket.socket) -> Iterator[Nodes]:
    with head(listener, lease_s=15.0) as made:
        yield made


@contextmanager
def serving(server: str, listener: socket.socket) -> Iterator[Callable[[], object]]:
    """Yields the function by which a server goes on: the head, or the store, which has a thread."""
    if server == "head":
        with head(listener) as nodes:
            yield nodes.poll
            assert not nodes.has_joined(0)
    else:
        with closing(StoreServer(listener, "token")):
            yield list


def address_of(listener: socket.socket) -> str:
    return f"127.0.0.1:{listener.getsockname()[1]}"


def refused(address: str, token: str, plan: str = "") -> list[str]:
    """Joins in a thread; returns the list in which the reason of a refusal appears."""
    reasons: list[str] = []

    def joining() -> None:
        try:
            join(address, 0, token, plan)[0].close()
            reasons.append("")
        except CannotStart as error:
            reasons.append(str(error))

    threading.Thread(target=joining, daemon=True).start()
    return reasons


def polled(nodes: Nodes, condition: Callable[[], object]) -> Sequence[object]:
    reports: list[object] = []

    def poll() -> bool:
        reports.extend(nodes.poll())
        return bool(condition())

    wait(poll, "a report")
    return reports


def test_a_node_with_another_token_is_turned_away(listener: socket.socket, nodes: Nodes) -> None:
    reasons = refused(address_of(listener), "wrong")
    polled(nodes, lambda: reasons)
    assert reasons == [
        f"the head at {address_of(listener)} does not have the token of node 0: MESHCTL_TOKEN or the file "
        "`.token` is of another run"
    ]
    assert nodes.running


def test_what_a_node_sends_right_behind_its_proof_is_not_lost(
    listener: socket.socket, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proof and a beat arrive together."""
    send = Connection.send

    def send_both(self: Connection, message: Message) -> None:
        together = b"".join(map(encoded, [message, {"type": "beat", "pid": 7}]))
        self.send_bytes(together) if message.keys() == {"proof"} else send(self, message)

    monkeypatch.setattr(Connection, "send", send_both)
    with ThreadPoolExecutor(1) as thread:
        joining = thread.submit(join, address_of(listener), 0, "token")
        polled(nodes, lambda: nodes.has_joined(0))
    joining.result()[0].close()
    assert nodes._nodes[0].pid == 7


@pytest.mark.parametrize(
    ("theirs", "package", "why"),
    [
        ("0.0.9", "", f"meshctl {__version__} runs the head, 0.0.9 runs this node"),
        (
            __version__,
            "other",
            f"the files of this node's meshctl {__version__} differ from those of the head's",
        ),
        (__version__, our_digest(), ""),
        (__version__, "", ""),
    ],
)
def test_another_meshctl_is_named(
    listener: socket.socket, nodes: Nodes, theirs: str, package: str, why: str
) -> None:
    node = Connection(socket.create_connection(listener.getsockname()))
    node.send({"node": 0, "version": theirs, "package": package, "nonce": "00"})
    answers: list[Message] = []
    polled(nodes, lambda: answers.extend(node.receive()) or answers)
    assert answers[0].get("refused", "") == why
    node.close()


def test_a_node_that_is_silent_for_longer_than_its_lease_is_lost(
    listener: socket.socket, nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("meshctl.engines.supervise.nodes.time.monotonic", lambda: clock[0])
    joined: list[Connection] = []
    threading.Thread(target=lambda: joined.append(join(address_of(listener), 0, "token")[0])).start()
    while not joined or not joined[0].receive():  # the attempt
        nodes.poll()
    for _ in range(3):
        clock[0] += 4.0
        assert nodes.poll() == []
    clock[0] += 4.0
    assert nodes.poll() == [NodeLost(0, "node 0 (127.0.0.1) has not answered for 15 s")]
    assert not nodes.running
    joined[0].close()


def test_nodes_that_never_join_are_named(listener: socket.socket) -> None:
    with head(listener, 2, join_limit_s=0.1) as nodes:
        [found] = polled(nodes, lambda: nodes.lost)
        which = f"2 nodes of 2 did not connect to the head at {address_of(listener)} within 0 s"
        assert found == NodeLost(0, f"{which}: node 0 and node 1", is_unfit=True) and not nodes.running


def test_nodes_that_come_at_once_wait_until_others_have_authenticated(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshctl.engines.connection.STRANGERS_MAX", 2)
    with head(listener, 12) as nodes:
        with ThreadPoolExecutor(12) as pool:
            joining = [pool.submit(join, address_of(listener), number, "token") for number in range(12)]
            polled(nodes, lambda: all(nodes.has_joined(number) for number in range(12)))
            joined = [one.result()[0] for one in joining]
        for one in joined:
            assert one.receive() == [{"type": "attempt", "number": 0}]
        joined.pop().close()
        assert [type(report) for report in polled(nodes, lambda: nodes.lost)] == [NodeLost]
        for one in joined:
            one.close()


@pytest.mark.parametrize("server", ["head", "store"])
@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x80\x04\x95.\n",
        b"[1, 2]\n",
        b'{"node": "x"}\n',
        b'{"node": 0}\n',
        b'{"nonce": "1"}\n{"proof": "guessed"}\n',
        b"." * 9999,
        b"",
    ],
)
def test_a_stranger_is_dropped(
    listener: socket.socket, server: str, words: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshctl.engines.connection.STRANGER_S", 0.1)
    answer, part = b"", b" "
    address = listener.getsockname()
    with serving(server, listener) as poll, socket.create_connection(address) as stranger:
        stranger.sendall(words)
        stranger.settimeout(0.02)
        while part:
            poll()
            with suppress(TimeoutError):
                try:
                    part = stranger.recv(4096)
                except ConnectionResetError:
                    part = b""
                answer += part
    assert b"attempt" not in answer and b"value" not in answer


def test_a_machine_without_free_ports_refuses_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> socket.socket:
        raise OSError(errno.EADDRINUSE, "Address already in use (while attempting to bind)")

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(CannotStart, match=r"^no port can be opened on 127\.0\.0\.1: Address already in use$"):
        listen("127.0.0.1")
