"""Finds another Python interpreter and the folders of its packages in the file system. It starts nothing.

    BIN/python       the interpreter
    pyvenv.cfg       in its folder or the one above: a virtual environment
    lib/pythonX.Y/site-packages, and the folders that its .pth files name

The commands that only read a recipe must not start an interpreter that the recipe names. `launch` and
`doctor` start it: `engines/checks/interpreters.py`.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from meshctl.dataclass import dataclass
from meshctl.recipe.compose.folders import contents, files, is_dir, is_file, subfolders

VERSION_MIN = (3, 11)
"""The oldest Python that meshctl supports."""
PACKAGE_FOLDERS = ("site-packages", "dist-packages")
CONFIG = "pyvenv.cfg"
MAX_BYTES = 1 << 20
"""Maximum size of a file that is read."""
EDITABLE = re.compile(r"import\s+(__editable__\w+)")
"""The line of a .pth file by which setuptools makes an editable installation importable."""


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
    installation = _installation(Path(path))
    if installation is None:
        return Interpreter(path)
    if installation.version < VERSION_MIN:
        return Interpreter(path, too_old(installation.version))
    return Interpreter(path, folders=(*python_path(environ), *_import_path(installation, environ)))


def too_old(version: Sequence[int]) -> str:
    """Returns the problem of an interpreter with this version."""
    have, needed = (".".join(map(str, numbers)) for numbers in (version, VERSION_MIN))
    return f"is Python {have}, and meshctl needs {needed}"


def python_path(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the folders of PYTHONPATH, without those that contain the packages of one interpreter."""
    folders = environ.get("PYTHONPATH", "").split(os.pathsep)
    return tuple(one for one in folders if one and not {*Path(one).parts} & {*PACKAGE_FOLDERS})


# The installation


@dataclass(frozen=True)
class _Installation:
    prefix: Path
    base: Path
    """The installation that has the standard library; the same as `prefix` outside a virtual environment."""
    version: tuple[int, ...]
    """(3, 11)"""
    has_system_packages: bool
    """True if the packages of `base` can be imported."""

    @property
    def name(self) -> str:
        return f"python{self.version[0]}.{self.version[1]}"


def _installation(executable: Path) -> _Installation | None:
    """Returns the installation that contains an executable; None if there is none, for example because the
    executable is a script that starts an interpreter."""
    for folder in (executable.parent, executable.parent.parent):
        if is_file(folder / CONFIG):
            settings = _settings(folder / CONFIG)
            version = _version(settings.get("version") or settings.get("version_info") or "")
            base = Path(settings.get("home", "")).parent
            has_system = settings.get("include-system-site-packages", "").lower() == "true"
            version = version or _version_in(folder, "")
            return _Installation(folder, base, version, has_system) if version else None
    real = Path(os.path.realpath(executable))
    prefix = real.parent.parent
    found = _version_in(prefix, real.name)
    return _Installation(prefix, prefix, found, True) if found else None


def _settings(file: Path) -> dict[str, str]:
    pairs = (line.partition("=") for line in _lines(file))
    return {key.strip().lower(): value.strip() for key, _, value in pairs}


def _version(text: str) -> tuple[int, ...]:
    """Returns (3, 11) for `3.11.7` and `python3.11`; empty for a text without a version."""
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else ()


def _version_in(prefix: Path, executable: str) -> tuple[int, ...]:
    """Returns the version of an installation: that of the executable's name, else the only one that has a
    library; empty if it is unknown."""
    found = [name for name in subfolders(prefix / "lib") if re.fullmatch(r"python3\.\d+", name)]
    named = [name for name in found if name == executable]
    return _version((named or found)[0]) if len(named or found) == 1 else ()


def _import_path(installation: _Installation, environ: Mapping[str, str]) -> Iterator[str]:
    yield str(installation.base / "lib" / installation.name)
    places = [installation.prefix / "lib" / installation.name / "site-packages"]
    if installation.has_system_packages:
        places += _system_folders(installation, environ)
    for place in dict.fromkeys(places):
        if is_dir(place):
            yield str(place)
            for file in files(place, ".pth"):
                yield from _folders_in(place, file)


def _system_folders(installation: _Installation, environ: Mapping[str, str]) -> Iterator[Path]:
    """Yields the folders of packages of an installation outside virtual environments. Debian has its own."""
    base, name = installation.base, installation.name
    if not environ.get("PYTHONNOUSERSITE"):
        yield Path(os.path.expanduser("~"), ".local", "lib", name, "site-packages")
    yield base / "local" / "lib" / name / "dist-packages"
    yield base / "lib" / "python3" / "dist-packages"
    yield base / "lib" / name / "site-packages"


def _folders_in(place: Path, file: Path) -> Iterator[str]:
    """Yields the folders that a .pth file adds to the import path, without running its lines of code."""
    for line in map(str.strip, _lines(file)):
        if line.startswith(("import ", "import\t")):
            if found := EDITABLE.match(line):
                yield from _mapped_folders(place / f"{found[1]}.py")
        elif line and not line.startswith("#") and is_dir(place / line):
            yield os.path.normpath(place / line)


def _mapped_folders(finder: Path) -> Iterator[str]:
    """Yields the folders that contain the packages of an editable installation of setuptools, whose finder
    states `MAPPING = {PACKAGE: FOLDER}`."""
    tree = ast.Module([], [])
    with suppress(SyntaxError, ValueError):
        tree = ast.parse("\n".join(_lines(finder)))
    for statement in tree.body:
        target = statement.target if isinstance(statement, ast.AnnAssign) else None
        if isinstance(target, ast.Name) and target.id == "MAPPING" and isinstance(statement, ast.AnnAssign):
            values = statement.value.values if isinstance(statement.value, ast.Dict) else []
            texts = [one.value for one in values if isinstance(one, ast.Constant)]
            yield from (str(Path(text).parent) for text in texts if isinstance(text, str))


def _lines(file: Path) -> list[str]:
    """Returns the lines of a text file; none if it cannot be read."""
    try:
        return contents(file, MAX_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []
