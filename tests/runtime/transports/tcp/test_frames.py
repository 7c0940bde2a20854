"""Frames over TCP: order, sizes, memory and addresses."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from itertools import permutations

import pytest
import torch
from torch import Tensor

from meshctl.network.addresses import address_towards
from meshctl.runtime.transports.buffers.caching_allocator import UNCACHED_MAX, CachingAllocator
from meshctl.runtime.transports.buffers.frames import Frame
from meshctl.runtime.transports.context import Context
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.errors import PeerLost
from meshctl.runtime.transports.tcp import connection, sockets
from meshctl.runtime.transports.tcp.messages import Address
from tests.runtime.transports.tcp.connected import LARGE, Listen, Worlds, close_all, in_thread

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
    sender.join()
    close_all(transports)


def test_frames_come_while_the_program_does_something_else(worlds: Worlds) -> None:
    (one, _), (two, _) = worlds(2)
    for number in range(2):
        one.send(1, 4, Frame([number, LARGE]))
    while len(two.queued(0, 4)) < 2:
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
    """The message belongs to the step in which a stream has ended."""
    (one, _), (two, _) = worlds(2)
    one.send(1, 4, Frame("heard"))
    assert two.receive(0, 4).value() == "heard"
    leaving = in_thread(one.close)
    leaving.join(0.2)
    two.send(0, 4, Frame("dropped"))
    two.close()
    leaving.join()


def test_nothing_is_left_of_what_was_closed(worlds: Worlds) -> None:
    def left() -> Counter[str]:
        found = Counter(thread.name for thread in threading.enumerate() if thread.name.startswith("tcp-"))
        for file in os.listdir("/proc/self/fd"):
            with suppress(FileNotFoundError):  # that of the listing itself
                found[os.readlink(f"/proc/self/fd/{file}")] += 1
        return found

    before = left()
    transports = [transport for transport, _ in worlds(3)]
    for one, other in permutations(transports, 2):
        one.send(other.job_rank, 4, Frame(one.job_rank))
        assert other.receive(one.job_rank, 4).value() == one.job_rank
    assert left() - before
    close_all(transports)
    assert not left() - before


def test_only_one_address_is_listened_on(worlds: Worlds) -> None:
    [(_, way)] = worlds(1)
    assert way.address.host == "127.0.0.1" and way.address.is_loopback
    assert Address.parse(str(way.address)) == way.address
    assert way._listener.getsockname() == ("127.0.0.1", way.address.port)


def test_the_own_address_is_that_of_the_way_to_the_head() -> None:
    assert address_towards("127.0.0.1", 1) == "127.0.0.1"
    assert Address(address_towards("localhost", 1), 1).is_loopback
    with suppress(OSError):  # a machine may have no IPv6 at all
        assert address_towards("[::1]", 1) == "::1"


def test_who_cannot_be_reached_is_named(listen: Listen) -> None:
    transport = DataPlane(Context(0, name_of="group:{}".format))
    with socket.socket() as deaf:  # it is bound, so that nobody else takes the port
        deaf.bind(("127.0.0.1", 0))
        address = Address(*deaf.getsockname())
        listen(transport).connect({1: address})
        how = f"group:1 cannot be reached at 127.0.0.1:{address.port}: .*refused"
        with pytest.raises(PeerLost, match=how):
            transport.send(1, 4, Frame(0))


# Large frames


def test_small_frames_do_not_overtake_a_large_one(worlds: Worlds) -> None:
    (one, _), (two, _) = worlds(2)

    def send() -> None:
        for number in range(4):
            one.send(1, 4, Frame([number, LARGE + number]))
            one.send(1, 4, Frame([number, LARGE[:number]]))

    sender = in_thread(send)
    for number in range(4):
        got, value = two.receive(0, 4).value()
        assert got == number and torch.equal(value, LARGE + number)
        got, value = two.receive(0, 4).value()
        assert got == number and len(value) == number
    sender.join()
    close_all([one, two])


def test_tensors_may_change_after_they_were_sent_to_a_slow_network(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest that the sockets have not taken is a copy."""
    monkeypatch.setattr(connection, "GRACE_S", 0.0)
    monkeypatch.setattr(connection, "LEAST_BYTES_PER_S", 1e15)
    (one, _), (two, _) = worlds(2)
    for number in range(3):
        tensor = torch.full((1 << 22,), number)
        one.send(1, 4, Frame(tensor))
        tensor.fill_(-1)
        assert two.receive(0, 4).value().unique().tolist() == [number]
    close_all([one, two])


def test_all_bytes_of_a_frame_are_in_its_pieces() -> None:
    value = ["text", torch.arange(7, dtype=torch.int16), torch.empty(0), torch.tensor(True), torch.ones(5, 3)]
    frame = Frame(value)
    joined = b"".join(frame.pieces())
    assert frame.is_plain and joined == bytes(
        frame.write(torch.zeros(frame.nbytes, dtype=torch.uint8)).tolist()
    )
    assert not Frame(torch.ones(5, 3).t()).is_plain


def test_only_sockets_to_a_near_peer_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel no longer adapts a buffer whose size was set."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock = sockets.connected(*listener.getsockname())
    before = sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
    monkeypatch.setattr(sockets, "NEAR_US", -1)
    sockets.keep_in_cache(sock)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == before
    monkeypatch.setattr(sockets, "NEAR_US", 10**9)
    sockets.keep_in_cache(sock)
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * sockets.NEAR_BYTES < before
    sock.close()
