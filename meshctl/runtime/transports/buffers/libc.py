"""Calls of libc on memory that Python's `mmap` does not offer."""

from __future__ import annotations

import ctypes
import os

MAYMOVE, FIXED = 1, 2
"""Flags of `mremap`."""
POPULATE_READ = 22
"""Advice of `madvise`, from Linux 5.14 on: make all pages present."""
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
mmap, mremap, mprotect = _libc.mmap, _libc.mremap, _libc.mprotect
munmap, madvise = _libc.munmap, _libc.madvise
mmap.restype = mremap.restype = ctypes.c_void_p
mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
mprotect.argtypes = madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def mapped(address: int | None) -> int:
    """Returns the result of `mmap` or `mremap`. Raises `OSError` if they have failed."""
    if address is None or address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return address
