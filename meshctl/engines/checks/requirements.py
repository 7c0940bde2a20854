"""The needs of a recipe, and what they require of one machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field

from meshctl.dataclass import dataclass

GIB, MIB = 1 << 30, 1 << 20


@dataclass(frozen=True)
class Needs:
    """The least bytes that a recipe takes. Those that are unknown count as 0."""

    worker_bytes: Mapping[str, int] = field(default_factory=dict)
    """Group -> the memory of the models of one worker."""
    copy_bytes: Mapping[str, int] = field(default_factory=dict)
    """Group -> the memory of the copies for asynchronous checkpoints of one worker."""
    checkpoint_bytes: int = 0
    """The size of one checkpoint."""
    checkpoints: int = 0
    """The greatest number of further checkpoints that are on disk at a time."""


@dataclass(frozen=True)
class Requirements:
    """The requirements of a recipe on one machine, or without a recipe those of every run."""

    runs: str = "runs"
    """The folder that contains run directories."""
    workers: int = 0
    checkpoint_bytes: int = 0
    checkpoints: int = 0
    model_bytes: int = 0
    """The memory that the models of groups on cpu take."""
    copy_bytes: int = 0
    """The memory that the copies for asynchronous checkpoints take."""
    device_bytes: Mapping[str, int] = field(default_factory=dict)
    """CUDA device, by its hardware name -> the memory that its models take. The devices of a worker that has
    several are one key (`0,1`), and share its models."""
    shared_devices: Sequence[str] = ()
    """The CUDA devices that several workers use."""

    @property
    def devices(self) -> list[str]:
        """The hardware names of the recipe's CUDA devices."""
        return [name for key in self.device_bytes for name in names_in(key)]


def names_in(key: str) -> list[str]:
    """Returns the hardware names in a key of `Requirements.device_bytes`."""
    return key.split(",")


def amount(size_bytes: float) -> str:
    """Returns a size in words: `20 KiB`, `512 MiB`, `1.5 GiB`, `24 GiB`."""
    if 0 < size_bytes < MIB:
        return f"{math.ceil(size_bytes / 1024)} KiB"
    if size_bytes < GIB:
        return f"{size_bytes / MIB:.0f} MiB"
    digits = 1 if size_bytes < 10 * GIB else 0
    return f"{size_bytes / GIB:,.{digits}f} GiB"
