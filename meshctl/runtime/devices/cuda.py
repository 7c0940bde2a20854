"""CUDA's memory between processes of one node: allocations of our own, opened elsewhere by CUDA's IPC
handles.

By calls of libcudart that NVIDIA documents, on the library that torch has loaded. torch's own way of sharing
leaves files in /dev/shm, and has no handle for what its allocator makes of expandable segments. A handle
names a whole allocation, and the driver cuts small ones out of larger ones; so pieces are whole numbers of
what it hands out, and nobody sees what is beside them.

An opened piece is on this process's device wherever its bytes are: the driver lets one device read the other,
where it can. Since CUDA 10.1 that holds for devices which CUDA_VISIBLE_DEVICES hides, too. Freeing memory
that somebody has open is not defined, so it `outlasts`.
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
"""Bytes that the driver hands out at once; a piece is a whole number of them."""
_LAZY_PEERS = 1
"""cudaIpcMemLazyEnablePeerAccess."""
_NON_BLOCKING = 1
"""cudaStreamNonBlocking: the stream does not wait for the default one, nor that for it."""
_BUS_NAME = 32
"""Room for a device's address on its bus."""


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
"""What is called, and with what; each gives a cudaError_t."""


def library() -> Any:
    """libcudart as torch has loaded it. Raises `DeviceError`."""
    if torch.version.cuda is None:
        raise DeviceError("this torch was built without CUDA")
    try:
        return ctypes.CDLL(f"libcudart.so.{torch.version.cuda.partition('.')[0]}")
    except OSError as error:
        raise DeviceError(str(error)) from None


def driver() -> Any:
    """libcuda, on which libcudart stands; none where it cannot be found."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


class Runtime:
    """The calls, each with one device current; errors are told and forgotten, or the next one who asks torch
    would meet them."""

    def __init__(
        self, library: Any, current: Callable[[], AbstractContextManager[Any]], driver: Any = None
    ) -> None:
        self._current = current
        self._range = driver and driver.cuMemGetAddressRange_v2
        if self._range:
            self._range.argtypes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t), ctypes.c_void_p)
            self._range.restype = ctypes.c_int
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

    def extent(self, address: int) -> int | None:
        """Bytes of the allocation that begins at an address; none where the driver does not say."""
        nbytes = ctypes.c_size_t()
        if not self._range:
            return None
        with self._current():
            return None if self._range(None, ctypes.byref(nbytes), address) else nbytes.value

    def shut(self, address: int) -> None:
        self._call("cudaIpcCloseMemHandle", address)

    def bus_name(self, number: int) -> str:
        name = ctypes.create_string_buffer(_BUS_NAME)
        self._call("cudaDeviceGetPCIBusId", name, _BUS_NAME, number)
        return name.value.decode()

    def stream(self) -> int:
        """A new one, which lasts as long as the process."""
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
    """A piece of a device's memory in this process's address space."""

    address: int
    nbytes: int
    device: torch.device
    handle: bytes
    outlasts: bool
    """True for what this process has made."""
    release: Callable[[], None]
    file: int = -1

    def view(self, at: int, nbytes: int, gone: Callable[[], None] | None = None) -> Tensor:
        if not 0 <= at <= at + nbytes <= self.nbytes:
            raise ArenaError(f"bytes {at} to {at + nbytes} of {self.nbytes}")
        return tensor_at(self.address + at, nbytes, self.device, self, gone)

    def close(self) -> None:
        """After the last use of the last view."""
        release, self.release = self.release, lambda: None
        release()


class Later:
    """A thread that waits for things, one after another, and then acts."""

    def __init__(self) -> None:
        self._acts: queue.SimpleQueue[tuple[Callable[[], None], Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        self._thread = threading.Thread(target=self._run, daemon=True, name="after the device")
        self._thread.start()

    def put(self, wait: Callable[[], None], act: Callable[[], None]) -> None:
        """From any thread, in any moment: also by the garbage collector in the middle of another `put`."""
        self._acts.put((wait, act))

    def _run(self) -> None:
        while (next_one := self._acts.get()) is not None:
            wait, act = next_one
            with suppress(RuntimeError):  # a device that cannot be waited for reads nothing any more
                wait()
            act()

    def close(self) -> None:
        self._acts.put(None)
        self._thread.join()


class Cuda:
    """A device of NVIDIA's, as a `DeviceMemory`. It is made on the program's thread."""

    def __init__(self, device: torch.device, runtime: Runtime | None = None) -> None:
        """Raises `DeviceError` where there is none."""
        if not torch.cuda.is_available():
            raise DeviceError("torch finds no CUDA device")
        self.device = torch.device(
            "cuda", torch.cuda.current_device() if device.index is None else device.index
        )
        self.runtime = runtime or Runtime(library(), partial(torch.cuda.device, self.device), driver())
        self.name = self.runtime.bus_name(self.device.index)
        self._program = torch.cuda.current_stream(self.device)
        self._own: dict[bytes, int] = {}
        """Where the pieces of this process are: it cannot open what is its own."""
        self._later = Later()

    def holds(self, tensor: Tensor) -> bool:
        return tensor.device == self.device

    def make(self, nbytes: int) -> Region:
        size = -(-max(nbytes, 1) // GRAIN) * GRAIN
        address = self._allocated(size)
        try:
            handle = self.runtime.handle(address)
        except DeviceError:
            self.runtime.free(address)
            raise
        self._own[handle] = address
        return Region(address, size, self.device, handle, True, partial(self._freed, handle))

    def open(self, handle: bytes, nbytes: int) -> Region:
        if (own := self._own.get(handle)) is not None:
            return Region(own, nbytes, self.device, handle, False, lambda: None)
        address = self.runtime.open(handle)
        extent = self.runtime.extent(address)
        if extent is not None and extent < nbytes:
            self.runtime.shut(address)
            raise DeviceError(f"a piece of {nbytes} bytes in memory of {extent}")
        return Region(address, nbytes, self.device, handle, False, partial(self.runtime.shut, address))

    def finish(self) -> None:
        _marked(torch.cuda.current_stream(self.device)).synchronize()

    def after(self, act: Callable[[], None]) -> None:
        """Waits for the stream on which the view died, and for the program's: a view may die on another
        thread. As with torch's own memory, who reads it on a third stream keeps it until that is done."""
        try:
            here = torch.cuda.current_stream(self.device)
            events = [_marked(stream) for stream in {here, self._program}]
        except RuntimeError:  # the device is broken, or is not to be asked just now
            self._later.put(partial(torch.cuda.synchronize, self.device), act)
        else:
            self._later.put(partial(_await, events), act)

    def close(self) -> None:
        self._later.close()

    def _allocated(self, nbytes: int) -> int:
        """What torch keeps for later is given up for it."""
        try:
            return self.runtime.malloc(nbytes)
        except DeviceError:
            torch.cuda.empty_cache()
            return self.runtime.malloc(nbytes)

    def _freed(self, handle: bytes) -> None:
        self.runtime.free(self._own.pop(handle))


def _marked(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """Where a stream is now; who waits for it takes no processor."""
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


def _await(events: list[torch.cuda.Event]) -> None:
    for event in events:
        event.synchronize()
