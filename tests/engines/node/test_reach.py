"""The check that nodes reach one another: real sockets, and no process."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from meshctl.engines.node import reach
from meshctl.engines.node.reach import Door, unreached
from meshctl.network.addresses import joined

HOST = "127.0.0.1"


@contextmanager
def opened(node: int = 1, token: str = "token") -> Iterator[Door]:
    """A node that answers calls in a thread."""
    import select

    door, is_over = Door(node, HOST, token), threading.Event()

    def serve() -> None:
        while not is_over.is_set():
            door.poll(select.select(door.reading, [], [], 0.02)[0])

    thread = threading.Thread(target=serve)
    thread.start()
    yield door
    is_over.set()
    thread.join()
    door.close()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "REACH_S", 0.5)
    monkeypatch.setattr(reach, "CALL_S", 0.2)


def test_peers_that_answer_are_reached() -> None:
    with opened(1) as one, opened(2) as two:
        assert not list(unreached({1: one.address, 2: two.address}, "token"))
        assert not one.strangers and not list(unreached({}, "token"))


@pytest.mark.parametrize(("node", "token"), [(1, "other"), (3, "token")])
def test_another_node_or_run_does_not_count(node: int, token: str) -> None:
    with opened(node, token) as door:
        [(peer, address, problem)] = unreached({1: door.address}, "token")
    assert (peer, address) == (1, door.address)
    assert "without the token of the run" in problem or "closed the connection" in problem


def test_a_closed_port_and_a_silent_one_are_named() -> None:
    silent = socket.create_server((HOST, 0))
    closed = socket.create_server((HOST, 0))
    peers = {number: joined(HOST, one.getsockname()[1]) for number, one in enumerate((silent, closed))}
    closed.close()
    found = {peer: problem for peer, _, problem in unreached(peers, "token")}
    assert found == {0: "it does not answer", 1: "connection refused"}
    silent.close()


@pytest.mark.parametrize(
    "words", [b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04pickle\n", b'{"to": 7}\n', b"x" * 200_000]
)
def test_a_stranger_is_dropped_and_counted(words: bytes) -> None:
    with opened() as door, socket.create_connection((HOST, int(door.address.rpartition(":")[2]))) as sock:
        with suppress(OSError):
            sock.sendall(words)
            assert not sock.recv(4096)
        assert door.strangers == {HOST: 1}
