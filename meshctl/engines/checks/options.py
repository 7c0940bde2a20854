"""What is asked of a machine: what a recipe wants, or without one, what any run does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meshctl.diagnostics.health import State

GIB, MIB = 1 << 30, 1 << 20


@dataclass(frozen=True)
class Asked:
    runs: Path = Path("runs")
    """Where run directories are made."""
    path: tuple[str, ...] = ()
    """The folders that come first when workers import something."""
    device_types: frozenset[str] | None = None
    """Those of a recipe's groups; none without a recipe."""
    workers: int = 0
    """Of a recipe."""

    def broken(self, device_type: str) -> State:
        """How bad it is that devices which are there cannot be used: no failure for a recipe that does not
        want them."""
        return "failure" if self.device_types is None or device_type in self.device_types else "warning"

    def missing(self, device_type: str) -> State:
        """How bad it is that something for a type of device was never installed: a failure only for a recipe
        that wants it."""
        return "failure" if self.device_types is not None and device_type in self.device_types else "warning"


def amount(size: float) -> str:
    """`512 MiB`, `1.5 GiB`, `24 GiB`."""
    if size < GIB:
        return f"{size / MIB:.0f} MiB"
    return f"{size / GIB:.1f} GiB" if size < 10 * GIB else f"{size / GIB:,.0f} GiB"
