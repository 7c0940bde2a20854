"""CUDA memory that processes of one node share: allocations of one process, opened by others through CUDA IPC
handles.

The module calls documented functions of libcudart, in the library that torch has loaded. torch's own sharing
leaves files in /dev/shm and has no handle for expandable segments. A handle names a whole allocation of the
driver, which may serve several small requests from one allocation. So the size of a piece is a multiple of
the driver's granularity, and a handle never exposes other memory.

An opened piece is addressed on this process's device, on whichever device its bytes are: the driver lets one
device read the other where the hardware can. Since CUDA 10.1 this includes devices that CUDA_VISIBLE_DEVICES
hides. Freeing memory that a peer has open is undefined, so a piece must last until all peers have closed it
(`outlasts`).
"""

from __future__ import annotations

import ctypes
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from meshctl.runtime.devices.backend import DeviceError
from meshctl.runtime.devices.from_address import tensor_at
from meshctl.runtime.transports.buffers.arena import ArenaError

GRAIN = 2 << 20
"""The driver's granularity in bytes. The size of a piece is a multiple of it."""
_LAZY_PEERS = 1
"""cudaIpcMemLazyEnablePeerAccess."""
_NON_BLOCKING = 1
"""cudaStreamNonBlocking: the stream and the default stream do not wait for each other."""
_BUS_NAME = 32
"""Bytes for the PCI address of a device."""


class _Handle(ctypes.Structure):
    """cudaIpcMemHandle_t: passed by value."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


_CALLS: dict[str, tuple[Any, ...]] = {
    "cudaMalloc": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t),
    "cudaFree": (ctypes.c_void_p,),
    "cudaIpcGetMemHandle": (ctypes.POINTER(_Handle), ctypes.c_void_p),
    "cudaIpcOpenMemHandle": (ctypes.POINTER(ctypes.c_void_p), _Handle, ctypes.c_uint),
    "cudaIpcCloseMemHandle": (ctypes.c_void_p,),
    "cudaDeviceGetPCIBusId": (ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    "cudaStreamCreateWithFlags": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint),
    "cudaGetLastError": (),
}
"""The functions with the types of their arguments. Each returns a cudaError_t."""


def library() -> Any:
    """Returns the libcudart that torch has loaded. Raises `DeviceError` if there is none."""
    if torch.version.cuda is None:
        raise DeviceError("this torch was built without CUDA")
    try:
        return ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")
    except OSError as error:
        raise DeviceError(str(error)) from None


def nccl_version() -> str:
    """Returns "NCCL 2.28.9"; empty for a torch without NCCL."""
    if not torch.distributed.is_nccl_available():
        return ""
    version = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return f"NCCL {'.'.join(map(str, version))}"


class Runtime:
    """The functions of libcudart. `current` returns a context manager that makes the device the current one;
    each call is made inside it.

    A failed call raises `DeviceError` and resets CUDA's last error, which torch would otherwise report at its
    next call.
    """

    def __init__(self, library: Any, current: Callable[[], AbstractContextManager[Any]]) -> None:
        self._current = current
        self._text = library.cudaGetErrorString
        self._text.argtypes, self._text.restype = (ctypes.c_int,), ctypes.c_char_p
        self._functions = {name: getattr(library, name) for name in _CALLS}
        for name, function in self._functions.items():
            function.argtypes, function.restype = _CALLS[name], ctypes.c_int

    def malloc(self, nbytes: int) -> int:
        address = ctypes.c_void_p()
        self._call("cudaMalloc", ctypes.byref(address), nbytes)
        return address.value or 0

    def free(self, address: int) -> None:
        self._call("cudaFree", address)

    def handle(self, address: int) -> bytes:
        handle = _Handle()
        self._call("cudaIpcGetMemHandle", ctypes.byref(handle), address)
        return bytes(handle)

    def open(self, handle: bytes) -> int:
        if len(handle) != ctypes.sizeof(_Handle):
            raise DeviceError(f"a handle of {len(handle)} bytes")
        address = ctypes.c_void_p()
        self._call(
            "cudaIpcOpenMemHandle", ctypes.byref(address), _Handle.from_buffer_copy(handle), _LAZY_PEERS
        )
        return address.value or 0

    def shut(self, address: int) -> None:
        """Undoes `open`, as `free` undoes `malloc`."""
        self._call("cudaIpcCloseMemHandle", address)

    def bus_name(self, number: int) -> str:
        name = ctypes.create_string_buffer(_BUS_NAME)
        self._call("cudaDeviceGetPCIBusId", name, _BUS_NAME, number)
        return name.value.decode()

    def stream(self) -> int:
        """Returns a new stream, which lives as long as the process."""
        stream = ctypes.c_void_p()
        self._call("cudaStreamCreateWithFlags", ctypes.byref(stream), _NON_BLOCKING)
        return stream.value or 0

    def _call(self, name: str, *arguments: Any) -> None:
        with self._current():
            if code := self._functions[name](*arguments):
                self._functions["cudaGetLastError"]()
                raise DeviceError(f"{name}: {self._text(code).decode()}")


@dataclass(eq=False)
class Region:
    """A `Piece` of a device's memory, mapped into this process."""

    address: int
    nbytes: int
    device: torch.device
    handle: bytes
    outlasts: bool
    """True if this process has allocated the memory, so that it must last until all peers have closed it."""
    release: Callable[[], None]
    """Frees memory of this process, or closes that of a peer."""
    file: int = -1
    """Always -1: memory of a device has no file, peers open it by its handle."""

    def view(self, at: int, nbytes: int, gone: Callable[[], None] | None = None) -> Tensor:
        if not 0 <= at <= at + nbytes <= self.nbytes:
            raise ArenaError(f"bytes {at} to {at + nbytes} of {self.nbytes}")
        return tensor_at(self.address + at, nbytes, self.device, self, gone)

    def close(self) -> None:
        """Releases the memory. It is called after the last use of the last view, and does nothing when called
        again."""
        release, self.release = self.release, lambda: None
        release()


class Later:
    """A thread that runs pairs of functions in order: one that waits, and one that acts after it."""

    def __init__(self) -> None:
        self._acts: queue.SimpleQueue[tuple[Callable[[], None], Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, daemon=True, name="after the device")
        self._thread.start()

    def put(self, wait: Callable[[], None], act: Callable[[], None]) -> None:
        """Adds a pair. May be called on any thread and at any time, also by the garbage collector during
        another `put`."""
        self._acts.put((wait, act))

    def _run(self) -> None:
        while (next_one := self._acts.get()) is not None:
            wait, act = next_one
            with suppress(RuntimeError):  # a broken device reads nothing any more
                wait()
            act()

    def close(self) -> None:
        self._acts.put(None)
        self._thread.join()


class Cuda:
    """The `DeviceMemory` of an NVIDIA device. It is made on the program's thread."""

    def __init__(self, device: torch.device, runtime: Runtime | None = None) -> None:
        """Raises `DeviceError` if there is no such device."""
        if not torch.cuda.is_available():
            raise DeviceError("torch finds no CUDA device")
        self.device = torch.device(
            "cuda", torch.cuda.current_device() if device.index is None else device.index
        )
        self.runtime = runtime or Runtime(library(), partial(torch.cuda.device, self.device))
        self.name = self.runtime.bus_name(self.device.index)
        self.transfer_library = nccl_version()
        self._program = torch.cuda.current_stream(self.device)
        """The stream on which the program's thread queues its work."""
        self._own: dict[bytes, int] = {}
        """Handle -> address, of the pieces that this process has made: CUDA opens a handle in other processes
        only."""
        self._later = Later()

    def holds(self, tensor: Tensor) -> bool:
        return tensor.device == self.device

    def make(self, nbytes: int) -> Region:
        size = -(-max(nbytes, 1) // GRAIN) * GRAIN
        address = self._allocate(size)
        try:
            handle = self.runtime.handle(address)
        except DeviceError:
            self.runtime.free(address)
            raise
        self._own[handle] = address
        return Region(address, size, self.device, handle, True, partial(self._free, handle))

    def open(self, handle: bytes, nbytes: int) -> Region:
        if (own := self._own.get(handle)) is not None:
            return Region(own, nbytes, self.device, handle, False, lambda: None)
        address = self.runtime.open(handle)
        return Region(address, nbytes, self.device, handle, False, partial(self.runtime.shut, address))

    def finish(self) -> None:
        _event_at_end(torch.cuda.current_stream(self.device)).synchronize()

    def after(self, act: Callable[[], None]) -> None:
        """Calls `act` when all work that is queued now on the current stream and on the program's stream is
        done. The two differ where a view dies on another thread than the program's. Code that reads a view on
        a third stream must keep it until this work is done, as for torch's own memory."""
        try:
            here = torch.cuda.current_stream(self.device)
            events = [_event_at_end(stream) for stream in {here, self._program}]
        except RuntimeError:  # the device is broken, or cannot be asked now
            self._later.put(partial(torch.cuda.synchronize, self.device), act)
        else:
            self._later.put(partial(_await, events), act)

    def close(self) -> None:
        self._later.close()

    def _allocate(self, nbytes: int) -> int:
        """Allocates memory and returns its address. If there is none, torch's cache is emptied first."""
        try:
            return self.runtime.malloc(nbytes)
        except DeviceError:
            torch.cuda.empty_cache()
            return self.runtime.malloc(nbytes)

    def _free(self, handle: bytes) -> None:
        self.runtime.free(self._own.pop(handle))


def _event_at_end(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """Returns an event at the present end of a stream. Waiting for it uses no processor time."""
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def _await(events: list[torch.cuda.Event]) -> None:
    for event in events:
        event.synchronize()
