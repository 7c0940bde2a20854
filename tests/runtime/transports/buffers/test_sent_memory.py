"""Writes into memory that consumers read in place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch import Tensor

from meshctl.runtime.transports.buffers.arena import GRAIN, Arena, Block
from meshctl.runtime.transports.buffers.sent_memory import SentMemory
from meshctl.runtime.transports.errors import SentMemoryWritten
from tests.runtime.hostile_world import TAG, Worker, World

HALF = GRAIN // 2


@pytest.fixture
def block() -> Iterator[Block]:
    arena = Arena()
    yield arena.take("use", GRAIN, [0])
    arena.close()


def numbers(block: Block) -> Tensor:
    return block.memory.view(0, GRAIN)


@pytest.mark.parametrize("has_digests", [False, True])
def test_memory_that_is_filled_again_and_sent_again_is_refused(block: Block, has_digests: bool) -> None:
    sent = SentMemory(has_digests=has_digests)
    numbers(block).fill_(1)
    sent.add(block, 0, GRAIN)
    sent.add(block, 0, GRAIN)
    sent.compare()
    numbers(block).numpy()[:] = 2
    with pytest.raises(SentMemoryWritten, match=r"call `self.alloc` for every value"):
        sent.add(block, HALF, GRAIN)


@pytest.mark.parametrize("has_digests", [False, True])
def test_other_bytes_of_a_block_may_be_written(block: Block, has_digests: bool) -> None:
    sent = SentMemory(has_digests=has_digests)
    sent.add(block, 0, HALF)
    numbers(block)[HALF:] = 1
    sent.add(block, HALF, GRAIN)
    sent.add(block, 0, HALF)
    sent.add(block, 0, GRAIN)
    sent.compare()


@pytest.mark.parametrize("has_digests", [False, True])
def test_memory_that_is_allocated_again_may_be_written(block: Block, has_digests: bool) -> None:
    sent = SentMemory(has_digests=has_digests)
    sent.add(block, 0, GRAIN)
    sent.forget(block)
    numbers(block).fill_(1)
    sent.compare()
    sent.add(block, 0, GRAIN)


def test_with_digests_every_send_finds_any_write(block: Block) -> None:
    sent = SentMemory(has_digests=True)
    sent.add(block, 0, GRAIN)
    numbers(block)[1000] += 1
    with pytest.raises(SentMemoryWritten):
        sent.compare()


@pytest.mark.parametrize("nbytes", [1, 31, 33, 100])
def test_small_ranges_are_compared_whole(block: Block, nbytes: int) -> None:
    sent = SentMemory(has_digests=False)
    sent.add(block, 64, 64 + nbytes)
    numbers(block)[64 + nbytes - 1] += 1
    with pytest.raises(SentMemoryWritten):
        sent.add(block, 64, 64 + nbytes)


@pytest.mark.slow
def test_a_producer_that_reuses_its_memory_is_refused_and_one_that_allocates_is_not() -> None:
    def producer(worker: Worker) -> list[str]:
        found = []
        for reuses in (False, True):
            memory = worker.transport.alloc(GRAIN)
            for step in range(3):
                if not reuses:
                    memory = worker.transport.alloc(GRAIN)
                memory.fill_(step)
                try:
                    frame = worker.transport.frame((1,), memory, is_final=True)
                    worker.transport.send((1,), TAG, frame)
                except SentMemoryWritten:
                    found.append(f"refused in step {step}")
                    break
        return found

    def consumer(worker: Worker) -> list[int]:
        return [int(worker.transport.receive_value(0, TAG).max()) for _ in range(3)]

    with World(producer, consumer) as world:
        assert world.results() == [["refused in step 1"], [0, 1, 2]]
