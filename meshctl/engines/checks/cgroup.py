"""The limits of the container or session: those of this process's control group and of all groups above
it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60
"""Version 1 writes a number from here on where there is no limit."""


def folders(controller: str = "") -> Iterator[Path]:
    """Yields the folder of this process's group and those of the groups above it, innermost first.

    `controller` is the name of a controller of version 1; it is empty for version 2.
    """
    inside = ""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controller in controllers.split(",") or not controllers:
                inside = path.strip("/")
                if controllers:
                    break
    root = MOUNT / controller if controller and (MOUNT / controller).is_dir() else MOUNT
    # In a container the path may be that of the host.
    below = root / inside if (root / inside).is_dir() else root
    yield below
    yield from (folder for folder in below.parents if folder == root or root in folder.parents)


def _files(new: str, old: str) -> Iterator[Path]:
    controller, _, name = old.partition("/")
    yield from (folder / new for folder in folders())
    yield from (folder / name for folder in folders(controller) if (MOUNT / controller).is_dir())


def _number(file: Path) -> int | None:
    """Returns None for `max`, and where there is no such file."""
    with suppress(OSError, ValueError):
        found = int(file.read_text().split()[0])
        return found if 0 <= found < UNLIMITED else None
    return None


def least(new: str, old: str) -> int:
    """Returns the smallest limit of all groups; 0 for none.

    `new` is the name of a file of version 2, `old` is CONTROLLER/NAME of version 1.
    """
    return min((found for file in _files(new, old) if (found := _number(file)) is not None), default=0)


def value(new: str, old: str) -> int:
    """Returns the number of the group itself; 0 where it is not known."""
    return next((found for file in _files(new, old) if (found := _number(file)) is not None), 0)


def entry(file: str, key: str) -> int:
    """Returns the number of a line `key number` in a file of the group itself; 0 where it is not known."""
    for folder in folders():
        with suppress(OSError, ValueError):
            return int(dict(line.split() for line in (folder / file).read_text().splitlines())[key])
        break
    return 0


def cpus() -> float:
    """Returns the processors that the quota is worth; 0 for no quota."""
    found = []
    for folder in folders():
        with suppress(OSError, ValueError):
            quota, period = (folder / "cpu.max").read_text().split()
            found.append(int(quota) / int(period))
    for folder in folders("cpu"):
        quota_us, period_us = _number(folder / "cpu.cfs_quota_us"), _number(folder / "cpu.cfs_period_us")
        if quota_us and period_us:
            found.append(quota_us / period_us)
    return min(found, default=0.0)
