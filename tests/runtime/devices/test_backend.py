"""Device memory that processes of a node share, tested on a stand-in device; and the calls of CUDA, tested on
a library in Python."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import FileStore

from meshctl.runtime.devices import cuda
from meshctl.runtime.devices.backend import (
    DEVICES,
    DeviceError,
    DeviceMemory,
    PeerAccess,
    devices_at,
    handshake,
)
from meshctl.runtime.devices.cuda import Later, library
from meshctl.runtime.devices.nccl import memory_of
from meshctl.runtime.transports.buffers.arena import Arena, ArenaError, Block
from tests.hang import HANG_S
from tests.runtime.devices.standin import Standin


@pytest.fixture
def device() -> Iterator[Standin]:
    made = Standin()
    yield made
    made.close()


# Pieces


@pytest.mark.parametrize("nbytes", [0, 1, 4096, 5000])
def test_a_piece_is_seen_by_who_opens_it(device: Standin, nbytes: int) -> None:
    mine = device.make(nbytes)
    theirs = device.open(mine.handle, nbytes)
    mine.view(0, nbytes).fill_(7)
    assert theirs.view(0, nbytes).tolist() == [7] * nbytes
    assert mine.outlasts and not theirs.outlasts and mine.nbytes >= max(1, nbytes)
    assert device.holds(mine.view(0, mine.nbytes)) and not device.holds(torch.ones(3))


@pytest.mark.parametrize(("at", "nbytes"), [(-1, 2), (0, 4097), (4096, 1), (0, -1), (2**62, 2**62)])
def test_a_view_lies_in_its_piece_or_there_is_none(device: Standin, at: int, nbytes: int) -> None:
    with pytest.raises(ArenaError, match="of 4096"):
        device.make(10).view(at, nbytes)


# Blocks of an arena


def test_what_is_dropped_lasts_until_all_have_closed_it(device: Standin) -> None:
    dropped: list[Block] = []
    arena = Arena(dropped.append, device.make)
    small = arena.take("use", 100, {1, 2})
    small.memory.view(0, 100).fill_(3)
    small.known |= {(1, False), (2, False), (2, True)}
    theirs = device.open(small.memory.handle, small.nbytes).view(0, 100)
    for job_rank in (1, 2):
        arena.give_back(small.number, job_rank)
    arena.take("use", 1 << 20, {1})
    assert dropped == [small] == [*arena.dropped.values()]
    for job_rank in (7, 1, 1):
        arena.give_back(small.number, job_rank)
    assert not arena.has("use", 1) and theirs.tolist() == [3] * 100
    arena.give_back(small.number, 2)
    assert not arena.has("use", 1) and not arena.dropped
    assert theirs.tolist() == [255] * 100  # freed, at last
    arena.close()


def test_what_others_still_have_open_at_the_end_is_left_to_it(device: Standin) -> None:
    arena = Arena(make=device.make)
    shared, own = (arena.take(use, 100, {1}) for use in ("shared", "own"))
    shared.known.add((1, False))
    arena.close()
    assert device.pieces == [shared.memory] and own.memory not in device.pieces


def test_memory_is_not_used_again_before_the_device_has_read_it(device: Standin) -> None:
    """A view is collected in Python while queued work still reads it."""
    arena = Arena(make=device.make)
    wrong, reading = [], []

    def read(address: int, number: int) -> None:
        time.sleep(random.random() * 0.001)  # shorter than `after`, which waits for what is queued
        seen = set(ctypes.string_at(address, 1000))
        if seen != {number % 251}:
            wrong.append((number, seen))

    slow = Later()
    for number in range(200):
        block = arena.take("use", 1000, {1})
        block.memory.view(0, 1000).fill_(number % 251)
        done = threading.Event()
        view = block.memory.view(
            0, 1000, partial(device.after, partial(_given_back, done, arena, block.number))
        )
        slow.put(partial(read, view.data_ptr(), number), done.set)
        reading.append(done)
        del view
    slow.close()
    assert not wrong


def _given_back(done: threading.Event, arena: Arena, number: int) -> None:
    """Completes all queued work, as a stream does."""
    done.wait()
    arena.give_back(number, 1)


def test_a_finalizer_that_schedules_work_neither_waits_nor_raises(device: Standin) -> None:
    announced: list[int] = []
    threshold = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        piece = device.make(100)
        for number in range(300):
            piece.view(0, 10, partial(device.after, partial(announced.append, number)))
    finally:
        gc.set_threshold(*threshold)
    device.close()
    assert announced == list(range(300))


def test_what_cannot_be_waited_for_is_over() -> None:
    later, announced = Later(), []

    def broken() -> None:
        raise RuntimeError("device-side assert")

    later.put(broken, lambda: announced.append(1))
    later.put(lambda: None, lambda: announced.append(2))
    later.close()
    assert announced == [1, 2]


# Who reads whom


def test_each_pair_goes_the_best_way_it_has() -> None:
    found = PeerAccess(
        {0: "a", 1: "a", 2: "b", 3: ""}, {0: frozenset({1, 2}), 1: frozenset(), 2: frozenset()}
    )
    assert found.path(1, 0) == found.path(2, 0) == "device"
    assert found.path(0, 1) == "cpu"  # one device, and NCCL takes no two processes on it
    assert found.path(0, 2) == found.path(1, 2) == found.path(2, 1) == "nccl"
    assert found.path(3, 0) == found.path(0, 3) == found.path(0, 9) == "cpu"


def test_other_libraries_cannot_send_to_each_other() -> None:
    names, nothing = {0: "a", 1: "b", 2: "c"}, frozenset[int]()
    reads = {0: frozenset({1}), 1: nothing, 2: nothing}
    found = PeerAccess(names, reads, {0: "NCCL 1", 1: "NCCL 2", 2: "NCCL 1"})
    assert found.path(0, 2) == found.path(2, 0) == "nccl"
    assert found.path(0, 1) == found.path(1, 2) == "cpu"
    assert found.path(1, 0) == "device"


def test_libraries_are_exchanged_in_the_handshake(tmp_path: Path) -> None:
    other = partial(Standin, transfer_library="NCCL 2")
    found = handshaken(tmp_path, [Standin, other, lambda: None])
    assert all(each.libraries == {0: "NCCL 1", 1: "NCCL 2", 2: ""} for each in found)
    store = FileStore(str(tmp_path / "store"), 3)
    assert devices_at({0, 1, 2}, "NCCL 1", store, partial(await_all, store)) == {0}


def await_all(store: FileStore, keys: Mapping[int, str]) -> None:
    store.wait([*keys.values()], timedelta(seconds=HANG_S))


def handshaken(folder: Path, devices: list[Callable[[], DeviceMemory | None]]) -> list[PeerAccess]:
    """Returns the result of the handshake in each process."""
    pids = []
    for job_rank, make in enumerate(devices):
        if pid := os.fork():
            pids.append(pid)
            continue
        try:
            store = FileStore(str(folder / "store"), len(devices))
            found = handshake(make(), job_rank, range(len(devices)), store, partial(await_all, store))
            reports = [
                list(found.names.items()),
                [[reader, sorted(read)] for reader, read in found.reads.items()],
                list(found.libraries.items()),
            ]
            (folder / f"{job_rank}.json").write_text(json.dumps(reports))
        except BaseException:
            (folder / f"{job_rank}.txt").write_text(traceback.format_exc())
        finally:
            os._exit(0)
    for pid in pids:
        os.waitpid(pid, 0)
    assert not [path.read_text() for path in folder.glob("*.txt")]
    reports = [json.loads((folder / f"{job_rank}.json").read_text()) for job_rank in range(len(devices))]
    return [
        PeerAccess(dict(names), {reader: frozenset(read) for reader, read in reads}, dict(libraries))
        for names, reads, libraries in reports
    ]


class Alone(Standin):
    """A device that cannot open memory of others."""

    def open(self, handle: bytes, nbytes: int) -> Any:
        raise DeviceError("cudaIpcOpenMemHandle: peer access is not supported between these two devices")


class Elsewhere(Standin):
    """A device that opens another piece of memory than the one requested."""

    def open(self, handle: bytes, nbytes: int) -> Any:
        return self.make(nbytes)


class OutOfMemory(Standin):
    def make(self, nbytes: int) -> Any:
        raise DeviceError("cudaMalloc: out of memory")


def test_everybody_finds_out_who_reads_whom(tmp_path: Path) -> None:
    found = handshaken(tmp_path, [Standin, Standin, lambda: None, Alone, Elsewhere, OutOfMemory])
    assert all(each == found[0] for each in found)
    offer = {0, 1, 3, 4}
    assert found[0].reads == {0: offer - {0}, 1: offer - {1}, 2: set(), 3: set(), 4: set(), 5: offer}
    assert found[0].names == {**dict.fromkeys(range(6), "standin"), 2: ""}


def test_nothing_of_a_meeting_is_left(tmp_path: Path) -> None:
    devices = [Standin("one"), Standin("two")]
    found: dict[int, PeerAccess] = {}
    store = FileStore(str(tmp_path / "store"), 2)

    def one(job_rank: int) -> None:
        found[job_rank] = handshake(devices[job_rank], job_rank, {0, 1}, store, partial(await_all, store))

    threads = [threading.Thread(target=one, args=(job_rank,)) for job_rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1] and found[0].reads == {0: {1}, 1: {0}}
    assert not devices[0].pieces and not devices[1].pieces
    for device in devices:
        device.close()


def test_only_cuda_has_memory_that_is_shared() -> None:
    assert set(DEVICES) == {"cuda"}
    assert memory_of(torch.device("cpu")) is None and memory_of(torch.device("meta")) is None


@pytest.mark.parametrize(
    "error", [DeviceError, RuntimeError, torch.OutOfMemoryError, BufferError, AttributeError]
)
def test_a_device_that_cannot_be_used_has_none(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(device: torch.device) -> DeviceMemory:
        raise error("CUDA error: device-side assert triggered")

    monkeypatch.setattr(cuda, "Cuda", broken)
    assert memory_of(torch.device("cuda", 0)) is None


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch has CUDA")
def test_a_torch_without_cuda_has_no_library_of_it() -> None:
    with pytest.raises(DeviceError, match="without CUDA"):
        library()


# The calls, by their C signatures
