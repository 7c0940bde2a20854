"""Finds the config files in folders.

A path that cannot be accessed (no permission, a name that is too long, a loop of links) counts as missing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from meshctl.package import PACKAGE_DIR

SUFFIXES = (".yaml", ".yml")
KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
NOT_GROUPS = ("", "defaults", "name", "seed")
"""Folders of these names are not config groups, because `name=x` and `seed=3` set values."""


def config_folders(home: Path, path: Sequence[str]) -> list[Path]:
    """Returns the search folders of a recipe in the folder `home`. For the recipe of a run, `path` lists the
    run's import folders; the first is the folder of the original recipe."""
    own = [home, *(Path(folder) for folder in path[:1])]
    return [*(folder / "conf" for folder in own), *own, shipped()]


def shipped() -> Path:
    """Returns the folder of the shipped config groups: in the installed package, or next to the package in a
    checkout."""
    inside = PACKAGE_DIR / "conf"
    return inside if is_dir(inside) else PACKAGE_DIR.parent / "conf"


# Configs


def find_configs(folders: Iterable[Path], name: str) -> list[Path]:
    """Returns the file of config `name` in each folder that has one."""
    found = []
    for folder in folders:
        paths = (folder / f"{name}{suffix}" for suffix in SUFFIXES)
        found += [path for path in paths if is_file(path)][:1]
    return found


def list_options(folders: Iterable[Path], group: str) -> list[str]:
    """Returns the names of the configs in a config group; empty if the group does not exist."""
    if group.split("/")[0] in NOT_GROUPS[1:]:
        return []
    paths = (path for folder in folders for path in files(folder / group, *SUFFIXES))
    return sorted({path.stem for path in paths if is_file(path)})


def list_groups(folders: Sequence[Path]) -> list[str]:
    """Returns the names of the config groups at the top of the folders."""
    names = {name for folder in folders for name in subfolders(folder)}
    return sorted(name for name in names if list_options(folders, name))


# Files


class NoFile(OSError):
    """The path is a pipe, a socket or a device, which may never answer or never end."""


def contents(path: Path, limit: int) -> bytes:
    """Returns the first `limit` + 1 bytes of a file, so that the caller can detect a file that is longer than
    `limit`. Raises `OSError`, and `NoFile` for a pipe, a socket or a device."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    _refuse_special(os.stat(path).st_mode)  # opening a pipe may block
    with open(os.open(path, flags), "rb") as file:
        _refuse_special(os.fstat(file.fileno()).st_mode)  # the file may have been replaced meanwhile
        return file.read(limit + 1) or b""


def _refuse_special(mode: int) -> None:
    kind = KINDS.get(stat.S_IFMT(mode), "")
    if kind and not stat.S_ISDIR(mode):
        raise NoFile(kind)


def is_file(path: Path) -> bool:
    return os.path.isfile(path)


def is_dir(path: Path) -> bool:
    return os.path.isdir(path)


def real(path: Path) -> str:
    """Returns the real path of a file, which is the same for all of its names."""
    return os.path.realpath(path)


def files(folder: Path, *suffixes: str) -> list[Path]:
    """Returns the entries of a folder whose names end with one of the suffixes, sorted by name."""
    return [folder / name for name in _names(folder) if name.endswith(suffixes)]


def subfolders(folder: Path) -> list[str]:
    return [name for name in _names(folder) if os.path.isdir(folder / name)]


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (OSError, ValueError):
        return []
