"""A few real processes that are connected by one transport. A test gives each a function, and can stop and
kill them.

    with World(producer, consumer) as world:    one function per job rank, called with its `Worker`
        world.kill(0)
        assert world.ends(1) == ["PeerLost", "job rank 0 is gone"]

The functions return plain data. An `Impostor` is a peer in the test's own process that can send any message;
`KINDS` are the transports.
"""

from __future__ import annotations

import faulthandler
import json
import os
import select
import signal
import socket
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from meshctl.runtime.transports.buffers.arena import GRAIN
from meshctl.runtime.transports.buffers.buffer_pool import INLINE_MAX
from meshctl.runtime.transports.buffers.frames import tensor_of
from meshctl.runtime.transports.context import SLOTS, Context
from meshctl.runtime.transports.data_plane import DataPlane
from meshctl.runtime.transports.local.transport import LocalTransport
from meshctl.runtime.transports.peers import GENERATION, HEAD, Kind
from meshctl.runtime.transports.tcp.transport import TcpTransport
from tests.hang import HANG_S

TAG, BACK = 5, 6
SIZES = [
    1,
    63,
    INLINE_MAX - 1,
    INLINE_MAX,
    INLINE_MAX + 1,
    GRAIN - 1,
    GRAIN,
    GRAIN + 1,
    5 * GRAIN + 3,
    INLINE_MAX + 1,
    40 * GRAIN,
    1,
    GRAIN,
]
"""Sizes of frames in bytes."""


KINDS: dict[str, type[LocalTransport] | type[TcpTransport]] = {"local": LocalTransport, "tcp": TcpTransport}


@dataclass
class Worker:
    """The argument of the functions of a world."""

    transport: DataPlane
    way: Any
    """Its transport."""
    line: socket.socket
    device: Any = None
    addresses: Sequence[str] = ()

    @property
    def job_rank(self) -> int:
        return self.transport.job_rank

    def report(self, value: Any) -> None:
        """Sends a value to the test."""
        self.line.send(json.dumps(value).encode())

    def receive(self) -> Any:
        """Receives a value from the test."""
        return json.loads(self.line.recv(1 << 16) or os._exit(1))

    def poll(self) -> None:
        """Reads the messages that have arrived, without waiting."""
        while self.transport.poll():
            pass


Work = Callable[[Worker], Any]


class World:
    def __init__(
        self,
        *works: Work,
        slots: Mapping[int, int] | None = None,
        route_of: Callable[[int], str] = lambda tag: "",
        group_of: Callable[[int], str] = lambda job_rank: "",
        has_left: Callable[[int], bool] = lambda job_rank: False,
        device: Callable[[int], Any] | None = None,
        kind: str = "local",
    ) -> None:
        """Forks a process for each function, and connects them."""
        self.pids: list[int] = []
        self._lines: list[socket.socket] = []
        for job_rank, work in enumerate(works):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if pid := os.fork():
                theirs.close()
                ours.settimeout(HANG_S)
                self._lines.append(ours)
                self.pids.append(pid)
                continue
            try:
                for line in (ours, *self._lines):
                    line.close()
                context = Context(
                    job_rank, slots or {}, route_of=route_of, group_of=group_of, has_left=has_left
                )
                _live(context, work, theirs, device, kind)
            finally:
                os._exit(0)
        addresses = [self.receive(job_rank) for job_rank in range(len(works))]
        for job_rank in range(len(works)):
            self.notify(job_rank, addresses)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        for job_rank, pid in enumerate(self.pids):
            if pid:
                self.kill(job_rank)
                self.status(job_rank)
        for line in self._lines:
            line.close()

    def receive(self, job_rank: int) -> Any:
        """Returns the next value that a worker reports."""
        answer = self._lines[job_rank].recv(1 << 20)
        assert answer, f"job rank {job_rank} has ended"
        return json.loads(answer)

    def is_silent(self, job_rank: int, seconds: float) -> bool:
        return not select.select([self._lines[job_rank]], [], [], seconds)[0]

    def notify(self, job_rank: int, value: Any = None) -> None:
        self._lines[job_rank].send(json.dumps(value).encode())

    def kill(self, job_rank: int, signal: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pids[job_rank], signal)

    def status(self, job_rank: int) -> int:
        """Returns the exit code of a process, or the negative number of a signal."""
        file = os.pidfd_open(self.pids[job_rank])
        try:
            assert select.select([file], [], [], HANG_S)[0], f"job rank {job_rank} does not end"
        finally:
            os.close(file)
        _, status = os.waitpid(self.pids[job_rank], 0)
        self.pids[job_rank] = 0
        return os.waitstatus_to_exitcode(status)

    def ends(self, job_rank: int) -> list[Any]:
        """Returns the result of a function as [type of its error, message] or ["", returned value], and the
        time of its end on a clock that all processes share."""
        return list(self.receive(job_rank))

    def results(self, *job_ranks: int) -> list[Any]:
        """Returns the values that the functions returned."""
        found: dict[int, Any] = {}
        wanted = job_ranks or range(len(self.pids))
        while left := [job_rank for job_rank in wanted if job_rank not in found]:
            ready, _, _ = select.select([self._lines[job_rank] for job_rank in left], [], [], HANG_S)
            assert ready, f"{left} do not end; {found}"
            for job_rank in [job_rank for job_rank in left if self._lines[job_rank] in ready]:
                kind, found[job_rank], _ = self.ends(job_rank)
                assert not kind, {job_rank: [kind, found[job_rank]]}  # the others may wait for it
        return [found[job_rank] for job_rank in wanted]


def _live(
    context: Context,
    work: Work,
    line: socket.socket,
    make_device: Callable[[int], Any] | None,
    kind: str,
) -> None:
    faulthandler.disable()
    torch.set_num_threads(1)
    device = make_device(context.job_rank) if make_device else None
    if device:
        context = replace(context, make_transfers=device.make_transfers)
    transport = DataPlane(context)
    memory, access = (device.memory, device.access) if device else (None, None)
    local = kind == "local"
    way: Any = (
        LocalTransport(transport, "token", memory, access) if local else TcpTransport(transport, "token")
    )
    worker = Worker(transport, way, line, device)
    worker.report(way.address)
    worker.addresses = worker.receive()
    way.connect(dict(enumerate(worker.addresses)))
    try:
        end = ["", work(worker)]
    except BaseException as error:
        end = [type(error).__name__, str(error)]
    worker.report([*end, time.monotonic()])
    line.recv(1)  # until the test has ended: no death but that which it wants


class Impostor:
    """A peer that sends messages by hand to a transport, which knows it as a job rank."""

    def __init__(self, address: str, job_rank: int = 1, greeting: bytes | None = None) -> None:
        """`greeting` is sent in place of that of the job rank."""
        place, name = address.split()
        self.is_local = "." not in place
        kind = (
            (socket.AF_UNIX, socket.SOCK_SEQPACKET) if self.is_local else (socket.AF_INET, socket.SOCK_STREAM)
        )
        self._sock = socket.socket(*kind)
        self._sock.connect(bytes.fromhex(name) if self.is_local else (place, int(name)))
        self._sock.settimeout(HANG_S)
        self.send(hello(job_rank) if greeting is None else greeting)

    def frame(self, tag: int, data: bytes) -> None:
        self.send(message(Kind.FRAME, tag, data))

    def send(self, message: bytes, files: Sequence[int] = ()) -> None:
        passed = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", files))] if files else []
        self._sock.sendmsg([message], passed)

    def receive(self) -> tuple[int, ...]:
        """Returns (kind, generation, tag, bytes of the body) of the next message."""
        return HEAD.unpack_from(self._sock.recv(1 << 16 if self.is_local else HEAD.size))

    @property
    def is_closed(self) -> bool:
        with suppress(ConnectionResetError):
            return self._sock.recv(1) == b""
        return True

    def close(self) -> None:
        self._sock.close()


def message(kind: int, tag: int = 0, body: bytes = b"", generation: int = 0) -> bytes:
    return HEAD.pack(kind, generation, tag, len(body)) + body


def hello(job_rank: int, token: str = "token", generation: int = 0, wanted: int = 0) -> bytes:
    return message(Kind.HELLO, job_rank, GENERATION.pack(wanted) + token.encode(), generation)


def files_open() -> Counter[str]:
    """Counts the open files of this process: memory, sockets, processes. Without the event files of its
    transport."""
    found = Counter[str]()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # that of the listing itself
            continue
        if "eventfd" not in target:
            found[target.split(":[")[0]] += 1
    return found


@contextmanager
def connected_impostor(
    route_of: Callable[[int], str] = lambda tag: "", kind: str = "local"
) -> Iterator[tuple[DataPlane, Impostor]]:
    """Returns a data plane of this process, and its peer, which is job rank 1."""
    transport = DataPlane(Context(0, {TAG: SLOTS}, route_of=route_of))
    way: Any = KINDS[kind](transport, "token")
    way.connect({0: way.address, 1: f"{os.getpid()} "})
    impostor = Impostor(way.address)
    try:
        yield transport, impostor
    finally:
        impostor.close()
        transport.release()


def address_of(transport: DataPlane) -> str:
    """Returns the address of a data plane with one transport."""
    address: str = transport.transports[0].address  # type: ignore[attr-defined]
    return address


def error_after_polling(transport: DataPlane) -> str:
    """Reads all messages, and returns the error of the transport about its peer."""
    for _ in range(6):
        transport.poll()
    for tag in (TAG, BACK):
        for came in transport.queued(1, tag):
            for tensor in (tensor_of(came.frame), *came.out_of_band):
                tensor.sum()
    return str(next(iter(transport.losses), ""))


def pattern(nbytes: int, seed: int) -> Tensor:
    return (torch.arange(nbytes) * 7 + seed * 13).to(torch.uint8)


def send_frame(worker: Worker, to: Sequence[int], frame: Tensor, tag: int = TAG) -> None:
    lease = worker.transport.lease(to, tag, len(frame))
    lease.frame.copy_(frame)
    worker.transport.deliver(lease)
