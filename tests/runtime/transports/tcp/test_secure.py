"""Frames by TLS: the same frames, and strangers without the key of the run."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from meshctl.network.sockets import sockets_of
from meshctl.runtime.transports.buffers.frames import Frame
from meshctl.runtime.transports.context import Context
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.tcp.pump import Carried
from meshctl.runtime.transports.tcp.transport import TcpTransport
from tests.hang import HANG_S
from tests.runtime.transports.tcp.connected import LARGE, TOKEN, close_all, error_of, in_thread

Pair = list[tuple[DataPlane, TcpTransport]]


@pytest.fixture
def pair() -> Iterator[Pair]:
    planes = [DataPlane(Context(job_rank)) for job_rank in range(2)]
    security = sockets_of("the token of the run", True)
    ways = [TcpTransport(plane, TOKEN, security=security) for plane in planes]
    for way in ways:
        way.connect({job_rank: other.address for job_rank, other in enumerate(ways)})
    yield list(zip(planes, ways, strict=True))
    for way in ways:
        way.release()


def test_frames_of_every_size_arrive_in_both_directions(pair: Pair) -> None:
    (one, way), (two, _) = pair
    tensors = [torch.arange(size) for size in (0, 1, 1 << 12, (1 << 19) + 5, 3 << 20)]

    def send(plane: DataPlane, to: int) -> None:
        for number, tensor in enumerate(tensors):
            plane.send(to, 4, Frame([number, tensor]))

    senders = [in_thread(lambda: send(one, 1)), in_thread(lambda: send(two, 0))]
    for plane, source in ((two, 0), (one, 1)):
        for number, tensor in enumerate(tensors):
            got, value = plane.receive(source, 4).value()
            assert got == number and torch.equal(value, tensor)
    for sender in senders:
        sender.join()
    [carried] = {connection.sock for connection in way._to.values()}
    assert isinstance(carried, Carried) and isinstance(carried.network, ssl.SSLSocket)
    assert carried.network.version() == "TLSv1.3"
    close_all([one, two])


def test_a_receiver_whose_program_does_not_read_keeps_nobody(pair: Pair) -> None:
    (one, _), (two, _) = pair
    for number in range(2):
        one.send(1, 4, Frame([number, LARGE]))
    for number in range(2):
        got, value = two.receive(0, 4).value()
        assert got == number and torch.equal(value, LARGE)
    close_all([one, two])


def test_the_end_of_a_peer_is_noticed(pair: Pair) -> None:
    (one, _), (two, way) = pair
    one.send(1, 4, Frame(7))
    assert two.receive(0, 4).value() == 7
    way.release()
    assert "job rank 1 is gone" in error_of(lambda: one.receive(1, 4))


@pytest.mark.parametrize("words", [b"\x80\x04" * 100, b"", b"\0" * 40])
def test_a_stranger_without_the_key_is_dropped_and_counted(pair: Pair, words: bytes) -> None:
    (one, way), (two, _) = pair
    with socket.create_connection((way.address.host, way.address.port), HANG_S) as stranger:
        stranger.sendall(words)
        with suppress(OSError):  # it may be dropped already
            stranger.shutdown(socket.SHUT_WR)
        try:
            while stranger.recv(4096):
                pass
        except ConnectionResetError:
            pass
    while not way.strangers:
        time.sleep(0.01)
    assert way.strangers.total() == 1
    two.send(0, 4, Frame(7))
    assert one.receive(1, 4).value() == 7
    close_all([one, two])
