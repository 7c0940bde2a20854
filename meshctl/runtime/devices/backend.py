"""Memory of a device that the processes of one node share: its producer writes it once, consumers read it in
place.

    producer                                                       consumer
    memory.make(n)       memory of its own      piece.handle -->   memory.open(handle, n)
    memory.finish()      the writes are done                       piece.view(...)

A device works asynchronously: the program only queues its work. So `finish` waits for the queue before a
tensor is announced to peers. Queued work may still read a view that has died in Python, so memory is returned
by `after`, when this work is done.

`handshake` finds out by trial which workers can read one another's memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from itertools import accumulate
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from meshctl.dataclass import dataclass
from meshctl.network.control_store import Store
from meshctl.runtime.transports.buffers.arena import Piece

ALIGN = 512
"""Alignment in bytes of several tensors in one piece of memory, as in torch's allocator."""
_SAMPLE_BYTES = 4096
"""Bytes of the sample piece that peers read on trial."""
_OFFERS, _READS = "device/offers", "device/reads"
"""Prefixes of keys of the store. Under the first one each worker publishes its device's name and the handle
of its sample piece, under the second one the job ranks whose sample piece it could read."""
FAILURES = (RuntimeError, BufferError)
"""Errors that torch or this package raises for a device that cannot be used."""


class DeviceError(RuntimeError):
    """A call of a device's library failed. The message names the call."""


def laid(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Returns the offsets of tensors that lie one after another in one piece of memory, and the size of the
    piece. `sizes` are the bytes of the tensors. Sender and receiver both compute the layout, from these sizes
    alone."""
    *starts, total = accumulate((-(-size // ALIGN) * ALIGN for size in sizes), initial=0)
    return starts, total


class DeviceMemory(Protocol):
    """The memory of one worker's device."""

    @property
    def name(self) -> str:
        """The hardware's own name: equal for two workers that share the device."""

    @property
    def transfer_library(self) -> str:
        """The name and version of the library that sends tensors to other devices. Only equal ones can send
        to each other."""

    def holds(self, tensor: Tensor) -> bool:
        """Returns whether a tensor is on this device."""

    def make(self, nbytes: int) -> Piece:
        """Allocates a piece that the other processes of this node can open. Raises `DeviceError`."""

    def open(self, handle: bytes, nbytes: int) -> Piece:
        """Returns the piece of `nbytes` bytes with this `Piece.handle`, which any process of this node has
        made. Raises `DeviceError`."""

    def finish(self) -> None:
        """Waits until all work that this thread has queued is done, so that peers may read what it wrote."""

    def after(self, act: Callable[[], None]) -> None:
        """Calls `act` on a separate thread when all work that is queued now is done. It never waits and never
        raises, so finalizers can call it."""

    def close(self) -> None:
        """Waits until every function that was passed to `after` has been called."""


DEVICES = {"cuda"}
"""torch's names of the device types that have a `DeviceMemory`. Tensors on other types of devices travel
through host memory."""


def finish(device: torch.device | None) -> None:
    """Waits until what this thread has queued on a device is done."""
    if device is not None and device.type in DEVICES:
        torch.get_device_module(device).current_stream(device).synchronize()


CHOICE = "MESHCTL_DEVICES"
"""An environment variable. Where it is `cpu`, the tensors of all devices travel through host memory."""


# Access between peers


Path = Literal["device", "nccl", "cpu"]
"""The way of a tensor from one device to another: it is read in place, sent by NCCL, or goes through host
memory."""
Wait = Callable[[Mapping[int, str]], None]
"""Takes job rank -> key of the store, and returns when all these keys are set."""


@dataclass(frozen=True)
class PeerAccess:
    """The pairs of workers of one node that can read each other's device memory. All of these workers have
    equal results."""

    names: Mapping[int, str]
    """Job rank -> name of its device; empty if it has none that peers can use."""
    reads: Mapping[int, frozenset[int]]
    """Job rank -> the job ranks whose memory it reads in place."""
    libraries: Mapping[int, str] = field(default_factory=dict)
    """Job rank -> its `DeviceMemory.transfer_library`. Groups with interpreters of their own may differ."""

    def path(self, producer: int, consumer: int) -> Path:
        """Returns how a tensor on the producer's device reaches the consumer's. NCCL refuses two processes on
        one device."""
        if producer in self.reads.get(consumer, ()):
            return "device"
        names = self.names.get(producer), self.names.get(consumer)
        can_send = all(names) and names[0] != names[1]
        has_equal_libraries = self.libraries.get(producer) == self.libraries.get(consumer)
        return "nccl" if can_send and has_equal_libraries else "cpu"


def handshake(
    memory: DeviceMemory | None, job_rank: int, job_ranks: Collection[int], store: Store, wait: Wait
) -> PeerAccess:
    """Finds out by trial which workers of a node can read whose memory: each worker publishes a sample piece,
    filled with a pattern, and tries to read the pieces of the others. All `job_ranks` of the node call it;
    `memory` is None if a worker has no device."""
    piece, (name, handle) = _offer(memory, job_rank)
    offer = (name, handle, memory.transfer_library if memory else "")
    offers = _exchange(store, _OFFERS, job_rank, job_ranks, offer, wait)
    names = {other: name for other, (name, _, _) in offers.items()}
    libraries = {other: library for other, (_, _, library) in offers.items()}
    handles = {
        other: bytes.fromhex(handle)
        for other, (_, handle, _) in offers.items()
        if handle and other != job_rank
    }
    read = [other for other, handle in handles.items() if memory and _can_read(memory, other, handle)]
    reads = _exchange(store, _READS, job_rank, job_ranks, read, wait)
    if piece:  # all have read it and closed it
        piece.close()
    return PeerAccess(names, {other: frozenset(numbers) for other, numbers in reads.items()}, libraries)


def devices_at(job_ranks: Collection[int], library: str, store: Store, wait: Wait) -> frozenset[int]:
    """Returns the members of `job_ranks` that have a device which peers can use, with the transfer library
    `library`. The members may be on other nodes, because each worker publishes its device in the `handshake`
    of its own node."""
    offers = _values(store, _OFFERS, job_ranks, wait)
    return frozenset(other for other, (name, _, theirs) in offers.items() if name and theirs == library)


def _exchange(
    store: Store, key: str, job_rank: int, job_ranks: Collection[int], value: Any, wait: Wait
) -> dict[int, Any]:
    store.set(f"{key}/{job_rank}", json.dumps(value))
    return _values(store, key, job_ranks, wait)


def _values(store: Store, key: str, job_ranks: Collection[int], wait: Wait) -> dict[int, Any]:
    keys = {other: f"{key}/{other}" for other in sorted(job_ranks)}
    wait(keys)
    values = store.multi_get([*keys.values()])
    return {other: json.loads(value) for other, value in zip(keys, values, strict=True)}


def _offer(memory: DeviceMemory | None, job_rank: int) -> tuple[Piece | None, tuple[str, str]]:
    """Returns a sample piece and what is published about it: the device's name and the handle in hex. Where
    there is no device or no memory, the piece is None and the handle empty."""
    if memory is None:
        return None, ("", "")
    try:
        piece = memory.make(_SAMPLE_BYTES)
        piece.view(0, _SAMPLE_BYTES).copy_(_pattern(job_rank))
        memory.finish()
    except FAILURES:
        return None, (memory.name, "")
    return piece, (memory.name, piece.handle.hex())


def _can_read(memory: DeviceMemory, other: int, handle: bytes) -> bool:
    try:
        piece = memory.open(handle, _SAMPLE_BYTES)
    except FAILURES:
        return False
    try:
        return torch.equal(piece.view(0, _SAMPLE_BYTES).cpu(), _pattern(other))
    except FAILURES:
        return False
    finally:
        piece.close()


def _pattern(job_rank: int) -> Tensor:
    return (torch.arange(_SAMPLE_BYTES) * (2 * job_rank + 1) % 251).to(torch.uint8)
