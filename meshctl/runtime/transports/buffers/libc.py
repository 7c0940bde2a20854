"""libc's calls on memory that Python's own `mmap` does not make."""

from __future__ import annotations

import ctypes
import os

MAYMOVE, FIXED = 1, 2
"""Of `mremap`."""
POPULATE_READ = 22
"""Of `madvise`, from Linux 5.14 on: all pages are there before they are asked for."""
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
mmap, mremap, mprotect, munmap, madvise = (
    _libc.mmap,
    _libc.mremap,
    _libc.mprotect,
    _libc.munmap,
    _libc.madvise,
)
mmap.restype = mremap.restype = ctypes.c_void_p
mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
mprotect.argtypes = madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def mapped(address: int | None) -> int:
    """What `mmap` or `mremap` gave. Raises `OSError` where they have failed."""
    if address is None or address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return address
