"""Memory of `alloc` between real processes of one node, which consumers read in place, without a copy."""

from __future__ import annotations

import gc
import os
import resource
from collections import deque
from contextlib import suppress

import pytest
import torch
from torch import Tensor

from meshctl.runtime.batch.batch import Batch, Ragged
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import RouteContext, RouteSide
from meshctl.runtime.transports.buffers.arena import GRAIN, ArenaError
from meshctl.runtime.transports.buffers.buffer_pool import INLINE_MAX, MAX_HELD
from meshctl.runtime.transports.buffers.frames import MAX_OUT_OF_BAND, FrameError
from meshctl.runtime.transports.context import SLOTS
from meshctl.runtime.transports.errors import BuffersHeld, OutOfMemory, PeerLost
from meshctl.runtime.transports.local.transport import LocalTransport
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Route
from tests.runtime.hostile_world import BACK, TAG, Worker, World, connected_impostor, pattern

pytestmark = pytest.mark.slow


def made(worker: Worker, rows: int, seed: int) -> Batch:
    """Returns a batch with ids from 100: two columns in memory of `alloc`, one of them ragged, and one in
    other memory."""
    x = worker.transport.alloc(rows * 4096).view(rows, 4096)
    x.copy_(pattern(rows * 4096, seed).view(rows, 4096))
    values = worker.transport.alloc(rows * 8192).view(torch.int64)
    values.copy_(torch.arange(len(values)) + seed)
    tokens = Ragged(values, torch.arange(rows + 1) * 1024)
    return Batch(
        {"x": x, "tokens": tokens, "y": torch.arange(rows) + seed}, ids=torch.arange(100, 100 + rows)
    )


def is_made(batch: Batch, first: int, seed: int, rows: int) -> bool:
    """Whether a batch has the rows of `made` from row `first` on."""
    count = len(batch)
    x = pattern(rows * 4096, seed).view(rows, 4096)[first : first + count]
    values = torch.arange(first * 1024, (first + count) * 1024) + seed
    tokens = batch["tokens"]
    assert (
        torch.equal(batch["x"], x)
        and torch.equal(tokens.values, values)
        and torch.equal(tokens.lengths, torch.full((count,), 1024))
    )
    return batch["y"].tolist() == [*range(first + seed, first + seed + count)]


@pytest.mark.parametrize("replicas", [1, 2])
def test_what_was_made_where_it_is_read_is_not_copied(replicas: int) -> None:
    rows, steps, job_size = 32, 40, 1 + 2 * replicas

    def channel_to(worker: Worker) -> Channel:
        consumer = RouteSide(DeviceMesh.from_sizes(dp_size=2, tp_size=replicas), 1)
        producer, route = RouteSide(DeviceMesh.from_sizes(), 0), Route("a -> b", "a", "b")
        return Channel(RouteContext(route, producer, consumer, worker.transport))

    def producer(worker: Worker) -> list[int]:
        channel, blocks = channel_to(worker), 0
        for step in range(steps):
            batch = made(worker, rows, step)
            channel.send(batch, step, rows)
            blocks = max(blocks, worker.local.pool.stats().blocks)
        worker.transport.close()
        return [blocks, len(worker.local.pool.registered), worker.local.pool.stats().nbytes]

    def consumer(worker: Worker) -> bool:
        channel, rank = channel_to(worker), worker.job_rank - 1
        for step in range(steps):
            batch = channel.receive(step).value
            assert len(batch) == rows // 2 and is_made(batch, rank // replicas * rows // 2, step, rows)
        worker.transport.close()
        return True

    with World(producer, *[consumer] * (job_size - 1)) as world:
        blocks, registered, left = world.results()[0]
    assert 4 <= blocks <= 2 * (SLOTS + 2 + MAX_HELD) and registered == left == 0


@pytest.mark.parametrize(
    ("replicas", "width", "alone", "mapped"),
    [(1, 1024, 4, True), (2, 1024, 4, True), (1, 1000, 4, False), (1, 1024, 1, False)],
)
def test_what_several_made_where_it_is_read_is_mapped_one_after_another(
    replicas: int, width: int, alone: int, mapped: bool
) -> None:
    """Rows of 4 KiB end at a page boundary, those of 4,000 bytes do not. The producer `alone` uses its own
    memory."""
    rows, steps, producers = 24, 40, 4

    def channel_to(worker: Worker) -> Channel:
        producer = DeviceMesh.from_sizes(dp_size=producers)
        consumer = DeviceMesh.from_sizes(dp_size=2, tp_size=replicas)
        route = Route("a -> b", "a", "b")
        sides = RouteSide(producer, 0), RouteSide(consumer, producers)
        return Channel(RouteContext(route, *sides, worker.transport))

    def whole(step: int) -> Tensor:
        return (torch.arange(producers * rows * width) + step).view(-1, width).float()

    def producer(worker: Worker) -> list[int]:
        channel, blocks, own = (
            channel_to(worker),
            0,
            slice(worker.job_rank * rows, (worker.job_rank + 1) * rows),
        )
        for step in range(steps):
            x = (
                torch.empty(rows, width)
                if worker.job_rank == alone
                else worker.transport.alloc(rows * width * 4).view(torch.float32)
            )
            y = torch.arange(producers * rows)[own] + step
            batch = Batch(
                {"x": x.view(rows, width).copy_(whole(step)[own]), "y": y},
                ids=torch.arange(producers * rows)[own],
            )
            channel.send(batch, step, rows)
            blocks = max(blocks, worker.local.pool.stats().blocks)
        del batch, x
        worker.transport.close()
        return [blocks, worker.local.pool.stats().nbytes]

    def consumer(worker: Worker) -> list[bool]:
        channel, rank, kept = (
            channel_to(worker),
            worker.job_rank - producers,
            deque[tuple[int, Batch]](maxlen=2),
        )
        mine = slice(rank // replicas * 2 * rows, (rank // replicas + 1) * 2 * rows)
        for step in range(steps):
            kept.append((step, channel.receive(step).value))
            for number, batch in kept:
                assert torch.equal(batch["x"], whole(number)[mine])
                assert torch.equal(batch["y"], torch.arange(producers * rows)[mine] + number)
        held = batch["x"].data_ptr() in worker.local.mapped_concat.addresses
        kept.clear()
        del batch
        worker.transport.close()
        return [held, not worker.local.mapped_concat.addresses]

    with World(*[producer] * producers, *[consumer] * (2 * replicas)) as world:
        returned = world.results()
    assert all(left == 0 and blocks <= 2 * (SLOTS + 3 + MAX_HELD) for blocks, left in returned[:producers])
    first = alone // 2  # consumer 0 receives the rows of producers 0 and 1
    assert returned[producers:] == [
        [mapped or (alone < producers and rank // replicas != first), True] for rank in range(2 * replicas)
    ]


def test_rooms_that_came_in_one_message_go_back_each_after_its_last_view() -> None:
    def producer(worker: Worker) -> list[int]:
        registered = [worker.transport.alloc(GRAIN).fill_(number) for number in range(3)]
        worker.transport.send((1,), TAG, worker.transport.frame((1,), registered, is_final=True))
        blocks = [*worker.local.pool.registered.values()]
        del registered
        held = []
        for _ in range(3):
            worker.receive()
            worker.poll()
            worker.local.pool.arena.stats()
            held.append(sum(bool(block.holders) for block in blocks))
            worker.report("looked")
        return held

    def consumer(worker: Worker) -> None:
        came = worker.transport.receive_value(0, TAG)
        for left in (3, 1, 0):
            del came[left:]
            worker.report(f"{left} left")
            worker.receive()

    with World(producer, consumer) as world:
        for left in (3, 1, 0):
            assert world.receive(1) == f"{left} left"
            world.notify(0)
            assert world.receive(0) == "looked"
            world.notify(1)
        assert world.results(0) == [[3, 1, 0]]


def test_a_strip_goes_with_the_block_that_a_larger_one_replaces() -> None:
    def producer(worker: Worker) -> None:
        for nbytes in (GRAIN, 2 * GRAIN):
            worker.transport.send(
                (2,),
                TAG,
                worker.transport.frame((2,), worker.transport.alloc(nbytes).fill_(7), is_final=True),
            )
            worker.receive()
            worker.poll()
            for block in [*worker.local.pool.registered.values()]:
                worker.local.pool.arena.discard(block)
            worker.report("discarded")

    def consumer(worker: Worker) -> list[int]:
        counts = []
        for _ in range(2):
            joined = worker.transport.concat(
                [worker.transport.receive_value(0, TAG), worker.transport.receive_value(1, TAG)]
            )
            assert (joined == 7).all()
            counts.append(len(worker.local.mapped_concat.addresses))
            del joined
            worker.report("read")
            worker.receive()
            worker.poll()
            counts.append(len(worker.local.mapped_concat.addresses))
        return counts

    with World(producer, producer, consumer) as world:
        for _ in range(2):
            assert world.receive(2) == "read"
            for job_rank in (0, 1):
                world.notify(job_rank)
                assert world.receive(job_rank) == "discarded"
            world.notify(2)
        assert world.results(2) == [[1, 0, 1, 0]]


def test_one_who_keeps_what_was_not_copied_is_named_and_may_keep_a_copy() -> None:
    def producer(worker: Worker) -> str:
        try:
            for step in range(100):
                room = worker.transport.alloc(GRAIN)
                room.fill_(step)
                worker.transport.send(
                    (1,),
                    TAG,
                    worker.transport.frame((1,), room[step : step + 2 * INLINE_MAX], is_final=True),
                )
        except BuffersHeld as held:
            return str(held)
        return ""

    def consumer(worker: Worker) -> int:
        kept = []
        with suppress(PeerLost):
            for _ in range(100):
                kept.append(worker.transport.receive_value(0, TAG))
                assert all(
                    bool((room == number).all()) and len(room) == 2 * INLINE_MAX
                    for number, room in enumerate(kept)
                )
        return len(kept)

    with World(producer, consumer) as world:
        [returned] = world.results(0)
        world.kill(0)
        assert returned == f"job rank 1 still holds {SLOTS + MAX_HELD} of the frames that were leased to it"
        assert world.results(1) == [SLOTS + MAX_HELD]


def test_a_peer_that_holds_buffers_on_one_tag_may_get_more_on_others() -> None:
    """One tensor and others that are not sent, while the consumer is busy. The producer itself is one of the
    consumers."""
    tags = range(TAG, TAG + 8)

    def producer(worker: Worker) -> bool:
        registered = [worker.transport.alloc(GRAIN).fill_(number) for number in range(SLOTS + MAX_HELD + 4)]
        for tag in tags:
            for _ in range(SLOTS):
                worker.transport.send(
                    (0, 1), tag, worker.transport.frame((0, 1), registered[0], is_final=True)
                )
        worker.report("sent")
        for tag in tags:
            for _ in range(SLOTS):
                assert not worker.transport.receive_value(0, tag).any()
        worker.transport.close()
        return True

    def consumer(worker: Worker) -> bool:
        worker.receive()
        for tag in tags:
            for _ in range(SLOTS):
                assert not worker.transport.receive_value(0, tag).any()
        worker.transport.close()
        return True

    with World(producer, consumer) as world:
        assert world.receive(0) == "sent"
        world.notify(1)
        assert world.results() == [True, True]


def test_writable_and_unknown_memory_is_copied() -> None:
    with connected_impostor() as (transport, _):
        room = transport.alloc(GRAIN)
        numbers = room.view(torch.complex64)
        shown = {
            "kept": room,
            "conjugate": numbers.conj(),
            "negative": numbers.conj().imag,
            "strided": room[::2],
            "small": room[:INLINE_MAX],
        }
        assert not transport.frame((1,), room).out_of_band
        assert [tensor.nbytes for tensor in transport.frame((1,), shown, is_final=True).out_of_band] == [
            GRAIN
        ]
        rows = [room[number : number + INLINE_MAX + 1] for number in range(MAX_OUT_OF_BAND + 10)]
        assert len(transport.frame((1,), rows, is_final=True).out_of_band) == MAX_OUT_OF_BAND
        with pytest.raises(FrameError, match="sparse"):
            transport.frame((1,), torch.zeros(3, 3).to_sparse(), is_final=True)


def test_memory_that_cannot_be_shared_is_memory_all_the_same() -> None:
    with connected_impostor() as (transport, _):
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        registered = [transport.alloc(GRAIN) for _ in range(8)]
        assert len(os.listdir("/proc/self/fd")) - before == 8, "one descriptor for each"
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            registered += [transport.alloc(GRAIN).fill_(1) for _ in range(8)]
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert len(transport.frame((1,), registered, is_final=True).out_of_band) == 8


def test_no_memory_for_a_frame_is_an_error_that_names_its_route(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(nbytes: int) -> None:
        raise ArenaError(f"memory of {nbytes} bytes: Cannot allocate memory")

    with connected_impostor(route_of=lambda tag: {TAG: "a -> b"}[tag]) as (transport, _):
        local = transport.transport_to(1)
        assert isinstance(local, LocalTransport)
        monkeypatch.setattr(local.pool.arena, "make", refuse)
        with pytest.raises(
            OutOfMemory,
            match=r"^cannot get 70,000 bytes for `a -> b`: memory of 131072 bytes: Cannot allocate memory$",
        ):
            transport.lease((1,), TAG, 70_000)


def test_a_forked_child_neither_writes_to_our_memory_nor_sends_in_our_name() -> None:
    def producer(worker: Worker) -> list[int]:
        room = worker.transport.alloc(GRAIN).fill_(9)
        worker.transport.send((1,), TAG, worker.transport.frame((1,), room, is_final=True))
        del room
        if not (child := os.fork()):
            worker.transport.alloc(GRAIN).fill_(77)
            os._exit(0)
        os.waitpid(child, 0)
        worker.receive()
        worker.poll()
        fresh = worker.transport.alloc(GRAIN).fill_(33)
        worker.report("made")
        worker.receive()
        return [int(fresh[0])]

    def consumer(worker: Worker) -> list[int]:
        came = worker.transport.receive_value(0, TAG)
        if not (child := os.fork()):
            del came
            gc.collect()
            os._exit(0)
        os.waitpid(child, 0)
        worker.report("took")
        worker.receive()
        return [int(came.min()), int(came.max())]

    with World(producer, consumer) as world:
        assert world.receive(1) == "took"
        world.notify(0)
        assert world.receive(0) == "made"
        world.notify(1)
        assert world.results(1) == [[9, 9]]
        world.notify(0)
        assert world.results(0) == [[33]]


def test_memory_that_two_transports_send_is_free_when_both_have_released_it() -> None:
    def producer(worker: Worker) -> list[int]:
        room = worker.transport.alloc(GRAIN)
        room.fill_(7)
        for tag in (TAG, BACK):
            worker.transport.send((0, 1), tag, worker.transport.frame((0, 1), room, is_final=True))
        own = [worker.transport.receive_value(0, tag) for tag in (TAG, BACK)]
        assert all(torch.equal(tensor, room) for tensor in own)
        [block] = worker.local.pool.registered.values()
        held = []
        for drop in (
            lambda: own.pop(),
            lambda: own.pop(),
            lambda: worker.report("dropped"),
            lambda: worker.report("dropped"),
        ):
            drop()
            worker.receive()
            worker.poll()
            worker.local.pool.arena.stats()
            held.append(sum(block.holders.values()))
        del room
        worker.local.pool.arena.stats()
        return [
            *held,
            sum(block.holders.values()),
            worker.transport.alloc(GRAIN).data_ptr() == block.memory.address,
        ]

    def consumer(worker: Worker) -> None:
        kept = [worker.transport.receive_value(0, tag) for tag in (TAG, BACK)]
        assert all(tensor.tolist() == [7] * GRAIN for tensor in kept)
        worker.report("took")
        for _ in range(2):
            worker.receive()
            kept.pop()
            worker.report("dropped")

    with World(producer, consumer) as world:
        assert world.receive(1) == "took"
        for _ in range(2):
            world.notify(0)
        for _ in range(2):
            assert world.receive(0) == "dropped"
            world.notify(1)
            assert world.receive(1) == "dropped"
            world.notify(0)
        assert world.results(0) == [[4, 3, 2, 1, 0, True]]
