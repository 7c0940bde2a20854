"""Guarantees of all transports. Those of sockets are in the files beside this one."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import pytest
import torch

from meshctl.runtime.transports import data_plane
from meshctl.runtime.transports.buffers.frames import Frame, unpack
from meshctl.runtime.transports.errors import PeerLost
from tests.runtime.memory import MemoryDataPlane


def pair(slots: int = 2) -> tuple[MemoryDataPlane, MemoryDataPlane]:
    hub: dict[int, MemoryDataPlane] = {}
    one, two = (MemoryDataPlane(job_rank, {7: slots}, hub) for job_rank in (0, 1))
    return one, two


def frame(number: int) -> Frame:
    return Frame(number)


def number_in(frame: torch.Tensor) -> int:
    number: int = unpack(frame)
    return number


def in_thread(work: threading.Thread) -> threading.Thread:
    work.daemon = True
    work.start()
    return work


def test_a_first_frame_may_arrive_while_its_receiver_asks_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread may run at any allocation, because a collection of garbage may begin there."""
    sent: list[int] = []

    def made() -> deque[Any]:
        if not sent:
            sent.append(5)
            sending = in_thread(threading.Thread(target=one.send, args=(1, 7, frame(5))))
            sending.join()
        return deque()

    monkeypatch.setattr(data_plane, "deque", made)
    one, two = pair()
    assert number_in(two.receive(0, 7).frame) == 5


def test_who_waits_is_notified_of_a_lost_peer() -> None:
    one, _ = pair()
    raised: list[BaseException] = []

    def receive() -> None:
        try:
            one.receive(1, 7)
        except PeerLost as error:
            raised.append(error)

    waiter = in_thread(threading.Thread(target=receive))
    waiter.join(0.05)
    assert not raised
    one.fail(PeerLost("connection reset"))
    waiter.join()
    assert [type(error) for error in raised] == [PeerLost]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
def test_an_allgather_returns_every_row_in_order_on_every_rank(count: int) -> None:
    hub: dict[int, MemoryDataPlane] = {}
    job_ranks = [10 + 3 * index for index in range(count)]
    transports = [MemoryDataPlane(job_rank, {}, hub) for job_rank in job_ranks]
    rows: dict[int, list[bytes]] = {}

    def work(index: int) -> None:
        rows[index] = transports[index].allgather(job_ranks, index, 4, b"row" * index)

    workers = [in_thread(threading.Thread(target=work, args=(index,))) for index in range(count)]
    for worker in workers:
        worker.join()
    assert rows == {index: [b"row" * number for number in range(count)] for index in range(count)}
