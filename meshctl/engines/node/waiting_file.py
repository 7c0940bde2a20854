"""The file for which a process waits in state D, by the system call that it is in.

file_of(pid)            /data/runs/NAME/TIME/metrics.jsonl; empty where the kernel does not show it
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

PATH_BYTES_MAX = 4096
AT_FDCWD = 0xFFFFFF9C
"""The number for the working directory in place of a descriptor, as 32 bits."""


def file_of(pid: int, task: int = 0) -> str:
    """Returns the file that a system call of a process names by its first arguments: a descriptor, or an
    absolute path. `task` is a thread of the process; 0 for its main thread."""
    with suppress(OSError, ValueError):
        words = Path(f"/proc/{pid}/task/{task or pid}/syscall").read_text().split()
        first, second = (int(word, 16) for word in words[1:3])
        if first & 0xFFFFFFFF == AT_FDCWD:
            return _path_at(pid, second)
        return _file_behind(pid, first) or _path_at(pid, first)
    return ""


def _file_behind(pid: int, descriptor: int) -> str:
    with suppress(OSError):
        path = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        return path if path.startswith("/") else ""
    return ""


def _path_at(pid: int, address: int) -> str:
    """Returns the absolute path that is in the memory of a process."""
    with suppress(OSError, ValueError, OverflowError), open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        text = os.fsdecode(memory.read(PATH_BYTES_MAX).partition(b"\0")[0])
        return text if text.startswith("/") and text.isprintable() else ""
    return ""
