"""CUDA: memory that processes share, and transfers by NCCL. Each test states how many devices it needs.

pytest -m gpu tests/runtime/devices/test_cuda.py
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import torch
from torch.distributed import Store, TCPStore

from meshctl.runtime.devices.backend import (
    DeviceError,
    DeviceMemory,
    PeerAccess,
    handshake,
)
from meshctl.runtime.devices.cuda import GRAIN, Cuda
from meshctl.runtime.devices.nccl import memory_of
from meshctl.runtime.devices.nccl import transfers as transfers_of
from meshctl.runtime.transports.buffers.arena import Arena
from tests.hang import HANG_S
from tests.runtime.devices.standin import gpus

CUDA = torch.device("cuda", 0)


# Two processes


def together(
    work: Callable[..., None], *arguments: Any, environ: Sequence[Mapping[str, str]] = ({}, {})
) -> None:
    """Runs `work(place, port, ...)` in two new processes to its end. They are not forked, because CUDA does
    not survive a fork."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context, processes = multiprocessing.get_context("spawn"), []
    for job_rank, variables in enumerate(environ):
        before = dict(os.environ)
        os.environ.update(variables)
        processes.append(context.Process(target=work, args=(job_rank, store.port, *arguments)))
        processes[-1].start()
        os.environ.clear()
        os.environ.update(before)
    end = time.monotonic() + HANG_S
    for process in processes:
        process.join(max(0.1, end - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            process.join()
    assert [process.exitcode for process in processes] == [0, 0]


def connect(port: int) -> Store:
    return TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=HANG_S))


def await_all(store: Store, keys: Mapping[int, str]) -> None:
    store.wait([*keys.values()], timedelta(seconds=HANG_S))


def hand(store: Store, job_rank: int, word: str) -> None:
    """A barrier of both processes."""
    store.set(f"{word}/{job_rank}", "")
    store.wait([f"{word}/{1 - job_rank}"], timedelta(seconds=HANG_S))


def handshaken(memory: DeviceMemory, job_rank: int, store: Store) -> PeerAccess:
    return handshake(memory, job_rank, (0, 1), store, partial(await_all, store))


def share(job_rank: int, port: int, numbers: tuple[int, int]) -> None:
    """Blocks are sent from one process to the other and back. Each is read in place, and none is used again
    before it is free."""
    memory, store = Cuda(torch.device("cuda", numbers[job_rank])), connect(port)
    assert handshaken(memory, job_rank, store).path(0, 1) == "device"
    hand(store, job_rank, "met")
    (send_frame if job_rank == 0 else take)(memory, store)
    hand(store, job_rank, "closed")
    memory.close()


def send_frame(memory: DeviceMemory, store: Store) -> None:
    dropped = []
    arena = Arena(dropped.append, memory.make)
    for step in range(30):
        block = arena.take("route", (1 + step // 10) * 3 * GRAIN, {1})
        block.known.add((1, False))
        view = block.memory.view(0, 1000 + step)
        view.copy_(torch.arange(1000 + step) % (step + 2))
        memory.finish()
        del view
        store.set(
            f"given/{step}",
            json.dumps(
                [block.number, block.nbytes, block.memory.handle.hex(), [old.number for old in dropped]]
            ),
        )
        store.wait([f"free/{step}"], timedelta(seconds=HANG_S))
        arena.give_back(block.number, 1)
        for old in dropped:
            arena.give_back(old.number, 1)
        dropped.clear()
        assert arena.count("route") == 1
    arena.give_back(block.number, 1)
    arena.close()


def take(memory: DeviceMemory, store: Store) -> None:
    opened: dict[int, Any] = {}
    for step in range(30):
        number, nbytes, handle, dropped = json.loads(store.get(f"given/{step}"))
        for old in dropped:
            opened.pop(old).close()
        piece = opened.setdefault(number, None) or memory.open(bytes.fromhex(handle), nbytes)
        opened[number] = piece
        free = threading.Event()
        view = piece.view(0, 1000 + step, partial(memory.after, free.set))
        assert memory.holds(view)
        total = view.to(torch.int64).sum()
        del view
        assert free.wait(HANG_S)
        assert total.item() == (torch.arange(1000 + step) % (step + 2)).sum().item()
        store.set(f"free/{step}", "")
    for piece in opened.values():
        piece.close()


@gpus(1)
def test_two_processes_share_a_device() -> None:
    together(share, (0, 0))


@gpus(2)
@pytest.mark.parametrize("hidden", [False, True])
def test_two_processes_read_one_anothers_devices(hidden: bool) -> None:
    """Skipped if the hardware does not support it."""
    if not torch.cuda.can_device_access_peer(0, 1):
        pytest.skip("these two devices cannot read one another")
    environ = [{"CUDA_VISIBLE_DEVICES": str(job_rank)} for job_rank in (0, 1)] if hidden else [{}, {}]
    together(share, (0, 0) if hidden else (0, 1), environ=environ)


def refuse(job_rank: int, port: int) -> None:
    """On one device."""
    memory = Cuda(CUDA)
    found = handshaken(memory, job_rank, connect(port))
    assert found.names[0] == found.names[1] and found.path(0, 1) == "device"
    assert PeerAccess(found.names, {}).path(0, 1) == "cpu"
    memory.close()


@gpus(1)
def test_two_processes_on_one_device_are_not_offered_nccl() -> None:
    together(refuse)


# Memory of one process


@pytest.fixture
def memory() -> Any:
    made = Cuda(CUDA)
    yield made
    made.close()


@gpus(1)
def test_cuda_has_shared_memory() -> None:
    made = memory_of(CUDA)
    assert isinstance(made, Cuda) and made.holds(torch.ones(1, device=CUDA)) and not made.holds(torch.ones(1))
    made.close()


@gpus(1)
@pytest.mark.parametrize("nbytes", [0, 1, GRAIN, GRAIN + 1])
def test_a_view_is_the_memory_itself_on_the_device(memory: Cuda, nbytes: int) -> None:
    piece = memory.make(nbytes)
    view = piece.view(0, nbytes)
    assert (
        view.device == CUDA
        and view.shape == (nbytes,)
        and len(piece.handle) == 64
        and piece.nbytes % GRAIN == 0
    )
    view.fill_(7)
    again = memory.open(piece.handle, nbytes).view(0, nbytes)  # of this process: its own piece
    assert again.eq(7).all().item() and again.data_ptr() == view.data_ptr()
    view.record_stream(torch.cuda.current_stream())
    del view, again
    piece.close()


@gpus(1)
def test_the_end_of_a_view_is_that_of_the_last_tensor_derived_from_it(memory: Cuda) -> None:
    ended: list[int] = []
    piece = memory.make(1000)
    view = piece.view(0, 800, lambda: ended.append(1))
    kept = view.view(torch.float64)[3:].view(-1)[1:]
    del view
    gc.collect()
    assert not ended
    factor = torch.ones_like(kept, requires_grad=True)
    loss = (factor * kept).sum()
    del kept
    gc.collect()
    assert not ended  # autograd keeps it
    loss.backward()
    del loss
    gc.collect()
    assert ended == [1]
    piece.close()


@gpus(1)
def test_after_waits_for_what_is_queued(memory: Cuda) -> None:
    piece = memory.make(1000)
    done: list[bool] = []
    informed = threading.Event()
    event = torch.cuda.Event()

    def act() -> None:
        done.append(event.query())
        informed.set()

    view = piece.view(0, 1000, partial(memory.after, act))
    torch.cuda._sleep(500_000_000)  # cycles: a good part of a second
    view.add_(1)
    event.record()
    del view
    assert informed.wait(HANG_S) and done == [True]
    piece.close()


@gpus(1)
def test_finish_waits_for_what_is_queued(memory: Cuda) -> None:
    event = torch.cuda.Event()
    torch.cuda._sleep(200_000_000)
    event.record()
    memory.finish()
    assert event.query()


@gpus(1)
def test_a_failure_is_reported_and_forgotten(memory: Cuda) -> None:
    with pytest.raises(DeviceError, match="cudaMalloc: out of memory"):
        memory.make(1 << 50)
    with pytest.raises(DeviceError, match="cudaIpcOpenMemHandle"):
        memory.open(bytes(64), 10)
    assert torch.ones(10, device=CUDA).sum().item() == 10  # torch asks for the last error after each launch


@gpus(1)
def test_what_is_closed_is_free(memory: Cuda) -> None:
    torch.cuda.synchronize()
    before, _ = torch.cuda.mem_get_info(CUDA)
    for _ in range(20):
        memory.make(64 * GRAIN).close()
    after, _ = torch.cuda.mem_get_info(CUDA)
    assert before - after < 64 * GRAIN


# Transfers by NCCL


def transfer(job_rank: int, port: int, numbers: tuple[int, int], rounds: int) -> None:
    """Transfers in both directions at once. The headers of both ends are the same random numbers."""
    device, store, other = torch.device("cuda", numbers[job_rank]), connect(port), 1 - job_rank
    torch.cuda.set_device(device)
    broken: list[Any] = []
    transfers = transfers_of(
        job_rank, device, store, lambda job_rank, error: broken.append((job_rank, error))
    )
    sent, received = (threading.Semaphore(0) for _ in "12")
    on_message: list[list[torch.Tensor]] = []

    def take(tensors: list[torch.Tensor]) -> None:
        on_message.append(tensors)
        received.release()

    for number in range(rounds):
        tensors = [tensor.to(device) for tensor in message(job_rank, number)]
        transfers.send(other, tensors, sent.release)
        for tensor in tensors:
            tensor.fill_(0)  # its maker uses it again at once
    torch.cuda.current_stream(device).synchronize()
    hand(store, job_rank, "written")  # the headers
    for number in range(rounds):
        sizes = [tensor.nbytes for tensor in message(other, number)]
        transfers.expect(other, sizes, partial(store.set, f"come/{job_rank}/{number}", ""), take)
    ear = connect(port)
    for number in range(rounds):
        ear.wait([f"come/{other}/{number}"], timedelta(seconds=HANG_S))
        transfers.clear_to_send(other)
    for number in range(rounds):
        assert sent.acquire(timeout=HANG_S) and received.acquire(timeout=HANG_S), broken
        for tensor, expected in zip(on_message[number], message(other, number), strict=True):
            assert tensor.device == device and torch.equal(
                tensor.view(expected.dtype).cpu(), expected.flatten()
            )
        on_message[number].clear()
    assert not broken
    hand(store, job_rank, "goodbye")
    transfers.close()


def message(producer: int, number: int) -> list[torch.Tensor]:
    rng = random.Random(f"{producer} {number}")
    shapes = [(rng.choice([0, 1, 513, 100_000]), rng.choice([1, 3])) for _ in range(rng.randrange(4))] + [
        (4 << 20, 1)
    ] * (number == 3)
    return [
        torch.full(shape, producer + 10 * number + index, dtype=torch.float32)
        for index, shape in enumerate(shapes)
    ]


@gpus(2)
@pytest.mark.parametrize("hidden", [False, True])
def test_two_devices_exchange_tensors_by_nccl(hidden: bool) -> None:
    environ = [{"CUDA_VISIBLE_DEVICES": str(job_rank)} for job_rank in (0, 1)] if hidden else [{}, {}]
    together(transfer, (0, 0) if hidden else (0, 1), 20, environ=environ)


def break_off(job_rank: int, port: int) -> None:
    """One process posts a receive without a matching send, and closes."""
    device, store = torch.device("cuda", job_rank), connect(port)
    torch.cuda.set_device(device)
    transfers = transfers_of(job_rank, device, store, lambda job_rank, error: None)
    made = threading.Event()  # by a first transfer
    if job_rank == 0:
        transfers.send(1, [torch.ones(10, device=device)], made.set)
        transfers.clear_to_send(1)
    else:
        transfers.expect(0, [40], lambda: None, lambda tensors: made.set())
    assert made.wait(HANG_S)
    if job_rank == 1:
        transfers.expect(0, [40], lambda: None, lambda tensors: os._exit(3))
        time.sleep(1)
    hand(store, job_rank, "posted")
    transfers.close()
    assert torch.ones(10, device=device).sum().item() == 10
    hand(store, job_rank, "closed")


@gpus(2)
def test_a_transfer_under_way_is_broken_off() -> None:
    together(break_off)
