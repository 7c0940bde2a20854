"""What a run requires of a machine: of one recipe, or of any run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from meshctl.diagnostics.health import State

GIB, MIB = 1 << 30, 1 << 20


class Finding(NamedTuple):
    """A `Check` without its subject, such as `network`; the runner of the checks adds it."""

    name: str
    state: State
    found: str
    remedy: str = ""


def ok(name: str, found: str) -> Finding:
    return Finding(name, "ok", found)


def warning(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, "warning", found, remedy)


def failure(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, "failure", found, remedy)


def works(name: str, found: str, error: str, remedy: str) -> Finding:
    """Returns the finding for something that was tried: a failure where `error` is not empty, else ok."""
    return failure(name, error, remedy) if error else ok(name, found)


@dataclass(frozen=True)
class Bounds:
    """Two lower bounds of a quantity: below `enough` it is a warning, and below `least` a failure."""

    enough: float
    least: float = 0

    def judge(self, name: str, value: float, found: str, remedy: str, why: str = "") -> Finding:
        """Returns the finding for a value. `why`, which says for what the value is too little, is added where
        it is below `enough`."""
        if value >= self.enough:
            return ok(name, found)
        return (failure if value < self.least else warning)(name, found + why, remedy)


@dataclass(frozen=True)
class Requirements:
    """The requirements of a recipe on the machine; without a recipe, those of every run."""

    runs: str = "runs"
    """The folder in which run directories are made."""
    path: Sequence[str] = ()
    """The folders that come first on the import path of workers."""
    device_types: Sequence[str] | None = None
    """The device types of a recipe's groups; None without a recipe."""
    workers: int = 0
    """The number of workers of a recipe; 0 without one."""

    @property
    def runs_folder(self) -> Path:
        return Path(self.runs).absolute()

    def broken(self, device_type: str) -> State:
        """Returns the severity of devices that exist and cannot be used."""
        required = self.device_types is None or device_type in self.device_types
        return "failure" if required else "warning"

    def missing(self, device_type: str) -> State:
        """Returns the severity of software for a device type that was never installed."""
        required = self.device_types is not None and device_type in self.device_types
        return "failure" if required else "warning"


def amount(size_bytes: float) -> str:
    """Returns a size for people: `512 MiB`, `1.5 GiB`, `24 GiB`."""
    if size_bytes < GIB:
        return f"{size_bytes / MIB:.0f} MiB"
    digits = 1 if size_bytes < 10 * GIB else 0
    return f"{size_bytes / GIB:,.{digits}f} GiB"
