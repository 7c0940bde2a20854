"""Finds the run that a person names.

find("", Path("runs"))                           the newest run below `runs`
find("grpo", Path("runs"))                       the newest run of the recipe `grpo`
find("grpo/20260102-030405", Path("runs"))       this run
find("/data/runs/grpo/20260102-030405", ...)     the run in this folder
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from meshctl.run.directory import RunDir
from meshctl.text.english import abbreviated, did_you_mean, listed

FILES = ("recipe.yaml", "plan.json", "start.json")
"""The files that every run directory has."""
MAX_DEPTH = 4
"""The number of folders between a folder of runs and a run. `run.dir` has NAME/TIME below it."""


class NoRun(Exception):
    """A person has named no run that can be read. The message is one line."""


def find(word: str, folder: Path) -> RunDir:
    """Returns the run that `word` names, below `folder` or as a path. Raises `NoRun`."""
    if not word:
        return _newest(folder)
    places = [Path(word)] if Path(word).is_absolute() else [Path(word), folder / word]
    problem: NoRun | None = None
    for place in places:
        if not _exists(place):
            continue
        try:
            return run_at(place)
        except NoRun as error:
            problem = problem or error
        with suppress(NoRun):
            return _newest(place)
    raise problem or NoRun(f"the run `{abbreviated(word)}` does not exist{_known(word, folder)}")


def run_at(path: Path) -> RunDir:
    """Returns the run in a folder. Raises `NoRun` if it is none."""
    try:
        names = set(os.listdir(path))
    except FileNotFoundError:
        raise NoRun(f"the folder {path} does not exist") from None
    except NotADirectoryError:
        raise NoRun(f"{path} is a file: give the folder of a run, runs/NAME/TIME") from None
    except OSError as error:
        raise NoRun(_unreadable(path, error)) from None
    if missing := [name for name in FILES if name not in names]:
        raise NoRun(f"{path} is a folder but not a run: it has no {listed(missing)}")
    return RunDir(path.resolve())


def runs_below(folder: Path) -> list[RunDir]:
    """Returns all runs below a folder, or in it, in no order. Folders that cannot be read are left out, but
    `NoRun` is raised if `folder` itself cannot."""
    try:
        os.listdir(folder)
    except FileNotFoundError:
        raise NoRun(f"no runs: the folder {folder} does not exist") from None
    except OSError as error:
        raise NoRun(_unreadable(folder, error)) from None
    return [RunDir(Path(path)) for path in _below(os.path.abspath(folder), MAX_DEPTH)]


def launched_at(run: RunDir) -> float:
    """Returns when the last attempt of a run was begun, in seconds since the epoch; 0 if it was deleted."""
    try:
        return run.start.stat().st_mtime
    except OSError:
        return 0.0


def name_of(run: RunDir) -> str:
    """Returns NAME/TIME."""
    return "/".join(run.path.parts[-2:])


def _newest(folder: Path) -> RunDir:
    runs = runs_below(folder)
    if not runs:
        raise NoRun(f"{folder} has no runs")
    return max(runs, key=lambda run: (launched_at(run), run.path.name))


def _below(folder: str, depth: int) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError:
        return
    if {entry.name for entry in found}.issuperset(FILES):
        yield folder
        return
    for entry in found if depth else ():
        if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
            yield from _below(entry.path, depth - 1)


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except PermissionError:
        return True
    except (OSError, ValueError):  # a name that is too long, or has a NUL
        return False
    return True


def _known(word: str, folder: Path) -> str:
    try:
        runs = sorted(runs_below(folder), key=launched_at, reverse=True)
    except NoRun as error:
        return f": {error}"
    names = [name_of(run) for run in runs]
    options = names if "/" in word else [name.partition("/")[0] for name in names]
    help = did_you_mean(word, dict.fromkeys(options))
    return f" below {folder}: {help}" if help else f": {folder} has no runs"


def _unreadable(path: Path, error: OSError) -> str:
    return f"{path} cannot be read: {(error.strerror or str(error)).lower()}"
