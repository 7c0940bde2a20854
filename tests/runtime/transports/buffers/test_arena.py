"""Blocks are reused, and never leased twice at once. Views keep their memory alive, and report when the last
one is collected."""

from __future__ import annotations

import fcntl
import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshctl.runtime.transports.buffers.arena import GRAIN, Arena, ArenaError, Block, Mapped
from tests.examples import examples
from tests.runtime.hostile_world import files_open


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena()
    yield made
    made.close()


@pytest.mark.parametrize("nbytes", [0, 1, GRAIN - 1, GRAIN, GRAIN + 1, 5 * GRAIN])
def test_a_block_is_whole_grains_and_zero(arena: Arena, nbytes: int) -> None:
    block = arena.take("use", nbytes, {1})
    assert block.nbytes >= max(1, nbytes) and block.nbytes % GRAIN == 0
    view = block.memory.view(0, nbytes)
    assert view.shape == (nbytes,) and view.dtype is torch.uint8 and not view.any()


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
    assert dropped == [small] and large.nbytes >= 3 * GRAIN and arena.stats().nbytes == large.nbytes
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


def test_holders_release_blocks_from_many_threads_while_blocks_are_allocated(arena: Arena) -> None:
    wrong: list[str] = []
    for _ in range(100):
        blocks = [arena.take("use", 10, {0, 1, 2, 3}) for _ in range(4)]
        if len({block.number for block in blocks}) < len(blocks):
            wrong.append("lent twice")

        def send_frame(holder: int, numbers: list[int]) -> None:
            for number in numbers:
                arena.give_back(number, holder)

        numbers = [block.number for block in blocks]
        threads = [threading.Thread(target=send_frame, args=(holder, numbers)) for holder in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong and arena.stats().nbytes == 4 * GRAIN


def test_the_garbage_collector_may_release_a_block_during_an_allocation(arena: Arena) -> None:
    class Keeper:
        """An object in a reference cycle, which only the garbage collector frees."""

        def __init__(self, view: torch.Tensor) -> None:
            self.view, self.me = view, self

    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        for step in range(500):
            block = arena.take("use", 100, {1})
            number = block.number
            block.memory.view(0, 100).fill_(step % 251)
            Keeper(block.memory.view(0, 100, lambda number=number: arena.give_back(number, 1)))  # type: ignore[misc]
    finally:
        gc.set_threshold(*threshold)
    assert arena.stats().nbytes <= 10 * GRAIN


# Views


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


def test_a_view_may_end_on_another_thread(arena: Arena) -> None:
    ended: list[int] = []
    box = [arena.take("use", 100, {1}).memory.view(0, 100, lambda: ended.append(threading.get_ident()))]
    thread = threading.Thread(target=box.clear)
    thread.start()
    thread.join()
    assert len(ended) == 1 and ended != [threading.get_ident()]


@given(st.integers(-3, GRAIN + 3) | st.integers(), st.integers(-3, GRAIN + 3) | st.integers())
def test_a_view_lies_in_its_block_or_there_is_none(at: int, nbytes: int) -> None:
    arena = Arena()
    block = arena.take("use", 1, {1})
    if 0 <= at <= at + nbytes <= GRAIN:
        assert len(block.memory.view(at, nbytes)) == nbytes
    else:
        with pytest.raises(ArenaError, match=f"of {GRAIN}"):
            block.memory.view(at, nbytes)
    arena.close()


# Memory of others


def sealed(size: int, seals: int = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL) -> int:
    file = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


@pytest.mark.parametrize("nbytes", [-(2**63), -1, 0, GRAIN + 1, 2**62, 2**63 - 1])
@pytest.mark.parametrize("write", [True, False])
def test_memory_of_another_size_is_refused(nbytes: int, write: bool) -> None:
    file = sealed(GRAIN)
    with pytest.raises(ArenaError):
        Mapped(file, nbytes, write=write)
    os.close(file)


def test_memory_that_could_shrink_or_is_none_is_refused(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    plain = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(plain, GRAIN)
    open_ended = [sealed(GRAIN, seals) for seals in (0, fcntl.F_SEAL_GROW, fcntl.F_SEAL_SHRINK)]
    for file in (*open_ended, reading, writing, plain, os.open("/", os.O_RDONLY)):
        with pytest.raises(ArenaError):
            Mapped(file, GRAIN, write=False)
        os.close(file)


def test_memory_that_may_not_be_written_is_refused_to_who_would_write() -> None:
    file = sealed(GRAIN, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL)
    with pytest.raises(ArenaError):
        Mapped(file, GRAIN, write=True)
    assert not Mapped(file, GRAIN, write=False).view(0, GRAIN).any()
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


def test_nothing_stays_open() -> None:
    gc.collect()
    before = files_open()
    arena = Arena()
    for step in range(200):
        block = arena.take("use", 1 + step * 3000, {1})
        view = block.memory.view(0, 10)
        arena.give_back(block.number, 1)
        del view, block
    arena.close()
    gc.collect()
    assert not files_open() - before
