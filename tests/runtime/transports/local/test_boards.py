"""Boards: rows and credits that cost no message, and frames whose memory belongs to their slots."""

from __future__ import annotations

import random
import time

import pytest
import torch

from meshctl.runtime.transports.allgather import exchange
from meshctl.runtime.transports.buffers.arena import GRAIN
from meshctl.runtime.transports.context import SLOTS
from meshctl.runtime.transports.local import transport as local_transport
from meshctl.runtime.transports.local.boards import BOARD_BYTES, WORD_BYTES
from meshctl.runtime.transports.local.row_exchange import ROW_MAX, ROWS_WORDS, RowExchange
from tests.runtime.hostile_world import (
    BACK,
    TAG,
    Worker,
    World,
    connected_impostor,
    error_after_polling,
    pattern,
)

pytestmark = pytest.mark.slow
CALLS = 300


def row_of(job_rank: int, call: int) -> bytes:
    """A row whose length differs from call to call, and sometimes does not fit an entry."""
    length = (7 * call + 31 * job_rank) % 200 if call % 11 else ROW_MAX + job_rank
    return bytes([job_rank, call % 256]) * length


@pytest.mark.parametrize("full", [(), (1,), (0, 1, 2)])
def test_every_rank_gets_the_rows_of_all_whoever_is_late(full: tuple[int, ...]) -> None:
    """The ranks in `full` have no place for rows on their boards."""

    def rank(worker: Worker) -> list[int]:
        me = worker.job_rank
        if me in full:
            assert worker.local.boards.take(BOARD_BYTES // WORD_BYTES - ROWS_WORDS)
        gather = exchange(worker.transport, (0, 1, 2), me, BACK)
        assert isinstance(gather, RowExchange)
        pauses = random.Random(me)
        wrong = []
        for call in range(CALLS):
            if pauses.random() < 0.1:
                time.sleep(0.002 * pauses.random())
            if gather(row_of(me, call)) != [row_of(other, call) for other in range(3)]:
                wrong.append(call)
        worker.transport.close()
        return wrong

    with World(rank, rank, rank) as world:
        assert world.results() == [[], [], []]


def test_a_rank_whose_peer_dies_before_its_row_names_it() -> None:
    def rank(worker: Worker) -> str:
        gather = exchange(worker.transport, (0, 1), worker.job_rank, BACK)
        gather(b"row")
        if worker.job_rank:
            worker.report("has taken part")
            worker.receive()
        try:
            gather(b"another")
        except ConnectionError as error:
            return str(error)
        return ""

    with World(rank, rank) as world:
        assert world.receive(1) == "has taken part"
        world.kill(1)
        assert world.results(0) == ["job rank 1 is gone"]


def test_a_row_of_another_step_names_its_rank() -> None:
    def rank(worker: Worker) -> str:
        gather = exchange(worker.transport, (0, 1), worker.job_rank, BACK)
        gather(b"row")
        if worker.job_rank:
            gather._call += 3  # type: ignore[union-attr]  # as if it were three steps ahead
            gather._write(b"later")  # type: ignore[union-attr]
            worker.report("is ahead")
            worker.receive()
            return ""
        worker.receive()
        with pytest.raises(ConnectionError, match="job rank 1 wrote a row of another step"):
            gather(b"another")
        return "named"

    with World(rank, rank) as world:
        assert world.receive(1) == "is ahead"
        world.notify(0)
        assert world.results(0) == ["named"]


def test_credits_after_the_first_one_are_no_messages() -> None:
    frames = 50

    def producer(worker: Worker) -> int:
        messages = 0
        on_credit = worker.transport.on_credit

        def counted(source: int, tag: int, generation: int | None = None) -> None:
            nonlocal messages
            messages += 1
            on_credit(source, tag, generation)

        worker.transport.on_credit = counted  # type: ignore[method-assign]
        for number in range(frames):
            worker.transport.send_inline([1], TAG, bytes([number]))
        worker.transport.close()
        return messages

    def consumer(worker: Worker) -> list[int]:
        found = []
        for number in range(frames):
            if not number % 7:
                time.sleep(0.003)  # the producer waits for a slot
            found.append(worker.transport.next(0, TAG).frame[0])
        worker.transport.close()
        return [int(one) for one in found]

    with World(producer, consumer) as world:
        assert world.results() == [1, list(range(frames))]


@pytest.mark.parametrize("slots", [1, SLOTS, 3])
def test_the_memory_of_a_copied_frame_is_used_again_only_after_the_copy(slots: int) -> None:
    frames = 20

    def producer(worker: Worker) -> int:
        for number in range(frames):
            lease = worker.transport.lease_copied((1,), TAG, GRAIN)
            lease.frame.copy_(pattern(GRAIN, number))
            worker.transport.deliver(lease)
            worker.report(number)
        larger = worker.transport.lease_copied((1,), TAG, 4 * GRAIN)
        larger.frame.copy_(pattern(4 * GRAIN, frames))
        worker.transport.deliver(larger)
        worker.transport.close()
        return worker.local.pool.stats().blocks

    def consumer(worker: Worker) -> list[int]:
        wrong = []
        worker.receive()
        for number in range(frames + 1):
            delivery = worker.transport.next(0, TAG)
            assert delivery.holds_slot and isinstance(delivery.frame, torch.Tensor)
            time.sleep(0.001)
            if not torch.equal(delivery.frame, pattern(len(delivery.frame), number)):
                wrong.append(number)
            worker.transport.return_slot(0, TAG)
        worker.transport.close()
        return wrong

    with World(producer, consumer, slots={TAG: slots}) as world:
        assert [world.receive(0) for _ in range(slots)] == list(range(slots))
        assert world.is_silent(0, 0.2)
        world.notify(1)
        assert [world.receive(0) for _ in range(frames - slots)] == list(range(slots, frames))
        assert world.results() == [0, []]


def test_without_ordered_stores_everything_is_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_transport, "HAS_ORDERED_STORES", False)

    def rank(worker: Worker) -> list[bool]:
        me, other = worker.job_rank, 1 - worker.job_rank
        gather = exchange(worker.transport, (0, 1), me, BACK)
        found = [not isinstance(gather, RowExchange)]
        for call in range(20):
            found.append(gather(row_of(me, call)) == [row_of(0, call), row_of(1, call)])
            worker.transport.send_inline([other], TAG, row_of(me, 1))
            found.append(worker.transport.next(other, TAG).frame == row_of(other, 1))
        found.append(not worker.local.boards.peers)
        worker.transport.close()
        return found

    with World(rank, rank) as world:
        assert all(map(all, world.results()))


@pytest.mark.parametrize(
    ("kind", "block", "size"), [(4, 5, 0), (4, -1, 0), (13, 1, 0), (12, 0, BOARD_BYTES), (12, 0, 64)]
)
def test_a_board_that_is_none_names_the_peer(kind: int, block: int, size: int) -> None:
    with connected_impostor() as (transport, impostor):
        impostor.send_message(kind, TAG, block, size)
        assert error_after_polling(transport).startswith("job rank 1 sent bytes that are not a message")
