"""Messages that no peer sends, over a connection on one node: an error that names the peer, and nothing else."""

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
from meshctl.runtime.transports.data_plane import SLOTS
from meshctl.runtime.transports.local.messages import HEAD
from tests.runtime.hostile_world import BACK, LANE, Impostor, files_open, hears, met

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("tag", [LANE, BACK])
def test_one_who_sends_more_than_it_has_slots_for_is_named(tag: int) -> None:
    with met() as (transport, impostor):
        for _ in range(SLOTS):
            impostor.frame(tag, b"x")
        assert hears(transport) == ""
        impostor.frame(tag, b"x")
        assert (
            hears(transport)
            == f"place 1 sent what is no message: a frame for which there is no slot in tag {tag}"
        )
        assert len(transport.queued(1, tag)) == SLOTS


def test_one_who_sends_in_lanes_that_are_none_is_named() -> None:
    with met(tags=BACK) as (transport, impostor):
        impostor.frame(BACK - 1, b"x")
        assert hears(transport) == ""
        impostor.frame(BACK, b"x")
        assert "no slot in tag 6" in hears(transport)


whats = st.integers(0, 11) | st.just(255)
sizes = st.sampled_from(
    [0, 1, -1, 64, INLINE_MAX, GRAIN - 1, GRAIN, GRAIN + 1, 2**31, 2**62, 2**63 - 1, -(2**63)]
)
tags = st.sampled_from([LANE, 0, -1, 2**31 - 1, -(2**31)])
kinds = st.sampled_from(["none", "sealed", "sealed", "open", "pipe"])
lying = st.lists(
    st.builds(struct.Struct("<qqqq").pack, st.integers(0, 2) | sizes, sizes, sizes, sizes), max_size=3
).map(b"".join)
more = st.binary(max_size=80) | sizes.map(struct.Struct("<q").pack) | lying
messages = st.tuples(
    st.builds(HEAD.pack, whats, st.integers(0, 1), tags, st.integers(0, 2) | sizes, sizes, sizes), more, kinds
)


def file_of(kind: str) -> list[int]:
    if kind == "none":
        return []
    if kind == "pipe":
        return list(os.pipe())
    file = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, GRAIN)
    if kind == "sealed":
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return [file]


@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(messages, min_size=1, max_size=5), st.integers(0, 120))
def test_a_malformed_message_is_an_error_that_names_the_peer_and_nothing_else(
    said: list[tuple[bytes, bytes, str]], cut: int
) -> None:
    before = files_open()
    with met() as (transport, impostor):
        for head, more, kind in said:
            files = file_of(kind)
            with suppress(OSError):  # it was hung up on
                impostor.send((head + more)[: cut or None] or b"x", files)
            for file in files:
                os.close(file)
            assert (
                hears(transport) == ""
                or hears(transport).startswith("place 1 ")
                or hears(transport).endswith("as place 1 says")
            )
    del transport, impostor
    assert files_open() == before


@pytest.mark.parametrize("token", ["", "tokem", "token2"])
def test_who_does_not_know_the_token_is_not_heard_and_disturbs_nobody(token: str) -> None:
    with met() as (transport, impostor):
        stranger = Impostor(transport.transport_to(1).address, token=token)  # type: ignore[attr-defined]
        stranger.frame(LANE, b"evil")
        impostor.frame(LANE, b"good")
        assert hears(transport) == "" and [came.frame for came in transport.queued(1, LANE)] == [b"good"]
        with pytest.raises(ConnectionError):
            stranger.frame(LANE, b"evil")
        stranger.close()


def test_a_second_connection_in_the_name_of_a_place_is_refused() -> None:
    with met() as (transport, impostor):
        impostor.frame(LANE, b"good")
        assert hears(transport) == ""
        other = Impostor(transport.transport_to(1).address)  # type: ignore[attr-defined]
        other.frame(LANE, b"evil")
        assert hears(transport) == "" and len(transport.queued(1, LANE)) == 1
        other.close()
