"""Facts of machines for the tests of checks."""

from __future__ import annotations


def row(index: int, used_mib: int = 4, mode: str = "Default") -> list[str]:
    """Returns a row of nvidia-smi."""
    return [str(index), "NVIDIA H200", "570.86.15", str(used_mib), str(140 << 10), mode, f"GPU-{index}"]
