"""Memory of a device that the processes of one node share: written once by whoever makes a tensor, read where
it lies.

    memory.make(n)       this process's        piece.handle  --told-->      memory.open(handle, n)
                         somebody else's
    memory.finish()      what was written is there                          piece.view(...)             read
                         in place

A device runs behind the program that gives it work. So before others are told of a tensor, `finish` waits for
what is queued; and a view that has died in Python may still be read by what is queued then: memory is given
back `after` that.

Which pairs of workers may go this way is found out by trying: `meet` has everybody read everybody's memory
once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import accumulate
from typing import Any, Literal, Protocol, cast

import torch
from torch import Tensor
from torch.distributed import Store

from meshctl.runtime.transports.buffers.arena import Piece

ALIGN = 512
"""Bytes; of the begin of each of several tensors in one memory, as torch's allocator has it."""
_SAMPLE = 4096
"""Bytes that are read on trial."""
_OFFERS, _READS = "device/offers", "device/reads"
"""Where workers tell one another what to read, and what they have read."""
_FAILURES = (RuntimeError, BufferError)
"""What a device that cannot be used raises, by way of torch or of us."""


class DeviceError(RuntimeError):
    """A device that does not do what it was asked for; the message says the call."""


def laid(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where tensors of so many bytes begin, one after another, and how many bytes they take: the same for
    whoever knows the sizes."""
    *starts, total = accumulate((-(-size // ALIGN) * ALIGN for size in sizes), initial=0)
    return starts, total


class DeviceMemory(Protocol):
    """One worker's device."""

    @property
    def name(self) -> str:
        """The hardware's own: the same for two workers where they share it."""

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor is on this device."""

    def make(self, nbytes: int) -> Piece:
        """Memory of this process. Raises `DeviceError`."""

    def open(self, handle: bytes, nbytes: int) -> Piece:
        """A piece of any process of this node, by its handle. Raises `DeviceError`."""

    def finish(self) -> None:
        """Waits until all that this thread has queued is done: others may read what it wrote."""

    def after(self, act: Callable[[], None]) -> None:
        """Calls `act`, on a thread of its own, when all that is queued now is done. For finalizers: it never
        waits and never raises."""

    def close(self) -> None:
        """After the last `after`: what was left to do is done."""


@dataclass(frozen=True)
class Means:
    """What a type of device has; `module:attribute` each, loaded on use."""

    memory: str
    """(device) -> `DeviceMemory`."""
    transfers: str
    """(place, device, store, broke) -> `nccl.PairTransfers`."""


DEVICES: Mapping[str, Means] = {
    "cuda": Means("meshctl.runtime.devices.cuda:Cuda", "meshctl.runtime.devices.nccl:transfers"),
}
"""By torch's name; tensors of every other type go by way of the CPU's memory."""


def memory_of(device: torch.device) -> DeviceMemory | None:
    """None where tensors go by way of the CPU's memory: that device has no other, or cannot be used."""
    if device.type not in DEVICES:
        return None
    make = _loaded(DEVICES[device.type].memory)
    try:
        return cast(DeviceMemory, make(device))
    except (*_FAILURES, AttributeError):  # the latter of a library that lacks a function
        return None


def transfers_of(
    place: int, device: torch.device, store: Store, broke: Callable[[int, Exception], None]
) -> Any:
    """The `nccl.PairTransfers` of a device that has a `memory_of`."""
    return _loaded(DEVICES[device.type].transfers)(place, device, store, broke)


def _loaded(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)


CHOICE = "MESHCTL_DEVICES"
"""`cpu` in the environment has tensors of all devices go by way of the CPU's memory."""


# Who reads whom


Path = Literal["device", "nccl", "cpu"]


@dataclass(frozen=True)
class Neighbours:
    """What the workers of one node found out about their devices; the same in all of them."""

    names: Mapping[int, str]
    """Place -> what its device is called; empty where it has none that others could use."""
    reads: Mapping[int, frozenset[int]]
    """Place -> whose memory it reads where it lies."""

    def way(self, giver: int, taker: int) -> Path:
        """How a tensor on one's device gets to the other's. NCCL takes no two processes on one device."""
        if giver in self.reads.get(taker, ()):
            return "device"
        names = self.names.get(giver), self.names.get(taker)
        return "nccl" if all(names) and names[0] != names[1] else "cpu"


def meet(
    memory: DeviceMemory | None,
    place: int,
    places: Collection[int],
    store: Store,
    wait: Callable[[Mapping[int, str]], None],
) -> Neighbours:
    """Tries who reads whom; all `places` of a node call it. `wait` is given a key of the store for each
    place, and waits for them all."""
    piece, offer = _offered(memory, place)
    said = _told(store, _OFFERS, place, places, offer, wait)
    names = {other: name for other, (name, _) in said.items()}
    handles = {
        other: bytes.fromhex(handle) for other, (_, handle) in said.items() if handle and other != place
    }
    read = [other for other, handle in handles.items() if memory and _reads(memory, other, handle)]
    reads = _told(store, _READS, place, places, read, wait)
    if piece:  # everybody has read it, and closed it
        piece.close()
    return Neighbours(names, {other: frozenset(numbers) for other, numbers in reads.items()})


def devices_at(
    places: Collection[int], store: Store, wait: Callable[[Mapping[int, str]], None]
) -> frozenset[int]:
    """Those places of other nodes that have a device others can use; they say so when they `meet` those of
    their own."""
    return frozenset(place for place, (name, _) in _words(store, _OFFERS, places, wait).items() if name)


def _told(
    store: Store,
    where: str,
    place: int,
    places: Collection[int],
    word: Any,
    wait: Callable[[Mapping[int, str]], None],
) -> dict[int, Any]:
    """Tells a word, and hears everybody's, by place."""
    store.set(f"{where}/{place}", json.dumps(word))
    return _words(store, where, places, wait)


def _words(
    store: Store, where: str, places: Collection[int], wait: Callable[[Mapping[int, str]], None]
) -> dict[int, Any]:
    keys = {place: f"{where}/{place}" for place in sorted(places)}
    wait(keys)
    return {place: json.loads(store.get(key)) for place, key in keys.items()}


def _offered(memory: DeviceMemory | None, place: int) -> tuple[Piece | None, tuple[str, str]]:
    """A piece for others to read, and what they are told of it: the device's name and the handle."""
    if memory is None:
        return None, ("", "")
    try:
        piece = memory.make(_SAMPLE)
        piece.view(0, _SAMPLE).copy_(_pattern(place))
        memory.finish()
    except _FAILURES:
        return None, (memory.name, "")
    return piece, (memory.name, piece.handle.hex())


def _reads(memory: DeviceMemory, other: int, handle: bytes) -> bool:
    """Whether another's pattern is seen in its piece."""
    try:
        piece = memory.open(handle, _SAMPLE)
    except _FAILURES:
        return False
    try:
        return torch.equal(piece.view(0, _SAMPLE).cpu(), _pattern(other))
    except _FAILURES:
        return False
    finally:
        piece.close()


def _pattern(place: int) -> Tensor:
    return (torch.arange(_SAMPLE) * (2 * place + 1) % 251).to(torch.uint8)
