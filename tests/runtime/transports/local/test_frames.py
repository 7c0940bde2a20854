"""Frames in shared memory: bytes, writers and readers."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from meshctl.runtime.transports.buffers import buffer_pool
from meshctl.runtime.transports.buffers.arena import GRAIN
from meshctl.runtime.transports.buffers.buffer_pool import INLINE_MAX, MAX_HELD
from meshctl.runtime.transports.context import SLOTS
from meshctl.runtime.transports.errors import BuffersHeld
from tests.runtime.hostile_world import (
    BACK,
    SIZES,
    TAG,
    Worker,
    World,
    pattern,
    send_frame,
)

pytestmark = pytest.mark.slow


# Bytes


@pytest.mark.parametrize("consumers", [1, 3])
def test_frames_of_all_sizes_come_as_they_were_to_all_who_get_them(consumers: int) -> None:
    steps = len(SIZES) * 3

    def producer(worker: Worker) -> int:
        for step in range(steps):
            send_frame(worker, range(1, 1 + consumers), pattern(SIZES[step % len(SIZES)], step))
        worker.transport.close()
        return worker.local.pool.stats().nbytes

    def consumer(worker: Worker) -> bool:
        kept: deque[tuple[int, Tensor]] = deque(maxlen=3)  # a frame stays as it is while the next ones come
        for step in range(steps):
            kept.append((step, worker.transport.receive(0, TAG).frame))
            assert all(
                torch.equal(frame, pattern(SIZES[number % len(SIZES)], number)) for number, frame in kept
            )
        kept.clear()
        worker.transport.close()
        return True

    with World(producer, *[consumer] * consumers) as world:
        assert world.results(*range(1, 1 + consumers)) == [True] * consumers


@pytest.mark.parametrize("nbytes", [INLINE_MAX + 1, GRAIN])
def test_a_write_into_a_frame_that_was_received_ends_the_writer_and_no_other(nbytes: int) -> None:
    def producer(worker: Worker) -> None:
        send_frame(worker, (1, 2), pattern(nbytes, 0))
        worker.receive()

    def vandal(worker: Worker) -> None:
        frame = worker.transport.receive(0, TAG).frame
        worker.report("reads")
        frame[len(frame) // 2] = 1

    def reader(worker: Worker) -> bool:
        frame = worker.transport.receive(0, TAG).frame
        worker.receive()
        return torch.equal(frame, pattern(nbytes, 0))

    with World(producer, vandal, reader) as world:
        assert world.receive(1) == "reads"
        assert world.status(1) == -signal.SIGSEGV
        world.notify(2)
        assert world.results(2) == [True]


def test_a_receiver_that_releases_nothing_is_named_and_memory_stays_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffer_pool, "RETURN_WAIT_S", 0.01)

    def producer(worker: Worker) -> list[Any]:
        try:
            for step in range(100):
                send_frame(worker, (1,), pattern(GRAIN, step))
        except BuffersHeld as held:
            return [str(held), worker.local.pool.stats().nbytes <= 2 * GRAIN * (SLOTS + MAX_HELD + 1)]
        return []

    def keeper(worker: Worker) -> None:
        kept = []
        while True:
            kept.append(worker.transport.receive(0, TAG).frame)

    with World(producer, keeper) as world:
        assert world.results(0) == [
            [f"job rank 1 still holds {SLOTS + MAX_HELD} of the frames that were leased to it", True]
        ]


def test_several_write_one_frame_also_where_a_writer_is_one_of_those_who_get_it() -> None:
    nbytes, part = 3 * GRAIN, GRAIN
    consumers = (1, 2, 3)  # 1 writes, too

    def leader(worker: Worker) -> bool:
        for step in range(20):
            lease = worker.transport.lease(consumers, TAG, nbytes)
            for writer in (1, 4):
                worker.transport.invite(lease, writer, BACK)
            lease.frame[:part] = pattern(part, step)
            worker.transport.deliver(lease)
        return True

    def writer(index: int) -> Callable[[Worker], bool]:
        def work(worker: Worker) -> bool:
            for step in range(20):
                frame = worker.transport.receive(0, BACK).frame
                frame[index * part : (index + 1) * part] = pattern(part, step + index)
                for job_rank in consumers:
                    send_frame(worker, (job_rank,), torch.zeros(1, dtype=torch.uint8), TAG + 2 + index)
                if worker.job_rank in consumers:
                    assert right(worker, step)
            return True

        return work

    def right(worker: Worker, step: int) -> bool:
        frame = worker.transport.receive(0, TAG).frame
        for job_rank, index in ((1, 1), (4, 2)):
            worker.transport.receive(job_rank, TAG + 2 + index)
        return all(
            torch.equal(frame[index * part : (index + 1) * part], pattern(part, step + index))
            for index in range(3)
        )

    def consumer(worker: Worker) -> bool:
        return all(right(worker, step) for step in range(20))

    with World(leader, writer(1), consumer, consumer, writer(2)) as world:
        assert world.results() == [True] * 5
