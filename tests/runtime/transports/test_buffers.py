"""Memory of a node's workers: blocks are reused and never leased twice at once, views keep them alive, what
several producers made is mapped one after another, and a write into sent memory is found."""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import os
import resource
import signal
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshctl.runtime.batch.batch import Batch
from meshctl.runtime.routes.channel import Channel
from meshctl.runtime.routes.end import RouteContext, RouteSide
from meshctl.runtime.transports.buffers import mapped_concat
from meshctl.runtime.transports.buffers.arena import GRAIN, Arena, ArenaError, Block, Mapped, Sealed
from meshctl.runtime.transports.buffers.buffer_pool import INLINE_MAX, MAX_HELD, SentMemory
from meshctl.runtime.transports.buffers.frames import FrameError
from meshctl.runtime.transports.buffers.mapped_concat import MAX_TIMES_MAPPED, PAGE, MappedConcat
from meshctl.runtime.transports.buffers.memcpy import (
    PIECE_BYTES,
    copy,
    move,
)
from meshctl.runtime.transports.context import SLOTS
from meshctl.runtime.transports.errors import BuffersHeld, OutOfMemory, PeerLost, SentMemoryWritten
from meshctl.runtime.transports.local.transport import LocalTransport
from meshctl.topology.mesh import DeviceMesh
from meshctl.topology.modes import Route
from tests.examples import examples
from tests.runtime.hostile_world import TAG, Worker, World, connected_impostor

MAPPED_MIN_BYTES = 1 << 16
"""Smallest concatenation that is mapped in these tests, so that small tensors are enough."""


@pytest.fixture(autouse=True)
def maps_small_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mapped_concat, "MIN_BYTES", MAPPED_MIN_BYTES)


# Blocks


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena()
    yield made
    made.close()


def test_a_block_is_free_when_all_holders_have_released_it_once(arena: Arena) -> None:
    block = arena.take("use", 10, {1, 2})
    for holder in (1, 1, 7):  # the second time, and a place that it was never lent to, count for nothing
        arena.give_back(block.number, holder)
    arena.give_back(999, 1)
    assert arena.take("use", 10, {1}) is not block
    arena.give_back(block.number, 2)
    assert arena.take("other use", 10, {1}) is not block
    assert arena.take("use", 10, {1}) is block


def test_a_block_that_is_too_small_is_dropped_and_what_shows_it_stays() -> None:
    dropped: list[Block] = []
    arena = Arena(dropped.append)
    small = arena.take("use", 10, {1})
    view = small.memory.view(0, 10)
    view.fill_(3)
    arena.give_back(small.number, 1)
    large = arena.take("use", 3 * GRAIN, {1})
    assert dropped == [small] and large.nbytes >= 3 * GRAIN and [*arena.blocks.values()] == [large]
    arena.give_back(large.number, 1)
    assert arena.take("use", 10, {1}) is large  # what grew serves small frames as well
    number = small.number
    del small
    dropped.clear()
    gc.collect()
    arena.give_back(number, 1)
    assert view.tolist() == [3] * 10
    arena.close()


@settings(max_examples=examples(50, 200))
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"),
            st.integers(1, 3 * GRAIN),
            st.sets(st.integers(0, 3), min_size=1),
            st.integers(0, 9),
        )
    )
)
def test_no_block_is_leased_twice_at_once(steps: list[tuple[str, int, set[int], int]]) -> None:
    dropped: set[int] = set()
    arena = Arena(lambda block: dropped.add(block.number))
    held: list[tuple[Block, set[int]]] = []
    for use, nbytes, holders, returned in steps:
        block = arena.take(use, nbytes, holders)
        assert block.nbytes >= nbytes and block.use == use and block.number not in dropped
        assert block.number not in {other.number for other, _ in held}
        held.append((block, set(holders)))
        for _ in range(min(returned, len(held))):
            other, left = held[returned % len(held)]
            arena.give_back(other.number, left.pop())
            held = [(block, left) for block, left in held if left]
    arena.close()


def derived(view: torch.Tensor) -> dict[str, Any]:
    return {
        "slice": view[3:5],
        "reshaped": view[:64].view(8, 8)[2:, 1],
        "dtype": view[:64].view(torch.int64),
        "numpy": view.numpy()[1:],
        "detached": view.detach(),
        "storage": view.untyped_storage(),
        "memoryview": memoryview(view.numpy()),
    }


@pytest.mark.parametrize("kind", derived(torch.zeros(64, dtype=torch.uint8)))
def test_the_end_of_a_view_is_that_of_the_last_thing_derived_from_it(arena: Arena, kind: str) -> None:
    ended: list[int] = []
    view = arena.take("use", 100, {1}).memory.view(0, 100, lambda: ended.append(1))
    kept = derived(view)[kind]
    del view
    gc.collect()
    assert not ended
    del kept
    gc.collect()
    assert ended == [1]


def sealed(size: int, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL) -> int:
    file = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def test_memory_that_could_shrink_or_is_none_is_refused(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    plain = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(plain, GRAIN)
    open_ended = [sealed(GRAIN, seals) for seals in (0, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SHRINK)]
    for file in (*open_ended, reading, writing, plain, os.open("/", os.O_RDONLY)):
        with pytest.raises(ArenaError):
            Mapped(file, GRAIN, write=False)
        os.close(file)


def test_who_reads_maps_read_only_and_sees_what_is_written(arena: Arena) -> None:
    block = arena.take("use", 100, {1})
    read = Mapped(block.file, block.nbytes, write=False)
    [line] = [
        line
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.startswith(f"{read.address:x}-")
    ]
    assert line.split()[1] == "r--s"
    block.memory.view(0, 100).fill_(9)
    assert read.view(0, 100).tolist() == [9] * 100


# Copies


DTYPES = [torch.uint8, torch.bool, torch.bfloat16, torch.float32, torch.int64, torch.complex64]


@settings(max_examples=examples(50, 200), deadline=None)
@given(
    st.lists(st.integers(0, 4), max_size=3),
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES[3:5]),
    st.booleans(),
    st.sampled_from(["plain", "turned", "conjugate"]),
)
def test_the_result_is_that_of_copy(
    shape: list[int], dtype: torch.dtype, other: torch.dtype, alike: bool, form: str
) -> None:
    tensor = torch.randint(0, 2, shape).to(dtype)
    if form == "turned":
        tensor = tensor.transpose(0, -1).contiguous().transpose(0, -1) if tensor.ndim else tensor
    elif form == "conjugate" and dtype.is_complex:
        tensor = (tensor * 1j).conj()
    into = torch.full(shape, 1).to(dtype if alike or dtype.is_complex else other)
    expected = into.clone().copy_(tensor)
    copy(into, tensor)
    assert torch.equal(into, expected)


@pytest.mark.parametrize("nbytes", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES + 7])
def test_all_pieces_of_a_copy_are_moved_and_no_byte_beyond(nbytes: int) -> None:
    source = torch.randint(1, 255, (3 * PIECE_BYTES,), dtype=torch.uint8)
    into = torch.zeros_like(source)
    move(into.data_ptr() + 1, source.data_ptr() + 2, nbytes)
    assert torch.equal(into[1 : nbytes + 1], source[2 : nbytes + 2])
    assert not into[0] and not into[nbytes + 1 :].any()


# Memory of several processes, mapped one after another


class Blocks:
    """Blocks of other processes, mapped for reading."""

    def __init__(self, blocks: int = 2, nbytes: int = 4 * GRAIN) -> None:
        self.written = [Sealed(nbytes) for _ in range(blocks)]
        for number, block in enumerate(self.written):
            block.view(0, nbytes).copy_((torch.arange(nbytes) * 7 + number).to(torch.uint8))
        self.mapped = [Mapped(block.file, nbytes, write=False) for block in self.written]
        self.mapped_concat = MappedConcat(self.memory_of)
        self.gone: list[int] = []

    def memory_of(self, address: int, nbytes: int) -> Mapped | None:
        inside = (
            one
            for one in self.mapped
            if one.address <= address and address + nbytes <= one.address + one.nbytes
        )
        return next(inside, None)

    def view(self, block: int, at: int, nbytes: int) -> Tensor:
        return self.mapped[block].view(at, nbytes, lambda: self.gone.append(block))

    def close(self) -> None:
        for block in self.written:
            block.close()


@pytest.fixture
def blocks() -> Iterator[Blocks]:
    blocks = Blocks()
    yield blocks
    blocks.close()


def mapped(what: str = "memfd:meshctl") -> int:
    """Returns the bytes of mapped shared memory, or of other memory, in this process's address space."""
    gc.collect()
    with open("/proc/self/maps") as maps:
        ranges = [line.split()[0].split("-") for line in maps if what in line]
    return sum(int(end, 16) - int(start, 16) for start, end in ranges)


def test_memory_that_is_given_up_is_unmapped_when_nobody_reads_it(blocks: Blocks) -> None:
    before = mapped()
    joined = blocks.mapped_concat.concat([blocks.view(0, 0, GRAIN), blocks.view(1, 0, GRAIN)])
    assert joined is not None and mapped() == before + 2 * GRAIN
    blocks.mapped_concat.forget(blocks.mapped[0])
    assert torch.equal(joined[:GRAIN], blocks.written[0].view(0, GRAIN)), "it is still read"
    del joined
    assert mapped() == before


def test_memory_that_is_joined_in_many_ways_is_not_mapped_for_all_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blocks = Blocks(2, 8 * GRAIN)
    gc.freeze()  # what other tests left; each call of `mapped` collects the rest
    before = mapped()
    for one in range(8):
        for other in range(8):
            assert (
                blocks.mapped_concat.concat(
                    [blocks.view(0, one * GRAIN, GRAIN), blocks.view(1, other * GRAIN, GRAIN)]
                )
                is not None
            )
            assert mapped() - before <= MAX_TIMES_MAPPED * 16 * GRAIN
    monkeypatch.setattr(mapped_concat, "MAX_SPANS", 6)
    assert blocks.mapped_concat.concat([blocks.view(1, 0, GRAIN), blocks.view(0, 0, GRAIN)]) is not None
    assert mapped() - before == 6 * GRAIN
    blocks.close()


def test_what_was_joined_is_read_only_also_where_this_process_made_a_part_of_it(blocks: Blocks) -> None:
    blocks.mapped[0] = blocks.written[0]
    joined = blocks.mapped_concat.concat([blocks.view(0, 0, GRAIN), blocks.view(1, 0, GRAIN)])
    assert joined is not None
    for at in (0, GRAIN):
        if not (child := os.fork()):
            faulthandler.disable()
            joined[at] = 1
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGSEGV


Part = tuple[int, int, int]
"""(block, first byte, number of bytes)."""


STARTS = st.sampled_from([0, PAGE, PAGE + 64, 5 * PAGE])


SIZES = st.sampled_from([PAGE, 2 * PAGE, GRAIN, GRAIN + 8, GRAIN - 16, 24])


@given(st.lists(st.tuples(st.integers(0, 1), STARTS, SIZES), min_size=1, max_size=4), st.booleans())
@settings(max_examples=examples(50, 200), deadline=None)
def test_the_result_is_that_of_cat_or_none(parts: Sequence[Part], wide: bool) -> None:
    blocks = BLOCKS
    rows = (4,) if wide else ()
    tensors = [
        blocks.view(block, at, nbytes).view(torch.int16).view(-1, *rows) for block, at, nbytes in parts
    ]
    joined = blocks.mapped_concat.concat(tensors)
    ends = [nbytes % PAGE == 0 for _, _, nbytes in parts[:-1]]
    assert (joined is not None) == (
        all(ends)
        and all(at % PAGE == 0 for _, at, _ in parts)
        and sum(n for *_, n in parts) >= MAPPED_MIN_BYTES
    )
    assert joined is None or torch.equal(joined, torch.cat(tensors))


BLOCKS = Blocks()


# Writes into memory that was sent


HALF = GRAIN // 2


@pytest.fixture
def block() -> Iterator[Block]:
    arena = Arena()
    yield arena.take("use", GRAIN, [0])
    arena.close()


def numbers(block: Block) -> Tensor:
    return block.memory.view(0, GRAIN)


@pytest.mark.parametrize("has_digests", [False, True])
def test_memory_that_is_filled_again_and_sent_again_is_refused_unless_it_is_allocated_again(
    block: Block, has_digests: bool
) -> None:
    sent = SentMemory(has_digests=has_digests)
    sent.add(block, 0, HALF)
    numbers(block)[HALF:] = 1  # bytes of the block that were not sent
    sent.add(block, HALF, GRAIN)
    sent.add(block, 0, GRAIN)
    sent.compare()
    numbers(block).numpy()[:] = 2
    with pytest.raises(SentMemoryWritten, match=r"call `self.alloc` for every value"):
        sent.add(block, HALF, GRAIN)
    sent.forget(block)
    sent.compare()
    sent.add(block, 0, GRAIN)


# Memory of `alloc` between processes


@pytest.mark.slow
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
            blocks = max(blocks, len(worker.way.pool.arena.blocks))
        del batch, x
        worker.transport.close()
        return [blocks, len(worker.way.pool.arena.blocks)]

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
        held = batch["x"].data_ptr() in worker.way.mapped_concat.addresses
        kept.clear()
        del batch
        worker.transport.close()
        return [held, not worker.way.mapped_concat.addresses]

    with World(*[producer] * producers, *[consumer] * (2 * replicas)) as world:
        returned = world.results()
    assert all(left == 0 and blocks <= 2 * (SLOTS + 3 + MAX_HELD) for blocks, left in returned[:producers])
    first = alone // 2  # consumer 0 receives the rows of producers 0 and 1
    assert returned[producers:] == [
        [mapped or (alone < producers and rank // replicas != first), True] for rank in range(2 * replicas)
    ]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
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
