"""Transfers between devices, over gloo between processes and over pairs of one process."""

from __future__ import annotations

import gc
import os
import queue
import random
import select
import signal
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import TCPStore

from meshctl.runtime.devices import nccl
from meshctl.runtime.devices.nccl import Pair, PairTransfers
from tests.hang import HANG_S
from tests.runtime.devices.host_pairs import HostStreams, by_gloo, ended, reported

# Processes


LARGE = 16 << 20


# A world of processes


_HEADER, _COME, _BYE, _LISTEN, _READY = range(5)


@dataclass
class Worker:
    """One process: its transfers, and a connection to every other process for headers and answers."""

    job_rank: int
    transfers: PairTransfers
    lines: dict[int, socket.socket]
    rng: random.Random
    on_message: dict[int, list[list[Tensor]]] = field(default_factory=dict)
    done: list[int] = field(default_factory=list)
    broken: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    """The job ranks that have said that they have all they need of this one."""
    tensor_at: set[int] = field(default_factory=set)
    dull: float = 0.0
    """Maximum delay in seconds until a header is read."""
    deaf: list[tuple[int, tuple[int, ...]]] | None = None
    """Headers that arrived while this rank does not read them."""

    def send(self, to: int, tensors: list[Tensor]) -> None:
        self.transfers.send(to, tensors, lambda: self.done.append(to))
        sizes = [tensor.nbytes for tensor in tensors]
        self.lines[to].send(struct.pack(f"i{len(sizes)}q", _HEADER, *sizes))

    def listen(self) -> None:
        while len(self.tensor_at) < len(self.lines):
            ready, _, _ = select.select(
                [line for other, line in self.lines.items() if other not in self.tensor_at], [], []
            )
            for other in [other for other, line in self.lines.items() if line in ready]:
                self.deliver(other, self.lines[other].recv(1 << 16))

    def deliver(self, other: int, message: bytes) -> None:
        what = struct.unpack_from("i", message)[0] if message else _BYE
        if what == _HEADER:
            count = (len(message) - 8) // 8
            header = (other, struct.unpack_from(f"i{count}q", message)[1:])
            self.expect(*header) if self.deaf is None else self.deaf.append(header)
        elif what == _LISTEN:
            waiting, self.deaf = self.deaf or [], None
            for header in waiting:
                self.expect(*header)
        elif what == _READY:
            self.ready.append(other)
        elif what == _COME:
            self.transfers.clear_to_send(other)
        else:
            self.tensor_at.add(other)

    def expect(self, other: int, sizes: tuple[int, ...]) -> None:
        time.sleep(self.rng.random() * self.dull)
        come = partial(self.lines[other].send, struct.pack("i", _COME))
        self.transfers.expect(other, sizes, come, self.on_message.setdefault(other, []).append)

    def until(self, ready: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + HANG_S
        while not ready():
            assert time.monotonic() < end, f"{self.job_rank} waits for {what}"
            time.sleep(0.002)

    def leave(self) -> None:
        for line in self.lines.values():
            line.send(struct.pack("i", _BYE))
        self.until(lambda: len(self.tensor_at) == len(self.lines), "goodbyes")
        self.transfers.close()


def run(folder: Path, size: int, work: Callable[[Worker], None], deaf: int = -1) -> list[int]:
    """Returns the result of each process."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    listener = socket.create_server(("127.0.0.1", 0))
    lines: dict[tuple[int, int], socket.socket] = {}
    for one in range(size):
        for other in range(one):
            lines[one, other], lines[other, one] = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pids = []
    for job_rank in range(size):
        if pid := os.fork():
            pids.append(pid)
            continue
        try:
            mine = {other: line for (one, other), line in lines.items() if one == job_rank}
            for (one, _), line in lines.items():
                if one != job_rank:
                    line.close()
            live(job_rank, mine, listener.getsockname()[1], work, job_rank == deaf)
            os._exit(0)
        except BaseException:
            (folder / f"{job_rank}.txt").write_text(traceback.format_exc())
        finally:
            os._exit(1)
    for line in lines.values():
        line.close()
    store = TCPStore(
        "127.0.0.1",
        listener.getsockname()[1],
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),
    )
    try:
        return [ended(pid) for pid in pids]
    finally:
        del store


def live(
    job_rank: int, lines: dict[int, socket.socket], port: int, work: Callable[[Worker], None], deaf: bool
) -> None:
    torch.set_num_threads(1)
    store = TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=HANG_S))
    broken: list[int] = []
    transfers = PairTransfers(
        job_rank, HostStreams(), by_gloo(store), lambda other, error: broken.append(other)
    )
    worker = Worker(
        job_rank, transfers, lines, random.Random(job_rank), broken=broken, deaf=[] if deaf else None
    )
    threading.Thread(target=worker.listen, daemon=True).start()
    work(worker)


# Many transfers


def message(producer: int, consumer: int, number: int, large: bool) -> list[Tensor]:
    """The same on both sides."""
    rng = random.Random(f"{producer} {consumer} {number}")
    sizes = [rng.choice([0, 1, 3, 511, 512, 513, 4096, 100_000]) for _ in range(rng.randrange(4))]
    if large and number == 3:
        sizes.append(LARGE)
    return [
        (torch.arange(size) * (producer + 2 * consumer + 3 * number + index) % 251).to(torch.uint8)
        for index, size in enumerate(sizes)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "seed"), [(2, 0), (3, 1), (4, 2)])
def test_transfers_in_any_order_arrive_whole_and_in_the_order_of_their_pair(
    tmp_path: Path, size: int, seed: int
) -> None:
    has_large = seed == 0 and size == 3

    def work(worker: Worker) -> None:
        worker.rng = random.Random(f"{seed} {worker.job_rank}")
        worker.dull = 0.004
        numbers = dict.fromkeys(worker.lines, 25)
        orders = [other for other, count in numbers.items() for _ in range(count)]
        worker.rng.shuffle(orders)  # every producer posts in a different order
        sent = dict.fromkeys(numbers, 0)
        for other in orders:
            tensors = message(worker.job_rank, other, sent[other], has_large)
            worker.send(other, tensors)
            sent[other] += 1
            for tensor in tensors:
                tensor.fill_(255)  # its maker uses it again at once
        worker.until(lambda: len(worker.done) == len(orders), "its sends")
        worker.until(lambda: sum(map(len, worker.on_message.values())) == len(orders), "what others send")
        for other in numbers:
            for number, tensors in enumerate(worker.on_message[other]):
                expected = message(other, worker.job_rank, number, has_large)
                assert len(tensors) == len(expected) and all(map(torch.equal, tensors, expected)), (
                    other,
                    number,
                )
        assert not worker.broken
        worker.leave()

    assert run(tmp_path, size, work) == [0] * size, reported(tmp_path)


@pytest.mark.slow
def test_who_does_not_come_keeps_nobody_else_waiting(tmp_path: Path) -> None:
    def work(worker: Worker) -> None:
        if worker.job_rank == 0:
            for _ in range(3):  # who does not listen
                worker.send(1, [torch.full((1000,), 1, dtype=torch.uint8)])
            for _ in range(5):
                worker.send(2, [torch.full((1000,), 2, dtype=torch.uint8)])
            worker.until(lambda: worker.done.count(2) == 5, "job rank 2")
            assert 1 not in worker.done
            worker.lines[1].send(struct.pack("i", _LISTEN))
            worker.until(lambda: worker.done.count(1) == 3, "job rank 1")
        elif worker.job_rank == 1:
            worker.until(lambda: len(worker.on_message.get(0, [])) == 3, "job rank 0")
        else:
            worker.until(lambda: len(worker.on_message.get(0, [])) == 5, "job rank 0")
        worker.leave()

    assert run(tmp_path, 3, work, deaf=1) == [0] * 3, reported(tmp_path)


@pytest.mark.slow
def test_the_death_of_one_is_reported_and_leaves_the_others_alone(tmp_path: Path) -> None:
    def work(worker: Worker) -> None:
        others = [other for other in worker.lines if other != 2]
        for other in worker.lines:
            worker.send(other, [torch.ones(10)])
        worker.until(
            lambda: sum(map(len, worker.on_message.values())) == 2 and len(worker.done) == 2,
            "the first of all",
        )
        if worker.job_rank == 2:
            worker.until(lambda: len(worker.ready) == 2, "the others")
            os.kill(os.getpid(), signal.SIGKILL)
        worker.lines[2].send(struct.pack("i", _READY))
        worker.until(lambda: 2 in worker.tensor_at, "the end")
        worker.transfers.expect(2, [LARGE], lambda: None, lambda tensors: os._exit(3))
        worker.until(lambda: worker.broken == [2], "word of it")
        for other in others:
            worker.send(other, [torch.ones(LARGE // 4)])
        worker.until(lambda: all(len(worker.on_message[other]) == 2 for other in others), "the others")
        worker.until(lambda: len(worker.done) == 2 + len(others), "its own")
        worker.transfers.close()

    assert run(tmp_path, 3, work) == [0, 0, -signal.SIGKILL], reported(tmp_path)


# One end alone


class Never:
    """A pair whose other end does nothing until it is aborted."""

    def __init__(self, on_posted: Callable[[], None] = lambda: None) -> None:
        self.aborted = threading.Event()
        self.posted = threading.Event()
        self._on_posted = on_posted

    def send(self, tensors: list[Tensor], rank: int, tag: int, /) -> Never:
        self.posted.set()
        self._on_posted()
        return self

    recv = send

    def wait(self) -> bool:
        self.aborted.wait()
        return True  # as a kernel that was broken off ends as if it had done its work

    def abort(self) -> None:
        self.aborted.set()


class Wire:
    """A pair within one process."""

    def __init__(self) -> None:
        self._sent: queue.SimpleQueue[Tensor] = queue.SimpleQueue()

    def send(self, tensors: list[Tensor], rank: int, tag: int, /) -> Wire:
        [tensor] = tensors
        self._sent.put(tensor.clone())
        return self

    def recv(self, tensors: list[Tensor], rank: int, tag: int, /) -> Wire:
        [tensor] = tensors
        tensor.copy_(self._sent.get())
        return self

    def wait(self) -> bool:
        return True

    def abort(self) -> None: ...


KINDS = {
    "scalar": torch.tensor(3.5),
    "bool": torch.tensor([True, False, True]),
    "bfloat16": torch.arange(7, dtype=torch.bfloat16),
    "complex": torch.randn(3, 5, dtype=torch.complex128),
    "conjugate": torch.randn(3, dtype=torch.complex64).conj(),
    "transposed": torch.randn(4, 6).t(),
    "strided": torch.arange(40, dtype=torch.int16)[3::7],
    "expanded": torch.arange(5.0)[:, None].expand(5, 6),
    "learnt": torch.randn(3, 3, requires_grad=True),
    "empty": torch.empty(3, 0, 2),
}


@pytest.fixture
def wired() -> Iterator[PairTransfers]:
    wires: dict[tuple[int, int], Wire] = {}

    def join(producer: int, consumer: int, rank: int) -> Pair:
        return wires.setdefault((producer, consumer), Wire())

    transfers = PairTransfers(0, HostStreams(), join, lambda job_rank, error: None)
    yield transfers
    transfers.close()


@pytest.mark.parametrize(
    "kinds", [*([kind] for kind in KINDS), [*KINDS], []], ids=lambda kinds: "+".join(kinds) or "none"
)
def test_any_tensors_arrive_as_their_bytes(wired: PairTransfers, kinds: list[str]) -> None:
    """Transfers from this rank to itself."""
    tensors = [KINDS[kind] for kind in kinds]
    got: queue.SimpleQueue[list[Tensor]] = queue.SimpleQueue()
    done = threading.Event()
    wired.send(0, tensors, done.set)
    wired.expect(0, [tensor.nbytes for tensor in tensors], partial(wired.clear_to_send, 0), got.put)
    on_message = got.get()
    assert done.wait() and len(on_message) == len(tensors)
    for tensor, expected in zip(on_message, tensors, strict=True):
        assert tensor.dtype is torch.uint8 and tensor.shape == (expected.nbytes,)
        assert torch.equal(tensor.view(expected.dtype).view(expected.shape), expected)


@pytest.fixture
def errors() -> Iterator[list[Any]]:
    yield []


def test_nothing_is_posted_before_the_other_end_comes(errors: list[Any]) -> None:
    pair = Never()
    transfers = PairTransfers(
        0, HostStreams(), lambda producer, consumer, rank: pair, lambda job_rank, error: errors.append(error)
    )
    ended = threading.Event()
    transfers.send(1, [torch.ones(1)], ended.set)
    transfers.clear_to_send(2)
    assert not pair.posted.wait(0.1)
    transfers.clear_to_send(1)
    assert pair.posted.wait() and not ended.is_set()
    pair.abort()
    assert ended.wait() and not errors
    transfers.close()


def test_what_is_under_way_is_broken_off_and_counts_for_nothing(
    errors: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "STOP_S", HANG_S)
    pair = Never()
    transfers = PairTransfers(
        0, HostStreams(), lambda producer, consumer, rank: pair, lambda job_rank, error: errors.append(error)
    )
    for source in (1, 4, 5):
        transfers.expect(source, [100], lambda: None, errors.append)
    transfers.expect(2, [], lambda: None, lambda tensors: None)
    transfers.send(3, [torch.ones(3)], lambda: errors.append("done"))  # nobody says "come"
    pair.posted.wait()
    transfers.close()
    assert not any(
        end._thread.is_alive() for end in (*transfers._senders.values(), *transfers._receivers.values())
    )
    assert not errors


def test_a_pair_that_cannot_be_made_is_reported_with_its_job_rank(errors: list[Any]) -> None:
    def join(producer: int, consumer: int, rank: int) -> Pair:
        raise RuntimeError(f"{producer} {consumer} {rank}")

    reported = threading.Semaphore(0)

    def broke(job_rank: int, error: Exception) -> None:
        errors.append((job_rank, str(error)))
        reported.release()

    transfers = PairTransfers(7, HostStreams(), join, broke)
    transfers.expect(4, [1], lambda: None, errors.append)
    assert reported.acquire()
    transfers.send(5, [torch.ones(1)], lambda: errors.append("done"))
    transfers.clear_to_send(5)
    assert reported.acquire()
    assert errors == [(4, "4 7 1"), (5, "7 5 0")]
    transfers.close()


def test_messages_without_a_byte_need_no_pair(errors: list[Any]) -> None:
    def join(producer: int, consumer: int, rank: int) -> Pair:
        raise AssertionError

    transfers = PairTransfers(0, HostStreams(), join, lambda job_rank, error: errors.append(error))
    ended = threading.Semaphore(0)
    transfers.send(1, [torch.empty(0), torch.empty(0, 5)], ended.release)
    transfers.clear_to_send(1)
    transfers.expect(
        2,
        [0, 0, 0],
        lambda: None,
        lambda tensors: (errors.append([len(tensor) for tensor in tensors]), ended.release())[0],
    )
    assert ended.acquire() and ended.acquire()
    assert errors == [[0, 0, 0]]
    transfers.close()


def test_who_comes_early_is_remembered(errors: list[Any]) -> None:
    pair = Never()
    pair.aborted.set()
    transfers = PairTransfers(
        0, HostStreams(), lambda producer, consumer, rank: pair, lambda job_rank, error: errors.append(error)
    )
    ended = threading.Event()
    transfers.clear_to_send(1)
    transfers.send(1, [torch.ones(1)], ended.set)
    assert ended.wait() and not errors
    transfers.close()


def test_what_was_received_dies_with_the_last_tensor_of_it() -> None:
    gone, received = threading.Event(), []
    pair = Never()
    pair.aborted.set()
    on_message = threading.Event()
    transfers = PairTransfers(
        0, HostStreams(gone.set), lambda producer, consumer, rank: pair, lambda job_rank, error: None
    )
    transfers.expect(
        1, [100, 8], lambda: None, lambda tensors: (received.extend(tensors), on_message.set())[1]
    )
    assert on_message.wait()
    kept = received[1].view(torch.int64)
    received.clear()
    gc.collect()
    assert not gone.is_set()
    del kept
    assert gone.wait()  # the thread that received it waits for the next message meanwhile
    transfers.close()
