"""Reads the state of the GPUs that a process uses from nvidia-smi.

The kernel knows which devices a process has open, whatever its environment says and however they are numbered
there. nvidia-smi itself may hang with the driver, which is reported, too.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection
from contextlib import suppress

FIELDS = ("index", "utilization.gpu", "memory.used", "memory.total")
MIB = 1 << 20
GB = 1e9


def gpus_of(pid: int) -> set[int]:
    """Returns the numbers of the NVIDIA GPUs that a process has open."""
    found = set[int]()
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                target = os.readlink(f"/proc/{pid}/fd/{number}")
                if match := re.fullmatch(r"/dev/nvidia(\d+)", target):
                    found.add(int(match[1]))
    return found


def command() -> list[str]:
    """Returns the command that lists all GPUs; empty if it is not installed."""
    path = shutil.which("nvidia-smi")
    return [path, f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"] if path else []


def lines_of(output: str, gpus: Collection[int]) -> list[str]:
    """Returns a line for each of some GPUs from the command's output. None of them is in it if the command
    did not answer."""
    rows = [re.split(r"\s*,\s*", row.strip()) for row in output.splitlines()]
    found = {row[0]: row for row in rows if len(row) == len(FIELDS)}
    return [_line(gpu, found.get(str(gpu))) for gpu in sorted(gpus)]


def _line(gpu: int, row: list[str] | None) -> str:
    if row is None:
        return f"GPU {gpu}: nvidia-smi does not answer"
    _, busy, used, total = row
    with suppress(ValueError):
        sizes = [int(size) * MIB / GB for size in (used, total)]
        return f"GPU {gpu}: {busy} % busy, {sizes[0]:.1f} of {sizes[1]:.1f} GB in use"
    return f"GPU {gpu}: {busy} % busy"
