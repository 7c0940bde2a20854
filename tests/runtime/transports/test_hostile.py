"""Strangers and hostile peers: each is closed, an error names a peer of the run, and nobody else is disturbed."""

from __future__ import annotations

import fcntl
import os
import struct
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshctl.runtime.transports.buffers.arena import GRAIN
from meshctl.runtime.transports.buffers.buffer_pool import INLINE_MAX
from meshctl.runtime.transports.buffers.frames import Frame, pack, tensor_of
from meshctl.runtime.transports.context import Context
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost
from meshctl.runtime.transports.peers import HEAD, Kind
from meshctl.runtime.transports.tcp import transport as tcp
from meshctl.runtime.transports.tcp.transport import TcpTransport
from tests.examples import examples
from tests.runtime.hostile_world import (
    BACK,
    KINDS,
    TAG,
    Impostor,
    address_of,
    connected_impostor,
    error_after_polling,
    files_open,
    hello,
    message,
)

pytestmark = pytest.mark.slow
both = pytest.mark.parametrize("kind", KINDS)
NOT_A_MESSAGE = "job rank 1 sent bytes that are not a message: "


def error_of(plane: DataPlane, tag: int = BACK + 1) -> str:
    """Returns the error of a wait for job rank 1."""
    with pytest.raises(PeerLost) as lost:
        plane.receive(1, tag)
    return str(lost.value)


STRANGE = {
    "another token": hello(1, "tokem"),
    "a longer token": hello(1, "token2"),
    "no token": hello(1, ""),
    "no job rank of the run": hello(7),
    "the job rank itself": hello(0),
    "a job rank below 0": hello(-1),
    "another generation": hello(1, wanted=1),
    "a frame first": message(Kind.FRAME, TAG, b"evil"),
    "endless": HEAD.pack(Kind.HELLO, 0, 1, 1 << 62),
    "another protocol": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "one who is there already": hello(1),
}


@both
@pytest.mark.parametrize("words", STRANGE.values(), ids=STRANGE)
def test_a_stranger_is_closed_and_disturbs_nobody(kind: str, words: bytes) -> None:
    with connected_impostor(kind=kind) as (plane, impostor):
        impostor.frame(TAG, pack("first"))
        assert plane.receive_value(1, TAG) == "first"
        stranger = Impostor(address_of(plane), greeting=words)
        impostor.frame(TAG, pack("good"))
        assert plane.receive_value(1, TAG) == "good" and error_after_polling(plane) == ""
        assert stranger.is_closed and not plane.queued(1, TAG)
        stranger.close()


def test_connections_that_never_send_hello_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "MAX_STRANGERS", 3)
    with connected_impostor(kind="tcp") as (plane, impostor):
        impostor.frame(TAG, pack("first"))
        assert plane.receive_value(1, TAG) == "first"
        silent = [Impostor(address_of(plane), greeting=hello(1)[:5]) for _ in range(6)]
        assert [each.is_closed for each in silent[:3]] == [True] * 3
        impostor.frame(TAG, pack("still here"))
        assert plane.receive_value(1, TAG) == "still here"
        for each in silent:
            each.close()


def test_a_peer_in_small_pieces_is_a_peer() -> None:
    with connected_impostor(kind="tcp") as (plane, impostor):
        for byte in message(Kind.FRAME, TAG, pack("slowly")):
            impostor.send(bytes([byte]))
        assert plane.receive_value(1, TAG) == "slowly"


HOSTILE = {
    "kind 77 with 0 bytes": HEAD.pack(77, 0, 0, 0),
    "kind 2 with 0 bytes": HEAD.pack(Kind.CREDIT, 0, TAG, 0),
    "kind 3 with 5 bytes": HEAD.pack(Kind.GOODBYE, 0, 0, 5),
    "kind 0 with 9 bytes": hello(1),
    f"a frame of -1 bytes in tag {TAG}": HEAD.pack(Kind.FRAME, 0, TAG, -1),
    f"a frame of {1 << 60} bytes in tag {TAG}": HEAD.pack(Kind.FRAME, 0, TAG, 1 << 60),
}


@pytest.mark.parametrize("answer", HOSTILE)
def test_a_malformed_message_over_tcp_names_the_peer(answer: str) -> None:
    with connected_impostor(kind="tcp") as (plane, impostor):
        impostor.send(HOSTILE[answer])
        assert error_of(plane) == NOT_A_MESSAGE + answer


@both
def test_frames_come_the_other_way_only(kind: str) -> None:
    """On a connection that this end has opened, a frame is an invalid answer."""
    one, other = DataPlane(Context(0)), DataPlane(Context(1))
    ways = [KINDS[kind](plane, "token") for plane in (one, other)]
    for way in ways:
        way.connect({rank: each.address for rank, each in enumerate(ways)})
    one.send(1, TAG, Frame(0))
    assert other.receive_value(0, TAG) == 0
    ways[1]._send(ways[1]._from[0], Kind.FRAME, TAG, b"abc")  # type: ignore[arg-type]
    assert error_of(one).startswith(f"{NOT_A_MESSAGE}kind 1")
    for plane in (one, other):
        plane.release()


HEADS = st.builds(
    HEAD.pack,
    st.integers(0, 12),
    st.integers(0, 1),
    st.integers(-1, 6),
    st.sampled_from([-1, 0, 1, 7, 16, 1 << 17, 1 << 22, 1 << 62]),
)


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.binary(max_size=40) | HEADS, max_size=8), st.booleans())
def test_no_bytes_over_tcp_break_more_than_their_peer(pieces: list[bytes], is_known: bool) -> None:
    one = DataPlane(Context(0))
    way = TcpTransport(one, "token")
    way.connect({0: way.address, 1: way.address, 2: way.address})
    hostile = Impostor(way.address, greeting=hello(1) * is_known + b"".join(pieces))
    peer = Impostor(way.address, 2)
    peer.frame(4, b"ok")
    with suppress(PeerLost):
        assert bytes(tensor_of(one.receive(2, 4).frame).tolist()) == b"ok"
    assert way.receiver.is_alive()
    for each in (hostile, peer, one):
        each.release() if isinstance(each, DataPlane) else each.close()


kinds = st.integers(0, 12) | st.just(255)
sizes = st.sampled_from(
    [0, 1, -1, 64, INLINE_MAX, GRAIN - 1, GRAIN, GRAIN + 1, 2**31, 2**62, 2**63 - 1, -(2**63)]
)
tags = st.sampled_from([TAG, 0, -1, 2**31 - 1, -(2**31)])
places = st.lists(
    st.builds(struct.Struct("<qqqq").pack, st.integers(0, 2) | sizes, sizes, sizes, sizes), max_size=3
).map(b"".join)
returned = st.builds(struct.Struct("<Bqi").pack, st.integers(0, 3), st.integers(0, 2) | sizes, tags)
bodies = st.binary(max_size=80) | places | returned
messages = st.tuples(
    st.builds(message, kinds, tags, bodies, st.integers(0, 1)) | st.binary(min_size=1, max_size=60),
    st.sampled_from(["none", "sealed", "sealed", "open", "pipe"]),
)


def files_of(kind: str) -> list[int]:
    if kind == "none":
        return []
    if kind == "pipe":
        return list(os.pipe())
    file = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, GRAIN)
    if kind == "sealed":
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return [file]


@settings(max_examples=examples(100, 400), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(messages, min_size=1, max_size=5))
def test_a_malformed_message_within_a_node_names_the_peer_and_nothing_else(
    sent: list[tuple[bytes, str]],
) -> None:
    before = files_open()
    with connected_impostor() as (plane, impostor):
        for words, kind in sent:
            files = files_of(kind)
            with suppress(OSError):  # it was hung up on
                impostor.send(words, files)
            for file in files:
                os.close(file)
            error = error_after_polling(plane)
            assert not error or error.startswith("job rank 1 ") or error.endswith("as job rank 1 reported")
    del plane, impostor
    assert not files_open() - before
