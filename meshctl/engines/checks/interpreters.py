"""Checks the interpreters that groups of components name: each one starts, and has the same meshctl, the
libraries that every worker imports, and those of the extras of its components."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import field
from pathlib import Path

from meshctl import __version__, package
from meshctl.dataclass import dataclass
from meshctl.diagnostics.health import Check
from meshctl.engines.checks.models import extras_of
from meshctl.engines.checks.probe import Answer, Probe
from meshctl.engines.engine import CannotStart
from meshctl.engines.node.interpreter import environ_of, groups_of, server_python
from meshctl.package import (
    PACKAGE_DIR,
    builds_of,
    install_command,
    installed_version,
    is_in_range,
    is_newer,
    our_digest,
    reinstall_command,
    required_ranges,
    requirements,
)
from meshctl.plan.model import Plan
from meshctl.recipe.code.interpreters import VERSION_MIN, problem_of, too_old
from meshctl.text.english import listed
from meshctl.topology.cluster import DIRECT

SECONDS = 60.0
"""Time limit for an interpreter to start and to report its facts."""
WORKER_LIBRARIES = ("torch", "numpy", "msgpack")
"""The libraries that every worker imports."""
NCCL_LIBRARIES = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
"""The libraries that contain the NCCL of torch, of which an installation has one."""
CHILD = f"""
import json, os, sys
sys.path[:] = [folder for folder in sys.path if folder]
script, function, arguments, writer = sys.argv[1:]
answer = {{"python": list(sys.version_info[:2])}}
if sys.version_info >= {VERSION_MIN}:
    import runpy
    answer = runpy.run_path(script)[function](*json.loads(arguments))
os.write(int(writer), (json.dumps([answer, ""]) + "\\n").encode())
"""
"""Calls a function of a file. It also runs in a Python that is too old for the file."""


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
    namesake: str = ""
    """The distribution `meshctl` in words; empty without one."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Library -> version; empty if it is not installed."""


@dataclass(frozen=True)
class Examined:
    """The result of the checks of one interpreter."""

    python: str
    groups: Sequence[str]
    problem: str
    """The reason that it cannot be used, as the end of a sentence about it; empty if it can be."""
    remedy: str
    found: str
    """Its versions."""
    warning: str = ""
    """A difference from the launcher's interpreter that makes the run slower; empty without one."""

    @property
    def sentence(self) -> str:
        groups = listed(self.groups)
        words = f"the interpreter {self.python} of group{'s'[: len(self.groups) > 1]} {groups} {self.problem}"
        return f"{words}: {self.remedy}" if self.remedy else words


def check_interpreters(plan: Plan, path: Sequence[str]) -> None:
    """Raises `CannotStart` for the first interpreter of the plan that cannot be used. `path` lists the
    folders of the recipe's code."""
    for one in examine(plan, path):
        if one.problem:
            raise CannotStart(one.sentence)


def interpreter_checks(plan: Plan, path: Sequence[str]) -> tuple[Check, ...]:
    """Returns the checks of the interpreters for `meshctl doctor`."""
    return tuple(map(_check, examine(plan, path)))


def _check(one: Examined) -> Check:
    groups = listed(one.groups)
    if one.problem:
        return Check("python", groups, "failure", f"{one.python} {one.problem}", one.remedy)
    if one.warning:
        remedy = "install versions of torch with the same NCCL, where speed between the groups matters"
        return Check("python", groups, "warning", f"{one.found}; {one.warning}", remedy)
    return Check("python", groups, "ok", one.found)


def examine(plan: Plan, path: Sequence[str]) -> tuple[Examined, ...]:
    """Examines all interpreters of a plan at the same time, except that of the launcher."""
    pythons = dict.fromkeys(server_python(group, path) for group in plan.groups if not group.program)
    pythons.pop(sys.executable, None)
    with ExitStack() as stack:
        probes = {}
        for python in pythons:
            if not problem_of(python):
                needed = tuple(_needed(plan, path, python))
                probes[python] = Probe(
                    "facts",
                    [[*_builds(needed), *NCCL_LIBRARIES]],
                    SECONDS,
                    (python, "-c", CHILD, package.__file__),
                    environ_of(python, os.environ),
                )
                stack.callback(probes[python].close)
        return tuple(_examined(plan, path, python, probes.get(python)) for python in pythons)


def _needed(plan: Plan, path: Sequence[str], python: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields (extra, its libraries) for the components on an interpreter. The libraries of all workers have
    no extra."""
    yield "", WORKER_LIBRARIES
    for extra in extras_of(plan, path, groups_of(plan, path, python)):
        yield extra, tuple(required_ranges(requirements(), extra))


def _builds(needed: Iterable[tuple[str, Iterable[str]]]) -> Iterator[str]:
    """Yields the names of the distributions that contain the needed libraries."""
    for _, libraries in needed:
        for library in libraries:
            yield from builds_of(library)


def _examined(plan: Plan, path: Sequence[str], python: str, probe: Probe | None) -> Examined:
    groups = groups_of(plan, path, python)
    if probe is None:
        remedy = "" if os.path.lexists(python) else _environment_command(plan, path, python)
        return Examined(python, groups, problem_of(python), remedy, "")
    answer = probe.answer()
    if not isinstance(answer.value, dict):
        return Examined(python, groups, f"cannot be started: {_why(answer)}", "", "")
    facts = Facts(**answer.value)
    problem, remedy = _problem(facts, python, tuple(_needed(plan, path, python)))
    number, versions = ".".join(map(str, facts.python)), facts.versions
    found = f"Python {number}, meshctl {facts.version}, torch {versions.get('torch')}, {python}"
    has_devices = any(plan.group(group).device_type in DIRECT for group in groups)
    return Examined(python, groups, problem, remedy, found, _warning(facts) if has_devices else "")


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


def _warning(facts: Facts) -> str:
    theirs = next((found for name in NCCL_LIBRARIES if (found := facts.versions.get(name))), "")
    ours = next((found for name in NCCL_LIBRARIES if (found := installed_version(name))), "")
    if not theirs or not ours or theirs == ours:
        return ""
    return f"its NCCL is {theirs} and the launcher's {ours}, so tensors between them pass host memory"


def _why(answer: Answer) -> str:
    return answer.error or "it is not a Python interpreter"


def _problem(facts: Facts, python: str, needed: Sequence[tuple[str, tuple[str, ...]]]) -> tuple[str, str]:
    """Returns the problem of an interpreter, as the end of a sentence, and its remedy; empty without one."""
    if tuple(facts.python) < VERSION_MIN:
        return too_old(facts.python), ""
    if not facts.folder:
        return "has no meshctl", install_command(python=python)
    if facts.digest != our_digest():
        return _difference(facts), reinstall_command(python)
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


def _difference(facts: Facts) -> str:
    """Returns the difference between the meshctl of an interpreter and this one, as the end of a sentence."""
    if facts.namesake:
        return f"has {facts.namesake}"
    if facts.version != __version__:
        return f"has meshctl {facts.version or 'of an unknown version'}, and this is {__version__}"
    return f"has another meshctl {__version__}, in {facts.folder}, than this one, in {PACKAGE_DIR}"


def _version(facts: Facts, library: str) -> str:
    """Returns the version of a library; empty if it is not installed."""
    return next(filter(None, (facts.versions[build] for build in builds_of(library))), "")
