"""Strangers and hostile peers of TCP: each is closed, and disturbs nobody else."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshctl.runtime.transports.buffers.frames import Frame
from meshctl.runtime.transports.context import Context
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost
from meshctl.runtime.transports.tcp import transport as tcp
from meshctl.runtime.transports.tcp.messages import HEAD, Address
from meshctl.runtime.transports.tcp.transport import TcpTransport
from tests.hang import HANG_S
from tests.runtime.transports.tcp.connected import TOKEN, Listen, Worlds, close_all, error_of

HELLO, FRAME, CREDIT, GOODBYE = range(4)


# Strangers and hostile peers


def connected(way: TcpTransport, message: bytes = b"") -> socket.socket:
    sock = socket.create_connection((way.address.host, way.address.port), HANG_S)
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
    "another generation": hello(1, wanted=1),
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
    "kind 7 with 0 bytes": HEAD.pack(7, 0, 0, 0),
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
            == "job rank 1 sent bytes that are not a message: a frame for which there is no slot in tag 4"
        )


@pytest.mark.parametrize("answers", HOSTILE)
def test_a_malformed_message_names_the_peer(worlds: Worlds, answers: str) -> None:
    (one, way), _ = worlds(2)
    with connected(way, hello(1) + HOSTILE[answers]):
        assert (
            error_of(lambda: one.receive(1, 4)) == f"job rank 1 sent bytes that are not a message: {answers}"
        )


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
            error_of(lambda: one.receive(1, 4))
            == "job rank 1 sent bytes that are not a message: kind 1 with 3 bytes"
        )


HEADS = st.builds(
    HEAD.pack,
    st.integers(0, 9),
    st.integers(0, 1),
    st.integers(-1, 6),
    st.sampled_from([-1, 0, 1, 7, 16, 1 << 17, 1 << 22, 1 << 62]),
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
