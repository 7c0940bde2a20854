"""Reports of connections without the token of the run."""

from __future__ import annotations

import socket

import pytest

from meshctl.engines.supervise.nodes import Nodes
from meshctl.engines.supervise.store_server import StoreServer
from meshctl.engines.supervise.watches import StrangerWatch
from meshctl.network import strangers
from meshctl.network.strangers import HOSTS_MAX, OTHERS, RejectedPeers
from meshctl.run.events import Event


def test_the_first_are_reported_at_once_and_all_at_the_end() -> None:
    head, node = RejectedPeers(), RejectedPeers()
    watch = StrangerWatch(lambda: [head, node])
    assert [*watch.poll(), *watch.at_end()] == []
    head.note("10.0.0.7")
    assert [one.value["text"] for one in watch.poll()] == [
        "1 connection without the token of this run was dropped, from 10.0.0.7"
    ]
    node.note("10.0.0.8", 3)
    watch.add(Event("strangers", "train", 0, value={"hosts": {"10.0.0.7": 1}}))
    assert [*watch.poll()] == []
    end = "5 connections without the token of this run were dropped, from 10.0.0.8, 10.0.0.7"
    assert [*watch.at_end()] == [end] and [*watch.at_end()] == []


def test_the_number_of_hosts_is_bounded() -> None:
    found = RejectedPeers()
    for number in range(HOSTS_MAX + 5):
        found.note(f"h{number}")
    assert found[OTHERS] == 5 and len(found) == HOSTS_MAX + 1
    [text] = StrangerWatch(lambda: [found]).at_end()
    assert text.endswith("from other hosts, h0, h1, 62 more")


def stranger(listener: socket.socket, words: bytes) -> bytes:
    """Sends bytes as a stranger does, and returns the answer."""
    with socket.create_connection(listener.getsockname()) as sock:
        sock.sendall(words)
        answer = b""
        try:
            while part := sock.recv(4096):
                answer += part
        except ConnectionResetError:
            pass
    return answer


WORDS = [b"GET / HTTP/1.1\r\n\r\n", b"\x80\x04\x95.\n", b'{"node": 0}\n', b"." * 9999]
"""A web client, a pickle, no nonce, and a message that is too long."""


@pytest.mark.parametrize("words", WORDS)
def test_the_head_drops_and_counts_a_stranger(words: bytes) -> None:
    nodes = Nodes(socket.create_server(("127.0.0.1", 0)), "token", 0.0)
    nodes.begin({"type": "attempt", "number": 0}, {0: ["one"]})
    with socket.create_connection(nodes._listener.getsockname()) as sock:
        sock.sendall(words)
        while not nodes.all_dropped()[0]:
            nodes.poll()
    assert nodes.all_dropped()[0] == {"127.0.0.1": 1} and not nodes.has_joined(0)
    nodes.close()


@pytest.mark.parametrize("words", [*WORDS[:2], b'{"nonce": "1"}\n{"proof": "guessed"}\n', WORDS[3]])
def test_the_control_store_drops_and_counts_a_stranger(words: bytes) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    server = StoreServer(listener, "token")
    assert b"value" not in stranger(listener, words)
    server.close()
    assert server.dropped == {"127.0.0.1": 1}


def test_a_silent_stranger_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers, "STRANGER_S", 0.1)
    listener = socket.create_server(("127.0.0.1", 0))
    server = StoreServer(listener, "token")
    assert stranger(listener, b"") == b""
    server.close()
    assert server.dropped == {"127.0.0.1": 1}
