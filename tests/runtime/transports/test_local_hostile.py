"""Invalid messages over a connection on one node cause an error that names the peer, and nothing else."""

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
from meshctl.runtime.transports.context import SLOTS
from meshctl.runtime.transports.local.messages import HEAD
from tests.examples import examples
from tests.runtime.hostile_world import (
    BACK,
    TAG,
    Impostor,
    connected_impostor,
    error_after_polling,
    files_open,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("tag", [TAG, BACK])
def test_one_who_sends_more_than_it_has_slots_for_is_named(tag: int) -> None:
    with connected_impostor() as (transport, impostor):
        for _ in range(SLOTS):
            impostor.frame(tag, b"x")
        assert error_after_polling(transport) == ""
        impostor.frame(tag, b"x")
        assert (
            error_after_polling(transport)
            == f"job rank 1 sent bytes that are not a message: a frame for which there is no slot in tag {tag}"
        )
        assert len(transport.queued(1, tag)) == SLOTS


def test_a_peer_that_sends_in_unknown_tags_is_named() -> None:
    with connected_impostor(tags=BACK) as (transport, impostor):
        impostor.frame(BACK - 1, b"x")
        assert error_after_polling(transport) == ""
        impostor.frame(BACK, b"x")
        assert "no slot in tag 6" in error_after_polling(transport)


whats = st.integers(0, 15) | st.just(255)
sizes = st.sampled_from(
    [0, 1, -1, 64, INLINE_MAX, GRAIN - 1, GRAIN, GRAIN + 1, 2**31, 2**62, 2**63 - 1, -(2**63)]
)
tags = st.sampled_from([TAG, 0, -1, 2**31 - 1, -(2**31)])
kinds = st.sampled_from(["none", "sealed", "sealed", "open", "pipe"])
aliased = st.lists(
    st.builds(struct.Struct("<qqqq").pack, st.integers(0, 2) | sizes, sizes, sizes, sizes), max_size=3
).map(b"".join)
more = st.binary(max_size=80) | sizes.map(struct.Struct("<q").pack) | aliased
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


@settings(max_examples=examples(100, 400), suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(messages, min_size=1, max_size=5), st.integers(0, 120))
def test_a_malformed_message_is_an_error_that_names_the_peer_and_nothing_else(
    message: list[tuple[bytes, bytes, str]], cut: int
) -> None:
    before = files_open()
    with connected_impostor() as (transport, impostor):
        for head, more, kind in message:
            files = file_of(kind)
            with suppress(OSError):  # it was hung up on
                impostor.send((head + more)[: cut or None] or b"x", files)
            for file in files:
                os.close(file)
            assert (
                error_after_polling(transport) == ""
                or error_after_polling(transport).startswith("job rank 1 ")
                or error_after_polling(transport).endswith("as job rank 1 reported")
            )
    del transport, impostor
    assert not files_open() - before


@pytest.mark.parametrize("token", ["", "tokem", "token2"])
def test_a_peer_without_the_token_is_ignored_and_disturbs_nobody(token: str) -> None:
    with connected_impostor() as (transport, impostor):
        stranger = Impostor(transport.transport_to(1).address, token=token)  # type: ignore[attr-defined]
        stranger.frame(TAG, b"evil")
        impostor.frame(TAG, b"good")
        assert error_after_polling(transport) == "" and [came.frame for came in transport.queued(1, TAG)] == [
            b"good"
        ]
        with pytest.raises(ConnectionError):
            stranger.frame(TAG, b"evil")
        stranger.close()


def test_a_second_connection_of_a_job_rank_is_refused() -> None:
    with connected_impostor() as (transport, impostor):
        impostor.frame(TAG, b"good")
        assert error_after_polling(transport) == ""
        other = Impostor(transport.transport_to(1).address)  # type: ignore[attr-defined]
        other.frame(TAG, b"evil")
        assert error_after_polling(transport) == "" and len(transport.queued(1, TAG)) == 1
        other.close()
