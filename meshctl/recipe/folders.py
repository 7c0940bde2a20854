"""Looking into folders. What cannot be looked at (no permission, a name too long, a loop of links) is simply not there."""

from __future__ import annotations

import os
from pathlib import Path


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
