"""Transfers of tensors between devices that cannot read each other's memory: devices of different nodes, and
devices of one node without peer access.

    sender                                          receiver
    send(to, tensors, done)    -- header -->       expect(source, sizes, clear_to_send, on_received)
    clear_to_send(to)          <-- clear ---       clear_to_send()
    done()                     == tensors ==>      on_received(tensors)

Headers and "clear to send" messages travel on the connections of the workers. Both ends post a transfer only
when both are ready, so no kernel waits for a peer that computes. Before a sender sends the header, it waits
until its device has written the tensors. It waits for nothing else.

Each ordered pair of job ranks has its own communicator. NCCL runs the operations of a communicator one after
another. If pairs shared a communicator, ends that post their operations in different orders would deadlock.
On the communicator of one pair, the order is that of the headers. The first transfer of a pair makes its
communicator, through the launcher's store. This waits for the other end, so each end of a pair has a thread
of its own, and waiting for one peer delays no other.

NCCL's manual forbids several communicators at work on one device unless all ranks use them in the same order.
So a worker sends one message at a time and receives one message at a time: "clear to send" gives the turn to
one sender. There is no deadlock: a receiver that has given the turn waits for a sender, and this sender
serves only receivers that have given it the turn and wait for nobody else. A communicator is made in the turn
of its first transfer, which may wait for all other work of the device.

`PairTransfers` does not use CUDA itself. It works on any `Streams` and `Connect`, also on CPU memory and
gloo."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store

from meshctl.dataclass import dataclass
from meshctl.runtime.collectives.collective import RUNNING
from meshctl.runtime.devices.backend import DEVICES, FAILURES, DeviceMemory, laid
from meshctl.runtime.devices.cuda import Cuda, Runtime, library

STOP_S = 5.0
"""Seconds that `close` waits for the threads, after their transfers were aborted."""
_TAG = 0
Message = TypeVar("Message")


class Work(Protocol):
    def wait(self) -> bool: ...


class Pair(Protocol):
    """The methods of a process group of two that transfers call. The sender is rank 0."""

    def send(self, tensors: list[Tensor], rank: int, tag: int, /) -> Work: ...
    def recv(self, tensors: list[Tensor], rank: int, tag: int, /) -> Work: ...
    def abort(self) -> None: ...


Connect = Callable[[int, int, int], Pair]
"""(sender, receiver, own rank) -> this process's end of the pair. Waits for the other end."""


class Streams(Protocol):
    """The streams of a device."""

    @property
    def device(self) -> torch.device: ...

    def empty(self, nbytes: int) -> Tensor:
        """Returns uint8 `[nbytes]` for a message. The program may use it on its own stream once it is
        filled."""

    def mark(self) -> Callable[[], None]:
        """Returns a function that waits until the work that is queued now on the current stream is done. Any
        thread may call the function."""

    def own(self) -> AbstractContextManager[Any]:
        """Returns a context manager that makes a new stream the current one. No other code uses this
        stream."""


@dataclass(frozen=True)
class _Outgoing:
    memory: Tensor
    """uint8 `[n]`: all tensors of the message."""
    written: Callable[[], None]
    """Waits until the device has written `memory`."""
    done: Callable[[], None]
    """Called when the message has been sent."""


@dataclass(frozen=True)
class _Expected:
    sizes: tuple[int, ...]
    clear_to_send: Callable[[], None]
    on_received: Callable[[list[Tensor]], None]


class PairTransfers:
    """The transfers of a worker with all others, pair by pair. Only `close` waits. Callbacks are called on
    threads of this object."""

    def __init__(
        self, job_rank: int, streams: Streams, join: Connect, on_broken: Callable[[int, Exception], None]
    ) -> None:
        """`on_broken` is called with a job rank, and the error, when transfers from or to it are no longer
        possible."""
        self._job_rank, self._streams, self._connect, self._on_broken = job_rank, streams, join, on_broken
        self._senders: dict[int, _Sender] = {}
        self._receivers: dict[int, _Receiver] = {}
        self._lock = threading.Lock()
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        """Held during the transfer of one message."""

    def send(self, to: int, tensors: Sequence[Tensor], done: Callable[[], None] = lambda: None) -> None:
        """Sends tensors as one message; messages keep the order of calls. The tensors are copied on the
        current stream, so they may be written again at once. `done` is called when the copy has been sent."""
        sizes = [tensor.nbytes for tensor in tensors]
        starts, total = laid(sizes)
        memory = torch.empty(total, dtype=torch.uint8, device=self._streams.device)
        for tensor, at in zip(tensors, starts, strict=True):
            if tensor.nbytes:
                memory[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
        self._sender(to).put(_Outgoing(memory, self._streams.mark(), done))

    def clear_to_send(self, to: int) -> None:
        """Permits the transfer of the next message to `to`. It is called when this receiver's "clear to send"
        arrives, possibly before the `send` of the message."""
        self._sender(to).clear_to_send()

    def expect(
        self,
        source: int,
        sizes: Sequence[int],
        clear_to_send: Callable[[], None],
        on_received: Callable[[list[Tensor]], None],
    ) -> None:
        """Announces the next message of `source`: tensors of the given sizes in bytes.

        `clear_to_send` is called when it is the message's turn, and must notify the sender. `on_received` is
        called with the complete tensors, uint8 `[n]` each.
        """
        self._receiver(source).put(_Expected(tuple(sizes), clear_to_send, on_received))

    def close(self) -> None:
        """Aborts all transfers. It is called once; after a run that ended normally there are none."""
        with self._lock:
            ends: list[_PairEnd[Any]] = [*self._senders.values(), *self._receivers.values()]
        for end in ends:  # before any end stops, because its turn would pass to another one
            end.is_leaving.set()
        for end in ends:
            end.leave()
        until = time.monotonic() + STOP_S
        for end in ends:
            end.join(until)

    def _sender(self, to: int) -> _Sender:
        with self._lock:
            if to not in self._senders:
                self._senders[to] = _Sender(
                    self._streams,
                    partial(self._connect, self._job_rank, to, 0),
                    partial(self._on_broken, to),
                    self._sending,
                )
            return self._senders[to]

    def _receiver(self, source: int) -> _Receiver:
        with self._lock:
            if source not in self._receivers:
                self._receivers[source] = _Receiver(
                    self._streams,
                    partial(self._connect, source, self._job_rank, 1),
                    partial(self._on_broken, source),
                    self._receiving,
                )
            return self._receivers[source]


class _PairEnd(Generic[Message]):
    """One end of a pair, with its thread."""

    def __init__(
        self,
        streams: Streams,
        join: Callable[[], Pair],
        on_broken: Callable[[Exception], None],
        turn: threading.Lock,
    ) -> None:
        self.streams, self.turn, self._make, self._on_broken = streams, turn, join, on_broken
        self._messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        """None ends the thread."""
        self._made: Pair | None = None
        self.is_leaving = threading.Event()
        self._aborting = threading.Thread(target=self._abort, daemon=True, name="abort")
        self._thread = threading.Thread(target=self._guarded, daemon=True, name=type(self).__name__)
        self._thread.start()

    @property
    def pair(self) -> Pair:
        """The process group, which is made on first use. Raises `ConnectionAbortedError` after `leave`,
        because nothing would abort a pair that is made later."""
        if self._made is None:
            self._made = self._make()
        if self.is_leaving.is_set():
            raise ConnectionAbortedError
        return self._made

    def run(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        """Aborts the pair, after `is_leaving` was set. Each end aborts on a thread of its own, because its
        abort may wait until another end aborts as well."""
        self._messages.put(None)
        self._aborting.start()

    def put(self, message: Message) -> None:
        self._messages.put(message)

    def join(self, until: float) -> None:
        """Waits for the threads until the time `until` of `time.monotonic`. A thread that waits for a peer
        which never connects lives until the process ends."""
        for thread in (self._aborting, self._thread):
            thread.join(max(0.0, until - time.monotonic()))

    def _abort(self) -> None:
        if self._made is not None:
            with suppress(RuntimeError):  # it is broken already, or cannot be aborted
                self._made.abort()

    def _guarded(self) -> None:
        try:
            with self.streams.own():
                self.run()
        except Exception as error:  # nothing above catches errors of a thread
            if not self.is_leaving.is_set():
                self._on_broken(error)


class _Sender(_PairEnd[_Outgoing]):
    def __init__(self, *args: Any) -> None:
        self._invitations = threading.Semaphore(0)
        super().__init__(*args)

    def clear_to_send(self) -> None:
        self._invitations.release()

    def leave(self) -> None:
        super().leave()
        self._invitations.release()

    def run(self) -> None:
        """Sends the messages. The memory of a message belongs to the program's stream and is read on another
        one, so it is kept until the transfer is done."""
        while (message := self._messages.get()) is not None:
            message.written()
            self._invitations.acquire()
            if self.is_leaving.is_set():
                return
            if message.memory.nbytes:
                with self.turn:
                    self.pair.send([message.memory], 1, _TAG).wait()
                    self.streams.mark()()
            if self.is_leaving.is_set():  # it may have been broken off
                return
            message.done()
            del message


class _Receiver(_PairEnd[_Expected]):
    def run(self) -> None:
        while (message := self._messages.get()) is not None:
            starts, total = laid(message.sizes)
            memory = self.streams.empty(total)
            with self.turn:
                if self.is_leaving.is_set():
                    return
                message.clear_to_send()
                if total:
                    self.pair.recv([memory], 0, _TAG).wait()
                    self.streams.mark()()
            if self.is_leaving.is_set():  # it may have been broken off
                return
            message.on_received(
                [memory[at : at + size] for at, size in zip(starts, message.sizes, strict=True)]
            )
            del memory, message  # or they would live until the next message arrives


# CUDA


class CudaStreams:
    """The `Streams` of a CUDA device. It is made on the program's thread.

    New streams come from the driver. torch has few and shares them, so a transfer would wait for other work.

    Received tensors are in memory of torch's allocator that belongs to an idle stream. The program's stream
    is recorded on this memory: when the last tensor dies, the allocator waits for the work that the program
    has queued before it reuses the memory. The transfer itself is over before the program gets the tensors.
    Code that uses them on another stream calls `record_stream`, as for any tensor."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._runtime = Runtime(library(), partial(torch.cuda.device, device))
        self._program = torch.cuda.current_stream(device)
        self._idle = self._new()

    def empty(self, nbytes: int) -> Tensor:
        with torch.cuda.stream(self._idle):
            memory = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        memory.record_stream(self._program)
        return memory

    def mark(self) -> Callable[[], None]:
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.device))
        return event.synchronize

    def own(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._new())

    def _new(self) -> torch.cuda.Stream:
        with torch.cuda.device(self.device):
            return torch.cuda.ExternalStream(self._runtime.stream(), device=self.device)  # type: ignore[no-untyped-call]


def nccl_pairs(device: torch.device, store: Store) -> Connect:
    """Returns a function that makes NCCL communicators through the launcher's store. Each uses its own
    connection to the store, so that waiting for one pair delays no other."""

    def join(sender: int, receiver: int, rank: int) -> Pair:
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options._timeout = RUNNING
        with torch.cuda.device(device):
            pair = dist.ProcessGroupNCCL(pair_store(store, sender, receiver), rank, 2, options)
            pair.eager_connect_single_device(device)
        return cast(Pair, pair)

    return join


def pair_store(store: Store, sender: int, receiver: int) -> Store:
    """Returns the store in which the two ends of a pair find each other."""
    own = PrefixStore(f"nccl/{sender}-{receiver}", cast(Any, store).clone())
    own.set_timeout(RUNNING)
    return own


def transfers(
    job_rank: int, device: torch.device, store: Store, on_broken: Callable[[int, Exception], None]
) -> PairTransfers:
    """Returns the transfers of a worker over NCCL. Raises `DeviceError` if CUDA cannot be used."""
    return PairTransfers(job_rank, CudaStreams(device), nccl_pairs(device, store), on_broken)


def memory_of(device: torch.device) -> DeviceMemory | None:
    """Returns a device's memory; None if its tensors travel through host memory, because it has no memory
    of its own or cannot be used."""
    if device.type not in DEVICES:
        return None
    try:
        return Cuda(device)
    except (*FAILURES, AttributeError):  # AttributeError: a library that lacks a function
        return None


def own_stream(device: torch.device | None) -> AbstractContextManager[Any]:
    """Returns a context manager within which work on a device does not wait for what the program has
    queued."""
    if device is None or device.type not in DEVICES:
        return nullcontext()
    return CudaStreams(device).own()
