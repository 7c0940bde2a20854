"""Looking into folders, and which of them have config groups.

What cannot be looked at (no permission, a name too long, a loop of links) is simply not there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from meshctl.package import PACKAGE_DIR


def config_folders(home: Path, path: Sequence[str]) -> list[Path]:
    """Where config groups are found: beside the recipe, in its folder (of a run: in that of its recipe), in
    meshctl."""
    own = [home, *(Path(folder) for folder in path[:1])]
    return [*(folder / "conf" for folder in own), *own, shipped()]


def shipped() -> Path:
    """The config groups of meshctl itself: in the package once installed, beside it in a checkout."""
    package = PACKAGE_DIR
    inside = package / "conf"
    return inside if is_dir(inside) else package.parent / "conf"


class NoFile(OSError):
    """A pipe, a socket or a device: it may never answer, or never end."""


def contents(path: Path, most: int) -> bytes:
    """What a file holds, up to so many bytes and one more where it is longer. Raises `OSError`, of which
    `NoFile` is one."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    _refused(os.stat(path).st_mode)
    with open(
        os.open(path, flags), "rb"
    ) as file:  # it may have been replaced in between, and even opening a pipe may wait
        _refused(os.fstat(file.fileno()).st_mode)
        return file.read(most + 1) or b""


def _refused(mode: int) -> None:
    kinds = {
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    if kind := kinds.get(stat.S_IFMT(mode)):
        raise NoFile(kind)


def is_file(path: Path) -> bool:
    return os.path.isfile(path)


def is_dir(path: Path) -> bool:
    return os.path.isdir(path)


def real(path: Path) -> str:
    """The same for two names of one file."""
    return os.path.realpath(path)


def files(folder: Path, *suffixes: str) -> list[Path]:
    """Those that end so, by name."""
    return [folder / name for name in _names(folder) if name.endswith(suffixes)]


def subfolders(folder: Path) -> list[str]:
    return [name for name in _names(folder) if os.path.isdir(folder / name)]


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []
