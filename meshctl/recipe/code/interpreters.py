"""Finds another Python interpreter in the file system, and the folders of its packages: `site-packages`
beside it, and the folders that .pth files name.

The commands that only read a recipe must not start an interpreter that the recipe names. `launch` and
`doctor` start it: `engines/checks/interpreters.py`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.recipe.compose.folders import contents, files, is_dir, is_file, subfolders

VERSION_MIN = (3, 11)
"""The oldest Python that meshctl supports."""
PACKAGE_FOLDERS = ("site-packages", "dist-packages")
CONFIG = "pyvenv.cfg"
MAX_BYTES = 1 << 20
"""Maximum size of a file that is read."""


@dataclass(frozen=True)
class Interpreter:
    path: str
    """The absolute path of the executable; the name itself if PATH has no such executable."""
    problem: str = ""
    """The reason that this machine cannot use it, as the end of a sentence about it; empty if it can."""
    folders: tuple[str, ...] = ()
    """Its import path; empty if its packages were not found."""


def interpreter_path(python: str, home: str) -> str:
    """Returns the path of an interpreter that a recipe in the folder `home` names: a path, which may be
    relative to `home` or begin with `~`, or a name that is searched on PATH, then in `home`."""
    from shutil import which  # takes longer than the rest of this module

    expanded = os.path.expanduser(python)
    if "/" in expanded:
        return str(Path(home, expanded))
    found = which(expanded)
    local = Path(home, expanded)
    return os.path.abspath(found) if found else str(local if os.path.exists(local) else python)


def problem_of(path: str) -> str:
    """Returns why an executable cannot be started, as the end of a sentence; empty if no reason is known."""
    if "/" not in path:
        return "is not on PATH"
    if is_dir(Path(path)):
        inside = Path(path, "bin", "python")
        return f"is a folder: write {inside}" if is_file(inside) else "is a folder"
    if not is_file(Path(path)):
        return "does not exist"
    return "" if os.access(path, os.X_OK) else "is not executable"


def read_interpreter(python: str, home: str, environ: Mapping[str, str]) -> Interpreter:
    """Returns what the file system shows of the interpreter that a recipe in the folder `home` names."""
    path = interpreter_path(python, home)
    if problem := problem_of(path):
        return Interpreter(path, problem)
    folders = tuple(_import_path(Path(path)))
    return Interpreter(path, folders=(*python_path(environ), *folders) if folders else ())


def python_path(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the folders of PYTHONPATH, without those that contain the packages of one interpreter."""
    folders = environ.get("PYTHONPATH", "").split(os.pathsep)
    return tuple(one for one in folders if one and not {*Path(one).parts} & {*PACKAGE_FOLDERS})


def _import_path(executable: Path) -> Iterator[str]:
    """Yields the folders of the packages of an environment, or else of the installation that has the real
    file of its executable, and those that .pth files add, without running their lines of code."""
    for prefix in (executable.parent.parent, Path(os.path.realpath(executable)).parent.parent):
        places = [prefix / "lib" / name / "site-packages" for name in subfolders(prefix / "lib")]
        if found := [place for place in places if is_dir(place)]:
            for place in found:
                yield str(place)
                lines = [line.strip() for file in files(place, ".pth") for line in _lines(file)]
                named = [os.path.normpath(place / line) for line in lines if line and line[0] != "#"]
                yield from (folder for folder in named if is_dir(Path(folder)))
            return


def _lines(file: Path) -> list[str]:
    try:
        return contents(file, MAX_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []
