"""A stand-in for a GPU, for tests on a machine without one. Its memory consists of memfds, its tensors are
created from addresses as those of CUDA are, and queued work completes a little later: `after` is late."""

from __future__ import annotations

import mmap
import os
import random
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import numpy
import pytest
import torch
from torch import Tensor

from meshctl.runtime.devices.backend import DeviceError
from meshctl.runtime.devices.cuda import Later, Region

_HANDLE = struct.Struct("<qq")
CPU = torch.device("cpu")


class Standin:
    """One worker's device."""

    def __init__(self, name: str = "standin", late: float = 0.002, transfer_library: str = "NCCL 1") -> None:
        self.name, self.transfer_library = name, transfer_library
        self.pieces: list[Region] = []
        """The pieces of this process, and the pieces of others that it has opened and not closed."""
        self._late = late
        self._later = Later()

    def holds(self, tensor: Tensor) -> bool:
        return any(piece.address <= tensor.data_ptr() < piece.address + piece.nbytes for piece in self.pieces)

    def make(self, nbytes: int) -> Region:
        size = -(-max(nbytes, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        file = os.memfd_create("device", os.MFD_CLOEXEC)
        os.ftruncate(file, size)
        return self._mapped(file, size, _HANDLE.pack(os.getpid(), file), outlasts=True)

    def open(self, handle: bytes, nbytes: int) -> Region:
        try:
            pid, number = _HANDLE.unpack(handle)
            file = os.open(f"/proc/{pid}/fd/{number}", os.O_RDWR | os.O_CLOEXEC)
            if os.fstat(file).st_size < nbytes:
                os.close(file)
                raise OSError(f"less than {nbytes} bytes")
        except (OSError, struct.error) as error:
            raise DeviceError(f"open: {error}") from None
        return self._mapped(file, nbytes, handle, outlasts=False)

    def _mapped(self, file: int, nbytes: int, handle: bytes, *, outlasts: bool) -> Region:
        pages = mmap.mmap(file, nbytes)
        address = numpy.frombuffer(pages, numpy.uint8).ctypes.data
        piece = Region(address, nbytes, CPU, handle, outlasts, lambda: None)
        piece.release = partial(self._closed, piece, pages, file)
        self.pieces.append(piece)
        return piece

    def _closed(self, piece: Region, pages: mmap.mmap, file: int) -> None:
        """Overwrites freed memory, so that a late read returns wrong data, as on a device."""
        self.pieces.remove(piece)
        if piece.outlasts:
            pages[:] = b"\xff" * len(pages)
        os.close(file)

    def finish(self) -> None:
        time.sleep(random.random() * self._late)

    def after(self, act: Callable[[], None]) -> None:
        self._later.put(self.finish, act)

    def settle(self) -> None:
        """Waits until all that is queued, and the acts after it, are done."""
        done = threading.Event()
        self._later.put(lambda: None, done.set)
        done.wait()

    def close(self) -> None:
        self._later.close()
        for piece in [*self.pieces]:
            with suppress(OSError):
                piece.close()


def gpus(count: int) -> Callable[[pytest.Function], pytest.Function]:
    """Marks a test that needs this many CUDA devices."""
    there = torch.cuda.device_count()
    skip = pytest.mark.skipif(
        there < count,
        reason=f"needs {count} CUDA device{'s' * (count > 1)}, and torch sees {there or 'none'}",
    )

    def marked(test: pytest.Function) -> pytest.Function:
        return pytest.mark.gpu(skip(test))

    return marked
