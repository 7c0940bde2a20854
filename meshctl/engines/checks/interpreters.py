"""Checks the interpreters that groups of components name: each one starts, and has the same meshctl, the
libraries that every worker imports, and those of the extras of its components."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from pathlib import Path

from meshctl import __version__, package
from meshctl.dataclass import dataclass
from meshctl.engines.checks.fork import output_of
from meshctl.engines.checks.models import extras_of
from meshctl.engines.engine import CannotStart
from meshctl.engines.node.worker_env import environ_of, groups_of, server_python
from meshctl.package import (
    PACKAGE_DIR,
    builds_of,
    install_command,
    is_in_range,
    is_newer,
    our_digest,
    reinstall_command,
    required_ranges,
    requirements,
)
from meshctl.plan.model import Plan
from meshctl.recipe.code.interpreters import VERSION_MIN, problem_of
from meshctl.text.english import listed

SECONDS = 60.0
"""Time limit for an interpreter to start and to report its facts."""
WORKER_LIBRARIES = ("torch", "numpy", "msgpack")
"""The libraries that every worker imports."""
CHILD = f"""
import json, sys
sys.path[:] = [folder for folder in sys.path if folder]
script, libraries = sys.argv[1:]
answer = {{"python": list(sys.version_info[:2])}}
if sys.version_info >= {VERSION_MIN}:
    import runpy
    answer = runpy.run_path(script)["facts"](json.loads(libraries))
print("\\n" + json.dumps(answer))
"""
"""Prints the facts of `package.py` in the last line. Also runs in a Python that is too old for the file."""


@dataclass(frozen=True)
class Facts:
    """The facts that an interpreter reports about itself. An interpreter that is too old reports only its
    version."""

    python: Sequence[int]
    folder: str = ""
    """The folder of its meshctl; empty if it has none."""
    digest: str = ""
    """The digest of the source of its meshctl."""
    version: str = ""
    """The version of its meshctl; empty if it is unknown."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library -> version; empty if it is not installed."""


def check_interpreters(plan: Plan, path: Sequence[str]) -> None:
    """Examines all interpreters of a plan at the same time, except that of the launcher. Raises `CannotStart`
    for the first one that cannot be used. `path` lists the folders of the recipe's code."""
    pythons = dict.fromkeys(server_python(group, path) for group in plan.groups if not group.program)
    pythons.pop(sys.executable, None)
    if not pythons:
        return
    with ThreadPoolExecutor() as pool:
        problems = pool.map(lambda python: _problem(plan, path, python), pythons)
        for python, (problem, remedy) in zip(pythons, problems, strict=True):
            if problem:
                groups = groups_of(plan, path, python)
                of = f"group{'s'[: len(groups) > 1]} {listed(groups)}"
                text = f"the interpreter {python} of {of} {problem}"
                raise CannotStart(f"{text}: {remedy}" if remedy else text)


def _problem(plan: Plan, path: Sequence[str], python: str) -> tuple[str, str]:
    """Returns why an interpreter cannot be used, as the end of a sentence, and the remedy; empty if it can
    be."""
    if problem := problem_of(python):
        return problem, "" if os.path.lexists(python) else _environment_command(plan, path, python)
    needed = tuple(_needed(plan, path, python))
    libraries = [build for _, names in needed for name in names for build in builds_of(name)]
    command = (python, "-c", CHILD, package.__file__, json.dumps(libraries))
    try:
        output = output_of(command, SECONDS, environ_of(python, os.environ))
        facts = Facts(**json.loads(output.splitlines()[-1]))
    except OSError as error:
        return f"cannot be started: {error}", ""
    except (LookupError, TypeError, ValueError):
        return "cannot be started: it is not a Python interpreter", ""
    return _difference(facts, python, needed)


def _needed(plan: Plan, path: Sequence[str], python: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields (extra, its libraries) for the components on an interpreter. The libraries of all workers have
    no extra."""
    yield "", WORKER_LIBRARIES
    for extra in extras_of(plan, path, groups_of(plan, path, python)):
        yield extra, tuple(required_ranges(requirements(), extra))


def _environment_command(plan: Plan, path: Sequence[str], python: str) -> str:
    """Returns the command that makes the virtual environment of an interpreter, with the extras of its
    components; empty if the path is not that of a virtual environment."""
    place = Path(os.path.normpath(python))
    if place.parent.name != "bin":
        return ""
    extras = ",".join(extras_of(plan, path, groups_of(plan, path, python)))
    environment = shlex.join(["python3", "-m", "venv", str(place.parent.parent)])
    install = install_command(extras, str(place))
    return f"{environment}{' && ' if ' -m pip ' in install else ', then '}{install}"


def _difference(facts: Facts, python: str, needed: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[str, str]:
    """Returns what an interpreter lacks, as the end of a sentence, and its remedy; empty for nothing."""
    if tuple(facts.python) < VERSION_MIN:
        return f"is Python {'.'.join(map(str, facts.python))}, and meshctl needs 3.11", ""
    if not facts.folder:
        return "has no meshctl", install_command(python=python)
    if facts.digest != our_digest():
        version = facts.version or "of an unknown version"
        other = f"has meshctl {version}, and this is {__version__}"
        if facts.version == __version__:
            other = f"has another meshctl {version}, in {facts.folder}, than this one, in {PACKAGE_DIR}"
        return other, reinstall_command(python)
    for extra, libraries in needed:
        if missing := [name for name in libraries if not _version(facts, name)]:
            return f"lacks {listed(missing)}", install_command(extra, python)
        ranges = required_ranges(requirements(), extra)
        for name in libraries:
            have, required = _version(facts, name), ranges.get(name, "")
            is_right = is_in_range(have, required) or (extra and is_newer(have, required))
            if not is_right:
                wanted = f"has {name} {have}, and meshctl requires {required}"
                return wanted, install_command(extra, python)
    return "", ""


def _version(facts: Facts, library: str) -> str:
    """Returns the version of a library; empty if it is not installed."""
    return next(filter(None, (facts.versions[build] for build in builds_of(library))), "")
