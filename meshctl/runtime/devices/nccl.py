"""Tensors from device to device, where neither end can read the other's memory: between nodes, and where a
node's devices are strangers.

    sender                                          receiver
    send(to, tensors, done)    -- header -->       expect(source, sizes, clear_to_send, on_received)
    clear_to_send(to)          <-- the turn --     clear_to_send()
    done()                     == tensors ==>      on_received(tensors)

Headers and the turns travel on the workers' connections, so both ends post a transfer when both are ready for
it, and no kernel waits for a peer that computes. A sender lets its device finish what it wrote before it
sends the header, and never waits for more.

There is one communicator for each ordered pair of job ranks. NCCL runs what is posted on a communicator one
after another; if two senders shared one with their two receivers, ends that post in different orders would
wait in a circle. On a pair's own communicator the order is that of the headers. It is made by hand on the
launcher's store, by whoever posts the first transfer of the pair, since that waits for the other end. For the
same reason each end has a thread: what waits for one peer waits for no other.

Nor may a device have many communicators at work, says NCCL's manual, unless all ranks use them in one order.
So a worker sends one message at a time, and receives one: its "clear to send" says that it is the sender's
turn. A receiver that waits thus waits for a sender that has at most others to serve who have all said "clear
to send" to it, and wait for nobody else: there is no circle. A communicator is made at the first transfer of
its pair, in the turn of that; making it may wait for all that the device does just then.

`PairTransfers` knows nothing of CUDA: it works on `Streams` and on a `Join`, and so over gloo and the CPU's
memory as well.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store

from meshctl.runtime.collective import RUNNING
from meshctl.runtime.devices.backend import laid
from meshctl.runtime.devices.cuda import Runtime, library

STOP_S = 5.0
"""Seconds in which all ends stop, after what they wait for was aborted."""
_TAG = 0
Message = TypeVar("Message")


class Work(Protocol):
    def wait(self) -> bool: ...


class Pair(Protocol):
    """What is used of a process group of two: the sender is rank 0, the receiver rank 1."""

    def send(self, tensors: list[Tensor], rank: int, tag: int, /) -> Work: ...
    def recv(self, tensors: list[Tensor], rank: int, tag: int, /) -> Work: ...
    def abort(self) -> None: ...


Connect = Callable[[int, int, int], Pair]
"""(sender, receiver, own rank) -> this process's end; waits until the other end is there."""


class Streams(Protocol):
    """A device's order of work."""

    @property
    def device(self) -> torch.device: ...

    def empty(self, nbytes: int) -> Tensor:
        """uint8 `[nbytes]` to receive into, which the program may use as it likes when it is filled."""

    def mark(self) -> Callable[[], None]:
        """What waits, on any thread, until all that the current stream has now is done."""

    def own(self) -> AbstractContextManager[Any]:
        """Makes a stream current that nobody else uses, for the rest of a thread."""


@dataclass(frozen=True)
class _Outgoing:
    memory: Tensor
    written: Callable[[], None]
    done: Callable[[], None]


@dataclass(frozen=True)
class _Expected:
    sizes: tuple[int, ...]
    clear_to_send: Callable[[], None]
    on_received: Callable[[list[Tensor]], None]


class PairTransfers:
    """A worker's transfers with all others, pair by pair. No call waits but `close`; callbacks come on
    threads of its own."""

    def __init__(
        self, job_rank: int, streams: Streams, join: Connect, on_broken: Callable[[int, Exception], None]
    ) -> None:
        """`broke` is called with a place from which nothing more can come, or to which nothing more can
        go."""
        self._job_rank, self._streams, self._connect, self._on_broken = job_rank, streams, join, on_broken
        self._senders: dict[int, _Sender] = {}
        self._receivers: dict[int, _Receiver] = {}
        self._lock = threading.Lock()
        self._sending, self._receiving = threading.Lock(), threading.Lock()
        """Whose turn it is."""

    def send(self, to: int, tensors: Sequence[Tensor], done: Callable[[], None] = lambda: None) -> None:
        """Sends them as one message, in the order of calls. They are copied, on the current stream: who wrote
        them may write again at once. `done` is called when they have left."""
        sizes = [tensor.nbytes for tensor in tensors]
        starts, total = laid(sizes)
        memory = torch.empty(total, dtype=torch.uint8, device=self._streams.device)
        for tensor, at in zip(tensors, starts, strict=True):
            if tensor.nbytes:
                memory[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())
        self._sender(to).put(_Outgoing(memory, self._streams.mark(), done))

    def clear_to_send(self, to: int) -> None:
        """The other end has said that it is the turn of the next message to it; also before that was sent
        here."""
        self._sender(to).clear_to_send()

    def expect(
        self,
        source: int,
        sizes: Sequence[int],
        clear_to_send: Callable[[], None],
        on_received: Callable[[list[Tensor]], None],
    ) -> None:
        """The next message from there has tensors of so many bytes. `come` is called when it is its turn, to
        tell the sender; then `arrived` gets them, uint8 `[n]` each, complete."""
        self._receiver(source).put(_Expected(tuple(sizes), clear_to_send, on_received))

    def close(self) -> None:
        """Breaks off what is under way; once. After the end of a run there is nothing: everybody has said
        goodbye."""
        with self._lock:
            ends: list[_PairEnd[Any]] = [*self._senders.values(), *self._receivers.values()]
        for end in ends:  # before any of them stops: it would give its turn to another
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
    """This process's end of a pair, and its thread."""

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
        """Made on first use. Raises `ConnectionAbortedError` where this end was left meanwhile, and nobody
        would break it off."""
        if self._made is None:
            self._made = self._make()
        if self.is_leaving.is_set():
            raise ConnectionAbortedError
        return self._made

    def run(self) -> None:
        raise NotImplementedError

    def leave(self) -> None:
        """After `leaving` was set. All ends at once, each abort on a thread: it may wait for another
        end's."""
        self._messages.put(None)
        self._aborting.start()

    def put(self, message: Message) -> None:
        self._messages.put(message)

    def join(self, until: float) -> None:
        """A thread that still waits, for another end that never came, is left to the end of the process."""
        for thread in (self._aborting, self._thread):
            thread.join(max(0.0, until - time.monotonic()))

    def _abort(self) -> None:
        if self._made is not None:
            with suppress(RuntimeError):  # what broke before, or cannot be aborted
                self._made.abort()

    def _guarded(self) -> None:
        try:
            with self.streams.own():
                self.run()
        except Exception as error:  # the border of a thread: whoever waits for it must hear of it
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
        """The memory of a message was made on the program's stream and is read on others: it is kept until
        they are done with it."""
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
            del (
                memory,
                message,
            )  # what was received lives as long as its receivers want, and not until the next message


# CUDA


class CudaStreams:
    """`Streams` of a CUDA device. It is made on the program's thread.

    Streams of its own come from the driver: those that torch hands out are few, and a transfer would wait for
    what else is on them. What is received lies in memory of torch's allocator that belongs to a stream on
    which nothing ever runs. The program's stream is recorded on it, so when its last tensor dies the
    allocator waits for what the program has queued before it gives the memory out again; the transfer that
    filled it was over before anybody saw it. Who uses it on another stream records that, as with any tensor.
    """

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
    """Communicators on the launcher's store; each on a connection of its own, on which it may wait without
    keeping others waiting."""

    def join(sender: int, receiver: int, rank: int) -> Pair:
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options._timeout = RUNNING
        with torch.cuda.device(device):
            pair = dist.ProcessGroupNCCL(pair_store(store, sender, receiver), rank, 2, options)
            pair.eager_connect_single_device(device)
        return cast(Pair, pair)

    return join


def pair_store(store: Store, sender: int, receiver: int) -> Store:
    """Where the two ends of a pair find one another."""
    own = PrefixStore(f"nccl/{sender}-{receiver}", cast(Any, store).clone())
    own.set_timeout(RUNNING)
    return own


def transfers(
    job_rank: int, device: torch.device, store: Store, on_broken: Callable[[int, Exception], None]
) -> PairTransfers:
    """A worker's, over NCCL. Raises `DeviceError` where CUDA cannot be used."""
    return PairTransfers(job_rank, CudaStreams(device), nccl_pairs(device, store), on_broken)
