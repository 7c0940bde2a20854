"""Transfers between pairs of workers, in real processes."""

from __future__ import annotations

import os
import random
import select
import signal
import socket
import struct
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.distributed import TCPStore

from meshctl.runtime.devices.nccl import PairTransfers
from tests.hang import HANG_S
from tests.runtime.devices.host_pairs import HostStreams, by_gloo, ended, reported

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
