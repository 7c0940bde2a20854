"""Frames between real processes, over each transport: bytes, order, slots and memory."""

from __future__ import annotations

import gc
import signal
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from meshctl.runtime.transports.buffers import buffer_pool
from meshctl.runtime.transports.buffers.arena import GRAIN
from meshctl.runtime.transports.buffers.buffer_pool import INLINE_MAX, MAX_HELD
from meshctl.runtime.transports.buffers.caching_allocator import UNCACHED_MAX, CachingAllocator
from meshctl.runtime.transports.buffers.frames import Frame, tensor_of, unpack
from meshctl.runtime.transports.context import SLOTS
from meshctl.runtime.transports.errors import BuffersHeld
from meshctl.runtime.transports.tcp import connection
from tests.runtime.hostile_world import (
    BACK,
    KINDS,
    SIZES,
    TAG,
    Worker,
    World,
    files_open,
    pattern,
    send_frame,
)

pytestmark = pytest.mark.slow
both = pytest.mark.parametrize("kind", KINDS)


@both
def test_frames_of_all_sizes_come_as_they_were_and_stay_so_while_they_are_kept(kind: str) -> None:
    steps = len(SIZES) * 3

    def producer(worker: Worker) -> bool:
        for step in range(steps):
            for to in [(1, 2)] if kind == "local" else [(1,), (2,)]:
                send_frame(worker, to, pattern(SIZES[step % len(SIZES)], step))
        worker.transport.close()
        return kind == "tcp" or not worker.way.pool.arena.blocks

    def consumer(worker: Worker) -> bool:
        kept: deque[tuple[int, Tensor]] = deque(maxlen=3)
        for step in range(steps):
            kept.append((step, tensor_of(worker.transport.receive(0, TAG).frame)))
            assert all(
                torch.equal(frame, pattern(SIZES[number % len(SIZES)], number)) for number, frame in kept
            )
        kept.clear()
        worker.transport.close()
        return True

    with World(producer, consumer, consumer, kind=kind) as world:
        assert world.results() == [True] * 3


@both
def test_large_and_small_frames_of_tensors_come_in_order_and_tensors_may_change_afterwards(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the network is slow: what the socket has not taken is a copy."""
    monkeypatch.setattr(connection, "GRACE_S", 0.0)
    monkeypatch.setattr(connection, "LEAST_BYTES_PER_S", 1e15)
    large = torch.arange(1 << 20)

    def producer(worker: Worker) -> bool:
        for number in range(4):
            tensor = large + number
            worker.transport.send(1, TAG, Frame([number, tensor]))
            tensor.fill_(-1)
            worker.transport.send(1, TAG, Frame([number, large[:number].view(-1, 1)]))
        worker.transport.close()
        return True

    def consumer(worker: Worker) -> bool:
        for number in range(4):
            found, tensor = worker.transport.receive_value(0, TAG)
            assert found == number and torch.equal(tensor, large + number)
            found, tensor = worker.transport.receive_value(0, TAG)
            assert found == number and tensor.shape == (number, 1)
        worker.transport.close()
        return True

    with World(producer, consumer, kind=kind) as world:
        assert world.results() == [True, True]


@both
def test_credits_bound_the_frames_in_flight_for_each_tag(kind: str) -> None:
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

    with World(producer, consumer, slots={TAG: 3}, kind=kind) as world:
        answers = [world.receive(0) for _ in range(5)]
        assert answers == [[TAG, 0], [TAG, 1], [TAG, 2], [BACK, 0], [BACK, 1]]
        assert world.is_silent(0, 0.3)
        world.notify(1)
        assert world.receive(0) == "more"


@both
def test_a_peer_that_does_not_read_stops_neither_who_sends_to_it_nor_the_frames_of_others(kind: str) -> None:
    count = 5_000

    def producer(worker: Worker) -> None:
        for to in (1, 2):
            for number in range(count):
                send_frame(worker, (to,), torch.tensor([number % 251], dtype=torch.uint8))
            send_frame(worker, (to,), pattern(GRAIN, 0), BACK)
            worker.report(f"sent to {to}")
        worker.transport.close()

    def consumer(worker: Worker) -> bool:
        worker.receive()
        for number in range(count):
            assert tensor_of(worker.transport.receive(0, TAG).frame).tolist() == [number % 251]
        assert torch.equal(tensor_of(worker.transport.receive(0, BACK).frame), pattern(GRAIN, 0))
        worker.report("got all")
        worker.transport.close()
        return True

    with World(producer, consumer, consumer, slots={TAG: count}, kind=kind) as world:
        assert [world.receive(0), world.receive(0)] == ["sent to 1", "sent to 2"]
        world.notify(2)  # while 1 still reads nothing
        assert world.receive(2) == "got all"
        world.notify(1)
        assert world.receive(1) == "got all"
        world.results()


def test_messages_during_a_backlog_are_not_forgotten() -> None:
    """Views are collected and returned on one thread while another thread sends the rest of a message that
    did not fit into the socket."""
    steps, count = 5, 3000

    def producer(worker: Worker) -> bool:
        for step in range(steps):
            for number in range(count):
                send_frame(worker, (1,), torch.tensor([number % 251], dtype=torch.uint8))
            assert tensor_of(worker.transport.receive(1, BACK).frame).tolist() == [step]
        return True

    def consumer(worker: Worker) -> bool:
        for step in range(steps):
            for number in range(count):
                assert tensor_of(worker.transport.receive(0, TAG).frame).tolist() == [number % 251]
            send_frame(worker, (0,), torch.tensor([step], dtype=torch.uint8), BACK)
        return True

    with World(producer, consumer, slots={TAG: count}) as world:
        assert world.results() == [True, True]


def test_the_garbage_collector_may_run_in_the_middle_of_anything() -> None:
    steps = 80

    class Keeper:
        def __init__(self, frame: Tensor) -> None:
            self.frame, self.me = frame, self

    def producer(worker: Worker) -> bool:
        gc.set_threshold(3, 1, 1)
        for step in range(steps):
            send_frame(worker, (0, 1), pattern(SIZES[step % len(SIZES)], step))
            own = tensor_of(worker.transport.receive(0, TAG).frame)
            assert torch.equal(own, pattern(SIZES[step % len(SIZES)], step))
            Keeper(own)
            Keeper(tensor_of(worker.transport.receive(1, BACK).frame))
        worker.transport.close()
        return not worker.way.pool.arena.blocks

    def consumer(worker: Worker) -> bool:
        gc.set_threshold(3, 1, 1)
        for step in range(steps):
            frame = tensor_of(worker.transport.receive(0, TAG).frame)
            assert torch.equal(frame, pattern(SIZES[step % len(SIZES)], step))
            Keeper(frame)
            send_frame(worker, (0,), pattern(INLINE_MAX + 1 + step, step), BACK)
        worker.transport.close()
        return True

    with World(producer, consumer) as world:
        assert world.results() == [True, True]


@both
def test_nothing_stays_open_and_nothing_has_a_name(kind: str) -> None:
    def left() -> list[str]:
        gc.collect()
        maps = [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
        threads = [one.name for one in threading.enumerate() if one.name.startswith("tcp-")]
        return [*threads, *files_open().elements(), *{name for name in maps if name.startswith("/dev/shm/")}]

    def work(worker: Worker) -> list[int]:
        fresh, count = files_open().total(), 200
        for step in range(count):
            nbytes = 1 + step % 50 * 3000 + step * 40
            if worker.job_rank:
                frame = tensor_of(worker.transport.receive(0, TAG).frame)
                assert frame[-1] == step % 251
                send_frame(worker, (0,), frame[:1].clone(), BACK)
                del frame
            else:
                send_frame(worker, (1,), torch.full((nbytes,), step % 251, dtype=torch.uint8))
                worker.transport.receive(1, BACK)
        grown = files_open().total() - fresh
        worker.transport.close()
        return [grown, files_open().total() - fresh, len(left()) - files_open().total()]

    with World(work, work, kind=kind) as world:
        for grown, after, named in world.results():
            # the blocks of both tags that a slow machine may ever need, of both ends, and their sockets
            assert grown <= 4 * (SLOTS + MAX_HELD) and after <= 0 and named == 0


# Shared memory


@pytest.mark.parametrize("nbytes", [INLINE_MAX + 1, GRAIN])
def test_a_write_into_a_frame_that_was_received_ends_the_writer_and_no_other(nbytes: int) -> None:
    def producer(worker: Worker) -> None:
        send_frame(worker, (1, 2), pattern(nbytes, 0))
        worker.receive()

    def vandal(worker: Worker) -> None:
        frame = tensor_of(worker.transport.receive(0, TAG).frame)
        worker.report("reads")
        frame[len(frame) // 2] = 1

    def reader(worker: Worker) -> bool:
        frame = tensor_of(worker.transport.receive(0, TAG).frame)
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

    def producer(worker: Worker) -> list[object]:
        try:
            for step in range(100):
                send_frame(worker, (1,), pattern(GRAIN, step))
        except BuffersHeld as held:
            return [str(held), len(worker.way.pool.arena.blocks) <= SLOTS + MAX_HELD + 1]
        return []

    def keeper(worker: Worker) -> None:
        kept = []
        while True:
            kept.append(tensor_of(worker.transport.receive(0, TAG).frame))

    with World(producer, keeper) as world:
        named = f"job rank 1 still holds {SLOTS + MAX_HELD} of the frames that were leased to it"
        assert world.results(0) == [[named, True]]


def test_several_write_one_frame_also_where_a_writer_is_one_of_those_who_get_it() -> None:
    nbytes, part, steps = 3 * GRAIN, GRAIN, 20
    consumers = (1, 2, 3)  # 1 writes, too

    def leader(worker: Worker) -> bool:
        for step in range(steps):
            empty = Frame(torch.empty(nbytes, dtype=torch.uint8, device="meta"))
            lease = worker.transport.lay_out(consumers, TAG, empty, (1, 4), BACK)
            unpack(lease.frame)[:part] = pattern(part, step)
            worker.transport.deliver(lease)
        return True

    def writer(index: int) -> Callable[[Worker], bool]:
        def work(worker: Worker) -> bool:
            for step in range(steps):
                frame = worker.transport.receive_value(0, BACK)
                frame[index * part : (index + 1) * part] = pattern(part, step + index)
                for job_rank in consumers:
                    send_frame(worker, (job_rank,), torch.zeros(1, dtype=torch.uint8), TAG + 2 + index)
                assert worker.job_rank not in consumers or is_right(worker, step)
            return True

        return work

    def is_right(worker: Worker, step: int) -> bool:
        frame = worker.transport.receive_value(0, TAG)
        for job_rank, index in ((1, 1), (4, 2)):
            worker.transport.receive(job_rank, TAG + 2 + index)
        return torch.equal(frame, torch.cat([pattern(part, step + index) for index in range(3)]))

    def consumer(worker: Worker) -> bool:
        return all(is_right(worker, step) for step in range(steps))

    with World(leader, writer(1), consumer, consumer, writer(2)) as world:
        assert world.results() == [True] * 5


def test_host_memory_is_used_again_when_its_last_view_has_died() -> None:
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
