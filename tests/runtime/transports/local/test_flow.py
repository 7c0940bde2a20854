"""The flow of frames in shared memory: credits, blocks that come back, backlogs."""

from __future__ import annotations

import gc
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from meshctl.runtime.transports.buffers.arena import GRAIN
from meshctl.runtime.transports.buffers.buffer_pool import INLINE_MAX, MAX_HELD
from meshctl.runtime.transports.context import SLOTS
from tests.runtime.hostile_world import (
    BACK,
    SIZES,
    TAG,
    Worker,
    World,
    files_open,
    pattern,
    send_frame,
)

pytestmark = pytest.mark.slow


# Flow


def test_credits_bound_the_frames_in_flight_for_each_tag() -> None:
    def producer(worker: Worker) -> None:
        for tag in (TAG, BACK):
            for number in range(3 if tag == TAG else 2):
                send_frame(worker, (1,), pattern(GRAIN, number), tag)
                worker.report([tag, number])
        send_frame(worker, (1,), pattern(GRAIN, 9))
        worker.report("more")

    def consumer(worker: Worker) -> None:
        worker.receive()
        worker.transport.receive(0, TAG)
        worker.receive()

    with World(producer, consumer, slots={TAG: 3}) as world:
        answers = [world.receive(0) for _ in range(5)]
        assert answers == [[TAG, 0], [TAG, 1], [TAG, 2], [BACK, 0], [BACK, 1]]
        assert world.is_silent(0, 0.3)
        world.notify(1)
        assert world.receive(0) == "more"


def test_a_block_comes_back_after_the_last_derived_view_on_every_replica() -> None:
    def producer(worker: Worker) -> list[int]:
        numbers = []
        for _ in range(4):
            lease = worker.transport.lease((1, 2), TAG, GRAIN)
            numbers.append(lease.state.block.number)
            worker.transport.deliver(lease)
            del lease
            worker.receive()
            worker.poll()
        return numbers

    def consumer(worker: Worker) -> None:
        first = worker.transport.receive(0, TAG).frame
        view, array = first[3:5], first.numpy()[7:]
        del first
        worker.report("took")
        for kept in (view, array, None):
            worker.receive()
            if kept is None:
                box = [view, array]
                del view, array
                thread = threading.Thread(target=box.clear)
                thread.start()
                thread.join()
            worker.transport.receive(0, TAG)
            worker.report("took")

    def plain(worker: Worker) -> None:
        for _ in range(4):
            worker.transport.receive(0, TAG)
            worker.report("took")

    with World(producer, consumer, plain) as world:
        for step in range(4):
            assert world.receive(1) == world.receive(2) == "took"
            world.notify(0)
            if step < 3:
                world.notify(1)
        [numbers] = world.results(0)
    assert numbers[1] != numbers[0] and numbers[2] == numbers[1], (
        "the first block is held, the second came back"
    )


def test_the_garbage_collector_may_run_in_the_middle_of_anything() -> None:
    steps = 80

    class Keeper:
        def __init__(self, frame: Tensor) -> None:
            self.frame, self.me = frame, self

    def producer(worker: Worker) -> bool:
        gc.set_threshold(3, 1, 1)
        for step in range(steps):
            send_frame(worker, (0, 1), pattern(SIZES[step % len(SIZES)], step))
            own = worker.transport.receive(0, TAG).frame
            assert torch.equal(own, pattern(SIZES[step % len(SIZES)], step))
            Keeper(own)
            Keeper(worker.transport.receive(1, BACK).frame)
        worker.transport.close()
        return worker.local.pool.stats().nbytes == 0

    def consumer(worker: Worker) -> bool:
        gc.set_threshold(3, 1, 1)
        for step in range(steps):
            frame = worker.transport.receive(0, TAG).frame
            assert torch.equal(frame, pattern(SIZES[step % len(SIZES)], step))
            Keeper(frame)
            send_frame(worker, (0,), pattern(INLINE_MAX + 1 + step, step), BACK)
        worker.transport.close()
        return True

    with World(producer, consumer) as world:
        assert world.results() == [True, True]


def test_a_peer_that_does_not_read_stops_neither_who_sends_to_it_nor_the_frames_of_others() -> None:
    count = 10_000

    def producer(worker: Worker) -> None:
        for number in range(count):
            send_frame(worker, (1,), torch.tensor([number % 251], dtype=torch.uint8))
        worker.report("sent to 1")
        for number in range(count):
            send_frame(worker, (2,), torch.tensor([number % 251], dtype=torch.uint8))
        send_frame(worker, (2,), pattern(GRAIN, 0), BACK)
        worker.report("sent to 2")
        worker.transport.close()

    def consumer(worker: Worker) -> bool:
        worker.receive()
        for number in range(count):
            assert worker.transport.receive(0, TAG).frame.tolist() == [number % 251]
        worker.report("got all")
        if worker.job_rank == 2:
            assert torch.equal(worker.transport.receive(0, BACK).frame, pattern(GRAIN, 0))
        worker.transport.close()
        return True

    with World(producer, consumer, consumer, slots={TAG: count}) as world:
        assert [world.receive(0), world.receive(0)] == ["sent to 1", "sent to 2"]
        world.notify(2)  # while 1 still reads nothing
        assert world.receive(2) == "got all"
        world.notify(1)
        assert world.receive(1) == "got all"
        world.results()


def test_messages_during_a_backlog_are_not_forgotten() -> None:
    """Views are collected and returned on one thread while another thread sends the rest of a message that
    did not fit into the socket."""
    steps, count = 10, 3000

    def producer(worker: Worker) -> bool:
        for step in range(steps):
            for number in range(count):
                send_frame(worker, (1,), torch.tensor([number % 251], dtype=torch.uint8))
            assert worker.transport.receive(1, BACK).frame.tolist() == [step]
        return True

    def consumer(worker: Worker) -> bool:
        for step in range(steps):
            for number in range(count):
                assert worker.transport.receive(0, TAG).frame.tolist() == [number % 251]
            send_frame(worker, (0,), torch.tensor([step], dtype=torch.uint8), BACK)
        return True

    with World(producer, consumer, slots={TAG: count}) as world:
        assert world.results() == [True, True]


def named_memory() -> set[str]:
    """The named shared memory that this process has mapped or open."""
    maps = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()}
    return {name for name in (*maps, *files_open()) if name.startswith("/dev/shm/")}


def test_nothing_stays_open_and_nothing_has_a_name() -> None:
    def steps(worker: Worker, count: int) -> None:
        for step in range(count):
            nbytes = 1 + step % 50 * 3000 + step * 40
            if worker.job_rank:
                frame = worker.transport.receive(0, TAG).frame
                assert frame[-1] == step % 251
                send_frame(worker, (0,), frame[:1].clone(), BACK)
            else:
                send_frame(worker, (1,), torch.full((nbytes,), step % 251, dtype=torch.uint8))
                worker.transport.receive(1, BACK)

    def work(worker: Worker) -> list[str]:
        fresh, named = files_open(), named_memory()
        steps(worker, 560)
        gc.collect()
        # of both lanes, as many blocks as a slow machine may ever need, ours and those of the other; their
        # sockets, too
        assert (files_open() - fresh).total() <= 4 * (SLOTS + MAX_HELD), files_open()
        assert named_memory() <= named
        worker.transport.close()
        gc.collect()
        return [*(files_open() - fresh).elements()]

    with World(work, work) as world:
        assert world.results() == [[], []]
