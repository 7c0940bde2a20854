"""Resource limits of this process's control group and of its ancestors, as a container or a session sets
them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MOUNT = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 60
"""Control groups of version 1 report "no limit" as a number of at least this value."""


def folders(controller: str = "") -> Iterator[Path]:
    """Yields the folders of this process's control group and of its ancestors, innermost first.

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
    # In a container, the path may be the one that the host uses.
    below = root / inside if (root / inside).is_dir() else root
    yield below
    yield from (folder for folder in below.parents if folder == root or root in folder.parents)


def _files(new: str, old: str) -> Iterator[Path]:
    controller, _, name = old.partition("/")
    yield from (folder / new for folder in folders())
    yield from (folder / name for folder in folders(controller) if (MOUNT / controller).is_dir())


def _number(file: Path) -> int | None:
    """Returns the first number in a file; None for `max`, and if the file does not exist."""
    with suppress(OSError, ValueError):
        found = int(file.read_text().split()[0])
        return found if 0 <= found < UNLIMITED else None
    return None


def smallest_limit(new: str, old: str) -> int:
    """Returns the smallest limit of this control group and its ancestors; 0 for no limit.

    `new` is the name of a file of version 2, `old` is CONTROLLER/NAME of version 1.
    """
    return min((found for file in _files(new, old) if (found := _number(file)) is not None), default=0)


def value(new: str, old: str) -> int:
    """Returns the number in a file of this process's own control group; 0 if it is unknown."""
    return next((found for file in _files(new, old) if (found := _number(file)) is not None), 0)


def entry(file: str, key: str) -> int:
    """Returns the number of a line `key number` in a file of this process's own control group; 0 if it is
    unknown."""
    return _entry(next(folders()) / file, key)


def _entry(file: Path, key: str) -> int:
    with suppress(OSError, ValueError, KeyError):
        return int(dict(line.split() for line in file.read_text().splitlines())[key])
    return 0


def kills_for_memory() -> int:
    """Returns how many processes of this control group the kernel has killed because memory ran out; 0 if it
    is unknown."""
    files = [folder / "memory.events" for folder in folders()][:1]
    files += [folder / "memory.oom_control" for folder in folders("memory")][:1]
    return max((_entry(file, "oom_kill") for file in files), default=0)
