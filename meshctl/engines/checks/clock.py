"""The operating system, its clock, and whether this process ignores Ctrl-C."""

from __future__ import annotations

import platform
import signal
import time
from collections.abc import Iterator
from typing import Any

from meshctl.dataclass import dataclass
from meshctl.engines.checks.requirements import Finding, Requirements, failure, ok, warning
from meshctl.package import PACKAGE_DIR

YEAR_S = 365 * 24 * 3600
HOUR_S = 3600


@dataclass(frozen=True)
class Facts:
    system: str = "Linux"
    release: str = ""
    now: float = 0.0
    """The time, in seconds since the epoch."""
    written: float = 0.0
    """Modification time of meshctl's own files, in seconds since the epoch."""
    is_interrupt_ignored: bool = False


def measure(requirements: dict[str, Any]) -> dict[str, Any]:
    return {
        "system": platform.system(),
        "release": platform.release(),
        "now": time.time(),
        "written": (PACKAGE_DIR / "__init__.py").stat().st_mtime,
        "is_interrupt_ignored": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
    }


def judge(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    yield _system(facts)
    yield _clock(facts)
    if facts.is_interrupt_ignored:
        found = "the shell that started this process ignores it, so a run would ignore it too"
        yield warning("Ctrl-C", found, "start in the foreground, or end a run with kill -TERM")


def _system(facts: Facts) -> Finding:
    if facts.system != "Linux":
        remedy = "run it on Linux; validate, show-topology and init work here"
        return failure("system", f"{facts.system}: launch needs Linux", remedy)
    return ok("system", f"{facts.system} {facts.release}")


def _clock(facts: Facts) -> Finding:
    remedy = "set it (timedatectl set-ntp true): run directories are named after the time"
    shown = time.strftime("%Y-%m-%d %H:%M", time.localtime(facts.now))
    if facts.now < facts.written - HOUR_S:
        return warning("clock", f"{shown}: meshctl's own files are newer", remedy)
    if facts.now > facts.written + 20 * YEAR_S:
        return warning("clock", f"{shown}: meshctl's own files are 20 years older", remedy)
    return ok("clock", shown)
