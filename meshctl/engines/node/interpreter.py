"""The interpreter of a group's workers, and the environment in which another one than the launcher's starts.
Workers of the launcher's interpreter are forked; those of another one are started by exec."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from meshctl.plan.model import Group, Plan
from meshctl.recipe.code.interpreters import CONFIG, interpreter_path, python_path

OF_THE_LAUNCHER = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV")
"""Variables that describe the launcher's interpreter and its packages."""


def server_python(group: Group, path: Sequence[str]) -> str:
    """Returns the interpreter of a group's workers: `sys.executable` if it is the launcher's. `path` lists
    the folders of the recipe's code."""
    if not group.python:
        return sys.executable
    python = interpreter_path(group.python, path[0])
    is_in_same_folder = os.path.dirname(python) == os.path.dirname(sys.executable)
    if is_in_same_folder and os.path.realpath(python) == os.path.realpath(sys.executable):
        return sys.executable
    return python


def groups_of(plan: Plan, path: Sequence[str], python: str = sys.executable) -> tuple[str, ...]:
    """Returns the groups whose workers run an interpreter."""
    return tuple(group.name for group in plan.groups if server_python(group, path) == python)


def environ_of(python: str, inherited: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment in which another interpreter starts, as if its virtual environment had been
    activated. The packages of the launcher's interpreter are not on its import path."""
    found = {name: value for name, value in inherited.items() if name not in OF_THE_LAUNCHER}
    folder = os.path.dirname(python)
    found["PATH"] = os.pathsep.join([folder, inherited.get("PATH", os.defpath)])
    if Path(folder, "..", CONFIG).is_file():
        found["VIRTUAL_ENV"] = os.path.dirname(folder)
    if folders := python_path(inherited):
        found["PYTHONPATH"] = os.pathsep.join(folders)
    return found


def environ_changes(python: str, inherited: Mapping[str, str]) -> dict[str, str | None]:
    """Returns the variables of this environment (`environ_of`) that differ from the inherited ones; None for
    one that it does not have."""
    found = environ_of(python, inherited)
    names = {*found, *inherited}
    return {name: found.get(name) for name in sorted(names) if found.get(name) != inherited.get(name)}
