"""What the container or the session is allowed: the limits of this process's control group and of all above
it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
NONE = 1 << 60
"""From here on a limit is none: so version 1 says it."""


def folders(old: str = "") -> Iterator[Path]:
    """Of this process's group and of those above it, innermost first; `old` is the controller's name in
    version 1."""
    inside = ""
    with suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if old in controllers.split(",") or not controllers:
                inside = path.strip("/")
                if controllers:
                    break
    root = MOUNT / old if old and (MOUNT / old).is_dir() else MOUNT
    below = (
        root / inside if (root / inside).is_dir() else root
    )  # in a container the path may be that of the host
    yield below
    yield from (folder for folder in below.parents if folder == root or root in folder.parents)


def _files(new: str, old: str) -> Iterator[Path]:
    controller, _, name = old.partition("/")
    yield from (folder / new for folder in folders())
    yield from (folder / name for folder in folders(controller) if (MOUNT / controller).is_dir())


def _number(file: Path) -> int | None:
    """None for `max`, and where there is no such file."""
    with suppress(OSError, ValueError):
        found = int(file.read_text().split()[0])
        return found if 0 <= found < NONE else None
    return None


def least(new: str, old: str) -> int:
    """The smallest limit of all; 0 for none. `new` is the file's name in version 2, `old` is CONTROLLER/NAME
    in version 1."""
    return min((found for file in _files(new, old) if (found := _number(file)) is not None), default=0)


def value(new: str, old: str) -> int:
    """Of the group itself; 0 where it is not told."""
    return next((found for file in _files(new, old) if (found := _number(file)) is not None), 0)


def entry(file: str, key: str) -> int:
    """A line `key number` of a file of the group itself; 0 where it is not told."""
    for folder in folders():
        with suppress(OSError, ValueError):
            return int(dict(line.split() for line in (folder / file).read_text().splitlines())[key])
        break
    return 0


def cpus() -> float:
    """How many the quota is worth; 0 for none."""
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
