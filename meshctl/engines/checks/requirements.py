"""The requirements that one recipe, or any run, has on a machine."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, NamedTuple

from meshctl.dataclass import dataclass
from meshctl.diagnostics.health import Check, State

GIB, MIB = 1 << 30, 1 << 20


class Finding(NamedTuple):
    """A `Check` without its subject (e.g. `network`), which the runner of the checks adds."""

    name: str
    state: State
    found: str
    remedy: str = ""
    is_of_recipe: bool = False
    """True if it compares the machine with a need of the recipe. `launch` shows such warnings and all
    failures."""

    def of_recipe(self) -> Finding:
        return self._replace(is_of_recipe=True)

    def check(self, subject: str) -> Check:
        return Check(subject, self.name, self.state, self.found, self.remedy)


def ok(name: str, found: str) -> Finding:
    return Finding(name, "ok", found)


def warning(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, "warning", found, remedy)


def failure(name: str, found: str, remedy: str) -> Finding:
    return Finding(name, "failure", found, remedy)


def failure_if(error: str, name: str, found: str, remedy: str) -> Finding:
    """Returns a failure if `error` is not empty, else ok."""
    return failure(name, error, remedy) if error else ok(name, found)


@dataclass(frozen=True)
class Bounds:
    """Two lower bounds of a quantity. A value below `recommended` is a warning, one below `minimum` a
    failure."""

    recommended: float
    minimum: float = 0

    def judge(self, name: str, value: float, found: str, remedy: str, why: str = "") -> Finding:
        """Returns the finding for a value. `why` is added to `found` if the value is below `recommended`."""
        if value >= self.recommended:
            return ok(name, found)
        return (failure if value < self.minimum else warning)(name, found + why, remedy)


@dataclass(frozen=True)
class Requirements:
    """The requirements of one recipe, or without a recipe those of every run."""

    runs: str = "runs"
    """The folder that contains run directories."""
    path: Sequence[str] = ()
    """The first folders of the workers' import path."""
    device_types: Sequence[str] | None = None
    """The device types of a recipe's groups; None without a recipe."""
    workers: int = 0
    """The number of workers of a recipe; 0 without a recipe."""
    checkpoint_bytes: int = 0
    """The least bytes of one checkpoint; 0 if they are unknown."""
    checkpoints: int = 0
    """The greatest number of further checkpoints that are on disk at a time."""
    model_bytes: int = 0
    """The least memory that the models of groups on cpu take, in bytes; 0 if it is unknown."""
    device_bytes: Mapping[str, int] = field(default_factory=dict)
    """CUDA device, by its hardware name -> the least memory that its models take, in bytes; 0 if it is
    unknown. The devices of a worker that has several are one key (`0,1`), and share its models."""
    shared_devices: Sequence[str] = ()
    """The CUDA devices that several workers use."""
    copy_bytes: int = 0
    """The least memory that the copies of asynchronous checkpoints take, in bytes; 0 if it is unknown."""

    @property
    def runs_folder(self) -> Path:
        return Path(self.runs).absolute()

    @property
    def devices(self) -> Sequence[str]:
        """The hardware names of the recipe's CUDA devices."""
        return [name for names in self.device_bytes for name in names.split(",")]

    def broken(self, device_type: str) -> State:
        """Returns the severity if devices of this type exist and cannot be used: a failure if the recipe
        needs them."""
        required = self.device_types is None or device_type in self.device_types
        return "failure" if required else "warning"

    def missing(self, device_type: str) -> State:
        """Returns the severity if software for this device type is not installed: a failure if a recipe needs
        it."""
        required = self.device_types is not None and device_type in self.device_types
        return "failure" if required else "warning"


@dataclass(frozen=True)
class Needs:
    """The needs of a recipe, from which the requirements of each node follow."""

    requirements: Requirements = Requirements()
    """The requirements of the whole recipe."""
    worker_bytes: Mapping[str, int] = field(default_factory=dict)
    """Group -> the least memory that the models of one worker take, in bytes; 0 if it is unknown."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Needs:
        """Returns the needs of their fields as plain data."""
        return cls(Requirements(**data["requirements"]), data["worker_bytes"])


def amount(size_bytes: float) -> str:
    """Returns a size in words: `20 KiB`, `512 MiB`, `1.5 GiB`, `24 GiB`."""
    if 0 < size_bytes < MIB:
        return f"{math.ceil(size_bytes / 1024)} KiB"
    if size_bytes < GIB:
        return f"{size_bytes / MIB:.0f} MiB"
    digits = 1 if size_bytes < 10 * GIB else 0
    return f"{size_bytes / GIB:,.{digits}f} GiB"
