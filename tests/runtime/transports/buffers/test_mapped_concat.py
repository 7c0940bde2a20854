"""Tensors that are concatenated by mapping have the values of torch.cat, without a copy, as long as a view
exists."""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
from collections.abc import Iterator, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from meshctl.runtime.transports.buffers import libc, mapped_concat
from meshctl.runtime.transports.buffers.arena import GRAIN, Mapped, Sealed
from meshctl.runtime.transports.buffers.mapped_concat import MAX_TIMES_MAPPED, PAGE, MappedConcat
from tests.examples import examples
from tests.runtime.transports.buffers.conftest import MAPPED_MIN_BYTES


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


def test_it_is_the_same_memory(blocks: Blocks) -> None:
    parts = [blocks.view(0, PAGE, 2 * GRAIN), blocks.view(1, 0, GRAIN + 3)]
    joined = blocks.mapped_concat.concat(parts)
    assert joined is not None and torch.equal(joined, torch.cat(parts))
    blocks.written[1].view(0, 1).fill_(200)
    assert joined[2 * GRAIN] == 200, "nothing was copied"


def test_who_made_the_parts_gets_them_back_when_nobody_reads_what_was_joined(blocks: Blocks) -> None:
    joined = blocks.mapped_concat.concat([blocks.view(0, 0, GRAIN), blocks.view(1, 0, GRAIN)])
    assert joined is not None
    derived = joined.view(torch.int64)[GRAIN // 8 + 1 :]
    del joined
    assert blocks.gone == []
    del derived
    assert sorted(blocks.gone) == [0, 1]


def test_memory_that_is_given_up_is_unmapped_when_nobody_reads_it(blocks: Blocks) -> None:
    before = mapped()
    joined = blocks.mapped_concat.concat([blocks.view(0, 0, GRAIN), blocks.view(1, 0, GRAIN)])
    assert joined is not None and mapped() == before + 2 * GRAIN
    blocks.mapped_concat.forget(blocks.mapped[0])
    assert torch.equal(joined[:GRAIN], blocks.written[0].view(0, GRAIN)), "it is still read"
    del joined
    assert mapped() == before


def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the mappings of each concatenation that is created from now on."""
    made: list[int] = []
    init = mapped_concat.PageMapping.__init__
    monkeypatch.setattr(
        mapped_concat.PageMapping,
        "__init__",
        lambda self, spans: (made.append(len(spans)), init(self, spans))[1],
    )
    return made


def test_what_goes_round_is_mapped_once(blocks: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    made, before = counted(monkeypatch), mapped()
    for _ in range(5):
        for at in (0, GRAIN, 2 * GRAIN):
            assert (
                blocks.mapped_concat.concat([blocks.view(0, at, GRAIN), blocks.view(1, at, GRAIN)])
                is not None
            )
    assert made == [2, 2, 2] and mapped() == before + 6 * GRAIN
    blocks.mapped_concat.clear()
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


def test_memory_of_this_process_alone_is_not_mapped(blocks: Blocks) -> None:
    own = torch.zeros(2 * GRAIN + PAGE, dtype=torch.uint8)
    start = -own.data_ptr() % PAGE
    assert blocks.mapped_concat.concat([blocks.view(0, 0, GRAIN), own[start : start + GRAIN]]) is None


def test_where_no_more_can_be_mapped_nothing_is(blocks: Blocks, monkeypatch: pytest.MonkeyPatch) -> None:
    reserved = " ---p 00000000 00:00 0"
    before = mapped(reserved)
    seen: list[int] = []
    monkeypatch.setattr(libc, "mremap", lambda *_: seen.append(mapped(reserved)))
    assert blocks.mapped_concat.concat([blocks.view(0, 0, GRAIN), blocks.view(1, 0, GRAIN)]) is None
    assert seen == [before + 2 * GRAIN] and mapped(reserved) == before


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


@pytest.mark.parametrize("other", [torch.int32, torch.float16])
def test_parts_of_different_kinds_are_not_joined(blocks: Blocks, other: torch.dtype) -> None:
    one, two = blocks.view(0, 0, GRAIN).view(torch.int16), blocks.view(1, 0, GRAIN)
    assert blocks.mapped_concat.concat([one, two.view(other)]) is None
    assert blocks.mapped_concat.concat([one.view(-1, 2), two.view(torch.int16).view(-1, 4)]) is None
    assert blocks.mapped_concat.concat([one[::2], two.view(torch.int16)]) is None


BLOCKS = Blocks()
