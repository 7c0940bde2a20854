"""The head's side of the connections to the node processes, with real sockets and no process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import pytest
from processes import wait

from meshctl import __version__
from meshctl.engines import connection
from meshctl.engines.connection import join
from meshctl.engines.engine import CannotStart
from meshctl.engines.supervise.nodes import NodeLost, Nodes
from meshctl.network.connection import Connection, Message
from meshctl.package import our_digest, reinstall_command


@pytest.fixture
def listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


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


def test_a_node_with_another_token_is_turned_away(listener: socket.socket) -> None:
    nodes = Nodes(listener, "right", 0.0)
    nodes.begin({"type": "attempt", "number": 0}, {0: ["one"]})
    reasons = refused(address_of(listener), "wrong")
    polled(nodes, lambda: reasons)
    assert reasons == [
        f"the head at {address_of(listener)} does not have the token of node 0: MESHCTL_TOKEN or the file "
        "`.token` is of another run"
    ]
    assert nodes.running
    nodes.close()


@pytest.mark.parametrize(
    ("theirs", "package", "why"),
    [
        ("0.0.9", "", f"meshctl {__version__} runs the head, 0.0.9 runs this node"),
        (
            __version__,
            "other files",
            f"the files of this node's meshctl {__version__} differ from those of the head's",
        ),
        (__version__, our_digest(), ""),
        (__version__, "", ""),
    ],
)
def test_another_meshctl_is_named(listener: socket.socket, theirs: str, package: str, why: str) -> None:
    nodes = Nodes(listener, "token", 0.0)
    node = Connection(socket.create_connection(listener.getsockname()))
    node.send({"node": 0, "version": theirs, "package": package, "nonce": "00"})
    answers: list[Message] = []
    polled(nodes, lambda: answers.extend(node.receive()) or answers)
    assert answers[0].get("refused", "") == why
    node.close()
    nodes.close()


def test_a_refused_node_names_the_other_distribution(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = Nodes(listener, "token", 0.0)
    monkeypatch.setattr(connection, "our_digest", iter(["theirs", "ours"]).__next__)
    monkeypatch.setattr(connection, "namesake", lambda: "the distribution `meshctl` 9.0 (another tool)")
    reasons = refused(address_of(listener), "token", "plan")
    polled(nodes, lambda: reasons)
    assert reasons[0].endswith(
        f"differ from those of the head's; the distribution `meshctl` 9.0 (another tool) is installed here: {reinstall_command()}"
    )
    nodes.close()


@pytest.mark.parametrize("sent", [b"\x80\x04pickle\n", b"[1, 2]\n", b'{"node": "x"}\n', b"x" * 10_000])
def test_a_stranger_is_dropped(listener: socket.socket, sent: bytes) -> None:
    nodes = Nodes(listener, "token", 0.0)
    stranger = socket.create_connection(listener.getsockname())
    stranger.sendall(sent)
    stranger.setblocking(False)
    closed: list[bool] = []

    def is_closed() -> bool:
        try:
            closed.append(stranger.recv(1) == b"")
        except BlockingIOError:
            return False
        except ConnectionResetError:
            closed.append(True)
        return True

    polled(nodes, is_closed)
    assert closed == [True]
    stranger.close()
    nodes.close()


def test_a_node_that_is_silent_for_longer_than_its_lease_is_lost(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("meshctl.engines.supervise.nodes.time.monotonic", lambda: clock[0])
    nodes = Nodes(listener, "token", 15.0)
    nodes.begin({"type": "attempt", "number": 0}, {0: ["one"]})
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
    nodes.close()


def test_nodes_that_come_at_once_wait_until_others_have_authenticated(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshctl.network.strangers.STRANGERS_MAX", 2)
    nodes = Nodes(listener, "token", 0.0)
    numbers = range(12)
    nodes.begin({"type": "attempt", "number": 0}, {number: ["one"] for number in numbers})
    joined: list[Connection] = []

    def connect(number: int) -> None:
        joined.append(join(address_of(listener), number, "token")[0])

    threads = [threading.Thread(target=connect, args=(number,)) for number in numbers]
    for thread in threads:
        thread.start()
    polled(nodes, lambda: all(nodes.has_joined(number) for number in numbers))
    for thread in threads:
        thread.join()
    for one in joined:
        assert one.receive() == [{"type": "attempt", "number": 0}]
    joined.pop().close()
    assert [type(report) for report in polled(nodes, lambda: nodes.lost)] == [NodeLost]
    for one in joined:
        one.close()
    nodes.close()


def test_silent_strangers_make_room(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within the usual limit of two at a time, they would take minutes."""
    monkeypatch.setattr("meshctl.network.strangers.STRANGERS_MAX", 2)
    monkeypatch.setattr("meshctl.network.strangers.CROWDED_S", 0.01)
    nodes = Nodes(listener, "token", 0.0)
    nodes.begin({"type": "attempt", "number": 0}, {0: ["one"]})
    with ExitStack() as stack:
        for _ in range(60):
            stack.enter_context(socket.create_connection(listener.getsockname()))
        joined: list[Connection] = []
        thread = threading.Thread(target=lambda: joined.append(join(address_of(listener), 0, "token")[0]))
        thread.start()
        polled(nodes, lambda: nodes.has_joined(0))
        thread.join()
    joined[0].close()
    nodes.close()
